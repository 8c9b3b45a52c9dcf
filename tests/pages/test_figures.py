"""The figures of the documentation are what draws them from the results that are committed, and those of measurements
say no number that the results do not have."""

import json
import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pages.test_links import ROOT, links, pages

with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "path", [*sys.path])  # benchmarks/ is put on it, and tests/parity would not be found any more
    FIGURES = runpy.run_path(str(ROOT / "docs" / "site" / "figures"))
PICTURES, DRAWN, MEASURED = (FIGURES[name] for name in ("PICTURES", "DRAWN", "MEASURED"))
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")
SVG = "{http://www.w3.org/2000/svg}"


def drawn(name):
    return ElementTree.fromstring(Path(PICTURES, name).read_text(encoding="utf-8"))


def words(figure, *, ticks=False):
    """What it says to those who see it and to those who have it read out, without the numbers at its axes; or these."""
    said = [one for tag in ("text", "title", "desc") for one in figure.iter(f"{SVG}{tag}")]
    return [one.text or "" for one in said if ("tick" in one.get("class", "").split()) == ticks]


def known(value):
    """Each number of a result, in every form in which a figure may have it."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from NUMBER.findall(key)
            yield from known(one)
    elif isinstance(value, list):
        yield str(len(value))
        for one in value:
            yield from known(one)
    elif isinstance(value, str):
        yield from NUMBER.findall(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        size = abs(value)  # a number's sign stands before it
        yield from (f"{size}", f"{size:g}", f"{size:.3g}", f"{size:#.3g}", f"{size:.2g}")


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_what_draws_it(name):
    """`python docs/site/figures` renews them."""
    assert Path(PICTURES, name).read_text(encoding="utf-8") == DRAWN[name]()


@pytest.mark.parametrize("name", MEASURED)
def test_a_figure_has_no_number_that_the_results_do_not_have(name):
    results, other = MEASURED[name]
    read = [json.loads(Path(RESULTS, f"{one}.json").read_text(encoding="utf-8")) for one in results]
    allowed = {number for one in [*read, *other] for number in known(one)}
    said = [number for line in words(drawn(name)) for number in NUMBER.findall(line)]
    assert len(said) > 5
    assert sorted(set(said) - allowed) == []


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_can_be_read_by_everybody(name):
    """Dark and light, as narrow as a phone, by those who hear it, and by those whom motion makes ill."""
    figure, text = drawn(name), Path(PICTURES, name).read_text(encoding="utf-8")
    assert float(figure.get("width", "inf")) <= 600
    assert min(int(size) for size in re.findall(r"font(?:-size)?:(\d+)px", text)) >= 13
    assert "prefers-color-scheme:dark" in text and "<script" not in text and "href" not in text
    still = re.sub(r"@media \(prefers-reduced-motion:no-preference\)\{[^{}]*\{[^{}]*\}\}", "", text)
    assert "animation:" not in still, "who wants no motion, or has none, sees the end"
    assert {*re.findall(r"@keyframes \w+\{0%\{transform:(\w+)", text)} <= {"none"}, "the first frame is the end"
    assert all(len(figure.find(f"{SVG}{tag}").text) > 10 for tag in ("title", "desc"))
    for tick in words(figure, ticks=True):
        assert re.fullmatch(r"loss|difference|step 0|[+-]?[\d.]+( x)?", tick)


def test_every_figure_is_on_a_page():
    shown = {file for page in pages() for file, _ in links(page)}
    assert [name for name in DRAWN if Path(PICTURES, name) not in shown] == []


def test_the_first_screen_says_what_was_measured():
    screen = (ROOT / "README.md").read_text(encoding="utf-8").split("\n### ")[0]
    base, kills, faults = (
        json.loads(Path(RESULTS, f"{name}.json").read_text(encoding="utf-8"))
        for name in ("cpu-base", "kills", "faults")
    )
    said = [f"{base['ratios'][key]:.1f} times" for key in ("over_hf_best", "over_hf_defaults")]
    nan = {side: seen["run"] for side, seen in faults["faults"]["nan_weight"].items()}
    said += [f"{kills['ratios']['kills']} kills", f"its {nan['hf_trainer']['last_step']} steps"]
    assert [words for words in said if words not in screen] == []
    assert kills["ratios"]["different_ends"] == nan["hf_trainer"]["exit"] == 0 and nan["maskwright"]["exit"] == 3
