"""values.env of the older set-up, read without a shell and turned into an environment."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from google_cloud.values_env import AUTO, DEFAULTS, VERSIONS, write

from maskwright.cli.main import run
from maskwright.cloud.environment import read_environment
from maskwright.cloud.old_setup import values_env
from maskwright.cloud.old_setup.values_env import import_values
from maskwright.core.errors import ConfigError, InputError
from maskwright.tasks.importing.shell import parse_variables


def imported(changes=None, **options):
    values = {name: value for name, value in {**DEFAULTS, **(changes or {})}.items() if value is not None}
    given = {name: (value, number) for number, (name, value) in enumerate(values.items(), 1)}
    return import_values(given, "values.env", **options)


def fails(changes, **options):
    with pytest.raises(ConfigError) as caught:
        imported(changes, **options)
    return str(caught.value)


# ---- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=plain", "plain"),
        ("export A=plain   # a comment", "plain"),
        ("  A='single # no comment $HOME `id`'", "single # no comment $HOME `id`"),
        ('A="double \\" \\$ quoted "', 'double " $ quoted '),
        ("A=a\"b c\"'d'e", "ab cde"),
        ("A=a\\ b", "a b"),
        ("A=gs://bucket/data/*", "gs://bucket/data/*"),
        ("A=with#hash", "with#hash"),
        ("A=", ""),
        ("A=value;", "value"),
        ("A=value\r", "value"),
        ("B=1\nA=$B-${B}", "1-1"),
        ("A=first\nA=last", "last"),
        ("B=3\nA=`expr $B \\* 2`$(expr 7 - 9)", "6-2"),
        ("B='a b'\nA=$B", "a b"),
        ("A='open\nB=b'", "open\nB=b"),
        ("A=x B=y", "x"),
        ('B=a\nA="\\$B${B}"', "$Ba"),
    ],
)
def test_values_are_what_a_shell_gives(line, value, tmp_path):
    assert parse_variables(line, "f")["A"][0] == value
    if "\r" not in line:  # line ends of Windows are none in a shell
        (tmp_path / "values.env").write_text(line)
        bash, expr = shutil.which("bash"), shutil.which("expr")
        (tmp_path / "expr").symlink_to(expr)
        read = [bash, "-c", '. ./values.env; printf %s "$A"']
        shell = subprocess.run(
            read, cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
        )
        assert shell.stdout == value


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("A=$(touch /tmp/never)", "uses $(touch /tmp/never), which is not set above"),
        ("A=`id`", "uses `id`"),
        ('A="$(id)"', "uses $(id)"),
        ("A=$NOWHERE", "uses $NOWHERE, which is not set above"),
        ("A=${B%x}", "uses ${B%x}"),
        ("A=$'\\033[0m'", "uses $'\\033[0m'"),
        ("A=$((2 + 3))", "uses $((2 + 3))"),
        ("A=$(expr 1 / 0)", "uses $(expr 1 / 0)"),
        ("A=${B:-x}", "uses ${B:-x}"),
        ("A+=2", "is not an assignment"),
        ("if true; then A=1; fi", "has 'if'"),
        ("A=(1 2)", "has '(' outside quotes"),
        ("A=x > y", "has '>' outside quotes"),
        ("A=x|y", "has '|' outside quotes"),
        ("A='open", "lacks the end of its '"),
        ('A="open', 'lacks the end of its "'),
        ("A=$(id", "lacks the end of its $("),
        ("A=1 env", "is not an assignment"),
        ("source other.env", "is not an assignment"),
        ("rm -rf build", "is not an assignment"),
    ],
)
def test_what_only_a_shell_could_do_is_refused_with_its_line(line, what):
    with pytest.raises(InputError) as caught:
        parse_variables(f"# one\n{line}\n", "values.env")
    assert what in str(caught.value) and str(caught.value).startswith("values.env:2: ")


# ---- mapping --------------------------------------------------------------------------------------------------------


def test_defaults_of_the_older_set_up_become_an_environment_that_loads():
    done = imported()
    assert len(DEFAULTS) == 26 and [row.variable for row in done.rows] == list(DEFAULTS)
    assert {row.fate for row in done.rows} == {"mapped", "defaulted", "refused"}
    assert all(row.reason for row in done.rows if row.fate != "mapped")
    environment = done.environment
    assert (environment.name, environment.project, environment.zone) == (
        "env-20200430", "pytorch-tpu-new", "europe-west4-a",
    )  # fmt: skip
    assert environment.mount_point == "/mnt/common"
    assert (environment.nfs.share, environment.nfs.tier, environment.nfs.capacity_gb) == ("tpushare", "BASIC_HDD", 1024)
    assert (environment.disk.source, environment.disk.size_gb) == ("gs://tpu-demo-eu/dataset", 2055)
    assert environment.disk.prepare is None
    assert yaml.safe_load(done.text)["name"] == "env-20200430"


@pytest.mark.parametrize(
    ("text", "accelerator", "slice_"),
    [
        ("v3-32", "v6e", ("v6e", "4x4")),
        ("v3-8", "v5e", ("v5e", "2x2")),
        ("v2-512", "v5e", ("v5e", "16x16")),
        ("v3-2048", "v5p", ("v5p", "8x8x16")),
        ("v3-32", None, ("v6e", "4x4")),
        ("v2-32", None, ("v5e", "4x4")),
        ("v3-2048", None, ("v5p", "8x8x16")),
        ("v4-32", None, ("v4", "2x2x4")),
        ("v5litepod-16", None, ("v5e", "4x4")),
        ("v5p-32", None, ("v5p", "2x2x4")),
        ("v6e-8", None, ("v6e", "2x4")),
        ("v4-32", "v6e", ("v6e", "4x4")),
    ],
)
def test_accelerators_keep_their_number_of_chips(text, accelerator, slice_):
    done = imported({"TPU_ACCELERATOR_TYPE": text, "GCS_DATASET": ""}, accelerator=accelerator)
    assert (done.environment.slice.accelerator, done.environment.slice.topology) == slice_


def test_the_kind_that_replaces_v2_and_v3_is_said_aloud(tmp_path, capsys):
    assert run(["env", "import", *write(tmp_path, "4f52a18")]) == 0
    told = "GKE has no v3: 16 chips of v6e, the nearest kind, replace it; or give --accelerator"
    assert f"warning: TPU_ACCELERATOR_TYPE=v3-32: {told}" in capsys.readouterr().err
    assert "1024 chips; v6e comes with 1, 4, 8" in fails({"TPU_ACCELERATOR_TYPE": "v3-2048"}, accelerator="v6e")
    assert "GKE has no v3" in fails({}, accelerator="v3"), "asked for, it is refused"


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_of_the_file_is_imported(version, tmp_path):
    out = tmp_path / "lab.yaml"
    assert run(["env", "import", *write(tmp_path, version), "--to", str(out)]) == 0
    environment = read_environment(str(out))
    assert environment.name == ("env-20200428" if version == "af6e915" else "env-20200430")
    assert environment.mount_point == "/mnt/common" and environment.slice is not None
    assert environment.disk is not None and environment.disk.size_gb == (1024 if version == "af6e915" else 2055)
    assert environment.disk.prepare is None, "the set-up's own scripts"


def test_generated_values_refer_to_those_of_the_other_file(tmp_path, capsys):
    values, auto = write(tmp_path, "4f52a18")
    assert run(["env", "import", values, auto]) == 0
    assert "SHARED_PD_DISK_NAME=pd-ssd-2055-20200430" in capsys.readouterr().err
    assert run(["env", "import", auto, values]) == 2
    assert "which is not set above. Fix: set the variable above, or first name the file" in capsys.readouterr().err


HERE, GROUP = "europe-west4", {"TPU_ACCELERATOR_TYPE": ""}
OWN = {"MIG_SETUP_SCRIPT": "scripts/mine.sh", "MIG_SEED_DATA_PREP_SCRIPT": "../mine/prepare.sh"}
MAPPED = [
    # what differs, --accelerator, the variable, its fate and a part of the reason, what it becomes
    (GROUP, None, "MACHINE_TYPE", "mapped", "", {"machine_type": "n1-standard-64", "size": 1}),
    ({}, None, "MACHINE_TYPE", "refused", "pods on the slice's own hosts", None),
    ({}, "v6e", "SHARED_PD_DISK_TYPE", "defaulted", "v6e cannot attach pd-ssd", "hyperdisk-ml"),
    ({}, "v4", "SHARED_PD_DISK_TYPE", "defaulted", "v4 cannot attach pd-ssd", "pd-balanced"),
    ({"TPU_ACCELERATOR_TYPE": None}, None, "SHARED_PD_DISK_TYPE", "mapped", "", "pd-ssd"),  # n1 machines take it
    (OWN, None, "MIG_SEED_DATA_PREP_SCRIPT", "mapped", "bash SCRIPT SOURCE DISK", "models/mine/prepare.sh"),
    (OWN, None, "MIG_SETUP_SCRIPT", "refused", "submit --setup", None),
    ({}, None, "MIG_SEED_DATA_PREP_SCRIPT", "defaulted", "what you added to it", None),  # it may have been edited
    ({}, None, "MIG_SETUP_SCRIPT", "defaulted", "what you added to it", None),
    ({"SHARED_FS_TIER": "PREMIUM", "SHARED_FS_CAPACITY": "2560"}, None, "SHARED_FS_TIER", "mapped", "", "BASIC_SSD"),
    ({"MOUNT_POINT": "/mnt/common "}, None, "MOUNT_POINT", "mapped", "", "/mnt/common"),
    *((AUTO, None, name, "refused", "", None) for name in AUTO),
    ({"TPU_CIDR_BLOCK": ""}, None, "TPU_CIDR_BLOCK", "refused", "unused", None),
    ({"MY_OWN": "1"}, None, "MY_OWN", "unknown", "left out", None),
    ({"REGION": "us-central1"}, None, "REGION", "refused", "the zone is in europe-west4", None),
    ({}, None, "NETWORK", "refused", "every environment creates a network", None),
    *(
        (
            {"NETWORK": text},
            None,
            "NETWORK",
            "mapped",
            "existing; correct",
            {"name": name, "subnetworks": {HERE: name}},
        )
        for text, name in (("lab-vpc", "lab-vpc"), ("projects/pytorch-tpu-new/global/networks/vpc", "vpc"))
    ),
]


@pytest.mark.parametrize(
    ("changes", "accelerator", "variable", "fate", "why", "becomes"), MAPPED, ids=lambda value: str(value)[:30]
)
def test_what_a_variable_becomes(changes, accelerator, variable, fate, why, becomes):
    done = imported(changes, accelerator=accelerator)
    (row,) = [row for row in done.rows if row.variable == variable]
    assert (row.fate, row.becomes) == (fate, becomes) and why in row.reason and (row.reason or fate == "mapped")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"PROJECT_ID": ""}, "PROJECT_ID is not set"),
        ({"ZONE": "europe"}, "zone is 'europe'. Fix: give a string such as us-east5-b, by"),
        ({"ENV_BUILD_NAME": "a-name-that-is-much-too-long"}, "name is 'a-name-that-is-much-too-long'"),
        ({"TPU_ACCELERATOR_TYPE": "v3-pod"}, "is not a kind of TPU and a size"),
        ({"TPU_ACCELERATOR_TYPE": "v3-24"}, "has 12 chips; v6e comes with 1, 4, 8"),
        ({"SHARED_FS_CAPACITY": "1 TB"}, "is not a number"),
        ({"SHARED_FS_CAPACITY": "100"}, "nfs.capacity_gb"),
        ({"SHARED_FS_TIER": "GOLD"}, "SHARED_FS_TIER is 'GOLD'"),
        ({"SHARED_PD_DISK_SIZE": None}, "SHARED_PD_DISK_SIZE is not set"),
        ({"GCS_DATASET": "bucket/data"}, "disk.source"),
        ({"GCS_DATASET": "gs://bucket/data/part-*"}, "GCS_DATASET names only a part of a folder"),
        ({"MOUNT_POINT": "mnt"}, "mount_point"),
        ({"NETWORK": "projects/host-proj/global/networks/vpc"}, "NETWORK is a network of another project"),
        ({"MIG_SEED_DATA_PREP_SCRIPT": "https://me:hunter2pass@host/prepare.sh"}, "holds a secret"),
    ],
)
def test_what_cannot_become_an_environment_says_why(changes, what):
    message = fails(changes)
    assert what in message and ". Fix: " in message


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def values(tmp_path):
    path = tmp_path / "values.env"
    path.write_text("".join(f"{name}='{value}'\n" for name, value in DEFAULTS.items()))
    return path


def test_command_writes_a_yaml_and_a_row_for_each_variable(values, tmp_path, capsys):
    auto, out = tmp_path / "values.env.auto", tmp_path / "lab.yaml"
    auto.write_text("".join(f"{name}={value}\n" for name, value in AUTO.items()) + "STRANGE=1\n")
    assert run(["env", "import", str(values), str(auto), "--to", str(out)]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == len(DEFAULTS) + len(AUTO) + 1
    assert "warning: STRANGE: not a variable of values.env, left out" in shown.err
    assert read_environment(str(out)).name == "env-20200430"
    assert run(["env", "import", str(values), "--to", str(out)]) == 2  # never over what a user has written since
    assert "exists already" in capsys.readouterr().err
    assert run(["env", "import", str(values), "--to", str(tmp_path / "none" / "lab.yaml")]) == 2
    assert f"{tmp_path}/none: there is no such folder. Fix: make it" in capsys.readouterr().err


def test_command_prints_the_yaml_or_json(values, capsys):
    assert run(["env", "import", str(values), "--accelerator", "v5e"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["slice"] == {"accelerator": "v5e", "topology": "4x4"}
    assert run(["env", "import", str(values), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["variable"] for row in shown["rows"]} == set(DEFAULTS)


def test_page_lists_every_variable():
    page = (Path(__file__).parents[2] / "deploy" / "older-setup.md").read_text()
    assert [name for name in values_env.CONVERSIONS if f"`{name}`" not in page] == []
