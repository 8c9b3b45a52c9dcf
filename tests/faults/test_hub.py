"""Models by their address on the Hugging Face Hub: what is downloaded, what is recorded, and what users are told when
it cannot be had. The client is `huggingface_hub` itself; the Hub is a stand-in on loopback."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import huggingface_hub
import numpy as np
import pytest
from fake_hub import TOKEN, Repository, fake_hub
from finetuned import foxes
from huggingface_hub import HfFileSystem, constants
from in_process import SHAPE
from safetensors.numpy import save_file

from maskwright.config.finetuning import LabelledData, Task
from maskwright.core.errors import InputError
from maskwright.core.hub import OWNERS, how_to_get
from maskwright.labels.dataset import read_dataset
from maskwright.labels.files import with_splits
from maskwright.model.initial import initial_parameters
from maskwright.tasks.compare.arms import read_starts
from maskwright.tasks.models import hub as hub_task
from maskwright.tasks.models.load import load_model
from maskwright.tasks.models.modules import pooling_of, warn_if_untold

PAGE = "{endpoint}/{repo_id}/resolve/{revision}/{filename}"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Empty, as is the cache on this machine; nobody is logged in."""
    with fake_hub() as made:
        set_endpoint(monkeypatch, made.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its storage is no part of the stand-in
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield made


def set_endpoint(monkeypatch, url):
    """What HF_ENDPOINT does where it is set before huggingface_hub is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", PAGE.replace("{endpoint}", url))


def clutter(folder):
    """What others have beside a model, and nobody needs."""
    for name in ("modeling_base.py", "pytorch_model.bin", "optimizer.pt", "README.md", "tf_model.h5"):
        (folder / name).write_text("not for us")


def test_a_run_begins_at_a_commit_and_stays_with_it(hub, cli, folder, config_file, tmp_path):
    clutter(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / "modules.json").write_text(
        '[{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]'
    )
    commit, out = hub.add("team/base", folder), tmp_path / "out"
    address = f"hf://team/base@{commit}"
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    config = config_file(model={"init_from": "hf://team/base"})
    first = cli("pretrain", config, "--run", out, "--stop-after-steps", 1)
    assert first.code == 76, first.err
    assert f"hf://team/base is commit {commit}" in first.err and f"continuing from {address}" in first.err
    pooling = {"modules.json", "1_Pooling/config.json"}
    assert hub.downloaded() == {"config.json", "tokenizer.json", "model.safetensors", *pooling}
    assert pooling_of(hub_task.local(address)) == (True, False)
    assert f"warning: {address}: its modules.json makes other vectors than the mean, which `embed`" in first.err
    record = json.loads((out / "config.resolved.json").read_text())
    assert record["began_from"] == {"location": address, "sha256s": {"model.safetensors": weights}}
    assert record["config"]["model.init_from"] == address
    child = cli("pretrain", config, "--run", tmp_path / "child", "--from", out, "--stop-after-steps", 1)
    assert child.code == 76, child.err
    assert f"which began with the weights of {address}" in cli("status", tmp_path / "child").out
    assert (
        json.loads((tmp_path / "child/config.resolved.json").read_text())["began_from"]["began_from"]
        == record["began_from"]
    )

    save_file(initial_parameters(SHAPE, 1), str(folder / "model.safetensors"), {"format": "pt"})
    assert hub.add("team/base", folder) != commit
    shutil.rmtree(out / "checkpoints")
    (out / "status.json").unlink()
    asked = len(hub.requests)
    again = cli("pretrain", config, "--run", out, "--stop-after-steps", 1)
    assert again.code == 76 and f"continuing from {address}" in again.err, again.err
    shutil.rmtree(tmp_path / "cache")
    assert cli("pretrain", config, "--run", out).code == 0
    assert len(hub.requests) == asked
    assert json.loads((out / "config.resolved.json").read_text()) == record

    assert cli("export", out, "--to", tmp_path / "exported").code == 0
    card = (tmp_path / "exported" / "README.md").read_text()
    assert '\nbase_model: "team/base"\n' in card and f"- base model `{address}`\n" in card
    assert "continued from team/base with" in card and weights in card and "To fill in before others see this" in card


def test_every_command_on_models_takes_an_address(hub, cli, folder, tmp_path, monkeypatch):
    """And offline what is in the cache, saying which commit that is."""
    commit = hub.add("team/base", folder)
    pinned = f"hf://team/base@{commit}"
    tuned = cli(
        *("finetune", foxes(tmp_path), "--run", tmp_path / "tuned", "--set", "model.init_from=hf://team/base"),
        *("--set", "schedule.steps=1"),
    )
    assert tuned.code == 0 and f"starting from {pinned}" in tuned.err, tuned.err
    assert json.loads((tmp_path / "tuned" / "config.resolved.json").read_text())["began_from"]["location"] == pinned
    with pytest.raises(InputError, match=f"^{pinned}: is named twice"):
        read_starts(["hf://team/base", "other=hf://team/base@main"], None)
    starts = read_starts(["hf://team/base@main", "random"], None)
    assert (starts[0].name, starts[0].locations) == ("base", (pinned,))
    asked = len(hub.requests)
    assert cli("export", pinned, "--to", tmp_path / "copy").code == 0
    assert len(hub.requests) == asked
    assert "\n# team/base\n" in (tmp_path / "copy" / "README.md").read_text()

    set_endpoint(monkeypatch, "http://127.0.0.1:9")
    filled = cli("fill", "hf://team/base", "The <mask> saw a bridge.")
    assert filled.code == 0 and f"the Hub does not answer: hf://team/base is commit {commit} of the cache" in filled.err
    missing = cli("fill", "hf://team/other", "The <mask>.")
    assert (missing.code, "the Hub does not answer" in missing.error) == (2, True)
    assert "hf download team/other --local-dir models/other, then copy the folder here" in missing.error
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "cache" / "models--team--base" / "snapshots" / commit / "model.safetensors").unlink()
    gone = cli("fill", "hf://team/base", "The <mask>.")
    assert (gone.code, "HF_HUB_OFFLINE is set, and the cache on this machine does not" in gone.error) == (2, True)


def test_what_transformers_left_in_the_cache_is_found_without_network(hub, cli, folder, monkeypatch, tmp_path, capfd):
    """It keeps a model by the name that it was asked for, here one without an owner; years ago, as a pickle."""
    commit = hub.add("FacebookAI/roberta-base", folder)
    hub_task.local("hf://FacebookAI/roberta-base")
    (tmp_path / "cache" / "models--FacebookAI--roberta-base").rename(tmp_path / "cache" / "models--roberta-base")
    snapshot = tmp_path / "cache" / "models--roberta-base" / "snapshots" / commit
    asked = len(hub.requests)
    assert hub_task.local(f"hf://FacebookAI/roberta-base@{commit}") == str(snapshot) and len(hub.requests) == asked
    warn_if_untold(str(snapshot))
    assert "modules.json" not in capfd.readouterr().err, "the download has asked for it"
    shutil.rmtree(tmp_path / "cache" / "models--roberta-base" / ".no_exist")
    warn_if_untold(str(snapshot))
    assert "the cache does not show whether the model has a modules.json" in capfd.readouterr().err
    hub.broken.append("GET /api/models/FacebookAI/roberta-base")
    found = cli("fill", "hf://FacebookAI/roberta-base", "The <mask>.")
    assert found.code == 0 and f"is commit {commit} of the cache" in found.err, found.err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert cli("fill", "hf://FacebookAI/roberta-base", "The <mask>.").code == 0
    for address in ("hf://FacebookAI/roberta-large", "hf://other/roberta-base"):  # another model, and another owner's
        gone = cli("fill", address, "The <mask>.")
        fix = f"unset it; set HF_HUB_CACHE, if it is in another cache than {tmp_path / 'cache'}; or, on a machine with"
        assert gone.code == 2 and fix in gone.error, gone.err
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    pickled = cli("fill", "hf://FacebookAI/roberta-base", "The <mask>.")
    assert pickled.code == 2 and f"Fix: maskwright import weights {snapshot} --to FOLDER" in pickled.error, pickled.err


def test_a_model_with_a_vocabulary_alone_is_whole_in_the_cache(hub, tmp_path, monkeypatch):
    """As BERT's first models have it: no tokenizer.json. A pinned commit that is here asks the network for nothing."""
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    (folder / "config.json").write_text("{}")
    save_file({"a": np.zeros(1, np.float32)}, str(folder / "model.safetensors"))
    address = f"hf://team/bert@{hub.add('team/bert', folder)}"
    there = hub_task.local(address, weights=False)
    asked = len(hub.requests)
    assert hub_task.local(address, weights=False) == there and len(hub.requests) == asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_task.local(address, weights=False) == there


def test_parts_of_weights_and_the_tokenizer_alone(hub, folder, corpus, tmp_path):
    """In a process of its own, as HF_ENDPOINT, HF_HOME and HF_TOKEN reach one."""
    names = list(parameters := initial_parameters(SHAPE, 0))
    (folder / "model.safetensors").unlink()
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: parameters[name] for name in own}, str(folder / file), {"format": "pt"})
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    commit = hub.add("team/base", folder, private=True)
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    command = [sys.executable, "-m", "maskwright", "data", "prepare", str(corpus), "--layout", "sentences"]
    command += ["--tokenizer", "hf://team/base", "--to", str(tmp_path / "store")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert hub.downloaded() == {"config.json", "tokenizer.json"}
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert not kept and TOKEN not in ended.stdout + ended.stderr

    hub.repositories["team/base"].private = False
    found = load_model("hf://team/base")
    assert found.location == f"hf://team/base@{commit}"
    assert all((found.parameters[name] == parameters[name]).all() for name in names)
    del hub.repositories["team/base"].commits[commit]["model-00002-of-00002.safetensors"]
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(InputError, match="its index names model-00002-of-00002.safetensors, which is absent"):
        load_model("hf://team/base")


def code_of_its_own(folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForMaskedLM": "modeling_base.Base"}
    (folder / "config.json").write_text(json.dumps(config))


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("address", "spoil", "keys", "words", "downloaded"),
    [
        ("team/base", code_of_its_own, {}, "code of its own (auto_map), which is never run", {"config.json"}),
        ("team/base", pickled, {}, "has only pickled weights (pytorch_model.bin), which can run code", {"config.json"}),
        ("team/base", None, {"private": True}, "has no such model, or it is private. Fix: correct the name", set()),
        ("team/other", None, {}, "the Hub has no such model, or it is private", set()),
        ("team/base@v9", None, {}, "hf://team/base@v9: has no revision v9. Fix: choose a branch, tag or commit", set()),
        ("team/base", None, {"gated": True}, "is gated by its owner. Fix: ask for access on http", set()),
        (
            "roberta-base",
            None,
            {},
            "is not the address of a model on the Hugging Face Hub. Fix: write",
            set(),
        ),
        ("team/../base", None, {}, "is not the address of a model", set()),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(
    hub, cli, folder, config_file, tmp_path, address, spoil, keys, words, downloaded
):
    clutter(folder)
    if spoil is not None:
        (folder / "pytorch_model.bin").unlink()
        spoil(folder)
    hub.add("team/base", folder, **keys)
    result = cli("pretrain", config_file(model={"init_from": f"hf://{address}"}), "--run", tmp_path / "out")
    assert (result.code, words in result.error) == (2, True), result.err
    assert hub.downloaded() == downloaded
    assert not (tmp_path / "out").exists()


def test_a_wrong_token_is_not_shown(hub, cli, folder, monkeypatch, tmp_path):
    secret = "hf_a-wrong-one-of-somebody"
    path = tmp_path / "token"
    path.write_text(secret)  # as `hf auth login` leaves it: no variable that could be searched for holds it
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(path))
    assert huggingface_hub.get_token() == secret
    hub.add("team/base", folder)
    words = "401 Invalid credentials in Authorization header. Fix: "
    for command, code in (
        (["fill", "hf://team/base", "<mask>"], 2),
        (["export", folder, "--to", tmp_path / "out", "--push", "team/new"], 1),
    ):
        result = cli(*command)
        assert (result.code, words in result.err, secret in result.err + result.out) == (code, True, False), result.err


def test_a_full_disk_and_a_hub_that_is_down(hub, cli, folder, monkeypatch, tmp_path):
    hub.add("team/base", folder)
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "cache"))
    result = cli("fill", "hf://team/base", "<mask>")
    assert (result.code, "/file/cache: Not a directory. Fix: free disk space" in result.error) == (2, True), result.err
    hub.broken.append("GET /api/models/team/base")
    result = cli("fill", "hf://team/base", "<mask>")
    assert (result.code, "the Hub does not answer: 500 the disk is full" in result.error) == (2, True), result.err


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # how huggingface_hub calls its HTTP library
def test_an_export_is_pushed_once_it_is_proven(hub, cli, folder, monkeypatch, tmp_path):
    out = tmp_path / "out"
    unknown = cli("export", folder, "--to", out, "--push", "team/new")
    assert (unknown.code, "there is no token to write with" in unknown.error) == (2, True)
    assert cli("export", folder, "--to", out, "--push", "new").code == 2
    assert cli("export", folder, "--to", out, "--public").code == 2
    assert not out.exists() and not hub.requests
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    hub.broken.append("POST /api/models/team/new/commit")
    failed = cli("export", folder, "--to", out, "--push", "team/new")
    assert failed.code == 1, failed.err
    assert "team/new: cannot be pushed: 500 the disk is full. Fix: the verified model stays in" in failed.err
    assert f"hf upload team/new {out} . --private" in failed.err and (out / "model.safetensors").exists()
    hub.broken.clear()

    shutil.rmtree(out)
    pushed = cli("export", folder, "--to", out, "--push", "team/new")
    assert pushed.code == 0 and f"{hub.url}/team/new: commit " in pushed.err, pushed.err
    repository = hub.repositories["team/new"]
    assert repository.private and len(repository.commits) == 2
    newest = repository.commits[repository.branches["main"]]
    assert {name: newest[name] for name in os.listdir(out)} == {path.name: path.read_bytes() for path in out.iterdir()}
    assert any(line.startswith("PUT /lfs/") for line in hub.requests) and "POST /api/validate-yaml" in hub.requests
    os.rename(out, tmp_path / "first")
    assert cli("export", tmp_path / "first", "--to", out, "--push", "team/new").code == 0
    assert len(repository.commits) == 3
    assert cli("export", folder, "--to", tmp_path / "more", "--push", "team/open", "--public").code == 0
    assert not hub.repositories["team/open"].private
    assert load_model("hf://team/new").config == load_model(str(out)).config


def test_where_a_model_is_missing_the_line_that_fetches_it_is_said(cli):
    for name, owner in OWNERS.items():
        assert f"give hf://{owner}/{name} for the model" in how_to_get(name)
    for command in (
        ["fill", "models/bert-base-uncased", "a [MASK]"],
        ["export", "models/bert-base-uncased", "--to", "out"],
        ["data", "prepare", "README.md", "--tokenizer", "models/bert-base-uncased", "--to", "out"],
    ):
        result = cli(*command)
        assert (result.code, "give hf://google-bert/bert-base-uncased" in result.error) == (2, True), result.err


def test_labelled_files_are_read_from_the_hub(hub, tmp_path):
    """A data set's repository gives each split its own files; so does what `hf download` brings of it."""
    files = {"README.md": b"# News", ".gitattributes": b"*.csv text"}
    for split, size in (("train", 40), ("test", 10)):
        rows = "".join(f"{split} {number},{'xy'[number % 2]}\n" for number in range(size))
        files[f"data/{split}-00000-of-00001.csv"] = f"text,label\n{rows}".encode()
    hub.repositories["datasets/team/news"] = Repository()
    hub.repositories["datasets/team/news"].commit(files)
    for name, content in files.items():
        (tmp_path / "news" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "news" / name).write_bytes(content)
    address, both = "hf://datasets/team/news", {"train": 36, "validation": 4, "test": 10}
    one_file = {"train": 36, "validation": 4}
    HfFileSystem.clear_instance_cache()
    for location, sizes in (
        (address, both),
        (f"{address}/data/*.csv", both),
        (str(tmp_path / "news"), both),
        (f"{address}/data/train-00000-of-00001.csv", one_file),
    ):
        data = with_splits(LabelledData(train=location))
        assert read_dataset(data, Task(), 0).report.sizes == sizes
