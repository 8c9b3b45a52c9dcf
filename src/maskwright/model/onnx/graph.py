"""An encoder with its head as an ONNX graph of standard operators, on one page.

The graph is built from the shape and the parameters, not traced: nothing of an example input (a length, a mask without
padding, a batch of one) can be left in it. Inputs and outputs have the names that `optimum` gives them.

B rows, T tokens, D width, H heads, h width of a head, F inner width, V vocabulary, C outputs of a classifier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from maskwright.core.console import human_bytes
from maskwright.core.errors import InputError
from maskwright.model.config import ROBERTAS, SEQUENCE_TASKS, ModelConfig
from maskwright.model.hf.names import Parameters, pieces

OPSET, IR_VERSION = 20, 9
"""The first opset with Gelu; onnxruntime has it since 1.17."""
INPUTS = ("input_ids", "attention_mask")
"""int64 [B, T] each, as tokenizers of `transformers` return them; `input_names` adds a third for BERT."""
LARGEST_FILE = 2**31 - 1
"""protobuf's limit in bytes."""


def write(config: ModelConfig, parameters: Parameters, path: str) -> None:
    """Writes the model to `path`. Raises `InputError` for one that a single file cannot hold."""
    if (size := sum(value.nbytes for value in parameters.values())) > LARGEST_FILE:
        what = f"the parameters take {human_bytes(size)}; an ONNX file holds {human_bytes(LARGEST_FILE)} at most"
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


class Graph:
    """A graph under construction. Methods add nodes, and return the names of their results."""

    def __init__(self, config: ModelConfig, parameters: Parameters) -> None:
        self.config = config
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        parts: dict[str, list[np.ndarray]] = {}
        for piece in pieces(config):  # those of one inner parameter come in the order of its rows
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
        if not config.rotary:
            x = self.add("Add", x, self.positions())
        x = self.norm(x, "norm")
        seen = self.add("Cast", self.add("Unsqueeze", INPUTS[1], self.integers(1, 2)), to=TensorProto.BOOL)
        lowest = self.number("lowest", float(np.finfo(np.float32).min))
        bias = self.add("Where", seen, self.number("zero", 0.0), lowest)
        rotation = self.rotation(config.rope_theta) if config.rotary else None
        views = [(bias, rotation)] * config.num_hidden_layers
        if config.local_layers:
            nearby = self.add("Where", self.nearby(), bias, "lowest"), self.rotation(config.local_rope_theta)
            views = [nearby if config.is_local(number) else view for number, view in enumerate(views)]
        for number, view in enumerate(views):
            only_first = number == config.num_hidden_layers - 1 and config.task in SEQUENCE_TASKS
            x = self.layer(x, number, *view, only_first=only_first)
        return self.norm(x, "final_norm") if config.norm_first else x

    def positions(self) -> str:
        """[B, T, D]: `transformers` counts the tokens that are not padding, from the padding's id on, except in BERT
        and DistilBERT, which number every place."""
        table = self.parameters["position.weight"]
        if self.config.token_type_stride:
            types = self.constant("token_type.weight", self.parameters["token_type.weight"])
            return self.add("Add", self.add("Gather", types, "token_type_ids"), self.first_rows(table))
        if self.config.type_vocab_size:
            table = table + self.parameters["token_type.weight"][0]
        if self.config.architecture not in ROBERTAS:
            return self.first_rows(table)
        pad = self.integer(self.config.pad_token_id)
        real = self.add("Cast", self.add("Not", self.add("Equal", INPUTS[0], pad)), to=TensorProto.INT64)
        counted = self.add("Mul", self.add("CumSum", real, self.integer(1)), real)
        return self.add("Gather", self.constant("position.weight", table), self.add("Add", counted, pad))

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
        width = self.config.hidden_size // self.config.num_attention_heads
        speeds = theta ** (-np.arange(0, width, 2, dtype=np.float32) / width)
        column = self.add("Unsqueeze", self.add("Cast", self.places(), to=TensorProto.FLOAT), self.integers(1))
        angles = self.add("Mul", column, self.constant(f"speeds_{theta:g}", speeds.astype(np.float32)))
        return self.add("Cos", angles), self.add("Sin", angles)

    def rotate(self, x: str, rotation: tuple[str, str]) -> str:
        cos, sin = rotation
        first, second = self.several("Split", 2, x, axis=-1, num_outputs=2)
        turned = self.add("Sub", self.add("Mul", first, cos), self.add("Mul", second, sin))
        return self.add(
            "Concat", turned, self.add("Add", self.add("Mul", second, cos), self.add("Mul", first, sin)), axis=-1
        )

    def layer(self, x: str, number: int, bias: str, rotation: tuple[str, str] | None, *, only_first: bool) -> str:
        name, H, D = f"layers.{number}", self.config.num_attention_heads, self.config.hidden_size
        normed = self.norm(x, f"{name}.norm1") if self.config.norm_first and number else x
        heads = self.add("Reshape", self.linear(normed, f"{name}.qkv"), self.integers(0, 0, 3 * H, D // H))
        qk, v = self.several(
            "Split", 2, self.add("Transpose", heads, perm=[0, 2, 1, 3]), self.integers(2 * H, H), axis=1
        )
        q, k = self.several("Split", 2, self.rotate(qk, rotation) if rotation else qk, axis=1, num_outputs=2)
        if only_first:
            q, x = self.first(q, 2), self.first(x, 1)
            bias = self.first(bias, 2) if self.config.is_local(number) else bias
        scaled = self.add("Mul", q, self.number("scale", (D // H) ** -0.5))
        scores = self.add("Add", self.add("MatMul", scaled, self.add("Transpose", k, perm=[0, 1, 3, 2])), bias)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        mixed = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), self.integers(0, 0, D))
        x = self.add("Add", x, self.linear(mixed, f"{name}.out"))
        if not self.config.norm_first:
            x = self.norm(x, f"{name}.norm1")
            return self.norm(self.add("Add", x, self.inner(x, name)), f"{name}.norm2")
        return self.add("Add", x, self.inner(self.norm(x, f"{name}.norm2"), name))

    def inner(self, x: str, name: str) -> str:
        up = self.linear(x, f"{name}.up")
        if not self.config.gated:
            return self.linear(self.add("Gelu", up), f"{name}.down")
        value, gate = self.several("Split", 2, up, axis=-1, num_outputs=2)
        return self.linear(self.add("Mul", self.add("Gelu", value), gate), f"{name}.down")

    # ---- the head ------------------------------------------------------------------------------------------------

    def head(self, x: str) -> str:
        """Logits. The part before the last matrix is as in `model/torch/heads.py`."""
        task = self.config.task
        if task in SEQUENCE_TASKS:
            x = self.add("Squeeze", x, self.integers(1))
        if "head.norm.weight" in self.parameters:
            x = self.norm(self.add("Gelu", self.linear(x, "head.dense")), "head.norm")
        elif "head.dense.weight" in self.parameters:
            x = self.add("Relu" if self.config.architecture == "distilbert" else "Tanh", self.linear(x, "head.dense"))
        if task != "masked_lm":
            return self.linear(x, "head.classifier")
        # The embeddings are in the file once: Gemm uses them as they are stored.
        flat = self.add("Reshape", x, self.integers(-1, self.config.hidden_size))
        bias = self.constant("head.bias", self.parameters["head.bias"])
        logits = self.add("Gemm", flat, "word.weight", bias, transB=1)
        shape = self.add("Concat", self.add("Shape", INPUTS[0]), self.integers(self.config.vocab_size), axis=0)
        return self.add("Reshape", logits, shape)

    def outputs(self, logits: str) -> None:
        names = output_names(self.config)
        if len(names) == 1:
            self.nodes.append(helper.make_node("Identity", [logits], names))
            return
        halves = self.several("Split", 2, logits, axis=-1, num_outputs=2)
        for half, name in zip(halves, names, strict=True):
            self.nodes.append(helper.make_node("Squeeze", [half, self.integers(-1)], [name]))
