"""`scripts/install` and `scripts/quickstart`, with a stand-in for Python: which torch they take, what they trust after
a failure, and what they show of pip."""

import glob
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = r"""#!/bin/bash
case "$*" in
    "-c import sys; sys.exit"*) ;;
    "-c import sys; print"*) echo "/usr/bin/python ${PYTHON_VERSION:-3.12}" ;;
    "-c import urllib"*) [ -n "$INDEX" ] ;;
    "-m venv"*) case "$*" in *--clear*) echo clear >> "$CALLS"; rm -rf .venv ;; esac
        mkdir -p .venv/bin; cp "$0" .venv/bin/python
        printf '#!/bin/sh\necho "$@"\n' > .venv/bin/maskwright; chmod +x .venv/bin/maskwright ;;
    "-m pip"*) echo "WARNING: Location '/no/such/folder/' is ignored: it is neither a file nor a directory." >&2
        words="$*"; echo "${words#* install }" >> "$CALLS"
        case "$*" in *"${FAILS:-nothing}"*) echo "ERROR: no network" >&2; exit 1 ;; esac ;;
esac
"""
CPU = "--no-deps --index-url https://download.pytorch.org/whl/cpu torch==2.13.0"


class Clone:
    def __init__(self, folder):
        self.folder, self.calls = folder / "clone", folder / "calls"
        for name in ("scripts", "requirements", "bin"):
            (self.folder / name).mkdir(parents=True)
        for name in ("install", "quickstart"):
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts" / name)
        (self.folder / "requirements" / "core.lock").write_text("numpy\n")
        (self.folder / "pyproject.toml").write_text("[project]\n")
        self.program("python", PYTHON)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *words, script="install", **environment):
        """Exit code, what it printed, and what pip was asked to install, with `clear` where .venv was emptied."""
        self.calls.write_text("")
        done = subprocess.run(
            ["bash", f"scripts/{script}", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": f"{self.folder / 'bin'}:{os.defpath}",
                "PYTHON": str(self.folder / "bin" / "python"),
                "CALLS": str(self.calls),
            }
            | environment,
        )
        return done.returncode, done.stdout + done.stderr, self.calls.read_text().splitlines()


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


without_gpu = pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="this machine has an NVIDIA GPU")
CORE = "--require-hashes --no-deps -r requirements/core.lock"
SELF = "--no-build-isolation --no-deps -e ."


@without_gpu
def test_torch_is_that_of_the_machine(clone):
    assert clone.run(INDEX="there")[2] == ["clear", CORE, CPU, SELF]
    assert clone.run(INDEX="there") == (0, "", []), "the second time there is nothing to do"
    clone.program("nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H100'\n")
    assert clone.run(INDEX="there")[2] == ["clear", CORE, "torch==2.13.0", SELF], "a GPU was put in"
    assert clone.run("--cpu-torch", INDEX="there")[2] == ["clear", CORE, CPU, SELF]
    assert clone.run(INDEX="there") == (0, "", []), "the choice is remembered"
    assert clone.run("--auto-torch", INDEX="there")[2] == ["clear", CORE, "torch==2.13.0", SELF]


@without_gpu
def test_without_pytorchs_index_torch_is_that_of_the_package_index(clone):
    code, said, calls = clone.run()
    assert code == 0 and calls == ["clear", CORE, "torch==2.13.0", SELF]
    assert said.splitlines() == [
        "Installing into .venv (core; a few minutes the first time) ...",
        "scripts/install: https://download.pytorch.org/whl/cpu cannot be reached; taking torch from your package index "
        "(PyPI's brings CUDA, 4.5 GB)",
        "scripts/install: ready: source .venv/bin/activate",
    ]
    assert clone.run() == (0, "", [])
    code, said, calls = clone.run("--help")
    assert (code, calls) == (0, []) and "  scripts/install --s3  " in said and said.splitlines()[-1][0] != "#"
    assert said.startswith("Makes .venv") and "set -euo" not in said


@pytest.mark.parametrize("step", [CORE, "torch==", SELF])
def test_a_failed_install_is_not_trusted(clone, step):
    for name in ("jax", "web"):
        (clone.folder / "requirements" / f"{name}.lock").write_text(f"{name}\n")
    assert clone.run("--web", INDEX="there")[0] == 0
    code, said, _ = clone.run("--jax", INDEX="there", FAILS="jax.lock" if step == CORE else step)
    assert code == 1 and "ERROR: no network" in said and "WARNING: Location" not in said
    assert "Traceback" not in said and said.splitlines()[-1].startswith("scripts/install: pip could not")
    _, _, calls = clone.run(INDEX="there")
    assert calls[0] == CORE + " -r requirements/web.lock", "what was added before is, and all is looked at again"
    assert calls[-1] == SELF
    assert clone.run(INDEX="there", PYTHON_VERSION="3.13")[2][0] == "clear", "packages of another Python are not taken"


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ([], "quickstart --verdict"),
        (["--cpu-torch", "--to", "here"], "quickstart --verdict --to here"),
        (["--text", "*.txt", "--to", "here"], "quickstart --text *.txt --to here"),
    ],
)
def test_quickstart_installs_and_judges(clone, words, typed):
    assert clone.run(*words, script="quickstart", INDEX="there")[1].splitlines()[0] == typed
