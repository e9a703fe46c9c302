"""A callback that trims a replay memory by the effective sample size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from noterl.callback import Callback, Every
from noterl.types import Logs
from noterl.utils.checks import check_number, check_positive, check_word

from .window import check_by, keep_only, least_window, warn_without_priorities, window_size


@dataclass
class _Window:
    """What was measured for the whole memory, or for one worker.

    Attributes:
        ess: the smoothed ESS.
        baseline: ESS0; in mode "target", the ESS after the last trim.
        share: the smoothed ESS / N.
        last: the newest ESS, not smoothed.
    """

    ess: float | None = None
    baseline: float | None = None
    share: float | None = None
    last: float | None = None


class ESSWindow(Callback):
    """Trim a prioritized memory by the effective sample size, ESS = 1 / sum of p^2.

    Here p are the sampling probabilities. If all are equal, ESS is the number N of transitions. If few transitions have
    most of the probability, ESS is small and the others can be dropped at little cost.

    - Mode "baseline" smooths ESS, and drops (1 - ESS / ESS0) * scale * N transitions. ESS0 is the ESS after the last
      trim, or the largest smoothed ESS since then if that is larger. If ESS does not fall, nothing is dropped.
    - Mode "target" smooths ESS / N, and keeps the smoothed value times scale * N transitions. Unless the scores are
      nearly equal, each measurement shrinks the memory again, down to `min_size`. Set `min_size` well above a batch.

    A memory without priorities has an ESS of N, so mode "baseline" drops nothing and mode "target" keeps scale * N
    transitions. A warning says so when training begins.

    Both rules come from Note_rl, which measures ESS0 whenever collection ends and learning begins. In noterl,
    collection and learning alternate all the time, so ESS0 is the largest value.

    The logs of each episode hold the last ESS, not smoothed, as `ess`, and the number of transitions that were not
    dropped as `window`.

    Args:
        scale: factor of the rule. Above 1, mode "target" keeps more and mode "baseline" drops more.
        smooth: weight of the new value in the moving average, above 0 and at most 1 (no smoothing).
        mode: "baseline" or "target".
        trim: "oldest" drops the oldest transitions. "sampled" samples which transitions to keep, in proportion to the
            scores, and excludes the others from sampling.
        min_size: number of transitions that are always kept, at least one batch; None for one batch. A memory of at
            most this size is not measured.
        every: number of `unit` between measurements.
        unit: "episodes", "steps" (of the environment), "updates" or "seconds".
        by: "worker" for a window of each worker process: ESS, N and `min_size` then count the transitions of the
            worker's environments, and the rule applies to each worker. The logs hold the sums. Transitions that are
            older than the window of the same worker, but newer than the window of another, are excluded from sampling.
            None for one window.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the agent has no replay
            memory.

    Attributes:
        ess: the smoothed ESS; in mode "target", the smoothed ESS / N times N at the last measurement. None before the
            first measurement. With `by="worker"`, a list.
        baseline: ESS0; in mode "target", the ESS after the last trim. None before there is one. With `by="worker"`, a
            list.

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

    adds: tuple[str, ...] = ("ess", "window")
    all_ranks = True  # each process has its own memory
    needs_memory = True

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
        by: str | None = None,
    ) -> None:
        self.scale: float = check_number("scale", scale, low=0, above=True)
        self.smooth: float = check_number("smooth", smooth, low=0, high=1, above=True)
        self.mode: str = check_word("mode", mode, ("target", "baseline"))
        self.trim: str = check_word("trim", trim, ("oldest", "sampled"))
        self.min_size: Any = check_positive("min_size", min_size, none=True)
        self.every: Every = Every(every, unit, name="every")
        self.by: str | None = check_by(by)
        self._windows = [_Window()]

    @property
    def ess(self) -> Any:
        """The smoothed ESS; see the class."""
        return self._windows[0].ess if self.by is None else [window.ess for window in self._windows]

    @property
    def baseline(self) -> Any:
        """ESS0; see the class."""
        return self._windows[0].baseline if self.by is None else [window.baseline for window in self._windows]

    def on_train_begin(self, logs: Logs) -> None:
        """Warn if the memory has no priorities."""
        warn_without_priorities(self.agent, "ESSWindow")

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log the last ESS and the size of the window."""
        if logs.get("complete", True):
            self._log(logs)

    def on_due(self, logs: Logs) -> None:
        """Measure ESS, trim the memory and log."""
        least = max(self.min_size or 0, least_window(self.agent))
        sizes = self._sizes()
        if len(sizes) != len(self._windows):  # another number of workers
            self._windows = [_Window() for _ in sizes]
        if max(sizes) > least:
            self._trim(sizes, least)
            self._log(logs)

    def get_state(self) -> dict[str, Any]:
        """Return the smoothed ESS, the smoothed ESS / N, ESS0 and the last ESS of each window."""
        return {"windows": [asdict(window) for window in self._windows]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._windows = [_Window(**window) for window in state["windows"]]

    def _log(self, logs: Logs) -> None:
        """Add the number of transitions that were not dropped, and the last ESS if there is one."""
        replay = self.agent.replay
        logs["window"] = len(replay) if self.by is None and self.trim == "oldest" else window_size(replay)
        measured = [window.last for window in self._windows if window.last is not None]
        if measured:
            logs["ess"] = sum(measured)

    def _sizes(self) -> list[int]:
        """Return the number of transitions that a trim may drop, of each window."""
        replay = self.agent.replay
        if self.by is not None:
            return list(replay.sources.counts())
        return [window_size(replay) if self.trim == "sampled" else len(replay)]

    def _measure(self) -> list[float]:
        """Return the ESS of each window."""
        replay = self.agent.replay
        return replay.effective_sample_size(by_worker=True) if self.by else [replay.effective_sample_size()]

    def _trim(self, sizes: list[int], least: int) -> None:
        """Measure each window, and trim each one of more than `least` transitions by the rule.

        After a trim, the baseline of a window is the ESS of the remaining transitions.
        """
        kept = list(sizes)
        for number, (window, size, ess) in enumerate(zip(self._windows, sizes, self._measure(), strict=True)):
            if size > least:
                kept[number] = min(max(self._kept(window, size, ess), least), size)
        trimmed = [number for number, size in enumerate(sizes) if kept[number] < size]
        if trimmed:
            self._drop(sizes, kept)
            measured = self._measure()
            for number in trimmed:
                self._windows[number].baseline = measured[number]

    def _kept(self, window: _Window, size: int, ess: float) -> int:
        """Update what was measured of a window by a new ESS, and return how many transitions the rule keeps."""
        window.last = ess
        if self.mode == "target":
            # ESS / N is smoothed, because an average of ESS would lag behind N while the memory fills.
            window.share = self._average(ess / size, window.share)
            window.ess = window.share * size
            return _floor(window.ess * self.scale)
        window.ess = self._average(ess, window.ess)
        window.baseline = max(window.baseline or 0.0, window.ess)
        return size - _floor((1 - window.ess / window.baseline) * self.scale * size)

    def _average(self, new: float, old: float | None) -> float:
        return new if old is None else self.smooth * new + (1 - self.smooth) * old

    def _drop(self, sizes: list[int], kept: list[int]) -> None:
        """Keep the given number of transitions of each window."""
        replay = self.agent.replay
        if self.by is None and self.trim == "oldest":
            # Dropping from the old end needs no mask of the memory.
            replay.drop_oldest(sizes[0] - kept[0])
            return
        storage = replay.storage
        indices = storage.unmasked_indices()
        keys = np.arange(len(indices), 0, -1.0)  # the newest transitions have the smallest keys
        if self.trim == "sampled":
            # Weighted sampling without replacement: divide exponential variates by the scores and keep the smallest
            # (Efraimidis and Spirakis, 2006).
            scores = replay.sampler.probabilities(alpha=False)
            keys = self.agent.generators("window").exponential(size=len(scores)) / scores
        source = np.zeros(len(indices), np.int64) if self.by is None else replay.sources.of(indices)
        positions = []
        for number, count in enumerate(kept):
            members = np.flatnonzero(source == number)
            # A stable sort, so that equal keys give the same result on every platform.
            positions.append(members[np.argsort(keys[members], kind="stable")[:count]])
        chosen = indices[np.sort(np.concatenate(positions))]
        if self.by is None:
            replay.keep(chosen)
        else:
            keep_only(replay, chosen)


def _floor(number: float) -> int:
    """Return the floor, with a tolerance for rounding: for N equal probabilities, ESS may be slightly below N."""
    # 1e-9 is above the rounding error of ESS, and adds less than a transition to a memory of a hundred million.
    return int(number * (1 + 1e-9))
