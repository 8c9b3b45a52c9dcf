"""`maskwright export`: a Hugging Face folder whose numbers are checked before it gets its name."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskwright.config.finetuning import Task
from maskwright.config.places import PLACES
from maskwright.config.pretraining import ModelSection
from maskwright.config.settings import flat
from maskwright.core import hub, storage
from maskwright.core.console import human_count, note, say, several, warn
from maskwright.core.errors import VerificationError
from maskwright.core.secrets import redact_all
from maskwright.engines.muon import INITIAL_RMS, LARGE_RMS
from maskwright.labels.encode import open_tokenizer
from maskwright.model.hf.config import OF_CLASSIFIERS, PIPELINES, to_hf_config
from maskwright.model.hf.families import FAMILIES
from maskwright.model.hf.names import Parameters, buffers, count_parameters, encoder_prefix, has_head
from maskwright.model.torch.compare import LARGEST_DIFFERENCE, Reference, largest_difference, our_model, references
from maskwright.report.background import in_short
from maskwright.report.markdown import code, literal
from maskwright.run.directory import RESULTS, RunDirectory
from maskwright.run.record import RunRecord, ancestors, evaluations
from maskwright.tasks.models.load import TrainedModel
from maskwright.text.spacing import spacing_of
from maskwright.text.tokenizer import ROBERTA, copy_tokenizer, load_tokenizer
from maskwright.training.tensor_file import write_tensors

SHAPE_KEYS = {f"model.{key}" for key in ModelSection.model_fields if key not in ("hidden_dropout", "attention_dropout")}
"""Keys that `model.init_from` decides, which override the configuration's values."""


OF_WORDS = (
    "The tag of a word is read at its first token, of `tokenizer(words, is_split_into_words=True)`. A pipeline that "
    "gets texts may cut them into other words, and find other tags."
)
"""For the card of a model of words."""


@dataclass(frozen=True)
class Purpose:
    """The purpose of a folder that holds a changed model, in the words of its card."""

    written: TrainedModel
    """The model whose weights and tokenizer are written; a bare encoder where its parameters have no head."""
    library: str
    pipeline: str
    tag: str
    use: str
    """A sentence for readers."""


def export(
    model: TrainedModel,
    folder: str,
    *,
    onnx: bool = False,
    purpose: Purpose | None = None,
    write_more: Callable[[str], object] = lambda folder: None,
) -> float:
    """Writes `folder` and returns the largest difference of a logit, or of a bare encoder's last hidden states. Raises
    `VerificationError` above 1e-4.

    `onnx`: also ONNX files. The fp32 one is held to the same limit; the int8 one is measured, and the result is
    printed. `write_more` writes further files into the folder, before it gets its name.

    Everything is written and verified under a temporary name next to `folder`, so a failed export leaves no folder.
    """
    storage.require_empty(folder)
    if onnx:
        from maskwright.tasks.export import onnx as onnx_files
    if model.run and not RunDirectory(model.folder).has_ended(model.run):
        steps = f"step {model.step:,} of {model.run.steps:,}"
        warn(f"{model.location}: the run has not ended; this exports its {steps}")
    written = purpose.written if purpose else model
    with storage.replaced_folder(folder) as temporary:
        expected = _write(model, written, temporary)
        difference = verify(written, temporary, expected)
        measured: list[str] = []
        if onnx:
            onnx_difference = onnx_files.write(written, temporary, expected)
            _require_equal(onnx_difference, written, " in onnxruntime")
            measured = onnx_files.measure(written, temporary, expected, onnx_difference)
        with open(os.path.join(temporary, "README.md"), "w", encoding="utf-8") as file:
            file.write("\n".join([model_card(model, difference, purpose), *measured]))
        write_more(temporary)
    for line in measured:
        say(line)
    return difference


def _write(model: TrainedModel, written: TrainedModel, folder: str) -> list[Reference]:
    """Writes the weights, config.json and tokenizer of `written`, which was made from `model`, and returns the outputs
    of `transformers` for them."""
    bare, prefix = not has_head(written.config, written.parameters), encoder_prefix(written.config)
    weights = written.parameters | buffers(written.config)
    if bare:
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
    config = to_hf_config(written.config, written.labels, bare=bare) | _for_fine_tuning(model, written) | _use(written)
    config |= {"transformers_version": importlib.metadata.version("transformers")}
    storage.write_json(os.path.join(folder, "config.json"), config)
    _write_tokenizer(written, folder)
    return references(written.config, folder, bare=bare)


def _for_fine_tuning(model: TrainedModel, written: TrainedModel) -> dict[str, Any]:
    """The values for fine-tuning alone in the base's config.json, as a pretraining run recorded them. The run's own
    dropouts are for pretraining, and replace them only if the user set them. A classifier already has its own."""
    values = model.run.fine_tuning if model.run and model.task is None else {}
    return {key: value for key, value in values.items() if written.task is None or key not in OF_CLASSIFIERS}


def _use(model: TrainedModel) -> dict[str, Any]:
    """The key that `read_use` reads. `transformers` keeps and ignores it."""
    if model.task is None or model.max_seq_len is None:
        return {}
    use: dict[str, Any] = {"max_seq_len": model.max_seq_len} | ({} if model.pairs is None else {"pairs": model.pairs})
    if model.task.kind == "multi_label_classification" and model.task.threshold != Task().threshold:
        use["threshold"] = model.task.threshold
    if model.task.kind == "question_answering":
        use |= {"doc_stride": model.task.doc_stride, "max_answer_len": model.task.max_answer_length}
        use |= {} if model.may_be_none is None else {"handle_impossible_answer": model.may_be_none}
    return {"task_specific_params": {PIPELINES[model.task.kind]: use}}


def _write_tokenizer(model: TrainedModel, folder: str) -> None:
    """Copies the tokenizer. A tokenizer without a template gets one, so that texts are framed as in training. A
    tagger's tokenizer puts a space before each word, as in training."""
    copy_tokenizer(model.tokenizer_folder, folder)
    path = os.path.join(folder, "tokenizer_config.json")
    config = storage.read_json_or({}, path)
    if "tokenizer_class" not in config:  # `transformers` would use the class of the model's architecture
        config = _tokenizer_config(model) | config
    types = ["token_type_ids"] if model.config.token_type_stride else []  # which not every class gives by itself
    inputs = {"model_input_names": ["input_ids", *types, "attention_mask"]}
    config |= {"model_max_length": model.config.max_seq_len, **inputs}
    words = model.task is not None and model.task.kind == "token_classification"
    if model.task or load_tokenizer(folder, special_tokens_are_text=False).num_special_tokens_to_add(False) < 2:
        open_tokenizer(folder, words=words, adds_spaces=False).save(os.path.join(folder, "tokenizer.json"))
        config |= {"add_prefix_space": True} if words else {}
    storage.write_json(path, config)
    if spacing := spacing_of(folder):
        note(f"the tokenizer has {spacing}: give `transformers` sequences with spaces between the tokens")


def _tokenizer_config(model: TrainedModel) -> dict[str, Any]:
    """Entries of tokenizer_config.json for a tokenizer whose files name no class."""
    words = model.vocabulary
    if words.kind == "byte_level_bpe" and words.mask_token == ROBERTA["mask"]:
        return {"tokenizer_class": "RobertaTokenizer"}
    tokenizer = load_tokenizer(model.tokenizer_folder, special_tokens_are_text=False)
    ids = {"cls": words.bos, "sep": words.eos, "pad": words.pad, "unk": words.unk, "mask": words.mask}
    named = {f"{role}_token": tokenizer.id_to_token(id) for role, id in ids.items() if id is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **named}


def verify(model: TrainedModel, folder: str, expected: Sequence[Reference]) -> float:
    """Compares logits, or a bare encoder's last hidden states, and token ids with the results of `transformers` for
    `folder`. Returns the largest difference. Raises `VerificationError`."""
    largest = largest_difference(our_model(model.config, model.parameters), expected)
    _require_equal(largest, model)
    _verify_tokenizer(model, folder)
    return largest


def compared(model: TrainedModel) -> str:
    """The output that is compared with `transformers`, in the singular."""
    return "logit" if has_head(model.config, model.parameters) else "hidden state"


def _require_equal(difference: float, model: TrainedModel, where: str = "") -> None:
    if not difference <= LARGEST_DIFFERENCE:  # so that NaN is refused
        what = "logits differ by" if has_head(model.config, model.parameters) else "hidden states differ by"
        version = importlib.metadata.version("transformers")
        raise VerificationError(
            f"{what} {difference:.3g}{where} from transformers {version}, more than {LARGEST_DIFFERENCE:g}",
            fix=_smaller_weights(model.parameters) if math.isfinite(difference) else None,
        )


TEXTS = ("Hello, world!", " two  spaces\n\tand a tab", "a {mask} here, in 1984", "Größe, 東京, 🙂 e\u0301")
"""Texts that both tokenizers must encode to the same ids. {mask}: the tokenizer's own."""


def _smaller_weights(parameters: Parameters) -> str | None:
    """The fix for logits that differ, if the matrices are so large that fp32's rounding alone may be the cause."""
    squares = [np.square(value, dtype=np.float64) for value in parameters.values() if value.ndim == 2]
    rms = math.sqrt(sum(square.sum() for square in squares) / sum(square.size for square in squares))
    if rms <= LARGE_RMS:
        return None
    return (
        f"train with a higher optimizer.weight_decay, or a lower optimizer.learning_rate: the matrices' root mean "
        f"square is {rms:.2g}, {rms / INITIAL_RMS:.0f} times as large as at the start, and fp32 rounds such logits "
        "so coarsely"
    )


def _verify_tokenizer(model: TrainedModel, folder: str) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text, arguments, expected, types in _tokenized(model):
        found = tokenizer(*arguments, is_split_into_words=isinstance(arguments[0], list))
        if list(found["input_ids"]) != expected:
            path = os.path.join(model.tokenizer_folder, "tokenizer_config.json")
            fix = f"set tokenizer_class to PreTrainedTokenizerFast in {path}: its class cuts texts by rules of its own"
            what = f"transformers tokenizes {text!r} to {found['input_ids']}, not {expected}"
            raise VerificationError(what, fix=fix)
        if model.config.token_type_stride and list(found.get("token_type_ids", ())) != types:
            raise VerificationError(f"transformers gives {text!r} other token types than {types}")


def _tokenized(model: TrainedModel) -> Iterator[tuple[str, tuple[Any, ...], list[int], list[int]]]:
    """(text, arguments for `transformers`, ids and token types that it should return): texts, for fine-tuned models
    pairs or words."""
    texts = [text.replace("{mask}", model.vocabulary.mask_token) for text in TEXTS]
    if model.task is None:
        tokenizer = load_tokenizer(model.tokenizer_folder, special_tokens_are_text=False, adds_spaces=False)
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            yield text, (text,), [model.vocabulary.bos, *ids, model.vocabulary.eos], [0] * (len(ids) + 2)
        return
    words = model.task.kind == "token_classification"
    tokenizer = open_tokenizer(model.tokenizer_folder, words=words, adds_spaces=False)
    for text in texts:
        arguments = (text.split(),) if words else (text, texts[0])
        encoding = tokenizer.encode(*arguments, is_pretokenized=words)
        yield text, arguments, encoding.ids, encoding.type_ids


def model_card(model: TrainedModel, difference: float, purpose: Purpose | None = None) -> str:
    """README.md from the run's own record: the model, its text, and how it was checked."""
    shape, base = model.config, _base_name(_base(model.run) if model.run else None)
    on_hub = base if base and "/" in base else hub.full_name(base)
    how = "fine-tuned" if model.task else "continued"
    library, pipeline, kind = "transformers", PIPELINES[shape.task], shape.task.replace("_", "-")
    if purpose:
        library, pipeline, kind = purpose.library, purpose.pipeline, purpose.tag
    lines = [
        "---",
        "# language: en",
        "# license: apache-2.0",
        *([f"base_model: {json.dumps(on_hub)}"] if on_hub else []),
        f"library_name: {library}",
        f"pipeline_tag: {pipeline}",
        f"tags: [{shape.architecture}, {kind}, maskwright]",
        "---",
        "",
        f"# {literal(_base_name(model.location) or '')}",
        "",
        "> **To fill in before others see this**: the two lines at the top of this file that begin with `#`, the "
        "language of the text (`language: de`, or `language: [de, fr]`) and the licence (`license: mit`; see "
        "https://huggingface.co/docs/hub/repositories-licenses). The base model and the text may limit the choice. "
        "Then delete this line.",
        "",
        f"A {FAMILIES[shape.architecture].title} encoder ({shape.num_hidden_layers} layers x {shape.hidden_size}, "
        f"{shape.num_attention_heads} heads, feed-forward {shape.intermediate_size:,}, "
        f"{human_count(count_parameters(shape))} parameters, vocabulary {shape.vocab_size:,}, up to "
        f"{shape.max_seq_len} tokens), {f'{how} from {literal(base)}' if base else 'trained'} with maskwright.",
        "",
        f"Exported from {'step ' + format(model.step, ',') if model.step is not None else 'a model folder'}. Loaded "
        f"in transformers {importlib.metadata.version('transformers')}, its fp32 "
        f"{compared(purpose.written if purpose else model)}s differ by at most {difference:.2g}.",
        *(["", purpose.use] if purpose else []),
        *(["", OF_WORDS] if model.config.task == "token_classification" else []),
    ]
    if model.run:
        lines += ["", "## Training", "", *_training(model, model.run)]
    return "\n".join([*lines, ""])


def _base(run: RunRecord) -> str | None:
    """The model folder that the run, or the oldest run that it comes from, began with."""
    _, folder = ancestors(run.began_from)
    return folder.location if folder else None


def _base_name(folder: str | None) -> str | None:
    """OWNER/NAME of a model on the Hub or of a folder in its cache (models--OWNER--NAME/snapshots/…), else the folder's
    own name: its path is private."""
    if folder is None:
        return None
    if hub.is_hub(folder):
        return hub.read_address(folder).name
    parts = os.path.abspath(folder).split(os.sep)
    cached = next((part for part in reversed(parts) if part.startswith("models--")), None)
    return cached.removeprefix("models--").replace("--", "/", 1) if cached else parts[-1]


def _training(model: TrainedModel, run: RunRecord) -> list[str]:
    source = "labelled data" if model.task else "token store"
    store, configuration = code(run.train.fingerprint[:16]), code(run.digest[:16])
    lines = [f"- {source} fingerprint {store}, configuration {configuration}"]
    if model.task is None and (mixed := run.pretraining.data.mixture):
        parts = [f"{name}, weight {part.weight:g}" if part.weight else name for name, part in mixed.items()]
        lines.append(f"- a mixture of {literal('; '.join(parts))}")
    parents, folder = ancestors(run.began_from)
    for parent in parents:
        how = "without" if parent.optimizer == "fresh" else "with"
        lines.append(
            f"- began from step {parent.step:,} of {code(os.path.basename(parent.run))}, {how} its optimizer's "
            f"state: {parent.tokens:,} tokens of text {code(parent.text[:16])}, weights sha256 "
            f"{code(parent.weights_sha256)}"
        )
    if folder:
        lines += [f"- base model {code(folder.location)}"] if hub.is_hub(folder.location) else []
        lines += [f"- base weights {literal(name)}, sha256 {code(digest)}" for name, digest in folder.sha256s.items()]
    if (card := RunDirectory(model.folder).read_data_card()) is not None:
        lines += [f"- {literal(line)}" for line in in_short(card)]
    lines += _scores(model) if model.task else _held_out(model, run)
    left_out = PLACES | (SHAPE_KEYS if run.config.model.init_from else set())
    values = {key: value for key, value in flat(run.config).items() if value is not None and key not in left_out}
    return [*lines, "", "```json", json.dumps(redact_all(values), indent=1), "```"]


def _held_out(model: TrainedModel, run: RunRecord) -> list[str]:
    lines_until = [line for line in RunDirectory(model.folder).read_metrics() if line["step"] <= (model.step or 0)]
    records = evaluations(lines_until, run.judges)
    if not records:
        return []
    first, last = records[0], records[-1]
    names = [re.fullmatch(r"valid_(.+)_loss", key) for key in last if f"{key.removesuffix('loss')}accuracy" in first]
    named = {match[1]: f"valid_{match[1]}" for match in names if match} or {"": "valid"}
    lines = []
    for name, key in named.items():
        loss, accuracy = ((first[f"{key}_{metric}"], last[f"{key}_{metric}"]) for metric in ("loss", "accuracy"))
        lines.append(
            f"- held-out loss{f' of {literal(name)}' if name else ''} {loss[0]:.4f} -> {loss[1]:.4f}, masked accuracy "
            f"{accuracy[0]:.2%} -> {accuracy[1]:.2%} (15 % masks, step {last['step']:,})"
        )
    return lines


def _scores(model: TrainedModel) -> list[str]:
    """The scores of the exported step on each split, once the run has ended."""
    results = storage.read_json_or({}, model.folder, RESULTS)
    return [
        f"- {split}, {several(results[split]['examples'], 'example')}: "
        + ", ".join(f"{literal(name)} {value:.4f}" for name, value in results[split].items() if name != "examples")
        for split in ("validation", "test")
        if split in results
    ]


def announce(difference: float, folder: str, what: str = "logit") -> None:
    say(f"{folder}: max |Δ{what}| {difference:.2e} against transformers in fp32 (limit {LARGEST_DIFFERENCE:g})")
