"""GAIL: the discriminator equals a NumPy reference, its rewards reach the updates, and its state is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import saving
from noterl.backends import current
from noterl.imitation import GAIL
from noterl.random import Generators
from noterl.replay import Prioritized, Triplets
from tests.support import reference_numpy
from tests.support.batches import Corridor, random_batch, row
from tests.support.demonstrations import CONTINUOUS, DISCRETE, OBSERVATIONS, ReferenceDiscriminator, demonstrations
from tests.support.parts import learner_of, run_updates
from tests.support.representatives import representatives
from tests.support.states import assert_same_state, differences, run_python

RATE, PENALTY, SIZE = 0.05, 2.0, 6
REWARDS = {
    "positive": lambda logit: np.logaddexp(0, logit),
    "negative": lambda logit: -np.logaddexp(0, -logit),
    "logit": lambda logit: logit,
}


def gail(action_space: Any = DISCRETE, **changes: Any) -> GAIL:
    settings = {"hidden": (4, 3), "optimizer": keras.optimizers.SGD(RATE), "gradient_penalty": PENALTY, **changes}
    return GAIL(demonstrations(action_space), **settings)


def reference_of(agent: noterl.Agent) -> ReferenceDiscriminator:
    model: Any = learner_of(agent).reward_model
    weights = [current().fetch(variable) for variable in model.variables]
    return ReferenceDiscriminator(weights, model.settings.demonstrations, model.settings.gradient_penalty)


class Samples:
    """The rows of the demonstrations and the numbers that an agent with this seed samples."""

    def __init__(self, seed: int) -> None:
        generators = Generators(seed)
        self._rows, self._mix = generators("demonstrations"), generators("demonstrations/mix")

    def __call__(self, truth: ReferenceDiscriminator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
        rows = (self._rows.random(shape) * len(truth.actions)).astype(np.int64)
        return truth.inputs(truth.observations[rows], truth.actions[rows]), self._mix.random(shape, np.float32)


@pytest.mark.parametrize("reward", representatives(REWARDS, "positive"))
def test_updates_from_a_replay_memory_equal_the_reference(reward: str) -> None:
    agent = noterl.DQN((OBSERVATIONS, DISCRETE), double=False, hidden=(5,), gamma=0.9, loss="squared", seed=3)
    model = gail(reward=reward, weight=0.5, environment_weight=0.25)
    agent.compile(keras.optimizers.SGD(0.1), replay=64, target_update=500, reward_model=model)
    truth, samples = reference_of(agent), Samples(3)
    weights = noterl.networks.get_weights(agent.q)
    dqn = reference_numpy.DQN(reference_numpy.mlp((5,)), weights, weights, Descent(0.1), double=False, loss="squared")
    batch = random_batch(3, SIZE, (OBSERVATIONS, DISCRETE))
    logs = {name: current().fetch(value) for name, value in run_updates(agent, batch, 3).logs.items()}
    demonstrated, mix = samples(truth, 3, SIZE)
    for k in range(3):
        one = row(batch, k)
        policy = truth.inputs(one.observation, one.action)
        expected = truth.metrics(demonstrated[k], policy, mix[k], one.weight)
        truth.descend(RATE, demonstrated[k], policy, mix[k], one.weight)
        own = REWARDS[reward](truth.logit(policy))
        expected["model_reward"] = (one.weight * own).sum() / one.weight.sum()
        expected["loss"], _ = dqn.update(one._replace(reward=0.5 * own + 0.25 * one.reward))
        for name, value in expected.items():
            np.testing.assert_allclose(logs[name][k], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} {k}")
    for variable, weight in zip(learner_of(agent).reward_model.variables, truth.weights, strict=True):
        np.testing.assert_allclose(current().fetch(variable), weight, rtol=1e-4, atol=2e-6)
    for actual, weight in zip(noterl.networks.get_weights(agent.q), dqn.weights, strict=True):
        np.testing.assert_allclose(actual, weight, rtol=1e-4, atol=2e-6)


class Descent:
    """Gradient descent, for `reference_numpy.DQN`."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def apply(self, weights: Any, gradients: Any) -> Any:
        return [weight - self.rate * gradient for weight, gradient in zip(weights, gradients, strict=True)]


def test_updates_from_rollouts_equal_the_reference() -> None:
    steps, lanes, size = 4, 2, 4
    agent = noterl.PPO((OBSERVATIONS, CONTINUOUS), hidden=(4,), rollout_steps=steps, epochs=2, seed=3)
    agent.compile(batch_size=size, reward_model=gail(CONTINUOUS))
    learner, truth, rng = learner_of(agent), reference_of(agent), np.random.default_rng(4)
    learner.open(lanes)
    for _ in range(steps):
        actions = rng.normal(size=(lanes, 2))  # also beyond the bounds
        learner.begin_round(rng.normal(size=(lanes, 3)), actions, {})
        for lane in range(lanes):
            learner.add(noterl.types.Transition(lane, None, None, rng.normal(), rng.normal(size=3), False, False))
        learner.end_round()
    rollout = learner.rollout.batch(gamma=0.99)
    policy = truth.inputs(rollout.observation.reshape(-1, 3), rollout.action.reshape(-1, 2))
    rows = learner.sample(learner.due(0, 0, 0).updates)
    expected = REWARDS["positive"](truth.logit(policy))
    np.testing.assert_allclose(current().fetch(learner.prepared_rows.reward), expected, rtol=1e-4, atol=1e-5)
    logs = {name: current().fetch(value) for name, value in run_updates(agent, rows, len(rows)).logs.items()}
    demonstrated, mix = (part.reshape(8, *part.shape[2:]) for part in Samples(3)(truth, steps, lanes))
    for k, chosen in enumerate(rows):
        arguments = demonstrated[chosen], policy[chosen], mix[chosen], np.ones(size)
        for name, value in truth.metrics(*arguments).items():
            np.testing.assert_allclose(logs[name][k], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} {k}")
        truth.descend(RATE, *arguments)
    for variable, weight in zip(learner.reward_model.variables, truth.weights, strict=True):
        np.testing.assert_allclose(current().fetch(variable), weight, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("hidden", representatives([[], [5], [4, 3, 6]], [4, 3, 6]))
def test_slope_is_the_norm_of_the_gradient(hidden: list[int]) -> None:
    agent = noterl.DQN((OBSERVATIONS, DISCRETE), hidden=(4,), seed=3)
    agent.compile(reward_model=gail(hidden=hidden))
    inputs = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    slope = learner_of(agent).reward_model.slope(keras.ops.convert_to_tensor(inputs))
    np.testing.assert_allclose(current().fetch(slope), reference_of(agent).slope(inputs), rtol=1e-4)


@pytest.mark.backends("torch")
def test_no_gradient_penalty_leaves_the_cross_entropy() -> None:
    agent = noterl.DQN((OBSERVATIONS, DISCRETE), hidden=(4,), seed=3)
    agent.compile(replay=64, reward_model=gail(gradient_penalty=0))
    truth, samples = reference_of(agent), Samples(3)
    batch = random_batch(1, SIZE, (OBSERVATIONS, DISCRETE))
    logs = run_updates(agent, batch, 1).logs
    (demonstrated,), (mix,) = samples(truth, 1, SIZE)
    truth.descend(RATE, demonstrated, truth.inputs(batch.observation[0], batch.action[0]), mix, batch.weight[0])
    assert current().fetch(logs["gradient_penalty"])[0] == 0
    for variable, weight in zip(learner_of(agent).reward_model.variables, truth.weights, strict=True):
        np.testing.assert_allclose(current().fetch(variable), weight, rtol=1e-4, atol=2e-6)


# Action space, and the replay memory.
KINDS: dict[str, tuple[Any, Any]] = {
    "DQN": (DISCRETE, lambda: noterl.Replay(30, sampler=Prioritized())),
    "TD3": (CONTINUOUS, lambda: noterl.Replay(30)),
    "PPO": (DISCRETE, None),
    "PPO with a replay memory": (DISCRETE, lambda: noterl.Replay(30)),
    "TRPO": (CONTINUOUS, None),
}
ON_POLICY = (noterl.PPO, noterl.TRPO)


class Steps(Corridor):
    """A `Corridor` with another action space, of which the sign of the first value is the direction."""

    def __init__(self, action_space: Any, reward: float = 1.0) -> None:
        super().__init__()
        self.action_space, self.reward = action_space, reward
        self.observation_space = OBSERVATIONS

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(int(np.ravel(action)[0] > 0))
        return observation, self.reward * reward, *rest


def agent_of(name: str, seed: int = 3, reward: float = 1.0, **changes: Any) -> noterl.Agent:
    action_space, make_replay = KINDS[name]
    kind = getattr(noterl, name.split()[0])
    options = {"rollout_steps": 5, "epochs": 2} if kind in ON_POLICY else {}
    agent = kind(lambda: Steps(action_space, reward), hidden=(4,), seed=seed, **options)
    schedule = {} if kind in ON_POLICY else {"learning_starts": 8, "update_every": 4, "updates": 4}
    replay = {} if make_replay is None else {"replay": make_replay()}
    model = {"reward_model": gail(action_space, optimizer=1e-3)}
    agent.compile(**{"batch_size": 4, **model, **schedule, **replay, **changes})
    return agent


@pytest.mark.backends("torch")
def test_grouping_of_updates_does_not_change_a_run() -> None:
    agents = [agent_of("DQN", steps_per_execution=size) for size in (1, 3)]
    for agent in agents:
        agent.fit(steps=31, num_envs=2, verbose=0)
        assert agent.updates >= 10
    assert agents[0].get_state()["reward_model"]["variables"]
    assert_same_state(*agents)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", KINDS)
def test_rewards_of_the_environment_do_not_reach_updates(name: str) -> None:
    agents = [agent_of(name, reward=reward) for reward in (1.0, -30.0)]
    for agent in agents:
        agent.fit(steps=40, verbose=0)
        assert agent.updates > 0
    first, second = (agent.get_state() for agent in agents)
    assert not differences(first["variables"], second["variables"])
    assert not differences(first["reward_model"], second["reward_model"])


@pytest.mark.parametrize("name", ["TD3", "PPO with a replay memory", "TRPO"])
@pytest.mark.backends("torch")
def test_logs_hold_both_rewards(name: str) -> None:
    seen: list[dict[str, Any]] = []
    agent = agent_of(name)
    callback = noterl.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: seen.append(dict(logs)))
    history = agent.fit(steps=30, callbacks=[callback], verbose=0).history
    metrics = {"model_reward", "discriminator_loss", "discriminator_accuracy", "gradient_penalty"}
    assert {"reward", *metrics} <= set(history) and metrics < agent.metric_names
    assert history["model_reward"][-1] > 0 and history["reward"][-1] <= 1
    assert len(seen) == agent.updates > 0 and all(np.isfinite(logs[key]) for logs in seen for key in metrics)
    if name == "TD3":  # every other update also updates the actor
        assert ["actor_loss" in logs for logs in seen[:2]] == [False, True]


RESUME = """
import sys, noterl
from tests.learning.test_reward_model import KINDS, Steps
for name in ("DQN", "PPO", "TRPO"):
    agent = noterl.load(f"{sys.argv[1]}/{name}.noterl")
    agent.fit(lambda: Steps(KINDS[name][0]), steps=17, num_envs=2, verbose=0)
    agent.save(f"{sys.argv[1]}/{name}-resumed.noterl")
"""


@pytest.mark.backends("torch")
def test_loaded_runs_continue_as_if_uninterrupted(tmp_path: Path) -> None:
    uninterrupted = {}
    for name in ("DQN", "PPO", "TRPO"):
        agent = agent_of(name)
        agent.fit(steps=17, num_envs=2, verbose=0)
        agent.save(tmp_path / f"{name}.noterl")
        agent.fit(steps=17, num_envs=2, verbose=0)
        uninterrupted[name] = agent.get_state()
    run_python(RESUME, tmp_path)
    for name, state in uninterrupted.items():
        assert_same_state(saving.read(tmp_path / f"{name}-resumed.noterl")["state"], state)


@pytest.mark.backends("torch")
def test_state_of_another_discriminator_raises_and_changes_nothing() -> None:
    agent, other = agent_of("DQN"), agent_of("DQN", reward_model=gail(hidden=(7,)))
    agent.fit(steps=12, verbose=0)
    before = agent.get_state()
    with pytest.raises(ValueError, match="reward_model"):
        agent.set_state(other.get_state())
    assert_same_state(agent, before)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (spaces.Dict({"gear": spaces.Discrete(3), "speed": spaces.Box(0.0, 1.0, (2,), np.float32)}), DISCRETE),
        (spaces.Box(0, 255, (4, 4), np.uint8), spaces.MultiDiscrete([2, 3])),
        (OBSERVATIONS, spaces.Box(-np.inf, np.inf, (2,), np.float32)),
    ],
)
@pytest.mark.filterwarnings("ignore:observations of the shape")
def test_other_spaces_are_encoded(observation_space: Any, action_space: Any) -> None:
    agent = noterl.PPO((observation_space, action_space), hidden=(4,), seed=3)
    data = demonstrations(action_space, observation_space=observation_space)
    agent.compile(reward_model=GAIL(data, hidden=(4,)))
    model: Any = learner_of(agent).reward_model
    rows = model._data.gather(np.arange(len(data)))
    inputs = current().fetch(model.inputs(*map(keras.ops.convert_to_tensor, rows)))
    assert inputs.shape[0] == len(data) and np.isfinite(inputs).all() and np.abs(inputs[:, :-2]).max() <= 10


@pytest.mark.backends("torch")
def test_demonstrations_are_normalized_as_the_agent_normalizes() -> None:
    agent = noterl.DQN((OBSERVATIONS, DISCRETE), hidden=(4,), seed=3, normalize_observation=True)
    agent.compile(reward_model=gail())
    agent.build()
    agent.spaces.normalizers.observation.update(np.random.default_rng(0).normal(3.0, 2.0, (50, 3)))
    model: Any = learner_of(agent).reward_model
    observation, _ = model._data.gather(np.arange(4))
    raw = model.settings.demonstrations.pairs()[0][:4]
    np.testing.assert_array_equal(observation, agent.spaces.normalizers.normalize_observation(raw))
    assert (model._scale == 1).all() and (model._shift == 0).all()


@pytest.mark.backends("torch")
def test_default_memory_has_single_steps() -> None:
    agent = noterl.DQN((OBSERVATIONS, DISCRETE), hidden=(4,), seed=3)
    agent.compile(reward_model=gail())
    assert agent.replay.n_step == 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not a model": ({"reward_model": 3}, "reward_model must .*GAIL, got 3"),
    "n-step returns": ({"replay": noterl.Replay(9, n_step=2)}, "n_step=1"),
    "triplets": ({"replay": noterl.Replay(9, relabel=Triplets())}, "Triplets"),
    "other observations": (
        {"reward_model": GAIL(demonstrations(observation_space=spaces.Box(-1.0, 1.0, (4,), np.float32)))},
        "demonstrations must .*observation_space",
    ),
    "other actions": ({"reward_model": GAIL(demonstrations(spaces.Discrete(3)))}, "action_space, Discrete"),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", BAD)
def test_bad_use_raises(case: str) -> None:
    changes, message = BAD[case]
    agent = noterl.DQN((OBSERVATIONS, DISCRETE), hidden=(4,), seed=3)
    with pytest.raises(ValueError, match=message):
        agent.compile(**{"batch_size": 4, "reward_model": gail(), **changes})


@pytest.mark.backends("torch")
def test_normalized_rewards_that_nothing_uses_are_refused() -> None:
    agent = noterl.DQN((OBSERVATIONS, DISCRETE), hidden=(4,), seed=3, normalize_reward=True)
    with pytest.raises(ValueError, match="normalize_reward must be False"):
        agent.compile(reward_model=gail())
    agent.compile(reward_model=GAIL(demonstrations(), environment_weight=0.5))


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"demonstrations": [1, 2]}, "demonstrations must be"),
        ({"hidden": 64}, "hidden must be a sequence"),
        ({"hidden": (0,)}, "hidden must be a positive int"),
        ({"optimizer": -1.0}, "optimizer"),
        ({"gradient_penalty": -1}, "gradient_penalty"),
        ({"reward": "high"}, "reward must be"),
        ({"weight": np.nan}, "weight must be"),
        ({"environment_weight": "1"}, "environment_weight"),
    ],
)
def test_bad_argument_raises(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GAIL(**{"demonstrations": demonstrations(), **change})


@pytest.mark.backends("torch")
def test_several_agents_are_refused() -> None:
    env = spaces.Tuple([OBSERVATIONS] * 2), spaces.Tuple([CONTINUOUS] * 2)
    with pytest.raises(ValueError, match="reward_model"):
        noterl.MADDPG(env, hidden=(4,), seed=3).compile(reward_model=gail())


@pytest.mark.backends("torch")
@pytest.mark.parametrize(("kind", "reason"), [(noterl.AlphaZero, "search"), (noterl.ACER, "sequences")])
def test_agents_that_cannot_use_a_reward_model_are_refused(kind: Any, reason: str) -> None:
    agent = kind((OBSERVATIONS, DISCRETE), hidden=(4,), seed=3)
    with pytest.raises(ValueError, match=f"reward_model .*{kind.__name__}.*{reason}"):
        agent.compile(reward_model=gail())
