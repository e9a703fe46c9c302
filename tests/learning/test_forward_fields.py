"""Fields that `forward` returns beside its output: stored with each step, and passed to updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import heads
from noterl.backends import current
from noterl.collect import Workers
from tests.support.batches import Corridor
from tests.support.parts import actor_of, learner_of
from tests.support.representatives import representatives
from tests.support.states import assert_same_state

SPEC = {"logits": ((2,), "float32"), "value": ((), "float32")}


@noterl.register
class Returning(noterl.Agent):
    """Returns its logits and twice the first value of the observation; learns from replay or rollouts."""

    memory, head, rollout_steps, epochs = "replay", heads.Categorical(), 4, 2
    extra_spec = SPEC

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.net = noterl.networks.mlp(self.observation_size, (4,), self.action_size)
        self.gamma = 0.9

    def forward(self, observation: Any) -> Any:
        logits = self.net(observation)
        return logits, {"value": 2.0 * observation[:, 0], "logits": logits}

    def loss(self, batch: Any) -> Any:
        logits, _ = self.forward(batch.observation)
        ratio = self.head.log_prob(logits, batch.action) - self.head.log_prob(batch.extra["logits"], batch.action)
        return keras.ops.mean(keras.ops.square(ratio)) + 0.1 * keras.ops.mean(batch.extra["value"] * logits[:, 0])


class ReturningRollouts(Returning):
    memory = "rollout"

    def prepare(self, rollout: Any) -> dict[str, Any]:
        return {"advantage": rollout.reward + rollout.extra["value"]}


def made(kind: Any = Returning, **changes: Any) -> Any:
    agent = kind(lambda: Corridor(), seed=3)
    schedule = {} if kind.memory == "rollout" else {"learning_starts": 5, "update_every": 2, "updates": 2}
    agent.compile(batch_size=4, **{**schedule, **changes})
    return agent


def logits_of(agent: Any, observations: np.ndarray) -> np.ndarray:
    logits, _ = agent.forward(keras.ops.convert_to_tensor(observations))
    return current().fetch(logits)


def test_replay_memory_stores_the_fields_of_the_acting_policy() -> None:
    agent = made(learning_starts=1_000)  # random actions, and a constant policy
    agent.fit(steps=25, num_envs=2, verbose=0)
    batch = agent.replay.gather(agent.replay.sample(1, 25, generator=np.random.default_rng(0)), gamma=0.9)
    np.testing.assert_allclose(batch.extra["value"], 2.0 * batch.observation[..., 0], rtol=1e-6)
    flat = batch.observation.reshape(-1, 3)
    np.testing.assert_allclose(batch.extra["logits"].reshape(-1, 2), logits_of(agent, flat), rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch")
def test_workers_let_the_learner_act_and_say_so() -> None:
    with pytest.warns(RuntimeWarning, match=r"workers: forward .*overlap"):
        history = made().fit(steps=20, workers=Workers(1, overlap=True), verbose=0)
    assert "staleness" not in history.history


def test_fields_of_training_are_those_of_the_policy_at_that_time() -> None:
    agent = made()
    agent.fit(steps=30, verbose=0)
    batch = agent.replay.gather(agent.replay.sample(1, 30, generator=np.random.default_rng(0)), gamma=0.9)
    flat = batch.observation.reshape(-1, 3)
    assert agent.updates > 20
    assert not np.allclose(batch.extra["logits"].reshape(-1, 2), logits_of(agent, flat), atol=1e-4)


@pytest.mark.parametrize("memory", representatives([None, 64], 64))
def test_rollouts_hold_the_fields(memory: int | None) -> None:
    agent = made(ReturningRollouts, **({} if memory is None else {"replay": memory}))
    agent.fit(steps=8, num_envs=2, verbose=0)
    rollout = learner_of(agent).rollout.batch(gamma=0.9)
    np.testing.assert_allclose(rollout.extra["value"], 2.0 * rollout.observation[..., 0], rtol=1e-6)
    assert rollout.extra["logits"].shape == (4, 2, 2) and agent.updates > 0
    if memory is not None:
        batch = agent.replay.gather(agent.replay.sample(1, 8, generator=np.random.default_rng(0)), gamma=0.9)
        np.testing.assert_allclose(batch.extra["advantage"], batch.reward + batch.extra["value"], rtol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", [Returning, ReturningRollouts])
def test_resumed_run_equals_an_uninterrupted_one(kind: Any, tmp_path: Path) -> None:
    agent = made(kind)
    agent.fit(steps=13, num_envs=2, verbose=0)  # ends in the middle of a round
    agent.save(tmp_path / "agent.noterl")
    agent.fit(steps=14, num_envs=2, verbose=0)
    resumed = noterl.load(tmp_path / "agent.noterl", {kind.__name__: kind})
    resumed.fit(lambda: Corridor(), steps=14, num_envs=2, verbose=0)
    assert_same_state(resumed, agent)


@pytest.mark.backends("torch")
def test_step_of_a_round_before_compile_is_stored_with_its_fields() -> None:
    agent = made()
    agent.fit(steps=3, num_envs=2, verbose=0)
    with pytest.warns(UserWarning, match="replay: "):
        agent.compile(replay=64, batch_size=4)
    agent.fit(steps=1, num_envs=2, verbose=0)
    assert len(agent.replay) == 1
    agent.fit(steps=2, num_envs=2, verbose=0)
    assert len(agent.replay) == 3


@pytest.mark.backends("torch")
def test_actor_splits_output_and_fields() -> None:
    agent = made()
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    outputs, _ = actor_of(agent).outputs(observations)
    np.testing.assert_allclose(outputs, logits_of(agent, observations), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actor_of(agent).fields["value"], 2.0 * observations[:, 0], rtol=1e-6)
    assert agent.act(observations).tolist() == outputs.argmax(axis=1).tolist()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not declared": ({"extra_spec": {"value": ((), "float32")}}, "extra_spec .*must declare .*'logits'"),
    "nothing declared": ({"extra_spec": {}}, "extra_spec of Bad must declare"),
    "other shape": ({"extra_spec": {**SPEC, "logits": ((3,), "float32")}}, r"'logits' with the shape \(2,\)"),
    "not returned": ({"extra_spec": {**SPEC, "more": ((), "float32")}}, "declares more"),
    "a pair without a dict": ({"forward": lambda self, x: (self.net(x), x)}, "forward must return"),
    "wrong width": (
        {"forward": lambda self, x: (x, {"logits": self.net(x), "value": x[:, 0]})},
        r"forward must return .*\[B, 2\]",
    ),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", BAD)
def test_bad_fields_raise(case: str) -> None:
    changes, message = BAD[case]
    agent = made(type("Bad", (Returning,), changes))
    with pytest.raises(ValueError, match=message):
        agent.build()
