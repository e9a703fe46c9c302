"""`noterl play`, `evaluate`, `publish` and `info`: commands on files of agents."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import noterl
from noterl import saving
from noterl.cli import catalogue, config, train
from noterl.cli.catalogue import columns, printable
from noterl.cli.environment import environment_of
from noterl.cli.errors import UsageError, usage_errors
from noterl.cli.options import Option, options_of, parse_options
from noterl.saving.codec import Description
from noterl.training.play import has_display
from noterl.utils.files import user_path
from noterl.utils.tables import plain_row

_JSON = Option("json", "bool", False, "Whether to print JSON", "run", switch=True)
_HELP = {
    "play": "Play episodes of a trained agent and show them.",
    "evaluate": "Evaluate a trained agent.",
    "publish": "Write a trained agent and a card for a model hub to FOLDER, which follows FILE.",
    "data record": "Store the data of an agent's episodes: in an .npz file or, for other paths, in a folder.",
}


def run_play(arguments: Sequence[str]) -> None:
    """Run `noterl play`: play and show episodes.

    Raises:
        UsageError: if the command line is wrong.
    """
    _run("play", arguments, skip=("trajectory",), fixed={"trajectory": False})


def run_evaluate(arguments: Sequence[str]) -> None:
    """Run `noterl evaluate`: play episodes and print statistics.

    Raises:
        UsageError: if the command line is wrong.
    """
    _run("evaluate", arguments, skip=("callbacks",), fixed={})


def run_publish(arguments: Sequence[str]) -> None:
    """Run `noterl publish`: evaluate an agent and write a folder for a model hub.

    Raises:
        UsageError: if the command line is wrong.
    """
    paths = [argument for argument in arguments[:2] if not argument.startswith("-")]
    if len(paths) < 2 and not {"-h", "--help"} & {*arguments}:
        raise UsageError("a file, or the folder of a run, and a new folder must follow `noterl publish`")
    _run("publish", [*paths[:1], *arguments[len(paths) :]], skip=("folder",), fixed={"folder": "".join(paths[1:])})


def run_record(arguments: Sequence[str]) -> None:
    """Run `noterl data record`: play episodes and store their data.

    Raises:
        UsageError: if the command line is wrong.
    """
    _run("data record", arguments, skip=("agent_or_function", "noise"), fixed={})


def run_info(arguments: Sequence[str]) -> None:
    """Run `noterl info`: print what a file holds, without building the agent.

    Raises:
        UsageError: if the command line is wrong.
    """
    path, flags = _file_of("info", arguments, [_JSON])
    values = parse_options([_JSON], flags, prog="noterl info FILE", description="Print what a file of an agent holds.")
    description = describe(path)
    if "json" in values and values["json"].value:  # which escapes control characters
        print(json.dumps(description, indent=2))
    else:
        print(columns({printable(key): printable(str(text)) for key, text in description.items()}))


def describe(path: Path) -> dict[str, Any]:
    """Return a description of a file: of an agent, or of weights.

    Raises:
        noterl.saving.FileError: if the file is damaged, or holds neither.
        OSError: if the file cannot be read.
    """
    size = f"{path.stat().st_size / 2**20:.2f} MiB"
    if path.suffix == ".safetensors":
        weights = saving.read_weights(path)
        shapes = {name: f"{array.dtype} {list(array.shape)}" for name, array in weights.items()}
        return {"file": str(path), "size": size, "values": sum(array.size for array in weights.values()), **shapes}
    document = saving.read(path)
    try:
        state = document["state"]
        environment = document["environment"]
        description = {"file": str(path), "size": size, "agent": document["class"]}
        description["environment"] = str(environment.get("id", "only its spaces are stored"))
        description["observations"] = str(environment["observation_space"])
        description["actions"] = str(environment["action_space"])
        # Without the environment, which has lines of its own.
        for part, title in (("config", "arguments"), ("compile", "compiled with")):
            shown = {key: _shown(value) for key, value in document[part].items() if key != "env"}
            description[title] = ", ".join(f"{key}={value}" for key, value in shown.items()) or "defaults"
        description |= {name: f"{state['counters'][name]:,}" for name in ("steps", "episodes", "updates")}
        for name, arrays in state["variables"].items():
            description[f"network {name}"] = f"{sum(np.size(array) for array in arrays):,} values"
        description["memory"] = "stored" if state["replay"] or state["rollout"] else "not stored"
        description["callbacks"] = ", ".join(state["callbacks"]) or "none with a state"
    # The file may come from anywhere: each entry may be missing or of another type.
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise saving.FileError(f"{path} does not hold an agent of noterl: {error!r}") from error
    return description


def agent_file(path: str | Path) -> Path:
    """Return the file of an agent: of a path or an address, or the trained agent or newest file in a folder.

    Raises:
        UsageError: if there is none.
    """
    path = saving.locate(path)
    files = sorted(path.glob("*.noterl"), key=lambda file: file.stat().st_mtime) if path.is_dir() else [path]
    if not files or not files[-1].exists():
        raise UsageError(f"there is no file {str(path)!r}, or the folder holds no .noterl file")
    return files[-1]


def _run(method: str, arguments: Sequence[str], skip: Sequence[str], fixed: dict[str, Any]) -> None:
    """Call a method of an agent, described by a file, or by a name and weights, and print the result."""
    arguments, modules = train.without_flag(arguments, "--import")
    train.choose_backend(train.backend_of(arguments, {}))  # before the agent's module imports Keras
    classes: dict[str, type] = {}
    for module in modules:
        classes |= train.classes_of(train.import_module(module, "--import"))
    function = noterl.Dataset.record if method == "data record" else getattr(noterl.Agent, method)
    options = [*options_of(function, method, skip=skip), _JSON, *train.options_of_run(("weights", "backend", "quiet"))]
    name = arguments[0] if arguments and _is_agent(arguments[0]) else None
    if name is None:
        path, option_arguments = _file_of(method, arguments, options)
    else:
        every = train.options_of_agent(name, options)
        options = [option for option in every if option.group not in ("compile", "fit")]
        path = Path()
        option_arguments = list(arguments[1:])
    text = f"{_HELP[method]} --import MODULE imports classes of your own first."
    given_options = parse_options(options, option_arguments, prog=f"noterl {method} {name or 'FILE'}", description=text)
    values = {key: option.value for key, option in given_options.items()}
    groups = train.values_by_group(options, given_options)
    if method == "data record" and "path" not in values:
        raise UsageError("--path must name the file or folder of the data")
    chosen = groups.get(method, {})
    if not values.get("render") and not has_display():
        os.environ["SDL_VIDEODRIVER"] = "dummy"  # pygame prints an error of its own when it finds no display
    if name is None:
        # What others have put beside a downloaded file is not used, also if `run.toml` chooses a harmless environment.
        folder = None if arguments[0].startswith(saving.HUB) else path.parent
        chosen["env"] = _environment(folder, values)
        if method == "publish" and folder is not None and (folder / saving.LOG_FILE).exists():
            chosen.setdefault("log", folder / saving.LOG_FILE)
        agent = noterl.load(path, custom_objects=classes)
    else:
        chosen["env"] = None
        agent = _named_agent(name, values, groups.get(train.plain_name(name), {}))
    with contextlib.closing(agent), usage_errors():
        if "weights" in values:
            agent.load_weights(values["weights"])
        bound = functools.partial(function, agent) if method == "data record" else getattr(agent, method)
        result = bound(**chosen, **fixed)
    if not values.get("quiet", False):
        print(_text(result, as_json=values.get("json", False)) if isinstance(result, dict) else result)


def _is_agent(text: str) -> bool:
    """Return whether an argument names an agent, or `module:Class`, and not a file or folder."""
    # A file of this name comes first, as a user who names a file means the file.
    is_file = text.startswith(saving.HUB) or user_path(text).exists()
    return not is_file and (":" in text or text in catalogue.agents())


def _named_agent(name: str, values: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Return a new agent for the environment of `--env`, with the arguments given.

    Raises:
        UsageError: if an option is missing or wrong.
    """
    if "env" not in values or "weights" not in values:
        raise UsageError(f"{name} is an agent without a file: add --env and --weights, or name a file or folder")
    with usage_errors():
        return train.noterl_class(name)(environment_of(values["env"]), seed=0, **arguments)


def _environment(folder: Path | None, values: dict[str, Any]) -> Any:
    """Return the environment to play in; None for the environment of the agent's file.

    `--env` takes precedence over the `run.toml` in the folder, if there is a folder. An environment there that would
    import a module is not used.

    Raises:
        UsageError: if the environment of `run.toml` has wrappers.
    """
    if "env" in values:
        return environment_of(values["env"])
    run = None if folder is None else folder / saving.RUN_FILE
    table = config.read_config(run) if run is not None and run.exists() else {}
    if "wrap" in table:
        raise UsageError(f"{run}: wrap is not supported; pass a function of yours that wraps, --env module:function")
    env = str(table.get("env", ":"))
    # A plain id is in the agent's file already; only arguments need run.toml. A colon would import a module.
    return environment_of(env) if "(" in env and ":" not in env else None


def _file_of(command: str, arguments: Sequence[str], options: Sequence[Option]) -> tuple[Path, list[str]]:
    """Return the file that the first argument names, and the other arguments; print the help for `--help`."""
    if {"-h", "--help"} & {*arguments[:1]}:
        parse_options(options, ["--help"], prog=f"noterl {command} FILE", description=f"noterl {command}")
    if not arguments or arguments[0].startswith("-"):
        also = ", or an agent with --env and --weights" if command != "info" else ""
        raise UsageError(f"a file or the folder of a run must follow `noterl {command}`{also}")
    return agent_file(arguments[0]), list(arguments[1:])


def _text(result: dict[str, Any], *, as_json: bool) -> str:
    """Return statistics of episodes as JSON, with arrays as lists, or as a table of the numbers."""
    if as_json:
        plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in result.items()}
        return json.dumps(plain)
    numbers = {name: f"{value:.4g}" for name, value in plain_row(result).items()}
    return columns({"episodes": str(len(result["returns"])), **numbers})


def _shown(value: Any) -> str:
    """Return a value of a file as in Python's source."""
    if isinstance(value, Description):
        return f"{value.name}({', '.join(f'{key}={_shown(argument)}' for key, argument in value.arguments.items())})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_shown(item_value)}" for key, item_value in value.items()) + "}"
    return repr(value)
