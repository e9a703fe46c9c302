"""ACER for Box actions: updates equal the NumPy reference, and runs are saved and resumed exactly."""

from __future__ import annotations

from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.backends import current
from noterl.callbacks import AdaBatch, ESSAdapt, ESSWindow, Rate
from noterl.types import Transition
from tests.support.doubles import RandomWalkEnv
from tests.support.parts import gather_batch, learner_of, run_updates
from tests.support.reference_acer import SlowRMSprop
from tests.support.reference_acer_box import BoxACER
from tests.support.sequence_updates import LANES, ROUNDS, disturb, fields, fill
from tests.support.states import assert_same_state

OBSERVATIONS = spaces.Box(-9.0, 9.0, (3,), np.float32)
ACTIONS = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))
GROUP, SAMPLES = 3, 3
# Per case: arguments of the agent, and the number of weights that actor and critic share.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "trust region": ({"trust_region": 0.1, "truncation": 0.8}, 0),
    "shared layers, no trust region": ({"trust_region": None, "shared": True}, 2),
}


def small(env: Any = (OBSERVATIONS, ACTIONS), **arguments: Any) -> noterl.ACER:
    rules: dict[str, Any] = {"hidden": (4,), "rollout_steps": ROUNDS, "gamma": 0.9, "entropy_coefficient": 0.02}
    return noterl.ACER(env, **{**rules, "dueling_samples": SAMPLES, "replay_starts": 0, "seed": 3, **arguments})


def actions(rng: np.random.Generator) -> np.ndarray:
    """Return actions of which some exceed the bounds."""
    return rng.normal(size=(LANES, 2)).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_the_reference(case: str) -> None:
    arguments, shared = CASES[case]
    agent = small(**arguments)
    agent.compile(target_update=0.1)
    learner: Any = learner_of(agent)
    for seed in (1, 2):
        disturb(agent, seed, scale=0.3)
        fill(agent, 3 + seed, actions)
        sample = learner.sample(GROUP)
    rng = np.random.default_rng(0)
    batch = gather_batch(agent, sample)
    noise = rng.normal(size=(*batch.reward.shape, 1 + SAMPLES, 2)).astype(np.float32)
    batch = batch._replace(extra={**batch.extra, "noise": noise})
    assert (batch.action != np.clip(batch.action, ACTIONS.low, ACTIONS.high)).any()
    disturb(agent, 6, scale=0.3)
    variables, limit = agent.get_state()["variables"], agent.trust_region
    model = BoxACER(
        *(variables[name] for name in ("actor", "critic", "advantage", "average_actor")),
        low=ACTIONS.low,
        high=ACTIONS.high,
        shared=shared,
        truncation=float(agent.truncation),
        limit=None if limit is None else float(limit),
        entropy=0.02,
        value=0.5,
    )
    optimizer = SlowRMSprop(7e-4, 10.0, list(range(len(model.weights))))
    result = run_updates(agent, batch, GROUP)
    assert result.applied == GROUP and not result.feedback
    logs = {name: current().fetch(value) for name, value in result.logs.items()}
    for k in range(GROUP):
        expected = model.update(fields(batch, k), optimizer, tau=0.1)
        assert set(logs) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(logs[name][k], value, rtol=2e-4, atol=1e-5, err_msg=f"{name} {k}")
    indices = {"actor": model.actors, "critic": model.critics, "advantage": model.advantages}
    found = {name: [model.weights[k] for k in places] for name, places in indices.items()}
    for name, weights in {**found, "average_actor": model.average}.items():
        for actual, reached in zip(noterl.networks.get_weights(getattr(agent, name)), weights, strict=True):
            np.testing.assert_allclose(actual, reached, rtol=1e-3, atol=1e-5, err_msg=name)
    assert ((logs["limited"] > 0).any(), (logs["limited"] < 1).all()) == (limit is not None, True)


def test_memory_holds_the_distribution_that_acted() -> None:
    agent = small()
    fill(agent, 4, actions)
    batch = gather_batch(agent, learner_of(agent).sample(2))
    outputs = current().fetch(agent.forward(keras.ops.convert_to_tensor(batch.observation.reshape(-1, 3))))
    behavior = batch.extra["behavior"].reshape(-1, 4)
    present = batch.weight.reshape(-1) > 0
    np.testing.assert_allclose(behavior[present], outputs[present], rtol=1e-5, atol=1e-6)


def test_actions_beyond_the_bounds_have_the_advantage_of_the_bounds() -> None:
    agent = small()
    observation = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    raw = np.float32([[[-3.0, 5.0], [-1.0, 5.0], [0.0, -2.0], [0.0, 0.0], [0.5, 1.0]]])
    values = current().fetch(agent.advantages(*map(keras.ops.convert_to_tensor, (observation, raw))))[0]
    assert values[0] == values[1] and values[2] == values[3] and len(np.unique(values)) == 3


def walker(seed: int = 2, **settings: Any) -> noterl.ACER:
    agent = small(
        RandomWalkEnv, rollout_steps=5, replay_starts=30, replay_ratio=2.0, normalize_observation=True, seed=seed
    )
    agent.compile(**{"replay": 64, **settings})
    return agent


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """Return the state after 120 steps of three lanes."""
    agent = walker()
    agent.fit(steps=120, num_envs=3, verbose=0)
    assert agent.updates > 8 + 4
    return agent.get_state()


@pytest.mark.backends("torch")  # the numbers of updates and their noise come from the host
class TestResuming:
    """Three lanes and rollouts of five rounds: 15 steps."""

    @pytest.mark.parametrize("first", [37, 60])
    def test_restored_run_continues_within_a_rollout_and_a_round(
        self, whole: dict[str, Any], first: int, tmp_path
    ) -> None:
        agent = walker()
        agent.fit(steps=first, num_envs=3, verbose=0)
        agent.save(tmp_path / "agent.noterl")
        again = walker(seed=9)
        again.restore(tmp_path / "agent.noterl")
        again.fit(steps=120 - first, verbose=0)
        assert_same_state(whole, again)

    def test_results_do_not_depend_on_steps_per_execution(self, whole: dict[str, Any]) -> None:
        agent = walker(steps_per_execution=2)
        agent.fit(steps=120, num_envs=3, verbose=0)
        assert_same_state(whole, agent)


@pytest.mark.backends("torch")
def test_loaded_agent_acts_like_the_saved_one(tmp_path) -> None:
    agent = small(RandomWalkEnv, dueling_samples=2, log_std=-0.5, trust_region=None)
    agent.compile(replay=100)
    agent.fit(steps=24, num_envs=2, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    again = noterl.load(tmp_path / "agent.noterl")
    observations = np.random.default_rng(0).normal(size=(4, *agent.observation_shape)).astype(np.float32)
    np.testing.assert_array_equal(again.act(observations), agent.act(observations))
    assert again.dueling_samples == 2 and again.get_config()["log_std"] == -0.5
    assert_same_state(agent.get_state(), again)


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:callbacks. ESS:UserWarning")  # ACER samples uniformly
def test_callbacks_that_measure_gradients_work() -> None:
    agent = walker()
    callbacks = [
        ESSWindow(min_size=20, mode="target", scale=0.5, trim="sampled"),
        ESSAdapt(target_ess=20, lr=Rate(1e-3, 1e-4, 1e-2)),
        AdaBatch(2, scale="simple", every=20, unit="steps", gamma=Rate(1e-3, 0.8, 0.99)),
    ]
    history = agent.fit(steps=150, num_envs=3, callbacks=callbacks, verbose=0).history
    assert np.isfinite([history[name][-1] for name in ("window", "ess", "gradient_noise", "lr")]).all()


def two_headed() -> Any:
    import torch

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy, self.v = torch.nn.Linear(3, 4), torch.nn.Linear(3, 1)

        def forward(self, observation: Any) -> Any:
            return self.policy(observation), self.v(observation)

    return Both()


NETWORKS: dict[str, Any] = {
    "actor": lambda: noterl.networks.mlp(3, [5], 4),
    "actor, critic and advantage": lambda: tuple(
        noterl.networks.mlp(*sizes) for sizes in ((3, [5], 4), (3, [6], 1), (5, [7], 1))
    ),
    "actor and critic in one": lambda: (two_headed(), None, None),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", NETWORKS)
def test_own_networks_are_trained(name: str) -> None:
    agent = small(network=NETWORKS[name](), rollout_steps=ROUNDS)
    agent.build()
    before = agent.get_weights()
    fill(agent, 4, actions)
    assert run_updates(agent, gather_batch(agent, learner_of(agent).sample(2)), 2).applied == 2
    after = agent.get_weights()
    last_bias = max(name for name in before if name.startswith("advantage/"))  # Q does not depend on it
    assert not any(np.array_equal(before[name], after[name]) for name in before if name != last_bias)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: (None, None), r"network must be .*advantage"),
        (lambda: (None, None, noterl.networks.mlp(5, [4], 2)), "network"),
        (lambda: (None, noterl.networks.mlp(3, [4], 2), None), "network"),
        (lambda: noterl.networks.mlp(3, [4], 2), "network"),
    ],
)
@pytest.mark.backends("torch")
def test_networks_that_do_not_fit_raise(network: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(network=network()).build()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("count", [0, 1.5])
def test_number_of_samples_that_is_not_a_positive_int_raises(count: Any) -> None:
    with pytest.raises(ValueError, match="dueling_samples"):
        small(dueling_samples=count)


@pytest.mark.backends("torch")
def test_images_are_learned_from() -> None:
    space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    agent = small((space, ACTIONS), rollout_steps=2)
    agent.compile(replay=16)
    learner: Any = learner_of(agent)
    learner.open(2)
    rng = np.random.default_rng(0)
    for _ in range(2):
        images = rng.integers(256, size=(2, 36, 36, 1), dtype=np.uint8)
        learner.rollout.begin_round(images, actions(rng))
        for lane in range(2):
            after = rng.integers(256, size=(36, 36, 1), dtype=np.uint8)
            learner.add(Transition(lane, None, None, 1.0, after, False, False))
        learner.end_round()
    batch = gather_batch(agent, learner.sample(2))
    assert batch.observation.dtype == np.uint8
    actor, critic = (noterl.networks.variables(network) for network in (agent.actor, agent.critic))
    assert actor[0] is critic[0]
    before = agent.get_weights()
    assert run_updates(agent, batch, 2).applied == 2
    after = agent.get_weights()
    assert not any(np.array_equal(before[name], after[name]) for name in before if before[name].ndim > 1)


class Follow(gymnasium.Env[Any, Any]):
    """The reward of an action is minus its squared distance from the observation; an episode has 8 steps."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = -float((action[0] - self.position) ** 2)
        self.step_count += 1
        return self._observe(), reward, self.step_count == 8, False, {}

    def _observe(self) -> Any:
        self.position = self.np_random.uniform(-1, 1)
        return np.array([self.position], np.float32)


@pytest.mark.backends("jax")
def test_acer_learns_to_follow() -> None:
    """A constant action reaches -8/3 at best."""
    agent = noterl.ACER(Follow, hidden=(32,), gamma=0.0, rollout_steps=8, entropy_coefficient=0.0, seed=1)
    agent.compile(keras.optimizers.Adam(3e-3, global_clipnorm=10.0))
    agent.fit(steps=20_000, num_envs=8, verbose=0)
    assert agent.evaluate(episodes=50)["reward_mean"] > -0.5
