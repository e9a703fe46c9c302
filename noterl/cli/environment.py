"""Environments on the command line: an id, perhaps with arguments."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from typing import Any

from noterl.cli.errors import UsageError
from noterl.cli.values import parse_call
from noterl.envs import Atari
from noterl.envs.making import make_registered

_WITH_ARGUMENTS = re.compile(r"(?P<name>[^()]+)\((?P<arguments>.*)\)", re.DOTALL)


@dataclass(frozen=True)
class EnvFactory:
    """Makes an environment, also in other processes.

    Attributes:
        name: a gymnasium id, or `module:function` for a function or class that returns an environment.
        arguments: positional arguments of the function.
        keywords: keyword arguments of `gymnasium.make`, or of the function.
        text: the option `--env`.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options that describe this environment, as in a TOML file."""
        return {"env": self.text}

    def __str__(self) -> str:
        return self.text

    def __call__(self, render_mode: str | None = None) -> Any:
        """Return a new environment.

        Raises:
            ValueError: if the id is unknown, or the environment does not accept the arguments.
        """
        module, _, name = self.name.partition(":")
        # `module:name` is a function of that module, or an id that the module registers.
        function = getattr(importlib.import_module(module), name, None) if name else None
        if function is None:
            return make_registered(self.name, render_mode, **self.keywords)
        # Only when needed: a function of the user may not have this argument.
        keywords = self.keywords if render_mode is None else {**self.keywords, "render_mode": render_mode}
        return function(*self.arguments, **keywords)


def environment_of(text: str) -> str | EnvFactory | Atari:
    """Return the argument `env` of an agent, from the option `--env`.

    Args:
        text: an id, perhaps with arguments, such as `FrozenLake-v1(is_slippery=False)`; `module:function(...)`; or
            `atari:Pong`, perhaps with arguments of `noterl.envs.Atari`.

    Raises:
        UsageError: if the arguments are not literals.

    Example:
    >>> from noterl.cli.environment import environment_of
    >>> environment_of("CartPole-v1")
    'CartPole-v1'
    >>> environment_of("FrozenLake-v1(is_slippery=False)").keywords
    {'is_slippery': False}
    """
    match = _WITH_ARGUMENTS.fullmatch(text)
    name = text if match is None else match["name"]
    is_game = name.startswith("atari:")
    # A plain id stays a text, which the agent's file describes.
    if match is None:
        return EnvFactory(text, text=text) if not is_game and _is_function(text) else text
    arguments, keywords = parse_call(f"env({match['arguments']})", _find_env)
    if arguments and (is_game or not _is_function(name)):
        raise UsageError(f"--env: the arguments of {name} must be keywords, such as name=value")
    if not is_game:
        return EnvFactory(name, arguments, keywords, text)
    try:
        return Atari(name.removeprefix("atari:"), **keywords)
    except TypeError as error:
        raise UsageError(f"--env: {name}: {error}") from error


def _arguments(*arguments: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return arguments, keywords


def _find_env(name: str) -> Any:
    if name != "env":
        raise UsageError(f"--env: arguments of an environment must be literals, got {name}(...)")
    return _arguments


def _is_function(name: str) -> bool:
    """Return whether a name is `module:function`, and not gymnasium's `module:id`."""
    return ":" in name and name.rpartition(":")[2].isidentifier()
