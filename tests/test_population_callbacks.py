"""Callbacks of the members of a population: each member's run equals that of a single agent with the same callbacks."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callbacks import (
    AdaBatch,
    BackupAndRestore,
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    Evaluate,
    HyperparameterScheduler,
    LambdaCallback,
    Rate,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from tests.test_population import SIZE
from tests.test_population import make as make_with_long_calls

pytestmark = pytest.mark.backends("jax")

STEPS = 10 * SIZE


def make(seed: int = 3) -> Any:
    """Return an agent with calls of two rollouts."""
    agent = make_with_long_calls(seed)
    agent.compile(batch_size=6, steps_per_execution=8)
    return agent


class Tape(Callback):
    """Records every event with its values, without times, and a weight of the agent at the end of each episode."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def _record(self, name: str, *values: Any) -> None:
        logs = {key: value for key, value in values[-1].items() if key != "time"}
        self.events.append((name, *values[:-1], logs, self.agent.steps, self.agent.updates, self.agent.episodes))

    def on_train_begin(self, logs: Any) -> None:
        self._record("train begins", logs)

    def on_train_end(self, logs: Any) -> None:
        self._record("train ends", logs)

    def on_episode_begin(self, episode: int, logs: Any) -> None:
        self._record("episode begins", episode, logs)

    def on_episode_end(self, episode: int, logs: Any) -> None:
        weight = float(next(iter(self.agent.get_weights().values())).sum())
        self._record("episode ends", episode, {**logs, "weight": weight})

    def on_batch_end(self, batch: int, logs: Any) -> None:
        self._record("batch ends", batch, logs)


@pytest.fixture(params=["ThreadedMembers", "VectorizedMembers"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members in threads as on the CPU, and vectorized as on other devices."""
    programs, module = (importlib.import_module(f"noterl.backends.jax.{name}") for name in ("on_device", "population"))
    monkeypatch.setattr(programs, "make_members", getattr(module, request.param))


def assert_same(found: Any, expected: Any) -> None:
    """Compare events: names and counts exactly, numbers as those of different programs."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one[:-4] == other[:-4]
        assert one[-3:] == other[-3:]
        assert one[-4].keys() == other[-4].keys()
        for name, value in one[-4].items():
            assert value == pytest.approx(other[-4][name], rel=1e-3, abs=1e-5)


@pytest.mark.usefixtures("kind")
def test_callbacks_of_members_log_stop_and_save_as_those_of_single_agents(tmp_path: Path) -> None:
    """The second member is stopped by its episodes, and trains on in the next fit."""

    def callbacks(folder: Path, member: int, tape: Tape) -> list[Any]:
        return [
            tape,
            EarlyStopping(trial_count=3, criterion=[100.0, -100.0][member]),
            Evaluate(every=4, episodes=2, seed=5),
            Checkpoint(folder / "c", save_freq=5, max_save_files=2),
            CSVLogger(folder / "log.csv"),
            ReduceLROnPlateau(patience=2, factor=0.5),
        ]

    tapes, lists = [Tape(), Tape()], {}
    population = noterl.Population(make(), seeds=2)

    def of_member(member: int) -> list[Any]:
        if member not in lists:
            lists[member] = callbacks(tmp_path / f"member-{member}", member, tapes[member])
        return lists[member]

    for _ in range(2):
        history = population.fit(steps=STEPS, num_envs=3, callbacks=of_member, verbose=0)
    for number, seed in enumerate(population.seeds):
        single, tape = make(seed), Tape()
        own = callbacks(tmp_path / f"single-{number}", number, tape)
        for _ in range(2):
            record = single.fit(steps=STEPS, num_envs=3, callbacks=own, verbose=0)
        assert_same(tapes[number].events, tape.events)
        assert history.stop_reasons[number] == record.stop_reason
        member = population.member(number)
        assert (member.steps, member.updates, member.episodes) == (single.steps, single.updates, single.episodes)
        assert member.learning_rate == pytest.approx(single.learning_rate)
        logged = [(tmp_path / f"{name}-{number}" / "log.csv").read_text() for name in ("member", "single")]
        assert [len(text.splitlines()) for text in logged] == [len(history.members[number]["reward"]) + 1] * 2
        files = [
            sorted(path.name for path in (tmp_path / f"{name}-{number}" / "c").iterdir())
            for name in ("member", "single")
        ]
        assert files[0] == files[1]
        checkpoint = next(path for path in (tmp_path / f"member-{number}" / "c").iterdir() if path.suffix == ".noterl")
        saved, expected = (
            noterl.load(path) for path in (checkpoint, tmp_path / f"single-{number}" / "c" / checkpoint.name)
        )
        for name, value in expected.get_weights().items():
            np.testing.assert_allclose(saved.get_weights()[name], value, rtol=1e-3, atol=1e-5)
    assert population.member(1).steps < population.member(0).steps


@pytest.mark.usefixtures("kind")
def test_stopped_member_does_not_change_while_others_train() -> None:
    population, seen = noterl.Population(make(), seeds=2), []

    def callbacks(member: int) -> list[Any]:
        if member == 1:
            return [EarlyStopping(trial_count=1, criterion=-100.0)]
        return [LambdaCallback(on_batch_end=lambda batch, logs: seen.append(population._agents[1].get_weights()))]

    population.fit(steps=STEPS * 3, num_envs=3, callbacks=callbacks, verbose=0)
    stopped, other = population.member(1), population.member(0)
    assert stopped.updates < other.updates
    for name, value in stopped.get_weights().items():
        np.testing.assert_array_equal(seen[-1][name], value)
    assert population.history.stop_reasons[0] == "steps"
    assert "reward" in population.history.stop_reasons[1]


@pytest.mark.usefixtures("kind")
def test_callbacks_change_the_learning_rate_of_their_member_only() -> None:
    population = noterl.Population(make(), seeds=[3, 3])

    def callbacks(member: int) -> list[Any]:
        def change(*_: Any) -> None:
            callback.agent.set_rule("learning_rate", 0.0)

        callback = LambdaCallback(on_episode_begin=change) if member else LambdaCallback()
        return [callback]

    before = make().get_weights()
    population.fit(steps=2 * SIZE, num_envs=3, callbacks=callbacks, verbose=0)
    still, moved = population.member(1).get_weights(), population.member(0).get_weights()
    assert all(np.array_equal(still[name], value) for name, value in before.items())
    assert not all(np.array_equal(moved[name], value) for name, value in before.items())


def test_fits_with_and_without_callbacks_continue_each_other(tmp_path: Path) -> None:
    """A population without callbacks is the reference: 63 steps in parts equal 63 steps at once."""
    whole, parts = noterl.Population(make(), seeds=2), noterl.Population(make(), seeds=2)
    whole.fit(steps=63, num_envs=3, verbose=0)
    parts.fit(steps=21, num_envs=3, verbose=0)
    parts.fit(steps=21, callbacks=lambda member: [CSVLogger(tmp_path / f"{member}.csv")], verbose=0)
    parts.fit(steps=21, verbose=0)
    assert whole.history is not None and parts.history is not None
    assert parts.steps == 63
    np.testing.assert_array_equal(whole.evaluate(2)["returns"], parts.evaluate(2)["returns"])
    for ours, theirs in zip(parts.history.members, whole.history.members, strict=True):
        assert ours == theirs
    for number in range(2):
        for name, value in whole.member(number).get_weights().items():
            np.testing.assert_array_equal(parts.member(number).get_weights()[name], value)


def test_backups_of_members_resume_exactly(tmp_path: Path) -> None:
    def callbacks(member: int) -> list[Any]:
        return [BackupAndRestore(tmp_path / f"{member}.noterl", save_freq=5 + member, unit="episodes")]

    class Killed(Exception):
        pass

    def killing(member: int) -> list[Any]:
        def kill(episode: int, logs: Any) -> None:
            if member == 0 and logs["steps"] > STEPS // 2:
                raise Killed

        return [*callbacks(member), LambdaCallback(on_episode_end=kill)]

    whole, cut = noterl.Population(make(), seeds=2), noterl.Population(make(), seeds=2)
    whole.fit(steps=STEPS, num_envs=3, verbose=0)
    with pytest.raises(Killed):
        cut.fit(steps=STEPS, num_envs=3, callbacks=killing, verbose=0)
    again = noterl.Population(make(), seeds=2)
    again.fit(steps=STEPS, num_envs=3, callbacks=callbacks, verbose=0)
    assert whole.history is not None and again.history is not None
    assert again.history.members == whole.history.members
    for number in range(2):
        for name, value in whole.member(number).get_weights().items():
            np.testing.assert_array_equal(again.member(number).get_weights()[name], value)


@pytest.mark.usefixtures("kind")
def test_member_that_is_not_finite_ends_alone() -> None:
    values = {"value_coefficient": [0.5, 3e38, 3e38]}
    population, errors = noterl.Population(make(), seeds=[3, 4, 4], hyperparameters=values), []

    def callbacks(member: int) -> list[Any]:
        record = LambdaCallback(on_exception=lambda error: errors.append((member, type(error).__name__)))
        return [record, TerminateOnNaN()] if member == 2 else [record]

    with pytest.warns(RuntimeWarning, match="member 1"):
        population.fit(steps=4 * SIZE, num_envs=3, callbacks=callbacks, verbose=0)
    assert errors == [(1, "NonFiniteError")]
    assert set(population.failed) == {1}
    assert population.history is not None
    first, failed, terminated = population.history.stop_reasons
    assert first == "steps"
    assert "NonFiniteError" in str(failed)
    assert "finite" in str(terminated)
    assert all(np.isfinite(value).all() for value in population.member(1).get_weights().values())


def test_error_of_a_callback_ends_all_members() -> None:
    tapes, errors = [Tape(), Tape()], []

    def fail(episode: int, logs: Any) -> None:
        raise ArithmeticError("of member 0")

    def callbacks(member: int) -> list[Any]:
        failing = [LambdaCallback(on_episode_end=fail)] if member == 0 else []
        return [tapes[member], LambdaCallback(on_exception=lambda error: errors.append((member, str(error)))), *failing]

    population = noterl.Population(make(), seeds=2)
    with pytest.raises(ArithmeticError, match="of member 0"):
        population.fit(steps=STEPS, num_envs=3, callbacks=callbacks, verbose=0)
    assert sorted(errors) == [(0, "of member 0"), (1, "of member 0")]
    for tape in tapes:
        names = [event[0] for event in tape.events]
        assert names[-1] == "train ends"
        assert names.count("episode begins") == names.count("episode ends")


def test_callbacks_that_members_cannot_have_are_named() -> None:
    population, shared = noterl.Population(make(), seeds=2), Tape()
    for callbacks, names in (
        ([Tape()], "function of a member's number"),
        (lambda member: [shared], "members 0 and 1 have the same Tape"),
        (lambda member: [AdaBatch(3, lr=Rate(1e-4, 1e-5, 1e-2))], "member 0: AdaBatch"),
        (lambda member: [HyperparameterScheduler("clip", lambda step: 0.1, live=True)], "HyperparameterScheduler"),
        (lambda member: [Tape], "instance"),
    ):
        with pytest.raises(ValueError, match=names):
            population.fit(steps=SIZE, num_envs=3, callbacks=callbacks, verbose=0)
    assert population.steps == 0


@pytest.mark.parametrize("name", ["epochs", "normalize_advantage"])
def test_changes_of_the_shared_program_are_refused(name: str) -> None:
    def callbacks(member: int) -> list[Any]:
        def change(*_: Any) -> None:
            setattr(callback.agent, name, 3)

        callback = LambdaCallback(on_train_begin=change)
        return [callback]

    with pytest.raises(ValueError, match="callbacks: one of them has changed"):
        noterl.Population(make(), seeds=2).fit(steps=40 * SIZE, num_envs=3, callbacks=callbacks, verbose=0)


def test_progress_is_that_of_all_members(capsys: pytest.CaptureFixture[str]) -> None:
    population = noterl.Population(make(), seeds=2)
    history = population.fit(steps=STEPS, num_envs=3, verbose=2)
    episodes = sum(map(len, history["reward"]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == episodes // 20 + 1
    assert f"{episodes} episodes, {2 * STEPS} steps" in lines[-1]
    population.fit(steps=STEPS, num_envs=3, callbacks=lambda member: [], verbose=2)
    assert f"{2 * STEPS} steps" in capsys.readouterr().out.splitlines()[-1]
    population.fit(steps=STEPS, verbose=1)
    output = capsys.readouterr()
    assert f"{2 * STEPS}/{2 * STEPS}" in output.err
    population.fit(steps=STEPS, verbose=0)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match="verbose"):
        population.fit(steps=STEPS, verbose=3)


def test_another_thread_saves_a_member_between_two_calls(kind: None, tmp_path: Path) -> None:
    population = noterl.Population(make(), seeds=2)
    saved = population._agents[1]
    threads: list[threading.Thread] = []
    waited: list[int] = []

    class Save(Callback):
        """Lets another thread save the member during an update, and waits until that thread waits."""

        def on_batch_end(self, batch: int, logs: Any) -> None:
            if not threads:
                threads.append(threading.Thread(target=saved.save, args=(tmp_path / "1.noterl",)))
                threads[0].start()
                while threads[0].is_alive() and not saved._parts.gate.queue:
                    pass
                waited.append(len(saved._parts.gate.queue))

    population.fit(steps=STEPS, num_envs=3, callbacks=lambda number: [Save()] if number == 0 else [], verbose=0)
    threads[0].join()
    assert 0 < noterl.load(tmp_path / "1.noterl").steps < STEPS
    assert (waited, saved.steps) == ([1], STEPS)
