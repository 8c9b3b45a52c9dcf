"""Stands in for what runs on the machine that fills the shared disk; the script itself is tested elsewhere."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google_cloud import storage
from google_cloud.fake import Cloud

SEEDED = {"ok": True, "files": 3, "bytes": 4096, "manifest_sha256": "0" * 64, "seconds": 1.0}


@contextmanager
def seeder(cloud: Cloud, result: dict[str, Any] | None, fill: Path | None = None) -> Iterator[list[str]]:
    """Once Terraform has made a machine NAME-seeder, it leaves `result`, or is lost where that is None. `fill`: the
    disk, to which it copies the bucket first. Gives the metadata that each machine had."""
    over, seen, done = threading.Event(), list[str](), set[str]()

    def act() -> None:
        while not over.is_set():
            with cloud.lock:
                found = {name: one for name, one in cloud.resources.items() if name.endswith("-seeder")}
            for name, machine in found.items():
                if machine.get("id") in done or "metadata" not in machine:
                    continue
                done.add(machine.get("id"))
                items = {item["key"]: item["value"] for item in machine["metadata"]["items"]}
                seen.append(json.dumps(items))
                if result is None:
                    cloud.preempt(name.rpartition("/")[2])
                else:
                    copied = copy(cloud, items["maskwright-seed-source"], fill) if fill else {}
                    cloud.put(items["maskwright-seed-result"], json.dumps({**result, **copied}))
            time.sleep(0.02)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def copy(cloud: Cloud, source: str, disk: Path) -> dict[str, Any]:
    """The objects below a gs:// address become files. What the script says of them."""
    bucket, _, prefix = source.removeprefix("gs://").rstrip("*").partition("/")
    lines, size = [], 0
    for name in sorted(name for place, name in list(cloud.objects) if place == bucket and name.startswith(prefix)):
        content, path = storage.newest(cloud, bucket, name).content, disk / name.removeprefix(prefix).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {path.relative_to(disk)}\n")
        size += len(content)
    text = "".join(lines).encode()
    (disk / "MANIFEST.sha256").write_bytes(text)
    return {"files": len(lines), "bytes": size, "manifest_sha256": hashlib.sha256(text).hexdigest()}
