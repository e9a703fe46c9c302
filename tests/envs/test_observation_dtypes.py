"""Observations whose values the dtype of their space cannot represent."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import noterl
from noterl.callbacks import Evaluate

pytestmark = pytest.mark.backends("torch")

BYTES = spaces.Box(0, 255, (4,), np.uint8)
LOST: dict[str, tuple[Any, Any]] = {
    "floats in bytes": (BYTES, np.full(4, 0.5)),
    "300 in bytes": (BYTES, np.full(4, 300)),
    "-1 in bytes": (BYTES, np.full(4, -1)),
    "NaN in int8": (spaces.Box(-10, 10, (4,), np.int8), np.full(4, np.nan)),
    "floats in int32": (spaces.Box(-10, 10, (4,), np.int32), np.full(4, 0.5)),
    "Discrete": (spaces.Discrete(4), 1.5),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 4]), np.array([1.5, 0.5])),
    "MultiBinary": (spaces.MultiBinary(4), np.full(4, 0.5)),
    "Dict": (spaces.Dict({"image": BYTES, "speed": spaces.Box(0, 1, (1,))}), {"image": np.full(4, 0.5), "speed": [0]}),
    "float16": (spaces.Box(-np.inf, np.inf, (2,), np.float16), np.full(2, 1e5)),
}


class Shows(gymnasium.Env):
    """Episodes of 20 steps that show one observation; the first observation is a valid one if `late`."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, observation: Any, late: int = 0) -> None:
        self.observation_space, self.observation, self.late = space, observation, late
        self.count = 0

    def show(self) -> Any:
        self.count += 1
        valid = {
            name: np.zeros(part.shape, part.dtype) for name, part in getattr(self.observation_space, "items", dict)()
        }
        if self.count <= self.late:
            return valid or np.zeros(self.observation_space.shape, self.observation_space.dtype)[()]
        return self.observation

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.show(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.show(), 1.0, False, self.steps == 20, {}


class ShowsTogether(VectorEnv):
    """Two such environments that are stepped together, without a conversion."""

    def __init__(self, space: Any, observation: Any, late: int = 0) -> None:
        self.num_envs, self.metadata = 2, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = space, spaces.Discrete(2)
        self.observation_space, self.action_space = (batch_space(part, 2) for part in (space, spaces.Discrete(2)))
        self.inner = Shows(space, observation, late)

    def show(self) -> Any:
        shown = self.inner.show()
        return (
            {name: np.stack([part] * 2) for name, part in shown.items()}
            if isinstance(shown, dict)
            else np.stack([shown] * 2)
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.show(), {}

    def step(self, actions: Any) -> Any:
        return self.show(), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}


def agent_of(env: Any) -> noterl.Agent:
    agent = noterl.DQN(env, hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(100), learning_starts=1000)
    return agent


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("kind", [Shows, ShowsTogether])
@pytest.mark.parametrize("name", LOST)
def test_fit_refuses_a_value_that_the_dtype_cannot_represent(name: str, kind: Any, late: int) -> None:
    agent = agent_of(kind(*LOST[name], late))
    with pytest.raises(ValueError, match=r"observation.* (must fit|is not finite)"):
        agent.fit(steps=12, verbose=0)


FLOATS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
NOT_NUMBERS: dict[str, tuple[Any, Any]] = {
    "NaN": (FLOATS, np.array([0.0, np.nan])),
    "NaN of float32": (FLOATS, np.array([[0.0, 1.0], [np.inf, 0.0]], np.float32)),
    "beyond float32": (spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([0.0, 1e39])),
    "complex": (FLOATS, np.full(2, 1j)),
    "text": (BYTES, np.full(4, "a")),
    "part of a Dict": (spaces.Dict({"speed": FLOATS, "gear": spaces.Discrete(3)}), {"speed": [0, np.nan], "gear": 1}),
    "not in a Discrete": (spaces.Discrete(4), 4),
    "below a Discrete": (spaces.Discrete(4), np.array([1, -1])),
}


@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_act_refuses_what_fit_refuses(name: str) -> None:
    space, observation = NOT_NUMBERS[name]
    with pytest.raises(ValueError, match=r"^observation.* must"):
        agent_of((space, spaces.Discrete(2))).act(observation)


@pytest.mark.parametrize("name", LOST)
def test_act_check_and_evaluations_refuse_it_too(name: str) -> None:
    space, observation = LOST[name]
    agent = agent_of((space, spaces.Discrete(2)))
    with pytest.raises(ValueError, match=r"observation.* must fit"):
        agent.act(observation)
    make = lambda: Shows(space, observation)  # noqa: E731
    report = noterl.envs.check(make)
    assert not report.ok
    assert "must fit" in report.errors[0]
    for use in (
        lambda: agent.evaluate(make, episodes=1),
        lambda: agent.play(make),
        lambda: noterl.Dataset.record(agent, make, episodes=1),
    ):
        with pytest.raises(ValueError, match=r"observation.* must fit"):
            use()


def test_callback_evaluate_refuses_it() -> None:
    evaluate = Evaluate(lambda: Shows(BYTES, np.full(4, 0.5)), every=1, episodes=1)
    with pytest.raises(ValueError, match=r"observation.* must fit"):
        agent_of(Shows(BYTES, np.zeros(4, np.uint8))).fit(steps=30, callbacks=[evaluate], verbose=0)


def test_workers_refuse_it() -> None:
    agent = agent_of(CameraInWorker)
    with pytest.raises(Exception, match="must fit uint8"):
        agent.fit(steps=20, num_envs=2, workers=2, verbose=0)


class CameraInWorker(Shows):
    def __init__(self) -> None:
        super().__init__(BYTES, np.full(4, 0.5))


@pytest.mark.parametrize("kind", [Shows, ShowsTogether])
def test_integers_that_were_computed_as_floats_are_rounded(kind: Any) -> None:
    space = spaces.Box(0, 255, (2,), np.uint8)
    agent = agent_of(kind(space, np.array([2.9999999, 3.0000001])))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.fit(steps=12, verbose=0)
    assert len([each for each in caught if "rounded" in str(each.message)]) == 1
    batch = agent.replay.gather(agent.replay.sample(1, 8, generator=np.random.default_rng(0)), gamma=0.9)
    assert (batch.observation == 3).all()
    assert (batch.next_observation == 3).all()
    assert agent.act(np.array([2.9999999, 3.0])) == agent.act(np.array([3, 3], np.uint8))


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (BYTES, np.arange(4)),
        (BYTES, np.arange(4.0)),
        (spaces.Box(-10, 10, (4,), np.float32), np.arange(4)),
        (spaces.Box(-10, 10, (4,), np.float32), np.full(4, 0.1)),
        (spaces.Discrete(4), np.float64(2.0)),
        (spaces.MultiBinary(2), [True, False]),
    ],
)
def test_values_that_fit_are_converted(space: Any, observation: Any, recwarn: Any) -> None:
    agent = agent_of(Shows(space, observation))
    agent.fit(steps=12, verbose=0)
    assert not [each for each in recwarn if "observation" in str(each.message)]


def test_values_outside_of_the_bounds_are_one_warning() -> None:
    agent = agent_of(Shows(spaces.Box(0, 10, (2,), np.uint8), np.full(2, 20)))
    with pytest.warns(RuntimeWarning, match="outside of the bounds") as caught:
        agent.fit(steps=30, verbose=0)
    assert len([each for each in caught if "outside" in str(each.message)]) == 1


def test_later_observations_are_examined_at_intervals() -> None:
    agent = agent_of(Shows(BYTES, np.full(4, 0.5), late=1100))
    with pytest.raises(ValueError, match="must fit uint8"):
        agent.fit(steps=1300, verbose=0)
    assert 1000 < agent.steps < 1250


def test_agents_of_a_team_refuse_it() -> None:
    team = noterl.envs.multi_agent.team.Team(["a", "b"], [spaces.Discrete(3)] * 2, [spaces.Discrete(2)] * 2)
    with pytest.raises(ValueError, match="agent 'b' must fit"):
        team.write_observations({1: 1.5}, np.zeros(6, np.float32))
    with pytest.raises(ValueError, match="agent 'a' must fit"):
        team.joined_observations((1.5, 1))
