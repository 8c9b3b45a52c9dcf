from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizer_kinds import with_declared

from maskwright.core.errors import InputError
from maskwright.text.audit import Finding, audit, report
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import read_vocabulary

SEPARATED = ["2: <|endoftext|>", "4: <|endoftext|>", "5: - - -"]


def test_audit_counts_what_is_there_and_says_what_prepare_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(
        b"Plain words.\n\nPlain words.\n\nA <mask> and </s>.\n\nbell \x07 here\n\n"
        + "Привет мир\n\n".encode()
        + b"sch\xf6n\n\n"
        + b"x" * 100_001
        + b"\n"
    )
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "windows.txt").write_bytes("Plain words.\n".encode("utf-16"))
    (tmp_path / "program.txt").write_bytes(b"\x7fELF\0\xff\n" * 3)
    (tmp_path / "b.bin").write_bytes(b"\x7fELF\0\xff\n")
    (tmp_path / "c.jsonl").write_text('{"text": null}\n{"text": " "}\n{"other": "x"}\n')
    result = audit([str(tmp_path)], layout="sentences")
    counts = {name: finding.count for name, finding in result.findings.items()}
    assert result.documents == 6
    assert counts == {
        "encoding faults": 1,
        "files in another encoding": 2,
        "broken records": 0,
        "records without text": 3,
        "empty files": 1,
        "files of another kind": 1,
        "exact duplicate documents": 1,
        "documents that are a separator line": 0,
        "documents in the notation of data or markup": 0,
        "documents with control characters": 1,
        "lines over 100,000 characters": 1,
        "documents with literal special tokens": 1,
    }
    assert result.findings["encoding faults"].examples == [
        f"{tmp_path}/a.txt:11:4: 0xf6, byte 86 of the text, is not UTF-8"
    ]
    assert result.findings["records without text"].examples == [
        f"{tmp_path}/c.jsonl:{place}" for place in ("1", "2", "3, which has no 'text' (keys: other)")
    ]
    assert result.scripts["Cyrillic"] > 0
    assert result.scripts["Latin"] + result.scripts["Cyrillic"] == 1
    page = report(result)
    assert "documents: 6, files: 5 (one sentence per line, blank lines between documents)" in page
    assert "add more text, or prepare with --valid-fraction 0.5" in page
    (tmp_path / "more.txt").write_text("One line.\nAnother line\n")
    (tmp_path / "code").write_text("def a():\n<|endoftext|>\ndef b():\n<|endoftext|>\n- - -\nend -----\n")
    separators = audit([str(tmp_path / "code")]).findings["documents that are a separator line"]
    assert separators.examples == [f"{tmp_path}/code:{where}" for where in SEPARATED]
    page = report(audit([str(tmp_path / "a.txt"), str(tmp_path / "more.txt")]))
    assert "add more text, or --layout lines (about 9 documents), or prepare with" in page
    assert capsys.readouterr().err.splitlines()[-1].startswith("layout: ")


@pytest.mark.parametrize("kind", ["roberta", "bert-uncased"])
def test_special_tokens_are_those_of_the_tokenizer(
    kind: str, tokenizer_of: Callable[[str], str], tmp_path: Path
) -> None:
    lines = ["a [USER] b", "x@URLy", "@URL <s>", "[MASK] <mask>", "<cls> [SEP]", "[The Turn]", "<e1>x</e1>", "plain"]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    folder = with_declared(tokenizer_of(kind), tmp_path / "t")
    literal, declared = "documents with literal special tokens", "documents with declared special tokens"
    has_role = {"roberta": [3, 4], "bert-uncased": [4, 5], None: [3, 4, 5]}
    are_tokens = {"roberta": [1, 3, 7], "bert-uncased": [1, 3, 6, 7]}
    for tokenizer in (folder, None):
        found = audit([str(tmp_path / "a.txt")], layout="lines", tokenizer=tokenizer).findings
        places = {name: [int(where.split(":")[1]) for where in found[name].examples] for name in found}
        assert places[literal] == has_role[kind if tokenizer else None]
        if tokenizer:
            assert places[declared] == are_tokens[kind]
            ids = load_tokenizer(folder, special_tokens_are_text=True)
            special = read_vocabulary(folder).additional
            with_ids = [n for n, line in enumerate(lines, 1) if special & {*ids.encode(line).ids}]
            assert with_ids == are_tokens[kind]
            assert found[declared].prepare.startswith("turns them into their ids")
            assert found[literal].prepare == "keeps them as text; they never become special ids"
        else:
            assert declared not in found and "that a tokenizer declares" in found[literal].prepare


def test_places_of_records_without_text_show_no_secret() -> None:
    finding = Finding(0, "")
    finding.add_all(1, ["https://bucket.example/a.jsonl?X-Amz-Signature=0123456789abcdef:2"])
    assert "0123456789abcdef" not in finding.examples[0]


def test_other_files_in_the_folder_of_parts_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Plain words.\n")
    names = {"audit-2026.md", "cut-list", "look-1.png", "find-exact-000001", "draft.tmp-1"}
    (parts := tmp_path / "parts").mkdir()
    for name in names:
        (parts / name).write_text("precious")
    leftover = parts / f"audit-000007-{7:020x}"
    leftover.write_bytes(b"")
    assert audit(["a.txt"], folder=str(parts)).documents == 1
    assert names < {path.name for path in parts.iterdir()} and not leftover.exists()
    with pytest.raises(InputError, match="gs://bucket/parts: must be a local folder"):
        audit(["a.txt"], folder="gs://bucket/parts")
    assert not (tmp_path / "gs:").exists()
