"""`noterl train --seeds 0-9`: one run for each seed, a table and a figure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from noterl.cli.catalogue import columns
from noterl.cli.errors import UsageError
from noterl.cli.options import Given
from noterl.cli.train import LAST_EPISODES, RunOptions, folder_of, read_options, train, values_by_group, without_flag
from noterl.saving import LOG_FILE
from noterl.utils.tables import read_columns

FIGURE_FILE = "seeds.png"


def run(arguments: Sequence[str]) -> None:
    """Run `noterl train`: once, or once for each of `--seeds`.

    Raises:
        UsageError: if the command line is wrong.
    """
    remaining, seeds = without_flag(arguments, "--seeds")
    if seeds:
        train_seeds(remaining, seeds[-1])
    else:
        train(*read_options(arguments))


def train_seeds(arguments: Sequence[str], text: str) -> None:
    """Train once for each seed, into `seed-N` below the folder of the command; print a table and draw a figure.

    `{seed}` in an argument is replaced by the seed, such as in `--checkpoint "saved/{seed}"`.

    Args:
        arguments: of `noterl train`, without `--seeds`.
        text: the value of `--seeds`.

    Raises:
        UsageError: if the command line is wrong.
    """
    seeds = seeds_of(text)
    # All commands and folders are checked before the first run, so that a mistake costs no training.
    commands = [read_options([argument.replace("{seed}", str(seed)) for argument in arguments]) for seed in seeds]
    name, options, given = commands[0]
    _check(arguments, given)
    for option in options:
        paths = {str(command[2][option.key].value) for command in commands if option.key in command[2]}
        is_own = "Path" in option.annotation and option.key not in ("out", "weights", "wandb.folder")
        if is_own and 0 < len(paths) < len(seeds):
            raise UsageError(f"{option.flag}: each seed needs a path of its own, such as runs/seed-{{seed}}")
    run_options = RunOptions(**values_by_group(options, given)["run"])
    folder = folder_of(name, run_options)
    folders = {seed: str(folder / f"seed-{seed}") for seed in seeds}
    for out in folders.values():
        folder_of(name, replace(run_options, out=out))
    scores: dict[int, float] = {}
    for (seed, out), (_, _, given) in zip(folders.items(), commands, strict=True):
        train(name, options, {**given, "seed": Given(seed, seed), "out": Given(out, out)})
        rewards = read_columns(Path(out, LOG_FILE)).get("reward", [])[-LAST_EPISODES:]
        if rewards:
            scores[seed] = float(np.mean(rewards))
    if not run_options.quiet:
        if scores:
            print(columns({f"seed {seed}": f"{score:.2f}" for seed, score in scores.items()}))
        print(summary_of_scores(list(scores.values())))
    if scores:
        # Late imports, because they need Keras: a wrong command line is answered without.
        from noterl import plotting

        (folder / FIGURE_FILE).unlink(missing_ok=True)
        with suppress(ValueError):  # one run may have ended before the first episode of another
            plotting.compare([Path(folders[seed], LOG_FILE) for seed in scores], path=folder / FIGURE_FILE)
    if not run_options.quiet:
        print(folder / FIGURE_FILE if (folder / FIGURE_FILE).exists() else folder)


def seeds_of(text: str) -> list[int]:
    """Return the seeds of a text such as "0-9" or "1,5,20-22".

    Raises:
        UsageError: if the text is of another form, or names a seed twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        bounds = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", part.strip())
        if bounds is None:
            raise UsageError(f"--seeds must be seeds such as 0-9 or 1,5,20-22, got {text!r}")
        low = int(bounds[1])
        high = int(bounds[2] or low)
        if not low <= high < low + 10_000:
            raise UsageError(f"--seeds must count upwards, to at most 10,000 seeds, got {part!r}")
        seeds += range(low, high + 1)
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds must name each seed once, got {text!r}")
    return seeds


def summary_of_scores(scores: Sequence[float]) -> str:
    """Return the interquartile mean of the scores of runs, with its 95 % bootstrap interval over runs."""
    from noterl.training.evaluation import interquartile_mean

    if not scores:
        return "no run has finished an episode"
    # The same resamples in every call: equal runs have equal intervals.
    resamples = np.random.default_rng(0).choice(np.asarray(scores), (2_000, len(scores)))
    low, high = np.percentile([interquartile_mean(row) for row in resamples], [2.5, 97.5])
    middle = interquartile_mean(np.asarray(scores))
    return f"interquartile mean of {len(scores)} runs {middle:.2f}, 95 % interval {low:.2f} to {high:.2f}"


def _check(arguments: Sequence[str], given: dict[str, Given]) -> None:
    """Raise a UsageError if an option contradicts `--seeds`, which replaces the seed of a TOML file."""
    if any(argument.partition("=")[0] == "--seed" for argument in arguments):
        raise UsageError("--seed and --seeds cannot both be given")
    if any(key.partition(".")[0] == "csv" for key in given):
        raise UsageError(f"--csv: with --seeds, each run writes {LOG_FILE} into its folder; leave --csv out")
