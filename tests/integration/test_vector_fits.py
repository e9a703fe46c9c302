"""Vector environments from one fit to the next, and from one run to the next that a file brings back."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import noterl
from noterl.callbacks import LambdaCallback
from noterl.collect.vector import VectorLanes
from tests.collect.test_vector import build, memories
from tests.saving.test_agent_files import JUNK, places, replaced
from tests.support.doubles import BranchingEnv, CountingEnv, EnvironmentBroke, RaisingEnv, ShiftedEnv, StatefulEnv
from tests.support.states import assert_same_state
from tests.training.test_session import acting

MODES = pytest.mark.parametrize("mode", AutoresetMode)
AFRESH = (
    r"^the vector environment cannot be brought back to where it was \({}.*\): it starts afresh and the run goes on"
)


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=13)


def vector(factory: Callable[[], gymnasium.Env], mode: Any = "NextStep", num_envs: int = 3) -> SyncVectorEnv:
    return SyncVectorEnv([factory] * num_envs, autoreset_mode=mode)


@pytest.fixture(scope="module")
def learners() -> dict[str, noterl.Agent]:
    """Return agents that learn, and are brought back to their first state by each test that takes them."""
    env = cartpole()
    dqn, ppo = noterl.DQN(env, hidden=(4,), seed=1), noterl.PPO(env, hidden=(4,), seed=1, rollout_steps=8, epochs=1)
    dqn.compile(replay=noterl.Replay(64), batch_size=8, learning_starts=8, update_every=9)
    ppo.compile(batch_size=8)
    return {"dqn": dqn, "ppo": ppo}


@MODES
@pytest.mark.parametrize("kind", ["dqn", "ppo"])
def test_two_fits_are_one_and_so_is_a_restored_run(
    learners: dict[str, noterl.Agent], kind: str, mode: AutoresetMode, tmp_path: Path
) -> None:
    """Also where the first ends in the middle of a step of the three environments."""
    agent, begin = learners[kind], learners[kind].get_state()

    def run(state: dict[str, Any] | None, *budgets: int) -> dict[str, Any]:
        env = vector(cartpole, mode)
        if state is not None:
            agent.set_state(state)
        else:
            agent.restore(tmp_path / "a.noterl")
        for steps in budgets:
            agent.fit(env, steps=steps, verbose=0)
        return agent.get_state()

    whole = run(begin, 80)
    middle = run(begin, 20, 18)
    agent.save(tmp_path / "a.noterl")
    assert mode is AutoresetMode.NEXT_STEP or len(middle["lanes"]["vector"]["left"]) == 1
    for state in (run(begin, 20, 18, 42), run(middle, 42), run(None, 42)):
        assert_same_state(whole, state)
    agent.set_state(begin)


def told(agent: noterl.Agent, fits: list[dict[str, int]]) -> list[tuple]:
    """Return what is told of the ends of episodes in some fits."""
    ends: list[tuple] = []
    hook = LambdaCallback(
        on_episode_end=lambda episode, logs: ends.append((episode, logs["reward"], logs["length"], logs["complete"]))
    )
    for arguments in fits:
        agent.fit(callbacks=[hook], verbose=0, **arguments)
    return [end for end in ends if end[-1]] + [end for end in ends[-5:] if not end[-1]]


@MODES
@pytest.mark.parametrize("goal", [3, 99])
def test_any_budgets_one_after_the_other_are_their_sum(mode: AutoresetMode, goal: int) -> None:
    """Transitions, episodes and what is told of them are those of one fit, whatever episode ends beyond a budget."""

    def agent() -> Any:
        factories = [lambda length=length: BranchingEnv(goal, length) for length in (1, 2, 3, 3, 4)]
        env = SyncVectorEnv(factories, autoreset_mode=mode)
        return build(env, lambda observations: observations[:, :2].sum(1).astype(int) % 4)

    whole, split = agent(), agent()
    ends = told(whole, [{"steps": 40}])
    parts = [{"steps": 1}, {"episodes": 1}, {"episodes": 1}, {"steps": 2}, {"steps": 7}, {"episodes": 4}]
    begun = told(split, parts)
    begun += told(split, [{"steps": 40 - split.steps}])
    assert [end for end in begun if end[-1]] == [end for end in ends if end[-1]]
    assert begun[-5:] == ends[-5:]
    assert memories(whole, 5) == memories(split, 5)
    split.replay.check()


@MODES
@pytest.mark.parametrize("first", [0, 1, 2])
def test_saved_as_one_of_several_ends_is_told(mode: AutoresetMode, first: int) -> None:
    """What is told after it, in the same step of the environments, is told as the restored run begins."""
    states: list[dict[str, Any]] = []
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=4)  # noqa: E731
    hook = LambdaCallback(on_episode_end=lambda episode, _: episode == first and states.append(agent.get_state()))
    agent, other = acting(vector(make, mode)), acting(vector(make, mode))
    agent.fit(steps=40, callbacks=[hook], verbose=0)
    other.set_state(states[0])
    with pytest.raises(EnvironmentBroke):
        other.fit(steps=1, callbacks=[LambdaCallback(on_train_begin=broken)], verbose=0)
    history = other.fit(steps=40 - other.steps, verbose=0)
    assert_same_state(agent, other)
    assert len(history) == agent.episodes - first - 1


@pytest.mark.parametrize("kind", ["signal", "stop"])
def test_a_fit_that_ended_early_goes_on(kind: str) -> None:
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=4)  # noqa: E731
    whole, agent = acting(vector(make, "SameStep"), steps=60), acting(vector(make, "SameStep"))

    def end(episode: int, logs: dict[str, Any]) -> None:
        if episode == 4 and logs["complete"]:
            agent.stop("enough") if kind == "stop" else os.kill(os.getpid(), signal.SIGINT)

    with contextlib.nullcontext() if kind == "stop" else pytest.raises(KeyboardInterrupt):
        agent.fit(steps=60, callbacks=[LambdaCallback(on_episode_end=end)], verbose=0)
    assert agent.steps == 24
    agent.fit(steps=36, verbose=0)
    assert_same_state(whole, agent)


def broken(*_: Any) -> None:
    raise EnvironmentBroke


def restored(agent: noterl.Agent, env: Any) -> noterl.DQN:
    other = acting(env)
    other.set_state(agent.get_state())
    return other


@MODES
@pytest.mark.parametrize("steps", [31, 32, 33])
def test_environments_that_say_where_they_are(mode: AutoresetMode, steps: int) -> None:
    class Stateful(StatefulEnv):
        def __init__(self) -> None:
            super().__init__(length=4)
            self.action_space = gymnasium.spaces.Discrete(2)

        def step(self, action):
            return super().step([action - 0.5])

    first = acting(vector(Stateful, mode), steps=steps)
    second = restored(first, vector(Stateful, mode))
    for agent in (first, second):
        agent.fit(steps=20, verbose=0)
    assert [env.set_calls for env in second.source.vector.envs] == [1, 1, 1]
    assert_same_state(first, second)


def test_values_that_do_not_start_at_zero() -> None:
    class Shifted(ShiftedEnv):
        def reset(self, **options: Any):
            self.actions.clear()
            return super().reset(**options)

    first = acting(vector(Shifted), steps=32)
    second = restored(first, vector(Shifted))
    for agent in (first, second):
        agent.fit(steps=20, verbose=0)
    assert_same_state(first, second)


@MODES
def test_scalar_lanes_have_the_same_episodes(mode: AutoresetMode) -> None:
    """The seeds of a `SyncVectorEnv` are those of scalar lanes."""
    agents = [build(vector(cartpole, mode)), build(cartpole)]
    for agent, options in zip(agents, ({}, {"num_envs": 3}), strict=True):
        agent.fit(steps=90, verbose=0, **options)
    for one, other in zip(*(memories(agent, 3) for agent in agents), strict=True):
        shorter = min(len(one), len(other))
        assert shorter >= 25
        assert one[:shorter] == other[:shorter]


def subclass(factories: Any) -> SyncVectorEnv:
    return type("Derived", (SyncVectorEnv,), {})(factories)


def wrapped(factories: Any) -> VectorEnv:
    return gymnasium.wrappers.vector.NormalizeObservation(SyncVectorEnv(factories))


def own(factories: Any) -> VectorEnv:
    return gymnasium.make_vec("CartPole-v1", len(factories), vectorization_mode="vector_entry_point")


@pytest.mark.parametrize("make", [own, subclass, wrapped])
def test_all_other_vector_environments_go_on_but_are_not_restored(make: Any) -> None:
    envs = [make([cartpole] * 2) for _ in range(3)]
    whole, first = (build(env) for env in envs[:2])
    whole.fit(steps=30, verbose=0)
    for steps in (11, 19):
        first.fit(steps=steps, verbose=0)
    assert memories(whole, 2) == memories(first, 2)
    agent = acting(envs[2], steps=9)
    agent.set_state(agent.get_state())
    begun = agent.episodes_begun
    with pytest.warns(RuntimeWarning, match=AFRESH.format("of vector environments, only a SyncVectorEnv")) as caught:
        agent.fit(steps=3, verbose=0)
    assert len(caught) == 1 and agent.episodes_begun == begun + 2
    agent.fit(steps=3, verbose=0)
    agent.replay.check()
    for env in envs:
        env.close()


@pytest.mark.backends("torch")
def test_environments_in_processes_go_on() -> None:
    env = AsyncVectorEnv([functools.partial(gymnasium.make, "CartPole-v1")], context="spawn")
    whole, agent = build(env), build(env)
    whole.fit(steps=30, seed=5, verbose=0)
    agent.fit(steps=11, seed=5, verbose=0)
    agent.fit(steps=19, verbose=0)
    assert memories(whole, 1) == memories(agent, 1)
    env.close()


def other_number() -> SyncVectorEnv:
    return vector(cartpole, num_envs=2)


def other_mode() -> SyncVectorEnv:
    return vector(cartpole, "SameStep")


def outlives_reset() -> SyncVectorEnv:
    return vector(lambda: gymnasium.wrappers.TransformObservation(cartpole(), lambda o: o + 1, None))


@pytest.mark.parametrize(
    ("make", "fault"),
    [(other_number, "it was one of 3 env"), (other_mode, "it was .* NextStep"), (outlives_reset, "environment 0: it")],
)
def test_what_has_changed_is_not_restored(make: Callable[[], SyncVectorEnv], fault: str) -> None:
    agent = restored(acting(vector(cartpole), steps=31), make())
    begun, lanes = agent.episodes_begun, make().num_envs
    with pytest.warns(RuntimeWarning, match=AFRESH.format(fault)) as caught:
        agent.fit(steps=7, verbose=0)
    assert len(caught) == 1
    assert agent.episodes_begun == begun + lanes
    agent.replay.check()


@pytest.mark.parametrize("turn", [1, -1])
def test_scalar_lanes_and_vectors_do_not_go_on_from_each_other(turn: int) -> None:
    first, other = [vector(cartpole), cartpole][::turn]
    agent = restored(acting(first, steps=31), other)
    with pytest.warns(RuntimeWarning, match="each environment cannot be brought back .* vector environment"):
        agent.fit(steps=7, verbose=0)
    agent.replay.check()


@MODES
@pytest.mark.parametrize("on", ["step", "reset"])
def test_after_an_error_all_lanes_begin_again(mode: AutoresetMode, on: str) -> None:
    env = SyncVectorEnv(
        [lambda: CountingEnv(3), lambda: RaisingEnv(4 if on == "step" else 2, on, 3)], autoreset_mode=mode
    )
    agent = build(env, lambda observations: np.zeros(len(observations), int))
    with pytest.raises(EnvironmentBroke):
        agent.fit(steps=20, verbose=0)
    assert isinstance(agent.lanes, VectorLanes)
    stored, begun = agent.steps, agent.episodes_begun
    assert agent.lanes.get_state() is None
    agent.fit(steps=4, verbose=0)
    assert agent.episodes_begun == begun + 2
    agent.replay.check()
    found = memories(agent, 2)
    assert sum(map(len, found)) == stored + 4
    for lane in found:
        assert [entry[0][1] for entry in lane[-2:]] == [0.0, 1.0]
    assert env.envs[0].unwrapped.__class__ is CountingEnv, "nothing stands in for it any longer"


def test_a_seed_or_another_environment_leaves_nothing_of_what_was_put_off() -> None:
    env, other = (vector(cartpole, "SameStep") for _ in range(2))
    agents = [build(env), build(vector(cartpole, "SameStep"))]
    agents[0].fit(steps=10, verbose=0)
    for agent in agents:
        agent.fit(steps=30, seed=5, verbose=0)
    assert [lane[-9:] for lane in memories(agents[0], 3)] == [lane[-9:] for lane in memories(agents[1], 3)]
    agents[0].fit(steps=1, verbose=0)
    agents[0].fit(other, steps=7, verbose=0)
    assert all(entry[0] != entry[3] for lane in memories(agents[0], 3) for entry in lane)
    agents[0].replay.check()
    assert agents[0].steps == 48


def test_a_closed_agent_goes_on_in_the_vector_environment() -> None:
    whole, agent = (acting(vector(cartpole), steps=31) for _ in range(2))
    agent.close()
    agent.close()
    for each in (whole, agent):
        each.fit(steps=20, verbose=0)
    assert_same_state(whole, agent)


@MODES
@pytest.mark.parametrize("way", ["file", "close"])
def test_budgets_may_end_again_and_again_within_one_step_of_the_environments(
    mode: AutoresetMode, way: str, tmp_path: Path
) -> None:
    whole, split = (acting(vector(cartpole, mode, 5), steps=31) for _ in range(2))
    for _ in range(6):
        if way == "close":
            split.close()
        else:
            split.save(tmp_path / "a.noterl")
            split = acting(vector(cartpole, mode, 5))
            split.restore(tmp_path / "a.noterl")
        for each in (whole, split):
            each.fit(steps=1, verbose=0)
        assert_same_state(whole, split)


def test_evaluating_leaves_the_lanes_as_they_are() -> None:
    whole, agent = (acting(vector(cartpole), steps=31) for _ in range(2))
    agent.evaluate(episodes=2)
    for each in (whole, agent):
        each.fit(steps=20, verbose=0)
    assert_same_state(whole, agent)


@pytest.fixture(scope="module")
def left_over() -> noterl.DQN:
    return acting(vector(cartpole, "SameStep"), steps=32)


@pytest.mark.parametrize("over", [[3], [-1], [0], [1, 1], ["1"]])
def test_an_end_that_cannot_be_is_refused(left_over: noterl.DQN, over: list[Any]) -> None:
    state = left_over.get_state()
    running = [lane == 0 for lane in range(3)]
    lanes = {**state["lanes"], "ledger": {**state["lanes"]["ledger"], "running": running, "over": over}}
    with pytest.raises(ValueError, match="the state of the environments is malformed"):
        left_over.set_state({**state, "lanes": lanes})


def test_junk_anywhere_is_refused_or_does_not_break_the_next_fit(left_over: noterl.DQN) -> None:
    agent, good = left_over, left_over.get_state()
    taken = set()
    for keys in places(good["lanes"]):
        for value in [..., *JUNK]:
            try:
                agent.set_state({**good, "lanes": replaced(good["lanes"], keys, value)})
            except ValueError:
                continue
            taken.add(".".join(map(str, keys)))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".* cannot be brought back", RuntimeWarning)
                agent.fit(steps=2, verbose=0)
            agent.set_state(good)
    numbers = {"ledger.lengths.0", "ledger.running.0", "vector.left.0.terminated", "vector.left.0.truncated"}
    assert taken == {*numbers, "ledger.over", "lanes.0.environment", "vector", "vector.mode"}


@MODES
def test_an_environment_that_another_agent_has_stepped_is_reset(mode: AutoresetMode) -> None:
    shared = vector(cartpole, mode)
    first, second = (noterl.DQN(shared, hidden=(4,), seed=seed) for seed in (1, 2))
    for agent in (first, first, second):  # a warning would be an error
        agent.fit(steps=30, verbose=0)
    with pytest.warns(RuntimeWarning, match=AFRESH.format("another agent has stepped it")) as warned:
        first.fit(steps=5, verbose=0)
    assert len(warned) == 1 and first.steps == 65
    rows = first.replay.gather(first.replay.sample(1, 64, generator=np.random.default_rng(0)), gamma=1.0)
    moved = np.abs(rows.next_observation[..., 0] - rows.observation[..., 0] - 0.02 * rows.observation[..., 1])
    assert moved.max() < 1e-5, "a transition leads from one agent's episode to the other's"


def test_a_file_that_knows_of_no_ends_is_taken(left_over: noterl.DQN) -> None:
    state = left_over.get_state()
    del state["lanes"]["ledger"]["over"]
    left_over.set_state(state)
