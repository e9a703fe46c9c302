"""TRPO: updates equal the NumPy reference, restored runs continue exactly, and small tasks are learned."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import heads
from tests.support import reference_trpo as reference
from tests.support.doubles import BitsEnv, RandomWalkEnv
from tests.support.parts import learner_of, run_updates
from tests.support.reference_on_policy import Adam
from tests.support.representatives import representatives
from tests.support.rollouts import OBSERVATIONS, ROUNDS, SPACES, enlarged, fetched, filled, flat
from tests.support.states import assert_same_state

RTOL, ATOL = 1e-4, 2e-6
RULES: dict[str, Any] = {
    "gae_lambda": 0.95,
    "target_kl": 0.01,
    "kl_tolerance": 1.0,
    "cg_iterations": 4,
    "cg_damping": 0.1,
    "cg_residual_tolerance": 1e-10,
    "line_search_steps": 10,
    "line_search_shrink": 0.8,
    "entropy_coefficient": 0.0,
}
# Per case: kind of action space, changed arguments.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete, several tries": ("discrete", {"kl_tolerance": 0.5, "line_search_shrink": 0.5}),
    "several choices, entropy": ("multi", {"entropy_coefficient": 0.05, "kl_tolerance": 2.0}),
    "several bits, every second step": ("binary", {"fisher_stride": 2, "target_kl": 0.05}),
    "continuous, no step": ("box", {"kl_tolerance": 0.0, "line_search_steps": 3}),
    "continuous": ("box", {"cg_damping": 0.01}),
}


def trpo(kind: str, **arguments: Any) -> noterl.TRPO:
    rules: dict[str, Any] = {"hidden": (4,), "rollout_steps": ROUNDS, "epochs": 2, "gamma": 0.9, "seed": 3}
    return noterl.TRPO((OBSERVATIONS, SPACES[kind]), **{**rules, **arguments})


@pytest.mark.parametrize("case", representatives(CASES, "continuous"))
def test_update_equals_the_reference(case: str) -> None:
    kind, arguments = CASES[case]
    agent = trpo(kind, **{**RULES, **arguments})
    enlarged(agent)
    agent.compile(keras.optimizers.Adam(0.01, epsilon=1e-5), batch_size=5)
    agent.build()
    variables = agent.get_state()["variables"]
    settings = {**RULES, **arguments}
    model = reference.TRPO(variables["actor"], variables["critic"], kind=kind, **settings)
    rollout, learner = filled(agent), learner_of(agent)
    prepared = model.prepared(rollout)
    rows: Any = learner.sample(learner.due(0, 0, 0).updates)
    data, fields = fetched(learner.prepared_rows.extra), flat({**rollout, **prepared})
    for name, expected in prepared.items():
        np.testing.assert_allclose(data[name], expected.reshape(-1), rtol=RTOL, atol=ATOL, err_msg=name)

    stride = settings.get("fisher_stride", 1)
    sparse = flat({name: array[::stride] for name, array in {**rollout, **prepared}.items()})
    metrics = model.step(fields, sparse)
    result = run_updates(agent, rows, len(rows))
    assert result.applied == len(rows) == 2 * 3
    logs = fetched(result.logs)
    for name, expected in metrics.items():
        np.testing.assert_allclose(logs[name], np.full(len(rows), expected), rtol=1e-3, atol=1e-5, err_msg=name)
    assert (metrics["step_accepted"], metrics["line_search_steps"] > 1) == {
        "discrete, several tries": (1, True),
        "several bits, every second step": (1, True),
        "continuous, no step": (0, True),
    }.get(case, (1, False))
    optimizer = Adam(0.01, np.inf, model.critics)
    for k, row in enumerate(rows):
        batch = {name: array[row] for name, array in fields.items()}
        for name, expected in model.losses(batch).items():
            np.testing.assert_allclose(logs[name][k], expected, rtol=RTOL, atol=1e-5, err_msg=f"{name} {k}")
        optimizer.apply(model.weights, model.gradients(batch))
    for network, which in ((agent.actor, model.actors), (agent.critic, model.critics)):
        for weight, k in zip(noterl.networks.get_weights(network), which, strict=True):
            np.testing.assert_allclose(weight, model.weights[k], rtol=RTOL, atol=1e-5)


@pytest.mark.backends("torch")
def test_divergence_and_gradient_of_the_reference_agree_with_its_fisher_matrix() -> None:
    """The Hessian of the divergence at the policy itself is the Fisher matrix."""
    agent = trpo("binary")
    enlarged(agent)
    agent.build()
    variables = agent.get_state()["variables"]
    model = reference.TRPO(variables["actor"], variables["critic"], kind="binary", **RULES)
    rows = flat(filled(agent))
    start = model.policy
    hessian = model.derivative(lambda: model.derivative(lambda: model.divergence(rows, start), 1e-3), 1e-3)
    np.testing.assert_allclose(hessian, model.fisher(rows), atol=1e-5)


@pytest.mark.backends("torch")
def test_non_finite_rewards_change_nothing() -> None:
    agent = trpo("discrete")
    agent.build()
    filled(agent)
    learner: Any = learner_of(agent)
    learner.rollout.reward[2, 0] = np.inf
    before = agent.get_weights()
    result = run_updates(agent, learner.sample(2), 2)
    assert result.applied == 0
    for name, weight in agent.get_weights().items():
        np.testing.assert_array_equal(weight, before[name])


@pytest.mark.backends("jax", "torch")
def test_rules_can_change_without_another_trace() -> None:
    agent = noterl.TRPO(RandomWalkEnv, hidden=(4,), rollout_steps=8, epochs=1, seed=2)
    agent.fit(steps=8, verbose=0)
    traces = dict(agent.trace_counts)
    names = ("target_kl", "kl_tolerance", "cg_damping", "cg_residual_tolerance", "line_search_shrink")
    for name in (*names, "entropy_coefficient", "gamma", "gae_lambda"):
        setattr(agent, name, agent.hyperparameters[name].another())
    agent.target_kl = 0.0
    before = agent.get_weights()
    agent.fit(steps=8, verbose=0)
    after = agent.get_weights()
    assert dict(agent.trace_counts) == traces
    assert all(np.array_equal(before[name], after[name]) == name.startswith("actor") for name in before)


def walker(**settings: Any) -> noterl.TRPO:
    agent = noterl.TRPO(RandomWalkEnv, hidden=(4,), rollout_steps=5, epochs=2, seed=settings.pop("seed", 2))
    agent.compile(batch_size=6, **settings)
    return agent


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """Return the state after 80 steps."""
    agent = walker()
    agent.fit(steps=80, num_envs=3, verbose=0)
    assert agent.updates == 5 * 2 * 3
    return agent.get_state()


@pytest.mark.backends("torch")
class TestResuming:
    """Three lanes and rollouts of five rounds: 15 steps in minibatches of 6, of which the last is padded."""

    @pytest.mark.parametrize("first", [37, 60])
    def test_restored_run_continues_within_a_rollout_and_a_round(self, whole: dict[str, Any], first: int, tmp_path):
        agent = walker()
        agent.fit(steps=first, num_envs=3, verbose=0)
        agent.save(tmp_path / "agent.noterl")
        again = noterl.load(tmp_path / "agent.noterl")
        again.fit(RandomWalkEnv, steps=80 - first, num_envs=3, verbose=0)
        assert_same_state(whole, again)

    def test_results_do_not_depend_on_steps_per_execution(self, whole: dict[str, Any]) -> None:
        agent = walker(steps_per_execution=4)
        agent.fit(steps=80, num_envs=3, verbose=0)
        assert_same_state(whole, agent)


@pytest.mark.backends("torch")
def test_defaults_are_those_of_stable_baselines3_contrib() -> None:
    agent = noterl.TRPO("CartPole-v1", seed=1)
    agent.build()
    values = {name: float(value) for name, value in agent.hyperparameters.items()}
    expected = {"gamma": 0.99, "gae_lambda": 0.95, "target_kl": 0.01, "cg_damping": 0.1, "line_search_shrink": 0.8}
    assert {name: values[name] for name in expected} == expected
    assert (agent.rollout_steps, agent.epochs, agent.cg_iterations, agent.line_search_steps) == (2048, 10, 15, 10)
    rules = agent.optimizers["critic"].get_config()
    assert (rules["learning_rate"], rules["epsilon"]) == (pytest.approx(1e-3), 1e-5)
    assert agent.defaults().batch_size == 128


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shared": True}, "shared"),
        ({"rollout_steps": 0}, "rollout_steps"),
        ({"epochs": 1.5}, "epochs"),
        ({"cg_iterations": 0}, "cg_iterations .*got 0"),
        ({"line_search_steps": -1}, "line_search_steps .*got -1"),
        ({"fisher_stride": 0.5}, "fisher_stride .*got 0.5"),
        ({"target_kl": -0.1}, "target_kl"),
        ({"kl_tolerance": -1.0}, "kl_tolerance"),
        ({"cg_damping": -1.0}, "cg_damping"),
        ({"cg_residual_tolerance": -1.0}, "cg_residual_tolerance"),
        ({"line_search_shrink": 1.5}, "line_search_shrink"),
        ({"normalize_advantage": 2}, "normalize_advantage"),
        ({"network": 1}, "network .*got 1"),
    ],
)
def test_constructor_raises_for_bad_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noterl.TRPO("CartPole-v1", **arguments)


@pytest.mark.backends("torch")
def test_actor_and_critic_that_share_layers_raise() -> None:
    actor = noterl.networks.mlp(3, [4], 3)
    with pytest.raises(ValueError, match="network"):
        trpo("discrete", network=(actor, noterl.networks.share_trunk(actor, 1)))


@pytest.mark.backends("jax", "tensorflow")
def test_network_with_two_outputs_raises() -> None:
    observation = keras.Input((3,))
    both = keras.Model(observation, [keras.layers.Dense(3)(observation), keras.layers.Dense(1)(observation)])
    with pytest.raises(ValueError, match="network"):
        trpo("discrete", network=both)


@pytest.mark.backends("torch")
def test_replay_memory_raises() -> None:
    with pytest.raises(ValueError, match="replay"):
        trpo("discrete").compile(replay=noterl.Replay(100))


@pytest.mark.backends("torch")
def test_images_have_separate_networks() -> None:
    agent = noterl.TRPO((spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Discrete(2)), seed=1)
    actor, critic = (noterl.networks.variables(network) for network in (agent.actor, agent.critic))
    assert not set(map(id, actor)) & set(map(id, critic)) and len(actor) == len(critic) == 10


@pytest.mark.backends("jax", "torch")
def test_small_convolutional_networks_are_trained() -> None:
    def network(outputs: int) -> Any:
        if keras.backend.backend() == "torch":
            from torch import nn

            return nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(4, outputs))
        layers = [keras.layers.Reshape((3, 1)), keras.layers.Conv1D(2, 2, activation="tanh"), keras.layers.Flatten()]
        return keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(outputs)])

    agent = noterl.TRPO(BitsEnv, network=(network(3), network(1)), rollout_steps=32, epochs=1, seed=1)
    before = agent.get_weights()
    history = agent.fit(steps=32, verbose=0)
    assert not any(np.array_equal(before[name], after) for name, after in agent.get_weights().items())
    assert history.history["kl"][-1] > 0


@pytest.mark.parametrize("kind", [noterl.TRPO, noterl.PPO, noterl.A2C])
@pytest.mark.backends("torch")
def test_multi_binary_actions_are_learned(kind: Any) -> None:
    settings = {noterl.TRPO: {"epochs": 4, "target_kl": 0.05}, noterl.PPO: {"epochs": 4}, noterl.A2C: {}}[kind]
    steps = 32 if kind is not noterl.A2C else 8
    agent = kind(BitsEnv, rollout_steps=steps, hidden=(16,), gamma=0.0, seed=1, **settings)
    if kind is not noterl.TRPO:
        agent.compile(keras.optimizers.Adam(0.01))
    assert isinstance(agent.head, heads.Bernoulli)
    agent.fit(steps=4_096, num_envs=8, verbose=0)
    # A random policy has a return of 4, the best one of 8.
    assert agent.evaluate(episodes=10)["reward_mean"] > 7.5
    assert BitsEnv().action_space.contains(agent.act(np.ones(3, np.float32), deterministic=False))


@pytest.mark.backends("jax")
def test_trpo_learns_cart_pole() -> None:
    agent = noterl.TRPO("CartPole-v1", rollout_steps=128, gae_lambda=0.98, cg_damping=1e-3, hidden=(32, 32), seed=1)
    agent.compile(batch_size=256)
    agent.fit(steps=12_288, num_envs=8, verbose=0)
    # A random policy has a return of 22.
    assert agent.evaluate(episodes=10)["reward_mean"] > 120
