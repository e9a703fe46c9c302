"""Playing whole episodes without learning; nothing that training depends on changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.acting.actor import Actor
from noterl.callback import Events
from noterl.envs import EnvSource
from noterl.heads import one_of
from noterl.random import Generators
from noterl.training.dispatch import call_handlers, run_all
from noterl.utils.checks import check_bool, check_positive


class Evaluation:
    """Episodes in fresh environments; episode `i` has the same seed for every number of environments.

    Args:
        actor: chooses the actions.
        source: where environments come from.
        encoder: from observations to what networks receive.
        configure: called with each environment that is made.
        step: environment steps of training so far; exploration may depend on it.

    Raises:
        ValueError: if an argument of `run` is not one of the allowed values.
    """

    def __init__(
        self, actor: Actor, source: EnvSource, encoder: Any, *, configure: Callable[[Any], None], step: int
    ) -> None:
        self._actor, self._source, self._encoder = actor, source, encoder
        self._configure, self._step = configure, step

    def run(
        self, episodes: int, *, seed: int, deterministic: bool, num_envs: int, events: Events | None = None
    ) -> dict[str, Any]:
        """Play the episodes and return the statistics that `Agent.evaluate` documents."""
        for name, value in (("episodes", episodes), ("num_envs", num_envs)):
            check_positive(name, value)
        self._deterministic = check_bool("deterministic", deterministic)
        generators = Generators(seed)
        self._seeds = generators("evaluation").integers(2**31, size=int(episodes))
        self._explorer = self._actor.explorer
        if not deterministic:
            self._explorer = self._actor.explorer.copy_with_generator(generators("exploration of evaluation"))
        self._returns, self._lengths = np.zeros(int(episodes)), np.zeros(int(episodes), np.int64)
        team = self._source.team
        self._by_agent = None if team is None else np.zeros((int(episodes), len(team)))
        self._successes: list[float] = []
        self._next = 0
        result: dict[str, Any] = {}
        events = Events() if events is None else events

        def play() -> None:
            call_handlers(events.on_evaluate_begin, {})
            self._play(min(num_envs, episodes))
            result.update(self._statistics())

        run_all(play, lambda: call_handlers(events.on_evaluate_end, dict(result)))
        return result

    def _play(self, num_envs: int) -> None:
        self._actor.mark_stale()
        self._environments: list[Any] = []
        with contextlib.ExitStack() as closing:
            for _ in range(num_envs):
                environment = self._source.make_evaluation()
                closing.callback(environment.close)
                self._configure(environment)
                self._environments.append(environment)
            playing = [self._begin(environment) for environment in self._environments]
            while any(lane is not None for lane in playing):
                playing = self._round(playing)

    def _begin(self, environment: Any) -> tuple[int, Any] | None:
        """Start the next episode; return its number and first observation, or None if all have started."""
        if self._next == len(self._seeds):
            return None
        number = self._next
        self._next += 1
        observation, _ = environment.reset(seed=int(self._seeds[number]))
        return number, observation

    def _round(self, playing: list[tuple[int, Any] | None]) -> list[tuple[int, Any] | None]:
        lanes = [lane for lane, episode in enumerate(playing) if episode is not None]
        observations = self._encoder.stack([playing[lane][1] for lane in lanes])  # type: ignore[index]
        actions = self._actor.act(observations, self._step, deterministic=self._deterministic, explorer=self._explorer)
        for row, lane in enumerate(lanes):
            number = playing[lane][0]  # type: ignore[index]
            observation, reward, terminated, truncated, info = self._environments[lane].step(
                one_of(actions, row, self._source.action_space)
            )
            self._returns[number] += float(reward)
            if self._by_agent is not None:
                self._by_agent[number] += self._environments[lane].outcome.earned
            self._lengths[number] += 1
            playing[lane] = (number, observation)
            if terminated or truncated:
                if "is_success" in info:
                    self._successes.append(float(info["is_success"]))
                playing[lane] = self._begin(self._environments[lane])
        return playing

    def _statistics(self) -> dict[str, Any]:
        statistics = {
            "returns": self._returns,
            "lengths": self._lengths,
            "reward_mean": float(self._returns.mean()),
            "reward_std": float(self._returns.std()),
            "reward_iqm": interquartile_mean(self._returns),
            "length_mean": float(self._lengths.mean()),
        }
        if self._by_agent is not None and self._source.team is not None:
            means = self._by_agent.mean(axis=0).tolist()
            names = (f"reward_mean/{name}" for name in self._source.team.names)
            statistics.update(zip(names, means, strict=True))
        if self._successes:
            statistics["success_rate"] = float(np.mean(self._successes))
        return statistics


def interquartile_mean(values: np.ndarray) -> float:
    """Return the mean of the middle half (Agarwal et al., 2021): a quarter is cut off at each end, rounded down.

    Example:
    >>> from noterl.training.evaluation import interquartile_mean
    >>> interquartile_mean([0.0, 1.0, 2.0, 100.0])
    1.5
    """
    ordered = np.sort(np.asarray(values, np.float64))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())
