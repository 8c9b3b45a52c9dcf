"""Many processes on one machine against torch's DistributedDataParallel, in turns.

    python benchmarks/scaling.py --text 'corpus/*.txt'                  1 and 2 processes; --processes 1 2 4
    python benchmarks/scaling.py --store data/store --size small --seq-len 512 --rows 2

Ratios are of each side's best step over all rounds: where others use the machine too, medians would measure them.
Medians are in the result as well, and so are ratios of CPU seconds, which others disturb least.

The batch is fixed (4 virtual workers), one thread a process, gloo on the loopback interface. More processes than cores
show only that it works. `beside` is as many runs of one process at the same time, each with a process's share of the
work and no other to send to, which measures the machine's own loss (memory, clock, other users).

The model of `scaling_model.py` is checked in its form, with measurements here instead of its figures: the time of one
process alone with half of the work, and of all-reduces of several sizes between idle processes. On a CPU nothing
is hidden, since sending takes the same cores, so it is predicted both ways.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from common import alternate, medians, store_of, write_result
from scaling_common import beside_each_other, together

from maskwright.machine.hardware import usable_cores

VIRTUAL_WORKERS = 4


def sides_of(common: list[object], counts: list[int]) -> dict[str, Callable[[], dict[str, Any]]]:
    sides: dict[str, Callable[[], dict[str, Any]]] = {}
    for count in counts:
        whole = (*common, "--virtual-workers", VIRTUAL_WORKERS)
        sides[f"ours-{count}"] = partial(together, "scaling_process.py", count, *whole)
        sides[f"ddp-{count}"] = partial(together, "peers/ddp.py", count, *common)
        if 1 < count <= usable_cores():
            share = (*common, "--virtual-workers", VIRTUAL_WORKERS // count)
            sides[f"share-{count}"] = partial(together, "scaling_process.py", 1, *share)
            sides[f"beside-{count}"] = partial(beside_each_other, "scaling_process.py", count, *share)
            sides[f"links-{count}"] = partial(together, "scaling_links.py", count)
    return sides


def ratios_of(seconds: dict[str, float], counts: list[int]) -> dict[str, float]:
    """Times of a step against each other; efficiency is of one process of the same side."""
    found = {}
    for count in counts:
        found[f"over_ddp-{count}"] = seconds[f"ddp-{count}"] / seconds[f"ours-{count}"]
        for side in ("ours", "ddp") if count > 1 else ():
            found[f"{side}_efficiency-{count}"] = seconds[f"{side}-1"] / count / seconds[f"{side}-{count}"]
        if f"share-{count}" in seconds:
            found[f"machine_efficiency-{count}"] = seconds[f"share-{count}"] / seconds[f"beside-{count}"]
    return found


def cpu_ratios(cpu: dict[str, float], counts: list[int]) -> dict[str, float]:
    """Of CPU seconds, which do not count waiting, neither for other users of the machine nor for each other.
    Efficiency: what is left when the processes of a run take more of them together than one alone."""
    found = {}
    for count in counts:
        found[f"ddp_cpu_over_ours-{count}"] = cpu[f"ddp-{count}"] / cpu[f"ours-{count}"]
        for side in ("ours", "ddp") if count > 1 else ():
            found[f"{side}_cpu_efficiency-{count}"] = cpu[f"{side}-1"] / count / cpu[f"{side}-{count}"]
    return found


def alpha_beta(sizes: list[float], seconds: list[float]) -> tuple[float, float]:
    """Seconds to start and bytes a second of time = start + size / rate, by least squares of relative errors, so that
    the small sizes count."""
    weights = [1.0 / second**2 for second in seconds]
    total = sum(weights)
    x = sum(w * s for w, s in zip(weights, sizes, strict=True)) / total
    y = sum(w * t for w, t in zip(weights, seconds, strict=True)) / total
    spread = sum(w * (s - x) ** 2 for w, s in zip(weights, sizes, strict=True))
    slope = sum(w * (s - x) * (t - y) for w, s, t in zip(weights, sizes, seconds, strict=True)) / spread
    return y - slope * x, 1.0 / slope


def prediction(links: list[dict[str, Any]], share_seconds: float, gradient_bytes: float) -> dict[str, float]:
    """Of a step, from the share of one process's work alone and the links: everything hidden that can be, and nothing.
    `gradient_bytes`: of the all-reduce in which a process sends as much as in the step."""
    sizes = [float(size) for size in links[0]["all_reduce_seconds"]]
    found = [min(run["all_reduce_seconds"][str(int(size))] for run in links) for size in sizes]
    start, rate = alpha_beta(sizes, found)
    groups = max(1, round(gradient_bytes / (32 << 20)))
    sending = groups * max(0.0, start) + gradient_bytes / rate
    return {
        "start_seconds": start,
        "bytes_per_second": rate,
        "sending_seconds": sending,
        "step_seconds_all_hidden": share_seconds,
        "step_seconds_none_hidden": share_seconds + sending,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", nargs="+")
    source.add_argument("--store")
    parser.add_argument("--work", help="folder that keeps the token store between runs")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--row", default="scaling", help="name of the result")
    arguments = parser.parse_args()
    counts = sorted({1, *arguments.processes})
    store = arguments.store or store_of(arguments.text, arguments.work or tempfile.mkdtemp(), 50265)
    common = [store, "--size", arguments.size, "--seq-len", arguments.seq_len]
    common += ["--rows", arguments.rows, "--steps", arguments.steps]
    sides = sides_of(common, counts)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):  # each round is kept, so that one that fails costs no other
        for name, found in alternate(sides, 1).items():
            results[name] += found
        write(arguments, results, counts)


def write(arguments: argparse.Namespace, results: dict[str, list[dict[str, Any]]], counts: list[int]) -> None:
    timed = {name: runs for name, runs in results.items() if not name.startswith("links")}
    summary, cpu = medians(timed, "best_step_seconds"), medians(timed, "cpu_seconds")
    seconds = {name: side["least"] for name, side in summary.items()}
    ratios, checks = ratios_of(seconds, counts), {}
    ratios |= cpu_ratios({name: side["median"] for name, side in cpu.items()}, counts)
    for count in (count for count in counts if f"links-{count}" in results):
        # An all-reduce sends 2 (W - 1) / W of its bytes
        sent = 1e6 * medians(timed, "megabytes_sent_per_step")[f"ours-{count}"]["median"]
        check = prediction(results[f"links-{count}"], seconds[f"share-{count}"], sent * count / (2 * (count - 1)))
        for kind in ("all_hidden", "none_hidden"):
            ratios[f"predicted_{kind}_over_measured-{count}"] = check[f"step_seconds_{kind}"] / seconds[f"ours-{count}"]
        used = check["sending_seconds"] + cpu[f"share-{count}"]["median"]
        ratios[f"predicted_cpu_over_measured-{count}"] = used / cpu[f"ours-{count}"]["median"]
        checks[str(count)] = check
    loads = [run["load"] for runs in results.values() for run in runs]
    write_result(
        arguments.row,
        ratios,
        size=arguments.size,
        seq_len=arguments.seq_len,
        rows=arguments.rows,
        virtual_workers=VIRTUAL_WORKERS,
        cores=usable_cores(),
        load_average={"least": min(loads), "most": max(loads)},
        best_step_seconds=summary,
        step_seconds=medians(timed, "step_seconds"),
        cpu_seconds=cpu,
        tokens_per_second=medians(timed, "tokens_per_second"),
        megabytes_sent_per_step=medians(timed, "megabytes_sent_per_step"),
        prediction=checks,
        rounds=results,
    )


if __name__ == "__main__":
    main()
