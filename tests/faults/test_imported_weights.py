"""Weights as others save them: a wrapper's names, folders one level off, other libraries' files, and pickles, of which
nothing runs."""

import argparse
import io
import json
import os
import pickle
import shlex
import shutil
import sys
import types
import zipfile
from collections import OrderedDict, defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from finetuned import drawn, foxes, save_model
from in_process import SHAPE
from safetensors.numpy import save_file

from maskwright.core.errors import InputError, MaskwrightError, ModelError, VerificationError
from maskwright.model.hf.config import to_hf_config
from maskwright.model.hf.folder import read_model_folder
from maskwright.model.torch.compare import our_model
from maskwright.tasks.importing.weights import import_weights
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import read_vocabulary

MODERN = replace(SHAPE, architecture="modernbert", type_vocab_size=0)


def same(found, expected):
    return all(np.array_equal(found[name], value) for name, value in expected.items())


# ---- names that wrappers begin -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SHAPE, MODERN, replace(SHAPE, architecture="bert", type_vocab_size=2)], ids=str)
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"model.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: f"model.module._orig_mod.{name}",
        lambda name: f"auto_model.{name}",
        lambda name: f"_fsdp_wrapped_module.{name}",
        lambda name: f"_forward_module.model.{name}",
        lambda name: name.replace("layer.0.", "layer.0._orig_mod.").replace("layers.0.", "layers.0._orig_mod."),
        lambda name: f"model.{name}".replace(".dense.", "._checkpoint_wrapped_module.dense."),
    ],
)
def test_names_of_wrappers_are_taken_off(shape, bare, wrapped, tmp_path, capsys):
    weights = drawn(shape)
    prefix = next(iter(weights)).partition(".")[0] + "."
    if bare:
        weights = {name: value for name, value in weights.items() if name.startswith(prefix)}
    written = {wrapped(name.removeprefix(prefix) if bare else name): value for name, value in weights.items()}
    found = read_model_folder(save_model(tmp_path / "x", written, shape), bare=True)[1]
    assert same(found, weights) and found.keys() == weights.keys()
    native = {name.removeprefix(prefix) for name in weights} if bare else weights.keys()
    plain = written.keys() == native or (bare and written.keys() == weights.keys())  # `model.` is ModernBERT's own
    assert ("is a wrapper's prefix, which is removed" in capsys.readouterr().err) != plain


@pytest.mark.parametrize(
    ("wrapped", "what"),
    [
        (lambda name, n: f"module.{name}" if n % 2 else name, "has module.roberta."),
        (lambda name, n: f"net.{name}", "has net.roberta.embeddings.word_embeddings.weight in place of"),
        (lambda name, n: f"base_model.model.{name.replace('query', 'query.lora_A')}", "an adapter's weights"),
    ],
)
def test_names_that_may_mean_something_are_refused(wrapped, what, tmp_path):
    weights = {wrapped(name, n): value for n, (name, value) in enumerate(drawn(SHAPE).items())}
    with pytest.raises(ModelError, match=what):
        read_model_folder(save_model(tmp_path / "x", weights, SHAPE))
    beside = save_model(tmp_path / "beside", drawn(SHAPE), SHAPE)
    (tmp_path / "beside" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"an adapter's weights.*; if it is merged, remove adapter_config.json"):
        read_model_folder(beside)
    twice = {f"_orig_mod.{name}": value for name, value in drawn(SHAPE).items()} | drawn(SHAPE)
    with pytest.raises(ModelError, match=r"its architecture lacks: _orig_mod\.lm_head"):
        read_model_folder(save_model(tmp_path / "x", twice, SHAPE))


# ---- folders that are no model's -----------------------------------------------------------------------------------


def files(*names, keep=True, content=b"x"):
    """Puts files into the folder in place of its weights and, without `keep`, of its config.json."""

    def make(folder):
        for name in ("model.safetensors", *(() if keep else ("config.json",))):
            (folder / name).unlink()
        for name in names:
            (folder / name).write_bytes(content)
        return folder

    return make


def above(*names):
    """The folder around models of these names."""

    def make(folder):
        around = folder.parent / "around"
        for name in names:
            shutil.copytree(folder, around / name)
        return around

    return make


def below(name, content=None):
    def make(folder):
        (folder / name).mkdir()
        if content is not None:
            (folder / name / "config.json").write_text(content)
        return folder / name

    return make


def hollow(begin, *parts):
    """Weights as ZeRO-3 leaves them where they are saved without being gathered: two of them have no numbers."""

    def make(folder):
        weights = {f"{begin}{name}": value for name, value in drawn(SHAPE).items()}
        weights |= {name: np.empty(0, np.float16) for name in list(weights)[:2]}
        save_file(weights, str(folder / "model.safetensors"))
        for name in parts:
            (folder / name).mkdir()
            (folder / name / "zero_to_fp32.py").touch()
        return folder

    return make


def share_of_one(folder):
    save_file({"encoder._flat_param": np.ones(9, np.float32)}, str(folder / "model.safetensors"))
    return folder


ADAPTER = json.dumps({"base_model_name_or_path": "bert-base-uncased", "task_type": "SEQ_CLS"}).encode()
OTHERS = {
    "Trainer": (
        above("checkpoint-500", "checkpoint-1000"),
        "has no config.json",
        "/checkpoint-1000 (or checkpoint-500)",
    ),
    "sentence-transformers": (above("0_Transformer"), "has no config.json", "inside it: {}/0_Transformer"),
    "cache": (above("snapshots/0123abc"), "has no config.json", "inside it: {}/snapshots/0123abc"),
    "pooling": (below("1_Pooling", '{"word_embedding_dimension": 32}'), "model_type is None", "above it: {parent}"),
    "inside": (below("tokenizer"), "is empty", "give the folder above it: {parent}"),
    "adapter": (
        files("adapter_config.json", keep=False, content=ADAPTER),
        "is an adapter",
        "AutoModelForSequenceClassification.from_pretrained('bert-base-uncased', num_labels=N)",
    ),
    "TensorFlow": (
        files("tf_model.h5"),
        "holds TensorFlow weights (tf_model.h5)",
        "from_pretrained('{}', from_tf=True)",
    ),
    "Google's BERT": (
        files("bert_model.ckpt.index", "bert_config.json", "bert_model.ckpt.meta", keep=False),
        "holds TensorFlow weights (bert_model.ckpt.index)",
        "from_pretrained('{}/bert_model.ckpt.index', from_tf=True, config=BertConfig.from_json_file('{}/bert_config",
    ),
    "Flax": (files("flax_model.msgpack"), "holds Flax weights", "from_flax=True"),
    "GGUF": (files("m.Q4.gguf", keep=False), "holds m.Q4.gguf, which can be used", "that it was made from"),
    "ONNX": (files("model.onnx"), "holds model.onnx, which can be used", "that it was made from"),
    "OpenVINO": (files("openvino_model.bin"), "holds openvino_model.bin", "that it was made from"),
    "DeepSpeed": (files("zero_to_fp32.py"), "DeepSpeed in parts", "python zero_to_fp32.py . NEW"),
    "ZeRO-3": (hollow(""), "2 of its", "checkpoint of that training with zero_to_fp32.py, or train again with st"),
    "ZeRO-3, wrapped, its parts beside it": (
        hollow("model.", "checkpoint-20", "checkpoint-100"),
        "DeepSpeed's ZeRO-3 had spread them",
        "python zero_to_fp32.py . NEW, in {}/checkpoint-100; then copy config.json",
    ),
    "FSDP's share": (share_of_one, "of a model that FSDP spread over several (encoder._flat_param)", "FULL_STATE_DICT"),
    "FSDP": (files("__0_0.distcp"), "sharded checkpoint of FSDP", "accelerate merge-weights {} NEW"),
    "pickle": (
        files("pytorch_model.bin", "optimizer.pt"),
        "holds pickled weights",
        "maskwright import weights {} --to",
    ),
    "rest of a training": (files("optimizer.pt", "training_args.bin"), "has no model.safetensors", "save_pretrained"),
    "other name": (files("weights.safetensors"), "but weights.safetensors", "rename that file"),
    "no list": (files("model-00001-of-00002.safetensors"), "not their list", "model.safetensors.index.json too"),
    "interrupted": (files("starts.json", "lock", keep=False), "interrupted before it began", "start its command again"),
    "no config": (files("m.safetensors", keep=False), "has no config.json next to its weights", "put config.json"),
    "fairseq": (files("checkpoint_best.pt", keep=False), "next to its pickled weights", "{}/checkpoint_best.pt --to"),
    "pointer": (
        files("model.safetensors", content=b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "is a pointer of Git LFS",
        "git lfs pull",
    ),
    "a file": (lambda folder: folder / "model.safetensors", "is a file", "give its folder, {parent}"),
    "a pickle": (lambda folder: files("a.pt")(folder) / "a.pt", "pickled weights", "maskwright import weights {} --to"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_model_folder_is_named_for_what_it_is(name, cli, folder, config_file, tmp_path):
    make, what, fix = OTHERS[name]
    given = make(folder)
    for command in (
        ("fill", given, "a <mask>"),
        ("pretrain", config_file(model={"init_from": str(given)}), "--run", tmp_path / "out"),
    ):
        result = cli(*command)
        assert result.code == 2 and what in result.error.partition(". Fix: ")[0], result.err
        assert fix.replace("{}", str(given)).format(parent=given.parent) in result.error.partition(". Fix: ")[2]


def test_a_folder_that_a_fix_names_is_read(cli, folder):
    result = cli("fill", above("checkpoint-9", "checkpoint-10")(folder), "a <mask>")
    assert cli("fill", result.error.partition("inside it: ")[2].partition(" (or")[0], "a <mask>").code == 0


def test_shards_that_are_not_here_are_counted(folder):
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    (folder / "model.safetensors").rename(folder / names[0])
    index = {"weight_map": {str(number): name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError) as refused:
        read_model_folder(str(folder))
    assert "lists 3 files, and 2 of them are not here" in refused.value.what
    assert refused.value.fix == f"copy it and {names[2]} too" and str(refused.value.where).endswith(names[1])


# ---- pickled weights -----------------------------------------------------------------------------------------------


def pickled_folder(folder, state, name="pytorch_model.bin", **how):
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(state, folder / name, **how)
    return folder


def two_files(folder, state):
    names = [*state]
    first, second = names[::2], names[1::2]
    parts = {"pytorch_model-00001-of-00002.bin": first, "pytorch_model-00002-of-00002.bin": second}
    for file, part in parts.items():
        pickled_folder(folder, {name: state[name] for name in part}, file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def tied(state):
    return state | {
        "lm_head.decoder.weight": state["roberta.embeddings.word_embeddings.weight"],
        "lm_head.decoder.bias": state["lm_head.bias"],
        "roberta.embeddings.position_ids": torch.arange(34)[None],
    }


def lightning(folder, state):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    checkpoint = {
        "state_dict": {f"model.{name}": value for name, value in state.items()},
        "hyper_parameters": {"args": argparse.Namespace(rate=0.1)},
        "optimizer_states": [optimizer.state_dict()],
        "callbacks": defaultdict(dict),
    }
    return pickled_folder(folder, checkpoint, "last.ckpt") / "last.ckpt"


def bare(state):
    inside = {name.removeprefix("roberta."): value for name, value in state.items() if name.startswith("roberta.")}
    return inside | {"pooler.dense.weight": torch.ones(32, 32), "pooler.dense.bias": torch.ones(32)}


SAVED = {
    "as it is": lambda folder, state: pickled_folder(folder, state),
    "before torch 1.6": lambda folder, state: pickled_folder(folder, state, _use_new_zipfile_serialization=False),
    "OrderedDict of parameters": lambda folder, state: pickled_folder(
        folder, OrderedDict((name, torch.nn.Parameter(value)) for name, value in state.items())
    ),
    "two files": two_files,
    "tied weights and positions": lambda folder, state: pickled_folder(folder, tied(state)),
    "averaged": lambda folder, state: pickled_folder(
        folder, {"n_averaged": torch.tensor(3), **{f"module.{name}": value for name, value in state.items()}}
    ),
    "Lightning": lightning,
    "DeepSpeed": lambda folder, state: pickled_folder(folder, {"module": state, "dp_world_size": 1}, "states.pt"),
    "parts of larger tensors": lambda folder, state: pickled_folder(
        folder, {name: torch.stack([value, value], -1)[..., 0] for name, value in state.items()}
    ),
}


@pytest.mark.parametrize("how", SAVED)
def test_pickled_weights_are_imported_number_by_number(how, cli, folder, tmp_path):
    weights = drawn(SHAPE)
    source = SAVED[how](folder, {name: torch.from_numpy(value) for name, value in weights.items()})
    result = cli("import", "weights", source, "--to", tmp_path / "new", "--json")
    assert result.code == 0, result.err
    made = json.loads(result.out)
    assert made["difference"] < 1e-5 and made["has_tokenizer"] and made["left_out"] == []
    original = how not in ("averaged", "Lightning", "DeepSpeed")  # which transformers does not read as they are
    assert made["compared_with"] == str(folder if original else tmp_path / "new")
    assert same(read_model_folder(str(tmp_path / "new"))[1], weights)
    assert cli("fill", tmp_path / "new", "a <mask>").code == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_pickled_weights_of_other_precisions_are_imported(dtype, folder, tmp_path):
    state = {name: torch.from_numpy(value).to(dtype) for name, value in drawn(SHAPE).items()}
    made = import_weights(str(pickled_folder(folder, state)), str(tmp_path / "new"))
    expected = {name: value.to(torch.float32).numpy() for name, value in state.items()}
    assert same(read_model_folder(made.folder)[1], expected) and made.difference < 1e-5


@pytest.mark.parametrize(("by", "is_taken"), [(0.5e-4, True), (2e-4, False), (np.nan, False)])
def test_weights_that_compute_otherwise_than_in_transformers_are_not_imported(
    by, is_taken, folder, tmp_path, monkeypatch
):
    def lifted(*given, **named):
        config, parameters = read_model_folder(*given, **named)
        return config, parameters | {"lm_head.bias": parameters["lm_head.bias"] + np.float32(by)}

    monkeypatch.setattr("maskwright.tasks.importing.weights.read_model_folder", lifted)
    state = {name: torch.from_numpy(value) for name, value in drawn(SHAPE).items()}
    with (
        nullcontext()
        if is_taken
        else pytest.raises(VerificationError, match=r"differ from transformers' by (0\.0002|nan)")
    ):
        import_weights(str(pickled_folder(folder, state)), str(tmp_path / "new"))
    assert (tmp_path / "new").exists() is is_taken


@pytest.mark.parametrize("task", [None, "single_label_classification"])
def test_the_next_lines_are_for_the_head_that_the_weights_have(task, cli, folder, config_file, tmp_path, monkeypatch):
    """Each line that is printed works when it is typed, also where the folder's name is a number to YAML."""
    monkeypatch.chdir(tmp_path)
    state = {name: torch.from_numpy(value) for name, value in drawn(SHAPE).items()}
    if task:
        shape = replace(SHAPE, task=task, num_labels=3)
        (folder / "config.json").write_text(json.dumps(to_hf_config(shape, ["a", "b", "c"])))
        state = {name: torch.from_numpy(value) for name, value in drawn(shape).items()}
    pickled_folder(folder, state if task else bare(state))
    asked = cli("import", "weights", folder, "--to", "2024")
    assert asked.code == 0 and ("has the head of" if task else "is a bare encoder") in asked.err
    (tmp_path / "texts.csv").write_text("text\na fox\n")
    given = {"FILE": tmp_path / "texts.csv"}
    lines = [shlex.split(line) for line in asked.out.partition("Next:")[2].strip().splitlines()]
    assert [line[1] for line in lines] == ["predict" if task else "embed", "pretrain", "finetune"]
    for line in lines:
        config = foxes(tmp_path) if line[1] == "finetune" else config_file()
        values = given | {"CONFIG": config, "RUN": tmp_path / line[1]}
        result = cli(*(values.get(word, word) for word in line[1:]))
        assert result.code == 0, result.err


@pytest.mark.parametrize(
    "emptied",
    [lambda _: torch.empty(0), lambda _: torch.ones(1), lambda value: value if value.ndim == 1 else value[:0]],
)
def test_what_zero_3_left_of_pickled_weights_is_named(emptied, cli, folder, tmp_path):
    state = {f"module.{name}": emptied(torch.from_numpy(value)) for name, value in drawn(SHAPE).items()}
    result = cli("import", "weights", pickled_folder(folder, state), "--to", tmp_path / "new")
    assert result.code == 2 and "DeepSpeed's ZeRO-3 had spread them" in result.error, result.err
    assert not (tmp_path / "new").exists()


# ---- fairseq -------------------------------------------------------------------------------------------------------

ROWS, WIDTH, HEADS, INNER, POSITIONS = 400, 32, 2, 64, 34
PARTS = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.position_embeddings": "embed_positions",
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
    "encoder.layer": "layers",
    "lm_head.decoder": "lm_head",
}
"""Names of transformers' RoBERTa and fairseq's for the same, as transformers' own converter pairs them."""


def roberta():
    """Of two layers. None of its weights is 0 or 1, but those of token types, which fairseq does not have."""
    shape = {"vocab_size": ROWS, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    shape |= {"intermediate_size": INNER, "max_position_embeddings": POSITIONS, "type_vocab_size": 1}
    model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**shape, layer_norm_eps=1e-5)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator) + name.lower().endswith("norm.weight"))
            weight *= "token_type" not in name
    return model


def fairseq_state(*, old):
    """Its weights under the names of fairseq 0.8 or of its last version."""
    begin, norm = ("decoder.", "emb_layer_norm") if old else ("encoder.", "layernorm_embedding")
    state = {f"{begin}sentence_encoder.version": torch.tensor([3.0])}
    for name, value in roberta().state_dict().items():
        for theirs, ours in {"embeddings.LayerNorm": norm, **PARTS}.items():
            name = name.replace(theirs, ours)
        if "token_type" not in name and "position_ids" not in name and name != "lm_head.decoder.bias":
            state[
                begin + name.replace("roberta.encoder.", "sentence_encoder.").replace("roberta.", "sentence_encoder.")
            ] = value
    if old:
        for layer in (f"{begin}sentence_encoder.layers.{number}.self_attn." for number in range(2)):
            for kind in ("weight", "bias"):
                state[f"{layer}in_proj_{kind}"] = torch.cat([state.pop(f"{layer}{role}_proj.{kind}") for role in "qkv"])
    return state


SETTINGS = {
    "arch": "roberta_base",
    "encoder_attention_heads": HEADS,
    "activation_fn": "gelu",
    "dropout": 0.2,
    "attention_dropout": 0.05,
}


class Node:
    """Stands for classes of omegaconf, and of fairseq, while a file is written."""

    def __init__(self, **state):
        self.__dict__.update(state)


@pytest.fixture
def node():
    """`Node` as a class of a module that is gone when the file is read."""
    module = types.ModuleType("omegaconf.dictconfig")
    kind = type("DictConfig", (Node,), {"__module__": module.__name__})
    module.DictConfig = kind
    sys.modules |= {"omegaconf": types.ModuleType("omegaconf"), module.__name__: module}
    yield kind
    for name in ("omegaconf", module.__name__):
        sys.modules.pop(name, None)


def checkpoint(kind, state, node):
    content = {key: node(_val=value, _parent=None) for key, value in SETTINGS.items()}
    settings = {
        "args": {"args": argparse.Namespace(**SETTINGS)},
        "cfg": {"args": None, "cfg": {"_name": None, "model": argparse.Namespace(**SETTINGS)}},
        "omegaconf": {"args": None, "cfg": node(_content={"model": node(_content=content)})},
    }[kind]
    moments = {number: {"exp_avg": torch.ones(3, 3), "step": 2} for number in range(2)}
    more = {"extra_state": {"best": np.float64(2.0)}, "last_optimizer_state": {"state": moments}}
    return {**settings, "model": state, **more}


@pytest.mark.parametrize(
    ("kind", "old", "how"),
    [
        ("args", True, {"_use_new_zipfile_serialization": False}),
        ("args", False, {}),
        ("cfg", False, {}),
        ("omegaconf", False, {}),
    ],
)
def test_a_roberta_of_fairseq_speaks_as_before(kind, old, how, node, cli, tmp_path):
    state = fairseq_state(old=old)
    classifier = {"classification_heads.mnli.dense.weight": torch.ones(WIDTH, WIDTH)}
    path = tmp_path / "checkpoint_best.pt"
    torch.save(checkpoint(kind, state | classifier, node), path, **how)
    if kind == "cfg":
        (tmp_path / "sentencepiece.bpe.model").write_bytes(b"pieces")
    for name in ("omegaconf", "omegaconf.dictconfig"):
        sys.modules.pop(name)
    result = cli("import", "weights", path, "--to", tmp_path / "new", "--json")
    assert result.code == 0, result.err
    made = json.loads(result.out)
    assert made["left_out"] == [*classifier] and made["difference"] < 1e-4
    assert "omegaconf" not in sys.modules
    config, parameters = read_model_folder(str(tmp_path / "new"))
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.2, 0.05)
    assert config.architecture == ("xlm-roberta" if kind == "cfg" else "roberta")
    assert (tmp_path / "new" / "sentencepiece.bpe.model").exists() == (kind == "cfg")
    ids = np.random.default_rng(0).integers(4, ROWS, (1, POSITIONS - 2))
    ours = our_model(config, parameters)(ids, np.ones_like(ids), np.zeros_like(ids))[0]
    with torch.no_grad():
        theirs = roberta()(torch.from_numpy(ids)).logits[0].numpy()
    assert np.abs(ours - theirs).max() < 1e-4


def test_fairseqs_dictionary_becomes_the_tokenizer(tokenizer, node, cli, tmp_path):
    """A dictionary is in the order of its counts, GPT-2's numbers are not."""
    model = json.loads((Path(tokenizer) / "tokenizer.json").read_text())["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    pieces = [piece for piece in model["vocab"] if not piece.startswith("<")]
    encoder = {piece: number for number, piece in enumerate(pieces)}
    order = np.random.default_rng(1).permutation(len(pieces)).tolist()
    folder = tmp_path / "fairseq"
    folder.mkdir()
    (folder / "encoder.json").write_text(json.dumps(encoder))
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    words = [*(str(number) for number in order), *(f"madeupword{n:04d}" for n in range(ROWS - 5 - len(order)))]
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    state = fairseq_state(old=False)
    torch.save(checkpoint("args", state, node), folder / "model.pt")
    result = cli("import", "weights", folder, "--to", tmp_path / "new", "--json")
    assert result.code == 0 and json.loads(result.out)["has_tokenizer"], result.err
    text = "the quick fox sees a dog"
    expected = load_tokenizer(tokenizer, special_tokens_are_text=False).encode(text, add_special_tokens=False).tokens
    found = load_tokenizer(str(tmp_path / "new"), special_tokens_are_text=False).encode(text, add_special_tokens=False)
    assert found.tokens == expected and found.ids == [4 + order.index(encoder[token]) for token in expected]
    vocabulary = read_vocabulary(str(tmp_path / "new"))
    assert (vocabulary.bos, vocabulary.pad, vocabulary.eos, vocabulary.unk, vocabulary.mask) == (0, 1, 2, 3, ROWS - 1)
    assert cli("fill", tmp_path / "new", "a <mask>").code == 0
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in words[:-9]))
    refused = cli("import", "weights", folder, "--to", tmp_path / "other")
    assert f"makes {ROWS - 9} ids with <mask>, the weights have {ROWS}" in refused.error
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda state: state | {"encoder.sentence_encoder.layer_norm.weight": torch.ones(WIDTH)}, "layer_norm.weight"),
        (lambda state: state | {"encoder.lm_head.weight": torch.ones(ROWS, WIDTH)}, "is not tied to"),
        (lambda state: {n: v for n, v in state.items() if "embed_positions" not in n}, "position_embeddings"),
        (lambda state: {n: v for n, v in state.items() if "layers.0.fc2.bias" not in n}, "has no tensor"),
        (lambda state: {f"encoder.{n}": torch.ones(3, 3) for n in "ab"}, "has no config.json next to it"),
    ],
)
def test_another_model_of_fairseq_is_refused(change, what, node, tmp_path):
    torch.save(checkpoint("cfg", change(fairseq_state(old=False)), node), tmp_path / "x.pt")
    with pytest.raises(MaskwrightError) as refused:
        import_weights(str(tmp_path / "x.pt"), str(tmp_path / "new"))
    assert what in str(refused.value) and str(tmp_path) in str(refused.value) and ".tmp-" not in str(refused.value)
    assert os.listdir(tmp_path) == ["x.pt"]


# ---- pickles that are meant to harm, or are no weights ---------------------------------------------------------------


class Runs:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def saved(content, **how):
    return lambda path: torch.save(content, path, **how)


def harmful(mark):
    tensors = {"a": torch.ones(3, 3)}
    system = Runs(os.system, f"touch {mark}")
    stretched = torch.ones(1).expand(200_000, 200_000)

    def behind_an_archive(path):
        """Of which zipfile reads the end, and torch the beginning."""
        torch.save({"a": system}, path, _use_new_zipfile_serialization=False)
        archive = io.BytesIO()
        torch.save(tensors, archive)
        path.write_bytes(path.read_bytes() + archive.getvalue())

    def two_pickles(path):
        torch.save(tensors, path)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("other/data.pkl", pickle.dumps(system, 2))

    return {
        "system": saved({"a": system}),
        "system, before torch 1.6": saved({"a": system}, _use_new_zipfile_serialization=False),
        "eval": saved({**tensors, "args": Runs(eval, f"open({str(mark)!r}, 'w')")}),
        "getattr": saved({**tensors, "args": Runs(getattr, "x", "upper")}),
        "a function of a package of settings": saved(
            {**tensors, "args": Runs(np.save, str(mark), np.ones(3)), "b": Runs(np.asarray, [1])}
        ),
        "a class's own": saved({**tensors, "args": Runs(Path(str(mark)).touch)}),
        "whole model": saved(torch.nn.Linear(2, 2)),
        "script": lambda path: torch.jit.script(torch.nn.Linear(2, 2)).save(str(path)),
        "pickle": lambda path: path.write_bytes(pickle.dumps({"a": np.ones(3)})),
        "pickle of a call": lambda path: path.write_bytes(pickle.dumps(system)),
        "protocol 4": saved({"a": system}, pickle_protocol=4),
        "behind an archive": behind_an_archive,
        "two pickles": two_pickles,
        "cut off": lambda path: (torch.save(tensors, path), path.write_bytes(path.read_bytes()[:300])),
        "empty": lambda path: path.write_bytes(b""),
        "pointer": lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 9\n"),
        "no tensors": saved({"lr": 3.0, "epochs": [1, 2]}),
        "a tensor": saved(torch.ones(3, 3)),
        "more numbers than bytes": saved({"a": stretched}),
        "quantised": lambda path: torch.save(
            {"a": torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8), **tensors}, path
        ),
        "integers": saved({"a": torch.ones(3, 3, dtype=torch.int8)}),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", harmful(Path("x")))
def test_nothing_of_a_pickle_runs(name, cli, folder, tmp_path):
    mark = tmp_path / "mark.npy"
    (folder / "model.safetensors").unlink()
    harmful(mark)[name](folder / "pytorch_model.bin")
    result = cli("import", "weights", folder, "--to", tmp_path / "new")
    assert result.code == 2 and len(result.error) < 700, result.err
    assert str(folder) in result.error and "weights_only" not in result.error
    assert not mark.exists() and not (tmp_path / "new").exists()
    assert not [entry for entry in os.listdir(tmp_path) if ".tmp-" in entry]


def test_which_of_several_files_is_asked(folder, tmp_path):
    state = {name: torch.from_numpy(value) for name, value in drawn(SHAPE).items()}
    with pytest.raises(InputError, match="has safetensors already"):
        import_weights(str(folder), str(tmp_path / "new"))
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        pickled_folder(folder, state, name)
    with pytest.raises(InputError, match="has 2 files of weights"):
        import_weights(str(folder), str(tmp_path / "new"))
    assert import_weights(str(folder / "checkpoint_best.pt"), str(tmp_path / "new")).tensors == len(state)
