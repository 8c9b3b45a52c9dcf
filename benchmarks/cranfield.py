"""Cranfield in the layout of BEIR: `python benchmarks/cranfield.py FOLDER OUT`.

FOLDER holds `cran.all.1400`, `cran.qry` and `cranqrel_corrected`: 1,400 abstracts on aerodynamics, 225 questions and
1,837 judgements, from 1 to 5. OUT gets

    corpus.jsonl                   {"_id": "1", "title": …, "text": …}
    queries.jsonl                  {"_id": "1", "text": …}
    qrels/train.tsv, qrels/test.tsv    query-id, corpus-id and score, with a header line

Judgements number the questions from 1 on in the order of the file, and not by its own numbers, which have gaps. Odd
ones are for training and even ones for the test. An abstract begins with its title, which its text leaves out. A
judgement of a missing question or abstract ends it with one line, and so does a question without judgements.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

PARTS = re.compile(r"^\.([IWTAB])(?: +(\d+))? *$")
ABSTRACTS, QUESTIONS, JUDGEMENTS = "cran.all.1400", "cran.qry", "cranqrel_corrected"


def fail(why: str) -> NoReturn:
    print(f"error: {why}", file=sys.stderr)
    sys.exit(2)


def records(path: Path) -> list[dict[str, str]]:
    """The parts of each record by their letter; lines are joined by spaces."""
    found: list[dict[str, str]] = []
    part = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = PARTS.match(line)
        if match and match[1] == "I":
            found.append({"I": str(int(match[2] or 0)), "T": "", "W": ""})
        elif not found:
            fail(f"{path}:{number}: is no record of Cranfield. Fix: let the file begin with .I")
        elif not match:
            found[-1][part] = " ".join([found[-1].get(part, ""), *line.split()]).strip()
        # An abstract has stray letters between its lines.
        part = match[1] if match and (part != "W" or match[1] == "I") else part
    return found


def judgements(path: Path, questions: int, abstracts: set[str]) -> list[tuple[int, str, int]]:
    """(question, abstract, grade) in the order of the file."""
    found: list[tuple[int, str, int]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        values = line.split()
        if len(values) != 4 or not all(value.isdigit() for value in values):
            fail(f"{path}:{number}: has not four numbers. Fix: take {JUDGEMENTS}, not cranqrel")
        question, abstract, grade = int(values[0]), values[2], int(values[3])
        if not 1 <= question <= questions:
            fail(f"{path}:{number}: there is no question {question}. Fix: take it out")
        if abstract not in abstracts:
            fail(f"{path}:{number}: there is no abstract {abstract}. Fix: take it out")
        found.append((question, abstract, grade))
    if without := sorted(set(range(1, questions + 1)) - {question for question, _, _ in found}):
        fail(f"{path}: question {without[0]} has no relevant abstract. Fix: judge it, or take it out")
    return found


def convert(folder: Path, out: Path) -> None:
    questions = records(folder / QUESTIONS)
    corpus = [
        {"_id": record["I"], "title": record["T"], "text": record["W"].removeprefix(record["T"]).strip()}
        for record in records(folder / ABSTRACTS)
    ]
    judged = judgements(folder / JUDGEMENTS, len(questions), {record["_id"] for record in corpus})
    if out.exists():
        fail(f"{out}: already exists. Fix: choose another folder")
    os.makedirs(out / "qrels")
    queries = [{"_id": str(number), "text": record["W"]} for number, record in enumerate(questions, start=1)]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    for name, odd in (("train", 1), ("test", 0)):
        kept = [f"{question}\t{abstract}\t{grade}\n" for question, abstract, grade in judged if question % 2 == odd]
        (out / "qrels" / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(kept), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        fail("two folders are needed. Fix: python benchmarks/cranfield.py FOLDER OUT")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
