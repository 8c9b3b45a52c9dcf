"""What tests share: a small made-up language, a tokenizer and a store of it, and a configuration that trains in
seconds."""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_process import Cli, command_line
from warm import SMALL

from maskwright.config.pretraining import RunConfig, build_config
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore
from maskwright.engines import ceiling
from maskwright.tasks.start import data_card
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import train_tokenizer

pytest_plugins = ["tiers"]
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write", action="store_true", help="tests/pages: write the outputs that pages show anew")


def pytest_configure(config: pytest.Config) -> None:
    """Caches are of this session, for all of its workers. XLA takes most of the time of tests that use JAX: the same
    program is compiled once and, but for --large, with few of its optimizations. A test of two JAX processes took 136 s
    with them and 91 s without."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="cache-of-tests-")
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
        os.environ["XDG_CACHE_HOME"] = folder
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(folder, "hypothesis")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(folder, "jax")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    if not config.getoption("--large"):
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"


def sentence(generator: random.Random) -> str:
    """Real word forms in a fixed grammar, so that there is something to learn."""
    subject = generator.choice(["The fox", "A dog", "The old teacher", "My neighbour", "Nobody", "The river"])
    verb = generator.choice(["saw", "followed", "painted", "remembered", "crossed", "never liked"])
    thing = generator.choice(["the garden", "a bridge", "many letters", "the empty house", "blue paper", "stones"])
    end = generator.choice([".", " yesterday.", " in the morning.", ", and then it rained.", "?", " again!"])
    return f"{subject} {verb} {thing}{end}"


def documents(count: int, seed: int = 0, longest: int = 40) -> list[list[str]]:
    generator = random.Random(seed)
    return [
        [f"Story {number}."] + [sentence(generator) for _ in range(generator.randint(1, longest))]
        for number in range(count)
    ]


@pytest.fixture(scope="session", autouse=True)
def quick_starts() -> Iterator[None]:
    """Measuring what the machine can do, and telling the languages of the text, would take a second in each start of a
    run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ceiling, "SHAPES", SMALL)
        patch.setattr(ceiling, "SHAPE_SECONDS", 0.002)
        patch.setattr(data_card, "SAMPLE_DOCUMENTS", 8)
        patch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))  # other tests are no news
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 documents, one sentence per line, blank lines between documents."""
    path = tmp_path_factory.mktemp("corpus") / "stories.txt"
    path.write_text("\n\n".join("\n".join(lines) for lines in documents(300)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("tokenizer") / "tokenizer")
    train_tokenizer(Sources([str(corpus)], layout="sentences"), folder, vocab_size=400)
    return folder


@pytest.fixture(scope="session")
def tokenizer_of(corpus: Path, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """`tokenizer_of(kind)` is the folder of a small tokenizer of that kind (see `tokenizer_kinds.KINDS`)."""
    made = {"roberta": tokenizer}

    def folder(kind: str) -> str:
        from tokenizer_kinds import make_tokenizer  # transformers and torch: six seconds of each start

        if kind not in made:
            made[kind] = make_tokenizer(kind, corpus, str(tmp_path_factory.mktemp(kind) / "tokenizer"))
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def store(corpus: Path, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Several shards on the train side, so that every test crosses shard borders. Read-only: copy it to change it."""
    folder = str(tmp_path_factory.mktemp("store") / "store")
    options = PrepareOptions(valid_fraction=0.1, shard_tokens=8_000)
    return prepare(Request(Sources([str(corpus)], layout="sentences"), tokenizer, folder, options))


def prepared(
    text: Path | Sources, tokenizer: str, folder: Path | str, options: PrepareOptions, **given: Any
) -> TokenStore:
    """`data prepare` of one file or folder, or of sources."""
    sources = text if isinstance(text, Sources) else Sources([str(text)])
    return prepare(Request(sources, tokenizer, str(folder), options, **given))


def small_config(location: str, **keys: Any) -> RunConfig:
    """A run on the store at `location` that trains in seconds, with those dotted keys set."""
    values: dict[str, Any] = {
        "data": {"store": location, "seq_len": 32},
        "model": {"size": "nano", "hidden_size": 32, "num_attention_heads": 2},
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"steps": 12, "warmup_steps": 3},
        "batch": {"micro_batch_rows": 4, "virtual_workers": 2},
        "engine": {"device": "cpu", "dtype": "fp32", "threads": 1},
        "checkpoint": {"save_every_seconds": None},
        "evaluation": {"max_rows": 8},
        "logging": {"every_steps": 1, "report_to": []},
    }
    for dotted, value in keys.items():
        section, _, name = dotted.partition(".")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return build_config(values, "test.yaml")


@pytest.fixture
def config(store: TokenStore) -> Callable[..., RunConfig]:
    """`config(**{"schedule.steps": 5})` gives a configuration with those dotted keys set."""
    return partial(small_config, store.location)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """The command line in this process: what `in_process.Result` holds of a call."""
    with command_line(capfd) as typed:
        yield typed
