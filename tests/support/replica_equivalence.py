"""Replicas make the updates of one device: run by `tests/distribute` in processes of its own.

`python -m tests.support.replica_equivalence WORD [UPDATES]` compares a strategy with no strategy. Both receive the same
global batches; each process of the strategy receives its share of the rows.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import keras
import numpy as np

import noterl
from noterl import backends, distribute
from noterl.distribute import SINGLE, Strategy
from noterl.types import Batch, map_arrays
from tests.support.batches import CONTINUOUS, VECTOR, random_batch
from tests.support.parts import learner_of

SIZE, GROUP = 16, 10


def own_network(*sizes: tuple[int, int]) -> Any:
    """Return Keras networks with these inputs and outputs and fixed weights, for float64; None in float32."""
    if keras.config.floatx() == "float32":
        return None
    networks = []
    for inputs, width in sizes:
        initial = keras.initializers.GlorotUniform(seed=len(networks))
        layers = [
            keras.layers.Dense(size, name, kernel_initializer=initial) for size, name in ((8, "tanh"), (width, None))
        ]
        networks.append(keras.Sequential([keras.Input((inputs,)), *layers]))
    return networks[0] if len(networks) == 1 else tuple(networks)


def dqn() -> noterl.Agent:
    agent = noterl.DQN(VECTOR, hidden=(8,), network=own_network((5, 3)), seed=3)
    agent.compile(optimizer=keras.optimizers.Adam(1e-2, global_clipnorm=0.1), batch_size=SIZE, target_update=0.05)
    return agent


def ppo() -> noterl.Agent:
    agent = noterl.PPO(VECTOR, hidden=(8,), network=own_network((5, 3), (5, 1)), seed=3, entropy_coefficient=0.01)
    agent.compile(optimizer=keras.optimizers.Adam(1e-2, global_clipnorm=0.1), batch_size=SIZE)
    return agent


def sac() -> noterl.Agent:
    # A learned temperature is a float32 variable.
    temperature = "auto" if keras.config.floatx() == "float32" else 0.1
    networks = own_network((5, 4), (7, 1), (7, 1))
    agent = noterl.SAC(CONTINUOUS, hidden=(8,), network=networks, temperature=temperature, seed=3)
    agent.compile(batch_size=SIZE, learning_starts=0)
    return agent


def acer() -> noterl.Agent:
    agent = noterl.ACER(VECTOR, hidden=(8,), network=own_network((5, 3), (5, 3)), rollout_steps=4, seed=3)
    agent.compile(optimizer=keras.optimizers.Adam(1e-2, global_clipnorm=0.1))
    return agent


AGENTS: dict[str, Callable[[], noterl.Agent]] = {"DQN": dqn, "PPO": ppo, "SAC": sac, "ACER": acer}


def global_batch(name: str, group: int, dtype: str) -> Batch:
    """Return the batches `[K, B, ...]` of a group of updates; weights and advantages differ between the shares."""
    batch = random_batch(GROUP, SIZE, CONTINUOUS if name == "SAC" else VECTOR, seed=group)
    if name == "PPO":
        rng = np.random.default_rng(group)
        shift = np.linspace(-2.0, 2.0, SIZE)
        fields = {field: rng.normal(size=(GROUP, SIZE)) for field in ("value", "target")}
        fields |= {
            "log_prob": np.log(rng.uniform(0.2, 0.5, (GROUP, SIZE))),
            "advantage": rng.normal(size=(GROUP, SIZE)) + shift,
        }
        # Rows without a step are more frequent in the second share.
        weight = (rng.random((GROUP, SIZE)) < np.linspace(1.0, 0.3, SIZE)).astype(np.float32)
        batch = batch._replace(extra=fields, weight=weight)
    if name == "ACER":
        rng = np.random.default_rng(group)
        behavior = rng.dirichlet(np.ones(3), (GROUP, SIZE))
        fields = {"behavior": behavior, "continues": (rng.random((GROUP, SIZE)) < 0.7).astype(np.float32)}
        # [K, T, N]: rows without a step are more frequent in the second share.
        steps, lanes = 4, SIZE // 4
        weight = (rng.random((GROUP, steps, lanes)) < np.linspace(1.0, 0.4, lanes)).astype(np.float32)
        batch = map_arrays(
            lambda array: array.reshape(GROUP, steps, lanes, *array.shape[2:]), batch._replace(extra=fields)
        )._replace(weight=weight)

    def cast(array: np.ndarray) -> np.ndarray:
        return array.astype(dtype) if np.issubdtype(array.dtype, np.floating) else array

    return map_arrays(cast, batch)


def train(name: str, strategy: Strategy, updates: int, dtype: str) -> tuple[dict[str, np.ndarray], list[float]]:
    """Return the weights and losses after some updates under a strategy."""
    agent = AGENTS[name]()
    learner, before = learner_of(agent), agent.get_weights()
    learner.use(strategy)
    rank, axis, losses = strategy.rank, 1 + learner.batch_axis, []
    with strategy.attached(learner.variables):
        for group in range(updates // GROUP):
            batch = global_batch(name, group, dtype)
            own = map_arrays(lambda array: np.split(array, strategy.processes, axis)[rank], batch)
            result = learner.update(own, GROUP)
            assert result.applied == GROUP
            losses += backends.current().fetch(result.logs["loss"]).tolist()
            shape = own.reward.shape
            assert all(tuple(value.shape) == shape for value in result.feedback.values())
    weights = agent.get_weights()
    assert max(float(np.abs(weights[key] - before[key]).max()) for key in weights) > 1e-3, "the weights did not change"
    return weights, losses


def differences(word: str, names: Iterable[str], updates: int, dtype: str) -> dict[str, float]:
    """Return the largest difference of weights and of losses between the strategy and one device, by algorithm.

    Only the chief computes them; the result of other processes is empty.
    """
    found = {}
    for name in names:
        strategy: Any = distribute.resolve(word)
        weights, losses = train(name, strategy, updates, dtype)
        if not strategy.is_chief:
            continue
        expected, expected_losses = train(name, SINGLE, updates, dtype)
        kinds = {key: str(value.dtype) for key, value in weights.items()}
        assert set(kinds.values()) == {dtype}, (name, kinds)
        found[name] = max(float(np.abs(weights[key] - expected[key]).max()) for key in weights)
        found[f"{name} loss"] = float(np.abs(np.subtract(losses, expected_losses)).max())
    return found


def assert_equivalent(output: str, *, float64: float) -> None:
    """Check the differences that `replica_equivalence` has printed."""
    found = dict(re.findall(r"(float32|float64) (\{.*\})", output))
    assert "float64" in found
    limits = {"float32": 1e-5, "float64": float64}
    for dtype, values in found.items():
        for name, difference in json.loads(values.replace("'", '"')).items():
            # The loss is logged in float32.
            assert difference < (1e-5 if "loss" in name else limits[dtype]), (dtype, name, difference)


def report(dtype: str, found: dict[str, float]) -> None:
    if found:
        print(dtype, found)


def main(word: str, names: Iterable[str] = AGENTS, updates: int = 200) -> None:
    sys.modules.setdefault("tensorflow", None)  # type: ignore[arg-type]  # Keras imports it to clone float64 networks
    if "SAC" in names:
        report("float32", differences(word, ["SAC"], 10, "float32"))
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    if backends.name() == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    if backends.name() == "torch":
        import torch

        torch.set_default_dtype(torch.float64)
    # noterl trains in float32 only. In float64, an error in the mathematics cannot hide behind rounding.
    with mock.patch.object(backends, "check_precision"):
        report("float64", differences(word, names, updates, "float64"))


if __name__ == "__main__":
    main(sys.argv[1], updates=int(sys.argv[2]) if sys.argv[2:] else 200)
