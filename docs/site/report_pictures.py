"""Takes the pictures of reports in docs/pictures, of runs that it makes with the commands of a user.

    python docs/site/report_pictures.py [--work FOLDER] [NAME…]      half an hour on two cores

It needs Chromium and the package playwright. A folder that is given keeps its runs, and what is there already is not
made again. NAME is that of a picture, such as `report-quickstart`; without one, all are taken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESK, GAP = 860, 20
"""The width of pages in pixels, and what is left out above a heading."""
STEPS, SAVE_EVERY = 400, 20


class Studio:
    """`work`: the folder of the runs, which no picture shows. `browser`: playwright's."""

    def __init__(self, work: Path, browser: Any) -> None:
        self.work, self.browser = work, browser

    def run(self, *words: str) -> None:
        subprocess.run([sys.executable, "-m", "maskwright", *words], cwd=self.work, check=True)

    def report(self, name: str, *words: str) -> Path:
        self.run("report", *words, "--to", f"{name}.html")
        return self.work / f"{name}.html"

    def shot(self, page: Path, width: int, *, until: str, dark: bool = False) -> bytes:
        """`until`: the heading before which the picture ends."""
        shown = page.with_name(f"shown-{page.name}")
        shown.write_text(page.read_text(encoding="utf-8").replace(f"{self.work}/", ""), encoding="utf-8")
        inside = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        try:
            tab = inside.new_page()
            tab.goto(shown.as_uri())
            height = tab.locator("h2", has_text=until).first.bounding_box()["y"] - GAP
            taken: bytes = tab.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height}, full_page=True)
            return taken
        finally:
            inside.close()

    # ---- runs ----------------------------------------------------------------------------------------------------

    def quickstart(self) -> None:
        if not (self.work / "quickstart" / "report.html").exists():
            self.run("quickstart", "--to", "quickstart")

    def train(self, name: str, **changed: Any) -> list[str]:
        """The words that train `runs/NAME` on the quickstart's text."""
        self.quickstart()
        values: dict[str, Any] = {
            "data": {"store": "quickstart/store", "seq_len": 64},
            "model": {"size": "nano", "architecture": "modernbert"},
            "optimizer": {"kind": "muon", "learning_rate": 4e-3},
            "schedule": {"steps": STEPS, "warmup_steps": 20},
            "batch": {"micro_batch_rows": 16},
            "masking": {"rate": 0.3},
            "checkpoint": {"save_every_steps": SAVE_EVERY, "keep": 50},
            "evaluation": {"every_steps": 80},
            "logging": {"every_steps": 2},
        }
        for section, keys in changed.items():
            values[section] = {**values.get(section, {}), **keys} if isinstance(keys, dict) else keys
        (self.work / f"{name}.yaml").write_text(json.dumps(values, indent=1), encoding="utf-8")  # JSON is YAML
        return ["pretrain", f"{name}.yaml", "--run", f"runs/{name}"]

    def overlaid(self) -> None:
        for name, optimizer in (
            ("muon", {}),
            ("adamw", {"kind": "adamw", "learning_rate": 2e-3}),
        ):
            words = self.train(name, optimizer=optimizer)
            if logged(self.work / "runs" / name) < STEPS:
                self.run(*words)


def logged(run: Path) -> int:
    """The newest step of its log lines."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in reversed(lines):
        if line.endswith("}"):
            return int(json.loads(line)["step"])
    return 0


# ---- pictures -----------------------------------------------------------------------------------------------------


def quickstart(studio: Studio) -> bytes:
    studio.quickstart()
    return studio.shot(studio.work / "quickstart" / "report.html", DESK, until="Held-out text")


def two_runs(studio: Studio) -> bytes:
    studio.overlaid()
    return studio.shot(studio.report("two", "runs/muon", "runs/adamw"), DESK, until="muon", dark=True)


def verdict(studio: Studio) -> bytes:
    page = studio.work / "quickstart" / "verdict" / "verdict.html"
    if not page.exists():
        studio.run("quickstart", "--verdict", "--to", "quickstart")
    return studio.shot(page, DESK, until="Scores")


TAKEN: dict[str, Callable[[Studio], bytes]] = {
    "report-quickstart": quickstart,
    "report-two-runs-dark": two_runs,
    "verdict": verdict,
}


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*TAKEN, []], help="pictures; default: all")
    parser.add_argument("--work", type=Path, help="folder for the runs, which are kept")
    arguments = parser.parse_args()
    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as play:
        work = (arguments.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        browser = play.chromium.launch(executable_path=path, args=["--disable-gpu"])
        for name in arguments.names or TAKEN:
            (PICTURES / f"{name}.png").write_bytes(TAKEN[name](Studio(work, browser)))
        browser.close()


if __name__ == "__main__":
    main()
