"""Makes `provider_schema.json`: what the provider hashicorp/google 8.7.0 takes, for the resources of deploy/terraform.

    python tests/google_cloud/make_schema.py

The provider itself comes from Terraform's registry only, but its schema is in the bindings that CDK Terrain generates
from it and publishes on PyPI (MPL-2.0): each resource's TypeScript says of every argument whether it is required,
optional or computed, how it is written in HCL, and of many which words they take. What they do not say is what
Terraform learns from the provider while it plans: which argument replaces the resource (see `standin.py`), and which
ones exclude each other. Run it again when `versions.tf` allows a newer provider, and change VERSION and HASH.

Form: block = {"attributes": {name: [flags, type, words]}, "blocks": {name: [nesting, min, max, block]}}; flags are of
r(equired), o(ptional) and c(omputed); max 0 is no limit; a type is Terraform's JSON of it; without words any go.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PROVIDER, VERSION = "8.7.0", "21.1.0"
HASH = "sha256:157dead5025d5db5abe48e40cc49f0b6a4d8088fd0498eb17ad5a36bca811b2a"
RESOURCES = [
    "artifact_registry_repository",
    "artifact_registry_repository_iam_member",
    "compute_disk",
    "compute_network",
    "compute_router",
    "compute_router_nat",
    "compute_subnetwork",
    "container_cluster",
    "container_node_pool",
    "filestore_instance",
    "project_iam_member",
    "service_account",
    "service_account_iam_member",
    "storage_bucket",
    "storage_bucket_iam_member",
]
OUT = Path(__file__).with_name("provider_schema.json")

MEMBER = re.compile(
    r"^  // (\w+) - computed: (\w+), optional: (\w+), required: (\w+)\n(.*?)(?=^  // \w+ - computed|\Z)", re.S | re.M
)
CLASS = re.compile(r"^export class (\w+) extends cdktn\.(\w+) \{\n(.*?)^\}", re.S | re.M)
INTERFACE = re.compile(r"^export interface (\w+)[^{]*\{\n(.*?)^\}", re.S | re.M)
WORDS = re.compile(r'Possible values: \[("[^\]]*)\](?:(?!\*/).)*?\{@link \S+#(\w+) ', re.S)
WRITER = re.compile(r"^export function (\w+)ToHclTerraform\(.*?^\}", re.S | re.M)
ENTRY = re.compile(
    r"^ +(\w+): \{\n +value: .*\n +isBlock: (\w+),\n +type: \"(\w+)\",\n +storageClassType: \"(\w+)\"", re.M
)
SCALAR = {"string": "string", "number": "number", "boolean": "bool", "any": "string"}
GETTER = {
    "getStringAttribute": "string",
    "getNumberAttribute": "number",
    "getBooleanAttribute": "bool",
    "getListAttribute": ["list", "string"],
    "getNumberListAttribute": ["list", "number"],
}
Written = dict[str, tuple[str, str, str]]
"""Of an argument's name: whether it is a block, its collection, and what is in it, as HCL is written."""


class Bindings:
    """One resource's TypeScript, cut into its classes."""

    def __init__(self, text: str) -> None:
        self.members = {name: MEMBER.findall(body) for name, _, body in CLASS.findall(text)}
        self.words = {
            name: {argument: re.findall(r'"(\w+)"', words) for words, argument in WORDS.findall(body)}
            for name, body in INTERFACE.findall(text)
        }
        self.written: dict[str, Written] = {}
        for name, base, body in CLASS.findall(text):
            if base in ("TerraformResource", "TerraformProvider"):
                self.root = name
                self.written[name] = self._entries(body[body.index("synthesizeHclAttributes") :])
        for found in WRITER.finditer(text):
            name = found.group(1)
            self.written[name[0].upper() + name[1:]] = self._entries(found.group(0))

    @staticmethod
    def _entries(text: str) -> Written:
        return {name: (block, kind, storage) for name, block, kind, storage in ENTRY.findall(text)}

    def block(self, struct: str, members: str) -> dict[str, Any]:
        """The block that is written from `struct` and read through the class `members`."""
        written = self.written.get(struct, {})
        block: dict[str, Any] = {"attributes": {}, "blocks": {}}
        for name, computed, optional, required, code in self.members[members]:
            flags = "r" * (required == "true") + "o" * (optional == "true") + "c" * (computed == "true")
            nested = re.search(r"new (?!cdktn\.)(\w+?)(List|Map|OutputReference)\(this", code)
            is_block, kind, storage = written.get(name, ("false", "", ""))
            if nested:
                inner = self.block(nested[1], nested[1] + "OutputReference")
                if is_block == "true":
                    shape = "single" if kind == "struct" else kind
                    most = 1 if nested[2] == "OutputReference" and shape != "single" else 0
                    block["blocks"][name] = [shape, int(required == "true"), most, inner]
                else:
                    is_set = kind == "set" or re.search(rf'"{name}", true', code) is not None
                    block["attributes"][name] = [flags, ["set" if is_set else "list", object_type(inner)]]
            elif is_block == "true":  # the provider's own blocks have no class to read them through
                inner = {
                    k: ["o", argument_type(v[1], v[2])] for k, v in self.written[storage.removesuffix("List")].items()
                }
                block["blocks"][name] = ["list", 0, 1, {"attributes": inner, "blocks": {}}]
            elif kind:
                words = self.words.get(struct, self.words.get(struct + "Config", {})).get(name)
                block["attributes"][name] = [flags, argument_type(kind, storage), *([words] if words else [])]
            else:
                block["attributes"][name] = [flags, computed_type(name, code)]
        return block


def argument_type(kind: str, storage: str) -> Any:
    if kind == "simple":
        return SCALAR[storage]
    return [kind, SCALAR[re.sub("(List|Map)$", "", storage)]]


def computed_type(name: str, code: str) -> Any:
    """Of what is only read: by how it is read."""
    if found := re.search(r"new cdktn\.(\w+)Map\(this", code):
        return ["map", SCALAR[found[1].lower()]]
    if "Fn.tolist" in code:
        return ["set", "string"]
    found = re.search(r"this\.(get\w+)\(", code)
    if not found:
        sys.exit(f"{name}: how it is read is not understood:\n{code}")
    return GETTER[found[1]]


def object_type(block: dict[str, Any]) -> Any:
    fields = {name: kind for name, (_, kind, *_) in block["attributes"].items()}
    fields |= {name: [nesting, object_type(inner)] for name, (nesting, _, _, inner) in block["blocks"].items()}
    return ["object", fields]


def download(folder: Path) -> Path:
    (folder / "wanted.txt").write_text(f"cdktn-provider-google=={VERSION} --hash={HASH}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--dest", str(folder), "--requirement", str(folder / "wanted.txt")], check=True)
    return next(folder.glob("*.whl"))


def source(archive: tarfile.TarFile, name: str) -> str:
    """A resource's TypeScript: the JavaScript ends with a map that carries it. A large one is in several files."""
    folder, texts = f"package/lib/{name.replace('_', '-')}/", []
    for path in sorted(path for path in archive.getnames() if path.startswith(folder) and path.endswith(".js")):
        script = archive.extractfile(path)
        assert script is not None
        text = script.read().decode().rpartition("sourceMappingURL=data:application/json;base64,")[2]
        texts.append(str(json.loads(base64.b64decode(text.strip()))["sourcesContent"][0]))
    return "\n".join(texts)


def main() -> None:
    blocks = {}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(download(Path(folder))) as wheel:
        inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        with wheel.open(inner) as packed, tarfile.open(fileobj=packed) as archive:
            texts = {name: source(archive, name) for name in ["provider", *RESOURCES]}
    for name, text in texts.items():
        assert f"/hashicorp/google/{PROVIDER}/" in text, f"{name} is of another version"
        bindings = Bindings(text)
        blocks["provider" if name == "provider" else f"google_{name}"] = bindings.block(bindings.root, bindings.root)
    lines = [f"  {json.dumps(name)}: {json.dumps(blocks[name], separators=(',', ':'))}" for name in sorted(blocks)]
    OUT.write_text(
        "{\n"
        + f'  "made from": "hashicorp/google {PROVIDER}, cdktn-provider-google {VERSION}",\n'
        + ",\n".join(lines)
        + "\n}\n"
    )


if __name__ == "__main__":
    main()
