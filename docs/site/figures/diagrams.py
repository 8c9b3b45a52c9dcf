"""Figures without a measurement: from text to verdict, which way to take, and what a step is made of."""

from __future__ import annotations

from drawing import MARGIN, WIDTH, box, line, svg, text

WORKERS = (84, 228, 372, 516)
"""Middles of the four virtual workers."""
CHAIN = (
    ("your text", "plain files, JSON lines, Parquet, CSV, web archives", "data audit, tokenizer train, data prepare"),
    ("token store", "encoded once; held-out documents apart", "pretrain"),
    ("run", "killed at any moment, the same command goes on, bit for bit", "export"),
    ("model", "loads in transformers, written only if its logits agree", "finetune"),
    ("fine-tuned model", "classes, numbers, tags, answers", "compare"),
    ("verdict", "helped, hurt or no difference shown, with its interval", ""),
)
"""What there is, what is said of it, and the commands that make the next one of it."""
LOW, HIGH, ARROWS = 56, 100, 170
"""The height of a box, the distance between the tops of two, and where the arrows stand."""


def flow() -> str:
    middle, parts, y = 330, [], 20
    for number, (name, said, commands) in enumerate(CHAIN):
        ends = number in (0, len(CHAIN) - 1)
        parts.append(box(middle, y, 500, (name, said), kind="box pale" if ends else "box"))
        if commands:
            parts.append(line((ARROWS, y + LOW), (ARROWS, y + HIGH - 4), arrow=True))
            parts.append(text(ARROWS + 14, y + LOW + 27, commands, "code ours"))
        y += HIGH
    run = 20 + 2 * HIGH
    parts += [
        # A public encoder comes in where a run begins.
        text(MARGIN, run - 32, "a public", "small"),
        text(MARGIN, run - 14, "encoder", "small"),
        line((40, run - 8), (40, run + 28), (middle - 254, run + 28), arrow=True),
    ]
    return svg(
        y - HIGH + LOW + 20,
        "From text to export to verdict",
        "Your text is audited, gets a tokenizer and is prepared as a token store. A run pretrains on it, from nothing "
        "or from a public encoder, and is exported as a model that transformers loads. The model is fine-tuned, and a "
        "comparison ends with the verdict: helped, hurt, or no difference shown.",
        parts,
    )


WAYS = (
    (
        "Is there a public encoder",
        "for your language or alphabet?",
        "no",
        ("train from scratch", "pretrain modern"),
    ),
    (
        "Does it score well enough,",
        "only fine-tuned on your labels?",
        "yes",
        ("fine-tune it", "finetune task.yaml"),
    ),
    (
        "Do you have a million words",
        "of text like what you will use it on?",
        "no",
        ("collect text, or labels", "more of these help most"),
    ),
    ("", "", "", ("continue it, then fine-tune", "pretrain continue-modernbert")),
)
"""Two lines of a question, the answer that leads out, and where to."""


def ways() -> str:
    left, right, parts, y = 170, 465, [], 66
    parts.append(box(left, y - 46, 300, ("first: compare --base linear",), kind="box pale"))
    for first, second, answer, end in WAYS:
        parts.append(line((left, y - 10), (left, y + 16), arrow=True))
        if not answer:
            parts.append(box(left, y + 20, 300, end, kind="box pale"))
            break
        parts.append(box(left, y + 20, 300, (first, second)))
        parts.append(line((left + 150, y + 48), (right - 112, y + 48), arrow=True))
        parts.append(text(left + 154, y + 40, answer, "ours small"))
        parts.append(box(right, y + 20, 216, end, kind="box pale"))
        parts.append(text(left + 8, y + 94, "yes" if answer == "no" else "no", "ours small"))
        y += 86
    return svg(
        y + 130,
        "Which way is yours?",
        "First ask whether a linear model without a transformer is enough. Without a public encoder for your language "
        "or alphabet, train from scratch. If a public encoder reaches the score that you need, only fine-tune it. With "
        "a million words of your own text, continue it and then fine-tune; else collect more text or labels.",
        [*parts, text(left, y + 112, "compare decides: did it help?", "head middle")],
    )


ATTEMPTS = (
    (("attempt 1", "trains, and saves checkpoints"), "75, a kill or a lost machine", "the launcher restarts it"),
    (("attempt 2", "continues from the newest checkpoint"), "76: stopped, or a limit", "you repeat the command"),
    (("attempt 3", "continues, with a new limit"), "0: done", ""),
)
"""A life of a run: what each attempt does, the exit code that it ends with, and who acts on it."""


def step() -> str:
    middle = WIDTH / 2
    thirds = (100, middle, 500)
    parts = [
        text(middle, 34, "Nothing is drawn from a stream: each is a function of its place", "head middle"),
        box(thirds[0], 52, 160, ("order of rows", "(seed, epoch, place)"), kind="box pale"),
        box(thirds[1], 52, 220, ("masks", "(seed, epoch, row, position)"), kind="box pale"),
        box(thirds[2], 52, 160, ("dropout", "(seed, step, worker)"), kind="box pale"),
        *(line((x, 108), (x, 126)) for x in thirds),
        line((thirds[0], 126), (thirds[2], 126)),
        line((middle, 126), (middle, 144), arrow=True),
        box(
            middle,
            148,
            WIDTH - 2 * MARGIN,
            (
                "one step = one global batch",
                "batch.virtual_workers micro-batches, computed by 1, 2 or 4 devices,",
                "each with an equal share of the virtual workers",
            ),
        ),
        *(line((x, 224), (x, 246), arrow=True) for x in WORKERS),
        *(box(x, 250, 132, (f"worker {number}", "loss, gradient")) for number, x in enumerate(WORKERS)),
    ]
    for left, right in (WORKERS[:2], WORKERS[2:]):
        parts.append(line((left, 306), (left, 324), (right, 324), (right, 306)))
        parts.append(text((left + right) / 2, 346, "+", "ours head middle"))
    halves = [sum(WORKERS[:2]) / 2, sum(WORKERS[2:]) / 2]
    parts += [
        *(line((x, 352), (x, 366)) for x in halves),
        line((halves[0], 366), (halves[1], 366)),
        text(middle, 388, "+", "ours head middle"),
        text(middle + 16, 387, "always in this tree (exact)", "quiet small"),
        line((middle, 394), (middle, 412), arrow=True),
        box(middle, 416, 480, ("divided once by all predicted positions, clipped, one update",)),
        line((middle, 452), (middle, 476), arrow=True),
        box(
            middle,
            480,
            480,
            ("a checkpoint", "weights, moments and the step: files first, then their manifest"),
            kind="box pale",
        ),
        line((middle, 536), (middle, 558), arrow=True),
        text(middle, 582, "A killed run begins again here. The step number is", "head middle"),
        text(middle, 604, "the whole state of the data, so resuming is a jump to it,", "head middle"),
        text(middle, 626, "on any number of devices.", "head middle"),
    ]
    return svg(
        646,
        "How a step is computed, and what is saved of it",
        "The order of rows, the masks and the dropout are functions of the seed and of a place. One step is one "
        "global batch of virtual workers, whose gradients are summed in one tree. A checkpoint has weights, moments "
        "and the step.",
        parts,
    )
