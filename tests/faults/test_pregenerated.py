"""Epochs with static masks: how they are made, training from them, damaged folders."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from conftest import small_config
from in_process import Cli
from original_epochs import lines, spoil, text_of
from reference.stored import documents_of
from tokenizer_kinds import with_words

from maskwright.config.pretraining import RunConfig
from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.data.converted_store import open_epochs
from maskwright.data.foreign.pregenerated import KEYS
from maskwright.data.loader import Loader
from maskwright.data.masking import Masker
from maskwright.data.opening import open_store
from maskwright.data.pregenerate import generate
from maskwright.data.pregenerate.generate import pregenerate
from maskwright.data.pregenerate.sequences import PregenerateOptions, Unmasked, documents, read_text, sequences
from maskwright.data.pregenerate.write import EpochWriter
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore
from maskwright.run.directory import RunDirectory
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import read_vocabulary, token_ids, token_strings

OPTIONS = PregenerateOptions(epochs_to_generate=2, max_seq_len=48, max_predictions_per_seq=6, do_whole_word_mask=True)


@pytest.fixture(scope="module")
def ours(corpus: Path, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pregenerated") / "ours"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "BLOCK_TOKENS", 4_000)
        pregenerate(Sources([str(corpus)], layout="sentences"), tokenizer, str(folder), OPTIONS)
    return folder


@pytest.fixture
def theirs(tokenizer: str, ours: Path, tmp_path: Path) -> Path:
    return spoil(ours, tmp_path / "theirs", 60, max_seq_len=48)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKWRIGHT_CACHE", str(folder))
        yield folder


def numbered(folder: Path) -> list[tuple[int, int, dict[str, Any]]]:
    """(epoch, line, example) of all epochs."""
    files = (lines(path) for path in sorted(folder.glob("epoch_?.json")))
    return [(epoch, number, example) for epoch, file in enumerate(files) for number, example in enumerate(file, 1)]


def pregenerated(folder: Path, **keys: Any) -> RunConfig:
    return small_config(str(folder), **{"data.format": "pregenerated", "data.seq_len": 48, **keys})


# ---- what is written -------------------------------------------------------------------------------------------------


def test_files_have_the_schema_and_no_text_is_lost_or_added(ours: Path, corpus: Path, tokenizer: str) -> None:
    words, vocabulary = load_tokenizer(tokenizer, special_tokens_are_text=True), read_vocabulary(tokenizer)
    strings = token_strings(tokenizer)
    expected = [
        [strings[index] for index in words.encode(document.text, add_special_tokens=False).ids]
        for document in Sources([str(corpus)], layout="sentences")
    ]
    for epoch in range(2):
        raw = (ours / f"epoch_{epoch}.json").read_text()
        examples = [json.loads(line) for line in raw.splitlines()]
        assert raw == "".join(json.dumps(example) + "\n" for example in examples)
        assert all(tuple(example) == KEYS for example in examples)
        metrics = f'{{"num_training_examples": {len(examples)}, "max_seq_len": 48}}'
        assert (ours / f"epoch_{epoch}_metrics.json").read_text() == metrics
        assert max(len(example["tokens"]) for example in examples) == 48
        found = [token for example in examples for token in text_of(example)[1:-1]]
        assert found == [token for document in expected for token in document]
        assert {(e["tokens"][0], e["tokens"][-1], e["is_random_next"]) for e in examples} == {("<s>", "</s>", False)}
    assert vocabulary.mask_token == "<mask>"


def groups_of(example: dict[str, Any], masker: Masker, ids: dict[str, int]) -> list[list[int]]:
    """Positions that are masked together: words, of which long ones are cut. Special tokens are in none."""
    groups: list[list[int]] = []
    for place, token in enumerate(text_of(example)[1:-1], 1):
        if place == 1 or masker.word_start[ids[token]] or len(groups[-1]) == 8:
            groups.append([])
        groups[-1].append(place)
    return groups


def test_predictions_are_whole_words_and_as_many_as_are_asked_for(ours: Path, corpus: Path, tokenizer: str) -> None:
    """A slow twin of the rule: whole groups alone, one 80/10/10 draw each, and never more than the most."""
    vocabulary, ids = read_vocabulary(tokenizer), token_ids(tokenizer)
    masker, shown = Masker.of(vocabulary), {"mask": 0, "other": 0, "own": 0}
    for _, _, example in numbered(ours):
        true, places = text_of(example), example["masked_lm_positions"]
        own = [group for group in groups_of(example, masker, ids) if group[0] in places]
        assert sorted(place for group in own for place in group) == places and 1 <= len(places) <= 6
        for group in own:
            kinds = {
                "mask" if example["tokens"][p] == "<mask>" else "own" if example["tokens"][p] == true[p] else "other"
                for p in group
            }
            assert "mask" not in kinds or len(kinds) == 1  # one draw a group
            shown["other" if "other" in kinds else kinds.pop()] += 1
            assert not any(masker.special[ids[example["tokens"][p]]] for p in group if example["tokens"][p] != "<mask>")
    total = sum(shown.values())
    assert shown["mask"] / total == pytest.approx(0.8, abs=0.03)
    assert shown["other"] / total == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("whole_words", [False, True])
def test_each_sequence_has_its_number_of_predictions(whole_words: bool, ours: Path, tokenizer: str) -> None:
    """Exactly of tokens, and of words on average where the most is far."""
    ids, options = token_ids(tokenizer), PregenerateOptions(do_whole_word_mask=whole_words, seed=5, max_seq_len=48)
    texts = [np.array([ids[token] for token in text_of(example)]) for _, _, example in numbered(ours)]
    wanted = [max(1, round(0.15 * len(text))) for text in texts]
    some = [
        Unmasked(text, len(text), False, row, count)
        for row, (text, count) in enumerate(zip(texts, wanted, strict=True))
    ]
    made, few = (
        EpochWriter(tokenizer, replace(options, max_predictions_per_seq=most)).masked(some, 0)[1].sum(1)
        for most in (40, 3)
    )
    assert few.max() == 3 and few.min() >= 1 - whole_words
    if whole_words:
        assert made.sum() == pytest.approx(sum(wanted), rel=0.01) and (made != wanted).any()
    else:
        assert made.tolist() == wanted and few.tolist() == np.minimum(wanted, 3).tolist()


def test_any_number_of_workers_and_a_stop_give_the_same(
    ours: Path, corpus: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "BLOCK_TOKENS", 4_000)
    sources = Sources([str(corpus)], layout="sentences")
    make, made = generate.WriteExamples.__call__, list[generate.Block]()

    def killed(self: generate.WriteExamples, task: tuple[generate.Block, str]) -> dict[str, Any]:
        made.append(task[0])
        epoch, _, first, _ = task[0]
        if epoch == 1 and first:
            raise KeyboardInterrupt
        return make(self, task)

    monkeypatch.setattr(generate.WriteExamples, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        pregenerate(sources, tokenizer, str(tmp_path / "again"), OPTIONS)
    assert {epoch for epoch, *_ in made} == {0, 1} and len(made) > 10
    monkeypatch.setattr(generate.WriteExamples, "__call__", make)
    with pytest.raises(StoreError, match="its generation never finished"):
        open_epochs(str(tmp_path / "again"))
    with pytest.raises(InputError, match="unfinished epochs of other text or options"):
        pregenerate(sources, tokenizer, str(tmp_path / "again"), replace(OPTIONS, seed=1))
    pregenerate(sources, tokenizer, str(tmp_path / "again"), OPTIONS, workers=2)
    for epoch in range(2):
        assert (tmp_path / "again" / f"epoch_{epoch}.json").read_bytes() == (ours / f"epoch_{epoch}.json").read_bytes()
    assert sorted(os.listdir(tmp_path / "again")) == sorted(os.listdir(ours))
    counts = [len(lines(ours / f"epoch_{epoch}.json")) for epoch in range(2)]
    assert pregenerate(sources, tokenizer, str(tmp_path / "again"), OPTIONS) == counts  # nothing to do
    with pytest.raises(InputError, match="already holds pregenerated epochs"):
        pregenerate(sources, tokenizer, str(tmp_path / "again"), replace(OPTIONS, seed=1))


def test_a_folder_of_others_is_left_as_it_is_and_a_stop_while_text_is_encoded_is_continued(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, once = tmp_path / "project", PregenerateOptions(epochs_to_generate=1)
    source = project / "text" / "a.txt"
    source.parent.mkdir(parents=True)
    source.write_text("One document.\n\nAnother one.\n")
    sources = Sources([str(source)], layout="sentences")
    with pytest.raises(InputError, match="is not empty"):
        pregenerate(sources, tokenizer, str(project), once)
    assert [*project.rglob("*")] == [source.parent, source]
    prepare_text = generate.prepare

    def killed(*arguments: Any) -> TokenStore:
        prepare_text(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "prepare", killed)
    with pytest.raises(KeyboardInterrupt):
        pregenerate(sources, tokenizer, str(tmp_path / "out"), once)
    monkeypatch.setattr(generate, "prepare", prepare_text)
    assert pregenerate(sources, tokenizer, str(tmp_path / "out"), once) == [2]


def test_pairs_are_written_and_read_back_as_their_documents(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    """The original put what follows into the first segment, and so left the second one empty."""
    options = PregenerateOptions(epochs_to_generate=1, max_seq_len=64, do_next_sent_prediction=True)
    pregenerate(Sources([str(corpus)], layout="sentences"), tokenizer, str(tmp_path / "pairs"), options)
    examples = lines(tmp_path / "pairs" / "epoch_0.json")
    for example in examples:
        tokens, first = text_of(example), example["segment_ids"].count(0)
        assert example["segment_ids"] == [0] * first + [1] * (len(tokens) - first) and len(tokens) - first >= 2
        assert (tokens[0], tokens[first - 1], tokens[-1]) == ("<s>", "</s>", "</s>") and len(tokens) <= 64
    # What is one sentence alone has no next one of its own.
    assert 0.4 < sum(example["is_random_next"] for example in examples) / len(examples) < 0.75
    store = open_epochs(str(tmp_path / "pairs"))
    places = [int(store.origin("train", number).rpartition(":")[2]) for number in range(store.split("train").documents)]
    numbers = [number for number, one in enumerate(examples, 1) for _ in range(1 + one["is_random_next"])]
    assert places == numbers  # of two documents, the halves of a pair are two
    (tmp_path / "one.txt").write_text("One document.\nOf two sentences.\n")
    alone = Sources([str(tmp_path / "one.txt")], layout="sentences")
    with pytest.raises(InputError, match="is one document"):
        pregenerate(alone, tokenizer, str(tmp_path / "x"), options)
    assert not (tmp_path / "x").exists()
    assert pregenerate(alone, tokenizer, str(tmp_path / "y"), PregenerateOptions(epochs_to_generate=1)) == [1]


def test_pairs_of_a_store_of_many_shards(store: TokenStore) -> None:
    """What another document is, by search: one of the same shard, or of the next one where a document is alone."""
    options = PregenerateOptions(max_seq_len=64, do_next_sent_prediction=True)
    split, words, rows = store.split("train"), store.vocabulary, list[int]()
    texts = [read_text(split, shard_idx) for shard_idx in range(len(split.shards))]
    one = int(texts[0].document_ends[0])
    alone = texts[0]._replace(ids=texts[0].ids[:one], document_ends=texts[0].document_ends[:1])
    assert len(texts) > 2
    for text, other in [*zip(texts, texts[1:] + texts[:1], strict=True), (alone, texts[1])]:
        joined = {found.number: b" ".join(b"%d" % token for token in found.ids) for found in documents(text, 0, 999)}
        next_shard = b" ".join(b"%d" % token for token in other.ids)
        for document in documents(text, 0, len(text.document_ends)):
            kept: list[int] = []
            for each in sequences(text, document, other, options, words, 0):
                ids = each.ids.tolist()
                first, second = ids[1 : each.first_segment - 1], ids[each.first_segment : -1]
                frame = words.bos, words.eos, words.eos
                assert len(ids) <= 64 and (ids[0], ids[each.first_segment - 1], ids[-1]) == frame
                kept += first if each.random_next else first + second
                spelt = b" ".join(b"%d" % token for token in second)
                others = [joined[number] for number in joined if number != document.number] or [next_shard]
                assert second and (not each.random_next or any(spelt in ids for ids in others))
                rows.append(each.row)
            assert kept == document.ids.tolist()
    rows = rows[: -sum(1 for _ in sequences(alone, next(documents(alone, 0, 1)), texts[1], options, words, 0))]
    assert len(rows) == len(set(rows)) > 500


def test_long_sentences_and_documents_are_cut_not_lost(
    corpus: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "BLOCK_TOKENS", 300)
    monkeypatch.setattr("maskwright.data.pregenerate.sequences.LONGEST_TOKENS", 500)
    path = tmp_path / "long.txt"
    path.write_text(" ".join(corpus.read_text().split())[:9000])  # one sentence
    sources = Sources([str(path)], layout="file")
    pregenerate(sources, tokenizer, str(tmp_path / "long"), PregenerateOptions(epochs_to_generate=1, max_seq_len=32))
    words = load_tokenizer(tokenizer, special_tokens_are_text=False)
    found = [token for example in lines(tmp_path / "long" / "epoch_0.json") for token in text_of(example)[1:-1]]
    assert found == words.encode(path.read_text(), add_special_tokens=False).tokens


# ---- training from them, and others' folders -------------------------------------------------------------------------


def test_a_run_reads_the_text_of_the_files_and_counts_each_as_an_epoch(ours: Path, tokenizer: str) -> None:
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
    assert loader.config.steps == math.ceil(1.5 * rows / 8) and rows < 0.85 * len(examples)  # short ones share a row
    assert loader.epoch(loader.config.steps) == pytest.approx(3.0, abs=16 / rows)
    assert loader.epoch(100) == 2 * 800 / rows
    batches = [batch for step in range(40) for batch in loader.batches(step)]
    assert sum(batch.predicted for batch in batches) / sum(batch.text_tokens for batch in batches) == pytest.approx(
        0.15 * (1 - 2 / 40), rel=0.1
    )
    mixed = {"epochs": {"store": str(ours), "format": "pregenerated"}, "again": store.folder}
    both = open_store(small_config("", **{"data.store": None, "data.mixture": mixed}).data)
    assert both.manifest["splits"]["train"]["documents"] == 2 * len(examples)


def test_a_token_that_the_vocabulary_lacks_is_read_as_transformers_reads_it(
    theirs: Path, tokenizer: str, tmp_path: Path
) -> None:
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


def test_a_run_is_judged_by_other_text_and_replayed(
    ours: Path, corpus: Path, tokenizer: str, tmp_path: Path, cli: Cli
) -> None:
    sources, half = Sources([str(corpus)], layout="sentences"), PrepareOptions(valid_fraction=0.5)
    held_out = prepare(Request(sources, tokenizer, str(tmp_path / "held"), half))
    file, run = tmp_path / "run.yaml", RunDirectory(str(tmp_path / "run"))
    file.write_text(json.dumps(pregenerated(ours, **{"data.validation": held_out.location}).model_dump()))
    assert cli("pretrain", file, "--run", tmp_path / "run").code == 0
    (card,) = storage.read_json(run.path("data.json"))["sources"]
    assert card["location"] == str(ours) and card["splits"]["train"]["documents"] == len(numbered(ours))
    judged = cli("evaluate", tmp_path / "run")
    assert judged.code == 0 and held_out.location in judged.out
    replayed = cli("replay", tmp_path / "run", "--step", 11)
    assert replayed.code == 0 and f"{ours}/epoch_" in replayed.out
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
        ("arrays", "epoch_1: is an epoch of arrays, which earlier versions wrote"),
        ("metrics", "epoch_1_metrics.json: is missing, so its epoch was never finished"),
        ("epoch", "lacks epoch 0"),
        ("none", "holds no epoch_0.json, so it is not pregenerated data"),
        ("tokenizer", "has no tokenizer/, but its examples are strings of a tokenizer"),
    ],
)
def test_damaged_folders(what: str, message: str, theirs: Path, tokenizer: str, cache: Path) -> None:
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
    elif what == "arrays":
        (theirs / "epoch_1").mkdir()
    elif what != "tokenizer":
        (theirs / {"metrics": "epoch_1_metrics.json", "epoch": "epoch_0.json"}[what]).unlink()
    files, cached = (set(theirs.parent.rglob("*")), set(cache.rglob("*")))
    with pytest.raises(StoreError) as caught:
        open_epochs(str(theirs), None if what == "tokenizer" else tokenizer)
    assert message in str(caught.value) and ". Fix: " in str(caught.value)
    assert set(theirs.parent.rglob("*")) == files and set(cache.rglob("*")) <= cached | {cache / "converted"}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("token", r"epoch_1.json:3: has 'zzqx', which is not a token"),
        ("label", r"epoch_1.json:3: has 'zzqx', which is not a token"),
        ("bom", r"epoch_1.json:1: begins with a byte order mark \(BOM\)"),
        ("space", r"epoch_1.json: is not what was written \(its sha256 differs from pregenerate.json\)"),
    ],
)
def test_damage_in_what_was_written_here_says_where(what: str, said: str, ours: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    shutil.copytree(ours, folder)
    path = folder / "epoch_1.json"
    examples = path.read_text().splitlines(keepends=True)
    example = json.loads(examples[2])
    example["tokens" if what == "token" else "masked_lm_labels"][0] = "zzqx"
    examples[2] = f"{json.dumps(example)}\n" if what in ("token", "label") else examples[2]
    examples[0] = {"bom": "\ufeff", "space": " "}.get(what, "") + examples[0]
    path.write_text("".join(examples), encoding="utf-8")
    with pytest.raises(StoreError, match=f"{said}. Fix: copy it again from its origin"):
        open_epochs(str(folder))


def test_a_store_for_keeps_is_that_of_a_run(theirs: Path, tokenizer: str, tmp_path: Path, cli: Cli) -> None:
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--masked_lm_prob", "1.5"), "--masked_lm_prob 1.5 is not from 0 to 1"),
        (("--max-seq-len", "4"), "--max_seq_len 4 is not from 8 to 8,192"),
        (("--epochs_to_generate", "0"), "must be 1 or more"),
    ],
)
def test_bad_options(
    options: tuple[str, ...], message: str, cli: Cli, corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    command = ("data", "pregenerate", "--train_corpus", corpus, "--bert_model", tokenizer, "--output", tmp_path / "o")
    result = cli(*command, *options)
    assert result.code == 2 and message in result.error
    assert not (tmp_path / "o").exists()
