"""Vector environments across fits and restored runs: budgets, discarded transitions and exact resumption."""

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
from noterl.collect import ScalarLanes, VectorLanes
from tests.collect.test_vector import build, interrupted, memories
from tests.saving.test_agent_files import INVALID_VALUES, places, replaced
from tests.support.doubles import (
    BranchingEnv,
    CountingEnv,
    EnvironmentBroke,
    RaisingEnv,
    StatefulEnv,
    TogetherVectorEnv,
)
from tests.support.parts import lanes_of
from tests.support.replay_invariants import check_replay
from tests.support.states import assert_same_state
from tests.training.test_session import acting

pytestmark = pytest.mark.backends("torch")

MODES = pytest.mark.parametrize("mode", AutoresetMode)
RESTARTED = r"vector environment \({}.*\. Its episodes restart"


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=13)


def sync(factory: Callable[[], gymnasium.Env], mode: Any = "NextStep", num_envs: int = 3) -> SyncVectorEnv:
    """Return a vector environment that runs as lanes."""
    return SyncVectorEnv([factory] * num_envs, autoreset_mode=mode)


def together(factory: Callable[[], gymnasium.Env], mode: Any = "SameStep", num_envs: int = 3) -> TogetherVectorEnv:
    """Return a vector environment that steps its lanes together."""
    return TogetherVectorEnv([factory] * num_envs, autoreset_mode=mode)


BOTH = pytest.mark.parametrize("vector", [sync, together])


@pytest.fixture(scope="module")
def learners() -> dict[str, noterl.Agent]:
    """Return agents that learn; each test that takes one restores its first state."""
    env = cartpole()
    dqn, ppo = noterl.DQN(env, hidden=(4,), seed=1), noterl.PPO(env, hidden=(4,), seed=1, rollout_steps=8, epochs=1)
    dqn.compile(replay=noterl.Replay(64), batch_size=8, learning_starts=8, update_every=9)
    ppo.compile(batch_size=8)
    return {"dqn": dqn, "ppo": ppo}


def whole_steps(agent: noterl.Agent, env: VectorEnv, steps: int) -> list[int]:
    """Return the number of environment steps after each step of a vector environment."""
    found: list[int] = []
    tick = VectorLanes.tick

    def counted(lanes: VectorLanes, step: int) -> Any:
        found.append(step - 1)
        return tick(lanes, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VectorLanes, "tick", counted)
        interrupted(agent, env=env, steps=steps)
    return found


@MODES
@pytest.mark.parametrize("kind", ["dqn", "ppo"])
@BOTH
def test_two_fits_and_a_restored_run_equal_one_fit(
    learners: dict[str, noterl.Agent], kind: str, mode: AutoresetMode, vector: Any, tmp_path: Path
) -> None:
    """With a `SyncVectorEnv` for all budgets, with others for budgets that end with a whole step of the environment."""
    agent, begin = learners[kind], learners[kind].get_state()
    first, second, total = 20, 38, 80
    if vector is together:
        steps = whole_steps(agent, vector(cartpole, mode), 100)
        first, second, total = (next(step for step in steps if step >= least) for least in (first, second, total))

    def run(state: dict[str, Any] | None, *budgets: int) -> dict[str, Any]:
        env = vector(cartpole, mode)
        if state is not None:
            agent.set_state(state)
        else:
            agent.restore(tmp_path / "a.noterl")
        for steps in budgets:
            agent.fit(env, steps=steps, verbose=0)
        return agent.get_state()

    uninterrupted = run(begin, total)
    middle = run(begin, first, second - first)
    agent.save(tmp_path / "a.noterl")
    rest = total - second
    for state in (run(begin, first, second - first, rest), run(middle, rest), run(None, rest)):
        assert_same_state(uninterrupted, state)
    agent.set_state(begin)


def episode_ends(agent: noterl.Agent, fits: list[dict[str, int]]) -> list[tuple]:
    """Return the logs of the complete episodes of some fits, and of the last five that were cut short."""
    ends: list[tuple] = []
    hook = LambdaCallback(
        on_episode_end=lambda episode, logs: ends.append((episode, logs["reward"], logs["length"], logs["complete"]))
    )
    for arguments in fits:
        agent.fit(callbacks=[hook], verbose=0, **arguments)
    return [end for end in ends if end[-1]] + [end for end in ends[-5:] if not end[-1]]


@MODES
@pytest.mark.parametrize("goal", [3, 99])
def test_consecutive_budgets_of_sync_equal_their_sum(mode: AutoresetMode, goal: int) -> None:
    def agent() -> Any:
        factories = [lambda length=length: BranchingEnv(goal, length) for length in (1, 2, 3, 3, 4)]
        env = SyncVectorEnv(factories, autoreset_mode=mode)
        return build(env, lambda observations: observations[:, :2].sum(1).astype(int) % 4)

    uninterrupted, split = agent(), agent()
    ends = episode_ends(uninterrupted, [{"steps": 40}])
    parts = [{"steps": 1}, {"episodes": 1}, {"episodes": 1}, {"steps": 2}, {"steps": 7}, {"episodes": 4}]
    found = episode_ends(split, parts)
    found += episode_ends(split, [{"steps": 40 - split.steps}])
    assert [end for end in found if end[-1]] == [end for end in ends if end[-1]]
    assert found[-5:] == ends[-5:]
    assert memories(uninterrupted, 5) == memories(split, 5)
    check_replay(split.replay)


def count_runtime_warnings(caught: pytest.WarningsRecorder) -> int:
    """Return how many warnings are RuntimeWarnings; short fits also warn that they made no update."""
    return sum(each.category is RuntimeWarning for each in caught)


class TestSurplus:
    """Transitions beyond the budget are discarded, with one warning per fit."""

    @MODES
    @pytest.mark.parametrize("budget", [{"steps": 10}, {"episodes": 1}, {"episodes": 2}])
    def test_budget_is_exact_and_warns_once(self, mode: AutoresetMode, budget: dict[str, int]) -> None:
        factories = [lambda length=length: BranchingEnv(99, length) for length in (3, 4, 4, 4)]
        agent = build(TogetherVectorEnv(factories, autoreset_mode=mode), lambda o: np.ones(len(o), int))
        with pytest.warns(RuntimeWarning, match="budget ended within a step") as caught:
            history = agent.fit(**budget, verbose=0)
        assert count_runtime_warnings(caught) == 1
        assert len(history) == agent.episodes
        assert getattr(agent, next(iter(budget))) == next(iter(budget.values()))
        assert len(agent.replay) == agent.steps

    @MODES
    def test_discarded_transition_leaves_a_gap_and_its_episode_is_not_counted(self, mode: AutoresetMode) -> None:
        vector = TogetherVectorEnv([lambda: CountingEnv(2)] * 2, autoreset_mode=mode)
        agent = build(vector, lambda observations: np.zeros(len(observations), int))
        interrupted(agent, steps=3)
        assert (agent.steps, agent.episodes) == (3, 1)
        check_replay(agent.replay)
        agent.fit(steps=4, verbose=0)
        check_replay(agent.replay)
        first, second = memories(agent, 2)
        assert [entry[0] for entry in first] == [[0, 0], [0, 1], [1, 0], [1, 1]]
        assert [entry[0] for entry in second] == [[0, 0], [1, 0], [1, 1]]
        assert agent.episodes == 3
        storage = agent.replay._storage
        lost = next(row for row in range(7) if storage.lane[row] == 1)
        assert storage.successor[lost] < 0, "the transition before the gap has no successor"

    def test_whole_steps_do_not_warn(self) -> None:
        agent = build(together(lambda: CountingEnv(4)), lambda o: np.zeros(len(o), int))
        for _ in range(2):  # a warning is an error
            agent.fit(steps=9, verbose=0)

    def test_sync_has_no_surplus(self) -> None:
        agent = build(sync(lambda: CountingEnv(4)), lambda o: np.zeros(len(o), int))
        for _ in range(2):
            agent.fit(steps=4, verbose=0)
        assert (agent.steps, len(agent.replay)) == (8, 8)

    @MODES
    def test_ppo_trains_on_rollouts_with_a_gap(self, mode: AutoresetMode) -> None:
        agent = noterl.PPO(together(cartpole, mode), hidden=(4,), seed=1, rollout_steps=8, epochs=1)
        agent.compile(batch_size=8)
        for _ in range(4):
            interrupted(agent, steps=16)
        assert agent.steps == 64 and agent.updates > 0

    @MODES
    def test_restored_run_warns_that_it_is_inexact(self, mode: AutoresetMode) -> None:
        agent, other = acting(together(cartpole, mode)), acting(together(cartpole, mode))
        interrupted(agent, steps=31)
        other.set_state(agent.get_state())
        with pytest.warns(RuntimeWarning, match="differ from an uninterrupted") as caught:
            other.fit(steps=3, verbose=0)
        assert count_runtime_warnings(caught) == 1
        agent.fit(steps=3, verbose=0)
        assert_same_state(agent, other)


@MODES
@pytest.mark.parametrize("first", [0, 1, 2])
@BOTH
def test_state_saved_at_one_of_several_ends_resumes_exactly(mode: AutoresetMode, first: int, vector: Any) -> None:
    """If several episodes end in one step, the restored run fires the events of those after the saved one."""
    states: list[dict[str, Any]] = []
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=4)  # noqa: E731
    hook = LambdaCallback(on_episode_end=lambda episode, _: episode == first and states.append(agent.get_state()))
    agent, other = acting(vector(make, mode)), acting(vector(make, mode))
    interrupted(agent, steps=40, callbacks=[hook])
    other.set_state(states[0])
    with pytest.raises(EnvironmentBroke):
        other.fit(steps=1, callbacks=[LambdaCallback(on_train_begin=broken)], verbose=0)
    interrupted(other, steps=40 - other.steps)
    assert_same_state(agent, other)
    assert len(other.history) == agent.episodes - first - 1


@pytest.mark.parametrize("kind", ["signal", "stop"])
@BOTH
def test_fit_that_ended_early_continues(kind: str, vector: Any) -> None:
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=4)  # noqa: E731
    uninterrupted, agent = acting(vector(make, "SameStep"), steps=60), acting(vector(make, "SameStep"))

    def end(episode: int, logs: dict[str, Any]) -> None:
        if episode == 4 and logs["complete"]:
            agent.stop("done") if kind == "stop" else os.kill(os.getpid(), signal.SIGINT)

    with contextlib.nullcontext() if kind == "stop" else pytest.raises(KeyboardInterrupt):
        agent.fit(steps=60, callbacks=[LambdaCallback(on_episode_end=end)], verbose=0)
    assert agent.steps < 60
    agent.fit(steps=60 - agent.steps, verbose=0)
    assert_same_state(uninterrupted, agent)


def broken(*_: Any) -> None:
    raise EnvironmentBroke


def restored(agent: noterl.Agent, env: Any) -> noterl.DQN:
    other = acting(env)
    other.set_state(agent.get_state())
    return other


@MODES
@pytest.mark.parametrize("steps", [31, 32, 33])
def test_sync_restores_environments_with_state_methods(mode: AutoresetMode, steps: int) -> None:
    class Stateful(StatefulEnv):
        def __init__(self) -> None:
            super().__init__(length=4)
            self.action_space = gymnasium.spaces.Discrete(2)

        def step(self, action):
            return super().step([action - 0.5])

    first, env = acting(sync(Stateful, mode), steps=steps), sync(Stateful, mode)
    second = restored(first, env)
    for agent in (first, second):
        agent.fit(steps=20, verbose=0)
    assert [one.set_calls for one in env.envs] == [1, 1, 1]
    assert_same_state(first, second)


@MODES
def test_sync_has_the_episodes_of_scalar_lanes(mode: AutoresetMode) -> None:
    agents = [build(sync(cartpole, mode)), build(cartpole)]
    for agent, options in zip(agents, ({}, {"num_envs": 3}), strict=True):
        agent.fit(steps=91, verbose=0, **options)
    assert type(lanes_of(agents[0])) is ScalarLanes
    assert memories(agents[0], 3) == memories(agents[1], 3)


@pytest.mark.parametrize("turn", [1, -1])
def test_sync_and_scalar_lanes_continue_each_others_runs(turn: int) -> None:
    first, other = [sync(cartpole), cartpole][::turn]
    uninterrupted = acting(first, steps=31, num_envs=3)
    agent = restored(uninterrupted, other)
    for each in (uninterrupted, agent):
        each.fit(steps=20, num_envs=3, verbose=0)
    assert_same_state(uninterrupted, agent)


def subclass(factories: Any) -> VectorEnv:
    return TogetherVectorEnv(factories)


def wrapped(factories: Any) -> VectorEnv:
    return gymnasium.wrappers.vector.NormalizeObservation(SyncVectorEnv(factories))


def own(factories: Any) -> VectorEnv:
    return gymnasium.make_vec("CartPole-v1", len(factories), vectorization_mode="vector_entry_point")


@pytest.mark.filterwarnings("ignore:.*has statistics of its own:UserWarning")
@pytest.mark.parametrize("make", [own, subclass, wrapped])
def test_other_vector_environments_are_restored_by_repeating_their_actions(make: Any) -> None:
    envs = [make([cartpole] * 2) for _ in range(4)]
    middle, total = (
        next(step for step in whole_steps(acting(envs[3]), envs[3], 100) if step >= least) for least in (50, 90)
    )
    uninterrupted, split = acting(envs[0], steps=total), acting(envs[1], steps=middle)
    other = restored(split, envs[2])
    for agent in (split, other):
        agent.fit(steps=total - middle, verbose=0)
        assert_same_state(uninterrupted, agent)
        check_replay(agent.replay)
    for env in envs:
        env.close()


@pytest.mark.backends("torch")
def test_environments_in_processes_continue_and_are_restored() -> None:
    envs = [
        AsyncVectorEnv([functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=5)], context="spawn")
        for _ in range(2)
    ]
    uninterrupted, agent = acting(envs[0]), acting(envs[0])
    uninterrupted.fit(steps=30, seed=5, verbose=0)
    agent.fit(steps=11, seed=5, verbose=0)
    other = restored(agent, envs[1])
    for each in (agent, other):
        each.fit(steps=19, verbose=0)
        assert_same_state(uninterrupted, each)
    for env in envs:
        env.close()


def other_number(vector: Any) -> VectorEnv:
    return vector(cartpole, num_envs=2)


def other_mode(vector: Any) -> VectorEnv:
    return vector(cartpole, "NextStep")


def other_observations(vector: Any) -> VectorEnv:
    return vector(lambda: gymnasium.wrappers.TransformObservation(cartpole(), lambda o: o * 0.5, None))


def raising(vector: Any) -> VectorEnv:
    return vector(lambda: gymnasium.wrappers.TransformObservation(cartpole(), broken, None))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (other_number, "the state is of 3 environments"),
        (other_mode, "the state is of .* SameStep"),
        (other_observations, "observations differ"),
    ],
)
def test_changed_vector_environment_restarts(make: Callable[[Any], VectorEnv], reason: str) -> None:
    agent = restored(acting(together(cartpole), steps=30), make(together))
    begun, lanes = agent._counters.episodes_begun, 2 if make is other_number else 3
    with pytest.warns(RuntimeWarning, match=RESTARTED.format(reason)) as caught:
        interrupted(agent, steps=6)
    assert count_runtime_warnings(caught) == 1
    assert agent._counters.episodes_begun == begun + lanes
    check_replay(agent.replay)


def test_vector_environment_that_raises_when_it_is_restored_restarts() -> None:
    agent = restored(acting(together(cartpole), steps=30), raising(together))
    with (
        pytest.warns(RuntimeWarning, match=RESTARTED.format("EnvironmentBroke: ")),
        pytest.raises(EnvironmentBroke),
    ):
        agent.fit(steps=6, verbose=0)


def test_changed_sync_restarts() -> None:
    agent = restored(acting(sync(cartpole), steps=31), other_number(sync))
    with pytest.warns(RuntimeWarning, match=r"state is of 3 environments.*restart"):
        agent.fit(steps=7, verbose=0)
    agent = restored(acting(sync(cartpole), steps=31), other_observations(sync))
    begun = agent._counters.episodes_begun
    with pytest.warns(RuntimeWarning, match=r"\(observations differ\).*Its episode") as caught:
        agent.fit(steps=7, verbose=0)
    assert count_runtime_warnings(caught) == 3 and agent._counters.episodes_begun == begun + 3


@pytest.mark.parametrize("turn", [1, -1])
def test_scalar_lanes_and_vector_lanes_do_not_continue_each_others_runs(turn: int) -> None:
    first, other = [together(cartpole), cartpole][::turn]
    agent = restored(acting(first, steps=30), other)
    with pytest.warns(RuntimeWarning, match=r"not restore .*is of (a vector|scalar)"):
        interrupted(agent, steps=6)
    check_replay(agent.replay)


@pytest.mark.backends("jax")
def test_another_number_of_functional_environments_is_no_failed_restoration() -> None:
    agent = noterl.DQN(noterl.envs.functional_cartpole(), hidden=(4,), seed=1)
    agent.compile(learning_starts=50, batch_size=8, replay=noterl.Replay(500, sampler=noterl.replay.Prioritized()))
    for num_envs in (2, 4):
        agent.fit(steps=60, num_envs=num_envs, verbose=0)  # a warning would be an error


def test_actions_beyond_the_limit_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noterl.collect.action_log.MAX_BYTES", 384)
    short = acting(together(cartpole), steps=3 * 128)
    with pytest.warns(RuntimeWarning, match="more actions than fit into 64 MiB"):
        long = acting(together(cartpole), steps=3 * 129)
    assert short.get_state()["lanes"]["vector"]["actions"].shape == (128, 3)
    assert short.get_state()["lanes"]["vector"]["actions"].dtype == np.uint8
    other = restored(long, together(cartpole))
    with pytest.warns(
        RuntimeWarning,
        match=RESTARTED.format(".*64 MiB"),
    ):
        other.fit(steps=3, verbose=0)


@MODES
@pytest.mark.parametrize("on", ["step", "reset"])
def test_after_an_error_all_lanes_of_a_vector_environment_restart(mode: AutoresetMode, on: str) -> None:
    env = TogetherVectorEnv(
        [lambda: CountingEnv(3), lambda: RaisingEnv(4 if on == "step" else 2, on, 3)], autoreset_mode=mode
    )
    agent = build(env, lambda observations: np.zeros(len(observations), int))
    with pytest.raises(EnvironmentBroke):
        agent.fit(steps=20, verbose=0)
    assert isinstance(lanes_of(agent), VectorLanes)
    stored, begun = agent.steps, agent._counters.episodes_begun
    assert lanes_of(agent).get_state() is None
    agent.fit(steps=4, verbose=0)
    assert agent._counters.episodes_begun == begun + 2
    check_replay(agent.replay)
    found = memories(agent, 2)
    assert sum(map(len, found)) == stored + 4
    for lane in found:
        assert [entry[0][1] for entry in lane[-2:]] == [0.0, 1.0]


@BOTH
def test_seed_or_another_environment_starts_all_episodes_again(vector: Any) -> None:
    env, other = (vector(cartpole, "SameStep") for _ in range(2))
    agents = [build(env), build(vector(cartpole, "SameStep"))]
    interrupted(agents[0], steps=10)
    for agent in agents:
        agent.fit(steps=30, seed=5, verbose=0)
    assert [lane[-9:] for lane in memories(agents[0], 3)] == [lane[-9:] for lane in memories(agents[1], 3)]
    interrupted(agents[0], steps=1)
    interrupted(agents[0], env=other, steps=7)
    assert all(entry[0] != entry[3] for lane in memories(agents[0], 3) for entry in lane)
    check_replay(agents[0].replay)
    assert agents[0].steps == 48


@BOTH
def test_closed_agent_continues_in_the_vector_environment(vector: Any) -> None:
    uninterrupted, agent = (acting(vector(cartpole, "SameStep"), steps=30) for _ in range(2))
    agent.close()
    agent.close()
    for each in (uninterrupted, agent):
        each.fit(steps=21, verbose=0)
    assert_same_state(uninterrupted, agent)


@MODES
@pytest.mark.parametrize("way", ["file", "close"])
def test_budgets_of_sync_may_end_within_every_round(mode: AutoresetMode, way: str, tmp_path: Path) -> None:
    uninterrupted, split = (acting(sync(cartpole, mode, 5), steps=31) for _ in range(2))
    for _ in range(6):
        if way == "close":
            split.close()
        else:
            split.save(tmp_path / "a.noterl")
            split = acting(sync(cartpole, mode, 5))
            split.restore(tmp_path / "a.noterl")
        for each in (uninterrupted, split):
            each.fit(steps=1, verbose=0)
        assert_same_state(uninterrupted, split)


@BOTH
def test_evaluation_leaves_the_lanes_unchanged(vector: Any) -> None:
    uninterrupted, agent = (acting(vector(cartpole, "SameStep"), steps=30) for _ in range(2))
    agent.evaluate(episodes=2)
    for each in (uninterrupted, agent):
        each.fit(steps=21, verbose=0)
    assert_same_state(uninterrupted, agent)


@pytest.fixture(scope="module")
def surplus() -> noterl.DQN:
    """Return an agent whose last budget ended within a step of its vector environment."""
    agent = acting(together(cartpole))
    interrupted(agent, steps=32)
    return agent


@pytest.mark.parametrize("over", [[3], [-1], [0], [1, 1], ["1"]])
def test_impossible_ends_in_a_state_raise(surplus: noterl.DQN, over: list[Any]) -> None:
    state = surplus.get_state()
    running = [lane == 0 for lane in range(3)]
    lanes = {**state["lanes"], "ledger": {**state["lanes"]["ledger"], "running": running, "over": over}}
    with pytest.raises(ValueError, match=r"\['over'\]|state of the environments"):
        surplus.set_state({**state, "lanes": lanes})


def test_invalid_value_in_a_state_raises_or_does_not_break_the_next_fit(surplus: noterl.DQN) -> None:
    agent, good = surplus, surplus.get_state()
    accepted = set()
    for keys in places(good["lanes"]):
        for value in [..., *INVALID_VALUES]:
            try:
                agent.set_state({**good, "lanes": replaced(good["lanes"], keys, value)})
            except ValueError:
                continue
            accepted.add(".".join(map(str, keys)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                agent.fit(steps=2, verbose=0)
            agent.set_state(good)
    assert accepted == {
        *("ledger.running.0", "ledger.over", "ledger.info.0"),
        *("vector.mode", "vector.actions", "vector.discarded", "vector.info"),  # an empty dict fits
    }


@MODES
@BOTH
def test_environments_that_another_agent_has_stepped_are_reset(mode: AutoresetMode, vector: Any) -> None:
    shared = vector(cartpole, mode)
    first, second = (noterl.DQN(shared, hidden=(4,), seed=seed) for seed in (1, 2))
    for agent in (first, second):
        agent.compile(replay=noterl.Replay(1000))  # of one step, so that `moved` compares consecutive observations
    for agent in (first, first, second):
        interrupted(agent, steps=30)
    with pytest.warns(RuntimeWarning, match=r"another agent .* episodes restart") as warned:
        first.fit(steps=6, verbose=0)
    assert count_runtime_warnings(warned) == 1 and first.steps == 66
    rows = first.replay.gather(first.replay.sample(1, 64, generator=np.random.default_rng(0)), gamma=1.0)
    moved = np.abs(rows.next_observation[..., 0] - rows.observation[..., 0] - 0.02 * rows.observation[..., 1])
    assert moved.max() < 1e-5, "a transition leads from one agent's episode to the other's"


def test_scalar_environment_that_another_agent_has_stepped_is_reset() -> None:
    shared = cartpole()
    first, second = (noterl.DQN(shared, hidden=(4,), seed=seed) for seed in (1, 2))
    for agent in (first, first, second):  # a warning is an error
        agent.fit(steps=30, verbose=0)
    begun = first._counters.episodes_begun
    with pytest.warns(RuntimeWarning, match="another agent has stepped") as warned:
        first.fit(steps=1, verbose=0)
    assert count_runtime_warnings(warned) == 1 and first._counters.episodes_begun == begun + 1
    check_replay(first.replay)
