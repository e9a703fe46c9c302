"""Agents that act, are saved and are restored without a memory, without slots of optimizers and without an update."""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.callbacks import Arena
from noterl.imitation import GAIL, Demonstrations
from noterl.learning.optimizers import DeferredOptimizer
from noterl.replay import Prioritized, Replay
from noterl.replay import replay as replay_module
from tests.support.doubles import CountingEnv
from tests.support.parts import learner_of
from tests.support.representatives import representatives
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("torch")


def compiled(agent: Any, **arguments: Any) -> Any:
    agent.compile(**arguments)
    return agent


def dqn(optimizer: Any = None, **arguments: Any) -> Any:
    settings = {"replay": Replay(64, sampler=Prioritized(beta_steps=500)), "learning_starts": 16, "batch_size": 8}
    return compiled(noterl.DQN("CartPole-v1", hidden=(8,), seed=1), optimizer=optimizer, **{**settings, **arguments})


def ppo(**arguments: Any) -> Any:
    return compiled(noterl.PPO("CartPole-v1", hidden=(8,), rollout_steps=32, epochs=1, seed=1), **arguments)


def sac(**arguments: Any) -> Any:
    settings = {"replay": Replay(200), "learning_starts": 16, "batch_size": 8}
    agent = noterl.SAC("Pendulum-v1", hidden=(8,), seed=1, normalize_observation=True)
    return compiled(agent, **{**settings, **arguments})


def acer() -> Any:
    return compiled(noterl.ACER("CartPole-v1", hidden=(8,), rollout_steps=8, replay_starts=0, seed=1))


def imitator() -> Any:
    expert = noterl.DQN("CartPole-v1", hidden=(4,), seed=3)
    return ppo(reward_model=GAIL(Demonstrations.record(expert, episodes=2), hidden=(8,)))


AGENTS: dict[str, Callable[[], Any]] = {
    "DQN": dqn,
    "Adafactor": lambda: dqn(keras.optimizers.Adafactor(1e-2, beta_2_decay=-0.7)),
    "Nadam, averaged weights": lambda: dqn(keras.optimizers.Nadam(1e-2, beta_1=0.8, use_ema=True)),
    "SGD without slots": lambda: dqn(keras.optimizers.SGD(1e-2)),
    "PPO": ppo,
    "PPO, replayed": lambda: ppo(replay=Replay(100)),
    "SAC": sac,
    "ACER": acer,
    "GAIL": imitator,
}
STEPS = 150  # the last rollout of 32 steps is incomplete


def is_allocated(agent: Any) -> bool:
    """Return whether the agent has a memory with rows, an optimizer with slots, or a full rollout."""
    learner = agent._parts.learner
    names = [agent.replay is not None and agent.replay.nbytes, *(one.built for one in learner.optimizers.values())]
    if learner.reward_model is not None:
        names.append(learner.reward_model.optimizer.built)
    if learner.rollout is not None and learner.rollout.num_envs:
        names.append(len(learner.rollout.valid) == learner.rollout.length)
    return any(names) or learner.is_built


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("name", representatives(AGENTS, "DQN"))
def test_loaded_agent_acts_and_is_saved_without_allocating(name: str, tmp_path: Path) -> None:
    make = AGENTS[name]
    agent, first, second = make(), tmp_path / "first.noterl", tmp_path / "second.noterl"
    agent.fit(steps=STEPS, verbose=0)
    agent.save(first)
    contents, loaded = members(first), noterl.load(first)
    first.unlink()
    observation = agent.observation_space.sample()
    assert np.array_equal(loaded.act(observation), agent.act(observation))
    result = loaded.evaluate(episodes=1)
    assert np.array_equal(result["returns"], loaded.play(episodes=1)["returns"])
    loaded.export(tmp_path / "policy", "numpy")
    assert_same_state(agent, loaded)
    assert loaded.replay is None or len(loaded.replay) == len(agent.replay) > 0
    assert loaded.learning_rate == agent.learning_rate
    loaded.save(second)
    assert members(second) == contents
    assert not is_allocated(loaded)
    for each in (agent, loaded):
        each.fit(steps=40, verbose=0)
    assert is_allocated(loaded)
    assert_same_state(agent, loaded)


def test_new_agent_acts_without_allocating_or_calling_update() -> None:
    class Broken(noterl.DQN):
        def loss(self, batch: Any) -> Any:
            raise AssertionError("loss was called")

    agent = Broken("CartPole-v1", hidden=(8,), seed=1)
    agent.act(np.zeros(4, np.float32))
    agent.evaluate(episodes=1)
    for call in (agent.build, lambda: agent.fit(steps=1100, verbose=0)):
        with pytest.raises(AssertionError, match="loss was called"):
            call()
        assert not is_allocated(agent) and agent.steps == 0


def test_arena_allocates_nothing_for_loaded_opponents(tmp_path: Path) -> None:
    def player(seed: int) -> Any:
        agent = noterl.AlphaZero(noterl.envs.games.TicTacToe(), hidden=(8,), simulations=2, seed=seed)
        return compiled(agent, replay=Replay(100), learning_starts=4, batch_size=4)

    player(2).save(tmp_path / "opponent.noterl")
    opponent = noterl.load(tmp_path / "opponent.noterl")

    def choose(game: Any, states: Any, generator: Any) -> Any:
        return opponent.act(game.observe(states), action_mask=game.legal_actions(states))

    arena = Arena({"opponent": choose}, 1, games=2)
    player(1).fit(episodes=1, callbacks=[arena], verbose=0)
    assert len(arena.results["episodes"]) == 1
    opponent.search(noterl.envs.games.TicTacToe().start(1)[0])
    assert not is_allocated(opponent)


def test_memory_that_does_not_fit_the_machine_is_refused_by_fit_only(tmp_path: Path) -> None:
    env = CountingEnv()
    agent = compiled(noterl.DQN(env, hidden=(4,), seed=1), replay=Replay(10**15))
    agent.save(tmp_path / "agent.noterl")
    assert agent.get_state()["replay"]["capacity"] == 10**15 and not agent.replay.nbytes
    loaded = noterl.load(tmp_path / "agent.noterl")
    observation = env.observation_space.sample()
    assert loaded.act(observation) == agent.act(observation) and len(loaded.replay) == 0
    for call in (agent.build, lambda: agent.fit(steps=1, verbose=0)):
        with pytest.raises(ValueError, match=r"capacity=10{15} needs"):
            call()
    assert env.episode == -1 and agent.steps == 0
    agent.compile(replay=100)
    agent.fit(steps=1, verbose=0)
    assert agent.steps == 1


def test_loading_makes_no_folder_for_a_memory_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    agent = dqn(replay=Replay(64, memmap=folder))
    agent.fit(steps=30, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    folder.rmdir()
    with pytest.warns(UserWarning, match="it will be in RAM"):
        loaded = noterl.load(tmp_path / "agent.noterl")
    loaded.evaluate(episodes=1)
    assert len(loaded.replay) == 30 and not folder.exists()
    loaded.fit(steps=1, verbose=0)
    assert not folder.exists()


def change(*keys: Any, to: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(state: dict[str, Any]) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = to(state[keys[-1]])

    return apply


SLOTS = ("optimizers", "optimizer", "slots")
WRONG = {
    "another capacity": ("DQN", change("replay", "capacity", to=lambda capacity: capacity + 1)),
    "more rows than the capacity": ("DQN", change("replay", "count", to=lambda count: count + 1)),
    "dtype of a column": ("DQN", change("replay", "columns", "action", to=lambda parts: [parts[0].astype(np.int8)])),
    "column missing": ("DQN", lambda state: state["replay"]["columns"].pop("reward")),
    "link": ("DQN", change("replay", "distance", to=lambda distance: distance + 64)),
    "priorities": ("DQN", change("replay", "sampler", "scores", to=lambda scores: scores[1:])),
    "exponent": ("DQN", change("replay", "sampler", "alpha", to=lambda alpha: 2.0)),
    "slots missing": ("DQN", lambda state: state["optimizers"]["optimizer"]["slots"].pop("velocities")),
    "slot of a variable missing": ("DQN", change(*SLOTS, "velocities", to=lambda slots: slots[1:])),
    "shape of a slot": ("DQN", change(*SLOTS, "momentums", 0, to=lambda slot: slot[1:])),
    "dtype of a slot": ("DQN", change(*SLOTS, "momentums", 0, to=lambda slot: slot.astype(np.int32))),
    "shape of a factored slot": ("Adafactor", change("optimizers", "optimizer", "scalars", 2, to=lambda row: row[1:])),
    "scalar missing": ("DQN", change("optimizers", "optimizer", "scalars", to=lambda scalars: scalars[1:])),
    "class of the optimizer": ("DQN", change("optimizers", "optimizer", "class", to=lambda name: "SGD")),
    "optimizer of another agent": ("SAC", lambda state: state["optimizers"].pop("critic")),
    "shape of a second optimizer's slot": (
        "SAC",
        change("optimizers", "critic", "slots", "momentums", 1, to=lambda slot: slot[:1]),
    ),
    "rows of the rollout": ("PPO", change("rollout", "arrays", "reward", to=lambda rewards: rewards[1:])),
    "dtype of the rollout": ("PPO", change("rollout", "arrays", "action", to=lambda actions: actions.astype(float))),
    "lanes of the rollout": ("PPO", change("rollout", "num_envs", to=lambda count: 10**12)),
    "prepared field": ("PPO, replayed", lambda state: state["replay"]["columns"]["extra"].popitem()),
    "sequences": ("ACER", change("replay", "columns", "observation", to=lambda parts: [parts[0][:, 1:]])),
    "discriminator": ("GAIL", change("reward_model", "variables", to=lambda weights: weights[1:])),
    "slot of the discriminator": (
        "GAIL",
        change("reward_model", "optimizer", "slots", "momentums", 0, to=lambda slot: slot[1:]),
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns the file of a trained agent."""
    folder = tmp_path_factory.mktemp("files")

    def file(name: str) -> Path:
        path = folder / f"{name}.noterl"
        if not path.exists():
            agent = AGENTS[name]()
            agent.fit(steps=STEPS if name.startswith("PPO") else 50, verbose=0)
            agent.save(path)
        return path

    return file


@pytest.mark.parametrize(("name", "damage"), WRONG.values(), ids=WRONG)
def test_wrong_file_is_refused_and_the_agent_is_unchanged(
    name: str, damage: Callable[[Any], Any], files: Callable[[str], Path], tmp_path: Path
) -> None:
    document = saving.read(files(name))
    damage(document["state"])
    saving.write(tmp_path / "wrong.noterl", document)
    victim, new = noterl.load(files(name)), AGENTS[name]()
    before = copy.deepcopy(victim.get_state())
    for restore in (noterl.load, victim.restore, new.restore):
        with pytest.raises(ValueError):
            restore(tmp_path / "wrong.noterl")
    assert_same_state(before, victim)
    assert not is_allocated(victim) and not is_allocated(new)
    victim.restore(files(name))
    assert_same_state(before, victim)


def test_changes_before_the_first_fit_stay(files: Callable[[str], Path]) -> None:
    agent = noterl.load(files("DQN"))
    agent.set_rule("learning_rate", 0.25)
    agent.set_rule("beta_1", 0.5)
    agent.replay.sampler.beta = 0.75
    state = agent.get_state()
    assert state["replay"]["sampler"]["beta"] == 0.75 and state["optimizers"]["optimizer"]["rules"]["beta_1"] == 0.5
    agent.build()
    assert (agent.learning_rate, agent.get_rule("beta_1"), agent.replay.sampler.beta) == (0.25, 0.5, 0.75)
    assert_same_state(state, agent)


def test_memory_of_a_loaded_agent_can_be_used_before_the_first_fit(files: Callable[[str], Path]) -> None:
    agent, other = noterl.load(files("DQN")), noterl.load(files("DQN"))
    other.build()
    samples = [each.replay.sample(2, 4, generator=np.random.default_rng(0)) for each in (agent, other)]
    assert np.array_equal(samples[0].indices, samples[1].indices)
    assert agent.replay.nbytes == other.replay.nbytes and not agent.optimizer.built
    assert agent.replay.num_sampleable() == len(agent.replay) == 50
    assert_same_state(agent, other)


def test_state_that_a_program_restores_is_copied(files: Callable[[str], Path]) -> None:
    for name in ("DQN", "PPO"):
        state, agent = noterl.load(files(name)).get_state(), AGENTS[name]()
        before = copy.deepcopy(state)
        agent.set_state(state)
        assert not is_allocated(agent)
        state["optimizers"]["optimizer"]["slots"]["momentums"][0][:] = 7
        if name == "DQN":
            state["replay"]["columns"]["reward"][0][:] = 7
        else:
            state["rollout"]["arrays"]["reward"][:] = 7
        assert_same_state(before, agent)


def test_file_without_a_memory_keeps_the_one_of_a_loaded_agent(files: Callable[[str], Path], tmp_path: Path) -> None:
    agent = noterl.load(files("DQN"))
    agent.save(tmp_path / "agent.noterl", replay=False)
    agent.restore(tmp_path / "agent.noterl")
    assert len(agent.replay) == 50 and not len(agent.get_state()["replay"]["heads"]["lane"])
    agent.fit(steps=10, verbose=0)
    assert len(agent.replay) == 60


@pytest.mark.parametrize("name", ["DQN", None])
def test_fields_of_a_memory_that_is_not_allocated_change(name: str | None, files: Callable[[str], Path]) -> None:
    spec = {"action_mask": ((2,), np.bool_, True), "next_action_mask": ((2,), np.bool_, True)}
    memories = []
    for _ in range(2):
        agent = AGENTS["DQN"]() if name is None else noterl.load(files(name))
        assert len(agent.get_state()["replay"]["columns"]) == 6
        memories.append(agent.replay)
    memories[1].allocate()
    for memory in memories:
        memory.add_fields(spec)
    assert all(each.all() for each in memories[0].get_state()["columns"]["extra"]["action_mask"])
    assert_same_state(*({"replay": memory.get_state()} for memory in memories))
    for memory in memories:
        memory.remove_fields(spec)
    assert_same_state(*({"replay": memory.get_state()} for memory in memories))
    memories[0].allocate()
    assert_same_state(*({"replay": memory.get_state()} for memory in memories))


def test_error_undoes_the_allocation_of_a_memory_that_was_kept(files: Callable[[str], Path], tmp_path: Path) -> None:
    agent = noterl.load(files("ACER"))
    before = copy.deepcopy(agent.get_state())
    document = saving.read(files("ACER"))
    document["state"].update(masked=True, lanes=None, replay=None)
    document["state"]["rollout"]["length"] += 1
    with pytest.raises(ValueError, match="length"):
        agent.set_document(document)
    assert_same_state(before, agent)
    assert not is_allocated(agent)
    agent.fit(steps=10, verbose=0)


def test_optimizer_is_checked_without_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    optimizer = keras.optimizers.Adam(1e-3)
    variables = [keras.Variable(np.ones((300, 200), np.float32)), keras.Variable(np.ones(7, np.float32))]
    built = DeferredOptimizer(keras.optimizers.Adam(1e-3), variables)
    built.build({})
    original = keras.optimizers.Optimizer.add_variable
    monkeypatch.setattr(
        keras.optimizers.Optimizer,
        "add_variable",
        lambda self, shape, *args, **kwargs: shapes.append(shape) or original(self, shape, *args, **kwargs),
    )
    state = built.get_state({})
    deferred = DeferredOptimizer(optimizer, variables)
    deferred.check_state(state, {})
    assert shapes == [()] * 4 and not optimizer.built
    state["slots"]["momentums"][0] = state["slots"]["momentums"][0][1:]
    with pytest.raises(ValueError, match=r"momentums.*300, 200"):
        deferred.check_state(state, {})


@pytest.mark.backends("torch")
def test_state_of_an_optimizer_of_torch_is_restored_at_once() -> None:
    import torch

    def make() -> Any:
        return dqn(lambda parameters: torch.optim.Adam(parameters, lr=0.01))

    agent, other = make(), make()
    agent.fit(steps=60, verbose=0)
    agent.set_rule("learning_rate", 0.125)
    other.set_state(agent.get_state())
    assert other.learning_rate == 0.125 and len(other.optimizer.state) == 4 and not other.replay.nbytes
    assert_same_state(agent, other)
    for each in (agent, other):
        each.fit(steps=30, verbose=0)
    assert_same_state(agent, other)


def test_available_memory_is_compared_with_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ppo(replay=Replay(1000))
    needed = learner_of(ppo(replay=Replay(1000))).replay.nbytes
    monkeypatch.setattr(replay_module, "available_bytes", lambda: needed - 1)
    env = gymnasium.make("CartPole-v1")
    monkeypatch.setattr(env, "reset", lambda **options: pytest.fail("the environment was reset"))
    with pytest.raises(ValueError, match=f"needs {needed} bytes"):
        agent.fit(env, steps=1, verbose=0)
    assert not is_allocated(agent)
