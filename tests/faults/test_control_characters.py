"""Nothing that others wrote (a host, a log, a name, a document, a model) steers the terminal of whoever looks at it."""

import io
import json
from dataclasses import asdict

import pytest
from rich.console import Console

from maskwright.core import console
from maskwright.core.errors import ConfigError, InputError, as_record, from_record
from maskwright.launch.ray.jobs import RayJob, table_of
from maskwright.monitor.watch.terminal import table
from maskwright.run.directory import Status

HOSTILE = "\x1b]0;mine\x07\x1b[2J\x9b31m\x90q\x7f\u202egnp.exe\u2066\b\r\x1b[31mred\x1b[0m"
SHOWN = "�]0;mine��[2J�31m�q��gnp.exe��red"


def assert_harmless(text):
    assert not [one for one in text if one not in "\n\t" and (ord(one) < 32 or 127 <= ord(one) < 160)], repr(text)
    assert not set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"), repr(text)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / f"run{HOSTILE}"
    folder.mkdir()
    status = Status("failed", 5, 10, host=HOSTILE, pid=7, message=f"it was {HOSTILE}")
    (folder / "status.json").write_text(json.dumps(asdict(status)))
    (folder / "log.txt").write_text(f"a\tstep {HOSTILE}\n", newline="")
    return folder


def test_no_command_prints_control_characters_of_others(cli, run, tmp_path, tokenizer):
    text, values = tmp_path / f"a{HOSTILE}.txt", tmp_path / "evil.sh"
    text.write_text(f"a document {HOSTILE}\n")
    values.write_text(f"python run_mlm.py --model_name_or_path 'a/{HOSTILE}' --{HOSTILE} 'x\ny' --output_dir o\n")
    for command in (
        ("status", run),
        ("logs", run),
        ("stop", run),
        ("import", "run_mlm", values),
        ("tokenizer", "inspect", tokenizer, text),
        ("data", "inspect", text),
        ("watch", "--once", tmp_path),
        (HOSTILE,),
        ("status", f"--{HOSTILE}"),
        ("--debug", "data", "verify", run),
    ):
        for as_json in ((), ("--json",)):
            found = cli(*command, *as_json)
            assert found.out or found.err
            assert_harmless(found.out + found.err)
            if as_json and found.code == 0:
                json.loads(found.out)
    assert cli("logs", run).out == f"a\tstep {SHOWN}\n"
    assert json.loads(cli("logs", run, "--json").out)["line"] == f"a\tstep {HOSTILE}"


def test_whatever_prints_leaves_them_out(capsys):
    """Hosts of an environment, Ray, Vertex AI and ssh are heard through these."""
    console.say(HOSTILE)
    console.warn(HOSTILE)
    console.show_line(3, HOSTILE)
    console.answer(f"a\tb\n{HOSTILE}")
    console.print_exception(ValueError(HOSTILE))
    printed = capsys.readouterr()
    assert printed.out == f"host 3 | {SHOWN}\na\tb\n{SHOWN}\n"
    assert_harmless(printed.err)
    for error in (InputError(HOSTILE, where=HOSTILE, fix=HOSTILE), ConfigError(HOSTILE, fix=None, lines=[HOSTILE])):
        assert_harmless(str(error))
        assert_harmless(str(from_record(as_record(error))))
    drawn = Console(file=io.StringIO(), width=200)
    row = dict.fromkeys(("step", "of", "loss", "valid_loss", "learning_rate", "eta_seconds", "tokens_per_second"), None)
    row |= {"name": HOSTILE, "state": HOSTILE, "health": HOSTILE, "ranks": {HOSTILE: 1}, "spark": [], "step": 1}
    drawn.print(table([row], [HOSTILE], [HOSTILE], width=200, height=None))
    assert_harmless(drawn.file.getvalue())
    listed = table_of([RayJob(HOSTILE, "RUNNING", None, f"x\n{HOSTILE}", 0.0, None, "")]).report()
    assert_harmless(listed)
    assert len(listed.splitlines()) == 2


def test_a_bar_takes_no_markup_from_a_label(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    bar = console.Progress("pull /a[/b]{c}\u202e", 2, "bytes", stream=stream)
    bar.advance(1, note=f"[/x]{HOSTILE}")
    bar.close()
    assert "pull /a[/b]{c}�" in stream.getvalue() and "]0;mine\x07" not in stream.getvalue()
    assert "[/x]�]0;mine" in stream.getvalue().replace("\n", "")
