"""Presets: the settings of an algorithm for a task, as data in one TOML file for each algorithm.

A table `[name."environment"]` holds a source, the evidence, and arguments of the constructor, of `compile` and of `fit`
by name. A table with the key `class` stands for an object. The key `until` is a fraction of the budget, and becomes the
argument `steps` of the object. `callbacks` is a list of such objects. `*` in the environment stands for any characters.
"""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from noterl import registry
from noterl.utils.checks import check_positive, whole
from noterl.utils.words import explain_name


@dataclass(frozen=True)
class Preset:
    """The settings of an algorithm for a task.

    Attributes:
        algorithm: the name of the class, such as "PPO".
        env: the id of the environment; `*` stands for any characters.
        name: the name of the preset: "zoo" for the published settings of rl-zoo3, "fast" for settings of noterl that
            reach a score in a short time.
        source: where the settings come from, and what differs from there.
        evidence: what agents reached with the settings here; "not run here" if none was trained.
        arguments: the arguments of the constructor, of `compile` and of `fit`, as in the file.
    """

    algorithm: str
    env: str
    name: str
    source: str
    evidence: str
    arguments: Mapping[str, Any] = field(repr=False)

    @property
    def summary(self) -> str:
        """The budget, the evidence and the source."""
        return f"{self.arguments['steps']:,} steps; {self.evidence}; {self.source}"

    def make(self, kind: Any, env: Any, arguments: Mapping[str, Any]) -> Any:
        """Return a compiled agent whose `fit` takes the preset's budget and lanes.

        Args:
            kind: the class of the agent.
            env: the environment of the agent.
            arguments: of the constructor, of `compile`, or of `fit` if the default there is None, except for data
                sets; each replaces the preset's argument.

        Raises:
            ValueError: if neither of the three has an argument; the message names the argument.
        """
        chosen = {**self.arguments, **arguments}
        check_positive("steps", whole(chosen.get("steps")), none=True)
        spans: list[tuple[Any, float]] = []
        values = {name: _object(value, chosen.get("steps"), spans) for name, value in chosen.items()}
        groups: list[dict[str, Any]] = []
        for function in (kind, kind.compile, kind.fit):
            names = inspect.signature(function).parameters.keys() - {"self", "env"}
            groups.append({name: values.pop(name) for name in names & values.keys()})
        for name in groups[2].keys() & arguments.keys():
            value = groups[2][name]
            default = inspect.signature(kind.fit).parameters[name].default
            if default is not None or name in ("dataset", "validation_data"):
                raise ValueError(f"{name} must be an argument of fit, not of from_preset, got {name}={value!r}")
        for name, value in values.items():
            hint = explain_name(name, set(inspect.signature(kind).parameters))
            raise ValueError(
                f"{name} is an argument of neither {kind.__name__}, compile nor fit, got {name}={value!r}: {hint}"
            )
        if arguments.get("episodes") is not None and "steps" not in arguments:
            groups[2]["steps"] = None  # the new budget; schedules still span the preset's steps
        agent = kind(env, **groups[0])
        agent.compile(**groups[1])
        agent._parts.preset = FitDefaults(groups[2], spans)
        return agent


@dataclass(frozen=True)
class FitDefaults:
    """What `fit` takes from a preset.

    Attributes:
        arguments: the arguments of `fit` by name.
        spans: the schedules and policies of the preset, each with the fraction of the budget after which its value is
            constant.
    """

    arguments: Mapping[str, Any]
    spans: list[tuple[Any, float]]

    def complete(self, fit: Any) -> None:
        """Set the arguments of `fit` that are None.

        A budget in steps or episodes replaces the preset's budget and callbacks. A callback of the same class as one of
        the preset's callbacks replaces all of these. Workers and another environment replace the preset's vector
        environment, and a vector environment the preset's number of environments.
        """
        replaced = {"callbacks"}  # they are added to the given callbacks
        callbacks = self.arguments.get("callbacks", [])
        if fit.steps is not None or fit.episodes is not None:
            replaced |= {"steps", "episodes"}
            callbacks = []
        if not {*map(type, callbacks)} & {*map(type, fit.callbacks.callbacks)}:
            fit.callbacks = type(fit.callbacks)([*callbacks, *fit.callbacks.callbacks])
        if fit.workers or self.arguments.get("workers") or fit.env is not None:
            replaced.add("vectorize")
        if hasattr(fit.env, "num_envs"):
            replaced.add("num_envs")
        for name, value in self.arguments.items():
            if getattr(fit, name) is None and name not in replaced:
                setattr(fit, name, value)

    def span(self, budget: float) -> None:
        """Let schedules end at their fractions of a number of steps or updates, or of the preset's steps for inf."""
        steps = self.arguments["steps"] if budget == math.inf else int(budget)
        for scheduled, fraction in self.spans if steps else ():
            scheduled.steps = _steps(fraction, steps)
            scheduled._config["steps"] = scheduled.steps  # what a file holds


def catalogue() -> list[Preset]:
    """Return all presets.

    Example:
    >>> from noterl.presets import catalogue
    >>> sorted({preset.name for preset in catalogue() if preset.algorithm == "SAC"})
    ['fast', 'zoo']
    """
    presets = []
    for file in sorted(resources.files(__name__).iterdir(), key=lambda file: file.name):
        algorithm, _, ending = file.name.upper().partition(".")
        if ending == "TOML":
            for name, tables in tomllib.loads(file.read_text(encoding="utf-8")).items():
                for env, table in tables.items():
                    arguments = {key: value for key, value in table.items() if key not in ("source", "evidence")}
                    presets.append(Preset(algorithm, env, name, table["source"], table["evidence"], arguments))
    return presets


def find(kind: type, env: str, name: str) -> Preset:
    """Return the preset of an agent's class for a task.

    Args:
        kind: the class of the agent, or a subclass of such a class.
        env: the id of the environment.
        name: the name of the preset.

    Raises:
        ValueError: if there is no such preset; the message names the nearest.
    """
    if not isinstance(env, str):
        raise ValueError(f"env must be the id of a task with a preset (fit takes other environments), got {env!r:.80}")
    # A class of the user has the presets of noterl's class below it, but TQC does not have the presets of SAC.
    algorithm = next((base.__name__ for base in kind.__mro__ if base.__module__.startswith("noterl.")), "")
    everything = catalogue()
    of_algorithm = [preset for preset in everything if preset.algorithm == algorithm]
    if not of_algorithm:
        algorithms = ", ".join(sorted({preset.algorithm for preset in everything}))
        raise ValueError(f"{kind.__name__} has no presets; these algorithms have some: {algorithms}")
    of_task = [preset for preset in of_algorithm if fnmatch.fnmatchcase(env, preset.env)]
    if not of_task:
        nearest = difflib.get_close_matches(env, {preset.env for preset in of_algorithm}, n=3, cutoff=0.0)
        game = re.fullmatch(r"ALE/(\w+)-v5|(\w+?)(?:Deterministic|NoFrameskip)-v4", env)
        if game and any(preset.env == "atari:*" for preset in of_algorithm):
            nearest = [f"atari:{game[1] or game[2]}"]
        others = {preset.algorithm for preset in everything if fnmatch.fnmatchcase(env, preset.env)}
        hint = f"; for this task there are presets of {' and '.join(sorted(others))}" if others else ""
        raise ValueError(f"env: {algorithm} has no preset for {env!r}; the nearest are {', '.join(nearest)}{hint}")
    for preset in of_task:
        if preset.name == name:
            return preset
    names = " or ".join(repr(preset.name) for preset in of_task)
    raise ValueError(f"name must be {names} for {algorithm} on {env}, got {name!r}")


def _object(value: Any, budget: int | None, spans: list[tuple[Any, float]]) -> Any:
    """Return what a value of a file stands for; add schedules with a fraction of the budget to `spans`."""
    if isinstance(value, list):
        return [_object(entry, budget, spans) for entry in value]
    if not isinstance(value, Mapping) or "class" not in value:
        return value
    arguments = {key: _object(entry, budget, spans) for key, entry in value.items() if key not in ("class", "until")}
    if "until" in value:
        if budget is None:
            raise ValueError("steps must be a number for a preset whose schedules span the budget, got None")
        arguments["steps"] = _steps(value["until"], budget)
    from noterl.backends import keras  # here, because the list of presets needs no backend

    optimizer = getattr(keras.optimizers, value["class"], None)
    result = (optimizer or registry.lookup(value["class"]))(**arguments)
    if "until" in value:
        spans.append((result, value["until"]))
    return result


def _steps(fraction: float, budget: int) -> int:
    return max(1, round(fraction * budget))
