"""Tokenizers of every kind that public encoders have: what is read from their files, words, ids as `transformers` gives
them, stores and masks."""

import json
import random
import re
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import transformers
from conftest import SHARED, sentence, small_config
from original_epochs import lines as lines_of
from original_epochs import text_of, write_folder
from reference.stored import documents_of
from safetensors.numpy import save_file
from tokenizer_kinds import DECLARED, KINDS, with_declared
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from maskwright.core import extras
from maskwright.core.errors import InputError, TokenizerError
from maskwright.data.converted_store import open_epochs
from maskwright.data.encode import encode_documents
from maskwright.data.loader import Loader
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.labels.encode import open_tokenizer
from maskwright.model.config import ModelConfig
from maskwright.model.hf.config import to_hf_config
from maskwright.model.initial import initial_parameters
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.models.load import load_model
from maskwright.tasks.use.fill import fill
from maskwright.text import encoder as encoders
from maskwright.text.audit import audit
from maskwright.text.document import Document
from maskwright.text.encoder import ODD_TEXTS, TokenizersEncoder, open_encoder
from maskwright.text.extend import extend_tokenizer
from maskwright.text.marks import warn_of_dropped_marks
from maskwright.text.notation import DECOMPOSED, without_effect
from maskwright.text.sequences import make_tokenizer as make_letters
from maskwright.text.sources import Sources
from maskwright.text.special_tokens import BERT
from maskwright.text.tokenizer import FILES, copy_tokenizer, inspect_tokenizer, load_tokenizer, train_tokenizer
from maskwright.text.trim import trim_tokenizer
from maskwright.text.vocabulary import read_vocabulary, token_ids, token_strings

# (kind, begin and end of a row, ids of bos, pad, eos, unk; mask)
EXPECTED = {
    "roberta": ("byte_level_bpe", "<s>", "</s>", (0, 1, 2, 3), "<mask>"),
    "modernbert": ("byte_level_bpe", "[CLS]", "[SEP]", (1, 3, 2, 0), "[MASK]"),
    "bert": ("wordpiece", "[CLS]", "[SEP]", (2, 0, 3, 1), "[MASK]"),
    "bert-uncased": ("wordpiece", "[CLS]", "[SEP]", (2, 0, 3, 1), "[MASK]"),
    "xlm-roberta": ("unigram", "<s>", "</s>", (0, 1, 2, 3), "<mask>"),
    "camembert": ("unigram", "<s>", "</s>", (4, 1, 5, 3), "<mask>"),
    "gemma": ("sentencepiece_bpe", "<bos>", "<eos>", (2, 0, 1, 3), "<mask>"),
    "llama": ("sentencepiece_bpe", "<bos>", "<eos>", (2, 0, 1, 3), "<mask>"),
}


def changed(source, folder, change, name="tokenizer.json"):
    """A copy of a tokenizer folder with one of its files changed."""
    shutil.copytree(source, folder)
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    change(content)
    path.write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_roles_are_read_and_rows_are_those_of_transformers(kind, tokenizer_of, tmp_path):
    folder = tokenizer_of(kind)
    found, auto = read_vocabulary(folder), transformers.AutoTokenizer.from_pretrained(folder)
    name, begin, end, ids, mask = EXPECTED[kind]
    assert (found.kind, found.mask_token) == (name, mask)
    assert (found.bos, found.pad, found.eos, found.unk) == ids
    assert (found.mask, found.size) == (auto.mask_token_id, len(auto))
    assert (found.bos, found.eos) == tuple(auto.convert_tokens_to_ids([begin, end]))
    own, in_corpus = (load_tokenizer(folder, special_tokens_are_text=is_text) for is_text in (False, True))
    for text in [*ODD_TEXTS, f"a {mask} here, and{mask}there", ""]:
        framed = [found.bos, *own.encode(text, add_special_tokens=False).ids, found.eos]
        assert auto(text)["input_ids"] == framed, text
    for text in [*ODD_TEXTS, "see <s>html</s> and [MASK] or<mask><pad>"]:
        assert not set(in_corpus.encode(text, add_special_tokens=False).ids) & (found.special - {found.unk}), text
    # Roles of a bare file are from its template and names, and older files do not name the kind.
    shutil.copyfile(Path(folder, "tokenizer.json"), bare := tmp_path / "tokenizer.json")
    older = changed(folder, tmp_path / "older", lambda content: content["model"].pop("type"))
    assert [read_vocabulary(str(place)) for place in (tmp_path, bare, older)] == [found] * 3
    text = "The fox saw the garden, and then it rained."
    of_older = load_tokenizer(older, special_tokens_are_text=True)
    assert of_older.encode(text).ids == in_corpus.encode(text).ids == own.encode(text).ids
    for location in (folder, changed(folder, tmp_path / "bare", no_template)):
        labelled = open_tokenizer(location)
        assert labelled.encode("The fox", "a garden").ids == auto("The fox", "a garden")["input_ids"]
        assert labelled.encode("The fox").ids == auto("The fox")["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_word_ids(kind, tokenizer_of, corpus):
    """The same words for WordPiece and where ▁ is split off; coarser ones for byte-level BPE, whose word has the
    punctuation behind it; finer ones for Gemma's and Llama's, to which a whole text is one word."""
    folder = tokenizer_of(kind)
    found, auto = read_vocabulary(folder), transformers.AutoTokenizer.from_pretrained(folder)
    starts = np.array(found.word_start)
    words = 0
    for text in filter(None, corpus.read_text().split("\n")):
        encoding = auto(text, add_special_tokens=False)
        ids, of_word = np.array(encoding["input_ids"]), np.array(encoding.word_ids())
        theirs = np.append(True, of_word[1:] != of_word[:-1])
        ours = starts[ids]
        ours[0] = True
        words += len(ids)
        if found.kind in ("wordpiece", "unigram"):
            assert np.array_equal(ours, theirs), text
            continue
        assert ours.sum() == len(text.split()), text
        assert not (ours & ~theirs).any() if found.kind == "byte_level_bpe" else len(set(of_word)) == 1, text
    assert words > 5_000


@pytest.mark.parametrize(
    ("kind", "of_model"),
    [
        ("modernbert", []),
        ("bert", [{"max_input_chars_per_word": 50}, {"unk_token": "[PAD]"}]),
        ("xlm-roberta", [{"unk_id": 2}, {"byte_fallback": True}]),
        ("gemma", [{"byte_fallback": False}, {"fuse_unk": False}]),
    ],
)
def test_fingerprint_sees_what_decides_ids(kind, of_model, tokenizer_of, tmp_path):
    folder = tokenizer_of(kind)
    own = read_vocabulary(folder).fingerprint
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "same")
    assert read_vocabulary(str(tmp_path / "same")).fingerprint == own

    def lower(content):
        own = [content["normalizer"]] if kind == "gemma" else []
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *own]}

    def score(content):
        content["model"]["vocab"][-1][1] -= 0.5

    changes = [lower, *([score] if kind == "xlm-roberta" else [])]
    changes += [lambda content, values=values: content["model"].update(values) for values in of_model]
    others = [changed(folder, tmp_path / str(number), change) for number, change in enumerate(changes)]
    assert len({own, *(read_vocabulary(other).fingerprint for other in others)}) == len(changes) + 1


def test_fingerprints_of_byte_level_bpe_are_what_they_were(tokenizer):
    """A token store of an earlier version is read only if they stay."""
    fingerprint = "4c4a0535f070cc08b555ea060ade87511b4e3e6e3263f7f02c9b448c7c568104"
    assert read_vocabulary(tokenizer).fingerprint == fingerprint
    if SHARED.exists():
        real = read_vocabulary(str(SHARED / "roberta-local-50265")).fingerprint
        assert real == "bbbab03e27c79f6304720191e6fd0a599017d515105c9683ee0c07dd2ad82ff8"


def test_bad_requests_to_train(corpus, tmp_path):
    sources = Sources([str(corpus)])
    with pytest.raises(InputError, match="--lowercase is not for --kind unigram"):
        train_tokenizer(sources, str(tmp_path / "t"), kind="unigram", lowercase=True)
    (tmp_path / "many.txt").write_text(" ".join(chr(code) * 2 for code in range(0x4E00, 0x5000)))
    many = Sources([str(tmp_path / "many.txt")])
    with pytest.raises(InputError, match="--vocab-size 300 is too small.*518: 5 special.*513 characters"):
        train_tokenizer(many, str(tmp_path / "t"), kind="unigram", vocab_size=300)
    assert not (tmp_path / "t").exists()
    train_tokenizer(many, str(tmp_path / "w"), kind="wordpiece", vocab_size=300)
    assert inspect_tokenizer(str(tmp_path / "w"), many).unknown_tokens > 0
    (tmp_path / "few.txt").write_text("the old fox naps\nfoxes nap\n")
    few = Sources([str(tmp_path / "few.txt")], layout="lines")
    for kind, least, what in (("wordpiece", 29, "12 ch"), ("unigram", 18, "13 ch"), ("bpe", 261, "256 b")):
        with pytest.raises(InputError, match=f"at least {least}: 5 special tokens and .*{what}"):
            train_tokenizer(few, str(tmp_path / "t"), kind=kind, vocab_size=least - 1)
        assert train_tokenizer(few, str(tmp_path / kind), kind=kind, vocab_size=least).size == least
        assert inspect_tokenizer(str(tmp_path / kind), few).unknown_tokens == 0
    assert inspect_tokenizer(str(tmp_path / "wordpiece"), many).samples[0][0] == "[UNK]"


@pytest.mark.parametrize(
    ("words", "kind", "lowercase", "said"),
    [
        ("में अपने लोग", "wordpiece", True, "drops vowel signs, accents or joiners of 67% of the words, such as"),
        ("में अपने लोग", "wordpiece", False, ""),
        ("дай мій новий йому", "wordpiece", True, "of 100% of the words"),
        ("the old fox saw a café near the river and the", "wordpiece", True, ""),
        ("나는 학교에 갑니다", "wordpiece", True, ""),
        ("good ❤️ 👩‍👩‍👧", "wordpiece", True, ""),
        ("می‌روم به خانه", "wordpiece", False, "which becomes میروم: words that differ in nothing else become one"),
        ("می‌روم به خانه", "unigram", False, ""),
        ("CCc1ccccc1Cl c1cc[nH]c1C CCO", "wordpiece", True, "67% of the words have capitals inside, as CCc"),
        ("CCc1ccccc1Cl c1cc[nH]c1C CCO", "wordpiece", False, ""),
        ("我用iPhone和APP看新闻", "wordpiece", True, ""),
        ("The two of IBM said: my iPhone is ours by law now", "wordpiece", True, ""),
    ],
)
def test_marks_and_capitals_that_a_tokenizer_drops_are_warned_of(words, kind, lowercase, said, tmp_path, capsys):
    """Where it is trained, in the audit and in a store's preparation."""
    text, folder = tmp_path / "text.txt", str(tmp_path / "tokenizer")
    text.write_text("\n".join(" ".join([words] * times) for times in range(2, 32)))
    small = {"wordpiece": 300, "unigram": 60}[kind]
    sources = Sources([str(text)], layout="lines")
    train_tokenizer(sources, folder, kind=kind, vocab_size=small, lowercase=lowercase)
    audit([str(text)], tokenizer=folder)
    prepare(Request(sources, folder, str(tmp_path / "store"), PrepareOptions(valid_fraction=0.2)))
    warned = [line for line in capsys.readouterr().err.splitlines() if "differ in nothing else" in line]
    assert len(warned) == 3 * bool(said) and all(said in line for line in warned)


def test_special_tokens_spelt_out_in_the_text_are_no_pieces(tmp_path):
    line = "a <s> b</s> and<s>c</s> <mask> <pad> the<mask> cat <unk>x\n"
    (tmp_path / "a.txt").write_text("".join(f"{number} {line}" for number in range(300)))
    sources = Sources([str(tmp_path / "a.txt")], layout="lines")
    for kind in ("bpe", "unigram"):
        vocabulary = train_tokenizer(sources, str(tmp_path / kind), kind=kind, vocab_size=300)
        assert (vocabulary.bos, vocabulary.pad, vocabulary.eos, vocabulary.unk) == (0, 1, 2, 3)
        assert vocabulary.mask == vocabulary.size - 1


# ---- declared tokens -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def declared_of(tokenizer_of, tmp_path_factory):
    """`declared_of(kind)` is the folder of that kind with the tokens `DECLARED`."""

    @cache
    def folder(kind):
        return with_declared(tokenizer_of(kind), tmp_path_factory.mktemp(f"declared-{kind}") / "tokenizer")

    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_declared_tokens_are_tokens_everywhere_as_with_transformers(kind, declared_of):
    folder = declared_of(kind)
    found, auto = read_vocabulary(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ids = {*auto.convert_tokens_to_ids([token.content for token in DECLARED[:-1]])}
    assert ids < found.additional < found.special and found.special == {*auto.all_special_ids} | found.additional
    assert not found.additional & {found.bos, found.pad, found.eos, found.unk, found.mask}
    in_corpus, filled = (load_tokenizer(folder, special_tokens_are_text=is_text) for is_text in (True, False))
    readers = [in_corpus.encode, filled.encode, open_tokenizer(folder).encode]
    seen = set[int]()
    for text in DECLARED_TEXTS:
        expected = auto(text, add_special_tokens=False)["input_ids"]
        seen |= {*expected}
        assert [read(text, add_special_tokens=False).ids for read in readers] == [expected] * 3, text
        for encoder in {one.name: one for one in (*open_encoder(folder), TokenizersEncoder(folder))}.values():
            assert encoder.encode([text])[0].tolist() == expected, (encoder.name, text)
    assert ids <= seen
    roles = f"a {found.mask_token}b [USER]<s> [SEP]"
    spelt = in_corpus.encode(roles, add_special_tokens=False).ids
    assert {*spelt} & (found.special - {found.unk}) == {auto.convert_tokens_to_ids("[USER]")}


DECLARED_TEXTS = [
    *("[USER] wrote to [USER], see @URL now.", "the <e1> fox </e1> saw", "the<e1>fox</e1>saw x@URLy (@URL)"),
    *("a <sep><sep> b <sep>", "[USER][URL] [user] [THE TURN] [the turn] a", "[the turn] x[USER]y [the turn]"),
    "\r\n[USER]\r\n<e1>  \t fox </e1> \n dog",
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_cut_goes_through_a_declared_token(kind, tokenizer_of, tmp_path, monkeypatch):
    """Long texts are encoded in pieces, and documents by sentence, by gigatoken too where it takes the tokenizer."""
    folder = with_declared(tokenizer_of(kind), tmp_path / "t", [one for one in DECLARED if not one.single_word])
    auto, draw = transformers.AutoTokenizer.from_pretrained(folder), random.Random(0)
    words = ["the fox", "a dog", "[USER]", "<e1>", "</e1>", "[the turn]", "a[the turn]b", "\n", "letters many"]
    text = " ".join(draw.choice(words) for _ in range(3_000))
    monkeypatch.setattr(encoders, "PIECE_CHARACTERS", 700)
    sentences = ("The [USER] fox </e1>", "saw the garden.", "A dog</e1>", "x <sep>", "x </e1>", "</e1>", "y")
    document = Document(sentences, True, "f", 1)
    lengths = np.array(read_vocabulary(folder).byte_length, np.int32)
    chosen, referee = open_encoder(folder)
    if extras.installed("gigatoken"):
        assert chosen.name == ("gigatoken" if "bpe" in read_vocabulary(folder).kind else "tokenizers")
    for encoder in (chosen, referee):
        assert encoder.encode([text])[0].tolist() == auto(text, add_special_tokens=False)["input_ids"]
        encoded = encode_documents(encoder, [document, document], lengths)
        expected = auto(document.text, add_special_tokens=False)["input_ids"]
        assert encoded.ids.tolist() == expected * 2
        assert len(encoded.sentence_sizes) == 14 and encoded.sentence_sizes.sum() == len(encoded.ids)


def test_letters_are_cut_around_declared_tokens(tmp_path, monkeypatch):
    (tmp_path / "a.fasta").write_text(">1\nACGTTGCAACGT\n")
    make_letters(Sources([str(tmp_path / "a.fasta")]), str(tmp_path / "plain"), "kmer", "dna", kmer=3)
    monkeypatch.setattr(encoders, "PIECE_CHARACTERS", 10)
    for name, token, cuts in (("sep", "<cat>", True), ("space", "<e>", True), ("letter", "CATS", False)):
        added = AddedToken(token, normalized=False, lstrip=name == "space", special=True)
        auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
        auto.add_special_tokens({"extra_special_tokens": [added]})
        auto.save_pretrained(tmp_path / name)
        encoder = TokenizersEncoder(str(tmp_path / name))
        assert (encoder._cut is not None) == cuts
        for text in (f"AC{token}GTACGT{token}{token}ACG \n {token}AC\n\t" * 9, f"{token}" * 40 + "ACGTT" * 9):
            assert encoder.encode([text])[0].tolist() == auto(text, add_special_tokens=False)["input_ids"], (name, text)


def test_tokens_that_only_the_configuration_declares(tokenizer_of, tmp_path):
    """Among the pieces, without an entry in `added_tokens`; a separator beside the token that ends a row; an entry that
    is not marked special."""

    def listed(content):
        content["model"]["vocab"] |= {"[LISTED]": 400, "[OWN]": 401, "[PLAIN]": 402}
        content["added_tokens"].append(
            {**content["added_tokens"][0], "id": 402, "content": "[PLAIN]", "special": False}
        )

    folder = changed(tokenizer_of("bert"), tmp_path / "t", listed)
    config = json.loads(Path(folder, "tokenizer_config.json").read_text())
    names = {"extra_special_tokens": ["[LISTED]", "[PLAIN]"], "own_token": "[OWN]"}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(config | names))
    found, auto = read_vocabulary(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert found.additional == {400, 401, 402}
    for text in ("a [LISTED] fox[OWN] [PLAIN]", "[MASKED] [LISTED][LISTED]"):
        expected = auto(text, add_special_tokens=False)["input_ids"]
        own = load_tokenizer(folder, special_tokens_are_text=True)
        assert own.encode(text, add_special_tokens=False).ids == expected
        assert open_tokenizer(folder).encode(text, add_special_tokens=False).ids == expected
    Path(folder, "tokenizer_config.json").write_text(json.dumps(config | {"additional_special_tokens": ["[NONE]"]}))
    with pytest.raises(TokenizerError, match=r"additional_special_tokens has \[NONE\], which is not in the vocabulary"):
        read_vocabulary(folder)


@pytest.mark.parametrize("kind", ["roberta", "bert", "xlm-roberta"])
def test_declared_tokens_are_neither_masked_nor_drawn(kind, declared_of, tmp_path):
    """And they are read back from files with static masks."""
    folder, draw = declared_of(kind), random.Random(0)
    lines = [f"[USER] saw <e1>the fox</e1> {sentence(draw)} <sep> a dog {number}" for number in range(400)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    sources = Sources([str(tmp_path / "a.txt")], layout="lines")
    ready = prepare(Request(sources, folder, str(tmp_path / "store"), PrepareOptions(valid_fraction=0.1)))
    auto, found = transformers.AutoTokenizer.from_pretrained(folder), ready.vocabulary
    user, end = auto.convert_tokens_to_ids(["[USER]", "</e1>"])
    special, seen, drawn, predicted = np.array(sorted(found.special)), 0, set[int](), 0
    loader = Loader(small_config(ready.location, masking={"rate": 0.4, "random_share": 0.8, "mask_share": 0.1}), ready)
    for batch in (batch for step in range(150) for batch in loader.batches(step)):
        shown, used = batch.input_ids.ravel(), batch.weights > 0
        labels, at = batch.labels[used], batch.predict_index[used]
        assert not np.isin(labels, special).any()
        drawn |= {*shown[at][shown[at] != labels].tolist()} - {found.mask}
        seen, predicted = seen + int((shown == user).sum()), predicted + len(labels)
    assert seen > 300 and predicted > 5_000 and len(drawn) > 0.9 * (found.size - len(special))
    assert not drawn & found.special

    write_folder(tmp_path / "json", lines, folder, 48)
    names = token_ids(folder)
    texts = [
        [names[token] for token in text_of(one)]
        for epoch in "01"
        for one in lines_of(tmp_path / f"json/epoch_{epoch}.json")
    ]
    back = [ids.tolist() for ids in documents_of(open_epochs(str(tmp_path / "json"), folder).split("train"))]
    assert [[found.bos, *ids, found.eos] for ids in back] == texts
    assert sum(ids.count(user) for ids in back) == sum(ids.count(end) for ids in back) == 800


# ---- roles ---------------------------------------------------------------------------------------------------------


def test_all_files_of_a_folder_are_copied(tokenizer_of, tmp_path):
    shutil.copytree(tokenizer_of("bert"), tmp_path / "source")
    for name in {*FILES, "chat_template.jinja"} - {path.name for path in (tmp_path / "source").iterdir()}:
        (tmp_path / "source" / name).write_text("{}")
    copy_tokenizer(str(tmp_path / "source"), str(tmp_path / "copy"))
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"tokenizer.json", *FILES}


def no_mask(content):
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[MASK]"]
    del content["model"]["vocab"]["[MASK]"]


def no_template(content):
    content["post_processor"] = None


def in_template(role, **values):
    return lambda content: content["post_processor"]["special_tokens"][role].update(values)


@pytest.mark.parametrize(
    "change, name, words",
    [
        (lambda c: c.update(mask_token="<blank>"), "special_tokens_map.json", "mask_token is <blank> here, but"),
        (lambda c: c.update(pad_token="[MASK]"), "tokenizer_config.json", r"mask_token \[MASK\] is also its pad_token"),
        (lambda c: c.update(mask_token=7), "tokenizer_config.json", "mask_token is not a token"),
        (in_template("[SEP]", id="[PAD]", tokens=["[PAD]"], ids=[0]), "tokenizer.json", r"puts \[PAD\], but sep_token"),
        (lambda c: c["post_processor"]["single"].pop(), "tokenizer.json", "its template turns a text into '.CLS. TEXT"),
        (lambda c: c["post_processor"].update(special_tokens={}), "tokenizer.json", "post_processor that cannot be"),
        (in_template("[CLS]", ids=[7]), "tokenizer.json", r"template gives \[CLS\] the id 7"),
        (lambda c: c["model"].update(unk_token="<nope>"), "tokenizer.json", "unk_token <nope> is not in the vocabular"),
        (lambda c: c["model"]["vocab"].update(x=2**40), "tokenizer.json", "an id that is not a small whole number"),
        (lambda c: c["model"].update(type="Other"), "tokenizer.json", "is a Other tokenizer"),
    ],
)
def test_contradictions_are_named(change, name, words, tokenizer_of, tmp_path):
    folder = changed(tokenizer_of("bert"), tmp_path / "t", change, name)
    with pytest.raises(TokenizerError, match=words):
        read_vocabulary(folder)


def test_a_missing_mask_token_comes_with_the_line_that_adds_one(tokenizer_of, tmp_path):
    folder = changed(tokenizer_of("bert"), tmp_path / "t", no_mask)
    with pytest.raises(TokenizerError, match=r"mask_token \[MASK\] is not in the vocabulary.*save_pretrained"):
        read_vocabulary(folder)
    (tmp_path / "t" / "tokenizer_config.json").unlink()
    with pytest.raises(TokenizerError, match="has no mask_token, which hides a token") as error:
        read_vocabulary(folder)
    line = str(error.value).split("`")[1]
    exec(line, {"AutoTokenizer": transformers.PreTrainedTokenizerFast, "FOLDER": folder})
    added = read_vocabulary(folder)
    assert (added.mask_token, added.mask) == ("<mask>", added.size - 1)


def test_two_names_for_one_role_have_to_be_told_apart(tokenizer_of, tmp_path):
    def another(content):
        index = len(content["model"]["vocab"])
        content["added_tokens"].append({"id": index, "content": "<mask>", "special": True})

    folder = changed(tokenizer_of("bert"), tmp_path / "t", another)
    assert read_vocabulary(folder).mask_token == "[MASK]"  # its files say so
    with pytest.raises(TokenizerError, match=r"has <mask> and \[MASK\] for one role.*tokenizer_config.json"):
        read_vocabulary(str(tmp_path / "t" / "tokenizer.json"))


def test_a_tokenizer_without_unk(tokenizer, corpus, tmp_path):
    """As GPT-2's kind has it: every byte can be spelt."""

    def without(content):
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<unk>"]
        content["model"]["vocab"]["Ġq"] = content["model"]["vocab"].pop("<unk>")

    folder = changed(tokenizer, tmp_path / "t", without)
    (tmp_path / "t" / "tokenizer_config.json").unlink()
    assert read_vocabulary(folder).unk is None
    result = inspect_tokenizer(folder, Sources([str(corpus)], layout="sentences"))
    assert result.unknown_tokens == 0


# ---- models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["modernbert", "bert-uncased", "camembert", "gemma"])
@pytest.mark.parametrize("bare", [False, True])
def test_fill_and_export(kind, bare, tokenizer_of, declared_of, tmp_path):
    """`bare`: of a `tokenizer.json` alone, without a template. The exported folder has what was missing."""
    source = changed(tokenizer_of(kind), tmp_path / "t", no_template) if bare else declared_of(kind)
    found, model = read_vocabulary(tokenizer_of(kind) if bare else source), tmp_path / "model"
    copy_tokenizer(f"{source}/tokenizer.json" if bare else source, str(model))
    ids = {"bos_token_id": found.bos, "pad_token_id": found.pad, "eos_token_id": found.eos}
    shape = ModelConfig(found.size, 32, 2, 2, 64, 64, architecture="modernbert", **ids)
    save_file(initial_parameters(shape, 0), str(model / "model.safetensors"))
    (model / "config.json").write_text(json.dumps(to_hf_config(shape)))
    trained = load_model(str(model))
    text = f"The {found.mask_token} saw the{found.mask_token}."
    guesses = fill(trained, text, top=3)
    assert [len(some) for some in guesses] == [3, 3]
    with pytest.raises(InputError, match=re.escape(f"write {found.mask_token} in place of a token")):
        fill(trained, f"The {'<mask>' if found.mask_token == '[MASK]' else '[MASK]'} saw it.")
    assert export(trained, str(tmp_path / "exported")) < 1e-4
    pipeline = transformers.pipeline("fill-mask", model=str(tmp_path / "exported"), device="cpu", top_k=found.size)
    texts = [f"The {found.mask_token} saw the garden.", f"[USER] {found.mask_token} <e1> fox</e1> saw [USER]."]
    for text in texts[: 2 - bare]:
        theirs = [guess for guess in pipeline(text) if guess["token"] not in found.special][:20]
        ours = fill(trained, text, top=20)[0]
        assert [guess.token for guess in ours] == [guess["token_str"] for guess in theirs]


# ---- whole words ---------------------------------------------------------------------------------------------------


def test_whole_words_are_trained_and_read(tmp_path, capsys):
    """Items between white space, the most frequent first; ids as in transformers; also of a folder that others made."""
    lines = [f"item_1 item_2,x item_1 [MASK] item_{number % 7} once_{number}" for number in range(50)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    sources, folder = Sources([str(tmp_path / "a.txt")], layout="lines"), str(tmp_path / "words")
    vocabulary = train_tokenizer(sources, folder, kind="words", vocab_size=14)
    counts = Counter(word for line in lines for word in line.split() if word != "[MASK]")
    expected = sorted((word for word in counts if counts[word] > 1), key=lambda word: (-counts[word], word))
    assert token_strings(folder)[5:] == expected[:9]
    assert (vocabulary.kind, vocabulary.size, all(vocabulary.word_start)) == ("words", 5 + min(9, len(expected)), True)
    assert "of the words in the text have no token and become [UNK]" in capsys.readouterr().err
    with pytest.raises(InputError, match="at least 6: 5 special tokens and one word"):
        train_tokenizer(sources, str(tmp_path / "t"), kind="words", vocab_size=5)

    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(folder, special_tokens_are_text=False)
    for text in ("item_1 [MASK] item_9", "item_1, item_2,x", "", *lines[:5]):
        assert theirs(text)["input_ids"] == ours.encode(text).ids
    as_text = load_tokenizer(folder, special_tokens_are_text=True)
    assert as_text.encode("item_1 [MASK] [PAD]", add_special_tokens=False).ids == [5, vocabulary.unk, vocabulary.unk]

    vocab = {token: index for index, token in enumerate([*BERT.values(), "item_1", "item_2,x"])}
    foreign = Tokenizer(models.WordLevel(vocab, "[UNK]"))
    foreign.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    foreign.save(str(tmp_path / "tokenizer.json"))
    store = prepare(Request(sources, str(tmp_path / "tokenizer.json"), str(tmp_path / "s"), PrepareOptions(0.2)))
    assert (store.vocabulary.kind, store.vocabulary.mask) == ("words", 4)
    with pytest.raises(TokenizerError, match="is a tokenizer of whole words"):
        extend_tokenizer(folder, sources, str(tmp_path / "more"), tokens=3)
    kept, trimmed = trim_tokenizer(folder, sources, str(tmp_path / "less"), vocab_size=8)
    assert trimmed.size == 8 and [*kept.old_ids] == [*range(8)]


def test_decomposed_text_is_no_fault_only_if_all_marks_are_composed(capfd):
    """SentencePiece's rules, in `tokenizers`, compose é and lose the tone of ế: NFC helps, no other tokenizer."""
    loses_tones = normalizers.Sequence([normalizers.Replace("e\u0302\u0301", "ê"), normalizers.NFC()])
    assert without_effect("unigram", normalizers.NFC()) == {DECOMPOSED} and not without_effect("unigram", loses_tones)
    warn_of_dropped_marks("t", loses_tones, ["tie\u0302\u0301ng"] * 9)
    assert not capfd.readouterr().err
    warn_of_dropped_marks("t", normalizers.BertNormalizer(lowercase=True), ["tiếng"] * 9)
    assert "which becomes tieng" in capfd.readouterr().err
