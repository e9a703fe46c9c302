"""A callback that evaluates the agent during training."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from noterl import saving
from noterl.callback import Budget, Every
from noterl.envs.ends import InvalidStepError
from noterl.envs.source import resolve_like
from noterl.random import check_seed, selection_seed
from noterl.registry import register
from noterl.types import Logs
from noterl.utils.checks import check_number, check_positive, check_word
from noterl.utils.files import replacing
from noterl.utils.tables import plain_row

from .support.evaluator import Evaluator
from .support.stateful import StatefulCallback

MEASURED = ("reward_mean", "reward_std", "reward_iqm", "length_mean", "success_rate")


@register
class Evaluate(StatefulCallback):
    """Play whole episodes without learning at a fixed frequency. Training is not affected.

    The results are added, with the prefix `evaluation_`, to the logs of the episode that ended just before. `History`
    and loggers record them, and a `Checkpoint` or `EarlyStopping` may monitor these metrics. A second `Evaluate` of the
    same `fit`, such as one in other levels, needs another `name`.

    Args:
        env: environment to play in, as in `Agent.evaluate`; by default a new copy of the training environment.
        every: number of `unit` between evaluations, at the end of the first episode that reaches or passes a multiple.
        unit: "episodes", "steps", "updates" or "seconds".
        episodes: number of episodes to play.
        num_envs: number of environments that are stepped together.
        max_steps: an episode is cut off after this number of steps; None for no limit.
        seed: seed of every evaluation. By default, the seed depends on the agent's seed, and differs from the seed of
            `agent.evaluate()`: the best of several noisy results is too high, and other episodes show the true value.
        deterministic: whether to act without exploration; if False, the agent explores as in training.
        best_by: the score that decides which evaluation is the best: the "mean" of the episodes' rewards; "lower", the
            mean minus one standard deviation, which prefers agents that are reliably good; or a number above 0 and
            below 1, that quantile of the rewards, such as 0.1.
        on_best: what to do after the first evaluation, and whenever the score is higher than all before. With a path,
            the agent is saved there without the memory. A function receives the agent and the result of
            `Agent.evaluate`.
        background: whether to evaluate a copy of the agent in a separate process while training continues. The result
            is the same, and is added to the logs of the first episode that ends after the evaluation, and always to
            `results`. If another evaluation is due or the agent is saved earlier, training waits for the running one.
            `env` must be picklable, `on_best` must be a path, and a script needs `if __name__ == "__main__":`. Other
            callbacks may stop by the metrics, but not keep the weights of the best result: `on_best` does that.
        name: the prefix of the metrics, without the underscore.

    Raises:
        ValueError: if an argument is not one of the allowed values; when `fit` is called, if the agent cannot be
            evaluated in the environment, or if another `Evaluate` has the same name.
        OSError: when training begins, if the path `on_best` cannot be written.

    Attributes:
        results: one list per quantity, with one entry per evaluation: `episodes`, `steps` and `updates` so far, and
            the results.
        best: the highest score; None before the first evaluation.
        is_evaluating: whether this callback evaluates now, in this process.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import Evaluate
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> evaluate = Evaluate(every=2, episodes=3, on_best="best.noterl")
    >>> history = agent.fit(episodes=5, callbacks=[evaluate], verbose=0)
    >>> evaluate.results["episodes"], [reward > 0 for reward in history.history["evaluation_reward_mean"]]
    ([2, 4], [False, True, False, True, False])
    """

    takes_epochs = True
    saved = ("results", "best", "_unlogged")
    is_evaluating: bool = False

    def __init__(
        self,
        env: Any = None,
        every: float = 10,
        unit: str = "episodes",
        episodes: int = 10,
        num_envs: int = 1,
        *,
        max_steps: int | None = None,
        seed: int | None = None,
        deterministic: bool = True,
        best_by: str | float = "mean",
        on_best: str | Path | Callable[[Any, dict[str, Any]], None] | None = None,
        background: bool = False,
        name: str = "evaluation",
    ) -> None:
        check_seed(seed)
        if not isinstance(name, str) or not name:
            raise ValueError(f"name must be the prefix of the metrics, got {name!r}")
        self.name: str = name
        # Monitors of other callbacks read these names; `on_train_begin` adds some.
        self.adds: Sequence[str] = (*type(self).adds, *(f"{name}_{measured}" for measured in MEASURED))
        self._seed = seed
        self._arguments: dict[str, Any] = {
            "env": env,
            "episodes": check_positive("episodes", episodes),
            "deterministic": deterministic,
            "num_envs": check_positive("num_envs", num_envs),
            "max_steps": check_positive("max_steps", max_steps, none=True),
        }
        if isinstance(best_by, str):
            check_word("best_by", best_by, ("mean", "lower"))
        elif not 0 < check_number("best_by", best_by) < 1:
            raise ValueError(f"best_by must be 'mean', 'lower' or a quantile between 0 and 1, got {best_by!r}")
        self.best_by: str | float = best_by
        if on_best is not None and not callable(on_best) and not isinstance(on_best, str | Path):
            raise ValueError(f"on_best must be a path, a function of agent and result, or None, got {on_best!r}")
        if background and callable(on_best):
            raise ValueError(f"on_best must be a path or None with background=True, got {on_best!r}")
        self.on_best: Callable[..., None] | str | Path | None = on_best
        self.background: bool = background
        self.results: dict[str, list[float]] = {}
        self.best: float | None = None
        self.every: Every = Every(every, unit, at="episode", name="every")
        self._unlogged: Logs = {}  # of a background evaluation whose result a save has taken
        self._evaluator: Evaluator | None = None
        self._portable: Any = None  # set by `before_fit`: `env`, or environments that the agent's file lacks

    def before_fit(self, agent: Any, budget: Budget) -> None:
        """Check that the agent can be evaluated.

        Raises:
            ValueError: if the spaces of `env` are not those of the agent, or the background process cannot make the
                training environment.
        """
        env = self._arguments["env"]
        source = agent.spaces.source
        self._portable = source.portable() if env is None else env
        if env is not None:
            evaluated = resolve_like(env, source)
            if evaluated not in (source, env):
                evaluated.close()
        elif self.background and self._portable is None and not {"id", "maker", "game"} & set(source.describe()):
            raise ValueError(
                "env must be given with background=True, because another process can make the training environment "
                "only from an id: pass its class, or a function of a module that makes it"
            )

    def on_train_begin(self, logs: Logs) -> None:
        """Set the seed and the names of the metrics, check `on_best`, and start the process of `background`."""
        names = (*(f"reward_mean/{name}" for name in getattr(self.agent, "names", ())), *self.agent.recorded_info)
        seed: int = self.agent.generators.seed
        self._arguments["seed"] = selection_seed(seed) if self._seed is None else self._seed
        self.adds = (*type(self).adds, *(f"{self.name}_{measured}" for measured in (*MEASURED, *names)))
        for other in self.agent.callbacks:
            if other is not self and isinstance(other, Evaluate) and other.name == self.name:
                raise ValueError(f"name must differ between two Evaluate of a fit, got {self.name!r} twice")
        if isinstance(self.on_best, str | Path):
            saving.check_writable(self.on_best)
        if self.background:
            info = dict(self.agent.recorded_info)
            self._evaluator = Evaluator(self.agent, {**self._arguments, "env": self._portable, "info": info})

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log the result of a background evaluation that has ended."""
        if not logs.get("complete", True):
            return
        logs.update(self._unlogged)
        self._unlogged = {}
        if self._evaluator is not None and self._evaluator.is_ready():
            logs.update(self._finish())

    def on_due(self, logs: Logs) -> None:
        """Evaluate, or start an evaluation in the background."""
        counts = {name: getattr(self.agent, name) for name in ("episodes", "steps", "updates")}
        if self._evaluator is None:
            self.is_evaluating = True
            try:
                result = self.agent.evaluate(**self._arguments)
            except InvalidStepError as error:  # the message could be one about training
                raise InvalidStepError(f"Evaluate: {error}") from error
            finally:
                self.is_evaluating = False
            logs.update(self._record_result(counts, result))
            return
        # One evaluation at a time: the previous one is logged at this episode, before the next starts.
        logs.update(self._finish())
        self._evaluator.start(self.agent, counts)

    def on_train_end(self, logs: Logs) -> None:
        """Wait for the evaluation in progress, record its result, and end the process."""
        try:
            self._finish()
        finally:
            if self._evaluator is not None:
                self._evaluator.close()
            self._evaluator = None

    def get_state(self) -> dict[str, Any]:
        """Wait for the evaluation in progress; return the results, and the best score."""
        # An evaluation in progress cannot be saved, so a save waits for its end.
        self._unlogged = {**self._unlogged, **self._finish()}
        return super().get_state()

    def _finish(self) -> Logs:
        """Wait for an evaluation in progress; record the result and return the metrics to log."""
        if self._evaluator is None or self._evaluator.pending is None:
            return {}
        return self._record_result(*self._evaluator.result())

    def _record_result(self, counts: dict[str, Any], result: dict[str, Any]) -> Logs:
        """Append a result, call `on_best` for a new best, and return the metrics to log."""
        metrics = plain_row(result)
        if "success_rate" in self.results:  # an environment may report successes only
            metrics.setdefault("success_rate", 0.0)
        self._append({**counts, **metrics})
        score = self._score(result)
        if self.best is None or score > self.best:
            self.best = score
            if callable(self.on_best):
                self.on_best(self.agent, result)
            elif self.on_best is not None and self._evaluator is None:
                self.agent.save(self.on_best, replay=False)
            elif self.on_best is not None and self._evaluator is not None:
                # The agent has changed since the evaluation started, so the file that was evaluated is copied.
                with self._evaluator.file.open("rb") as evaluated, replacing(self.on_best) as file:
                    shutil.copyfileobj(evaluated, file)
        return {f"{self.name}_{measured}": value for measured, value in metrics.items()}

    def _score(self, result: dict[str, Any]) -> float:
        """Return the score of an evaluation by `best_by`."""
        if self.best_by == "mean":
            return float(result["reward_mean"])
        if self.best_by == "lower":
            return float(result["reward_mean"] - result["reward_std"])
        return float(np.quantile(result["returns"], float(self.best_by)))

    def _append(self, row: dict[str, float]) -> None:
        """Append an evaluation to the lists of `results`; NaN stands for a metric that an evaluation lacks."""
        before = len(self.results.get("steps", []))
        for name in row:
            # Each list has one entry per evaluation, so a new metric gets NaN for the earlier ones.
            self.results.setdefault(name, [math.nan] * before)
        for name, values in self.results.items():
            values.append(row.get(name, math.nan))
