"""Takes the pictures of docs/watch.md: of made-up runs, on the real page.

    PYTHONPATH=tests python tests/browser/pictures.py

Needs playwright, Pillow, and Chromium or Chrome on the path. With `--to FOLDER` the pictures go there."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from browser.made_runs import MadeRun, crowd
from browser.served import Served, browser_path, opened, until
from PIL import Image
from playwright.sync_api import sync_playwright

SHOWN = "/home/you/project/runs"
"""In place of the temporary folder in which the runs are made."""
WIDE, TALL = {"width": 1240, "height": 880}, {"width": 1240, "height": 1270}
PHONE, GAP = {"width": 390, "height": 844}, 40
DRAWN = ".panel .main-svg"


def project(root: Path) -> None:
    """Two runs that go on, one that hangs, one that failed, and two that are over, one of them a fine-tuning run."""
    events = (
        {"step": 1_700, "event": "spiked", "loss": 7.9},
        {"step": 2_000, "event": "saved"},
        {"step": 2_400, "event": "saved"},
        {"step": 2_600, "event": "started", "attempt": 2, "host": "vm", "engine": "torch"},
    )
    MadeRun(root / "small/rate-1e-3", step=6_400, lines=640, ranks=8, slow=(3,), events=events).write()
    MadeRun(root / "small/rate-3e-3", step=5_150, lines=515, ranks=8, seed=3, peak=3e-3).write()
    MadeRun(root / "modern/muon", step=3_000, lines=300, ranks=16, hung=(11,), seed=9, age=12.0).write()
    MadeRun(root / "modern/adam", step=10_000, lines=500, phase="done", seed=4, age=8_000.0).write()
    failed = {"message": "out of memory on rank 0", "exit": 1, "phase": "failed"}
    MadeRun(root / "dna/long", seed=1, age=30_000.0, **failed).write()  # type: ignore[arg-type]
    MadeRun(
        root / "news/classes", step=2_000, of=2_000, lines=400, phase="done", seed=6, age=90_000.0, metric="accuracy"
    ).write()


def choose(page: Any, *names: str) -> None:
    page.locator(".run .name", has_text=names[0]).click()
    for name in names[1:]:
        page.check(f"[aria-label='Compare {name}']")
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    until(page, f"document.getElementById('chosen-title').textContent === '{title}'")
    page.wait_for_selector(DRAWN)
    page.mouse.move(2, 2)
    page.wait_for_timeout(1_000)  # plotly's second drawing, after the fonts
    page.evaluate("scrollTo(0, 0)")


def take(browser: Any, address: str, root: Path, to: Path, name: str, runs: tuple[str, ...], **context: Any) -> None:
    def rename(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace(str(root), SHOWN))

    ready = "#list li" if runs else "#none:not([hidden])"
    with opened(browser, address, ready=ready, **context) as page:
        page.route("**/api/**", rename)
        page.reload()
        page.wait_for_selector(ready)
        if runs:
            choose(page, *runs)
        page.screenshot(path=to / name)
    save(Image.open(to / name), to / name)


def save(picture: Image.Image, path: Path) -> None:
    few = picture.convert("RGB").quantize(method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def beside(to: Path, left: str, right: str, name: str) -> None:
    """Makes one picture of two, which are removed."""
    one, other = (Image.open(to / part).convert("RGB") for part in (left, right))
    both = Image.new("RGB", (one.width + GAP + other.width, max(one.height, other.height)), "#8b949e")
    both.paste(one, (0, 0))
    both.paste(other, (one.width + GAP, 0))
    save(both, to / name)
    for part in (left, right):
        (to / part).unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path(__file__).parents[2] / "docs" / "pictures")
    to = parser.parse_args().to
    to.mkdir(parents=True, exist_ok=True)
    served = Served()
    with tempfile.TemporaryDirectory() as made, sync_playwright() as play:
        root, many, none = (Path(made, name) for name in ("few", "many", "none"))
        project(root)
        crowd(many, 100, 10_000)
        none.mkdir()
        address = served.folder(root)
        browser = play.chromium.launch(executable_path=browser_path(), args=["--disable-gpu"])
        two = ("small/rate-1e-3", "small/rate-3e-3")
        take(browser, address, root, to, "watch-two-runs.png", two, viewport=WIDE)
        take(browser, address, root, to, "watch-hung-dark.png", ("modern/muon",), viewport=TALL, color_scheme="dark")
        phone = {"viewport": PHONE, "has_touch": True}
        take(browser, address, root, to, "phone.png", two, **phone)
        take(browser, served.folder(none), none, to, "empty.png", (), **phone)
        beside(to, "phone.png", "empty.png", "watch-phone-and-empty.png")
        take(browser, served.folder(many), many, to, "watch-crowd.png", ("sweep/run-096",), viewport=WIDE)
        browser.close()
    served.stop()


if __name__ == "__main__":
    main()
