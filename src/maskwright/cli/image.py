"""`maskwright image`: the image that containers run, for any place or for the jobs of an environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from maskwright.cli.env import DryRun, ServiceAccount, Yes, asking
from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, app, print_result

if TYPE_CHECKING:
    from maskwright.cloud.provision.image import Image


@command(app, "image")
def image(
    name: str,
    accelerator: Literal["cpu", "gpu", "tpu"] | None = None,
    staging: str | None = None,
    run_as: Literal["maskwright", "root"] = "maskwright",
    libtpu: bool = False,
    source: str = ".",
    service_account: ServiceAccount = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the container image: with docker here, or with Cloud Build for an environment or with --staging.

    name IMAGE: Name of the image with its tag, such as maskwright:cpu; or the YAML of an environment, to build the
        images of its nodes unless they exist for the same source.
    --accelerator: What the containers compute on. Default: cpu; for a YAML, one image for each kind of node.
    --staging URL: Folder in a bucket, gs://…, for the source. Cloud Build then builds IMAGE, instead of docker.
    --run-as: User of the process: maskwright (uid 10001), or root if devices and volumes belong to root.
    --libtpu: Put libtpu into the image. Only for a private repository (docs/tpu.md).
    --source PATH: Checkout of the repository to build from.
    """
    import shlex
    import subprocess

    from maskwright.cloud.provision import image as module
    from maskwright.core.errors import InputError, MaskwrightError

    is_environment = name.endswith((".yaml", ".yml")) or os.path.isfile(name)
    images = {"--staging": staging, "--run-as": run_as != "maskwright", "--libtpu": libtpu, "--dry-run": dry_run}
    for option in (option for option, given in (images if is_environment else {"--yes": yes}).items() if given):
        kind = "an environment's YAML" if is_environment else "the name of an image"
        raise InputError(f"has no effect with {kind}", where=option, fix="leave it out")
    if is_environment:
        made = module.build_for(
            name, folder=source, accelerator=accelerator, service_account=service_account, confirm=asking(yes)
        )
        return print_result("\n".join(map(_line, made)), {"images": list(map(_document, made))}, as_json)
    arguments = module.arguments_of(accelerator or "cpu", libtpu=libtpu, run_as=run_as)
    if staging is not None:
        if dry_run:
            raise InputError("shows what docker would run here", where="--dry-run", fix="leave out --staging")
        content = module.pack(source)
        built = module.build(name, staging, content, arguments, service_account=service_account)
        return _print(built, as_json)
    words = ["docker", *module.docker_arguments(name, source, arguments)]
    if dry_run:
        return print_result(shlex.join(words), {"command": words}, as_json)
    try:
        done = subprocess.run(words, env={**os.environ, "DOCKER_BUILDKIT": "1"}, check=False)
    except FileNotFoundError:
        fix = "install it, or use Cloud Build with --staging gs://bucket/folder"
        raise InputError("is not installed, or not on the path", where="docker", fix=fix) from None
    if done.returncode:
        raise MaskwrightError(f"docker ended with {done.returncode}", where=name, fix="read its lines above")
    _print(module.Image(name, "", True), as_json)


def _line(built: Image) -> str:
    return f"{built.name} {built.digest}".rstrip()


def _document(built: Image) -> dict[str, Any]:
    return {"image": built.name, "digest": built.digest, "built": built.built}


def _print(built: Image, as_json: bool) -> None:
    print_result(_line(built), _document(built), as_json)
