"""Strategies: the same `fit` on several devices, processes and machines, by the engines of the frameworks."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any, NamedTuple

from noterl import backends
from noterl.distribute.base import Strategy, StrategyError

__all__ = ["SINGLE", "WORDS", "Strategy", "StrategyError", "resolve"]

# One process and one device.
SINGLE = Strategy()


class _Entry(NamedTuple):
    """A strategy: the backend, and the module and class, or function, that makes the strategy.

    `launcher` is the environment variable that says that there are other processes, if the framework can connect to
    these processes only before the first tensor. `start()` of the module connects the processes.
    """

    backend: str
    module: str
    name: str
    launcher: str = ""


# By the word of `fit(strategy=)`. A word is listed if its module exists.
WORDS = {
    "data_parallel": _Entry("jax", "noterl.distribute.data_parallel", "DataParallel"),
    "ddp": _Entry("torch", "noterl.distribute.ddp", "DDP"),
    "mirrored": _Entry("tensorflow", "noterl.distribute.tensorflow", "Mirrored"),
    "multiworker": _Entry("tensorflow", "noterl.distribute.tensorflow", "MultiWorker", "TF_CONFIG"),
    "parameter_server": _Entry("tensorflow", "noterl.distribute.tensorflow", "ParameterServer"),
}

# The classes of frameworks that `fit(strategy=)` accepts -> the word. Names, because no framework is imported here.
_OBJECTS = {
    "DataParallel": "data_parallel",
    "ProcessGroup": "ddp",
    "MirroredStrategy": "mirrored",
    "CollectiveAllReduceStrategy": "multiworker",
    "ParameterServerStrategyV2": "parameter_server",
}


def start() -> None:
    """Connect this process to others if a launcher has started the process and the framework can connect only now."""
    for entry in _words_here().values():
        if os.environ.get(entry.launcher):
            importlib.import_module(entry.module).start()


def _words_here() -> dict[str, _Entry]:
    """Return the strategies of this backend, by word."""
    return {word: entry for word, entry in WORDS.items() if entry.backend == backends.name()}


def resolve(strategy: Any) -> Strategy | None:
    """Return the strategy for the argument `strategy` of `fit`.

    Args:
        strategy: None, one of `WORDS`, a `Strategy`, or the framework's own object.

    Raises:
        ValueError: if `strategy` is none of these, or belongs to another backend.
    """
    if strategy is None or isinstance(strategy, Strategy):
        return strategy
    word = strategy if isinstance(strategy, str) else _word_of(strategy)
    # A word may be written with hyphens, as on the command line.
    entry = WORDS.get(word.replace("-", "_")) if word else None
    if entry is None:
        words = ", ".join(map(repr, WORDS))
        raise ValueError(f"strategy must be {words}, None, or an object of the framework, got {strategy!r}")
    here = _words_here()
    if entry not in here.values():
        raise ValueError(
            f"strategy={strategy!r} needs KERAS_BACKEND={entry.backend}, but this process uses {backends.name()}"
            + (f", whose strategies are {', '.join(map(repr, here))}" if here else "")
        )
    return _make(entry) if isinstance(strategy, str) else _make(entry, strategy)


@cache
def _make(entry: _Entry, *own: Any) -> Strategy:
    """Return the strategy, the same for each `fit` with an equal argument, so that programs are compiled once."""
    return getattr(importlib.import_module(entry.module), entry.name)(*own)


def _word_of(strategy: Any) -> str | None:
    """Return the word of a framework's own object; None for other objects."""
    # By names, because no framework is imported here; the base classes cover subclasses of the user.
    for base in type(strategy).__mro__:
        if base.__name__ in _OBJECTS and base.__module__.partition(".")[0] in ("keras", "tensorflow", "torch"):
            return _OBJECTS[base.__name__]
    return None
