"""The keys of a run's data: `data.*`."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from maskwright.config.settings import Fraction, Refused, Resumable, Section

SET_NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""Name of a source or a held-out set, which is part of the names of its metrics."""

EPOCHS_ELSEWHERE = (
    "there, run `maskwright data convert EPOCHS --tokenizer TOKENIZER --to store --special-tokens remove "
    "--valid-fraction 0`, then `maskwright data push store --to gs://BUCKET/store`, and here --set "
    "data.store=gs://BUCKET/store --set data.format=store"
)
"""The fix for pregenerated epochs that the machines of a run cannot read."""


class Arrow(Section):
    """What Arrow files do not record; only for format: arrow."""

    tokenizer: Annotated[str | None, Resumable] = None
    """Folder of the tokenizer that made the IDs. Default: `tokenizer/` in the store."""
    column: str | None = None
    """Column of the IDs. Default: input_ids, tokens, token_ids or ids."""
    token_offset: Annotated[int, Field(ge=-(2**32), le=2**32)] = 0
    """Number to add to each stored ID, such as 25000 if IDs were stored as ID - 25000 to fit 16 bits."""
    special_ids: dict[Literal["bos", "pad", "eos", "unk", "mask"], int] | None = None
    """IDs of the special tokens, as in {bos: 0, pad: 1, eos: 2, mask: 3}. The tokenizer must agree."""
    special_tokens: Literal["refuse", "strip"] = "refuse"
    """At special tokens in the documents: stop (refuse), or drop them at the beginning and end of each document
    (strip)."""
    valid_fraction: Fraction = 0.01
    """Share of documents to hold out, by a hash of their IDs."""


class Source(Section):
    store: str
    """Folder of a token store, or of data in another `format`."""
    format: Literal["store", "arrow", "pregenerated"] = "store"
    """Format of `store`, as in `data.format`."""
    arrow: Arrow = Arrow()
    """As in `data.arrow`, for this source."""
    weight: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """Share of the rows, relative to the other weights."""

    @model_validator(mode="after")
    def _arrow_is_of_arrow(self) -> Source:
        if self.format != "arrow" and self.arrow != Arrow():
            raise Refused("arrow is only for format: arrow", fix="add format: arrow to this source")
        return self


def named_sources(value: Any) -> Any:
    """{name: source} from a value of `data.mixture`: {name: {store: FOLDER, weight: 3}}, {name: FOLDER}, or folders
    separated by colons, as in fairseq."""
    if isinstance(value, str):
        folders = re.split(r":(?!//)", value)
        names = [os.path.basename(folder.rstrip("/")) for folder in folders]
        (name, times), *_ = Counter(names).most_common(1)
        if times > 1:
            raise Refused(f"{times} folders have the name {name!r:.60}", fix="name them: {en: FOLDER, sw: FOLDER}")
        value = dict(zip(names, folders, strict=True))
    if not isinstance(value, dict) or len(value) < 2:
        raise Refused(f"{value!r:.60} does not name two stores", fix="give {en: {store: FOLDER, weight: 3}, sw: {…}}")
    for name in value:
        if not isinstance(name, str) or not SET_NAME.fullmatch(name):
            raise Refused(f"{name!r:.60} is not a name of a source", fix="use letters, digits, _ . and -")
    return {name: {"store": source} if isinstance(source, str) else source for name, source in value.items()}


def require_weights(sources: dict[str, Source], alpha: float | None) -> None:
    """Raises `Refused` unless every source has a weight or none has."""
    without = [name for name, source in sources.items() if source.weight is None]
    if without and len(without) < len(sources):
        raise Refused(f"{without[0]} has no weight, but others have", fix="give each source one, or none")
    if alpha is not None and not without:
        fix = "leave one of them out"
        raise Refused("mixture_alpha computes weights from the sizes, but the sources have weights", fix=fix)


class Data(Section):
    store: Annotated[str | None, Field(json_schema_extra={"resumable": True, "needed": True})] = None
    """Token store: the folder that `maskwright data prepare` wrote. You may move it, but not change it."""
    mixture: Annotated[dict[str, Source] | None, Resumable] = None
    """Several token stores instead of `store`, as in {en: {store: FOLDER, weight: 3}, sw: {store: FOLDER, weight:
    1}}, or {en: FOLDER, sw: FOLDER}, or folders separated by colons. For Arrow files, add `format: arrow` and, if
    needed, `arrow: {…}` with the keys of `data.arrow`. Default weights: the sizes. The run is evaluated on the held-out
    documents of each source; the first source gives the run's held-out loss."""
    mixture_alpha: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Makes the weights of `mixture` tokens ** alpha: 1, the default, keeps the sizes; 0 makes all sources equal. 0.3
    in XLM-R."""
    format: Literal["store", "arrow", "pregenerated"] = "store"
    """Format of `store`. store: a token store. arrow: a folder of Arrow IPC files of token IDs, or of such folders.
    pregenerated: a folder of `epoch_0.json` and so on, by pytorch-transformers' script; its masks are undone, and
    masking.* draws new ones. The last two are converted once, into the cache."""
    arrow: Arrow = Arrow()
    validation: Annotated[str | dict[str, str] | None, Resumable] = None
    """Token store whose held-out documents to evaluate on, instead of those in `store`; or several, as {name: store},
    each reported under its name. The first gives the run's held-out loss."""
    seq_len: Annotated[int, Field(ge=8, le=8192)] = 512
    """Tokens in a row, including `<s>` and `</s>`; also the longest sequence."""
    packing: Literal["documents", "full_sentences"] = "documents"
    """documents: each chunk of a document is a sequence; sequences are packed into rows by best fit, and attention
    stays within a sequence. full_sentences: RoBERTa's original packing."""

    @field_validator("validation", mode="before")
    @classmethod
    def _names_stores(cls, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        named = isinstance(value, dict) and value and all(isinstance(store, str) for store in value.values())
        if not named or not all(isinstance(name, str) and SET_NAME.fullmatch(name) for name in value):
            fix = "give the folder of a store, or {news: FOLDER, law: FOLDER}, named by letters, digits, _ . and -"
            raise Refused(f"{value!r:.60} names no token stores", fix=fix)
        return value

    @field_validator("mixture", mode="before")
    @classmethod
    def _names_sources(cls, value: Any) -> Any:
        return value if value is None else named_sources(value)

    @model_validator(mode="after")
    def _one_or_several_stores(self) -> Data:
        if self.mixture is None:
            if self.store is None:
                raise PydanticCustomError("missing", "data has neither store nor mixture")
            if self.mixture_alpha is not None:
                raise Refused("mixture_alpha is only for data.mixture", fix="leave it out")
            return self
        if self.store is not None or self.format != "store" or self.arrow != Arrow():
            fix = "leave them out, as in --set data.store=null; each source may have a format and arrow of its own"
            raise Refused("mixture replaces store, format and arrow", fix=fix)
        require_weights(self.mixture, self.mixture_alpha)
        return self

    @property
    def held_out(self) -> dict[str, str]:
        """The stores of `validation` by name; the name of a single one is empty."""
        return {"": self.validation} if isinstance(self.validation, str) else self.validation or {}
