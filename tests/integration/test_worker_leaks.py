"""Many calls of `fit` with workers in one process leave nothing. `make test-faults` repeats them 200 times."""

from __future__ import annotations

import gc
import os
import threading

import psutil
import pytest

import noterl
from tests.support.pools import children, descriptors, segments
from tests.support.worker_envs import DiscreteWalkEnv

pytestmark = pytest.mark.backends("torch")

FITS = int(os.environ.get("NOTERL_FAULT_REPEATS", "6"))


def test_repeated_fits_leave_no_memory_descriptor_thread_or_segment() -> None:
    agent = noterl.DQN(DiscreteWalkEnv, hidden=(8,), seed=3)
    agent.compile(replay=200, batch_size=8, learning_starts=10, update_every=4)
    agent.fit(steps=40, num_envs=2, workers=2, verbose=0)
    used: list[tuple[int, ...]] = []
    memory: list[int] = []
    for number in range(FITS):
        agent.fit(steps=6, num_envs=2, workers=1 + number % 2, verbose=0)
        gc.collect()
        used.append((descriptors(), threading.active_count(), len(segments()), len(children())))
        memory.append(psutil.Process().memory_info().rss)
    assert len(set(used)) == 1
    # Allocators keep some pages; a ring of one fit takes 0.1 MiB, and a leaked mapping would count in full.
    third = len(memory) // 3
    assert max(memory[-third:]) - max(memory[:third]) < 2**20 * (4 + 0.02 * FITS)
