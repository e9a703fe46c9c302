"""The list of callbacks: its checks, the hooks `before_fit` and `on_step_end`, `Every`, and notes on errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl.callback import EVENTS, Callback, Every
from noterl.callbacks import Checkpoint, EarlyStopping, EpisodePrinter, LambdaCallback
from noterl.training.dispatch import CallbackList
from tests.support.tape import Broken, Tape, rewarded, taped

pytestmark = pytest.mark.backends("torch")


def test_two_states_with_one_state_key_raise() -> None:
    class Named(Callback):
        state_key = "mine"

        def get_state(self):
            return {"count": 1}

    class Silent(Callback):
        state_key = "mine"

    with pytest.raises(ValueError, match=r"state_key 'mine'.*Named"):
        CallbackList([Named(), EarlyStopping(1, 1), Named()])
    CallbackList([Named(), Silent()])  # a callback without a state needs no key


def test_on_step_end_runs_after_every_step_and_can_stop_training() -> None:
    counters = []

    class Watcher(Callback):
        def on_step_end(self):
            counters.append((self.agent.steps, self.agent.updates))
            if self.agent.steps == 5:
                self.agent.stop("step 5")

    history = taped(Tape()).fit(episodes=9, callbacks=[Watcher()], verbose=0)
    assert counters == [(1, 0), (2, 2), (3, 2), (4, 4), (5, 4)]
    assert history.stop_reason == "step 5"


def test_before_fit_can_change_the_budget() -> None:
    class Half(Callback):
        def before_fit(self, agent, budget):
            budget.last_episode = agent.episodes + 2

    agent = rewarded([0])
    assert [len(agent.fit(episodes=4, callbacks=[Half()], verbose=0)) for _ in range(2)] == [2, 2]


def test_before_fit_can_stop_the_fit() -> None:
    class Stop(Callback):
        def before_fit(self, agent, budget):
            agent.stop("enough")

    agent = rewarded([0])
    assert agent.fit(episodes=4, callbacks=[Stop()], verbose=0).stop_reason == "enough"
    assert agent.steps == 0


class Raiser(Callback):
    """Raises in one event."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self.fail)

    def fail(self, *_: Any) -> None:
        raise Broken("on purpose")


@pytest.mark.parametrize("others", [False, True], ids=["alone", "among others"])
@pytest.mark.parametrize(
    "event", [event for event in EVENTS if not event.startswith(("on_evaluate", "on_exception", "on_epoch"))]
)
def test_error_names_its_callback_and_files_stay_readable(event: str, others: bool, tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=3)
    agent.compile(replay=noterl.Replay(200), batch_size=4, learning_starts=8, update_every=4)
    other_callbacks = [LambdaCallback(**{event: lambda *_: None}), Checkpoint(tmp_path, save_freq=1)] if others else []
    agent.fit(episodes=1, callbacks=other_callbacks, verbose=0)
    raiser = Raiser(event)
    with pytest.raises(Broken) as raised:
        agent.fit(episodes=2, callbacks=[raiser, *other_callbacks], verbose=0)
    assert any("raised by the callback Raiser." in note for note in raised.value.__notes__)
    for file in tmp_path.glob("episode-*"):
        assert noterl.load(file).episodes >= 1
    agent.fit(episodes=1, callbacks=other_callbacks, verbose=0)  # training can continue


def test_error_names_the_function_of_a_lambda_callback() -> None:
    def fail(episode: int, logs: dict[str, Any]) -> None:
        raise Broken("on purpose")

    with pytest.raises(Broken) as raised:
        rewarded([0]).fit(episodes=1, callbacks=[LambdaCallback(on_episode_end=fail)], verbose=0)
    assert raised.value.__notes__[0] == "raised by the callback fail"


def test_error_raised_repeatedly_gets_one_note() -> None:
    error = Broken("on purpose")

    class Raising(Callback):
        def on_episode_end(self, episode, logs):
            raise error

    for _ in range(3):
        with pytest.raises(Broken):
            rewarded([0]).fit(episodes=1, callbacks=[Raising()], verbose=0)
    assert error.__notes__ == ["raised by the callback Raising.on_episode_end"]


class Periodic(Callback):
    """Records the steps at which `on_due` is called, and whether its logs are those of an episode."""

    def __init__(self, every: Any, ready: Any = None) -> None:
        self.every, self.ready = every, ready or (lambda: True)
        self.found: list[tuple[int, bool]] = []

    def on_due(self, logs):
        if not self.ready():
            return False
        self.found.append((self.agent.steps, "reward" in logs))
        return None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"count": 2, "unit": "episodes"}, [(8, True)]),
        ({"count": 3, "unit": "steps", "at": "step"}, [(3, False), (6, False), (9, False)]),
        ({"count": 4, "unit": "steps"}, [(4, True), (8, True)]),
        ({"count": 3, "unit": "steps", "at": "episode"}, [(4, True), (8, True)]),
        ({"count": 2, "unit": "updates"}, [(2, False), (4, True), (6, False), (8, True), (10, False)]),
    ],
)
def test_on_due_is_called_at_each_multiple(arguments: dict[str, Any], expected: list[Any]) -> None:
    callback = Periodic(Every(**arguments))
    taped(Tape(), length=4).fit(steps=10, callbacks=[callback], verbose=0)
    assert callback.found == expected


def test_on_due_that_returns_false_is_called_again() -> None:
    agent = taped(Tape(), length=4)
    callback = Periodic(Every(4, "steps"), ready=lambda: agent.steps % 4 == 2)
    agent.fit(steps=12, callbacks=[callback], verbose=0)
    assert [steps for steps, _ in callback.found] == [6, 10]


def test_due_counts_are_restored() -> None:
    agent = taped(Tape(), length=4)
    first, second = Periodic(Every(3, "steps", at="episode")), Periodic(Every(3, "steps", at="episode"))
    agent.fit(steps=7, callbacks=[first], verbose=0)
    state = CallbackList([first]).get_state()
    assert state == {"Periodic": {"every mark": 4}}
    CallbackList([second]).set_state(state)
    agent.fit(steps=3, callbacks=[second], verbose=0)
    assert second.found == [(8, True)]


def test_every_must_be_an_every() -> None:
    with pytest.raises(ValueError, match=r"every of Periodic .*got 5"):
        CallbackList([Periodic(5)]).bind()
    CallbackList([EpisodePrinter(5)]).bind()


def test_instances_of_one_class_share_an_every_but_not_its_count() -> None:
    class Counted(Periodic):
        every = Every(4, "steps")

        def __init__(self) -> None:
            self.found, self.ready = [], lambda: True

    agent, callbacks = taped(Tape(), length=4), [Counted(), Counted()]
    agent.fit(steps=9, callbacks=callbacks, verbose=0)
    assert [callback.found for callback in callbacks] == [[(4, True), (8, True)]] * 2


class Marked(Callback):
    """Its state has a name of the user."""

    every = Every(2, "steps")

    def __init__(self) -> None:
        self.mark = 1

    def on_due(self, logs: Any) -> None:
        self.mark += 1

    def get_state(self) -> dict[str, Any]:
        return {"mark": self.mark}

    def set_state(self, state: dict[str, Any]) -> None:
        (self.mark,) = state.values()


def test_state_of_a_callback_is_restored_as_it_returned_it() -> None:
    agent = taped(Tape(), length=4)
    first, second = Marked(), Marked()
    agent.fit(steps=9, callbacks=[first], verbose=0)
    CallbackList([second]).set_state(CallbackList([first]).get_state())
    assert second.mark == first.mark > 1 and second._every_mark == first._every_mark


def test_empty_first_state_is_restored_for_another_agent() -> None:
    class Counts(Callback):
        def __init__(self) -> None:
            self.counts: dict[str, int] = {}

        def on_episode_end(self, episode: int, logs: Any) -> None:
            self.counts[str(episode)] = 1

        def get_state(self) -> dict[str, Any]:
            return dict(self.counts)

        def set_state(self, state: dict[str, Any]) -> None:
            self.counts = dict(state)

    callback = Counts()
    for episodes in (3, 1):
        taped(Tape(), length=4).fit(episodes=episodes, callbacks=[callback], verbose=0)
    assert len(callback.counts) == 1
