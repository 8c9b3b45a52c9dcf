"""Arrow files of ids as other tools write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray
from pyarrow import ipc

Documents = list[NDArray[np.int64]]


def write_arrow(
    path: Path, documents: Documents, *, lists: bool, stream: bool, offset: int = 0, **options: Any
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = arrow.int16()
    schema = arrow.schema([("tokens", arrow.list_(kind) if lists else kind)])
    stored = [(one - offset).astype(np.int16) for one in documents]
    with (ipc.new_stream if stream else ipc.new_file)(
        str(path), schema, options=ipc.IpcWriteOptions(**options)
    ) as writer:
        if lists:
            for first in range(0, len(stored), 7):
                some = arrow.array([one.tolist() for one in stored[first : first + 7]], arrow.list_(kind))
                writer.write_batch(arrow.record_batch([some], schema=schema))
        else:
            for one in stored:
                writer.write_batch(arrow.record_batch([arrow.array(one)], schema=schema))


def shards(folder: Path, documents: Documents) -> None:
    """As the Ray seed has them: folders of data sets, ids stored as id - 200, counts beside them."""
    write_arrow(folder / "books" / "a.arrow", documents[:30], lists=False, stream=False, offset=200)
    write_arrow(folder / "books" / "b.arrow", documents[30:50], lists=False, stream=True, offset=200)
    write_arrow(folder / "news" / "a.arrow", documents[50:70], lists=True, stream=False, offset=200)
    write_arrow(folder / "news" / "b.arrow", documents[70:], lists=True, stream=True, offset=200)
    tokens = sum(map(len, documents[:30])), sum(map(len, documents[30:50]))
    (folder / "books" / "meta").mkdir()
    lines = ["dataset/filename,documents,tokens", f"a.arrow,30,{tokens[0]}", f"b.arrow,20,{tokens[1]}"]
    (folder / "books" / "meta" / "books_counts.csv").write_text("\n".join(lines) + "\n")
