"""The heads of fine-tuning beside the classes of `transformers`: logits, loss and gradients, in torch and in JAX."""

import importlib.util
from dataclasses import replace

import finetuned
import numpy as np
import pytest
import torch
import transformers
from finetuned import drawn

from maskwright.config.pretraining import EngineSection, Optimizer
from maskwright.core.errors import ConfigError
from maskwright.data.batch import Batch
from maskwright.engines.base import AtOnce, TrainState
from maskwright.engines.choose import make_engine
from maskwright.model.config import SEQUENCE_TASKS
from maskwright.model.hf.config import to_hf_config
from maskwright.model.hf.names import count_parameters, pieces
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.heads import loss_sum
from maskwright.model.torch.networks import build, extract

UNTRAINED = ("position_ids", "rotary", "contact_head")
TASKS = finetuned.TASKS
SHAPES = {
    **finetuned.SHAPES,
    "bert": replace(finetuned.SHAPES["bert"], pad_token_id=0),
    "deberta-v2": replace(finetuned.SHAPES["deberta-v2"], pad_token_id=0, position_buckets=6),
    **{kind: replace(finetuned.ROBERTA, architecture=kind) for kind in ("xlm-roberta", "camembert")},
    "esm": replace(
        finetuned.ROBERTA,
        architecture="esm",
        max_position_embeddings=64,
        type_vocab_size=0,
        token_dropout=True,
        mask_token_id=9,
    ),
    **{
        f"{kind}, {pooling}": replace(finetuned.SHAPES[kind], classifier_pooling=pooling)
        for kind, pooling in (("eurobert", "mean"), ("eurobert", "bos"), ("ultrabert", "mean"), ("modernbert", "mean"))
    },
    "gte, token types": replace(finetuned.SHAPES["gte"], type_vocab_size=2),
}
HEADS = [
    (kind, task)
    for kind, config in SHAPES.items()
    for task in (TASKS[:1] if "," in kind else TASKS)
    if task != "question_answering" or config.facts.answers_questions
]
PROGRAMS = [
    (kind, task)
    for kind, task in HEADS
    if kind == "roberta"
    or (kind == "modernbert" and task not in ("multi_label_classification", "regression"))
    or (kind not in ("xlm-roberta", "camembert") and task == TASKS[0])
]
"""Those with a forward pass of their own: XLM-R and CamemBERT are RoBERTa, three tasks have one head, with a loss each,
and a head of tokens or answers is one matrix, except ModernBERT's. JAX takes seconds to compile a pass."""
every = pytest.mark.parametrize(("kind", "task"), HEADS)
both = pytest.mark.parametrize("kind", list(SHAPES))


def shape(kind, task):
    return replace(SHAPES[kind], task=task, num_labels=2 if task == "question_answering" else 3)


def theirs_of(config, parameters):
    """The class that the exported `config.json` names, with our parameters."""
    values = to_hf_config(config)
    kind = getattr(transformers, values["architectures"][0])
    made = kind(kind.config_class(**values, attn_implementation="eager")).eval()
    missing, unexpected = made.load_state_dict({k: torch.from_numpy(v) for k, v in parameters.items()}, strict=False)
    assert not unexpected and all(any(part in name for part in UNTRAINED) for name in missing), (missing, unexpected)
    return made


def batch(config):
    """Three texts, the last two shorter, and what each task says of them."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, config.vocab_size, (3, 12), generator=generator)
    lengths = torch.tensor([12, 7, 4])
    real = (torch.arange(12) < lengths[:, None]).long()
    ids[real == 0] = config.pad_token_id
    labels = {
        "single_label_classification": torch.tensor([2, 0, 1]),
        "multi_label_classification": torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
        "regression": torch.tensor([[0.5, -1.0, 2.0], [0.0, 3.0, 1.0], [-0.5, 0.25, 1.5]]),
        "token_classification": torch.where(real.bool() & (torch.arange(12) % 2 == 1), ids % 3, -100),
        "question_answering": torch.tensor([[2, 5], [0, 0], [3, 3]]),
    }
    types = torch.where(torch.arange(12) > lengths[:, None] // 2, 1, 0)
    positions = (torch.arange(12) + config.token_type_stride * types) * real
    return {"ids": ids, "real": real, "labels": labels[config.task], "types": types, "positions": positions}


def ours_inputs(config, given):
    """(predict_index, labels, weights) as a `Batch` has them."""
    rows, length = given["ids"].shape
    if config.task in SEQUENCE_TASKS:
        return torch.arange(rows) * length, given["labels"], torch.ones(rows)
    if config.task == "question_answering":
        return torch.arange(rows * length), given["labels"], torch.ones(rows)
    flat = given["labels"].flatten()
    index = (flat != -100).nonzero()[:, 0]
    return index, flat[index], torch.ones(len(index))


@every
def test_logits_loss_and_every_gradient_agree_with_transformers(kind, task):
    config = shape(kind, task)
    parameters, given = drawn(config), batch(config)
    theirs, model = theirs_of(config, parameters), build(config, parameters)
    trained = (p for name, p in theirs.named_parameters() if p.requires_grad and "contact_head" not in name)
    assert sum(p.numel() for p in trained) == count_parameters(config)
    index, labels, weights = ours_inputs(config, given)
    positions, own = given["positions"], {"token_type_ids": given["types"]} if config.token_type_stride else {}
    logits = model(given["ids"], positions, given["real"], index)
    if task == "question_answering":
        # transformers' softmax takes in the padding too, so both get rows without any.
        given["real"] = torch.ones_like(given["real"])
        given["ids"][given["ids"] == config.pad_token_id] = 7
        positions = torch.arange(12) + config.token_type_stride * given["types"]
        logits = model(given["ids"], positions, given["real"], index)
        found = theirs(
            given["ids"], attention_mask=given["real"], start_positions=labels[:, 0], end_positions=labels[:, 1], **own
        )
        expected = torch.stack([found.start_logits, found.end_logits], -1).flatten(0, 1)
    else:
        found = theirs(given["ids"], attention_mask=given["real"], labels=given["labels"], **own)
        expected = found.logits.reshape(-1, config.num_labels)
        expected = expected if task in SEQUENCE_TASKS else expected[index]
    assert (logits - expected).abs().max() < 1e-5
    loss = loss_sum(task, logits, labels, weights) / weights.sum()
    assert float(loss.detach()) == pytest.approx(float(found.loss.detach()), rel=1e-5)
    loss.backward()
    found.loss.backward()
    gradients = extract({name: p.grad for name, p in model.named_parameters()}, config)
    wanted = {name: p.grad.numpy() for name, p in theirs.named_parameters() if p.grad is not None}
    assert set(gradients) == set(wanted)
    for name, gradient in gradients.items():
        assert np.abs(gradient - wanted[name]).max() <= 2e-5 * max(1.0, np.abs(wanted[name]).max()), name


@both
@pytest.mark.parametrize("task", ["single_label_classification", "token_classification"])
def test_packed_texts_give_the_numbers_and_gradients_of_one_text_a_row(kind, task):
    """Three texts in one row of 24, each its own segment, against three rows with padding."""
    config = shape(kind, task)
    parameters, given = drawn(config), batch(config)
    index, labels, weights = ours_inputs(config, given)
    apart, together = build(config, parameters), build(config, parameters)
    positions = given["positions"]
    one = loss_sum(task, apart(given["ids"], positions, given["real"], index), labels, weights, 0.1)
    real = given["real"].flatten().bool()
    packed_ids = torch.full((1, 24), config.pad_token_id)
    packed_positions, segments = torch.zeros(1, 24, dtype=torch.long), torch.zeros(1, 24, dtype=torch.long)
    count = int(real.sum())
    packed_ids[0, :count] = given["ids"].flatten()[real]
    packed_positions[0, :count] = positions.flatten()[real]
    segments[0, :count] = (given["real"] * torch.arange(1, 4)[:, None]).flatten()[real]
    place = real.cumsum(0) - 1
    two = loss_sum(task, together(packed_ids, packed_positions, segments, place[index]), labels, weights, 0.1)
    assert float(one.detach()) == pytest.approx(float(two.detach()), rel=1e-6)
    one.backward()
    two.backward()
    for (name, a), (_, b) in zip(apart.named_parameters(), together.named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)


@every
def test_new_heads_are_drawn_as_transformers_draws_them(kind, task):
    """By quantiles, which see a cut-off as well. Those of 65,536 numbers have a standard deviation of 0.6 %."""
    labels = 2 if task == "question_answering" else 256
    config = replace(shape(kind, task), hidden_size=256, num_hidden_layers=1, num_labels=labels)
    values = to_hf_config(config)
    made = getattr(transformers, values["architectures"][0])
    torch.manual_seed(0)
    theirs = made(made.config_class(**values)).state_dict()
    heads = [piece for piece in pieces(config) if piece.name.startswith("head.")]
    ours = initial_parameters(config, 0)
    assert heads
    for piece in heads:
        one, other = ours[piece.hf_name], theirs[piece.hf_name].numpy()
        if one.ndim == 1:
            assert np.array_equal(one, other), piece
            continue
        shares = [0.02, 0.1, 0.9, 0.98]
        expected, within = np.quantile(other, shares), 10 / one.size**0.5
        np.testing.assert_allclose(np.quantile(one, shares), expected, rtol=within, err_msg=piece.name)
        if kind == "modernbert":
            assert np.abs(one).max() == pytest.approx(np.abs(other).max(), rel=within / 4)


COMPILED = [
    ("roberta", "single_label_classification"),
    ("modernbert", "token_classification"),
    ("bert", "single_label_classification"),
]
"""Each other pair takes a compilation of its own too, so it is among the long tests."""


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="needs the extra jax")
@pytest.mark.parametrize("task", TASKS)
def test_losses_of_jax_are_those_of_torch(task):
    from reference import parity

    from maskwright.model.jax import networks

    parity.use_virtual_devices()
    config, generator = shape("roberta", task), np.random.default_rng(3)
    index, labels, weights = ours_inputs(config, batch(config))
    logits = generator.standard_normal((len(index), config.num_labels)).astype(np.float32) * 4.0
    truth = labels.numpy() if labels.is_floating_point() else labels.numpy().astype(np.int32)
    ours = np.asarray(networks.losses(task, logits, truth, 0.1))
    assert ours.shape == weights.shape
    expected = loss_sum(task, torch.from_numpy(logits), labels, weights, 0.1)
    assert float(ours.sum()) == pytest.approx(float(expected), rel=1e-6)


def test_jax_refuses_deberta_before_it_is_imported():
    config = shape("deberta-v2", "regression")
    with pytest.raises(ConfigError, match="jax does not compute DeBERTa and MPNet, .*Fix: set engine.kind: torch"):
        make_engine(config, Optimizer(), EngineSection(kind="jax"), seed=0)


def test_a_padded_vocabulary_is_never_smoothed():
    """The padding would get a share of each label: in fp16 an infinite loss, else one of millions."""
    logits, labels, weights = torch.tensor([[1.0, 2.0, -torch.inf]]).half(), torch.tensor([1]), torch.ones(1)
    assert torch.isfinite(loss_sum("masked_lm", logits, labels, weights))
    with pytest.raises(AssertionError, match="no label smoothing over a padded vocabulary"):
        loss_sum("masked_lm", logits, labels, weights, 0.1)


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="needs the extra jax")
@pytest.mark.parametrize(
    ("kind", "task"),
    [
        pytest.param(kind, task, marks=[] if (kind, task) in COMPILED else [pytest.mark.long])
        for kind, task in PROGRAMS
        if not SHAPES[kind].facts.relative
    ],
)
def test_jax_gives_the_numbers_and_gradients_of_torch(kind, task):
    import jax
    import jax.numpy as jnp
    from reference import parity

    from maskwright.model.jax import networks

    parity.use_virtual_devices()
    config, smoothing = shape(kind, task), 0.1
    parameters, given = drawn(config), batch(config)
    index, labels, weights = ours_inputs(config, given)
    positions = given["positions"]
    model = build(config, parameters)
    loss = loss_sum(task, model(given["ids"], positions, given["real"], index), labels, weights, smoothing)
    loss.backward()
    wanted = extract({name: p.grad for name, p in model.named_parameters()}, config)

    def value(stacked):
        arrays = [jnp.asarray(a.numpy().astype(np.int32)) for a in (given["ids"], positions, given["real"], index)]
        found = networks.logits(stacked, config, *arrays, gather=lambda name, array: array, way="dense")
        theirs = labels.numpy() if labels.is_floating_point() else labels.numpy().astype(np.int32)
        return jnp.sum(networks.losses(task, found, jnp.asarray(theirs), smoothing) * weights.numpy())

    stacked = {name: jnp.asarray(array) for name, array in networks.stack(parameters, config).items()}
    with jax.default_matmul_precision("highest"):
        found, gradient = jax.jit(jax.value_and_grad(value))(stacked)
    assert float(found) == pytest.approx(float(loss.detach()), rel=1e-5)
    ours = networks.unstack({name: np.asarray(array) for name, array in gradient.items()}, config)
    assert set(ours) == {piece.hf_name for piece in pieces(config)} == set(wanted)
    for name, array in ours.items():
        assert np.abs(array - wanted[name]).max() <= 3e-5 * max(1.0, np.abs(wanted[name]).max()), name


@pytest.mark.parametrize(
    ("kind", "task"), [(kind, task) for kind, task in PROGRAMS if kind in ("roberta", "modernbert")]
)
def test_engines_predict_the_same_logits_however_few_rows_fit(kind, task):
    """Beside the model itself; two batches, and parts of them as after memory ran out."""
    config = shape(kind, task)
    parameters, given = drawn(config), batch(config)
    index = ours_inputs(config, given)[0] if task != "token_classification" else torch.tensor([1, 3, 13, 15, 25, 26])
    ids, real, K = given["ids"].numpy().astype(np.int32), given["real"].numpy().astype(np.int32), len(index)
    positions = np.arange(12, dtype=np.int32) * real
    weights = np.ones(3 if task == "question_answering" else K, np.float32)
    labels = {"multi_label_classification": np.zeros((K, 3), np.float32), "regression": np.zeros((K, 3), np.float32)}
    labels["question_answering"] = np.zeros((3, 2), np.int32)
    one = Batch(ids, positions, real, index.numpy().astype(np.int32), labels.get(task, np.zeros(K, np.int32)), weights)
    two = replace(one, input_ids=np.where(real > 0, config.vocab_size - 1 - ids, ids).astype(np.int32))
    model = build(config, parameters)
    tensors = (torch.from_numpy(positions), given["real"], index)
    expected = [model(torch.from_numpy(batch.input_ids).long(), *tensors).detach().numpy() for batch in (one, two)]
    for engine in ["torch", "jax"] if importlib.util.find_spec("jax") else ["torch"]:
        made = make_engine(config, Optimizer(), EngineSection(kind=engine, device="cpu", dtype="fp32"), seed=0)
        made.write(TrainState(0, parameters))
        for rows in (None, 1):
            made.at_once = AtOnce(rows)
            found = made.predict([one, two])
            assert found.dtype == np.float32 and np.abs(found - np.concatenate(expected)).max() < 1e-5
        if task == "regression":
            made = make_engine(config, Optimizer(), EngineSection(kind=engine, device="cpu", dtype="bf16"), seed=0)
            made.write(TrainState(0, parameters))
            assert (made.predict([one]).view(np.uint32) & 0xFFFF).any(), "numbers are not rounded to bf16"
