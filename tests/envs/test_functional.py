"""Functional environments: their NumPy interfaces, those of other packages, and CartPole."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.collect import VectorLanes
from noterl.envs import functional, functional_cartpole
from noterl.envs.functional import FunctionalVectorEnv
from tests.docs.test_code_blocks import ROOT, read_blocks
from tests.support.functional import FakeBrax, FakeGymnax, keyed_line, line

pytest.importorskip("jax")

pytestmark = pytest.mark.backends("torch")


def rolled(env: Any, actions: Any, seed: int = 0) -> list[Any]:
    found = [env.reset(seed=seed)[0]]
    for action in actions:
        found.append(env.step(action))
        if found[-1][2] or found[-1][3]:
            break
    return found


class TestNumpyInterface:
    def test_seed_determines_the_episode(self) -> None:
        first, second = (rolled(line(), [0, 1, 1, 0], seed=4) for _ in range(2))
        assert all(noterl.envs.equal(one[0], other[0]) for one, other in zip(first[1:], second[1:], strict=True))
        assert not noterl.envs.equal(first[0], rolled(line(), [], seed=5)[0])

    def test_check_finds_nothing(self) -> None:
        report = noterl.envs.check(functional_cartpole(), steps=60)
        assert not report.errors

    def test_time_limit_truncates(self) -> None:
        steps = rolled(line(limit=3), [0, 1, 0, 1, 0])
        assert len(steps) == 4
        assert steps[-1][2:4] == (False, True)

    def test_vector_environment_equals_single_ones_between_resets(self) -> None:
        vector = FunctionalVectorEnv(line().functions, 3)
        observations, _ = vector.reset(seed=1)
        assert observations.shape == (3, 2)
        for _ in range(12):
            before = observations
            observations, reward, terminated, truncated, info = vector.step(np.array([0, 1, 0]))
            for lane in range(3):
                last = info["final_obs"][lane] if terminated[lane] or truncated[lane] else observations[lane]
                move = last[0] - before[lane][0]
                assert abs(move - (0.5 if lane == 1 else -0.5)) < 0.6
                assert reward[lane] == pytest.approx(0.1 * last[0], abs=1e-6)
                assert (abs(last[0]) > 2.0) == terminated[lane]

    def test_environment_can_be_sent_to_a_worker(self) -> None:
        source = noterl.envs.resolve(line())
        source.make_evaluation().reset(seed=0)
        cloudpickle = pytest.importorskip("cloudpickle")
        sent = cloudpickle.loads(cloudpickle.dumps(source.detached()))
        ours, theirs = (rolled(each.make_evaluation(), [0, 1], seed=2) for each in (source, sent))
        assert all(noterl.envs.equal(one[:2], other[:2]) for one, other in zip(ours[1:], theirs[1:], strict=True))

    def test_agents_of_other_backends_step_a_vector_environment(self) -> None:
        agent = noterl.PPO(line(), rollout_steps=4, epochs=1, hidden=(4,), seed=1)
        history = agent.fit(steps=40, num_envs=4, verbose=0)
        assert isinstance(agent._parts.session.lanes, VectorLanes)
        assert agent.steps == 40
        assert max(history.history["length"]) <= 7

    def test_snapshot_may_hold_typed_keys(self) -> None:
        env, other = keyed_line(), keyed_line()
        env.reset(seed=1)
        other.reset(seed=2)
        other.set_state(env.get_state())
        assert all(np.array_equal(env.step(1)[0], other.step(1)[0]) for _ in range(3))
        with pytest.raises(ValueError, match="must have the shapes"):
            other.set_state({"leaves": env.get_state()["leaves"][1:]})

    def test_run_on_the_host_resumes_exactly(self) -> None:
        whole, first, second = (noterl.PPO(line(), rollout_steps=4, epochs=1, hidden=(4,), seed=1) for _ in range(3))
        whole.fit(steps=64, num_envs=4, verbose=0)
        first.fit(steps=32, num_envs=4, verbose=0)
        second.set_state(first.get_state())
        second.fit(steps=32, num_envs=4, verbose=0)
        assert noterl.envs.equal(whole.get_weights(), second.get_weights())


class TestCartPole:
    def test_dynamics_equal_those_of_gymnasium(self) -> None:
        env, ours = gymnasium.make("CartPole-v1"), functional_cartpole()
        rng = np.random.default_rng(0)
        for episode in range(5):
            observation, _ = env.reset(seed=episode)
            state = observation.astype(np.float32), np.int32(0)
            ended = False
            while not ended:
                action = int(rng.integers(2))
                expected = env.step(action)
                found = ours.functions.step_one(np.zeros(2, np.uint32), state, action)
                np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
                assert (float(found[2]), bool(found[3]), bool(found[4])) == expected[1:4]
                state, ended = found[1], expected[2] or expected[3]

    def test_episode_is_truncated_after_500_steps(self) -> None:
        ours = functional_cartpole()
        ours.reset(seed=0)
        inner, _ = ours._state
        ours._state = inner, np.int32(499)
        assert ours.step(0)[2:4] == (False, True)

    def test_starts_are_uniform(self) -> None:
        vector = FunctionalVectorEnv(functional_cartpole().functions, 500)
        starts, _ = vector.reset(seed=0)
        assert np.abs(starts).max() <= 0.05
        np.testing.assert_allclose(starts.mean(axis=0), 0, atol=5e-3)


class TestOtherPackages:
    """The functions of `docs/device.md` that make environments of other packages those of noterl."""

    @pytest.fixture
    def page(self) -> dict[str, Any]:
        blocks = read_blocks((ROOT / "docs" / "device.md").read_text(encoding="utf-8"))
        namespace: dict[str, Any] = {"noterl": noterl, "Box": spaces.Box}
        (code,) = [block.code for block in blocks if "def from_gymnax" in block.code]
        exec(code, namespace)
        return namespace

    def test_gymnax(self, page: dict[str, Any]) -> None:
        observations, actions = spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(3)
        env = page["from_gymnax"](FakeGymnax(), SimpleNamespace(limit=5), observations, actions)
        assert [step[2:4] for step in rolled(env, [2] * 9)[1:]] == [(False, False), (False, False), (True, False)]
        assert [step[2:4] for step in rolled(env, [1] * 9)[1:]] == [(False, False)] * 4 + [(False, True)]

    def test_brax(self, page: dict[str, Any]) -> None:
        env = page["from_brax"](FakeBrax(), 4)
        assert (env.observation_space.shape, env.action_space.shape) == ((2,), (1,))
        steps = rolled(env, [np.ones(1, np.float32)] * 9)
        assert [step[1] for step in steps[1:]] == [1.0, 2.0, 3.0]
        assert steps[-1][2:4] == (True, False)
        assert rolled(env, [np.zeros(1, np.float32)] * 9)[-1][2:4] == (False, True)

    def test_object_of_another_package_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"env must be .*a functional environment"):
            noterl.DQN(FakeBrax())


class TestErrors:
    def test_bad_arguments_are_named(self) -> None:
        box, choices = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
        with pytest.raises(ValueError, match="reset"):
            functional(1, lambda: 0, box, choices)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="action_space"):
            functional(lambda key: 0, lambda *parts: 0, box, 2)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_episode_steps"):
            line(limit=0)

    @pytest.mark.parametrize("limit", [None, 9])
    def test_results_that_do_not_fit_are_named(self, limit: int | None) -> None:
        functional = partial(noterl.envs.functional, max_episode_steps=limit)
        box, choices, zero = spaces.Box(-1, 1, (1,)), spaces.Discrete(2), np.zeros(1, np.float32)
        good = lambda key, state, action: (zero, state, 0.0, False, False)  # noqa: E731
        with pytest.raises(ValueError, match="reset of"):
            functional(lambda key: (np.zeros(2, np.float32), zero), good, box, choices)
        with pytest.raises(ValueError, match="step of"):
            functional(lambda key: (zero, zero), lambda *parts: (zero, zero, 0.0, False), box, choices)
        with pytest.raises(ValueError, match="scalar reward"):
            functional(lambda key: (zero, zero), lambda *parts: (zero, zero, zero, False, False), box, choices)
        with pytest.raises(ValueError, match="a bool as truncated, got float32"):
            functional(lambda key: (zero, zero), lambda *parts: (zero, zero, 0.0, False, np.float32(0)), box, choices)

    @pytest.mark.parametrize("start", [np.int32(0), np.zeros(2, np.float32), False, np.uint8(0)])
    def test_states_that_would_lose_values_on_the_device_are_refused(self, start: Any) -> None:
        box, choices, zero = spaces.Box(-1, 1, (1,)), spaces.Discrete(2), np.zeros(1, np.float32)
        with pytest.raises(ValueError, match="shapes and dtypes"):
            functional(
                lambda key: (zero, start), lambda key, state, action: (zero, zero[0], 0.0, False, False), box, choices
            )
