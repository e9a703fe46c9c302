"""The vector that the host reads after a compiled call gives back what was written."""

from __future__ import annotations

import numpy as np
import pytest

from noterl.backends.transfer import HostReport

LOGS = {
    "loss": np.array([0.5, np.nan, 2.0], np.float32),
    "steps": np.array([1, 2, 3], np.int32),
    "q": np.array([1.0, 2.0, 3.0], np.float32),
    "grid": np.zeros((3, 2), np.float32),
}
WEIGHTS = [np.arange(4, dtype=np.float32), np.full(2, 9.0, np.float32)]


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("weights", [WEIGHTS, []])
def test_what_was_written_comes_back(finite: bool, weights: list[np.ndarray]) -> None:
    report = HostReport(np.concatenate)
    vector, apart = report.write(np.array([finite], np.float32), LOGS, weights)
    assert set(apart) == {"steps", "grid"}
    read, logs, flat = report.read(vector, apart)
    assert read is finite
    assert logs.keys() == LOGS.keys()
    for name, values in LOGS.items():
        np.testing.assert_array_equal(logs[name], values)
    if weights:
        np.testing.assert_array_equal(flat, np.concatenate(weights))
    else:
        assert flat is None


def test_logs_of_another_type_all_stay_apart() -> None:
    report, doubles = HostReport(np.concatenate), {"loss": np.array([0.5, 2.0])}
    vector, apart = report.write(np.ones(1, np.float32), doubles, WEIGHTS)
    finite, logs, flat = report.read(vector, apart)
    assert finite
    assert logs.keys() == {"loss"}
    np.testing.assert_array_equal(logs["loss"], doubles["loss"])
    np.testing.assert_array_equal(flat, np.concatenate(WEIGHTS))


def test_a_loss_that_is_kept_does_not_keep_the_weights() -> None:
    report = HostReport(np.concatenate)
    vector, apart = report.write(np.ones(1, np.float32), LOGS, [np.zeros(10_000, np.float32)])
    loss = report.read(vector, apart)[1]["loss"]
    assert loss.base.size < 10
