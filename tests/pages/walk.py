"""A page, walked: its blocks in order, in one shell."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from pages.markdown import Block, Page, agree, clean
from pages.shell import PROGRAM, Shell


@contextmanager
def alone(name: str, shell: Shell) -> Iterator[Path]:
    """One process at a time walks a page, and the others go on from there. Gives the file that says where its files
    are, once it was walked."""
    with FileLock(shell.walks / f"{name}.lock"):
        yield shell.walks / name


def walk(page: Page, shell: Shell, made: dict[tuple[int, int], list[str]]) -> list[str]:
    """What the page says otherwise than it is. Outputs are put into `made`, by the block's line and the command's
    number in it."""
    wrong: list[str] = []
    for block in page.shell_blocks:
        if block.executed and block.file:
            path = shell.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(shell.placed("\n".join(block.body)) + "\n", encoding="utf-8")
        elif block.executed and block.language == "console":
            wrong += _compare_outputs(block, shell, made)
        elif block.executed:
            text = "\n".join(block.body)
            script = text if block.language == "bash" else f"{PROGRAM} <<'END OF BLOCK'\n{text}\nEND OF BLOCK"
            _run(block, script, shell, int(block.settings.get("exit", 0)), strict=True)
    (shell.walks / page.path.name).write_text(str(shell.folder))
    return wrong


def _compare_outputs(block: Block, shell: Shell, made: dict[tuple[int, int], list[str]]) -> list[str]:
    wrong, found = [], block.commands()
    for number, command in enumerate(found):
        code = int(block.settings.get("exit", 0)) if number == len(found) - 1 else 0
        output = _run(block, command.text, shell, code)
        lines = made[block.line, number] = block.selected(clean(output, str(shell.root)))
        if not agree(command.output, lines):
            head = f"line {block.line}: {' '.join(command.typed)}"
            wrong.append("\n".join([head, "--- shown", *command.output, "--- made", *lines]))
    return wrong


def _run(block: Block, command: str, shell: Shell, code: int, *, strict: bool = False) -> str:
    ended, output = shell.run(command, block.seconds, strict=strict)
    assert ended == code, f"line {block.line}: ended with {ended}\n$ {command}\n{output}"
    return output
