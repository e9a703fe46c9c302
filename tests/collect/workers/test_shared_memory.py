"""Shared memory between processes: arrays, rings of rows, and weights under a version counter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noterl.collect.workers.shared_memory import ArraySpec, Ring, SharedMemory, SharedWeights
from tests.support.pools import segments

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[3]
SPECS = [ArraySpec("row", (96, 3), np.int64), ArraySpec("sum", (96,), np.int64), ArraySpec("counters", (2,), np.int64)]
SHAPES = [((7, 5), np.float32), ((5,), np.float64), ((), np.float32)]


def start(code: str, memory: SharedMemory) -> subprocess.Popen[bytes]:
    """Run code in another process, in which `memory` is the handle of the shared memory."""
    code = f"memory = {memory.handle}\n{code}"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, pass_fds=[memory.handle])


@pytest.mark.parametrize("anonymous_file", [True, False])
def test_processes_share_arrays_and_leave_nothing(anonymous_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not anonymous_file:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    before = segments()
    memory = SharedMemory(SPECS)
    assert not memory.arrays["row"].any()
    code = """
from tests.collect.workers.test_shared_memory import SPECS
from noterl.collect.workers.shared_memory import SharedMemory
SharedMemory(SPECS, memory).arrays["sum"][5] = 42
"""
    assert start(code, memory).wait() == 0
    assert memory.arrays["sum"].tolist() == [0] * 5 + [42] + [0] * 90
    memory.close()
    memory.close()
    assert segments() == before


def test_arrays_do_not_overlap() -> None:
    memory = SharedMemory([ArraySpec(str(size), (size,), np.uint8) for size in (1, 64, 65, 0, 3)])
    for name, array in memory.arrays.items():
        array[:] = int(name)
    assert all((array == int(name)).all() for name, array in memory.arrays.items())
    memory.close()


def test_ring_returns_rows_in_order() -> None:
    ring = Ring({"row": np.zeros((6, 1), np.int64)}, np.zeros(2, np.int64))
    rng, expected, written = np.random.default_rng(0), deque[int](), 0
    for _ in range(2000):
        count = int(rng.integers(1, 4))
        if rng.random() < 0.5 and ring.space >= count:
            for _ in range(count):
                ring.fields["row"][ring.place()] = written
                ring.publish(1)
                expected.append(written)
                written += 1
        elif ring.unread >= count:
            for _ in range(count):
                assert ring.fields["row"][ring.first(), 0] == expected.popleft()
                ring.release(1)
        assert ring.unread == len(expected) and ring.space == 6 - len(expected) and ring.published == written
    assert written > 500


def test_no_row_is_lost_or_torn_between_processes() -> None:
    rows = 20_000
    memory = SharedMemory(SPECS)
    code = f"""
import time
from tests.collect.workers.test_shared_memory import SPECS
from noterl.collect.workers.shared_memory import Ring, SharedMemory
arrays = SharedMemory(SPECS, memory).arrays
ring = Ring({{name: arrays[name] for name in ("row", "sum")}}, arrays["counters"])
row, total = ring.fields["row"], ring.fields["sum"]
for number in range({rows}):
    while not ring.space:
        time.sleep(0)
    place = ring.place()
    row[place] = number, 2 * number, 7
    total[place] = 3 * number + 7
    ring.publish(1)
"""
    writer = start(code, memory)
    ring = Ring({name: memory.arrays[name] for name in ("row", "sum")}, memory.arrays["counters"])
    number = 0
    while number < rows:
        count = min(ring.unread, ring.capacity - ring.first())
        if not count:
            assert writer.poll() in (None, 0)
            time.sleep(0)
            continue
        first = ring.first()
        expected = np.arange(number, number + count)
        assert np.array_equal(ring.fields["row"][first : first + count, 0], expected)
        assert np.array_equal(ring.fields["sum"][first : first + count], 3 * expected + 7)
        ring.release(count)
        number += count
    assert writer.wait() == 0 and ring.unread == 0
    memory.close()


def test_weights_are_never_mixed() -> None:
    memory = SharedMemory(SharedWeights.specs(SHAPES))
    code = """
import numpy as np
from tests.collect.workers.test_shared_memory import SHAPES
from noterl.collect.workers.shared_memory import SharedMemory, SharedWeights
arrays = SharedMemory(SharedWeights.specs(SHAPES), memory).arrays
weights = SharedWeights(arrays["weights"], arrays["version"], SHAPES)
for number in range(5_000):
    weights.publish([np.full(shape, number, dtype) for shape, dtype in SHAPES])
"""
    writer = start(code, memory)
    weights = SharedWeights(memory.arrays["weights"], memory.arrays["version"], SHAPES)
    seen: set[float] = set()
    while writer.poll() is None or weights.version < 5_000:
        weights.read()
        values = {float(value) for weight in weights.weights for value in np.ravel(weight)}
        assert len(values) == 1
        seen |= values
    assert writer.returncode == 0 and len(seen) > 1 and max(seen) == 4_999
    assert [weight.dtype for weight in weights.weights] == [dtype for _, dtype in SHAPES]
    memory.close()


class Written(SharedWeights):
    """Publishes its own weights while a reader copies a slot."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.during_copy: Callable[[], None] = lambda: None
        slots = self._slots

        class Slots:
            def __getitem__(_, slot: int) -> Any:
                copy = slots[slot].copy()
                self.during_copy()
                return copy

        self._slots = Slots()  # type: ignore[assignment]


@pytest.mark.parametrize(("publications", "is_whole"), [(0, True), (1, True), (2, True), (3, False), (4, False)])
def test_reader_refuses_weights_that_are_overwritten_meanwhile(publications: int, is_whole: bool) -> None:
    """The third publication after the newest one overwrites its slot."""
    arrays = SharedMemory(SharedWeights.specs(SHAPES)).arrays
    writer, reader = (kind(arrays["weights"], arrays["version"], SHAPES) for kind in (SharedWeights, Written))

    def publish(number: int) -> None:
        writer.publish([np.full(shape, number) for shape, _ in SHAPES], updates=10 * number)

    publish(1)
    assert reader.read() and reader.version == 1
    publish(2)
    reader.during_copy = lambda: [publish(3 + number) for number in range(publications)] and None
    assert reader.read() is is_whole
    number = 2 if is_whole else 1
    assert (reader.version, reader.updates) == (number, 10 * number)
    assert {float(value) for weight in reader.weights for value in np.ravel(weight)} == {number}
    reader.during_copy = lambda: None
    assert reader.read() and reader.version == reader.updates / 10 == 2 + publications


def test_begun_publication_does_not_disturb_a_reader() -> None:
    arrays = SharedMemory(SharedWeights.specs(SHAPES)).arrays
    writer, reader = (SharedWeights(arrays["weights"], arrays["version"], SHAPES) for _ in range(2))
    for number in range(1, 9):
        writer.publish([np.full(shape, number) for shape, _ in SHAPES])
        arrays["version"][0] += 1  # the next one has begun
        writer._shared[(number + 1) % 3][0][...] = 99
        assert reader.read() and reader.version == number and reader.weights[2] == number
        arrays["version"][0] -= 1
