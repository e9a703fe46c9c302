"""BackupAndRestore: a killed script that runs again ends in the state of an uninterrupted one, bit for bit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.callback import CHECKPOINT
from noterl.callbacks import (
    AdaBatch,
    BackupAndRestore,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    ESSAdapt,
    Evaluate,
    LambdaCallback,
    Rate,
    ReduceLROnPlateau,
    StopOnSteps,
    TerminateOnNaN,
)
from tests.support.doubles import RaisingEnv
from tests.support.states import ROOT, assert_same_state, four_lanes, one_lane
from tests.support.tape import Broken, Tape, broken, rewarded, taped

pytestmark = pytest.mark.backends("torch")

# Trains an agent and prints the name of the run at the first new step. At the end it sleeps, because on a busy machine
# the parent may kill it late.
SCRIPT = """
import sys, time
from tests.callbacks.test_backup_and_restore import script
script(sys.argv[1], sys.argv[2], begun=sys.argv[2])
time.sleep(60)
"""

RUNS: dict[str, tuple[Callable[[], noterl.DQN], dict[str, int]]] = {
    "one": (one_lane, {"episodes": 20}),
    "four": (four_lanes, {"steps": 301, "num_envs": 4}),
}


class PressingEnv(gymnasium.Wrapper):
    """CartPole, which sends the process Ctrl-C at the step `at`."""

    at: int | None = None

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._step = 0

    def step(self, action: Any) -> Any:
        self._step += 1
        if self._step == PressingEnv.at:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


def script(directory: Any, name: str, begun: str = "") -> noterl.DQN:
    """Train as the killed and the resumed script do; with `begun`, train slowly and print it at the first step."""
    build, budget = RUNS[name]
    agent = build()
    agent.fit(**budget, callbacks=callbacks(f"{directory}/{name}", begun), verbose=0)
    return agent


def callbacks(directory: Any, begun: str = "") -> list[Any]:
    """Return callbacks that stop, save and adapt; with `begun`, also one that slows training and prints `begun`."""
    slow = LambdaCallback(on_batch_end=lambda batch, logs: time.sleep(0.001)) if begun else LambdaCallback()
    printed: list[str] = []

    def print_once() -> None:
        if begun and not printed:
            printed.append(begun)
            print(begun, flush=True)

    slow.on_step_end = print_once
    backup = BackupAndRestore(f"{directory}/backup.noterl", 9, unit="steps")
    return [
        EarlyStopping(5, criterion=1e9, patience=1000, restore_best_weights=True),
        ReduceLROnPlateau(0.5, 2, window=2),
        StopOnSteps(10**9),
        TerminateOnNaN(),
        ESSAdapt(target_ess=50, every=11, unit="steps", gamma=Rate(1e-3, 0.8, 0.99)),
        AdaBatch(2, every=50, unit="updates", beta1=Rate(0.01, 0.8, 0.95)),
        Checkpoint(f"{directory}/files", 5, max_save_files=2, save_replay=True),
        slow,
        backup,
    ]


def kill(directory: Path, name: str, seconds: float) -> None:
    """Run the script in a separate process, and kill it `seconds` after its first step."""
    command = [sys.executable, "-c", SCRIPT, str(directory), name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while (line := process.stdout.readline()) != f"{name}\n":
        assert line, "the script ended before it was killed"
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the script ended before it was killed"
    process.stdout.close()


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:callbacks. ESSAdapt:UserWarning")  # one of the memories has no priorities
def test_killed_scripts_resume_exactly(tmp_path: Path) -> None:
    delays = np.random.default_rng().uniform(0.02, 0.2, 2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill, [tmp_path] * 2, RUNS, delays))
    for name in RUNS:
        resumed, whole = script(tmp_path, name), script(tmp_path / "whole", name)
        assert_same_state(resumed, whole)
        files = [
            sorted(file.name for file in (tmp_path / part / "files").iterdir()) for part in (name, f"whole/{name}")
        ]
        assert files[0] == files[1], f"killed after {delays} s"


def crash_if(is_time: bool) -> None:
    if is_time:
        raise Broken


def crash(at: int | None, order: int = 0) -> LambdaCallback:
    """Return a callback that raises an error at the end of a step."""
    callback = LambdaCallback()
    callback.on_step_end = lambda: crash_if(callback.agent.steps == at)
    callback.order = order
    return callback


def small(seed: int | None = 3) -> noterl.DQN:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=seed)
    agent.compile(replay=noterl.Replay(200), batch_size=4, learning_starts=10**6)
    return agent


def interrupted(path: Path, at: int, **budget: Any) -> noterl.DQN:
    """Return an agent whose fit ended by an error after `at` steps."""
    agent, crash = small(), LambdaCallback()
    crash.on_step_end = lambda: broken() if agent.steps == at else None
    with pytest.raises(Broken):
        agent.fit(**budget, callbacks=[BackupAndRestore(path, 10, unit="steps"), crash], verbose=0)
    return agent


def assert_resumed_run_is_exact(path: Path, first_step: int) -> None:
    """Continue the run of a backup to 100 steps; it begins at this step and ends as an uninterrupted run does."""
    steps, agent = [], small()
    count = LambdaCallback()
    count.on_step_end = lambda: steps.append(agent.steps)
    agent.fit(steps=100, callbacks=[BackupAndRestore(path), count], verbose=0)
    assert steps == [*range(first_step, 101)]
    whole = small()
    whole.fit(steps=100, callbacks=[BackupAndRestore(path.with_name("other.noterl"))], verbose=0)
    assert_same_state(agent, whole)


class TestResuming:
    @pytest.mark.backends("tensorflow", "jax", "torch")
    def test_resumed_fit_trains_the_rest_of_its_budget(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        interrupted(path, 57, steps=100)
        assert_resumed_run_is_exact(path, first_step=51)

    @pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGHUP, SystemExit)])
    def test_backup_is_written_after_a_signal(self, number: int, error: type[BaseException], tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        agent, press = small(), LambdaCallback()
        press.on_step_end = lambda: os.kill(os.getpid(), number) if agent.steps == 57 else None
        with pytest.raises(error):
            agent.fit(steps=100, callbacks=[BackupAndRestore(path, 1000, unit="steps"), press], verbose=0)
        assert_resumed_run_is_exact(path, first_step=58)

    def test_interrupted_evaluation_is_repeated_after_the_resume(self, tmp_path: Path) -> None:
        def run(path: Path, interrupted: bool = False) -> dict[str, list[float]]:
            def choose(episode: int, logs: Any) -> None:
                PressingEnv.at = 5 if interrupted and episode == 3 else None

            evaluate = Evaluate(PressingEnv, every=2, episodes=1)
            callbacks = [
                LambdaCallback(on_episode_end=choose), evaluate, BackupAndRestore(path, 1, unit="episodes")
            ]  # fmt: skip
            with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
                one_lane().fit(episodes=6, callbacks=callbacks, verbose=0)
            return evaluate.results

        whole = run(tmp_path / "whole.noterl")
        assert whole["episodes"] == [2, 4, 6]
        run(tmp_path / "backup.noterl", interrupted=True)
        assert run(tmp_path / "backup.noterl") == whole

    def test_resumed_csv_keeps_columns_that_were_empty(self, tmp_path: Path) -> None:
        path, log = tmp_path / "backup.noterl", tmp_path / "log.csv"
        headers = []
        for at in (57, 0):
            agent, crash = small(), LambdaCallback()
            agent.schedule.learning_starts = 60  # there is no loss before
            crash.on_step_end = lambda agent=agent, at=at: broken() if agent.steps == at else None
            with pytest.raises(Broken) if at else contextlib.nullcontext():
                backup = BackupAndRestore(path, 10, unit="steps")
                agent.fit(steps=100, callbacks=[crash, CSVLogger(log, 1), backup], verbose=0)
            headers.append(log.read_text().splitlines()[0])
        assert headers[0].startswith("episode,reward,length,loss,") and headers[1].startswith(headers[0])

    def test_interrupt_within_a_step_keeps_the_last_backup(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        agent, press = small(), LambdaCallback()

        def interrupt() -> None:
            if agent.steps == 57:
                raise KeyboardInterrupt

        press.on_step_end = interrupt
        with pytest.raises(KeyboardInterrupt):
            agent.fit(steps=100, callbacks=[BackupAndRestore(path, 10, unit="steps"), press], verbose=0)
        assert saving.read(path)["state"]["counters"]["steps"] == 50

    def test_total_of_steps_is_that_of_the_agent(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        for change in (lambda each: each, reversed):
            path.unlink(missing_ok=True)
            agent = interrupted(path, 57, steps=200)
            agent.fit(steps=200, callbacks=change([StopOnSteps(90), BackupAndRestore(path)]), verbose=0)
            assert agent.steps == 90

    def test_resumed_fit_returns_the_complete_history(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        interrupted(path, 57, episodes=6)
        history = small().fit(episodes=6, callbacks=[BackupAndRestore(path)], verbose=0)
        whole = small().fit(episodes=6, verbose=0)
        for name in ("reward", "length", "steps"):
            assert history.history[name] == whole.history[name]
        assert history.episode == whole.episode

    def test_time_goes_on_after_the_interruption(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        interrupted(path, 57, episodes=6)
        time.sleep(0.1)
        times = small().fit(episodes=6, callbacks=[BackupAndRestore(path)], verbose=0).history["time"]
        assert times == sorted(times)

    @pytest.mark.parametrize("backup_first", [True, False])
    def test_checkpoints_of_the_same_steps_are_those_of_an_uninterrupted_run(
        self, backup_first: bool, tmp_path: Path
    ) -> None:
        def fit(folder: Path, at: int | None = None) -> list[str]:
            agent, kill = small(), LambdaCallback()
            kill.on_step_end = lambda: shutil.copytree(folder, tmp_path / "killed") if agent.steps == at else None
            callbacks: list[Any] = [
                BackupAndRestore(folder / "backup.noterl", 10, unit="steps"),
                Checkpoint(folder / "files", 10, unit="steps", max_save_files=2),
            ]
            agent.fit(steps=65, callbacks=[*(callbacks if backup_first else callbacks[::-1]), kill], verbose=0)
            return sorted(file.name for file in (folder / "files").iterdir())

        (tmp_path / "whole").mkdir()
        whole = fit(tmp_path / "whole", 32)
        assert fit(tmp_path / "killed") == whole

    def test_changed_script_is_reported(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        interrupted(path, 57, steps=100)
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=3, gamma=0.5)
        agent.compile(replay=noterl.Replay(200), batch_size=8, learning_starts=10**6)
        with pytest.warns(UserWarning, match="was made with other arguments") as caught:
            agent.fit(steps=100, callbacks=[BackupAndRestore(path)], verbose=0)
        [warning] = [each for each in caught if "other arguments" in str(each.message)]
        assert "backup are used: gamma=its default (not 0.5). Those of the script" in str(warning.message)
        assert "script are used: batch_size=8 (not 4). Remove" in str(warning.message)
        assert warning.filename == __file__
        assert float(agent.gamma) == float(small().gamma) and agent.schedule.batch_size == 8

    @pytest.mark.parametrize(
        ("target_update", "words"),
        [(0.5, "backup are used: target_update=0.25 (not 0.5)"), (9, "script are used: target_update=9 (not 0.25)")],
    )
    def test_changed_target_update_is_reported(self, tmp_path: Path, target_update: float, words: str) -> None:
        path = tmp_path / "backup.noterl"

        def fit(target_update: float, steps: int) -> noterl.DQN:
            agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=3)
            agent.compile(batch_size=4, learning_starts=8, target_update=target_update)
            agent.fit(steps=steps, callbacks=[BackupAndRestore(path)], verbose=0)
            return agent

        fit(0.25, 40)
        with pytest.warns(UserWarning, match="was made with other arguments") as caught:
            agent = fit(target_update, 60)
        assert any(words in str(each.message) for each in caught)
        assert agent.schedule.polyak == (target_update == 0.5)
        assert target_update == 9 or float(agent.tau) == 0.25

    def test_backup_of_another_network_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        interrupted(path, 57, steps=100)
        agent = noterl.DQN("CartPole-v1", hidden=(6,), seed=3)
        with pytest.raises(ValueError, match=r"hidden=\(4,\), not \(6,\)"):
            agent.fit(steps=100, callbacks=[BackupAndRestore(path)], verbose=0)
        assert agent.steps == 0 and path.exists()

    def test_complete_fit_is_skipped_and_larger_budget_continues(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        for budget, steps in ((40, 40), (40, 40), (70, 70), (70, 70)):
            agent = small()
            agent.fit(steps=budget, callbacks=[BackupAndRestore(path)], verbose=0)
            assert agent.steps == steps
        whole = small()
        whole.fit(steps=70, callbacks=[BackupAndRestore(tmp_path / "other.noterl")], verbose=0)
        assert_same_state(agent, whole)

    def test_fits_before_the_interrupted_one_are_skipped(self, tmp_path: Path) -> None:
        def script(path: Path, crash_at: int | None = None) -> tuple[noterl.DQN, list[int]]:
            agent, steps = small(), []
            count = LambdaCallback()

            def step() -> None:
                steps.append(agent.steps)
                if agent.steps == crash_at:
                    raise Broken

            count.on_step_end = step
            for budget in (30, 40, 20):
                agent.fit(steps=budget, callbacks=[BackupAndRestore(path, 10, unit="steps"), count], verbose=0)
            return agent, steps

        with pytest.raises(Broken):
            script(tmp_path / "backup.noterl", crash_at=55)
        agent, steps = script(tmp_path / "backup.noterl")
        assert steps == [*range(51, 91)]
        whole, _ = script(tmp_path / "other.noterl")
        assert_same_state(agent, whole)

    def test_files_of_a_skipped_fit_stay(self, tmp_path: Path) -> None:
        def script(crash_at: int | None = None) -> noterl.DQN:
            agent = small()
            for folder in ("first", "second"):
                backup = BackupAndRestore(tmp_path / "backup.noterl", 1, unit="steps")
                checkpoint = Checkpoint(tmp_path / folder, 1, max_save_files=2)
                log = CSVLogger(tmp_path / folder / "log.csv", flush_every=1)
                agent.fit(steps=90, callbacks=[backup, checkpoint, log, crash(crash_at)], verbose=0)
            return agent

        with pytest.raises(Broken):
            script(crash_at=150)
        before = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
        assert script().steps == 180
        assert {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()} == before
        assert Checkpoint.latest(tmp_path / "first") is not None

    def test_code_between_fits_may_compile_again(self, tmp_path: Path) -> None:
        def script(path: Path, crash_at: int | None = None) -> noterl.DQN:
            agent = small()
            for total, optimizer in ((40, keras.optimizers.Adam()), (100, keras.optimizers.SGD())):
                agent.compile(optimizer, batch_size=4, learning_starts=10)
                backup = BackupAndRestore(path, 1, unit="steps")
                agent.fit(steps=total - agent.steps, callbacks=[backup, crash(crash_at)], verbose=0)
            return agent

        with pytest.raises(Broken):
            script(tmp_path / "backup.noterl", crash_at=70)
        assert_same_state(script(tmp_path / "backup.noterl"), script(tmp_path / "other.noterl"))

    def test_counts_between_skipped_fits_are_those_of_an_uninterrupted_run(self, tmp_path: Path) -> None:
        def script(crash_at: int | None = None) -> list[tuple[int, int, int]]:
            agent = small()
            counts = []
            for total in (30, 60, 90):
                backup = BackupAndRestore(tmp_path / "backup.noterl", 1, unit="steps")
                agent.fit(steps=total - agent.steps, callbacks=[backup, crash(crash_at)], verbose=0)
                counts.append((agent.episodes, agent.steps, agent.updates))
            return counts

        with pytest.raises(Broken):
            script(crash_at=75)
        resumed = script()
        (tmp_path / "backup.noterl").unlink()
        assert resumed == script()

    def test_one_log_holds_the_rows_of_fits_with_and_without_an_environment(self, tmp_path: Path) -> None:
        def script(folder: Path, crash_at: int | None = None) -> list[list[str]]:
            agent = small()
            data = noterl.Dataset.record(agent, steps=50, seed=1)

            def own() -> list[Any]:
                return [BackupAndRestore(folder / "backup.noterl", 1, unit="updates"), CSVLogger(folder / "log.csv")]

            agent.fit(steps=90, callbacks=own(), verbose=0)
            fail = LambdaCallback(on_epoch_end=lambda epoch, logs: crash_if(epoch == crash_at))
            agent.fit(dataset=data, updates=40, updates_per_epoch=4, callbacks=[*own(), fail], verbose=0)
            return [line.split(",")[:2] for line in (folder / "log.csv").read_text().splitlines()]

        whole = script(tmp_path / "whole")
        with pytest.raises(Broken):
            script(tmp_path / "parts", crash_at=6)
        assert script(tmp_path / "parts") == whole

    def test_last_checkpoint_is_written_after_a_crash_at_the_last_step(self, tmp_path: Path) -> None:
        def train(crash_at: int | None = None) -> None:
            backup = BackupAndRestore(tmp_path / "backup.noterl", 1, unit="steps")
            checkpoint = Checkpoint(tmp_path / "files", 20, unit="steps")
            small().fit(steps=43, callbacks=[backup, checkpoint, crash(crash_at, order=CHECKPOINT + 2)], verbose=0)

        with pytest.raises(Broken):
            train(crash_at=43)
        train()
        assert "step-00000043-" in str(Checkpoint.latest(tmp_path / "files"))

    def test_seed_of_fit_restarts_only_once(self, tmp_path: Path) -> None:
        path = tmp_path / "backup.noterl"
        interrupted(path, 33, steps=60, seed=5)
        agent, whole = small(), small()
        agent.fit(steps=60, seed=5, callbacks=[BackupAndRestore(path)], verbose=0)
        whole.fit(steps=60, seed=5, callbacks=[BackupAndRestore(tmp_path / "other.noterl")], verbose=0)
        assert_same_state(agent, whole)

    def test_stopped_fit_stays_stopped(self, tmp_path: Path) -> None:
        for _ in range(2):
            agent = small()
            stopper = EarlyStopping(1, criterion=5)
            history = agent.fit(callbacks=[stopper, BackupAndRestore(tmp_path / "backup.noterl")], verbose=0)
            assert (agent.episodes, history.stop_reason) == (1, "reward reached 5")

    def test_message_names_the_backup(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "backup.noterl"
        interrupted(path, 33, steps=60)
        small().fit(steps=60, callbacks=[BackupAndRestore(path)], verbose=2)
        assert f"resuming from {path}:" in capsys.readouterr().err

    def test_verbose_0_prints_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for steps in (30, 60):
            small().fit(steps=steps, callbacks=[BackupAndRestore(tmp_path / "b.noterl")], verbose=0)
        assert capsys.readouterr() == ("", "")


class TestSaving:
    def test_writes_every_save_freq_and_at_the_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        saved, write = [], saving.write
        monkeypatch.setattr(
            saving, "write", lambda path, tree: (saved.append(tree["state"]["counters"]["steps"]), write(path, tree))
        )
        small().fit(steps=35, callbacks=[BackupAndRestore(tmp_path / "b.noterl", 10, unit="steps")], verbose=0)
        assert saved == [10, 20, 30, 35]

    def test_no_backup_after_an_error(self, tmp_path: Path) -> None:
        agent = noterl.DQN(lambda: RaisingEnv(at=17), hidden=(4,), seed=1)
        with pytest.raises(RuntimeError, match="step 17 broke"):
            agent.fit(steps=30, callbacks=[BackupAndRestore(tmp_path / "b.noterl", 10, unit="steps")], verbose=0)
        assert saving.read(tmp_path / "b.noterl")["state"]["counters"]["steps"] == 10

    def test_background_writes_the_same_file(self, tmp_path: Path) -> None:
        for background in (False, True):
            backup = BackupAndRestore(tmp_path / f"{background}.noterl", 10, unit="steps", background=background)
            small().fit(steps=35, callbacks=[backup], verbose=0)
        states = [saving.read(tmp_path / f"{background}.noterl")["state"] for background in (False, True)]
        for state in states:
            del state["callbacks"]["BackupAndRestore"]["columns"]["time"]
        assert_same_state(*states)

    def test_backup_can_be_loaded_as_an_agent(self, tmp_path: Path) -> None:
        agent = small()
        agent.fit(steps=35, callbacks=[BackupAndRestore(tmp_path / "b.noterl")], verbose=0)
        loaded = noterl.load(tmp_path / "b.noterl")
        assert loaded.steps == 35
        np.testing.assert_array_equal(*(noterl.networks.get_weights(each.q)[0] for each in (agent, loaded)))


class TestErrors:
    def test_unwritable_path_raises_before_the_first_step(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a directory")
        tape = Tape()
        with pytest.raises(OSError, match="file"):
            taped(tape).fit(episodes=2, callbacks=[BackupAndRestore(tmp_path / "file" / "b.noterl")], verbose=0)
        assert tape == []

    def test_other_file_raises_and_is_unchanged(self, tmp_path: Path) -> None:
        path = tmp_path / "b.noterl"
        small().save(path)
        before = path.read_bytes()
        with pytest.raises(saving.FileError, match=r"b\.noterl.*'BackupAndRestore'"):
            small().fit(steps=5, callbacks=[BackupAndRestore(path)], verbose=0)
        path.write_text("poem")
        with pytest.raises(saving.FileError):
            rewarded([0]).fit(steps=5, callbacks=[BackupAndRestore(path)], verbose=0)
        assert path.read_text() == "poem"
        path.write_bytes(before)

    def test_backup_of_another_agent_raises(self, tmp_path: Path) -> None:
        path = tmp_path / "b.noterl"
        small().fit(steps=5, callbacks=[BackupAndRestore(path)], verbose=0)
        other = noterl.DQN("CartPole-v1", hidden=(5,), seed=3)
        with pytest.raises(ValueError, match=r"\['variables'\]\['q'\]"):
            other.fit(steps=5, callbacks=[BackupAndRestore(path)], verbose=0)
        assert other.steps == 0

    def test_bad_arguments_raise(self) -> None:
        with pytest.raises(ValueError, match=r"^save_freq must .*1\.5$"):
            BackupAndRestore("b", 1.5, unit="steps")
