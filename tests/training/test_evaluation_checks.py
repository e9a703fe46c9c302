"""`evaluate`, `play`, `record` and `Evaluate` validate what environments return as `fit` does, and they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.callbacks import Evaluate, LambdaCallback
from noterl.envs import ends
from noterl.envs.ends import InvalidStepError

pytestmark = pytest.mark.backends("torch")

ZEROS = np.zeros(2, np.float32)


class Base(gymnasium.Env):
    """Episodes of nine steps."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    count = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return ZEROS, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return ZEROS, 1.0, False, self.count == 9, {}

    def render(self) -> Any:
        return np.zeros((20, 20, 3), np.uint8)


def with_results(step: Any = None, reset: Any = None) -> Callable[[], Base]:
    """Return a factory of environments with other results of `step` and `reset`."""

    class Changed(Base):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            result = super().reset(seed=seed)
            return result if reset is None else reset(*result)

        def step(self, action: Any) -> Any:
            result = super().step(action)
            return result if step is None else step(*result)

    return Changed


def small() -> noterl.Agent:
    agent = noterl.DQN(Base, hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(100), learning_starts=1000)
    return agent


def uses(make: Any, path: Path) -> dict[str, Callable[[], Any]]:
    agent = small()
    return {
        "fit": lambda: noterl.DQN(make, hidden=(4,), seed=1).fit(steps=20, verbose=0),
        "evaluate": lambda: agent.evaluate(make, episodes=1),
        "several": lambda: agent.evaluate(make, episodes=2, num_envs=2),
        "play": lambda: agent.play(make),
        "animate": lambda: agent.animate(path / "a.gif", make),
        "record": lambda: noterl.Dataset.record(agent, make, episodes=1),
        "Evaluate": lambda: small().fit(episodes=1, callbacks=[Evaluate(make, every=1, episodes=1)], verbose=0),
    }


INVALID = {
    "four values": (with_results(lambda o, r, e, t, i: (o, r, t, i)), "step must return"),
    "no tuple": (with_results(lambda *_: None), "step must return"),
    "swapped": (with_results(lambda o, r, e, t, i: (r, o, e, t, i)), "step must return"),
    "reward": (with_results(lambda o, r, e, t, i: (o, None, e, t, i)), "reward .*must be a number"),
    "observation": (with_results(lambda o, r, e, t, i: (None, r, e, t, i)), "observation"),
    "only an observation": (with_results(reset=lambda o, i: o), r"reset must return \(observation, info\)"),
    "two numbers": (with_results(reset=lambda o, i: [0.1, 0.2]), r"reset must return \(observation, info\)"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_result_is_the_same_error_everywhere(name: str, tmp_path: Path) -> None:
    make, match = INVALID[name]
    for use in uses(make, tmp_path).values():
        with pytest.raises(InvalidStepError, match=match):
            use()


@pytest.mark.parametrize(
    "make",
    [
        with_results(lambda o, r, e, t, i: (o, r, e, t, None)),
        with_results(reset=lambda o, i: (o, None)),
        with_results(lambda o, r, e, t, i: (o, r, e, t, {"is_success": None})),
        with_results(lambda o, r, e, t, i: [o, np.float32(r), np.bool_(e), np.bool_(t), i]),
    ],
)
def test_what_fit_accepts_is_accepted_everywhere(make: Any, tmp_path: Path) -> None:
    for use in uses(make, tmp_path).values():
        use()


def test_callback_names_itself() -> None:
    make = INVALID["four values"][0]
    with pytest.raises(InvalidStepError, match=r"^Evaluate: step must return"):
        small().fit(episodes=1, callbacks=[Evaluate(make, every=1, episodes=1)], verbose=0)


class Endless(Base):
    steps = 0

    def step(self, action: Any) -> Any:
        Endless.steps += 1
        if Endless.steps == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        return ZEROS, 1.0, False, False, {}

    interrupt_at = -1


def test_max_steps_cuts_episodes_off() -> None:
    result = small().evaluate(Endless, episodes=3, num_envs=2, max_steps=7)
    assert result["lengths"].tolist() == [7, 7, 7]
    assert result["returns"].tolist() == [7.0] * 3
    evaluate = Evaluate(Endless, every=1, episodes=2, max_steps=5)
    small().fit(episodes=1, callbacks=[evaluate], verbose=0)
    assert evaluate.results["length_mean"] == [5.0]
    for bad in (0, 2.5):
        with pytest.raises(ValueError, match="max_steps"):
            small().evaluate(Endless, max_steps=bad)
        with pytest.raises(ValueError, match="max_steps"):
            Evaluate(max_steps=bad)


def test_long_episode_is_a_warning_that_names_max_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "LONG_EPISODE", 20)
    for use in (
        lambda: small().evaluate(Endless, episodes=1, max_steps=30),
        lambda: small().play(Endless, max_steps=30),
    ):
        with pytest.warns(RuntimeWarning, match="max_steps") as caught:
            use()
        assert sum("max_steps" in str(each.message) for each in caught) == 1


def test_ctrl_c_ends_an_evaluation_of_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endless, "steps", 0)
    monkeypatch.setattr(Endless, "interrupt_at", 10)
    agent, ended = small(), []
    callbacks = [Evaluate(Endless, every=1, episodes=1), LambdaCallback(on_train_end=lambda logs: ended.append(1))]
    with pytest.raises(KeyboardInterrupt):
        agent.fit(episodes=9, callbacks=callbacks, verbose=0)
    assert Endless.steps == 10
    assert (agent.episodes, ended) == (1, [1])
    assert agent.fit(episodes=1, verbose=0).stop_reason


class Solved(Base):
    """Reports `is_success` only in episodes with an even seed."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.wins = seed % 2 == 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, _ = super().step(action)
        info = {"is_success": True} if truncated and self.wins else {}
        return observation, float(truncated and self.wins), terminated, truncated, info


def test_episodes_without_is_success_count_as_no_success() -> None:
    agent = small()
    result = agent.evaluate(Solved, episodes=20)
    assert 0 < result["reward_mean"] < 1
    assert result["success_rate"] == result["reward_mean"]
    played = agent.play(Solved, episodes=20)
    assert played["success_rate"] == played["reward_mean"]
    assert "success_rate" not in agent.evaluate(Base, episodes=2)


def test_later_evaluations_without_success_are_zero() -> None:
    evaluate = Evaluate(every=1, episodes=1)
    results = iter([{"reward_mean": 1.0, "success_rate": 1.0}, {"reward_mean": 0.0}])
    agent = small()
    agent.__dict__["evaluate"] = lambda **_: next(results)
    history = agent.fit(episodes=2, callbacks=[evaluate], verbose=0)
    assert evaluate.results["success_rate"] == [1.0, 0.0]
    assert history.history["evaluation_success_rate"] == [1.0, 0.0]
