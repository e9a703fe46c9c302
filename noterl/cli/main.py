"""Dispatch of the command `noterl`, with help, errors and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from noterl.cli.errors import UsageError

# Name -> (module, function, what it does)
COMMANDS = {
    "train": ("seeds", "run", "train an agent: noterl train ppo --env CartPole-v1 --steps 100_000"),
    "launch": ("launch", "run", "run a script in processes that train together: noterl launch --strategy ddp FILE"),
    "tune": ("tune", "run", "search for hyperparameters: noterl tune dqn --env CartPole-v1"),
    "play": ("files", "run_play", "play episodes of a trained agent, in a window or as a video"),
    "evaluate": ("files", "run_evaluate", "evaluate a trained agent: noterl evaluate FILE --episodes 100"),
    "publish": ("files", "run_publish", "write a folder for a model hub: noterl publish FILE FOLDER"),
    "compare": ("compare", "run", "plot the learning curves of runs: noterl compare runs/*/log.csv"),
    "doctor": ("compare", "run_doctor", "say what is wrong with a run: noterl doctor runs/first"),
    "data": ("data", "run", "describe, record or convert data: noterl data describe data.npz"),
    "info": ("files", "run_info", "print what a file holds"),
    "agents": ("catalogue", "run_agents", "list the agents"),
    "presets": ("catalogue", "run_presets", "list the presets, or those of an agent: noterl presets ppo"),
    "environments": ("catalogue", "run_environments", "list the environments; a word filters them"),
    "callbacks": ("catalogue", "run_callbacks", "list the callbacks, or the options of one"),
}

_EXIT_CODES = """exit codes: 0 success; 1 failure; 2 usage; 129 SIGHUP; 130 Ctrl-C; 143 SIGTERM"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code.

    Args:
        arguments: the arguments of the command line; by default the arguments of this process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _main(arguments)
    except SystemExit as error:
        if isinstance(error.code, str):  # of `sys.exit("...")` in an environment's code
            return _fail(error.code, 1)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except UsageError as error:
        return _fail(error, 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # such as `noterl agents | head`; Python would print an error when it closes the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ImportError, OSError, ValueError, ArithmeticError) as error:
        return _fail(error, 1)


def _main(arguments: list[str]) -> int:
    """Run the command that the first argument names, or print a help; return the exit code."""
    from noterl.utils.words import explain_name

    if not arguments:
        print(_help(), file=sys.stderr)
        return 2
    name, *command_arguments = arguments
    if name in ("-h", "--help"):
        print(_help())
    elif name == "--version":
        import noterl

        print(f"noterl {noterl.__version__}")
    elif name not in COMMANDS:
        raise UsageError(f"unknown command {name!r}: {explain_name(name, list(COMMANDS))}")
    elif name == "train" and command_arguments[:1] in (["-h"], ["--help"]):
        print(_help_of_train())
    elif command_arguments[:1] in (["-h"], ["--help"]) and name in ("tune", "agents", "presets", "environments"):
        print(f"noterl {name}: {COMMANDS[name][2]}")
    else:
        sys.path.append(os.getcwd())  # for modules of the user, which `python -m noterl` finds there
        module, function, _ = COMMANDS[name]
        # Imported by name, so that `noterl --help` loads neither Keras nor gymnasium.
        getattr(importlib.import_module(f"noterl.cli.{module}"), function)(command_arguments)
    return 0


def _help() -> str:
    from noterl.cli.catalogue import columns

    rows = columns({name: text for name, (_, _, text) in COMMANDS.items()})
    about = f"noterl COMMAND --help shows the options of a command.\n{_EXIT_CODES}"
    return f"usage: noterl COMMAND [OPTIONS]\n\n{rows}\n\n{about}"


def _help_of_train() -> str:
    """Return a help that fits a screen of 24 lines and 80 columns."""
    import textwrap

    from noterl.cli import catalogue

    lines = [
        "usage: noterl train AGENT [OPTIONS]         AGENT may be module:Class",
        "       noterl train --config FILE [OPTIONS]",
        "",
        textwrap.fill(", ".join(catalogue.agents()), 78, initial_indent="  ", subsequent_indent="  "),
        "",
        "  noterl train ppo --env CartPole-v1 --steps 100_000 --num-envs 8 --seed 1",
        '  noterl train dqn --env CartPole-v1 --episodes 300 --optimizer "Adam(1e-3)"',
        "  noterl train --config runs/ppo-CartPole-v1-1/run.toml",
        "",
        "noterl agents describes the agents, noterl train AGENT --help shows the options",
        "of one, and noterl callbacks those of callbacks. A run writes run.toml, which",
        "repeats it, agent.noterl and log.csv into a new folder below runs/, or into",
        "--out.",
    ]
    return "\n".join(lines)


def _fail(error: object, code: int) -> int:
    from noterl.cli.catalogue import printable

    message = "\n".join(map(printable, str(error).split("\n")))  # errors quote names and values in files
    print(f"noterl: error: {message}", file=sys.stderr)
    return code
