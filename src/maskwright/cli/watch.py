"""The command that watches all runs below some folders."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from maskwright.cli.options import AsJson, app, print_result

PORT, HOST = 8484, "127.0.0.1"
USUAL = "runs"
"""The usual folder of runs."""


@app.command("watch")
def watch(
    folder: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER",
            help="Folders or URLs that have runs below them. When not given: runs, if it is there, else this folder.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once, as a pipe gets it.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Serve a page with curves, logs and buttons instead.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"With --web: port to listen on; 0 takes a free one. Default: {PORT}.",
            min=0,
            max=65535,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help=f"With --web: address to listen on, without encryption. Default: {HOST}.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch all runs below some folders: in a table that is drawn again every 2 seconds, or on a page."""
    from maskwright.core.errors import INTERRUPTED, InputError, StoppedEarly

    try:
        from maskwright.monitor.watch import find, terminal
        from maskwright.monitor.watch.runs import Runs

        folders = folder or [USUAL if os.path.isdir(USUAL) else "."]
        refused = (
            {"--once": once, "--json": as_json} if web else {"--port": port is not None, "--host": host is not None}
        )
        for word in (word for word, is_given in refused.items() if is_given):
            with_ = "with" if web else "without"
            raise InputError(f"means nothing {with_} --web", where=word, fix=f"{'leave out' if web else 'add'} --web")
        if web:
            from maskwright.monitor.watch.server import serve

            serve(folders, host or HOST, PORT if port is None else port)
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
