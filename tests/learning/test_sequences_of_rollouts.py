"""Updates of an agent with a state receive sequences of its rollouts, each with the state before its first row."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest

import noterl
from tests.support.stateful import PATHS, StepNumberEnv, counted, logs_of_updates
from tests.support.states import assert_same_state

ops = keras.ops


class RolloutCounter(noterl.Agent):
    """Its state counts the steps of an episode, and so does the state of its learner; observations show the number.

    Both losses are zero exactly if the states are right. They are 1 per row that is wrong.
    """

    memory, head = "rollout", noterl.heads.Categorical()
    state_spec: ClassVar[dict[str, Any]] = {"count": ()}
    learner_state_spec: ClassVar[dict[str, Any]] = {"seen": ()}
    epochs = 2

    def __init__(self, env: Any, *, rollout_steps: int = 12, sequence_length: int | None = 4, seed: int = 0) -> None:
        super().__init__(env, seed=seed)
        self.rollout_steps, self.sequence_length = rollout_steps, sequence_length
        self.logits = noterl.networks.mlp(1, [], 3)

    def forward(self, observation: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return self.logits(observation), {"count": state["count"] + 1}

    def prepare(self, rollout: Any) -> dict[str, Any]:
        seen, after = counted(rollout.extra["learner_state"]["seen"], rollout.extra["starts"])
        wrong = ops.cast(seen != rollout.observation[..., 0], "float32")
        last = ops.where(rollout.extra["ended"][-1] > 0, ops.zeros_like(after), after)
        return {"wrong": wrong, "learner_state": {"seen": last}}

    def loss(self, batch: Any) -> Any:
        counts, _ = counted(batch.extra["state"]["count"], batch.extra["starts"])
        wrong = ops.cast(counts != batch.observation[..., 0], "float32")
        logits = noterl.losses.map_rows(self.logits, batch.observation)
        return 0.0 * ops.mean(logits) + ops.sum(batch.weight * wrong), {
            "wrong_learner_state": ops.sum(batch.weight * batch.extra["wrong"]),
            "started": ops.sum(batch.weight * batch.extra["starts"]),
            "rows": ops.convert_to_tensor(float(batch.reward.shape[0])),
        }


def fit(agent: noterl.Agent, steps: int = 144, **options: Any) -> dict[str, list[float]]:
    """Train an agent, and return the logs of all updates."""
    if not agent.steps:
        agent.compile(batch_size=8)
    return logs_of_updates(agent, steps, **options)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings(
    "ignore:workers. NumPy cannot run:RuntimeWarning", "ignore:the budget ended within a step:RuntimeWarning"
)
def test_states_are_those_of_the_episodes(path: str) -> None:
    env, options = PATHS[path]
    logs = fit(RolloutCounter(env), **options)
    assert len(logs["loss"]) >= 12
    assert not any(logs["loss"])
    assert not any(logs["wrong_learner_state"])
    assert any(logs["started"])
    assert set(logs["rows"]) == {4.0}


def test_states_are_right_on_each_backend() -> None:
    logs = fit(RolloutCounter(StepNumberEnv), steps=48, num_envs=2)
    assert not any(logs["loss"])
    assert not any(logs["wrong_learner_state"])


@pytest.mark.backends("torch")
def test_fits_and_files_continue_the_states(tmp_path: Path) -> None:
    whole, agent = RolloutCounter(StepNumberEnv, seed=3), RolloutCounter(StepNumberEnv, seed=3)
    fit(whole, steps=70, num_envs=2)
    for _ in range(7):
        logs = fit(agent, steps=10, num_envs=2)
        assert not any(logs.get("loss", []))
        assert not any(logs.get("wrong_learner_state", []))
        agent.save(tmp_path / "agent.noterl")
        agent = RolloutCounter(StepNumberEnv, seed=3)
        agent.compile(batch_size=8)
        agent.restore(tmp_path / "agent.noterl")
    assert_same_state(agent, whole)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("rollout_steps", "length", "batch_size", "expected"),
    [(12, None, 8, 4), (12, 6, 12, 6), (128, None, "rollout", 64), (7, None, 5, 1), (2048, None, 64, 64)],
)
def test_default_length_divides_rollout_and_batch(
    rollout_steps: int, length: int | None, batch_size: Any, expected: int
) -> None:
    agent = RolloutCounter(StepNumberEnv, rollout_steps=rollout_steps, sequence_length=length)
    agent.compile(batch_size=batch_size)
    assert agent._parts.learner.sequence_length == expected


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("length", "batch_size", "message"),
    [
        (5, 10, r"sequence_length must .*got 5"),
        (4, 10, r"batch_size must .*sequence_length=4"),
        (0, 8, "sequence_length must be a positive int"),
    ],
)
def test_lengths_that_do_not_divide_are_refused(length: int, batch_size: int, message: str) -> None:
    agent = RolloutCounter(StepNumberEnv, sequence_length=length)
    with pytest.raises(ValueError, match=message):
        agent.compile(batch_size=batch_size)


@pytest.mark.backends("torch")
def test_learner_state_is_checked() -> None:
    class Forgetful(RolloutCounter):
        def prepare(self, rollout: Any) -> dict[str, Any]:
            return {"wrong": np.zeros_like(rollout.reward)}

    with pytest.raises(ValueError, match="prepare of Forgetful must"):
        Forgetful(StepNumberEnv).build()


@pytest.mark.backends("torch")
def test_state_of_the_critic_alone_raises() -> None:
    class CriticOnly(noterl.A2C):
        learner_state_spec: ClassVar[dict[str, Any]] = {"seen": ()}

    with pytest.raises(ValueError, match=r"^learner_state_spec of CriticOnly needs a state_spec"):
        CriticOnly("CartPole-v1", hidden=(4,), seed=1).build()
