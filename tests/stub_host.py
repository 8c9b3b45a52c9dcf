"""`python stub_host.py ARGUMENTS…` is the command line, with a made-up web server in the place of fsspec's.

It serves the folder HOST_FOLDER, and like many a client it quotes the whole address, and a header, in what it raises:
on opening `…/denied…` an OSError, on opening `…/broken…` something that nobody foresaw.
"""

import os
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import fsspec
from fsspec.spec import AbstractFileSystem

from maskwright.cli.main import main


class Host(AbstractFileSystem):
    protocol = "https"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def unstrip_protocol(self, name: str) -> str:
        return name

    def _local(self, path: str, opened: bool = False) -> str:
        quoted = f"GET {path} with {{'Authorization': 'Bearer {os.environ['HF_TOKEN']}'}}"
        if "/denied" in path and opened:
            raise OSError(f"403 Forbidden: {quoted}")
        if "/broken" in path and opened:
            raise RuntimeError(quoted)
        return os.environ["HOST_FOLDER"] + urlsplit(path).path

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        local = self._local(path)
        if not os.path.isfile(local):
            raise FileNotFoundError(path)
        return {"name": path, "size": os.path.getsize(local), "type": "file"}

    def _open(self, path: str, *_: Any, **__: Any) -> BinaryIO:
        return open(self._local(path, opened=True), "rb")


fsspec.register_implementation("https", Host, clobber=True)

if __name__ == "__main__":
    main()
