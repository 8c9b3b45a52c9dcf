"""`maskwright import weights`: pickled weights as a model folder, which is compared with the original before it gets
its name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from maskwright.config.settings import in_flow
from maskwright.core import storage
from maskwright.core.console import say, several, typed, warn
from maskwright.core.errors import InputError, MaskwrightError, ModelError, VerificationError
from maskwright.data.foreign.fairseq import FIRST, read_dictionary, read_encoder
from maskwright.model.config import ModelConfig, TaskKind
from maskwright.model.hf import fairseq
from maskwright.model.hf.config import read_hf_config
from maskwright.model.hf.folder import listed, read_model_folder
from maskwright.model.hf.former import without_wrappers
from maskwright.model.hf.names import Parameters, has_head
from maskwright.model.hf.other_folders import pickled_weights, require_folder, without_config, without_weights
from maskwright.text.tokenizer import FILES
from maskwright.text.vocabulary import has_tokenizer, read_vocabulary
from maskwright.training.tensor_file import write_tensors

WEIGHTS, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


@dataclass(frozen=True)
class ImportedWeights:
    folder: str
    tensors: int
    left_out: tuple[str, ...]
    """Names of the file's tensors that the folder lacks."""
    has_tokenizer: bool
    task: TaskKind | None
    """The model's head; None for a bare encoder."""
    difference: float
    """The largest difference of a logit, or of a bare encoder's last hidden states, from `transformers`."""
    compared_with: str
    """The folder that `transformers` read."""
    commands: tuple[str, ...]
    """The next commands."""


def import_weights(source: str, folder: str) -> ImportedWeights:
    """Writes a folder with model.safetensors from `source`: a folder with `pytorch_model.bin`, or its parts, and
    config.json; a file of weights with config.json next to it; or a checkpoint of fairseq's RoBERTa.

    Raises `InputError` or `ModelError` for what cannot be read, and `VerificationError` if logits differ by more than
    1e-4 from `transformers`. A failed import leaves no folder."""
    storage.require_empty(folder)
    files = _files(source)
    beside = os.path.dirname(files[0])
    with storage.replaced_folder(folder) as temporary:
        weights, left_out, is_original = _converted(files, beside, temporary)
        write_tensors(os.path.join(temporary, "model.safetensors"), weights, {"format": "pt"})
        try:
            config, parameters = read_model_folder(temporary, bare=True)
        except MaskwrightError as error:
            error.where = (error.where or "").replace(temporary, beside)
            raise
        bare = not has_head(config, parameters)
        difference, compared_with = _proven(config, parameters, temporary, beside if is_original else None, bare)
    compared_with = folder if compared_with == temporary else compared_with
    task = None if bare else config.task
    commands = tuple(map(typed, _next(folder, task)))
    has_words = has_tokenizer(folder)
    return ImportedWeights(
        folder, len(weights), tuple(left_out), has_words, task, float(difference), compared_with, commands
    )


def _next(folder: str, task: TaskKind | None) -> Iterator[list[str]]:
    """The commands for a model with the head of a task, or with none."""
    run = ["CONFIG", "--run", "RUN", "--set", f"model.init_from={in_flow(folder)}"]
    if task == "masked_lm" and has_tokenizer(folder):
        try:
            yield ["fill", folder, f"a text with a {read_vocabulary(folder).mask_token}"]
        except InputError as error:
            warn(str(error))
    elif has_tokenizer(folder):
        use, output = ("predict", "NEW.jsonl") if task else ("embed", "NEW.npy")
        yield [use, folder, "--input", "FILE", "--to", output]
    yield ["pretrain", *run, *([] if task == "masked_lm" else ["--set", "model.new_head=true"])]
    yield ["finetune", *run]


def _files(source: str) -> list[str]:
    """The pickled files of one model."""
    if os.path.isfile(source):
        return [source if os.path.dirname(source) else os.path.join(".", source)]
    require_folder(source)
    names = os.listdir(source)
    if WEIGHTS in names:
        return [os.path.join(source, WEIGHTS)]
    if INDEX in names:
        return listed(source, os.path.join(source, INDEX), ".bin")
    if "model.safetensors" in names:
        fix = "use the folder as it is, or name a file"
        raise InputError("has safetensors already", where=source, fix=fix)
    pickled = pickled_weights(names)
    if parts := [name for name in pickled if re.fullmatch(r"pytorch_model-\d+-of-\d+\.bin", name)]:
        fix = f"copy {INDEX} too"
        raise ModelError(f"has {several(len(parts), 'part')} of its weights, but not the list", where=source, fix=fix)
    if not pickled:
        raise (without_weights if "config.json" in names else without_config)(source)
    if pickled[1:]:
        fix = f"give one of them: {', '.join(pickled[:6])}"
        raise InputError(f"has {len(pickled)} files of weights", where=source, fix=fix)
    return [os.path.join(source, pickled[0])]


def _converted(files: Sequence[str], beside: str, folder: str) -> tuple[Parameters, list[str], bool]:
    """Writes config.json and the tokenizer. Returns the weights, the names that are left out, and whether the folder
    `beside` the files holds them under the same names in a file that `transformers` reads."""
    from maskwright.model.torch import pickled

    weights: Parameters = {}
    tensors: set[str] = set()
    for path in files:
        content = pickled.read_pickled(path)
        state = pickled.state_of(content, path)
        arrays = pickled.arrays_of(state, path)
        if twice := sorted(tensors & state.keys()):
            raise ModelError(f"{twice[0]} is in two of its files", where=path, fix="copy the folder again")
        weights |= arrays
        tensors |= state.keys()
    if any(fairseq.INSIDE in name for name in weights):
        settings = pickled.settings_of(content, fairseq.SETTINGS)
        kind = "xlm-roberta" if os.path.isfile(os.path.join(beside, "sentencepiece.bpe.model")) else "roberta"
        weights, config, left_out = fairseq.from_fairseq(weights, settings, kind, files[0])
        storage.write_json(os.path.join(folder, "config.json"), config)
        _write_fairseq_tokenizer(beside, folder, config["vocab_size"])
        return weights, left_out, False
    path = os.path.join(beside, "config.json")
    if not os.path.isfile(path):
        fix = "put the model's config.json next to it"
        raise ModelError("has no config.json next to it, which gives the model's shape", where=files[0], fix=fix)
    for name in ("config.json", "tokenizer.json", *FILES):
        if os.path.isfile(os.path.join(beside, name)):
            shutil.copyfile(os.path.join(beside, name), os.path.join(folder, name))
    try:
        names, taken_off = without_wrappers(weights, read_hf_config(folder, head=False))
    except MaskwrightError as error:
        error.where = (error.where or "").replace(folder, beside)
        raise
    if taken_off:
        say(f"{' and '.join(taken_off)} is a wrapper's prefix, which is removed from the names of the weights")
    is_original = not taken_off and all(os.path.basename(file).startswith("pytorch_model") for file in files)
    weights = {names[name]: value for name, value in weights.items()}
    return weights, [], is_original


def _write_fairseq_tokenizer(beside: str, folder: str, rows: int) -> None:
    """Writes the tokenizer, if its files lie next to the checkpoint: a tokenizer's own, or GPT-2's encoder.json and
    vocab.bpe, whose numbers are the words of dict.txt."""
    for name in ("tokenizer.json", *FILES):
        if os.path.isfile(os.path.join(beside, name)):
            shutil.copyfile(os.path.join(beside, name), os.path.join(folder, name))
    dictionary, encoder, merges = (os.path.join(beside, name) for name in ("dict.txt", "encoder.json", "vocab.bpe"))
    if not os.path.isfile(dictionary):
        return
    words = read_dictionary(dictionary)
    if rows not in (count := len(FIRST) + len(words), count + 1):
        fix = "put the checkpoint's dict.txt next to it"
        raise ModelError(f"makes {count + 1:,} ids with <mask>, the weights have {rows:,}", where=dictionary, fix=fix)
    if has_tokenizer(folder) or not (os.path.isfile(encoder) and os.path.isfile(merges)):
        return
    string_of = read_encoder(encoder)
    tokens = [*FIRST, *(string_of.get(int(word), word) if word.isdecimal() else word for word in words)]
    tokens += ["<mask>"] if rows > len(tokens) else []
    ids = {token: number for number, token in enumerate(tokens)}
    if missing := [token for token in string_of.values() if token not in ids and token != "<|endoftext|>"]:
        warn(f"{dictionary} lacks {len(missing):,} of GPT-2's tokens, such as {missing[0]!r}: no tokenizer is written")
        return
    storage.write_json(os.path.join(folder, "vocab.json"), ids)
    shutil.copyfile(merges, os.path.join(folder, "merges.txt"))
    storage.write_json(os.path.join(folder, "tokenizer_config.json"), {"tokenizer_class": "RobertaTokenizer"})


def _proven(
    config: ModelConfig, parameters: Parameters, folder: str, original: str | None, bare: bool
) -> tuple[float, str]:
    """(largest difference from `transformers`, the folder that it read): the original if possible, else the new one.
    Raises `VerificationError`."""
    from maskwright.model.torch.compare import LARGEST_DIFFERENCE, largest_difference, our_model, references

    read, expected = folder, None
    if original is not None:
        try:
            read, expected = original, references(config, original, bare=bare)
        except Exception as error:  # a library may raise anything for an old folder
            reason = str(error).partition("\n")[0][:200]
            say(f"transformers does not read the original, so the new folder is compared: {reason}")
            read = folder
    difference = largest_difference(our_model(config, parameters), expected or references(config, folder, bare=bare))
    if not difference <= LARGEST_DIFFERENCE:  # so that NaN is refused
        what = f"numbers differ from transformers' by {difference:.3g}, more than {LARGEST_DIFFERENCE:g}"
        raise VerificationError(what, where=original or None)
    return difference, read
