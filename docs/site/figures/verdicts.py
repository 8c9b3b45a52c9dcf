"""The verdict of a quickstart, and all verdicts that were measured, as differences with their 95 % intervals."""

from __future__ import annotations

import math
from typing import Any

from curves import Scale
from drawing import MARGIN, WIDTH, line, paragraph, rectangle, svg, text
from results import measured_on, read

LEFT, RIGHT, ROW = 240, 425, 24
KINDS = {"helped": "ours", "hurt": "other"}
PLAIN = "rect.plain{fill:#8a94a0}"
"""A grey that light and dark pages can both show."""


def signed(value: float) -> str:
    return f"{value:+g}".replace("-", "−")


def bar(across: Scale, y: float, one: dict[str, Any]) -> list[str]:
    """The interval, its middle, and the line of no difference."""
    kind = KINDS.get(one["verdict"], "plain")
    low, high = across(one["low"]), across(one["high"])
    return [
        rectangle(low, y - 2.5, max(high - low, 2), 5, kind, round_=2),
        rectangle(across(one["difference"]) - 4, y - 7, 8, 14, kind, round_=2),
    ]


def in_words(one: dict[str, Any]) -> str:
    return f"{signed(one['difference'])} [{signed(one['low'])}, {signed(one['high'])}]"


def groups() -> list[dict[str, Any]]:
    """The recorded verdicts, and those of continued pretraining."""
    found, domains = read("verdicts")["groups"], read("forgetting")["domains"]
    words = {"0": "on it alone", "10": "10 % books", "50": "50 % books"}
    rows = []
    for domain, called in (("news", "AG News, 600"), ("bank", "Banking77, 1,500")):
        for one in domains[domain]["labels"]:
            if one["base"] == "books":
                rows.append({"what": f"{called}: {words[one['other'].split('-')[1]]}", **one})
    low = next(one for one in domains["low"]["labels"] if (one["base"], one["other"]) == ("books", "news-low"))
    rows.append({"what": "AG News, 600: at a tenth of the rate", **low})
    new = {"news-more": "AG News: 2,000 new tokens", "news-own": "AG News: own tokenizer"}
    tokens = [{"what": new[one["other"]], **one} for one in read("vocabulary")["labels"]]
    return [
        *found,
        {"title": "A nano model of books that continues, against itself", "rows": rows},
        {"title": "Other tokens, against the tokenizer of books", "rows": tokens},
    ]


def forest() -> str:
    parts, told, y = [text(MARGIN, 34, "Verdicts that were measured, in points", "head")], [], 60.0
    parts += [
        rectangle(MARGIN, y - 10, 14, 10, "ours", round_=2),
        text(MARGIN + 20, y, "helped", "small"),
        rectangle(100, y - 10, 14, 10, "other", round_=2),
        text(120, y, "hurt", "small"),
        rectangle(170, y - 10, 14, 10, "plain", round_=2),
        text(190, y, "no difference shown, or too few seeds to conclude", "small"),
    ]
    for group in groups():
        rows = group["rows"]
        least, most = min(0.0, *(one["low"] for one in rows)), max(0.0, *(one["high"] for one in rows))
        across = Scale(least, most, RIGHT, LEFT)
        y += 40
        parts.append(text(MARGIN, y, group["title"], "small head"))
        parts.append(line((across(0), y + 8), (across(0), y + 12 + ROW * len(rows)), kind="one"))
        for one in rows:
            y += ROW
            parts += [text(MARGIN, y + 5, one["what"], "small quiet"), *bar(across, y, one)]
            parts.append(text(WIDTH - MARGIN, y + 5, in_words(one), "small end"))
            told.append(f"{one['what']}: {in_words(one)}, {one['verdict']}")
        y += 8
    caption = (
        "The upright line is no difference; each group has a scale of its own. Bars are 95 % intervals over seeds and "
        "test examples. Relatedness counts hundredths of Pearson's r, and Cranfield those of nDCG@10."
    )
    lines = paragraph(y + 30, caption)
    return svg(
        y + 30 + 20 * len(lines), "Verdicts that were measured", "; ".join(told) + ".", [*parts, *lines], style=PLAIN
    )


def verdict() -> str:
    """Of models of books and models of news, on news' labels."""
    record = read("vocabulary")
    one = next(row for row in record["page"] if row["other"] == "news-own")
    scores = {name: [100 * score for score in record["scores"][name]] for name in ("books", "news-own")}
    every = [value for values in scores.values() for value in values]
    across = Scale(math.floor(min(every)) - 1, math.ceil(max(every)) + 1, WIDTH - MARGIN - 20, 200)
    said = {"helped": "Its own text helped", "hurt": "Its own text hurt"}.get(one["verdict"], "No difference shown")
    parts = [
        text(MARGIN, 36, f"{said}: {signed(one['difference'])} points", "ours verdict"),
        text(
            MARGIN,
            62,
            f"95 % interval {one['low']:g} to {one['high']:g}; p = {one['p']:g}; {len(every) // 2} runs of each",
            "small",
        ),
    ]
    for tick in range(math.ceil(across.least / 5) * 5, int(across.most) + 1, 5):
        x = across(tick)
        parts += [line((x, 92), (x, 180), kind="grid"), text(x, 198, f"{tick}", "tick middle")]
    arms = (("books", "trained on books", 110, "plain"), ("news-own", "trained on news", 160, "ours"))
    for name, called, y, kind in arms:
        parts += [rectangle(across(value) - 5, y - 5, 10, 10, kind, round_=5) for value in scores[name]]
        parts.append(text(MARGIN, y + 5, called, "small head"))
    shift = Scale(min(0.0, one["low"]) - 0.5, max(0.0, one["high"]) + 0.5, WIDTH - MARGIN - 20, 200)
    parts += [
        text(MARGIN, 198, "accuracy, points", "small quiet"),
        text(MARGIN, 243, "difference", "small head"),
        line((shift(0), 222), (shift(0), 254), kind="one"),
        *bar(shift, 238, one),
        *(text(shift(at), 272, f"+{at}" if at else "0", "tick middle") for at in range(0, int(shift.most) + 1, 5)),
    ]
    caption = (
        "Six small models that read books and six that read 5,600 news texts, each with a tokenizer of its text; "
        f"fine-tuned on 600 labelled articles of AG News and tested on 2,000. {measured_on([record])}"
    )
    lines = paragraph(304, caption)
    told = (
        f"{said}: {in_words(one)} points of accuracy on AG News, p = {one['p']:g}. Dots show the accuracy of six "
        "models of books and six of news; a bar shows the interval of the difference."
    )
    return svg(
        304 + 20 * len(lines),
        "Did it help?",
        told,
        [*parts, *lines],
        style=PLAIN + ".verdict{font-size:22px;font-weight:600}",
    )
