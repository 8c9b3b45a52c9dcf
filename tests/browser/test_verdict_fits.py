"""The page of a verdict in a browser's window."""

from dataclasses import replace

import numpy as np
import pytest
from browser.served import browser_path
from verdict_arms import World, results_of

from maskwright.verdict import page as verdict_page
from maskwright.verdict.judge import judge

pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = pytest.mark.skipif(browser_path() is None, reason="needs Chromium or Chrome on the path")

LONG = "/home/someone/experiments/2026-11/runs/modernbert-small-wikitext-seed-3 (ModernBertForMaskedLM, step 12,000)"
HIDDEN = """[...document.querySelectorAll('figure div')].filter((box) => box.scrollWidth > box.clientWidth)
    .map((box) => box.ariaLabel)"""


def test_every_table_can_be_read_without_scrolling(browser, tmp_path):
    results = results_of(World(examples=60, seeds=6).right(np.random.default_rng(0), 0.0, 0.1, 0.0))
    arms = (replace(arm, description=LONG, seconds=12_345.0, tokens=123_456_789) for arm in results.arms)
    runs = (replace(run, tokens=123_456) for run in results.runs)
    results = replace(results, arms=tuple(arms), runs=tuple(runs))
    path = tmp_path / "verdict.html"
    verdict_page.write(str(path), results, judge(results, draws=50, class_draws=20))
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.goto(path.as_uri())
    assert page.evaluate("document.querySelectorAll('figure div').length") >= 4 and page.evaluate(HIDDEN) == []
    page.close()
