"""What an environment costs, by the table that comes along and by a user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskwright.cli.main import run
from maskwright.cloud.environment import Environment, build_environment
from maskwright.cloud.machines import ATTACHED, GPUS
from maskwright.cloud.prices import BOOT_DISK_GIB, TABLE, CostEstimate, estimate, read_prices, table
from maskwright.core.errors import ConfigError
from maskwright.machine.tpus import TPUS

SOURCES = "currency: USD\nsources:\n  mine: {date: 2026-01-31, address: https://example.org/prices}\nprices:\n"
ROWS = """  - {what: v6e, region: us-east5, unit: chip-hour, on_demand: 2.0, spot: 0.5, source: mine}
  - {what: g2-standard-12, region: us-east5, unit: machine-hour, on_demand: 1.25, source: mine}
  - {what: hyperdisk-balanced, region: us-east5, unit: GiB-month, on_demand: 0.0365, source: mine}
  - {what: pd-balanced, region: us-east5, unit: GiB-month, on_demand: 0.073, source: mine}
  - {what: hyperdisk-ml, region: us-east5, unit: GiB-month, on_demand: 0.073, source: mine}
  - {what: BASIC_HDD, region: us-east5, unit: GiB-month, on_demand: 0.146, source: mine}
  - {what: nat, region: "*", unit: machine-hour, on_demand: 0.001, source: mine}
"""


def lab(**parts: Any) -> Environment:
    return build_environment({"name": "lab1", "project": "lab-proj", "zone": "us-east5-b", **parts}, "lab.yaml")


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "prices.yaml"
    path.write_text(SOURCES + ROWS)
    return str(path)


ALL = {
    "network": {"nat": True},
    "nfs": {"capacity_gb": 1024},
    "disk": {"type": "hyperdisk-ml", "size_gb": 2000, "source": "gs://data-bucket/corpus"},
    "slice": {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"},
    "group": {"machine_type": "g2-standard-12", "size": 2},
}


def test_sum_by_hand(mine: str) -> None:
    """Slice 16 x 0.5 = 8; group 2 x 1.25 = 2.5; disk 2000 x 0.073 / 730 = 0.2; NFS 1024 x 0.146 / 730 = 0.2048; a
    gateway for 4 + 2 machines 6 x 0.001 = 0.006; boot disks 4 x 200 x 0.0365 / 730 = 0.04 and 2 x 200 x 0.073 / 730 =
    0.04. Together 10.9908 an hour, x 730 = 8023.284 a month."""
    costs = estimate(lab(**ALL), read_prices(mine))
    assert [(line.part, line.count, round(line.hourly, 6)) for line in costs.lines] == [
        ("slice", 16, 8.0),
        ("slice's boot", 800, 0.04),
        ("group", 2, 2.5),
        ("group's boot", 400, 0.04),
        ("disk", 2000, 0.2),
        ("nfs", 1024, 0.2048),
        ("nat", 6, 0.006),
    ]
    assert costs.hourly == pytest.approx(10.9908) and costs.monthly == pytest.approx(8023.284)
    assert not costs.unpriced and {line.date for line in costs.lines} == {"2026-01-31"}
    shown = table(costs)
    assert "10.99" in shown and "8,023.28" in shown


def test_what_has_no_price_is_named_and_not_counted(mine: str) -> None:
    spot = {"machine_type": "g2-standard-12", "size": 2, "provisioning_model": "SPOT"}
    flex = {
        "accelerator": "v6e", "topology": "4x4", "provisioning_model": "FLEX_START", "max_run_hours": 2.0,
    }  # fmt: skip
    costs = estimate(lab(group=spot, slice=flex), read_prices(mine))
    assert {line.part for line in costs.lines} == {"slice's boot", "group's boot", "nat"}
    assert [*costs.unpriced.values()] == [
        "no price for v6e FLEX_START in us-east5 (slice), not counted",
        "no price for g2-standard-12 SPOT in us-east5 (group), not counted",
    ]
    assert all(line in table(costs) for line in costs.unpriced.values())


def test_place_in_use_decides(mine: str) -> None:
    fallbacks = [{"zone": "us-east5-a", "provisioning_model": "STANDARD"}, {"zone": "us-central1-a"}]
    environment = lab(
        slice={"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT", "fallbacks": fallbacks}
    )
    prices = read_prices(mine)
    assert estimate(environment, prices, {"slice": 0}).lines[0].hourly == 8
    assert estimate(environment, prices, {"slice": 1}).lines[0].hourly == 32
    assert (
        "no price for v6e SPOT in us-central1 (slice), not counted"
        in estimate(environment, prices, {"slice": 2}).unpriced.values()
    )


def test_boot_disks_are_those_of_the_configuration() -> None:
    text = (Path(__file__).parents[2] / "deploy/terraform/modules/hosts/main.tf").read_text()
    assert f"disk_size_gb = {BOOT_DISK_GIB} " in text


def test_queued_slices_are_priced_by_the_chip() -> None:
    """v4-32 is 16 chips; 16 x 3.22 = 51.52, which the source of the table has for v4-32."""
    environment = build_environment(
        {
            "name": "lab1", "project": "lab-proj", "zone": "us-central2-b",
            "slice": {"accelerator": "v4", "topology": "2x2x4"},
        },
        "lab.yaml",
    )  # fmt: skip
    assert estimate(environment, read_prices()).hourly == pytest.approx(51.52)


def test_what_the_older_set_up_had_is_priced_or_named() -> None:
    """Its zone and sizes, on the oldest and the newest of the slices that the import offers."""
    disk = {"size_gb": 2055, "source": "gs://data-bucket/c"}

    def costs(**parts: Any) -> CostEstimate:
        return estimate(lab(zone="europe-west4-a", nfs={}, **parts), read_prices())

    old = costs(slice={"accelerator": "v3", "topology": "4x4"}, disk=disk | {"type": "pd-balanced"})
    new = costs(slice={"accelerator": "v6e", "topology": "4x4"}, disk=disk)
    assert set(old.unpriced) == {"slice", "nfs"} and set(new.unpriced) == {"slice's boot", "disk", "nfs"}
    assert "no price for v3 in europe-west4 (slice), not counted" in table(old)
    group = costs(group={"machine_type": "n1-standard-64", "size": 4}, disk=disk | {"type": "pd-ssd"})
    hourly = {line.part: line.hourly for line in group.lines}
    assert hourly["disk"] == pytest.approx(2055 * 0.187 / 730) and set(group.unpriced) == {"nfs"}


def test_table_that_comes_along_is_whole() -> None:
    prices = read_prices()
    known = {
        *TPUS,
        *GPUS,
        *ATTACHED,
        "pd-balanced",
        "pd-standard",
        "pd-ssd",
        "BASIC_HDD",
        "ZONAL",
        "REGIONAL",
        "bucket",
        "nat",
    }
    strange = {
        price.what for price in prices.prices if price.what not in known and price.what[:3] not in ("e2-", "n1-", "n2-")
    }
    assert strange == set()
    assert all(source.address.startswith("https://") for source in prices.sources.values())
    assert {price.source for price in prices.prices} == set(prices.sources)
    for price in prices.prices:
        assert price.on_demand is not None and 0 < price.on_demand < 200, price
        assert price.spot is None or 0 < price.spot < price.on_demand, price
        assert (price.unit == "chip-hour") == (price.what in TPUS), price


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (ROWS.replace("0.5", "-0.5"), "spot"),
        (ROWS.replace("unit: chip-hour", "unit: hour"), "unit"),
        (ROWS.replace("source: mine}", "source: other}", 1), "'other', which sources does not have"),
        (ROWS + ROWS.splitlines()[0] + "\n", "v6e in us-east5 is given twice"),
        (ROWS.replace("spot: 0.5", "spots: 0.5"), "unknown key prices.0.spots"),
        (ROWS.replace("on_demand: 2.0", "on_demand: .inf"), "on_demand"),
        (
            ROWS.replace("chip-hour", "machine-hour"),
            "v6e in us-east5 has the unit machine-hour, and needs chip-hour",
        ),
        (ROWS.replace("GiB-month", "machine-hour", 1), "hyperdisk-balanced in us-east5 has the unit machine-hour"),
    ],
)
def test_mistakes_in_an_own_table(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(SOURCES + text)
    with pytest.raises(ConfigError) as caught:
        read_prices(str(path))
    assert what in str(caught.value)
    path.write_text("currency: USD\nsources: [a]\nprices: []\n")
    with pytest.raises(ConfigError, match="sources"):
        read_prices(str(path))


def test_command_prints_the_table_and_an_estimate(
    tmp_path: Path, mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["env", "prices"]) == 0
    copy = capsys.readouterr().out
    assert copy == Path(TABLE).read_text()
    (tmp_path / "copy.yaml").write_text(copy)
    assert len(read_prices(str(tmp_path / "copy.yaml")).prices) == len(read_prices().prices)
    lab_yaml = tmp_path / "lab.yaml"
    lab_yaml.write_text(
        "name: lab1\nproject: lab-proj\nzone: us-east5-b\nslice: {accelerator: v6e, topology: 4x4}\n"
        "disk: {type: hyperdisk-ml, size_gb: 100, source: gs://data-bucket/c}\n"
    )
    assert run(["env", "prices", str(lab_yaml), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["lines"][0]["hourly"] == pytest.approx(43.2) and shown["lines"][0]["date"]  # 16 x 2.70
    assert shown["unpriced"][-1] == "no price for hyperdisk-ml in us-east5 (disk), not counted"
    assert run(["env", "prices", str(lab_yaml), "--prices", mine]) == 0
    assert "32.05" in capsys.readouterr().out  # 16 x 2 + 800 x 0.0365 / 730 + 100 x 0.073 / 730
