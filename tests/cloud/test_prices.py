"""What machines and chips cost, by the table that comes along."""

import datetime
from pathlib import Path

import pytest
import yaml

from maskwright.cli.main import run
from maskwright.cloud.machines import ATTACHED, GPUS
from maskwright.cloud.prices import TABLE, hourly_offers
from maskwright.machine.devices import ACCELERATORS, DEVICES
from maskwright.machine.tpus import TPUS


@pytest.mark.parametrize(
    ("what", "region", "on_demand", "spot"),
    [
        ("v6e", "us-east5", 2.7, 1.35),
        ("v3", "europe-west4", 2.2, None),
        ("v2", "us-central1", None, 0.3825),
        ("g2-standard-12", "us-east5", 1.12677, None),
        ("nvidia-tesla-t4", "us-central1", 0.35 + 0.38, 0.175 + 0.11605),  # with its N1 machine
        ("tpu7x", "us-east5", 0, 0),
        ("v6e", "nowhere", 0, 0),
        ("f1-micro", "us-east5", 0, 0),
    ],
)
def test_price_of_an_hour(what, region, on_demand, spot):
    """0: the table has no price."""
    found = {offer.model: offer.usd for offer in hourly_offers(what, region, 2 if what[0] == "v" else 1)}
    for model, usd in (("STANDARD", on_demand), ("SPOT", spot)):
        if usd is not None:
            assert found.get(model, 0) == pytest.approx(usd * (2 if what[0] == "v" else 1))


def test_table_is_whole():
    """A price by another unit or of another source would pass as one of these."""
    assert set(ACCELERATORS.values()) <= set(DEVICES)
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


def test_plan_refuses_a_region_without_prices(capsys):
    assert run(["plan", "small", "--on", "v6e:4x4", "--region", "us-centrl1", "--vocab-size", "1000"]) == 2
    assert "--region: the price table has no region 'us-centrl1'. Fix: did you mean us-central1?" in (
        capsys.readouterr().err
    )


def test_plan_of_an_environment_prices_each_of_its_parts(tmp_path, capsys):
    path = tmp_path / "lab.yaml"
    parts = "slice: {accelerator: v6e, topology: 2x2}\ngroup: {machine_type: g2-standard-12, size: 2}\n"
    path.write_text(f"name: lab1\nproject: lab-proj\nzone: us-east5-b\n{parts}")
    words = ["plan", "small", "--on", str(path), "--vocab-size", "1000"]
    assert run(words) == 1, "as it is, the run is refused there"
    said = capsys.readouterr().out
    assert "SPOT: 4 chips of v6e in us-east5 at 5.40 USD/hour as of 2026-11-21" in said
    assert "STANDARD: 2 x g2-standard-12 in us-east5 at 2.25 USD/hour as of 2026-08-20" in said
