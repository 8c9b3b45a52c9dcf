"""The commands that copy token stores to and from a bucket."""

from __future__ import annotations

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, Store, To, data_app, print_result
from maskwright.core.console import say


@command(data_app, "push")
def data_push(store: Store, to: str, as_json: AsJson = False) -> None:
    """Copy a token store to a bucket, and read it back to check it. After a stop, the same command continues.

    --to URL: gs://BUCKET/FOLDER, s3://BUCKET/FOLDER, or a path.
    """
    from maskwright.data.remote import push

    push(store, to)
    say(f"{to}: every file was copied and read back. Train from it with --set data.store={to}")
    print_result(None, {"store": to}, as_json)


@command(data_app, "pull")
def data_pull(location: str, to: To, as_json: AsJson = False) -> None:
    """Copy a token store from a bucket, checked against its manifest; or unpack an archive of shards.

    location URL: Folder of a token store in a bucket; or the URL of a .tar, .tar.gz or .tgz of shards.
    """
    from maskwright.data.remote import pull

    pull(location, to)
    say(f"{to}: complete, and every file matches its manifest")
    print_result(None, {"folder": to}, as_json)
