"""Whatever a user gets wrong: one line (what, where, fix), exit code 2, nothing half-written left behind."""

import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from finetuned import finished_run, foxes, shape
from in_process import SHAPE
from safetensors.numpy import save_file

import maskwright
from maskwright.core.errors import VerificationError
from maskwright.data.store import TokenStore
from maskwright.machine import hardware
from maskwright.model.config import ModelConfig
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RunDirectory
from maskwright.tasks.export.hugging_face import _write_tokenizer
from maskwright.training.tensor_file import write_tensors

# ---- text and tokens -----------------------------------------------------------------------------------------------


def test_text_that_is_not_utf8(cli, tokenizer, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nbad \xe9 here\n")
    for command in (
        ("data", "prepare", tmp_path / "a.txt", "--tokenizer", tokenizer, "--to", tmp_path / "out"),
        ("tokenizer", "train", tmp_path / "a.txt", "--to", tmp_path / "out"),
    ):
        result = cli(*command)
        assert result.code == 2
        assert result.error.startswith(f"{tmp_path}/a.txt:2:5: 0xe9, byte 10 of the text, is not UTF-8. Fix: ")
        assert not (tmp_path / "out").exists()
    (tmp_path / "a.txt").write_bytes(b"\xe9\n" * 78)
    told = cli("tokenizer", "train", tmp_path / "a.txt", "--to", tmp_path / "out", "--on-bad-input", "replace").err
    assert told.count("is not UTF-8") == 10 and told.count("more are not shown") == 1


def test_empty_file_and_zero_documents(cli, tokenizer, tmp_path):
    for name, content, words in (
        ("a.txt", "", "is empty"),
        ("a.txt", "\n \n\n", "holds no text"),
        ("a.jsonl", '{"text": null}\n{"text": " "}\n', "; 2 records without"),
    ):
        (tmp_path / name).write_text(content)
        result = cli("data", "prepare", tmp_path / name, "--tokenizer", tokenizer, "--to", tmp_path / "out")
        assert (result.code, words in result.error, "Fix: " in result.error) == (2, True, True)
        assert not (tmp_path / "out").exists()


def test_unreadable_paths(cli, tokenizer, tmp_path, config_file):
    missing = tmp_path / "missing"
    for command in (
        ("data", "audit", missing),
        ("data", "prepare", missing, "--tokenizer", tokenizer, "--to", tmp_path / "out"),
        ("data", "inspect", missing),
        ("data", "verify", missing),
        ("evaluate", missing),
        ("export", missing, "--to", tmp_path / "out"),
        ("fill", missing, "<mask>"),
        ("pretrain", missing, "--run", tmp_path / "out"),
        ("pretrain", config_file(data={"store": str(missing)}), "--run", tmp_path / "out"),
        ("pretrain", config_file(model={"init_from": str(missing)}), "--run", tmp_path / "out"),
    ):
        result = cli(*command)
        assert result.code == 2, command
        assert str(missing) in result.error, command
        assert not (tmp_path / "out").exists(), command


def test_a_name_that_is_not_utf8(cli, tmp_path, config_file):
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / f"{name}.txt").write_text("A dog.\n")
    for command in (("data", "audit", tmp_path), ("pretrain", config_file(), "--run", tmp_path / name)):
        failed = cli(*command)
        assert failed.code == 2 and "caf\ufffd" in failed.err, failed.err
        assert "has a name that is not UTF-8. Fix: rename it" in failed.err
    directory = RunDirectory(str(tmp_path))
    directory.log(f"warning: {name} is damaged")
    assert Path(directory.path("log.txt")).read_text().endswith("warning: caf\\udce9 is damaged\n")


def test_failed_preparation_leaves_no_folders(cli, tokenizer, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "half \\ud800"}\n')
    command = ("data", "prepare", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--to", tmp_path / "deep/er/store")
    result = cli(*command)
    assert (result.code, "U+D800 is half a surrogate pair" in result.error) == (2, True)
    assert not (tmp_path / "deep").exists()
    assert cli("data", "audit", tmp_path / "a.jsonl").out.count("encoding faults: 1") == 1


def test_literal_special_tokens_stay_text(cli, tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"literal <mask> and <s> number {n}" for n in range(40)))
    command = ("data", "prepare", tmp_path / "a.txt", "--tokenizer", tokenizer, "--to", tmp_path / "out")
    refused = cli(*command)
    assert (refused.code, (tmp_path / "out").exists()) == (2, False)
    assert "none of 40 documents fell into the held-out share of 0.01. Fix: give more documents" in refused.error
    assert "--valid-fraction such as 0.25" in refused.error and "--valid-fraction 0 to hold none out" in refused.error
    (tmp_path / "log.txt").write_text("opened\nclosed\n" * 1_000)
    repeats = ("data", "prepare", tmp_path / "log.txt", "--tokenizer", tokenizer, "--to", tmp_path / "log")
    refused = cli(*repeats)
    assert "none of 2 documents" in refused.error and "(1,998 of 2,000 are duplicates of others" in refused.error
    assert "such as 0.5, " in refused.error and "keep these with --keep-duplicates" in refused.error
    refused = cli(*repeats, "--keep-duplicates")
    assert "none of 2,000 documents" in refused.error and "--valid-fraction such as 0.1, or" in refused.error
    prepared = cli(*command, "--valid-fraction", "0")
    assert prepared.code == 0
    counts = TokenStore(str(tmp_path / "out")).split("train").counts(400)
    assert counts[[0, 1, 2, 3, 399]].sum() == 0


# ---- configuration -------------------------------------------------------------------------------------------------


def test_a_store_that_is_a_test_set_only(cli, corpus, tokenizer, folder, config_file, tmp_path):
    to = ("--tokenizer", tokenizer, "--to", tmp_path / "all", "--valid-fraction", 1)
    made = json.loads(cli("data", "prepare", corpus, *to, "--json").out)
    assert (made["splits"]["train"]["documents"], made["splits"]["valid"]["documents"]) == (0, 300)
    result = cli("evaluate", folder, "--store", tmp_path / "all", "--json")
    found = json.loads(result.out)
    assert found["unigram_of"] == "valid" and 0.0 < found["unigram_loss"] < np.log(400) < found["loss"]
    for how in ((), ("--dry-run",)):
        config = config_file(data={"store": str(tmp_path / "all")})
        result = cli("pretrain", config, "--run", tmp_path / "out", *how)
        assert (result.code, "has no train documents" in result.error) == (2, True)


# ---- models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("hf://FacebookAI/roberta-base@main", "FacebookAI/roberta-base"),
        ("/a/roberta-base/", "roberta-base"),
        ("/hub/models--FacebookAI--roberta-base/snapshots/e2", "FacebookAI/roberta-base"),
    ],
)
def test_the_base_model_is_named_without_its_path(folder, name):
    from maskwright.tasks.export.hugging_face import _base_name

    assert _base_name(folder) == name


def change(folder, **keys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))


def spoil_vocabulary(folder):
    change(folder, vocab_size=300)
    parameters = initial_parameters(ModelConfig(300, 32, 2, 2, 64, 34), 0)
    save_file(parameters, str(folder / "model.safetensors"))
    return "has 400 tokens, but the model in"


def config_fault(words, **keys):
    """Spoils config.json with `keys`; `words` are what the error must then say."""

    def spoil(folder):
        change(folder, **keys)
        return words

    spoil.__name__ = "_".join(keys)
    return spoil


def spoil_missing(folder):
    parameters = initial_parameters(SHAPE, 0)
    parameters.pop("lm_head.dense.weight")
    save_file(parameters, str(folder / "model.safetensors"))
    return "has no tensor lm_head.dense.weight"


def spoil_head(folder):
    """As `RobertaForSequenceClassification` saves it."""
    kept = {name: value for name, value in initial_parameters(SHAPE, 0).items() if name.startswith("roberta.")}
    save_file({**kept, "classifier.out_proj.bias": np.zeros(2, np.float32)}, str(folder / "model.safetensors"))
    return "has no tensor lm_head.dense.weight. Fix: continue from a masked-LM folder (RobertaForMaskedLM)"


def spoil_bare(folder):
    """As `RobertaModel` saves it."""
    parameters = initial_parameters(SHAPE, 0).items()
    bare = {name.removeprefix("roberta."): value for name, value in parameters if name.startswith("roberta.")}
    save_file({**bare, "pooler.dense.bias": np.zeros(32, np.float32)}, str(folder / "model.safetensors"))
    return "is a bare encoder, saved without its masked-LM head: it has embeddings.word_embeddings.weight, not roberta."


def spoil_extra(folder):
    save_file({**initial_parameters(SHAPE, 0), "extra": np.zeros(3, np.float32)}, str(folder / "model.safetensors"))
    return "that its architecture lacks: extra"


def spoil_part(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001.safetensors"}}')
    return "model-00001.safetensors: is missing"


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_vocabulary,
        config_fault("is above the 20 tokens", max_position_embeddings=22),
        config_fault("its model is code of its own (auto_map)", auto_map={"AutoModel": "model.Own"}),
        config_fault("has quantised weights", quantization_config={"load_in_8bit": True}),
        config_fault("model_type is 'electra', but supported are roberta, xlm-roberta", model_type="electra"),
        config_fault("not (128, 32) of config.json", intermediate_size=128),
        config_fault("5 attention heads do not divide", num_attention_heads=5),
        *(spoil_missing, spoil_head, spoil_bare, spoil_extra, spoil_part),
    ],
)
def test_bad_model_folders(spoil, cli, folder, config_file, tmp_path):
    words = spoil(folder)
    for how in ((), ("--dry-run",)):
        result = cli("pretrain", config_file(model={"init_from": str(folder)}), "--run", tmp_path / "out", *how)
        assert (result.code, words in result.error) == (2, True), (how, result.err)
        assert not (tmp_path / "out").exists()


def test_a_head_may_begin_anew(cli, folder, config_file, tmp_path):
    spoil_bare(folder)
    config = config_file(model={"init_from": str(folder), "new_head": True})
    assert cli("pretrain", config, "--run", tmp_path / "out").code == 0
    assert cli("evaluate", tmp_path / "out", "--device", "cpu").code == 0


def test_fill_needs_a_mask_and_a_text_that_fits(cli, folder):
    assert "no <mask>" in cli("fill", folder, "nothing hidden").error
    assert "  '!' 0%" in cli("fill", folder, "a <mask>", "--top", 400).out
    assert f"{folder} reads 32" in cli("fill", folder, "word " * 60 + "<mask>").error


def test_evaluate_measures_one_thing_at_a_time(cli, folder, tmp_path):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("A foxes saw .\nA fox saw .\n")
    assert "one at a time" in cli("evaluate", folder, "--blimp", pairs, "--text", pairs).error
    assert "give --store, --blimp or --text" in cli("evaluate", folder).error
    for words, said in (
        (["--store", pairs, "--share", 0.5], "--share is not used by the measurement with --store. Fix:"),
        (["--blimp", pairs, "--max-rows", 7], "leave it out, or use it with --store"),
        (["--blimp", pairs, "--layout", "lines"], "--layout is not used"),
        (["--text", pairs, "--max-rows", 7], "--max-rows is not used"),
        (["--blimp", pairs, "--seq-len", 16], "leave it out, or use it with --store or --text"),
        (["--text", pairs, "--seq-len", 4096], "--seq-len 4096 is outside the model's range 8 … 32"),
    ):
        result = cli("evaluate", folder, *words)
        assert (result.code, said in result.error) == (2, True), result.err
    assert "a share of 0 holds no pair" in cli("evaluate", folder, "--blimp", pairs, "--share", 0).error
    judged = json.loads(cli("evaluate", folder, "--blimp", pairs, "--device", "cpu", "--json").out)
    assert judged["paradigms"][0]["name"] == "pairs" and judged["overall"]["sums"] in (0.0, 1.0)
    result = cli("evaluate", folder, "--text", pairs, "--layout", "lines", "--device", "cpu")
    assert result.code == 0 and "2 documents in 2 windows of up to 30 tokens" in result.out


# ---- runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(cli, config_file, tmp_path):
    assert cli("pretrain", config_file(), "--run", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_a_run_of_the_other_kind_of_training_is_refused(cli, finished, config_file, tokenizer, tmp_path):
    """In place of a list of what their configurations do not share."""
    tuned = finished_run(tmp_path / "tuned", shape("roberta", "single_label_classification"), tokenizer)
    for how in ((), ("--dry-run",)):
        taken = cli("finetune", foxes(tmp_path), "--run", finished, "--set", f"model.init_from={finished}", *how)
        said = f"{finished}: is a run of pretraining, not of fine-tuning. Fix: give this run a new folder"
        assert (taken.code, taken.error) == (2, said)
        taken = cli("pretrain", config_file(), "--run", tuned, *how)
        assert (taken.code, f"{tuned}: is a run of fine-tuning, not of pretraining" in taken.error) == (2, True)


def test_a_dry_run_refuses_what_the_start_refuses(cli, finished, config_file, tmp_path, monkeypatch):
    """In the same words, and neither changes anything."""
    new = tmp_path / "new"

    def refused(run, code, says, **sections):
        before = everything(run)
        start, dry = (cli("pretrain", config_file(**sections), "--run", run, *how) for how in ((), ("--dry-run",)))
        assert says in start.error
        assert (dry.code, dry.error) == (start.code, start.error) == (code, start.error)
        assert everything(run) == before and not new.exists()

    refused(new, 2, "lies in the run directory itself", checkpoint={"copy_to": f"file://{new}/copies"})
    with monkeypatch.context() as patch:
        patch.setattr(hardware, "free_disk_bytes", lambda path: 1_000_000)
        refused(new, 1, "the disk has 1.0 MB free")
        refused(finished, 1, "the disk has 1.0 MB free")
        patch.setattr(hardware, "memory_bytes", lambda: 1_000)
        refused(new, 1, "more than there is")
    for path in (finished / "checkpoints").glob("*/MANIFEST.json"):
        path.unlink()
    refused(finished, 1, "its checkpoints are gone")


def test_colleagues_can_read_an_export(cli, finished, tmp_path):
    umask = os.umask(0o022)
    try:
        assert cli("export", finished, "--to", tmp_path / "model").code == 0
    finally:
        os.umask(umask)
    assert not list(tmp_path.glob("*.tmp-*"))
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "model").iterdir()}
    assert len(modes) >= 5 and set(modes.values()) == {"0o644"}, modes


def lifted(offset):
    """Writes weights whose logits are all that much higher."""

    def write(path, tensors, *more):
        raised = tensors["lm_head.bias"] + np.float32(offset)
        return write_tensors(path, {**tensors, "lm_head.bias": raised}, *more)

    return write


def other_ids(model, folder):
    """Writes a tokenizer of which two frequent tokens have each other's id."""
    _write_tokenizer(model, folder)
    path = Path(folder, "tokenizer.json")
    content = json.loads(path.read_text())
    ids = content["model"]["vocab"]
    ids["H"], ids["e"] = ids["e"], ids["H"]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("part", "worse", "said"),
    [
        ("write_tensors", lifted(2e-4), r"logits differ by 0\.0002"),
        ("write_tensors", lifted(0.5e-4), None),
        ("_write_tokenizer", other_ids, "transformers tokenizes 'Hello, world!' to"),
    ],
)
def test_export_that_is_wrong_by_a_little_is_refused(cli, folder, tmp_path, monkeypatch, part, worse, said):
    """By command and from Python."""
    monkeypatch.setattr(f"maskwright.tasks.export.hugging_face.{part}", worse)
    result = cli("export", folder, "--to", tmp_path / "out")
    assert result.code == (1 if said else 0), result.err
    with pytest.raises(VerificationError, match=said) if said else nullcontext():
        maskwright.load(folder).export(tmp_path / "again")
    if said:
        assert re.match(said, result.error) and "weight_decay" not in result.error
    assert {path.name for path in tmp_path.iterdir()} == {"model", *(() if said else ("out", "again"))}


def test_export_of_a_tokenizer_that_its_class_would_replace_is_refused(cli, folder, tmp_path):
    """RoBERTa's class of transformers 5 cuts a text by rules of its own: digits were no longer apart, unsaid."""
    content = json.loads((folder / "tokenizer.json").read_text())
    words, last = content["model"], content["model"]["merges"].pop()
    words["vocab"]["19"] = words["vocab"].pop("".join(last if isinstance(last, list) else last.split(" ")))
    words["merges"].append(["1", "9"] if isinstance(last, list) else "1 9")
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizerFast"}))
    result = cli("export", folder, "--to", tmp_path / "out")
    assert result.code == 1 and "tokenizes 'a <mask> here, in 1984' to" in result.error
    assert result.error.endswith("tokenizer_config.json: its class cuts texts by rules of its own")
    roles = {f"{role}_token": f"<{role}>" for role in ("pad", "mask", "unk")} | {
        "cls_token": "<s>",
        "sep_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **roles}))
    assert cli("export", folder, "--to", tmp_path / "out").code == 0


def test_export_of_weights_that_grew_too_large_says_so(cli, folder, tmp_path, monkeypatch):
    """As Muon leaves them without enough weight decay."""
    large = {name: value * 12 if value.ndim == 2 else value for name, value in initial_parameters(SHAPE, 0).items()}
    save_file(large, str(folder / "model.safetensors"))
    monkeypatch.setattr("maskwright.tasks.export.hugging_face.LARGEST_DIFFERENCE", 1e-9)
    result = cli("export", folder, "--to", tmp_path / "out")
    assert result.code == 1
    assert re.search(r"Fix: train with a higher optimizer.weight_decay.* is 0\.24, 12 times", result.error)


def test_debug_shows_the_traceback_and_changes_nothing_else(cli, tmp_path):
    plain, debug = (cli(*word, "data", "verify", tmp_path / "missing") for word in ((), ("--debug",)))
    assert plain.code == debug.code == 2
    assert debug.err.startswith("Traceback") and debug.err.endswith(plain.err)


def test_weights_whose_logits_are_not_finite_are_not_exported(cli, folder, tmp_path):
    parameters = initial_parameters(SHAPE, 0)
    parameters["lm_head.dense.weight"][3] = 3e38  # finite, and no product with it is
    save_file(parameters, str(folder / "model.safetensors"))
    result = cli("export", folder, "--to", tmp_path / "out")
    assert (result.code, "logits differ by nan" in result.error) == (1, True)
    assert not list(tmp_path.glob("out*"))


def test_a_last_update_that_ruins_the_weights_is_not_saved(cli, config_file, tmp_path):
    """No later loss would show it: the check before the save does."""
    ruin = config_file(optimizer={"learning_rate": 1e38}, schedule={"steps": 1}, engine={"dtype": "fp32"})
    result = cli("pretrain", ruin, "--run", tmp_path / "out")
    assert result.code == 3
    assert "finite" in result.error
    assert not list((tmp_path / "out").glob("checkpoints/*/MANIFEST.json"))
    for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line


def test_batch_without_a_masked_token_is_refused(cli, config_file, tmp_path):
    nothing = config_file(masking={"rate": 1e-9}, batch={"micro_batch_rows": 1}, schedule={"steps": 30})
    result = cli("pretrain", nothing, "--run", tmp_path / "out")
    assert (result.code, "no token was masked in the last 10 global batches. Fix" in result.error) == (3, True)


def test_a_configuration_inside_the_run_directory_is_used(cli, config_file, tmp_path):
    (tmp_path / "run").mkdir()
    inside = config_file().rename(tmp_path / "run" / "config.yaml")
    assert cli("pretrain", inside, "--run", tmp_path / "run").code == 0


def test_what_a_killed_start_leaves_is_no_obstacle(cli, config_file, corpus, tokenizer, tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("lock", "environment.json.tmp-77", "config.yaml"):
        (tmp_path / "run" / name).write_text("")
    assert cli("pretrain", config_file(), "--run", tmp_path / "run").code == 0
    (tmp_path / "store" / "parts").mkdir(parents=True)
    for name in (f"parts/encode-000000-{0:020x}", "manifest.json.tmp-99"):
        (tmp_path / "store" / name).write_text("{")
    assert cli("data", "prepare", corpus, "--tokenizer", tokenizer, "--to", tmp_path / "store").code == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer").mkdir()
    assert "holds tokenizer" in cli("pretrain", config_file(), "--run", tmp_path / "mine").error


def test_a_continued_run_keeps_its_precision_and_needs_no_base(cli, folder, config_file, tmp_path, monkeypatch):
    from maskwright.machine import hardware

    file = config_file(model={"init_from": str(folder)})
    for faster in (True, False):
        monkeypatch.setattr(hardware, "cpu_multiplies_bf16_faster", lambda faster=faster: faster)
        result = cli("pretrain", file, "--run", tmp_path / "out")
        assert result.code == 0, result.err
        assert "bfloat16" in result.err
        shutil.rmtree(folder, ignore_errors=True)
    assert cli("pretrain", file, "--run", tmp_path / "out", "--dry-run").code == 0


def test_nan_stops_before_the_update(cli, folder, config_file, tmp_path):
    parameters = initial_parameters(SHAPE, 0)
    parameters["lm_head.dense.weight"][3] = 3e38  # finite, and no product with it is
    save_file(parameters, str(folder / "model.safetensors"))
    result = cli("pretrain", config_file(model={"init_from": str(folder)}), "--run", tmp_path / "out")
    assert result.code == 3
    assert "step 0: the held-out loss is not finite" in result.error
    status = json.loads((tmp_path / "out" / "status.json").read_text())
    assert (status["phase"], status["exit"], status["step"]) == ("failed", 3, 0)


# ---- records of runs -----------------------------------------------------------------------------------------------


def everything(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"}


def without(key):
    return lambda record: {name: value for name, value in record.items() if name != key}


def shaped(**changes):
    return lambda record: record | {"model": (record["model"] | changes) if changes else {}}


NO_SHAPE = "its `model` is not the shape of a model"
SPOILT = [
    (lambda record: record | {"format": 1}, "has format 1, but this version reads 2. Fix: use maskwright 0.3.0, which"),
    (lambda record: [], "is not a run's record"),
    (lambda record: None, "is not a run's record"),
    (without("format"), "is not a run's record"),
    *((without(key), f"lacks `{key}`") for key in ("config", "model", "dtype", "train")),
    (lambda record: record | {"config": []}, "lacks `config`"),
    (lambda record: record | {"dtype": "int8"}, "dtype is 'int8'"),
    (lambda record: record | {"model": None}, "lacks `model`"),
    *((shaped(**changes), NO_SHAPE) for changes in ({}, {"extra": 1}, {"hidden_size": "wide"})),
    *((text, "JSON") for text in ("", "{", "[" * 100_000, '{"format": ' + "1" * 5000 + "}")),
]


def test_a_record_that_is_something_else(cli, config_file, tmp_path):
    run, model = tmp_path / "run", tmp_path / "model"
    assert cli("pretrain", config_file(), "--run", run, "--stop-after-steps", 1).code == 76
    path = run / "config.resolved.json"
    record = json.loads(path.read_text())
    for change, words in SPOILT:
        path.write_text(change if isinstance(change, str) else json.dumps(change(record)))
        before = everything(run)
        for command in (("export", run, "--to", model), ("evaluate", run), ("fill", run, "a <mask>")):
            result = cli(*command)
            assert (result.code, words in result.error, str(path) in result.error) == (2, True, True), result.err
        result = cli("pretrain", config_file(), "--run", run)  # which finds first that another shape was asked for
        assert result.code == 2 and (words in result.error or words == NO_SHAPE), result.err
        assert everything(run) == before and not model.exists()
