"""Playing whole episodes without learning.

Owns: the seeds and the statistics of an evaluation. Nothing of the agent that training depends on is touched.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.heads import one_of
from noterl.random import Generators

if TYPE_CHECKING:
    from noterl.agent import Agent
    from noterl.envs import EnvSource


class Evaluation:
    """Episodes on fresh environments; episode `i` has the same seed however many environments play.

    Args:
        agent: who acts.
        source: where environments come from.
        episodes: how many episodes.
        seed: of the environments and of exploration; None for one of the agent's own.
        deterministic: act by the head alone.
        num_envs: environments stepped side by side.
    """

    def __init__(
        self, agent: Agent, source: EnvSource, episodes: int, seed: int | None, deterministic: bool, num_envs: int
    ) -> None:
        self._agent, self._deterministic = agent, deterministic
        generators = Generators(agent.generators.seed if seed is None else seed)
        self._seeds = generators("evaluation").integers(2**31, size=episodes)
        self._explorer = agent.explorer
        if not deterministic:
            self._explorer = agent.explorer.copy_with_generator(generators("exploration of evaluation"))
        self._source, self._num_envs = source, num_envs
        self._environments: list[Any] = []
        self._returns = np.zeros(episodes)
        self._lengths = np.zeros(episodes, np.int64)
        self._by_agent = None if source.team is None else np.zeros((episodes, len(source.team)))
        self._successes: list[float] = []
        self._next = 0

    def run(self) -> dict[str, Any]:
        """Play all episodes and return the statistics."""
        self._agent.acting.stale = True
        with contextlib.ExitStack() as closing:
            for _ in range(self._num_envs):
                environment = self._source.make_evaluation()
                closing.callback(environment.close)
                self._agent.enter(environment)
                self._environments.append(environment)
            playing = [self._begin(environment) for environment in self._environments]
            while any(lane is not None for lane in playing):
                playing = self._round(playing)
        return self._statistics()

    def _begin(self, environment: Any) -> tuple[int, Any] | None:
        """Start the next episode; return its number and first observation, or None when none is left."""
        if self._next == len(self._seeds):
            return None
        number = self._next
        self._next += 1
        observation, _ = environment.reset(seed=int(self._seeds[number]))
        return number, observation

    def _round(self, playing: list[tuple[int, Any] | None]) -> list[tuple[int, Any] | None]:
        agent = self._agent
        lanes = [lane for lane, episode in enumerate(playing) if episode is not None]
        observations = agent.view.stack([playing[lane][1] for lane in lanes])  # type: ignore[index]
        actions = agent.act_on(observations, self._deterministic, self._explorer, agent.steps)
        for row, lane in enumerate(lanes):
            number = playing[lane][0]  # type: ignore[index]
            observation, reward, terminated, truncated, info = self._environments[lane].step(
                one_of(actions, row, agent.action_space)
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
