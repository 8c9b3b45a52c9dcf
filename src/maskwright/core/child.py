"""Commands of maskwright in processes of their own, as a user would type them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def run(words: Sequence[str]) -> int:
    """Runs `maskwright WORDS` with its output on the screen. Returns its exit code, as a shell gives it.

    Whatever stops this process, such as the exception of a signal, stops the command first and waits for it. So a run
    is saved, Terraform's state too, and machines that the command made are taken away.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen([sys.executable, "-m", "maskwright", *words])
        code = process.wait()
    except BaseException:
        if process is not None:
            process.terminate()
            process.wait()
        raise
    return code if code >= 0 else 128 - code
