"""The command line as a user runs it, in processes of its own, from raw text to a folder that transformers loads."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import command_line
import pytest
import warm
from command_line import COMMAND, maskwright, slow_after, write_config
from conftest import SHARED
from safetensors.numpy import save_file

from maskwright.cloud.provision.image import pack
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore
from maskwright.model.config import ModelConfig
from maskwright.model.hf.config import to_hf_config
from maskwright.model.initial import initial_parameters
from maskwright.prove.verify_resume import compare
from maskwright.run.directory import RunDirectory
from maskwright.tasks import quickstart
from maskwright.tasks.docstrings import docstrings, gather
from maskwright.text.sources import Sources
from maskwright.training import checkpoint

ROOT = Path(__file__).resolve().parents[2]
FAST = {
    "model.architecture": "modernbert",
    "optimizer.kind": "muon",
    "optimizer.learning_rate": "8e-3",
    "schedule.kind": "wsd",
}
"""What learns in 200 steps more than the other does in 1,300."""


@pytest.mark.parametrize(
    ("recipe", "steps"),
    [
        pytest.param({}, 1300, id="roberta", marks=[pytest.mark.long, pytest.mark.large]),
        pytest.param(FAST, 200, id="modernbert"),
    ],
)
def test_from_text_to_transformers(recipe: dict[str, str], steps: int, corpus: Path, tmp_path: Path) -> None:
    audited = json.loads(maskwright("data", "audit", corpus, "--json", cwd=tmp_path))
    assert (audited["documents"], audited["layout"]) == (300, "sentences")
    maskwright("tokenizer", "train", corpus, "--to", "tokenizer", "--vocab-size", 400, cwd=tmp_path)
    inspected = json.loads(maskwright("tokenizer", "inspect", "tokenizer", corpus, "--json", cwd=tmp_path))
    assert inspected["unknown_tokens"] == 0 and inspected["fertility"] < 2
    how = ("--tokenizer", "tokenizer", "--to", "store", "--valid-fraction", 0.1)
    maskwright("data", "prepare", corpus, *how, cwd=tmp_path)
    maskwright("data", "verify", "store", cwd=tmp_path)
    assert json.loads(maskwright("data", "inspect", "store", "--json", cwd=tmp_path))["counts"]["kept"] == 300

    write_config(tmp_path / "run.yaml", "store")
    assert "150 steps of 8 rows" in maskwright("pretrain", "run.yaml", "--run", "run", "--dry-run", cwd=tmp_path)
    assert not (tmp_path / "run").exists()
    keys = [f"schedule.steps={steps}", "masking.rate=0.3", "model.hidden_dropout=0.0", "batch.micro_batch_rows=16"]
    keys += ["optimizer.learning_rate=2e-3", *(f"{key}={value}" for key, value in recipe.items())]
    longer = [part for key in keys for part in ("--set", key)]
    maskwright("pretrain", "run.yaml", "--run", "run", *longer, cwd=tmp_path)
    result = json.loads(maskwright("evaluate", "run", "--json", cwd=tmp_path))
    assert result["loss"] < result["unigram_loss"] - 1.0
    assert result["accuracy"] > 2 * result["unigram_accuracy"] > 0

    maskwright("export", "run", "--to", "model", cwd=tmp_path)
    again = json.loads(maskwright("evaluate", "model", "--store", "store", "--seq-len", 48, "--json", cwd=tmp_path))
    assert again["loss"] == pytest.approx(result["loss"], rel=1e-6)
    sentence = "The fox saw the<mask>."
    own = json.loads(maskwright("fill", "model", sentence, "--top", 3, "--json", cwd=tmp_path))["texts"][0]["masks"][0]
    import transformers

    pipeline = transformers.pipeline("fill-mask", model=str(tmp_path / "model"), top_k=3, device="cpu")
    theirs = pipeline(sentence)
    assert [guess["token"] for guess in own] == [guess["token_str"] for guess in theirs]
    # transformers spreads probability over special tokens too; ours over text only
    assert own[0]["probability"] == pytest.approx(theirs[0]["score"], rel=0.02)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "held-out loss" in card and "schedule.steps" in card
    assert str(tmp_path) not in card

    write_config(tmp_path / "more.yaml", "store", steps=20)
    more = ("--set", "model.init_from=model", "--set", "model.hidden_dropout=0.1")
    maskwright("pretrain", "more.yaml", "--run", "more", *more, cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "more" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["valid_loss"] == pytest.approx(again["loss"], rel=0.01)


@pytest.fixture(scope="module")
def straight(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that nobody stopped, and its configuration."""
    folder = tmp_path_factory.mktemp("straight")
    write_config(folder / "run.yaml", store.location, steps=90)
    maskwright("pretrain", "run.yaml", "--run", "straight", cwd=folder)
    return folder


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_continues_exactly(kind: signal.Signals, straight: Path, tmp_path: Path) -> None:
    killed = RunDirectory(str(tmp_path / "killed"))
    command = [*COMMAND, "pretrain", str(straight / "run.yaml"), "--run", killed.location]
    slow = [sys.executable, "-c", f"{slow_after(30, tmp_path / 'never')}from maskwright.cli.main import main; main()"]
    for minimum in (25, 50):
        process = warm.Popen([*slow, *command[3:]], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        metrics = Path(killed.metrics)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            if metrics.exists() and f'"step": {minimum},' in metrics.read_text():
                break
            time.sleep(0.01)
        os.kill(process.pid, kind)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == (-kind if kind == signal.SIGKILL else 75), errors
        if kind != signal.SIGKILL:
            assert "the same command continues" in errors
            status = killed.read_status()
            assert status and status.phase == "stopped"
    maskwright(*command[3:], cwd=tmp_path)
    tensors, lines, differences = compare(RunDirectory(str(straight / "straight")), killed)
    assert tensors > 50 and lines > 15 and differences == []
    assert checkpoint.whole_steps(killed.checkpoints)[-1] == 90


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
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


@pytest.mark.long
@pytest.mark.large
def test_quickstart_on_own_text(wheel: Path, corpus: Path, tmp_path: Path) -> None:
    """By the wheel alone, in a folder without the repository."""
    maskwright = partial(command_line.maskwright, command=[str(wheel)], popen=subprocess.Popen)
    words = ("quickstart", "--text", corpus, "--to", "qs", "--steps", 60)
    out = maskwright(*words, cwd=tmp_path)
    text, last = ("data audit", "tokenizer train", "data prepare"), ("evaluate", "export", "fill", "report")
    for command in (*text, "pretrain", *last):
        assert f"$ maskwright {command}" in out
    for line in ("before training", "unigram baseline", "after training", "Next, a larger model:"):
        assert line in out
    assert "ModernBERT with Muon, 2 layers of 128, trained for" in out
    assert out.rstrip().endswith("qs/report.html") and "Predictions" in (tmp_path / "qs/report.html").read_text()
    assert "ModernBertForMaskedLM" in (tmp_path / "qs" / "model" / "config.json").read_text()
    other = [*COMMAND, "quickstart", "--to", "qs", "--architecture", "roberta"]
    with warm.Popen(other, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2 and "holds a quickstart with --architecture modernbert" in errors
    again = maskwright(*words, cwd=tmp_path)
    assert "$ maskwright tokenizer train" not in again and "after training" in again
    short = ("--set", "data.store=qs/store", "--set", "schedule.steps=3")
    maskwright("pretrain", "nano", "--run", "run", *short, cwd=tmp_path)
    assert (tmp_path / "run" / "config.yaml").read_text() == (ROOT / "recipes" / "nano.yaml").read_text()
    (package,) = tmp_path.glob("venv/lib/python*/site-packages/maskwright")
    assert (package / "py.typed").is_file() and list(package.glob("cloud/terraform/modules/*/*.tf"))


@pytest.mark.long
def test_a_stopped_quickstart_saves_and_goes_on(corpus: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "quickstart", "--text", str(corpus), "--to", "qs", "--steps", "400"]
    command += ["--architecture", "roberta"]
    process = warm.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "qs" / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (metrics.exists() and '"loss"' in metrics.read_text()):
        time.sleep(0.02)
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


def test_too_little_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one line\nand another\n")
    command = [*COMMAND, "quickstart", "--text", "a.txt", "--to", "qs"]
    with warm.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "none of 2 documents fell into the held-out share of 0.03. Fix: give more documents" in errors
    assert "`maskwright data prepare` ended with exit code 2" in errors.splitlines()[-1]
    assert not (tmp_path / "qs" / "store").exists()


def test_docstrings_are_gathered_without_running_code(tmp_path: Path) -> None:
    source = tmp_path / "evil.py"
    source.write_text('"""' + "words " * 20 + '"""\nraise SystemExit("ran")\ndef f():\n    """short"""\n')
    assert list(docstrings(str(source))) == [(1, ("words " * 20).strip())]
    assert gather(str(tmp_path / "a.jsonl"), max_bytes=200_000) > 100
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert 200_000 <= sum(len(line["text"].encode()) for line in lines) < 250_000
    assert all(os.path.isfile(line["source"]) for line in lines)


def test_the_verdict_of_a_quickstart(tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labelled strings are what they are said to be, and the command that it prints ends with a verdict."""
    place = quickstart.QuickstartPaths.under(str(tmp_path))
    (tmp_path / "text").mkdir()
    gather(place.corpus, max_bytes=200_000)
    monkeypatch.setattr(quickstart, "VERDICT_BUDGET", ["--learning-rates", "1e-3", "--seeds", "1"])
    asked: list[str] = []
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

    shutil.copytree(tokenizer, place.run)
    shape = ModelConfig(400, 32, 2, 2, 64, 66)
    Path(place.run, "config.json").write_text(json.dumps(to_hf_config(shape)))
    save_file(initial_parameters(shape, 7), f"{place.run}/model.safetensors")
    out = maskwright(*asked, "--set", "schedule.epochs=0.1", cwd=tmp_path)
    assert "Cannot conclude whether pretrained helped on packages." in out and "verdict.html" in out


def test_a_quickstart_fills_in_text_that_begins_with_a_dash(
    call: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As front matter of Markdown does. Training is left out. Begun before, it says that its steps stay."""
    text, said, filled = tmp_path / "pages.txt", list[str](), list[str]()
    text.write_text("".join(f"--- title: page {n} - item {n} - another item\n" for n in range(300)))
    real = ("tokenizer", "data", "fill")
    monkeypatch.setattr(quickstart.child, "run", lambda words: call(*words)[0] if words[0] in real else 0)
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


def test_a_verdict_takes_the_built_in_text(corpus: Path, tmp_path: Path) -> None:
    words = ["quickstart", "--text", corpus, "--verdict", "--to", "qs"]
    with warm.Popen([*COMMAND, *map(str, words)], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2 and not (tmp_path / "qs").exists()
    assert "--verdict: has no effect with --text. Fix: leave it out" in errors


@pytest.mark.long
@pytest.mark.skipif(not (SHARED / "books").is_dir(), reason="needs the shared folder of public-domain books")
def test_held_out_loss_falls_on_real_books(tmp_path: Path) -> None:
    """English prose through the spine: three validations, each clearly better than the one before."""
    book = SHARED / "books" / "books_00.txt.zst"
    maskwright("tokenizer", "train", book, "--to", "tokenizer", "--vocab-size", 4096, cwd=tmp_path)
    prepare = ("data", "prepare", book, "--tokenizer", "tokenizer", "--to", "store", "--valid-fraction", 0.02)
    maskwright(*prepare, cwd=tmp_path)
    write_config(tmp_path / "run.yaml", "store")
    keys = ["model.size=nano", "batch.micro_batch_rows=16", "evaluation.every_steps=50", "engine.threads=0"]
    options = [part for key in keys for part in ("--set", key)]
    maskwright("pretrain", "run.yaml", "--run", "run", *options, cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["valid_loss"] for line in lines if "valid_loss" in line]
    assert len(losses) == 4
    assert all(after < before - 0.02 for before, after in zip(losses, losses[1:], strict=False)), losses
