"""The results' file, and the page that is made from it."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from html_page import Page
from verdict_arms import World, read_results, results_from, results_of

from maskwright.core.errors import InputError
from maskwright.report import document, markdown, words
from maskwright.verdict import plots, tables, wording
from maskwright.verdict.judge import judge
from maskwright.verdict.page import sections, title, write
from maskwright.verdict.results import LearningRateSearch, Protocol, write_results


def small(*gains, **options):
    runs = options.pop("runs", 1)
    world = World(**{"examples": 300, "seeds": 8, **options})
    return results_of(world.right(np.random.default_rng(0), 0.0, *gains, runs=runs))


def judged(results):
    return judge(results, draws=300, class_draws=100)


def html(results, report):
    return document.html(title(results), sections(results, report))


def renamed(results, **names):
    """With other words for the arms, the task and its labels."""
    base, *others = results.arms
    task, of_arm = results.tasks[0], {"arm": names["arm"], "pretraining_run": names["arm"]}
    return replace(
        results,
        arms=(replace(base, name=names["arm"], description=names["arm"], pretraining_runs=(names["arm"],)), *others),
        tasks=(replace(task, name=names["task"], labels=(names["arm"], "b")),),
        runs=tuple(
            replace(run, task=names["task"], fault=names["arm"], **(of_arm if run.arm == base.name else {}))
            for run in results.runs
        ),
        protocol=Protocol(names["arm"], names["arm"], names["arm"]),
        searches=(LearningRateSearch(names["arm"], names["task"], ((0.1, 0.5),), 0.1),),
    )


def test_results_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "results.json"
    random = np.random.default_rng(0)
    spans = [[[((0, 1, 0), (3, 3, 1)), (), ((2, 5, 1),)], [(), (), ((2, 5, 0),)]]]
    numbers = [random.random((2, 4)).tolist()]
    several = [[[(0,), (), (0, 1)], [(1,), (0,), ()]]]
    made = [
        (spans, tuple(spans[0][0]), {"kind": "spans", "labels": ("x", "y"), "metric": "f1_micro"}),
        (numbers, (0.5, 1.0, 2.0, 0.0), {"kind": "regression", "labels": (), "metric": "spearman"}),
        (numbers, (), {"kind": "scores", "labels": (), "metric": "mean", "test_examples": 4}),
        (several, ((0,), (), (1,)), {"kind": "multi_label", "labels": ("x", "y"), "metric": "f1_macro"}),
    ]
    for results in (small(0.1), *(results_from({"a": arm, "b": arm}, gold, **task) for arm, gold, task in made)):
        write_results(str(path), results)
        assert read_results(path) == results
        assert judged(read_results(path)) == judged(results)
    wrong = replace(small(0.1).runs[0], score=0.25)
    with pytest.raises(InputError, match="a score of 0.25000, but its predictions have"):
        judged(replace(small(0.1), runs=(wrong, *small(0.1).runs[1:])))


def test_the_page_is_whole_and_needs_nothing_else(tmp_path):
    results = small(0.08, -0.08, 0.0, seed=0.02)
    report = judged(results)
    write(str(tmp_path / "page.html"), results, report)
    text = (tmp_path / "page.html").read_text()
    assert text == html(results, judged(replace(results, runs=results.runs[::-1])))
    assert json.loads(json.dumps(report.to_json()))["comparisons"][0]["verdict"] == "helped"
    page = Page(text)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.elements}
    assert not re.findall(r"url\(|@import|src=", text)
    assert "prefers-color-scheme: dark" in text and "default-src 'none'" in text
    assert [one.verdict for one in report.comparisons] == ["helped", "hurt", "no difference shown"]
    for found in report.comparisons:
        assert wording.headline(found) in page.text
        assert wording.explanation(found, results, report) in page.text
    # Every plot is described or left out for those who listen; each has a table with its numbers.
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.all("svg"))
    assert all(box.get("aria-label") for box in page.all("div") if box.get("role") == "region")
    assert len(page.all("figcaption")) == len(page.all("table")) >= 5
    # Everything stays on the canvas.
    places = [float(place) for place in re.findall(r'(?:c?x\d?)="([\d.-]+)%"', text)]
    assert len(places) > 50 and min(places) >= 0 and max(places) <= 100


EVIL = "<script>alert('x')</script> \"&amp;\" | *b* [l](u) `c` $x$"


def test_names_are_escaped():
    results = renamed(small(0.1), arm=EVIL, task=EVIL + " t")
    report = judged(results)
    page = Page(html(results, report))
    assert not page.all("script") and page.text.count(EVIL) > 10
    text = markdown.page(title(results), sections(results, report))
    assert re.search(r"(?<!\\)<(?!https://)", text) is None
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows and all(re.search(r"(?<!\\)[*`$\[]", row) is None for row in rows)
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows[:3]}
    assert len(widths) == 1, "a name with a bar would make another column"


def test_markdown_says_what_the_page_says(tmp_path):
    results = small(0.08, seed=0.02)
    report = judged(results)
    write(str(tmp_path / "page.md"), results, report)
    text = (tmp_path / "page.md").read_text().replace("\\", "")
    page = Page(html(results, report))
    for table in (tables.differences(report), tables.scores(results, report), tables.costs(results)):
        for row in table.rows:
            assert f"| {' | '.join(row)} |" in text
            assert all(cell in page.text for cell in row)
    assert wording.question(report) in text and "arXiv" not in text and "https://arxiv.org/abs/2106.16163" in text


def test_each_question_is_said_on_its_page():
    checkpoints, recipe = (small(0.1, seeds=6, runs=runs, run=0.02) for runs in (1, 4))
    assert "about these checkpoints" in html(checkpoints, judged(checkpoints))
    text = html(recipe, judged(recipe))
    assert "about the recipes" in text and "pretraining runs, seeds and test examples" in text
    assert judged(recipe).comparisons[0].verdict == "helped"
    few = small(0.1, seeds=8, runs=3)
    answer = wording.explanation(judged(few).comparisons[0], few, judged(few))
    assert "with 3 pretraining runs, the smallest possible p is 0.10; " in answer
    assert answer.endswith("one comparison takes at least 4 pretraining runs of each arm.")


def test_too_few_seeds_cannot_conclude_and_say_why():
    results = small(0.1, seeds=3)
    report = judged(results)
    assert wording.headline(report.comparisons[0]) == "Cannot conclude whether arm 1 helped on task."
    answer = wording.explanation(report.comparisons[0], results, report)
    assert "with 3 seeds, the smallest possible p is 0.25; one comparison takes at least 6 seeds." in answer
    assert wording.metric_name(replace(results.tasks[0], metric="f1")) == 'F1 score of "yes"'


def test_no_difference_says_what_would_have_been_shown_and_which_half_lacked():
    results = small(0.0)
    report = judged(results)
    found = report.comparisons[0]
    answer = wording.explanation(found, results, report)
    assert f"difference of {wording.smallest(found)} points would have been shown with a probability of 80" in answer
    assert wording.interval(replace(found, low=-0.21, high=-0.0004)) == "−21.00 to −0.04"
    assert wording.interval(replace(found, low=-0.21, high=0.0004)) == "−21 to 0"
    score = {"means": (0.85, 0.85), "close": (0.85, 0.85001), "guessed": (0.45, 0.55), "one": (0.85, 0.55)}
    chance = 'at chance: 50.0 is the score of "no" as the answer to everything.'
    for (base, other), said in (
        (score["guessed"], f"Both are {chance} Neither has learned the task"),
        (score["one"], f" arm 1 is {chance}"),
        (score["means"], "was 85.0 in both (95"),
        (score["close"], "was 85.0 in both, rounded: "),
    ):
        scores = tuple(replace(one, mean=mean) for one, mean in zip(report.scores, (base, other), strict=True))
        equal = replace(found, difference=other - base, low=-0.01, high=0.01)
        told = wording.explanation(equal, results, replace(report, scores=scores))
        assert said in told and "from 85.0 to 85.0" not in told
        assert ("at chance" in told) is (other == 0.55)
        shown = wording.explanation(replace(equal, verdict="helped"), results, replace(report, scores=scores))
        assert ("Neither" in shown, f"arm 0 is {chance}" in shown) == (False, base == 0.45)
    interval = replace(found, low=0.01, high=0.05, p_holm=0.2)
    assert "exact test does not reach" in wording.explanation(interval, results, report)
    test = replace(found, low=-0.01, high=0.05, p_holm=0.01)
    assert "The seeds agree, but the interval" in wording.explanation(test, results, report)


def test_words_without_a_prediction_are_counted_as_wrong():
    gold, kind = ((0, 1, 1), (1, 0, 0)), {"kind": "tokens", "metric": "accuracy", "labels": ("a", "b")}
    whole, cut = [[gold, gold]], [[((0, 1, -1), (1, 0, 0)), ((-1, -1, -1), (-1, -1, -1))]]
    results = results_from({"base": whole, "cut": cut}, gold, **kind)
    report = judged(results)
    assert [score.runs for score in report.scores] == [((1.0, 1.0),), ((pytest.approx(5 / 6), 0.0),)]
    assert any("predicts nothing at all" in one.why for one in report.degenerate)
    poor = results_from({"base": whole, "poor": [[((1, 1, 0), (0, 0, 0)), gold]]}, gold, **kind)
    why = "its score is no better than the most frequent label's"
    assert [(one.arm, one.seed, one.why) for one in judged(poor).degenerate] == [("poor", 0, why)]
    arms = {"base": [[(0, 0), (0, 1)]], "other": [[(0, 0), (0, 0)]]}
    one_label = results_from(arms, (0, 0), **kind | {"kind": "single_label"})
    alike = judged(one_label)
    assert not alike.degenerate and "at chance" not in wording.explanation(alike.comparisons[0], one_label, alike)


def test_runs_that_learned_nothing_are_counted_and_named():
    results = small(0.05)
    results = replace(results, tasks=(replace(results.tasks[0], guessing=math.log(2)),))
    gold = results.tasks[0].gold
    lazy = replace(results.runs[0], predictions=(1,) * 300, score=sum(map(bool, gold)) / 300)
    stuck = replace(results.runs[1], lowest_loss=0.7)
    broken = replace(results.runs[9], fault="stopped by the health check at step 120.", lowest_loss=0.3)
    opposite = tuple(1 - label for label in gold)
    worse = replace(results.runs[10], predictions=opposite, score=0.0, final_loss=0.1, lowest_loss=0.1)
    changed = replace(results, runs=(lazy, stuck, *results.runs[2:9], broken, worse, *results.runs[11:]))
    report = judged(changed)
    assert [(one.arm, one.seed, one.why) for one in report.degenerate] == [
        ("arm 0", 0, "it gives one answer to everything, the label yes"),
        ("arm 0", 1, "its training loss was never below 0.693, a guess's loss"),
        ("arm 1", 1, "stopped by the health check at step 120"),
        ("arm 1", 2, "its score is no better than the most frequent label's"),
    ]
    assert report.scores[0].runs[0][0] == 0.5, "it counts"
    text = Page(html(changed, report)).text
    assert "4 of the 16 runs. They count" in text and all(one.why in text for one in report.degenerate)
    assert "None of the 16 runs." in Page(html(results, judged(results))).text


@pytest.mark.parametrize(
    ("kind", "gold", "right", "same", "why"),
    [
        ("spans", (((0, 1, 0),), ((2, 2, 0), (4, 5, 1))), (((0, 1, 0),), ((2, 2, 0),)), (((0, 1, 0),),) * 2, " a"),
        ("multi_label", ((0,), (0, 1), ()), ((0,), (0,), ()), ((0, 1),) * 3, "s a and b"),
    ],
)
def test_one_label_at_the_right_places_is_not_one_answer(kind, gold, right, same, why):
    arms = {"base": [[right, right]], "other": [[same, ((),) * len(gold)]]}
    report = judged(results_from(arms, gold, kind=kind, metric="f1_micro", labels=("a", "b")))
    answers = [f"it gives one answer to everything, the label{why}", "it predicts nothing at all"]
    assert [(one.arm, one.why) for one in report.degenerate] == [("other", one) for one in answers]


def test_numbers_have_no_more_digits_than_meaning():
    # The Particle Data Group's own examples: 0.827 ± 0.119 is 0.83 ± 0.12, and ± 0.367 is 0.8 ± 0.4.
    assert [wording.decimals(one) for one in (0.119, 0.367, 0.96, 1.4, 5.0, 12.0, 0.0)] == [2, 1, 1, 1, 0, 0, 1]
    assert wording.mean_and_deviation(0.00827, 0.00119) == "0.83 ± 0.12"
    assert wording.mean_and_deviation(0.00827, 0.00367) == "0.8 ± 0.4"
    assert [words.number(one, 1, sign=True) for one in (-1.26, 0.04, -0.04, 2.0)] == ["−1.3", "0.0", "0.0", "+2.0"]
    assert [wording.p_value(one) for one in (1.0, 2 / 2**8, 0.04, 2 / 2**16)] == ["1", "0.0078", "0.040", "<\xa00.001"]
    assert [words.rate(one) for one in (3e-5, 1.5e-3, 0.01)] == ["3e-5", "1.5e-3", "0.01"]
    durations = {None: "–", 0: "0 s", 0.4: "< 1 s", 59: "59 s", 150: "2.5 min", 3_000: "50 min", 4e4: "11 h"}
    assert [*map(words.duration, durations)] == [*durations.values()]


@pytest.mark.parametrize("values", [(0.0,), (-3.2, 4.1), (0.0, 0.03), (84.2, 91.7), (-250.0, 3.0), (1e-4, 2e-4)])
def test_scales_hold_their_values_between_few_round_marks(values):
    made = plots._scale_of(values)
    assert made.low <= min(values) and made.high >= max(values)
    assert 2 <= len(made.marks()) <= 8
    labels = [made.label(tick) for tick in made.marks()]
    assert len(set(labels)) == len(labels)


def test_rates_at_the_edge_and_unequal_grids_are_named():
    results = small(0.1)
    one = LearningRateSearch("arm 0", "task", ((1e-4, 0.7), (3e-4, 0.8), (1e-3, 0.75)), 3e-4)
    results = replace(results, searches=(one, LearningRateSearch("arm 1", "task", ((1e-4, 0.7), (1e-3, 0.9)), 1e-3)))
    edge, unequal = wording.warnings(results)
    assert edge.startswith("On task, arm 1 did best with the highest rate of the grid, 1e-3. A higher one might")
    assert unequal == "On task, the arms were given different grids: their budgets were not equal."
    assert "1e-4: 70.0, 3e-4: 80.0, 1e-3: 75.0" in Page(html(results, judged(results))).text


def test_a_linear_model_beside_transformers_says_whether_they_were_needed():
    found = small(0.08, -0.08, 0.0, seed=0.02)
    penalties_of_0 = LearningRateSearch("arm 0", "task", ((0.1, 0.7), (1.0, 0.9)), 1.0)
    rates_of_1 = LearningRateSearch("arm 1", "task", ((1e-4, 0.7), (3e-4, 0.9), (1e-3, 0.8)), 3e-4)
    arms = (replace(found.arms[0], transformer=False), *found.arms[1:])
    results = replace(found, arms=arms, searches=(penalties_of_0, rates_of_1))
    report = judged(results)
    better, worse, equal = (wording.explanation(one, results, report) for one in report.comparisons)
    assert better.endswith("The transformer was worth it: arm 0 has none.")
    assert worse.endswith("No transformer was needed to do better than arm 2: arm 0 has none.")
    assert equal.endswith("Nothing shows that this transformer was needed: arm 0 has none.")
    edge = "On task, arm 0 did best with the highest penalty of the grid, 1. A higher one might serve it better."
    assert wording.warnings(results) == [edge], "its grid is its own, and every arm is compared with it"
    rates, penalties = tables.rates(results), tables.penalties(results)
    assert rates and [row[1] for row in rates.rows] == ["arm 1"]
    assert penalties and penalties.rows == (("task", "arm 0", "1", "0.1: 70.0, 1: 90.0"),)
    assert all(table.caption in Page(html(results, judged(results))).text for table in (rates, penalties))

    last = replace(found, arms=(*found.arms[:3], replace(found.arms[3], transformer=False)))
    few, *_ = judged(small(0.1, seeds=3)).comparisons
    assert "has none" not in wording.explanation(few, last, judged(last))
    (warning,) = wording.warnings(last)
    assert warning.startswith("No verdict here says whether arm 1 and arm 2 did better than arm 3, which has no trans")
    assert not wording.warnings(replace(last, arms=(found.arms[0], last.arms[3])))
