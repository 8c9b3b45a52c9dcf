"""The notebook runs from top to bottom: its cells, in their order, from its file."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import warm

import maskwright
from maskwright.api import training
from maskwright.processes import child
from maskwright.processes.parent import PARENT

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebooks" / "from-text-to-model.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}
SMALL = {"MEGABYTES": 0.7, "STEPS": 60, "SEEDS": 1}


class Start(warm.Popen):
    """Processes that begin with torch imported, whose parent is the server that forks them."""

    def __init__(self, words, *, env, **options):
        env = dict(env)
        assert env.pop(PARENT) == str(os.getpid())
        super().__init__(words, env=env, **options)


def execute(name, names):
    """What a notebook would show below that cell: the value of its last expression."""
    body = ast.parse(CODE[name], name).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


def execute_all(folder):
    """What is shown by cell, and what the names are at the end; with smaller settings than those of the first cell."""
    names = {"__name__": "__main__"}
    shown = {}
    for name in CODE:
        shown[name] = execute(name, names)
        if name == "settings":
            assert {*SMALL, "FOLDER"} == {key for key in names if key.isupper()}
            names |= SMALL | {"FOLDER": str(folder)}
    return shown, names


def test_it_is_a_notebook_that_nobody_has_run():
    whole = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS) and next(iter(CODE)) == "settings"
    for cell in CELLS:
        kind = {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {}
        assert cell == {
            "cell_type": cell["cell_type"],
            "id": cell["id"],
            "metadata": {},
            "source": cell["source"],
            **kind,
        }


def test_it_uses_the_interface_alone():
    trees = [ast.parse(code, name) for name, code in CODE.items()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "maskwright"
    }
    assert used <= {*maskwright.__all__} and {"train_tokenizer", "prepare", "pretrain", "finetune", "compare"} <= used
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not [module for module in imported if (module or "").startswith("maskwright")]


@pytest.mark.parametrize(
    ("source", "torch", "wanted"),
    [
        ("", "2.13.0+cu130", ["maskwright[train] @ {folder}/maskwright-1-py3-none-any.whl", "torch==2.13.0+cu130"]),
        ("up/maskwright-2-py3-none-any.whl", None, ["maskwright[train] @ {folder}/up/maskwright-2-py3-none-any.whl"]),
        ("git+https://example.org/m.git", None, ["maskwright[train] @ git+https://example.org/m.git"]),
    ],
    ids=["a wheel beside it", "a wheel", "git"],
)
def test_what_the_first_cell_installs(source, torch, wanted, tmp_path, monkeypatch):
    """And never another torch than the one that is there."""
    present = {"torch": torch}
    asked = []

    def install(words, **options):
        asked.append(words)
        return SimpleNamespace(returncode=len(asked) - 1, stderr="ERROR: ResolutionImpossible")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", present.get)
    monkeypatch.setattr("importlib.metadata.version", present.__getitem__)
    monkeypatch.setattr("subprocess.run", install)
    monkeypatch.setitem(CODE, "install", CODE["install"].replace('SOURCE = ""', f"SOURCE = {source!r}"))
    if not source:
        with pytest.raises(RuntimeError, match="has no wheel of maskwright"):
            execute("install", {})
    (tmp_path / "maskwright-1-py3-none-any.whl").touch()
    execute("install", {})
    wanted = [word.format(folder=tmp_path.as_uri()) for word in wanted]
    assert asked == [[sys.executable, "-m", "pip", "install", *wanted]]
    with pytest.raises(RuntimeError, match="ResolutionImpossible"):
        execute("install", {})
    present["maskwright"] = "1"
    execute("install", {})
    assert len(asked) == 2


@pytest.mark.long
def test_it_runs_from_top_to_bottom_and_again(tmp_path, monkeypatch, capsys):
    starts = SimpleNamespace(Popen=Start, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    for module in (training, child):
        monkeypatch.setattr(module, "subprocess", starts)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "made"
    shown, names = execute_all(folder)
    printed = capsys.readouterr().out
    run = names["run"]
    losses = [line["valid_loss"] for line in run.metrics if "valid_loss" in line]
    assert losses[-1] < losses[0] - 1 and run.checkpoints[-1] == SMALL["STEPS"]
    assert f"{SMALL['STEPS']:7} steps   loss {run.metrics[-2]['loss']:.2f}" in printed and "held out: " in printed
    assert "held-out loss" in shown["plot"].html and shown["plot"]._repr_html_().startswith("<iframe")
    assert "ModernBertForMaskedLM" in printed and (folder / "model" / "model.safetensors").exists()
    pretrained_on = {one["text"] for one in names["texts"]}
    judged = [json.loads(line)["text"] for line in (folder / "packages-test.jsonl").read_text().splitlines()]
    assert judged and not pretrained_on & {*judged}
    assert names["tuned"].results["test"]["accuracy"] > 0.125
    assert [one.verdict for one in names["verdict"].report.comparisons] == ["cannot conclude"]
    assert (folder / "report.html").exists() and names["verdict"].page in printed

    # A cell that is run again makes nothing again.
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    execute_all(folder)
    assert len(before) > 1 and before == {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
