"""The page of an environment's keys, made from `cloud/environment.py` so that the two cannot differ."""

from __future__ import annotations

import json

from maskwright.cloud.environment import SECTIONS, Environment, Fallback
from maskwright.core.config_page import rows

INTRODUCTION = """\
# An environment's YAML

<!-- Made by `maskwright env schema --markdown > docs/google-cloud-environment.md`; a test compares the two. -->

One YAML file describes one environment on Google Cloud. What is `null` or left out does not exist: remove the section
`slice:` and run `maskwright env up`, and the slice is removed. Unknown keys and wrong values are refused.
"""
TABLE = "| key | type | default | meaning |\n|---|---|---|---|"
TITLES = {
    "network": "The network always exists.",
    "nfs": "A Filestore share. Every host mounts it as MOUNT_POINT/nfs_share.",
    "disk": "A disk, seeded once from a bucket and then attached read-only to every host as MOUNT_POINT/shared_pd.",
    "slice": "The hosts of one TPU slice.",
    "group": "A group of machines with GPUs, or without.",
    "host": "This section says what every host runs.",
}


def markdown() -> str:
    own = [row for row in rows(Environment) if row.split("`")[1].partition(".")[0] not in SECTIONS]
    parts = [INTRODUCTION, "\n".join([TABLE, *own]) + "\n"]
    for name, section in SECTIONS.items():
        parts.append(f"## {name}\n\n{TITLES[name]}\n\n" + "\n".join([TABLE, *rows(section, f"{name}.")]) + "\n")
    entry = "\n".join([TABLE, *rows(Fallback, "fallbacks[].")])
    parts.append(f"Each entry of `fallbacks`, of a slice or a group, has these keys:\n\n{entry}\n")
    return "\n".join(parts)


def json_schema() -> str:
    """For editors."""
    return json.dumps(Environment.model_json_schema(), indent=2)
