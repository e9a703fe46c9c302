"""Many calls of `fit` with workers in one process leave nothing. `make test-faults` repeats them 200 times."""

from __future__ import annotations

import gc
import os
import threading

import psutil
import pytest

torch = pytest.importorskip("torch")

import noterl  # noqa: E402  (needs torch)
from noterl.backends.torch.updates import EAGER_UPDATES  # noqa: E402
from tests.support.pools import children, descriptors, mapped_bytes, segments  # noqa: E402
from tests.support.worker_envs import DiscreteWalkEnv  # noqa: E402

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]

FITS = int(os.environ.get("NOTERL_FAULT_REPEATS", "6"))
HEAP_EXTENSION = 132 * 2**10  # bytes


class Mapped(noterl.Callback):
    """Measures the shared memory of one fit, in bytes."""

    size = 0

    def on_step_end(self) -> None:
        self.size = self.size or mapped_bytes()


def test_repeated_fits_leave_no_memory_descriptor_thread_or_segment() -> None:
    agent = noterl.DQN(DiscreteWalkEnv, hidden=(8,), seed=3)
    agent.compile(replay=200, batch_size=8, learning_starts=10, update_every=4)
    mapped = Mapped()
    # Traces start with update 100 and load 6 MB more of torch's libraries, so update 100 precedes the measurements.
    agent.fit(steps=4 * EAGER_UPDATES + 20, num_envs=2, workers=2, callbacks=[mapped], verbose=0)
    assert agent.updates > EAGER_UPDATES
    used: list[tuple[int, ...]] = []
    memory: list[int] = []
    for number in range(FITS):
        agent.fit(steps=6, num_envs=2, workers=1 + number % 2, verbose=0)
        gc.collect()
        used.append((descriptors(), threading.active_count(), len(segments()), len(children())))
        memory.append(psutil.Process().memory_info().rss)
    assert len(set(used)) == 1
    # A leak grows with each fit, and the pages of an allocator do not: 200 fits grew by 12 KiB. The C library extends
    # its heap by 132 KiB at a time.
    later = memory[FITS // 2 :]
    assert later[-1] - later[0] < 2 * HEAP_EXTENSION + 0.1 * mapped.size * len(later)
