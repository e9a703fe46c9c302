"""Agents whose networks have a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest

import noterl
from noterl import envs, networks
from tests.support.doubles import ImageEnv
from tests.support.masked_env import MaskedWalk
from tests.support.parts import actor_of
from tests.support.representatives import representatives
from tests.support.states import assert_same_state

SMALL: dict[str, Any] = {"recurrent_units": 8, "hidden": (8,), "rollout_steps": 8, "seed": 1}


class Forgets(keras.layers.Layer):
    """A cell whose output is its input."""

    state_spec: ClassVar[dict[str, tuple[int, ...]]] = {"nothing": (1,)}

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.built = True

    def call(self, inputs: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return 1.0 * inputs, state


def on_pendulum(seed: int, recurrent: Any = None) -> noterl.PPO:
    agent = noterl.PPO(
        "Pendulum-v1", hidden=(8,), rollout_steps=12, epochs=2, recurrent=recurrent, value_clip=0.2, seed=seed
    )
    agent.compile(batch_size="rollout")
    return agent


def a2c(seed: int, recurrent: Any = None) -> noterl.A2C:
    agent = noterl.A2C("CartPole-v1", hidden=(8,), rollout_steps=12, recurrent=recurrent, seed=seed)
    agent.compile()
    return agent


@pytest.mark.parametrize("build", representatives([on_pendulum, a2c], a2c))
def test_agent_with_a_cell_that_forgets_equals_the_memoryless_one(build: Any) -> None:
    usual, recurrent = build(3), build(3, Forgets)
    for agent in (usual, recurrent):
        agent.fit(steps=72, num_envs=3, verbose=0)
    assert recurrent.updates == usual.updates > 0
    for name in ("actor", "critic"):
        for weight, other in zip(
            networks.variables(getattr(recurrent, name)), networks.variables(getattr(usual, name)), strict=True
        ):
            np.testing.assert_allclose(host(weight), host(other), rtol=2e-4, atol=2e-5)


def host(variable: Any) -> np.ndarray:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return noterl.backends.current().fetch(keras.ops.stop_gradient(value))


NORMALIZED = networks.recurrent("lstm", 8, layer_norm=True)


@pytest.mark.parametrize(
    "kind", representatives(["gru", "lstm", NORMALIZED], NORMALIZED), ids=["gru", "lstm", "normalized"]
)
def test_acting_in_numpy_is_acting_by_the_network(kind: Any) -> None:
    agent, rng = noterl.PPO(envs.hide("CartPole-v1", [1, 3]), recurrent=kind, **SMALL), np.random.default_rng(0)
    agent.build()
    networks.set_weights(
        agent.actor, [weight + rng.normal(size=weight.shape) for weight in networks.get_weights(agent.actor)]
    )
    forward = actor_of(agent).forward
    assert forward.in_numpy
    forward.stale = True
    state = {name: rng.normal(size=(3, 8)).astype(np.float32) for name in agent.state_spec}
    observations = rng.normal(size=(3, 4)).astype(np.float32)
    output, after = forward.with_state(observations, state)
    expected, expected_after = forward.compiled((observations, state))
    np.testing.assert_allclose(output, expected, atol=1e-5)
    for name, value in expected_after.items():
        np.testing.assert_allclose(after[name], value, atol=1e-5)


# Of tests that call the loss themselves: the update need not be compiled.
NO_UPDATE = 10_000


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Box actions": ("Pendulum-v1", {}),
    "masks": (MaskedWalk, {}),
    "Dict": (lambda: envs.PreviousStep(envs.hide("CartPole-v1", [1])), {}),
    "shared": ("CartPole-v1", {"shared": True}),
    "two optimizers": ("CartPole-v1", {"optimizers": 2}),
    "normalized": ("CartPole-v1", {"normalize_observation": True, "normalize_reward": True}),
    "whole rollouts": ("CartPole-v1", {"sequence_length": 8}),
    "images": (lambda: ImageEnv((36, 36, 1)), {}),
    "cell": ("CartPole-v1", {"recurrent": NORMALIZED}),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", KINDS)
def test_agent_learns_on_every_kind_of_environment(tmp_path: Path, kind: str) -> None:
    env, options = KINDS[kind]
    agents = []
    for _ in range(2):
        agent = noterl.PPO(env, **{"recurrent": "lstm", "epochs": 2, **SMALL, **options})
        agent.compile(batch_size=16)
        agents.append(agent)
    whole, agent = agents
    before = [host(weight) for weight in networks.variables(agent.actor)]
    whole.fit(steps=52, num_envs=2, verbose=0)
    agent.fit(steps=26, num_envs=2, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    agent.restore(tmp_path / "agent.noterl")
    agent.fit(steps=26, num_envs=2, verbose=0)
    assert_same_state(agent, whole)
    assert any((host(w) != old).any() for w, old in zip(networks.variables(agent.actor), before, strict=True))
    assert agent.evaluate(episodes=1)["lengths"][0] > 0
    if kind == "cell":
        agent.save(tmp_path / "agent.noterl")
        assert_same_state(noterl.load(tmp_path / "agent.noterl"), agent)


def off_policy(kind: str, env: Any, recurrent: Any = "lstm", learning_starts: int = 20, **options: Any) -> Any:
    agent = getattr(noterl, kind)(
        env, recurrent=recurrent, recurrent_units=6, hidden=(8,), sequence_length=8, seed=4, **options
    )
    agent.compile(replay=300, batch_size=4, learning_starts=learning_starts, update_every=8, updates=1)
    return agent


OFF_POLICY: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "DQN": ("DQN", "CartPole-v1", {}),
    "DQN, dueling, burn-in": ("DQN", "CartPole-v1", {"dueling": True, "double": False, "burn_in": 3}),
    "DQN, masks": ("DQN", MaskedWalk, {}),
    "DQN, images": ("DQN", lambda: ImageEnv((36, 36, 1)), {}),
    "SAC, Box": ("SAC", "Pendulum-v1", {"burn_in": 3}),
    "SAC, Discrete": ("SAC", "CartPole-v1", {}),
    "SAC, masks": ("SAC", MaskedWalk, {"temperature": 0.1}),
    "SAC, normalized": ("SAC", "Pendulum-v1", {"normalize_observation": True, "normalize_reward": True}),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", OFF_POLICY)
def test_replay_agent_learns_and_resumes_bit_for_bit(tmp_path: Path, case: str) -> None:
    kind, env, options = OFF_POLICY[case]
    whole, agent = (off_policy(kind, env, **options) for _ in range(2))
    actor = agent.q if kind == "DQN" else agent.actor
    before = [host(weight) for weight in networks.variables(actor)]
    whole.fit(steps=170, num_envs=2, verbose=0)
    agent.fit(steps=85, num_envs=2, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    agent.restore(tmp_path / "agent.noterl")
    agent.fit(steps=85, num_envs=2, verbose=0)
    assert_same_state(agent, whole)
    assert agent.updates > 3
    assert any((host(w) != old).any() for w, old in zip(networks.variables(actor), before, strict=True))
    assert np.isfinite(agent.evaluate(episodes=1)["returns"]).all()


@pytest.mark.parametrize("kind", ["DQN", "SAC"])
def test_loss_of_sequences_equals_that_of_rows_for_a_cell_that_forgets(kind: str) -> None:
    env = "CartPole-v1" if kind == "DQN" else "Pendulum-v1"
    fixed = {} if kind == "DQN" else {"temperature": 0.1}
    agent, usual = (
        off_policy(kind, env, Forgets, NO_UPDATE, **fixed),
        getattr(noterl, kind)(env, hidden=(8,), seed=4, **fixed),
    )
    agent.fit(steps=120, num_envs=2, verbose=0)
    usual.build()
    sample = agent.replay.sample(1, 4, generator=np.random.default_rng(0))
    sequences = agent.replay.gather(sample, gamma=0.9)
    rng = np.random.default_rng(1)
    noise = {f"{prefix}noise": rng.normal(size=(8, 4, 1)).astype(np.float32) for prefix in ("", "next_")}
    tensor = keras.ops.convert_to_tensor
    turned = noterl.types.map_arrays(
        lambda array: tensor(np.swapaxes(array[0], 0, 1)), sequences._replace(index={}, extra={})
    )
    extra = {name: tensor(np.swapaxes(sequences.extra[name][0], 0, 1)) for name in ("starts", "continues")}
    state = {name: tensor(value[0]) for name, value in sequences.extra["state"].items()}
    batch = turned._replace(extra={**extra, "state": state, **noise})
    rows = noterl.types.map_arrays(lambda array: keras.ops.reshape(array, (32, *array.shape[2:])), turned)
    rows = rows._replace(extra={name: value.reshape(32, 1) for name, value in noise.items()})
    names = ("q", "target_q") if kind == "DQN" else ("actor", "critics", "target_critics")
    for name in names:  # the same weights
        ours, theirs = getattr(agent, name), getattr(usual, name)
        pairs = zip(ours, theirs, strict=True) if isinstance(ours, list) else [(ours, theirs)]
        for one, other in pairs:
            for source, target in zip(networks.variables(one), networks.variables(other), strict=True):
                target.assign(source)
    loss = "loss" if kind == "DQN" else "critic_loss"
    expected, expected_feedback = getattr(usual, loss)(rows)
    agent.replay.n_step = 1
    found, feedback = getattr(agent, loss)(batch)
    np.testing.assert_allclose(host(found), host(expected), rtol=1e-5)
    np.testing.assert_allclose(
        host(feedback["td_error"]).reshape(32), host(expected_feedback["td_error"]), rtol=1e-4, atol=1e-5
    )


def gru_values(network: Any, observations: np.ndarray, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of a network with a GRU and hidden layers of ReLU, and the next state, in float64."""
    kernel, bias, recurrent, recurrent_bias, *layers = (w.astype(np.float64) for w in networks.get_weights(network))
    (r, z, n), (r_by, z_by, n_by) = (
        np.split(side, 3, axis=-1) for side in (observations @ kernel + bias, hidden @ recurrent + recurrent_bias)
    )
    reset, kept = (1 / (1 + np.exp(-gate)) for gate in (r + r_by, z + z_by))
    hidden = x = (1 - kept) * np.tanh(n + reset * n_by) + kept * hidden
    *before_last, (weight, last_bias) = zip(layers[::2], layers[1::2], strict=True)
    for layer, layer_bias in before_last:
        x = np.maximum(x @ layer + layer_bias, 0)
    return x @ weight + last_bias, hidden


def test_loss_of_r2d2_is_that_of_the_paper() -> None:
    """Kapturowski et al. (2019): double n-step targets, burn-in of both networks, stored states and Huber's loss."""
    agent = off_policy("DQN", "CartPole-v1", "gru", NO_UPDATE, burn_in=3)
    agent.fit(steps=120, num_envs=2, verbose=0)
    rng = np.random.default_rng(2)
    networks.set_weights(agent.target_q, [w + rng.normal(size=w.shape) for w in networks.get_weights(agent.q)])
    length, count, gamma, steps = 8 + 3, 4, 0.9, agent.replay.n_step
    sequences = agent.replay.gather(agent.replay.sample(1, count, generator=rng), gamma=gamma)
    names = ("observation", "action", "reward", "next_observation", "discount", "weight")
    rows = {name: np.swapaxes(getattr(sequences, name)[0], 0, 1) for name in names}  # [T, S, ...]
    rows |= {name: np.swapaxes(sequences.extra[name][0], 0, 1) for name in ("starts", "continues")}
    assert rows["starts"].any() and rows["weight"][3:].all() and not rows["weight"][:3].any() and steps == 3
    q, targets = np.zeros((length, count, 2)), np.zeros((length, count))
    states = {name: sequences.extra["state"]["hidden"][0].astype(np.float64) for name in ("q", "target_q")}
    for t in range(length):
        following = {}
        for name in states:
            before = np.where(rows["starts"][t][:, None] > 0, 0, states[name])
            values, states[name] = gru_values(getattr(agent, name), rows["observation"][t], before)
            q[t] = values if name == "q" else q[t]
            following[name], _ = gru_values(getattr(agent, name), rows["next_observation"][t], states[name])
        targets[t] = np.take_along_axis(following["target_q"], following["q"].argmax(-1)[:, None], -1)[:, 0]
    errors = np.zeros((length, count))
    for lane in range(count):
        for t in range(length):
            target, factor, row = 0.0, 1.0, t
            for row in range(t, min(t + steps, length)):
                target += factor * rows["reward"][row, lane]
                factor *= rows["discount"][row, lane]
                if not rows["continues"][row, lane]:
                    break
            target += factor * targets[row, lane]
            errors[t, lane] = q[t, lane, rows["action"][t, lane]] - target
    sizes = np.abs(errors[3:])
    expected = (rows["weight"][3:] * np.where(sizes <= 1, 0.5 * sizes**2, sizes - 0.5)).mean()
    tensor = keras.ops.convert_to_tensor
    extra = {**{name: tensor(rows[name]) for name in ("starts", "continues")}}
    extra["state"] = {"hidden": tensor(sequences.extra["state"]["hidden"][0])}
    batch = sequences._replace(**{name: tensor(rows[name]) for name in names}, index={}, extra=extra)
    found, feedback = agent.loss(batch)
    np.testing.assert_allclose(host(found), expected, rtol=1e-4)
    np.testing.assert_allclose(host(feedback["td_error"])[3:], errors[3:], rtol=1e-3, atol=1e-4)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recurrent": "rnn"}, "recurrent must be 'gru'"),
        ({"recurrent": Forgets(4)}, "recurrent must be a function"),
        ({"recurrent": 3}, "recurrent must be 'gru'"),
        ({"recurrent": lambda inputs: None}, r"recurrent: .*must return a cell"),
        ({"recurrent": "gru", "recurrent_units": 0}, "recurrent_units must be a positive int"),
        ({"sequence_length": 4}, r"sequence_length must .*recurrent"),
        ({"recurrent": "gru", "network": networks.mlp(4, [], 2)}, "network must be None with recurrent"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noterl.PPO("CartPole-v1", **options)
