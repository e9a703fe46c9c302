"""TensorBoard's event files, written without TensorBoard.

Owns: the format, which is a sequence of framed protocol buffers and has not changed since 2015. A scalar a line in a
chart is all that is written, so the few fields needed are encoded here, and no package is.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_START_OF_SESSION = 1

# Numbers of fields and wire types of tensorflow/core/util/event.proto and framework/summary.proto.
_WALL_TIME, _STEP, _VERSION, _SUMMARY, _SESSION = 1, 2, 3, 5, 7
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the bytes (RFC 3720, appendix B.4).

    Example:
    >>> from noterl.utils.event_files import crc32c
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Return a record of a TFRecord file: its length and its bytes, each with a masked checksum."""
    length = struct.pack("<Q", len(record))
    return length + _masked(length) + record + _masked(record)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _field(number: int, wire: int, content: bytes) -> bytes:
    length = _varint(len(content)) if wire == _BYTES else b""
    return _varint(number << 3 | wire) + length + content


def event(content: bytes, step: int, seconds: float) -> bytes:
    """Return an event: its content, the step it belongs to, and when it was written (seconds since 1970)."""
    when = _field(_WALL_TIME, _DOUBLE, struct.pack("<d", seconds))
    return when + _field(_STEP, _VARINT, _varint(step)) + content


def scalars(values: Mapping[str, float]) -> bytes:
    """Return an event's content: a value for each tag."""
    pairs = (
        _field(1, _BYTES, tag.encode()) + _field(2, _FLOAT, struct.pack("<f", value)) for tag, value in values.items()
    )
    return _field(_SUMMARY, _BYTES, b"".join(_field(1, _BYTES, pair) for pair in pairs))


class EventFile:
    """One file of scalars in a folder that TensorBoard is pointed at.

    Args:
        folder: made if need be.
        step: what was written for this step or a later one, in other files of the folder, counts no more.

    Raises:
        OSError: if it cannot be written.
    """

    def __init__(self, folder: str | Path, step: int = 0) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{now:017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = Path(folder) / name
        self._file = self.path.open("xb")
        self._add(_field(_VERSION, _BYTES, b"brain.Event:2"), 0, now)
        self._add(_field(_SESSION, _BYTES, _field(1, _VARINT, _varint(_START_OF_SESSION))), step, now)
        self.flush()

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Note a value for each tag."""
        self._add(scalars(values), step, time.time())

    def flush(self) -> None:
        """Hand what was noted to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Write everything and close the file."""
        self._file.close()

    def _add(self, content: bytes, step: int, seconds: float) -> None:
        self._file.write(frame(event(content, step, seconds)))
