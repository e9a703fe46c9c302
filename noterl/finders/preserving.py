"""Trial runs that leave an agent unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.backends.common import NonFiniteError
from noterl.training.finder_logger import FinderLogger

if TYPE_CHECKING:
    from noterl.agent import BaseAgent


@contextlib.contextmanager
def preserving(agent: BaseAgent) -> Iterator[None]:
    """Restore the agent exactly after the block; inside, NumPy does not warn of overflow or of invalid values."""
    with agent.preserved(), np.errstate(over="ignore", invalid="ignore"):
        yield


def train(agent: BaseAgent, logger: FinderLogger, env: Any, fit: dict[str, Any]) -> tuple[str | None, str | None]:
    """Train until the logger ends training, or a loss is not finite; return the stop reason, and the error or None.

    `LRFinder` and `OptFinder` call this function inside `preserving`. If a loss is not finite, the stop reason
    and the error are the same text.

    Args:
        agent: the agent, which changes.
        logger: records and ends the trial.
        env: where to train; None for new copies of the training environment.
        fit: further arguments of `Agent.fit`.
    """
    arguments = {"verbose": 0, **fit, "callbacks": [*fit.get("callbacks", ()), logger]}
    if env is None and not fit.get("workers"):  # worker processes make environments of their own
        # A maker of vector environments clips rewards, or a factory, from which `fit` makes each copy.
        env = agent.spaces.source.maker or agent.new_environment
    try:
        history = agent.fit(env, **arguments)
    except NonFiniteError as error:
        return str(error), str(error)
    return history.stop_reason, None


def compile_with(agent: BaseAgent, optimizer: Any) -> None:
    """Compile the agent with another optimizer and keep the rest of the state."""
    state = agent.get_state()
    agent.compile(**{**agent.compile_arguments, "optimizer": optimizer})
    agent.build()
    # Without lanes, the trial starts new episodes.
    fresh = agent.get_state()["optimizers"]
    agent.set_state({**state, "optimizers": fresh, "lanes": None, "callbacks": {}})
