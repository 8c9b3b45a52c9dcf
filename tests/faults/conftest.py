"""What tests of faults share: a configuration of some steps, a good model folder to spoil, and a made-up bucket."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
import yaml
from finetuned import save_model
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.storage import make_bucket
from in_process import SHAPE

from maskwright.data.store import TokenStore
from maskwright.model.initial import initial_parameters


@pytest.fixture
def config_file(store: TokenStore, tmp_path: Path) -> Callable[..., Path]:
    def write(**sections: dict[str, object]) -> Path:
        values: dict[str, dict[str, object]] = {
            "data": {"store": store.location, "seq_len": 32},
            "model": {"size": "nano", "hidden_size": 32, "num_attention_heads": 2},
            "schedule": {"steps": 3},
            "batch": {"micro_batch_rows": 4},
            "engine": {"device": "cpu"},
        }
        for name, keys in sections.items():
            values[name] = {**values.get(name, {}), **keys}
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    return write


@pytest.fixture
def folder(tmp_path: Path, tokenizer: str) -> Path:
    """A good Hugging Face folder, to be spoilt."""
    path = tmp_path / "model"
    save_model(path, initial_parameters(SHAPE, 0), SHAPE)
    shutil.copy(Path(tokenizer) / "tokenizer.json", path)
    return path


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """gs://bucket, without a token."""
    pytest.importorskip("gcsfs", reason="needs the gcs extra")
    with fake_cloud() as cloud:
        make_bucket(cloud, {"name": "bucket"})
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "endpoint_url": cloud.url})
        monkeypatch.delitem(fsspec.config.conf, "gcs", raising=False)  # a command of the cloud gives both a token
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield cloud
