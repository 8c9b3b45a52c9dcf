"""The cost of continuing on general text, the gain of general text in the mixture, and when new tokens pay.

    nice -n -10 python benchmarks/continued.py --books 'books/*.txt' --news ag_news/test.csv --bank banking77 \\
        --names wikiann_en --work FOLDER                        three quarters of an hour, two processes of one thread

Small ModernBERTs read books. Each continues on news, or on questions to a bank, with 0, 10 or 50 % of its rows from the
books. On news alone, two more see other tokens: the books' tokenizer with new ones, and a tokenizer of the news, for
which a model begins from random weights and takes all steps on news. The learning rate of continuing is chosen by the
loss on news, and the rates of fine-tuning on validation, with seeds that nothing else uses.

Held-out text is the text of the labelled test sets and one in twenty chapters of the books, with 15 % masks.
Differences of losses are of pairs that share the seed and the model of books. `maskwright compare` fine-tunes every
model, and judges recipes: each pretraining run counts as one observation.
"""

from __future__ import annotations

import argparse
import csv
import glob
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml
from common import write_result
from pydantic import TypeAdapter

from maskwright.core.console import say
from maskwright.verdict import statistics
from maskwright.verdict.judge import judge
from maskwright.verdict.results import Results

CHOOSE, CLAIM = (101, 102, 103), (1, 2, 3, 4, 5, 6)
CONTINUED_AT, FINE_TUNED_AT = (3e-4, 1e-3, 3e-3), (1e-3, 3e-3)
SHARES = (0, 10, 50)
"""Percent of the rows that are from the books."""
VOCABULARY, NEW_TOKENS, ROWS, TOKENS = 8_000, 2_000, 16, 64
HELD_OUT_NEWS, LABELLED_NEWS, LABELLED_BANK, SENTENCES = 2_000, 600, 1_500, 2_000
TASKS: dict[str, dict[str, Any]] = {
    "news": {"data": {"train": "news-labels.csv", "test": "news-test.csv"}, "schedule": {"epochs": 5}},
    "bank": {"data": {"train": "bank-labels.csv", "test": "bank-test.csv"}, "schedule": {"epochs": 6}},
    "names": {
        "task": {"kind": "token_classification"},
        "data": {"train": "names-labels.txt", "test": "names-test.txt"},
        "schedule": {"epochs": 3},
    },
}


class Bench:
    """`work`: the folder of everything. A command with a result there is not run again."""

    def __init__(self, work: Path, steps: int) -> None:
        self.work, self.steps, self.further = work, steps, steps * 3 // 10

    def command(self, *words: object) -> str:
        command = [sys.executable, "-m", "maskwright", *map(str, words)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=self.work, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        return done.stdout

    def prepare(self, store: str, tokenizer: str, *words: str) -> None:
        if not (self.work / store / "manifest.json").exists():
            self.command("data", "prepare", *words, "--tokenizer", tokenizer, "--to", store)

    def pretrain(self, run: str, seed: int, config: dict[str, Any]) -> None:
        """`run`: its folder, next to which its YAML is written."""
        if (self.work / run / "done").exists():
            return
        general = {
            "seed": seed,
            "masking": {"rate": 0.3},
            "batch": {"micro_batch_rows": ROWS},
            "engine": {"threads": 1},
            "logging": {"report_to": []},
        }
        path = self.work / f"{run}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(general | config, sort_keys=False))
        began = time.monotonic()
        self.command("pretrain", path, "--run", run)
        (self.work / run / "done").write_text(f"{time.monotonic() - began:.0f}\n")
        say(f"{run}: {json.dumps(self.losses(run)[-1])}")

    def losses(self, run: str) -> list[dict[str, float]]:
        """The held-out numbers of the run's evaluations, the first and the last among them."""
        lines = [json.loads(line) for line in (self.work / run / "metrics.jsonl").read_text().splitlines()]
        return [{key: line[key] for key in line if key.startswith("valid_")} for line in lines if "valid_loss" in line]

    def from_nothing(self, run: str, seed: int, steps: int, store: str, validation: dict[str, str]) -> None:
        config = {
            "data": {"store": store, "validation": validation, "seq_len": TOKENS},
            "model": {"architecture": "modernbert", "size": "nano", "max_seq_len": 128},
            "optimizer": {"kind": "muon", "learning_rate": 4e-3, "weight_decay": 0.3},
            "schedule": {"kind": "wsd", "steps": steps, "warmup_share": 0.05, "decay_share": 0.4},
        }
        self.pretrain(run, seed, config)

    def continued(self, run: str, seed: int, start: str, data: dict[str, Any], rate: float) -> None:
        config = {
            "data": data | {"seq_len": TOKENS},
            "model": {"init_from": str(self.work / start)},
            "optimizer": {"learning_rate": rate},
            "schedule": {"kind": "wsd", "steps": self.further, "warmup_share": 0.05, "decay_share": 0.2},
        }
        self.pretrain(run, seed, config)

    def fine_tuned(self, task: str, start: str, seed: int, rate: float) -> float:
        """The best score on validation."""
        run = f"tuned/{task}-{Path(start).name}-{rate:g}"
        words = (
            "--set",
            f"model.init_from={start}",
            "--set",
            f"seed={seed}",
            "--set",
            f"optimizer.learning_rate={rate}",
        )
        if not (self.work / run / "results.json").exists():
            self.command("finetune", f"{task}.yaml", "--run", run, *words, "--set", "data.test=null")
        found = json.loads((self.work / run / "results.json").read_text())["validation"]
        return float(found["f1" if task == "names" else "accuracy"])


def all_of(jobs: list[tuple[Any, ...]]) -> list[Any]:
    """Two processes at a time, each of one thread."""
    with ThreadPoolExecutor(2) as pool:
        return [one.result() for one in [pool.submit(*job) for job in jobs]]


def write_texts(work: Path, arguments: argparse.Namespace) -> None:
    """`news-labels.csv`, `news-test.csv` and so on, and the text of both domains without their test sets."""
    with open(arguments.news, encoding="utf-8", newline="") as file:
        news = [(label, " ".join(words).replace("\\", " ")) for label, *words in csv.reader(file)]
    bank = {}
    for part in ("train", "test"):
        with open(Path(arguments.bank, f"{part}.csv"), encoding="utf-8", newline="") as file:
            bank[part] = [(row["category"], row["text"]) for row in csv.DictReader(file)]
    stride = len(bank["train"]) // LABELLED_BANK
    labelled = {
        "news-test": news[:HELD_OUT_NEWS],
        "news-labels": news[HELD_OUT_NEWS : HELD_OUT_NEWS + LABELLED_NEWS],
        "bank-test": bank["test"],
        "bank-labels": bank["train"][::stride],  # the file is sorted by label
    }
    for name, rows in labelled.items():
        with open(work / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *rows])
    texts = {"news": news[HELD_OUT_NEWS:], "news-held-out": news[:HELD_OUT_NEWS]}
    texts |= {"bank": bank["train"], "bank-held-out": bank["test"]}
    for name, rows in texts.items():
        (work / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for _, text in rows))
    for name, part in (("names-labels", "train"), ("names-test", "test")) if arguments.names else ():
        sentences = Path(arguments.names, f"{part}.txt").read_text(encoding="utf-8").split("\n\n")
        (work / f"{name}.txt").write_text("\n\n".join(sentences[:SENTENCES]) + "\n", encoding="utf-8")
    for name, task in TASKS.items():
        shared = {"batch": {"examples": 16}, "engine": {"threads": 1}, "logging": {"report_to": []}}
        (work / f"{name}.yaml").write_text(yaml.safe_dump(task | shared))


def prepared(bench: Bench, arguments: argparse.Namespace) -> None:
    if (bench.work / "stores" / "news-own" / "manifest.json").exists():
        return
    write_texts(bench.work, arguments)
    books = [str(Path(one).resolve()) for pattern in arguments.books for one in sorted(glob.glob(pattern))]
    size = ("--vocab-size", VOCABULARY)
    bench.command("tokenizer", "train", *books, "--to", "tokenizers/books", *size)
    bench.command("tokenizer", "train", "news.jsonl", "--to", "tokenizers/own", *size)
    bench.command(
        "tokenizer", "extend", "tokenizers/books", "news.jsonl", "--tokens", NEW_TOKENS, "--to", "tokenizers/more"
    )
    bench.prepare("stores/books", "tokenizers/books", *books, "--valid-fraction", "0.05")
    for domain in ("news", "bank"):
        bench.prepare(
            f"stores/{domain}", "tokenizers/books", f"{domain}.jsonl", "--valid-files", f"{domain}-held-out.jsonl"
        )
    for kind in ("more", "own"):
        bench.prepare(f"stores/news-{kind}", f"tokenizers/{kind}", "news.jsonl", "--valid-files", "news-held-out.jsonl")


def mixed(domain: str, share: int) -> dict[str, Any]:
    """The data of a run with `share` percent of its rows from the books."""
    stores = {domain: f"stores/{domain}", "books": "stores/books"}
    if not share:
        return {"store": stores[domain], "validation": stores}
    weights = {domain: 100 - share, "books": share}
    return {
        "mixture": {name: {"store": stores[name], "weight": weights[name]} for name in stores},
        "validation": stores,
    }


def chosen(bench: Bench, tasks: list[str]) -> tuple[float, dict[str, float]]:
    """The rate of continuing, and the rate of fine-tuning of each task."""
    at = [(seed, rate) for seed in CHOOSE for rate in CONTINUED_AT]
    all_of(
        [(bench.continued, f"runs/news-0-{s}-{rate:g}", s, f"runs/books-{s}", mixed("news", 0), rate) for s, rate in at]
    )
    loss = {
        rate: mean(bench.losses(f"runs/news-0-{s}-{rate:g}")[-1]["valid_news_loss"] for s in CHOOSE)
        for rate in CONTINUED_AT
    }
    tried = [(task, rate, seed) for task in tasks for rate in FINE_TUNED_AT for seed in CHOOSE]
    scores = all_of([(bench.fine_tuned, task, f"runs/books-{seed}", seed, rate) for task, rate, seed in tried])
    found = {task: dict.fromkeys(FINE_TUNED_AT, 0.0) for task in tasks}
    for (task, rate, _), score in zip(tried, scores, strict=True):
        found[task][rate] += score / len(CHOOSE)
    say(f"continuing: {loss}; fine-tuning: {found}")
    return min(loss, key=lambda rate: loss[rate]), {
        task: max(rates, key=lambda rate: rates[rate]) for task, rates in found.items()
    }


def extended(bench: Bench, seed: int, rate: float) -> None:
    model = f"models/more-{seed}"
    if not (bench.work / model / "model.safetensors").exists():
        bench.command("export", f"runs/books-{seed}", "--to", f"models/books-{seed}")
        shutil.rmtree(bench.work / model, ignore_errors=True)
        words = ("--tokens", NEW_TOKENS, "--to", model, "--model", f"models/books-{seed}")
        bench.command("tokenizer", "extend", f"models/books-{seed}", "news.jsonl", *words)
    bench.continued(f"runs/news-more-{seed}", seed, model, {"store": "stores/news-more"}, rate)


def compared(bench: Bench, task: str, arms: list[str], rate: float, name: str = "") -> Results:
    folder = bench.work / f"compare-{name or task}"
    if not (folder / "verdict.html").exists():
        runs = [f"{arm}={','.join(f'runs/{arm}-{seed}' for seed in CLAIM)}" for arm in arms]
        words = ("--to", folder.name, "--seeds", 1, "--learning-rates", rate, "--workers", 2)
        bench.command("compare", *runs, "--task", f"{task}.yaml", *words)
    return TypeAdapter(Results).validate_json((folder / "results.json").read_bytes())


def difference(first: list[float], second: list[float]) -> dict[str, Any]:
    """`first` less `second` in pairs, with Student's interval and the exact test over signs."""
    pairs = [one - other for one, other in zip(first, second, strict=True)]
    half = statistics.t_quantile(len(pairs) - 1) * stdev(pairs) / len(pairs) ** 0.5
    middle, p = mean(pairs), statistics.sign_flip_p(pairs)
    return {"mean": round(middle, 4), "low": round(middle - half, 4), "high": round(middle + half, 4), "p": round(p, 4)}


def judged(results: Results, base: str, others: list[str]) -> list[dict[str, Any]]:
    """Differences in points, as on the product's page, against any base and for some arms."""
    kept = sorted((one for one in results.arms if one.name in (base, *others)), key=lambda one: one.name != base)
    found = judge(replace(results, arms=tuple(kept)), class_draws=0)
    return [
        {"base": one.base, "other": one.other, "verdict": one.verdict, "p": round(one.p_holm, 4)}
        | {key: round(100 * getattr(one, key), 1) for key in ("difference", "low", "high")}
        for one in found.comparisons
    ]


def forgetting(bench: Bench, scores: dict[str, Results]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    books = [bench.losses(f"runs/books-{seed}")[-1]["valid_loss"] for seed in CLAIM]
    for domain in ("news", "bank"):
        arms = [f"{domain}-{share}" for share in SHARES]
        losses = {arm: [bench.losses(f"runs/{arm}-{seed}") for seed in CLAIM] for arm in arms}
        held_out: dict[str, Any] = {
            "before": {"books": books, domain: [one[0][f"valid_{domain}_loss"] for one in losses[arms[0]]]}
        }
        for arm in arms:
            held_out[arm] = {name: [one[-1][f"valid_{name}_loss"] for one in losses[arm]] for name in ("books", domain)}
        found[domain] = {
            "held_out_loss": held_out,
            "forgotten": {arm: difference(held_out[arm]["books"], books) for arm in arms},
            "given_back": {arm: difference(held_out[arm]["books"], held_out[arms[0]]["books"]) for arm in arms[1:]},
            "paid": {arm: difference(held_out[arm][domain], held_out[arms[0]][domain]) for arm in arms[1:]},
            "learned": {arm: difference(held_out[arm][domain], held_out["before"][domain]) for arm in arms},
            "labels": judged(scores[domain], "books", arms) + judged(scores[domain], arms[0], arms[1:]),
            "general_labels": judged(scores["names"], "books", arms) if "names" in scores else [],
        }
    low = [bench.losses(f"runs/news-low-{seed}")[-1] for seed in CLAIM]
    found["low"] = {
        "rate": min(CONTINUED_AT),
        "held_out_loss": {name: [one[f"valid_{name}_loss"] for one in low] for name in ("books", "news")},
        "forgotten": difference([one["valid_books_loss"] for one in low], books),
        "labels": judged(scores["low"], "books", ["news-0", "news-low"])
        + judged(scores["low"], "news-0", ["news-low"]),
    }
    return found


def vocabulary(bench: Bench, results: Results) -> dict[str, Any]:
    arms = {
        "news-0": ("books", "valid_news_loss"),
        "news-more": ("more", "valid_loss"),
        "news-own": ("own", "valid_loss"),
    }
    found: dict[str, Any] = {}
    for arm, (tokenizer, key) in arms.items():
        seen = json.loads(
            bench.command("tokenizer", "inspect", f"tokenizers/{tokenizer}", "news-held-out.jsonl", "--json")
        )
        loss = [bench.losses(f"runs/{arm}-{seed}")[-1][key] for seed in CLAIM]
        bits = [one / 0.6931471805599453 / seen["bytes_per_token"] for one in loss]
        found[arm] = {
            "tokens_per_word": seen["fertility"],
            "bytes_per_token": seen["bytes_per_token"],
            "loss": loss,
            "bits_per_byte": bits,
        }
    for arm in ("news-more", "news-own"):
        found[arm]["bits"] = difference(found[arm]["bits_per_byte"], found["news-0"]["bits_per_byte"])
    others = [arm.name for arm in results.arms if arm.name != "books"]
    labels = judged(results, "news-0", ["news-more", "news-own"])
    return {"arms": found, "labels": labels, "page": judged(results, "books", others)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--books", nargs="+", required=True)
    parser.add_argument("--news", required=True)
    parser.add_argument("--bank", required=True)
    parser.add_argument("--names", help="WikiANN, a task of general text; a quarter of an hour more")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2_000)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.work.resolve(), arguments.steps)
    began = time.monotonic()
    prepared(bench, arguments)
    both = {"books": "stores/books"}
    all_of([(bench.from_nothing, f"runs/books-{s}", s, bench.steps, "stores/books", both) for s in (*CHOOSE, *CLAIM)])
    say(f"books: {time.monotonic() - began:.0f} s")
    rate, fine_tuning = chosen(bench, [task for task in TASKS if task != "names" or arguments.names])
    jobs: list[tuple[Any, ...]] = []
    for seed in CLAIM:
        for domain in ("news", "bank"):
            for share in SHARES:
                jobs.append(
                    (
                        bench.continued,
                        f"runs/{domain}-{share}-{seed}",
                        seed,
                        f"runs/books-{seed}",
                        mixed(domain, share),
                        rate,
                    )
                )
        jobs.append((extended, bench, seed, rate))
        lowest = (f"runs/news-low-{seed}", seed, f"runs/books-{seed}", mixed("news", 0), min(CONTINUED_AT))
        jobs.append((bench.continued, *lowest))
        own = {"own": "stores/news-own"}
        jobs.append(
            (bench.from_nothing, f"runs/news-own-{seed}", seed, bench.steps + bench.further, "stores/news-own", own)
        )
    all_of(jobs)
    say(f"continued: {time.monotonic() - began:.0f} s")
    domains = {domain: [f"{domain}-{share}" for share in SHARES] for domain in ("news", "bank")}
    scores = {
        "news": compared(bench, "news", ["books", *domains["news"], "news-more", "news-own"], fine_tuning["news"]),
        "bank": compared(bench, "bank", ["books", *domains["bank"]], fine_tuning["bank"]),
        "low": compared(bench, "news", ["books", "news-0", "news-low"], fine_tuning["news"], "low"),
    }
    if arguments.names:
        arms = ["books", *domains["news"], *domains["bank"]]
        scores["names"] = compared(bench, "names", arms, fine_tuning["names"])
    accuracy = {
        task: {arm.name: [run.score for run in results.runs if run.arm == arm.name] for arm in results.arms}
        for task, results in scores.items()
    }
    setting = {"steps": bench.steps, "further": bench.further, "rate": rate, "fine_tuning": fine_tuning}
    forgot, words = forgetting(bench, scores), vocabulary(bench, scores["news"])
    ratios = {f"{domain}_{arm}": one["mean"] for domain in domains for arm, one in forgot[domain]["forgotten"].items()}
    write_result("forgetting", ratios, setting=setting, domains=forgot, scores=accuracy)
    bits = {arm: one["bits"]["mean"] for arm, one in words["arms"].items() if "bits" in one}
    write_result("vocabulary", bits, setting=setting, **words, scores=accuracy["news"])


if __name__ == "__main__":
    main()
