"""Cleaning: each rule against its slow twin or its referee, and the store that it makes."""

import gzip
import importlib.metadata
import itertools
import json
import math
import random
import re
import sys
import unicodedata
from collections import Counter

import numpy as np
import pytest
from conftest import prepared
from tokenizer_kinds import with_declared

from maskwright.core.errors import InputError, SourceError
from maskwright.data.prepare import encode
from maskwright.data.prepare.report import report
from maskwright.data.prepare.request import PrepareOptions
from maskwright.processes.runner import Runner
from maskwright.text.audit import Audit, Finding, audit
from maskwright.text.audit import report as audit_report
from maskwright.text.cleaning import c4, contamination, gopher, near_duplicates, words
from maskwright.text.cleaning.contamination import Contamination, EvaluationTexts, read_evaluations
from maskwright.text.cleaning.language import merge_languages
from maskwright.text.cleaning.limits import Limits
from maskwright.text.cleaning.personal_data import with_placeholders
from maskwright.text.cleaning.steps import CleaningOptions
from maskwright.text.document import Document
from maskwright.text.parts import cut
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import read_vocabulary

NOUNS = ["garden", "bridge", "river", "teacher", "letter", "house", "paper", "stone", "window", "answer", "summer"]
VERBS = ["saw", "followed", "painted", "remembered", "crossed", "liked", "opened", "carried"]
COMMON = ["the", "of", "and", "with", "in", "a", "to", "from"]


def prose(generator, count=120):
    """Words of which Gopher's rules find enough, in lines of ten that are a sentence each."""
    kinds = (COMMON, NOUNS, VERBS, NOUNS)
    found = [generator.choice(generator.choice(kinds)) for _ in range(count)]
    lines = [" ".join(found[place : place + 9]) for place in range(0, count, 10)]
    return "\n".join(f"{line} {generator.choice(NOUNS)}{generator.randrange(900)}." for line in lines)


def test_words_depend_on_their_text_alone(monkeypatch):
    generator = random.Random(5)
    texts = ["", "word", "…", "漢字" * 80, "Ёлка и " * 60, "a\u2003b " * 60, *(prose(generator) for _ in range(30))]
    raw = [text.encode() for text in texts]
    raw.append(b" ".join(raw))
    alone = [words.normalized([text]).hashes for text in raw]
    together = words.normalized(raw)
    assert np.array_equal(together.hashes, np.concatenate(alone))
    assert np.diff(together.first).tolist() == [*map(len, alone)]
    monkeypatch.setattr(words, "SEGMENT_BYTES", 2_000)
    assert np.array_equal(words.normalized(raw).hashes, together.hashes)
    plain = [text for text in texts if text.isascii()]
    spelt = {word for text in plain for word in re.findall(r"[a-z0-9]+", text.lower())}
    assert len(np.unique(words.normalized([text.encode() for text in plain]).hashes)) == len(spelt)
    same = words.normalized([b"Hello, World! x_1", "“hello” — world; X 1".encode()])
    assert np.array_equal(same.hashes[:4], same.hashes[4:])
    found = words.normalized(["你好世界 한국어 𠀀x กขค".encode()])
    assert found.quarters.tolist() == [2, 2, 2, 2, 4, 2, 4, 1, 1, 1] and found.totals().tolist() == [21]


def test_runs_of_words_equal_their_slow_twin(monkeypatch):
    """Each run is as short as can be for what it counts for, and its hash is of its words alone."""
    generator = random.Random(6)
    texts = ["".join(generator.choices("aé 漢ก", k=generator.randrange(60))).encode() for _ in range(80)]
    texts.append("".join(generator.choices("b 字ข", k=2_500)).encode())
    parts = words.normalized(texts)
    monkeypatch.setattr(words, "SEGMENT_BYTES", 1_000)
    for count in (1, 3, 13):
        hashes, first = words.runs(parts, count)
        of_words, expected = dict[tuple[int, ...], int](), list[tuple[int, ...]]()
        for number, (begin, end) in enumerate(itertools.pairwise(parts.first.tolist())):
            assert first[number] == len(expected)
            for place in range(begin, end):
                stops = [
                    stop
                    for stop in range(place + 1, min(end, place + 60) + 1)
                    if parts.quarters[place:stop].sum() >= 4 * count
                ]
                expected += [tuple(parts.hashes[place : stops[0]].tolist())] if stops else []
        for run, own in zip(expected, hashes.tolist(), strict=True):
            assert of_words.setdefault(run, own) == own
        assert len({*of_words.values()}) == len(of_words)
        assert count == 13 or hashes[:1].tolist() == words.runs(words.normalized(texts[:1]), count)[0][:1].tolist()
    plain = words.normalized([b"a b c d e f", "é x y z e f".encode()])
    assert np.array_equal(words.runs(plain, 2)[0], words.ngrams(plain, 2)[0])
    mixed = words.normalized(["a b c d e f 漢".encode()])
    assert np.array_equal(words.runs(mixed, 2)[0][:5], words.ngrams(plain, 2)[0][:5])


FINE = " ".join(f"the{number} of{number} and with house{number}" for number in range(20))
"""100 words in a line, which say nothing twice."""


def repeated_part(end, more):
    """A text a fifth of which is a repeated part, and two thirds of `more` characters."""
    size = round((len(FINE) + 1 + 3 * len(end)) / 3) + more
    return end.join([FINE, FINE[:size], FINE[:size], "x"])


@pytest.mark.parametrize(
    ("passes", "breaks", "rule"),
    [
        # (a text at a threshold, one beyond it, the rule)
        (" ".join(FINE.split()[:50]), " ".join(FINE.split()[:49]) + " = -_", "fewer than 50 words"),
        (f"{FINE} {'x' * 500}", f"{FINE} {'x' * 600}", "mean word length not from 3 to 10"),
        (
            "be of " + "ab abcd " * 24 + "abc abcde",
            "be of " + "ab abcd " * 24 + "abc abcd",
            "mean word length not from 3",
        ),
        ("a " * 100_000, "a " * 100_001, "more than 100,000 words"),
        (FINE + "#" * 10, FINE + "#" * 11, "too many #"),
        (FINE + " …" * 11, FINE + " …" * 12, "too many ellipses"),
        ("\n".join(["- a"] * 9 + [FINE]), "\n".join(["- a"] * 10 + [FINE]), "lines begin with a bullet"),
        ("\n".join(["a…"] * 3 + ["b"] * 6 + [FINE]), "\n".join(["a…"] * 4 + ["b"] * 5 + [FINE]), "with an ellipsis"),
        (FINE + " 1000" * 25, FINE + " 1000" * 26, "fewer than 80% of words with a letter"),
        (FINE, FINE.replace("with", "by"), "fewer than 2 stop words"),
        *(
            row
            for end, unit in (("\n", "lines"), ("\n\n", "paragraphs"))
            for row in (
                (end.join([FINE, *"aaaabcdef"]), end.join([FINE, *"aaaaabcde"]), f"30% of {unit} are repeated"),
                (repeated_part(end, -1), repeated_part(end, 1), f"repeated {unit} make up over 20%"),
            )
        ),
    ],
)
def test_gopher_at_its_thresholds(passes, breaks, rule):
    assert rule not in (gopher.fault(passes) or "") and rule in (gopher.fault(breaks) or "")


TOP, DUPLICATE = ((2, 0.2), (3, 0.18), (4, 0.16)), tuple((5 + k, 0.15 - k / 100) for k in range(6))
"""(n, share) of table A1: of the most frequent n-gram, and of all repeated ones."""


@pytest.mark.parametrize(("size", "limit"), [*TOP, *DUPLICATE])
def test_gopher_on_repeated_ngrams(size, limit):
    """Texts of words of four letters, so of 5 n - 1 characters, which are just too short and just long enough."""
    grams = [" ".join(f"{letter}{number:03}" for number in range(size)) for letter in "xyz"]
    grams, repeated = (grams * 2, 3 * 4 * size) if size > 4 else (grams[:1] * 12, 12 * (5 * size - 1))
    shortest = math.ceil((repeated / limit + 1) / 5)
    found = []
    for count in (shortest - 1, shortest):
        parts = ["have", "with"]
        for number in range(count):
            parts += [f"w{number:03}", *(grams[number : number + 1])]
        found.append(gopher.fault(" ".join(" ".join(parts).split()[:count])))
    assert re.fullmatch(rf".*{size}-gram.* over {limit:.0%}", found[0] or "") and found[1] is None


def test_c4_keeps_lines_and_drops_pages():
    good = ["This line has five words.", "So has this one, too!", "Does this one have them?"]
    assert c4.lines_kept([*good, "Home", "Read our privacy policy now, please.", "It goes on and on..."]) == tuple(good)
    assert c4.lines_kept([*good, "This one is cited [12]."])[-1] == "This one is cited ."
    long = f"One word of this line is {'x' * 999}."
    lines = [*good, "Four words are few.", long, f"x{long}", long.replace(".", "x.")]
    assert c4.lines_kept(lines) == (*good, long, f"x{long}")
    assert c4.lines_kept(good[:2]) == "fewer than 3 sentences left of its lines"
    assert c4.lines_kept([*good, "function () { }"]) == "a curly bracket"
    assert c4.lines_kept([*good, "Lorem ipsum dolor"]) == "lorem ipsum"


# ---- near duplicates ------------------------------------------------------------------------------------------------


def pair(share, generator, size=400):
    """Texts of so many shingles in common, about, and none with other pairs."""
    first = [f"w{generator.randrange(1 << 40)}" for _ in range(size)]
    cut = round(size * 2 * share / (1 + share))
    second = first[:cut] + [f"v{generator.randrange(1 << 40)}" for _ in range(size - cut)]
    return " ".join(first), " ".join(second)


def shingles(text):
    parts = text.split()
    return {tuple(parts[place : place + 5]) for place in range(len(parts) - 4)}


def test_near_duplicates_are_found_as_often_as_the_theory_says():
    pytest.importorskip("rensa", reason="the extra `clean` is not installed")
    lsh = pytest.importorskip("datasketch.lsh", reason="the extra `dev` is not installed")
    for share in (0.5, 0.7, 0.8, 0.9):
        assert near_duplicates.bands_and_rows(share) == lsh._optimal_param(share, near_duplicates.SIGNATURE, 0.5, 0.5)
    generator = random.Random(2)
    bands, rows = near_duplicates.bands_and_rows(0.8)
    for share in (0.6, 0.8, 0.95):
        pairs = [pair(share, generator, 150) for _ in range(200)]
        keys = near_duplicates.band_keys([text.encode() for both in pairs for text in both], 0.8)
        found = float((keys[::2] == keys[1::2]).any(axis=1).mean())
        truth = np.array([len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b)) for a, b in pairs])
        expected = float(near_duplicates.found_with(truth, bands, rows).mean())
        assert abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / 200) + 0.01
    keys = near_duplicates.band_keys([b"one two three four", b"one two three four five"], 0.8)
    assert not keys[0].any() and keys[1].all()


# ---- personal data --------------------------------------------------------------------------------------------------


def test_personal_data_is_masked_and_what_only_looks_like_it_stays():
    text = "Ann (ann.lee+x@mail.example.co.uk) at 8.8.8.8, not 192.168.0.1 or 1.2.3.400; call +49 (30) 123-4567."
    same = "In 1984 1,000 people paid 12.50 for version 1.2.3, page 12-345, ISBN 978-3-16-148410-0, a@b."
    counts = Counter()
    found = with_placeholders(Document((text, same), True, "f", 1), ("email", "ip", "phone"), counts)
    masked = "Ann (email@example.com) at 22.214.171.124, not 192.168.0.1 or 1.2.3.400; call +1 202-555-0100."
    assert found.parts == (masked, same)
    assert counts == {"email": 1, "ip": 1, "phone": 1}
    untouched = Document((same,), False, "f", 1)
    assert with_placeholders(untouched, ("email", "ip", "phone"), counts) is untouched


def masked_text(text):
    return with_placeholders(Document((text,), False, "f", 1), ("email", "ip", "phone"), Counter()).text


@pytest.mark.parametrize(
    "text",
    [
        "version 1.2.3.4",
        "Version 5.0.0.1, v. 5.0.0.1 and v5.0.0.1",
        "section 4.3.2.1 and § 4.3.2.1",
        "5.0.0.1a",
        "Card 4111 1111 1111 1111",
        "card 4111.1111.1111.1111 of 1 000 000 000",
        "1234567890 and 2001:4860:4860::8888",
        "The wars of 1914 1918 1939 cost EUR 12.345.678 each",
        "12 345 678 habitants, 100 000 000 euros, 10 000 000 Einwohner, 10.000.000 Einwohner and 1 000 000",
        "of 331 893 745, of 7 500 000 000, of 12 345 678,50 and of 12 345 678.50",
        "rows 100 200 300 and 12\u00a0345\u00a0678\u202f€",
        "+12 345 678 habitants, +100 000 000 €, +20 000 000, +49\u00a0000\u00a0000, +1 000 000 and +10.000.000",
        "+2 000 000 000, +20 000 000 000, +1234567.89, +491234567.50 and +12345678",
        "from +5 10 15 20 30 to +49 30 123 and a+493012345678 or +1234567890123456789",
    ],
)
def test_numbers_that_are_no_address_and_no_phone_stay(text):
    assert masked_text(text) == text


def test_a_phone_number_is_masked_whole_and_beside_others():
    assert masked_text("Call 1-800-555-1234 or 1 (800) 555-1234.") == "Call +1 202-555-0100 or +1 202-555-0100."
    numbers = """555-123-4567|555.123.4567|555 123 4567|(555) 123-4567|1-800-555-1234|+1 202 555 0100|+1 (202) 555-0100
+12025550100|+1.2025550100|+33 6 12 34 56 78|+33 (0)1 23 45 67 89|+33.6.12.34.56.78|+33 612 345 678
+33\u00a06\u00a012\u00a034\u00a056\u00a078|030 1234 5678|(030) 123 4567|0171 123 4567|030 123 456|+49 30 123456
+49 (0)30 123456|+49 30/1234567|+4930123456|+49-30-1234567|+49 (30) 123-4567|040 123 4567|070 123 4567
+45 12 34 56 78|+47 22 12 34 56|+47 123 45 678|+46 8 123 456 78|+46 70-123 45 67|+358 40 123 4567|+354 555 1234
+44 20 7946 0958|+7 495 123-45-67|+48 601 234 567|+420 123 456 789|+86 138 0013 8000|+91 98765 43210|+81 3-1234-5678"""
    for number in re.split(r"[|\n]", numbers):
        assert masked_text(f"Call ({number}), or {number}.") == "Call (+1 202-555-0100), or +1 202-555-0100.", number
    assert masked_text("555-123-4567 555-765-4321") == "+1 202-555-0100 +1 202-555-0100"
    assert masked_text("地址8.8.8.8是") == "地址22.214.171.124是"
    assert masked_text("The conversation with 8.8.8.8") == "The conversation with 22.214.171.124"


# ---- the store -------------------------------------------------------------------------------------------------------


@pytest.fixture
def messy(tmp_path):
    """JSON lines: good prose, near copies, exact copies, German, too few words, an evaluation example."""
    generator = random.Random(3)
    texts = [prose(generator, 300) for _ in range(30)]
    changed = texts[4].split(" ")
    changed[50] = "different"
    german = "Der Garten liegt hinter dem Haus, und im Sommer sitzen wir dort jeden Abend. " * 8
    few = "There are too few words in this one document."
    example = "which of the two rivers did ann@firm.example say was once known as the little stone river"
    texts += [" ".join(changed), texts[7], german, few, f"{prose(generator, 150)}\n{example.upper()}?"]
    texts.append(texts[9] + "\nWrite to somebody@example.net about it.")
    texts += [prose(generator, 300) for _ in range(10)]
    path = tmp_path / "messy.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "test.csv").write_text(f'question,answer\n"{example}",blue\nshort one,x\n')
    return path


CLEANING = {"filters": ("gopher",), "languages": ("en",), "near_duplicates": 0.7}


def cleaning_of(messy):
    pytest.importorskip("rensa", reason="the extra `clean` is not installed")
    pytest.importorskip("py3langid", reason="the extra `clean` is not installed")
    return CleaningOptions(**CLEANING, evaluation_files=(str(messy.parent / "test.csv"),), masked=("email",))


OPTIONS = PrepareOptions(valid_fraction=0.2, shard_tokens=4_000)


def test_a_filter_of_the_users(messy, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_filter.py").write_text(
        "def rule(text):\n    return 'a rare word' if 'answer1' in text else len(text) > 60\n"
        "def wrong(text):\n    return None\n"
        "def broken(text):\n    return 1 / ('answer1' not in text) > 0\n"
    )
    texts = [json.loads(line)["text"] for line in messy.read_text().splitlines()]
    line = next(number for number, text in enumerate(texts, 1) if "answer1" in text)

    def filtered(name):
        return prepared(messy, tokenizer, tmp_path / name, OPTIONS, cleaning=CleaningOptions(filters=(name,)))

    try:
        manifest = filtered("own_filter:rule").manifest
        assert manifest["counts"]["left_out"] == {
            "own_filter:rule: a rare word": sum("answer1" in text for text in texts),
            "own_filter:rule: left out": 1,
        }
        assert len(manifest["options"]["cleaning"]["hooks"]["own_filter:rule"]) == 64
        with pytest.raises(InputError, match="returned None on .*messy.jsonl:1"):
            filtered("own_filter:wrong")
        assert not (tmp_path / "own_filter:wrong").exists()
        monkeypatch.setattr(cut, "PART_BYTES", (4_000, 4_000))  # the error comes from another process
        with pytest.raises(InputError) as caught, Runner(2) as two:
            audit([str(messy)], two, cleaning=CleaningOptions(filters=("own_filter:broken",)))
        what = f"--filter own_filter:broken: failed on {messy}:{line}: ZeroDivisionError: division by zero"
        assert str(caught.value).startswith(what) and f"{tmp_path}/own_filter.py:6" in str(caught.value)
    finally:
        sys.modules.pop("own_filter", None)
    for name, said in (("nowhere:rule", "be imported"), ("own_filter:none", "be imported"), ("gofer", "is unknown")):
        with pytest.raises(InputError, match=said):
            filtered(name)


def test_contamination_needs_examples_long_enough(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": {"b": ["x", "one two three four five six seven eight"]}, "label": "x"}\n')
    (tmp_path / "short.txt").write_text("only three words\n")
    found = Contamination(read_evaluations([str(tmp_path / "t.jsonl")]))
    texts = [b"zero ONE two, three four five six seven eight nine", b"one two three four five six seven nine"]
    assert found.examples_in(texts) == [f"{tmp_path}/t.jsonl:1", None]
    for ngram_words, fewest in ((13, 8), (5, 5)):
        with pytest.raises(SourceError, match=f"long enough.*texts of {fewest} words or more"):
            read_evaluations([str(tmp_path / "short.txt")], ngram_words)


def test_labels_and_names_of_columns_are_no_examples(tmp_path, capfd):
    long = "one two three four five six seven eight nine"
    (tmp_path / "t.csv").write_text(f"text,label\n{long},0\n{long} ten,1\n")
    assert read_evaluations([str(tmp_path / "t.csv")]).too_short == 0 and not capfd.readouterr().err
    (tmp_path / "t.csv").write_text(f"text,label\n{long},World\nshort,Sports\n")
    assert read_evaluations([str(tmp_path / "t.csv")]).too_short == 1
    assert "1 of 2 evaluation examples have no text of 8 words, and are skipped" in capfd.readouterr().err
    for name in ("README.md", "dataset_infos.json"):  # as in a folder of the Hub
        (tmp_path / name).write_text(json.dumps({"license": f"{long} of it"}))
    assert read_evaluations([str(tmp_path)]).places == read_evaluations([str(tmp_path / "t.csv")]).places


CHINESE = "中华人民共和国国务院新闻办公室今天上午举行发布会介绍全国粮食生产情况并回答记者提问"
THAI = "เมื่อวานนี้ครูของเราเล่าเรื่องแม่น้ำสายเล็กที่ไหลผ่านหมู่บ้านและสวนผลไม้ของยายก่อนถึงสะพานไม้เก่าหลังวัด"
KOREAN = "국민건강보험공단 일산병원의 원장은 어제 오후 새로 지은 건물에서 직원들과 함께 작은 음악회를 열었다고 밝혔다"


def test_contamination_in_any_script(tmp_path):
    """Case and normal form do not hide an example, and a name that a text has in common with it is none."""
    french = "L'École normale supérieure a été fondée à Paris par la Convention nationale en l'an trois"
    greek = "Η ελληνική γλώσσα μιλιέται εδώ και τρεις χιλιάδες χρόνια στη χερσόνησο του Αίμου και αλλού"
    examples = (french, greek, CHINESE, THAI, KOREAN)
    (tmp_path / "t.txt").write_text("\n".join(examples))
    evaluations = read_evaluations([str(tmp_path / "t.txt")])
    assert evaluations.too_short == 0
    found = Contamination(evaluations)
    for number, example in enumerate(examples, 1):
        for text in (example, example.upper(), unicodedata.normalize("NFD", f"x {example}"), f"{example}漢"):
            assert found.examples_in([text.encode()]) == [f"{tmp_path}/t.txt:{number}"]
    others = [CHINESE[:15] + "发言人表示感谢", KOREAN[:20] + " 어제 서울에서", THAI[:30], french[:40]]
    assert found.examples_in([text.encode() for text in others]) == [None] * 4


def test_contamination_equals_its_slow_twin(monkeypatch):
    generator = random.Random(2)
    texts = [" ".join(generator.choices(NOUNS, k=generator.randrange(40))).encode() for _ in range(60)]
    parts = words.normalized(texts)
    for fewest in (16, 4):  # with few bits the filter lets others through
        monkeypatch.setattr(contamination, "FILTER_BITS", (fewest, fewest))
        tables = {}
        for size in (2, 3, 5):
            grams, _ = words.ngrams(parts, size)
            tables[size] = np.unique(np.concatenate([grams[::97], np.arange(300, dtype=np.uint64) << np.uint64(55)]))
        origins = {size: np.arange(len(some)) for size, some in tables.items()}
        places = tuple(f"f:{number}" for number in range(max(map(len, tables.values()))))
        expected = [None] * len(texts)
        for size, hashes in tables.items():
            grams, first = words.ngrams(parts, size)
            for number in range(len(texts)):
                for gram in grams[first[number] : first[number + 1]].tolist():
                    if gram in hashes.tolist():
                        expected[number] = expected[number] or places[hashes.tolist().index(gram)]
        assert Contamination(EvaluationTexts(tables, origins, places, 0)).examples_in(texts) == expected
        assert None in expected and len({*expected}) > 10


def killed(*_):
    raise OSError("killed")


def test_what_decides_is_in_the_record_and_other_versions_do_not_go_on(messy, tokenizer, tmp_path, monkeypatch):
    cleaning = cleaning_of(messy)
    folder = str(tmp_path / "store")
    version = importlib.metadata.version

    def judged():
        """The files of the parts that are judged, after the work was cut short."""
        with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
            patch.setattr(encode, "encode_documents", killed)
            prepared(messy, tokenizer, folder, OPTIONS, cleaning=cleaning)
        return {path.name for path in (tmp_path / "store" / "parts").glob("judge-*")}

    first = judged()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "rensa" else version(name))
        assert len(first) == 1 and not judged() & first
    manifest = prepared(messy, tokenizer, folder, OPTIONS, cleaning=cleaning).manifest
    both = {name: version(name) for name in ("rensa", "py3langid")}
    assert manifest["options"]["cleaning"]["versions"] == both and both.items() <= manifest["versions"].items()


def test_a_parquet_file_that_unpacks_to_endless_bytes_is_refused(tmp_path):
    with gzip.open(tmp_path / "bomb.parquet.gz", "wb") as file:
        file.write(b"PAR1" + bytes(30_000_000))
    with pytest.raises(SourceError, match="unpacks to over 200 times its size"):
        list(Sources([str(tmp_path / "bomb.parquet.gz")]))


def test_limits_come_before_cleaning():
    document = Document(("abc",), False, "f", 1)
    assert [Limits(*limits).code(document) for limits in ((4, None), (1, 2), (3, 3))] == [1, 2, 0]


@pytest.mark.parametrize(("short", "is_warned_of"), [(4, False), (5, True)])
def test_documents_too_short_for_near_duplicates_are_warned_of(short, is_warned_of, tokenizer, tmp_path, capsys):
    pytest.importorskip("rensa", reason="the extra `clean` is not installed")
    path, cleaning = tmp_path / "a.txt", CleaningOptions(near_duplicates=0.8)
    lines = ["".join("ACGT"[number >> 2 * place & 3] for place in range(8)) for number in range(1, short + 1)]
    path.write_text("\n".join([*lines, *(f"the old fox saw letter {number}" for number in range(49 - short))]))
    audit([str(path)], cleaning=cleaning)
    prepared(path, tokenizer, tmp_path / "store", PrepareOptions(valid_fraction=0.2), cleaning=cleaning)
    warned = [line for line in capsys.readouterr().err.splitlines() if "fewer than 5 words, so no near" in line]
    assert len(warned) == 2 * is_warned_of and all(f"{short} of 49 documents" in line for line in warned)


def test_prepare_cleans_and_counts_as_the_audit_shows(messy, tokenizer, tmp_path):
    cleaning = cleaning_of(messy)
    result = audit([str(messy)], tokenizer=tokenizer, cleaning=cleaning)
    ready = prepared(messy, tokenizer, tmp_path / "store", OPTIONS, cleaning=cleaning)
    counts = ready.manifest["counts"]
    assert counts["left_out"] == {
        "near duplicates": 2,
        "contamination: shares words with an evaluation example": 1,
        "gopher: fewer than 50 words": 1,
        "language: de": 1,
    }
    assert (counts["read"], counts["kept"], counts["duplicates"]) == (46, 40, 1)
    assert "changed" not in counts  # the only document with an address is a near duplicate
    assert "cleaning left out 1 document (language: de 1)" in report(ready.location, ready.manifest)
    assert {name: finding.count for name, finding in result.left_out.items()} == counts["left_out"]
    assert sum(result.languages.values()) == result.documents == 46
    assert (result.tokens_per_word or 0) > 1 and "the mean of the first 46 documents" in audit_report(result)
    near = result.left_out["near duplicates"].examples
    places = [f"{messy}:{one} (like {messy}:{other})" for one, other in ((31, 5), (36, 10))]
    assert [example.split(": ")[0] for example in near] == places
    example = result.left_out["contamination: shares words with an evaluation example"].examples[0]
    assert example.startswith(f"{messy}:35 ({messy.parent}/test.csv:2): ")


def test_the_audit_shows_what_cleaning_changes(tokenizer, tmp_path):
    """The same counts as in the store, and a few of the changes."""
    generator = random.Random(9)
    texts = [f"{prose(generator, 60)}\nMenu {number}" for number in range(8)]
    texts[3] += "\nAsk ann@firm.example at 8.8.8.8 about all the other things there are."
    texts += [texts[3], "Too little for bob@firm.example."]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    cleaning = CleaningOptions(filters=("c4",), masked=("email", "ip", "phone"))
    ready = prepared(path, tokenizer, tmp_path / "store", PrepareOptions(valid_fraction=0.0), cleaning=cleaning)
    result = audit([str(path)], cleaning=cleaning)
    counts = {name: one.count for name, one in result.changed.items()}
    assert counts == {"email addresses": 1, "IP addresses": 1, "phone numbers": 0, "lines that c4 leaves out": 8}
    assert ready.manifest["counts"]["changed"] == {"email": 1, "ip": 1, "lines that c4 leaves out": 8}
    shown = f"{path}:4: mer357. Ask ann@firm.example at 8.8.8.8 -> mer357. Ask email@example.com at 8.8.8.8"
    assert result.changed["email addresses"].examples == [shown] and shown in audit_report(result)
    assert "cleaning masked 1 email address\ncleaning masked 1 IP address\n" in report(ready.location, ready.manifest)


def test_wrong_languages_are_one_line():
    left_out = {"near duplicates": 3, **{f"language: x{number}": 20 - number for number in range(12)}, "c4: x": 200}
    assert merge_languages(left_out) == {
        "c4: x": 200,
        "language: x0 20, x1 19, x2 18, x3 17, x4 16, x5 15, x6 14, x7 13, 4 more languages": 174,
        "near duplicates": 3,
    }
    found = Audit(1, "lines", left_out={name: Finding(n, "does", [name]) for name, n in left_out.items()})
    assert audit_report(found).count("language: x0 20") == 1
    assert "    language: x4\n" in audit_report(found) and "    language: x5" not in audit_report(found)


# ---- the audit -------------------------------------------------------------------------------------------------------


SEPARATED = ["2: <|endoftext|>", "4: <|endoftext|>", "5: - - -"]


def test_audit_counts_what_is_there_and_says_what_prepare_does(tmp_path, capsys):
    text = "Plain words.\n\nPlain words.\n\nA <mask> and </s>.\n\nbell \x07 here\n\nПривет мир\n\n"
    (tmp_path / "a.txt").write_bytes(text.encode() + b"sch\xf6n\n\n" + b"x" * 100_001 + b"\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "windows.txt").write_bytes("Plain words.\n".encode("utf-16"))
    (tmp_path / "program.txt").write_bytes(b"\x7fELF\0\xff\n" * 3)
    (tmp_path / "b.bin").write_bytes(b"\x7fELF\0\xff\n")
    (tmp_path / "c.jsonl").write_text('{"text": null}\n{"text": " "}\n{"other": "x"}\n')
    result = audit([str(tmp_path)], layout="sentences")
    assert result.documents == 6
    assert {name: finding.count for name, finding in result.findings.items() if finding.count} == {
        "encoding faults": 1,
        "files in another encoding": 2,
        "records without text": 3,
        "empty files": 1,
        "files of another kind": 1,
        "exact duplicate documents": 1,
        "documents with control characters": 1,
        "lines over 100,000 characters": 1,
    }
    fault = f"{tmp_path}/a.txt:11:4: 0xf6, byte 86 of the text, is not UTF-8"
    assert result.findings["encoding faults"].examples == [fault]
    assert result.findings["records without text"].examples == [
        f"{tmp_path}/c.jsonl:{place}" for place in ("1", "2", "3, which has no 'text' (keys: other)")
    ]
    assert result.scripts["Cyrillic"] > 0
    assert result.scripts["Latin"] + result.scripts["Cyrillic"] == 1
    page = audit_report(result)
    assert "documents: 6, files: 5 (one sentence per line, blank lines between documents)" in page
    assert "add more text, or prepare with --valid-fraction 0.5" in page
    (tmp_path / "more.txt").write_text("One line.\nAnother line\n")
    (tmp_path / "code").write_text("def a():\n<|endoftext|>\ndef b():\n<|endoftext|>\n- - -\nend -----\n")
    separators = audit([str(tmp_path / "code")]).findings["documents that are a separator line"]
    assert separators.examples == [f"{tmp_path}/code:{where}" for where in SEPARATED]
    page = audit_report(audit([str(tmp_path / "a.txt"), str(tmp_path / "more.txt")]))
    assert "add more text, or --layout lines (about 9 documents), or prepare with" in page
    assert capsys.readouterr().err.splitlines()[-1].startswith("layout: ")


@pytest.mark.parametrize("kind", ["roberta", "bert-uncased"])
def test_special_tokens_are_those_of_the_tokenizer(kind, tokenizer_of, tmp_path):
    lines = ["a [USER] b", "x@URLy", "@URL <s>", "[MASK] <mask>", "<cls> [SEP]", "[The Turn]", "<e1>x</e1>", "plain"]
    folder = with_declared(tokenizer_of(kind), tmp_path / "t")
    are_tokens = {"roberta": [1, 3, 7], "bert-uncased": [1, 3, 6, 7]}
    ids, special = load_tokenizer(folder, special_tokens_are_text=True), read_vocabulary(folder).additional
    assert [n for n, line in enumerate(lines, 1) if special & {*ids.encode(line).ids}] == are_tokens[kind]


def test_places_of_records_without_text_show_no_secret():
    finding = Finding(0, "")
    finding.add_all(1, ["https://bucket.example/a.jsonl?X-Amz-Signature=0123456789abcdef:2"])
    assert "0123456789abcdef" not in finding.examples[0]
