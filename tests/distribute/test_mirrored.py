"""TensorFlow's mirrored strategy, in a process of its own: two replicas compute what one device computes."""

from __future__ import annotations

import pytest

from tests.support.tensorflow_processes import assert_equal, results, start

pytestmark = [pytest.mark.backends("tensorflow"), pytest.mark.slow]


@pytest.fixture(scope="module")
def mirrored() -> dict:
    return results([start("mirrored")])[0]


def test_mirrored_devices_compute_the_updates_of_one_device(mirrored: dict) -> None:
    assert_equal(mirrored["compared"])


def test_fit_on_mirrored_devices_equals_fit_on_one(mirrored: dict) -> None:
    assert mirrored["updates"][0] == 28
    assert mirrored["difference"] < 1e-5
    assert mirrored["evaluated"] > 0


def test_mirrored_devices_share_sequences(mirrored: dict) -> None:
    assert mirrored["sequences"]["applied"] == 10
    assert mirrored["sequences"]["changed"] > 1e-3
    assert mirrored["sequences"]["variables"] < 1e-5


def test_workers_collect_for_mirrored_devices(mirrored: dict) -> None:
    assert mirrored["workers"] == [60, 28]


def test_networks_of_the_scope_train_with_and_without_the_strategy(mirrored: dict) -> None:
    assert mirrored["scope"]["updates"] == 16
    assert mirrored["scope"]["moved"] > 0, "the target network is not copied any more"


def test_mirrored_devices_keep_the_last_finite_state(mirrored: dict) -> None:
    assert mirrored["broken"][0] == "NonFiniteError"
    assert mirrored["kept"]


def test_batches_that_replicas_cannot_share_are_refused(mirrored: dict) -> None:
    kind, message = mirrored["odd"]
    assert kind == "ValueError"
    assert "batch_size" in message
    assert "15" in message
    kind, message = mirrored["other"]
    assert kind == "ValueError"
    assert "KERAS_BACKEND=torch" in message
