"""Forgetting what a replay memory no longer draws from, as its effective sample size says."""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.callback import Callback
from noterl.learning.schedule import batch_size_of
from noterl.types import Logs
from noterl.utils.checks import check_number, check_positive, check_word

from .cadence import Cadence
from .window import replay_of


class ESSWindow(Callback):
    """Fit a prioritized memory's window to its effective sample size, 1 / sum of p^2.

    Where priorities are all alike, ESS is the number N of transitions; where few have most of the chance, it is small,
    and the rest of the memory costs little to lose. At each look ESS is smoothed, `smooth` being the weight of the
    new value, and then

    - mode "target" keeps ESS * scale transitions;
    - mode "baseline" forgets (1 - ESS / ESS0) * scale * N, where ESS0 is the ESS after the last trim, or the largest
      smoothed one since.

    Both are Note_rl's rules, an earlier and a later one. There ESS0 is measured whenever collecting ends and learning
    begins; here, where both go on side by side, it is the largest that was seen.

    The logs of each episode tell the last ESS as `ess` and the number of transitions that can be sampled as `window`.

    Args:
        scale: "target": above 1 keeps more; "baseline": above 1 forgets more.
        smooth: weight of the new value in the moving average, above 0 and up to 1 (no smoothing).
        mode: "target" or "baseline".
        trim: "oldest" forgets the oldest transitions; "sampled" chooses those that stay by chance, in proportion to
            their scores, and masks the others.
        min_size: transitions that always stay, and below which nothing is looked at; None for a batch.
        every: how often it looks.
        unit: of `every`: "episodes", "steps" (of the environment), "updates" or "seconds".

    Raises:
        ValueError: if an argument is not what it may be; as training begins, for an agent without a replay memory.

    Attributes:
        ess: the smoothed ESS, None before the first look.
        baseline: ESS0, None before the first look.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import ESSWindow
    >>> from noterl.replay import Prioritized
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(replay=noterl.Replay(1000, sampler=Prioritized()), batch_size=16, learning_starts=100)
    >>> history = agent.fit(steps=500, callbacks=[ESSWindow(min_size=50)], verbose=0)
    >>> 50 <= history.history["window"][-1] < 500
    True
    """

    def __init__(
        self,
        scale: float = 1.0,
        smooth: float = 0.2,
        *,
        mode: str = "target",
        trim: str = "oldest",
        min_size: int | None = None,
        every: float = 1,
        unit: str = "episodes",
    ) -> None:
        self.scale = check_number("scale", scale, low=0, above=True)
        self.smooth = check_number("smooth", smooth, low=0, high=1, above=True)
        self.mode = check_word("mode", mode, ("target", "baseline"))
        self.trim = check_word("trim", trim, ("oldest", "sampled"))
        self.min_size = check_positive("min_size", min_size, none=True)
        self._cadence = Cadence("every", every, unit)
        self.ess: float | None = None
        self.baseline: float | None = None
        self._last: float | None = None  # the newest ESS as it was measured
        if unit != "episodes":
            self.between_steps = self._look  # type: ignore[method-assign]

    def on_train_begin(self, logs: Logs) -> None:
        """Count from here; there must be a memory."""
        replay_of(self.agent, "ESSWindow")
        self._cadence.begin(self.agent)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Look, if it is time, before others save what there is; tell what was found."""
        if not logs.get("complete", True):
            return
        self._look()
        logs["window"] = self._size
        if self._last is not None:
            logs["ess"] = self._last

    def get_state(self) -> dict[str, Any]:
        """Return the smoothed ESS, ESS0 and the last ESS."""
        return {"ess": self.ess, "baseline": self.baseline, "last": self._last}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self.ess, self.baseline, self._last = state["ess"], state["baseline"], state["last"]

    @property
    def _size(self) -> int:
        """How many transitions there are to trim."""
        replay = self.agent.replay
        return int(replay.sampler.storage.num_unmasked) if self.trim == "sampled" else len(replay)

    def _look(self) -> None:
        """Measure and forget, if it is time."""
        least = max(self.min_size or 0, batch_size_of(self.agent))
        size = self._size
        if not self._cadence.due(self.agent) or size <= least:
            return
        ess = self._last = self.agent.replay.effective_sample_size()
        self.ess = ess if self.ess is None else self.smooth * ess + (1 - self.smooth) * self.ess
        self.baseline = self.ess if self.baseline is None else max(self.baseline, self.ess)
        if self.mode == "target":
            kept = _whole(self.ess * self.scale)
        else:
            kept = size - _whole((1 - self.ess / self.baseline) * self.scale * size)
        kept = min(max(kept, least), size)
        if kept < size:
            self._forget(size - kept, kept)
            self.baseline = self.agent.replay.effective_sample_size()

    def _forget(self, dropped: int, kept: int) -> None:
        replay = self.agent.replay
        if self.trim == "oldest":
            replay.drop_oldest(dropped)
            return
        # Exponential numbers over the scores: the smallest are a draw without replacement (Efraimidis, Spirakis 2006).
        chances = replay.sampler.probabilities(alpha=False)
        keys = self.agent.generators("window").exponential(size=len(chances)) / chances
        rows = replay.sampler.storage.unmasked_indices()
        replay.keep(rows[np.sort(np.argpartition(keys, kept - 1)[:kept])])


def _whole(number: float) -> int:
    """Round down, but not for what rounding has taken away: N equal chances have an ESS of just below N."""
    return int(number * (1 + 1e-9))
