"""Batch hooks, ends and errors of `pretrain`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.backends.common import NonFiniteError
from noterl.callback import EVENTS
from noterl.learning import cloning
from noterl.types import Counters
from tests.support.demonstrations import DISCRETE, OBSERVATIONS, demonstrations
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("torch")


class Recorder(noterl.Callback):
    """Records each event; `act` runs in the hook of the end of update number `at`."""

    def __init__(self, act: Callable[[Any], None] | None = None, at: int = 0, live: bool = False) -> None:
        self.events: list[Any] = []
        self.act, self.at, self.needs_live_updates = act, at, live

    def on_batch_begin(self, batch: int, logs: Any) -> None:
        self.events.append(("begin", batch, logs))

    def on_batch_end(self, batch: int, logs: Any) -> None:
        self.events.append(("end", batch, logs))
        if self.act is not None and batch == self.at:
            self.act(self.agent)


def other(name: str) -> Callable[..., None]:
    def record(self: Recorder, *arguments: Any) -> None:
        self.events.append(name)

    return record


for event in EVENTS:
    if not event.startswith("on_batch"):
        setattr(Recorder, event, other(event))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make groups of four updates."""
    monkeypatch.setattr(cloning, "LARGEST_CALL", 4)


def ppo() -> noterl.PPO:
    return noterl.PPO((OBSERVATIONS, DISCRETE), hidden=(4,), seed=3)


def pretrain(agent: noterl.Agent, updates: int, *callbacks: Any, **options: Any) -> list[float]:
    arguments = {"batch_size": 4, "optimizer": 1e-2, "verbose": 0, **options}
    return agent.pretrain(demonstrations(), updates, callbacks=callbacks, **arguments)["loss"]


def expected(losses: list[float]) -> list[Any]:
    events = []
    for number, loss in enumerate(losses):
        events += [("begin", number, {}), ("end", number, {"loss": loss})]
    return events


@pytest.mark.parametrize("live", [False, True])
def test_batch_hooks_are_numbered_from_zero_in_each_call(groups: None, live: bool) -> None:
    agent, alone, recorder = ppo(), ppo(), Recorder(live=live)
    for _ in range(2):
        recorder.events.clear()
        losses = pretrain(agent, 6, recorder)
        assert len(losses) == 6 and recorder.events == expected(losses)
        assert pretrain(alone, 6) == losses
    assert agent._counters == Counters() and recorder.agent is agent
    assert_same_state(agent, alone)


def test_live_callback_acts_between_updates() -> None:
    class Watcher(noterl.Callback):
        needs_live_updates = True

        def on_batch_begin(self, batch: int, logs: Any) -> None:
            self.before = [weight.copy() for weight in self.agent.get_weights().values()]

        def on_batch_end(self, batch: int, logs: Any) -> None:
            after = self.agent.get_weights().values()
            assert not all(map(np.array_equal, self.before, after))

    assert len(pretrain(ppo(), 3, Watcher())) == 3


def test_stop_in_a_hook_ends_after_the_group(groups: None) -> None:
    agent = ppo()
    agent.stop("earlier")
    recorder = Recorder(lambda agent: agent.stop("enough"), at=1)
    losses = pretrain(agent, 20, recorder)
    assert len(losses) == 4 and recorder.events == expected(losses)
    assert agent.stop_reason == "enough" and agent.stop_training
    assert len(pretrain(agent, 5)) == 5 and not agent.stop_training


def test_error_of_a_hook_names_the_callback_and_leaves_the_agent_usable(groups: None) -> None:
    def fail(agent: Any) -> None:
        raise ZeroDivisionError("on purpose")

    agent, recorder, last = ppo(), Recorder(fail, at=1), Recorder()
    with pytest.raises(ZeroDivisionError) as raised:
        pretrain(agent, 8, recorder, last)
    assert raised.value.__notes__ == ["raised by the callback Recorder.on_batch_end"]
    assert [event[:2] for event in last.events] == [(word, number) for number in (0, 1) for word in ("begin", "end")]
    assert len(pretrain(agent, 3)) == 3


@pytest.mark.parametrize("live", [False, True])
def test_update_that_is_not_finite_raises_with_its_number(groups: None, live: bool) -> None:
    agent, alone, recorder = ppo(), ppo(), Recorder(live=live)
    finite = pretrain(alone, 5)
    agent_loss = agent.head.cloning_loss
    calls = iter(range(10**6))

    def failing(values: Any, action: Any) -> Any:
        return agent_loss(values, action) * (np.nan if next(calls) == 5 else 1.0)

    agent.compile(jit_compile=False)
    alone.compile(jit_compile=False)
    agent.head.cloning_loss = failing
    with pytest.raises(NonFiniteError, match="update 5"):
        pretrain(agent, 12, recorder)
    ends = [event for event in recorder.events if event[0] == "end"]
    assert [event[1] for event in ends] == list(range(6)) and np.isnan(ends[-1][2]["loss"])
    np.testing.assert_allclose([event[2]["loss"] for event in ends[:-1]], finite, rtol=1e-5)


def test_stop_after_an_update_that_is_not_finite_ends_without_an_error(groups: None) -> None:
    agent = ppo()
    agent.compile(jit_compile=False)
    agent.head.cloning_loss = lambda values, action: values.sum(-1) * np.nan
    losses = pretrain(agent, 12, Recorder(lambda agent: agent.stop("not finite")))
    assert losses == [] and agent.stop_reason == "not finite"


def test_ctrl_c_ends_after_the_group(groups: None) -> None:
    agent, recorder = ppo(), Recorder(lambda agent: os.kill(os.getpid(), signal.SIGINT), at=1)
    with pytest.raises(KeyboardInterrupt):
        pretrain(agent, 20, recorder)
    assert [event[1] for event in recorder.events if event[0] == "end"] == [0, 1, 2, 3]
    assert len(pretrain(agent, 3)) == 3


@pytest.mark.parametrize("name", ["fit", "compile", "pretrain"])
def test_hook_cannot_train(name: str) -> None:
    calls = {
        "fit": lambda agent: agent.fit(steps=1),
        "compile": lambda agent: agent.compile(),
        "pretrain": lambda agent: pretrain(agent, 1),
    }
    with pytest.raises(RuntimeError, match=f"{name} cannot be called while"):
        pretrain(ppo(), 2, Recorder(calls[name]))


def test_callbacks_must_be_callbacks() -> None:
    agent, alone = ppo(), ppo()
    with pytest.raises(ValueError, match="callbacks"):
        agent.pretrain(demonstrations(), 3, callbacks=[print], verbose=0)
    assert_same_state(agent, alone)
