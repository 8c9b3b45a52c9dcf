"""The command that watches all runs below some folders."""

from __future__ import annotations

import os
import sys

import typer

from maskwright.cli import places
from maskwright.cli.manual import command
from maskwright.cli.options import app, print_result

USUAL = "runs"
"""The usual folder of runs."""


@command(app, "watch")
def watch(
    folder: list[str] | None = None,
    once: bool = False,
    web: bool = False,
    port: int = 8484,
    host: str = "127.0.0.1",
    as_json: bool = False,
) -> None:
    """Watch all runs in some folders, in a live table or on a web page.

    FOLDER: Folders or URLs that contain runs. Default: `runs` if it exists, else the current folder.
    --once (no --web): Print the table once, as into a pipe.
    --web: Serve a web page with curves, logs and buttons.
    --port 0≤N≤65535 (--web): Port to listen on; 0 chooses a free one.
    --host ADDRESS (--web): Address to listen on. The connection is not encrypted.
    as_json --json (no --web): Print JSON on stdout.
    """
    from maskwright.core.errors import INTERRUPTED, InputError, StoppedEarly

    try:
        from maskwright.monitor.watch import find, terminal
        from maskwright.monitor.watch.runs import Runs

        places.require_folders(folder or ())
        folders = folder or [USUAL if os.path.isdir(USUAL) else "."]
        if web:
            from maskwright.monitor.watch.server import serve

            serve(folders, host, port)
            return
        runs = Runs(folders)
        shown_once = once or as_json or not sys.stdout.isatty()
        absent = [location for location in folders if not find.is_there(location)]
        if shown_once and absent:
            fix = "correct the path; only the live table of a terminal and the page of --web wait for a folder"
            raise InputError("is not there", where=absent[0], fix=fix)
        if as_json:
            runs.refresh(wait=True)
            print_result("", runs.to_json(), True)
            return
        from rich.console import Console

        console = Console(highlight=False)
        if shown_once:
            terminal.once(runs, console)
        else:
            terminal.live(runs, console)
    except StoppedEarly:
        raise typer.Exit(INTERRUPTED) from None
