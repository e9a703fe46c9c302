"""Trying something with an agent and leaving it exactly as it was."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import networks
from noterl.training import session as agent_lanes

if TYPE_CHECKING:
    from noterl.agent import Agent


@contextlib.contextmanager
def preserving(agent: Agent) -> Iterator[dict[str, Any]]:
    """Let the agent be trained, and compiled anew, inside; afterwards nothing of that is left.

    Weights, optimizers, memory, counters, generators and hyperparameters are those of before; the environments that it
    trains in are set aside, so that their episodes in flight are not touched, and trials play in others.

    Yields:
        the agent's state as it was.
    """
    state = agent.get_state()
    attributes = dict(vars(agent))
    try:
        _set_aside(agent)
        with np.errstate(over="ignore", invalid="ignore"):  # a rate that is too high shows in the results
            yield state
    finally:
        _leave(agent)
        vars(agent).clear()
        vars(agent).update(attributes, lanes=None)
        agent.set_state(state)
        # What set_state drops, for it brings an agent to another place; this one never left.
        kept = ("lanes", "history", "_restored", "_callbacks", "_events", "_visited")
        vars(agent).update({name: attributes[name] for name in kept if name in attributes})
        agent.mark_stale()


def _set_aside(agent: Agent) -> None:
    """Take from the agent what a trial must not share with it: its environments and its generators."""
    vars(agent).update(lanes=None, _restored={}, _visited=None, generators=copy.deepcopy(agent.generators))
    agent.explorer.generator = agent.generators("exploration")


def trial_environment(agent: Agent, env: Any) -> Any:
    """Return where a trial plays: what the user said, else a fresh copy of where the agent trains."""
    return agent.source.make_evaluation if env is None else env


def begin_trial(agent: Agent, state: dict[str, Any], optimizer: Any) -> None:
    """Compile the agent with another optimizer, and bring all else of it to a state."""
    _leave(agent)
    arguments = dict(agent._setup.arguments) if agent._setup is not None else {}
    agent.compile(**{**arguments, "optimizer": optimizer})
    for name, network in agent.networks().items():  # the last trial may have left some that nothing can be built on
        networks.set_weights(network, state["variables"][name])
    agent.build()
    fresh = agent.get_state()["optimizers"]
    agent.set_state({**state, "optimizers": fresh, "lanes": None, "callbacks": {}})


def _leave(agent: Agent) -> None:
    """Close the environments of a trial."""
    source = agent._visited[1] if agent._visited is not None else None
    agent_lanes.drop(agent)
    if source is not None:
        source.close()
    agent._visited = None
