"""Makes `provider_schema.json`: what the provider hashicorp/google takes, for the resources of deploy/terraform.

    python tests/google_cloud/make_schema.py        # needs terraform, and its registry

Terraform shows the schema of the provider that `versions.tf` names. It does not say which words an argument takes, what
replaces the resource (see `standin.py`), or which arguments exclude each other: words stay as they are in the file.

Form: block = {"attributes": {name: [flags, type, words]}, "blocks": {name: [nesting, min, max, block]}}; flags are of
r(equired), o(ptional) and c(omputed); max 0 is no limit; a type is Terraform's JSON of it; without words any go.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("provider_schema.json")
SOURCE = Path(__file__).parents[2] / "deploy" / "terraform"
FLAGS = {"required": "r", "optional": "o", "computed": "c"}


def made(folder: Path, known: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of the provider in `folder`, after `terraform init`. `known`: the file as it was."""
    command = ["terraform", "providers", "schema", "-json"]
    shown = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
    (schema,) = json.loads(shown)["provider_schemas"].values()
    found = {"provider": schema["provider"], **schema["resource_schemas"]}
    used = {name for path in SOURCE.glob("*.tf") for name in re.findall(r'(?m)^resource "(\w+)"', path.read_text())}
    return {name: block(found[name]["block"], known.get(name, {})) for name in sorted({"provider", *used})}


def block(shown: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    attributes, blocks = {}, {}
    for name, one in shown.get("attributes", {}).items():
        words = known.get("attributes", {}).get(name, [])[2:]
        attributes[name] = ["".join(flag for word, flag in FLAGS.items() if one.get(word)), one["type"], *words]
    for name, one in shown.get("block_types", {}).items():
        inner = block(one["block"], (known.get("blocks", {}).get(name) or [{}])[-1])
        blocks[name] = [one["nesting_mode"], one.get("min_items", 0), one.get("max_items", 0), inner]
    return {"attributes": attributes, "blocks": blocks}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = shutil.copytree(SOURCE, Path(folder) / "work", ignore=shutil.ignore_patterns(".terraform*"))
        subprocess.run(["terraform", "init", "-backend=false"], cwd=work, check=True)
        blocks = made(work, json.loads(OUT.read_text()))
    lines = [f"  {json.dumps(name)}: {json.dumps(made_, separators=(',', ':'))}" for name, made_ in blocks.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
