"""Programs of several JAX processes, here with one: they compute what the programs of one device compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import noterl
from noterl.distribute import SINGLE, Strategy
from tests.support.batches import IMAGE, random_batch, small_dqn
from tests.support.launching import require_jax_processes
from tests.support.parts import learner_of

pytestmark = pytest.mark.backends("jax")


@pytest.fixture(scope="module")
def strategy() -> Strategy:
    """Return the strategy of several processes, of which there is one."""
    require_jax_processes()
    from noterl.backends.jax.processes import connected
    from noterl.distribute.data_parallel import DataParallelProcesses

    return DataParallelProcesses(connected())


def assert_equal(first: noterl.Agent, second: noterl.Agent) -> None:
    """Check that the weights are equal up to rounding; a program in `shard_map` is another one for XLA."""
    assert first.updates == second.updates
    weights = second.get_weights()
    for name, one in first.get_weights().items():
        np.testing.assert_allclose(one, weights[name], rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (noterl.PPO, {"rollout_steps": 16, "epochs": 4, "target_kl": 1e-4}),  # stops early
        (noterl.TRPO, {"rollout_steps": 16}),  # trains in `prepare`
    ],
)
def test_fit_equals_fit_on_one_device(kind: Any, arguments: dict[str, Any], strategy: Strategy) -> None:
    agents = []
    for each in (None, strategy):
        agents.append(kind("CartPole-v1", hidden=(8,), seed=1, **arguments))
        agents[-1].fit(steps=64, strategy=each, verbose=0)
    assert agents[0].updates > 4
    assert_equal(*agents)


def test_updates_of_convolutions_equal_those_of_one_device(strategy: Strategy) -> None:
    agents, feedback = [], []
    for each in (SINGLE, strategy):
        agents.append(small_dqn(IMAGE, target_update=0.5))
        learner = learner_of(agents[-1])
        learner.use(each)
        for seed in (0, 1, 2):
            result = learner.update(random_batch(2, 4, IMAGE, seed=seed), 2)
        feedback.append(np.asarray(result.feedback["td_error"]))
    np.testing.assert_allclose(*feedback, rtol=1e-4, atol=2e-6)
    assert_equal(*agents)


def test_updates_that_are_not_compiled_are_refused(strategy: Strategy) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(8,))
    agent.compile(jit_compile=False)
    with pytest.raises(ValueError, match="jit_compile"):
        agent.fit(steps=1, strategy=strategy, verbose=0)


def test_jax_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from noterl.backends.jax import processes

    monkeypatch.setattr("jax.__version_info__", (0, 8, 3))
    with pytest.raises(ImportError, match=r"needs JAX 0\.9 or newer"):
        processes.Processes()


def test_an_error_of_another_process_ends_the_wait(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event
    from types import SimpleNamespace

    from noterl.backends.jax import processes
    from noterl.backends.process_group import ConnectionLost

    stored: dict[str, str] = {}
    monkeypatch.setattr(
        processes, "_client", lambda: SimpleNamespace(key_value_set=stored.__setitem__, key_value_try_get=stored.get)
    )
    monkeypatch.setattr(processes, "_CHECK_SECONDS", 0.01)
    waiting, end = processes.Processes(), Event()
    strategy.fail(ConnectionLost("of another process"))
    assert not stored
    strategy.fail(KeyError("of this process"))
    with pytest.raises(ConnectionLost, match="rank 0: KeyError: 'of this process'"):
        waiting.run(end.wait)
    end.set()
