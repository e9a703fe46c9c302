"""`Agent.gradient_values`: the gradients that the next update on its batch would apply, and no effect on training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callback import Callback
from noterl.callbacks import TensorBoard
from tests.support.states import assert_same_state


def trained(callbacks: list[Any], **arguments: Any) -> noterl.DQN:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=2, **arguments)
    agent.compile(learning_starts=20, batch_size=4, update_every=10)
    agent.fit(steps=80, callbacks=callbacks, verbose=0)
    return agent


class Measure(Callback):
    """Stores the gradients at the end of each episode."""

    def __init__(self) -> None:
        self.found: list[dict[str, np.ndarray] | None] = []

    def on_train_begin(self, logs: Any) -> None:
        self._gradients = self.agent.gradient_values()

    def on_episode_end(self, episode: int, logs: Any) -> None:
        self.found.append(self._gradients())


def test_gradients_have_the_names_and_shapes_of_the_trained_weights() -> None:
    measure = Measure()
    agent = trained([measure])
    weights = {name: value for name, value in agent.get_weights().items() if name.startswith("q/")}
    gradients = measure.found[-1]
    assert measure.found[0] is None or agent.steps > 20
    assert gradients is not None and gradients.keys() == weights.keys()
    assert all(gradients[name].shape == weights[name].shape for name in weights)
    assert all(np.isfinite(value).all() for value in gradients.values())
    assert_same_state(agent, trained([]))


def test_gradient_of_the_last_bias_is_the_mean_error_of_its_action() -> None:
    agent = trained([], double=False)
    values = agent.gradient_values()
    gradients = values()
    assert gradients is not None
    # The loss is a mean over 4 transitions; the clipped error of each is at most 1.
    bias = gradients[max(gradients)]
    assert bias.shape == (2,) and 0 < np.abs(bias).sum() <= 1.0 + 1e-6


@pytest.mark.backends("torch")
def test_tensorboard_writes_histograms_without_an_effect_on_training(tmp_path: Any) -> None:
    pytest.importorskip("tensorboardX")
    board = TensorBoard(tmp_path, histograms="episodes")
    agent = trained([board])
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    assert b"weights/q/000" in data and b"gradients/q/000" in data and b"weights/target_q/000" in data
    plain = trained([])
    assert all(np.array_equal(value, plain.get_weights()[name]) for name, value in agent.get_weights().items())
