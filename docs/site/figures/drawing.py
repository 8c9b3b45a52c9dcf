"""What all figures share: colours of a light and a dark page, words, boxes and lines. 600 units wide, with letters that
can still be read where a phone shows the whole width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from html import escape

WIDTH, MARGIN = 600, 20
LIGHT = {
    "ink": "#1b1f24",
    "quiet": "#59636e",
    "paper": "#ffffff",
    "pale": "#eaf3fb",
    "ours": "#0a6ab8",
    "other": "#b3500b",
    "soft": "#b9c2cc",
}
DARK = {
    "ink": "#e6eaef",
    "quiet": "#9aa5b1",
    "paper": "#12161c",
    "pale": "#172a3c",
    "ours": "#62b0f5",
    "other": "#f0965a",
    "soft": "#56616d",
}
Point = tuple[float, float]


def colours(page: dict[str, str]) -> str:
    ink, quiet, soft = page["ink"], page["quiet"], page["soft"]
    rules = [f"text{{fill:{ink}}}", f".quiet,.tick{{fill:{quiet}}}", f".paper{{fill:{page['paper']}}}"]
    rules += [f".box{{fill:{page['paper']};stroke:{page['ours']}}}", f".pale{{fill:{page['pale']}}}"]
    rules += [f".line{{stroke:{quiet}}}", f".tip{{fill:{quiet}}}", f".grid{{stroke:{soft};opacity:.5}}"]
    rules += [f".alone{{stroke:{soft}}}", f".one{{stroke:{ink}}}"]
    for name in ("ours", "other"):
        rules.append(f".{name}{{stroke:{page[name]}}}rect.{name},text.{name}{{fill:{page[name]};stroke:none}}")
    return "".join(rules)


STYLE = (
    "text{font:16px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}"
    ".small{font-size:14px}.tick{font-size:13px}.head{font-weight:600}.middle{text-anchor:middle}.end{text-anchor:end}"
    ".code{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".box{stroke-width:1.5}polyline,path.line{fill:none;stroke-width:1.5;stroke-linejoin:round}"
    ".dashed{stroke-dasharray:4 4}" + colours(LIGHT) + f"@media (prefers-color-scheme:dark){{{colours(DARK)}}}"
)
ARROW = (
    '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{name}>{escape(words, quote=False)}</text>'


def paragraph(y: float, words: str, kind: str = "quiet small", *, columns: int = 74) -> list[str]:
    """Lines of 20 units, of which the first stands at `y`."""
    return [text(MARGIN, y + 20 * number, part, kind) for number, part in enumerate(textwrap.wrap(words, columns))]


def line(*points: Point, kind: str = "line", arrow: bool = False) -> str:
    path = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
    end = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<polyline class="{kind}" points="{path}"{end}/>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, *, round_: float = 6) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:.5g}" height="{height:g}" rx="{round_:g}"/>'


def box(middle: float, y: float, width: float, lines: tuple[str, ...], *, kind: str = "box") -> str:
    """`y` is its top. Of several lines the first is bold."""
    parts = [rectangle(middle - width / 2, y, width, 20 * len(lines) + 16, kind)]
    for number, words in enumerate(lines):
        first = number == 0 and len(lines) > 1
        parts.append(text(middle, y + 24 + 20 * number, words, "head middle" if first else "quiet small middle"))
    return "\n".join(parts)


def svg(height: float, title: str, description: str, parts: Iterable[str], *, style: str = "") -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title, quote=False)}</title>',
            f'<desc id="desc">{escape(description, quote=False)}</desc>',
            f"<style>{STYLE}{style}</style>{ARROW}",
            f'<rect class="paper" width="{WIDTH}" height="{height:g}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )
