"""The models against those of `transformers` (eager, fp32) on random weights."""

import ctypes
import math
import sys
from dataclasses import replace

import finetuned
import numpy as np
import pytest
import torch
import transformers
from finetuned import save_model
from safetensors.numpy import load_file, save_file
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from maskwright.config.pretraining import ModelSection
from maskwright.core import storage
from maskwright.core.errors import ModelError
from maskwright.model import relative
from maskwright.model.config import ModelConfig, model_config
from maskwright.model.hf.config import read_hf_config, to_hf_config
from maskwright.model.hf.families import FAMILIES
from maskwright.model.hf.folder import read_encoder, read_hf_parameters, read_model_folder
from maskwright.model.hf.names import buffers, count_parameters, pieces, tied_names
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.compare import largest_difference, our_model, references
from maskwright.model.torch.heads import loss_sum
from maskwright.model.torch.networks import build, extract
from maskwright.model.torch.relative import table_rows

MASK = 9
SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}
LAYERS = {
    "num_hidden_layers": 5,
    "max_position_embeddings": 400,
    "global_attn_every_n_layers": 3,
    "local_attention": 18,
}


def small(kind, **own):
    """203 tokens are no multiple of 64."""
    return replace(finetuned.SHAPES[kind], **{"vocab_size": 203, "max_position_embeddings": 40, **SIZES, **own})


ROBERTA = small("roberta", max_position_embeddings=42)
MODERNBERT = small("modernbert", rope_theta=500.0, global_attn_every_n_layers=1, local_attention=0)
ESM = replace(
    ROBERTA,
    rope_rounding="float16",
    architecture="esm",
    max_position_embeddings=40,
    type_vocab_size=0,
    token_dropout=True,
    mask_token_id=MASK,
)
DEBERTA = small("deberta-v2", pad_token_id=0, position_buckets=8, max_relative_positions=40, conv_kernel_size=0)
EUROBERT = small("eurobert", rope_theta=500.0, num_key_value_heads=2, mask_token_id=0)
ULTRABERT = small(
    "ultrabert", rope_theta=500.0, local_rope_theta=70.0, num_key_value_heads=2, head_hidden_size=56, **LAYERS
)
NOMIC = small("nomic_bert", pad_token_id=0, rope_theta=50.0)
GTE = small("gte", rope_theta=50.0)
SHAPES = {
    "roberta": ROBERTA,
    "xlm-roberta": replace(ROBERTA, architecture="xlm-roberta"),
    "camembert": replace(ROBERTA, architecture="camembert", bos_token_id=5, eos_token_id=6),
    "bert": small("bert", pad_token_id=0),
    "distilbert": small("distilbert", pad_token_id=0),
    "modernbert": MODERNBERT,
    "modernbert, local": replace(MODERNBERT, local_rope_theta=70.0, **LAYERS),
    "esm": ESM,
    "mpnet": small("mpnet", max_position_embeddings=42),
    "deberta-v2": DEBERTA,
    "deberta-v2, convolution": replace(DEBERTA, conv_kernel_size=3),
    "deberta-v2, absolute positions and types": replace(
        DEBERTA,
        position_biased_input=True,
        type_vocab_size=2,
        pos_att_type="p2c",
        position_buckets=0,
        max_relative_positions=12,
    ),
    "eurobert": EUROBERT,
    "eurobert, tied": replace(EUROBERT, num_key_value_heads=4, tie_word_embeddings=True),
    "ultrabert": ULTRABERT,
    "nomic_bert": NOMIC,
    "gte": GTE,
    "gte, no token types": replace(GTE, type_vocab_size=0),
}
both = pytest.mark.parametrize("kind", list(SHAPES))


def random_parameters(config, seed=0):
    """Far from the initialisation: biases and norms random too, so that a forgotten one shows."""
    generator = np.random.default_rng(seed)
    return {
        piece.hf_name: (
            generator.standard_normal(piece.shape) * 0.1 + ("norm" in piece.hf_name.lower() and len(piece.shape) == 1)
        ).astype(np.float32)
        for piece in pieces(config)
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """What transformers makes of each exported folder."""
    transformers.utils.logging.disable_progress_bar()
    models = {}
    for kind, config in SHAPES.items():
        folder = save_model(tmp_path_factory.mktemp("hf"), random_parameters(config), config)
        models[kind] = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
        assert type(models[kind]).__name__ == to_hf_config(config)["architectures"][0]
    return models


def inputs(length, rows=5, pad=1, vocab_size=ROBERTA.vocab_size):
    """(input ids with masks, attention mask with padding at the ends, labels with -100)."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, vocab_size, (rows, length), generator=generator)
    ids[ids == pad] = 4 if pad != 4 else 5
    real = torch.ones_like(ids)
    for row in range(1, rows):
        real[row, length - 5 * row :] = 0
    ids[real == 0] = pad
    labels = torch.where((torch.rand(ids.shape, generator=generator) < 0.3) & (real == 1), ids, -100)
    ids[(torch.rand(ids.shape, generator=generator) < 0.2) & (real == 1)] = MASK
    return ids, real, labels


def ours_forward(model, ids, real, index):
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    return model(ids, positions, real, index)


@both
def test_logits_agree_with_transformers(kind, reference):
    ids, real, _ = inputs(SHAPES[kind].max_seq_len, pad=SHAPES[kind].pad_token_id)
    model, theirs = build(SHAPES[kind], random_parameters(SHAPES[kind])), reference[kind]
    with torch.no_grad():
        found = ours_forward(model, ids, real, torch.arange(ids.numel())).view(*ids.shape, -1)
        # Without position ids: transformers derives them from the padding, as users' calls do.
        expected = theirs(ids, attention_mask=real).logits
    difference = (found[..., : ROBERTA.vocab_size] - expected).abs()[real.bool()]
    assert difference.max() < 1e-5


@both
def test_loss_and_every_gradient_agree_with_transformers(kind, reference):
    ids, real, labels = inputs(SHAPES[kind].max_seq_len, pad=SHAPES[kind].pad_token_id)
    theirs, config = reference[kind], SHAPES[kind]
    theirs.zero_grad()
    expected = theirs(ids, attention_mask=real, labels=labels).loss
    expected.backward()
    model = build(config, random_parameters(config))
    flat = labels.reshape(-1)
    index = (flat != -100).nonzero()[:, 0]
    weights = torch.ones(len(index))
    loss = loss_sum("masked_lm", ours_forward(model, ids, real, index), flat[index], weights) / weights.sum()
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    named = {id(p): p.numel() for name, p in theirs.named_parameters() if "contact_head" not in name}
    assert count_parameters(config) == sum(named.values())
    gradients = extract({name: p.grad for name, p in model.named_parameters()}, config)
    # Of tied parameters, transformers names the one that its class happens to make first.
    tied = tied_names(config)
    wanted_of = {tied.get(name, name): p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert set(gradients) == set(wanted_of)
    for name, gradient in gradients.items():
        wanted = wanted_of[name].numpy()
        assert np.abs(gradient - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max()), name


BASE = ModelConfig(50_265, 768, 12, 12, 3072, 514)
MODERNBERT_BASE = replace(
    BASE,
    architecture="modernbert",
    vocab_size=50_368,
    num_hidden_layers=22,
    intermediate_size=1152,
    max_position_embeddings=8192,
    pad_token_id=50_283,
    bos_token_id=50_281,
    eos_token_id=50_282,
    rope_theta=160_000.0,
    global_attn_every_n_layers=3,
    local_attention=128,
)
ESM2_8M = replace(
    ESM,
    vocab_size=33,
    hidden_size=320,
    num_hidden_layers=6,
    num_attention_heads=20,
    intermediate_size=1280,
    max_position_embeddings=1026,
    mask_token_id=32,
)
DEBERTA_V3 = replace(
    DEBERTA,
    vocab_size=128_100,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=512,
    position_buckets=256,
    max_relative_positions=512,
)
EUROBERT_210M = replace(
    BASE,
    architecture="eurobert",
    vocab_size=128_256,
    max_position_embeddings=8192,
    type_vocab_size=0,
    pad_token_id=128_001,
    bos_token_id=128_000,
    eos_token_id=128_001,
    rope_theta=250_000.0,
    num_key_value_heads=12,
    tie_word_embeddings=False,
)
LARGE = {
    "RoBERTa-base": (BASE, 64),
    "BERT-base, cased": (
        replace(
            small("bert", pad_token_id=0, max_position_embeddings=512, layer_norm_eps=1e-12),
            vocab_size=28_996,
            **{key: getattr(BASE, key) for key in SIZES},
        ),
        256,
    ),
    "ModernBERT-base": (MODERNBERT_BASE, 512),
    "ESM-2, 650M": (replace(ESM2_8M, hidden_size=1280, num_hidden_layers=33, intermediate_size=5120), 160),
    "DeBERTa v3-base": (DEBERTA_V3, 96),
    "EuroBERT-210m": (EUROBERT_210M, 96),
}
"""Shapes as their folders' config.json have them, and tokens of a row: short ones where the vocabulary is large."""
NARROW = {"vocab_size": 640, "pad_token_id": 3}
FULL_DEPTH = LARGE | {
    "ESM-2, 8M": (ESM2_8M, 512),
    "ModernBERT's layers, narrow": (replace(MODERNBERT_BASE, hidden_size=96, intermediate_size=96, **NARROW), 640),
    "DeBERTa v2-xlarge's layers, narrow, and its longest row": (
        replace(DEBERTA_V3, **SIZES | {"num_attention_heads": 6}, vocab_size=640, conv_kernel_size=3),
        512,
    ),
    "EuroBERT-610m's layers, narrow": (
        replace(
            EUROBERT_210M,
            hidden_size=144,
            num_hidden_layers=26,
            num_attention_heads=18,
            intermediate_size=512,
            num_key_value_heads=6,
            **NARROW,
        ),
        512,
    ),
    "ModernBERT's longest row": (
        replace(MODERNBERT_BASE, hidden_size=32, num_hidden_layers=4, num_attention_heads=1, **NARROW),
        8192,
    ),
}


@pytest.fixture
def memory_given_back():
    """glibc keeps what was freed: after ModernBERT-large 4.9 GB, 0.4 once told to give it back."""
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@pytest.mark.long
@pytest.mark.usefixtures("memory_given_back")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.large if name in LARGE else ()) for name in FULL_DEPTH]
)
def test_published_shapes_agree_with_transformers(name, tmp_path):
    """Logits, loss and every gradient: of rows with padding, and of the same texts packed into one row."""
    config, length = FULL_DEPTH[name]
    parameters = initial_parameters(config, 1)
    folder = save_model(tmp_path, parameters, config)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    rows = 2 if length < 8192 else 1
    ids, real, labels = inputs(length, rows, config.pad_token_id, config.vocab_size)
    ids[ids == MASK] = config.mask_token_id or MASK
    said = theirs(ids, attention_mask=real, labels=labels)
    said.loss.backward()
    named = theirs.named_parameters()
    tied = tied_names(config)
    gradients = {tied.get(name, name): p.grad.numpy() for name, p in named if p.grad is not None}
    wanted = float(said.loss.detach()), said.logits.detach().flatten(0, 1)[labels.reshape(-1) != -100]
    del theirs, said  # such models are large
    model, kept = build(config, parameters), real.bool()
    del parameters
    positions = torch.arange(length).expand_as(ids)
    layouts = {"padded": (ids, positions, real, labels)}
    if rows > 1:
        numbers = real * torch.arange(1, rows + 1)[:, None]
        layouts["packed"] = tuple(each[kept][None] for each in (ids, positions, numbers, labels))
    for layout, (words, places, segments, truth) in layouts.items():
        _require_agreement(model, config, (words, places, segments), truth.reshape(-1), (*wanted, gradients), layout)


def _require_agreement(model, config, row, truth, wanted, layout):
    model.zero_grad()
    expected, expected_logits, gradients = wanted
    index = (truth != -100).nonzero()[:, 0]
    logits = model(*row, index)
    found = logits.detach()[:, : config.vocab_size].clone()  # the loss uses them up
    loss = loss_sum("masked_lm", logits, truth[index], torch.ones(len(index))) / len(index)
    loss.backward()
    assert (found - expected_logits).abs().max() < 1e-5, layout
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6), layout
    found = extract({name: p.grad for name, p in model.named_parameters()}, config)
    assert set(found) == set(gradients)
    for name, gradient in gradients.items():
        assert np.abs(found[name] - gradient).max() <= 1e-5, (layout, name)


@both
def test_fillers_and_the_padded_vocabulary_change_nothing(kind):
    """Padding has no probability and no gradient."""
    ids, real, labels = inputs(40)
    model = build(SHAPES[kind], random_parameters(SHAPES[kind]))
    flat = labels.reshape(-1)
    index = (flat != -100).nonzero()[:, 0]
    named = dict(model.named_parameters())
    exact = loss_sum("masked_lm", ours_forward(model, ids, real, index), flat[index], torch.ones(len(index)))
    filled = torch.cat([index, torch.zeros(7, dtype=index.dtype)])
    truth = torch.cat([flat[index], torch.zeros(7, dtype=flat.dtype)])
    weights = torch.cat([torch.ones(len(index)), torch.zeros(7)])
    logits = ours_forward(model, ids, real, filled)
    assert logits.shape[1] == 256 and torch.softmax(logits, -1)[:, ROBERTA.vocab_size :].abs().max() == 0
    with_fillers = loss_sum("masked_lm", logits, truth, weights)
    assert float(with_fillers.detach()) == pytest.approx(float(exact.detach()), rel=1e-6)
    with_fillers.backward()
    of_vocabulary = [named[name] for name in ("word.weight", "head.bias", "head.decoder.weight") if name in named]
    assert all(parameter.grad[ROBERTA.vocab_size :].abs().max() == 0 for parameter in of_vocabulary)


@both
def test_packed_rows_give_the_logits_of_the_documents_alone(kind):
    generator = torch.Generator().manual_seed(3)
    model = build(SHAPES[kind], random_parameters(SHAPES[kind]))
    T = SHAPES[kind].max_seq_len
    lengths = [n * (T // 40) for n in (7, 12, 3, 9)]
    pieces_ = [torch.randint(4, ROBERTA.vocab_size, (n,), generator=generator) for n in lengths]
    for number, ids in enumerate(pieces_):
        ids[1 : 1 + number] = MASK  # another share in each
    padding = T - sum(lengths)
    row = torch.cat([*pieces_, torch.full((padding,), SHAPES[kind].pad_token_id)])[None]
    segments = torch.cat([torch.full((n,), i + 1) for i, n in enumerate(lengths)] + [torch.zeros(padding).long()])
    positions = torch.cat([*[torch.arange(n) for n in lengths], torch.zeros(padding).long()])
    with torch.no_grad():
        packed = model(row, positions[None], segments[None], torch.arange(T))
        begin = 0
        for ids, size in zip(pieces_, lengths, strict=True):
            alone = ours_forward(model, ids[None], torch.ones(1, size).long(), torch.arange(size))
            assert (
                packed[begin : begin + size, : ROBERTA.vocab_size] - alone[:, : ROBERTA.vocab_size]
            ).abs().max() < 1e-5
            begin += size


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_come_back_bit_for_bit(kind, dtype, tmp_path, reference):
    """Ours -> transformers -> its own save_pretrained, also in half precision -> ours."""
    theirs = type(reference[kind])(reference[kind].config)
    theirs.load_state_dict(reference[kind].state_dict())
    theirs.to(dtype).save_pretrained(tmp_path / "again")
    config, parameters = read_model_folder(str(tmp_path / "again"))
    assert replace(config, rope_rounding=SHAPES[kind].rope_rounding) == SHAPES[kind]  # of speeds that are saved
    given = random_parameters(config) | buffers(SHAPES[kind])
    rounded = {name: torch.from_numpy(value).to(dtype).float().numpy() for name, value in given.items()}
    found = extract(dict(build(config, parameters).named_parameters()), config) | buffers(config)
    assert found.keys() == rounded.keys()
    assert all(np.array_equal(value, rounded[name]) for name, value in found.items())


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "modernbert"])
@pytest.mark.parametrize("theirs", ["AutoModel", "AutoModelForSequenceClassification"])
def test_an_encoder_with_another_head_or_none_is_read(kind, theirs, tmp_path):
    """transformers loads the folder's encoder, and saves it without the head or with another one."""
    config, parameters = SHAPES[kind], random_parameters(SHAPES[kind])
    folder = save_model(tmp_path / "whole", parameters, config)
    getattr(transformers, theirs).from_pretrained(folder).save_pretrained(tmp_path / "other")
    found = read_encoder(str(tmp_path / "other"), config)
    named = {piece.hf_name for piece in pieces(config) if not piece.name.startswith("head.")}
    assert set(found) == named and all(np.array_equal(value, parameters[name]) for name, value in found.items())
    with pytest.raises(ModelError, match="model.new_head=true"):
        read_hf_parameters(str(tmp_path / "other"), config)
    if theirs == "AutoModel":
        pooler = {f"bert.pooler.dense.{part}" for part in ("weight", "bias")} if kind == "bert" else set()
        assert set(read_model_folder(str(tmp_path / "other"), bare=True)[1]) == named | pooler


def test_ids_that_the_tokenizer_knows_better_may_be_missing_or_odd(tmp_path):
    config = SHAPES["modernbert, local"]
    folder = save_model(tmp_path, random_parameters(config), config)
    path = str(tmp_path / "config.json")
    odd = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": [1, 2]}
    storage.write_json(path, storage.read_json(path) | odd)
    ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 2}
    assert read_hf_config(folder) == replace(config, **ids)


def test_bert_is_read_with_what_its_first_folders_hold(tmp_path):
    """Names of norms that are no longer used, a pooler, and the head for next sentences."""
    config, parameters = SHAPES["bert"], random_parameters(SHAPES["bert"])
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in parameters.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): value for name, value in old.items()}
    more = {"bert.pooler.dense.weight": (48, 48), "cls.seq_relationship.bias": (2,)}
    old |= {name: np.zeros(shape, np.float32) for name, shape in more.items()}
    found, read = read_model_folder(save_model(tmp_path, old, config))
    assert found == config and all(np.array_equal(read[name], value) for name, value in parameters.items())


def test_a_padding_of_any_id_is_read_as_transformers_does(tmp_path):
    """BERT's table of positions has no row of the padding, and a RoBERTa gives its id the padding's place."""
    bert = model_config(ModelSection(architecture="bert", size="nano"), 300, 64, pad=259)
    assert all(row.any() for row in initial_parameters(bert, 0)["bert.embeddings.position_embeddings.weight"])
    roberta = model_config(ModelSection(architecture="roberta", size="nano"), 33, 64, pad=32)
    parameters = initial_parameters(roberta, 0)
    save_model(tmp_path, parameters, roberta)
    expected = references(roberta, str(tmp_path))
    assert largest_difference(our_model(roberta, parameters), expected) < 1e-5


@pytest.mark.parametrize("kind", list(FAMILIES))
def test_defaults_of_an_old_config_are_transformers_own(kind):
    """A key that config.json leaves out means there what it means here."""
    family = FAMILIES[kind]
    default = getattr(transformers, f"{family.class_begins}Config")()
    for name, value in family.defaults.items():
        assert getattr(default, family.keys[name]) == value, name
    for key, value in family.needs.items():
        assert getattr(default, key, value) == value, key


@both
def test_flops_count_each_matrix_once(kind):
    """6 a number and token in a layer's matrices, and in the head's at the places that are predicted."""
    config = SHAPES[kind]
    sizes = {"layers.": 0, "head.": 0, "word.": 0}
    for piece in pieces(config):
        part = next((part for part in sizes if piece.name.startswith(part) and len(piece.shape) == 2), None)
        sizes |= {part: sizes[part] + math.prod(piece.shape)} if part else {}
    assert config.body_parameters == sizes["layers."]
    tied = sizes["word."] if config.tie_word_embeddings else 0
    with_head, without = config.product_flops(10, 10), config.product_flops(10, 0)
    after_attention = 6 * config._after_attention * 10
    assert with_head == 6 * 10 * (sizes["layers."] + sizes["head."] + tied)
    assert without == 6 * 10 * sizes["layers."] - after_attention


def test_published_modernberts_are_read_in_both_ways_of_writing_them(tmp_path):
    """In transformers 5's keys, and in those of the folders on the hub."""
    transformers.ModernBertConfig().save_pretrained(tmp_path / "new")
    values = storage.read_json(str(tmp_path / "new" / "config.json"))
    for key in ("layer_types", "rope_parameters"):
        del values[key]
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
    (tmp_path / "old").mkdir()
    storage.write_json(str(tmp_path / "old" / "config.json"), values | old)
    read = read_hf_config(str(tmp_path / "new"))
    assert (read.global_attn_every_n_layers, read.local_attention, read.window) == (3, 128, 64)
    assert (read.rope_theta, read.local_rope_theta, read.local_layers) == (160_000.0, 10_000.0, 14)
    assert read_hf_config(str(tmp_path / "old")) == read
    storage.write_json(str(tmp_path / "old" / "config.json"), values | old | {"local_rope_theta": 160_000.0})
    other = replace(read, local_rope_theta=160_000.0)  # as mmBERT's
    assert read_hf_config(str(tmp_path / "old")) == other
    for kind, keys in (("modernbert", ["global_rope_theta", "local_rope_theta"]), ("eurobert", ["rope_theta"])):
        config = replace(other, rope_theta=7e3) if kind == "modernbert" else replace(SHAPES[kind], rope_theta=7e3)
        written = to_hf_config(config)
        assert [written[key] for key in keys] == [7e3, 160_000.0][
            : len(keys)
        ]  # transformers before 5 reads these alone


REFUSED = {
    "modernbert": [
        ({"layer_types": ["sliding_attention"] * 22}, "another pattern"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "not of the default kind"),
        ({"layer_types": None, "global_attn_every_n_layers": 0}, "which is invalid"),
        ({"local_attention": -2}, "local_attention is -2"),
        ({"rope_parameters": None, "global_rope_theta": 0}, "rope_parameters is 0, which is invalid"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "does not name both kinds of layers"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ],
    "deberta-v2": [
        ({"relative_attention": None}, "relative_attention is None, only True"),
        ({"pos_att_type": "p2p|c2p"}, "pos_att_type is 'p2p|c2p'"),
        ({"pos_att_type": []}, r"pos_att_type is \[\]"),
        ({"position_buckets": "256"}, "position_buckets is '256'"),
        ({"conv_kernel_size": 3, "conv_act": "tanh"}, "conv_act is 'tanh'"),
        ({"conv_kernel_size": 4, "conv_act": "gelu"}, "conv_kernel_size is 4"),
        ({"position_biased_input": "no"}, "position_biased_input is 'no'"),
    ],
    "eurobert": [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters is not of the default kind"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_scaling is not of the default kind"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_parameters is 0, which is invalid"),
        ({"head_dim": 16}, "head_dim is 16, only 12"),
        ({"num_key_value_heads": 3}, "3 heads of keys and values do not divide 4 of queries"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ({"auto_map": {"AutoModel": "modeling_mine.EuroBertModel"}}, "is code of its own"),
        ({"auto_map": {"AutoModel": ["modeling_eurobert.EuroBertModel"]}}, "is code of its own"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max', which is invalid"),
        (
            {"architectures": ["EuroBertForQuestionAnswering"]},
            "EuroBertForQuestionAnswering, which transformers lacks",
        ),
    ],
    "ultrabert": [
        ({"layer_types": ["full_attention", *["sliding_attention"] * 4]}, "use a model in which the last of each n"),
        ({"layer_types": ["sliding_attention"] * 4}, "another length than num_hidden_layers"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"attention_windows": ["9"] * 5, "layer_types": None}, "sliding_window is '9'"),
        ({"classifier_pooling": "late"}, "classifier_pooling is 'late'.* the first token or of the mean"),
        ({"rope_parameters": {"global": {}}}, "rope_parameters does not name both kinds"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "full_attention is not of the default kind"),
        ({"prediction_head_size": 0}, "prediction_head_size is 0"),
        ({"head_dim": 16}, "head_dim is 16, only 12"),
    ],
    "nomic_bert": [
        ({"rope_parameters": None, "rope_scaling": {"type": "ntk", "factor": 8.0}}, "rope_scaling is not of the"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_parameters is 0, which is invalid"),
        ({"rope_parameters": [7]}, "rope_parameters is not of the default kind"),
        ({"type_vocab_size": -1}, "type_vocab_size is -1"),
    ],
    "esm": [
        ({"position_embedding_type": "absolute"}, "is not ESM-2's"),
        ({"position_embedding_type": None}, "is not ESM-2's"),
        ({"emb_layer_norm_before": True}, "is not ESM-2's"),
        ({"is_folding_model": True}, "is_folding_model is True"),
        ({"mask_token_id": None}, "mask_token_id is None"),
        ({"mask_token_id": 203}, "mask_token_id is 203"),
        ({"rope_theta": 20_000.0}, "does not follow from rope_theta 20000"),
    ],
    "gte": [({"hidden_act": "relu"}, "hidden_act is 'relu', only ")],
}


@pytest.mark.parametrize(
    ("kind", "change", "message"), [(kind, *row) for kind, changes in REFUSED.items() for row in changes]
)
def test_models_of_other_kinds_are_refused(kind, change, message, tmp_path):
    folder, path = save_model(tmp_path, random_parameters(SHAPES[kind]), SHAPES[kind]), tmp_path / "config.json"
    if kind == "modernbert":
        transformers.ModernBertConfig().save_pretrained(tmp_path)
    storage.write_json(str(path), storage.read_json(str(path)) | change)
    with pytest.raises(ModelError, match=message):
        read_hf_config(folder)


@pytest.mark.parametrize("kind", ["nomic_bert", "gte"])
def test_nomics_and_gtes_without_a_base_have_that_of_transformers(kind, tmp_path):
    values = to_hf_config(SHAPES[kind]) | {"rope_parameters": None, "rope_theta": None}
    storage.write_json(str(tmp_path / "config.json"), values)
    base = getattr(transformers, f"{FAMILIES[kind].class_begins}Config")().rope_parameters["rope_theta"]
    assert read_hf_config(str(tmp_path)) == replace(SHAPES[kind], rope_theta=base)


@pytest.mark.parametrize(("buckets", "longest", "tokens"), [(256, 512, 512), (8, 40, 64), (7, 31, 31), (0, 12, 40)])
def test_distances_have_the_rows_that_transformers_gives_them(buckets, longest, tokens):
    """In rows of `tokens` tokens, some longer than the table."""
    config = replace(DEBERTA, position_buckets=buckets, max_relative_positions=longest)
    row = torch.zeros(1, tokens, 1)
    theirs = build_relative_position(row, row, buckets or -1, longest)[0]
    span = buckets or longest
    place = np.arange(tokens)
    ours = relative.rows_of(config, place[:, None] - place)
    assert np.array_equal(ours, (theirs + span).clamp(0, 2 * span - 1).numpy())
    assert np.array_equal(ours, (span - theirs.T).clamp(0, 2 * span - 1).numpy())  # as its second term reads them


def test_a_deberta_is_trained_after_it_was_only_asked():
    """Tensors that are made without gradients in mind cannot be part of a backward pass."""
    model, ids = build(DEBERTA, random_parameters(DEBERTA)), torch.arange(4, 17)[None]
    table_rows.cache_clear()
    with torch.inference_mode():
        ours_forward(model, ids, torch.ones_like(ids), torch.arange(2))
    ours_forward(model, ids, torch.ones_like(ids), torch.arange(2)).sum().backward()


def test_published_debertas_are_read_with_all_that_their_folders_hold(tmp_path):
    """The keys of the hub's config.json, heads of v3's own training, and a table of positions that is not used."""
    config = replace(DEBERTA, position_buckets=256, max_relative_positions=512, max_position_embeddings=512)
    parameters = {name: value for name, value in random_parameters(config).items() if not name.startswith("cls.")}
    left = {
        "lm_predictions.lm_head.bias": (203,),
        "mask_predictions.classifier.weight": (1, 48),
        "deberta.embeddings.position_embeddings.weight": (512, 48),
    }
    folder = save_model(
        tmp_path, parameters | {name: np.ones(shape, np.float32) for name, shape in left.items()}, config
    )
    hub = {"max_relative_positions": -1, "pos_att_type": "p2c|c2p", "pooler_dropout": 0, "pooler_hidden_size": 48}
    lacking = ("hidden_dropout_prob", "attention_probs_dropout_prob", "bos_token_id", "eos_token_id", "pad_token_id")
    values = {key: value for key, value in to_hf_config(config).items() if key not in lacking} | hub
    storage.write_json(str(tmp_path / "config.json"), values)
    found, read = read_model_folder(folder, bare=True)
    assert found == replace(config, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, bos_token_id=0)
    assert set(read) == set(parameters) and all(np.array_equal(read[name], value) for name, value in parameters.items())
    with pytest.raises(ModelError, match="has no tensor cls.predictions.transform.dense.weight.*model.new_head=true"):
        read_model_folder(folder)


def test_published_euroberts_are_read_with_the_code_that_their_folders_name(tmp_path):
    """The keys of the hub's config.json, whose code `transformers` has taken over. None of it is run."""
    config = replace(EUROBERT, rope_theta=250_000.0, max_position_embeddings=8192, mask_token_id=9)
    folder = save_model(tmp_path, random_parameters(config), config)
    classes = {"AutoConfig": "configuration_eurobert.EuroBertConfig", "AutoModel": "modeling_eurobert.EuroBertModel"}
    hub = {"auto_map": classes, "clf_pooling": "late", "head_dim": 12, "rope_scaling": None, "rope_theta": 250_000}
    values = to_hf_config(config) | hub
    del values["rope_parameters"], values["classifier_pooling"]
    storage.write_json(str(tmp_path / "config.json"), values)
    assert read_hf_config(folder) == config
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.arange(4, 20)[None]
    found = ours_forward(build(*read_model_folder(folder)), ids, torch.ones_like(ids), torch.arange(16))
    assert (found[:, :203] - theirs(ids).logits[0]).abs().max() < 1e-5
    storage.write_json(str(tmp_path / "config.json"), values | {"rope_theta": None, "num_key_value_heads": None})
    assert read_hf_config(folder) == replace(config, rope_theta=10_000.0, num_key_value_heads=4)


def test_ultraberts_with_a_window_and_a_base_for_each_layer_are_read(tmp_path):
    """As the first folders have them, beside what `transformers` makes of the same keys."""
    folder = save_model(tmp_path, random_parameters(ULTRABERT), ULTRABERT)
    values = storage.read_json(str(tmp_path / "config.json"))
    for key in ("layer_types", "rope_parameters", "sliding_window"):
        del values[key]
    lists = {"attention_windows": [9, 9, 0, 9, 9], "rope_theta": [70.0, 70.0, 500.0, 70.0, 70.0]}
    storage.write_json(str(tmp_path / "config.json"), values | lists)
    assert read_hf_config(folder) == ULTRABERT
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.arange(4, 44)[None]
    found = ours_forward(build(*read_model_folder(folder)), ids, torch.ones_like(ids), torch.arange(40))
    assert (found[:, :203] - theirs(ids).logits[0]).abs().max() < 1e-5
    storage.write_json(str(tmp_path / "config.json"), values)
    bases = {"rope_theta": 2_560_000.0, "local_rope_theta": 10_000.0}
    assert read_hf_config(folder) == replace(ULTRABERT, local_attention=256, **bases)
    plain = {"layer_types": ["full_attention"] * 5, "sliding_window": 9}
    storage.write_json(str(tmp_path / "config.json"), values | plain)
    assert read_hf_config(folder).local_layers == 0


@pytest.mark.parametrize("kind", ["nomic_bert", "gte", "gte, no token types"])
@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("bare", [True, False])
def test_nomics_and_gtes_are_read_with_either_names(kind, original, bare, reference, tmp_path):
    """`save_pretrained` writes the names of the code that they were published with, unless it is told otherwise."""
    loaded, config = reference[kind], SHAPES[kind]
    theirs = type(loaded)(loaded.config)  # what was loaded with the names of its class is saved with them
    theirs.load_state_dict(loaded.state_dict())
    (theirs.base_model if bare else theirs).save_pretrained(tmp_path, save_original_format=original)
    joined = {name for name in load_file(str(tmp_path / "model.safetensors")) if "qkv" in name}
    assert bool(joined) is original
    if kind == "gte":  # as its published folders begin
        tensors = load_file(str(tmp_path / "model.safetensors"))
        named = {f"new.{name}" if bare else name.replace("gte.", "new."): value for name, value in tensors.items()}
        save_file(named, str(tmp_path / "model.safetensors"), {"format": "pt"})
    read = read_encoder if bare else read_hf_parameters
    found = read(str(tmp_path), replace(read_hf_config(str(tmp_path)), bos_token_id=0))
    expected = random_parameters(config)
    heads = {name for name in expected if bare and name.startswith(("cls.", "lm_head."))}
    assert set(found) == set(expected) - heads
    assert all(np.array_equal(value, expected[name]) for name, value in found.items())


def test_published_nomics_are_read_once_transformers_has_saved_them(tmp_path):
    """Their config.json has other keys, whose values are the defaults of the class, and names code, which stays."""
    base = save_model(tmp_path / "base", random_parameters(NOMIC), NOMIC)
    file = tmp_path / "base" / "config.json"
    code = "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"
    old = {"auto_map": {"AutoModel": code}, "n_embd": 48, "rotary_emb_base": 1000, "activation_function": "swiglu"}
    values = storage.read_json(str(file)) | old
    storage.write_json(str(file), values)
    transformers.AutoModelForMaskedLM.from_pretrained(base).save_pretrained(tmp_path / "again")
    assert "auto_map" in storage.read_json(str(tmp_path / "again" / "config.json"))
    config, found = read_model_folder(str(tmp_path / "again"))
    assert config == NOMIC
    assert all(np.array_equal(found[name], value) for name, value in random_parameters(NOMIC).items())
    storage.write_json(str(file), {key: value for key, value in values.items() if key != "hidden_size"})
    with pytest.raises(
        ModelError, match="keys of the code that it was published with. Fix: load and save it with Nomic"
    ):
        read_hf_config(base)


@pytest.mark.parametrize("kind", ["nomic_bert", "gte, token types"])
def test_masked_lms_read_token_types_beside_rotary_positions(kind, tmp_path):
    config = NOMIC if kind == "nomic_bert" else replace(GTE, type_vocab_size=2)
    folder = save_model(tmp_path, random_parameters(config), config)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids, real, _ = inputs(40, pad=config.pad_token_id)
    types = (torch.arange(40) > 9).long().expand_as(ids)
    positions = torch.arange(40) + config.token_type_stride * types
    with torch.no_grad():
        found = build(config, random_parameters(config))(ids, positions, real, torch.arange(ids.numel()))
        expected = theirs(ids, attention_mask=real, token_type_ids=types).logits.flatten(0, 1)
        plain = theirs(ids, attention_mask=real).logits.flatten(0, 1)
    seen = real.flatten().bool()
    assert (found[:, :203] - expected).abs()[seen].max() < 1e-5 < (plain - expected).abs()[seen].max()


@pytest.mark.parametrize("layer", ["0", "*"])
def test_published_esm2s_are_read_with_all_that_their_folders_hold(layer, tmp_path):
    """A table of positions and a head for contacts that are not used, and speeds of rotary positions in fp16: under the
    name of a layer, as on the hub, or as transformers 5 writes it."""
    parameters = random_parameters(ESM)
    more = {"esm.embeddings.position_embeddings.weight": (42, 48), "esm.contact_head.regression.bias": (1,)}
    tied = {"lm_head.decoder.weight": parameters["esm.embeddings.word_embeddings.weight"]}
    speeds = {f"esm.encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq": next(iter(buffers(ESM).values()))}
    folder = save_model(tmp_path / "plain", parameters, ESM)
    save_file(
        parameters | tied | speeds | {name: np.zeros(shape, np.float32) for name, shape in more.items()},
        str(tmp_path / "plain" / "model.safetensors"),
        {"format": "pt"},
    )
    found, read = read_model_folder(folder)
    assert found == ESM and all(np.array_equal(read[name], value) for name, value in parameters.items())


def test_modernberts_residual_matrices_start_smaller():
    parameters = initial_parameters(replace(MODERNBERT, hidden_size=128, num_hidden_layers=8), seed=0)
    assert parameters["model.layers.3.mlp.Wo.weight"].std() == pytest.approx(0.02 / 4, rel=0.05)
    assert parameters["model.layers.3.mlp.Wi.weight"].std() == pytest.approx(0.02, rel=0.05)


def test_gated_layers_multiply_as_much_as_plain_ones():
    for size in ("mini", "small", "base", "large"):
        kinds = ("roberta", "modernbert")
        plain, gated = (
            model_config(ModelSection(size=size, architecture=kind), 1000, 64).body_parameters for kind in kinds
        )
        assert gated == pytest.approx(plain, rel=0.03)


def test_initialisation_is_robertas():
    big = ModelConfig(5000, 128, 2, 2, 512, 130)
    parameters = initial_parameters(big, seed=5)
    words = parameters["roberta.embeddings.word_embeddings.weight"]
    assert (words[big.pad_token_id] == 0).all()
    assert words[2:].std() == pytest.approx(0.02, rel=0.02)
    assert (parameters["roberta.encoder.layer.1.output.LayerNorm.weight"] == 1).all()
    assert (parameters["lm_head.bias"] == 0).all()
    drawn = [value.tobytes()[:64] for value in parameters.values() if value.ndim == 2 and value[0].any()]
    assert len({*drawn}) == len(drawn) > 12  # each parameter from its own key
    again = initial_parameters(big, seed=5)
    assert all(np.array_equal(parameters[name], again[name]) for name in parameters)
    assert not np.array_equal(words, initial_parameters(big, seed=6)["roberta.embeddings.word_embeddings.weight"])
