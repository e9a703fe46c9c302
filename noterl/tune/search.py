"""`tune`: search for hyperparameters with Optuna, each trial in a separate process."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil

from noterl.random import Generators
from noterl.registry import Configurable
from noterl.training.console import progress_bar
from noterl.tune import trial as trials_
from noterl.tune.ranges import RANGES, sample
from noterl.tune.spaces import SPACES
from noterl.tune.toml import toml_text
from noterl.tune.trial import Task
from noterl.utils.budget import checked_size
from noterl.utils.checks import check_int, check_number, check_positive, check_word, is_plain
from noterl.utils.files import user_path, write_bytes
from noterl.utils.optional import require
from noterl.utils.processes import end, spawn

SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "wilcoxon", "none")

# Seconds between two looks at the memory and the time of a trial.
_POLL = 0.2

Space = Callable[[Any, int], dict[str, Any]] | Mapping[str, Any]
# Takes positions, evaluation and mean returns (see `trial.run`); returns whether the trial goes on.
GoesOn = Callable[[Sequence[int], int, Sequence[float]], bool]


@dataclass(frozen=True)
class Result:
    """The result of `tune`.

    Attributes:
        study: the `optuna.Study`.
        best: the arguments of the agent, `compile` and `fit` in the best trial; empty if no trial was complete.
        value: the mean return of the best trial over the seeds; NaN if no trial was complete.
        default: the mean return of the algorithm's defaults with the same seeds; NaN if the defaults failed.
        fresh_value: the mean return of the best trial, trained and evaluated again with other seeds. The best of many
            noisy values is too high; this one is not. NaN if no trial was complete, or training failed.
        fresh_default: the mean return of the defaults with those other seeds.
        folder: where `best.toml` and the plots are.
    """

    study: Any
    best: dict[str, Any]
    value: float
    default: float
    folder: Path
    fresh_value: float = float("nan")
    fresh_default: float = float("nan")

    @property
    def is_better(self) -> bool:
        """Whether the best trial is better than the defaults, with seeds that did not select the trial."""
        return bool(self.fresh_value > self.fresh_default)


class TrialError(Exception):
    """A trial failed; the message is the reason."""


def tune(
    agent: type,
    env: Any,
    space: Space | None = None,
    *,
    trials: int = 50,
    steps: int = 50_000,
    dataset: Any = None,
    jobs: int = 1,
    seeds_per_trial: int = 1,
    storage: str | Path | None = None,
    study: str = "noterl",
    weights: str | Path | None = None,
    sampler: str = "tpe",
    pruner: str = "median",
    warmup_trials: int = 5,
    evaluations: int = 5,
    episodes: int = 10,
    memory: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    out: str | Path = "tune",
    verbose: int = 1,
) -> Result:
    """Search for the hyperparameters with the highest mean return.

    Each trial runs in a separate process. The trial trains an agent for each seed and evaluates the agent `evaluations`
    times; the value of a trial is the mean over the seeds of the last evaluations. A trial that raises an error, or
    exceeds a limit, is a failed trial, and the search goes on. The algorithm's defaults are measured first, in the same
    way.

    Several processes may call `tune` with one `storage`. If a search was interrupted, the same call continues it. A
    search of something else needs another `out` or `study`. A script that calls `tune` needs
    `if __name__ == "__main__":`.

    Args:
        agent: the class of the agent, such as `noterl.PPO`.
        env: the environment: an id, or a function that makes one and that can be pickled.
        space: hyperparameters by name: a `Float`, `OneMinus`, `Int`, `Choice` or a constant each. The names are
            arguments of the agent, `compile` and `fit`; a float for `optimizer` is the learning rate. Or a function
            `(trial, steps) -> values` that calls an `optuna.Trial`. By default the ranges that rl-zoo3 publishes for
            the algorithm; constants alone are added to these ranges.
        trials: number of trials in the study, including trials of earlier calls with the same `storage`.
        steps: environment steps of each training run; with `dataset`, gradient updates on these data.
        dataset: path or Minari id of a `noterl.Dataset` that each training run learns from, without the environment,
            in which it is then evaluated.
        jobs: number of trials that run at the same time.
        seeds_per_trial: number of training runs in a trial, each with another seed; all trials have the same seeds.
        storage: path of Optuna's journal, or the URL of a database, such as "sqlite:///study.db". Several processes may
            share it. By default `study.log` in `out`.
        study: name of the study in the storage.
        weights: path of a file of `Agent.save_weights`, from which each training run starts; None for new weights.
        sampler: "tpe" (a tree-structured Parzen estimator) or "random".
        pruner: "median" ends a trial whose best evaluation so far is below the median of the others at the same point;
            "wilcoxon" ends one whose results over seeds are significantly below the best, which needs
            `seeds_per_trial` of at least 3; "none" ends none.
        warmup_trials: number of trials that "median" never ends.
        evaluations: number of evaluations in each training run.
        episodes: number of episodes in an evaluation.
        memory: GiB that a trial may use; None for no limit.
        time_limit: seconds that a trial may take; None for no limit.
        seed: the seed of the sampler, of training and of evaluation.
        out: folder of `best.toml`, which `noterl train --config` runs, and of the plots.
        verbose: 0 silent, 1 a progress bar and the result.

    Raises:
        ValueError: if an argument is not one of the allowed values, or the study belongs to another search: of another
            agent, environment, space of names, constant, weights, seed, or number of steps, evaluations, episodes or
            seeds.
        ImportError: if the extra `tune` is not installed.
    """
    optuna = require("optuna", "tune", "tune")
    check_arguments(trials, steps, jobs, seeds_per_trial, evaluations, episodes)
    check_int("warmup_trials", warmup_trials, least=0)
    check_word("sampler", sampler, SAMPLERS)
    check_word("pruner", pruner, PRUNERS)
    if pruner == "wilcoxon" and seeds_per_trial < 3:
        raise ValueError(f"seeds_per_trial must be at least 3 with pruner='wilcoxon', got {seeds_per_trial!r}")
    for name, limit in (("memory", memory), ("time_limit", time_limit)):
        if limit is not None:
            check_number(name, limit, low=0, above=True)
    generators = Generators(seed)
    if not isinstance(agent, type):
        raise ValueError(f"agent must be a class of agents, such as noterl.PPO, got {agent!r}")
    if not isinstance(dataset, str | os.PathLike | None):
        raise ValueError(f"dataset must be a path or a Minari id, which best.toml can hold, got {dataset!r:.80}")
    if weights is not None and not user_path(weights).is_file():
        raise ValueError(f"weights must be the path of a file of Agent.save_weights, got {str(weights)!r}")
    start = None if weights is None else str(user_path(weights))
    chosen, constants = search_space(agent, space)
    folder = user_path(out)
    folder.mkdir(parents=True, exist_ok=True)
    path = str(storage) if "://" in str(storage) else user_path(storage or folder / "study.log")
    opened = open_study(optuna, path, study, sampler, pruner, warmup_trials)
    searched = {
        "agent": agent.__name__,
        "env": _name_of(env),
        "space": _name_of(space) if callable(space) else sorted(space or {}),
        **{name: _name_of(value) for name, value in constants.items()},
        "steps": steps,
        "dataset": dataset if dataset is None else str(dataset),
        "evaluations": evaluations,
        "episodes": episodes,
        "seeds_per_trial": seeds_per_trial,
        "seed": seed,
        "weights": start,
    }
    check_same_search(opened, path, searched)
    seeds = generators("tune").integers(2**31, size=seeds_per_trial).tolist()
    evaluation_seed = int(generators("tune evaluation").integers(2**31))
    task = Task(agent, env, constants, steps, seeds, evaluations, episodes, evaluation_seed, start, dataset)
    search = Search(optuna, opened, chosen, task, Limits(memory, time_limit), wilcoxon=pruner == "wilcoxon", seed=seed)
    with _quiet(optuna):
        search.run(trials, jobs, verbose)
        new_seeds = generators("tune verdict").integers(2**31, size=seeds_per_trial + 1).tolist()
        result = search.result(folder, replace(task, seeds=new_seeds[1:], evaluation_seed=new_seeds[0]))
        write_best(result, agent, env, steps, seeds[0], start, dataset)
        plot(optuna, result)
    if verbose:
        print(describe(result))
    return result


def check_arguments(trials: int, steps: int, jobs: int, seeds: int, evaluations: int, episodes: int) -> None:
    """Raise a ValueError if a count is not positive, or there are more evaluations than steps."""
    for name, value in (("trials", trials), ("steps", steps), ("jobs", jobs), ("seeds_per_trial", seeds)):
        check_positive(name, value)
    check_positive("evaluations", evaluations)
    check_positive("episodes", episodes)
    if evaluations > steps:
        raise ValueError(f"evaluations must be at most steps, {steps}, got {evaluations}")


def search_space(agent: type, space: Space | None) -> tuple[Callable[[Any, int], dict[str, Any]], dict[str, Any]]:
    """Return the function that samples the hyperparameters, and the constants.

    Raises:
        ValueError: if the algorithm has no default space and none is given, or a name is not an argument.
    """
    if callable(space):
        return space, {}
    if space is not None and not isinstance(space, Mapping):
        raise ValueError(f"space must be a dict of ranges, a function (trial, steps) -> dict, or None, got {space!r}")
    ranges = dict(space or {})
    trials_.split(agent, ranges)  # checks the names
    constants = {name: value for name, value in ranges.items() if not isinstance(value, RANGES)}
    if len(constants) < len(ranges):
        return (lambda trial, steps: sample(ranges, trial)), constants
    default = next((SPACES[base.__name__] for base in agent.__mro__ if base.__name__ in SPACES), None)
    if default is None:
        raise ValueError(f"space must be given for {agent.__name__}; there are default spaces for {', '.join(SPACES)}")
    return partial(default, constants=constants), constants


def open_study(optuna: Any, path: Path | str, name: str, sampler: str, pruner: str, warmup_trials: int) -> Any:
    """Open or create a study in a journal, or in the database of a URL.

    Trials of processes that no longer run become failed trials.

    Raises:
        ValueError: if the journal is damaged, or the database cannot be used.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=warmup_trials),
        "wilcoxon": optuna.pruners.WilcoxonPruner,
        "none": optuna.pruners.NopPruner,
    }
    with _quiet(optuna), _journal_errors(path):
        if isinstance(path, Path) and path.exists():
            checked_size(path, factor=8)  # Optuna reads lines, and a sparse file may be one line
            _remove_cut_line(path, JournalFileSymlinkLock(str(path)))
        storage = JournalStorage(JournalFileBackend(str(path))) if isinstance(path, Path) else path
        create = partial(
            optuna.create_study, storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
        try:
            study = create(pruner=pruners[pruner]())
        except Exception:
            if isinstance(path, Path):
                raise
            sleep(1)  # another process may be creating the tables of the database
            study = create(pruner=pruners[pruner]())
        # `Search` sets the seed.
        study.sampler = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}[sampler]()
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            if not _is_running(trial):
                with contextlib.suppress(Exception):  # another process may have ended it meanwhile
                    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        results = [*(trial.value for trial in complete), study.user_attrs.get("default") or 0.0]
        if not all(isinstance(result, int | float) for result in results):
            raise ValueError("a result is not a number")
    return study


def _remove_cut_line(path: Path, lock: Any) -> None:
    """Remove the part of a line that Optuna wrote to a full disk, because it would append the next line to it."""
    lock.acquire()
    try:
        content = path.read_bytes()
        if b'{"op_code":'.startswith(content[:11]):  # other files are not changed
            os.truncate(path, content.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextlib.contextmanager
def _journal_errors(path: Path | str) -> Iterator[None]:
    """Convert what Optuna raises for a damaged journal or database into a ValueError with the path."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"storage: {path} is damaged, or not a journal or database of Optuna; choose another one, or remove it: "
            f"{error!r:.300}"
        ) from error


def check_same_search(study: Any, path: Path | str, search: dict[str, Any]) -> None:
    """Store in a new study what is searched, by argument of `tune` and name of a constant.

    Raises:
        ValueError: if the study belongs to another search.
    """
    stored = study.user_attrs.get("search")
    if not isinstance(stored, dict):
        study.set_user_attr("search", search)
        return
    changed = [
        f"{name}={stored.get(name)!r} (now {search.get(name)!r})"
        for name in {**stored, **search}
        if stored.get(name) != search.get(name)
    ]
    if changed:
        raise ValueError(
            f"out or study must be another one: the study {study.study_name!r} in {path} is that of another search, "
            f"with {', '.join(changed)}"
        )


@dataclass(frozen=True)
class Limits:
    """What a trial may use: GiB of memory and seconds; None for no limit."""

    memory: float | None
    seconds: float | None

    def check(self, process: Any, started: float) -> None:
        """Raise a `TrialError` if the process exceeds a limit."""
        if self.seconds is not None and monotonic() - started > self.seconds:
            raise TrialError(f"it took longer than {self.seconds:g} seconds")
        if self.memory is None:
            return
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(process.pid)  # and the workers of its `fit`; memory that they share counts in each
            used = sum(relative.memory_info().rss for relative in (root, *root.children(recursive=True))) / 2**30
            if used > self.memory:
                raise TrialError(f"it used {used:.2f} GiB of memory, more than {self.memory:g}")


@dataclass(eq=False)
class Search:
    """Runs the trials of a study.

    Attributes:
        optuna: the module.
        study: the study.
        space: samples the hyperparameters of a trial.
        task: what each trial does, apart from the values.
        limits: what each trial may use.
        wilcoxon: whether trials are compared over seeds.
        stopping: set to end all trials.
    """

    optuna: Any
    study: Any
    space: Callable[[Any, int], dict[str, Any]]
    task: Task
    limits: Limits
    wilcoxon: bool = False
    seed: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    _lock: Any = field(default_factory=threading.Lock)
    _next_trial: int | None = None  # the number that continues the trials of the sampler's seed

    def run(self, trials: int, jobs: int, verbose: int) -> None:
        """Measure the defaults if this was not done, and run trials until the study has `trials`."""
        with progress_bar(total=trials, disable=not verbose, unit="trial") as bar:
            states = self.optuna.trial.TrialState
            # Running trials do not count, because the bar shows what is done.
            ended = (states.COMPLETE, states.PRUNED, states.FAIL)
            bar.update(len(self.study.get_trials(deepcopy=False, states=ended)))
            # Another process that shares the study may have measured them.
            if "default" not in self.study.user_attrs:
                bar.set_postfix_str("measuring the defaults")
                default = self._value_of(self.task)
                self.study.set_user_attr("default", None if np.isnan(default) else default)
            with ThreadPoolExecutor(jobs) as pool:
                workers = [pool.submit(self._work, trials, bar) for _ in range(jobs)]
                try:
                    for worker in workers:
                        worker.result()
                except BaseException:
                    # The other workers end after their trial instead of starting another.
                    self.stopping.set()
                    raise

    def result(self, folder: Path, fresh: Task) -> Result:
        """Return the best trial so far, which is measured again, as the defaults are, by a task with other seeds."""
        default = self.study.user_attrs["default"]
        default = float("nan") if default is None else default
        complete = self.study.get_trials(deepcopy=False, states=(self.optuna.trial.TrialState.COMPLETE,))
        if not complete:
            return Result(self.study, {}, float("nan"), default, folder)
        best = self.study.best_trial
        values = self.space(self.optuna.trial.FixedTrial(best.params, best.number), self.task.steps)
        again = [self._value_of(replace(fresh, values={**fresh.values, **values})), self._value_of(fresh)]
        return Result(self.study, values, float(best.value), default, folder, *again)

    def _value_of(self, task: Task) -> float:
        """Return the mean return of a task over the seeds; NaN after a failure."""
        try:
            values, _ = self._measure(task, lambda positions, number, values: True)
        except TrialError as error:
            warnings.warn(f"the defaults or best trial could not be measured: {error}", RuntimeWarning, stacklevel=2)
            return float("nan")
        return float(np.mean(values))

    def _work(self, trials: int, bar: Any) -> None:
        """Run trials one after another."""
        while not self.stopping.is_set():
            with self._lock:  # so that exactly `trials` are started in this process
                if len(self.study.get_trials(deepcopy=False)) >= trials:
                    return
                trial = self.study.ask()
                # The machine, and the id and start time of this process, because ids are used again.
                trial.set_user_attr("process", [platform.node(), os.getpid(), psutil.Process().create_time()])
                # With the seed of the search, the sampler would suggest again what an interrupted search or another
                # process has tried.
                if trial.number != self._next_trial:
                    self.study.sampler = type(self.study.sampler)(seed=(self.seed + trial.number) % 2**32)
                self._next_trial = trial.number + 1
            self._run_trial(trial)
            bar.update()
            complete = self.study.get_trials(deepcopy=False, states=(self.optuna.trial.TrialState.COMPLETE,))
            if complete:
                bar.set_postfix_str(f"best {max(entry.value for entry in complete):.4g}")

    def _run_trial(self, trial: Any) -> None:
        """Run a trial in a process, and store in the study whether the trial is complete, pruned or failed."""
        states = self.optuna.trial.TrialState
        try:
            values = self.space(trial, self.task.steps)
            task = replace(self.task, values={**self.task.values, **values})
            results, pruned = self._measure(task, lambda *report: self._goes_on(trial, *report))
        except TrialError as error:
            # The end of a traceback names the error.
            trial.set_user_attr("error", str(error)[-2_000:])
            self.study.tell(trial, state=states.FAIL)
        except BaseException:
            self.study.tell(trial, state=states.FAIL)
            raise
        else:
            if pruned:
                self.study.tell(trial, state=states.PRUNED)
            # Optuna accepts no NaN as the value of a complete trial.
            elif not np.isfinite(results).all():
                self.study.tell(trial, state=states.FAIL)
            else:
                self.study.tell(trial, float(np.mean(results)))

    def _goes_on(self, trial: Any, positions: Sequence[int], number: int, values: Sequence[float]) -> bool:
        """Report an evaluation of one or several training runs to the trial; return whether the trial goes on.

        Args:
            trial: of Optuna.
            positions: the numbers of the training runs.
            number: of the evaluation, from 1.
            values: the mean return of each training run.
        """
        evaluations = self.task.evaluations
        if self.wilcoxon:
            # The test of Wilcoxon compares final results by seed.
            if number < evaluations:
                return True
            for position, value in zip(positions, values, strict=True):
                trial.report(value, position)
        else:
            trial.report(float(np.mean(values)), positions[0] * evaluations + number)
        # After the last evaluation, there is nothing to save by pruning.
        is_last = number == evaluations and positions[-1] == len(self.task.seeds) - 1
        return is_last or not trial.should_prune()

    def _measure(self, task: Task, goes_on: GoesOn) -> tuple[list[float], bool]:
        """Run a task in a process; return the last evaluation of each seed, and whether the trial was pruned.

        Raises:
            TrialError: if the process raises an error, ends, or exceeds a limit.
        """
        process, pipe = spawn(trials_.run, task, name="trial")
        results: list[float] = []
        started = monotonic()
        pruned = False
        try:
            while True:
                if not pipe.poll(_POLL):
                    # Limits are checked while the process is silent, too.
                    self._check(process, started)
                    continue
                word, *content = _receive(pipe, process)
                if word == "done":
                    return results, pruned
                if word == "error":
                    raise TrialError(content[0])
                positions, number, values = content
                # Only the last evaluation of a seed counts for the value of the trial.
                if number == task.evaluations:
                    results += values
                pruned = not goes_on(positions, number, values)
                pipe.send("prune" if pruned else "go")
                self._check(process, started)
        finally:
            # `kill` before `end`, which would wait for the trial.
            process.kill()
            end(process, pipe)

    def _check(self, process: Any, started: float) -> None:
        """Raise a `TrialError` if the search was stopped, or the process of a trial exceeds a limit."""
        if self.stopping.is_set():
            raise TrialError("the search was stopped")
        self.limits.check(process, started)


def write_best(
    result: Result, agent: type, env: Any, steps: int, seed: int, weights: str | None = None, dataset: Any = None
) -> None:
    """Write `best.toml`, the options of `noterl train` for the best trial.

    An environment that is a function has no name there, so `--env` must be given. Other values that a file cannot hold,
    such as functions, are named in comments.
    """
    if not result.best:
        return
    named = {"env": env} if isinstance(env, str) else dict(getattr(env, "options", {}))
    table: dict[str, Any] = {"agent": _name(agent), **named, "steps": steps, "seed": seed}
    if weights is not None:
        table["weights"] = weights
    comment = f"# the best trial, {result.value:.6g}; the defaults reach {result.default:.6g}\n"
    if not named:
        comment += "# env is missing here: pass the option --env\n"
    for name, value in result.best.items():
        try:
            table[name] = _option(value)
        except TypeError as error:
            comment += f"# {name} is missing here: {error}\n"
    modules = {_module(type(chosen)) for chosen in result.best.values() if isinstance(chosen, Configurable)}
    imported = sorted(module for module in modules if not module.startswith("noterl."))
    if imported:
        table["import"] = imported
    if dataset is not None:  # `updates` of a trial is an argument of `compile`, which has no effect on a data set
        table |= {"dataset": str(dataset), "updates": table.pop("steps")}
    if os.environ.get("KERAS_BACKEND"):
        table["backend"] = os.environ["KERAS_BACKEND"]
    write_bytes(result.folder / "best.toml", (comment + toml_text(table)).encode())


def _name(agent: type) -> str:
    """Return the name of an agent on the command line; `module:Class` for one of the user."""
    if agent.__module__.startswith("noterl."):
        return agent.__name__.lower()
    return f"{_module(agent)}:{agent.__name__}"


def _module(kind: type) -> str:
    """Return the module of a class; "__main__" of a script has the name of the file on a command line."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    return Path(script).stem if kind.__module__ == "__main__" and script else kind.__module__


def plot(optuna: Any, result: Result) -> None:
    """Write `history.png` if a trial is complete, and `importances.png` if the values of complete trials differ."""
    trials = result.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not trials:
        return
    from noterl.utils import figures

    numbers = [trial.number for trial in trials]
    values = [trial.value for trial in trials]
    with figures.drawing(path=result.folder / "history.png") as (axes,):
        axes.plot(numbers, values, ".", markersize=7, label="trial")
        axes.step(numbers, np.maximum.accumulate(values), where="post", linestyle="-", label="best so far")
        if not np.isnan(result.default):
            axes.axhline(result.default, color="tab:gray", linestyle=":", label="defaults")
        axes.set(xlabel="trial", ylabel="mean return over the seeds")
        axes.locator_params(axis="x", integer=True)
        axes.legend()
    # Without any difference in the values, no hyperparameter has a share.
    if len(set(values)) > 1:
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()  # Optuna's default evaluator needs scikit-learn
        shares = optuna.importance.get_param_importances(result.study, evaluator=evaluator)
        # A bar needs a fifth of an inch.
        with figures.drawing(height=0.8 + 0.2 * len(shares), path=result.folder / "importances.png") as (axes,):
            axes.barh(list(shares)[::-1], list(shares.values())[::-1])
            axes.set(xlabel="share of the variance of the mean return")
            axes.grid(visible=False, axis="y")


def describe(result: Result) -> str:
    """Return the lines that `tune` prints."""
    states = [trial.state.name.lower() for trial in result.study.get_trials(deepcopy=False)]
    counts = ", ".join(f"{states.count(name)} {name}" for name in dict.fromkeys(states))
    if not result.best:
        return f"{len(states)} trials ({counts}); none is complete"
    return (
        f"{len(states)} trials ({counts})\nbest {result.value:.4g}, defaults {result.default:.4g}; with other seeds "
        f"{result.fresh_value:.4g}, {'better' if result.is_better else 'not better'} than the defaults, "
        f"{result.fresh_default:.4g}\n{result.folder / 'best.toml'}"
    )


def _option(value: Any) -> Any:
    """Return a value for a TOML file of `noterl train`: an object becomes the call that constructs the object.

    Raises:
        TypeError: if a file cannot hold the value.
    """
    if isinstance(value, list | tuple):
        return [_option(element) for element in value]
    value = "none" if value is None else _as_python(value)
    return value if is_plain(value) else _expression(value)


def _expression(value: Any) -> str:
    """Return the Python expression that constructs a value.

    Raises:
        TypeError: if `value` is neither a literal nor a `Configurable` of such values.
    """
    if isinstance(value, Configurable):
        arguments = ", ".join(f"{name}={_expression(argument)}" for name, argument in value.get_config().items())
        return f"{type(value).__name__}({arguments})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_expression, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_expression(key)}: {_expression(argument)}' for key, argument in value.items())}}}"
    if is_plain(value := _as_python(value)):
        return repr(value)
    raise TypeError(f"a file cannot hold a value of the type {type(value).__name__}")


def _as_python(value: Any) -> Any:
    """Return a number of NumPy as a number of Python; any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _receive(pipe: Any, process: Any) -> Any:
    """Return the next message of a trial; raise a `TrialError` if the process has ended."""
    try:
        return pipe.recv()
    except (EOFError, OSError) as error:
        # The exit code is known only after the process has been waited for.
        process.join(5)
        raise TrialError(f"its process ended with the exit code {process.exitcode}") from error


def _name_of(value: Any) -> str:
    """Return a text that is the same in each process for an environment, a function or a constant."""
    if isinstance(value, partial):
        return f"{_name_of(value.func)}{value.args}{value.keywords}"
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    try:
        return _expression(value)
    except TypeError:
        # What cannot be written as a call is known by its class; `options` is the command line's description.
        return str(getattr(value, "options", type(value).__qualname__))


def _is_running(trial: Any) -> bool:
    """Return whether the process of a trial may be running; processes of other machines cannot be found."""
    process = trial.user_attrs.get("process")
    # A process stores its id just after it has begun a trial.
    if process is None and datetime.datetime.now() - trial.datetime_start < datetime.timedelta(minutes=1):
        return True
    try:
        node, pid, created = process
        return node != platform.node() or bool(psutil.Process(int(pid)).create_time() == created)
    except (TypeError, ValueError, psutil.Error):
        return False


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Suppress Optuna's log lines and warnings about experimental functions."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
