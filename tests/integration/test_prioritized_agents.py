"""Agents with a prioritized memory."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl.replay import Prioritized, RatioScore, Replay
from tests.support import reference_numpy as reference
from tests.support.batches import Corridor, row
from tests.support.parts import learner_of
from tests.support.states import assert_same_state, one_lane


def agent_with(**changes: Any) -> noterl.DQN:
    """Return a small agent whose memory of 128 transitions overflows, with groups of four updates."""
    return one_lane(replay=Replay(128, sampler=Prioritized(beta_steps=300)), **changes)


@pytest.fixture(scope="module")
def trained() -> noterl.DQN:
    agent = agent_with()
    agent.fit(episodes=16, verbose=0)
    return agent


@pytest.mark.backends("torch")
def test_training_updates_the_priorities(trained: noterl.DQN) -> None:
    assert trained.updates > 100
    scores = trained.replay.get_state()["sampler"]["scores"]
    assert len(scores) == 128
    assert len(np.unique(scores)) > 64
    assert 0 < trained.replay.sampler.get_state()["largest"] < 1000


@pytest.mark.backends("torch")
@pytest.mark.parametrize("calls", [1, 3])
def test_steps_per_execution_does_not_change_the_run(trained: noterl.DQN, calls: int) -> None:
    agent = agent_with(steps_per_execution=calls)
    agent.fit(episodes=16, verbose=0)
    assert_same_state(agent, trained)


@pytest.mark.backends("torch")
def test_restored_run_equals_an_uninterrupted_one(trained: noterl.DQN, tmp_path: Any) -> None:
    agent = agent_with()
    agent.fit(episodes=8, verbose=0)
    assert agent.updates > 20
    agent.save(tmp_path / "half.noterl")
    other = noterl.load(tmp_path / "half.noterl")
    other.fit(episodes=8, verbose=0)
    assert_same_state(other, trained)


def test_td_errors_become_scores_and_weights_reach_the_loss() -> None:
    agent = noterl.DQN(Corridor(), double=False, hidden=(12,), gamma=0.9, seed=3)
    sampler = Prioritized(alpha=0.6, beta=0.8)
    agent.compile(
        keras.optimizers.Adam(3e-3),
        replay=Replay(64, sampler=sampler),
        batch_size=8,
        learning_starts=0,
        update_every=40,
        updates=5,
        target_update=10_000,
    )
    agent.fit(steps=39, verbose=0)
    assert agent.updates == 0
    values = np.random.default_rng(0).random(39).astype(np.float32)
    sampler.feedback(np.arange(39), {"td_error": values})
    weights = agent.get_state()["variables"]
    expected_dqn = reference.DQN(
        reference.mlp((12,)), weights["q"], weights["target_q"], reference.Adam(3e-3), double=False
    )
    learner: Any = learner_of(agent)
    gathered, gather = [], learner.gather

    def recorded(sample: Any) -> Any:
        gathered.append(gather(sample))
        return gathered[-1]

    learner.gather = recorded
    agent.fit(steps=1, verbose=0)
    (batch,) = gathered
    assert batch.weight.shape == (5, 8)
    assert batch.weight.min() < 0.9

    scores = np.concatenate([values, [values.max()]]).astype(np.float64)
    chances = (scores + 1e-7) ** 0.6
    chances /= chances.sum()
    expected = (40 * chances[batch.index]) ** -0.8
    np.testing.assert_allclose(batch.weight, expected / expected.max(1, keepdims=True), rtol=1e-5)
    for k in range(5):
        _, errors = expected_dqn.update(row(batch, k))
        scores[batch.index[k]] = np.abs(errors)
    np.testing.assert_allclose(sampler.get_state()["scores"], scores, rtol=1e-4, atol=1e-5)
    for actual, wanted in zip(agent.get_state()["variables"]["q"], expected_dqn.weights, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=2e-6)
    chances = (scores + 1e-7) ** 0.6
    np.testing.assert_allclose(sampler.probabilities(), chances / chances.sum(), rtol=1e-3)


class WithoutFeedback(noterl.DQN):
    """Returns a loss without feedback."""

    def loss(self, batch: Any) -> Any:
        return super().loss(batch)[0]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("kind", "score", "message"),
    [
        (WithoutFeedback, None, r"feedback .*td_error.*WithoutFeedback"),
        (noterl.DQN, RatioScore(), r"feedback .*ratio.*DQN.*td_error"),
    ],
)
def test_missing_feedback_raises(kind: Any, score: Any, message: str) -> None:
    agent = kind("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(replay=Replay(64, sampler=Prioritized(score=score)), batch_size=4, learning_starts=8, update_every=4)
    with pytest.raises(ValueError, match=message):
        agent.fit(steps=20, verbose=0)


class Misshapen(noterl.DQN):
    """Returns feedback whose shape is not `[B]`."""

    def shaped(self, errors: Any) -> Any:
        raise NotImplementedError

    def loss(self, batch: Any) -> Any:
        loss, feedback = super().loss(batch)
        return loss, {name: self.shaped(errors) for name, errors in feedback.items()}


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("shaped", "shape"),
    [(keras.ops.mean, r"\(\)"), (lambda errors: errors[:3], r"\(3,\)"), (lambda errors: errors[None], r"\(1, 4\)")],
)
def test_feedback_of_another_shape_raises(shaped: Any, shape: str) -> None:
    agent = Misshapen("CartPole-v1", hidden=(4,), seed=1)
    agent.__dict__["shaped"] = shaped
    agent.compile(replay=Replay(64, sampler=Prioritized()), batch_size=4, learning_starts=8, update_every=4)
    with pytest.raises(ValueError, match=rf"td_error .*{shape}$"):
        agent.fit(steps=20, verbose=0)
    assert (agent.replay.get_state()["sampler"]["scores"] == 7.0).all()


@pytest.mark.backends("torch")
def test_ratio_score_uses_the_feedback_of_an_agent() -> None:
    class WithRatio(noterl.DQN):
        def loss(self, batch: Any) -> Any:
            loss, feedback = super().loss(batch)
            return loss, {**feedback, "ratio": 1 + 2 * feedback["td_error"]}

    agent = WithRatio("CartPole-v1", hidden=(4,), seed=1)
    sampler = Prioritized(score=RatioScore(lambda_=0.25))
    agent.compile(replay=Replay(64, sampler=sampler), batch_size=4, learning_starts=8, update_every=4, updates=2)
    received: list[Any] = []
    feedback = agent.replay.feedback
    agent.replay.feedback = lambda sample, values: (received.append((sample.indices, values)), feedback(sample, values))
    agent.fit(steps=24, verbose=0)
    indices, values = received[-1]
    error = np.abs(values["td_error"])
    assert values["td_error"].shape == indices.shape == (2, 4)
    np.testing.assert_allclose(sampler._scores[indices[-1]], (0.25 * error + 0.75 * 2 * error)[-1], rtol=1e-5)
