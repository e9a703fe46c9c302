"""`noterl agents`, `noterl environments`, `noterl callbacks` and `noterl presets`: what there is."""

from __future__ import annotations

import ast
import functools
import importlib.util
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import noterl
from noterl.cli.errors import UsageError
from noterl.utils.words import explain_name


@functools.cache
def agents() -> dict[str, str]:
    """Return a sentence about each agent, by its name on the command line.

    It is read from the source, so that no backend is imported.
    """
    return {name: _summary(name, kind) for name, kind in sorted(_classes().items())}


def class_name(name: str) -> str:
    """Return the name of an agent's class, by its name on the command line."""
    return _classes()[name]


def check_agent(name: str) -> None:
    """Raise a `UsageError` with the nearest name if there is no such agent."""
    if name not in agents():
        raise UsageError(f"unknown agent {name!r}: {explain_name(name, list(agents()))}")


def run_agents(arguments: Sequence[str]) -> None:
    """Print the agents."""
    if arguments:
        raise UsageError(f"noterl agents takes no arguments, got {' '.join(arguments)}; see noterl train AGENT --help")
    print(columns(agents()))


def run_environments(arguments: Sequence[str]) -> None:
    """Print the environments that are registered with gymnasium, and those of noterl."""
    import gymnasium

    parts = [argument.lower() for argument in arguments]
    rows = {}
    for spec in sorted(gymnasium.registry.values(), key=lambda spec: spec.id):
        limit = "no limit of steps" if spec.max_episode_steps is None else f"{spec.max_episode_steps:,} steps"
        rows[spec.id] = f"{limit}; {str(spec.entry_point).partition(':')[0]}"
    for name in ("BitFlip", "BlindCliffwalk", "Reach2D"):
        rows[f"noterl.envs:{name}"] = "a task of noterl"
    found = {name: text for name, text in rows.items() if all(part in name.lower() for part in parts)}
    if not found:
        raise UsageError(f"no environment has {' and '.join(arguments)} in its name")
    print(columns(found))


def run_callbacks(arguments: Sequence[str]) -> None:
    """Print the callbacks, or the options of one."""
    from noterl.cli import callback_options
    from noterl.cli.options import parse_options, summary_of

    offered = {key.replace("_", "-"): kind for key, kind in callback_options.offered().items()}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(columns({name: summary_of(kind) for name, kind in offered.items()}))
        print("\nnoterl callbacks NAME shows the options of one.")
        return
    name = arguments[0].lstrip("-").replace("_", "-")
    if name not in offered:
        raise UsageError(f"unknown callback {arguments[0]!r}: {explain_name(name, list(offered))}")
    options = callback_options.callback_options(name.replace("-", "_"))
    parse_options(options, ["--help"], prog="noterl train AGENT", description=summary_of(offered[name]))


def run_presets(arguments: Sequence[str]) -> None:
    """Print the presets of all agents, or of one."""
    from noterl.presets import catalogue

    if len(arguments) > 1:
        raise UsageError(f"noterl presets takes the name of one agent, got {' '.join(arguments)}")
    for name in arguments:
        check_agent(name)
    presets = catalogue(class_name(arguments[0]) if arguments else None)
    if not presets:
        raise UsageError(f"{arguments[0]} has no presets; noterl presets lists all")
    rows = {
        f"{preset.algorithm.lower()} {preset.env} {preset.name}": f"{preset.arguments['steps']:,} steps; "
        f"{preset.evidence}; {preset.source}"
        for preset in presets
    }
    print(columns(rows))
    print("\nnoterl train AGENT --env ENVIRONMENT --preset NAME trains with one.")


def printable(text: str) -> str:
    """Return a text of a file with its control characters escaped, so that the text cannot control the terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def columns(rows: Mapping[str, str]) -> str:
    """Return names and texts as two columns that fit the terminal."""
    width = min(max(map(len, rows)), 40) + 2
    space = max(shutil.get_terminal_size().columns - width - 2, 30)
    lines = []
    for name, text in rows.items():
        first, *others = textwrap.wrap(text, space) or [""]
        lines.append(f"  {name:<{width}}{first}".rstrip())
        lines += [f"  {'':<{width}}{line}" for line in others]
    return "\n".join(lines)


def _classes() -> dict[str, str]:
    """Return the name of each agent's class, by the name of its module, which is that on the command line."""
    names = {name.lower(): name for name in dir(noterl)}
    found = {module: names.get(module.replace("_", "")) for module in noterl._AGENTS}
    return {module.replace("_", "-"): kind for module, kind in found.items() if kind is not None}


def _summary(name: str, kind: str) -> str:
    spec = importlib.util.find_spec(f"noterl.agents.{name.replace('-', '_')}")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (node,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split()).rstrip(".")
