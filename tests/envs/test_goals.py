"""Goal environments: their dynamics, ends, specs and checks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from noterl import envs
from noterl.envs import BitFlip, Reach2D

pytestmark = pytest.mark.backend_free

MAKERS = [Reach2D, functools.partial(BitFlip, 5)]


@pytest.mark.parametrize("make", MAKERS)
class TestEveryGoalEnvironment:
    def test_environment_passes_gymnasiums_check(self, make: Any) -> None:
        check_env(make(), skip_render_check=True)

    def test_environment_passes_check_and_is_restored_exactly(self, make: Any) -> None:
        report = envs.check(make())
        assert report.ok and report.resumable == "state", str(report)

    def test_spec_makes_lanes_and_evaluation_environments(self, make: Any) -> None:
        env = make()
        source = envs.resolve(env)
        others = [source.make(1), source.make_evaluation()]
        assert source.make(0) is env
        assert all(type(other) is type(env) and other.max_steps == env.max_steps for other in others)

    def test_computed_rewards_equal_those_of_steps(self, make: Any) -> None:
        env, steps_taken = make(), []
        for episode in range(30):
            env.reset(seed=episode)
            env.action_space.seed(episode)
            over = False
            while not over:
                observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
                goals = observation["achieved_goal"], observation["desired_goal"]
                assert reward == env.compute_reward(*goals, info) and type(reward) is float
                assert terminated is env.compute_terminated(*goals, info) is info["is_success"]
                steps_taken.append((*goals, reward, terminated, info))
                over = terminated or truncated
        achieved, desired, rewards, terminated, infos = (np.array(column) for column in zip(*steps_taken, strict=True))
        assert np.array_equal(env.compute_reward(achieved, desired, infos), rewards)
        assert np.array_equal(env.compute_terminated(achieved, desired, infos), terminated)

    def test_observations_do_not_change_later(self, make: Any) -> None:
        env = make()
        first, _ = env.reset(seed=0)
        kept = {name: part.copy() for name, part in first.items()}
        for part in env.step(env.action_space.sample())[0].values():
            part[:] = 0
        assert all(np.array_equal(first[name], kept[name]) for name in kept)
        assert np.array_equal(env.goal, kept["desired_goal"])

    def test_environment_runs_in_a_vector_environment(self, make: Any) -> None:
        vector = SyncVectorEnv([make] * 2)
        observations, _ = vector.reset(seed=0)
        assert {name: len(part) for name, part in observations.items()} == dict.fromkeys(
            ("observation", "achieved_goal", "desired_goal"), 2
        )
        vector.close()


class TestReach2D:
    def test_start_is_the_origin_and_goals_are_distant(self) -> None:
        env = Reach2D()
        first = [env.reset(seed=seed)[0] for seed in range(200)]
        goals = np.array([observation["desired_goal"] for observation in first])
        assert goals.min() >= 3.5 and goals.max() <= 4.5 and goals.min() < 3.55 and goals.max() > 4.45
        assert not any(observation["observation"].any() for observation in first)

    def test_actions_are_clipped_and_edges_stop_the_point(self) -> None:
        env = Reach2D()
        env.reset(seed=0)
        assert env.step(np.array([-1.0, 7.0], np.float32))[0]["observation"].tolist() == [0.0, 1.0]
        for _ in range(8):
            observation = env.step(np.array([0.25, 1.0], np.float32))[0]
        assert observation["achieved_goal"].tolist() == [2.0, 5.0]

    def test_goal_is_reached_within_the_threshold(self) -> None:
        env, goal = Reach2D(), np.array([4.0, 4.0])
        near, far = np.array([4.149, 4.0]), np.array([4.0, 4.151])
        assert env.compute_reward(np.array([near, far]), np.array([goal, goal]), {}).tolist() == [0.0, -1.0]

    def test_reached_goal_terminates_and_fifty_steps_truncate(self) -> None:
        env = Reach2D()
        goal = env.reset(seed=3)[0]["desired_goal"]
        for _ in range(4):
            result = env.step(goal / 4)
        assert result[1:4] == (0.0, True, False) and result[4]["is_success"]
        env.reset()
        results = [env.step(np.zeros(2, np.float32))[1:4] for _ in range(50)]
        assert results == [(-1.0, False, False)] * 49 + [(-1.0, False, True)]

    @pytest.mark.parametrize("steps", [0, True, 2.5])
    def test_max_steps_is_checked(self, steps: Any) -> None:
        with pytest.raises(ValueError, match=rf"max_steps must .*got {steps}"):
            Reach2D(max_steps=steps)


class TestBitFlip:
    def test_action_flips_its_bit_and_the_goal_ends_the_episode(self) -> None:
        env = BitFlip(6)
        observation, _ = env.reset(seed=1)
        wrong = np.flatnonzero(observation["observation"] != observation["desired_goal"])
        assert len(wrong) > 1
        results = [env.step(int(bit)) for bit in wrong]
        assert [result[1:4] for result in results] == [(-1.0, False, False)] * (len(wrong) - 1) + [(0.0, True, False)]
        assert np.array_equal(results[-1][0]["achieved_goal"], observation["desired_goal"])

    def test_episode_is_truncated_after_as_many_steps_as_bits(self) -> None:
        env = BitFlip(3)
        env.reset(seed=2)
        env.state = 1 - env.goal
        assert [env.step(0)[3] for _ in range(3)] == [False, False, True]

    def test_starts_and_goals_are_uniform(self) -> None:
        env = BitFlip(8)
        first = [env.reset(seed=seed)[0] for seed in range(400)]
        for name in ("observation", "desired_goal"):
            share = np.mean([observation[name] for observation in first], 0)
            assert (abs(share - 0.5) < 0.1).all()

    @pytest.mark.parametrize("bits", [0, True, "8"])
    def test_n_is_checked(self, bits: Any) -> None:
        with pytest.raises(ValueError, match="n must be a positive int"):
            BitFlip(bits)
