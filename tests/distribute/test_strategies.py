"""The words and objects of `fit(strategy=)`, and the shares of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NoReturn

import keras
import pytest

import noterl
from noterl import distribute
from noterl.distribute import WORDS, Strategy
from tests.support.batches import VECTOR


class Two(Strategy):
    word, replicas = "two", 2


def test_shares_of_a_batch_are_equal() -> None:
    assert Two().share(64) == 64  # one process samples for both devices
    two_processes = Two()
    two_processes.processes = 2
    assert two_processes.share(64) == 32
    with pytest.raises(ValueError, match="batch_size must"):
        two_processes.share(63)


@pytest.mark.backends("torch")
def test_strategies_that_do_not_support_an_agent_are_refused_each_time() -> None:
    class Refusing(Strategy):
        def compile_updates(self, *args: object, **options: object) -> NoReturn:
            raise ValueError("target_kl")

    agent, strategy = noterl.DQN("CartPole-v1", hidden=(4,)), Refusing()
    for _ in range(2):
        with pytest.raises(ValueError, match="target_kl"):
            agent.fit(steps=1, strategy=strategy, verbose=0)
    agent.fit(steps=1, verbose=0)


@pytest.mark.parametrize("strategy", ["horovod", 2, object()])
def test_unknown_strategies_are_refused(strategy: object) -> None:
    with pytest.raises(ValueError, match="strategy must be 'data_parallel'"):
        distribute.resolve(strategy)


def test_words_of_other_backends_are_refused() -> None:
    here = keras.backend.backend()
    for word, entry in WORDS.items():
        if entry.backend != here:
            with pytest.raises(ValueError, match=f"KERAS_BACKEND={entry.backend}"):
                distribute.resolve(word)


@pytest.mark.backends("torch")
def test_ddp_without_a_launcher_says_how_to_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    agent = noterl.DQN(VECTOR, hidden=(4,))
    with pytest.raises(ValueError, match=r"RANK.*noterl launch --strategy ddp"):
        agent.fit("CartPole-v1", steps=1, strategy="ddp")
    assert agent.fits == 0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the variables of a launcher of two processes, and forget the strategy that is made with them."""
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield
    distribute._make.cache_clear()


@pytest.mark.backends("torch")
def test_batches_and_agents_are_checked_before_processes_connect(launched: None) -> None:
    strategy = distribute.resolve("ddp")
    assert strategy is not None and (strategy.rank, strategy.replicas, strategy.is_chief) == (1, 2, False)
    agent = noterl.DQN("CartPole-v1", hidden=(4,))
    agent.compile(batch_size=63)
    with pytest.raises(ValueError, match="batch_size must"):
        agent.fit(steps=1, strategy="ddp")
    assert agent.fits == 0


@pytest.mark.backends("torch")
def test_the_first_error_stays_the_reason(launched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from noterl.backends.process_group import ConnectionLost

    strategy, stored = distribute.resolve("ddp"), []
    monkeypatch.setattr(strategy._processes, "_store", SimpleNamespace(set=lambda *pair: stored.append(pair)))  # type: ignore[union-attr]
    strategy.fail(ConnectionLost("rank 1 has lost the connection"))  # type: ignore[union-attr]
    assert not stored
    strategy.fail(KeyError("first"))  # type: ignore[union-attr]
    assert [text for _, text in stored] == ["rank 1: KeyError: 'first'"]


@pytest.mark.backends("torch")
def test_rollouts_of_all_processes_hold_a_batch(launched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=16)
    agent.compile(batch_size=34)
    with pytest.raises(ValueError, match=r"32 \(rollout_steps=16 .*got 34"):
        agent.fit(steps=1, strategy="ddp")
    agent.compile(batch_size=32)
    # The batch is accepted, so that the process connects.
    monkeypatch.setattr(distribute.ddp.DDP, "attached", lambda *_: pytest.fail("connects"))
    with pytest.raises(pytest.fail.Exception, match="connects"):
        agent.fit(steps=1, strategy="ddp")


@pytest.mark.backends("jax")
def test_data_parallel_accepts_the_object_of_keras() -> None:
    own = keras.distribution.DataParallel()
    strategy = distribute.resolve(own)
    assert strategy is distribute.resolve(own) and strategy.word == "data_parallel"


@pytest.mark.backends("jax")
@pytest.mark.parametrize("connected", [False, True])
def test_data_parallel_refuses_several_processes(connected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    distribute._make.cache_clear()
    if connected:
        monkeypatch.setattr("jax.process_count", lambda: 2)
    else:  # the variable of Keras, which would connect them
        monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    for strategy in ("data_parallel", keras.distribution.DataParallel()):
        with pytest.raises(ValueError, match=r"strategy='data_parallel'.*one of several processes; use strategy='ddp'"):
            distribute.resolve(strategy)


@pytest.mark.backends("jax")
def test_data_parallel_on_one_device_equals_no_strategy() -> None:
    results = []
    for strategy in (None, "data_parallel"):
        agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
        agent.compile(learning_starts=32, batch_size=8, update_every=8, updates=2)
        history = agent.fit(steps=80, strategy=strategy, verbose=0)
        results.append((agent.get_weights(), history.history["reward"], history.history["loss"]))
        assert agent.trace_counts["update"] == 1
    for name, weights in results[0][0].items():
        assert (weights == results[1][0][name]).all(), name
    assert results[0][1] == results[1][1]
