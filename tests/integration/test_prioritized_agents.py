"""Agents with a prioritized memory: an agent whose loss feeds `td_error` back needs no other line."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl.replay import Prioritized, RatioScore, Replay
from tests.support import reference_numpy as reference
from tests.support.batches import Corridor, row
from tests.support.states import assert_same_state, one_lane


def agent_with(**changes: Any) -> noterl.DQN:
    """Return a small agent whose memory of 128 rows overflows; groups of four updates."""
    return one_lane(replay=Replay(128, sampler=Prioritized(beta_steps=300)), **changes)


@pytest.fixture(scope="module")
def trained() -> noterl.DQN:
    agent = agent_with()
    agent.fit(episodes=16, verbose=0)
    return agent


def test_it_trains_and_learns_priorities(trained: noterl.DQN) -> None:
    assert trained.updates > 100
    scores = trained.replay.get_state()["sampler"]["scores"]
    assert len(scores) == 128
    assert len(np.unique(scores)) > 64
    assert 0 < trained.replay.sampler.get_state()["largest"] < 1000


@pytest.mark.parametrize("calls", [1, 3])
def test_updates_in_a_call_change_no_bit(trained: noterl.DQN, calls: int) -> None:
    agent = agent_with(steps_per_execution=calls)
    agent.fit(episodes=16, verbose=0)
    assert_same_state(agent, trained)


def test_two_halves_and_a_file_between_are_the_whole(trained: noterl.DQN, tmp_path: Any) -> None:
    agent = agent_with()
    agent.fit(episodes=8, verbose=0)
    assert agent.updates > 20
    agent.save(tmp_path / "half.noterl")
    other = noterl.load(tmp_path / "half.noterl")
    other.fit(episodes=8, verbose=0)
    assert_same_state(other, trained)


def test_errors_of_a_group_become_scores_and_weights_reach_the_loss() -> None:
    agent = noterl.DQN(Corridor(), hidden=(12,), gamma=0.9, seed=3)
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
    truth = reference.DQN(reference.mlp((12,)), weights["q"], weights["target_q"], reference.Adam(3e-3), double=False)
    gathered, gather = [], agent.gather

    def recorded(drawn: Any) -> Any:
        gathered.append(gather(drawn))
        return gathered[-1]

    agent.gather = recorded
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
        _, errors = truth.update(row(batch, k))
        scores[batch.index[k]] = np.abs(errors)
    np.testing.assert_allclose(sampler.get_state()["scores"], scores, rtol=1e-4, atol=1e-5)
    for actual, wanted in zip(agent.get_state()["variables"]["q"], truth.weights, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=2e-6)
    chances = (scores + 1e-7) ** 0.6
    np.testing.assert_allclose(sampler.probabilities(), chances / chances.sum(), rtol=1e-3)


class Silent(noterl.DQN):
    """Feeds nothing back."""

    def loss(self, batch: Any) -> Any:
        return super().loss(batch)[0]


@pytest.mark.parametrize(
    ("kind", "score", "message"),
    [
        (Silent, None, "feedback must hold td_error.* for Prioritized, but Silent feeds back nothing"),
        (noterl.DQN, RatioScore(), r"feedback must hold ratio.* for Prioritized, but DQN feeds back td_error"),
    ],
)
def test_a_loss_that_does_not_feed_back_what_is_needed_is_named(kind: Any, score: Any, message: str) -> None:
    agent = kind("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(replay=Replay(64, sampler=Prioritized(score=score)), batch_size=4, learning_starts=8, update_every=4)
    with pytest.raises(ValueError, match=message):
        agent.fit(steps=20, verbose=0)


class Misshapen(noterl.DQN):
    """Feeds back something else than an error for each transition."""

    def shaped(self, errors: Any) -> Any:
        raise NotImplementedError

    def loss(self, batch: Any) -> Any:
        loss, feedback = super().loss(batch)
        return loss, {name: self.shaped(errors) for name, errors in feedback.items()}


@pytest.mark.parametrize(
    ("shaped", "shape"),
    [(keras.ops.mean, r"\(\)"), (lambda errors: errors[:3], r"\(3,\)"), (lambda errors: errors[None], r"\(1, 4\)")],
)
def test_feedback_that_is_not_one_for_each_transition_is_refused_by_name(shaped: Any, shape: str) -> None:
    agent = Misshapen("CartPole-v1", hidden=(4,), seed=1)
    agent.__dict__["shaped"] = shaped
    agent.compile(replay=Replay(64, sampler=Prioritized()), batch_size=4, learning_starts=8, update_every=4)
    with pytest.raises(ValueError, match=rf"td_error must be \[B\].*\(4,\), got the shape {shape}$"):
        agent.fit(steps=20, verbose=0)
    assert (agent.replay.get_state()["sampler"]["scores"] == 7.0).all()


def test_ratio_score_learns_from_an_agents_own_feedback() -> None:
    class WithRatio(noterl.DQN):
        def loss(self, batch: Any) -> Any:
            loss, feedback = super().loss(batch)
            return loss, {**feedback, "ratio": 1 + 2 * feedback["td_error"]}

    agent = WithRatio("CartPole-v1", hidden=(4,), seed=1)
    sampler = Prioritized(score=RatioScore(lambda_=0.25))
    agent.compile(replay=Replay(64, sampler=sampler), batch_size=4, learning_starts=8, update_every=4, updates=2)
    fed: list[Any] = []
    feedback = agent.replay.feedback
    agent.replay.feedback = lambda sample, values: (fed.append((sample.indices, values)), feedback(sample, values))
    agent.fit(steps=24, verbose=0)
    indices, values = fed[-1]
    error = np.abs(values["td_error"])
    assert values["td_error"].shape == indices.shape == (2, 4)
    np.testing.assert_allclose(sampler._scores[indices[-1]], (0.25 * error + 0.75 * 2 * error)[-1], rtol=1e-5)
