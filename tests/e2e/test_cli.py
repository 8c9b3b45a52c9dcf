"""The command line as a user runs it, in processes of its own; tests/pages types it from raw text to a verdict."""

import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import warm
from command_line import COMMAND, maskwright
from finetuned import pretrained_folder
from packaging.requirements import Requirement
from private_network import wait_until

import maskwright as package
from maskwright.cloud.provision.image import pack
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.tasks import quickstart
from maskwright.tasks.docstrings import docstrings, gather
from maskwright.tasks.pretrain.run import pretrain
from maskwright.text.sources import Sources

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def wheel(tmp_path):
    """The command in an environment of its own: a wheel of what images are built from, beside the packages that are
    installed here."""
    source, environment = tmp_path / "source", tmp_path / "venv"
    with tarfile.open(fileobj=io.BytesIO(pack(str(ROOT)))) as archive:
        archive.extractall(source, filter="data")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "installed.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", "--no-build-isolation", str(source)], check=True)
    return environment / "bin" / "maskwright"


def test_the_wheel_trains_exports_and_submits_without_the_repository(wheel, store, tmp_path):
    def typed(*words):
        return maskwright(*words, cwd=Path("/"), command=[str(wheel)], popen=subprocess.Popen)

    assert package.__version__ in typed("--version")
    keys = (f"data.store={store.location}", "data.seq_len=64", "schedule.steps=2", "evaluation.max_rows=4")
    run, model = tmp_path / "run", tmp_path / "model"
    typed("pretrain", "nano", "--run", run, *(word for key in keys for word in ("--set", key)))
    assert (run / "config.yaml").read_text() == (ROOT / "recipes" / "nano.yaml").read_text()
    typed("export", run, "--to", model)
    assert "RobertaForMaskedLM" in (model / "config.json").read_text()
    script = typed("submit", "slurm", "small", "--run", "/runs/one", "--set", "data.store=/runs/store", "--dry-run")
    assert "#SBATCH" in script
    (installed,) = tmp_path.glob("venv/lib/python*/site-packages/maskwright")
    assert (installed / "py.typed").is_file()


def test_a_stopped_quickstart_saves_and_goes_on(corpus, tmp_path, cli, monkeypatch):
    command = [*COMMAND, "quickstart", "--text", str(corpus), "--to", "qs", "--steps", "150"]
    command += ["--architecture", "roberta"]
    process = warm.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "qs" / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"loss"' in metrics.read_text())
    process.terminate()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output
    assert "SIGTERM: saving and stopping" in output
    assert list((tmp_path / "qs" / "run" / "checkpoints").glob("*/MANIFEST.json"))
    command.append("--json")  # what is printed is then on stderr, also by the commands that it types
    with warm.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "continuing at step" in errors
    assert "RoBERTa with AdamW" in errors and "after training" in errors and "$ maskwright evaluate" in errors
    found = json.loads(out)
    assert (found["version"], found["architecture"], found["verdict"]) == (1, "roberta", None)
    assert found["after"]["loss"] < found["before"]["loss"] and found["tokens"] > 0
    assert all((tmp_path / found[name]).exists() for name in ("config", "store", "run", "model", "report"))
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        result = cli("quickstart", "--to", "qs", "--architecture", "modernbert")
    assert result.code == 2 and "holds a quickstart with --architecture roberta" in result.err


def test_docstrings_are_gathered_without_running_code(tmp_path):
    source = tmp_path / "evil.py"
    source.write_text('"""' + "words " * 20 + '"""\nraise SystemExit("ran")\ndef f():\n    """short"""\n')
    assert list(docstrings(str(source))) == [(1, ("words " * 20).strip())]
    assert gather(str(tmp_path / "a.jsonl"), max_bytes=200_000) > 100
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert 200_000 <= sum(len(line["text"].encode()) for line in lines) < 250_000
    assert all(os.path.isfile(line["source"]) for line in lines)


def test_the_verdict_of_a_quickstart(tokenizer, tmp_path, monkeypatch):
    """Its labelled strings are what they are said to be, and the command that it prints ends with a verdict."""
    place = quickstart.QuickstartPaths.under(str(tmp_path))
    (tmp_path / "text").mkdir()
    gather(place.corpus, max_bytes=200_000)
    monkeypatch.setattr(quickstart, "VERDICT_BUDGET", ["--learning-rates", "1e-3", "--seeds", "1"])
    asked = []
    monkeypatch.setattr(quickstart, "_run", lambda *words: asked.extend(words))
    options = PrepareOptions(valid_fraction=quickstart.VALID_FRACTION_DOCSTRINGS)
    store = prepare(Request(Sources([place.corpus]), tokenizer, place.store, options))
    quickstart._compare_with_random(place)
    train, test = ([*map(json.loads, Path(path).read_text().splitlines())] for path in (place.train, place.test))
    documents = [json.loads(line)["text"] for line in Path(place.corpus).read_text().splitlines()]
    places = [store.origin("valid", number) for number in range(store.split("valid").documents)]
    held_out = {documents[int(where.rpartition(":")[2]) - 1] for where in places}
    assert {one["text"] for one in test} <= held_out and not held_out & {one["text"] for one in train}
    assert {one["package"] for one in train} == {one["package"] for one in test} and len(test) >= 10
    assert all(f"/{one['package']}" in one["source"] for one in [*train, *test])
    assert max(Counter(one["package"] for one in train).values()) <= quickstart.MOST_TRAIN

    pretrained_folder(Path(place.run), tokenizer)
    out = maskwright(*asked, "--set", "schedule.epochs=0.1", cwd=tmp_path)
    assert "Cannot conclude whether pretrained helped on packages." in out and "verdict.html" in out


def test_a_quickstart_fills_in_text_that_begins_with_a_dash(cli, tmp_path, monkeypatch):
    """As front matter of Markdown does. Training is left out. Begun before, it says that its steps stay."""
    text, said, filled = tmp_path / "pages.txt", list[str](), list[str]()
    text.write_text("".join(f"--- title: page {n} - item {n} - another item\n" for n in range(300)))
    real = ("tokenizer", "data", "fill")
    monkeypatch.setattr(quickstart.child, "run", lambda words: cli(*words).code if words[0] in real else 0)
    monkeypatch.setattr("maskwright.tasks.models.load.load_model", lambda model: None)
    monkeypatch.setattr("maskwright.tasks.use.fill.fill", lambda model, sentence, top: filled.append(sentence) or [])
    monkeypatch.setattr(quickstart, "_reached", lambda place: {})
    monkeypatch.setattr(quickstart, "_print_summary", lambda paths, reached, users_text: None)
    monkeypatch.setattr(quickstart, "say", said.append)
    for steps in (20, 40):
        options = {"architecture": "modernbert", "layout": "lines", "text_column": "text"}
        quickstart.quickstart([str(text)], str(tmp_path / "qs"), steps=steps, **options)
        assert [line for line in said if "--steps" in line] == said and len(said) == (steps == 40)
    assert len(filled) == 6 and all(sentence.startswith("--- title: page") for sentence in filled)


# ---- a machine without the training packages ------------------------------------------------------------------------


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


BLOCKED = """
import sys
from importlib.machinery import PathFinder
find, absent = PathFinder.find_spec, set(sys.argv[1].split(","))
def present(name, path=None, target=None):
    return None if name.partition(".")[0] in absent else find(name, path, target)
PathFinder.find_spec = present
import json, shlex
from maskwright.cli import main as cli
print(json.dumps([cli.run(shlex.split(line)) for line in sys.argv[2:]]))
"""


def needed(requirements):
    """Names of the distributions that these take, with all that those take."""
    found = set()
    for line in requirements:
        requirement = Requirement(line)
        name = requirement.name.lower().replace("_", "-")
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found |= {name} | needed(importlib.metadata.requires(name) or [])
    return found


def test_a_machine_without_the_training_packages_submits_and_watches(config, tmp_path):
    """With nothing but the dependencies that pyproject.toml says everybody needs."""
    pretrain(config(**{"schedule.steps": 2, "schedule.warmup_steps": 1}), str(tmp_path / "run"))
    here = needed(PROJECT["dependencies"]) | {"maskwright"}
    absent = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not {owner.lower().replace("_", "-") for owner in owners} & here
    }
    assert {"torch", "numpy", "pyarrow", "transformers", "jax", "ray", "gcsfs"} & absent
    place = "--run /runs/one --set data.store=/runs/store"
    light = [
        "--help", "status run --json", "logs run", "schema", "schema", "recipes small", "schema environment",
        "watch --once", "watch . --json",
        "doctor",
        f"submit slurm small {place} --dry-run",
        f"submit kubernetes small {place} --image a/b:c --mount data:/runs --dry-run",
    ]  # fmt: skip
    heavy = [
        f"pretrain small {place}",
        "evaluate run",
        "stop run",
        "quickstart",
        "status gs://b/runs/one",
        "watch --web",
    ]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, ",".join(absent), *light, *heavy],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == [0] * len(light) + [2] * len(heavy), done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    extras = (
        "[train]",
        "[train]",
        "is not running (done at step 2)",
        "the package torch is not installed",
        "[gcp]",
        "[web]",
    )
    assert len(said) == len(extras) and all(extra in line for extra, line in zip(extras, said, strict=True)), said
    assert "Traceback" not in done.stderr
