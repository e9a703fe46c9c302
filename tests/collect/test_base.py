"""The contract of lanes: the loop and the session drive a kind of lanes that only this test knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

import noterl
from noterl import envs
from noterl.collect import DeviceLanes, Lanes
from noterl.collect.env_calls import EnvCall
from noterl.random import Generators
from noterl.training import session
from noterl.types import Transition

pytestmark = pytest.mark.backends("torch")


class ListedLanes(Lanes):
    """Environments with one Box observation and no state, stepped one after another."""

    def __init__(self, source: Any, num_envs: int, generators: Any) -> None:
        super().__init__(source, num_envs)
        self._envs = [source.make(lane) for lane in range(num_envs)]
        self._current = np.zeros((num_envs, *source.observation_space.shape), np.float32)
        self._generators = generators
        self.events: list[str] = []

    def reset(self, lane: int, number: int, step: int) -> None:
        seed = int(self._generators(f"environment/{lane}").integers(2**31))
        self._current[lane] = self._envs[lane].reset(seed=seed)[0]
        self.ledger.begin(lane, number)

    def observations(self) -> np.ndarray:
        return self._current

    def begin_round(self, actions: np.ndarray, extra: Mapping[str, np.ndarray] | None = None) -> None:
        self.actions, self._lane = actions, 0

    def tick(self, step: int) -> tuple[Transition, ...]:
        lane, action, before = self._lane, self.actions[self._lane], self._current[self._lane].copy()
        self._lane += 1
        if self._lane == self.num_envs:
            self.actions = None
        after, reward, terminated, truncated, _ = self._envs[lane].step(action)
        self._current[lane] = after
        self.ledger.returns[lane] += float(reward)
        self.ledger.lengths[lane] += 1
        return (Transition(lane, before, action, float(reward), after, terminated, truncated, None),)

    def call(self, call: EnvCall) -> list[Any]:
        return [type(environment.unwrapped).__name__ for environment in self._envs]

    def get_state(self) -> None:
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        raise AssertionError("there is nothing to restore")

    def attach_loop(self, *arguments: Any) -> None:
        self.events.append("attach_loop")

    def before_updates(self, updates: int) -> None:
        self.events.append("before_updates")

    def learned(self, updates: int) -> None:
        self.events.append(f"learned {updates}")

    def end(self, *, hurry: bool) -> None:
        self.events.append(f"end {hurry}")


def open_listed(source: Any, num_envs: int, generators: Any, *_: Any) -> ListedLanes:
    return ListedLanes(source, num_envs, generators)


def trained() -> tuple[noterl.Agent, noterl.History]:
    agent = noterl.DQN(lambda: gymnasium.make("CartPole-v1"), hidden=(8,), seed=3)
    agent.compile(replay=noterl.Replay(200), learning_starts=20, update_every=8, batch_size=8)
    return agent, agent.fit(steps=60, num_envs=2, verbose=0)


def test_unknown_kind_trains_as_scalar_lanes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, expected_history = trained()
    monkeypatch.setattr(session, "open_lanes", open_listed)
    agent, history = trained()
    lanes: Any = agent._parts.session.lanes
    assert isinstance(lanes, ListedLanes)
    assert history.history["reward"] == expected_history.history["reward"] and agent.updates == expected.updates == 20
    weights = agent.get_weights()
    assert all(np.array_equal(value, weights[name]) for name, value in expected.get_weights().items())
    groups = [event for count in range(4, 21, 4) for event in ("before_updates", f"learned {count}")]
    assert lanes.events == ["attach_loop", *groups, "end False"]


def test_open_lanes_continue_in_the_next_fit_and_end_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "open_lanes", open_listed)
    agent, _ = trained()
    lanes: Any = agent._parts.session.lanes
    lengths = list(lanes.ledger.lengths)
    calls: list[Any] = []

    class Broken(noterl.Callback):
        def on_episode_begin(self, episode: int, logs: Any) -> None:
            calls.append(list(lanes.ledger.lengths))
            calls.append(self.agent.env_call("anything"))
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        agent.fit(steps=1, callbacks=[Broken()], verbose=0)
    assert agent._parts.session.lanes is lanes and lanes.events[-1] == "end True"
    assert calls[:2] == [lengths, ["CartPoleEnv"] * 2]


def test_kind_without_a_method_cannot_be_made() -> None:
    class Half(Lanes):
        def tick(self, step: int) -> tuple[Transition, ...]:
            return ()

    with pytest.raises(TypeError, match="abstract"):
        Half(envs.resolve("CartPole-v1"), 1)  # type: ignore[abstract]
    assert Half.__abstractmethods__ == {
        "begin_round",
        "call",
        "get_state",
        "observations",
        "reset",
        "set_state",
    }


def test_lanes_on_the_device_refuse_single_steps() -> None:
    source = envs.resolve("CartPole-v1")
    lanes = DeviceLanes(source, 2, Generators(0))
    for refused in (lanes.observations, lambda: lanes.begin_round(np.zeros(2)), lambda: lanes.tick(1)):
        with pytest.raises(NotImplementedError, match="compiled calls"):
            refused()
    assert lanes.serves(source, 2, True) and not lanes.serves(source, 2, False) and not lanes.serves(source, 3, True)
