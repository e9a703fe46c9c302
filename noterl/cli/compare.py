"""`noterl compare` and `noterl doctor`: plot the learning curves of runs, and say what is wrong with one."""

from __future__ import annotations

import glob
import importlib
from collections.abc import Sequence
from pathlib import Path

from noterl import plotting
from noterl.cli.catalogue import columns
from noterl.cli.errors import UsageError, usage_errors
from noterl.cli.options import Option, options_of, parse_options
from noterl.saving import LOG_FILE
from noterl.utils.files import user_path
from noterl.utils.tables import read_columns

_LEAST_ROWS = 20  # fewer show too little of a run


def run(arguments: Sequence[str]) -> None:
    """Run `noterl compare`.

    Raises:
        UsageError: if the command line is wrong, or a log lacks a quantity.
    """
    options = [
        *options_of(plotting.compare, "compare", skip=("runs", "path", "ax")),
        Option("out", "str | Path", "compare.png", "The picture; its ending sets the format", "compare"),
        Option("quiet", "bool", False, "Whether to print errors only", "compare", switch=True),
    ]
    # The logs are the arguments before the first option: a pattern of the shell may stand for many.
    count = next((k for k, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    paths = arguments[:count]
    option_arguments = arguments[count:]
    text = (
        "Plot learning curves. Each LOG is a .csv, .jsonl or .parquet file, or the folder of a run. A quoted pattern, "
        "such as 'runs/a-*/log.csv', is one curve: the mean of its files."
    )
    given_options = parse_options(options, option_arguments, prog="noterl compare LOG ...", description=text)
    values = {key: option.value for key, option in given_options.items()}
    if not paths:
        raise UsageError("one or more logs must follow `noterl compare`")
    out = values.pop("out", "compare.png")
    quiet = values.pop("quiet", False)
    groups = groups_of(paths)
    with usage_errors():
        plotting.compare(groups, path=out, **values)
        bands = {name: plotting.band(group, **values) for name, group in groups.items()}
    if not quiet:
        what = values.get("what", "reward")
        print(columns({name: f"{what} {band.middle[-1]:.4g} at {band.x[-1]:.6g}" for name, band in bands.items()}))
        print(out)


def run_doctor(arguments: Sequence[str]) -> None:
    """Run `noterl doctor`.

    Raises:
        UsageError: if the command line is wrong, or the path names no log.
    """
    options = [argument for argument in arguments if argument.startswith("-")]
    text = "Say what is wrong with a run, from its log. The callback Doctor finds more, because it measures more."
    parse_options([], options, prog="noterl doctor LOG", description=text)
    if len(arguments) != 1:
        raise UsageError(f"noterl doctor takes one log, or the folder of a run; got {len(arguments)}")
    diagnosis = importlib.import_module("noterl.callbacks.support.diagnosis")
    ((log, *_),) = groups_of(arguments).values()
    measures = read_columns(log)
    with usage_errors(f"{log} holds something else than numbers in a column of metrics: "):
        findings = diagnosis.diagnose(measures)
    rows = max(map(len, measures.values()), default=0)
    text = f"{rows} rows are too few to judge" if rows < _LEAST_ROWS else "nothing is wrong, as far as this log shows"
    print(*(findings or [text]), sep="\n")


def groups_of(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the logs of each curve, by name in the legend.

    Raises:
        UsageError: if a path names no log.
    """
    groups = {}
    for path in paths:
        path = str(user_path(path))
        # An existing file may have characters of a pattern in its name, such as "[1]".
        matches = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))
        if not matches:
            raise UsageError(f"no file matches {path!r}")
        name = str(Path(path).parent) if Path(path).name == LOG_FILE else path.removesuffix(".csv")
        logs = [_log(match) for match in matches]
        # Two patterns may have the same short name; the second curve is named by its first log.
        groups[logs[0] if name in groups else name] = logs
    return groups


def _log(path: str) -> str:
    """Return the log that a path names: itself, or the log in the folder of a run."""
    folder = Path(path)
    if not folder.is_dir():
        return path
    logs = [folder / LOG_FILE] if (folder / LOG_FILE).exists() else sorted(folder.glob("*.csv"))
    if not logs:
        raise UsageError(f"the folder {path!r} holds no {LOG_FILE}")
    return str(logs[0])
