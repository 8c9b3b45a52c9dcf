"""The command line's help and its completion in a shell."""

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from maskwright.cli import main
from maskwright.cli.options import JSON_VERSION, PANELS
from maskwright.core.errors import from_record

TYPES = re.compile(r"<(?!mask>|=)[^|>]*>")
"""Placeholders that typer makes of a type, such as `<float range>`. The words of a choice, `<a|b>`, are none."""


def every(command, name="maskwright", parent=None):
    """The context of each command, groups included."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield context
    for inner in command.list_commands(context) if hasattr(command, "list_commands") else []:
        yield from every(command.get_command(context, inner), inner, context)


def test_help_names_what_to_type_in_words_of_ours():
    contexts = list(every(get_command(main.app)))
    assert {"pretrain", "prepare", "ray", "up"} <= {context.info_name for context in contexts}
    for context in contexts:
        assert not TYPES.findall(context.get_help()), context.command_path
        assert "{" not in context.command.get_usage(context), context.command_path
        for option in context.command.params:
            named = option.hidden or option.metavar or "|" in option.display_type(context)
            assert named or option.is_flag or option.name.endswith("_completion"), (context.command_path, option.opts)


def test_each_command_stands_in_a_panel(cli):
    root = get_command(main.app)
    placed = [name for names in PANELS.values() for name in names]
    assert sorted(placed) == sorted(root.commands)
    lines = cli("--help").out.splitlines()
    assert [line[:-1] for line in lines if line[:-1] in PANELS] == list(PANELS)
    for title, names in PANELS.items():
        below = lines[lines.index(f"{title}:") + 1 :]
        panel = below[: below.index("") if "" in below else None]
        assert [line.split()[0] for line in panel if line[2] != " "] == names
    first = " ".join(" ".join(lines).split())
    for command in root.commands.values():
        sentence = command.get_short_help_str(limit=200)
        assert sentence.endswith(".") and not sentence.endswith("...") and sentence in first


@pytest.mark.parametrize("words", ["", "data", "data prepare", "submit", "submit ray"])
def test_h_is_help(cli, words):
    assert cli(*words.split(), "-h") == cli(*words.split(), "--help")
    assert cli(*words.split(), "-h").out.startswith(f"Usage: {' '.join(['maskwright', *words.split()])} ")


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("maskwright pret", ["pretrain"]),
        ("maskwright pretrain small --stop", ["--stop-after-hours", "--stop-after-steps"]),
        ("maskwright data in", ["inspect"]),
        ("maskwright submit sl", ["slurm"]),
        ("maskwright submit slice a small --grace", ["--grace-seconds"]),
        ("maskwright data prepare a --layout s", ["sentences"]),
    ],
)
def test_bash_completes(cli, monkeypatch, typed, offers):
    """As the lines do that `--show-completion` prints for bash."""
    words = typed.split()
    for name, value in (
        ("_MASKWRIGHT_COMPLETE", "complete_bash"),
        ("COMP_WORDS", typed),
        ("COMP_CWORD", str(len(words) - 1)),
    ):
        monkeypatch.setenv(name, value)
    result = cli()
    assert (result.code, result.out.split(), result.err) == (0, offers, "")


# ---- for programs ----------------------------------------------------------------------------------------------------


def test_each_command_answers_in_json():
    page = (Path(__file__).resolve().parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    for context in every(get_command(main.app)):
        if hasattr(context.command, "list_commands"):
            continue
        path = context.command_path.removeprefix("maskwright ")
        assert any("--json" in option.opts for option in context.command.params), f"`{path}` has no --json"
        assert f"`{path}`" in page, f"docs/json.md does not say what `{path} --json` prints"


def test_errors_are_json_where_answers_are(cli, tmp_path):
    found = cli("data", "verify", tmp_path / "nowhere", "--json")
    record = json.loads(found.err.splitlines()[-1])
    error = record.pop("error")
    assert record == {"version": JSON_VERSION} and found.out == ""
    assert (error["kind"], error["exit_code"], found.code) == ("StoreError", 2, 2)
    assert error["message"] == str(from_record(error)) and error["fix"]
    for words in (("status", "--jsn", "--json"), ("evaluate", "--json"), ("nothing", "--json")):
        found = cli(*words)
        error = json.loads(found.err.splitlines()[-1])["error"]
        assert (error["kind"], error["exit_code"], found.code) == ("InputError", 2, 2), words
    for words, fix in (
        (("env", "--json", "status", "lab.yaml"), "put it after the command, as in `maskwright doctor --json`"),
        (("env", "up", "--detailed-exitcode", "--json"), "`--json`, whose `differs` shows it"),
    ):
        assert json.loads(cli(*words).err.splitlines()[-1])["error"]["fix"] == fix
    plain = cli("data", "verify", tmp_path / "nowhere")
    assert plain.err.startswith("error: ") and plain.code == 2
