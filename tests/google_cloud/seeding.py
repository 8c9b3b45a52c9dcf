"""Stands in for what runs on the machine that fills the shared disk; the script itself is tested elsewhere."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google_cloud.fake import Cloud

SEEDED = {"ok": True, "files": 3, "bytes": 4096, "manifest_sha256": "0" * 64, "seconds": 1.0}


@contextmanager
def seeder(cloud: Cloud, result: dict[str, Any] | None) -> Iterator[list[str]]:
    """Once Terraform has made a machine NAME-seeder, it leaves `result`, or is lost where that is None. Gives the
    metadata that each machine had."""
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
                    cloud.put(items["maskwright-seed-result"], json.dumps(result))
            time.sleep(0.02)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
