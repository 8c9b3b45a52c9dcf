"""An encoder with its head as an ONNX graph of standard operators, on one page.

The graph is built from the shape and the parameters, not traced, so no trace of an example input (a length, a mask
without padding, a batch of one) can remain in it. Inputs and outputs have the names that `optimum` gives them.

B rows, T tokens, D width, H heads, h width of a head, F inner width, V vocabulary, C outputs of a classifier.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from maskwright.core.console import human_bytes
from maskwright.core.errors import InputError
from maskwright.model import relative, rotary
from maskwright.model.config import SEQUENCE_TASKS, TRAINED_MASK_SHARE, ModelConfig
from maskwright.model.hf.names import Parameters, pieces

OPSET, IR_VERSION = 20, 9
"""The first opset with Gelu; onnxruntime has it since 1.17."""
INPUTS = ("input_ids", "attention_mask")
"""int64 [B, T] each, as tokenizers of `transformers` return them; `input_names` adds a third for BERT."""
LARGEST_FILE = 2**31 - 1
"""protobuf's limit in bytes."""


def write(config: ModelConfig, parameters: Parameters, path: str) -> None:
    """Writes the model to `path`. Raises `InputError` for a model that a single file cannot hold."""
    if (size := sum(value.nbytes for value in parameters.values())) > LARGEST_FILE:
        what = f"the parameters need {human_bytes(size)}, but an ONNX file holds at most {human_bytes(LARGEST_FILE)}"
        raise InputError(what, fix="export without --onnx")
    model = make_model(config, parameters)
    onnx.checker.check_model(model, full_check=True)
    onnx.save_model(model, path)


def input_names(config: ModelConfig) -> tuple[str, ...]:
    return (*INPUTS, "token_type_ids") if config.token_type_stride else INPUTS


def output_names(config: ModelConfig) -> tuple[str, ...]:
    """Names of the outputs: fp32 [B, T, V or C], for tasks of whole texts [B, C], for questions [B, T] each."""
    return ("start_logits", "end_logits") if config.task == "question_answering" else ("logits",)


def make_model(config: ModelConfig, parameters: Parameters) -> onnx.ModelProto:
    """The fp32 model for any B and T."""
    graph = Graph(config, parameters)
    graph.outputs(graph.head(graph.encode()))
    batch_shape = ["batch_size", "sequence_length"]
    shape: list[str | int] = [*batch_shape[: 1 if config.task in SEQUENCE_TASKS else 2]]
    if config.task != "question_answering":
        shape.append(config.outputs)
    graph_proto = helper.make_graph(
        graph.nodes,
        f"{config.architecture}_{config.task}",
        [helper.make_tensor_value_info(name, TensorProto.INT64, batch_shape) for name in input_names(config)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in output_names(config)],
        [numpy_helper.from_array(value, name) for name, value in graph.constants.items()],
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph_proto, opset_imports=[opset], ir_version=IR_VERSION, producer_name="maskwright")


class Distances(NamedTuple):
    """Names of the inputs by which all layers of a DeBERTa add their terms, for texts of T tokens."""

    behind: str
    ahead: str
    """[2 T] each: rows of the table of relative positions, as in `model/torch/relative.py`."""
    first: str
    last: str
    shape: str
    length: str
    """How `along_the_row` cuts and shapes."""


class Graph:
    """A graph under construction. Methods add nodes, and return the names of their results."""

    def __init__(self, config: ModelConfig, parameters: Parameters) -> None:
        self.config = config
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        parts: dict[str, list[np.ndarray]] = {}
        for piece in pieces(config):  # pieces of one inner parameter come in the order of its rows
            parts.setdefault(piece.name, []).append(parameters[piece.hf_name])
        self.parameters = {name: np.concatenate(arrays) for name, arrays in parts.items()}

    # ---- parts ---------------------------------------------------------------------------------------------------

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        return self.several(operator, 1, *inputs, **attributes)[0]

    def several(self, operator: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        name = f"{operator}_{len(self.nodes)}"
        results = [f"{name}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, results, name, **attributes))
        return results

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.ascontiguousarray(value)
        return name

    def integers(self, *values: int) -> str:
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, np.int64))

    def integer(self, value: int) -> str:
        return self.constant(f"integer_{value}", np.array(value, np.int64))

    def number(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def linear(self, x: str, name: str) -> str:
        product = self.add("MatMul", x, self.constant(f"{name}.weight", self.parameters[f"{name}.weight"].T))
        bias = self.parameters.get(f"{name}.bias")
        return product if bias is None else self.add("Add", product, self.constant(f"{name}.bias", bias))

    def norm(self, x: str, name: str) -> str:
        scale = self.parameters[f"{name}.weight"]
        if not self.config.facts.centred:
            squares = self.add("ReduceMean", self.add("Mul", x, x), self.integers(-1))
            root = self.add("Sqrt", self.add("Add", squares, self.number("eps", self.config.layer_norm_eps)))
            return self.add("Mul", self.add("Div", x, root), self.constant(f"{name}.weight", scale))
        bias = self.parameters.get(f"{name}.bias", np.zeros_like(scale))  # onnxruntime 1.17 crashes without one
        names = self.constant(f"{name}.weight", scale), self.constant(f"{name}.bias", bias)
        return self.add("LayerNormalization", x, *names, epsilon=self.config.layer_norm_eps)

    def first(self, x: str, axis: int) -> str:
        """The first token alone; the axis stays."""
        return self.add("Slice", x, self.integers(0), self.integers(1), self.integers(axis))

    # ---- the encoder ---------------------------------------------------------------------------------------------

    def encode(self) -> str:
        """[B, T, D], or [B, 1, D] if only the first token is read: the last layer is computed for it alone."""
        config = self.config
        x = self.add("Gather", self.constant("word.weight", self.parameters["word.weight"]), INPUTS[0])
        if config.facts.relative == "terms":
            x = self.add_positions(x)
        elif config.facts.rotary:
            x = self.add_types(x) if config.has_token_types else x
        else:
            x = self.add("Add", x, self.positions())
        if config.token_dropout:
            x = self.add("Mul", x, self.token_dropout())
        if config.facts.norms_embeddings:
            x = self.norm(x, "norm")
        seen = self.add("Cast", self.add("Unsqueeze", INPUTS[1], self.integers(1, 2)), to=TensorProto.BOOL)
        lowest = self.number("lowest", float(np.finfo(np.float32).min))
        bias = self.add("Where", seen, self.number("zero", 0.0), lowest)
        if config.facts.relative == "bias":
            bias = self.add("Add", bias, self.relative_bias())
        rotation = self.rotation(config.rope_theta) if config.facts.rotary else None
        distances = self.row_of_distances() if config.facts.relative == "terms" else None
        views = [(bias, rotation or distances)] * config.num_hidden_layers
        if config.local_layers:
            nearby = self.add("Where", self.nearby(), bias, "lowest"), self.rotation(config.local_rope_theta)
            views = [nearby if config.is_local(number) else view for number, view in enumerate(views)]
        for number, view in enumerate(views):
            reads_first = config.task in SEQUENCE_TASKS and not config.pools
            only_first = number == config.num_hidden_layers - 1 and reads_first
            if number == 0 and config.conv_kernel_size:
                x = self.convolved(x, self.layer(x, number, *view, only_first=False), seen)
                x = self.first(x, 1) if only_first else x
            else:
                x = self.layer(x, number, *view, only_first=only_first)
        return self.norm(x, "final_norm") if config.facts.norm_first else x

    def positions(self) -> str:
        """[B, T, D]: `transformers` counts the tokens that are not padding, from the padding's id on, except in BERT
        and DistilBERT, which number every place."""
        table = self.parameters["position.weight"]
        if self.config.token_type_stride:
            types = self.constant("token_type.weight", self.parameters["token_type.weight"])
            return self.add("Add", self.add("Gather", types, "token_type_ids"), self.first_rows(table))
        if self.config.type_vocab_size:
            table = table + self.parameters["token_type.weight"][0]
        if not self.config.facts.first_position_after_padding:
            return self.first_rows(table)
        pad = self.integer(self.config.pad_token_id)
        real = self.add("Cast", self.add("Not", self.add("Equal", INPUTS[0], pad)), to=TensorProto.INT64)
        counted = self.add("Mul", self.add("CumSum", real, self.integer(1)), real)
        return self.add("Gather", self.constant("position.weight", table), self.add("Add", counted, pad))

    def add_positions(self, x: str) -> str:
        """[B, T, D]: DeBERTa's embeddings, with the embeddings of places and of token types if it has such tables."""
        if self.config.position_biased_input:
            x = self.add("Add", x, self.first_rows(self.parameters["position.weight"]))
        return self.add_types(x) if self.config.has_token_types else x

    def add_types(self, x: str) -> str:
        """[B, T, D], with the embeddings of token types."""
        types = self.parameters["token_type.weight"]
        if not self.config.token_type_stride:
            return self.add("Add", x, self.constant("token_type.weight", types[0]))
        table = self.constant("token_type.weight", types)
        return self.add("Add", x, self.add("Gather", table, "token_type_ids"))

    def convolved(self, embedded: str, x: str, seen: str) -> str:
        """[B, T, D]: the convolution of the embeddings, to which padding is zero, added to the first layer's result."""
        real = self.add("Unsqueeze", self.add("Cast", INPUTS[1], to=TensorProto.FLOAT), self.integers(-1))
        by_width = self.add("Transpose", self.add("Mul", embedded, real), perm=[0, 2, 1])
        names = [self.constant(name, self.parameters[name]) for name in ("conv.weight", "conv.bias")]
        reach = self.config.conv_kernel_size // 2
        out = self.add("Transpose", self.add("Conv", by_width, *names, pads=[reach, reach]), perm=[0, 2, 1])
        return self.norm(self.add("Add", x, self.add("Gelu", out)), "conv_norm")

    def token_dropout(self) -> str:
        """[B, T, 1]: 0 at masks, else the factor of `TRAINED_MASK_SHARE`."""
        is_mask = self.add("Equal", INPUTS[0], self.integer(self.config.mask_token_id))
        axis = self.integers(1)
        masks = self.add("ReduceSum", self.add("Cast", is_mask, to=TensorProto.FLOAT), axis)
        real = self.add("ReduceSum", self.add("Cast", INPUTS[1], to=TensorProto.FLOAT), axis)
        others = self.add("Max", self.add("Sub", real, masks), self.number("one", 1.0))
        scale = self.add("Div", self.add("Mul", real, self.number("trained", 1.0 - TRAINED_MASK_SHARE)), others)
        return self.add("Unsqueeze", self.add("Where", is_mask, self.number("nothing", 0.0), scale), self.integers(-1))

    def first_rows(self, table: np.ndarray) -> str:
        """[T, D]. onnxruntime 1.32 mistakes a Gather by `places` for its pattern of embeddings, which then fails."""
        length = self.add("Gather", self.add("Shape", INPUTS[0]), self.integers(1))
        return self.add("Slice", self.constant("position.weight", table), self.integers(0), length, self.integers(0))

    def places(self) -> str:
        """0 to T - 1."""
        length = self.add("Gather", self.add("Shape", INPUTS[0]), self.integer(1))
        return self.add("Range", self.integer(0), length, self.integer(1))

    def nearby(self) -> str:
        """bool [T, T]: whether two places are within a local layer's window."""
        places = self.places()
        apart = self.add("Sub", self.add("Unsqueeze", places, self.integers(1)), places)
        return self.add("LessOrEqual", self.add("Abs", apart), self.integer(self.config.window))

    def rotation(self, theta: float) -> tuple[str, str]:
        """Cosines and sines, [T, h / 2] each."""
        speeds = rotary.speeds(self.config, theta)
        column = self.add("Unsqueeze", self.add("Cast", self.places(), to=TensorProto.FLOAT), self.integers(1))
        angles = self.add("Mul", column, self.constant(f"speeds_{theta:g}", speeds))
        return self.add("Cos", angles), self.add("Sin", angles)

    def rotate(self, x: str, rotation: tuple[str, str]) -> str:
        cos, sin = rotation
        first, second = self.several("Split", 2, x, axis=-1, num_outputs=2)
        turned = self.add("Sub", self.add("Mul", first, cos), self.add("Mul", second, sin))
        return self.add(
            "Concat", turned, self.add("Add", self.add("Mul", second, cos), self.add("Mul", first, sin)), axis=-1
        )

    def layer(
        self, x: str, number: int, bias: str, places: tuple[str, str] | Distances | None, *, only_first: bool
    ) -> str:
        """`places`: the rotation, or DeBERTa's distances."""
        name, H, D = f"layers.{number}", self.config.num_attention_heads, self.config.hidden_size
        G = self.config.key_value_heads
        is_normed = not self.config.facts.norm_first or (number == 0 and self.config.facts.norms_embeddings)
        normed = x if is_normed else self.norm(x, f"{name}.norm1")
        heads = self.add("Reshape", self.linear(normed, f"{name}.qkv"), self.integers(0, 0, H + 2 * G, D // H))
        qk, v = self.several(
            "Split", 2, self.add("Transpose", heads, perm=[0, 2, 1, 3]), self.integers(H + G, G), axis=1
        )
        distances = places if isinstance(places, Distances) else None
        if places and not isinstance(places, Distances):
            qk = self.rotate(qk, places)
        q, k = self.several("Split", 2, qk, self.integers(H, G), axis=1)
        if G < H:
            served = self.constant("served", np.arange(H) * G // H)
            k, v = (self.add("Gather", x, served, axis=1) for x in (k, v))
        if only_first and not distances:
            q, x = self.first(q, 2), self.first(x, 1)
            by_query = self.config.is_local(number) or self.config.facts.relative
            bias = self.first(bias, 2) if by_query else bias
        scaled = self.add("Mul", q, self.number("scale", self.config.score_scale))
        scores = self.add("MatMul", scaled, self.add("Transpose", k, perm=[0, 1, 3, 2]))
        if distances:
            scores = self.with_distances(scores, scaled, k, name, distances)
            scores, x = (self.first(scores, 2), self.first(x, 1)) if only_first else (scores, x)
        scores = self.add("Add", scores, bias)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        mixed = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), self.integers(0, 0, D))
        x = self.add("Add", x, self.linear(mixed, f"{name}.out"))
        if not self.config.facts.norm_first:
            x = self.norm(x, f"{name}.norm1")
            return self.norm(self.add("Add", x, self.inner(x, name)), f"{name}.norm2")
        return self.add("Add", x, self.inner(self.norm(x, f"{name}.norm2"), name))

    def relative_bias(self) -> str:
        """[H, T, T]: MPNet's number for each distance."""
        rows = relative.bias_rows(self.config, relative.distances_around(self.config.max_seq_len))
        table, places = self.constant("relative", self.parameters["relative.weight"][rows]), self.places()
        apart = self.add("Sub", places, self.add("Unsqueeze", places, self.integers(1)))
        place = self.add("Add", apart, self.integer(self.config.max_seq_len - 1))
        return self.add("Transpose", self.add("Gather", table, place), perm=[2, 0, 1])

    def row_of_distances(self) -> Distances:
        """See `Distances`; for the length of the texts at hand."""
        length = self.add("Gather", self.add("Shape", INPUTS[0]), self.integers(1))
        around = relative.distances_around(self.config.max_seq_len)
        middle, rows = self.integers(self.config.max_seq_len), []
        begin, end = self.add("Sub", middle, length), self.add("Add", middle, length)
        for name, distances in (("behind", -around), ("ahead", around)):
            table = self.constant(name, relative.rows_of(self.config, distances))
            rows.append(self.add("Slice", table, begin, end, self.integers(0)))
        width = self.add("Sub", self.add("Add", length, length), self.integers(1))
        first = self.add("Sub", length, self.integers(1))
        last = self.add("Add", first, self.add("Mul", length, width))
        shape = self.add("Concat", self.integers(0, 0, -1), width, axis=0)
        return Distances(rows[0], rows[1], first, last, shape, length)

    def with_distances(self, scores: str, scaled: str, k: str, name: str, distances: Distances) -> str:
        """Adds a layer's terms of `relative.py` to [B, H, T, T]. Its table as queries and as keys is computed here, not
        in the graph: [2 * span, D] numbers for each term."""
        config, D = self.config, self.config.hidden_size
        weight, bias = (self.parameters[f"{name}.qkv.{part}"] for part in ("weight", "bias"))
        normed = _normed(self.parameters["relative.weight"], config.layer_norm_eps)
        table = normed * self.parameters["relative_norm.weight"] + self.parameters["relative_norm.bias"]
        queries, keys = (table @ weight[part].T + bias[part] for part in (slice(0, D), slice(D, 2 * D)))
        if "c2p" in config.pos_att_type:
            term = self.add("MatMul", scaled, self.by_distance(f"{name}.relative_keys", keys, distances.behind))
            scores = self.add("Add", scores, self.along_the_row(term, distances))
        if "p2c" in config.pos_att_type:
            queries = queries * np.float32(config.score_scale)
            term = self.add("MatMul", k, self.by_distance(f"{name}.relative_queries", queries, distances.ahead))
            term = self.add("Transpose", self.along_the_row(term, distances), perm=[0, 1, 3, 2])
            scores = self.add("Add", scores, term)
        return scores

    def by_distance(self, name: str, table: np.ndarray, rows: str) -> str:
        """[H, h, 2 T]: the table's row for each distance."""
        H = self.config.num_attention_heads
        found = self.add("Gather", self.constant(name, table), rows)
        return self.add("Transpose", self.add("Reshape", found, self.integers(0, H, -1)), perm=[1, 2, 0])

    def along_the_row(self, by_distance: str, distances: Distances) -> str:
        """[B, H, T, 2 T] -> [B, H, T, T], as in `model/torch/relative.py`."""
        flat = self.add("Reshape", by_distance, self.integers(0, 0, -1))
        cut = self.add("Slice", flat, distances.first, distances.last, self.integers(2))
        rows = self.add("Reshape", cut, distances.shape)
        return self.add("Slice", rows, self.integers(0), distances.length, self.integers(3))

    def inner(self, x: str, name: str) -> str:
        up = self.linear(x, f"{name}.up")
        if not self.config.facts.gated:
            return self.linear(self.add("Gelu", up), f"{name}.down")
        value, gate = self.several("Split", 2, up, axis=-1, num_outputs=2)
        active = self.active(value, self.config.facts.activation)
        return self.linear(self.add("Mul", active, gate), f"{name}.down")

    def active(self, x: str, activation: str) -> str:
        """GELU or SiLU of `x`."""
        return self.add("Mul", x, self.add("Sigmoid", x)) if activation == "silu" else self.add("Gelu", x)

    # ---- the head ------------------------------------------------------------------------------------------------

    def head(self, x: str) -> str:
        """Logits. The part before the last matrix is as in `model/torch/heads.py`."""
        task, pooling = self.config.task, self.config.classifier_pooling if self.config.pools else None
        if pooling == "mean":
            x = self.mean(x)
        elif task in SEQUENCE_TASKS and not pooling:
            x = self.add("Squeeze", x, self.integers(1))
        if "head.norm.weight" in self.parameters:
            activation = self.config.facts.masked_lm_activation if task == "masked_lm" else "gelu"
            x = self.norm(self.active(self.linear(x, "head.dense"), activation), "head.norm")
        elif "head.dense.weight" in self.parameters:
            x = self.add(self.config.facts.classifier_activation.capitalize(), self.linear(x, "head.dense"))
        if task != "masked_lm":
            logits = self.linear(x, "head.classifier")
            return self.mean(logits) if pooling == "late" else logits
        for name in ("head.first", "head.second") if self.config.head_hidden_size else ():
            x = self.add("Gelu", self.linear(x, name), approximate="tanh")
        # The embeddings are in the file once: Gemm uses them as they are stored.
        flat = self.add("Reshape", x, self.integers(-1, self.config.hidden_size))
        matrix, bias = "word.weight", []
        if "head.bias" in self.parameters:
            bias = [self.constant("head.bias", self.parameters["head.bias"])]
        if "head.decoder.weight" in self.parameters:
            matrix = self.constant("head.decoder.weight", self.parameters["head.decoder.weight"])
        logits = self.add("Gemm", flat, matrix, *bias, transB=1)
        shape = self.add("Concat", self.add("Shape", INPUTS[0]), self.integers(self.config.vocab_size), axis=0)
        return self.add("Reshape", logits, shape)

    def mean(self, x: str) -> str:
        """[B, T, C] -> [B, C]: the mean over the tokens that are not padding."""
        real = self.add("Unsqueeze", self.add("Cast", INPUTS[1], to=TensorProto.FLOAT), self.integers(-1))
        axis = self.integers(1)
        sums, counts = (self.add("ReduceSum", each, axis, keepdims=0) for each in (self.add("Mul", x, real), real))
        return self.add("Div", sums, counts)

    def outputs(self, logits: str) -> None:
        names = output_names(self.config)
        if len(names) == 1:
            self.nodes.append(helper.make_node("Identity", [logits], names))
            return
        halves = self.several("Split", 2, logits, axis=-1, num_outputs=2)
        for half, name in zip(halves, names, strict=True):
            self.nodes.append(helper.make_node("Squeeze", [half, self.integers(-1)], [name]))


def _normed(x: np.ndarray, eps: float) -> np.ndarray:
    """LayerNorm over the last dimension, without gain and bias."""
    centred = x - x.mean(-1, keepdims=True)
    result: np.ndarray = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(eps))
    return result
