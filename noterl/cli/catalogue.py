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
    """Return a sentence about each agent, by name on the command line.

    The sentence is read from the source, so that no backend is imported.
    """
    return {name: _summary(name, agent_class) for name, agent_class in sorted(_classes().items())}


def class_name(name: str) -> str:
    """Return the name of an agent's class, by the agent's name on the command line."""
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
    """Print the environments that are registered with gymnasium, and noterl's."""
    import gymnasium

    words = [argument.lower() for argument in arguments]
    rows = {}
    for spec in sorted(gymnasium.registry.values(), key=lambda spec: spec.id):
        limit = "no limit of steps" if spec.max_episode_steps is None else f"{spec.max_episode_steps:,} steps"
        rows[spec.id] = f"{limit}; {str(spec.entry_point).partition(':')[0]}"
    # These tasks of noterl are not registered, so gymnasium's list lacks them.
    for name in ("BitFlip", "Reach2D"):
        rows[f"noterl.envs:{name}"] = "a task of noterl"
    matches = {name: text for name, text in rows.items() if all(part in name.lower() for part in words)}
    if not matches:
        raise UsageError(f"no environment has {' and '.join(arguments)} in its name")
    print(columns(matches))


def run_callbacks(arguments: Sequence[str]) -> None:
    """Print the callbacks, or the options of one."""
    from noterl.cli import callback_options
    from noterl.cli.options import parse_options, summary_of

    offered = {key.replace("_", "-"): callback for key, callback in callback_options.offered().items()}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(columns({name: summary_of(callback) for name, callback in offered.items()}))
        print("\nnoterl callbacks NAME shows the options of one.")
        return
    # The name may be written as on the command line, "--early-stopping", or as in a TOML file, "early_stopping".
    name = arguments[0].lstrip("-").replace("_", "-")
    if name not in offered:
        raise UsageError(f"unknown callback {arguments[0]!r}: {explain_name(name, list(offered))}")
    options = callback_options.callback_options(name.replace("-", "_"))
    # The parser prints the help and ends the process.
    parse_options(options, ["--help"], prog="noterl train AGENT", description=summary_of(offered[name]))


def run_presets(arguments: Sequence[str]) -> None:
    """Print the presets of all agents, or of some."""
    from noterl.presets import catalogue

    names = [name.lower() for name in arguments]
    for name in names:
        check_agent(name)
    shown = set(map(class_name, names))
    presets = [preset for preset in catalogue() if not shown or preset.algorithm in shown]
    if not presets:
        raise UsageError(f"no presets for {' and '.join(arguments)}; noterl presets lists all")
    rows = {f"{preset.algorithm.lower()} {preset.env} {preset.name}": preset.summary for preset in presets}
    print(columns(rows))
    print("\nnoterl train AGENT --env ENVIRONMENT --preset NAME trains with one.")


def printable(text: str) -> str:
    """Return a text of a file with the control characters escaped, so that the text cannot control the terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def columns(rows: Mapping[str, str]) -> str:
    """Return names and texts as two columns that fit the terminal."""
    # A long id does not leave the texts without room; its text begins further to the right.
    width = min(max(map(len, rows)), 40) + 2
    space = max(shutil.get_terminal_size().columns - width - 2, 30)
    lines = []
    for name, text in rows.items():
        first, *others = textwrap.wrap(text, space) or [""]
        lines.append(f"  {name:<{width}}{first}".rstrip())
        lines += [f"  {'':<{width}}{line}" for line in others]
    return "\n".join(lines)


def _classes() -> dict[str, str]:
    """Return the name of each agent's class, by the name of the module, as on the command line."""
    # Modules are "double_dqn" and classes "DoubleDQN": both are compared in small letters without the line.
    names = {name.lower(): name for name in dir(noterl)}
    class_names = {module: names.get(module.replace("_", "")) for module in noterl._AGENTS}
    return {module.replace("_", "-"): name for module, name in class_names.items() if name is not None}


def _summary(name: str, kind: str) -> str:
    """Return the first sentence about an agent, from the source of its class `kind`."""
    spec = importlib.util.find_spec(f"noterl.agents.{name.replace('-', '_')}")
    assert spec is not None and spec.origin is not None
    # Parsed instead of imported: an import would load a backend, which takes seconds.
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (node,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split()).rstrip(".")
