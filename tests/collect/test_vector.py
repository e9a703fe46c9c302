"""Vector lanes store the transitions that scalar lanes store, in all autoreset modes; errors name invalid values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TransformReward
from hypothesis import given, settings
from hypothesis import strategies as st

import noterl
from noterl.callbacks import LambdaCallback
from noterl.envs import ClipRewards
from noterl.envs.ends import InvalidStepError
from noterl.policies import GreedyQPolicy
from tests.support.doubles import BranchingEnv, CountingEnv, NotANumberEnv, RandomWalkEnv, TogetherVectorEnv
from tests.support.parts import actor_of
from tests.support.replay_invariants import check_replay
from tests.support.tape import Tape, TapeAgent

pytestmark = pytest.mark.backends("torch")

MODES = pytest.mark.parametrize("mode", AutoresetMode)

Factories = list[Callable[[], gymnasium.Env]]


def build(env: Any, act: Callable[[np.ndarray], np.ndarray] | None = None) -> TapeAgent:
    """Return an agent that acts by `act` from the first step on, and makes no updates."""
    agent = TapeAgent(env, tape=Tape())
    agent.compile(
        policy=GreedyQPolicy(),
        replay=noterl.Replay(1000),
        batch_size=1,
        learning_starts=0,
        update_every=10**9,
    )
    if act is not None:
        actor_of(agent).select = lambda observations, *_, **__: (act(observations), {})
    return agent


def vector_of(factories: Factories, mode: AutoresetMode) -> TogetherVectorEnv:
    return TogetherVectorEnv(factories, autoreset_mode=mode)


def factory_of(factories: Factories) -> Callable[[], gymnasium.Env]:
    """Return a factory whose environments are those of the factories, in order."""
    left = iter(factories)
    return lambda: next(left)()


def memories(agent: TapeAgent, num_envs: int) -> list[list[tuple]]:
    """Return the stored transitions of each lane, in order."""
    storage = agent.replay._storage
    rows = np.arange(storage.length)
    found: list[list[tuple]] = [[] for _ in range(num_envs)]
    for row, before, after in zip(rows, storage.observations(rows), storage.next_observations(rows), strict=True):
        found[storage.lane[row]].append(
            (
                before.tolist(),
                int(storage.action[row]),
                float(storage.reward[row]),
                after.tolist(),
                bool(storage.terminated[row]),
                bool(storage.truncated[row]),
            )
        )
    return found


def interrupted(agent: noterl.Agent, **arguments: Any) -> None:
    """Run a fit whose budget may end within a step of the vector environment."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the budget ended within a step", RuntimeWarning)
        agent.fit(**arguments, verbose=0)


class TestMemories:
    """The memory of a lane is the same, however the environments are stepped."""

    @MODES
    @pytest.mark.parametrize("kind", [TogetherVectorEnv, SyncVectorEnv])
    @settings(max_examples=15)
    @given(data=st.data())
    def test_any_episodes_equal_those_of_scalar_lanes(
        self, mode: AutoresetMode, kind: type[VectorEnv], data: st.DataObject
    ) -> None:
        num_envs = data.draw(st.integers(1, 5), "lanes")
        shape = st.tuples(st.integers(1, 9), st.integers(1, 6))
        shapes = data.draw(st.lists(shape, min_size=num_envs, max_size=num_envs), "goal and length of each lane")
        table = data.draw(st.lists(st.integers(0, 3), min_size=7, max_size=7), "actions")

        def act(observations: np.ndarray) -> np.ndarray:
            episode, step, _ = observations.astype(int).T
            return np.array(table)[(np.arange(len(observations)) + 3 * episode + step) % len(table)]

        factories: Factories = [lambda shape=shape: BranchingEnv(*shape) for shape in shapes]
        vector = build(kind(factories, autoreset_mode=mode), act)
        interrupted(vector, steps=40)
        scalar = build(factory_of(factories), act)
        scalar.fit(steps=40 * num_envs, num_envs=num_envs, verbose=0)
        check_replay(vector.replay)
        stored, expected = memories(vector, num_envs), memories(scalar, num_envs)
        assert sum(map(len, stored)) == 40
        for lane in range(num_envs):
            assert stored[lane] == expected[lane][: len(stored[lane])]
            assert len(stored[lane]) >= 40 // num_envs // 2  # where every episode is of one step, half are dead

    @MODES
    def test_termination_and_truncation_in_one_step_are_both_stored(self, mode: AutoresetMode) -> None:
        agent = build(vector_of([lambda: BranchingEnv(goal=2, length=2)] * 2, mode), lambda o: np.ones(len(o), int))
        agent.fit(steps=4, verbose=0)
        first, last = ([0.0, 0.0, 0.0], [0.0, 1.0, 1.0]), ([0.0, 1.0, 1.0], [0.0, 2.0, 2.0])
        assert (
            memories(agent, 2)
            == [[(first[0], 1, 101.0, first[1], False, False), (last[0], 1, 201.0, last[1], True, True)]] * 2
        )

    @MODES
    def test_episodes_are_numbered_in_the_order_of_their_starts(self, mode: AutoresetMode) -> None:
        events: list[tuple] = []
        hooks = LambdaCallback(
            on_episode_begin=lambda episode, logs: events.append(("begin", episode)),
            on_episode_end=lambda episode, logs: events.append((episode, logs["length"], logs["complete"])),
        )
        agent = build(
            vector_of([lambda: CountingEnv(2), lambda: CountingEnv(3)], mode), lambda o: np.zeros(len(o), int)
        )
        interrupted(agent, steps=7, callbacks=[hooks])
        begins = [entry for entry in events if entry[0] == "begin"]
        ends = [entry for entry in events if entry[0] != "begin"]
        assert begins == [("begin", 0), ("begin", 1), ("begin", 2), ("begin", 3)]
        assert ends == [(0, 2, True), (1, 3, True), (2, 2, True), (3, 0, False)]

    def test_every_stored_transition_is_one_that_cartpole_makes(self) -> None:
        env = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
        assert not isinstance(env, SyncVectorEnv)
        draws = np.random.default_rng(0)
        agent = build(env, lambda observations: draws.integers(2, size=len(observations)))
        interrupted(agent, steps=200)
        assert agent.episodes > 5
        model = gymnasium.make("CartPole-v1").unwrapped
        model.reset(seed=0)
        for lane in memories(agent, 3):
            for before, action, reward, after, terminated, truncated in lane:
                model.state, model.steps_beyond_terminated = tuple(before), None
                expected, _, over, _, _ = model.step(action)
                np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6)
                assert (reward, terminated, truncated) == (1.0, over, False)
        env.close()


class TestFits:
    @MODES
    def test_same_seed_gives_same_run(self, mode: AutoresetMode) -> None:
        def run(fits: list[dict[str, Any]]) -> list[list[tuple]]:
            make = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
            agent = build(vector_of([make] * 3, mode), lambda o: (o[:, 2] > 0).astype(int))
            for arguments in fits:
                interrupted(agent, steps=40, **arguments)
            return memories(agent, 3)

        assert run([{}]) == run([{}])
        assert run([{}, {}]) == run([{}, {}])
        twice = run([{"seed": 9}, {"seed": 9}])
        assert [len(lane) for lane in twice] != [0, 0, 0]
        assert run([{"seed": 9}])[0] == twice[0][: len(run([{"seed": 9}])[0])]

    @MODES
    def test_episodes_continue_in_the_next_fit(self, mode: AutoresetMode) -> None:
        agent = build(vector_of([lambda: CountingEnv(5)] * 2, mode), lambda o: np.zeros(len(o), int))
        agent.fit(steps=4, verbose=0)
        agent.fit(steps=4, verbose=0)
        check_replay(agent.replay)
        assert [[entry[0] for entry in lane] for lane in memories(agent, 2)] == [
            [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]
        ] * 2

    @MODES
    @pytest.mark.filterwarnings("ignore:the budget ended within a step:RuntimeWarning")
    def test_returns_are_those_of_unclipped_rewards(self, mode: AutoresetMode) -> None:
        """Lanes end together or one by one; in the last step, some modes put the info of a lane into another place."""
        make = lambda length: lambda: ClipRewards(TransformReward(CountingEnv(length), lambda reward: 5.0))  # noqa: E731
        for lengths in ((3, 3), (3, 4)):
            agent = build(vector_of(list(map(make, lengths)), mode), lambda o: np.zeros(len(o), int))
            logs = agent.fit(steps=40, verbose=0).history
            assert set(logs["length"]) == set(lengths)
            assert logs["reward"] == [5.0 * length for length in logs["length"]]

    @pytest.mark.parametrize("kind", [TogetherVectorEnv, SyncVectorEnv])
    def test_vector_environment_of_a_factory_is_created_once_for_several_fits(self, kind: type[VectorEnv]) -> None:
        created = []

        def factory() -> VectorEnv:
            created.append(kind([lambda: CountingEnv(3)] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
            return created[-1]

        agent = build(factory, lambda o: np.zeros(len(o), int))
        for arguments in ({}, {}, {"seed": 3}):
            agent.fit(steps=6, verbose=0, **arguments)
        assert agent.steps == 18
        assert len(created) == 1
        assert not created[0].closed
        agent.close()
        assert created[0].closed

    @pytest.mark.parametrize("kind", [TogetherVectorEnv, SyncVectorEnv])
    def test_vector_environment_of_the_user_stays_open(self, kind: type[VectorEnv]) -> None:
        env = kind([lambda: CountingEnv(3)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        agent = build(env, lambda o: np.zeros(len(o), int))
        agent.fit(steps=6, verbose=0)
        agent.close()
        assert not env.closed

    @pytest.mark.parametrize("kind", [TogetherVectorEnv, SyncVectorEnv])
    def test_num_envs_must_equal_that_of_the_vector_environment(self, kind: type[VectorEnv]) -> None:
        agent = build(kind([lambda: CountingEnv(3)] * 2))
        agent.fit(steps=4, num_envs=2, verbose=0)
        with pytest.raises(ValueError, match="num_envs is 3"):
            agent.fit(steps=4, num_envs=3, verbose=0)

    @pytest.mark.parametrize(
        ("claimed", "actual"), [("NextStep", AutoresetMode.SAME_STEP), ("SameStep", AutoresetMode.NEXT_STEP)]
    )
    def test_steps_that_contradict_the_autoreset_mode_raise(self, claimed: str, actual: AutoresetMode) -> None:
        env = vector_of([lambda: CountingEnv(3)] * 2, actual)
        env.metadata = {**env.metadata, "autoreset_mode": claimed}
        with pytest.raises(InvalidStepError, match=f"in the mode {claimed}"):
            build(env).fit(steps=40, verbose=0)

    def test_rewards_of_a_wrong_shape_raise(self) -> None:
        env = vector_of([lambda: CountingEnv(3)] * 2, AutoresetMode.SAME_STEP)
        step = env.step
        env.step = lambda actions: (step(actions)[0], np.zeros(3), *step(actions)[2:])
        with pytest.raises(InvalidStepError, match=r"rewards must be an array of shape \(2,\)"):
            build(env).fit(steps=4, verbose=0)

    @pytest.mark.parametrize("mode", [None, "sometimes"])
    def test_unknown_autoreset_mode_raises(self, mode: str | None) -> None:
        env = vector_of([lambda: CountingEnv(3)] * 2, AutoresetMode.SAME_STEP)
        env.metadata = {**env.metadata, "autoreset_mode": mode}
        with pytest.raises(ValueError, match=rf"autoreset_mode.*{mode}"):
            build(env).fit(steps=4, verbose=0)


class ResetsToNaN(CountingEnv):
    """Returns NaN at its second reset."""

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        observation, info = super().reset(seed=seed)
        return observation * (np.nan if self.episode == 1 else 1), info


class WrongShape(CountingEnv):
    """Returns observations of a wrong shape from the third step on."""

    def step(self, action):
        observation, *rest = super().step(action)
        return observation[: 1 if self.step_number >= 3 else 2], *rest


class SharedInfo(TogetherVectorEnv):
    """Also returns one value of all environments, which is not in gymnasium's layout."""

    def reset(self, **arguments):
        observations, info = super().reset(**arguments)
        return observations, {**info, "total": 0}

    def step(self, actions):
        *results, info = super().step(actions)
        return *results, {**info, "total": 7, "speed": np.arange(self.num_envs)}


class TestInfo:
    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
    def test_values_that_nobody_reads_may_have_any_layout(self, mode: AutoresetMode) -> None:
        agent = build(SharedInfo([lambda: CountingEnv(2)] * 2, autoreset_mode=mode))
        history = agent.fit(episodes=2, info={"speed": "max"}, verbose=0)
        assert history.history["speed"] == [0.0, 1.0]

    def test_value_of_all_environments_cannot_be_logged(self) -> None:
        agent = build(SharedInfo([lambda: CountingEnv(2)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP))
        with pytest.raises(ValueError, match=r"^env: info\['total'\] must"):
            agent.fit(episodes=2, info=("total",), verbose=0)


class TestInvalidValues:
    """The error names the environment, the step and the value; nothing invalid is stored."""

    @pytest.mark.parametrize("where", ["observation", "reward"])
    @pytest.mark.parametrize("num_envs", [1, 3])
    def test_scalar_lane_names_the_step_and_restarts(self, where: str, num_envs: int) -> None:
        last = num_envs - 1
        factories: Factories = [*[lambda: CountingEnv(5)] * last, lambda: NotANumberEnv(at=3, where=where)]
        agent = build(factory_of(factories), lambda o: np.zeros(len(o), int))
        message = rf"^{where} of environment {last} at step {3 * num_envs} is not finite: .*nan"
        with pytest.raises(InvalidStepError, match=message):
            agent.fit(steps=50, num_envs=num_envs, verbose=0)
        assert agent.steps == len(agent.replay) == 3 * num_envs - 1
        agent.fit(steps=10, verbose=0)
        check_replay(agent.replay)
        stored = memories(agent, num_envs)
        assert np.isfinite([entry[2] for lane in stored for entry in lane]).all()
        # The failed episode restarts.
        assert [entry[0] for entry in stored[last]][:3] == [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]

    @MODES
    @pytest.mark.parametrize("where", ["observation", "reward"])
    def test_vector_environment_names_the_step_and_restarts(self, mode: AutoresetMode, where: str) -> None:
        factories: Factories = [lambda: CountingEnv(5), lambda: NotANumberEnv(at=3, where=where)]
        agent = build(vector_of(factories, mode), lambda o: np.zeros(len(o), int))
        with pytest.raises(InvalidStepError, match=rf"^{where} .*1 at step 6 .*finite"):
            agent.fit(steps=50, verbose=0)
        assert agent.steps == len(agent.replay) == 4
        agent.fit(steps=10, verbose=0)
        check_replay(agent.replay)
        assert [entry[0] for entry in memories(agent, 2)[1]][:3] == [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]

    def test_reset_names_the_step(self) -> None:
        agent = build(lambda: ResetsToNaN(3), lambda o: np.zeros(len(o), int))
        with pytest.raises(InvalidStepError, match=r"observation .*0 at step 3 .*finite"):
            agent.fit(steps=50, verbose=0)
        assert agent.steps == 3
        agent.fit(steps=2, verbose=0)

    def test_transition_after_a_failure_has_no_predecessor(self) -> None:
        """The reset here returns the observation that the failed step would have returned."""

        class Constant(CountingEnv):
            def _observation(self):
                return np.zeros(2, np.float32)

            def step(self, action):
                if self.episode == 0 and self.step_number == 2:
                    raise OSError("gone")
                return super().step(action)

        agent = build(lambda: Constant(9))
        with pytest.raises(OSError, match="gone"):
            agent.fit(steps=9, verbose=0)
        agent.fit(steps=2, verbose=0)
        successor = agent.replay._storage.successor[:4]
        assert successor[0] == 1
        assert successor[1] < 0
        assert successor[2] == 3

    def test_wrong_shape_raises(self) -> None:
        agent = build(lambda: WrongShape(5), lambda o: np.zeros(len(o), int))
        with pytest.raises(
            InvalidStepError,
            match=r"observation .*0 at step 3 .*shape \(1,\)",
        ):
            agent.fit(steps=50, verbose=0)
        assert len(agent.replay) == 2

    def test_infinite_reward_raises(self) -> None:
        class Infinite(CountingEnv):
            def step(self, action):
                observation, _, *rest = super().step(action)
                return observation, -np.inf, *rest

        with pytest.raises(InvalidStepError, match=r"reward .*0 at step 1 .*-inf"):
            build(lambda: Infinite(5)).fit(steps=5, verbose=0)


@MODES
def test_noise_is_annealed_by_environment_steps(mode: AutoresetMode) -> None:
    agent = noterl.DDPG(vector_of([lambda: RandomWalkEnv(1e9, length=4)] * 2, mode), hidden=(4,), seed=1)
    noise = noterl.noise.GaussianWhiteNoiseProcess(0.5, sigma_min=0.1, n_steps_annealing=100)
    agent.compile(noise=noise, learning_starts=30)
    agent.fit(steps=60, verbose=0)
    assert actor_of(agent).explorer.n == agent.steps
