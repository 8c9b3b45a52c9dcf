"""Epochs with static masks, as the original script writes them: training from them, damaged folders."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import transformers
from conftest import small_config
from original_epochs import lines, text_of, write_folder
from reference.stored import documents_of
from tokenizer_kinds import with_words

from maskwright.core import storage
from maskwright.core.errors import StoreError
from maskwright.data.converted_store import open_epochs
from maskwright.data.loader import Loader
from maskwright.data.opening import open_store
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore
from maskwright.run.directory import RunDirectory
from maskwright.text.sources import Sources
from maskwright.text.vocabulary import token_strings


@pytest.fixture(scope="module")
def ours(corpus, tokenizer, tmp_path_factory):
    """With the tokenizer in it."""
    texts = [document.text for document in Sources([str(corpus)], layout="sentences")]
    folder = write_folder(tmp_path_factory.mktemp("pregenerated") / "ours", texts, tokenizer, 48)
    shutil.copytree(tokenizer, folder / "tokenizer")
    return folder


@pytest.fixture
def theirs(tokenizer, corpus, tmp_path):
    texts = [document.text for document in Sources([str(corpus)], layout="sentences")]
    return write_folder(tmp_path / "theirs", texts, tokenizer, 48, 60)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKWRIGHT_CACHE", str(folder))
        yield folder


def numbered(folder):
    """(epoch, line, example) of all epochs."""
    files = (lines(path) for path in sorted(folder.glob("epoch_?.json")))
    return [(epoch, number, example) for epoch, file in enumerate(files) for number, example in enumerate(file, 1)]


def pregenerated(folder, **keys):
    return small_config(str(folder), **{"data.format": "pregenerated", "data.seq_len": 48, **keys})


def test_a_run_reads_the_text_of_the_files_and_counts_each_as_an_epoch(ours, tokenizer):
    """A slow twin: the documents of the store, found again among the lines; the masks are those of any run."""
    store, strings = open_epochs(str(ours)), token_strings(tokenizer)
    examples = [(epoch, number, text_of(example)) for epoch, number, example in numbered(ours)]
    split = store.split("train")
    found = [[strings[index] for index in one] for one in documents_of(split)]
    assert found == [text[1:-1] for _, _, text in examples]
    origins = [store.origin("train", number) for number in range(split.documents)]
    assert origins == [f"{ours}/epoch_{epoch}.json:{number}" for epoch, number, _ in examples]
    assert store.passes == 2 and store.split("valid").documents == 0
    loader = Loader(pregenerated(ours, **{"schedule.steps": None, "schedule.epochs": 3.0}), store)
    rows = loader.rows.totals.rows
    assert loader.config.steps == math.ceil(1.5 * rows / 8) and rows < 0.9 * len(examples)  # short ones share a row
    assert loader.epoch(loader.config.steps) == pytest.approx(3.0, abs=16 / rows)
    assert loader.epoch(100) == 2 * 800 / rows
    batches = [batch for step in range(40) for batch in loader.batches(step)]
    assert sum(batch.predicted for batch in batches) / sum(batch.text_tokens for batch in batches) == pytest.approx(
        0.15 * (1 - 2 / 40), rel=0.1
    )
    mixed = {"epochs": {"store": str(ours), "format": "pregenerated"}, "again": store.folder}
    both = open_store(small_config("", **{"data.store": None, "data.mixture": mixed}).data)
    assert both.manifest["splits"]["train"]["documents"] == 2 * len(examples)


def test_a_token_that_the_vocabulary_lacks_is_read_as_transformers_reads_it(theirs, tokenizer, tmp_path):
    """`[MASK]` is the unknown token to RoBERTa, also where the vocabulary has a word `None`."""
    folder = with_words(tokenizer, tmp_path / "words", "None")
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    for path in theirs.glob("epoch_?.json"):
        path.write_text(path.read_text().replace('"masked_lm_labels": ["', '"masked_lm_labels": ["None", "', 1))
        first = path.read_text().replace('"masked_lm_positions": [1', '"masked_lm_positions": [0, 1', 1)
        path.write_text(first.replace('"tokens": ["<s>"', '"tokens": ["[MASK]"', 1))
    examples = [example for _, _, example in numbered(theirs)]
    examples[3]["tokens"][2] = "[MASK]"
    path = theirs / "epoch_0.json"
    path.write_text("".join(json.dumps(example) + "\n" for example in examples[:60]))
    opened = open_epochs(str(theirs), str(folder))
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    special = set(reader.all_special_ids) - {reader.unk_token_id}
    for found, example in zip(map(list, documents_of(opened.split("train"))), examples, strict=True):
        assert found == [one for one in reader.convert_tokens_to_ids(text_of(example)) if one not in special]
    assert documents_of(opened.split("train"))[3][1] == reader.unk_token_id


def test_a_run_is_judged_by_other_text(ours, corpus, tokenizer, tmp_path, cli):
    sources, half = Sources([str(corpus)], layout="sentences"), PrepareOptions(valid_fraction=0.5)
    held_out = prepare(Request(sources, tokenizer, str(tmp_path / "held"), half))
    file, run = tmp_path / "run.yaml", RunDirectory(str(tmp_path / "run"))
    file.write_text(json.dumps(pregenerated(ours, **{"data.validation": held_out.location}).model_dump()))
    assert cli("pretrain", file, "--run", tmp_path / "run").code == 0
    (card,) = storage.read_json(run.path("data.json"))["sources"]
    assert card["location"] == str(ours) and card["splits"]["train"]["documents"] == len(numbered(ours))
    judged = cli("evaluate", tmp_path / "run")
    assert judged.code == 0 and held_out.location in judged.out
    record = run.read_record()
    run.write_record(replace(record, keys=record.keys | {"data.validation": None}))
    refused = cli("evaluate", tmp_path / "run")
    assert refused.code == 2 and "none of the run's text was held out" in refused.error


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("line", "epoch_1.json:3: is not JSON"),
        ("key", "epoch_1.json:3: is not an example: it has tokens instead of tokens, segment_ids"),
        ("position", "epoch_1.json:3: has positions that do not rise within its"),
        ("cut", "epoch_1.json: has 59 examples, but 60 by its metrics file"),
        ("metrics", "epoch_1_metrics.json: is missing, so its epoch was never finished"),
        ("epoch", "lacks epoch 0"),
        ("none", "holds no epoch_0.json, so it is not pregenerated data"),
        ("tokenizer", "has no tokenizer/, but its examples are strings of a tokenizer"),
    ],
)
def test_damaged_folders(what, message, theirs, tokenizer, cache):
    path = theirs / "epoch_1.json"
    examples = path.read_text().splitlines(keepends=True)
    if what in ("line", "key", "position"):
        example = json.loads(examples[2])
        example["masked_lm_positions"][-1] = 400
        examples[2] = {"line": examples[2][:50] + "\n", "key": '{"tokens": []}\n'}.get(what, json.dumps(example) + "\n")
        path.write_text("".join(examples))
    elif what == "cut":
        path.write_text("".join(examples[:-1]))
    elif what == "none":
        shutil.rmtree(theirs)
    elif what != "tokenizer":
        (theirs / {"metrics": "epoch_1_metrics.json", "epoch": "epoch_0.json"}[what]).unlink()
    files, cached = (set(theirs.parent.rglob("*")), set(cache.rglob("*")))
    with pytest.raises(StoreError) as caught:
        open_epochs(str(theirs), None if what == "tokenizer" else tokenizer)
    assert message in str(caught.value) and ". Fix: " in str(caught.value)
    assert set(theirs.parent.rglob("*")) == files and set(cache.rglob("*")) <= cached | {cache / "converted"}


def test_a_store_for_keeps_is_that_of_a_run(theirs, tokenizer, tmp_path, cli):
    command = ("data", "convert", theirs, "--tokenizer", tokenizer, "--to", tmp_path / "store")
    refused = cli(*command, "--special-tokens", "remove")
    assert refused.code == 2 and "holds its text 2 times" in refused.err and "--valid-fraction 0" in refused.err
    refused = cli(*command, "--valid-fraction", 0)
    assert refused.code == 2 and "epoch_0.json:1 (the document's number): holds the special token 0" in refused.err
    made = cli(*command, "--special-tokens", "remove", "--valid-fraction", 0)
    shown = cli("data", "inspect", tmp_path / "store")
    for result in (made, shown):
        assert result.code == 0 and "it holds its text 2 times" in result.out
    fingerprint = open_epochs(str(theirs), tokenizer).fingerprint
    manifest = tmp_path / "store" / "manifest.json"
    for more in ({}, {"findings": ["predictions of a special token: 1 of 9 (11.1%)"]}):  # a key of earlier versions
        storage.write_json(str(manifest), {**storage.read_json(str(manifest)), **more})
        assert TokenStore(str(tmp_path / "store")).fingerprint == fingerprint
