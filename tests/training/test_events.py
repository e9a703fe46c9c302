"""The order of all events of a run, as the event tape records them."""

from __future__ import annotations

import timeit
from collections.abc import Callable

import pytest

import noterl
from noterl.callback import CHECKPOINT, EVENTS, HISTORY, LOGGER, USER, Callback, Handlers
from noterl.callbacks import LambdaCallback
from noterl.training.dispatch import CallbackList
from noterl.training.loop import Loop
from tests.support.tape import PLAIN, Recorder, Tape, fit, lines, taped


@pytest.fixture
def tape() -> Tape:
    return Tape()


class TestPlain:
    def test_one_lane(self, tape: Tape) -> None:
        assert fit(tape, taped(tape), episodes=2) == lines(PLAIN)

    def test_four_lanes_and_a_fit_that_continues_their_round(self, tape: Tape) -> None:
        agent = taped(tape)
        assert fit(tape, agent, steps=6, num_envs=4) == lines("""
            train_begin
            reset 0; episode_begin 0; reset 1; episode_begin 1; reset 2; episode_begin 2; reset 3; episode_begin 3
            step 0
            step 1; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1
            step 2; target
            step 3; update 2; batch_begin 2; batch_end 2 loss=2; batch_begin 3; batch_end 3 loss=3
            step 0; episode_end 0
            step 1; target; update 2; batch_begin 4; batch_end 4 loss=4; batch_begin 5; batch_end 5 loss=5
            episode_end 1
            episode_end 2 cut 1; episode_end 3 cut 1
            train_end
        """)
        # The unfinished round continues: its last two lanes come first, and their episodes keep their numbers.
        assert fit(tape, agent, steps=3) == lines("""
            train_begin
            episode_begin 2; episode_begin 3
            step 2; episode_end 2
            step 3; update 2; batch_begin 6; batch_end 6 loss=6; batch_begin 7; batch_end 7 loss=7; episode_end 3
            reset 0; episode_begin 4; reset 1; episode_begin 5; reset 2; episode_begin 6; reset 3; episode_begin 7
            step 0; target
            episode_end 4 cut 1; episode_end 5 cut 0; episode_end 6 cut 0; episode_end 7 cut 0
            train_end
        """)

    def test_second_fit_continues_the_counters(self, tape: Tape) -> None:
        agent = taped(tape)
        fit(tape, agent, episodes=2)
        assert fit(tape, agent, episodes=1) == lines("""
            train_begin
            reset 0; episode_begin 2
            step 0
            step 0; target; update 2; batch_begin 4; batch_end 4 loss=4; batch_begin 5; batch_end 5 loss=5
            episode_end 2
            train_end
        """)

    def test_two_fits_make_the_steps_of_one(self, tape: Tape) -> None:
        def keep_work(entries: list[str]) -> list[str]:
            return [entry for entry in entries if entry.split()[0] in ("reset", "step", "update", "target")]

        single = taped(tape, length=3)
        once = keep_work(fit(tape, single, steps=23, num_envs=3))
        split = taped(tape, length=3)
        split_tape = keep_work(fit(tape, split, steps=7, num_envs=3)) + keep_work(fit(tape, split, steps=16))
        assert split_tape == once
        assert len([entry for entry in once if entry.startswith("step")]) == 23

    def test_live_updates_run_between_their_begin_and_end(self, tape: Tape) -> None:
        assert fit(tape, taped(tape), episodes=1, live=True) == lines("""
            train_begin
            reset 0; episode_begin 0
            step 0
            step 0; batch_begin 0; update 1; batch_end 0 loss=0; batch_begin 1; update 1; batch_end 1 loss=1
            episode_end 0
            train_end
        """)

    def test_steps_per_execution_splits_a_group_and_keeps_its_events(self, tape: Tape) -> None:
        assert fit(tape, taped(tape, updates=5, steps_per_execution=2), episodes=1) == lines("""
            train_begin
            reset 0; episode_begin 0
            step 0
            step 0
            update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1
            update 2; batch_begin 2; batch_end 2 loss=2; batch_begin 3; batch_end 3 loss=3
            update 1; batch_begin 4; batch_end 4 loss=4
            episode_end 0
            train_end
        """)

    def test_group_smaller_than_steps_per_execution_runs_at_once(self, tape: Tape) -> None:
        assert fit(tape, taped(tape, steps_per_execution=8), episodes=2) == lines(PLAIN)

    def test_order_of_callbacks(self, tape: Tape) -> None:
        names = {USER: "user", HISTORY: "history", LOGGER: "logger", CHECKPOINT: "checkpoint"}
        orders = [CHECKPOINT, LOGGER, USER, HISTORY, CHECKPOINT, USER]
        recorders = [Recorder(tape, f"{names[order]}{place}", order=order) for place, order in enumerate(orders)]
        taped(tape).fit(episodes=1, callbacks=recorders, verbose=0)
        called = [entry.split()[0] for entry in tape if "train_begin" in entry]
        assert called == ["user2", "user5", "history3", "logger1", "checkpoint0", "checkpoint4"]

    def test_later_callbacks_receive_what_earlier_ones_add_to_logs(self, tape: Tape) -> None:
        class Adder(Callback):
            def on_episode_end(self, episode, logs):
                logs["added"] = episode + 0.5

        class Reader(Callback):
            order = LOGGER

            def on_episode_end(self, episode, logs):
                self.read.append((logs["added"], list(self.agent.history.history["added"])))

        reader = Reader()
        reader.read = []
        history = taped(tape).fit(episodes=2, callbacks=[reader, Adder()], verbose=0)
        assert reader.read == [(0.5, [0.5]), (1.5, [0.5, 1.5])]
        assert history.history["added"] == [0.5, 1.5]

    def test_evaluation_in_a_callback(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["episode_end", 1] = lambda: agent.evaluate(episodes=1)
        assert fit(tape, agent, episodes=1)[-7:] == lines("""
            episode_end 0; evaluate_begin; reset 1; step 1; step 1; evaluate_end
            train_end
        """)

    def test_counters_of_the_agent_in_each_hook(self, tape: Tape) -> None:
        agent, counters = taped(tape), []

        def record(name: str) -> Callable[..., None]:
            return lambda *_: counters.append((name, agent.steps, agent.updates, agent.episodes))

        names = [event for event in EVENTS if event.startswith(("on_episode", "on_batch"))]
        agent.fit(episodes=1, callbacks=[LambdaCallback(**{name: record(name) for name in names})], verbose=0)
        assert counters == [
            ("on_episode_begin", 0, 0, 0),
            ("on_batch_begin", 2, 0, 0),
            ("on_batch_end", 2, 1, 0),
            ("on_batch_begin", 2, 1, 0),
            ("on_batch_end", 2, 2, 0),
            ("on_episode_end", 2, 2, 1),
        ]


class TestStop:
    """`stop` ends training after the step in progress, with its stored transition, updates and events."""

    @pytest.mark.parametrize(
        ("event", "expected"),
        [
            ("train_begin", "train_begin; train_end"),
            ("episode_begin", "train_begin; reset 0; episode_begin 0; episode_end 0 cut 0; train_end"),
            (
                "batch_begin",
                """
                train_begin
                reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
                train_end
                """,
            ),
            (
                "batch_end",
                """
                train_begin
                reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
                train_end
                """,
            ),
            (
                "episode_end",
                """
                train_begin
                reset 0; episode_begin 0
                step 0
                step 0; update 2; batch_begin 0; batch_end 0 loss=0; batch_begin 1; batch_end 1 loss=1; episode_end 0
                train_end
                """,
            ),
            ("train_end", PLAIN),
        ],
    )
    def test_stop_in_each_event(self, tape: Tape, event: str, expected: str) -> None:
        agent = taped(tape)
        tape.acts[event, 1] = lambda: agent.stop(f"in {event}")
        assert fit(tape, agent, episodes=2) == lines(expected)
        assert agent.stop_reason == f"in {event}"
        assert agent.history.stop_reason == ("episodes" if event == "train_end" else f"in {event}")

    def test_stop_between_live_updates_lets_the_group_finish(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["batch_end", 1] = lambda: agent.stop("enough")
        assert fit(tape, agent, episodes=2, live=True)[-8:] == lines("""
            batch_begin 0; update 1; batch_end 0 loss=0; batch_begin 1; update 1; batch_end 1 loss=1; episode_end 0
            train_end
        """)

    def test_stop_in_the_middle_of_a_round(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["batch_end", 2] = lambda: agent.stop("enough")  # of the group at step 2, in lane 1 of 4
        first = fit(tape, agent, episodes=9, num_envs=4)
        assert [entry for entry in first if entry.startswith("step")] == ["step 0", "step 1"]
        assert first[-5:] == lines("""
            episode_end 0 cut 1; episode_end 1 cut 1; episode_end 2 cut 0; episode_end 3 cut 0; train_end
        """)
        assert [entry for entry in fit(tape, agent, steps=3) if entry.startswith("step")] == lines(
            "step 2; step 3; step 0"
        )

    def test_stop_in_evaluation_lets_it_finish(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["episode_end", 1] = lambda: agent.evaluate(episodes=2)
        tape.acts["evaluate_begin", 1] = lambda: agent.stop("in evaluation")
        assert fit(tape, agent, episodes=2)[-8:] == lines("""
            reset 1; step 1; step 1; reset 1; step 1; step 1; evaluate_end; train_end
        """)
        assert agent.episodes == 1

    def test_next_fit_resets_the_stop(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["train_begin", 1] = lambda: agent.stop("at once")
        fit(tape, agent, episodes=2)
        assert fit(tape, agent, episodes=2) == lines(PLAIN)
        assert (agent.stop_training, agent.stop_reason) == (False, None)

    def test_stop_reason_takes_precedence_over_the_budget(self, tape: Tape) -> None:
        agent = taped(tape)
        tape.acts["episode_end", 2] = lambda: agent.stop("good enough")
        fit(tape, agent, episodes=2)
        assert agent.history.stop_reason == "good enough"


class TestDispatch:
    """Handlers are bound once, and an event without handlers costs neither a call nor a dict."""

    def test_only_overridden_events_are_bound(self, tape: Tape) -> None:
        class EpisodeEnd(Callback):
            def on_episode_end(self, episode, logs):
                pass

        callback, recorder = EpisodeEnd(), Recorder(tape)
        events = CallbackList([callback, recorder, Callback()]).bind()
        assert events.on_episode_end == (callback.on_episode_end, recorder.on_episode_end)
        assert events.on_batch_end == (recorder.on_batch_end,)
        assert CallbackList([Callback(), EpisodeEnd()]).bind().on_batch_end == ()

    def test_event_without_handlers_costs_less_than_with_one(self, tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
        loops: list[Loop] = []
        monkeypatch.setattr(Loop, "run", lambda loop: loops.append(loop))
        callbacks = [LambdaCallback(on_batch_end=lambda batch, logs: None), Callback()]
        taped(tape).fit(steps=1, callbacks=callbacks, verbose=0)
        (loop,) = loops
        assert (len(loop.events.on_batch_begin), len(loop.events.on_batch_end)) == (0, 1)

        def seconds(handlers: Handlers) -> float:
            return min(timeit.repeat(lambda: loop.fire(handlers, 0, None), number=2000, repeat=20))

        assert seconds(loop.events.on_batch_begin) < seconds(loop.events.on_batch_end) / 2

    def test_fit_without_batch_hooks_does_not_fetch_updates(self, tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
        """With `History` and loggers only, nothing is fetched from the device between episodes."""
        fetched = []
        backend = noterl.backends.current()
        fetch = backend.fetch
        monkeypatch.setattr(backend, "fetch", lambda value: fetched.append(tape.count("step 0")) or fetch(value))
        agent = taped(tape, length=50, update_every=1)
        agent.fit(episodes=1, verbose=2, log_every=1)
        assert fetched == [50] * 49  # one group after every step but the first, all fetched when the episode ends

    def test_hooks_are_bound_when_fit_starts(self, tape: Tape) -> None:
        class Late(Callback):
            calls = 0

            def on_episode_begin(self, episode, logs):
                Late.on_episode_end = lambda self, episode, logs: setattr(Late, "calls", Late.calls + 1)

        late = Late()
        agent = taped(tape)
        agent.fit(episodes=2, callbacks=[late], verbose=0)
        assert Late.calls == 0
        agent.fit(episodes=2, callbacks=[late], verbose=0)
        assert Late.calls == 2


class TestUnknownEvents:
    def fit(self, *callbacks: object) -> None:
        taped(Tape()).fit(episodes=1, callbacks=callbacks, verbose=0)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("on_epoch_end", r"Keras's on_epoch_end in noterl: on_episode_end"),
            ("on_step", r"Stable-Baselines3's on_step in noterl: on_step_end"),
            ("_on_step", r"Stable-Baselines3's _on_step in noterl: on_step_end"),
            ("on_episode_ended", r"did you mean 'on_episode_end'"),
            ("on_quux", r"the names are on_batch_begin, .*on_train_end"),
        ],
    )
    def test_method_that_is_not_an_event_warns_at_fit(self, name: str, expected: str) -> None:
        kind = type("Mine", (Callback,), {name: lambda self, *args: None})
        with pytest.warns(UserWarning, match=rf"Mine\.{name} .*{expected}") as caught:
            self.fit(kind())
        assert [each.filename for each in caught if "never called" in str(each.message)] == [__file__]

    def test_function_of_an_epoch_warns_where_fit_has_episodes(self) -> None:
        with pytest.warns(UserWarning, match=r"LambdaCallback\.on_epoch_end is never called"):
            self.fit(LambdaCallback(on_epoch_end=print))

    def test_keras_callback_with_event_of_noterl_warns(self) -> None:
        import keras

        kind = type("Mine", (keras.callbacks.Callback,), {"on_episode_end": lambda self, *args: None})
        with pytest.warns(UserWarning, match=r"Mine\.on_episode_end .*'on_epoch_end'") as caught:
            self.fit(kind())
        assert [each.filename for each in caught if "never called" in str(each.message)] == [__file__]

    def test_events_and_other_attributes_do_not_warn(self, recwarn: pytest.WarningsRecorder) -> None:
        class Quiet(Callback):
            on_best = "file"

            def on_due(self, logs: object) -> None: ...

            def on_step_end(self) -> None: ...

            def _on_nothing(self) -> None: ...

        self.fit(Quiet(), LambdaCallback(on_train_end=print))
        assert not [each for each in recwarn if "never called" in str(each.message)]

    def test_lambda_callback_suggests_the_event(self) -> None:
        with pytest.raises(ValueError, match=r"'on_epoch_finish' is not an event"):
            LambdaCallback(on_epoch_finish=print)
