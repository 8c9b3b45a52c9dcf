"""FASTA, FASTQ, WET and WARC as sources, and tokenizers of letters."""

import gzip
import itertools
import json
import random

import numpy as np
import pytest
import transformers
import zstandard
from safetensors.numpy import save_file
from tokenizer_kinds import KINDS

from maskwright.core.errors import InputError, SourceError, StoreError
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
from maskwright.text import spacing
from maskwright.text.audit import audit
from maskwright.text.encoder import TokenizersEncoder, open_encoder
from maskwright.text.sequences import make_tokenizer
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import copy_tokenizer, load_tokenizer


def texts(path, **options):
    return [(document.text, document.line) for document in Sources([str(path)], **options)]


def test_fasta_and_fastq_records_are_documents(tmp_path):
    (tmp_path / "a.fa").write_bytes(b";comment\n>one first\r\nACGTacgt\r\nNNAC\r\n\n>two\nGGRCC\n")
    (tmp_path / "b.fastq.gz").write_bytes(gzip.compress(b"@r1\nACGN\n+\nIIII\n\n@r2\n@CG\n+r2\n@@@\n"))
    assert texts(tmp_path / "a.fa") == [("ACGTACGTNNAC", 2), ("GGRCC", 6)]
    assert texts(tmp_path / "a.fa", letters="keep") == [("ACGTacgtNNAC", 2), ("GGRCC", 6)]
    assert texts(tmp_path / "a.fa", letters="plain") == [("ACGTACGT", 2), ("AC", 2), ("GG", 6), ("CC", 6)]
    assert texts(tmp_path / "b.fastq.gz") == [("ACGN", 1), ("@CG", 6)]
    plain = audit([str(tmp_path / "a.fa")], letters="plain")
    assert (plain.documents, plain.characters, plain.languages) == (4, 14, {})
    for name, content, where in (
        ("c.fasta", "ACGT\n>late\nAC\n", ":1"),
        ("c.fq", "@r1\nACGT\n+\nIIII\n@r2\nACGT\n+\nII\n", ":5"),
        ("d.fq", "@r1\nACGT\n+\n", ":1"),
        ("f.faa", ">a\nMK\n>empty\n\n>c\nMT\n", ":3"),
        ("g.faa", ">a\nMK\n>cut off", ":3"),
        ("e.faa", ">a\nMK*\n>b\nMK-.\nM1K\n>c\nMT\n", ":5"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(SourceError) as caught:
            texts(tmp_path / name)
        assert caught.value.where == f"{tmp_path}/{name}{where}"
    assert "has '1', which is neither a letter nor *, - or a dot" in str(caught.value)
    assert texts(tmp_path / "c.fasta", on_bad_input="skip") == [("AC", 2)]
    assert texts(tmp_path / "c.fq", on_bad_input="skip") == [("ACGT", 1)]
    assert texts(tmp_path / "e.faa", on_bad_input="skip") == [("MK*", 1), ("MT", 6)]
    assert texts(tmp_path / "f.faa", on_bad_input="skip") == [("MK", 1), ("MT", 5)]


@pytest.mark.parametrize(("kind", "size"), [("characters", 17), ("kmer", 4113)])
def test_tokenizers_of_letters_load_in_transformers_with_equal_ids(kind, size, tmp_path):
    generator = random.Random(0)
    (tmp_path / "a.fa").write_text(">a\n" + "".join(generator.choices("ACGTacgtN", k=500)) + "\n>b\nACGTRYACGTAC\n")
    folder = str(tmp_path / "tokenizer")
    vocabulary = make_tokenizer(Sources([str(tmp_path / "a.fa")]), folder, kind, "dna")
    assert vocabulary.size == 5 + size
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(folder, special_tokens_are_text=False)
    encoder, _ = open_encoder(folder, "tokenizers")
    for sample in ("ACGTACNACGTA", "acgtacgtacgt", "".join(generator.choices("ACGTN", k=300)), "ACGT@"):
        ids = theirs(sample)["input_ids"]
        assert ids == ours.encode(sample).ids
        assert ids[1:-1] == encoder.encode([sample])[0].tolist()
        assert (theirs.unk_token_id in ids) == ("@" in sample)
    split = ["ACGTAC", "N", "A", "C", "G", "T", "A"] if kind == "kmer" else list("ACGTACNACGTA")
    assert theirs.tokenize("acgtacNacgta") == split and vocabulary.mask == theirs.mask_token_id
    assert theirs.decode(theirs("ACGTACNACG")["input_ids"], skip_special_tokens=True) == "ACGTACNACG"


@pytest.mark.parametrize(
    ("kind", "alphabet"), [("characters", "dna"), ("characters", None), ("kmer", "dna"), ("kmer", "protein")]
)
def test_a_long_sequence_in_pieces_has_the_ids_of_the_whole(kind, alphabet, tmp_path, monkeypatch):
    generator = random.Random(2)
    letters = "ACGTacgtACGTACGTACGTACGTNxK\u212a\n*" if alphabet != "protein" else "ACDEFGHIKLMNPQRSTVWYacdxB-\u017f"
    sequences = ["".join(generator.choices(letters, k=size)).strip() for size in (5, 99, 700, 5_000)]
    (tmp_path / "a.txt").write_text("ACGTNK")
    folder = str(tmp_path / "made")
    make_tokenizer(Sources([str(tmp_path / "a.txt")], layout="file"), folder, kind, alphabet, 3)
    expected = TokenizersEncoder(folder).encode(sequences)
    monkeypatch.setattr(encoders, "PIECE_CHARACTERS", 100)
    encoder, sizes = TokenizersEncoder(folder), list[int]()
    encode = TokenizersEncoder._encode

    def noted(self, some):
        sizes.extend(map(len, some))
        return encode(self, some)

    monkeypatch.setattr(TokenizersEncoder, "_encode", noted)
    for one in (sequences, [text.encode() for text in sequences]):
        for found, wanted in zip(encoder.encode(one), expected, strict=True):
            assert np.array_equal(found, wanted)
    assert len(sizes) > 40 and max(sizes) <= 300


def test_letters_of_the_text_and_what_is_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("日本語\nにほん\n", encoding="utf-8")
    folder = str(tmp_path / "letters")
    sources = Sources([str(tmp_path / "a.txt")], layout="lines")
    assert make_tokenizer(sources, folder, "characters").size == 5 + 6
    assert load_tokenizer(folder, special_tokens_are_text=True).encode("本に").tokens == ["[CLS]", "本", "に", "[SEP]"]
    make_tokenizer(sources, str(tmp_path / "protein"), "kmer", "protein", 3)
    assert "100.00% of the text has no token" in capsys.readouterr().err
    with pytest.raises(StoreError, match=r"6 of 6 tokens are unknown.*'日' at .*a.txt:1 has '日', which is in none"):
        prepare(Request(sources, str(tmp_path / "protein"), str(tmp_path / "store"), PrepareOptions(0.0)))
    with pytest.raises(InputError, match="needs an alphabet"):
        make_tokenizer(sources, str(tmp_path / "x"), "kmer")
    with pytest.raises(InputError, match="too few or too many"):
        make_tokenizer(sources, str(tmp_path / "x"), "kmer", "protein", 6)


def warc(kind, content_type, body):
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:0>\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
    return f"{head}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"


def test_wet_records_are_documents_and_html_alone_is_refused(tmp_path):
    pytest.importorskip("fastwarc", reason="the extra `clean` is not installed")
    info = warc("warcinfo", "application/warc-fields", b"software: test\r\n")
    pages = [warc("conversion", "text/plain", text.encode()) for text in ("Erste Seite\nzwei Zeilen", "Ünï\n")]
    (tmp_path / "a.warc.wet.gz").write_bytes(b"".join(gzip.compress(one) for one in (info, *pages)))
    (tmp_path / "a.wet.zst").write_bytes(zstandard.compress(b"".join([info, *pages])))
    for name in ("a.warc.wet.gz", "a.wet.zst"):
        assert texts(tmp_path / name) == [("Erste Seite\nzwei Zeilen", 2), ("Ünï", 3)]
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>Hello</p>"
    (tmp_path / "b.warc").write_bytes(info + warc("response", "application/http; msgtype=response", answer))
    with pytest.raises(SourceError, match="has 1 pages but no plain text"):
        texts(tmp_path / "b.warc")
    plain = answer.replace(b"text/html", b"text/plain; charset=utf-8")
    (tmp_path / "c.warc").write_bytes(warc("response", "application/http; msgtype=response", plain))
    assert texts(tmp_path / "c.warc") == [("<p>Hello</p>", 1)]
    (tmp_path / "d.wet.gz").write_bytes(gzip.compress(b"".join([info, *pages]))[:-30])
    with pytest.raises(SourceError, match="cut short"):
        texts(tmp_path / "d.wet.gz")


BERTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def older_folder(folder, tokens, **settings):
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*BERTS, *tokens]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False} | settings))
    return str(folder)


def slowly_spaced(text, k):
    """Each run of letters as its k-mers, one letter after the other; for single letters, each sign by itself."""
    words, run = list[str](), ""
    for sign in f"{text.upper()} ":
        if not sign.isspace() if k == 1 else sign.isalpha():
            run += sign
            continue
        words += [run] if len(run) < k else ["".join(run[i : i + k]) for i in range(len(run) - k + 1)]
        words.append(sign)
        run = ""
    return " ".join(words)


@pytest.mark.parametrize(
    ("k", "alphabet", "letters"),
    [(1, "LAGVESIKRDTPNQFYMHCWXUBZO", "MKTAYIAXJ*-. mk"), (3, "ACGT", "ACGTNacgt-* "), (6, "ACGT", "ACGT")],
)
def test_sequences_without_spaces_have_the_ids_of_spaced_ones(k, alphabet, letters, tmp_path, monkeypatch):
    """As ProtBERT's and DNABERT's vocabularies: ids are those of transformers for text that was spaced by hand, in
    stores and where models are used, also of texts in pieces."""
    folder = older_folder(tmp_path / "vocabulary", ["".join(kmer) for kmer in itertools.product(alphabet, repeat=k)])
    theirs, draw = transformers.BertTokenizer(f"{folder}/vocab.txt", do_lower_case=False), random.Random(0)
    monkeypatch.setattr(encoders, "PIECE_CHARACTERS", 40)
    monkeypatch.setattr(spacing, "PIECE_CHARACTERS", 40)
    texts = ["".join(draw.choices(letters, k=draw.randint(1, 300))) for _ in range(200)]
    spaced = [slowly_spaced(text, k) for text in texts]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in spaced]
    encoder = TokenizersEncoder(folder)
    for given in (texts, spaced if len(letters) < 10 else texts):
        ids, counts = encoder.encode(given)
        assert np.split(ids, np.cumsum(counts)[:-1]) == [pytest.approx(row) for row in expected]
    assert [open_tokenizer(folder).encode(text).ids[1:-1] for text in texts] == expected
    as_saved = load_tokenizer(folder, special_tokens_are_text=True, adds_spaces=False)
    assert as_saved.encode("ACGTACGT", add_special_tokens=False).ids == [1]
    assert load_tokenizer(folder, special_tokens_are_text=False).encode("ACG[MASK]ACG").ids.count(4) == 1


def test_other_vocabularies_get_no_spaces(tokenizer_of, tmp_path):
    folders = [tokenizer_of(kind) for kind in (*KINDS, "esm")]
    kmers = ["".join(kmer) for kmer in itertools.product("ACGT", repeat=2)]
    folders += [older_folder(tmp_path / "some", kmers[:-1]), older_folder(tmp_path / "more", [*kmers, "##A"])]
    assert [spacing.spacing_of(folder) for folder in folders] == [None] * len(folders)
    assert str(spacing.spacing_of(older_folder(tmp_path / "all", kmers))) == "overlapping 2-mers"


def test_a_store_of_sequences_is_that_of_spaced_text(tmp_path, capsys):
    draw = random.Random(0)
    texts = ["".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=draw.randint(20, 60))) for _ in range(60)]
    (tmp_path / "a.faa").write_text("".join(f">p{number}\n{text.lower()}\n" for number, text in enumerate(texts)))
    (tmp_path / "a.txt").write_text("".join(f"{' '.join(text)}\n" for text in texts))
    folder = older_folder(tmp_path / "protbert", "LAGVESIKRDTPNQFYMHCWXUBZO")
    fifth = PrepareOptions(0.2)
    stores = [
        prepare(Request(Sources([f"{tmp_path}/{name}"], layout="lines"), folder, f"{tmp_path}/{name}.store", fifth))
        for name in ("a.faa", "a.txt")
    ]
    assert stores[0].fingerprint == stores[1].fingerprint
    assert stores[0].manifest["splits"]["train"]["tokens"] > 1000
    lines = capsys.readouterr().err
    assert "protbert: has single letters, so it gets sequences with spaces between them" in lines
    assert "unknown" not in lines
    (tmp_path / "a.fa").write_text("".join(f">r{number}\n{'ACGT' * 9}AN\n" for number in range(9)))
    kmers = older_folder(tmp_path / "dnabert", ["".join(kmer) for kmer in itertools.product("ATCG", repeat=6)])
    prepare(Request(Sources([str(tmp_path / "a.fa")]), kmers, str(tmp_path / "dna"), PrepareOptions(0.0, True)))
    lines = capsys.readouterr().err
    assert "has overlapping 6-mers" in lines and lines.count("reveal a masked token in their neighbours") == 1
    assert "warning: 9 of 297 tokens are unknown to the tokenizer; 'ACGTAN' at " in lines
    assert "a.fa:1 has 'N', which is in none of its tokens: cut DNA at other" in lines


def test_fill_and_export_of_sequences(tmp_path, capsys):
    """`fill` spaces what it is given. An export keeps the tokenizer as it is, and says what it wants."""
    model = tmp_path / "model"
    tokenizer = older_folder(tmp_path / "t", ["".join(kmer) for kmer in itertools.product("ATCG", repeat=3)])
    copy_tokenizer(tokenizer, str(model))
    ids = {"bos_token_id": 2, "pad_token_id": 0, "eos_token_id": 3}
    shape = ModelConfig(69, 32, 2, 2, 64, 64, architecture="modernbert", **ids)
    save_file(initial_parameters(shape, 0), str(model / "model.safetensors"))
    (model / "config.json").write_text(json.dumps(to_hf_config(shape)))
    trained = load_model(str(model))
    assert fill(trained, "acgta[MASK]CGTA") == fill(trained, "ACG CGT GTA [MASK] CGT GTA")
    assert export(trained, str(tmp_path / "exported")) < 1e-4
    assert "the tokenizer has overlapping 3-mers: give `transformers` sequences with spaces" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "alphabet", "letters", "said"),
    [
        ("characters", "protein", "ACGT", "as in DNA, and are read as amino acids: translate them first"),
        ("characters", "protein", "ACDEFGHIKLMNPQRSTVWY", ""),
        ("characters", "dna", "ACGT", ""),
        ("kmer", "dna", "ACGU", "most often U, which is in no k-mer: write T for U first"),
        ("kmer", "dna", "ACGTNN", "most often N, which is in no k-mer: cut DNA at other letters"),
        ("kmer", "dna", "ACGT", ""),
    ],
)
def test_sequences_of_another_kind_are_told(kind, alphabet, letters, said, tmp_path, capfd):
    draw, fasta = random.Random(5), tmp_path / "a.fa"
    fasta.write_text("".join(f">{number}\n{''.join(draw.choices(letters, k=300))}\n" for number in range(40)))
    make_tokenizer(Sources([str(fasta)]), str(tmp_path / "letters"), kind, alphabet, kmer=4)
    prepare(
        Request(
            Sources([str(fasta)]),
            str(tmp_path / "letters"),
            str(tmp_path / "store"),
            PrepareOptions(valid_fraction=0.2),
        )
    )
    warnings = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning:")]
    assert [said in line for line in warnings] == [True] * bool(said)
