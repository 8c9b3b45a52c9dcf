"""Unknown tokens: why they are unknown, and stores of which most tokens are."""

import json

import pytest

import maskwright
from maskwright.config.pretraining import read_config
from maskwright.core.errors import StoreError
from maskwright.data.prepare import driver
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.text.audit import audit
from maskwright.text.sources import Sources
from maskwright.text.spacing import spacing_of
from maskwright.text.tokenizer import train_tokenizer
from maskwright.text.unknown import first_unknown

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "old", "fox", "##es", "saw", "a", ".", "##x"]
FEW_KMERS = ["AAC", "ACG", "CGT", "GTA"]
LONG = "a" + "x" * 150


def vocabulary(folder, tokens, lowercase=False):
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *tokens]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    return str(folder)


@pytest.mark.parametrize(
    ("tokens", "lowercase", "text", "word", "why", "fix"),
    [
        (WORDS, False, "the foxes saw a old fox.", None, "", ""),
        (WORDS, True, "THE OLD FOX.", None, "", ""),
        (WORDS, False, "the OLD fox", "'OLD'", "is in upper case, but the vocabulary in lower", '"lowercase": true'),
        ([w.upper() for w in WORDS], True, "The old", "'The'", "is turned into lower case", '"lowercase": false'),
        ([w.upper() for w in WORDS], False, "The old", "'The'", "is in lower case", "convert the text to upper case"),
        (WORDS, False, "the 老狐狸", "'老'", "has '老', which is in none of its tokens", "tokenizer train"),
        (WORDS, False, "the oldsaw", "'oldsaw'", "cannot be built from its tokens", "tokenizer train"),
        (WORDS, False, f"a {LONG}", "'axxxxxxxxxxxxxxxxxxx…'", "is one word of 151 letters, more than max", "raise"),
        (FEW_KMERS, False, "AAC AACGTA", "'AACGTA'", "is one word of 6 letters, and this token", "put spaces"),
        (["A", "C"], False, "ACACX CA", "'X'", "has 'X', which is in none of its tokens", "tokenizer train"),
        (["AA", "AC", "CA", "CC"], False, "ACA NACA", "'NA'", "has 'N', which", "--letters plain"),
        (["AA", "AC", "CA", "CC"], False, "ACA UCA", "'UC'", "has 'U', which", "write T for U"),
        (["AA", "AC", "CA", "CC"], False, "ACA\nC\nCA", "'C'", "is shorter than its tokens of 2 letters", "leave"),
        (WORDS, False, "the old fox " * 2000 + "x", "'x'", "cannot be built", "tokenizer train"),
    ],
)
def test_the_first_unknown_token_and_its_cause(tokens, lowercase, text, word, why, fix, tmp_path):
    unknown = first_unknown(vocabulary(tmp_path / "t", tokens, lowercase), text)
    assert (unknown is None) == (word is None)
    if unknown:
        assert unknown.word == word and unknown.why.startswith(why) and fix in unknown.fix


def test_a_word_beyond_the_vocabulary_is_not_told_to_train_the_same_again(tmp_path):
    (tmp_path / "a.txt").write_text("the fox the fox the 7f3a\n")
    maskwright.train_tokenizer([str(tmp_path / "a.txt")], str(tmp_path / "t"), kind="words", vocab_size=7)
    unknown = first_unknown(str(tmp_path / "t"), "the 7f3a")
    assert unknown and unknown.word == "'7f3a'" and "--kind bpe" in unknown.fix
    unknown = first_unknown(str(tmp_path / "t"), "the fox [SEP] the fox")
    assert unknown and unknown.word == "'[SEP]'" and "write another word" in unknown.fix


def test_byte_level_bpe_that_lacks_bytes_is_said_to(tmp_path, capsys):
    train_tokenizer(Sources([str(ascii_lines(tmp_path))]), str(tmp_path / "t"), vocab_size=300)
    path = tmp_path / "t" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = [token for token in content["model"]["vocab"] if token.isascii() or token[0] == "Ġ"]
    content["model"] |= {"vocab": {token: index for index, token in enumerate(vocab)}, "unk_token": "<unk>"}
    content["added_tokens"][-1]["id"] = len(vocab)
    path.write_text(json.dumps(content))
    text = tmp_path / "é.txt"
    text.write_text("".join(f"line {number} of é\n" for number in range(300)))
    found = audit([str(text)], tokenizer=str(tmp_path / "t")).findings
    assert found["documents with unknown tokens, of the first 300"].count == 300
    prepare(Request(Sources([str(text)]), str(tmp_path / "t"), str(tmp_path / "s")))
    assert "tokens are unknown to the tokenizer; 'é' at " in capsys.readouterr().err


def ascii_lines(folder):
    path = folder / "ascii.txt"
    path.write_text("".join(f"line {number} of it\n" for number in range(100)))
    return path


def test_a_declared_token_in_a_sequence_is_not_unknown(tmp_path):
    folder = vocabulary(tmp_path / "t", [*"MKTA", "user"])
    config = json.loads((tmp_path / "t" / "tokenizer_config.json").read_text())
    (tmp_path / "t" / "tokenizer_config.json").write_text(json.dumps(config | {"additional_special_tokens": ["user"]}))
    assert first_unknown(folder, "MKTuserM") is None
    unknown = first_unknown(folder, "userMK8")
    assert unknown and unknown.word == "'8'"
    assert str(spacing_of(folder)) == "single letters"


def test_a_token_that_is_declared_between_two_calls_is_one_in_the_second(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"the old fox [x] saw a fox {'a ' * number}.\n" for number in range(40)))
    sources, tokens = Sources([str(tmp_path / "a.txt")], layout="lines"), [*WORDS, "[", "x", "]", "[x]"]
    stores = []
    for name in ("t", "t", "other"):
        folder = vocabulary(tmp_path / name, tokens)
        if stores:
            declared = {"do_lower_case": False, "additional_special_tokens": ["[x]"]}
            (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(declared))
        store = prepare(Request(sources, folder, str(tmp_path / f"store{len(stores)}"), PrepareOptions(0.2)))
        stores.append([shard["files"]["tokens"]["sha256"] for shard in store.manifest["shards"]])
    assert stores[0] != stores[1] == stores[2]


def test_stores_of_unknown_tokens_are_refused_by_training(tmp_path, monkeypatch, capsys):
    """A store of an earlier version, and one of special tokens alone."""
    (tmp_path / "a.txt").write_text("".join(f"老狐狸 saw 看见了 {'a ' * number}\n" for number in range(5)))
    sources = Sources([str(tmp_path / "a.txt")], layout="lines")
    folder = vocabulary(tmp_path / "t", WORDS)
    found = audit([str(tmp_path / "a.txt")], layout="lines", tokenizer=folder).findings
    finding = found["documents with unknown tokens, of the first 5"]
    assert finding.count == 5 and finding.examples[0].endswith("a.txt:1: '老' has '老', which is in none of its tokens")
    assert finding.prepare == "stops: 30 of 45 tokens are unknown"
    monkeypatch.setattr(driver, "require_known", lambda *_: None)
    store = prepare(Request(sources, folder, str(tmp_path / "s"), PrepareOptions(0.0))).location
    assert "warning: 30 of 45 tokens are unknown to the tokenizer; '老' at " in capsys.readouterr().err
    config = read_config("nano", [f"data.store={store}", "schedule.steps=2", "schedule.warmup_steps=1"])
    with pytest.raises(StoreError, match="30 of 45 tokens are unknown, so there is nothing to learn.*prepare its text"):
        prepare_run(config)
