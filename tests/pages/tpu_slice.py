"""A TPU slice for a page: two hosts with Ubuntu 22.04, which are folders of this machine."""

import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fake_tpu import Hosts, fake_cloud, gcloud_environment
from google_cloud.fake import fake_cloud as fake_google
from google_cloud.storage import make_bucket
from pages.shell import Shell

STORE = """maskwright tokenizer train corpus --to tokenizer --vocab-size 500 &&
maskwright data prepare corpus --tokenizer tokenizer --to data/store"""
TRAINING = """#!/bin/sh
[ "$1" = --version ] && exec "{python}" -m maskwright --version
export STORAGE_EMULATOR_HOST="{storage}" MASKWRIGHT_CACHE="{root}/cache"
export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=2 RANK="$WORKER"
exec "{python}" -m maskwright "$@" --set engine.device=cpu
"""
"""What `scripts/install` puts into a host's .venv."""
STUBS = {
    "git": 'mkdir -p maskwright/scripts && cp -p "{root}/install" maskwright/scripts/install',
    "python3": """case "$*" in *find*) echo "{python}" ;; --version) echo Python 3.10.12 ;; -c*) exit 1 ;; esac""",
}
INSTALL = """#!/bin/sh
[ -x "$PYTHON" ] && mkdir -p .venv/bin && cp -p "{root}/training" .venv/bin/maskwright
"""


@contextmanager
def a_slice_of_two(shell: Shell) -> Iterator[None]:
    """The shell's variables point to it. Its hosts are empty at first."""
    hosts = Hosts(shell.root / "hosts", 2)
    (hosts.folder / "bin" / "maskwright").unlink()
    for worker in hosts.workers:
        shutil.rmtree(hosts.home(worker) / "maskwright")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with fake_google() as storage, fake_cloud(2) as cloud:
        make_bucket(storage, {"name": "bucket"})
        here = {"python": sys.executable, "root": shell.root, "port": port, "storage": storage.url}
        scripts = {"training": TRAINING, "install": INSTALL}
        scripts |= {f"hosts/bin/{name}": f"#!/bin/sh\n{text}\n" for name, text in STUBS.items()}
        for name, text in scripts.items():
            (shell.root / name).write_text(text.format(**here))
            (shell.root / name).chmod(0o755)
        variables = gcloud_environment(cloud, shell.root, hosts.path, shell.environment["PATH"])
        shell.environment |= {**variables, "HOME": shell.environment["HOME"]}
        shell.environment |= {"STORAGE_EMULATOR_HOST": storage.url, "MASKWRIGHT_CACHE": str(shell.root / "cache")}
        yield
        assert hosts.left_over() == []
