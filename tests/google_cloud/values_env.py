"""values.env as the older set-up had it at two commits, which its users have copies of."""

from pathlib import Path

DEFAULTS = {
    "ENV_BUILD_NAME": "20200430",
    "PROJECT_ID": "pytorch-tpu-new",
    "ZONE": "europe-west4-a",
    "REGION": "europe-west4",
    "MOUNT_POINT": "/mnt/common",
    "GCS_DATASET": "gs://tpu-demo-eu/dataset/*",
    "GCS_RAW_DATASET": "",
    "TPU_ACCELERATOR_TYPE": "v3-32",
    "TPU_PYTORCH_VERSION": "pytorch-nightly",
    "MACHINE_TYPE": "n1-standard-64",
    "DOCKER_CONTAINER": "false",
    "GCE_IMAGE_VERSION": "20200527",
    "SOURCE_IMAGE_FAMILY": "torch-xla",
    "SOURCE_IMAGE_PROJECT": "ml-images",
    "SOURCE_IMAGE_BASE": "debian-9-torch-xla",
    "BOOT_DISK_SIZE_GB": "110",
    "NETWORK": "default",
    "MIG_SETUP_SCRIPT": "env_setup/scripts/setup_mig.sh",
    "SHARED_FS": "tpushare",
    "SHARED_FS_CAPACITY": "1024",
    "SHARED_FS_TIER": "STANDARD",
    "SHARED_PD_DISK_ATTACH": "false",
    "SHARED_PD_DISK_SIZE": "2055",
    "SHARED_PD_DISK_TYPE": "pd-ssd",
    "MIG_SEED_DATA_PREP_SCRIPT": "roberta/env_setup/data_prep_seed_shared_disk_pd.sh",
    "RED": "\\033[0;31m",
}
"""The 26 variables, as the older set-up came."""
AUTO = {
    "MIG_MASTER": "",
    "SHARED_NFS_IP": "10.1.2.3",
    "SHARED_PD_DISK_NAME": "${SHARED_PD_DISK_TYPE}-${SHARED_PD_DISK_SIZE}-${ENV_BUILD_NAME}",
    "PROTOCOL": "tcp",
    "PORTS": "22",
    "SOURCE_RANGES": "0.0.0.0/0",
    "TAGS": "allow-ssh",
}
VERSIONS: dict[str, dict[str, str | None]] = {
    "4f52a18": {},
    "af6e915": {
        "ENV_BUILD_NAME": "20200428",
        "MOUNT_POINT": "/mnt/common ",
        "TPU_PYTORCH_VERSION": "pytorch-1.5",
        "MACHINE_TYPE": "n1-standard-16",
        "GCE_IMAGE_VERSION": "20200427",
        "DISK_SIZE_GB": "200",
        "MIG_SETUP_SCRIPT": "../../models/common/setup_master.sh",
        "SHARED_PD_SIZE": "1024",
        "SHARED_NFS_IP": "none",
        "MIG_MASTER": "",
        **dict.fromkeys(("GCS_RAW_DATASET", "DOCKER_CONTAINER", "BOOT_DISK_SIZE_GB", "SHARED_PD_DISK_ATTACH")),
        **dict.fromkeys(("SHARED_PD_DISK_SIZE", "SHARED_PD_DISK_TYPE", "MIG_SEED_DATA_PREP_SCRIPT")),
    },
}
"""By commit: what differs from `DEFAULTS`. The first of them had no values.env.auto yet."""


def write(folder: Path, version: str) -> list[str]:
    """The files of a version, in the quotes and with the comments that it had."""
    values = {name: value for name, value in {**DEFAULTS, **VERSIONS[version]}.items() if value is not None}
    lines = ["#!/bin/bash", "", "### project", *(f'{name}="{value}" # a comment' for name, value in values.items())]
    (folder / "values.env").write_text("\n".join(lines))
    if version == "af6e915":
        return [str(folder / "values.env")]
    (folder / "values.env.auto").write_text("".join(f"{name}={value}\n" for name, value in AUTO.items()))
    return [str(folder / "values.env"), str(folder / "values.env.auto")]
