"""Reads the last value of each scalar from TensorBoard's event files, without TensorFlow.

Runs on nodes that may not have Shoal: it must import the standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

# A record that claims to be longer than this is damaged.
_MAX_RECORD = 64 * 2**20
_DT_FLOAT, _DT_DOUBLE = 1, 2


def last_scalars(files: Sequence[Path]) -> dict[str, float]:
    """The value of each scalar at its last step, over all event files among these files."""
    latest: dict[str, tuple[int, float, float]] = {}
    for path in files:
        if "tfevents" in path.name:
            for step, time, tag, value in _scalars(path):
                if tag not in latest or (step, time) >= latest[tag][:2]:
                    latest[tag] = (step, time, value)
    return {tag: value for tag, (_, _, value) in latest.items()}


def _scalars(path: Path) -> Iterator[tuple[int, float, str, float]]:
    with path.open("rb") as file:
        while len(header := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", header[:8])
            if length > _MAX_RECORD:
                return
            record = file.read(length)
            if len(record) < length or len(file.read(4)) < 4:
                return  # the run ended while it wrote
            try:
                yield from _event(record)
            except (ValueError, IndexError, struct.error):
                return


def _event(record: bytes) -> Iterator[tuple[int, float, str, float]]:
    """Event: 1 wall_time, 2 step, 5 summary. Summary: 1 value. Value: 1 tag, 2 simple_value,
    8 tensor."""
    time, step, summaries = 0.0, 0, []
    for number, value in _fields(record):
        if number == 1 and isinstance(value, bytes):
            (time,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                tag, scalar = _value(value)
                if tag and scalar is not None:
                    yield step, time, tag, scalar


def _value(message: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, value in _fields(message):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode(errors="replace")
        elif number == 2:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8:
            scalar = _tensor(value)
    return tag, scalar


def _tensor(message: bytes) -> float | None:
    """TensorProto: 1 dtype, 2 shape, 4 tensor_content, 5 float_val, 6 double_val. None unless it
    has one number."""
    dtype, content = 0, b""
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            content = value
    if dtype == _DT_FLOAT and len(content) == 4:
        return float(struct.unpack("<f", content)[0])
    if dtype == _DT_DOUBLE and len(content) == 8:
        return float(struct.unpack("<d", content)[0])
    return None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: a varint as int, all else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(message):
            raise ValueError("truncated")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint")
