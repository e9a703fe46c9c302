"""What the list of callbacks checks, and the two hooks that are no events: before a fit and between steps."""

from __future__ import annotations

import pytest

from noterl.callback import Callback, CallbackList
from noterl.callbacks import EarlyStopping
from tests.tape import Tape, rewarded, taped


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
        def between_steps(self):
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
