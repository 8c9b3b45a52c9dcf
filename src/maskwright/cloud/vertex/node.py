"""`python -m maskwright.cloud.vertex.node maskwright pretrain …`, in a container of a Vertex AI job: run the
command with the options that identify this machine.

Vertex AI lists all replicas of a job in CLUSTER_SPEC; the first pool has one, the second the others:
https://cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

from maskwright.core.console import say
from maskwright.core.errors import InputError
from maskwright.launch.target import node_words

VARIABLE = "CLUSTER_SPEC"


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


def main(command: list[str]) -> NoReturn:
    try:
        options = node_options(os.environ.get(VARIABLE))
    except InputError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    os.execvp(command[0], [*command, *options])


if __name__ == "__main__":
    main(sys.argv[1:])
