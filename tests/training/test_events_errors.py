"""The events of a run in which an environment, an update or a callback raises, or that Ctrl-C interrupts."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.backends.common import NonFiniteError
from tests.support.parts import lanes_of, learner_of
from tests.support.replay_invariants import check_replay
from tests.support.tape import (
    PLAIN,
    Broken,
    Recorder,
    Tape,
    TapeAgent,
    broken,
    failing_fit,
    fit,
    interrupt,
    lines,
    sigint,
    sigterm,
    taped,
)

pytestmark = pytest.mark.backends("torch")

# A program that sends itself a signal after step 30: SIGTERM as a scheduler, or SIGHUP as a closed terminal.
TERMINATED = """
import os, signal, sys
import noterl
from noterl import callbacks

folder = sys.argv[1]

class Terminate(noterl.Callback):
    every = noterl.callback.Every(30, "steps")

    def on_due(self, logs):
        os.kill(os.getpid(), int(sys.argv[2]))

    def on_train_end(self, logs):
        self.agent.save(f"{folder}/end.noterl")

agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
agent.compile(replay=noterl.Replay(100), learning_starts=1000)
agent.fit(steps=1000, callbacks=[callbacks.CSVLogger(f"{folder}/log.csv"), Terminate()], verbose=0)
"""


@pytest.fixture
def tape() -> Tape:
    return Tape()


class TestException:
    @pytest.mark.parametrize(
        ("event", "expected"),
        [
            ("train_begin", "train_begin; exception Broken; train_end"),
            (
                "episode_begin",
                "train_begin; reset 0; episode_begin 0; exception Broken; episode_end 0 cut 0; train_end",
            ),
            (
                "batch_begin",
                """
                train_begin; reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0
                exception Broken; episode_end 0; train_end
                """,
            ),
            (
                "batch_end",
                """
                train_begin; reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0
                exception Broken; episode_end 0; train_end
                """,
            ),
            (
                "episode_end",
                """
                train_begin; reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
                exception Broken; train_end
                """,
            ),
            ("train_end", PLAIN),
        ],
    )
    def test_error_in_each_event(self, tape: Tape, event: str, expected: str) -> None:
        tape.acts[event, 1] = broken
        assert failing_fit(tape, taped(tape), Broken, episodes=2) == lines(expected)

    @pytest.mark.parametrize(
        ("entry", "occurrence", "expected"),
        [
            ("reset 0", 1, "train_begin; reset 0; exception Broken; train_end"),
            (
                "step 0",
                2,
                """
                train_begin; reset 0; episode_begin 0
                step 0
                step 0; exception Broken; episode_end 0 cut 1; train_end
                """,
            ),
            (
                "update",
                1,
                """
                train_begin; reset 0; episode_begin 0
                step 0
                step 0; update 2; exception Broken; episode_end 0; train_end
                """,
            ),
            (
                "target",
                1,
                """
                train_begin; reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
                reset 0; episode_begin 1
                step 0; target; exception Broken; episode_end 1 cut 1; train_end
                """,
            ),
        ],
    )
    def test_error_in_the_environment_an_update_or_the_target(
        self, tape: Tape, entry: str, occurrence: int, expected: str
    ) -> None:
        tape.acts[entry, occurrence] = broken
        assert failing_fit(tape, taped(tape), Broken, episodes=2) == lines(expected)

    def test_error_in_a_live_update(self, tape: Tape) -> None:
        tape.acts["update", 2] = broken
        assert failing_fit(tape, taped(tape), Broken, episodes=2, live=True)[5:] == lines("""
            batch_begin 0; update 1; batch_end 0 loss=0; batch_begin 1; update 1; batch_end 1
            exception Broken; episode_end 0; train_end
        """)

    def test_error_in_evaluation(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["episode_end", 1] = lambda: agent.evaluate(episodes=1)
        tape.acts["step 1", 1] = broken
        assert failing_fit(tape, agent, Broken, episodes=1)[-6:] == lines("""
            evaluate_begin; reset 1; step 1; evaluate_end nothing; exception Broken; train_end
        """)

    def test_error_in_a_lane_leaves_the_other_lanes_running(self, tape: Tape) -> None:
        agent = taped(tape, length=3)
        tape.acts["step 1", 1] = broken
        assert failing_fit(tape, agent, Broken, episodes=9, num_envs=3)[-6:] == lines("""
            step 1; exception Broken; episode_end 0 cut 1; episode_end 1 cut 0; episode_end 2 cut 0; train_end
        """)
        # Lane 2 is stepped first. The next round resets lane 1, whose first episode does not continue.
        assert [entry for entry in fit(tape, agent, steps=4) if "batch" not in entry] == lines("""
            train_begin; episode_begin 0; episode_begin 2
            step 2; update 2
            reset 1; episode_begin 3
            step 0; target
            step 1; update 2
            step 2
            episode_end 0 cut 2; episode_end 2 cut 2; episode_end 3 cut 1
            train_end
        """)

    def test_non_finite_loss_raises(self, tape: Tape) -> None:
        agent = taped(tape)
        agent.losses = iter([0, np.nan, 2, 3])
        assert failing_fit(tape, agent, NonFiniteError, episodes=2) == lines("""
            train_begin; reset 0; episode_begin 0
            step 0
            step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=nan
            exception NonFiniteError; episode_end 0; train_end
        """)
        assert agent.updates == 1

    def test_callback_that_stops_at_a_non_finite_loss_prevents_the_error(self, tape: Tape) -> None:
        agent = taped(tape)
        agent.losses = iter([0, np.nan, 2, 3])
        tape.acts["batch_end", 2] = lambda: agent.stop("the loss is NaN")
        assert fit(tape, agent, episodes=2)[-2:] == ["episode_end 0", "train_end"]
        assert agent.history.stop_reason == "the loss is NaN"

    def test_earlier_stop_does_not_hide_a_non_finite_loss(self, tape: Tape) -> None:
        agent = taped(tape, steps_per_execution=1)
        agent.losses = iter([0, np.nan, 2, 3])
        tape.acts["batch_end", 1] = lambda: agent.stop("a callback stopped")
        assert "exception NonFiniteError" in failing_fit(tape, agent, NonFiniteError, episodes=2)

    def test_error_names_update_and_step(self, tape: Tape) -> None:
        agent = taped(tape)
        agent.losses = iter([0, 1, 2, np.inf])
        with pytest.raises(NonFiniteError, match=r"inf.*update 3 .*step 4"):
            agent.fit(episodes=2, verbose=0)

    def test_other_callbacks_receive_the_event_in_which_one_raises(self, tape: Tape) -> None:
        recorders = [Recorder(tape, "first"), Recorder(tape, "second")]
        tape.acts["first episode_end", 1] = broken
        with pytest.raises(Broken):
            taped(tape).fit(episodes=2, callbacks=recorders, verbose=0)
        assert tape[-6:] == lines("""
            first episode_end 0; second episode_end 0
            first exception Broken; second exception Broken
            first train_end; second train_end
        """)

    def test_first_error_is_raised_with_the_others_as_notes(self, tape: Tape) -> None:
        tape.acts["update", 1] = broken
        tape.acts["exception", 1] = lambda: int("no number")
        tape.acts["train_end", 1] = interrupt
        with pytest.raises(Broken, match="on purpose") as raised:
            fit(tape, taped(tape), episodes=2)
        notes = "\n".join(raised.value.__notes__)
        assert "no number" in notes
        assert "KeyboardInterrupt" in notes
        assert tape[-3:] == lines("exception Broken; episode_end 0; train_end")

    def test_on_exception_fires_once(self, tape: Tape) -> None:
        tape.acts["step 0", 2] = broken
        tape.acts["episode_end", 1] = lambda: int("no number")
        assert failing_fit(tape, taped(tape), Broken, episodes=2)[-4:] == lines("""
            step 0; exception Broken; episode_end 0 cut 1; train_end
        """)

    def test_history_stores_the_error_as_stop_reason(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["step 0", 3] = broken
        failing_fit(tape, agent, Broken, episodes=2)
        assert agent.history.stop_reason == "Broken: on purpose"
        assert len(agent.history) == 1


class TestAfterAnError:
    """After an error at any point, each begin event has its end event, counters are right, and the next fit works."""

    @staticmethod
    def assert_paired(entries: list[str], prefix: str) -> None:
        open_: set[str] = set()
        for words in (entry.removeprefix(f"{prefix} ").split() for entry in entries if entry.startswith(prefix)):
            name, _, edge = words[0].rpartition("_")
            key = " ".join([name, *words[1:2]]) if name in ("episode", "batch") else name
            if edge == "begin":
                assert key not in open_, (key, entries)
                open_.add(key)
            elif edge == "end":
                assert key in open_, (key, entries)
                open_.remove(key)
        assert not open_, entries

    @staticmethod
    def assert_consistent(agent: TapeAgent) -> None:
        """Check that the memory holds every step, and that no lane is stepped after the end of its episode."""
        assert len(agent.replay) == agent.steps
        check_replay(agent.replay)
        for lane, environment in enumerate(lanes_of(agent).environments):
            if lanes_of(agent).ledger.running[lane]:
                assert environment.steps == lanes_of(agent).ledger.lengths[lane] < environment.length

    def entries(self, num_envs: int, live: bool) -> list[str]:
        tape = Tape()
        agent = taped(tape, length=3)
        recorders = [Recorder(tape, "a", live=live), Recorder(tape, "b")]
        agent.fit(episodes=4, num_envs=num_envs, callbacks=recorders, verbose=0)
        return tape.take()

    @pytest.mark.parametrize("live", [False, True])
    @pytest.mark.parametrize("num_envs", [1, 3])
    @pytest.mark.parametrize("act", [broken, interrupt, sigint])
    def test_error_or_interrupt_at_every_entry_of_the_tape(
        self, num_envs: int, live: bool, act: Callable[[], None]
    ) -> None:
        places: dict[str, int] = {}
        for entry in self.entries(num_envs, live):
            words = entry.split()
            key = "update" if words[0] == "update" else entry if words[0] not in ("a", "b") else " ".join(words[:2])
            places[key] = places.get(key, 0) + 1
            self.check_at((key, places[key]), num_envs, live, act)

    def check_at(self, place: tuple[str, int], num_envs: int, live: bool, act: Callable[[], None]) -> None:
        tape = Tape()
        agent = taped(tape, length=3)
        recorders = [Recorder(tape, "a", live=live), Recorder(tape, "b")]
        tape.acts[place] = act
        error = Broken if act is broken else KeyboardInterrupt
        with pytest.raises(error):
            agent.fit(episodes=4, num_envs=num_envs, callbacks=recorders, verbose=0)
        assert not tape.acts, place
        entries = tape.take()
        for name in ("a", "b"):
            self.assert_paired(entries, name)
        self.assert_consistent(agent)
        complete = [entry for entry in entries if entry.startswith("a episode_end") and "cut" not in entry]
        assert len(agent.history) == agent.episodes == len(complete)
        before = agent.steps, agent.episodes
        history = agent.fit(episodes=2, callbacks=recorders, verbose=0)
        for name in ("a", "b"):
            self.assert_paired(tape, name)
        self.assert_consistent(agent)
        assert len(history) == 2
        assert agent.episodes == before[1] + 2
        assert agent.steps > before[0]


class TestInterrupt:
    """Ctrl-C: `KeyboardInterrupt` is raised after the step in progress is complete."""

    def test_interrupt_in_a_step_of_the_environment(self, tape: Tape) -> None:
        tape.acts["step 0", 2] = sigint
        assert failing_fit(tape, taped(tape), KeyboardInterrupt, episodes=2) == lines("""
            train_begin; reset 0; episode_begin 0
            step 0
            step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
            exception KeyboardInterrupt; train_end
        """)

    def test_interrupt_raised_by_the_environment_loses_the_step(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["step 0", 2] = interrupt
        assert failing_fit(tape, agent, KeyboardInterrupt, episodes=2) == lines("""
            train_begin; reset 0; episode_begin 0
            step 0
            step 0; exception KeyboardInterrupt; episode_end 0 cut 1; train_end
        """)
        assert agent.steps == len(agent.replay) == 1
        assert fit(tape, agent, episodes=1)[:3] == lines("train_begin; reset 0; episode_begin 1")

    @pytest.mark.parametrize(
        ("event", "expected"),
        [
            ("train_begin", "train_begin; exception KeyboardInterrupt; train_end"),
            (
                "episode_begin",
                "train_begin; reset 0; episode_begin 0; exception KeyboardInterrupt; episode_end 0 cut 0; train_end",
            ),
            (
                "batch_begin",
                """
                train_begin; reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
                exception KeyboardInterrupt; train_end
                """,
            ),
            (
                "episode_end",
                """
                train_begin; reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
                exception KeyboardInterrupt; train_end
                """,
            ),
            ("train_end", PLAIN),
        ],
    )
    def test_interrupt_in_each_event(self, tape: Tape, event: str, expected: str) -> None:
        tape.acts[event, 1] = sigint
        assert failing_fit(tape, taped(tape), KeyboardInterrupt, episodes=2) == lines(expected)

    def test_interrupt_in_the_last_step(self, tape: Tape) -> None:
        tape.acts["step 0", 4] = sigint
        expected = [*lines(PLAIN)[:-1], "exception KeyboardInterrupt", "train_end"]
        assert failing_fit(tape, taped(tape), KeyboardInterrupt, episodes=2) == expected

    def test_second_interrupt_is_raised_at_once(self, tape: Tape) -> None:
        """The second Ctrl-C does not wait for the end of the step, because the environment may hang."""

        def twice() -> None:
            sigint()
            sigint()
            raise AssertionError("the second Ctrl-C should have been raised")

        tape.acts["step 0", 2] = twice
        assert failing_fit(tape, taped(tape), KeyboardInterrupt, episodes=2)[-4:] == lines("""
            step 0; exception KeyboardInterrupt; episode_end 0 cut 1; train_end
        """)

    def test_second_interrupt_while_storing_waits_for_the_end_of_the_step(self, tape: Tape) -> None:
        """Otherwise the memory would hold a transition that the agent has not counted."""
        agent = taped(tape)
        learner: Any = learner_of(agent)
        add = learner.add
        learner.add = lambda transition: [add(transition), sigint(), sigint()]
        failing_fit(tape, agent, KeyboardInterrupt, episodes=2)
        assert agent.steps == len(agent.replay) == 1

    def test_update_delays_even_the_second_interrupt(self, tape: Tape) -> None:
        tape.acts["update", 1] = lambda: [sigint(), sigint()]
        assert failing_fit(tape, taped(tape), KeyboardInterrupt, episodes=2)[-5:] == lines("""
            batch_begin 1; batch_end 1 loss=1; episode_end 0; exception KeyboardInterrupt; train_end
        """)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_signal_handler_is_restored(self, tape: Tape, number: int) -> None:
        before = signal.getsignal(number)
        fit(tape, taped(tape), episodes=1)
        assert signal.getsignal(number) is before
        tape.acts["step 0", 3] = broken
        failing_fit(tape, taped(tape), Broken, episodes=1)
        assert signal.getsignal(number) is before

    def test_ignored_interrupt_stays_ignored(self, tape: Tape) -> None:
        """As in a background job of a shell script, which Ctrl-C in the foreground must not end."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            tape.acts["step 0", 2] = sigint
            assert fit(tape, agent := taped(tape), episodes=2)
            assert agent.episodes == 2
        finally:
            signal.signal(signal.SIGINT, before)

    def test_training_in_another_thread(self, tape: Tape) -> None:
        """Only the main thread can handle signals, so `fit` does not handle them in other threads."""
        thread = threading.Thread(target=partial(fit, tape, agent := taped(tape), episodes=1))
        thread.start()
        thread.join()
        assert agent.episodes == 1


class TestTermination:
    """SIGTERM and SIGHUP: SystemExit is raised after the step in progress is complete."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_step_in_progress_is_completed_and_every_begin_has_its_end(self, tape: Tape, number: int) -> None:
        tape.acts["step 0", 2] = lambda: os.kill(os.getpid(), number)
        with pytest.raises(SystemExit) as caught:
            fit(tape, taped(tape), episodes=2)
        assert caught.value.code == 128 + number
        assert tape.take() == lines("""
            train_begin; reset 0; episode_begin 0
            step 0
            step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
            exception SystemExit; train_end
        """)

    @pytest.mark.parametrize("order", [(sigint, sigterm), (sigterm, sigint)])
    def test_second_signal_is_raised_at_once_and_exits(self, tape: Tape, order: tuple) -> None:
        def both() -> None:
            for send in order:
                send()
            raise AssertionError("the second signal should have been raised")

        tape.acts["step 0", 2] = both
        assert failing_fit(tape, taped(tape), SystemExit, episodes=2)[-3:] == lines("""
            exception SystemExit; episode_end 0 cut 1; train_end
        """)

    def test_handler_of_the_program_stays(self, tape: Tape) -> None:
        received = []
        previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        try:
            tape.acts["step 0", 2] = sigterm
            fit(tape, agent := taped(tape), episodes=2)
        finally:
            signal.signal(signal.SIGTERM, previous)
        assert received == [signal.SIGTERM] and agent.episodes == 2

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_process_exits_with_the_signal_and_its_files_are_complete(self, tmp_path: Path, number: int) -> None:
        command = [sys.executable, "-c", TERMINATED, str(tmp_path), str(int(number))]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 128 + number, result.stderr
        assert noterl.load(tmp_path / "end.noterl").steps == 30
        with (tmp_path / "log.csv").open() as file:
            assert [int(row["steps"]) for row in csv.DictReader(file)][-1] < 30
