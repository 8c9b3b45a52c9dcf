"""`maskwright watch` as it is typed."""

import json
import sys

import pytest
from browser.made_runs import MadeRun

import maskwright.monitor
from maskwright.core.errors import StoppedEarly


@pytest.mark.parametrize("imported", ["terminal", "find"])
def test_ctrl_c_while_it_is_still_imported(cli, tmp_path, monkeypatch, imported):
    class Interrupted:
        def find_spec(self, name, *_):
            if name == f"maskwright.monitor.watch.{imported}":
                raise StoppedEarly("by SIGINT", reason="signal")

    for name in [name for name in sys.modules if name.startswith("maskwright.monitor.watch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(maskwright.monitor, "watch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    result = cli("watch", str(tmp_path), "--once")
    assert (result.code, result.out, result.err) == (130, "", "")


def test_the_command(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("watch").out == f"no runs below {tmp_path} yet\n"  # a pipe gets the table once
    MadeRun(tmp_path / "runs" / "wide", lines=40, ranks=4, hung=(2,)).write()
    MadeRun(tmp_path / "runs" / "over", lines=40, phase="done", age=600.0).write()
    told = json.loads(cli("watch", "--json").out)
    assert told["version"] == 1 and [run["name"] for run in told["runs"]] == ["wide", "over"]
    assert told["folders"] == [str(tmp_path / "runs")]
    assert "hung" in cli("watch", "runs", "--once").out
    for words, says in (
        (["nowhere", "--once"], "nowhere: is not there. Fix: correct the path; only the live table"),
        (["nowhere"], "nowhere: is not there. Fix: correct the path; only the live table"),
        (
            ["kubernetes:base-1"],
            "kubernetes:base-1: is a job, not a folder. Fix: `maskwright status kubernetes:base-1 --",
        ),
        (["--web", "ray:"], "ray:: is a job, not a folder. Fix: `maskwright status ray: --watch` shows it"),
        (["--web", "--once"], "--once: has no effect with --web. Fix: leave it out"),
        (["--port", "0"], "--port: has no effect without --web. Fix: add --web, or leave it out"),
        (["nothing://a", "--once"], "no file system has the name nothing://"),
        (["https://me:hunter2@host/a", "--once"], "holds a secret"),
    ):
        result = cli("watch", *words)
        assert result.code == 2 and says in result.error and "hunter2" not in result.err
