"""Rules for every callback that `noterl.callbacks` exports.

A new class is covered once it is exported. It is built with its defaults, or with the arguments in `ARGUMENTS`; a class
that changes training or handles every gradient update is listed below, with the reason.
"""

from __future__ import annotations

import csv
import importlib.util
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import noterl
import noterl.callbacks
from noterl import saving
from noterl.callback import CHECKPOINT, EVENTS, LambdaCallback
from noterl.training.dispatch import CallbackList
from tests.support.states import assert_same_state, differences, joined, one_lane

pytestmark = pytest.mark.backends("torch")

EPISODES, CUT = 8, 4


class Trial:
    """A trial of Optuna that is never pruned."""

    def report(self, value: float, step: int) -> None:
        pass

    def should_prune(self) -> bool:
        return False


# The arguments of classes that need some; files are written into the folder.
ARGUMENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "AdaBatch": lambda folder: {"num_samples": 2, "lr": noterl.callbacks.Rate(1e-4, 1e-4, 1e-2)},
    "Adapt": lambda folder: {"lr": noterl.callbacks.Rate(1e-4, 1e-4, 1e-2)},
    "ESSAdapt": lambda folder: {"target_ess": 50, "lr": noterl.callbacks.Rate(1e-4, 1e-4, 1e-2)},
    "ESSWindow": lambda folder: {"scale": 0.9, "min_size": 30},
    "Window": lambda folder: {"size": 0.8, "every": 1, "unit": "episodes"},
    "Animate": lambda folder: {"path": folder / "learned.gif", "max_steps": 3},
    "BackupAndRestore": lambda folder: {"path": folder / "backup.noterl"},
    "CSVLogger": lambda folder: {"path": folder / "log.csv", "flush_every": 3},
    "Checkpoint": lambda folder: {"path": folder / "files", "save_freq": 3},
    "EarlyStopping": lambda folder: {"trial_count": 3, "patience": 100},
    "Evaluate": lambda folder: {"every": 3, "episodes": 2, "on_best": folder / "best.noterl"},
    "Export": lambda folder: {"path": folder / "policy", "format": "numpy", "window": 2},
    "FinderLogger": lambda folder: {"metric": "reward", "points": 10**9},
    "HyperparameterScheduler": lambda folder: {"name": "gamma", "schedule": lambda step: 0.9 + step / 10_000},
    "JSONLogger": lambda folder: {"path": folder / "log.jsonl", "flush_every": 3},
    "LambdaCallback": lambda folder: {"on_episode_end": lambda episode, logs: logs.update(double=2 * logs["reward"])},
    "LearningRateScheduler": lambda folder: {"schedule": lambda step: 1e-3 + step * 1e-6},
    "MLflowLogger": lambda folder: {"tracking_uri": f"sqlite:///{folder}/runs.db", "flush_every": 3},
    "OptunaPruning": lambda folder: {"trial": Trial(), "every": 3},
    "ParquetLogger": lambda folder: {"path": folder / "log.parquet", "flush_every": 3},
    "RecordVideo": lambda folder: {"path": folder / "videos", "every": 4, "max_steps": 3},
    "StopOnSteps": lambda folder: {"steps": 10**9},
    "StopOnTime": lambda folder: {"seconds": 1e9},
    "TensorBoard": lambda folder: {"folder": folder / "charts", "flush_every": 3},
    "TrackioLogger": lambda folder: {"name": "run"},
    "WandbLogger": lambda folder: {"mode": "disabled", "folder": str(folder)},
}

# Callbacks that change training; all others leave a run bit-identical.
CHANGES_TRAINING: dict[str, str] = {
    "AdaBatch": "changes the learning rate",
    "Adapt": "changes the learning rate",
    "ESSAdapt": "changes the learning rate",
    "ESSWindow": "drops transitions",
    "Window": "drops transitions",
    "HyperparameterScheduler": "changes gamma",
    "LearningRateScheduler": "changes the learning rate",
}

# Callbacks that handle every update, which costs a fetch from the device.
HANDLES_UPDATES: dict[str, str] = {"TerminateOnNaN": "checks whether each update was applied"}

# Packages that are not installed everywhere.
NEEDS: dict[str, str] = {
    "MLflowLogger": "mlflow",
    "OptunaPruning": "optuna",
    "ParquetLogger": "pyarrow",
    "TensorBoard": "tensorboardX",
    "TrackioLogger": "trackio",
    "WandbLogger": "wandb",
}

# Entries of a state that depend on the clock.
TIMES = ("elapsed", "seconds", "time")

# `Arena` needs an agent that plays a game; tests/callbacks/test_arena.py has its tests.
NAMES = sorted(
    name
    for name in set(noterl.callbacks.__all__) - {"Callback", "Arena"}
    if issubclass(getattr(noterl.callbacks, name), noterl.Callback)
)


def make(name: str, folder: Path) -> noterl.Callback:
    """Return a callback of the catalogue."""
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{name} needs {NEEDS[name]}")
    kind = getattr(noterl.callbacks, name)
    arguments = ARGUMENTS[name](folder) if name in ARGUMENTS else {}
    required = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    missing = set(required) - set(arguments)
    assert not missing, (
        f"tests/callbacks/test_catalogue.py, ARGUMENTS: {name} has no default for {', '.join(sorted(missing))}"
    )
    return kind(**arguments)


def without_times(state: Any) -> Any:
    """Return a state of callbacks without the entries that depend on the clock."""
    if isinstance(state, dict):
        return {key: without_times(value) for key, value in state.items() if key not in TIMES}
    return state


class Whole(NamedTuple):
    """A run with a callback: its final state, the states of agent and callback after `CUT` episodes, and its folder."""

    state: dict[str, Any]
    middle: dict[str, Any]
    callback_state: dict[str, Any]
    folder: Path


class Runs:
    """One agent that is compiled once and restored to its first state for every run."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self.agent = one_lane(replay=noterl.Replay(128, sampler=noterl.replay.Prioritized()))
        self.make_folder = make_folder
        self.beginning = self.agent.get_state()
        self.plain = self.run()
        self.known: dict[str, Whole] = {}

    def run(self, *callbacks: Any, start: dict[str, Any] | None = None, episodes: int = EPISODES) -> dict[str, Any]:
        """Train from a state, by default the first one, and return the final state."""
        self.agent.set_state(self.beginning if start is None else start)
        self.agent.fit(episodes=episodes, callbacks=callbacks, verbose=0)
        return self.agent.get_state()

    def whole(self, name: str) -> Whole:
        """Return the run with a callback of the catalogue; each runs once."""
        if name not in self.known:
            folder = self.make_folder(name)
            (folder / "whole").mkdir()
            callback = make(name, folder / "whole")
            kept: list[Any] = []

            def cut() -> None:
                kept.extend([self.agent.get_state(), callback.get_state()])
                shutil.copytree(folder / "whole", folder / "cut")

            self.known[name] = Whole(self.run(callback, probe(cut)), *kept, folder)
        return self.known[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp)


def without_callbacks(state: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in state.items() if name != "callbacks"}


def probe(act: Callable[[], None]) -> LambdaCallback:
    """Return a callback that calls `act` after all other callbacks, at the end of episode number `CUT`."""
    callback = LambdaCallback(on_episode_end=lambda episode, logs: act() if episode == CUT - 1 else None)
    callback.order = CHECKPOINT + 1
    return callback


@pytest.mark.parametrize("name", NAMES)
class TestEvery:
    def test_training_changes_only_with_listed_callbacks(self, name: str, runs: Runs) -> None:
        state = runs.whole(name).state
        assert state["counters"]["episodes"] == EPISODES
        if name not in CHANGES_TRAINING:
            assert_same_state(without_callbacks(state), without_callbacks(runs.plain))

    def test_state_survives_a_file(self, name: str, runs: Runs, tmp_path: Path) -> None:
        state = runs.whole(name).callback_state
        saving.write(tmp_path / "state.noterl", {"callback": state})
        read = saving.read(tmp_path / "state.noterl")["callback"]
        other = make(name, tmp_path)
        other.set_state(read)
        assert not differences(other.get_state(), state)

    def test_resumed_run_continues_exactly(self, name: str, runs: Runs) -> None:
        whole = runs.whole(name)
        resumed = runs.run(make(name, whole.folder / "cut"), start=whole.middle, episodes=EPISODES - CUT)
        assert not differences(without_times(joined(resumed)), without_times(joined(whole.state)))

    def test_handles_only_the_events_that_it_uses(self, name: str, runs: Runs, tmp_path: Path) -> None:
        callback = make(name, tmp_path)
        callback.agent = runs.agent
        events = CallbackList([callback]).bind()
        handled = {event: getattr(events, event) for event in EVENTS if getattr(events, event)}
        assert handled or type(callback).before_fit is not noterl.Callback.before_fit, f"{name} does nothing"
        for event, (function, *_) in handled.items():
            assert function.__code__.co_code != (lambda self: None).__code__.co_code
            assert len(function.__code__.co_names) + len(function.__code__.co_freevars) > 0, f"{event} does nothing"
        assert bool(events.on_batch_begin or events.on_batch_end) == (name in HANDLES_UPDATES)
        assert callback.needs_live_updates <= (name in HANDLES_UPDATES)


# Further arguments for a list of all callbacks: most run within episodes, some at every step.
TOGETHER: dict[str, dict[str, Any]] = {
    "AdaBatch": {"every": 7, "unit": "updates"},
    "Adapt": {"every": 1, "unit": "steps", "gamma": noterl.callbacks.Rate(1e-3, 0.8, 0.99)},
    "ESSAdapt": {"every": 3, "unit": "steps", "batch": noterl.callbacks.Scale(min=4, max=16, align=4)},
    "ESSWindow": {"every": 5, "unit": "steps"},
    "EarlyStopping": {"restore_best_weights": True},
    "Evaluate": {"every": 30, "unit": "steps"},
    "OptunaPruning": {"every": 30, "unit": "steps"},
    "RecordVideo": {"every": 60, "unit": "steps"},
    "Window": {"every": 13, "unit": "steps"},
}


def together(folder: Path) -> list[Any]:
    """Return the whole catalogue in one list."""
    present = [name for name in NAMES if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    made = []
    for name in present:
        arguments = ARGUMENTS[name](folder) if name in ARGUMENTS else {}
        made.append(getattr(noterl.callbacks, name)(**{**arguments, **TOGETHER.get(name, {})}))
    return made


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table of a run, without times."""
    with (folder / "log.csv").open() as file:
        return [{name: cell for name, cell in row.items() if name != "time"} for row in csv.DictReader(file)]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_whole_catalogue_in_one_list_resumes_exactly(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()

    def cut(name: str) -> None:
        runs.agent.save(tmp_path / f"{name}.noterl")
        shutil.copytree(tmp_path / "whole", tmp_path / name)

    last = probe(lambda: cut("at an episode end"))
    last.on_step_end = lambda: cut("within an episode") if runs.agent.steps == 111 else None
    whole = runs.run(*together(tmp_path / "whole"), last)
    for name in ("at an episode end", "within an episode"):
        runs.agent.restore(tmp_path / f"{name}.noterl")
        middle = runs.agent.get_state()
        assert any(middle["lanes"]["ledger"]["running"]) == (name == "within an episode")
        left = EPISODES - middle["counters"]["episodes"]
        resumed = runs.run(*together(tmp_path / name), start=middle, episodes=left)
        assert not differences(without_times(joined(resumed)), without_times(joined(whole))), name
        assert rows(tmp_path / name) == rows(tmp_path / "whole"), name


def test_lists_name_exported_callbacks() -> None:
    for listed in (ARGUMENTS, CHANGES_TRAINING, HANDLES_UPDATES, NEEDS):
        assert set(listed) <= set(NAMES)


def test_changed_training_is_detected(runs: Runs) -> None:
    def change(episode: int, logs: dict[str, Any]) -> None:
        runs.agent.set_rule("learning_rate", 0.5)

    state = runs.run(LambdaCallback(on_episode_begin=change))
    assert differences(joined(without_callbacks(state)), joined(without_callbacks(runs.plain)))


def test_lost_state_is_detected(runs: Runs, tmp_path: Path) -> None:
    class WithoutState(noterl.Callback):
        def __init__(self) -> None:
            self.ended = 0

        def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
            self.ended += 1
            self.agent.set_rule("learning_rate", 1e-3 * self.ended)

    kept: list[dict[str, Any]] = []
    whole = runs.run(WithoutState(), probe(lambda: kept.append(runs.agent.get_state())))
    resumed = runs.run(WithoutState(), start=kept[0], episodes=EPISODES - CUT)
    assert differences(joined(resumed), joined(whole))
