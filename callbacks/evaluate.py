"""Evaluating while training goes on."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noterl import saving
from noterl.callback import Callback
from noterl.random import check_seed
from noterl.types import Logs
from noterl.utils.checks import check_positive
from noterl.utils.files import replacing
from noterl.utils.tables import plain_row

from .cadence import Cadence
from .evaluator import Evaluator

MEASURED = ("reward_mean", "reward_std", "reward_iqm", "length_mean", "success_rate")


class Evaluate(Callback):
    """Play whole episodes without learning, every so often; training is left exactly as it was.

    What `Agent.evaluate` finds stands in the logs of the episode after which it was played, each number under its name
    with `evaluation_` before it: in `History`, for loggers, and for a `Checkpoint` or `EarlyStopping` that monitors it.

    Args:
        env: where to play, as `Agent.evaluate` takes it; a fresh copy of the training environment by default.
        every: how often, at the end of the first episode that reaches or passes a multiple.
        unit: of `every`: "episodes", "steps", "updates" or "seconds".
        episodes: how many to play.
        num_envs: environments stepped side by side.
        seed: of the evaluation; by default one of the agent's own, the same each time.
        deterministic: act by the head alone; otherwise explore as in training.
        on_best: what to do when the mean reward is higher than ever, the first time included: a path where the agent
            is saved (without its memory), or a function of the agent and of what `Agent.evaluate` returned.
        background: play in a process of its own, on a copy of the agent, while training goes on. It finds the same; the
            logs hold it at the end of the first episode after it is known, `results` in any case. An evaluation that
            falls due while one is running waits for it. `env` must be something that can be pickled, `on_best` a path,
            and a script keeps its work under `if __name__ == "__main__":`.

    Raises:
        ValueError: if an argument is not what it may be.
        OSError: as training begins, if the path `on_best` cannot be written.

    Attributes:
        results: one list per quantity, an entry for each evaluation: `episodes` and `steps` played before it, and
            what it found.
        best: the highest mean reward.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import Evaluate
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> evaluate = Evaluate(every=2, episodes=3, on_best="best.noterl")
    >>> history = agent.fit(episodes=5, callbacks=[evaluate], verbose=0)
    >>> evaluate.results["episodes"], [reward > 0 for reward in history.history["evaluation_reward_mean"]]
    ([2, 4], [False, True, False, True, False])
    """

    adds = tuple(f"evaluation_{name}" for name in MEASURED)

    def __init__(
        self,
        env: Any = None,
        every: float = 10,
        unit: str = "episodes",
        episodes: int = 10,
        num_envs: int = 1,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        on_best: str | Path | Callable[[Any, dict[str, Any]], None] | None = None,
        background: bool = False,
    ) -> None:
        self.env, self.deterministic = env, deterministic
        self.episodes = check_positive("episodes", episodes)
        self.num_envs = check_positive("num_envs", num_envs)
        check_seed(seed)
        if on_best is not None and not callable(on_best) and not isinstance(on_best, str | Path):
            raise ValueError(f"on_best must be a path, a function of agent and result, or None, got {on_best!r}")
        if background and callable(on_best):
            raise ValueError(f"on_best must be a path or None with background=True, got {on_best!r}")
        self.seed, self.on_best, self.background = seed, on_best, background
        self.results: dict[str, list[float]] = {}
        self.best: float | None = None
        self._cadence = Cadence("every", every, unit)
        self._evaluator: Evaluator | None = None

    def on_train_begin(self, logs: Logs) -> None:
        """Count from here, and find out now whether the best agent can be saved."""
        self._cadence.go_on(self.agent)
        if isinstance(self.on_best, str | Path):
            saving.check_writable(self.on_best)
        if self.background:
            self._evaluator = Evaluator(self.agent, self.env, self._arguments())

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Evaluate if it is time; in the background, tell what has been found since."""
        if not logs.get("complete", True):
            return
        due = self._cadence.due(self.agent)
        about = {"episodes": self.agent.episodes, "steps": self.agent.steps}
        if self._evaluator is None:
            if due:
                logs.update(self._judge(about, self.agent.evaluate(self.env, **self._arguments())))
            return
        if self._evaluator.is_ready() or (due and self._evaluator.pending):
            logs.update(self._judge(*self._evaluator.take()))
        if due:
            self._evaluator.ask(self.agent, about)

    def on_train_end(self, logs: Logs) -> None:
        """Wait for the evaluation in progress."""
        evaluator = self._evaluator
        if evaluator is None:
            return
        try:
            if evaluator.pending:
                self._judge(*evaluator.take())
        finally:
            self._evaluator = None
            evaluator.close()

    def get_state(self) -> dict[str, Any]:
        """Return the results, the best, and since when it counts; an evaluation in progress is waited for."""
        if self._evaluator is not None and self._evaluator.pending:
            self._judge(*self._evaluator.take())
        results = {name: list(values) for name, values in self.results.items()}
        return {"results": results, "best": self.best, "mark": self._cadence.saved_mark}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self.results = {name: list(values) for name, values in state["results"].items()}
        self.best, self._cadence.mark = state["best"], state["mark"]

    def _arguments(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes,
            "seed": self.seed,
            "deterministic": self.deterministic,
            "num_envs": self.num_envs,
        }

    def _judge(self, about: dict[str, Any], result: dict[str, Any]) -> Logs:
        """Remember what was found, tell of a new best, and return what the logs shall hold."""
        found = plain_row(result)
        self._note({**about, **found})
        if self.best is None or found["reward_mean"] > self.best:
            self.best = found["reward_mean"]
            if callable(self.on_best):
                self.on_best(self.agent, result)
            elif self.on_best is not None and self._evaluator is None:
                self.agent.save(self.on_best, replay=False)
            elif self.on_best is not None and self._evaluator is not None:
                with self._evaluator.file.open("rb") as evaluated, replacing(self.on_best) as file:
                    shutil.copyfileobj(evaluated, file)
        return {f"evaluation_{name}": value for name, value in found.items()}

    def _note(self, row: dict[str, float]) -> None:
        before = len(self.results.get("steps", []))
        for name in row:
            self.results.setdefault(name, [math.nan] * before)
        for name, values in self.results.items():
            values.append(row.get(name, math.nan))
