"""Makes `schemas.json` from the published schemas of Kubernetes and JobSet: names, types, what is required, what may
be said. No descriptions, and of all kinds only those that maskwright writes. In an environment of its own:

    pip install kubernetes-validate==1.37.0 kubeflow-trainer-api==2.3.0
    python tests/reference/kubernetes/reduce.py > tests/reference/kubernetes/schemas.json

The first holds the OpenAPI definitions of Kubernetes 1.37; the second is generated from those of Kubeflow Trainer 2.3,
of which only the JobSet that it is built on is taken.
"""

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

CORE = {
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Service": "io.k8s.api.core.v1.Service",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
    "Job": "io.k8s.api.batch.v1.Job",
    "Namespace": "io.k8s.api.core.v1.Namespace",
    "PersistentVolume": "io.k8s.api.core.v1.PersistentVolume",
    "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
}
KUBEFLOW = {"JobSet": "JobsetV1alpha2JobSet"}
FREE = {"Quantity": {"type": ["string", "number"]}, "IntOrString": {"type": ["string", "integer"]}}
KEPT = ("type", "enum", "required")


def short(reference: str) -> str:
    """`#/$defs/io.k8s.api.core.v1.Container` and `IoK8sApiCoreV1Container` are one and the same thing."""
    last = reference.rpartition("/")[2].rpartition(".")[2]
    return re.sub(r"^(IoK8s.*?V\d+((alpha|beta)\d+)?|IoK8sApimachinery(Pkg[A-Z][a-z]+)+)(?=[A-Z])", "", last)


def reduce(schema: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    """One object's or field's bare structure; the names of other objects in it go into `wanted`."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        return reduce(choices[0], wanted)
    if len(choices) > 1:
        return {}
    if "$ref" in schema:
        wanted.add(short(schema["$ref"]))
        return {"ref": short(schema["$ref"])}
    bare: dict[str, Any] = {key: schema[key] for key in KEPT if schema.get(key)}
    if isinstance(bare.get("type"), list):
        types = [kind for kind in bare["type"] if kind != "null"]
        bare["type"] = types[0] if len(types) == 1 else types
    if "properties" in schema:
        bare["properties"] = {name: reduce(value, wanted) for name, value in sorted(schema["properties"].items())}
    if isinstance(schema.get("items"), dict):
        bare["items"] = reduce(schema["items"], wanted)
    if isinstance(schema.get("additionalProperties"), dict):
        bare["values"] = reduce(schema["additionalProperties"], wanted)
    return bare


def core() -> dict[str, dict[str, Any]]:
    import kubernetes_validate

    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / "v1.37.0-local"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    # Old groups have kinds of the same last name; the versions meant are v1 of core, batch, networking and meta.
    order = sorted(definitions, key=lambda name: (".v1." not in name, "api.core." not in name, name))
    found: dict[str, dict[str, Any]] = {}
    for name in order:
        found.setdefault(short(name), definitions[name])
    for kind, name in CORE.items():
        found[kind] = definitions[name]
    return found


def kubeflow() -> dict[str, dict[str, Any]]:
    from kubeflow_trainer_api import models

    found: dict[str, dict[str, Any]] = {}
    for kind, name in KUBEFLOW.items():
        schema = getattr(models, name).model_json_schema(by_alias=True)
        found |= {short(key): value for key, value in schema.pop("$defs").items() if not key.startswith("IoK8s")}
        found[kind] = schema
    return found


def main() -> None:
    sources = core() | kubeflow()
    found: dict[str, dict[str, Any]] = {}
    wanted = {*CORE, *KUBEFLOW, "PodTemplateSpec"}
    while missing := sorted(wanted - set(found)):
        for name in missing:
            found[name] = FREE.get(name) or reduce(sources[name], wanted)
    versions = {name: importlib.metadata.version(name) for name in ("kubernetes-validate", "kubeflow-trainer-api")}
    lines = [f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    sys.stdout.write("{\n" + f'  "made from": {json.dumps(versions)},\n' + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
