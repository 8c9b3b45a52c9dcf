import json
import os
from functools import partial
from pathlib import Path

import pytest

from maskwright.core.errors import InputError, SourceError, TokenizerError
from maskwright.text import pieces
from maskwright.text.sequences import make_tokenizer
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import _train_unigram, inspect_tokenizer, load_tokenizer, train_tokenizer
from maskwright.text.vocabulary import read_vocabulary


def test_training_is_repeatable_and_says_when_text_is_short(corpus, tokenizer, tmp_path, capfd):
    train_tokenizer(Sources([str(corpus)], layout="sentences"), str(tmp_path / "again"), vocab_size=400)
    for name in {*os.listdir(tokenizer)} | {*os.listdir(tmp_path / "again")}:
        assert (tmp_path / "again" / name).read_bytes() == (Path(tokenizer) / name).read_bytes()
    small = train_tokenizer(Sources([str(corpus)], layout="sentences"), str(tmp_path / "big"), vocab_size=50_000)
    assert small.size < 50_000 and small.mask == small.size - 1
    printed = capfd.readouterr().err
    assert "the text supports" in printed and "have digits" not in printed
    log = tmp_path / "a.log"
    log.write_text("".join(f"block blk_{n * 7919 % 10**6} of size {n**3 % 10**5} received\n" * 2 for n in range(400)))
    cyrillic = tmp_path / "a.txt"  # whose bytes are ², ³ and ¹ among BPE's letters
    cyrillic.write_text("".join(f"в{a}{b}й г{b}{a}вый\n" * 2 for a in "бгдкмнпрст" for b in "аеиоуыэюя"))
    for text, kind, warned in ((log, "bpe", True), (log, "words", False), (cyrillic, "bpe", False)):  # items: numbers
        train_tokenizer(Sources([str(text)]), str(tmp_path / f"{text.name}-{kind}"), kind=kind, vocab_size=500)
        assert (" of 500 tokens have digits, such as " in capfd.readouterr().err) == warned


def test_words_of_new_documents_without_a_token_are_warned_of(tmp_path, capfd):
    """Ids that occur twice, but in one document: all are known in the text, and none in a new one."""
    text = tmp_path / "a.txt"
    for line, warned in (("blk_{0} got blk_{0}", True), ("one of {1} got blk_{0} or {1}", False)):
        text.write_text("".join(line.format(n, n % 7) + "\n" for n in range(400)))
        train_tokenizer(Sources([str(text)], layout="lines"), str(tmp_path / str(warned)), kind="words")
        assert (
            "in new documents like these, 66.7% of the words would have no token" in capfd.readouterr().err
        ) == warned


def test_pieces_are_learned_from_parts_of_long_words(monkeypatch):
    monkeypatch.setattr("maskwright.text.tokenizer.LONGEST_WORD", 4)
    cut, whole = (_train_unigram(words, 20).to_str() for words in ({"abcdabcd": 9}, {"abcd": 18}))
    assert cut == whole


def test_bad_requests_are_refused(corpus, tokenizer, tmp_path):
    sources = Sources([str(corpus)])
    with pytest.raises(InputError, match="too small"):
        train_tokenizer(sources, str(tmp_path / "t"), vocab_size=100)
    with pytest.raises(InputError, match="is not empty"):
        train_tokenizer(sources, tokenizer)
    for name, content, said in (("a.txt", "\n\n\n", "no text"), ("a.jsonl", '{"text": " "}', "no documents")):
        (tmp_path / name).write_text(content)
        with pytest.raises(SourceError, match=said):
            train_tokenizer(Sources([str(tmp_path / name)]), str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_a_folder_with_anything_in_it_is_not_written_to_and_a_failure_leaves_none(tmp_path, monkeypatch):
    (tmp_path / "a.fa").write_text(">1\nACGT\n")
    (folder := tmp_path / "tokenizer").mkdir()
    (folder / "spm.model").write_text("precious")
    sources = Sources([str(tmp_path / "a.fa")])
    for train in (train_tokenizer, partial(make_tokenizer, kind="characters", alphabet="dna")):
        with pytest.raises(InputError, match="is not empty"):
            train(sources, str(folder))
    assert [path.name for path in folder.iterdir()] == ["spm.model"]
    (folder / "spm.model").unlink()
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
        make_tokenizer(sources, str(folder), "characters", "dna")
    assert not [*folder.iterdir()]
    assert make_tokenizer(sources, str(folder), "characters", "dna").size == read_vocabulary(str(folder)).size


def variant(tokenizer, folder, **changes):
    """A folder of `tokenizer.json` alone, in which a part, or a `part__key`, is another."""
    content = json.loads((Path(tokenizer) / "tokenizer.json").read_text())
    for dotted, value in changes.items():
        *parts, name = dotted.split("__")
        (content[parts[0]] if parts else content)[name] = value
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return str(folder)


def test_fingerprint_sees_every_rule_that_changes_ids(tokenizer, tmp_path):
    byte_level = json.loads((Path(tokenizer) / "tokenizer.json").read_text())["pre_tokenizer"]
    split = {"type": "Split", "pattern": {"String": "."}, "behavior": "Isolated", "invert": False}
    variants = [
        variant(tokenizer, tmp_path / "regex", pre_tokenizer__use_regex=False),
        variant(tokenizer, tmp_path / "prefix", pre_tokenizer__add_prefix_space=True),
        variant(tokenizer, tmp_path / "one", pre_tokenizer={"type": "Sequence", "pretokenizers": [byte_level]}),
        variant(tokenizer, tmp_path / "two", pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level]}),
        variant(tokenizer, tmp_path / "lower", normalizer={"type": "Lowercase"}),
        variant(tokenizer, tmp_path / "merges", model__ignore_merges=True),
    ]
    fingerprints = [read_vocabulary(folder).fingerprint for folder in [tokenizer, *variants]]
    assert len(set(fingerprints)) == len(fingerprints)
    old = {"type": "ByteLevel", "add_prefix_space": False}  # from before use_regex was written out
    for number, same in enumerate((byte_level | {"trim_offsets": False}, old)):
        folder = variant(tokenizer, tmp_path / f"same{number}", pre_tokenizer=same)
        assert read_vocabulary(folder).fingerprint == fingerprints[0]


def test_tokenizers_that_are_not_byte_level_or_not_repeatable_are_refused(tokenizer, tmp_path):
    for words, part, value in (
        ("neither splits text into bytes nor writes spaces as ▁", "pre_tokenizer", None),
        ("writes spaces as ▁, but no token begins with it", "pre_tokenizer", {"type": "Metaspace"}),
        ("has BPE dropout", "model__dropout", 0.1),
        ("has no mask_token", "added_tokens", None),
    ):
        with pytest.raises(TokenizerError, match=words):
            read_vocabulary(variant(tokenizer, tmp_path / words, **{part: value}))


def test_special_tokens_stay_text_even_when_not_marked_special(tokenizer, tmp_path):
    added = json.loads((Path(tokenizer) / "tokenizer.json").read_text())["added_tokens"]
    folder = variant(tokenizer, tmp_path / "plain", added_tokens=[{**token, "special": False} for token in added])
    loaded = load_tokenizer(folder, special_tokens_are_text=True)
    ids = loaded.encode("a <mask> and <s>", add_special_tokens=False).ids
    assert not set(ids) & read_vocabulary(folder).special


def test_a_mask_that_a_file_written_by_hand_only_names_is_a_token(tokenizer, tmp_path):
    content = json.loads((Path(tokenizer) / "tokenizer.json").read_text())
    *others, last = content["added_tokens"]
    words = content["model"]["vocab"] | {last["content"]: last["id"]}
    folder = variant(tokenizer, tmp_path / "t", added_tokens=others, model__vocab=words)
    for config in (None, {"mask_token": "<mask>"}):
        if config:
            (tmp_path / "t" / "tokenizer_config.json").write_text(json.dumps(config))
        for as_text in (False, True):
            loaded = load_tokenizer(folder, special_tokens_are_text=as_text)
            ids = loaded.encode("a <mask> b", add_special_tokens=False).ids
            assert ids.count(read_vocabulary(folder).mask) == (not as_text) and len(ids) > 2


def test_inspection_counts_by_hand(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("The fox saw stones.\nÖl.\n", encoding="utf-8")
    result = inspect_tokenizer(tokenizer, Sources([str(path)], layout="lines"))
    loaded = load_tokenizer(tokenizer, special_tokens_are_text=True)
    tokens = sum(len(loaded.encode(t, add_special_tokens=False).ids) for t in ("The fox saw stones.", "Öl."))
    assert (result.documents, result.words, result.bytes, result.tokens) == (2, 5, 19 + 4, tokens)
    assert result.fertility == round(tokens / 5, 3)
    assert result.unknown_tokens == 0
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 100)  # a long document is read in pieces, up to the limit
    monkeypatch.setattr("maskwright.text.tokenizer.INSPECTED_BYTES", 250)
    path.write_text("The fox saw stones. " * 100)
    result = inspect_tokenizer(tokenizer, Sources([str(path)], layout="lines"))
    assert result.documents == 1 and 250 <= result.bytes < 400
