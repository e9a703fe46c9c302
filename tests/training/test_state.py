"""Saving and loading agents: constructor arguments, environments, classes and weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces

import noterl
from noterl import policies, saving
from noterl.envs import Signals
from tests.support.doubles import CountingEnv
from tests.support.parts import lanes_of, learner_of
from tests.support.replay_invariants import check_replay
from tests.support.states import assert_same_state, differences, one_lane, run_python

pytestmark = pytest.mark.backends("torch")

OBSERVATION = np.array([0.02, -0.3, 0.01, 0.4], np.float32)
BOX, DISCRETE = spaces.Box(-5.0, 5.0, (4,), np.float32), spaces.Discrete(2)


def small(env: Any = "CartPole-v1", **options: Any) -> noterl.DQN:
    return noterl.DQN(env, **{"hidden": (4,), "seed": 2, **options})


def through_file(agent: Any, path: Path, custom_objects: dict[str, type] | None = None) -> Any:
    agent.save(path / "agent.noterl")
    return noterl.load(path / "agent.noterl", custom_objects)


def q_values(agent: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(agent.forward(keras.ops.convert_to_tensor(OBSERVATION[None])))


OPTIONS = [
    {},
    {"double": True, "dueling": True, "hidden": [8, 4], "gamma": 0.5, "loss": "squared", "seed": 2**40},
    {"hidden": (), "gamma": 1, "seed": np.int64(3)},
]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("options", OPTIONS)
def test_load_restores_constructor_arguments(options: dict[str, Any], tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", **options)
    again = through_file(agent, tmp_path)
    assert type(again) is noterl.DQN
    config, configs = agent.get_config(), again.get_config()
    assert {**config, "env": None} == {**configs, "env": None}
    assert again.double == agent.double and again.error_loss is agent.error_loss
    assert float(again.gamma) == float(agent.gamma) and again.generators.seed == agent.generators.seed
    assert np.array_equal(q_values(agent), q_values(again))
    assert_same_state(agent, again)


def test_load_restores_compile_arguments(tmp_path: Path) -> None:
    agent = small()
    agent.compile(
        keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 50), beta_2=0.9, clipnorm=0.5),
        policy=policies.MaxBoltzmannQPolicy(0.3, tau=2.0, clip=(-5, 5)),
        replay=noterl.Replay(77),
        batch_size=5,
        learning_starts=11,
        update_every="episode",
        updates="pass",
        target_update=0.25,
        jit_compile=False,
        steps_per_execution=2,
    )
    again = through_file(agent, tmp_path)
    assert vars(again.schedule) == vars(agent.schedule)
    assert again.optimizer.get_config() == agent.optimizer.get_config()
    assert type(again.policy) is policies.MaxBoltzmannQPolicy and again.policy.get_config() == agent.policy.get_config()
    learner = learner_of(again)
    assert (again.replay.capacity, learner.jit_compile, learner.steps_per_execution) == (77, False, 2)
    assert float(again.tau) == 0.25
    assert_same_state(agent, again)


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize(
    "optimizer", ["sgd", [keras.optimizers.RMSprop(0.1)], {"optimizer": keras.optimizers.SGD(0.3)}]
)
def test_load_restores_every_form_of_optimizer(optimizer: Any, tmp_path: Path) -> None:
    agent = small()
    agent.compile(optimizer)
    again = through_file(agent, tmp_path)
    assert type(again.optimizer).__name__ == type(agent.optimizer).__name__
    assert again.learning_rate == agent.learning_rate


def test_load_restores_hyperparameters_that_changed(tmp_path: Path) -> None:
    agent = small()
    agent.compile(keras.optimizers.Adam(0.01), policy=policies.EpsGreedyQPolicy(0.5), target_update=0.5)
    agent.gamma, agent.tau, agent.policy.eps = 0.25, 0.125, 0.75
    agent.set_rule("learning_rate", 0.5)
    agent.set_rule("beta_1", 0.375)
    again = through_file(agent, tmp_path)
    assert (float(again.gamma), float(again.tau), again.policy.eps, again.learning_rate) == (0.25, 0.125, 0.75, 0.5)
    assert noterl.learning.optimizers.get_rule(again.optimizer, "beta_1") == 0.375
    other = small()
    other.compile(target_update=20, policy=policies.EpsGreedyQPolicy(0.1), optimizer=keras.optimizers.Adam(1.0))
    other.restore(tmp_path / "agent.noterl")
    assert float(other.gamma) == 0.25 and float(other.tau) == 1.0, "an agent with hard copies must keep them"
    assert other.learning_rate == 0.5 and noterl.learning.optimizers.get_rule(other.optimizer, "beta_1") == 0.375


def test_load_restores_a_schedule_that_changed(tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(batch_size=4, learning_starts=10, update_every=4)
    agent.fit(steps=20, verbose=0)
    agent.schedule.batch_size, agent.schedule.updates = np.int64(8), "pass"
    agent.save(tmp_path / "agent.noterl")
    loaded = noterl.load(tmp_path / "agent.noterl")
    assert (loaded.schedule.batch_size, loaded.schedule.update_every, loaded.schedule.updates) == (8, 4, "pass")
    for each in (agent, loaded):
        each.fit(steps=20, verbose=0)
    assert not differences(agent.get_weights(), loaded.get_weights())
    other = noterl.DQN("CartPole-v1", hidden=(4,), seed=2)
    other.compile(batch_size=16, learning_starts=10, update_every=2)
    other.restore(tmp_path / "agent.noterl")
    assert (other.schedule.batch_size, other.schedule.update_every) == (8, 2), "what did not change is that of compile"


def test_load_restores_an_environment_id_with_arguments(tmp_path: Path) -> None:
    for env in (gymnasium.make("CartPole-v1", max_episode_steps=7), lambda: gymnasium.make("CartPole-v1", 7)):
        again = through_file(small(env), tmp_path)
        history = again.fit(episodes=6, verbose=0)
        assert max(history.history["length"]) == 7


@pytest.mark.parametrize("env", [CountingEnv, CountingEnv(), (spaces.Box(0.0, np.inf, (2,)), DISCRETE)])
def test_environment_that_is_not_registered_must_be_passed_to_fit(env: Any, tmp_path: Path) -> None:
    again = through_file(small(env), tmp_path)
    assert again.observation_space.shape == (2,)
    with pytest.raises(ValueError, match="env: "):
        again.fit(steps=1, verbose=0)
    assert again.act(np.zeros(2, np.float32)) in (0, 1)
    again.fit(CountingEnv, steps=3, verbose=0)
    assert again.steps == 3


def test_error_names_an_id_that_is_not_registered(tmp_path: Path) -> None:
    gymnasium.register("noterl_tests/Counting-v0", CountingEnv)
    try:
        agent = small("noterl_tests/Counting-v0")
        agent.save(tmp_path / "agent.noterl")
    finally:
        del gymnasium.registry["noterl_tests/Counting-v0"]
    again = noterl.load(tmp_path / "agent.noterl")
    with pytest.raises(ValueError, match="noterl_tests/Counting-v0"):
        again.fit(steps=1, verbose=0)


def test_load_restores_a_vector_environment_as_a_scalar_one(tmp_path: Path) -> None:
    agent = small(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))
    again = through_file(agent, tmp_path)
    again.fit(steps=5, verbose=0)
    assert again.steps == 5


@noterl.register
class RegisteredAgent(noterl.DQN):
    """A registered subclass with additional arguments."""

    def __init__(self, env: Any, width: int, *others: int, name: str = "none", **options: Any) -> None:
        super().__init__(env, hidden=(width, *others), **options)
        self.name = name


class ScriptAgent(noterl.DQN):
    """A subclass that is not registered."""


class OwnEnvironmentAgent(noterl.DQN):
    """A subclass that creates its own environment."""

    def __init__(self, *, seed: int | None = None) -> None:
        super().__init__("CartPole-v1", hidden=(4,), seed=seed)


def test_load_restores_a_registered_class(tmp_path: Path) -> None:
    for widths in ((4,), (4, 3, 2)):
        agent = RegisteredAgent("CartPole-v1", *widths, name="mine", gamma=0.5, seed=1)
        again = through_file(agent, tmp_path)
        assert type(again) is RegisteredAgent and again.name == "mine"
        assert_same_state(agent, again)


def test_seed_among_the_options_of_a_subclass_determines_the_networks() -> None:
    first, second, other = (RegisteredAgent("CartPole-v1", 4, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(q_values(first), q_values(second))
    assert not np.array_equal(q_values(first), q_values(other))


def test_unregistered_class_needs_custom_objects(tmp_path: Path) -> None:
    agent = ScriptAgent("CartPole-v1", hidden=(4,), seed=1)
    with pytest.raises(ValueError, match=r"'ScriptAgent'.*custom_objects="):
        through_file(agent, tmp_path)
    again = through_file(agent, tmp_path, {"ScriptAgent": ScriptAgent})
    assert type(again) is ScriptAgent
    assert_same_state(agent, again)
    other = ScriptAgent("CartPole-v1", hidden=(4,), seed=2)
    other.restore(tmp_path / "agent.noterl")
    assert_same_state(agent, other)
    for other_class in (dict, policies.GreedyQPolicy, print):
        with pytest.raises(ValueError, match="'ScriptAgent'"):
            noterl.load(tmp_path / "agent.noterl", {"ScriptAgent": other_class})


def test_load_restores_an_agent_that_creates_its_environment(tmp_path: Path) -> None:
    agent = OwnEnvironmentAgent(seed=1)
    agent.fit(steps=3, verbose=0)
    again = through_file(agent, tmp_path, {"OwnEnvironmentAgent": OwnEnvironmentAgent})
    for each in (agent, again):
        each.fit(steps=3, verbose=0)
    assert_same_state(agent, again)


def test_agent_with_a_network_of_python_code_needs_restore(tmp_path: Path) -> None:
    def build(seed: int) -> noterl.DQN:
        layers = [keras.Input((4,)), keras.layers.Lambda(keras.ops.tanh), keras.layers.Dense(2)]
        return noterl.DQN("CartPole-v1", network=keras.Sequential(layers), seed=seed)

    agent = build(1)
    assert set(agent.networks()) == {"q", "target_q"}
    with pytest.raises(ValueError, match=r"network=.*Sequential.*agent\.restore"):
        through_file(agent, tmp_path)
    other = build(2)
    assert not np.array_equal(q_values(other), q_values(agent))
    other.restore(tmp_path / "agent.noterl")
    assert np.array_equal(q_values(other), q_values(agent))
    assert_same_state(agent, other)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a trained agent with an unfinished episode, and its file."""
    agent = one_lane()
    agent.fit(steps=60, verbose=0)
    assert agent.updates > 0 and lanes_of(agent).ledger.running == [True]
    path = tmp_path_factory.mktemp("trained") / "agent.noterl"
    agent.save(path)
    return agent, path


@pytest.mark.parametrize("value", [3, "x", [1]])
def test_invalid_custom_objects_raise(value: Any, trained: Any) -> None:
    with pytest.raises(ValueError, match=rf"^custom_objects .*, got {re.escape(repr(value))}$"):
        noterl.load(trained[1], custom_objects=value)


def test_loaded_agent_writes_the_same_file(trained: Any, tmp_path: Path) -> None:
    noterl.load(trained[1]).save(tmp_path / "again.noterl")
    assert (tmp_path / "again.noterl").read_bytes() == trained[1].read_bytes()


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_saving_again_writes_the_same_file_and_changes_nothing(trained: Any, tmp_path: Path) -> None:
    before = trained[0].get_state()
    trained[0].save(tmp_path / "again.noterl")
    assert (tmp_path / "again.noterl").read_bytes() == trained[1].read_bytes()
    assert_same_state(before, trained[0])


def test_restore_without_memory_keeps_the_memory(trained: Any, tmp_path: Path) -> None:
    agent = trained[0]
    agent.save(tmp_path / "without.noterl", replay=False)
    other = one_lane(seed=9)
    other.fit(steps=33, verbose=0)
    memory = other.get_state()["replay"]
    other.restore(tmp_path / "without.noterl")
    kept = other.get_state()["replay"]
    assert not differences({**memory, "heads": None}, {**kept, "heads": None})
    other.fit(steps=20, verbose=0)
    check_replay(other.replay)
    assert other.steps == agent.steps + 20


MISMATCHES = {
    "class": (lambda: ScriptAgent("CartPole-v1", hidden=(8,), double=True), r"class DQN, not ScriptAgent"),
    "sizes": (lambda: small(hidden=(16,)), r"\['variables'\]\['q'\]"),
    "layers": (lambda: small(hidden=(8, 8)), r"\['variables'\]\['q'\]"),
    "dueling": (lambda: small(hidden=(8,), dueling=True), r"\['variables'\]\['q'\]"),
    "observations": (lambda: small("Acrobot-v1", hidden=(8,)), r"\['variables'\]\['q'\]"),
    "optimizer": (lambda: one_lane(optimizer=keras.optimizers.SGD(0.1)), "'Adam'.* SGD"),
    "related optimizer": (lambda: one_lane(optimizer=keras.optimizers.AdamW(0.1)), "'Adam'.* AdamW"),
    "rules": (lambda: one_lane(optimizer=keras.optimizers.Adam(weight_decay=0.1)), r"rules.*weight_decay"),
    "schedule": (
        lambda: one_lane(optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9))),
        r"optimizer Adam\['scalars'\]",
    ),
    "capacity": (lambda: one_lane(replay=noterl.Replay(99)), r"capacity"),
    "policy": (lambda: one_lane(policy=policies.EpsGreedyQPolicy(0.5)), r"'eps'.* for EpsGreedyQPolicy"),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("mismatch", MISMATCHES)
def test_file_of_another_configuration_raises_and_changes_nothing(mismatch: str, trained: Any) -> None:
    build, message = MISMATCHES[mismatch]
    agent = build()
    if mismatch in ("policy", "capacity"):  # checked last, after most of the state could have changed
        agent.fit(steps=30, verbose=0)
    before = agent.get_state()
    with pytest.raises(ValueError, match=message):
        agent.restore(trained[1])
    assert_same_state(before, agent)
    state = trained[0].get_state()
    if mismatch != "class":
        with pytest.raises(ValueError, match=message):
            agent.set_state(state)
        assert_same_state(before, agent)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_weights_file_holds_networks_only(trained: Any, tmp_path: Path) -> None:
    trained[0].save_weights(tmp_path / "w.safetensors")
    names = set(safetensors.numpy.load_file(tmp_path / "w.safetensors"))
    assert names == {f"{network}/{position:03d}" for network in ("q", "target_q") for position in range(4)}
    other = one_lane(seed=9)
    other.fit(steps=30, verbose=0)
    before = other.get_state()
    other.load_weights(tmp_path / "w.safetensors")
    after = other.get_state()
    assert not differences(after["variables"], trained[0].get_state()["variables"])
    assert not differences({**before, "variables": None}, {**after, "variables": None})
    assert np.array_equal(q_values(other), q_values(trained[0]))
    assert other.act(OBSERVATION) == trained[0].act(OBSERVATION)


def test_weights_of_another_size_raise_and_change_nothing(trained: Any, tmp_path: Path) -> None:
    trained[0].save_weights(tmp_path / "w.safetensors")
    for other in (small(hidden=(16,)), small(hidden=(8, 8))):
        before = other.get_state()
        with pytest.raises(ValueError, match="weights"):
            other.load_weights(tmp_path / "w.safetensors")
        assert_same_state(before, other)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_weights_raise_with_their_name_unless_allowed(value: float, tmp_path: Path) -> None:
    agent, weights = small(), small(seed=5).get_weights()
    weights["q/002"][3, 1] = value
    before = agent.get_state()
    saving.write_weights(tmp_path / "w", weights)
    with pytest.raises(ValueError, match="q/002"):
        agent.load_weights(tmp_path / "w")
    with pytest.raises(ValueError, match="q/002"):
        agent.set_weights(weights)
    assert_same_state(before, agent)
    agent.load_weights(tmp_path / "w", allow_nonfinite=True)
    assert not np.isfinite(agent.get_weights()["q/002"][3, 1])


@pytest.mark.parametrize("dtype", [np.bool_, np.int64])
def test_weights_of_another_kind_of_dtype_raise(dtype: Any) -> None:
    agent = small()
    weights = {name: array.astype(dtype) for name, array in agent.get_weights().items()}
    with pytest.raises(ValueError, match="q/000"):
        agent.set_weights(weights)


def test_weights_can_be_saved_and_loaded_before_build(tmp_path: Path) -> None:
    first, second = small(seed=1), small(seed=5)
    first.save_weights(tmp_path / "w.safetensors")
    second.load_weights(tmp_path / "w.safetensors")
    assert np.array_equal(q_values(first), q_values(second))
    assert saving.read_weights(tmp_path / "w.safetensors").keys()


VECTOR = spaces.Box(-1.0, 1.0, (3,))
AGENTS = {"A2C": VECTOR, "ACER": DISCRETE, "DDPG": VECTOR, "DQN": DISCRETE, "PPO": VECTOR, "SAC": VECTOR, "TD3": VECTOR}

LOAD = """
import sys
import noterl
for path in sys.argv[1:]:
    print(type(noterl.load(path)).__name__)
"""


@pytest.mark.backends("torch")
def test_every_built_in_agent_loads_in_a_new_process(tmp_path) -> None:
    agents = {name: getattr(noterl, name)((VECTOR, action), hidden=(4,), seed=1) for name, action in AGENTS.items()}
    agents["MADDPG"] = noterl.MADDPG(Signals, hidden=(4,), seed=1)
    paths = [tmp_path / f"{name}.noterl" for name in agents]
    for agent, path in zip(agents.values(), paths, strict=True):
        agent.compile(replay=None if agent.memory == "rollout" else noterl.Replay(1_100))
        agent.save(path)
    assert run_python(LOAD, *paths).split() == list(agents)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("broken", ["rollout", "replay"])
def test_refused_state_leaves_the_rollout_unchanged(broken: str) -> None:
    class WithoutMemory(np.ndarray):
        def copy(self, order: Any = "C") -> Any:
            raise MemoryError("on purpose")

    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=8, seed=1)
    agent.compile(batch_size=4, replay=noterl.Replay(50))
    agent.fit(steps=13, verbose=0)
    rollout, state = learner_of(agent).rollout, agent.get_state()
    before = {name: np.copy(getattr(rollout, name)) for name in ("observation", "reward", "valid", "ended")}
    if broken == "replay":
        state["replay"] = {**state["replay"], "capacity": 3}
    else:
        arrays = state["rollout"]["arrays"]
        arrays["ended"] = arrays["ended"].view(WithoutMemory)
    with pytest.raises(ValueError):
        agent.set_state(state)
    assert (rollout.round, rollout.num_envs) == (5, 1)
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(rollout, name), array)
    agent.fit(steps=3, verbose=0)
    assert agent.updates > 0


@pytest.mark.backends("jax")
def test_schedule_of_keras_imports_no_tensorflow(tmp_path: Path) -> None:
    script = """
import sys
import noterl, keras

rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.5)
agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
agent.compile(keras.optimizers.Adam(rate, beta_1=0.8), batch_size=4, learning_starts=8, update_every=1, updates=1)
agent.fit(steps=20, verbose=0)
agent.save(sys.argv[1])
found = noterl.load(sys.argv[1]).optimizer
assert found._learning_rate.decay_rate == 0.5 and found.beta_1 == 0.8, found
assert agent.configuration["optimizer/learning_rate"].startswith("ExponentialDecay(initial_learning_rate=0.01")
print("tensorflow" in sys.modules)
"""
    assert run_python(script, tmp_path / "a.noterl").split()[-1] == "False"
