"""What the list of callbacks checks, and the two hooks that are no events: before a fit and between steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl.callback import EVENTS, Callback
from noterl.callbacks import Checkpoint, EarlyStopping, LambdaCallback
from noterl.training.dispatch import CallbackList
from tests.support.tape import Broken, Tape, rewarded, taped


def test_two_states_under_one_key_of_their_own_are_refused() -> None:
    class Named(Callback):
        state_key = "mine"

        def get_state(self):
            return {"count": 1}

    class Silent(Callback):
        state_key = "mine"

    with pytest.raises(ValueError, match=r"two of them have the state_key 'mine', the second a Named.*another"):
        CallbackList([Named(), EarlyStopping(1, 1), Named()])
    CallbackList([Named(), Silent()])  # without a state there is nothing to tell apart


def test_between_steps_hears_every_step_and_may_end_training_there() -> None:
    seen = []

    class Watcher(Callback):
        def on_step_end(self):
            seen.append((self.agent.steps, self.agent.updates))
            if self.agent.steps == 5:
                self.agent.stop("enough")

    history = taped(Tape()).fit(episodes=9, callbacks=[Watcher()], verbose=0)
    assert seen == [(1, 0), (2, 2), (3, 2), (4, 4), (5, 4)]
    assert history.stop_reason == "enough"


def test_before_fit_may_change_the_budget() -> None:
    class Half(Callback):
        def before_fit(self, agent, budget):
            budget.last_episode = agent.episodes + 2

    agent = rewarded([0])
    assert [len(agent.fit(episodes=4, callbacks=[Half()], verbose=0)) for _ in range(2)] == [2, 2]


class Raiser(Callback):
    """Raises in one event."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self.fail)

    def fail(self, *_: Any) -> None:
        raise Broken("on purpose")


@pytest.mark.parametrize("others", [False, True], ids=["alone", "among others"])
@pytest.mark.parametrize("event", [event for event in EVENTS if not event.startswith(("on_evaluate", "on_exception"))])
def test_whoever_raises_is_named_and_the_files_stay_whole(event: str, others: bool, tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=3)
    agent.compile(replay=noterl.Replay(200), batch_size=4, learning_starts=8, update_every=4)
    watchers = [LambdaCallback(**{event: lambda *_: None}), Checkpoint(tmp_path, save_freq=1)] if others else []
    agent.fit(episodes=1, callbacks=watchers, verbose=0)
    raiser = Raiser(event)
    with pytest.raises(Broken) as raised:
        agent.fit(episodes=2, callbacks=[raiser, *watchers], verbose=0)
    assert any("raised by the callback Raiser." in note for note in raised.value.__notes__)
    for file in tmp_path.iterdir():
        assert noterl.load(file).episodes >= 1
    agent.fit(episodes=1, callbacks=watchers, verbose=0)  # training can go on


def test_a_function_that_raises_is_named_too() -> None:
    def complain(episode: int, logs: dict[str, Any]) -> None:
        raise Broken("on purpose")

    with pytest.raises(Broken) as raised:
        rewarded([0]).fit(episodes=1, callbacks=[LambdaCallback(on_episode_end=complain)], verbose=0)
    assert raised.value.__notes__[0] == "raised by the callback complain"


def test_an_error_that_is_raised_again_and_again_names_its_raiser_once() -> None:
    error = Broken("on purpose")

    class Grudge(Callback):
        def on_episode_end(self, episode, logs):
            raise error

    for _ in range(3):
        with pytest.raises(Broken):
            rewarded([0]).fit(episodes=1, callbacks=[Grudge()], verbose=0)
    assert error.__notes__ == ["raised by the callback Grudge.on_episode_end"]
