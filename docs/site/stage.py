"""Lays out the pages of the documentation site: those of docs/, the repository's that lie outside it, and llms.txt.

    python docs/site/stage.py FOLDER

A link to a file that is no page of the site leads to the repository where one is known, from GITHUB_SERVER_URL,
GITHUB_REPOSITORY and GITHUB_SHA, which GitHub Actions set. Elsewhere its words stay, without a link.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/speedrun/README.md": "speedrun.md",
    "deploy/terraform/README.md": "terraform.md",
}
"""A page outside docs/, and its name in the site."""
MOVED = ROOT / "docs" / "site" / "moved.toml"
RECIPES = "recipes.md"
LINK = re.compile(r"(?<!!)\[([^][]*(?:\[[^][]*\][^][]*)*)\]\(([^()\s]+)\)")
IMAGE = re.compile(r"!\[([^][]*)\]\(([^()\s]+)\)")
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def recipes() -> list[Path]:
    return [*sorted((ROOT / "recipes").glob("*.yaml")), *sorted((ROOT / "recipes" / "finetune").glob("*.yaml"))]


def notebooks() -> list[Path]:
    return sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def anchor(recipe: Path) -> str:
    return recipe.relative_to(ROOT).as_posix().replace("/", "-").removesuffix(".yaml")


def sources() -> dict[Path, str]:
    """Each page of the repository, and its name in the site."""
    pages = {path: path.name for path in sorted((ROOT / "docs").glob("*.md"))}
    return pages | {ROOT / path: name for path, name in ELSEWHERE.items()}


def target(page: Path, link: str) -> str | None:
    """Where a link of `page` leads in the site; None where there is nothing to lead to."""
    if "://" in link or link.startswith(("#", "mailto:")):
        return link
    path, _, fragment = link.partition("#")
    file = (page.parent / path).resolve()
    fragment = f"#{fragment}" if fragment else ""
    if name := sources().get(file):
        return f"{name}{fragment}"
    if not file.exists():
        raise SystemExit(f"{page.relative_to(ROOT)}: no {link}")
    if file in recipes():
        return f"{RECIPES}#{anchor(file)}"
    if file in (ROOT / "recipes", ROOT / "recipes" / "finetune"):
        return RECIPES
    if file.is_relative_to(ROOT / "docs" / "pictures") or file in notebooks():
        return file.relative_to(ROOT / "docs").as_posix()
    if "GITHUB_REPOSITORY" not in os.environ:
        return None
    server, repository = os.environ["GITHUB_SERVER_URL"], os.environ["GITHUB_REPOSITORY"]
    kind = "tree" if file.is_dir() else "blob"
    return f"{server}/{repository}/{kind}/{os.environ['GITHUB_SHA']}/{PurePosixPath(file.relative_to(ROOT))}{fragment}"


def rewritten(page: Path) -> str:
    def link(match: re.Match[str]) -> str:
        found = target(page, match[2])
        if found is None:
            return match[1]
        # A browser would show a notebook as what it is, JSON.
        return f"[{match[1]}]({found})" + ("{ download }" if found.endswith(".ipynb") and "://" not in found else "")

    def image(match: re.Match[str]) -> str:
        return f"![{match[1]}]({target(page, match[2])})"

    # A link may have code in its words, so code is set aside and put back.
    kept: list[str] = []

    def aside(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    text = CODE.sub(aside, page.read_text(encoding="utf-8"))
    text = IMAGE.sub(image, LINK.sub(link, text))
    text = re.sub("\0(\\d+)\0", lambda match: _in_table(kept[int(match[1])]), text)
    # Python-Markdown, unlike GitHub, wants an empty line before a list.
    return re.sub(r"^(?![-*|>#]|\d+\.| |$)(.+)\n(?=[-*] \S)", r"\1\n\n", text, flags=re.MULTILINE)


def _in_table(code: str) -> str:
    """Code in a table writes a bar as `\\|`. GitHub shows the bar alone, Python-Markdown both."""
    if code.startswith("`") and "\\|" in code:
        return f"<code>{html.escape(code[1:-1], quote=False)}</code>".replace("\\|", "&#124;")
    return code


def every_recipe() -> str:
    parts = []
    for path in recipes():
        name = path.relative_to(ROOT / "recipes").as_posix()
        parts.append(f"### {name} {{ #{anchor(path)} }}\n\n```yaml\n{path.read_text(encoding='utf-8').rstrip()}\n```\n")
    return "\n## Every recipe as it is\n\n" + "\n".join(parts)


def for_programs() -> str:
    """llms.txt, whose links lead to what the builder makes of the pages. Lines about other files are left out."""
    names = sources()

    def link(match: re.Match[str]) -> str:
        return f"[{match[1]}]({names[ROOT / match[2]].removesuffix('.md')}.html)"

    lines = (ROOT / "llms.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(LINK.sub(link, line) for line in lines if all(ROOT / to in names for _, to in LINK.findall(line)))


def moved() -> dict[str, str]:
    """Each page that is gone, and the page and heading that took over: `{"old.md": "new.md#heading"}`."""
    found: dict[str, str] = tomllib.loads(MOVED.read_text(encoding="utf-8"))
    return found


def forwarding(new: str) -> str:
    """What an old address shows: the builder copies HTML as it is. Browsers follow it at once, others by the link."""
    name, hashmark, heading = new.partition("#")
    address = html.escape(name.removesuffix(".md") + ".html" + hashmark + heading)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>This page has moved</title>
<meta http-equiv="refresh" content="0; url={address}">
<link rel="canonical" href="{address}">
<p>This page has moved to <a href="{address}">{address}</a>.</p>
</html>
"""


def stage(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "pictures", folder / "pictures")
    (folder / "notebooks").mkdir()
    for notebook in notebooks():
        shutil.copy(notebook, folder / "notebooks")
    shutil.copytree(
        ROOT / "docs" / "site",
        folder / "site",
        ignore=shutil.ignore_patterns("*.py", "*.toml", "figures", "__pycache__"),
    )
    for page, name in sources().items():
        text = rewritten(page) + (every_recipe() if name == RECIPES else "")
        (folder / name).write_text(text, encoding="utf-8")
    for old, new in moved().items():
        (folder / old).with_suffix(".html").write_text(forwarding(new), encoding="utf-8")
    (folder / "llms.txt").write_text(for_programs(), encoding="utf-8")


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
