"""A callback that trims a replay memory by its effective sample size."""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.callback import Callback, Every
from noterl.types import Logs
from noterl.utils.checks import check_number, check_positive, check_word

from .window import check_replay


class ESSWindow(Callback):
    """Trim a prioritized memory by its effective sample size, ESS = 1 / sum of p^2.

    Here p are the sampling probabilities. If all are equal, ESS is the number N of transitions. If few transitions have
    most of the probability, ESS is small and the others can be dropped at little cost.

    - Mode "baseline" smooths ESS, and drops (1 - ESS / ESS0) * scale * N transitions. ESS0 is the ESS after the last
      trim, or the largest smoothed ESS since then if that is larger. If ESS does not fall, nothing is dropped.
    - Mode "target" smooths ESS / N, and keeps the smoothed value times scale * N transitions. Unless the scores are
      nearly equal, each measurement shrinks the memory again, down to `min_size`. Set `min_size` well above a batch.

    Both rules come from Note_rl, which measures ESS0 whenever collection ends and learning begins. In noterl,
    collection and learning alternate all the time, so ESS0 is the largest value.

    The logs of each episode hold the last ESS, not smoothed, as `ess`, and the number of transitions that were not
    dropped as `window`.

    Args:
        scale: factor of the rule. Above 1, mode "target" keeps more and mode "baseline" drops more.
        smooth: weight of the new value in the moving average, above 0 and at most 1 (no smoothing).
        mode: "baseline" or "target".
        trim: "oldest" drops the oldest transitions. "sampled" samples which transitions to keep, in proportion to their
            scores, and excludes the others from sampling.
        min_size: number of transitions that are always kept, at least one batch; None for one batch. A memory of at
            most this size is not measured.
        every: number of `unit` between measurements.
        unit: "episodes", "steps" (of the environment), "updates" or "seconds".

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the agent has no replay
            memory.

    Attributes:
        ess: the smoothed ESS; in mode "target", the smoothed ESS / N times N at the last measurement. None before the
            first measurement.
        baseline: ESS0; in mode "target", the ESS after the last trim. None before there is one.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import ESSWindow
    >>> from noterl.replay import Prioritized
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(replay=noterl.Replay(1000, sampler=Prioritized()), batch_size=16, learning_starts=100)
    >>> history = agent.fit(steps=500, callbacks=[ESSWindow(mode="target", min_size=50)], verbose=0)
    >>> 50 <= history.history["window"][-1] < 500
    True
    """

    every: Every

    all_ranks = True  # each process has its own memory

    def __init__(
        self,
        scale: float = 1.0,
        smooth: float = 0.2,
        *,
        mode: str = "baseline",
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
        self.every = Every(every, unit, name="every")
        self.ess: float | None = None
        self.baseline: float | None = None
        self._share: float | None = None  # smoothed ESS / N
        self._last: float | None = None  # the newest ESS, not smoothed

    def on_train_begin(self, logs: Logs) -> None:
        """Check that the agent has a replay memory."""
        check_replay(self.agent, "ESSWindow")

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log the last ESS and the size of the window."""
        if logs.get("complete", True):
            self._log(logs)

    def on_due(self, logs: Logs) -> None:
        """Measure ESS, trim the memory and log."""
        least = max(self.min_size or 0, self.agent.update_batch_size)
        size = self._size
        if size > least:
            self._trim(size, least)
            self._log(logs)

    def get_state(self) -> dict[str, Any]:
        """Return the smoothed ESS, the smoothed ESS / N, ESS0 and the last ESS."""
        return {"ess": self.ess, "share": self._share, "baseline": self.baseline, "last": self._last}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.ess, self._share = state["ess"], state["share"]
        self.baseline, self._last = state["baseline"], state["last"]

    def _log(self, logs: Logs) -> None:
        logs["window"] = self._size
        if self._last is not None:
            logs["ess"] = self._last

    @property
    def _size(self) -> int:
        """The number of transitions that a trim may drop."""
        replay = self.agent.replay
        return int(replay.sampler.storage.num_unmasked) if self.trim == "sampled" else len(replay)

    def _trim(self, size: int, least: int) -> None:
        ess = self._last = self.agent.replay.effective_sample_size()
        if self.mode == "target":
            # ESS / N is smoothed, because an average of ESS would lag behind N while the memory fills.
            self._share = self._average(ess / size, self._share)
            self.ess = self._share * size
            kept = _floor(self.ess * self.scale)
        else:
            self.ess = self._average(ess, self.ess)
            self.baseline = max(self.baseline or 0.0, self.ess)
            kept = size - _floor((1 - self.ess / self.baseline) * self.scale * size)
        kept = min(max(kept, least), size)
        if kept < size:
            self._drop(size - kept, kept)
            self.baseline = self.agent.replay.effective_sample_size()

    def _average(self, new: float, old: float | None) -> float:
        return new if old is None else self.smooth * new + (1 - self.smooth) * old

    def _drop(self, dropped: int, kept: int) -> None:
        replay = self.agent.replay
        if self.trim == "oldest":
            replay.drop_oldest(dropped)
            return
        # Weighted sampling without replacement: divide exponential variates by the scores and keep the smallest
        # (Efraimidis and Spirakis, 2006).
        scores = replay.sampler.probabilities(alpha=False)
        keys = self.agent.generators("window").exponential(size=len(scores)) / scores
        indices = replay.sampler.storage.unmasked_indices()
        replay.keep(indices[np.sort(np.argpartition(keys, kept - 1)[:kept])])


def _floor(number: float) -> int:
    """Return the floor, with a tolerance for rounding: for N equal probabilities, ESS may be slightly below N."""
    return int(number * (1 + 1e-9))
