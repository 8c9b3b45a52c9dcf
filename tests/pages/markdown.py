"""Pages as tests see them: what of a page is executed, which files it has the reader write, and what output it shows.

A page may continue with the files of another one (`files` or `fine_tuned` of `given.py`).

A page that is executed says so in a comment that readers do not see, with what the test puts into the empty directory
first (functions of `given.py`): `<!-- executed: stories, hub -->`, or `<!-- executed long: … -->` for `--long` alone.
Its fenced blocks, in order and in one shell:

- `console`: each command behind `$ `, or `> ` where it goes on, and below it the output that the test compares;
- `bash`: the block as a script, of which each command has to end with 0;
- `python`: the block as a program;
- any other one whose comment names a file: that file is written as it is shown.

A comment directly above a block says more, separated by commas: `<!-- block: last 3, seconds 90 -->`.
`first N`, `last N` (or both): these lines of each output are shown, and … stands for the rest; `exit N`: what the last
command ends with; `seconds N`: how long each command may take; `file NAME`.

A block that cannot be executed is preceded by `<!-- not executed: the reason -->`.
"""

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

EXECUTED = re.compile(r"<!-- executed(?P<long> long)?: (?P<given>[\w, ]+) -->")
SETTINGS = re.compile(r"<!-- block: (.+) -->")
NOT_EXECUTED = "<!-- not executed: "
SHELL = ("console", "bash", "python")


@dataclass
class Command:
    typed: list[str]
    """With the prompts."""
    output: list[str]
    """As it is shown below."""

    @property
    def text(self) -> str:
        return "\n".join(re.sub(r"^[$>] ", "", line) for line in self.typed)


@dataclass
class Block:
    line: int
    """Of its opening fence, from 1."""
    language: str
    body: list[str]
    settings: dict[str, str]
    executed: bool
    """False where the page gives the reason why not."""

    @property
    def file(self) -> str | None:
        return self.settings.get("file")

    @property
    def seconds(self) -> float:
        return float(self.settings.get("seconds", 300))

    def commands(self) -> list[Command]:
        """Of a console block."""
        found: list[Command] = []
        goes_on = False
        for line in self.body:
            if line.startswith("$ "):
                found.append(Command([line], []))
            elif goes_on or (found and not found[-1].output and line.startswith("> ")):
                found[-1].typed.append(line)
            else:
                assert found, f"line {self.line}: a console block begins with a command behind `$ `"
                found[-1].output.append(line)
                continue
            goes_on = line.endswith("\\")
        return found

    def selected(self, output: list[str]) -> list[str]:
        """The lines of an output that the page shows."""
        first, last = (int(self.settings.get(which, 0)) for which in ("first", "last"))
        if not first + last or len(output) <= first + last:
            return output
        return [*output[:first], "…", *(output[-last:] if last else [])]


@dataclass
class Page:
    path: Path
    text: str
    given: list[str] | None
    """None: the page is not executed."""
    long: bool
    blocks: list[Block] = field(default_factory=list)

    @property
    def shell_blocks(self) -> list[Block]:
        return [block for block in self.blocks if block.language in SHELL or block.file]


def read_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    marker = EXECUTED.search(text)
    given = [name.strip() for name in marker["given"].split(",")] if marker else None
    page = Page(path, text, given, bool(marker and marker["long"]))
    lines, number = text.splitlines(), 0
    while number < len(lines):
        fence = re.match(r"( *)```(\w*)$", lines[number])
        if fence is None:
            number += 1
            continue
        end = next(at for at in range(number + 1, len(lines)) if lines[at].strip() == "```")
        before = lines[number - 1].strip() if number else ""
        settings = SETTINGS.match(before)
        page.blocks.append(
            Block(
                number + 1,
                fence[2],
                [line.removeprefix(fence[1]) for line in lines[number + 1 : end]],
                dict(_pair(words) for words in settings[1].split(",")) if settings else {},
                not before.startswith(NOT_EXECUTED),
            )
        )
        number = end + 1
    return page


def _pair(words: str) -> tuple[str, str]:
    name, _, value = words.strip().partition(" ")
    assert name in ("first", "last", "exit", "seconds", "file"), f"a block's comment says {name!r}"
    return name, value


# ---- outputs ---------------------------------------------------------------------------------------------------------

LEFT_OUT = re.compile(
    r"^(host \d+ \| )?(\w+ +(\d+%  )?[\d.,]+ ?[kMGTB]*(/[\d.,]+ ?[kMGTB]*)?( \w+)?  [\d.,]+ ?[kMGTB]*( \w+)?/s  "
    r"|hosts: all run$)"
)
"""Lines that come at moments of their own. A terminal has a bar there; elsewhere it is a line every 15 seconds, and one
at the end of what took over 2. A job's watcher looks now and then."""
VARIES = {
    "this machine": r"(?<=engine: ).*|torch [\d.]+\S* on cpu, ([^()]|\([^()]*\))*",
    "a projected time": r"(?<=time here: ).*(?= for )",
    "a trial": r"measured on a few real steps|projected from matrix multiplication, since one step takes .* trial",
    "a digest": r"(?<!\.)\b(?=[0-9a-f]*\d)[0-9a-f]{6,64}\b",
    "a date": r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?Z?",
    "a duration": r"\b\d+(:\d\d)+\b|\b[\d.,]+ (ms|s|min|seconds|minutes|hours)\b",
    "a speed": r"\b[\d.,]+ ?[kMGT]?(B|FLOPs?)?( \w+)?/s\b|\b[\d.,]+k? a second\b",
    "a share of this machine's speed": r"\b\d+ ?% of (measured|GEMM)",
    "an amount of memory": r"\b[\d.,]+ [kMGT]B\b",
    "a machine of a group": r"\b\w+-(group|slice)-\w{4}\b",
    "a curve": r"[▁▂▃▄▅▆▇█]+",
    "a process": r"\b(process|pid) \d+",
    "a guess": r"\S+ \d+%(?=  |$)",
    "a score of a verdict": r"(?<=accuracy rose from ).*",
    "a rounding error": r"\b\d(\.\d+)?e-\d\d\b",
}
"""What differs between two machines or two moments; each is compared as these words."""
DECIMAL = re.compile(r"-?\d+\.\d+|\d+(?=%)")


def clean(output: str, root: str) -> list[str]:
    """The output as a page shows it: no progress, and paths as they would be without the test's folder."""
    output = re.sub(r"http://127\.0\.0\.1:\d{5}/", "https://huggingface.co/", output)  # `given.hub`
    # Tests measure with tiny matrices.
    output = re.sub(r"\d+ GFLOP/s measured", "… GFLOP/s measured", output)
    output = re.sub(r"time here: about [^()]*\([^()]*\)", "time here: about … (… to …)", output)
    output = re.sub(r"; other programs compute here too \([^()]*\), so it is faster without them", "", output)
    output = re.sub(r"[^\s'\"]*(?=/home/you/)", "", output)  # of this walk, and of one that it goes on from
    lines = output.replace(root, "").replace(f" on {socket.gethostname()}", " on laptop").replace("\r", "").splitlines()
    return [line.rstrip() for line in lines if not LEFT_OUT.match(line)]


def agree(shown: list[str], made: list[str]) -> bool:
    """The same lines but for what varies. Numbers with a point (losses, scores) may differ by a tenth or by 0.2, and
    those of 10 and more by 5: sums are rounded otherwise on other processors, some of which train in bf16."""
    return len(shown) == len(made) and all(_same(one, other) for one, other in zip(shown, made, strict=True))


def _same(shown: str, made: str) -> bool:
    for name, pattern in VARIES.items():
        shown, made = (re.sub(pattern, f"<{name}>", line) for line in (shown, made))
    rest = [re.sub(r"[ ─-]+", " ", DECIMAL.sub("#", line)).strip() for line in (shown, made)]
    numbers = zip(*([float(found) for found in DECIMAL.findall(line)] for line in (shown, made)), strict=False)
    return rest[0] == rest[1] and all(
        abs(one - other) <= max(0.1 * abs(one), 5.0 if abs(one) >= 10 else 0.2) for one, other in numbers
    )


def with_outputs(page: Page, made: dict[tuple[int, int], list[str]]) -> str:
    """The page's text with these outputs, by the block's line and the command's number in it."""
    lines = page.text.splitlines()
    for block in reversed(page.blocks):
        if block.language != "console" or not any(line == block.line for line, _ in made):
            continue
        indent = re.match(r" *", lines[block.line - 1])[0]  # type: ignore[index]
        body: list[str] = []
        for number, command in enumerate(block.commands()):
            body += [*command.typed, *made.get((block.line, number), command.output)]
        lines[block.line : block.line + len(block.body)] = [indent + line if line else "" for line in body]
    return "\n".join(lines) + "\n"
