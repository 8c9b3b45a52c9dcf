"""Numbers that are promises: of a page, a paper, or what programs of others read. A changed one is another product."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "name", "promised"),
    [
        ("core.errors", "InputError.exit_code", 2),  # exit codes: docs/run-directory.md
        ("core.errors", "MaskwrightError.exit_code", 1),
        ("core.errors", "HealthError.exit_code", 3),
        ("core.errors", "StoppedEarly.exit_code", 75),
        ("core.errors", "EndedAsAsked.exit_code", 76),
        ("core.errors", "NotFollowed.exit_code", 130),
        ("core.lease", "BEAT_SECONDS", 5.0),
        ("core.lease", "WATCH_SECONDS", 30.0),  # six beats
        ("run.starts", "MOST_STARTS", 6),
        ("launch.attempts", "MOST_LOST", 5),
        ("data.loader", "VALIDATION_SEED", 20_190_726),  # every evaluation ever written was made with it
        ("data.loader", "VALIDATION_MASKING.kind", "token"),
        ("data.loader", "VALIDATION_MASKING.rate", 0.15),
        ("data.loader", "VALIDATION_MASKING.mask_share", 0.8),
        ("data.loader", "VALIDATION_MASKING.random_share", 0.1),
        ("text.cleaning.near_duplicates", "SHINGLE_WORDS", 5),  # docs/cleaning.md
        ("text.cleaning.near_duplicates", "SIGNATURE", 128),
        ("text.cleaning.contamination", "NGRAM_WORDS", 13),
        ("text.cleaning.contamination", "FEWEST_WORDS", 8),
        ("verdict.statistics", "LEVEL", 0.95),  # docs/compare.md
        ("verdict.statistics", "ALPHA", 0.05),
        ("verdict.statistics", "DRAWS", 10_000),
        ("verdict.power", "POWER", 0.8),
        ("training.checkpoint", "FORMAT", 1),  # of what older versions wrote
        ("training.checkpoint", "FILES", ("model.safetensors", "optimizer.safetensors", "state.json")),
        ("run.directory", "MANIFEST", "MANIFEST.json"),
    ],
)
def test_what_is_promised(module, name, promised):
    found = import_module(f"maskwright.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    assert found == promised
