"""One update of TRPO equals that of Stable-Baselines3 Contrib, whose numbers `peers/trpo_update.py` recorded."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from benchmarks.peers.trpo_update import HIDDEN, LANES, PATH, SPACES, STEPS, Spaces
from noterl.backends import current
from noterl.types import Transition

RECORDED = json.loads(PATH.read_text())
RUNS = {run["kind"]: run for run in RECORDED["runs"]}
ARGUMENTS = (
    *("gamma", "gae_lambda", "target_kl", "cg_iterations", "cg_damping", "line_search_steps", "line_search_shrink"),
    "epochs",
)


def arrays(weights: list[Any]) -> list[np.ndarray]:
    return [np.array(weight, np.float32) for weight in weights]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", SPACES)
def test_update_equals_the_recorded_one(kind: str) -> None:
    settings, case = RECORDED["settings"], RUNS[kind]
    own = {name: settings[name] for name in ARGUMENTS}
    # Stable-Baselines3 Contrib averages the divergence over the values of such an action; noterl adds them.
    values = {"binary": 3, "box": 2}.get(kind, 1)
    own |= {name: values * settings[name] for name in ("target_kl", "cg_damping")}
    env = Spaces(SPACES[kind])
    agent = noterl.TRPO((env.observation_space, env.action_space), hidden=(HIDDEN,), rollout_steps=STEPS, seed=1, **own)
    for network, weights in ((agent.actor, case["before"]["actor"]), (agent.critic, case["before"]["critic"])):
        noterl.networks.set_weights(network, arrays(weights))
    optimizer = keras.optimizers.Adam(settings["learning_rate"], epsilon=settings["epsilon"])
    agent.compile(optimizer, batch_size="rollout")
    learner: Any = agent._parts.build()[0]
    observation = np.array(case["observation"], np.float32)
    learner.rollout.open(LANES)
    for t in range(STEPS):
        learner.rollout.begin_round(observation[t], np.array(case["action"][t]))
        for lane in range(LANES):
            reward, terminated = case["reward"][t][lane], case["terminated"][t][lane]
            learner.rollout.add(Transition(lane, None, None, reward, observation[t + 1, lane], terminated, False))
        learner.rollout.end_round()

    updates = learner.due(0, 0, 0).updates
    sample = learner.sample(updates)
    for name in ("advantage", "target"):
        found = current().fetch(learner.prepared_rows.extra[name]).reshape(STEPS, LANES)
        np.testing.assert_allclose(found, case[name], rtol=1e-4, atol=1e-5, err_msg=name)
    with learner.batches([sample], updates) as batches:
        result = learner.update(next(batches), updates)
    assert result.applied == updates == settings["epochs"]
    accepted = current().fetch(result.logs["step_accepted"])
    assert accepted.all() and case["logs"]["train/is_line_search_success"] == 1
    for name, network in (("actor", agent.actor), ("critic", agent.critic)):
        for before, weight, after in zip(
            case["before"][name], noterl.networks.get_weights(network), case["after"][name], strict=True
        ):
            np.testing.assert_allclose(weight, np.array(after), rtol=1e-4, atol=1e-5, err_msg=name)
            assert np.abs(weight - np.array(before)).max() > 1e-3
