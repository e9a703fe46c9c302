"""Trial runs that leave an agent exactly as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from noterl.agent import Agent


@contextlib.contextmanager
def preserving(agent: Agent) -> Iterator[None]:
    """Leave the agent, after the block, exactly as it was; a learning rate that is too high raises no warnings."""
    with agent.preserved(), np.errstate(over="ignore", invalid="ignore"):
        yield


def trial_environment(agent: Agent, env: Any) -> Any:
    """Return where a trial trains: in `env`, or if it is None in new copies of the training environment."""
    return agent.new_environment if env is None else env


def compile_with(agent: Agent, optimizer: Any) -> None:
    """Compile the agent with another optimizer and keep the rest of its state."""
    state = agent.get_state()
    agent.compile(**{**agent.compile_arguments, "optimizer": optimizer})
    agent.build()
    fresh = agent.get_state()["optimizers"]
    agent.set_state({**state, "optimizers": fresh, "lanes": None, "callbacks": {}})
