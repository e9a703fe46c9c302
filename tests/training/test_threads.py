"""Agents that train in parallel threads end in the same state as agents that train one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import pytest

import noterl
from noterl import backends
from tests.support.batches import Corridor, copied, differences
from tests.support.states import run_python


def dropout_network() -> Any:
    """Return a network that samples random numbers in updates."""
    if backends.name() == "torch":
        from torch import nn

        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    )


class WithDropout(noterl.DQN):
    """Builds its network in the constructor, so that the agent's seed decides its weights."""

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed, hidden=(4,))
        self.q = dropout_network()
        self.target_q = noterl.networks.clone(self.q)


def dqn(seed: int) -> noterl.Agent:
    agent = noterl.DQN(Corridor, hidden=(8,), gamma=0.9, seed=seed)
    agent.compile(replay=noterl.Replay(64), batch_size=4, learning_starts=8, update_every=1, updates=1, target_update=4)
    return agent


def dropout(seed: int) -> noterl.Agent:
    agent = WithDropout(Corridor, seed=seed)
    agent.compile(
        replay=noterl.Replay(64), batch_size=4, learning_starts=8, update_every=1, updates=1, target_update=0.1
    )
    return agent


def ppo(seed: int) -> noterl.Agent:
    return noterl.PPO(Corridor, hidden=(8,), rollout_steps=8, epochs=2, seed=seed)


def train(make: Callable[[int], noterl.Agent], seed: int, states: dict[int, Any]) -> None:
    agent = make(seed)
    agent.fit(steps=40, verbose=0)
    assert agent.updates >= 10
    states[seed] = copied(agent.get_state())


def test_four_agents_in_four_threads_equal_four_one_after_another() -> None:
    alone: dict[int, Any] = {}
    together: dict[int, Any] = {}
    errors: list[Any] = []
    makers = [dqn, ppo, dropout, dropout]
    for seed, make in enumerate(makers):
        train(make, seed, alone)

    def run(make: Callable[[int], noterl.Agent], seed: int) -> None:
        try:
            train(make, seed, together)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(make, seed)) for seed, make in enumerate(makers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for seed in alone:
        assert differences(alone[seed], together[seed]) == []


def test_hyperparameter_is_readable_while_another_thread_traces() -> None:
    other, values = dqn(2), []

    class Reading(noterl.DQN):
        def loss(self, batch):
            thread = threading.Thread(target=lambda: values.append(float(other.gamma)))
            thread.start()
            thread.join()
            return super().loss(batch)

    agent = Reading(Corridor, hidden=(8,), seed=1)
    agent.compile(replay=noterl.Replay(64), batch_size=4, learning_starts=8, update_every=1, updates=1)
    agent.fit(steps=20, verbose=0)
    assert values and set(values) == {0.9}


DAEMON = """
import threading, noterl
from tests.support.batches import Corridor

class Reports(noterl.Callback):
    def on_step_end(self):
        begun.set()

    def on_train_end(self, logs):
        print("ended", self.agent.stop_reason)

begun = threading.Event()
agent = noterl.DQN(Corridor, hidden=(4,), seed=1)
threading.Thread(target=agent.fit, kwargs=dict(steps=10**9, callbacks=[Reports()], verbose=0), daemon=True).start()
begun.wait()
"""


@pytest.mark.backends("torch")
def test_fit_of_a_daemon_thread_ends_before_python_does() -> None:
    """Python ends a daemon thread even in the middle of C++ code, which aborts the process."""
    assert run_python(DAEMON, KERAS_BACKEND="torch") == "ended the program has ended\n"
