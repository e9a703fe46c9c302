"""One update of recurrent PPO equals that of Stable-Baselines3 Contrib, as recorded by `peers/ppo_lstm_update.py`."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from benchmarks.peers.ppo_lstm_update import PATH, SPACES, UNITS
from benchmarks.peers.trpo_update import HIDDEN, LANES, STEPS, Spaces
from noterl.backends import current
from noterl.types import Transition

RECORDED = json.loads(PATH.read_text())
RUNS = {run["kind"]: run for run in RECORDED["runs"]}
OTHERS = ("learning_rate", "clipnorm")


def arrays(weights: list[Any]) -> list[np.ndarray]:
    return [np.array(weight, np.float32) for weight in weights]


def fill(learner: Any, case: dict[str, Any]) -> None:
    """Fill the rollout with the recorded steps, which begin inside of episodes with the recorded states."""
    learner.open(LANES)
    observation = np.array(case["observation"], np.float32)
    names = ("hidden", "cell")
    starts = np.zeros(LANES, np.float32)
    for t in range(STEPS):
        states = dict(zip((f"state.{name}" for name in names), arrays(case["actor_states"][t]), strict=True))
        learner.rollout.begin_round(observation[t], np.array(case["action"][t]), {"starts": starts, **states})
        for lane in range(LANES):
            reward, terminated = case["reward"][t][lane], case["terminated"][t][lane]
            learner.rollout.add(Transition(lane, None, None, reward, observation[t + 1, lane], terminated, False))
        learner.rollout.end_round()
        starts = np.array(case["terminated"][t], np.float32)
    learner.rollout.learner_state = dict(zip(names, arrays(case["critic_state"]), strict=True))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", SPACES)
def test_update_equals_the_recorded_one(kind: str) -> None:
    settings, case = RECORDED["settings"], RUNS[kind]
    env = Spaces(SPACES[kind])
    agent = noterl.PPO(
        (env.observation_space, env.action_space),
        recurrent="lstm",
        recurrent_units=UNITS,
        hidden=(HIDDEN,),
        activation="tanh",
        rollout_steps=STEPS,
        sequence_length=STEPS,
        normalize_advantage=False,
        seed=1,
        **{name: value for name, value in settings.items() if name not in OTHERS},
    )
    for network, weights in ((agent.actor, case["before"]["actor"]), (agent.critic, case["before"]["critic"])):
        noterl.networks.set_weights(network, arrays(weights))
    rate, norm = (settings[name] for name in OTHERS)
    agent.compile(keras.optimizers.SGD(rate, global_clipnorm=norm), batch_size="rollout")
    learner: Any = agent._parts.build()[0]
    fill(learner, case)
    updates = learner.due(0, 0, 0).updates
    sample = learner.sample(updates)
    for name in ("advantage", "target"):
        values = current().fetch(learner.prepared_rows.extra[name])  # sequences of whole lanes
        found = values.reshape(STEPS, LANES) if values.shape[0] == STEPS else values.reshape(LANES, STEPS).T
        np.testing.assert_allclose(found, case[name], rtol=1e-4, atol=1e-5, err_msg=name)
    with learner.batches([sample], updates) as batches:
        result = learner.update(next(batches), updates)
    assert result.applied == updates == settings["epochs"]
    for name, network in (("actor", agent.actor), ("critic", agent.critic)):
        for before, weight, after in zip(
            case["before"][name], noterl.networks.get_weights(network), case["after"][name], strict=True
        ):
            np.testing.assert_allclose(weight, np.array(after), rtol=1e-4, atol=1e-5, err_msg=name)
            assert np.abs(weight - np.array(before)).max() > 1e-3
