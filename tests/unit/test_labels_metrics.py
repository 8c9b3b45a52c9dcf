"""Metrics of fine-tuned models beside scikit-learn, scipy, seqeval and SQuAD's rules, and what logits are read as."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn import metrics as sk

from maskwright.config.finetuning import Task
from maskwright.labels.answers import exact_match, overlap_f1
from maskwright.labels.by_label import (
    calibration,
    classification_report,
    confusion_matrix,
    exchanged,
    reliability,
    roc_auc,
)
from maskwright.labels.encode import EncodedRows, SpanTargets, WordTargets, encode
from maskwright.labels.example import Answer, Example
from maskwright.labels.metrics import (
    THRESHOLDS,
    Predictions,
    best_threshold,
    decode,
    gold_outcomes,
    measure,
    metric_names,
)
from maskwright.labels.spans import mark_spans, spans
from maskwright.tasks.finetune.objective import mean_loss

LABELS = ("red", "green", "blue")


def rows(count):
    """What `decode` needs of classified texts: that there are so many."""
    return EncodedRows(np.zeros(count, np.int32), np.arange(count + 1), np.arange(count, dtype=np.int32), None, None, 0)


def judged(task, labels, examples, logits):
    found = decode(task, rows(len(examples)), examples, np.asarray(logits, np.float32), labels)
    measured = measure(task, labels, examples, found)
    assert set(measured) == set(metric_names(task, labels))
    return found, measured


@pytest.mark.parametrize("size", [2, 3])
def test_classes_are_judged_as_scikit_learn_does(size):
    generator = np.random.default_rng(size)
    labels, gold = LABELS[:size], generator.integers(0, size, 60)
    logits = generator.standard_normal((60, size)) * 3.0
    examples = [Example("a.csv", number, labels=(labels[label],)) for number, label in enumerate(gold)]
    task = Task()
    found, measured = judged(task, labels, examples, logits)
    guess = logits.argmax(-1)
    assert found.outcomes == tuple(guess.tolist())
    expected = {
        "accuracy": sk.accuracy_score(gold, guess),
        "f1_macro": sk.f1_score(gold, guess, average="macro"),
        "matthews_corrcoef": sk.matthews_corrcoef(gold, guess),
        **({"f1": sk.f1_score(gold, guess)} if size == 2 else {}),
    }
    assert measured == pytest.approx(expected, abs=1e-12)
    table = confusion_matrix(task, labels, examples, found)
    assert table is not None and (table == sk.confusion_matrix(gold, guess)).all()
    report = sk.classification_report(gold, guess, target_names=labels, output_dict=True)
    for row in classification_report(task, labels, examples, found):
        if row.label != "micro avg":
            theirs = report[row.label]
            ours = [row.precision, row.recall, row.f1, row.support]
            assert ours == pytest.approx([theirs[k] for k in ("precision", "recall", "f1-score", "support")])
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, shares, rtol=1e-5)
    area = sk.roc_auc_score(gold, shares[:, 1] if size == 2 else shares, multi_class="ovr")
    assert roc_auc(task, labels, examples, found) == pytest.approx(area)
    assert roc_auc(task, labels, examples[:1], replace(found, probabilities=found.probabilities[:1])) is None


@pytest.mark.parametrize("used", [(1, 1, 1), (1, 1, 0)])  # the last label may be neither there nor predicted
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_several_labels_are_judged_as_scikit_learn_does(used):
    generator = np.random.default_rng(1)
    hot = generator.integers(0, 2, (40, 3)) * used
    logits = np.where(generator.random((40, 3)) < 0.7, 2 * hot - 1, 1 - 2 * hot) * generator.random((40, 3)) * 4.0
    logits = np.where(used, logits, -1.0)
    examples = [Example("a", 1, labels=tuple(np.array(LABELS)[row == 1].tolist())) for row in hot]
    task = Task(kind="multi_label_classification")
    found, measured = judged(task, LABELS, examples, logits)
    guess = (logits > 0).astype(int)
    expected = {
        "accuracy": sk.accuracy_score(hot, guess),
        "f1_micro": sk.f1_score(hot, guess, average="micro"),
        "f1_macro": sk.f1_score(hot, guess, average="macro"),
    }
    assert measured == pytest.approx(expected, abs=1e-12)
    theirs = sk.classification_report(hot, guess, target_names=LABELS, output_dict=True, zero_division=0.0)
    for row in classification_report(task, LABELS, examples, found):
        ours = [row.precision, row.recall, row.f1, row.support]
        assert ours == pytest.approx([theirs[row.label][k] for k in ("precision", "recall", "f1-score", "support")])
    np.testing.assert_allclose(found.probabilities, 1.0 / (1.0 + np.exp(-logits)), rtol=1e-5)
    assert confusion_matrix(task, LABELS, examples, found) is None
    occurs = [label for label in range(3) if used[label]]
    area = sk.roc_auc_score(hot[:, occurs], logits[:, occurs], average="macro")
    assert roc_auc(task, LABELS, examples, found) == pytest.approx(area)
    measured_by_yes_and_no = calibration(task, LABELS, examples, found)
    assert measured_by_yes_and_no and sum(part.count for part in measured_by_yes_and_no.bins) == 120


def test_a_threshold_for_rare_labels():
    """Each score against scikit-learn at each threshold."""
    generator = np.random.default_rng(2)
    hot = (generator.random((60, 3)) < 0.2).astype(int)
    hot[0] = 1
    shares = np.clip(0.02 + 0.12 * hot + 0.1 * generator.random((60, 3)), 0.0, 1.0)
    logits = np.log(shares / (1.0 - shares))
    examples = [Example("a", 1, labels=tuple(np.array(LABELS)[row == 1].tolist())) for row in hot]
    scores = {}
    for threshold in THRESHOLDS:
        task = Task(kind="multi_label_classification", threshold=threshold)
        found, measured = judged(task, LABELS, examples, logits)
        expected = sk.f1_score(hot, (shares > threshold).astype(int), average="micro", zero_division=0.0)
        assert measured["f1_micro"] == pytest.approx(expected, abs=1e-12)
        scores[threshold] = measured["f1_micro"]
    best, score = best_threshold(gold_outcomes(task, LABELS, examples), found.probabilities)
    assert scores[0.5] == 0.0 and score == pytest.approx(max(scores.values())) == pytest.approx(scores[best])
    assert score > 0.8
    low = Task(kind="multi_label_classification", threshold=0.1)
    found, _ = judged(low, LABELS, examples, logits)
    rows = calibration(low, LABELS, examples, found)
    assert rows and sum(part.count for part in rows.bins if part.low < 0.4) == (shares > 0.1).sum()


def test_numbers_are_judged_as_scipy_does():
    generator = np.random.default_rng(2)
    gold, guess = generator.random(50).round(1), generator.random(50).astype(np.float32)
    examples = [Example("a", 1, value=float(value)) for value in gold]
    task = Task(kind="regression")
    found, measured = judged(task, (), examples, guess[:, None])
    expected = {
        "pearson": stats.pearsonr(gold, guess)[0],
        "spearman": stats.spearmanr(gold, guess)[0],
        "mse": sk.mean_squared_error(gold, guess),
    }
    assert measured == pytest.approx(expected, rel=1e-6)
    assert calibration(task, (), examples, found) is None and not classification_report(task, (), examples, found)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([[0, 9, 1], [0, 1, 9], [9, 0, 0]], "3 labels are predicted as another of them ('O' as 'B-PER', 'B-PER' as"),
        ([[9, 0, 0], [0, 1, 9], [0, 9, 1]], "2 labels are predicted as another of them ('B-PER' as 'I-PER', 'I-"),
        ([[0, 9, 0], [0, 9, 0], [0, 9, 0]], None),
        ([[9, 0, 0], [0, 5, 5], [0, 9, 1]], None),
        ([[0, 4, 0], [4, 0, 0], [0, 0, 9]], None),
        ([[240, 260, 0], [260, 240, 0], [0, 0, 9]], None),
    ],
)
def test_labels_in_another_order_are_told(table, said):
    found = exchanged(TAGS[:3], np.array(table))
    assert found is None if said is None else said in str(found) and str(found).endswith("accuracy would be 0.9310")


# ---- words -------------------------------------------------------------------------------------------------------

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC", "E-PER", "S-PER", "B", "I")


def random_tags(seed):
    generator = random.Random(seed)
    return [[generator.choice(TAGS) for _ in range(generator.randint(1, 12))] for _ in range(200)]


def of(tags):
    return spans(tags.split())


def test_spans_of_every_scheme():
    """The third is IOB1, whose I- begins a span; the last two are one sentence in IOBES and in BILOU."""
    assert of("B-PER I-PER O B-LOC B-LOC") == [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]
    assert of("B-PER I-LOC") == [(0, 1, "PER"), (1, 2, "LOC")]
    assert of("I-PER I-PER B-PER O I-LOC") == [(0, 2, "PER"), (2, 3, "PER"), (4, 5, "LOC")]
    both = [(0, 1, "PER"), (1, 2, "PER"), (2, 5, "LOC")]
    assert of("S-PER S-PER B-LOC I-LOC E-LOC") == both == of("U-PER U-PER B-LOC I-LOC L-LOC")
    assert of("B I O B B") == [(0, 2, "_"), (3, 4, "_"), (4, 5, "_")] and of("B-X M-X E-X O") == [(0, 3, "X")]
    assert mark_spans(TAGS) and mark_spans("BIO") and not mark_spans(("O",))
    assert not mark_spans(("NOUN", "VERB", "O")) and not mark_spans("SEO")
    assert not mark_spans("IMOS"), "inside, membrane, outside and signal of a protein"


@pytest.mark.filterwarnings("ignore:. seems not to be NE tag")
def test_entities_are_judged_as_seqeval_does():
    """On random tags, most of which break their scheme's rules."""
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval is the referee here")
    from seqeval.metrics.sequence_labeling import get_entities

    gold, guess = random_tags(1), random_tags(2)
    guess = [(tags * 12)[: len(one)] for tags, one in zip(guess, gold, strict=True)]
    for sentence in (*gold, *guess):
        assert [(kind, begin, end - 1) for begin, end, kind in spans(sentence)] == get_entities(sentence)
    examples = [Example("a", 1, words=("w",) * len(tags), labels=tuple(tags)) for tags in gold]
    task = Task(kind="token_classification")
    found = Predictions(tuple(tuple(map(TAGS.index, tags)) for tags in guess), None)
    expected = {
        "accuracy": seqeval.accuracy_score(gold, guess),
        "precision": seqeval.precision_score(gold, guess),
        "recall": seqeval.recall_score(gold, guess),
        "f1": seqeval.f1_score(gold, guess),
    }
    assert measure(task, TAGS, examples, found) == pytest.approx(expected, abs=1e-12)
    report = seqeval.classification_report(gold, guess, output_dict=True)
    ours = classification_report(task, TAGS, examples, found)
    assert [row.label for row in ours] == ["LOC", "PER", "_", "micro avg", "macro avg", "weighted avg"]
    for row in ours:
        assert [row.precision, row.recall, row.f1, row.support] == pytest.approx([*report[row.label].values()])


def test_words_that_were_cut_count_as_missed():
    """Two sentences, of which the first lost its last two words."""
    gold = [("B-PER", "O", "B-LOC", "O"), ("O", "B-LOC")]
    labels = ("B-LOC", "B-PER", "O")
    examples = [Example("a", 1, words=("w",) * len(tags), labels=tags) for tags in gold]
    columns = (np.array(v, np.int32) for v in ([1, 2, 1, 3], [0, 1, 0, 1], [1, 2, 2, 0]))
    kept = WordTargets(*columns, np.array([0, 2, 4]))
    encoded = EncodedRows(np.zeros(8, np.int32), np.array([0, 4, 8]), np.arange(2, dtype=np.int32), kept, None, 2)
    task = Task(kind="token_classification")
    right = np.eye(3, dtype=np.float32)[kept.tag] * 9.0
    found = decode(task, encoded, examples, right, labels)
    assert found.outcomes == ((1, 2, 2, 2), (2, 0))
    assert found.words is not None and found.words.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    measured = measure(task, labels, examples, found)
    assert measured == pytest.approx({"accuracy": 5 / 6, "precision": 1.0, "recall": 2 / 3, "f1": 0.8})
    table = confusion_matrix(task, labels, examples, found)
    assert table is not None and table.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 3]]
    reliable = calibration(task, labels, examples, found)
    assert reliable and sum(part.count for part in reliable.bins) == 4 and reliable.bins[-1].accuracy == 1.0
    speech = decode(task, encoded, examples, right, ("NOUN", "VERB", "ADJ"))
    assert speech.outcomes == ((1, 2, -1, -1), (2, 0))
    spoken = [Example("a", 1, words=("w",) * 4, labels=("VERB", "ADJ", "NOUN", "NOUN")), examples[1]]
    spoken[1] = Example("a", 2, words=("w",) * 2, labels=("ADJ", "NOUN"))
    judged_by_word = measure(task, ("NOUN", "VERB", "ADJ"), spoken, speech)
    assert judged_by_word["accuracy"] == pytest.approx(4 / 6)
    assert metric_names(task, ("NOUN", "VERB", "ADJ"))[0] == "accuracy" and metric_names(task, labels)[0] == "f1"
    assert judged_by_word["f1_macro"] == pytest.approx((0.5 + 1.0 + 1.0) / 3)


# ---- questions ---------------------------------------------------------------------------------------------------


def asked(*answers):
    return Example("a", 1, "who?", "context", answers=tuple(Answer(text, 0) for text in answers))


@pytest.mark.parametrize(
    ("answers", "answer", "exact", "f1"),
    [
        (["the Fox"], "fox.", 1.0, 1.0),
        (["a red fox", "fox"], "red  fox", 1.0, 1.0),
        (["a red fox"], "the quick red dog", 0.0, 0.4),
        (["red red fox"], "red dog red", 0.0, 2 / 3),
        (["fox"], "dog", 0.0, 0.0),
        ([], "", 1.0, 1.0),
        ([], "fox", 0.0, 0.0),
        (["fox"], "", 0.0, 0.0),
        (["the", "fox"], "a", 0.0, 0.0),
        (["the"], "a", 1.0, 1.0),
        (["在《红楼梦》里"], "红楼梦", 0.0, 6 / 8),  # each character is a word, as in CMRC 2018
        (["紅樓夢。"], "紅樓夢", 1.0, 1.0),
        (["BERTモデル"], "bert", 0.0, 2 / 5),
    ],
)
def test_answers_by_squads_rules(answers, answer, exact, f1):
    one = asked(*answers)
    assert (exact_match(one, answer), overlap_f1(one, answer)) == (exact, pytest.approx(f1))


def test_questions_are_read_and_judged_in_parts(tokenizer):
    """The second question's scores favour position 0, which means no answer where one may be missing."""
    task = Task(kind="question_answering", doc_stride=0)
    context = "One fox saw the garden."
    examples = [Example("a", 1, "Who?", context, answers=(Answer("fox", 4),)), Example("a", 2, "Why?", context)]
    encoded = encode(examples, str(tokenizer), task, (), 64)
    logits = np.zeros((len(encoded.ids), 2), np.float32)
    for row, one in enumerate(examples):
        first = encoded.offsets[row]
        places = [encoded.targets.start[row], encoded.targets.end[row]] if one.answers else [0, 0]
        for side, place in enumerate(places):
            logits[first + place, side] = 9.0
    found = decode(task, encoded, examples, logits, ())
    assert found.outcomes == ("fox", "")
    measured = measure(task, (), examples, found)
    assert measured == dict.fromkeys(["exact_match", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"], 1.0)
    forced = decode(task, encoded, examples, logits, (), may_be_none=False)
    assert forced.outcomes[0] == "fox" and forced.outcomes[1]
    measured = measure(task, (), examples, forced)
    assert measured["exact_match"] == 0.5 and measured["NoAns_f1"] == 0.0 and measured["HasAns_f1"] == 1.0
    assert set(measure(task, (), examples[:1], Predictions(("fox",), None))) == set(metric_names(task, ()))


def test_expected_calibration_error_of_a_slow_twin():
    generator = np.random.default_rng(4)
    confidence = np.concatenate([generator.random(500), [0.0, 1.0, 0.2, 1 / 15]])
    right = generator.random(504) < confidence**2
    found, total = reliability(confidence, right), 0.0
    for number, part in enumerate(found.bins):
        inside = [i for i, c in enumerate(confidence) if number / 15 < c <= (number + 1) / 15 or c == number == 0]
        assert part.count == len(inside)
        total += abs(sum(right[i] - confidence[i] for i in inside)) / 504
        assert part.confidence == pytest.approx(np.mean(confidence[inside]))
    assert found.expected_calibration_error == pytest.approx(total)
    assert reliability(np.array([0.75] * 4), np.array([True] * 3 + [False])).expected_calibration_error == 0.0


def test_the_loss_of_a_split_is_torchs():
    generator, rows = np.random.default_rng(0), 9
    of = partial(EncodedRows, np.zeros(27, np.int32), np.arange(0, 30, 3), np.arange(rows, dtype=np.int32))
    shapes = (rows, 3), (rows, 1), (27, 2)
    three, one, tokens = (generator.standard_normal(shape).astype(np.float32) for shape in shapes)
    classes, flags = generator.integers(0, 3, rows), generator.integers(0, 2, (rows, 3)).astype(np.float32)
    numbers, tags = generator.standard_normal(rows).astype(np.float32), np.where(classes == 2, -1, classes)
    nowhere = np.zeros(rows, np.int32)
    words = WordTargets(nowhere, nowhere, tags.astype(np.int32), np.arange(rows + 1))
    begins, ends = generator.integers(0, 3, (2, rows))
    answers = SpanTargets(begins.astype(np.int32), ends.astype(np.int32), np.zeros((27, 2), np.int32))
    a, b, c = map(torch.from_numpy, (three, one[:, 0], tokens.reshape(rows, 3, 2)))
    halves = [F.cross_entropy(c[..., side], torch.from_numpy(at)) for side, at in enumerate((begins, ends))]
    expected = {
        "single_label_classification": (classes, three, F.cross_entropy(a, torch.from_numpy(classes))),
        "multi_label_classification": (flags, three, F.binary_cross_entropy_with_logits(a, torch.from_numpy(flags))),
        "regression": (numbers, one, F.mse_loss(b, torch.from_numpy(numbers))),
        "token_classification": (words, three, F.cross_entropy(a, torch.from_numpy(tags), ignore_index=-1)),
        "question_answering": (answers, tokens, sum(halves) / 2),
    }
    for kind, (targets, logits, loss) in expected.items():
        assert mean_loss(Task(kind=kind), of(targets, None, 0), logits) == pytest.approx(float(loss), rel=1e-6), kind
