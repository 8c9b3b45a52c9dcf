"""The verdict's statistics against slow, obvious code and scipy's; and experiments whose truth is known."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics
from verdict_arms import World, results_from, results_of

from maskwright.labels.scoring import METRICS, Scoring, scorer
from maskwright.verdict import power, statistics
from maskwright.verdict.judge import judge

RANDOM = np.random.default_rng


def made(kind, metric, n, random):
    """A task with four labels (two where the metric wants that) and a function that makes predictions for it."""
    labels = 2 if metric == "f1" else 4

    def outcomes(like=None):
        if kind in ("regression", "scores"):  # halves, so that there are ties
            own = random.integers(0, 9, n) / 2
            return tuple((own if like is None else own + 1.5 * np.array(like)).tolist())
        if kind == "single_label":
            own = random.integers(0, labels, n)
            return tuple(np.where(random.random(n) < 0.5, own, own if like is None else like).tolist())
        if kind == "tokens":
            lengths = [len(one) for one in like] if like else random.integers(1, 6, n)
            return tuple(tuple(random.integers(0, labels, length).tolist()) for length in lengths)
        if kind == "multi_label":
            return tuple(tuple(np.flatnonzero(random.random(labels) < 0.4).tolist()) for _ in range(n))
        places = [(0, 1), (2, 4), (5, 5)]
        return tuple(
            tuple((*place, int(random.integers(0, labels))) for place in places if random.random() < 0.7)
            for _ in range(n)
        )

    never = ("e",) * (metric == "f1_macro" and kind != "multi_label")  # predicted or there
    names = () if kind in ("regression", "scores") else (*"abcd"[:labels], *never)
    gold = () if kind == "scores" else outcomes()
    return Scoring(kind, metric, names, gold), lambda: outcomes(gold or None)


def referee(task, predictions, drawn):
    """The metric of scikit-learn or scipy on the examples drawn, each as often as it was."""
    guess = [predictions[i] for i in drawn]
    if task.kind == "scores":
        return float(np.mean(guess))
    gold = [task.gold[i] for i in drawn]
    if task.kind == "regression":
        function = stats.pearsonr if task.metric == "pearson" else stats.spearmanr
        return float(function(gold, guess).statistic)
    if task.kind == "tokens":
        gold, guess = (list(itertools.chain(*rows)) for rows in (gold, guess))
    elif task.kind == "multi_label":
        gold, guess = ([[label in row for label in range(4)] for row in rows] for rows in (gold, guess))
    elif task.kind == "spans":  # each place that either has, with 4 for what the other lacks
        pairs = [
            (span[2] if span in g else 4, span[2] if span in p else 4)
            for g, p in zip(gold, guess, strict=True)
            for span in {*g, *p}
        ]
        gold, guess = map(list, zip(*pairs, strict=True))
    if task.metric in ("accuracy", "matthews_corrcoef", "f1"):
        name = {"accuracy": "accuracy_score", "f1": "f1_score"}.get(task.metric, task.metric)
        return float(getattr(sklearn_metrics, name)(gold, guess))
    # "macro" counts the classes that are predicted or there, as scikit-learn does unless it is told the labels.
    there = sorted({*gold, *guess} - {4}) if task.kind != "multi_label" else None
    average = task.metric.removeprefix("f1_")
    return float(sklearn_metrics.f1_score(gold, guess, average=average, labels=there, zero_division=0.0))


@pytest.mark.parametrize(("kind", "metric"), [(kind, metric) for kind, known in METRICS.items() for metric in known])
def test_every_metric_on_resamples_is_its_referee_s(kind, metric):
    random = RANDOM(3)
    task, predict = made(kind, metric, 40, random)
    runs = [predict() for _ in range(3)]
    drawn = random.integers(0, 40, (5, 40))
    weights = np.stack([np.bincount(row, minlength=40) for row in drawn]).astype(np.float32)
    expected = [[referee(task, run, row) for run in runs] for row in drawn]
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(scorer(task, runs)(weights), expected, atol=1e-9)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_constant_answers_score_zero(metric):
    task, predict = made("regression", metric, 30, RANDOM(0))
    same = tuple([0.1] * 30)
    assert scorer(task, [same, predict()])(np.ones((1, 30), np.float32))[0, 0] == 0


def test_multi_bootstrap_is_the_obvious_loop():
    """As the paper writes it: draw seeds, draw examples, measure both arms on them."""
    world = World(examples=60, seeds=6, seed=0.3)
    right = world.right(RANDOM(5), 0.0, 0.05)[:, 0].astype(float)
    found = judge(results_of(world.right(RANDOM(5), 0.0, 0.05)), draws=5_000, class_draws=0).comparisons[0]
    random = RANDOM(6)
    draws = []
    for _ in range(5_000):
        seeds, examples = random.integers(0, 6, 6), random.integers(0, 60, 60)
        draws.append((right[1] - right[0])[seeds][:, examples].mean())
    expected = np.quantile(draws, [0.025, 0.975])
    assert found.difference == pytest.approx((right[1] - right[0]).mean())
    np.testing.assert_allclose([found.low, found.high], expected, atol=0.08 * np.ptp(expected))


@pytest.mark.parametrize("groups", [30, 19])
def test_examples_of_a_group_are_drawn_together(groups):
    """Notes of one patient are alike: drawn one by one, their interval is too narrow. Few groups cannot be drawn."""
    world = World(examples=groups, seeds=6, seed=0.3)
    right = np.repeat(world.right(RANDOM(5), 0.0, 0.05), 4, axis=-1)
    numbers = np.repeat(np.arange(groups), 4)
    units = numbers if groups == 30 else np.arange(4 * groups)
    found = judge(results_of(right, groups=tuple(numbers.tolist())), draws=5_000, class_draws=10).comparisons[0]
    random, draws, gain = RANDOM(6), [], right[1, 0].astype(float) - right[0, 0]
    for _ in range(5_000):
        seeds, drawn = random.integers(0, 6, 6), random.integers(0, units.max() + 1, units.max() + 1)
        draws.append(gain[seeds][:, np.concatenate([np.flatnonzero(units == unit) for unit in drawn])].mean())
    expected = np.quantile(draws, [0.025, 0.975])
    np.testing.assert_allclose([found.low, found.high], expected, atol=0.08 * np.ptp(expected))


@pytest.mark.parametrize("alike", [False, True])
def test_recipes_resample_their_pretraining_runs_too(alike):
    """The runs of one arm apart from those of the other, also where the runs of one number are `alike` in both: they
    are no pairs."""
    world = World(examples=50, seeds=3, run=0.5)
    right = world.right(RANDOM(5), 0.0, 0.05, runs=4).astype(float)
    if alike:
        right[1] = np.maximum(right[0], RANDOM(7).random(right[0].shape) < 0.05)
    report = judge(results_of(right > 0), draws=5_000, class_draws=0)
    random, draws = RANDOM(6), []
    for _ in range(5_000):
        seeds, examples = random.integers(0, 3, 3), random.integers(0, 50, 50)
        base, other = (own[random.integers(0, 4, 4)][:, seeds][..., examples].mean() for own in right)
        draws.append(other - base)
    expected = np.quantile(draws, [0.025, 0.975])
    found = report.comparisons[0]
    np.testing.assert_allclose([found.low, found.high], expected, atol=0.08 * np.ptp(expected))
    assert report.question == "recipe" and found.smallest_p == 2 / 70
    assert found.p == statistics.permutation_p(*right.mean((2, 3)))


@pytest.mark.parametrize("seeds", [2, 5, 8, 11])
@pytest.mark.parametrize("ties", [False, True])
def test_sign_flip_is_scipy_s(seeds, ties):
    random = RANDOM(seeds)
    values = random.integers(-3, 5, seeds) / 10 if ties else random.normal(0.4, 1, seeds)
    expected = 1.0
    if values.sum():
        test = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
        expected = test.pvalue
    assert statistics.sign_flip_p(values) == pytest.approx(expected)
    assert statistics.sign_flip_p(-values) == pytest.approx(expected)
    assert statistics.sign_flip_p(np.abs(values) + 1) == statistics.smallest_sign_flip_p(seeds)


@pytest.mark.parametrize("sizes", [(4, 4), (3, 5), (6, 2)])
def test_permutation_is_scipy_s(sizes):
    random = RANDOM(sizes)
    first, second = random.normal(0, 1, sizes[0]), random.normal(1, 1, sizes[1])

    def apart(a, b):
        return abs(np.mean(a) - np.mean(b))

    test = stats.permutation_test((first, second), apart, alternative="greater", n_resamples=np.inf)
    assert statistics.permutation_p(first, second) == pytest.approx(test.pvalue)
    assert statistics.permutation_p(first, second + 99) == statistics.smallest_permutation_p(*sizes)


def test_many_seeds_are_exact():
    """Of 2^30 signs, which one by one would take many minutes."""
    values = RANDOM(0).normal(0.5, 1, 30)
    assert statistics.sign_flip_p(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=0.2)


def test_holm_and_how_many_seeds_it_takes():
    # Sorted: 0.005 × 4 = 0.02, 0.01 × 3 = 0.03, 0.03 × 2 = 0.06, 0.04 × 1 = 0.04, which may not be less than 0.06.
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.6, 0.7]) == [1, 1]
    assert [statistics.least_seeds(tasks) for tasks in (1, 3, 6, 12)] == [6, 7, 8, 9]
    assert [statistics.least_pretraining_runs(tasks) for tasks in (1, 2, 7)] == [4, 5, 6]


def one(world, random, gain, **options):
    return judge(results_of(world.right(random, 0.0, gain)), class_draws=0, **options).comparisons[0]


def test_equal_arms_show_no_difference_and_a_planted_one_is_found_at_its_power():
    """The planted difference is the one that an experiment before it reported."""
    random, world = RANDOM(2), World(examples=400)
    equal = [one(world, random, 0.0, draws=200) for _ in range(100)]
    assert sum(found.verdict == "no difference shown" for found in equal) >= 95
    found = [one(world, random, before.smallest_difference or 0, draws=200).verdict for before in equal[:40]]
    assert 26 <= found.count("helped") <= 38 and "hurt" not in found


@pytest.mark.large
@pytest.mark.parametrize("world", [World(), World(examples=3_000), World(seed=0.1), World(seeds=12)], ids=repr)
def test_error_and_power_over_many_experiments(world):
    random, count = RANDOM(1), 200
    equal = [one(world, random, 0.0, draws=1_000) for _ in range(count)]
    assert sum(found.verdict != "no difference shown" for found in equal) <= 0.05 * count + 2 * 3.1
    found = [one(world, random, before.smallest_difference or 0, draws=1_000) for before in equal]
    assert 0.72 <= sum(one.verdict == "helped" for one in found) / count <= 0.9


def test_verdict_words():
    world = World(seed=0.02)
    right = world.right(RANDOM(1), 0.0, 0.05)
    helped, hurt = (judge(results_of(arms), draws=500).comparisons[0] for arms in (right, right[::-1]))
    assert (helped.verdict, hurt.verdict) == ("helped", "hurt")
    assert helped.low > 0 > hurt.high and helped.p == hurt.p == 2 / 2**8
    few = judge(results_of(right[:, :, :5]), draws=500)
    assert few.comparisons[0].verdict == "cannot conclude" and few.comparisons[0].smallest_p == 0.0625
    assert few.comparisons[0].smallest_difference is None and few.least == 6
    single = judge(results_of(right[:, :, :1]), draws=50).comparisons[0]
    assert single.verdict == "cannot conclude" and single.p == 1


def test_an_interval_above_0_is_not_enough():
    """One of eight seeds was no better, which is too many for the exact test of six comparisons."""
    right = np.zeros((7, 1, 8, 100), bool)
    right[0, ..., :60] = right[1:, ..., :90] = True
    right[1:, :, 7, 59:] = False
    for found in judge(results_of(right), draws=500, class_draws=0).comparisons:
        assert found.low > 0 and found.p_holm == 6 * 4 / 2**8 and found.verdict == "no difference shown"


def test_unequal_numbers_of_pretraining_runs_cannot_conclude_only_where_no_outcome_could():
    """A comparison of 4 and 5 runs has a p of at least 1/126, of 4 and 4 of 2/70, which Holm multiplies by 2 and 1."""
    gold = (0, 1) * 20

    def arm(runs, wrong):
        """Each run has other mistakes, `wrong` and a few."""
        return [[tuple(1 - g if i < wrong + n else g for i, g in enumerate(gold))] for n in range(runs)]

    def verdicts(**arms):
        results = results_from(arms, gold, kind="single_label", metric="accuracy", labels=("no", "yes"))
        return [(one.verdict, round(one.p_holm, 4)) for one in judge(results, draws=200, class_draws=0).comparisons]

    both = verdicts(base=arm(4, 20), five=arm(5, 5), four=arm(4, 5))
    assert both == [("helped", round(2 / 126, 4)), ("helped", round(2 / 70, 4))]
    assert verdicts(base=arm(4, 20), five=arm(5, 18), four=arm(4, 5))[1][0] == "no difference shown"
    fours = verdicts(base=arm(4, 20), one=arm(4, 5), other=arm(4, 5))
    assert fours == [("cannot conclude", round(4 / 70, 4))] * 2


def test_the_comparisons_of_all_tasks_count():
    results = results_of(World(examples=200).right(RANDOM(1), 0.0, 0.1))
    for count, least, verdict in ((6, 8, "helped"), (7, 9, "cannot conclude")):
        names = [f"task {number}" for number in range(count)]
        tasks = tuple(replace(results.tasks[0], name=name) for name in names)
        runs = tuple(replace(run, task=name) for name in names for run in results.runs)
        report = judge(replace(results, tasks=tasks, runs=runs), draws=200, class_draws=0)
        assert report.least == least and {one.verdict for one in report.comparisons} == {verdict}
        assert [one.p_holm for one in report.comparisons] == pytest.approx([count * 2 / 2**8] * count)


def test_the_same_arm_twice_has_no_difference_at_all():
    right = World(examples=300).right(RANDOM(1), 0.0)
    found = judge(results_of(np.concatenate([right, right])), draws=200).comparisons[0]
    assert found.same_answers and (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)
    assert found.verdict == "no difference shown" and found.smallest_difference == 0


def test_an_arm_or_a_task_more_leaves_the_others_as_they_are():
    right = World(examples=300).right(RANDOM(1), 0.0, 0.01, 0.05)
    two, three = (judge(results_of(arms), draws=300) for arms in (right[:2], right))
    same = ("difference", "low", "high", "p", "classes")
    first, again = (found.comparisons[0] for found in (two, three))
    assert [getattr(first, name) for name in same] == [getattr(again, name) for name in same]
    backwards = results_of(right[:2])
    assert judge(replace(backwards, runs=backwards.runs[::-1]), draws=300) == two
    assert judge(results_of(right[:2]), draws=300, random_seed=1).comparisons[0].low != two.comparisons[0].low


def test_changes_of_classes():
    """The second arm has learned the third label, which the first never says."""
    random = RANDOM(0)
    gold = random.integers(0, 3, 300)
    base = [np.where((random.random(300) < 0.9) & (gold < 2), gold, 0) for _ in range(8)]
    other = [np.where(random.random(300) < 0.9, gold, 0) for _ in range(8)]
    arms = {"base": [[one.tolist() for one in base]], "other": [[one.tolist() for one in other]]}
    options = {"kind": "single_label", "labels": ("a", "b", "c"), "metric": "f1_macro"}
    results = results_from(arms, tuple(gold.tolist()), **options)
    change = judge(results, draws=200).comparisons[0].classes[0]
    expected = [np.mean([sklearn_metrics.f1_score(gold == 2, one == 2) for one in arm]) for arm in (base, other)]
    assert (change.label, change.examples) == ("c", int((gold == 2).sum()))
    assert [change.base, change.other] == pytest.approx(expected)
    assert change.low < change.other - change.base < change.high and change.low > 0.8


def test_spread_tells_the_examples_from_the_seeds():
    """Parts of the variance that are known from many experiments."""
    world, random = World(examples=150, arm_by_example=1.0, seed=0.15), RANDOM(1)
    seen = (world.right(random, 0.0, 0.0)[:, 0].astype(float) for _ in range(600))
    differences = np.array([arms[1] - arms[0] for arms in seen])
    units, total = differences.mean(2).var(1, ddof=1).mean(), differences.mean((1, 2)).var()
    parts = []
    for one in differences[:100]:
        weights = np.concatenate(list(statistics.resamples(random, np.arange(150), 300)))
        resampled = weights @ one.T / 150
        theta = (resampled * statistics.shares(random, 8, 300)).sum(1)
        parts.append(power.of_pairs(theta, resampled, one.mean(1)))
    assert np.mean([part.units**2 for part in parts]) == pytest.approx(units, rel=0.15)
    assert np.mean([part.shared**2 for part in parts]) == pytest.approx(total - units / 8, rel=0.15)
    assert total > 2 * units / 8


@pytest.mark.parametrize("sizes", [(6,), (8,), (14,), (4, 4), (3, 6), (8, 8)])
def test_smallest_difference_is_found_by_the_rule_itself(sizes):
    """With a known spread: experiments with that difference, each judged by the test and an interval."""
    spread = power.Spread(sizes, 0.01, 0.004, 0.005)
    difference = power.smallest_difference(spread, 1, RANDOM(0)) or 0
    random, found = RANDOM(1), 0
    for _ in range(400):
        # Its spread is what an experiment before it has measured.
        freedom = sum(sizes) - len(sizes)
        sigma = 0.01 * np.sqrt(freedom / random.chisquare(freedom))
        arms = [random.normal(0, sigma, size) for size in sizes]
        arms[-1] += difference + random.normal(0, 0.004)
        means = [arm.mean() for arm in arms]
        error = np.sqrt(sum(arm.var() / len(arm) for arm in arms) + 0.005**2)
        p = statistics.sign_flip_p(arms[0]) if len(sizes) == 1 else statistics.permutation_p(*arms)
        gain = means[-1] - (means[0] if len(sizes) == 2 else 0)
        found += p < 0.05 and gain > 1.96 * error
    assert found / 400 == pytest.approx(0.8, abs=0.06)
    more = power.smallest_difference(spread, 99, RANDOM(0))
    assert more is None if power.smallest_p(sizes) > 0.05 / 99 else (more or 0) > 1.2 * difference


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30])
def test_students_distribution(degrees):
    for t in (-30.0, -2.0, 0.0, 0.3, 6.96, 30.0):
        assert statistics.t_above_p(t, degrees) == pytest.approx(stats.t.sf(t, degrees), abs=1e-14)
        assert statistics.t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=1e-8)
