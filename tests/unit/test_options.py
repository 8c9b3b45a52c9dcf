"""What all commands share: the documents that they print."""

from __future__ import annotations

import json
import subprocess
import sys

GOES_ON = """
import sys
from maskwright.cli.options import print_line, stdout_for_document
with stdout_for_document(True) as documents:
    print_line({"number": 1}, documents)
    sys.stdin.readline()
    for number in (2, 3):
        print_line({"number": number}, documents)
    sys.exit(75)
"""


def test_a_reader_that_has_gone_changes_no_exit_code() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", GOES_ON], **pipes) as process:  # type: ignore[call-overload]
        assert json.loads(process.stdout.readline()) == {"version": 1, "number": 1}
        process.stdout.close()
        process.stdin.write(b"go on\n")
        process.stdin.close()
        assert process.wait(60) == 75 and process.stderr.read() == b""
