"""The commands that copy token stores to and from a bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.options import AsJson, Store, To, data_app, print_result
from maskwright.core.console import say


@data_app.command("push")
def data_push(
    store: Store,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="gs://BUCKET/FOLDER, s3://BUCKET/FOLDER, or a path.")],
    as_json: AsJson = False,
) -> None:
    """Copy a token store to a bucket, and read it back to check it. The same command continues after a stop."""
    from maskwright.data.remote import push

    push(store, to)
    say(f"{to}: every file is there and was read back. Train from it with --set data.store={to}")
    if as_json:
        print_result("", {"store": to}, True)


@data_app.command("pull")
def data_pull(
    location: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="Folder of a token store in a bucket; or a .tar, .tar.gz or .tgz of shards anywhere."
        ),
    ],
    to: To,
    as_json: AsJson = False,
) -> None:
    """Copy a token store from a bucket, checked against its manifest; or unpack an archive of shards."""
    from maskwright.data.remote import pull

    pull(location, to)
    say(f"{to}: everything is there, and as it was written")
    if as_json:
        print_result("", {"folder": to}, True)
