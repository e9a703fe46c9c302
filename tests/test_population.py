"""Populations: parity with single runs, hyperparameters by member, evaluation and files."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.schedules import Linear
from tests.support.demonstrations import demonstrations
from tests.support.functional import LINE, line

pytestmark = pytest.mark.backends("jax")

SIZE = 12


def make(seed: int = 3, **options: Any) -> Any:
    arguments = {"rollout_steps": 4, "epochs": 2, "hidden": (4,), "seed": seed, **options}
    agent = noterl.PPO(line(), **arguments)
    agent.compile(batch_size=6)
    return agent


def use_members(name: str, patch: pytest.MonkeyPatch) -> None:
    programs, module = (importlib.import_module(f"noterl.backends.jax.{part}") for part in ("on_device", "population"))
    patch.setattr(programs, "make_members", getattr(module, name))


@pytest.fixture(scope="module", params=["ThreadedMembers", "VectorizedMembers"])
def trained(request: pytest.FixtureRequest) -> Any:
    """A population of each kind: in threads as on the CPU, and vectorized as on other devices."""
    patch = pytest.MonkeyPatch()
    use_members(request.param, patch)
    request.addfinalizer(patch.undo)
    population = noterl.Population(make(), seeds=3)
    population.fit(steps=30, num_envs=3)
    population.fit(steps=33)
    return population


def test_members_equal_single_runs(trained: Any) -> None:
    """63 steps are 5 rollouts: 20 updates."""
    for number, seed in enumerate(trained.seeds):
        single = make(seed)
        history = single.fit(steps=63, num_envs=3, verbose=0)
        member = trained.member(number)
        assert (member.steps, member.updates) == (single.steps, single.updates) == (63, 20)
        for name, value in single.get_weights().items():
            np.testing.assert_allclose(member.get_weights()[name], value, rtol=1e-4, atol=2e-6)
        record = trained.history.members[number]
        assert record["length"] == history.history["length"]
        assert record["steps"] == history.history["steps"]
        assert record["updates"] == history.history["updates"]
        np.testing.assert_allclose(record["reward"], history.history["reward"], rtol=1e-4)


@pytest.mark.parametrize("number", [-1, 3, 0.5, True, "0"])
def test_members_have_whole_numbers(trained: Any, number: Any) -> None:
    with pytest.raises(ValueError, match="number must be"):
        trained.member(number)


def test_members_train_at_the_same_time_after_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("noterl.backends.jax.population")
    monkeypatch.setattr(module, "available_cores", lambda: 2)
    monkeypatch.setattr(
        importlib.import_module("noterl.backends.jax.on_device"), "make_members", module.ThreadedMembers
    )
    # The time ends a test in which a member waits for ever: a thread outlives the timeout of pytest.
    population, both = noterl.Population(make(), seeds=2), threading.Barrier(2, timeout=300)
    population.fit(steps=SIZE, num_envs=3)
    population.evaluate(1)
    assert population._members is not None
    for owner, name in ((population._members.program, "train"), (population._members, "_play")):
        program = getattr(owner, name)
        waiting = lambda *arguments, program=program: (both.wait(), program(*arguments))[1]  # noqa: E731
        monkeypatch.setattr(owner, name, waiting)
    population.fit(steps=SIZE)
    population.evaluate(1)


# After one update, TRPO's vectorized members differ from single runs by 4e-8. In the second update, a change of the
# weights by one unit in the last place moves the result by 6e-8 or by 7.4e-6.
@pytest.mark.parametrize(
    ("kind", "members", "atol"),
    [(noterl.PQN, "ThreadedMembers", 2e-6), (noterl.TRPO, "VectorizedMembers", 1e-5)],
)
def test_members_of_other_agents_equal_single_runs(
    kind: type[noterl.Agent], members: str, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(seed: int) -> noterl.Agent:
        return kind(line(), hidden=(8,), rollout_steps=4, seed=seed)

    use_members(members, monkeypatch)
    population = noterl.Population(one(1), seeds=[1, 5])
    population.fit(steps=24, num_envs=3)
    for number, seed in enumerate(population.seeds):
        single = one(seed)
        single.fit(steps=24, num_envs=3, verbose=0)
        for name, value in single.get_weights().items():
            np.testing.assert_allclose(population.member(number).get_weights()[name], value, rtol=1e-4, atol=atol)


def test_history_has_a_list_for_each_member(trained: Any, tmp_path: Path) -> None:
    rewards = trained.history["reward"]
    assert len(rewards) == len(trained) == 3
    assert rewards[0] != rewards[1]
    trained.history.plot(window=2, path=tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 0
    with pytest.raises(KeyError, match="loss"):
        trained.history["loss"]


def test_evaluation_equals_that_of_a_policy_on_the_host(trained: Any) -> None:
    result = trained.evaluate(episodes=4, seed=5)
    assert result["returns"].shape == result["lengths"].shape == (3, 4)
    assert (result["lengths"] <= 7).all()
    again = trained.evaluate(episodes=4, seed=5)
    np.testing.assert_array_equal(result["returns"], again["returns"])
    best = trained.best(episodes=4, seed=5)
    number = int(np.argmax(result["reward_mean"]))
    for name, value in trained.member(number).get_weights().items():
        np.testing.assert_array_equal(value, best.get_weights()[name])


def test_best_is_chosen_on_other_episodes_than_evaluate_plays(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    play, seeds = trained.evaluate, []
    monkeypatch.setattr(trained, "evaluate", lambda episodes, *, seed: seeds.append(seed) or play(episodes, seed=seed))
    best = trained.best(8)
    chosen = play(8, seed=seeds[0])
    assert (chosen["returns"] != play(8)["returns"]).any()
    number = int(np.argmax(chosen["reward_mean"]))
    for name, value in trained.member(number).get_weights().items():
        np.testing.assert_array_equal(value, best.get_weights()[name])


def test_evaluation_before_training_does_not_change_it() -> None:
    evaluated, other = noterl.Population(make(), seeds=2), noterl.Population(make(), seeds=2)
    first = evaluated.evaluate(2)
    assert first["returns"].shape == (2, 2)
    np.testing.assert_array_equal(evaluated.evaluate(2)["returns"], first["returns"])
    for population in (evaluated, other):
        population.fit(steps=24, num_envs=3)
    assert evaluated.history is not None and other.history is not None
    assert evaluated.history.members == other.history.members
    with pytest.raises(ValueError, match="in 1 environments"):  # the default, also after an evaluation
        fresh = noterl.Population(make(), seeds=2)
        fresh.evaluate(1)
        fresh.fit(steps=24)


def test_saved_member_trains_on(trained: Any, tmp_path: Path) -> None:
    trained.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"member-{k:03d}.noterl" for k in range(3)]
    restored = make(trained.seeds[1])
    restored.restore(tmp_path / "member-001.noterl")
    restored.fit(steps=9, num_envs=3, verbose=0)
    single = make(trained.seeds[1])
    single.fit(steps=72, num_envs=3, verbose=0)
    assert restored.updates == single.updates == 24
    for name, value in single.get_weights().items():
        np.testing.assert_allclose(restored.get_weights()[name], value, rtol=1e-3, atol=1e-5)


def test_hyperparameters_differ_by_member() -> None:
    agent = make()
    values = {"learning_rate": [0.0, 1e-2], "clip": [0.1, 0.3]}
    population = noterl.Population(agent, seeds=[3, 3], hyperparameters=values)
    before = agent.get_weights()
    population.fit(steps=2 * SIZE, num_envs=3)
    still, moved = (population.member(number) for number in range(2))
    assert (float(still.clip), float(moved.clip)) == pytest.approx((0.1, 0.3))
    assert moved.learning_rate == pytest.approx(1e-2)
    for name, value in before.items():
        np.testing.assert_array_equal(still.get_weights()[name], value)
        assert not np.array_equal(moved.get_weights()[name], value)


def test_member_that_is_not_finite_keeps_its_weights_and_others_train_on() -> None:
    population = noterl.Population(make(), seeds=[3, 4], hyperparameters={"value_coefficient": [0.5, 3e38]})
    with pytest.warns(RuntimeWarning, match="member 1"):
        population.fit(steps=4 * SIZE, num_envs=3)
    assert set(population.failed) == {1}
    assert all(np.isfinite(value).all() for value in population.member(1).get_weights().values())
    assert population.member(0).updates == 16
    failed = population.failed[1]
    with pytest.warns(RuntimeWarning, match="member 1"):
        population.fit(steps=4 * SIZE)
    assert population.failed[1] >= failed


def test_members_have_the_current_hyperparameters_of_the_agent() -> None:
    agent = make()
    agent.clip = 0.37
    population = noterl.Population(agent, seeds=2, hyperparameters={"entropy_coefficient": [0.0, 0.1]})
    for number in range(2):
        assert float(population.member(number).clip) == pytest.approx(0.37)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seeds": 0},
        {"seeds": "ab"},
        {"seeds": [1, None]},
        {"seeds": 2, "hyperparameters": {"clip": [0.1]}},
        {"seeds": 2, "hyperparameters": {"clip": [0.1, -1.0]}},
        {"seeds": 2, "hyperparameters": {"speed": [0.1, 0.2]}},
        {"seeds": 2, "hyperparameters": {"learning_rate": [0.1, -0.2]}},
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any]) -> None:
    name = "hyperparameters" if "hyperparameters" in arguments else "seeds"
    if name == "hyperparameters" and "clip" in arguments[name] and len(arguments[name]["clip"]) == 2:
        name = "clip"
    with pytest.raises(ValueError, match="seed" if name == "seeds" else name):
        noterl.Population(make(), **arguments)


def test_refused_number_of_environments_leaves_the_last_one() -> None:
    agent = noterl.PPO(line(), rollout_steps=4, epochs=1, hidden=(4,), seed=1)
    agent.compile(batch_size=8)
    population = noterl.Population(agent, seeds=2)
    population.fit(steps=8, num_envs=2, verbose=0)
    with pytest.raises(ValueError, match="batch_size"):
        population.fit(steps=8, num_envs=1, verbose=0)
    population.fit(steps=8, verbose=0)
    assert population.steps == 16


def test_agent_that_has_trained_is_refused(tmp_path: Path) -> None:
    trained, restored = make(), make()
    trained.fit(steps=SIZE, num_envs=3, verbose=0)
    trained.save(tmp_path / "trained.noterl")
    restored.restore(tmp_path / "trained.noterl")
    for agent in (trained, restored):
        with pytest.raises(ValueError, match=rf"agent must .*{SIZE} steps"):
            noterl.Population(agent)


def test_agent_with_changed_weights_is_refused() -> None:
    pretrained, loaded = make(), make()
    pretrained.pretrain(demonstrations(spaces.Discrete(2), observation_space=LINE), updates=1, verbose=0)
    loaded.set_weights(make(seed=4).get_weights())
    for agent in (pretrained, loaded):
        with pytest.raises(ValueError, match="agent must have the initial weights"):
            noterl.Population(agent)


def test_agents_that_cannot_train_on_the_device_are_refused() -> None:
    for agent in (noterl.DQN(line(), hidden=(4,)), noterl.PPO("CartPole-v1", hidden=(4,))):
        with pytest.raises(ValueError, match="agent"):
            noterl.Population(agent)
    with pytest.raises(ValueError, match="clip"):
        noterl.Population(make(clip=Linear(0.2, 0.1, 100)), seeds=2, hyperparameters={"clip": [0.1, 0.2]})


def test_actions_of_several_parts_are_evaluated() -> None:
    import jax.numpy as jnp

    def step(key: Any, count: Any, action: Any) -> Any:
        return jnp.zeros(2), count + 1, jnp.float32(action[0]), False, count >= 3

    env = noterl.envs.functional(
        lambda key: (jnp.zeros(2), jnp.int32(0)), step, spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])
    )
    agent = noterl.PPO(env, hidden=(4,), rollout_steps=4, epochs=1, seed=1)
    agent.compile(batch_size=4)
    population = noterl.Population(agent, seeds=2)
    population.fit(steps=8, verbose=0)
    assert len(population.evaluate(episodes=2)["reward_mean"]) == 2
