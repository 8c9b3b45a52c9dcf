"""`python -m maskwright.cloud.vertex.node maskwright pretrain …`, in a container of a Vertex AI job: the command, with
the words that say which of the job's machines this is.

Vertex AI tells every replica of a job all of them in CLUSTER_SPEC; the first pool has one, the second the others:
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


def words(spec: str | None) -> list[str]:
    """`--num-nodes`, `--node-rank` and `--rendezvous`; none for a machine alone. They meet at the address that Vertex
    AI gives the first replica, with its port."""
    if not spec:
        return []
    try:
        told = json.loads(spec)
        pools = {name: list(told["cluster"][name]) for name in sorted(told["cluster"])}
        pool, index = str(told["task"]["type"]), int(told["task"]["index"])
        addresses = [address for members in pools.values() for address in members]
        rank = addresses.index(pools[pool][index])
    except (ValueError, KeyError, TypeError, IndexError):
        fix = "start it by a Vertex AI custom job, or unset the variable"
        raise InputError("is not what Vertex AI tells a replica", where=VARIABLE, fix=fix) from None
    if len(addresses) == 1:
        return []
    return node_words(len(addresses), rank, addresses[0])


def main(command: list[str]) -> NoReturn:
    try:
        added = words(os.environ.get(VARIABLE))
    except InputError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    os.execvp(command[0], [*command, *added])


if __name__ == "__main__":
    main(sys.argv[1:])
