"""`maskwright recipes`."""

from __future__ import annotations

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, app, print_result


@command(app, "recipes")
def recipes(name: str | None = None, as_json: AsJson = False) -> None:
    """List the configurations that come with the package, or print the YAML of one to begin your own with.

    NAME: Recipe to print, such as small. Default: all are listed.
    """
    from maskwright.config import recipes as config

    if name is not None:
        text = config.read(name)
        return print_result(text.rstrip(), {"name": name, "yaml": text}, as_json)
    found = {kind: {name: config.purpose(name) for name in config.names(kind)} for kind in config.TAKEN_BY}
    sections = []
    for kind, purposes in found.items():
        wide = max(map(len, purposes))
        lines = [f"  {name:{wide}}  {purpose}" for name, purpose in purposes.items()]
        sections.append("\n".join([f"maskwright {kind} NAME --run RUN", *lines]))
    rows = [
        {"name": name, "command": kind, "purpose": said} for kind, all_ in found.items() for name, said in all_.items()
    ]
    print_result("\n\n".join(sections), {"recipes": rows}, as_json)
