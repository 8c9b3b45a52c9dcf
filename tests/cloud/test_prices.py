"""What machines and chips cost, by the table that comes along."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import yaml

from maskwright.cli.main import run
from maskwright.cloud.machines import ATTACHED, GPUS
from maskwright.cloud.prices import TABLE, usd_per_hour
from maskwright.machine.tpus import TPUS


@pytest.mark.parametrize(
    ("what", "model", "region", "usd"),
    [
        ("v6e", "STANDARD", "us-east5", 2.7),
        ("v6e", "SPOT", "us-east5", 1.35),
        ("v6e", "SPOT", None, 1.35),  # a cap must hold wherever the nodes come up: the dearest region's
        ("v6e", "FLEX_START", None, 3.24),
        ("v6e", "RESERVATION_BOUND", "us-east5", 2.7),
        ("ct6e-standard-4t", "SPOT", "us-east5", 5.4),  # four chips
        ("v4", "STANDARD", None, 3.22),
        ("v3", "STANDARD", "europe-west4", 2.2),
        ("v2", "SPOT", "us-central1", 0.3825),
        ("g2-standard-12", "STANDARD", "us-east5", 1.12677),
        ("tpu7x", "SPOT", None, None),
        ("tpu7x-standard-4t", "SPOT", None, None),
        ("v6e", "SPOT", "nowhere", None),
        ("f1-micro", "STANDARD", None, None),
    ],
)
def test_price_of_an_hour(what: str, model: str, region: str | None, usd: float | None) -> None:
    assert usd_per_hour(what, model, region) == (usd if usd is None else pytest.approx(usd))


def test_table_is_whole() -> None:
    """A price by another unit or of another source would pass as one of these."""
    sources = yaml.safe_load(Path(TABLE).read_text())
    seen = set()
    for source in sources:
        assert source["source"].startswith("https://") and isinstance(source["date"], datetime.date)
        for what, regions in source["usd_per_hour"].items():
            assert what in {*TPUS, *GPUS, *ATTACHED} or what[:3] in ("e2-", "n1-", "n2-"), what
            for region, (on_demand, spot) in regions.items():
                assert 0 < spot < on_demand < 200, (what, region)
                assert what not in TPUS or on_demand < 10, "by the chip, not by the slice"
                assert (what, region) not in seen
                seen.add((what, region))


def test_plan_refuses_a_region_without_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "small", "--on", "v6e:4x4", "--region", "us-centrl1", "--vocab-size", "1000"]) == 2
    assert "--region: the price table has no region 'us-centrl1'. Fix: did you mean us-central1?" in (
        capsys.readouterr().err
    )


def test_plan_of_an_environment_prices_each_of_its_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lab.yaml"
    parts = "slice: {accelerator: v6e, topology: 2x2}\ngroup: {machine_type: g2-standard-12, size: 2}\n"
    path.write_text(f"name: lab1\nproject: lab-proj\nzone: us-east5-b\n{parts}")
    words = ["plan", "small", "--on", str(path), "--vocab-size", "1000"]
    assert run(words) == 1, "as it is, the run is refused there"
    said = capsys.readouterr().out
    assert "SPOT: 4 chips of v6e in us-east5 at 5.40 USD/hour as of 2026-11-21" in said
    assert "STANDARD: 2 x g2-standard-12 in us-east5 at 2.25 USD/hour as of 2026-08-20" in said
