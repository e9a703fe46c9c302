"""Prioritized experience replay, and the scores that priorities come from.

Paper: Schaul et al., "Prioritized experience replay" (2016), the proportional variant of section 3.3, with the
importance weights of section 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from noterl.registry import Configurable, register
from noterl.replay.columns import Array
from noterl.replay.samplers import Sampler
from noterl.replay.storage import Ring
from noterl.replay.sum_tree import SumTree
from noterl.utils import schema
from noterl.utils.checks import check_count, check_number

# Added to every score, so that a transition with zero error can be sampled again.
SMALLEST = 1e-7
# Scores are float32.
LARGEST = float(np.finfo(np.float32).max)


class _TreeVersion(NamedTuple):
    """The state of the storage and the exponent for which the tree was computed."""

    begin: int
    end: int
    epoch: int
    mask_version: int
    alpha: float


# No storage has this epoch, so the tree is computed at the first use.
_NO_TREE = _TreeVersion(begin=0, end=0, epoch=-1, mask_version=-1, alpha=-1.0)


@register
class Score(Configurable):
    """The absolute temporal-difference error; subclass `Score` for another score.

    Attributes:
        fields: names of the fields of the loss's feedback that the score uses.
    """

    fields: tuple[str, ...] = ("td_error",)

    def __call__(self, values: Mapping[str, Array]) -> Array:
        """Return the scores `[n]`, at least 0, from the values of `fields`; scores that are not finite are ignored."""
        return np.abs(values["td_error"])

    def initial(self, td_error: float) -> float:
        """Return the score of a new transition from an assumed error."""
        return td_error


@register
class RatioScore(Score):
    """lambda |td_error| + (1 - lambda) |ratio - 1|: the error of the value and the change of the policy.

    For agents with a policy ratio, whose loss returns `td_error` and `ratio` as feedback. Note_rl uses this score for
    PPO.

    Args:
        lambda_: weight of the error, 0 to 1.
        initial_ratio: the ratio assumed for new transitions until the first feedback.

    Raises:
        ValueError: if an argument is out of range.

    Example:
    >>> from noterl.replay import RatioScore
    >>> RatioScore(0.5)({"td_error": np.array([-3.0, 0.0]), "ratio": np.array([1.0, 1.5])})
    array([1.5 , 0.25])
    """

    fields: tuple[str, ...] = ("td_error", "ratio")

    def __init__(self, lambda_: float = 0.5, initial_ratio: float = 1.0) -> None:
        self.lambda_: float = check_number("lambda_", lambda_, low=0, high=1)
        self.initial_ratio: float = check_number("initial_ratio", initial_ratio, low=0)

    def __call__(self, values: Mapping[str, Array]) -> Array:
        """Return the scores `[n]` from errors and ratios `[n]`."""
        return self.lambda_ * np.abs(values["td_error"]) + (1 - self.lambda_) * np.abs(values["ratio"] - 1)

    def initial(self, td_error: float) -> float:
        """Return the score of a new transition from an assumed error and the initial ratio."""
        return self.lambda_ * td_error + (1 - self.lambda_) * abs(self.initial_ratio - 1)


@register
class Prioritized(Sampler):
    """Samples a transition with probability P = p / sum of p, where p = (score + 1e-7)^alpha; the score is |td_error|.

    The sum of the priorities is divided into B equal parts, and each of a batch's B indices is sampled from a
    different part. A new transition has the largest score so far. The loss's feedback of `td_error` updates the scores.
    The weights (N P)^-beta, divided by the largest of the batch, correct the bias of the expected gradient.

    Args:
        alpha: exponent of the scores: 0 samples uniformly, 1 in proportion to the score.
        beta: how much of the bias is corrected: 0 nothing, 1 all.
        initial_td: the assumed error of new transitions until the first feedback.
        score: a `Score` other than |td_error|, such as `RatioScore()`.
        beta_steps: number of environment steps (stored transitions) in which `beta` rises linearly to 1; None keeps
            `beta` constant. In the paper, `beta` rises until the end of training, but then two calls of `fit(n)` would
            differ from `fit(2 n)`.

    Attributes:
        alpha: exponent of the scores. Can be changed during training.
        beta: how much of the bias is corrected initially. Can be changed during training.

    Raises:
        ValueError: if an argument is out of range.

    Example:
    >>> import noterl
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> replay = noterl.Replay(1000, sampler=noterl.replay.Prioritized(beta_steps=2000))
    >>> agent.compile(replay=replay, learning_starts=64)
    >>> history = agent.fit(steps=128, verbose=0)
    """

    settable: tuple[str, ...] = ("alpha", "beta")

    def __init__(
        self,
        alpha: float = 0.7,
        beta: float = 0.4,
        initial_td: float = 7.0,
        score: Score | None = None,
        beta_steps: int | None = None,
    ) -> None:
        self.alpha: float = alpha
        self.beta: float = beta
        self.beta_steps: int | None = None if beta_steps is None else check_count("beta_steps", beta_steps)
        if score is not None and not isinstance(score, Score):
            raise ValueError(f"score must be a noterl.replay.Score such as RatioScore(), or None, got {score!r}")
        self.score: Score = Score() if score is None else score
        self.feedback_fields: tuple[str, ...] = self.score.fields
        self._initial = self.score.initial(check_number("initial_td", initial_td, low=0, high=LARGEST))
        self._largest: float | None = None  # of all scores from feedback
        self._version = _NO_TREE

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign an attribute; `alpha` and `beta` must be numbers from 0 to 1."""
        super().__setattr__(name, check_number(name, value, low=0, high=1) if name in self.settable else value)

    @property
    def current_beta(self) -> float:
        """How much of the bias is corrected now: `beta`, or more if `beta_steps` is set."""
        if self.beta_steps is None:
            return self.beta
        return self.beta + (1 - self.beta) * min(1.0, self.storage.count * self.storage.spacing / self.beta_steps)

    def bind(self, storage: Ring) -> None:
        """Use a storage from now on, and allocate the scores and the tree.

        Raises:
            ValueError: if the sampler is bound to another one.
        """
        super().bind(storage)
        self._scores = np.zeros(storage.capacity, np.float32)
        self._tree = SumTree(storage.capacity)

    def sample_indices(self, updates: int, batch_size: int, generator: np.random.Generator) -> Array:
        """Return indices `[K, B]`, the b-th of each batch from the b-th of B equal parts of the summed priorities."""
        tree = self._synchronized()
        strata = np.arange(batch_size) + generator.random((updates, batch_size))
        strata *= tree.total / batch_size
        return tree.find(strata.ravel()).reshape(updates, batch_size)

    def weights(self, indices: Array) -> Array:
        """Return the importance weights of indices `[K, B]`, float32; the largest of each batch is 1.

        The weights are (N P)^-beta divided by the largest of the batch; N and the sum of the priorities cancel out.
        """
        priorities = self._synchronized().values.take(indices)
        # The smallest priority of a batch has the largest weight.
        relative = priorities / np.minimum.reduce(priorities, -1, keepdims=True)
        return (relative**-self.current_beta).astype(np.float32)

    def probabilities(self, *, alpha: bool = True) -> Array:
        """Return the probability `[n]` of each transition that is not masked, the oldest first; see `Sampler`."""
        tree = self._synchronized()
        indices = self.storage.unmasked_indices()
        priorities = tree.values.take(indices) if alpha else self._scores.take(indices).astype(np.float64) + SMALLEST
        return priorities / priorities.sum() if len(priorities) else priorities

    def feedback(self, indices: Array, values: Mapping[str, Array]) -> None:
        """Update the scores of indices `[n]`; scores below 0 or not finite are ignored, further axes are averaged."""
        scores = np.asarray(self.score(values), np.float32)
        if scores.ndim > 1:
            scores = scores.reshape(len(indices), -1).mean(1)
        valid = (scores >= 0) & (scores < np.inf)
        if not valid.all():
            indices = indices[valid]
            scores = scores[valid]
        if not len(indices):
            return
        largest = float(scores.max())
        self._synchronized()  # first, because new transitions get the largest score before this feedback
        self._largest = largest if self._largest is None else max(self._largest, largest)
        self._scores[indices] = scores
        self._write(indices)

    def clear(self) -> None:
        """Reset all scores, the largest one too."""
        self._largest = None
        self._version = _NO_TREE

    def get_state(self) -> dict[str, Any]:
        """Return the scores of the stored transitions (oldest first), the largest score so far, and the exponents."""
        self._synchronized()  # gives new transitions their scores
        scores = self._scores.take(self.storage.stored_indices())
        return {"scores": scores, "largest": self._largest, "alpha": self.alpha, "beta": self.beta}

    def check_state(self, state: Mapping[str, Any], length: int) -> None:
        """Check a state before `set_state`.

        Raises:
            ValueError: if the state is malformed.
        """
        number = schema.Float(0, 1)
        scores = schema.Array(np.float32, (length,))
        expected = {"scores": scores, "largest": (None, schema.Float(0)), "alpha": number, "beta": number}
        schema.check(state, expected, "state['sampler']")
        if not np.isfinite(state["scores"]).all() or (state["scores"] < 0).any():
            raise ValueError("state['sampler']['scores'] must be finite and at least 0")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `get_state`; the storage must be restored first."""
        storage = self.storage
        self._largest = state["largest"]
        self.alpha = state["alpha"]
        self.beta = state["beta"]
        self._scores[storage.stored_indices()] = state["scores"]
        # With this version, no stored transition is new, so the scores stay. The other values differ from those of any
        # storage, so the tree is computed at the next use.
        self._version = _NO_TREE._replace(end=storage.count, epoch=storage.epoch)

    def _synchronized(self) -> SumTree:
        """Update the tree to the stored transitions and the current exponent, and return the tree.

        Called before each use of the tree or the scores. New transitions get their scores here, because `add` does not
        notify the sampler.
        """
        storage = self.storage
        before = self._version
        tree = self._tree
        now = _TreeVersion(storage.begin, storage.count, storage.epoch, storage.mask_version, self.alpha)
        if now == before:
            return tree
        self._version = now
        new = max(before.end if before.epoch == now.epoch else 0, now.begin)
        score = self._initial if self._largest is None else self._largest
        for part in storage.slices(new, now.end):
            self._scores[part] = score
        if (before.epoch, before.mask_version, before.alpha) != (now.epoch, now.mask_version, now.alpha):
            tree.set_range(0, storage.capacity, 0.0)
            self._write(storage.unmasked_indices())
            return tree
        # Indices of evicted transitions that no new transition has taken.
        for part in storage.slices(max(before.begin, now.end - storage.capacity), now.begin):
            tree.set_range(part.start, part.stop, 0.0)
        for part in storage.slices(new, now.end):
            # All new transitions have the same score, so one priority is computed.
            tree.set_range(part.start, part.stop, self._priorities(self._scores[part][:1])[0])
        return tree

    def _write(self, indices: Array) -> None:
        """Write the priorities of stored transitions `[n]` to the tree, 0 for masked ones."""
        unmasked = self.storage.unmasked
        priorities = self._priorities(self._scores.take(indices))
        self._tree.set(indices, priorities if unmasked is None else np.where(unmasked[indices], priorities, 0.0))

    def _priorities(self, scores: Array) -> Array:
        """Return (score + 1e-7)^alpha, float64; each priority depends on one score only."""
        return np.power(scores.astype(np.float64) + SMALLEST, self.alpha)
