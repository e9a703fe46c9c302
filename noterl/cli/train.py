"""`noterl train`: train an agent, and write what reproduces the run."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import secrets
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import noterl
from noterl import presets
from noterl.cli import callback_options, catalogue, config
from noterl.cli.environment import environment_of
from noterl.cli.errors import UsageError, usage_errors
from noterl.cli.options import Given, Option, check_required, options_of, parse_options, parse_table, summary_of
from noterl.saving import AGENT_FILE, LOG_FILE, RUN_FILE
from noterl.utils.files import user_path, write_bytes
from noterl.utils.keras_backend import SUPPORTED
from noterl.utils.words import explain_name

LAST_EPISODES = 100  # whose mean return is the score of a run

_EXPECTED = {"--config": "the path of a TOML file", "--import": "the name of a module", "--seeds": "seeds, such as 0-9"}


def read_options(arguments: Sequence[str]) -> tuple[str, list[Option], dict[str, Given]]:
    """Return the agent's name, all options of the command, and the given ones.

    The backend is chosen on the way, because the options come from the agent's class; see `read_command`.

    Raises:
        UsageError: if the command line is wrong.
    """
    name, arguments, table, path = read_command("train", arguments)
    modules = table.pop("import")
    options = train_options(name)
    # The help shows the boxes without those of callbacks, which `noterl callbacks` shows.
    groups = {option.group for option in options} - {key.replace("_", "-") for key in callback_options.offered()}
    text = (
        f"Train {about(name)}. Callbacks have options too: `noterl callbacks` lists them. --config FILE reads options "
        "from a TOML file. --import MODULE imports classes of your own first. --seeds 0-9 trains once for each seed."
    )
    given_options = parse_options(options, arguments, prog=f"noterl train {name}", description=text, shown=groups)
    if path is not None:
        given_options = merged(parse_table(options, table, path), given_options)
    if "dataset" in given_options:
        given_options.setdefault("env", Given("", ""))  # the spaces of the data suffice
    check_required(options, given_options)
    return name, options, {**given_options, "import": Given(modules, modules)} if modules else given_options


def read_command(command: str, arguments: Sequence[str]) -> tuple[str, list[str], dict[str, Any], str | None]:
    """Return the agent's name, the other arguments, and the table and path of `--config`.

    The backend is chosen, and the modules of `--import` are imported; the table lists these modules as "import".

    Raises:
        UsageError: if the command line is wrong.
    """
    remaining, paths = without_flag(arguments, "--config")
    remaining, modules = without_flag(remaining, "--import")
    # As for other options, the last of several counts.
    table: dict[str, Any] = config.read_config(paths[-1]) if paths else {}
    path = paths[-1] if paths else None
    name, remaining = agent_of(command, remaining, table, path)
    table.pop("agent", None)  # the other keys are options
    choose_backend(backend_of(remaining, table))  # before the agent's module imports Keras
    listed = table.get("import", ())
    table["import"] = [*([listed] if isinstance(listed, str) else listed), *modules]
    for module in table["import"]:
        import_module(module, "--import")
    return name, remaining, table, path


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run that are not arguments of an agent, `compile`, `fit` or a callback.

    Attributes:
        env: the environment: a gymnasium id, perhaps with arguments, such as "FrozenLake-v1(is_slippery=False)";
            atari:Pong; or module:function. May be left out with --dataset and --updates.
        seed: the seed of all random numbers; by default a random one, which run.toml records.
        preset: settings for this environment, such as "fast" or "zoo"; other options replace these settings. `noterl
            presets` lists all presets.
        backend: tensorflow, jax or torch; by default Keras's choice.
        out: folder for run.toml, the trained agent and the log; by default runs/AGENT-ENV-NUMBER.
        overwrite: whether a run in this folder may be replaced.
        restore: an agent file, or the folder of a run, whose training continues; hub:OWNER/NAME for one of a hub.
        weights: a file of weights to start from.
        quiet: whether to print errors only.
    """

    env: str
    seed: int | None = None
    preset: str | None = None
    backend: str | None = None
    out: str | Path | None = None
    overwrite: bool = False
    restore: str | Path | None = None
    weights: str | Path | None = None
    quiet: bool = False


def options_of_run(keys: Collection[str]) -> list[Option]:
    """Return the options of a run with these keys, for other commands."""
    return [option for option in options_of(RunOptions, "run") if option.key in keys]


def train_options(name: str) -> list[Option]:
    """Return all options of `noterl train` for an agent: of the run, the agent, `compile`, `fit` and callbacks."""
    options = options_of_agent(name, options_of(RunOptions, "run"))
    for key in callback_options.offered():
        options += callback_options.callback_options(key)
    return options


def options_of_agent(name: str, others: Sequence[Option]) -> list[Option]:
    """Return other options, and the options of an agent, `compile` and `fit` that have other names."""
    agent = noterl_class(name)
    options = list(others)
    for function, group, skip in (
        (agent, plain_name(name), ("env", "seed")),
        (agent.compile, "compile", ()),
        (agent.fit, "fit", ("env", "seed", "callbacks")),  # options of the run replace these arguments
    ):
        # An option that exists already, such as `--seed` of the run, stands for the argument of the same name.
        taken = {option.key for option in options}
        options += [option for option in options_of(function, group, skip=skip) if option.key not in taken]
    return options


def train(name: str, options: Sequence[Option], given: Mapping[str, Given]) -> Path:
    """Train an agent as options say, and return the folder of the run.

    `run.toml` is written before training, and the agent's file at the end, also after Ctrl-C or an error.

    Raises:
        UsageError: if an option has a wrong value.
    """
    groups = values_by_group(options, given)
    run_options = RunOptions(**groups["run"])
    # Drawn here instead of in the agent, because run.toml records it.
    seed = secrets.randbelow(2**31) if run_options.seed is None else run_options.seed
    folder = folder_of(name, run_options)
    agent = None
    callbacks = callback_options.make_callbacks(given)
    if not any(key.partition(".")[0] == "csv" for key in given):
        callbacks.append(callback_options.offered()["csv"](folder / LOG_FILE))
    message = ""
    try:
        with usage_errors():
            fit = {**groups.get("fit", {}), **({"verbose": 0} if run_options.quiet else {})}
            compiled = groups.get("compile", {})
            environment = _environment(run_options, compiled, fit)
            constructor = groups.get(plain_name(name), {})
            agent_class = noterl_class(name)
            if run_options.preset is None:
                agent = agent_class(environment, seed=seed, **constructor)
                agent.compile(**compiled)
            else:
                preset = presets.find(agent_class, run_options.env, run_options.preset)
                agent = preset.make(agent_class, environment, {"seed": seed, **constructor, **compiled})
        if run_options.restore is not None:
            agent.restore(run_options.restore)
        if run_options.weights is not None:
            agent.load_weights(run_options.weights)
        with _run_file(agent, folder, run_table(name, given, seed)):
            message = _fit(agent, fit, callbacks, folder)
    finally:
        if agent is not None:
            agent.close()
    if not run_options.quiet:
        print(message)
        print(folder / AGENT_FILE)
    return folder


def _environment(run_options: RunOptions, compiled: dict[str, Any], fit: dict[str, Any]) -> Any:
    """Return the environment, or the spaces of the data set of `fit`; see `Agent.fit`.

    The data set is loaded, and replaces its path in `fit`. `--updates` is an argument of `compile`, but limits the
    training on a data set alone, so `updates` is moved from `compiled` to `fit` then.
    """
    if "dataset" in fit:
        dataset = fit["dataset"] = noterl.Dataset.load(fit["dataset"])
        if "updates" in compiled and not {"steps", "episodes"} & fit.keys():
            fit["updates"] = compiled.pop("updates")
        if not run_options.env:
            return dataset.observation_space, dataset.action_space
    return environment_of(run_options.env)


def values_by_group(options: Sequence[Option], given: Mapping[str, Given]) -> dict[str, dict[str, Any]]:
    """Return the values of the given options by group and name; a group without any is missing."""
    groups: dict[str, dict[str, Any]] = {}
    for option in options:
        if option.key in given:
            groups.setdefault(option.group, {})[option.key] = given[option.key].value
    return groups


@contextlib.contextmanager
def _run_file(agent: Any, folder: Path, table: dict[str, Any]) -> Iterator[None]:
    """Write `run.toml`; if training does not begin in the block, the folder is restored."""
    path = folder / RUN_FILE
    fits = agent.fits
    is_new = not folder.exists()
    before = path.read_bytes() if path.exists() else None
    comment = f"noterl {noterl.__version__}; repeat this run by: noterl train --config {RUN_FILE}"
    config.write_config(path, table, comment)
    try:
        yield
    except BaseException:
        # `fit` counts when training begins; later, the file describes a run that exists.
        if agent.fits == fits:
            with contextlib.suppress(OSError):
                if before is not None:
                    write_bytes(path, before)
                else:
                    path.unlink()
                if is_new:
                    folder.rmdir()
        raise


def run_table(name: str, given: Mapping[str, Given], seed: int) -> dict[str, Any]:
    """Return what `run.toml` holds: the options given, the seed and the backend; without the folder of the run."""
    table: dict[str, Any] = {"agent": name, "env": given["env"].source, "seed": seed}
    table["backend"] = os.environ["KERAS_BACKEND"]
    offered = callback_options.offered()
    for key, option in given.items():
        if key.partition(".")[0] not in offered and key not in ("out", "overwrite", "quiet", *table):
            table[key] = option.source
    for callback in offered:
        chosen = {key: value for key, value in given.items() if key.partition(".")[0] == callback}
        if chosen and not callback_options.is_off(callback, chosen):
            arguments = callback_options.arguments_of(callback, chosen)
            table[callback] = {name: option.source for name, option in arguments.items()}
    return table


def merged(first: Mapping[str, Given], second: Mapping[str, Given]) -> dict[str, Given]:
    """Return the options of both, where `second` takes precedence.

    A callback's first argument has two keys: "csv" and "csv.path". A later one replaces both.
    """
    offered = callback_options.offered()
    # A callback's option and its first argument are two names of one value.
    names = {key: f"{key}.{callback_options.first_argument(key)}" for key in {*first, *second} & {*offered}}
    replaced = {key for key in first if key in offered and names[key] in second}
    replaced |= {names[key] for key in second if key in offered and second[key].value is not True}
    return {**{key: option for key, option in first.items() if key not in replaced}, **second}


def noterl_class(name: str) -> Any:
    """Return the class of an agent by the name on the command line, which may be `module:Class`.

    Raises:
        UsageError: if there is no such agent; the message suggests the nearest one.
    """
    if ":" not in name:
        catalogue.check_agent(name)
        return getattr(noterl, catalogue.class_name(name))
    from noterl.agent import BaseAgent

    module, _, class_name = name.partition(":")
    classes = classes_of(import_module(module, "the agent"))
    agents = {key: subclass for key, subclass in classes.items() if issubclass(subclass, BaseAgent)}
    if class_name not in agents:
        advice = explain_name(class_name, list(agents))
        raise UsageError(f"{name}: {module} has no subclass of noterl.Agent {class_name!r}: {advice}")
    return agents[class_name]


def about(name: str) -> str:
    """Return the class and the summary of an agent, for the text above the help."""
    agent = noterl_class(name)
    return f"{agent.__name__}: {summary_of(agent)}"


def plain_name(name: str) -> str:
    """Return the name of an agent without the module, for folders and for the title of the options."""
    return name.rpartition(":")[2]


def import_module(name: str, option: str) -> ModuleType:
    """Return a module of the user.

    Raises:
        UsageError: if there is no such module. An error of a module that the module imports is raised unchanged.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The missing module is another one, which this one imports: its name says what to install.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"{option}: there is no module {name!r} here and among installed packages") from error


def classes_of(module: ModuleType) -> dict[str, type]:
    """Return the classes in a module by name."""
    return {name: value for name, value in vars(module).items() if isinstance(value, type)}


def choose_backend(name: str | None) -> None:
    """Set the backend of this process.

    Raises:
        UsageError: if the backend is unknown, not installed, or Keras has been imported with another backend.
    """
    if name is None or name == os.environ.get("KERAS_BACKEND"):
        return
    if name not in SUPPORTED:
        raise UsageError(f"--backend must be one of {', '.join(SUPPORTED)}, got {name!r}")
    if importlib.util.find_spec(name) is None:
        raise UsageError(f'--backend: {name} is not installed: pip install "noterl[{name}]"')
    if "keras" in sys.modules:
        raise UsageError(f"--backend: this process already uses {os.environ['KERAS_BACKEND']}, not {name}")
    os.environ["KERAS_BACKEND"] = name


def _fit(agent: Any, fit: dict[str, Any], callbacks: list[Any], folder: Path) -> str:
    """Train, save the agent, and return a description of the result."""
    fits = agent.fits
    try:
        history = agent.fit(callbacks=callbacks, **fit)
    except BaseException as error:
        from noterl.utils.errors import keep_first_error

        if agent.fits > fits:  # training has started
            # The error of training is the one to report, even if saving fails as well.
            with keep_first_error(error):
                agent.save(folder / AGENT_FILE, replay=False)
        elif isinstance(error, TypeError | ValueError):
            raise UsageError(str(error)) from error
        raise
    agent.save(folder / AGENT_FILE, replay=False)
    rewards = history.history.get("reward", [])[-LAST_EPISODES:]
    mean = f"mean reward of the last {len(rewards)} {sum(rewards) / len(rewards):.2f}; " if rewards else ""
    return (
        f"{agent.episodes:,} episodes, {agent.steps:,} steps, {agent.updates:,} updates; {mean}"
        f"ended by {history.stop_reason}"
    )


def folder_of(name: str, own: RunOptions) -> Path:
    """Return the folder of the run, which does not exist yet or may be overwritten."""
    if own.out is not None:
        folder = user_path(own.out)
        present = [file for file in (RUN_FILE, AGENT_FILE) if (folder / file).exists()]
        if present and not own.overwrite:
            raise UsageError(f"--out: {folder} holds the {present[0]} of another run; add --overwrite to replace it")
        return folder
    env = re.sub(r"\W+", "-", own.env.partition("(")[0]).strip("-") or "dataset"
    number = 1
    while (folder := Path("runs", f"{plain_name(name)}-{env}-{number}")).exists():
        number += 1
    return folder


def without_flag(arguments: Sequence[str], flag: str) -> tuple[list[str], list[str]]:
    """Return the arguments without `--config`, `--import` or `--seeds`, and the values of the flag.

    Raises:
        UsageError: if no value follows the flag.
    """
    remaining = []
    values = []
    iterator = iter(arguments)
    for argument in iterator:
        if argument == flag or argument.startswith(f"{flag}="):
            value = argument.partition("=")[2] or next(iterator, "")
            if not value:
                raise UsageError(f"{flag} must be followed by {_EXPECTED[flag]}")
            values.append(value)
        else:
            remaining.append(argument)
    return remaining, values


def backend_of(arguments: Sequence[str], table: Mapping[str, Any]) -> str | None:
    """Return the backend that the command line names, or else the TOML file."""
    backend = table.get("backend")
    # Before the parser, because its options come from the agent's class, whose import needs the backend.
    for position, argument in enumerate(arguments):
        if argument == "--backend":
            backend = next(iter(arguments[position + 1 : position + 2]), None)
        elif argument.startswith("--backend="):
            backend = argument.partition("=")[2]
    return None if backend is None else str(backend)


def agent_of(command: str, arguments: list[str], table: Mapping[str, Any], path: str | None) -> tuple[str, list[str]]:
    """Return the name of the agent, from the first argument or a TOML file, and the other arguments.

    Raises:
        UsageError: if neither names an agent, or both name different agents.
    """
    named = table.get("agent")
    if arguments and not arguments[0].startswith("-"):
        _check_name(arguments[0])
        if named not in (None, arguments[0]):
            raise UsageError(f"{path} is for the agent {named!r}, not {arguments[0]!r}")
        return arguments[0], arguments[1:]
    if named is None:
        names = ", ".join(catalogue.agents())
        raise UsageError(f"an agent must follow `noterl {command}`, one of {names}, or module:Class for your own")
    _check_name(str(named))
    return str(named), arguments


def _check_name(name: str) -> None:
    if ":" not in name:  # a module is imported later, when the backend is chosen
        catalogue.check_agent(name)
