"""Makers of vector environments, and `fit(vectorize=True)`."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import noterl
from noterl.collect import ScalarLanes, VectorLanes
from noterl.envs import resolve
from noterl.envs.vectorized import RegisteredVector
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("torch")


def small(env: Any = "CartPole-v1") -> noterl.DQN:
    agent = noterl.DQN(env, hidden=(8,), seed=3)
    agent.compile(replay=noterl.Replay(500), learning_starts=20, update_every=20, batch_size=8, jit_compile=False)
    return agent


def fit(agent: noterl.Agent, **arguments: Any) -> noterl.History:
    """Train; that a budget ends within a step of the lanes is no reason to warn, as the user has chosen `num_envs`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return agent.fit(verbose=0, **arguments)


def heavy() -> Any:
    env: Any = gymnasium.make("CartPole-v1")
    env.unwrapped.gravity = -50.0
    return env


class TestFit:
    def test_lanes_are_those_of_the_native_vector_environment(self) -> None:
        agent = small()
        fit(agent, steps=64, num_envs=16, vectorize=True)
        lanes = agent._parts.session.lanes
        assert isinstance(lanes, VectorLanes) and lanes.num_envs == 16
        assert type(lanes._env).__name__ == "CartPoleVectorEnv"
        fit(agent, steps=64, vectorize=True)
        assert agent._parts.session.lanes is lanes and agent.steps == 128
        fit(agent, steps=64)
        assert isinstance(agent._parts.session.lanes, ScalarLanes)
        fit(agent, steps=10, num_envs=3, vectorize=True)
        assert agent._parts.session.lanes.num_envs == 3
        assert agent.evaluate(episodes=2)["returns"].shape == (2,)
        agent.close()

    def test_episodes_have_the_time_limit_of_the_id(self) -> None:
        gymnasium.register(
            "Short-v0",
            entry_point="gymnasium.envs.classic_control:CartPoleEnv",
            vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
            max_episode_steps=5,
        )
        try:
            history = fit(small("Short-v0"), steps=60, num_envs=4, vectorize=True)
        finally:
            gymnasium.registry.pop("Short-v0")
        assert history.history["length"] == [5] * 12

    def test_resumed_run_equals_an_uninterrupted_one(self, tmp_path: Any) -> None:
        whole, half = small(), small()
        for agent in (whole, half):
            fit(agent, steps=64, num_envs=8, vectorize=True)  # no episode of CartPole is that short
        fit(whole, steps=96, vectorize=True)
        half.save(tmp_path / "half.noterl")
        loaded = noterl.load(tmp_path / "half.noterl")
        fit(loaded, steps=96, vectorize=True)
        assert_same_state(loaded, whole)

    @pytest.mark.parametrize("env", [heavy, heavy()], ids=["factory", "object"])
    def test_changes_of_the_users_environment_warn(self, env: Any) -> None:
        agent = small(env)
        with pytest.warns(UserWarning, match=r"gravity=-50.0.*vectorize"):
            agent.fit(steps=8, num_envs=2, vectorize=True, verbose=0)
        fit(agent, steps=40, vectorize=True)  # warns once

    @pytest.mark.parametrize(
        ("env", "arguments"),
        [
            ("MountainCar-v0", {}),
            (lambda: gymnasium.make("CartPole-v1").unwrapped.__class__(), {}),
            ("CartPole-v1", {"workers": 2}),
            ("CartPole-v1", {"vectorize": 1}),
            (lambda: gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), 2), {}),
        ],
    )
    def test_environment_without_a_vector_environment_raises(self, env: Any, arguments: dict[str, Any]) -> None:
        agent = small(env)
        with pytest.raises(ValueError, match=r"^vectorize must"):
            agent.fit(steps=10, **{"num_envs": 2, "vectorize": True, **arguments})
        assert agent.steps == 0
        agent.close()


class TestMakers:
    def test_uncompiled_vector_environments_of_gymnasium_are_refused(self) -> None:
        functional = [each for name, each in gymnasium.registry.items() if name.startswith(("phys2d/", "tabular/"))]
        ids = [each.id for each in functional if each.vector_entry_point is not None]
        assert "phys2d/CartPole-v1" in ids
        for name in ids:
            with pytest.raises(ValueError, match="without compilation"):
                RegisteredVector(name)

    def test_unknown_id_raises(self) -> None:
        with pytest.raises(ValueError, match="CartPoll"):
            RegisteredVector("CartPoll-v1")

    def test_vector_environment_with_other_spaces_raises(self) -> None:
        source = resolve("CartPole-v1").vectorized()
        source.maker = RegisteredVector(
            EnvSpec("Other-v0", entry_point=make_other, vector_entry_point=make_other, max_episode_steps=9)
        )
        with pytest.raises(ValueError, match="other spaces"):
            source.open_vector(2)

    def test_a_maker_of_your_own(self) -> None:
        class Mine(noterl.envs.VectorMaker):
            def make_vector(self, num_envs: int) -> Any:
                return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")

            def make_single(self, render_mode: str | None = None) -> Any:
                return gymnasium.make("CartPole-v1", render_mode=render_mode)

        agent = small(Mine())
        fit(agent, steps=30, num_envs=2)
        assert isinstance(agent._parts.session.lanes, VectorLanes)
        assert agent.evaluate(episodes=1)["lengths"].min() > 0
        with pytest.raises(ValueError, match=r"workers must be 0 for Mine\(\)"):
            agent.fit(steps=10, workers=1, verbose=0)
        agent.close()


def make_other(num_envs: int = 1, max_episode_steps: int = 9) -> Any:
    env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    env.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    return env
