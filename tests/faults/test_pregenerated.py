"""Epochs with static masks: how they are made, what is wrong in others, training from them, damaged folders."""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from conftest import small_config
from in_process import Cli
from original_epochs import lines, spoil, text_of
from tokenizer_kinds import with_words

from maskwright.core import storage
from maskwright.core.config import RunConfig
from maskwright.core.errors import ConfigError, InputError, StoreError
from maskwright.data.masking import Masker
from maskwright.data.pregenerated import generate, store
from maskwright.data.pregenerated.examples import KEYS, map_arrays
from maskwright.data.pregenerated.findings import Findings
from maskwright.data.pregenerated.generate import PregenerateOptions, pregenerate
from maskwright.data.pregenerated.loader import PregeneratedLoader
from maskwright.data.pregenerated.repair import repair
from maskwright.data.pregenerated.store import PregeneratedStore
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.run.directory import RunDirectory
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import read_vocabulary, token_strings
from maskwright.training import checkpoint

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


def test_predictions_are_whole_words_by_the_rule(ours: Path, tokenizer: str) -> None:
    """A slow twin of the choice: how many, which, and one 80/10/10 draw a word."""
    vocabulary = read_vocabulary(tokenizer)
    ids = {token: index for index, token in enumerate(token_strings(tokenizer))}
    masker, shown = Masker.of(vocabulary), {"mask": 0, "other": 0, "own": 0}
    for example in lines(ours / "epoch_0.json") + lines(ours / "epoch_1.json"):
        true, places = text_of(example), example["masked_lm_positions"]
        word = np.cumsum([masker.word_start[ids[token]] or masker.special[ids[token]] for token in true])
        word[1:-1] += 1  # a word after <s>, however it begins
        word[-1] += 2
        sizes = {number: int((word == number).sum()) for number in set(word[places].tolist())}
        assert len(places) == sum(sizes.values()), example
        budget = min(6, max(1, round(0.15 * len(true))))
        assert len(places) <= budget or len(sizes) == 1
        for number in sizes:
            at = [place for place in places if word[place] == number]
            kinds = {
                "mask" if example["tokens"][p] == "<mask>" else "own" if example["tokens"][p] == true[p] else "other"
                for p in at
            }
            assert "mask" not in kinds or len(kinds) == 1  # one draw a word
            shown["other" if "other" in kinds else kinds.pop()] += 1
            assert not any(masker.special[ids[true[p]]] for p in at)
            assert not any(masker.special[ids[example["tokens"][p]]] for p in at if example["tokens"][p] != "<mask>")
    total = sum(shown.values())
    assert shown["mask"] / total == pytest.approx(0.8, abs=0.03)
    assert shown["other"] / total == pytest.approx(0.1, abs=0.02)


def test_any_number_of_workers_a_stop_and_the_binary_twin_give_the_same(
    ours: Path, corpus: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "BLOCK_TOKENS", 4_000)
    sources = Sources([str(corpus)], layout="sentences")
    writes = generate.write_metrics

    def killed(folder: str, epoch: int, *more: int) -> None:
        if epoch == 1:
            raise KeyboardInterrupt
        writes(folder, epoch, *more)

    monkeypatch.setattr(generate, "write_metrics", killed)
    with pytest.raises(KeyboardInterrupt):
        pregenerate(sources, tokenizer, str(tmp_path / "again"), OPTIONS)
    with pytest.raises(StoreError, match="its generation never finished"):
        PregeneratedStore(str(tmp_path / "again"))
    monkeypatch.setattr(generate, "write_metrics", writes)
    other = PregenerateOptions(**{**OPTIONS.__dict__, "seed": 1})
    with pytest.raises(InputError, match="unfinished epochs of other text or options"):
        pregenerate(sources, tokenizer, str(tmp_path / "again"), other)
    pregenerate(sources, tokenizer, str(tmp_path / "again"), OPTIONS, workers=2)
    binary = PregenerateOptions(**{**OPTIONS.__dict__, "format": "binary"})
    pregenerate(sources, tokenizer, str(tmp_path / "binary"), binary)
    for epoch in range(2):
        assert (tmp_path / "again" / f"epoch_{epoch}.json").read_bytes() == (ours / f"epoch_{epoch}.json").read_bytes()
    stores = [PregeneratedStore(str(folder)) for folder in (ours, tmp_path / "again", tmp_path / "binary")]
    assert stores[0].fingerprint == stores[1].fingerprint
    for mine, twin in zip(stores[0].epochs, stores[2].epochs, strict=True):
        for name in mine.examples.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(mine.examples, name), getattr(twin.examples, name))
    stores[2].verify()
    assert sorted(os.listdir(tmp_path / "again")) == sorted(os.listdir(ours))
    with pytest.raises(InputError, match="already holds pregenerated epochs"):
        pregenerate(sources, tokenizer, str(tmp_path / "binary"), binary)


def test_pairs_have_a_second_segment_that_follows_or_is_of_another_document(
    corpus: Path, tokenizer: str, tmp_path: Path, cli: Cli
) -> None:
    """The original put what follows into the first segment, and so left the second one empty."""
    options = PregenerateOptions(epochs_to_generate=1, max_seq_len=64, do_next_sent_prediction=True)
    sources = Sources([str(corpus)], layout="sentences")
    pregenerate(sources, tokenizer, str(tmp_path / "pairs"), options)
    words = load_tokenizer(tokenizer, special_tokens_are_text=False)
    documents = [document.text for document in sources]
    examples, random_next = lines(tmp_path / "pairs" / "epoch_0.json"), 0
    for example in examples:
        tokens, first = text_of(example), example["segment_ids"].count(0)
        assert example["segment_ids"] == [0] * first + [1] * (len(tokens) - first)
        assert (tokens[0], tokens[first - 1], tokens[-1]) == ("<s>", "</s>", "</s>")
        assert len(tokens) <= 64 and len(tokens) - first >= 2
        parts = [[words.token_to_id(token) for token in part] for part in (tokens[1 : first - 1], tokens[first:-1])]
        one, two = (words.decode(part) for part in parts)
        follows = any(one + two in document for document in documents)
        assert follows != example["is_random_next"] or example["is_random_next"]
        random_next += example["is_random_next"]
    assert 0.4 < random_next / len(examples) < 0.75  # what is one sentence alone has no next one of its own
    (tmp_path / "one.txt").write_text("One document.\nOf two sentences.\n")
    alone = Sources([str(tmp_path / "one.txt")], layout="sentences")
    with pytest.raises(InputError, match="is one document"):
        pregenerate(alone, tokenizer, str(tmp_path / "x"), options)
    assert not (tmp_path / "x").exists()
    (tmp_path / "lines.txt").write_text("A file without a blank line.\nIt is one document.\n")
    made = cli(
        "data",
        "pregenerate",
        "--train_corpus",
        tmp_path / "lines.txt",
        "--bert_model",
        tokenizer,
        "--output",
        tmp_path / "z",
    )
    assert made.code == 0 and "3 epochs of 1, 1, 1 examples" in made.out
    assert pregenerate(alone, tokenizer, str(tmp_path / "y"), PregenerateOptions(epochs_to_generate=1)) == [1]


def test_long_sentences_and_documents_are_cut_not_lost(
    corpus: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "BLOCK_TOKENS", 300)
    monkeypatch.setattr("maskwright.data.pregenerated.sequences.LONGEST_TOKENS", 500)
    path = tmp_path / "long.txt"
    path.write_text(" ".join(corpus.read_text().split())[:9000])  # one sentence
    sources = Sources([str(path)], layout="file")
    pregenerate(sources, tokenizer, str(tmp_path / "long"), PregenerateOptions(epochs_to_generate=1, max_seq_len=32))
    words = load_tokenizer(tokenizer, special_tokens_are_text=False)
    found = [token for example in lines(tmp_path / "long" / "epoch_0.json") for token in text_of(example)[1:-1]]
    assert found == words.encode(path.read_text(), add_special_tokens=False).tokens


# ---- others' folders -------------------------------------------------------------------------------------------------


def test_what_is_wrong_in_others_is_counted_and_repaired(
    theirs: Path, tokenizer: str, tmp_path: Path, cli: Cli
) -> None:
    first = PregeneratedStore(str(theirs), tokenizer)
    found, expected = first.findings, [e for n in range(2) for e in lines(theirs / f"epoch_{n}.json")]
    shown = [(e["tokens"][p], p) for e in expected for p in e["masked_lm_positions"]]
    assert found.foreign_masks == sum(token == "[MASK]" for token, _ in shown)
    assert (found.special_replacements, found.foreign_text, found.unknown_tokens) == (2, 10, 0)
    assert found.split_words > 0.9 * found.long_words > 0
    warned = " ".join(first.warnings())
    assert f"{found.foreign_masks:,} of {found.predictions:,} predictions" in warned and "--repair" in warned

    _, left = repair(str(theirs), tokenizer, str(tmp_path / "same"), whole_words=False, seed=0, written="json")
    assert (left.foreign_masks, left.special_replacements, left.foreign_text) == (0, 0, 10)
    for before, after in zip(expected, lines(tmp_path / "same" / "epoch_0.json"), strict=False):
        assert text_of(after) == text_of(before)
        assert after["masked_lm_positions"] == before["masked_lm_positions"]
        changed = {(a, b) for a, b in zip(before["tokens"], after["tokens"], strict=True) if a != b and a != "<pad>"}
        assert changed <= {("[MASK]", "<mask>")}

    command = ("data", "pregenerate", "--repair", theirs, "--bert_model", tokenizer, "--output_dir", tmp_path / "whole")
    result = cli(*command, "--do-whole-word-mask", "--format", "binary")
    assert result.code == 0 and "what is left:\n  10 of 120 examples" in result.out
    whole = PregeneratedStore(str(tmp_path / "whole"))
    counts = [len(example["masked_lm_positions"]) for example in expected]
    assert (whole.column("predictions") <= np.array(counts)).mean() > 0.98
    assert whole.column("predictions").sum() > 0.9 * sum(counts)


def test_training_takes_masks_from_the_files_in_an_order_of_its_own(ours: Path, tokenizer: str) -> None:
    """A slow twin: the rows of the run, found again among the lines."""
    config = pregenerated(ours, **{"batch.virtual_workers": 3, "schedule.steps": 400})
    loader = PregeneratedLoader(config, PregeneratedStore(str(ours)))
    ids = {token: index for index, token in enumerate(token_strings(tokenizer))}
    files = [lines(ours / f"epoch_{epoch}.json") for epoch in range(2)]
    seen: list[tuple[int, int]] = []
    for step in range(sum(map(len, files)) * 2 // 12 + 1):
        batches = loader.batches(step)
        alone = PregeneratedLoader(config, PregeneratedStore(str(ours))).batch(step, 1) if step < 3 else batches[1]
        np.testing.assert_array_equal(alone.input_ids, batches[1].input_ids)
        for worker, batch in enumerate(batches):
            epochs, rows = loader.row_numbers(step, worker)
            index = batch.predict_index.reshape(4, -1)
            for row, (epoch, number) in enumerate(zip(epochs.tolist(), rows.tolist(), strict=True)):
                example = files[epoch % 2][number - len(files[0]) * (epoch % 2)]
                seen.append((epoch, number))
                tokens, places = example["tokens"], example["masked_lm_positions"]
                assert batch.input_ids[row].tolist() == [ids[t] for t in tokens] + [1] * (48 - len(tokens))
                assert batch.segment_ids[row].tolist() == [1] * len(tokens) + [0] * (48 - len(tokens))
                weights = batch.weights.reshape(4, -1)[row] > 0
                assert (index[row][weights] - row * 48).tolist() == places
                labels = batch.labels.reshape(4, -1)[row][weights].tolist()
                assert labels == [ids[label] for label in example["masked_lm_labels"]]
    for epoch in range(4):  # each example once, in another order the second time
        here = [number for one, number in seen if one == epoch]
        assert len(set(here)) == len(here) == len(files[epoch % 2]) and here != sorted(here)
    assert [n for e, n in seen if e == 0] != [n for e, n in seen if e == 2]
    assert loader.mean_epoch_rows(3.0) == (2 * len(files[0]) + len(files[1])) / 3
    whole = -(-(2 * len(files[0]) + len(files[1])) // 12)
    assert 3.0 <= loader.epoch(whole) < 3.2 and loader.epoch(whole - 1) < 3.0


def test_a_foreign_mask_is_read_as_transformers_reads_it(theirs: Path, tokenizer: str, tmp_path: Path) -> None:
    """`[MASK]` is the unknown token to RoBERTa, also where the vocabulary has a word `None`; and repairs keep that."""
    folder = with_words(tokenizer, tmp_path / "words", "None")
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    for path in theirs.glob("epoch_?.json"):
        path.write_text(path.read_text().replace('"masked_lm_labels": ["', '"masked_lm_labels": ["None", "', 1))
        first = path.read_text().replace('"masked_lm_positions": [1', '"masked_lm_positions": [0, 1', 1)
        path.write_text(first.replace('"tokens": ["<s>"', '"tokens": ["[MASK]"', 1))
    opened, examples = PregeneratedStore(str(theirs), str(folder)), lines(theirs / "epoch_0.json")
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    expected = [reader.convert_tokens_to_ids(example["tokens"]) for example in examples]
    np.testing.assert_array_equal(opened.epochs[0].examples.tokens, np.concatenate(expected))
    labels = [reader.convert_tokens_to_ids(example["masked_lm_labels"]) for example in examples]
    np.testing.assert_array_equal(opened.epochs[0].examples.labels, np.concatenate(labels))
    assert opened.findings.special_predictions == 0
    _, left = repair(str(theirs), str(folder), str(tmp_path / "same"), whole_words=False, seed=0, written="json")
    assert left.predictions == opened.findings.predictions
    assert lines(tmp_path / "same" / "epoch_0.json")[0]["masked_lm_labels"][0] == "None"


def test_findings_count_one_properly() -> None:
    one = Findings(examples=1, predictions=2, special_predictions=1, foreign_text=1, unframed=2, unknown_tokens=1)
    assert one.wrong("<mask>") == [
        "1 other token is not in the vocabulary: another tokenizer made the examples",
        "1 prediction is of a special token",
        "1 of 1 example (100.0%) ends in text of another document without a separator",
        "2 examples are not between the tokenizer's first and last special token",
    ]


def test_a_run_resumes_exactly_is_judged_and_exported(
    ours: Path, corpus: Path, tokenizer: str, tmp_path: Path, cli: Cli
) -> None:
    held_out = prepare(
        Request(
            Sources([str(corpus)], layout="sentences"),
            tokenizer,
            str(tmp_path / "held"),
            PrepareOptions(valid_fraction=0.5),
        )
    )
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(pregenerated(ours, **{"data.validation": held_out.location}).model_dump()))
    dry = cli("pretrain", file, "--run", tmp_path / "x", "--dry-run")
    told = dry.out + dry.err
    assert dry.code == 0 and "epoch e reads file e mod 2" in told
    assert "--warmup_proportion P is schedule.warmup_steps: P x 12 here; this run's 3 are 0.25" in told
    assert cli("pretrain", file, "--run", tmp_path / "straight").code == 0
    assert cli("pretrain", file, "--run", tmp_path / "cut", "--stop-after-steps", 5).code == 75
    assert cli("pretrain", file, "--run", tmp_path / "cut").code == 0
    both = [RunDirectory(str(tmp_path / name)) for name in ("straight", "cut")]
    states = [checkpoint.load(os.path.join(run.checkpoints, "step-00000012"))[0] for run in both]
    for name, value in states[0].parameters.items():
        np.testing.assert_array_equal(value, states[1].parameters[name])
    losses = [line["valid_loss"] for line in both[0].read_metrics() if "valid_loss" in line]
    assert losses[-1] < losses[0]
    judged = cli("evaluate", tmp_path / "cut")
    assert judged.code == 0 and held_out.location in judged.out
    assert cli("evaluate", tmp_path / "cut", "--store", held_out.location).out == judged.out
    record = both[0].read_config()
    storage.write_json(both[0].config, record | {"config": record["config"] | {"data.validation": None}})
    refused = cli("evaluate", tmp_path / "straight")
    assert refused.code == 2 and "pregenerated" in refused.error and "--store" in refused.error
    storage.write_json(both[0].config, record)
    assert cli("export", tmp_path / "cut", "--to", tmp_path / "model").code == 0
    assert cli("replay", tmp_path / "straight", "--step", 11).code == 0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("line", "epoch_1.json:3: is not JSON"),
        ("key", "epoch_1.json:3: is no example: it has tokens, an example has tokens, segment_ids"),
        ("position", "epoch_1.json:3: has positions that do not rise within its"),
        ("cut", "epoch_1.json: has 59 examples, its metrics file says 60"),
        ("metrics", "epoch_1_metrics.json: is missing, so its epoch was never finished"),
        ("epoch", "lacks epoch 0"),
        ("none", "holds no epoch_0.json, so it is not pregenerated data"),
        ("tokenizer", "has no tokenizer/, and its examples are the strings of a tokenizer"),
    ],
)
def test_damaged_folders(what: str, message: str, theirs: Path, tokenizer: str) -> None:
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
    with pytest.raises(StoreError) as caught:
        PregeneratedStore(str(theirs), None if what == "tokenizer" else tokenizer)
    assert message in str(caught.value) and ". Fix: " in str(caught.value)
    assert not [name for name in os.listdir(theirs) if "tmp" in name] if theirs.exists() else True


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("token", r"epoch_1.json:3: has 'zzqx', which is no token"),
        ("label", r"epoch_1.json:3: has 'zzqx', which is no token"),
        ("bom", r"epoch_1.json:1: begins with a byte order mark \(BOM\)"),
        ("space", r"epoch_1.json: is not what was written \(its sha256 differs\)"),
    ],
)
def test_damage_in_what_was_written_here_says_where(what: str, said: str, ours: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    shutil.copytree(ours, folder, ignore=shutil.ignore_patterns(".maskwright"))
    path = folder / "epoch_1.json"
    examples = path.read_text().splitlines(keepends=True)
    example = json.loads(examples[2])
    example["tokens" if what == "token" else "masked_lm_labels"][0] = "zzqx"
    examples[2] = f"{json.dumps(example)}\n" if what in ("token", "label") else examples[2]
    examples[0] = {"bom": "\ufeff", "space": " "}.get(what, "") + examples[0]
    path.write_text("".join(examples), encoding="utf-8")
    with pytest.raises(StoreError, match=f"{said}. Fix: copy the file again, or generate the epoch again"):
        PregeneratedStore(str(folder))


def test_changed_and_damaged_arrays_are_met(ours: Path, theirs: Path, tokenizer: str, tmp_path: Path) -> None:
    first = PregeneratedStore(str(theirs), tokenizer)
    first.verify()
    path = theirs / "epoch_0.json"
    path.write_text(path.read_text().replace("[MASK]", "<mask>"))
    again = PregeneratedStore(str(theirs), tokenizer)
    assert again.fingerprint != first.fingerprint and again.findings.foreign_masks < first.findings.foreign_masks
    with pytest.raises(StoreError, match="is not what was written"):
        first.verify()
    with pytest.raises(ConfigError, match="below the 48 tokens of the longest example"):
        PregeneratedLoader(pregenerated(ours, **{"data.seq_len": 32}), PregeneratedStore(str(ours)))
    with pytest.raises(StoreError, match="one step takes"):
        PregeneratedLoader(pregenerated(theirs, **{"batch.virtual_workers": 64}), again)

    binary = tmp_path / "binary"
    made = theirs / ".maskwright" / f"epoch_0-{again.vocabulary.fingerprint[:12]}"
    ids = np.load(made / "tokens.npy")
    np.save(made / "tokens.npy", np.full_like(ids, 100))
    rotten = PregeneratedStore(str(theirs), tokenizer)
    with pytest.raises(StoreError, match="holds other arrays than were made of .*json .*delete that folder"):
        rotten.verify()
    shutil.rmtree(made)
    PregeneratedStore(str(theirs), tokenizer).verify()
    np.testing.assert_array_equal(np.load(made / "tokens.npy"), ids)

    repair(str(theirs), tokenizer, str(binary), whole_words=True, seed=3, written="binary")
    arrays = binary / "epoch_0" / "tokens.npy"
    ids = np.load(arrays)
    ids[7] = 401
    np.save(arrays, ids)
    broken = PregeneratedStore(str(binary))
    with pytest.raises(StoreError, match="is not what was written"):
        broken.verify()
    loader = PregeneratedLoader(pregenerated(binary), broken)
    with pytest.raises(StoreError, match="holds id 401, the tokenizer ends at 399"):
        for step in range(20):
            loader.batches(step)
    ids[7] = 40
    np.save(arrays, ids)
    places = np.load(binary / "epoch_0" / "positions.npy")
    places[places.argmax()] = 60
    np.save(binary / "epoch_0" / "positions.npy", places)
    loader = PregeneratedLoader(pregenerated(binary), PregeneratedStore(str(binary)))
    with pytest.raises(StoreError, match="a position beyond the end of its example"):
        for step in range(20):
            loader.batches(step)
    with open(arrays, "r+b") as file:
        file.seek(10)
        file.write(b"{([")  # numpy's reader of headers lets a TokenError out
    with pytest.raises(StoreError, match="tokens.npy: cannot be read"):
        PregeneratedStore(str(binary))
    np.save(arrays, ids[:-1])
    with pytest.raises(StoreError, match="arrays that do not belong together"):
        PregeneratedStore(str(binary))
    arrays.write_bytes(arrays.read_bytes()[:300])
    with pytest.raises(StoreError, match="cannot be read"):
        map_arrays(str(binary / "epoch_0"))


def test_one_of_several_processes_reads_the_json_and_the_others_wait(
    theirs: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the folder cannot be written: the arrays are then in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "WAIT_SECONDS", 0.01)
    read: list[int] = []

    def slowly(folder: str, number: int, *more: Any, convert: Any = store._convert) -> None:
        read.append(number)
        time.sleep(0.2)
        convert(folder, number, *more)

    monkeypatch.setattr(store, "_convert", slowly)
    for beside in (True, False):
        monkeypatch.setattr(os, "access", lambda *_, beside=beside: beside)
        with ThreadPoolExecutor(3) as pool:
            opened = list(pool.map(lambda _: PregeneratedStore(str(theirs), tokenizer), range(3)))
        assert len({one.fingerprint for one in opened}) == 1
        assert sorted(read) == [0, 1]
        read.clear()
    assert len(list((tmp_path / "cache").glob("maskwright/pregenerated/*/epoch_*/record.json"))) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--masked_lm_prob", "1.5"), "--masked_lm_prob 1.5 is not from 0 to 1"),
        (("--max-seq-len", "4"), "--max_seq_len 4 is not from 8 to 8,192"),
        (("--epochs_to_generate", "0"), "must be 1 or more"),
        (("--repair", "y"), "--train_corpus and --repair both say what to read"),
    ],
)
def test_bad_options(
    options: tuple[str, ...], message: str, cli: Cli, corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    command = ("data", "pregenerate", "--train_corpus", corpus, "--bert_model", tokenizer, "--output", tmp_path / "o")
    result = cli(*command, *options)
    assert result.code == 2 and message in result.error
    assert not (tmp_path / "o").exists()
