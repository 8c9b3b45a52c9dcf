"""Writes `benchmarks/README.md` from the results: `python benchmarks/report.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from faults_table import table as faults_table

from maskwright.core.console import several

HERE = Path(__file__).parent
NOT_ON_A_GPU = "no whole run on a GPU yet"
MEMORY = "finetune-ag-news-mini-memory"
#   result file, where, against, key of its ratios, unit, target, whether less is better
ROWS: list[tuple[str, str, str, str, str, float | None, bool]] = [
    ("cpu-base", "CPU, base, 512 tokens", "HF Trainer at its best", "over_hf_best", "x", 1.7, False),
    ("cpu-base", "CPU, base, 512 tokens", "measured bf16 GEMM", "matmul_share", "of it", 0.7, False),
    ("cpu-base", "CPU, base, 512 tokens", "HF Trainer's defaults", "over_hf_defaults", "x", 5.0, False),
    ("cpu-small", "CPU, small, 512 tokens", "HF Trainer at its best", "over_hf_best", "x", 2.4, False),
    ("cpu-mini", "CPU, mini, 128 tokens", "HF Trainer at its best", "over_hf_best", "x", 4.5, False),
    ("cpu-base-avx2", "CPU held to AVX2, base", "HF Trainer at its best", "over_hf_best", "x", None, False),
    ("cpu-mini-avx2", "CPU held to AVX2, mini", "HF Trainer at its best", "over_hf_best", "x", None, False),
    (
        "cpu-modernbert-1024",
        "CPU, ModernBERT-base, 1,024 tokens",
        "HF Trainer at its best",
        "over_hf_best",
        "x",
        2.0,
        False,
    ),
    (
        "cpu-modernbert-4096",
        "CPU, ModernBERT-base, 4,096 tokens",
        "HF Trainer at its best",
        "over_hf_best",
        "x",
        2.0,
        False,
    ),
    ("gpu-base", "one H200, base, 512 tokens", "HF Trainer at its best", "over_hf_best", "x", 2.0, False),
    ("gpu-large", "one H200, large, 512 tokens", "HF Trainer at its best", "over_hf_best", "x", 2.0, False),
    ("gpu-step-base", "one H200, base, kernels of a fixed order", "of any order", "exact_over_fast", "x", None, False),
    ("gpu-step-mini", "one H200, mini, CUDA graphs", "kernels one by one", "graph_over_kernels", "x", None, False),
    ("gpu-promises", "one H200: twice, resumed, in graphs", "ends that differ", "different_ends", "ends", 0.0, True),
    ("finetune-banking77-mini", "CPU, fine-tuning mini, Banking77", "HF Trainer", "over_hf_trainer", "x", 4.0, False),
    ("finetune-ag-news-mini", "CPU, fine-tuning mini, AG News", "HF Trainer", "over_hf_trainer", "x", 2.5, False),
    (MEMORY, "largest batch in 2 GiB, mini, AG News", "HF Trainer", "over_hf_trainer", "x", None, False),
    (MEMORY, "the same", "-", "maskwright", "examples", None, False),
    (MEMORY, "the same, HF Trainer's", "-", "hf_trainer", "examples", None, False),
    ("time-to-loss", "CPU, mini, wall clock to a loss", "run_mlm's recipe", "hf_seconds_over_ours", "x", 5.0, False),
    ("prepare", "data prepare, `fast`", "`pregenerate_training_data.py`", "fast_over_pregenerate", "x", 60.0, False),
    ("prepare", "data prepare, `fast`", "`datasets.map`", "fast_over_datasets_map", "x", 40.0, False),
    (
        "prepare",
        "data prepare, plain",
        "bare `encode_batch_fast`",
        "without_fast_over_encode_batch_fast",
        "x",
        0.95,
        False,
    ),
    ("formats", "Arrow shards opened for the first time, one core", "itself", "read_arrow", "MB/s", 200.0, False),
    ("formats", "data convert from Arrow, one core", "itself", "from_arrow", "MB/s", 200.0, False),
    ("formats", "data convert from Megatron, one core", "itself", "from_megatron", "MB/s", 200.0, False),
    ("formats", "data convert from MDS, one core", "itself", "from_mds", "MB/s", 200.0, False),
    (
        "data",
        "exact and near duplicates",
        "itself",
        "near_duplicates_megabytes_per_cpu_second",
        "MB/s a core",
        20.0,
        False,
    ),
    ("data", "near duplicates", "`datatrove`", "near_duplicates_over_datatrove", "x", None, False),
    ("data", "near duplicates", "`datasets`, `datasketch`", "near_duplicates_over_datasets", "x", None, False),
    ("parts", "data prepare, pages", "itself", "exact_megabytes_per_cpu_second", "MB/s a core", None, False),
    (
        "parts",
        "data prepare, pages, near duplicates",
        "itself",
        "exact_and_near_megabytes_per_cpu_second",
        "MB/s a core",
        None,
        False,
    ),
    ("loader", "loader, one core", "itself", "megatokens_per_cpu_second", "Mtokens/s", 80.0, False),
    ("loader", "loader, one core", "HF's collator", "over_hf_collator", "x", 25.0, False),
    ("cpu-mini", "loader in a step, mini", "the step", "loader_share", "of it", 0.01, True),
    ("saving", "a save every 600 s, base, 8 rows a step", "training", "share_of_training", "of it", 0.02, True),
    ("kills", "204 kills at random moments", "ends of runs that differ", "different_ends", "ends", 0.0, True),
    ("process-kills", "100 kills of 1 to 4 processes", "ends that differ", "different_ends", "ends", 0.0, True),
    ("process-kills", "supervisors killed", "outlived by", "processes_that_outlived_their_supervisor", "", 0.0, True),
    ("kills", "a kill, with a save every second", "training lost", "most_seconds_lost", "s", 2.0, True),
    ("parity", "JAX, fp32, 50 steps and gradients", "torch", "largest", "apart", 1e-5, True),
    ("start", "`maskwright --help`", "-", "help_seconds", "s", 0.2, True),
    ("start", "first step after start, mini", "-", "first_step_seconds", "s", 5.0, True),
    ("start", "batch at step 10^6", "batch at step 0", "batch_at_step_1000000_over_step_0", "x", 2.0, True),
    ("watch", "`watch`, 100 runs of 105,000 lines, first look, one core", "-", "first_cpu_seconds", "s", 1.0, True),
    ("watch", "the same, a look at all after new lines", "-", "later_cpu_seconds", "s", 0.1, True),
    ("watch", "first look at a curve of 100,000 lines", "-", "curve_cpu_seconds", "s", 1.0, True),
    ("watch", "the same, a line later", "-", "grown_curve_cpu_seconds", "s", 0.1, True),
    ("scaling", "2 processes on 2 cores, mini", "DistributedDataParallel", "over_ddp-2", "x", None, False),
    ("scaling", "2 processes on 2 cores, mini", "one process", "ours_efficiency-2", "of it", None, False),
]
ABOUT = """# Benchmarks

Each script runs both sides in one session, alternately (A B A B). It writes `results/*.json` with every round, the
machine, the versions and the commit. `python benchmarks/report.py` makes this page from those files.
[Findings](../docs/experiments.md#speed) summarizes it.

Ratios compare medians over the rounds; for the time to a loss, they are the ratios of the worst seed. Only real tokens
count, never padding. "At its best" means bf16 (fp32 on a CPU that multiplies it faster), no dropout, SDPA,
`torch.compile` and the fastest of the batch sizes. "Held to AVX2" means that both sides run in fp32 with the
instructions of a CPU that has AVX2 and no more (`train.py --avx2`); base ran there twice, by hand, with 8 rows only. On
the H200, Trainer ran with 128 rows, as maskwright did, and no other batch size was tried
([details](../records/experiments.md#2026-11-26-one-h200)). In results up to 2026-11-23, the measured GEMM is the
fastest of seven products at the start of a process. Since then, products are measured again at its end, and the fastest
counts.
"""
COMMANDS = """
## Commands

The top of each script explains what its numbers include.

<!-- not executed: most lines take minutes or hours -->
```bash
pip install -e '.[train,fast,bench]'
python benchmarks/train.py cpu-base --text 'corpus/*.txt'     # also cpu-modernbert-1024 and others
python benchmarks/time_to_loss.py --text 'corpus/*.txt'       # half an hour
python benchmarks/prepare.py --text books.txt --tokenizer data/tokenizer --pregenerate PATH_TO_ITS_SCRIPT
python benchmarks/formats.py --tokenizer data/tokenizer       # other tools' stores of ids, read and converted
python benchmarks/data.py --text books.txt --tokenizer data/tokenizer --sizes 100 1000   # near duplicates
python benchmarks/parts.py --text books.txt --tokenizer data/tokenizer   # data prepare in parts, phase by phase
python benchmarks/tokenizer_sample.py --text books.txt        # tokenizers of a part of a text; ten minutes
python benchmarks/loader.py --text 'corpus/*.txt'
python benchmarks/start.py --text 'corpus/*.txt'
python benchmarks/saving.py --text 'corpus/*.txt'
python benchmarks/watch.py                                    # what it costs to watch 100 runs; half a minute
python benchmarks/parity.py                                   # JAX's numbers against torch's, two minutes
python benchmarks/kills.py --store data/store                 # a quarter of an hour
python benchmarks/process_kills.py --store data/store         # half an hour
python benchmarks/scaling.py --text 'corpus/*.txt'            # many processes; a quarter of an hour
python benchmarks/scaling_model.py                            # a projection for GPUs, no measurement
python benchmarks/gradients.py                                # MKL against torch, for gradients of matrices; a minute
python benchmarks/gpu.py sitting --store data/store --ragged data/lines    # on a GPU, 14 minutes; its top has the parts
python benchmarks/finetune.py banking77-mini --tokenizer FOLDER --data FOLDER   # also ag-news-mini, banking77-base
python benchmarks/finetune.py ag-news-mini --memory-gib 2 …   # the largest batch that fits
python benchmarks/faults.py                                   # makes its own text; two minutes on one core
python benchmarks/curves.py                                   # losses of a run that is killed; two minutes, one core
python benchmarks/kill_session.py                             # two terminals, recorded; half a minute
python benchmarks/genome.py 4000000 > genome.fa                # no measurement: the text of recipes/dna.yaml
python benchmarks/cranfield.py FOLDER OUT                     # no measurement: Cranfield in the layout of BEIR
python benchmarks/continued.py --books 'books/*.txt' …        # forgetting, and new tokens; three quarters of an hour
python benchmarks/learning.py --store data/store --work FOLDER   # curves of whole recipes; ten minutes
```
"""

FAULTS = """
## Faults

Hugging Face Trainer (a masked-LM run with its defaults and its own collator) and `maskwright pretrain` meet the same
faults. Each start is a separate process. The cells come from exit codes, messages, logged losses and the weights
on disk. Dropout and dynamic masking are on. Both run in fp32, in one CPU process.
"""


def value(number: float, unit: str) -> str:
    """What was measured; ratios with three digits, also where the last is a zero."""
    digits = "#.3g" if unit == "x" and number < 100 else ".3g"
    return f"{number:.1%} {unit}" if unit == "of it" else f"{number:{digits}} {unit}"


def line(row: tuple[str, str, str, str, str, float | None, bool]) -> str:
    name, where, against, key, unit, target, less = row
    path = HERE / "results" / f"{name}.json"
    wanted = "-"
    if target is not None:
        wanted = f"{'≤' if less else '≥'} {f'{target:.1%}' if unit == 'of it' else f'{target:g}'} {unit}"
    if not path.exists():
        found = NOT_ON_A_GPU if "gpu-" in name else "not run yet"
        return f"| {where} | {against} | {wanted} | {found} | | |"
    record: dict[str, Any] = json.loads(path.read_text())
    number = record["ratios"][key]
    reached = "-" if target is None else "yes" if (number <= target if less else number >= target) else "no"
    cells = [where, against, wanted, f"**{value(number, unit).strip()}**", reached, record["date"]]
    return f"| {' | '.join(cells)} |"


def faults() -> list[str]:
    path = HERE / "results" / "faults.json"
    if not path.exists():
        return []
    record: dict[str, Any] = json.loads(path.read_text())
    measured = (
        f"transformers {record['versions']['transformers']}, torch {record['versions']['torch']}, {record['date']}."
    )
    return [FAULTS, *faults_table(record), "", measured]


def main() -> None:
    head = ["| where | against | target | measured | reached | date |", "|---|---|---|---|---|---|"]
    rows = [*map(line, ROWS)]
    missed, others = ([row for row in rows if ("| no |" in row) == no] for no in (True, False))
    shown = [HERE / "results" / f"{name}.json" for name in ("faults", *(row[0] for row in ROWS))]
    machines = sorted(
        {
            f"{r['machine']['cpu']}, {several(r['machine']['cores'], 'core')}, "
            + (f"{r['accelerator']}, " if "accelerator" in r else "")
            + f"torch {r['versions']['torch']}"
            for r in (json.loads(path.read_text()) for path in shown if path.exists())
        }
    )
    tables = ["## Missed targets", "", *head, *missed, "", "## All other measurements", "", *head, *others]
    end = ["", f"Machines: {'; '.join(machines)}."]
    page = "\n".join([ABOUT, *tables, *end, *faults(), COMMANDS])
    (HERE / "README.md").write_text(page)


if __name__ == "__main__":
    main()
