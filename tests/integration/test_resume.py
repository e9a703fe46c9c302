"""A run that is saved and resumed, also in another process, equals an uninterrupted one, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import noterl
from noterl import policies, saving
from noterl.callbacks import Checkpoint, EarlyStopping
from tests.support.doubles import CountingEnv, RaisingEnv
from tests.support.parts import lanes_of
from tests.support.replay_invariants import check_replay
from tests.support.states import assert_same_state, four_lanes, one_lane, run_python

# Both scripts resume a run of the parent process. The second also repeats the run of one lane from its seed.
LOAD = """
import sys, noterl
from tests.integration.test_resume import watchers
directory = sys.argv[1]
agent = noterl.load(f"{directory}/one.noterl")
agent.fit(episodes=10, callbacks=watchers(directory + "/loaded"), verbose=0)
agent.save(f"{directory}/one-resumed.noterl")
"""
RESTORE = """
import sys
from tests.support.states import four_lanes, one_lane
from tests.integration.test_resume import watchers
directory = sys.argv[1]
agent = four_lanes(seed=None)
agent.restore(f"{directory}/four.noterl")
agent.fit(steps=198, verbose=0)
agent.save(f"{directory}/four-resumed.noterl")
agent = one_lane()
agent.fit(episodes=20, callbacks=watchers(directory + "/again"), verbose=0)
agent.save(f"{directory}/one-again.noterl")
"""


def watchers(directory: Any) -> list[Any]:
    """Return callbacks with state that do not change training."""
    return [
        EarlyStopping(5, criterion=1e9, patience=1000),
        Checkpoint(directory, save_freq=5, max_save_files=3, save_replay=True),
    ]


def saved_state(path: Path) -> dict[str, Any]:
    return saving.read(path)["state"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def whole_run(directory: Path) -> dict[str, Any]:
    """Return the state after 20 episodes without interruption."""
    agent = one_lane()
    agent.fit(episodes=20, callbacks=watchers(directory / "whole"), verbose=0)
    assert agent.updates > 100
    assert agent.steps > agent.replay.capacity
    return agent.get_state()


@pytest.fixture(scope="module")
def halves(directory: Path, whole_run: dict[str, Any]) -> Path:
    """Save a run of one lane after 10 of 20 episodes, and one of four lanes in the middle of a round."""
    agent = one_lane()
    agent.fit(episodes=10, callbacks=watchers(directory / "half"), verbose=0)
    agent.save(directory / "one.noterl")
    assert 0 < agent.updates < whole_run["counters"]["updates"]
    agent = four_lanes()
    agent.fit(steps=203, num_envs=4, verbose=0)
    agent.save(directory / "four.noterl")
    assert lanes_of(agent).actions is not None, "the file should hold an unfinished round"
    return directory


@pytest.fixture(scope="module")
def loaded(halves: Path) -> Path:
    run_python(LOAD, halves, PYTHONHASHSEED="1")
    return halves


@pytest.fixture(scope="module")
def restored(halves: Path) -> Path:
    run_python(RESTORE, halves, PYTHONHASHSEED="2")
    return halves


@pytest.mark.slow
def test_run_loaded_in_a_new_process_equals_an_uninterrupted_one(whole_run: dict[str, Any], loaded: Path) -> None:
    state = saved_state(loaded / "one-resumed.noterl")
    assert set(state["callbacks"]) == {"EarlyStopping", "Checkpoint"}
    assert_same_state(state, whole_run)


@pytest.mark.backends("torch")
def test_four_lanes_resume_in_the_middle_of_a_round(restored: Path) -> None:
    agent = four_lanes()
    agent.fit(steps=401, num_envs=4, verbose=0)
    assert agent.updates > 200
    state = saved_state(restored / "four-resumed.noterl")
    assert_same_state(state, agent)
    assert state["lanes"]["cursor"] != 0


@pytest.mark.backends("torch")
def test_same_seed_gives_the_same_run_in_every_process(whole_run: dict[str, Any], loaded: Path, restored: Path) -> None:
    again = saved_state(restored / "one-again.noterl")  # with another hash seed than the loaded run
    assert_same_state(again, whole_run)
    assert_same_state(again, saved_state(loaded / "one-resumed.noterl"))


@pytest.mark.backends("torch")
def test_two_fits_equal_one(whole_run: dict[str, Any], directory: Path) -> None:
    agent, callbacks = one_lane(), watchers(directory / "two")
    first = agent.fit(episodes=10, callbacks=callbacks, verbose=0)
    second = agent.fit(episodes=10, callbacks=callbacks, verbose=0)
    assert len(first) == len(second) == 10
    assert_same_state(agent, whole_run)


@pytest.mark.backends("torch")
def test_run_resumes_from_a_checkpoint_within_a_fit(whole_run: dict[str, Any], directory: Path) -> None:
    (file,) = (directory / "whole").glob("episode-000010-*.noterl")
    # `steps_per_execution` is not part of the state.
    agent = one_lane(seed=1, steps_per_execution=1)
    agent.restore(file)
    assert agent.episodes == 10
    agent.fit(episodes=10, callbacks=watchers(directory / "resumed"), verbose=0)
    assert_same_state(agent, whole_run)


@pytest.mark.backends("torch")
def test_training_does_not_change_a_state_returned_before(halves: Path, whole_run: dict[str, Any]) -> None:
    agent = noterl.load(halves / "one.noterl")
    state = agent.get_state()
    assert_same_state(state, saved_state(halves / "one.noterl"))
    for folder in ("first", "second"):  # the second time from a state that was set before
        agent.fit(episodes=10, callbacks=watchers(halves / folder), verbose=0)
        assert_same_state(agent, whole_run)
        assert_same_state(state, saved_state(halves / "one.noterl"))
        agent.set_state(state)
        assert_same_state(agent, state)


def acting(env: Any, policy: Any = None, num_envs: int = 1, seed: int = 3) -> noterl.DQN:
    """Return an agent that acts and stores transitions, but makes no updates."""
    agent = noterl.DQN(env, hidden=(4,), seed=seed)
    agent.compile(
        policy=policy or policies.EpsGreedyQPolicy(0.5),
        replay=noterl.Replay(100),
        batch_size=8,
        learning_starts=10,
        update_every=10**6,
    )
    agent.fit(steps=1, num_envs=num_envs, verbose=0)
    return agent


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "policy",
    [
        lambda: policies.GreedyQPolicy(),
        lambda: policies.EpsGreedyQPolicy(0.3),
        lambda: policies.AdaptiveEpsGreedyPolicy(1.0, 0.1, 0.01),
        lambda: policies.BoltzmannQPolicy(0.5),
        lambda: policies.MaxBoltzmannQPolicy(0.5, 2.0),
        lambda: policies.BoltzmannGumbelQPolicy(2.0),
    ],
    ids=lambda build: type(build()).__name__,
)
def test_every_policy_resumes(policy: Any, tmp_path: Path) -> None:
    uninterrupted = acting("CartPole-v1", policy(), num_envs=2)
    uninterrupted.fit(steps=60, verbose=0)
    first = acting("CartPole-v1", policy(), num_envs=2)
    first.fit(steps=31, verbose=0)
    first.save(tmp_path / "a.noterl")
    second = noterl.load(tmp_path / "a.noterl")
    assert type(second.policy) is type(first.policy)
    second.fit(steps=29, verbose=0)
    assert_same_state(second, uninterrupted)


class RememberingEnv(CountingEnv):
    """Observes the number of episodes: `set_state` restores it, repeating the actions of an episode does not."""

    def get_state(self) -> dict[str, Any]:
        return {"episode": self.episode, "step": self.step_number}

    def set_state(self, state: dict[str, Any]) -> None:
        self.episode, self.step_number = state["episode"], state["step"]


def limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(RememberingEnv(length=9), 4)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("build", [RememberingEnv, limited])
@pytest.mark.parametrize("steps", [22, 23], ids=["in a round", "between rounds"])
def test_environment_with_state_methods_resumes(build: Any, steps: int, tmp_path: Path) -> None:
    uninterrupted = acting(build, num_envs=2)
    uninterrupted.fit(steps=60, verbose=0)
    first = acting(build, num_envs=2)
    first.fit(steps=steps, verbose=0)
    first.save(tmp_path / "a.noterl")
    second = acting(build, seed=4)
    second.restore(tmp_path / "a.noterl")
    second.fit(steps=60 - steps, verbose=0)
    assert_same_state(second, uninterrupted)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("build", [RememberingEnv, limited])
def test_environment_with_state_methods_resumes_between_episodes(build: Any, tmp_path: Path) -> None:
    uninterrupted = acting(build)
    uninterrupted.fit(episodes=6, verbose=0)
    first = acting(build)
    first.fit(episodes=3, verbose=0)
    first.save(tmp_path / "a.noterl")
    second = acting(build, seed=4)
    second.restore(tmp_path / "a.noterl")
    second.fit(episodes=3, verbose=0)
    assert_same_state(second, uninterrupted)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("budget", [{"steps": 12}, {"episodes": 2}], ids=["in an episode", "between two"])
def test_environment_that_cannot_be_restored_warns_and_restarts(budget: dict[str, int], tmp_path: Path) -> None:
    first = acting(CountingEnv)
    first.fit(**budget, verbose=0)
    first.save(tmp_path / "a.noterl")
    second = acting(CountingEnv, seed=4)
    second.restore(tmp_path / "a.noterl")
    begun, steps = second._counters.episodes_begun, second.steps
    with pytest.warns(RuntimeWarning, match=r"environment 0 \(observations differ"):
        second.fit(steps=5, verbose=0)
    assert second.steps == steps + 5
    assert second._counters.episodes_begun == begun + 1, "the lane should start a new episode"
    check_replay(second.replay)


@pytest.mark.backends("torch")
def test_environment_that_raises_while_restored_warns_and_restarts(tmp_path: Path) -> None:
    first = acting(CountingEnv)
    first.fit(steps=13, verbose=0)
    first.save(tmp_path / "a.noterl")
    second = acting(CountingEnv, seed=4)
    second.restore(tmp_path / "a.noterl")
    with pytest.warns(RuntimeWarning, match=r"environment 0 \(EnvironmentBroke"):
        second.fit(lambda: RaisingEnv(at=2), steps=5, verbose=0)
    check_replay(second.replay)


@pytest.mark.backends("torch")
def test_another_num_envs_starts_new_episodes(tmp_path: Path) -> None:
    first = acting("CartPole-v1", num_envs=3)
    first.fit(steps=40, verbose=0)
    first.save(tmp_path / "a.noterl")
    second = noterl.load(tmp_path / "a.noterl")
    second.fit(steps=20, num_envs=2, verbose=0)
    assert second.steps == first.steps + 20 and lanes_of(second).num_envs == 2
    check_replay(second.replay)


@pytest.mark.backends("torch")
def test_file_without_memory_continues_the_unfinished_episodes(tmp_path: Path) -> None:
    first = acting("CartPole-v1", num_envs=2)
    first.fit(steps=33, verbose=0)
    first.save(tmp_path / "a.noterl", replay=False)
    assert saved_state(tmp_path / "a.noterl")["replay"] is None
    second = noterl.load(tmp_path / "a.noterl")
    assert len(second.replay) == 0
    first.fit(steps=40, verbose=0)
    with pytest.warns(RuntimeWarning, match="replay memory is empty"):
        second.fit(steps=40, verbose=0)
    states = [{**agent.get_state(), "replay": None} for agent in (first, second)]
    assert_same_state(*states)
    newest = [agent.replay.get_state()["columns"]["reward"][-1][-40:] for agent in (first, second)]
    assert np.array_equal(*newest)


@pytest.mark.backends("torch")
def test_vector_environment_resumes(tmp_path: Path) -> None:
    def build() -> gymnasium.vector.VectorEnv:
        return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")

    first = acting(build, num_envs=2)
    first.fit(steps=21, verbose=0)
    first.save(tmp_path / "a.noterl")
    second = noterl.load(tmp_path / "a.noterl")
    for agent in (first, second):
        agent.fit(build if agent is second else None, steps=20, verbose=0)
    assert_same_state(first, second)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop", "Adafactor"])
def test_torch_optimizer_resumes(name: str, tmp_path: Path) -> None:
    import torch

    options = {"Adam": {"amsgrad": True}, "SGD": {"momentum": 0.9}, "RMSprop": {"centered": True}}.get(name, {})

    def build(seed: int, lr: float = 0.01) -> noterl.DQN:
        return one_lane(
            seed=seed, optimizer=lambda parameters: getattr(torch.optim, name)(parameters, lr=lr, **options)
        )

    uninterrupted, first, second = build(1), build(1), build(2, lr=0.5)
    uninterrupted.fit(steps=90, verbose=0)
    first.fit(steps=50, verbose=0)
    first.save(tmp_path / "a.noterl")
    assert noterl.load(tmp_path / "a.noterl").learning_rate == 0.01
    second.restore(tmp_path / "a.noterl")
    assert second.learning_rate == 0.01
    second.fit(steps=40, verbose=0)
    assert_same_state(second, uninterrupted)
    assert type(second.optimizer) is getattr(torch.optim, name)


@pytest.mark.backends("torch")
def test_file_with_another_optimizer_raises_and_changes_nothing(tmp_path: Path) -> None:
    import torch

    of_torch = one_lane(optimizer=lambda p: torch.optim.Adam(p, 0.1))
    of_keras = one_lane()
    for agent, other, message in (
        (of_torch, of_keras, r"torch\.optim, .*compile"),
        (of_keras, of_torch, "an optimizer of Keras, .* call compile"),
        (of_torch, one_lane(optimizer=lambda p: torch.optim.SGD(p, 0.1)), "'Adam'.* SGD"),
    ):
        agent.fit(steps=30, verbose=0)
        agent.save(tmp_path / "a.noterl")
        before = other.get_state()
        with pytest.raises(ValueError, match=message):
            other.restore(tmp_path / "a.noterl")
        assert_same_state(before, other)
