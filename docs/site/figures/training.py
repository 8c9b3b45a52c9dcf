"""Figures of a run without a measurement: what a row holds, what phases change, and how a stopped run goes on."""

from __future__ import annotations

from drawing import MARGIN, WIDTH, Point, line, rectangle, svg, text

SEQUENCES = (("<s>", "the", "cat", "sat", "on", "it", "</s>"), ("<s>", "rain", "fell", "</s>"), ("<s>", "yes", "</s>"))
LENGTH, CELL, SQUARE = 16, 35, 15
"""Tokens in the row, and the sizes of a token and of a pair of tokens."""

SAID = (
    "Attention",
    "Each line is a token, and each column",
    "a token that it may look at.",
    "",
    "A sequence sees itself alone, so the",
    "model computes for it what it would",
    "compute if it were alone in the row.",
    "",
    "Nothing looks at the padding.",
)


def packing() -> str:
    tokens = [(number, place, word) for number, words in enumerate(SEQUENCES) for place, word in enumerate(words)]
    parts = [text(MARGIN, 34, "One row of 16 tokens: three sequences, and padding", "head")]
    for at in range(LENGTH):
        x = MARGIN + CELL * at
        number, place, word = tokens[at] if at < len(tokens) else (None, "", "")
        kind = "box empty" if number is None else f"box sequence{number}"
        parts += [
            rectangle(x, 52, CELL - 2, 32, kind, round_=3),
            text(x + CELL / 2 - 1, 73, word, "small middle"),
            text(x + CELL / 2 - 1, 104, str(place), "small quiet middle"),
        ]
    parts.append(text(MARGIN, 128, "Positions, which begin again with each sequence", "small quiet"))
    top, begin = 152, 0
    parts.append(rectangle(MARGIN, top, LENGTH * SQUARE, LENGTH * SQUARE, "box empty", round_=2))
    for number, words in enumerate(SEQUENCES):
        for row in range(begin, begin + len(words)):
            for column in range(begin, begin + len(words)):
                kind = f"box sequence{number} pair"
                parts.append(rectangle(MARGIN + column * SQUARE, top + row * SQUARE, SQUARE, SQUARE, kind, round_=0))
        begin += len(words)
    parts += [
        text(290, top + 28 + 22 * n, words, "small quiet" if n else "head") for n, words in enumerate(SAID) if words
    ]
    return svg(
        top + LENGTH * SQUARE + 20,
        "Three sequences in one row",
        "A row of 16 tokens holds sequences of 7, 4 and 3 tokens and two places of padding. Positions begin again with "
        "each sequence. In the square of pairs of tokens, attention fills one block for each sequence, and nothing "
        "else.",
        parts,
        style=".sequence0{fill-opacity:.4;fill:#0a6ab8}.sequence1{fill-opacity:.4;fill:#e0751f}"
        ".sequence2{fill-opacity:.4;fill:#2e9e5b}.empty{fill:none;stroke-opacity:.5}.pair{stroke-width:.5}",
    )


STEPS, WARM_UP = 300, 20
PHASES = ((150, 64, 32, 40), (95, 32, 64, 25), (55, 16, 128, 15))
"""Steps, rows a step, tokens a row and percent of masks of docs/phases.md's example."""


def phases() -> str:
    left, width, parts, at = 128, WIDTH - MARGIN - 128, [text(MARGIN, 34, "Three phases of one run", "head")], 0

    def across(step: float) -> float:
        return left + width * step / STEPS

    names = ((86, "a step:"), (104, "rows x tokens"), (168, "masked"), (214, "learning"), (232, "rate"), (284, "step"))
    parts += [text(MARGIN, y, words, "small quiet") for y, words in names]
    for number, (steps, rows, tokens, masked) in enumerate(PHASES):
        middle, start = across(at + steps / 2), across(at)
        parts += [
            rectangle(start + 2, 48, width * steps / STEPS - 4, 208, "box pale" if number % 2 else "box"),
            rectangle(middle - tokens * 0.28, 90 - rows * 0.28, tokens * 0.56, rows * 0.56, "ours", round_=1),
            text(middle, 138, f"{rows} x {tokens}", "small middle"),
            text(middle, 168, f"{masked} %", "small head middle"),
            text(start, 284, str(at), "small quiet middle"),
        ]
        at += steps
    parts.append(text(across(at), 284, str(at), "small quiet end"))
    rate: list[Point] = [(across(0), 246), (across(WARM_UP), 192), (across(STEPS), 246)]
    parts.append(line(*rate, kind="other"))
    return svg(
        300,
        "Three phases of one run",
        "Over 300 steps the rows grow from 32 to 64 to 128 tokens and become fewer, 64, 32 and 16 a step, so that a "
        "step always reads 2,048 tokens. Masks fall from 40 to 25 to 15 %. The learning rate rises for 20 steps and "
        "falls in a straight line through all phases.",
        parts,
    )


LANES = (
    (("preempted,", "time limit, SIGTERM"), "75", "from where it was saved", "0"),
    (("kill -9, machine lost,", "out of memory"), "kill", "from its newest checkpoint", "0"),
    (("maskwright stop,", "--stop-after-hours"), "76", "", ""),
    (("wrong configuration,", "loss not finite"), "2, 3", "", ""),
)
"""What happens, the exit code of the first start, what then happens, and the code of the end."""
AGAIN = (
    ("a shell", "you do, with the same command"),
    ("--processes N", "after a kill the command; after 75 you do"),
    ("submit slurm", "the job's script; after preemption SLURM"),
    ("submit kubernetes", "the Job or JobSet makes new pods"),
    ("submit ray", "the job, once its machines are there"),
    ("submit slice", "the command, on every host"),
)
"""Who starts it again after 75 or a kill."""


def ends() -> str:
    left, stop, parts, y = 190, 300, [text(MARGIN, 34, "How a run ends, and what starts it again", "head")], 56.0
    for (first, second), code, then, end in LANES:
        killed = code == "kill"
        parts += [
            text(MARGIN, y + 14, first, "small"),
            text(MARGIN, y + 32, second, "small"),
            rectangle(left, y + 6, stop - left - (28 if killed else 0), 22, "ours", round_=3),
            text(stop + 8, y + 22, code, "small head other" if killed or code == "2, 3" else "small head"),
        ]
        if killed:
            parts.append(rectangle(stop - 28, y + 6, 28, 22, "box lost", round_=3))
        else:
            parts.append(line((stop, y + 2), (stop, y + 32), kind="one"))
        if end:
            start = stop + (20 if killed else 60)
            parts += [
                line((stop + 40, y + 17), (stop + 62, y + 17), arrow=True),
                rectangle(start + (46 if killed else 6), y + 6, 180, 22, "ours", round_=3),
                text(stop + 66, y + 46, then, "small quiet"),
                text(stop + 256, y + 22, end, "small head"),
            ]
        else:
            parts.append(text(stop + 66, y + 22, "final: no launcher starts it again", "small quiet"))
        y += 62
    parts.append(text(MARGIN, y + 16, "Who starts it again after 75 or a kill", "head"))
    for launcher, who in AGAIN:
        y += 26
        parts += [text(MARGIN, y + 16, launcher, "code"), text(left, y + 16, who, "small quiet")]
    return svg(
        y + 36,
        "How a run ends, and what starts it again",
        "After SIGTERM a run saves and ends with 75; after a kill it loses what follows its newest checkpoint. "
        "Both are started again and go on to 0. It ends with 76 when asked to stop and with 2 or 3 on an error, and no "
        "launcher starts it again. Started again: " + "; ".join(f"{one}: {who}" for one, who in AGAIN) + ".",
        parts,
        style=".lost{fill:none;stroke-dasharray:3 3}",
    )
