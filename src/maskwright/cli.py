"""The command table. A command's own modules are imported when it runs, so `--help` stays instant.

Data goes to stdout, messages and progress to stderr. Errors are one line; `--debug` anywhere shows the traceback.
Exit codes: 0 done, 1 failed, 2 bad usage or input, 3 stopped by the health check, 75 stopped early and resumable.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn

import typer

from maskwright import __version__
from maskwright.core.console import say, warn
from maskwright.core.errors import MaskwrightError, StoppedEarly

plain: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True, "add_completion": False}
app = typer.Typer(
    name="maskwright",
    help="Raw text to a proven RoBERTa-class encoder, on any hardware.",
    pretty_exceptions_enable=False,
    **plain,
)
text_app = typer.Typer(help="Look at raw text before it is used.", **plain)
tokenizer_app = typer.Typer(help="Train a tokenizer and see how it does.", **plain)
data_app = typer.Typer(help="Turn text into a token store, and check one.", **plain)
app.add_typer(text_app, name="text")
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(data_app, name="data")

SourceFiles = Annotated[list[str], typer.Argument(metavar="SRC…", help="Files, folders, globs or URLs of text.")]
Layout = Annotated[
    Literal["auto", "file", "sentences", "lines"],
    typer.Option(
        help="Plain text: a document is a file, sentences (one a line) between blank lines, or a line. auto says."
    ),
]
TextColumn = Annotated[
    str,
    typer.Option(help="Key or column that holds the text; a 0-based number for CSV without a header line."),
]
OnBadInput = Annotated[
    Literal["error", "replace", "skip"],
    typer.Option(help="Bytes that are not UTF-8, broken records, empty files: stop; replace bytes; leave out."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
To = Annotated[str, typer.Option("--to", help="Folder to write.")]
Store = Annotated[str, typer.Argument(metavar="STORE", help="Token store folder.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Run directory or Hugging Face folder.")]
Config = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML of the run.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set schedule.steps=100")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")]


def _print(report: str, value: Any, as_json: bool) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2) if as_json else report)


def _sources(files: list[str], layout: Any, text_column: str, on_bad_input: Any = "error") -> Any:
    from maskwright.text.sources import Sources

    sources = Sources(files, layout=layout, text_column=text_column, on_bad_input=on_bad_input, on_fault=_warn_of_fault)
    _announce(sources)
    return sources


def _warn_of_fault(fault: Any) -> None:
    warn(f"{fault.where}: {fault.what}")


def _announce(sources: Any) -> None:
    if sources.ignored_files:
        say(f"leaving out {len(sources.ignored_files)} files of other kinds, such as {sources.ignored_files[0]}")
    if sources.layout_was_guessed and sources.has_plain_text:
        meaning = {
            "file": "each file is a document",
            "sentences": "a sentence a line, blank lines between documents",
            "lines": "a document a line",
        }
        say(f"layout: {sources.layout} ({meaning[sources.layout]}); --layout says otherwise")


# ---- text ----------------------------------------------------------------------------------------------------------


@text_app.command("audit")
def text_audit(
    src: SourceFiles, layout: Layout = "auto", text_column: TextColumn = "text", as_json: AsJson = False
) -> None:
    """Count documents, faults, duplicates and scripts, and say what `data prepare` will do about each."""
    from maskwright.text.audit import audit, report

    result = audit(src, layout=layout, text_column=text_column)
    _print(report(result), result.to_json(), as_json)


@tokenizer_app.command("train")
def tokenizer_train(
    src: SourceFiles,
    to: To,
    vocab_size: Annotated[int, typer.Option(help="Tokens, special ones included.")] = 50265,
    min_frequency: Annotated[int, typer.Option(help="Times a pair must occur to be merged.", min=1)] = 2,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    on_bad_input: OnBadInput = "error",
) -> None:
    """Train byte-level BPE in RoBERTa's layout."""
    from maskwright.text.tokenizer import train_tokenizer

    sources = _sources(src, layout, text_column, on_bad_input)
    vocabulary = train_tokenizer(sources, to, vocab_size=vocab_size, min_frequency=min_frequency)
    say(f"{to}: {vocabulary.size:,} tokens, <mask> is {vocabulary.mask}, fingerprint {vocabulary.fingerprint[:16]}")


@tokenizer_app.command("inspect")
def tokenizer_inspect(
    tokenizer: Annotated[str, typer.Argument(metavar="TOKENIZER", help="Tokenizer folder.")],
    src: SourceFiles,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    as_json: AsJson = False,
) -> None:
    """Tokens per word, bytes per token, unknown tokens and samples on a text."""
    from maskwright.text.tokenizer import inspect_tokenizer, inspection_report

    result = inspect_tokenizer(tokenizer, _sources(src, layout, text_column))
    _print(inspection_report(result), result.to_json(), as_json)


# ---- data ----------------------------------------------------------------------------------------------------------


@data_app.command("prepare")
def data_prepare(
    src: SourceFiles,
    tokenizer: Annotated[str, typer.Option(help="Tokenizer folder.")],
    to: To,
    valid_fraction: Annotated[float, typer.Option(help="Share of documents held out, by hash of their text.")] = 0.01,
    keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep equal documents.")] = False,
    min_characters: Annotated[int, typer.Option(help="Leave shorter documents out.")] = 1,
    max_characters: Annotated[int | None, typer.Option(help="Leave longer documents out.")] = None,
    shard_tokens: Annotated[int, typer.Option(help="Tokens in a shard, about.")] = 64_000_000,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    on_bad_input: OnBadInput = "error",
    encoder: Annotated[
        Literal["auto", "tokenizers", "gigatoken"],
        typer.Option(help="auto takes gigatoken where it is installed: the same ids, many times as fast."),
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Encode documents into a token store. Run again after a stop: it continues."""
    from maskwright.data.prepare import PrepareOptions, prepare, report

    options = PrepareOptions(valid_fraction, keep_duplicates, min_characters, max_characters, shard_tokens)
    ready = prepare(_sources(src, layout, text_column, on_bad_input), tokenizer, to, options, encoder)
    _print(report(ready), ready.manifest, as_json)


@data_app.command("inspect")
def data_inspect(store: Store, as_json: AsJson = False) -> None:
    """What a token store holds and where it came from."""
    from maskwright.data.prepare import report
    from maskwright.data.store import TokenStore

    ready = TokenStore(store)
    _print(report(ready), ready.manifest, as_json)


@data_app.command("verify")
def data_verify(store: Store) -> None:
    """Read every byte of a token store and compare it with the manifest."""
    from maskwright.data.store import TokenStore

    ready = TokenStore(store)
    ready.verify()
    print(f"{store}: every hash is right, fingerprint {ready.fingerprint[:16]}")


# ---- models --------------------------------------------------------------------------------------------------------


@app.command("pretrain")
def pretrain(
    config: Config,
    run: Annotated[str, typer.Option("--run", help="Run directory; an existing one is continued.")],
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, say what would happen, stop.")] = False,
    max_hours: Annotated[float | None, typer.Option(help="Save and stop after so long (exit 75).", min=0.0)] = None,
    max_steps: Annotated[int | None, typer.Option(help="Save and stop after so many steps (exit 75).", min=1)] = None,
) -> None:
    """Train a masked language model. Run again with the same folder: it continues, exactly."""
    from maskwright.core.config import read_config

    resolved = read_config(config, set_)
    from maskwright.tasks import preflight
    from maskwright.tasks import pretrain as task
    from maskwright.training.stop import StopRequest

    if dry_run:
        print(preflight.describe(preflight.prepare_run(resolved)))
        for doubt in preflight.doubts(resolved):
            warn(doubt)
    else:
        limits = StopRequest(max_hours=max_hours, max_steps=max_steps)
        task.pretrain(resolved, run, config_file=config, stop_request=limits)


@app.command("stop")
def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory of a run that is going on.")],
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Save a checkpoint and go on instead.")] = False,
    wait_seconds: Annotated[float, typer.Option(help="How long to wait for it to happen.", min=0.0)] = 120.0,
) -> None:
    """Ask a run to save and stop, from any machine that sees its folder. The same command continues it."""
    from maskwright.core.run_directory import RunDirectory
    from maskwright.tasks import stop as task

    print(task.stop(RunDirectory(run), "checkpoint" if checkpoint else "stop", wait_seconds))


@app.command("evaluate")
def evaluate(
    model: Model,
    store: Annotated[str | None, typer.Option(help="Token store; the run's own when not given.")] = None,
    max_rows: Annotated[int, typer.Option(help="Held-out rows to use.", min=1)] = 512,
    seq_len: Annotated[int | None, typer.Option(help="Tokens in a row; the run's own when not given.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Held-out loss and masked accuracy, beside the unigram baseline."""
    from maskwright.core.config import Engine
    from maskwright.core.errors import InputError
    from maskwright.data.store import TokenStore
    from maskwright.tasks import evaluate as task
    from maskwright.tasks.models import load_model

    trained = load_model(model)
    location = store or (trained.run or {}).get("store")
    if location is None:
        raise InputError("a model folder names no text to evaluate on", fix="give --store")
    if seq_len is not None and not 8 <= seq_len <= trained.config.max_seq_len:
        raise InputError(
            f"--seq-len {seq_len} is not in 8 … {trained.config.max_seq_len}, what the model takes",
            fix="give one in that range",
        )
    result = task.evaluate(
        trained, TokenStore(location), seq_len=seq_len, max_rows=max_rows, engine=Engine(device=device)
    )
    _print(result.report(), result.to_json(), as_json)


@app.command("export")
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory or Hugging Face folder.")], to: To
) -> None:
    """Write a Hugging Face folder and prove its logits equal in transformers."""
    from maskwright.tasks import export as task
    from maskwright.tasks.models import load_model

    task.announce(task.export(load_model(run), to), to)


@app.command("fill")
def fill(
    model: Model,
    text: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Sentences with <mask> in them.")],
    top: Annotated[int, typer.Option(help="Guesses for each mask.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Show what the model would write for each <mask>."""
    from maskwright.tasks import fill as task
    from maskwright.tasks.models import load_model

    trained = load_model(model)
    answers = [(sentence, task.fill(trained, sentence, top=top)) for sentence in text]
    if as_json:
        value = [
            {"text": sentence, "masks": [[dataclasses.asdict(guess) for guess in mask] for mask in masks]}
            for sentence, masks in answers
        ]
        print(json.dumps(value, ensure_ascii=False, indent=2))
        return
    for sentence, masks in answers:
        print(sentence)
        for guesses in masks:
            print(
                "   "
                + "  ".join(f"{guess.token.strip() or repr(guess.token)} {guess.probability:.0%}" for guess in guesses)
            )


@app.command("verify-resume")
def verify_resume(
    config: Config,
    steps: Annotated[int, typer.Option(help="Steps of the short copy that is run twice.")] = 60,
    kills: Annotated[int, typer.Option(help="How often the second run is killed.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the moments of the kills.")] = 0,
    work: Annotated[str | None, typer.Option(help="Folder for both runs; a temporary one when not given.")] = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Prove on your own job that a killed run continues bit for bit: run it twice, kill one with SIGKILL."""
    from maskwright.core.config import read_config
    from maskwright.core.errors import VerificationError
    from maskwright.tasks import verify_resume as task

    verdict = task.verify_resume(read_config(config, set_), steps=steps, kills=kills, seed=seed, work=work)
    _print(verdict.report(), verdict.to_json(), as_json)
    if verdict.differences:
        raise VerificationError("the killed run did not end as the other did")


@app.command("replay")
def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    step: Annotated[int, typer.Option(help="The update to compute again; the first is 0.", min=0)],
    as_json: AsJson = False,
) -> None:
    """Compute one step of a run again, and name the documents of its batch. The run stays as it is."""
    from maskwright.tasks import replay as task

    result = task.replay(run, step)
    _print(result.report(), result.to_json(), as_json)


@app.command("quickstart")
def quickstart(
    text: Annotated[
        list[str] | None, typer.Option("--text", help="Your own text; Python's documentation if not.")
    ] = None,
    to: To = "quickstart",
    minutes: Annotated[float, typer.Option(help="Time to train for, about.", min=0.01)] = 2.0,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
) -> None:
    """Text to a trained, evaluated, exported model on this machine, offline, in a few minutes."""
    from maskwright.tasks import quickstart as task

    task.quickstart(text or [], to, minutes=minutes, layout=layout, text_column=text_column)


@app.command("schema")
def schema(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="A table to read instead.")] = False,
) -> None:
    """JSON schema of a run's YAML, for editors."""
    from maskwright.core.config import json_schema
    from maskwright.core.config_page import markdown

    print(markdown().rstrip() if as_markdown else json_schema())


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"maskwright {__version__}")
        raise typer.Exit()


# ---- running -------------------------------------------------------------------------------------------------------


def _stop(number: int, frame: FrameType | None) -> None:
    for further in (signal.SIGTERM, signal.SIGINT):  # a second one must not interrupt the clean-up after the first
        signal.signal(further, signal.SIG_IGN)
    raise StoppedEarly(f"by {signal.Signals(number).name}; nothing half-written is left, run the command again")


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; never raises."""
    debug = "--debug" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        app(args=[argument for argument in arguments if argument != "--debug"], prog_name="maskwright")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except MaskwrightError as error:
        if debug:
            raise
        say(f"{'stopped' if isinstance(error, StoppedEarly) else 'error'}: {error}")
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        say(
            "error: out of memory. Fix: lower batch.micro_batch_rows, and raise batch.virtual_workers to keep the batch"
        )
        return 1
    except OSError as error:
        if debug:
            raise
        say(f"error: {error.filename or 'the system'}: {error.strerror or error}")
        return 1
    except Exception as error:
        if debug:
            raise
        say(f"error: {type(error).__name__}: {' '.join(str(error).split())}. This is a bug: --debug shows where")
        return 1
    return 0


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))
