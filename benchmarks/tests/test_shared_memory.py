"""The benchmark of shared memory finds no row lost and no weights torn."""

from __future__ import annotations

import pytest

from benchmarks import shared_memory

pytestmark = pytest.mark.backends("torch")


def test_rows_and_weights_are_whole() -> None:
    assert shared_memory.ring_rate(20_000)["lost_or_torn"] == 0
    result = shared_memory.torn_weights(2_000)
    assert result["torn"] == 0 and result["reads"] > 0
