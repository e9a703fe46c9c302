"""Comparing optimizers by short trial runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from noterl.finders.candidates import CandidateFinder, Trial, named
from noterl.finders.finder import check_agent
from noterl.finders.preserving import compile_with, preserving, train
from noterl.training.finder_logger import FinderLogger

if TYPE_CHECKING:
    from noterl.agent import BaseAgent


class OptFinder(CandidateFinder):
    """Train the agent for a short time with each of several optimizers, each time from the same state.

    Every trial begins with the agent's weights, memory, counters and generators, so only the optimizer differs.
    Afterwards the agent is exactly as before, with the original optimizer.

    Args:
        agent: the agent.
        optimizers: the candidates, each as for the argument `optimizer` of `Agent.compile`; the keys of a dict are
            their names.

    Raises:
        ValueError: if there are no candidates.

    Example:
    >>> import keras, noterl
    >>> from noterl.finders import OptFinder
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(learning_starts=50, batch_size=8)
    >>> finder = OptFinder(agent, {"Adam": keras.optimizers.Adam(1e-2), "SGD": keras.optimizers.SGD(1e-6)})
    >>> best = finder.find(episodes=5)
    >>> best == finder.results[0]["name"], sorted(finder.trials), agent.steps
    (True, ['Adam', 'SGD'], 0)
    """

    def __init__(self, agent: BaseAgent, optimizers: Mapping[str, Any] | Sequence[Any]) -> None:
        super().__init__()
        if not isinstance(optimizers, Mapping | Sequence) or isinstance(optimizers, str) or not optimizers:
            raise ValueError(f"optimizers must be a list or a dict of optimizers, got {optimizers!r}")
        self.agent: BaseAgent = check_agent(agent)
        self.optimizers: dict[str, Any] = named(optimizers)

    def _run(self, env: Any, episodes: int, metric: str, fit: dict[str, Any]) -> list[Trial]:
        """Train with each optimizer in turn; the agent is restored after each trial."""
        trials = []
        for name, optimizer in self.optimizers.items():
            with preserving(self.agent):
                compile_with(self.agent, optimizer)
                trials.append(play(self.agent, name, FinderLogger(metric, episodes), env, fit))
        return trials


def play(agent: BaseAgent, name: str, logger: FinderLogger, env: Any, fit: dict[str, Any]) -> Trial:
    """Train until the logger ends training, or a loss is not finite; return the trial."""
    _, error = train(agent, logger, env, fit)
    return Trial(name, logger.rewards, logger.losses, logger.seconds, error)
