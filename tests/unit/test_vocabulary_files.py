"""Tokenizers of folders from before tokenizer.json: ids are those of transformers' own classes."""

import itertools
import json
import random
import re
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
import transformers
from tokenizer_kinds import KINDS, older_files, sentencepiece_model, with_words

from maskwright.core.errors import TokenizerError
from maskwright.text.audit import audit
from maskwright.text.sources import Sources
from maskwright.text.special_tokens import BERT, ROBERTA, keyed
from maskwright.text.tokenizer import (
    copy_tokenizer,
    inspect_tokenizer,
    inspection_report,
    load_tokenizer,
    train_tokenizer,
)
from maskwright.text.tokenizer_faults import faults, unreachable_tokens
from maskwright.text.vocabulary import has_tokenizer, read_vocabulary

TEXTS = ["The old fox saw <mask> letters.", " two  spaces\n\tand a tab", "[MASK] and [CLS] ##ing", ""]
TEXTS += ["Größe, naïve 東京 🙂 e\u0301 I'll DON'T 3.14"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def older(source, folder, *names):
    folder.mkdir()
    older_files(source, folder, *names)
    return folder


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("roberta", ("vocab.json", "merges.txt")),
        ("roberta", ("vocab.json", "merges.txt", "tokenizer_config.json")),
        ("bert-uncased", ("vocab.txt",)),
        ("bert", ("vocab.txt", "tokenizer_config.json")),
    ],
)
def test_ids_are_those_of_transformers(kind, files, tokenizer_of, tmp_path, capsys):
    whole, architecture = tokenizer_of(kind), kind.partition("-")[0]
    folder = older(whole, tmp_path / "older", *files)
    assert has_tokenizer(str(folder))
    ours = load_tokenizer(str(folder), special_tokens_are_text=False)
    made_of = [name for name in files if name.startswith(("vocab", "merges"))]
    assert f"one is created from {' and '.join(made_of)}" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)  # it stays as it was
    (folder / "config.json").write_text(json.dumps({"model_type": architecture}))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    # Without tokenizer_config.json, the class of transformers 5 leaves the space before <mask>, which RoBERTa's takes.
    for text in TEXTS if len(files) != 2 or kind == "bert" else TEXTS[1:]:
        assert theirs(text)["input_ids"] == ours.encode(text).ids, text
    made, original = read_vocabulary(str(folder)), read_vocabulary(whole)
    assert (made.size, made.mask, made.special) == (original.size, original.mask, original.special)
    assert (made.special, made.unk) == ({*theirs.all_special_ids}, theirs.unk_token_id)
    assert made.fingerprint == original.fingerprint  # so a store made with either fits the other
    assert not capsys.readouterr().err  # it is made once

    copy_tokenizer(str(folder), str(tmp_path / "copy"))
    assert read_vocabulary(str(tmp_path / "copy")) == made
    assert {*files[len(made_of) :], "tokenizer.json"} == {path.name for path in (tmp_path / "copy").iterdir()}
    (tmp_path / "copy" / "config.json").write_text(json.dumps({"model_type": architecture}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert [theirs(text)["input_ids"] for text in TEXTS] == [ours.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("files", [("vocab.txt",), ("vocab.txt", "tokenizer_config.json")])
def test_letters_of_proteins_have_the_ids_of_esms_own_class(files, tokenizer_of, tmp_path):
    """Unknown letters one by one and in runs, white space, and tokens that are spelt out."""
    folder = older(tokenizer_of("esm"), tmp_path / "older", *files)
    theirs = transformers.EsmTokenizer(str(folder / "vocab.txt"))
    ours, draw = load_tokenizer(str(folder), special_tokens_are_text=False), random.Random(0)
    parts = [*"MKLJm* \n.-^]\\<é🙂", "<mask>", "<null_1>", "<pad>", "ask>"]
    for text in [*TEXTS, *("".join(draw.choices(parts, k=draw.randint(1, 12))) for _ in range(500))]:
        assert theirs(text)["input_ids"] == ours.encode(text).ids, text
    assert theirs("MK", "TA")["input_ids"] == ours.encode("MK", "TA").ids
    words = read_vocabulary(str(folder))
    assert (words.size, words.bos, words.pad, words.eos, words.unk, words.mask) == (33, 0, 1, 2, 3, 32)
    assert words.special == {*theirs.all_special_ids}
    as_text = load_tokenizer(str(folder), special_tokens_are_text=True)
    assert as_text.encode("M<mask>K", add_special_tokens=False).ids == [20, 3, 15]

    theirs.add_special_tokens({"additional_special_tokens": ["<human>"]})
    theirs.save_pretrained(tmp_path / "added")
    ours = load_tokenizer(str(tmp_path / "added"), special_tokens_are_text=False)
    assert theirs("<human>MK<human>\n")["input_ids"] == ours.encode("<human>MK<human>\n").ids == [0, 33, 20, 15, 33, 2]


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True, "split_by_punct": True}])
def test_a_sentencepiece_model_has_the_ids_of_debertas_converter(settings, tokenizer_of, tmp_path):
    """Beside the converter of `transformers`, which reads the file with Google's library; and the copy that runs and
    exports hold is read by `transformers` as it is."""
    folder = older(tokenizer_of("deberta"), tmp_path / "older", "spm.model")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, words = load_tokenizer(str(folder), special_tokens_are_text=False), read_vocabulary(str(folder))
    size = words.size
    assert (words.kind, words.pad, words.bos, words.eos, words.unk) == ("unigram", 0, 1, 2, 3)
    assert (words.mask, words.mask_token, words.special) == (size - 1, "[MASK]", {0, 1, 2, 3, size - 1})
    texts = [*TEXTS, "don't; ½ (a-b)", "  lead and trail  ", "The Old FOX"]
    copy_tokenizer(str(folder), str(tmp_path / "copy"))
    (tmp_path / "copy" / "config.json").write_text('{"model_type": "deberta-v2"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert [theirs(text)["input_ids"] for text in texts] == [ours.encode(text).ids for text in texts]
    assert theirs("a", "b")["input_ids"] == ours.encode("a", "b").ids and theirs.mask_token_id == words.mask
    (folder / "added_tokens.json").write_text(json.dumps({"[MASK]": words.mask}))  # as transformers 4 wrote it
    assert read_vocabulary(str(folder)).fingerprint == words.fingerprint

    pytest.importorskip("google.protobuf", reason="the converter of transformers needs it")
    from transformers.convert_slow_tokenizer import DebertaV2Converter

    given = {"do_lower_case": False, "split_by_punct": False} | settings
    slow = SimpleNamespace(vocab_file=str(folder / "spm.model"), add_prefix_space=True, **given)
    slow.convert_tokens_to_ids = {"[CLS]": 1, "[SEP]": 2}.__getitem__
    expected = DebertaV2Converter(slow).converted()
    for text in (text for text in texts if "[MASK]" not in text):
        assert expected.encode(text).ids == ours.encode(text).ids, text


@pytest.mark.parametrize("files", [("vocab.json", "merges.txt"), ("tokenizer.json", "tokenizer_config.json")])
def test_the_word_none_is_a_word(files, tokenizer, tmp_path):
    """Byte-level models have no unknown token of their own, and many of them have the token `None`. What is special is
    compared with transformers: two readings of ours had the same fault."""
    whole = with_words(tokenizer, tmp_path / "whole", "None")
    folder = older(str(whole), tmp_path / "older", *files)
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = read_vocabulary(str(folder))
    word = theirs("None")["input_ids"][1:-1]
    assert word == [theirs.convert_tokens_to_ids("None")] and not ours.special & {*word}
    assert ours.special == {*theirs.all_special_ids} and ours.byte_length[word[0]] == 4
    assert ours.unk == theirs.unk_token_id == theirs.convert_tokens_to_ids("[MASK]") == 3


def test_a_changed_folder_is_made_anew(corpus, tokenizer, tmp_path):
    folder = older(tokenizer, tmp_path / "older", "vocab.json", "merges.txt")
    before = read_vocabulary(str(folder)).fingerprint
    train_tokenizer(Sources([str(corpus)], layout="sentences"), str(tmp_path / "other"), vocab_size=350)
    older_files(str(tmp_path / "other"), folder, "vocab.json", "merges.txt")
    assert read_vocabulary(str(folder)).fingerprint != before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("spm.model", b"\x0a\xff", "is not a SentencePiece model"),
        ("spm.model", b"", "is not a SentencePiece model"),
        ("spm.model", b"\x0a\x02\x18\x01", "is not a SentencePiece model"),  # a piece without its text
        ("spm.model", sentencepiece_model([("[CLS]", 0.0)], unknown=7), "is not a SentencePiece model"),
        ("spm.model", sentencepiece_model([("[CLS]", 0.0)], unknown=0, kind=2), "is not a Unigram model"),
        ("spm.model", sentencepiece_model([("a", 0.0)], unknown=0, kind=3), "is not a Unigram or BPE model"),
        ("spm.model", sentencepiece_model([("[CLS]", 0.0)], unknown=0), "has no [SEP], which frames a text"),
        ("merges.txt", "#version: 0.2\nĠ t\nwrong\n", "merges.txt cannot be read: Error while initializing BPE: Merge"),
        ("merges.txt", "#version: 0.2\nĠ ☃\n", "merges.txt cannot be read: Error while initializing BPE: Token"),
        ("vocab.json", "[1]", "is not tokens and their ids"),
        ("vocab.json", '{"<s>": 0, "</s>": "b"}', "vocab.json and merges.txt cannot be read: "),
        ("vocab.json", '{"a": 1}', "has no <s>, which frames a text"),
        ("added_tokens.json", '{"<x>": 400}', "has tokens of its own, but no tokenizer.json"),
        ("tokenizer_config.json", '{"cls_token": "<no>"}', "has no <no>, which frames a text"),
        (
            "tokenizer_config.json",
            '{"sep_token": null}',
            "has sep_token: null, so transformers would not frame a text. Fix: write",
        ),
        ("tokenizer_config.json", '{"tokenizer_class": "HerbertTokenizerFast"}', "its HerbertTokenizer cuts a text by"),
        ("config.json", '{"tokenizer_class": "XLMTokenizer"}', "its XLMTokenizer cuts a text by more than"),
    ],
)
def test_files_that_none_can_be_made_from(name, content, message, tokenizer, tmp_path, cache):
    folder = older(tokenizer, tmp_path / "older", *([] if name == "spm.model" else ["vocab.json", "merges.txt"]))
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TokenizerError) as caught:
        read_vocabulary(str(folder))
    assert message in str(caught.value) and ". Fix: " in str(caught.value)
    assert not cache.exists()


@pytest.mark.parametrize("named_in", ["tokenizer_config.json", "config.json"])
def test_a_class_that_finds_words_by_itself_is_refused_and_the_fix_holds(named_in, tokenizer_of, tmp_path, monkeypatch):
    folder, texts = older(tokenizer_of("bert"), tmp_path / "older", "vocab.txt"), ["the old fox", "fox letters 東京 の"]
    config = {"do_lower_case": False, "word_tokenizer_type": "mecab", "subword_tokenizer_type": "wordpiece"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    beside = json.loads((folder / named_in).read_text()) if (folder / named_in).exists() else {}
    (folder / named_in).write_text(json.dumps({**beside, "tokenizer_class": "BertJapaneseTokenizer"}))
    with pytest.raises(TokenizerError, match="its BertJapaneseTokenizer cuts a text by more than vocab.txt. Fix: "):
        read_vocabulary(str(folder))

    class Words:  # in place of MeCab, which is not installed
        def tokenize(self, text, **_):
            return text.split()

    module = transformers.models.bert_japanese.tokenization_bert_japanese
    monkeypatch.setattr(module, "MecabTokenizer", lambda **_: Words())
    theirs = module.BertJapaneseTokenizer.from_pretrained(str(folder))
    mended = {**config, "tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(mended))
    ours = load_tokenizer(str(folder), special_tokens_are_text=False)
    assert [ours.encode(text).ids for text in texts] == theirs(texts)["input_ids"]


def slow_bpe(word, scores):
    """SentencePiece's BPE: neighbours that make the piece of the best score are joined first, the first of equals."""
    parts = list(word)
    while pairs := [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]:
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_sentencepiece_model_alone_has_its_pieces_and_the_ids_of_xlm_r(kind, corpus, tmp_path, capsys):
    """Under each usual name, and as a file; `transformers` gives the same ids from the copy that runs hold."""
    words = Counter(f"▁{word}" for word in corpus.read_text().split())
    letters = sorted({letter for word in words for letter in word})
    longer = Counter({word[:end]: n for word, n in words.items() for end in range(2, len(word) + 1)})
    pieces = [piece for piece, _ in sorted(longer.items(), key=lambda item: (-item[1], item[0]))[:400]] + letters
    scores = {piece: -float(rank) for rank, piece in enumerate(pieces)}
    first = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    model = sentencepiece_model([*first, *scores.items()], 0, 1 if kind == "unigram" else 2, control=("<s>", "</s>"))
    places = [tmp_path / "file" / "mine.model"]
    for name in ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"):
        places.append(tmp_path / name)
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(model)
    places[0].parent.mkdir()
    places[0].write_bytes(model)
    read = [read_vocabulary(str(place)) for place in places]
    assert "one is created from mine.model" in capsys.readouterr().err
    vocabulary = read[0]
    assert {one.fingerprint for one in read} == {vocabulary.fingerprint}
    assert vocabulary.kind == {"unigram": "unigram", "bpe": "sentencepiece_bpe"}[kind]
    special = (vocabulary.bos, vocabulary.pad, vocabulary.eos, vocabulary.unk, vocabulary.mask)
    assert (special, vocabulary.size) == ((0, 1, 2, 3, 4 + len(pieces)), 5 + len(pieces))

    ours = load_tokenizer(str(places[1]), special_tokens_are_text=False)
    copy_tokenizer(str(places[1]), str(tmp_path / "copy"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    texts = [*TEXTS, *corpus.read_text().split("\n")[:200]]
    assert [theirs(text)["input_ids"] for text in texts] == [ours.encode(text).ids for text in texts]
    assert theirs("a", "b")["input_ids"] == ours.encode("a", "b").ids
    if kind == "bpe":
        for word in [*words][:300]:
            assert ours.encode(word[1:], add_special_tokens=False).tokens == slow_bpe(word, scores)
    (places[1] / "config.json").write_text('{"model_type": "camembert"}')
    with pytest.raises(TokenizerError, match="belongs to camembert, whose class gives ids of its own"):
        read_vocabulary(str(places[1]))


@pytest.mark.parametrize("kind", [1, 2])
def test_user_defined_symbols_and_pieces_of_several_words_are_those_of_sentencepiece(kind, tmp_path):
    """The expected pieces are the library's own (0.2.3), of the same model."""
    letters = [(letter, -20.0 - place) for place, letter in enumerate("▁abcdefhot")]
    longer = [("▁t", -1.0), ("▁th", -2.0), ("▁the", -3.0), ("▁o", -4.0), ("▁of", -5.0), ("▁of▁the", -6.0)]
    first = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("<n>", 0.0), ("@U", 0.0)]
    symbols = {"control": ("<s>", "</s>"), "user": ("<n>", "@U")}
    (tmp_path / "mine.model").write_bytes(sentencepiece_model([*first, *longer, *letters], 0, kind, **symbols))
    copy_tokenizer(str(tmp_path / "mine.model"), str(tmp_path / "copy"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    ours = load_tokenizer(str(tmp_path / "mine.model"), special_tokens_are_text=True)
    for text, pieces in {
        "a <n> the<n>ab": "▁ a ▁ <n> ▁the <n> a b",
        "head of the @Ub": "▁ h e a d ▁of▁the ▁ @U b",
        "@Uof <n><n>": "▁ @U o f ▁ <n> <n>",
    }.items():
        assert ours.encode(text, add_special_tokens=False).tokens == pieces.split(" ")
        assert theirs.tokenize(text) == pieces.split(" ")


@pytest.mark.parametrize(
    "change",
    [
        ("bert", "vocab.txt", "\nfox\n", "\npembrolizumab\n", r"vocab.txt:\d+ has 'pembrolizumab', tokenizer.json 'f"),
        ("bert", "vocab.txt", "[PAD]\n", "[PAD]\nnew\n", r"vocab.txt:2 has 'new', tokenizer.json '\[UNK\]'"),
        ("roberta", "vocab.json", '"Ġthe": ', '"Ġnew": ', r"vocab.json gives 'Ġnew' the id \d+, tokenizer.json has no"),
        ("roberta", "merges.txt", "\nĠ t\n", "\na b\n", r"merges.txt:\d+ has 'a b', tokenizer.json 'Ġ t'"),
        ("roberta", "vocab.json", "{", "", r"vocab.json cannot be read"),
    ],
)
def test_files_beside_tokenizer_json_that_differ_are_named(change, tokenizer_of, corpus, tmp_path, capsys):
    folder, (kind, name, old, new, said) = tmp_path / "edited", change
    shutil.copytree(tokenizer_of(kind), folder)
    assert faults(str(folder)) == faults(str(folder / "tokenizer.json")) == []
    if old:
        older_files(tokenizer_of(kind), folder, name)
    assert faults(str(folder)) == []
    text = (folder / name).read_text() if old else ""
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1) or new)
    (line,) = faults(str(folder))
    assert re.search(said, line) and "json is read" in line and "`maskwright tokenizer extend --model`" in line
    audit([str(corpus)], tokenizer=str(folder))
    assert capsys.readouterr().err.count(f"warning: {line}") == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"<x>": 400}),
        ("tokenizer_config.json", keyed(ROBERTA) | {"added_tokens_decoder": {"400": {"content": "<x>"}}}),
    ],
)
def test_tokens_that_transformers_adds_from_other_files_are_refused(name, content, tokenizer, tmp_path):
    folder = tmp_path / "more"
    shutil.copytree(tokenizer, folder)
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=rf"{name}: gives '<x>' the id 400, tokenizer.json has no such token"):
        read_vocabulary(str(folder))
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert words.tokenize("a<x>b")[1] == "<x>"
    words.save_pretrained(folder)  # as the error advises
    assert read_vocabulary(str(folder)).size == 401


def test_tokens_that_no_merge_makes_are_counted(tokenizer_of, tmp_path):
    for kind in (*KINDS, "esm", "deberta"):
        assert unreachable_tokens(tokenizer_of(kind)) == [], kind
    folder = tmp_path / "smiles"
    folder.mkdir()
    vocab = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"ClBrcn()", "Cl", "Br", "cc"]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(vocab)}))
    (folder / "merges.txt").write_text("#version: 0.2\nB r\n")
    assert unreachable_tokens(str(folder)) == ["Cl", "cc"]
    assert "2 tokens of several letters ('Cl', 'cc') are unreachable" in faults(str(folder))[0]
    (tmp_path / "a.txt").write_text("CCl\nBrc\n")
    result = inspect_tokenizer(str(folder), Sources([str(tmp_path / "a.txt")], layout="lines"))
    assert result.unreachable_tokens == 2 and "2 of them unreachable" in inspection_report(result)


def test_settings_of_classes_must_agree_with_the_tokenizer(tokenizer_of, tmp_path):
    """`transformers` goes by the settings. Where they have the effect of tokenizer.json, both give the same ids."""
    text = "The Fox saw GARDENS, \u00c9t\u00e9"
    for row, (kind, settings, model, agrees) in enumerate(
        (
            ("bert", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}, {}, True),
            ("bert", {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True}, {}, False),
            ("bert", {"tokenizer_class": "DistilBertTokenizer"}, {}, False),
            ("bert", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, {}, True),
            ("bert", {"do_lower_case": True}, {"model_type": "bert"}, False),
            ("bert-uncased", {"do_lower_case": False}, {"model_type": "bert"}, False),
            ("bert-uncased", {"tokenizer_class": "BertTokenizer", "strip_accents": True}, {}, True),
            ("bert-uncased", {"tokenizer_class": "BertTokenizer", "strip_accents": False}, {}, False),
            ("roberta", {"tokenizer_class": "RobertaTokenizerFast"}, {}, True),
            ("roberta", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}, {}, False),
            ("roberta", {"tokenizer_class": "TokenizersBackend", "add_prefix_space": True}, {}, True),
            ("roberta", {"add_prefix_space": True}, {"model_type": "roberta"}, False),
        )
    ):
        folder = tmp_path / str(row)
        shutil.copytree(tokenizer_of(kind), folder)
        (folder / "tokenizer_config.json").write_text(
            json.dumps(keyed(ROBERTA if kind == "roberta" else BERT) | settings)
        )
        (folder / "config.json").write_text(json.dumps(model))
        if not agrees:
            with pytest.raises(
                TokenizerError, match=r"contradict the (normalizer|pre_tokenizer) of tokenizer.json. Fix: if tokenizer"
            ):
                read_vocabulary(str(folder))
            continue
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        assert theirs(text)["input_ids"] == load_tokenizer(str(folder), special_tokens_are_text=False).encode(text).ids
