"""The keys of a run's data: `data.*`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from maskwright.core.settings import Fraction, Refused, Resumable, Section

SET_NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""Name of a held-out set, which is part of the names of its metrics."""


class Arrow(Section):
    """What Arrow files do not say themselves; only with format: arrow."""

    tokenizer: Annotated[str | None, Resumable] = None
    """Folder of the tokenizer that made the ids; `tokenizer/` in the store when not set."""
    column: str | None = None
    """Column of the ids; input_ids, tokens, token_ids or ids when not set."""
    token_offset: Annotated[int, Field(ge=-(2**32), le=2**32)] = 0
    """Number that is added to each stored id: 25000 where ids were stored as id - 25000 to fit 16 bits."""
    special_ids: dict[Literal["bos", "pad", "eos", "unk", "mask"], int] | None = None
    """Ids of the special tokens by name, as {bos: 0, pad: 1, eos: 2, mask: 3}; the tokenizer must agree."""
    special_tokens: Literal["refuse", "strip"] = "refuse"
    """Special tokens in the documents. refuse: stop. strip: leave out those at the begin and end of each document."""
    valid_fraction: Fraction = 0.01
    """Share of documents to hold out, by a hash of their ids."""


class Data(Section):
    store: Annotated[str, Resumable]
    """Folder that `maskwright data prepare` wrote. It may move; its fingerprint must stay the same."""
    format: Literal["store", "arrow"] = "store"
    """What `store` is. store: a token store. arrow: a folder of Arrow IPC files of token ids, or of such folders."""
    arrow: Arrow = Arrow()
    validation: Annotated[str | dict[str, str] | None, Resumable] = None
    """Token store whose held-out documents the run is judged by, instead of those of `store`; or several as {name:
    store}, each of which is reported by its name. The first counts as the run's held-out loss."""
    seq_len: Annotated[int, Field(ge=8, le=8192)] = 512
    """Tokens in a row, which is also the longest sequence; `<s>` and `</s>` are included."""
    packing: Literal["documents", "full_sentences"] = "documents"
    """documents: each chunk of a document is a sequence; sequences are best-fit packed into rows, and attention stays
    inside each. full_sentences: RoBERTa's original."""

    @field_validator("validation", mode="before")
    @classmethod
    def _names_stores(cls, given: Any) -> Any:
        if given is None or isinstance(given, str):
            return given
        named = isinstance(given, dict) and given and all(isinstance(one, str) for one in given.values())
        if not named or not all(isinstance(name, str) and SET_NAME.fullmatch(name) for name in given):
            fix = "give the folder of a store, or {news: FOLDER, law: FOLDER}, named by letters, digits, _ . and -"
            raise Refused(f"{given!r:.60} names no token stores", fix=fix)
        return given

    @property
    def held_out(self) -> dict[str, str]:
        """The stores of `validation` by name; the name of a single one is empty."""
        return {"": self.validation} if isinstance(self.validation, str) else self.validation or {}


LATER_DATA: dict[str, Any] = {
    "data.format": "store",
    **{f"data.arrow.{name}": field.default for name, field in Arrow.model_fields.items()},
}
"""See `core.config.LATER`."""
