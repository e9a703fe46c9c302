"""`HostReport` reads what it wrote."""

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
def test_read_returns_what_was_written(finite: bool, weights: list[np.ndarray]) -> None:
    report = HostReport(np.concatenate)
    vector, rest = report.write(np.array([finite], np.float32), LOGS, weights)
    assert set(rest) == {"steps", "grid"}
    read, logs, flat = report.read(vector, rest)
    assert read is finite
    assert logs.keys() == LOGS.keys()
    for name, values in LOGS.items():
        np.testing.assert_array_equal(logs[name], values)
    if weights:
        np.testing.assert_array_equal(flat, np.concatenate(weights))
    else:
        assert flat is None


def test_logs_of_other_dtypes_are_not_in_the_vector() -> None:
    report, doubles = HostReport(np.concatenate), {"loss": np.array([0.5, 2.0])}
    vector, rest = report.write(np.ones(1, np.float32), doubles, WEIGHTS)
    finite, logs, flat = report.read(vector, rest)
    assert finite
    assert logs.keys() == {"loss"}
    np.testing.assert_array_equal(logs["loss"], doubles["loss"])
    np.testing.assert_array_equal(flat, np.concatenate(WEIGHTS))


def test_stored_loss_does_not_keep_the_weights_in_memory() -> None:
    report = HostReport(np.concatenate)
    vector, rest = report.write(np.ones(1, np.float32), LOGS, [np.zeros(10_000, np.float32)])
    loss = report.read(vector, rest)[1]["loss"]
    assert loss.base.size < 10
