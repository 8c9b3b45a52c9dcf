"""The shell script that supervises a job on one host, and its protocol with the launcher.

The launcher starts `first_command` on the host, waits for its greeting and writes the script to its standard input.
Lists of processes do not show that, so values of variables are safe in it. The input ends when the launcher ends the
job or dies. The job then gets SIGTERM, the grace period and SIGKILL.

    host      MARK hello                      launcher   the script
              MARK ready                                 go
              lines of the job
              MARK exit 75                             or, before ready: MARK refused 127 why

The job writes to a file, which is shown as it grows. With a pipe, a lost connection would end the job at its next line
(SIGPIPE) or, half-open and full, block it for ever, in both cases before it has saved.
The job's processes inherit a file lock, which is held until the last of them dies.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from maskwright.core.console import typed
from maskwright.launch.target import Training

INSTALL = (
    "python3 -m pip install --user uv && python3 -m uv python install 3.12 && cd maskwright && "
    "PYTHON=$(python3 -m uv python find 3.12) scripts/install --tpu --gcp"
)
"""`--setup` for a host whose own Python is older than 3.11, such as Ubuntu 22.04. uv is on PyPI; the Python that it
installs is on GitHub (https://docs.astral.sh/uv/concepts/python-versions/)."""
# POSIX sh as in dash (Debian's and Ubuntu's sh), where only `kill -s` takes a group after `--`, and numbers of files
# have one digit.
SUPERVISE = """
  setsid sh -c 'cat >/dev/null; kill -s TERM "$1"; sleep "$2"; kill -s KILL -- "-$1"' watch "$mw_leader" "$mw_grace" \\
    <&3 3<&- 4>&- >/dev/null 2>&1 &
  mw_watch=$!
  exec 3<&-
  wait "$mw_leader"; mw_code=$?
  kill -s KILL -- "-$mw_leader" 2>/dev/null
  kill -s KILL -- "-$mw_watch" "$mw_watch" 2>/dev/null
"""
"""Waits for the process group of `mw_leader`. At the end of file 3 the group gets SIGTERM, the grace period, SIGKILL,
even if this shell is dead by then."""
SCRIPT = """
say() { echo "$mw_mark $*"; }
refuse() { say refused "$@"; exit 0; }
lacks() {
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    refuse "$1" "$2, and $(python3 --version 2>&1 | head -n 1) is older than 3.11. Fix: --setup '$mw_install'"
  refuse "$1" "$2. Fix: $3"
}
main() {
  command -v flock >/dev/null && command -v setsid >/dev/null || refuse 2 'needs flock and setsid (util-linux)'
  mw_state="$HOME/.cache/maskwright"
  mkdir -p "$mw_state" && [ -w "$mw_state" ] || refuse 2 "$mw_state: cannot be written"
  exec 9>>"$mw_state/launch.lock"
  if ! flock -n 9; then
    read -r mw_other mw_leader < "$mw_state/launch.job" || :
    if [ "$mw_other" != "$mw_job" ] && [ -z "$mw_replace" ]; then
      refuse 2 "is busy with another job. Fix: wait for it, or submit with --replace to end it"
    fi
    say note 'ending an earlier attempt'
    [ "${mw_leader:--}" = - ] || kill -s TERM "$mw_leader" 2>/dev/null || kill -s TERM -- "-$mw_leader" 2>/dev/null
    if ! flock -w "$mw_grace" 9; then
      [ "${mw_leader:--}" = - ] || kill -s KILL -- "-$mw_leader" 2>/dev/null
      flock -w 5 9 || refuse 1 'an earlier attempt does not end. Fix: kill it on the host'
    fi
  fi
  echo "$mw_job -" > "$mw_state/launch.job"
  if [ -n "$mw_setup" ]; then
    sh -c "$mw_setup" </dev/null 2>&1 9>&- || lacks 1 "--setup ended with $?" 'read its lines above'
  fi
  cd "$mw_folder" 2>/dev/null || refuse 2 "$mw_folder: no such folder here. Fix: name another by --workdir"
  PATH="$PWD/.venv/bin:$PATH"; export PATH
  command -v "$1" >/dev/null ||
    lacks 127 "$1: not installed here" 'name a folder with a .venv by --workdir, or install it with --setup'
  mw_version=$("$1" --version 2>&1 9>&-) ||
    lacks 127 "$1: does not start: $(echo "$mw_version" | tail -n 1)" 'install it again, with --setup'
  say ready
  read -r mw_word && [ "$mw_word" = go ] || exit 0
  exec 3<&0
  mw_log="$mw_state/launch.log"
  : > "$mw_log"
  setsid "$@" </dev/null >>"$mw_log" 2>&1 3<&- &
  mw_leader=$!
  echo "$mw_job $mw_leader" > "$mw_state/launch.job"
  exec 9>&-
  tail -n +1 -s 0.1 --pid="$mw_leader" -f "$mw_log" 3<&- &
  mw_tail=$!
{SUPERVISE}
  wait "$mw_tail"
  [ -z "$(tail -c 1 "$mw_log" | tr '\\000' x)" ] || echo
  say exit "$mw_code"
  exit 0
}
""".replace("{SUPERVISE}", SUPERVISE.strip("\n"))


def first_command(mark: str) -> str:
    """One shell line, the same on all hosts; lists of processes show no more than this."""
    return f"echo {mark} hello; exec sh -s"


def script_for(command: Training, values: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """The script for the standard input of `first_command`. `values`: environment variables for the command.

    `settings`: `mark` begins each line of the protocol; a host refuses a second `job` with another name unless
    `replace` is set; `setup` runs in the home folder, and the command in `folder` of it; `grace`: seconds between
    SIGTERM and SIGKILL."""
    lines = [f"mw_{name}={shlex.quote(value)}" for name, value in {**settings, "install": INSTALL}.items()]
    variables = {"PYTHONUNBUFFERED": "1", **values}
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    # The shell reads the whole script before it runs `main`, which then reads the rest of the input.
    return "\n".join(lines) + SCRIPT + f"main {typed(command.words())}\n"
