"""Our side of the fine-tuning benchmark, in a process of its own: rows, packing and engine as `finetune` uses them.

    python ours_finetune.py MODEL TRAIN.csv --text text --label category --examples 32 --steps 30

Prints one JSON line. A step's time holds its packing and its update.
"""

from __future__ import annotations

from finetune_side import Clock, arguments

from maskwright.config.finetuning import build_finetune_config
from maskwright.run.directory import RunDirectory
from maskwright.tasks.finetune.prepare import prepare_finetuning
from maskwright.tasks.start.engine import start_engine


def main() -> None:
    given = arguments()
    columns = [int(name) if name.isdigit() else name for name in [*given.text, given.label]]
    config = build_finetune_config(
        {
            "data": {"train": given.train, "text": columns[:-1], "label": columns[-1], "max_seq_len": 128},
            "model": {"init_from": given.model},
            "schedule": {"steps": given.steps},
            "batch": {"examples": given.examples},
        },
        "benchmark",
    )
    ready = prepare_finetuning(config, RunDirectory("nowhere"))
    engine = start_engine(ready, None, None)
    engine.write(ready.starting_state())
    clock = Clock(given)
    for step in range(given.steps):
        engine.step(ready.train.batches(step, [0]), ready.config.learning_rate_at(step), lambda: False)
        engine.check()
        clock.tick()
    clock.report()


if __name__ == "__main__":
    main()
