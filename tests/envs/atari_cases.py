"""Atari games: their frames are those of gymnasium's wrappers, and lanes return the right transitions.

`test_atari.py` runs this file in a process of its own.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from noterl.collect import open_lanes
from noterl.envs import Atari, check, from_description, resolve
from noterl.envs.rewards import GAME_REWARD
from noterl.random import Generators
from noterl.replay import Replay
from noterl.replay.replay import bytes_needed
from noterl.types import Transition

pytestmark = pytest.mark.backend_free
gymnasium.register_envs(ale_py)


def actions_of(count: int, seed: int, steps: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(count, size=steps)


def wrapped(env_id: str) -> gymnasium.Env:
    """Return a game in gymnasium's own wrappers."""
    env = gymnasium.make(env_id, frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(AtariPreprocessing(env, noop_max=0, frame_skip=4), 4)


def collect(env: Any, num_envs: int, steps: int, choices: int) -> list[list[Transition]]:
    """Return the transitions of each lane. The n-th action of a lane does not depend on the other lanes."""
    source = resolve(env)
    lanes = open_lanes(source, num_envs, Generators(3))
    tables = [actions_of(choices, lane, 2 * steps) for lane in range(num_envs)]
    found: list[list[Transition]] = [[] for _ in range(num_envs)]
    number = 0
    for step in range(steps):
        for lane in lanes.idle():
            lanes.reset(lane, number, step)
            number += 1
        lanes.begin_round(np.array([tables[lane][len(found[lane])] for lane in range(num_envs)]))
        for transition in lanes.tick(step):
            found[transition.lane].append(transition)
            if transition.terminated or transition.truncated:
                lanes.ledger.finish(transition.lane)
    source.close()
    return found


class TestFrames:
    def test_vector_environment_equals_the_wrappers_of_gymnasium(self) -> None:
        vector, env = Atari("Pong", noop_max=0, fire_on_reset=False).make_vector(2), wrapped("ALE/Pong-v5")
        observations, _ = vector.reset(seed=0)
        expected, _ = env.reset(seed=0)
        for action in actions_of(6, 0, 400):
            assert np.array_equal(observations[0], expected) and np.array_equal(observations[1], expected)
            observations, rewards, *_, info = vector.step(np.array([action, action]))
            expected, reward, *_ = env.step(action)
            assert info["unclipped_reward"].tolist() == [reward, reward] and rewards[0] == np.sign(reward)
        vector.close()

    @pytest.mark.parametrize(
        ("game", "choices", "options"),
        [
            ("Breakout", 4, {}),
            ("MsPacman", 9, {"size": 48, "stack": 2, "skip": 3}),
            ("Breakout", 4, {"grayscale": False}),
            ("SpaceInvaders", 6, {"max_pool": False, "skip": 2}),
            ("Pong", 18, {"full_action_space": True, "skip": 1, "stack": 1}),
        ],
    )
    def test_training_and_evaluation_have_the_same_frames(self, game: str, choices: int, options: Any) -> None:
        settings = Atari(game, noop_max=0, **options)
        vector, env = settings.make_vector(1), settings.make_single()
        assert vector.single_observation_space == env.observation_space
        assert vector.single_action_space == env.action_space == gymnasium.spaces.Discrete(choices)
        observations, _ = vector.reset(seed=0)
        expected, _ = env.reset(seed=0)
        games = 0
        for action in actions_of(choices, 1, 420):
            assert np.array_equal(observations[0], expected)
            observations, _, terminated, truncated, info = vector.step(np.array([action]))
            expected, reward, over, cut, _ = env.step(action)
            assert (bool(terminated[0]), bool(truncated[0]), info["unclipped_reward"][0]) == (over, cut, reward)
            if over:
                assert np.array_equal(info["final_obs"][0], expected)
                expected, _ = env.reset()
                games += 1
        assert games > 0 or game != "Breakout"
        vector.close()

    @pytest.mark.parametrize("seed", range(3))
    def test_games_start_with_fire_and_some_frames_without_an_action(self, seed: int) -> None:
        vector = Atari("Breakout", noop_max=9).make_vector(1)
        first, _ = vector.reset(seed=seed)
        assert np.array_equal(vector.reset(seed=seed)[0], first)
        env = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
        starts = AtariPreprocessing(env, noop_max=0, frame_skip=1)
        starts.reset(seed=0)
        frames = [starts.step(action)[0] for action in [1] + [0] * 9]  # 1 is FIRE
        assert any(np.array_equal(first[0, -1], frame) for frame in frames)
        assert all(np.array_equal(first[0, 0], frame) for frame in first[0])
        vector.close()

    def test_games_differ_with_the_seed_and_the_lane(self) -> None:
        vector = Atari("Breakout").make_vector(6)
        observations, _ = vector.reset(seed=5)
        again, _ = Atari("Breakout").make_vector(2).reset(seed=6)
        assert np.array_equal(observations[1:3], again)
        assert len({each.tobytes() for each in observations}) > 1

    def test_time_limit_truncates(self) -> None:
        settings = Atari("Pong", max_frames=40, noop_max=0)
        vector, env = settings.make_vector(1), settings.make_single()
        vector.reset(seed=0)
        env.reset(seed=0)
        ends = [(vector.step(np.array([0]))[2:4], env.step(0)[2:4]) for _ in range(10)]
        assert [(bool(a[0]), bool(b[0])) for (a, b), _ in ends] == [(False, False)] * 9 + [(False, True)]
        assert [single for _, single in ends] == [(False, False)] * 9 + [(False, True)]

    def test_time_limit_after_a_won_life_is_no_lost_life(self) -> None:
        vector = Atari("Breakout", max_frames=40, noop_max=0).make_vector(1)
        vector.reset(seed=0)
        vector._lives[:] = 9  # as after a bonus
        for _ in range(9):
            vector.step(np.array([0]))
            vector._lives[:] = 9
        *_, truncated, info = vector.step(np.array([0]))
        assert truncated[0] and vector._game_rewards[0] == 0
        assert info["final_info"][f"_{GAME_REWARD}"][0]
        vector.close()


class TestLanes:
    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
    def test_transitions_are_those_of_ale_py_in_each_mode(self, mode: AutoresetMode) -> None:
        options = {"noop_max": 0, "repeat_action_probability": 0.0}
        ours = collect(Atari("Breakout", stack=1, **options), 2, 300, 4)
        raw = AtariVectorEnv("breakout", 2, stack_num=1, autoreset_mode=mode, **options)
        theirs = collect(raw, 2, 300, 4)
        assert [len(lane) for lane in ours] == [300, 300]
        for lane in range(2):
            assert sum(each.terminated for each in theirs[lane]) > 0
            for mine, other in zip(ours[lane], theirs[lane], strict=False):
                assert np.array_equal(mine.observation, other.observation)
                assert np.array_equal(mine.next_observation, other.next_observation)
                assert (mine.reward, mine.terminated, mine.truncated) == (
                    other.reward,
                    other.terminated,
                    other.truncated,
                )

    def test_autoreset_mode_of_other_vector_environments_stays(self) -> None:
        other = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
        before = dict(gymnasium.vector.VectorEnv.metadata), dict(other.metadata)
        Atari("Pong").make_vector(1)
        assert (gymnasium.vector.VectorEnv.metadata, other.metadata) == before

    def test_memory_rebuilds_the_stacks_that_lanes_return(self) -> None:
        settings = Atari("Breakout", episodic_life=True)
        (lane,) = collect(settings, 1, 300, 4)
        replay, source = Replay(400, frame_stack=4), resolve(settings)
        replay.build(source.observation_space, source.action_space)
        for each in lane:
            replay.add(*each[:7])
        storage = replay._storage
        rows = np.arange(storage.length)
        assert storage.sampleable(rows).all()
        assert sum(each.terminated for each in lane) >= 5
        assert np.array_equal(storage.observations(rows), [each.observation for each in lane])
        assert np.array_equal(storage.next_observations(rows), [each.next_observation for each in lane])

    def test_a_million_transitions_need_at_most_7_5_gigabytes(self) -> None:
        source = resolve(Atari("Pong"))
        spaces = source.observation_space, source.action_space
        assert spaces[0].shape == (4, 84, 84)
        assert 7e9 < bytes_needed(1_000_000, *spaces, frame_stack=4) <= 7.5e9
        replay = Replay(1_000, frame_stack=4)
        replay.build(*spaces)
        assert replay.nbytes * 1_000 <= 7.5e9


class TestLives:
    def test_an_episode_ends_with_a_life_and_the_game_goes_on(self) -> None:
        settings = Atari("Breakout", episodic_life=True, noop_max=0)
        vector, env = settings.make_vector(1), settings.make_single()
        vector.reset(seed=0)
        expected, _ = env.reset(seed=0)
        lost, total = [], 0.0
        for action in actions_of(4, 1, 420):
            observations, _, terminated, _, info = vector.step(np.array([action]))
            expected, reward, over, _, _ = env.step(action)
            total += float(reward)
            if not terminated[0]:
                assert np.array_equal(observations[0, -1], expected[-1])
                continue
            lost.append((int(info["lives"][0]), over))
            assert np.array_equal(info["final_obs"][0, -1], expected[-1])
            final_info = info["final_info"]
            assert final_info["_game_reward"].tolist() == [over]
            if over:
                assert final_info["game_reward"][0] == total > 0
                expected, total = env.reset()[0], 0.0
            assert np.array_equal(observations[0], np.broadcast_to(expected[-1:], (4, 84, 84)))
        assert lost[:6] == [(4, False), (3, False), (2, False), (1, False), (5, True), (4, False)]

    def test_evaluation_plays_whole_games_with_their_rewards(self) -> None:
        env = Atari("Breakout", episodic_life=True).make_single()
        env.reset(seed=0)
        lives = []
        for action in actions_of(4, 1, 420):
            over = env.step(action)[2]
            lives.append(env.unwrapped.ale.lives())
            assert over == (lives[-1] == 0)
            if over:
                break
        assert set(lives) == {5, 4, 3, 2, 1, 0}


class TestSettings:
    def test_evaluation_renders_the_game(self) -> None:
        env = Atari("Pong").make_single("rgb_array")
        env.reset(seed=0)
        assert env.render().shape == (210, 160, 3)

    def test_description_makes_the_same_game_again(self) -> None:
        source = resolve(Atari("Pong", stack=2))
        again = from_description(source.describe())
        assert again.maker.get_config() == {"game": "Pong", "stack": 2}
        assert again.make_evaluation().observation_space == source.observation_space
        assert repr(again) == "Atari('Pong', stack=2)"

    def test_names(self) -> None:
        for name in ("Pong", "pong", "ALE/Pong-v5"):
            assert Atari(name).rom == "pong"
        assert Atari("SpaceInvaders").rom == Atari("space_invaders").rom == "space_invaders"
        assert resolve("atari:Pong").maker.rom == "pong"

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("game", {"game": "Pnog"}),
            ("game", {"game": 3}),
            ("stack", {"stack": 0}),
            ("skip", {"skip": 1.5}),
            ("size", {"size": -1}),
            ("noop_max", {"noop_max": -1}),
            ("threads", {"threads": True}),
            ("episodic_life", {"episodic_life": 1}),
            ("repeat_action_probability", {"repeat_action_probability": 2}),
        ],
    )
    def test_bad_arguments_raise(self, name: str, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"^{name} must"):
            Atari(**{"game": "Pong", **options})

    def test_check_finds_no_fault(self) -> None:
        report = check(Atari("Pong"), steps=300)
        assert report.ok, report
