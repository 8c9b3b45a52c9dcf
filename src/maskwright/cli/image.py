"""The image that containers run: `image build` for any place, `env image` for the jobs of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import typer

from maskwright.cli.env import DryRun, EnvironmentFile, ServiceAccount, Yes, asking, env
from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, app, plain, print_result

if TYPE_CHECKING:
    from maskwright.cloud.provision.image import Image

image = typer.Typer(help="Build the container image.", **plain)
app.add_typer(image, name="image")


@command(env, "image")
def of_environment(
    location: EnvironmentFile,
    accelerator: Literal["cpu", "gpu", "tpu"] | None = None,
    source: str = ".",
    service_account: ServiceAccount = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Build the images that jobs run, with Cloud Build, unless there are some of the same source.

    --accelerator: What the jobs compute on. Default: an image for each kind of nodes of the YAML.
    --source PATH: Checkout of the repository to build from.
    """
    from maskwright.cloud.provision import image as module

    built = module.build_for(
        location,
        folder=source,
        accelerator=accelerator,
        service_account=service_account,
        confirm=asking(yes),
    )
    print_result("\n".join(map(_line, built)), {"images": list(map(_document, built))}, as_json)


@command(image, "build")
def build(
    name: str,
    accelerator: Literal["cpu", "gpu", "tpu"] = "cpu",
    staging: str | None = None,
    run_as: Literal["maskwright", "root"] = "maskwright",
    libtpu: bool = False,
    source: str = ".",
    service_account: ServiceAccount = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the image with docker here, or by Cloud Build; no environment is needed.

    name IMAGE: Name of the image with its tag, as in maskwright:cpu.
    --accelerator: What the containers compute on.
    --staging URL: Folder in a bucket, gs://…, for the source. Cloud Build then builds IMAGE, instead of docker here.
    --run-as: User of the process: maskwright (uid 10001), or root where devices and volumes are root's.
    --libtpu: Put libtpu into the image, for a private repository only (docs/tpu.md).
    --source PATH: Checkout of the repository to build from.
    """
    import os
    import shlex
    import subprocess

    from maskwright.cloud.provision import image as module
    from maskwright.core.errors import InputError, MaskwrightError

    arguments = module.arguments_of(accelerator, libtpu=libtpu, run_as=run_as)
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
        fix = "install it, or let Cloud Build do it: --staging gs://bucket/folder"
        raise InputError("is not installed, or not on the path", where="docker", fix=fix) from None
    if done.returncode:
        raise MaskwrightError(f"docker ended with {done.returncode}", where=name, fix="its lines above say why")
    _print(module.Image(name, "", True), as_json)


def _line(built: Image) -> str:
    return f"{built.name} {built.digest}".rstrip()


def _document(built: Image) -> dict[str, Any]:
    return {"image": built.name, "digest": built.digest, "built": built.built}


def _print(built: Image, as_json: bool) -> None:
    print_result(_line(built), _document(built), as_json)
