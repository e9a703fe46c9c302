"""The description of an environment in a saved file.

An id in a file is only looked up among the registered ones. An id "module:id" is refused, because it would import a
module.
"""

from __future__ import annotations

import inspect
import json
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from noterl import registry
from noterl.envs.games.game import Game
from noterl.envs.spaces import kind, show
from noterl.envs.vectorized import VectorMaker
from noterl.registry import Configurable
from noterl.utils.budget import LIMITS, Budget

# If shimmy is installed, these pass an id from their arguments to classic gym, which may import a module.
_IMPORTING_IDS = {"GymV21Environment-v0", "GymV26Environment-v0"}


class Described(NamedTuple):
    """A description that `read` accepted, from which `from_description` makes a source.

    Attributes:
        observation_space: of the environment.
        action_space: of the environment.
        env_id: the id to make the environment from; None if the environment cannot be made.
        keywords: the arguments of `gymnasium.make`.
        absent: the reason why the environment cannot be made; otherwise empty.
        agents: the names of several agents; None for one agent.
        game: the game that the environment plays; None for other environments.
        maker: makes the environments; None if no maker does.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    env_id: str | None
    keywords: dict[str, Any]
    absent: str
    agents: list[str] | None = None
    game: Game | None = None
    maker: VectorMaker | None = None


def describe_object(key: str, described: Configurable) -> dict[str, Any]:
    """Return the entry `key` of a description, a game or a maker; empty if the arguments cannot be stored."""
    config = described.get_config()
    return {key: {"class": type(described).__name__, "arguments": config}} if _fits(config) else {}


def describe(
    spec: EnvSpec | None, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> dict[str, Any]:
    """Return a description for a file: the spaces, and the id and arguments if these suffice to make one."""
    description: dict[str, Any] = {"observation_space": observation_space, "action_space": action_space}
    # A spec names wrappers by import path, which a file must not; without them the environment would be another one.
    registered = None if spec is None or spec.additional_wrappers else gymnasium.registry.get(spec.id)
    if spec is None or registered is None or registered.entry_point != spec.entry_point:
        return description
    # Only the arguments that differ from the registered ones, except the render mode.
    equal = {name for name, value in spec.kwargs.items() if repr(value) == repr(registered.kwargs.get(name, ...))}
    kwargs = {name: value for name, value in spec.kwargs.items() if name not in {*equal, "render_mode"}}
    if not _fits(kwargs):
        return description
    return {**description, "id": spec.id, "kwargs": kwargs, "max_episode_steps": spec.max_episode_steps}


def _fits(arguments: Any) -> bool:
    """Return whether a file may hold arguments: JSON restores all of them, and the text is not long."""
    try:
        text = json.dumps(arguments, allow_nan=False)
        # JSON turns tuples into lists and keys into text; then the environment would get other arguments.
        return len(text) <= LIMITS["bytes of arguments"] and bool(json.loads(text) == arguments)
    except (TypeError, ValueError, RecursionError):
        return False


def read(description: Any) -> Described:
    """Read a description, which may come from a hostile file.

    Raises:
        ValueError: if `description` is malformed, the id would import a module, or the environment does not take the
            keywords.
    """
    if not isinstance(description, dict):
        raise ValueError(f"description must be a dict, got {show(description)}")
    spaces: tuple[Any, Any] = (description.get("observation_space"), description.get("action_space"))
    for space in spaces:
        if not isinstance(space, gymnasium.Space) or kind(space) is None:
            raise ValueError(f"description: observation_space and action_space must be spaces, got {show(space)}")
        budget = Budget(f"{show(space)} in its member 'agent.json'")
        budget.spend("values of a space", int(gymnasium.spaces.flatdim(space)))
    if "game" in description:
        game, absent = _read_object("game", description["game"], Game)
        return Described(*spaces, None, {}, absent, None, game)
    if "maker" in description:
        maker, absent = _read_object("maker", description["maker"], VectorMaker)
        return Described(*spaces, None, {}, absent, maker=maker)
    agents = description.get("agents")
    named = isinstance(agents, list) and all(isinstance(name, str) for name in agents)
    if agents is not None and not (named and all(kind(space) == "Tuple" for space in spaces)):
        raise ValueError(f"description: agents are malformed: {show(description)}")
    if description.get("id") is not None:
        return _read_registered(spaces, description)
    return Described(*spaces, None, {}, "the file holds only the spaces of its environment", agents)


def _read_registered(spaces: tuple[Any, Any], description: dict[str, Any]) -> Described:
    """Return the description of an environment with an id."""
    env_id = description["id"]
    agents = description.get("agents")
    kwargs = description.get("kwargs", {})
    limit = description.get("max_episode_steps")
    # Not `isinstance`, which accepts True.
    limited = type(limit) is int and limit > 0
    if not isinstance(env_id, str) or not isinstance(kwargs, dict) or not (limit is None or limited):
        raise ValueError(f"description: id, kwargs and max_episode_steps are malformed: {show(description)}")
    if ":" in env_id:
        raise ValueError(f"description: the id {show(env_id)} would import a module, which a file must not")
    if env_id not in gymnasium.registry or env_id in _IMPORTING_IDS:
        absent = f"the file's environment {show(env_id)} is not registered here (import the package that registers it)"
        return Described(*spaces, None, {}, absent, agents)
    Budget("the arguments of its environment").spend("bytes of arguments", len(repr(kwargs)))
    if kwargs:
        _check_keywords(env_id, kwargs)
    # For gymnasium, -1 means no time limit even if the registered id has one.
    return Described(*spaces, env_id, {**kwargs, "max_episode_steps": -1 if limit is None else limit}, "", agents)


def _read_object(key: str, entry: Any, base: type) -> tuple[Any, str]:
    """Return a game or a maker and "", or None and the reason for the absence.

    The class is looked up among the registered ones and never imported.
    """
    if not isinstance(entry, dict) or {*map(type, entry)} != {str} or set(entry) != {"class", "arguments"}:
        raise ValueError(f"description: {key} must hold a class and its arguments, got {show(entry)}")
    name = entry["class"]
    arguments = entry["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict) or not _fits(arguments):
        raise ValueError(f"description: {key} must hold a class and its arguments, got {show(entry)}")
    try:
        registered = registry.lookup(name)
    except ValueError:
        return None, f"the file's {key} {show(name)} is not registered here (decorate its class with noterl.register)"
    if not (isinstance(registered, type) and issubclass(registered, base)):
        raise ValueError(f"description: {show(name)} is not a {base.__module__.rpartition('.')[0]}.{base.__name__}")
    maker: Any = registered
    try:
        return maker.from_config(arguments), ""
    except (TypeError, AttributeError) as error:
        raise ValueError(f"description: arguments do not fit the {key} {show(name)}: {error}") from error
    except ImportError as error:
        return None, str(error)


def _check_keywords(env_id: str, kwargs: dict[str, Any]) -> None:
    """Raise unless `gymnasium.make` can pass the keywords on to the environment."""
    refused = f"description: kwargs of {env_id} must be arguments of the environment, got {show(kwargs)}"
    parameters = inspect.signature(gymnasium.make).parameters
    # `gymnasium.make` would take a keyword of its own instead of passing it on.
    if not all(isinstance(name, str) and name not in {*parameters, "env_id", "render_mode"} for name in kwargs):
        raise ValueError(refused)
    spec = gymnasium.registry[env_id]
    try:
        # This process has registered the entry point, so importing it runs no code that the file chooses.
        creator: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        signature = inspect.signature(creator)
    except Exception:  # if a package is missing, making the environment raises an error that names it
        return
    try:
        signature.bind_partial(**{**spec.kwargs, **kwargs})
    except TypeError as error:
        raise ValueError(f"{refused}: {error}") from error
