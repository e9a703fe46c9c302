"""Environments on the command line: an id with arguments, and wrappers."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from noterl.cli.errors import UsageError
from noterl.cli.values import parse_call
from noterl.envs import Atari, ClipRewards, FrameStack, preprocess
from noterl.envs.making import make_registered
from noterl.utils.words import explain_name

_WITH_ARGUMENTS = re.compile(r"(?P<name>[^()]+)\((?P<arguments>.*)\)", re.DOTALL)


@dataclass(frozen=True)
class EnvFactory:
    """Makes an environment, also in other processes.

    Attributes:
        name: a gymnasium id, or `module:function` for a function or class that returns an environment.
        arguments: positional arguments of the function.
        keywords: keyword arguments of `gymnasium.make`, or of the function.
        wrappers: calls of wrappers, innermost first, such as "FrameStackObservation(4)".
        text: the option `--env`.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    text: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options that describe this environment, as in a TOML file."""
        return {"env": self.text, **({"wrap": list(self.wrappers)} if self.wrappers else {})}

    def __str__(self) -> str:
        return self.text

    def __call__(self, render_mode: str | None = None) -> Any:
        """Return a new environment.

        Raises:
            ValueError: if the id is unknown, or the environment or a wrapper does not accept the arguments.
        """
        env = self._make(render_mode)
        for wrapper in self.wrappers:
            env = parse_call(wrapper, functools.partial(_bound_wrapper, env=env))
        return env

    def _make(self, render_mode: str | None) -> Any:
        """Return the environment without the wrappers."""
        module, _, name = self.name.partition(":")
        # `module:name` is a function of that module, or an id that the module registers.
        function = getattr(importlib.import_module(module), name, None) if name else None
        if function is None:
            return make_registered(self.name, render_mode, **self.keywords)
        # Only when needed: a function of the user may not have this argument.
        keywords = self.keywords if render_mode is None else {**self.keywords, "render_mode": render_mode}
        return function(*self.arguments, **keywords)


def environment_of(text: str, wrappers: Sequence[str] = ()) -> str | EnvFactory | Atari:
    """Return the argument `env` of an agent, from the options `--env` and `--wrap`.

    Args:
        text: an id, perhaps with arguments, such as `FrozenLake-v1(is_slippery=False)`; `module:function(...)`; or
            `atari:Pong`, perhaps with arguments of `noterl.envs.Atari`.
        wrappers: calls of `gymnasium.wrappers`, or of `preprocess`, `FrameStack` or `ClipRewards` of `noterl.envs`,
            innermost first.

    Raises:
        UsageError: if the arguments are not literals, or wrappers are given for an Atari game.

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
    if is_game and wrappers:
        raise UsageError(f"--wrap is not possible for {text}, because Atari games are stepped together")
    # A plain id stays a text, which the agent's file describes.
    if match is None:
        is_plain = is_game or not (wrappers or _is_function(text))
        return text if is_plain else EnvFactory(text, wrappers=tuple(wrappers), text=text)
    arguments, keywords = parse_call(f"env({match['arguments']})", _find_env)
    if arguments and (is_game or not _is_function(name)):
        raise UsageError(f"--env: the arguments of {name} must be keywords, such as name=value")
    if not is_game:
        return EnvFactory(name, arguments, keywords, tuple(wrappers), text)
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


def _bound_wrapper(name: str, *, env: Any) -> Any:
    """Return the wrapper of a name, which wraps `env`."""
    import gymnasium.wrappers

    ours = {wrapper.__name__: wrapper for wrapper in (ClipRewards, FrameStack, preprocess)}
    offered = [wrapper for wrapper in gymnasium.wrappers.__all__ if wrapper[0].isupper()]
    if name not in offered and name not in ours:
        raise UsageError(f"--wrap: unknown wrapper {name!r}: {explain_name(name, [*offered, *ours])}")
    wrap = ours.get(name) or getattr(gymnasium.wrappers, name)
    return lambda *arguments, **keywords: wrap(env, *arguments, **keywords)
