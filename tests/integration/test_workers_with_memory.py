"""Worker processes that choose the actions of a policy with a memory: states, saved runs and failures."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl.collect import Workers
from noterl.learning.replay_learner import ReplayLearner
from noterl.learning.rollout_learner import RolloutLearner
from tests.integration.test_workers import Watcher
from tests.support.masked_env import MaskedWalk
from tests.support.parts import actor_of
from tests.support.pools import children
from tests.support.states import assert_same_state
from tests.support.worker_envs import StepNumberEnv

pytestmark = pytest.mark.backends("torch")

OPTIONS: dict[str, Any] = {"recurrent_units": 4, "hidden": (8,), "seed": 3}


def ppo(env: Any = StepNumberEnv, learning_rate: float = 1e-3, recurrent: str = "lstm", **options: Any) -> noterl.PPO:
    agent = noterl.PPO(env, recurrent=recurrent, rollout_steps=12, epochs=2, **OPTIONS, **options)
    agent.compile(keras.optimizers.SGD(learning_rate), batch_size=12, jit_compile=False)
    return agent


def dqn(env: Any = StepNumberEnv, learning_rate: float = 1e-3, recurrent: str = "gru") -> noterl.DQN:
    agent = noterl.DQN(env, recurrent=recurrent, sequence_length=6, **OPTIONS)
    settings: dict[str, Any] = {"replay": 300, "batch_size": 4, "learning_starts": 10, "update_every": 8}
    agent.compile(keras.optimizers.SGD(learning_rate), jit_compile=False, **settings)
    return agent


class Rounds:
    """Receives what learners receive of each round, and compares the states with those of the network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []

        def wrapped(original: Any, learner: Any, observations: Any, actions: Any, fields: Any) -> None:
            self.received.append((observations.copy(), {name: value.copy() for name, value in fields.items()}))
            original(learner, observations, actions, fields)

        for kind in (RolloutLearner, ReplayLearner):
            original = kind.begin_round
            replacement = lambda *given, original=original: wrapped(original, *given)  # noqa: E731
            monkeypatch.setattr(kind, "begin_round", replacement)

    def check(self, agent: noterl.Agent) -> None:
        """Check the states; the weights of the agent must have been the same in all rounds."""
        forward = actor_of(agent).forward
        after: Any = None
        for observations, fields in self.received:
            starts = observations[:, 0] == 0  # the number of the step
            assert (fields["starts"] == starts).all()
            states = {name: fields[f"state.{name}"] for name in agent.state_spec}
            for name, values in states.items():
                assert not values[starts].any()
                if after is not None:
                    np.testing.assert_allclose(values[~starts], after[name][~starts], atol=1e-6)
                assert values[observations[:, 0] > 1].all()  # after the first observation, which is 0, it is still 0
            _, after = forward.with_state(observations, states)


CASES: dict[str, tuple[Any, Any]] = {
    "rollouts": (ppo, 2),
    "replay": (dqn, 2),
    "several rounds": (dqn, Workers(2, collect=5)),
    "whole episodes": (dqn, Workers(2, collect="episode")),
    "rollouts, overlap": (ppo, Workers(2, overlap=True)),
    "replay, overlap": (dqn, Workers(2, overlap=True)),
}


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_the_episodes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, workers = CASES[case]
    rounds, agent = Rounds(monkeypatch), make(learning_rate=0.0)
    for _ in range(2):  # the second fit continues the episodes
        history = agent.fit(steps=60, num_envs=3, workers=workers, verbose=0)
    assert history.time_split["act"] == 0 < history.time_split["workers"]
    assert len(rounds.received) == 40 and agent.updates > 3
    rounds.check(agent)


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
@pytest.mark.parametrize("order", [(2, 0), (0, 2), (2, 3)], ids=str)
def test_states_continue_with_another_number_of_workers(
    order: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, agent = Rounds(monkeypatch), dqn(learning_rate=0.0)
    for workers in order:
        agent.fit(steps=21, num_envs=3, workers=workers, verbose=0)
    assert len(rounds.received) == 14 and rounds.received[7][0].any()
    rounds.check(agent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "workers"),
    [
        (ppo, 2),
        (partial(ppo, MaskedWalk, normalize_observation=True), Workers(2, overlap=True)),
        (dqn, Workers(2, collect=4)),
    ],
    ids=["rollouts", "overlap", "replay"],
)
def test_run_is_reproducible_and_resumes_inside_of_episodes(make: Any, workers: Any, tmp_path: Path) -> None:
    whole, first, resumed = (make() for _ in range(3))
    whole.fit(steps=81, num_envs=3, workers=workers, verbose=0)
    first.fit(steps=37, num_envs=3, workers=workers, verbose=0)
    first.save(tmp_path / "agent.noterl")
    resumed.restore(tmp_path / "agent.noterl")
    resumed.fit(steps=44, workers=workers, verbose=0)
    assert whole.updates > 3
    if isinstance(workers, int) or not workers.overlap:
        assert_same_state(whole, resumed)
    else:  # a saved run with overlap is not the uninterrupted one, but it is reproducible
        again = make()
        again.restore(tmp_path / "agent.noterl")
        again.fit(steps=44, workers=workers, verbose=0)
        assert_same_state(again, resumed)


@pytest.mark.parametrize("make", [ppo, dqn])
def test_lanes_of_a_killed_worker_start_with_the_first_state(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    def kill(watcher: Watcher, episode: int) -> None:
        if not killed and watcher.agent.steps > 20:
            killed.append(children()[0])
            os.kill(killed[0], signal.SIGKILL)

    rounds, agent = Rounds(monkeypatch), make(learning_rate=0.0)
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        agent.fit(steps=120, num_envs=4, workers=2, callbacks=[Watcher(kill)], verbose=0)
    rounds.check(agent)
    assert killed and not children()


def test_file_with_a_malformed_state_of_a_worker_is_refused() -> None:
    agent = dqn()
    agent.fit(steps=21, num_envs=3, workers=2, verbose=0)
    state = agent.get_state()
    state["lanes"]["pool"]["ledgers"][0]["policy_state"]["hidden"] = np.zeros((1, 5), np.float32)
    with pytest.raises(ValueError, match="policy_state"):
        agent.set_state(state)
