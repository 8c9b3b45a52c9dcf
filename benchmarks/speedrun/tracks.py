"""The tracks of the speedrun. These are rules: a change makes the records of a track incomparable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Metric = Literal["loss", "blimp"]
ALPHA = 0.01
VOCAB_SIZE = 8192
JUDGED, CHOSEN_BY = 0.05, 0.09
"""Documents whose hash is below JUDGED are for judging; the next CHOSEN_BY - JUDGED are the held-out part of the store
that a recipe trains on."""
JUDGED_ROW, JUDGED_ROWS = 128, 2048
"""(tokens in a row for judging a model, number of rows)."""
REPOSITORY = "https://github.com/mlschmitt/classic-books-markdown"
COMMIT = "944882722e9a96fa6cf2739dc2ea757e101f412f"
AUTHORS = (
    "Anthony Trollope",
    "Arthur Conan Doyle",
    "Charles Dickens",
    "Charlotte Bronte",
    "Edgar Rice Burroughs",
    "Edith Wharton",
    "Elizabeth Gaskell",
    "George Eliot",
    "H.G. Wells",
    "Henry James",
    "Jack London",
    "James Fenimore Cooper",
    "Jane Austen",
    "Joseph Conrad",
    "Louisa May Alcott",
    "Lucy Maud Montgomery",
    "Mark Twain",
    "Thomas Hardy",
    "Wilkie Collins",
    "Willa Cather",
)
"""Folders of the repository: 179 novels and stories, 93 MB."""
BOOKS = {
    "store": "586c8b459ef67d1a5179bd7d02041064081b33d033214f6fbabb460321af5889",
    "judged": "9e9fb4bbb64671c5a22a9927d0b1416c9f4a23f70ebc15e170bee4c9b471081e",
    "tokenizer": "a1b41b2d970a6c08c7c9980eddb48c295e63160f135f65fb8a5e6082e5b145c7",
}
"""Fingerprints of the stores and the tokenizer that `text.open_text` makes of these books."""
PAIRS = "ea4ec2f20bb641332568248bb1a381e1ff8fa52177c0feee77178ccc4002184f"
"""`pairs_sha256` of BLiMP as published: github.com/alexwarstadt/blimp, data/."""


@dataclass(frozen=True)
class Track:
    name: str
    what: str
    metric: Metric
    target: float | None
    """None if the user gives it."""
    least_seeds: int
    cores: int = 2
    """CPU cores; 0 for one GPU."""
    text: Literal["books", "own"] = "books"

    @property
    def keys(self) -> dict[str, Any]:
        """Keys of the recipe that the track sets."""
        if self.cores:
            return {"engine.device": "cpu", "engine.threads": self.cores}
        return {"engine.device": "cuda", "engine.devices": 1}

    @property
    def aim(self) -> str:
        """The aim in words, as in `loss below 5.0000`."""
        than = "below" if self.metric == "loss" else "above"
        return f"{self.metric} {than} {'a target of yours' if self.target is None else shown(self.metric, self.target)}"


def shown(metric: Metric, value: float) -> str:
    return f"{value:.4f}" if metric == "loss" else f"{value:.2%}"


TRACKS = {
    track.name: track
    for track in (
        Track("minute", "held-out loss on the books, two CPU cores", "loss", 5.0, 5),
        Track("ten", "a lower held-out loss on the books, two CPU cores", "loss", 3.9, 3),
        Track("hour", "BLiMP after training on the books, two CPU cores", "blimp", 0.60, 3),
        Track("gpu", "BLiMP after training on the books, one H100 or H200", "blimp", 0.70, 3, cores=0),
        Track("own", "held-out loss on your text, two CPU cores; --target is yours", "loss", None, 3, text="own"),
    )
}
