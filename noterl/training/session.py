"""Which environments an agent trains in, from one `fit` to the next.

Owns: whether episodes in flight go on, and that a `fit` which cannot have its environments loses none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noterl import envs
from noterl.collect import open_lanes

if TYPE_CHECKING:
    from noterl.agent import Agent


def find_source(agent: Agent, env: Any) -> envs.EnvSource:
    """Return where `fit` trains: in the agent's own environment, in that of the last `fit`, or in another.

    Raises:
        ValueError: if `env` is no environment, or has other spaces than the agent.
    """
    if env is None or _same(env, agent._config.get("env")):
        return agent.source
    if agent._visited is not None and _same(env, agent._visited[0]):
        return agent._visited[1]
    source = fitting_source(agent, env)
    agent._visited = (env, source)
    return source


def fitting_source(agent: Agent, env: Any) -> envs.EnvSource:
    """Return a source of environments with the agent's spaces.

    Raises:
        ValueError: if `env` is no environment, or has other spaces than the agent.
    """
    source = envs.resolve(env)
    for name in ("team", "observation_space", "action_space"):
        theirs, ours = getattr(source, name), getattr(agent.source, name)
        if theirs != ours:
            source.close()
            raise ValueError(f"env has the {name} {theirs}, the agent was built for {ours}")
    return source


def _same(env: Any, other: Any) -> bool:
    return env is other or (isinstance(env, str) and isinstance(other, str) and env == other)


def prepare(agent: Agent, source: envs.EnvSource, num_envs: int | None, *, fresh: bool) -> None:
    """Make the lanes, or keep those that are there, where their episodes go on; never with `fresh`.

    Raises:
        ValueError: if there are not so many environments; where the present ones are is then remembered. Or if what
            relabels the memory's transitions cannot do so with this agent and these environments.
    """
    relabel = getattr(agent.replay, "relabel", None)
    if relabel is not None:
        relabel.attach(agent, source)
    lanes, saved = agent.lanes, agent._restored.get("lanes")
    if source.num_envs is not None:
        count = source.num_envs
        if num_envs not in (None, count):
            raise ValueError(f"num_envs is {num_envs}, but env is a vector environment of {count}")
    else:
        present = lanes.num_envs if lanes is not None else len(saved["lanes"]) if saved else 1
        count = present if num_envs is None else num_envs
    if lanes is not None and source.num_envs is not None and lanes.source is source:
        if fresh:
            lanes.restart()  # the vector environment itself stays open
    elif lanes is not None and (fresh or lanes.source is not source or count != lanes.num_envs):
        park(agent)
    if agent.lanes is not None:
        agent.lanes.claim()
    else:
        agent.lanes = open_lanes(source, count, agent.generators, getattr(agent, "team_reward", None))
        saved, whose = agent._restored.pop("lanes", None), agent._restored.pop("source", None)
        if saved and not fresh and whose in (None, source):
            agent.lanes.set_state(saved)


def park(agent: Agent) -> None:
    """Close the environments, but remember where they were, for the next `fit` in them."""
    if agent.lanes is not None:
        lanes, source = agent.lanes.get_state(), agent.lanes.source
        drop(agent)
        agent._restored.update(lanes=lanes, source=source)


def drop(agent: Agent) -> None:
    """Close the environments, and forget where they were."""
    if agent.lanes is not None:
        agent.lanes.close()
    agent.lanes = None
    agent._restored.pop("lanes", None)
