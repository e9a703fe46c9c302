"""1,000 updates equal those of Stable-Baselines3 Contrib, whose weights `peers/replay_updates.py` recorded."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from benchmarks.peers.replay_updates import (
    GAMMA,
    HIDDEN,
    PARTS,
    PATH,
    QUANTILES,
    ROWS,
    SPACES,
    UPDATES,
    Spaces,
    batches,
)
from noterl.types import Batch
from tests.support.parts import run_updates

RUNS = {run["name"]: run for run in json.loads(PATH.read_text())["runs"]}
# The peer's defaults: the learning rate, the momentum of Adam, and its epsilon.
OPTIMIZERS = {"TQC": (3e-4, 0.9, 1e-8), "CrossQ": (1e-3, 0.5, 1e-8), "QRDQN": (5e-5, 0.9, 0.01 / ROWS)}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "TQC": {"critics": 2},
    "CrossQ": {"critic_hidden": HIDDEN},
    "QRDQN": {"quantiles": QUANTILES, "double": False},
}


def make(name: str) -> Any:
    """Return an agent with the peer's weights and optimizers."""
    import torch

    def optimizer(rate: float, beta: float, epsilon: float) -> Any:
        return lambda parameters: torch.optim.Adam(parameters, rate, betas=(beta, 0.999), eps=epsilon)

    env = Spaces(SPACES[name])
    spaces = env.observation_space, env.action_space
    agent = getattr(noterl, name)(spaces, hidden=HIDDEN, gamma=GAMMA, seed=1, **ARGUMENTS[name])
    before = {key: arrays(weights) for key, weights in RUNS[name]["before"].items()}
    rate = OPTIMIZERS[name][0]
    optimizers = {key: optimizer(*OPTIMIZERS[name]) for key in agent.optimizer_names}
    if name != "QRDQN":
        optimizers["temperature"] = optimizer(rate, 0.9, 1e-8)
    targets = {"TQC": {"target_update": 0.005}, "QRDQN": {"target_update": 1_000}}.get(name, {})
    agent.compile(optimizers, replay=ROWS, batch_size=ROWS, learning_starts=0, **targets)
    agent.build()
    for key, network in networks_of(agent).items():
        if key == "temperature":
            network.assign(before[key][0])
        else:
            noterl.networks.set_weights(network, before[key])
    for critic, target in zip(getattr(agent, "critics", []), getattr(agent, "target_critics", []), strict=False):
        noterl.networks.copy(critic, target)
    if name == "QRDQN":
        agent.update_target()
    return agent


def use_float64(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an agent compute in float64: its weights, and wherever noterl converts to float32."""
    import torch

    cast = keras.ops.cast
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(keras.ops, "cast", lambda x, dtype: cast(x, "float64" if dtype == "float32" else dtype))
    for network in (agent.actor, *agent.critics):
        network.double()
    agent.log_temperature.value.data = agent.log_temperature.value.data.double()


def networks_of(agent: Any) -> dict[str, Any]:
    if isinstance(agent, noterl.QRDQN):
        return {"q": agent.q}
    critics = {f"critic {number}": critic for number, critic in enumerate(agent.critics)}
    return {**critics, "actor": agent.actor, "temperature": agent.log_temperature}


def arrays(weights: list[Any]) -> list[np.ndarray]:
    return [np.array(weight, np.float32) for weight in weights]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", SPACES)
def test_weights_after_the_updates_equal_the_recorded_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, agent = batches(SPACES[name]), make(name)
    dtype = np.float64 if name == "CrossQ" else np.float32
    if name == "CrossQ":
        use_float64(agent, monkeypatch)
        data = {field: array.astype(dtype) for field, array in data.items()}
    extra = {field: data[field] for field in agent.random_spec}
    ones = np.ones((UPDATES, ROWS), dtype)
    discount = (GAMMA * (1 - data["terminated"])).astype(dtype)
    fields = data["observation"], data["action"], data["reward"], data["next_observation"], discount, ones
    size = UPDATES // (PARTS if name == "QRDQN" else 1)
    for start in range(0, UPDATES, size):
        rows = slice(start, start + size)
        index = np.zeros((size, ROWS), np.int32)
        batch = Batch(*(field[rows] for field in fields), index, {key: value[rows] for key, value in extra.items()})
        assert run_updates(agent, batch, size).applied == size
        if name == "QRDQN":
            agent.update_target()
    for key, network in networks_of(agent).items():
        found = noterl.networks.get_weights(network)
        recorded = [[np.array(weight) for weight in RUNS[name][time][key]] for time in ("before", "after")]
        for weight, before, after in zip(found, *recorded, strict=True):
            np.testing.assert_allclose(weight, after, rtol=1e-4, atol=2e-6, err_msg=key)
            assert np.abs(after - before).max() > 1e-3
