"""`maskwright finetune` of a retrieval task: sentence-transformers trains an encoder to put a question near its
passages, and its rankings are scored.

The folder is not a run directory, so a stopped training begins again. Its loss is sentence-transformers' own, with all
other passages of an update as wrong answers (van den Oord et al. 2018, https://arxiv.org/abs/1807.03748).
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.retrieval import RetrievalConfig
from maskwright.config.settings import flat
from maskwright.core import storage
from maskwright.core.console import note, say, several, warn
from maskwright.core.errors import HealthError, InputError, MaskwrightError, StoppedEarly
from maskwright.core.extras import require
from maskwright.labels.ranking import Rankings, ranked, record_of_scores
from maskwright.labels.retrieval import Collection, read_collection
from maskwright.machine.hardware import cuda_devices
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RESULTS, SEARCH, Phase, RunDirectory, Status
from maskwright.tasks.compare.folder import begin_or_check
from maskwright.tasks.export.sentence_transformers import export_as, write_modules
from maskwright.tasks.finetune.prepare import weights_digest
from maskwright.tasks.models.load import TrainedModel, load_model
from maskwright.tasks.models.modules import pooling_of, warn_if_untold
from maskwright.tasks.search.updates import NONE, Update, planned_updates, texts_of
from maskwright.training.loop import STATUS_EVERY_SECONDS

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODEL = "model"
COLUMNS = ("question", "passage", "negative")
QUESTION, PASSAGE = "query", "document"
"""Names of the prompts that `encode_query` and `encode_document` put before texts."""
ENCODED_AT_ONCE = 64
LOG_LINES = 50
"""Lines of `metrics.jsonl` in a whole training, each a mean over the updates since the last."""


def finetune_for_search(config: RetrievalConfig, run: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Trains, scores and saves the model in the folder `run`. Returns the content of `results.json`; for a dry run,
    its document. A folder that holds a finished training stays as it is.

    Raises kinds of `InputError` (2) before training, and `HealthError` at its end if a vector is not finite, since each
    question then scores 0."""
    require("sentence_transformers")
    directory = RunDirectory(run)
    storage.require_utf8(directory.location)
    collection = read_collection(config.data, config.seed)
    model = load_model(config.model.init_from, bare=True)
    pooling_of(model.tokenizer_folder)  # raises for modules that cannot be trained
    warn_if_untold(model.tokenizer_folder)
    updates = planned_updates(collection, config)
    steps, mean = len(updates), sum(map(len, updates)) / len(updates)
    line = f"{len(collection.passages):,} passages, {len(collection.train):,} questions to learn from with "
    line += f"{several(collection.pairs, 'pair')}: {several(steps, 'step')} of {mean:.1f} pairs on average"
    queries = (*collection.train, *collection.validation, *collection.test)
    if own := sum(query.own is not None for query in queries):
        line += f"; the passages of {several(own, 'question')} with their _id and text are left out of their rankings"
    _device()
    warnings: list[str] = []
    if alike := collection.asked_in_training():
        what = f"{several(alike, 'held-out question')} equal to training questions but for case, spaces or punctuation"
        warnings.append(f"{what}: remove one of each two")
    if repeated := collection.with_repeated_answers():
        what = f"{several(repeated, 'question')} with an answer whose text another passage repeats, which counts as"
        warnings.append(f"{what} wrong: keep one passage of each text")
    for warning in warnings:
        warn(warning)
    if dry_run:
        return {"lines": [line], "warnings": warnings}
    say(line)
    storage.make_folder(directory.location)
    with storage.locked(directory.path("lock"), remove=True):
        _begin_or_check(directory, config, collection, weights_digest(model.parameters))
        if os.path.exists(directory.path(RESULTS)):
            note(f"{run}: this training has ended; its results stay as they are")
        else:
            _train(directory, config, collection, model, updates)
        results: dict[str, Any] = storage.read_json(directory.path(RESULTS))
    if results["fault"]:
        raise HealthError(results["fault"], where=run, fix="set a lower optimizer.learning_rate, in a new folder")
    return results


def _begin_or_check(directory: RunDirectory, config: RetrievalConfig, collection: Collection, weights: str) -> None:
    """Raises `InputError` for a folder that holds something else; removes the files of a stopped training."""
    contents = {"the contents of the collection": collection.fingerprint, "the weights of model.init_from": weights}
    begin_or_check(directory.path(SEARCH), flat(config) | contents, "training for search", "--run")
    if not os.path.exists(directory.path(RESULTS)):
        for name in set(os.listdir(directory.location)) - {"lock", SEARCH}:
            left = directory.path(name)
            shutil.rmtree(left) if os.path.isdir(left) else os.unlink(left)


def _train(
    directory: RunDirectory,
    config: RetrievalConfig,
    collection: Collection,
    start: TrainedModel,
    updates: Sequence[Update],
) -> None:
    progress = _Progress(directory, len(updates))
    try:
        results = _trained(directory, config, collection, start, updates, progress)
    except BaseException as error:
        code = error.exit_code if isinstance(error, MaskwrightError) else 1
        progress.enter("stopped" if isinstance(error, StoppedEarly) else "failed", exit=code)
        raise
    if results["fault"]:
        progress.enter("failed", exit=HealthError.exit_code, message=results["fault"])
    else:
        progress.enter("done", exit=0)


class _Progress:
    """`status.json`, written again every few seconds, since a run without one for long counts as silent."""

    def __init__(self, directory: RunDirectory, steps: int) -> None:
        self._directory, self.status = directory, Status(of=steps)
        self._write()

    def enter(self, phase: Phase, *, exit: int | None = None, message: str = "") -> None:
        self.status.phase, self.status.exit, self.status.message = phase, exit, message
        self._write()

    def goes_on(self) -> None:
        if time.monotonic() - self._written >= STATUS_EVERY_SECONDS:
            self._write()

    def _write(self) -> None:
        self._directory.write_status(self.status)
        self._written = time.monotonic()


def _trained(
    directory: RunDirectory,
    config: RetrievalConfig,
    collection: Collection,
    start: TrainedModel,
    updates: Sequence[Update],
    progress: _Progress,
) -> dict[str, Any]:
    """The content of `results.json`, which it writes."""
    if config.model.weights == "random":
        fresh = initial_parameters(start.config, config.seed)
        start = replace(start, parameters={name: fresh[name] for name in start.parameters if name in fresh})
    model = _as_sentence_transformer(directory, start)
    model.max_seq_length = min(config.data.max_seq_len, start.config.max_seq_len)
    model.register_forward_hook(lambda *_: progress.goes_on())  # after each batch, of an update or of texts
    progress.enter("training")
    _fit(directory, config, collection, model, updates, progress.status)
    progress.enter("evaluating")
    results: dict[str, Any] = {"steps": len(updates), "fault": ""}
    passages = _vectors(model, collection.passages, PASSAGE)
    for split, queries in (("validation", collection.validation), ("test", collection.test)):
        if not queries:
            continue
        asked = _vectors(model, [query.text for query in queries], QUESTION)
        rankings = _rankings(asked, passages, progress)
        if rankings is None:
            results["fault"], rankings = "its vectors are not finite", np.full((len(queries), 1), -1)
        results[split], predictions = record_of_scores(queries, rankings)
        storage.write_json(directory.path(f"predictions-{split}.json"), predictions)
        say(f"{split}: {config.evaluation.metric} {results[split][config.evaluation.metric]:.4f}")
    model.save_pretrained(directory.path(MODEL), create_model_card=False)
    written = replace(start, max_seq_len=model.max_seq_length, tokenizer_folder=directory.path(MODEL))
    write_modules(written, "dense", None, directory.path(MODEL))
    storage.write_json(directory.path(RESULTS), results)
    return results


def _as_sentence_transformer(directory: RunDirectory, start: TrainedModel) -> SentenceTransformer:
    """The model as its folder is loaded, so that training and `export --sentence-transformers dense` use one model."""
    from sentence_transformers import SentenceTransformer

    folder = directory.path("start")
    export_as("dense", start, folder, quiet=True)
    model = SentenceTransformer(folder, device=_device())
    shutil.rmtree(folder)
    if model.similarity_fn_name != "cosine":
        note(f"{start.location} was made for {model.similarity_fn_name}; this training is by cosines, as is its model")
        model.similarity_fn_name = "cosine"
    if any(model.prompts[kind] for kind in (QUESTION, PASSAGE)):
        say(f"questions begin with {model.prompts[QUESTION]!r}, passages with {model.prompts[PASSAGE]!r}: its prompts")
    return model


def _device() -> str:
    """Raises `InputError` for several GPUs, over which sentence-transformers would spread each update, so that a pair
    would meet fewer wrong answers."""
    from maskwright.engines.torch.prepare import choose_device

    device = choose_device("auto")
    if device == "cuda" and (count := cuda_devices()) > 1:
        what = f"this machine has {count} GPUs, but training for search uses one"
        raise InputError(what, fix="choose one: CUDA_VISIBLE_DEVICES=0 maskwright …")
    return device


def _fit(
    directory: RunDirectory,
    config: RetrievalConfig,
    collection: Collection,
    model: SentenceTransformer,
    updates: Sequence[Update],
    status: Status,
) -> None:
    """Trains `model` in place."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers import PrinterCallback, TrainerCallback

    class Log(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            status.step = state.global_step

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in (logs or {}):
                step, loss = state.global_step, float(logs["loss"])
                if math.isfinite(loss):  # JSON has no other numbers
                    directory.append_metrics({"step": step, "loss": loss, "learning_rate": logs["learning_rate"]})
                status.loss = loss if math.isfinite(loss) else None

    class Planned(DefaultBatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            ends = np.cumsum([len(update) for update in updates]).tolist()
            yield from (list(range(end - len(update), end)) for update, end in zip(updates, ends, strict=True))

        def __len__(self) -> int:
            return len(updates)

    def texts(rows: dict[str, list[int]]) -> dict[str, list[str]]:
        of_rows = np.array([rows[name] for name in COLUMNS[: len(rows)]], np.int64).T
        found = texts_of(collection.train, collection.passages, of_rows)
        before = {name: model.prompts[QUESTION if name == COLUMNS[0] else PASSAGE] for name in found}
        return {name: [before[name] + text for text in listed] for name, listed in found.items()}

    pairs = np.concatenate(updates)
    columns = COLUMNS if (pairs[:, 2] != NONE).any() else COLUMNS[:2]
    dataset = Dataset.from_dict({name: pairs[:, number] for number, name in enumerate(columns)})
    dataset.set_transform(texts)
    arguments = SentenceTransformerTrainingArguments(
        directory.path("trainer"),
        max_steps=len(updates),
        per_device_train_batch_size=config.batch.examples,
        learning_rate=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay,
        warmup_steps=round(config.schedule.warmup_share * len(updates)),
        lr_scheduler_type="linear",
        batch_sampler=Planned,
        seed=config.seed,
        bf16=model.device.type == "cuda",
        use_cpu=model.device.type == "cpu",
        logging_steps=max(1, len(updates) // LOG_LINES),
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model.model_card_data.widget = [{"text": ""}]  # else it makes one for a model card, with a progress bar
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[Log()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    shutil.rmtree(directory.path("trainer"), ignore_errors=True)


def _vectors(model: SentenceTransformer, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
    """[texts, hidden size], each of length 1. `prompt`: the name of the one before each."""
    how: dict[str, Any] = {"prompt_name": prompt, "batch_size": ENCODED_AT_ONCE, "show_progress_bar": False}
    return np.asarray(model.encode(list(texts), normalize_embeddings=True, **how), np.float32)


def _rankings(asked: NDArray[np.float32], passages: NDArray[np.float32], progress: _Progress) -> Rankings | None:
    """Rankings by the cosines of vectors; None if some are not finite."""
    if not (np.isfinite(asked).all() and np.isfinite(passages).all()):
        return None

    def cosines(some: slice) -> NDArray[np.float32]:
        progress.goes_on()
        return asked[some] @ passages.T

    return ranked(len(asked), cosines)
