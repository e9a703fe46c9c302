"""Masks in `observation["action_mask"]` and in `action_masks()` are honoured as those in `info` are."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import noterl
from tests.support.doubles import JoinedFinals, TogetherVectorEnv

pytestmark = pytest.mark.backends("torch")


class Masked(gymnasium.Env):
    """Asserts that actions are legal; two of five are, until the end, where none is."""

    def __init__(self, where: str, sizes: Any = 5) -> None:
        self.where, self.size = where, int(np.sum(sizes))
        self.action_space = spaces.Discrete(5) if sizes == 5 else spaces.MultiDiscrete(sizes)
        seen = spaces.Box(0, 1, (2,), np.float32)
        mask = spaces.Box(0, 1, (self.size,), np.int8)
        self.observation_space = spaces.Dict(observation=seen, action_mask=mask) if where == "observation" else seen

    def action_masks_now(self) -> Any:
        return self.mask

    def __getattr__(self, name: str) -> Any:
        if name == "action_masks" and self.__dict__.get("where") == "method":
            return self.action_masks_now
        raise AttributeError(name)

    def show(self, over: bool = False) -> Any:
        self.mask = np.zeros(self.size, bool)
        if not over:
            parts = np.split(np.arange(self.size), np.cumsum(getattr(self.action_space, "nvec", [5]))[:-1])
            for part in parts:
                self.mask[self.np_random.choice(part, size=max(1, len(part) // 2), replace=False)] = True
        seen = np.ones(2, np.float32)
        return {"observation": seen, "action_mask": self.mask.astype(np.int8)} if self.where == "observation" else seen

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.show(), {}

    def step(self, action: Any) -> Any:
        for place in np.cumsum([0, *getattr(self.action_space, "nvec", [])[:-1]]) + action:
            assert self.mask[int(place)], f"illegal action {action}"
        self.steps += 1
        return self.show(self.steps == 5), 1.0, self.steps == 5, False, {}


class InObservation(Masked):
    def __init__(self) -> None:
        super().__init__("observation")


class ByMethod(Masked):
    def __init__(self) -> None:
        super().__init__("method")


def agent_of(env: Any) -> noterl.Agent:
    return noterl.PPO(env, hidden=(4,), rollout_steps=16, epochs=1, seed=1)


@pytest.mark.parametrize("sizes", [5, [2, 3]])
@pytest.mark.parametrize("where", ["observation", "method"])
def test_they_are_honoured(where: str, sizes: Any) -> None:
    make = lambda: Masked(where, sizes)  # noqa: E731
    agent = agent_of(make)
    agent.fit(steps=64, num_envs=2, verbose=0)
    agent.evaluate(episodes=3, num_envs=2)
    agent.evaluate(make, episodes=2, deterministic=False)
    agent.play()
    noterl.Dataset.record(agent, episodes=2)
    assert noterl.envs.check(make).ok


def test_they_are_honoured_by_a_replay_agent_in_workers() -> None:
    agent = noterl.DQN(ByMethod, hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(100), learning_starts=20, batch_size=8)
    agent.fit(steps=60, num_envs=2, workers=2, verbose=0)
    assert (
        not agent.replay.gather(agent.replay.sample(1, 8, generator=np.random.default_rng(0)), gamma=0.9)
        .extra["action_mask"]
        .all()
    )


def test_they_are_honoured_beside_the_previous_step() -> None:
    agent = agent_of(lambda: noterl.envs.PreviousStep(InObservation()))
    agent.fit(steps=64, num_envs=2, verbose=0)
    agent.evaluate(episodes=3, deterministic=False)


@pytest.mark.parametrize("kind", [InObservation, ByMethod])
def test_object_and_its_wrappers_are_read(kind: Any) -> None:
    agent_of(gymnasium.wrappers.TimeLimit(kind(), 3)).fit(steps=40, verbose=0)
    agent_of(SyncVectorEnv([kind] * 2)).fit(steps=40, verbose=0)
    assert noterl.envs.check(SyncVectorEnv([kind] * 2)).ok


def test_final_observations_may_be_one_dict_of_arrays() -> None:
    agent_of(JoinedFinals([InObservation] * 2, autoreset_mode="SameStep")).fit(steps=60, verbose=0)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_observations_of_a_vector_environment_are_read(mode: AutoresetMode) -> None:
    agent_of(TogetherVectorEnv([InObservation] * 2, autoreset_mode=mode)).fit(steps=60, verbose=0)


def test_parts_of_another_shape_are_no_masks() -> None:
    class Other(InObservation):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Dict(action_mask=spaces.Box(0, 1, (3,)))

    source = noterl.envs.resolve(Other)
    assert type(source.make(0)) is Other
    source.close()


def test_copy_of_an_environment_reads_its_own_masks() -> None:
    """A search copies environments that cannot be restored otherwise."""

    class Counted(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(3)
        count = 0

        def action_masks(self) -> Any:
            return [self.count == number for number in range(3)]

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            self.count += 1
            return np.zeros(1, np.float32), 0.0, False, False, {}

    env = noterl.envs.resolve(Counted).make(0)
    env.reset(seed=1)
    copied = copy.deepcopy(env)
    masks = [each.step(0)[-1]["action_mask"] for each in (copied, copied, env)]
    assert np.argmax(masks, axis=1).tolist() == [1, 2, 1]
