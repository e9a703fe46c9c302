"""The state of a policy is right on every path on which an agent acts, and is saved with the episode in progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import noterl
from noterl import callbacks, imitation
from noterl.population import Population
from tests.support.stateful import ACTIONS, PATHS, StartsAtTwo, StepCounter, StepNumberEnv, counter, stored_faults
from tests.support.states import ROOT, assert_same_state

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings("ignore:workers. NumPy cannot run:RuntimeWarning", "ignore:fit ended:UserWarning")
def test_state_counts_the_steps_of_each_training_episode(path: str) -> None:
    env, options = PATHS[path]
    agent = counter(env)
    history = agent.fit(steps=90, verbose=0, **options)
    assert stored_faults(agent) == []
    lengths, rewards = history.history["length"], history.history["reward"]
    assert len(lengths) > 9
    assert rewards[3:] == lengths[3:]  # the first action of each lane may be random


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
def test_state_has_its_dtypes_on_each_backend() -> None:
    agent = counter()
    agent.fit(steps=40, num_envs=2, verbose=0)
    assert stored_faults(agent, skip=2) == []
    _, state = agent.act(np.zeros((2, 1), np.float32))
    assert {name: value.dtype for name, value in state.items()} == {"count": np.int32, "trace": np.float32}


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
def test_random_actions_advance_the_state() -> None:
    agent = counter(learning_starts=2)
    agent.fit(steps=50, verbose=0)
    assert stored_faults(agent, skip=2) == []


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
def test_next_fit_continues_the_state_of_the_episode() -> None:
    agent = counter()
    for _ in range(10):
        agent.fit(steps=5, num_envs=2, verbose=0)
    assert stored_faults(agent) == []


@pytest.mark.parametrize("num_envs", [1, 3])
def test_evaluation_starts_each_episode_anew(num_envs: int) -> None:
    result = counter().evaluate(episodes=7, num_envs=num_envs)
    assert result["returns"].tolist() == result["lengths"].tolist()


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
def test_evaluation_inside_fit_leaves_the_states_of_training() -> None:
    agent = counter()
    evaluation = callbacks.Evaluate(episodes=2, every=1)
    history = agent.fit(steps=60, num_envs=2, callbacks=[evaluation], verbose=0)
    assert stored_faults(agent, skip=2) == []
    assert history.history["evaluation_reward_mean"] == history.history["evaluation_length_mean"]


def test_play_and_record_start_each_episode_anew() -> None:
    agent = counter()
    for trajectory in agent.play(episodes=3)["trajectory"]:
        assert trajectory.actions.tolist() == [number % ACTIONS for number in range(len(trajectory.actions))]
    for episode in noterl.Dataset.record(agent, episodes=3, deterministic=True).episodes:
        assert np.asarray(episode.actions).tolist() == [number % ACTIONS for number in range(len(episode.actions))]


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
def test_initial_state_starts_each_episode() -> None:
    agent = counter(lambda: StepNumberEnv(first=2), kind=StartsAtTwo)
    history = agent.fit(steps=60, num_envs=2, verbose=0)
    assert history.history["reward"][2:] == history.history["length"][2:]
    result = agent.evaluate(episodes=3)
    assert result["returns"].tolist() == result["lengths"].tolist()


class TestAct:
    def test_one_observation_has_a_state_without_a_lane_axis(self) -> None:
        agent = counter()
        observation = np.zeros(1, np.float32)
        action, state = agent.act(observation)
        assert int(action) == 0
        assert {name: (value.shape, value.dtype) for name, value in state.items()} == {
            "count": ((), np.dtype("int32")),
            "trace": ((2,), np.dtype("float32")),
        }
        for expected in (1, 2, 0):
            action, state = agent.act(observation, state)
            assert int(action) == expected

    def test_starts_restart_rows_of_a_batch(self) -> None:
        agent = counter()
        observations = np.zeros((3, 1), np.float32)
        actions, state = agent.act(observations)
        actions, state = agent.act(observations, state, starts=[False, True, False])
        assert actions.tolist() == [1, 0, 1]
        assert state["count"].tolist() == [2, 1, 2]

    def test_state_that_was_passed_does_not_change(self) -> None:
        agent = counter()
        _, state = agent.act(np.zeros((2, 1), np.float32))
        before = {name: value.copy() for name, value in state.items()}
        agent.act(np.zeros((2, 1), np.float32), state, starts=np.array([True, False]))
        assert all(np.array_equal(before[name], state[name]) for name in state)

    @pytest.mark.parametrize(
        ("state", "starts", "word"),
        [
            ({"count": np.zeros(2, np.int32)}, None, "state"),
            ({"count": np.zeros(3, np.int32), "trace": np.zeros((3, 2))}, None, "state"),
            (np.zeros(2), None, "state"),
            (None, [True], "starts"),
            (None, [0.5, 1.0], "starts"),
        ],
    )
    def test_wrong_state_or_starts_raise(self, state: Any, starts: Any, word: str) -> None:
        with pytest.raises(ValueError, match=rf"^{word} must"):
            counter().act(np.zeros((2, 1), np.float32), state, starts=starts)

    @pytest.mark.parametrize("arguments", [{"state": {}}, {"starts": [True]}])
    def test_agents_without_a_state_refuse_one(self, arguments: dict[str, Any]) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=0)
        with pytest.raises(ValueError, match=f"^{next(iter(arguments))} must be None"):
            agent.act(np.zeros((1, 4), np.float32), **arguments)


@pytest.mark.filterwarnings("ignore:fit ended:UserWarning")
class TestFiles:
    @pytest.mark.parametrize("num_envs", [1, 3])
    def test_run_that_was_saved_inside_of_an_episode_continues_bit_for_bit(self, tmp_path: Path, num_envs: int) -> None:
        whole = counter()
        whole.fit(steps=61, num_envs=num_envs, verbose=0)
        first = counter()
        first.fit(steps=31, num_envs=num_envs, verbose=0)
        first.save(tmp_path / "first.noterl")
        again = counter()
        again.restore(tmp_path / "first.noterl")
        again.fit(steps=30, num_envs=num_envs, verbose=0)
        assert stored_faults(again) == []
        assert_same_state(again, whole)

    @pytest.mark.filterwarnings("ignore:workers. NumPy cannot run:RuntimeWarning")
    def test_run_with_workers_continues_bit_for_bit(self, tmp_path: Path) -> None:
        options = {"num_envs": 3, "workers": 2, "verbose": 0}
        whole, first, again = counter(), counter(), counter()
        whole.fit(steps=61, **options)
        first.fit(steps=31, **options)
        first.save(tmp_path / "first.noterl")
        again.restore(tmp_path / "first.noterl")
        again.fit(steps=30, **options)
        assert stored_faults(again) == []
        assert_same_state(again, whole)

    def test_state_of_another_layout_is_refused(self, tmp_path: Path) -> None:
        agent = counter()
        agent.fit(steps=7, verbose=0)
        state = agent.get_state()
        state["lanes"]["ledger"]["policy_state"]["trace"] = np.zeros((1, 3), np.float32)
        with pytest.raises(ValueError, match="policy_state"):
            agent.set_state(state)

    def test_killed_run_continues_bit_for_bit_inside_of_an_episode(self, tmp_path: Path) -> None:
        whole = run_with_backup(tmp_path / "whole.noterl")
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"}
        with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "inside\n"
            process.send_signal(signal.SIGKILL)
        assert_same_state(run_with_backup(tmp_path / "killed.noterl"), whole)


KILLED = """
import sys, time
from tests.integration.test_policy_state import run_with_backup
run_with_backup(sys.argv[1] + "/killed.noterl", pause_at=46)
"""


def run_with_backup(path: Path | str, pause_at: int | None = None) -> StepCounter:
    """Train with a backup every 4 steps; at `pause_at`, print a line and wait to be killed."""
    import time

    from noterl.callbacks import BackupAndRestore, LambdaCallback

    agent = counter()

    def pause() -> None:
        if agent.steps == pause_at:
            print("inside", flush=True)
            time.sleep(60)

    watcher = LambdaCallback()
    watcher.on_step_end = pause  # type: ignore[method-assign]
    agent.fit(steps=80, num_envs=2, callbacks=[BackupAndRestore(path, 4, unit="steps"), watcher], verbose=0)
    return agent


class TestRefusals:
    """What cannot carry a state yet says so, when the agent is compiled or when it is called."""

    @pytest.mark.parametrize(
        ("call", "word"),
        [
            (lambda agent, path: agent.pretrain(noterl.Dataset.record(agent, episodes=1), 1), "pretrain"),
            (lambda agent, path: agent.export(path / "policy.npz", format="numpy"), "export"),
            (lambda agent, path: Population(agent), "Population"),
            (lambda agent, path: agent.compile(replay=noterl.Replay(500, on_device=True)), "on_device"),
            (
                lambda agent, path: agent.compile(replay=noterl.Replay(500, relabel=noterl.replay.Triplets())),
                "relabel",
            ),
            (
                lambda agent, path: agent.compile(
                    reward_model=imitation.GAIL(noterl.Dataset.record(agent, episodes=1), hidden=(4,))
                ),
                "reward_model",
            ),
        ],
    )
    def test_what_has_no_state_yet_refuses(self, tmp_path: Path, call: Any, word: str) -> None:
        with pytest.raises((ValueError, NotImplementedError), match=word):
            call(counter(), tmp_path)

    @pytest.mark.parametrize(
        "spec", [{"a": 3}, {"a": (-1,)}, {"a": ((2,), "no dtype")}, {3: (2,)}, (2,), {"a": [2]}, {"a": ((2,), "f4", 0)}]
    )
    def test_malformed_state_spec_raises(self, spec: Any) -> None:
        class Malformed(StepCounter):
            state_spec: ClassVar[Any] = spec

        with pytest.raises(ValueError, match=r"^state_spec of Malformed must be"):
            Malformed(StepNumberEnv, seed=0).compile()

    @pytest.mark.parametrize("name", ["state", "learner_state", "starts"])
    def test_reserved_names_of_extra_spec_raise(self, name: str) -> None:
        class Reserved(StepCounter):
            extra_spec: ClassVar[Any] = {name: ((), "float32")}

        with pytest.raises(ValueError, match=rf"^extra_spec of Reserved .*got {name}$"):
            Reserved(StepNumberEnv, seed=0).compile()

    @pytest.mark.parametrize(
        "returned",
        [
            lambda q, state: q,
            lambda q, state: (q, {}),
            lambda q, state: (q, {**state, "more": state["trace"]}),
            lambda q, state: (q, {**state, "trace": state["trace"][:, :1]}),
            lambda q, state: (q, state, {}, {}),
        ],
    )
    def test_forward_that_returns_another_state_raises(self, returned: Any) -> None:
        class Wrong(StepCounter):
            def forward(self, observation: Any, state: Any) -> Any:
                return returned(self.q(observation), state)

        agent = counter(kind=Wrong)
        with pytest.raises(ValueError, match="forward of Wrong"):
            agent.act(np.zeros(1, np.float32))

    def test_initial_state_of_another_shape_raises(self) -> None:
        class Wrong(StepCounter):
            def initial_state(self) -> Any:
                return {"count": 0, "trace": np.zeros(3)}

        with pytest.raises(ValueError, match=r"^initial_state of Wrong"):
            counter(kind=Wrong)


def test_agents_without_a_state_keep_the_layout_of_their_files() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=0)
    with pytest.warns(UserWarning, match="fit ended"):
        agent.fit(steps=3, verbose=0)
    assert "policy_state" not in agent.get_state()["lanes"]["ledger"]
