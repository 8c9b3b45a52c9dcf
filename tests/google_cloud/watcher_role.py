"""The custom role of watchers that docs/google-cloud-roles.md creates."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "google-cloud-roles.md"


def permissions() -> set[str]:
    """As the page lists them."""
    listed = PAGE.read_text().partition("--permissions=")[2].partition("gcloud")[0]
    return set(re.findall(r"[\w.]+", listed))
