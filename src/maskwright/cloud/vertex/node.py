"""`python -m maskwright.cloud.vertex.node maskwright pretrain …`, in a container of a Vertex AI job: run the
command with the options that identify this machine.

Vertex AI lists all replicas of a job in CLUSTER_SPEC; the first pool has one, the second the others:
https://cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables

It restarts a container that ends with a code other than 0, up to five times, and then the job, up to three times
(…/training/understanding-training-service). So a run that ended as asked (76) ends with 0 here, after a line with its
code.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import FrameType

from maskwright.core.console import answer, say
from maskwright.core.errors import EndedAsAsked, InputError, StoppedEarly
from maskwright.launch.target import node_words
from maskwright.machine.hardware import tpu_chips

VARIABLE = "CLUSTER_SPEC"
ENDED_WITH = "maskwright_exit_code"
"""Key of the line of JSON with the code, which Cloud Logging keeps as a field of the entry."""


def node_options(spec: str | None) -> list[str]:
    """`--num-nodes`, `--node-rank` and `--rendezvous`; none for a single machine. The rendezvous is the address of the
    first replica in `spec`."""
    if not spec:
        return []
    try:
        cluster_spec = json.loads(spec)
        pools = {name: list(cluster_spec["cluster"][name]) for name in sorted(cluster_spec["cluster"])}
        pool, index = str(cluster_spec["task"]["type"]), int(cluster_spec["task"]["index"])
        addresses = [address for members in pools.values() for address in members]
        rank = addresses.index(pools[pool][index])
    except (ValueError, KeyError, TypeError, IndexError):
        fix = "start it in a Vertex AI custom job, or unset the variable"
        raise InputError("is not a cluster specification of Vertex AI", where=VARIABLE, fix=fix) from None
    if len(addresses) == 1:
        return []
    return node_words(len(addresses), rank, addresses[0])


def main(command: list[str]) -> int:
    try:
        options = [] if tpu_chips() else node_options(os.environ.get(VARIABLE))  # hosts of a slice find each other
    except InputError as error:
        say(f"error: {error}")
        return error.exit_code
    started: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: FrameType | None) -> None:
        if not started:
            sys.exit(StoppedEarly.exit_code)
        started[0].send_signal(number)

    signal.signal(signal.SIGTERM, end)
    started.append(subprocess.Popen([*command, *options]))
    code = started[0].wait()
    if code == EndedAsAsked.exit_code:
        answer(json.dumps({"message": "ended as asked", ENDED_WITH: code}))
        return 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
