"""Every `maskwright …` of every page is one that the command line takes, and every YAML is one that is read: all are
parsed, and nothing is run."""

import re
import shlex

import pytest
from pages.markdown import SHELL, read_page
from pages.test_links import ROOT, pages
from typer import TyperException
from typer.main import get_command

from maskwright.cli.main import app
from maskwright.cloud.environment import Environment, build_environment
from maskwright.config import recipes
from maskwright.config.finetuning import is_retrieval
from maskwright.config.pretraining import RunConfig, build_config
from maskwright.config.retrieval import build_task_config
from maskwright.config.settings import nested, parse_yaml
from maskwright.core.errors import MaskwrightError

PAGES = [
    *(path for path in pages() if not path.name.lower().startswith("changelog")),
    *sorted((ROOT / "recipes").rglob("*.yaml")),
]
RUN = {"data": {"store": "store"}, "schedule": {"kind": "wsd", "steps": 100_000}, "optimizer": {"learning_rate": 1e-3}}
FINETUNE = {"data": {"train": "train.csv"}, "model": {"init_from": "model"}}
ENVIRONMENT = {"name": "lab1", "project": "my-project", "zone": "us-east5-b"}
INSTEAD = {"mixture": "store", "epochs": "steps"}
"""A key, and the one whose place it takes."""
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
OPERATORS = set("();<>|&")
ELSEWHERE = ("apiVersion", "spec", "services", "steps", "file_mounts")
"""A key that the YAML of another program has: Kubernetes, Docker Compose, Cloud Build, SkyPilot."""


def typed(block):
    """What a reader types of a block."""
    if block.language == "console":
        return "\n".join(command.text for command in block.commands())
    if block.language in SHELL:
        return "\n".join(block.body)
    return "\n".join(line[2:] for line in block.body if line.startswith("$ "))


def commands(script):
    """The words behind each `maskwright`, up to the end of that command."""
    for words in statements(script):
        for place, word in enumerate(words):
            if word.rpartition("/")[2] == "maskwright":
                rest = words[place + 1 :]
                end = next((at for at, one in enumerate(rest) if set(one) <= OPERATORS), len(rest))
                if rest[end : end + 1] == [">"] and rest[end - 1] == "2":  # of standard error
                    end -= 1
                called = place == 0 or words[place - 1] == "--" or set(words[place - 1]) <= OPERATORS
                if end and (called or rest[0] in TABLE.commands):  # else a folder of that name
                    yield rest[:end]


def statements(script):
    """The words of each line, and operators as words of their own. A quoted string may go over several lines."""
    text = ""
    for line in script.replace("\\\n", " ").splitlines():
        text = f"{text}\n{line}" if text else line
        lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # no closing quotation
            continue
        yield words
        text = ""
    assert not text, f"a quotation is not closed: {text}"


TABLE = get_command(app)


def what_is_wrong(words, *, whole):
    """`whole`: what is required has to be there, unless … stands for the rest."""
    command, rest = TABLE, ["1" if word == "N" else word for word in words if word not in ("…", "--help")]
    whole = whole and len(rest) == len(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        command = command.get_command(None, name)
        if command is None:
            return f"there is no {name}"
    if hasattr(command, "commands"):  # not parsed: --install-completion would do it
        known = {option for parameter in command.params for option in parameter.opts}
        return "a command is missing" if whole and not rest else ", ".join(set(rest) - known)
    try:
        read_with(command.name, command.make_context(command.name, rest).params)
    except TyperException as error:
        lacking = type(error).__name__ in ("MissingParameter", "BadOptionUsage")  # an option, an option's value
        return None if lacking and not whole else str(error) or f"{type(error).__name__} {error.param.name}"
    except MaskwrightError as error:
        return str(error)
    return None


def read_with(name, given):
    """Reads a run with the keys that a command sets: the recipe that it names, or a small one."""
    keys = [key for key in given.get("set_") or given.get("overrides") or [] if "…" not in key]
    config = (given.get("config") or "").removeprefix("recipes/").removesuffix(".yaml")
    values, build, kind = RUN, build_config, "pretrain"
    if name in ("finetune", "compare") or config in ("finetune", *recipes.names("finetune")):
        values, build, kind = FINETUNE, build_task_config, "finetune"
    if config in recipes.names(kind):
        values = parse_yaml(recipes.read(config), config)
    pairs = {key: parse_yaml(value, key) for key, _, value in (one.partition("=") for one in keys)}
    build(merged(values, nested(pairs)), "--set", dict.fromkeys(pairs, "--set"))


def found(path):
    """(line, words, whether it is a whole command) of the commands in a page's blocks and sentences, or in the
    comments of a recipe."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for block in read_page(path).blocks:
            yield from ((block.line, words, True) for words in commands(typed(block)))
    sentences = FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    for code in re.finditer(r"`(maskwright [^`]+)`", sentences):
        line = sentences[: code.start()].count("\n") + 1
        yield from ((line, words, False) for words in commands(re.sub(r"\s+", " ", code[1])))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_are_taken(path):
    judged = ((line, words, what_is_wrong(words, whole=whole)) for line, words, whole in found(path))
    wrong = [f"line {line}: maskwright {shlex.join(words)}: {why}" for line, words, why in judged if why]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_configurations_are_read(path):
    for line, values in configurations(path):
        if not set(values) & set(ELSEWHERE):
            read_values_of(values, f"line {line}")


def configurations(path):
    for block in read_page(path).blocks:
        if block.language == "yaml" or (block.file or "").endswith((".yaml", ".yml")):
            yield block.line, parse_yaml("\n".join(block.body), f"{path.name}:{block.line}")


def read_values_of(values, where):
    """Whatever a part leaves out is taken from a small configuration of its kind."""
    data = values.get("data", {})
    if set(values) & (set(Environment.model_fields) - set(RunConfig.model_fields)):
        build_environment(ENVIRONMENT | values, where)
    elif "train" in data or not set(values) <= set(RunConfig.model_fields):
        build_task_config(values if is_retrieval(values) else merged(FINETUNE, values), where)
    else:
        build_config(merged(RUN, values), where)


def merged(base, values):
    found = dict(base)
    for section, keys in values.items():
        if isinstance(base.get(section), dict) and isinstance(keys, dict):
            left_out = {INSTEAD[key] for key in keys if key in INSTEAD}
            found[section] = {key: value for key, value in base[section].items() if key not in left_out} | keys
        else:
            found[section] = keys
    return found
