"""A run directory as a value: its measurements, and its uses."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from maskwright.api.given import Device, Location, location
from maskwright.core import output, storage
from maskwright.core.errors import InputError
from maskwright.core.extras import installed
from maskwright.report.document import ReportSection, html
from maskwright.report.page import contents
from maskwright.report.run import read_all
from maskwright.report.training import curves
from maskwright.run.directory import RESULTS, RunDirectory, Status, whole_steps
from maskwright.run.record import describe

if TYPE_CHECKING:
    from maskwright.api.models import Model


@dataclass(frozen=True)
class Page:
    """A page in one self-contained file."""

    html: str = field(repr=False)

    def save(self, path: Location) -> None:
        """Writes `.html`. Raises `InputError` for another ending and for a missing folder, and `MaskwrightError` if the
        disk fails."""
        place = location(path)
        output.require_ending(place, (".html",), place)
        with output.writer(place) as file:
            file.write(self.html.encode("utf-8", "replace"))

    def _repr_html_(self) -> str:
        """In a frame of its own, since its style is not the notebook's."""
        return f'<iframe srcdoc="{escape(self.html)}" style="width: 100%; height: 48rem; border: 0"></iframe>'


@dataclass(frozen=True)
class Run:
    """The run in a local folder; of one in a bucket, `plot`, `report`, `load` and `export` work too. Files are read
    when you ask, and again each time, so you can look at a run during training. Raises `InputError` if the folder is no
    run."""

    location: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", location(self.location))

    @property
    def config(self) -> dict[str, Any]:
        """Every key with its value, such as `{"schedule.steps": 1000, …}`."""
        return self._directory.read_record().keys

    @property
    def status(self) -> Status | None:
        """None before the first step."""
        return self._directory.read_status()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of training (`loss`, …) and of evaluation (`valid_loss`, …), in order of their steps."""
        return self._directory.read_metrics()

    @property
    def checkpoints(self) -> list[int]:
        """The steps that are saved, ascending."""
        return whole_steps(self._directory.checkpoints)

    @property
    def lineage(self) -> list[str]:
        """A sentence on each run that this one goes back to, the nearest first."""
        return describe(self._directory.read_record().began_from)

    @property
    def results(self) -> Mapping[str, Any] | None:
        """The scores that a fine-tuning ended with; None while it has not ended, and for other runs."""
        results: Mapping[str, Any] | None = storage.read_json_or(None, self._directory.path(RESULTS))
        return results

    def frame(self) -> Any:
        """`metrics` as a `pandas.DataFrame`: the step is its index, with a row for each step and a column for each
        number. Raises `InputError` if pandas is not installed."""
        if not installed("pandas"):
            raise InputError("a data frame needs the package pandas", fix="pip install pandas, or use `metrics`")
        pandas = importlib.import_module("pandas")
        lines = self.metrics
        frame = pandas.DataFrame(lines, columns=None if lines else ["step"]).groupby("step").first()
        return frame.drop(columns="judges", errors="ignore")

    def plot(self, *others: Location) -> Page:
        """The curves of `maskwright report`, of this run and, over it, of `others` (runs or their folders): losses,
        rates, gradient norm, speed. A notebook draws them below the cell. Raises `InputError` for anything but a run,
        and for a run that is given twice."""
        runs = read_all([self.location, *map(location, others)])
        title = ", ".join(run.name for run in runs)
        return Page(html(title, [ReportSection("", tuple(curves(runs)))]))

    def report(self, *others: Location) -> Page:
        """The page of `maskwright report`: curves, what happened, data, configuration, commands. `others` and errors
        are as for `plot`."""
        title, sections = contents(read_all([self.location, *map(location, others)]))
        return Page(html(title, sections))

    def load(self, *, device: Device = "auto") -> Model:
        """The model of the newest checkpoint, or of the best if the run has chosen one."""
        from maskwright.api.models import load

        return load(self.location, device=device)

    def export(
        self,
        to: Location,
        *,
        onnx: bool = False,
        sentence_transformers: Literal["dense", "rerank"] | None = None,
        relevant: str | None = None,
    ) -> str:
        """Writes a Hugging Face folder whose logits are proven equal in `transformers`, and returns its location.
        `sentence_transformers`: for a kind of its models (docs/search.md). `relevant`: the label of a classifier that
        means relevant, for a reranker.

        Raises `InputError` if `to` exists, `VerificationError` if the numbers differ."""
        return self.load(device="cpu").export(
            to, onnx=onnx, sentence_transformers=sentence_transformers, relevant=relevant
        )

    @property
    def _directory(self) -> RunDirectory:
        if storage.is_url(self.location):
            fix = "use `plot`, `report` or `maskwright.load`, or copy it here"
            raise InputError("is not on this machine", where=self.location, fix=fix)
        directory = RunDirectory(self.location)
        directory.require()
        return directory
