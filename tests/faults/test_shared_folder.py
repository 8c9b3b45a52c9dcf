"""Commands that make one folder of data together, on this machine and on others, and what kills and stops them."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import warm
from conftest import documents
from private_network import PrivateNetwork, wait_until, why_not
from runners import files_of

from maskwright.core.pids import state_of

SMALL = """
import sys, time
from maskwright.text.parts import cut
cut.PART_BYTES = (1_000, 1_000)
from maskwright.core import lease
lease.BEAT_SECONDS, lease.WATCH_SECONDS = 0.2, 3.0  # of a dead machine
from maskwright.cli.main import main
main()
"""
SLOWLY = "import time\n\n\ndef keep(text):\n    time.sleep(0.004)\n    return True\n"
FOR_EVER = """
import ctypes, os, pathlib


def keep(text):
    pathlib.Path(f"{os.getpid()}.pid").touch()
    ctypes.PyDLL(None).sleep(3600)  # holds Python's lock, so that no signal is handled
"""


@dataclass
class Place:
    folder: Path
    words: Callable[[str], list[str]]
    """Of the command that writes a folder of this name."""

    def start(self, to, *prefix):
        start = subprocess.Popen if prefix else warm.Popen
        words = [*prefix, sys.executable, "-c", SMALL, *self.words(to)]
        return start(words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def made(self, to):
        process = self.start(to)
        try:
            out, errors = process.communicate(timeout=240)
        finally:
            process.kill()
        assert process.returncode == 0, errors
        return without_command(self.folder / to), out


def without_command(folder):
    """The files, and the manifest without the words that were typed."""
    files = files_of(folder)
    if "manifest.json" in files:
        manifest = json.loads(files["manifest.json"])
        manifest.pop("command")
        files["manifest.json"] = json.dumps(manifest).encode()
    return files


def place_of(kind, tokenizer, folder):
    (folder / "slowly.py").write_text(SLOWLY)
    (folder / "text").mkdir()
    for number in range(8):
        text = "\n\n".join("\n".join(lines) for lines in documents(20, number))
        (folder / "text" / f"{number}.txt").write_text(text + "\n")
        ids = np.random.default_rng(number).integers(40, 300, 3_000).astype("<u2")
        ids[::50] = 1
        ids.tofile(folder / "text" / f"{number}.bin")

    def words(to):
        if kind == "prepare":
            more = ["--tokenizer", tokenizer, "--filter", "slowly:keep", "--layout", "sentences", "--to", to]
            return ["data", "prepare", "text/*.txt", *more, "--shard-tokens", "5000", "--valid-fraction", "0.1"]
        more = ["--tokenizer", tokenizer, "--document-end", "1", "--valid-fraction", "0.1", "--to", to]
        return ["data", "convert", *(f"text/{number}.bin" for number in range(8)), *more]

    return Place(folder, words)


@pytest.mark.parametrize("kills", [pytest.param(1, id="once"), pytest.param(40, id="often", marks=pytest.mark.large)])
@pytest.mark.parametrize(("kind", "at_once"), [("prepare", 1), ("prepare", 3), ("convert", 3)])
def test_kills_at_any_moment_change_nothing(kind, at_once, kills, tokenizer, tmp_path):
    """Of one command and of several: the same bytes, and nothing is left of those that were killed."""
    place, moments = place_of(kind, tokenizer, tmp_path), random.Random(at_once)
    began = time.monotonic()
    whole, told = place.made("whole")
    seconds = time.monotonic() - began
    killed = 0
    for attempt in range(kills):
        to = f"killed-{attempt}"
        running = [place.start(to) for _ in range(at_once)]
        time.sleep(moments.uniform(0.3, 1.0) * seconds)
        running[0].kill()
        running[0].communicate()
        killed += running[0].returncode == -signal.SIGKILL
        try:
            ends = [process.communicate(timeout=240) for process in running[1:]]
        finally:
            for process in running:
                process.kill()
        assert [process.returncode for process in running[1:]] == [0] * (at_once - 1), ends
        assert all(out == told.replace("whole", to) for out, _ in ends)
        assert place.made(to)[1] == told.replace("whole", to)
        assert without_command(tmp_path / to) == whole
    assert killed or kills == 1


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_two_machines_make_one_store_and_one_of_them_dies(tokenizer, tmp_path):
    """Each has a network and pids of its own, so neither sees the other but by the folder."""
    place = place_of("prepare", tokenizer, tmp_path)
    whole, told = place.made("whole")
    machines = [PrivateNetwork(), PrivateNetwork()]
    try:
        running = [place.start("store", *machine.words(folder=tmp_path)) for machine in machines]
        parts = tmp_path / "store" / "parts"
        wait_until(lambda: len({path.read_text() for path in parts.glob(".claim-*")}) == 2)
        machines[0].close()
        running[0].communicate(timeout=240)
        out, errors = running[1].communicate(timeout=240)
    finally:
        for machine in machines:
            machine.close()
    assert (running[1].returncode, out) == (0, told.replace("whole", "store")), errors
    assert "that other processes compute" in errors
    assert without_command(tmp_path / "store") == whole


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_a_command_ends_in_the_midst_of_a_part_and_its_processes_with_it(kind, tokenizer, tmp_path):
    """A part may take an hour. What it has claimed is free at once."""
    place = place_of("prepare", tokenizer, tmp_path)
    (tmp_path / "slowly.py").write_text(FOR_EVER)
    words = [*place.words("store"), "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", SMALL, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        children = wait_until(lambda: (found := [*tmp_path.glob("*.pid")])[1:] and [int(path.stem) for path in found])
        process.send_signal(kind)
        errors = process.communicate(timeout=240)[1]
    finally:
        process.kill()
    assert process.returncode == (-kind if kind == signal.SIGKILL else 75), errors
    assert len(children) == 2 and all(state_of(child, 0) == "gone" for child in children)
    if kind != signal.SIGKILL:
        assert not [*(tmp_path / "store").rglob(".*")]
