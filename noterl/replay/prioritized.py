"""Sampling in proportion to how much is left to learn from a transition.

Owns the priorities of a memory's rows. Paper: Schaul et al., "Prioritized experience replay" (2016), the proportional
variant of section 3.3, with the importance weights of section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from noterl.registry import register
from noterl.replay.columns import Array
from noterl.replay.samplers import Sampler
from noterl.replay.scores import Score
from noterl.replay.storage import Storage
from noterl.replay.sum_tree import SumTree
from noterl.utils.checks import check_number, check_positive

# What is added to every score, so that a transition without error is met again.
SMALLEST = 1e-7
# Scores are float32.
LARGEST = float(np.finfo(np.float32).max)


class _Known(NamedTuple):
    """What of a storage, and which exponent, a tree is right for."""

    begin: int
    end: int
    epoch: int
    version: int
    alpha: float


_NOTHING = _Known(begin=0, end=0, epoch=-1, version=-1, alpha=-1.0)


@register
class Prioritized(Sampler):
    """A transition's chance is P = p / sum of p, with p = (score + 1e-7)^alpha and |td_error| as its score.

    Each of a batch's B draws falls into its own B-th of the summed priorities. A new transition has the largest score
    there has been, so that it is soon learned from; scores change when the loss feeds `td_error` back, nothing else is
    needed. The weights (N P)^-beta, divided by the batch's largest, undo the bias in the expected gradient.

    `alpha` and `beta` may be changed at any time.

    Args:
        alpha: how much priorities count: 0 samples uniformly, 1 in proportion to the score.
        beta: how much of the bias is corrected: 0 nothing, 1 all.
        beta_steps: environment steps stored until `beta` has risen, linearly, to 1; the paper lets it rise until the
            end of training. None for a `beta` that stays: were it to rise until the end of a `fit`, twice `fit(n)`
            would not be `fit(2n)`.
        initial_td: the error assumed of new transitions until the first feedback.
        score: a `Score` other than |td_error|, such as `RatioScore()`.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
    >>> import noterl
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> replay = noterl.Replay(1000, sampler=noterl.replay.Prioritized(beta_steps=2000))
    >>> agent.compile(replay=replay, learning_starts=64)
    >>> history = agent.fit(steps=128, verbose=0)
    """

    def __init__(
        self,
        alpha: float = 0.7,
        beta: float = 0.4,
        beta_steps: int | None = None,
        initial_td: float = 7.0,
        score: Score | None = None,
    ) -> None:
        self.alpha, self.beta = alpha, beta
        self.beta_steps = check_positive("beta_steps", beta_steps, none=True)
        if score is not None and not isinstance(score, Score):
            raise ValueError(f"score must be a noterl.replay.Score such as RatioScore(), or None, got {score!r}")
        self.score = Score() if score is None else score
        self.feedback_fields = self.score.fields
        self._initial = self.score.initial(check_number("initial_td", initial_td, low=0, high=LARGEST))
        self._largest: float | None = None  # of all scores fed back
        self._known = _NOTHING

    @property
    def alpha(self) -> float:
        """How much priorities count."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._alpha = check_number("alpha", value, low=0, high=1)

    @property
    def beta(self) -> float:
        """How much of the bias is corrected at first."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = check_number("beta", value, low=0, high=1)

    @property
    def current_beta(self) -> float:
        """How much of the bias is corrected now."""
        if self.beta_steps is None:
            return self._beta
        return self._beta + (1 - self._beta) * min(1.0, self._bound().count / self.beta_steps)

    def bind(self, storage: Storage) -> None:
        """Belong to a storage, from now on."""
        super().bind(storage)
        self._scores = np.zeros(storage.capacity, np.float32)
        self._tree = SumTree(storage.capacity)

    def draw(self, updates: int, batch_size: int, generator: np.random.Generator) -> Array:
        """Return rows `[K, B]`; draw b of each batch falls into the b-th of B equal parts of the summed priorities."""
        tree = self._synchronized()
        strata = np.arange(batch_size) + generator.random((updates, batch_size))
        strata *= tree.total / batch_size
        return tree.find(strata.ravel()).reshape(updates, batch_size)

    def weights(self, rows: Array) -> Array:
        """Return the importance weights of rows `[K, B]`, float32, the largest of each batch 1.

        They are (N P)^-beta over the batch's largest, in which N and the sum of the priorities cancel out.
        """
        priorities = self._synchronized().values.take(rows)
        relative = priorities / np.minimum.reduce(priorities, -1, keepdims=True)
        return (relative**-self.current_beta).astype(np.float32)

    def probabilities(self, *, alpha: bool = True) -> Array:
        """Return the chance `[n]` of each row that may be drawn, the oldest first; see `Sampler`."""
        tree, rows = self._synchronized(), self._bound().eligible_rows()
        priorities = tree.values.take(rows) if alpha else self._scores.take(rows).astype(np.float64) + SMALLEST
        return priorities / priorities.sum() if len(priorities) else priorities

    def feedback(self, rows: Array, values: Mapping[str, Array]) -> None:
        """Take what the score needs of rows `[n]`; a score below 0 or not finite leaves its row as it was.

        Raises:
            ValueError: if a field that the score needs is missing.
        """
        missing = [name for name in self.score.fields if name not in values]
        if missing:
            raise ValueError(f"the loss must feed back {', '.join(missing)} [B] for {type(self.score).__name__}")
        scores = np.asarray(self.score(values), np.float32)
        if scores.ndim > 1:
            scores = scores.reshape(len(rows), -1).mean(1)
        largest = float(np.maximum.reduce(scores, initial=0.0))
        if not (largest < np.inf and np.minimum.reduce(scores, initial=0.0) >= 0):
            sound = (scores >= 0) & (scores < np.inf)
            rows, scores = rows[sound], scores[sound]
            largest = float(scores.max(initial=0.0))
        if not len(rows):
            return
        self._synchronized()  # rows added so far have the largest score there was until now
        self._largest = largest if self._largest is None else max(self._largest, largest)
        self._scores[rows] = scores
        self._write(rows)

    def clear(self) -> None:
        """Forget all scores, the largest one too."""
        self._largest = None
        self._known = _NOTHING

    def get_state(self) -> dict[str, Any]:
        """Return the scores of the live rows, the oldest first, the largest score there has been, and the exponents."""
        self._synchronized()
        scores = self._scores.take(self._bound().live_rows())
        return {"scores": scores, "largest": self._largest, "alpha": self._alpha, "beta": self._beta}

    def check(self) -> None:
        """Assert that the tree holds the priorities of the rows that may be drawn, nothing else, and their sums.

        Raises:
            AssertionError: naming what does not hold.
        """
        tree, rows = self._synchronized(), self._bound().eligible_rows()
        expected = SumTree(self._bound().capacity)
        expected.set(rows, self._priorities(self._scores.take(rows)))
        assert np.array_equal(tree.values, expected.values), "a priority is not that of its row's score"
        assert tree.equals(expected), "a sum of priorities is not that of its parts"
        largest = np.float32(max(self._largest or 0.0, self._initial))
        assert (self._scores[rows] <= largest).all(), "a score is above the largest there has been"

    def check_state(self, state: Mapping[str, Any], length: int) -> None:
        """Refuse what `set_state` could not take.

        Raises:
            ValueError: naming what is wrong.
        """
        wanted = {"scores", "largest", "alpha", "beta"}
        if state.keys() != wanted:
            raise ValueError(f"the state of a Prioritized has {sorted(wanted)}, this one {sorted(state)}")
        scores = state["scores"]
        if not isinstance(scores, np.ndarray) or scores.dtype != np.float32 or scores.shape != (length,):
            raise ValueError(f"scores must be an array float32[{length}], got {scores!r}")
        if not np.isfinite(scores).all() or (scores < 0).any():
            raise ValueError("scores must be finite and at least 0")
        if state["largest"] is not None:
            check_number("largest", state["largest"], low=0)
        for name in ("alpha", "beta"):
            check_number(name, state[name], low=0, high=1)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take what `get_state` returned; the storage holds its rows already."""
        storage = self._bound()
        self._largest, self.alpha, self.beta = state["largest"], state["alpha"], state["beta"]
        self._scores[storage.live_rows()] = state["scores"]
        self._known = _NOTHING._replace(end=storage.count, epoch=storage.epoch)

    def _synchronized(self) -> SumTree:
        """Return the tree, right for the rows and the exponent as they are now."""
        storage, known, tree = self._bound(), self._known, self._tree
        now = _Known(storage.begin, storage.count, storage.epoch, storage.mask.version, self._alpha)
        if now == known:
            return tree
        self._known = now
        new = max(known.end if known.epoch == now.epoch else 0, now.begin)
        score = self._initial if self._largest is None else self._largest
        for rows in self._slices(new, now.end):
            self._scores[rows] = score
        if (known.epoch, known.alpha) != (now.epoch, now.alpha):
            tree.set_range(0, storage.capacity, 0.0)
            self._write(storage.eligible_rows())
            return tree
        for rows in self._slices(max(known.begin, now.end - storage.capacity), now.begin):
            tree.set_range(rows.start, rows.stop, 0.0)
        for rows in self._slices(new, now.end):
            tree.set_range(rows.start, rows.stop, self._priorities(self._scores[rows][:1])[0])
        if known.version != now.version:
            live, allowed = storage.live_rows(), storage.eligible
            wrong = (tree.values[live] > 0) != (True if allowed is None else allowed[live])
            self._write(live[wrong])
        return tree

    def _write(self, rows: Array) -> None:
        """Let the tree hold the priorities of live rows `[n]`, 0 for those that must not be drawn."""
        allowed = self._bound().eligible
        priorities = self._priorities(self._scores.take(rows))
        self._tree.set(rows, priorities if allowed is None else np.where(allowed[rows], priorities, 0.0))

    def _priorities(self, scores: Array) -> Array:
        """Return (score + 1e-7)^alpha, float64. An array comes out the same to the last bit however it is cut."""
        return np.power(scores.astype(np.float64) + SMALLEST, self._alpha)

    def _slices(self, start: int, stop: int) -> Iterator[slice]:
        """Yield where the generations from `start` up to `stop` lie, at most one round of the ring."""
        capacity = self._bound().capacity
        while start < stop:
            row = start % capacity
            length = min(stop - start, capacity - row)
            yield slice(row, row + length)
            start += length
