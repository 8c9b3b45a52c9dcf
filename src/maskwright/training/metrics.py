"""Running numbers of a training run: sums since the last log line, throughput, TensorBoard events."""

from __future__ import annotations

import os
import platform
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np

from maskwright.core.console import warn
from maskwright.engines.base import StepStats


@dataclass
class Counters:
    """Totals that a checkpoint keeps, so that a resumed run logs the same lines as an unbroken one."""

    tokens: int = 0
    """Text and frame tokens trained on; padding does not count."""
    loss_sum: float = 0.0
    """Since the last log line."""
    weight: float = 0.0
    """Since the last log line."""
    empty_steps: int = 0
    """Number of last steps in a row without predictions."""

    def __post_init__(self) -> None:
        self._waiting: list[StepStats] = []

    def add(self, stats: StepStats, tokens: int) -> None:
        self.tokens += tokens
        self._waiting.append(stats)

    def _collect(self) -> None:
        """Adds up the waiting steps, only now, so that a device may run ahead of the host between two log lines."""
        for stats in self._waiting:
            self.loss_sum += float(stats.loss_sum)
            weight = float(stats.weight)
            self.weight += weight
            self.empty_steps = 0 if weight else self.empty_steps + 1
        self._waiting = []

    def take_loss(self) -> float:
        """Mean loss per predicted token since the last call."""
        self._collect()
        loss = self.loss_sum / (self.weight or 1.0)
        self.loss_sum = self.weight = 0.0
        return loss

    def to_json(self) -> dict[str, Any]:
        self._collect()
        return asdict(self)


class Speed:
    """Rates over training time only: evaluating and saving do not count."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._mark: float | None = None
        self._seconds, self._sums = 0.0, (0, 0.0, 0)
        """Since the last log line; tokens, FLOPs and updates."""
        self.total_seconds = 0.0
        self.total_tokens = 0
        self.parts: dict[str, float] = {}

    def start(self) -> None:
        """Begins to count training time."""
        self._mark = self._clock()

    def pause(self) -> None:
        self._catch_up()
        self._mark = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside does not count."""
        running = self._mark is not None
        self.pause()
        try:
            yield
        finally:
            if running:
                self.start()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time inside, by the host's clock, to a part of a step."""
        begin = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - begin)

    def add(self, name: str, seconds: float) -> None:
        self.parts[name] = self.parts.get(name, 0.0) + seconds

    def count(self, tokens: int, flops: float) -> None:
        """Counts an update."""
        self._catch_up()
        self._sums = self._sums[0] + tokens, self._sums[1] + flops, self._sums[2] + 1
        self.total_tokens += tokens

    def _catch_up(self) -> None:
        if self._mark is not None:
            now = self._clock()
            self._seconds += now - self._mark
            self.total_seconds += now - self._mark
            self._mark = now

    def take(self) -> tuple[float, float, float]:
        """(tokens/s, FLOP/s, updates/s) since the last call."""
        self._catch_up()
        (tokens, flops, updates), seconds = self._sums, max(self._seconds, 1e-9)
        self._seconds, self._sums = 0.0, (0, 0.0, 0)
        return tokens / seconds, flops / seconds, updates / seconds


class TensorBoard:
    """Scalars as an event file of TensorBoard, written without its package. An error is shown once, and training
    continues without the file.

    The file is a TFRecord of `Event` messages in protocol buffers' wire format:
    github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto and /core/lib/io/record_writer.h.
    """

    def __init__(self, folder: str, done_steps: int) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        with self._or_without():
            os.makedirs(folder, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.6f}.{platform.node()}.{os.getpid()}"
            self._file = open(os.path.join(folder, name), "ab", buffering=0)  # noqa: SIM115 - closed by `close`
            self._write(_field(3, b"brain.Event:2"))
            # SessionLog.START: TensorBoard forgets events from this step on, which an interrupted attempt wrote.
            self._write(_field(2, done_steps + 1) + _field(7, _field(1, 1)))

    def add(self, step: int, values: dict[str, float]) -> None:
        scalars = [_field(1, _field(1, name.encode()) + _field(2, float(value))) for name, value in values.items()]
        with self._or_without():
            self._write(_field(2, step) + _field(5, b"".join(scalars)))

    def close(self) -> None:
        if self._file is not None:
            with self._or_without():
                self._file.close()

    def _write(self, event: bytes) -> None:
        """Writes one record with the time, in a single call, so that a kill leaves whole records."""
        if self._file is None:
            return
        data = b"\x09" + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_crc32c(length) + data + _masked_crc32c(data))

    @contextmanager
    def _or_without(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            file, self._file = self._file, None
            if file is not None:
                file.close()
            warn(f"{self._folder}: TensorBoard events cannot be written ({error}); metrics.jsonl continues")


def _field(number: int, value: int | float | bytes) -> bytes:
    """A field of a message: a varint, a 32-bit float, or bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + np.float32(value).tobytes()
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the eighth marks that more follow."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial, reflected
        table.append(value)
    return table


CRC32C = _crc32c_table()


def _masked_crc32c(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TFRecord does."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
