"""The losses of TD3BC, ReBRAC, IQL and CQL equal those of d3rlpy, as recorded by `peers/offline_update.py`."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from benchmarks.peers.offline_update import ACTIONS, HIDDEN, NAMES, OBSERVATION, PATH
from noterl.backends import current
from noterl.types import Batch
from tests.support.parts import learner_of

RECORDED = json.loads(PATH.read_text())
RUNS = {run["name"]: run for run in RECORDED["runs"]}


def make(name: str, weights: dict[str, Any]) -> Any:
    """Return a compiled agent with the recorded weights, whose optimizers change nothing."""
    action = spaces.Discrete(3) if name == "CQL" else spaces.Box(-1.0, 1.0, (ACTIONS,))
    env = spaces.Box(-np.inf, np.inf, (OBSERVATION,)), action
    settings = {**RECORDED["settings"][name], "gamma": RECORDED["settings"]["gamma"]}
    settings |= {"policy_delay": 1} if name in ("TD3BC", "ReBRAC") else {}
    settings |= {"layer_norm": False} if name == "ReBRAC" else {}
    agent = getattr(noterl, name)(env, hidden=HIDDEN, seed=1, **settings)
    for key, values in weights.items():
        attribute, *position = key.split()
        network = getattr(agent, attribute)
        network = network[int(position[0])] if position else network
        noterl.networks.set_weights(network, [np.array(value, np.float32) for value in values])
    agent.compile(keras.optimizers.SGD(0.0), batch_size=4, replay=noterl.Replay(8))
    agent.build()
    return agent


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", NAMES)
def test_losses_equal_the_recorded_ones(name: str) -> None:
    run = RUNS[name]

    def rows(key: str, dtype: Any = np.float32) -> np.ndarray:
        return np.array(run[key], dtype)[None]

    terminated = rows("terminated")
    batch = Batch(
        observation=rows("observation"),
        action=rows("action", np.int32 if name == "CQL" else np.float32),
        reward=rows("reward"),
        next_observation=rows("next_observation"),
        discount=np.float32(RECORDED["settings"]["gamma"]) * (1 - terminated),
        weight=np.ones_like(terminated),
        index=np.zeros(terminated.shape, np.int32),
        extra={
            "target_noise": rows("target_noise"),
            "next_action": rows("next_action"),
            "has_next_action": np.ones_like(terminated),
        },
    )
    agent = make(name, run["weights"])
    used = {key: batch.extra[key] for key in agent.random_spec}
    if agent.next_actions:
        used |= {key: batch.extra[key] for key in ("next_action", "has_next_action")}
    result = learner_of(agent).update(batch._replace(extra=used), 1)
    for key, expected in run["losses"].items():
        loss = float(current().fetch(result.logs[key])[0])
        # Errors are squared in d3rlpy, and half of that in noterl, as in the agents for environments.
        factor = 2 if key == "loss" and name != "CQL" else 1
        np.testing.assert_allclose(factor * loss, expected, rtol=1e-5, err_msg=key)
