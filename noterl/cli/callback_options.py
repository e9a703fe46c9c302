"""The callbacks on the command line: names and options, and the objects that options make."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noterl.cli.environment import environment_of
from noterl.cli.errors import usage_errors
from noterl.cli.options import Given, Option, cli_name, options_of, summary_of
from noterl.cli.values import alternatives

# They need functions or a trial, are bases, or are what `--verbose` selects.
_NOT_OFFERED = {"Callback", "EpisodePrinter", "LambdaCallback", "OptunaPruning", "ProgressBar"}


@functools.cache
def offered() -> dict[str, Any]:
    """Return the callbacks that the command line offers, by the keys of tables in TOML files."""
    catalogue: Any = importlib.import_module("noterl.callbacks")
    kinds = {name: getattr(catalogue, name) for name in catalogue.__all__ if name not in _NOT_OFFERED}
    return {
        cli_name(name).replace("-", "_"): member
        for name, member in kinds.items()
        if isinstance(member, type) and issubclass(member, catalogue.Callback)
    }


def callback_options(key: str) -> list[Option]:
    """Return the options of one callback.

    The first enables the callback, and has the value of the first argument. A value is needed if this argument has no
    default. The others are named after the arguments, such as `--checkpoint.save-freq`.
    """
    callback = offered()[key]
    group = key.replace("_", "-")
    options = options_of(callback, group, prefix=f"{key}.")
    first = options[0] if options else Option(f"{key}.", "bool")
    # They are required only if the callback is used; its constructor raises then.
    options = [replace(entry, help=entry.help + " (required)" * entry.required, required=False) for entry in options]
    first_option = Option(key, first.annotation, None, summary_of(callback), group, switch=not first.required)
    return [first_option, *options, *_tunables(callback, key, group)]


def make_callbacks(given: Mapping[str, Given]) -> list[Any]:
    """Return the callbacks that options enable: those that add metrics first, because others may monitor these.

    Raises:
        UsageError: if a callback does not accept the arguments.
    """
    callbacks = []
    for key, callback in offered().items():
        options = {name: value for name, value in given.items() if name.partition(".")[0] == key}
        if options and not is_off(key, options):
            with usage_errors(f"--{key.replace('_', '-')}: "):
                arguments = {name: option.value for name, option in arguments_of(key, options).items()}
                if isinstance(env := arguments.get("env"), str):
                    arguments["env"] = environment_of(env)
                callbacks.append(callback(**arguments))
    return sorted(callbacks, key=lambda callback: not callback.adds)


def arguments_of(key: str, given: Mapping[str, Given]) -> dict[str, Given]:
    """Return the arguments of a callback by name, from the options."""
    arguments = {name.partition(".")[2]: option for name, option in given.items() if "." in name}
    # True stands for the option without a value, unless the first argument may be a bool itself.
    accepts_bool = any("bool" in alternatives(option.annotation) for option in callback_options(key)[1:2])
    if key in given and (given[key].value is not True or accepts_bool):
        arguments[first_argument(key)] = given[key]
    return arguments


def is_off(key: str, given: Mapping[str, Given]) -> bool:
    """Return whether a callback without arguments is given as false, such as by `--no-doctor`."""
    return key in given and given[key].value is False and not first_argument(key)


def first_argument(key: str) -> str:
    """Return the name of a callback's first argument; an empty text if the callback has none."""
    options = callback_options(key)
    return options[1].key.partition(".")[2] if len(options) > 1 else ""


def _tunables(kind: Any, key: str, group: str) -> list[Option]:
    """Return the options of a callback that takes any tunable as a keyword."""
    parameters = inspect.signature(kind).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD and parameter.name == "adjusted" for parameter in parameters):
        return []
    names = importlib.import_module("noterl.callbacks.support.tunables").TUNABLES
    text = "How it is adapted: Rate(rate, min, max), or for counts Scale(scale, min, max)"
    return [Option(f"{key}.{name}", "Rate | Scale", None, text, group) for name in names]
