"""Rows through one ring of shared memory, and weights that are read while they are written: rates and checksums."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from noterl.collect.workers.shared_memory import ArraySpec, Ring, SharedMemory, SharedWeights

ROOT = Path(__file__).parents[1]

# A row of CartPole: 59 bytes, with the number of the row and a checksum instead of other fields.
CAPACITY = 8192
FIELDS = {
    "observation": ((4,), np.float32),
    "next_observation": ((4,), np.float32),
    "action": ((), np.int64),
    "reward": ((), np.float64),
    "ended": ((3,), np.bool_),
}
RING = [ArraySpec(name, (CAPACITY, *shape), dtype) for name, (shape, dtype) in FIELDS.items()]
RING.append(ArraySpec("counters", (2,), np.int64))
BLOCK = 32  # rows that the writer publishes together

SHAPES = [((4, 64), np.float32), ((64,), np.float32), ((64, 64), np.float32), ((64,), np.float32)]
WEIGHTS = SharedWeights.specs(SHAPES)


def fill(fields: Any, places: slice, numbers: np.ndarray) -> None:
    """Write rows whose fields all follow from their numbers."""
    fields["observation"][places] = (numbers % 4093)[:, None] + np.arange(4)
    fields["next_observation"][places] = (numbers % 8191)[:, None] + np.arange(4)
    fields["action"][places], fields["reward"][places] = numbers, 0.5 * numbers
    fields["ended"][places] = ((numbers % 7) < 3)[:, None]


def write_rows(handle: int, rows: int) -> None:
    """Write rows into a ring until all are published; run in another process."""
    arrays = SharedMemory(RING, handle).arrays
    ring = Ring({name: arrays[name] for name in FIELDS}, arrays["counters"])
    written = 0
    while written < rows:
        count = min(BLOCK, rows - written, ring.capacity - ring.place())
        while ring.space < count:
            time.sleep(0)
        fill(ring.fields, slice(ring.place(), ring.place() + count), np.arange(written, written + count))
        ring.publish(count)
        written += count


def ring_rate(rows: int) -> dict[str, Any]:
    """Return the rows per second through one ring, and how many were lost or torn."""
    memory = SharedMemory(RING)
    ring = Ring({name: memory.arrays[name] for name in FIELDS}, memory.arrays["counters"])
    copies = {name: np.zeros((CAPACITY, *shape), dtype) for name, (shape, dtype) in FIELDS.items()}
    expected = {name: values.copy() for name, values in copies.items()}
    writer = _start(f"write_rows({memory.handle}, {rows})", memory)
    read = wrong = 0
    begun = None
    while read < rows:
        count = min(ring.unread, ring.capacity - ring.first())
        if not count:
            if writer.poll() not in (None, 0):
                raise RuntimeError("the writer has failed")
            time.sleep(0)
            continue
        begun = begun or time.perf_counter()
        first = ring.first()
        for name, field in ring.fields.items():  # the copy that the learner's memory makes
            copies[name][:count] = field[first : first + count]
        ring.release(count)
        fill(expected, slice(0, count), np.arange(read, read + count))
        same = [(copies[n][:count] == expected[n][:count]).reshape(count, -1).all(axis=1) for n in FIELDS]
        wrong += count - int(np.logical_and.reduce(same).sum())
        read += count
    assert begun is not None
    seconds = time.perf_counter() - begun
    writer.wait()
    memory.close()
    return {"name": "ring", "rows": rows, "rows_per_second": rows / seconds, "lost_or_torn": wrong}


def write_weights(handle: int, publications: int) -> None:
    """Publish weights that all have the number of the publication; run in another process."""
    arrays = SharedMemory(WEIGHTS, handle).arrays
    weights = SharedWeights(arrays["weights"], arrays["version"], SHAPES)
    values = [np.zeros(shape, dtype) for shape, dtype in SHAPES]
    for number in range(publications):
        for value in values:
            value.fill(number)
        weights.publish(values)


def torn_weights(publications: int) -> dict[str, Any]:
    """Return how many of the weights that were read are mixtures of two publications; the writer never pauses.

    `refused` counts the copies that the reader did not use, because the writer had begun to overwrite them.
    """
    memory = SharedMemory(WEIGHTS)
    weights = SharedWeights(memory.arrays["weights"], memory.arrays["version"], SHAPES)
    writer = _start(f"write_weights({memory.handle}, {publications})", memory)
    reads = torn = refused = 0
    version, first, begun = 0, 0, 0.0
    while writer.poll() is None or weights.version < publications:
        if writer.returncode not in (None, 0):
            raise RuntimeError("the writer has failed")
        refused += not weights.read()
        if weights.version > version:
            first, begun = first or weights.version, begun or time.perf_counter()
            number = float(weights.version - 1)
            torn += any((weight != number).any() for weight in weights.weights)
            reads, version = reads + 1, weights.version
    rate = (publications - first) / (time.perf_counter() - begun)
    memory.close()
    counts = {"reads": reads, "refused": refused, "torn": torn}
    return {"name": "weights", "publications": publications, "per_second": rate, **counts}


def _start(call: str, memory: SharedMemory) -> subprocess.Popen[bytes]:
    code = f"from benchmarks import shared_memory; shared_memory.{call}"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, pass_fds=[memory.handle])
