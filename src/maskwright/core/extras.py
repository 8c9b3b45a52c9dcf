"""Optional packages, and how to install them."""

from __future__ import annotations

import importlib.util

from maskwright import __version__
from maskwright.core.errors import ConfigError

TRAIN = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "pyarrow", "zstandard", "charset_normalizer")
EXTRAS = {
    **dict.fromkeys(TRAIN, "train"),
    **dict.fromkeys(("gcsfs", "google", "requests"), "gcp"),
    "s3fs": "s3",
    **dict.fromkeys(("gigatoken", "awkward"), "fast"),
    "huggingface_hub": "train",  # transformers installs it
    **{extra: extra for extra in ("jax", "ray", "onnx")},
    "onnxruntime": "onnx",
    "libtpu": "tpu",
    **dict.fromkeys(("fastwarc", "py3langid", "rensa"), "clean"),
    **{service: service for service in ("wandb", "mlflow")},
    **dict.fromkeys(("starlette", "uvicorn", "plotly"), "web"),
    "sklearn": "linear",
    **dict.fromkeys(("sentence_transformers", "bm25s"), "search"),
}
"""The extra of pyproject.toml that installs a package."""


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def missing(package: str, where: str | None = None) -> ConfigError:
    """The error for a package of `EXTRAS` that is not installed."""
    extra = EXTRAS[package]
    option = "" if extra in ("train", "fast") else f" --{extra}"  # `scripts/install` always installs these
    wheel = f"maskwright-{__version__}-py3-none-any.whl"
    fix = f"in a clone run scripts/install{option}; elsewhere pip install '{wheel}[{extra}]'"
    return ConfigError(f"the package {package} is not installed", where=where, fix=fix)


def explain_import(error: BaseException) -> ConfigError | None:
    """The error of `missing` for a failed import; None for any other error."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return missing(package) if package in EXTRAS else None


def require(package: str, where: str | None = None) -> None:
    """Raises `ConfigError` (exit 2), which names the extra, unless the package is installed."""
    if not installed(package):
        raise missing(package, where)
