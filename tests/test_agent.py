"""Bad arguments of an agent's methods raise a ValueError that names the argument, and change nothing."""

from __future__ import annotations

import inspect
import math
import pydoc
import re
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import policies
from noterl.callbacks import Checkpoint, EarlyStopping, Evaluate, LambdaCallback, StopOnSteps
from tests.support.doubles import CountingEnv, RandomWalkEnv
from tests.support.parts import lanes_of, learner_of
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("torch")


class WrongSpaceEnv(CountingEnv):
    """An environment with other spaces than those of `CountingEnv`."""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        super().__init__()
        self.observation_space = observation_space or self.observation_space
        self.action_space = action_space or self.action_space


CONSTRUCTOR: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unknown id": ("CartPoll-v1", {}, "^env: .*CartPoll.*CartPole"),
    "no environment": (3, {}, r"^env .*got 3"),
    "a class that needs arguments": (gymnasium.Wrapper, {}, "^env: .*Wrapper.*arguments"),
    "without spaces": (gymnasium.Env, {}, "^env: .*no observation_space"),
    "a factory of something else": (dict, {}, "^env: .*dict"),
    "one space": (spaces.Discrete(2), {}, "^env .*got Discrete"),
    "text observations": (WrongSpaceEnv(spaces.Text(5)), {}, "observation_space.*Text"),
    "observations in a tuple": (WrongSpaceEnv(spaces.Tuple([spaces.Discrete(4)])), {}, r"observation.*Tuple"),
    "continuous actions": (RandomWalkEnv(), {}, r"DQN.*action.*Box"),
    "several actions": (WrongSpaceEnv(None, spaces.MultiDiscrete([2, 2])), {}, r"DQN.*action.*MultiDiscrete"),
    "negative seed": ("CartPole-v1", {"seed": -1}, r"seed .*got -1"),
    "fraction as seed": ("CartPole-v1", {"seed": 1.5}, r"seed .*got 1\.5"),
    "bool as seed": ("CartPole-v1", {"seed": True}, r"seed .*got True"),
    "hidden text": ("CartPole-v1", {"hidden": "64"}, r"hidden .*got '64'"),
    "hidden dueling": ("CartPole-v1", {"hidden": 8, "dueling": True}, "hidden"),
    "gamma NaN": ("CartPole-v1", {"gamma": float("nan")}, r"gamma .*got nan"),
    "no network": ("CartPole-v1", {"network": lambda x: x}, "network"),
}


@pytest.mark.parametrize("case", CONSTRUCTOR)
def test_constructor_raises_for_bad_argument(case: str) -> None:
    env, options, message = CONSTRUCTOR[case]
    with pytest.raises(ValueError, match=message):
        noterl.DQN(env, **options)


def network_only(agent: Any, env: Any, *, seed: int | None = None) -> None:
    agent.q = noterl.networks.mlp(5, [4], 3)


DECLARED = {
    "no head": ({}, r"^head of Mine .*got None$"),
    "the class of a head": ({"head": noterl.heads.Q}, r"^head of Mine .*got <class"),
    "another memory": ({"head": noterl.heads.Q(), "memory": "list"}, "^memory of Mine .*got 'list'$"),
    "random_spec": ({"head": noterl.heads.Q(), "random_spec": 3}, r"^random_spec of Mine .*got 3$"),
    "no optimizer": (
        {"head": noterl.heads.Q(), "optimizer_names": ()},
        r"^optimizer_names of Mine .*got \(\)$",
    ),
    "letters": (
        {"head": noterl.heads.Q(), "optimizer_names": "abc"},
        r"^optimizer_names of Mine .*got 'abc'$",
    ),
    "an optimizer twice": (
        {"head": noterl.heads.Q(), "optimizer_names": ["a", "a"]},
        r"^optimizer_names of Mine .*got \['a', 'a'\]$",
    ),
    "an optimizer for nothing": (
        {"head": noterl.heads.Q(), "optimizer_names": ("a", "b"), "loss": lambda self, batch: 0.0},
        r"^optimizer_names of Mine .*got \('a', 'b'\)$",
    ),
    "no super": ({"head": noterl.heads.Q(), "__init__": network_only}, r"^Mine\.__init__ .*super\(\)"),
}


@pytest.mark.parametrize("case", DECLARED)
def test_bad_declaration_raises_with_its_name(case: str) -> None:
    declared, message = DECLARED[case]
    with pytest.raises(ValueError, match=message):
        type("Mine", (noterl.Agent,), declared)((spaces.Box(-1, 1, (5,)), spaces.Discrete(3))).compile()


def test_log_names_must_be_str() -> None:
    class Numbered(noterl.DQN):
        def update(self, batch: Any) -> Any:
            loss, feedback = self.minimize(self.loss, self.q, "optimizer", batch)
            return {"loss": loss, 3: loss}, feedback

    with pytest.raises(ValueError, match=r"^update .*Numbered.*\[3\]"):
        Numbered("CartPole-v1", hidden=(4,), seed=1).build()


def test_unknown_argument_raises_type_error() -> None:
    with pytest.raises(TypeError, match="gama"):
        noterl.DQN("CartPole-v1", gama=0.9)


COMPILE: dict[str, tuple[dict[str, Any], str]] = {
    "policy class": ({"policy": policies.GreedyQPolicy}, r"policy .*got .*GreedyQPolicy"),
    "policy name": ({"policy": "greedyy"}, r"policy .*got 'greedyy'"),
    "policy on probabilities": (
        {"policy": policies.SoftmaxPolicy()},
        "policy SoftmaxPolicy .* Q ",
    ),
    "policy on logits": ({"policy": policies.GumbelSoftmaxPolicy()}, "policy GumbelSoftmaxPolicy .*logits"),
    "replay number": ({"replay": -1000}, r"replay .*got -1000"),
    "replay class": ({"replay": noterl.Replay}, "replay"),
    "batch too large": ({"replay": noterl.Replay(10), "batch_size": 11}, r"batch_size .*got 11"),
    "default batch too large": ({"replay": noterl.Replay(10)}, r"batch_size .*got 64"),
    "batch zero": ({"batch_size": 0}, r"batch_size .*got 0"),
    "batch bool": ({"batch_size": True}, "batch_size"),
    "learning_starts": ({"learning_starts": -1}, r"learning_starts .*got -1"),
    "update_every": ({"update_every": 0}, r"update_every .*got 0"),
    "update_every text": ({"update_every": "step"}, r"update_every .*got 'step'"),
    "update_every pass": ({"update_every": "pass"}, "update_every .*got 'pass'"),
    "updates episode": ({"updates": "episode"}, "updates .*got 'episode'"),
    "updates bool": ({"updates": True}, "updates .*got True"),
    "batch fraction": ({"batch_size": 2.0}, r"batch_size .*got 2\.0"),
    "update_every array": ({"update_every": np.array([1, 2])}, r"update_every .*got array\(\[1, 2\]\)"),
    "updates array": ({"updates": np.array([1, 2])}, r"updates .*got array\(\[1, 2\]\)"),
    "batch array": ({"batch_size": np.array([1, 2])}, r"batch_size .*got array\(\[1, 2\]\)"),
    "updates": ({"updates": 1.5}, r"updates .*got 1\.5"),
    "target_update zero": ({"target_update": 0}, r"target_update .*got 0"),
    "target_update fraction": ({"target_update": 1.5}, r"target_update .*got 1\.5"),
    "target_update negative": ({"target_update": -0.5}, r"target_update .*got -0\.5"),
    "target_update one": ({"target_update": 1.0}, r"target_update .*got 1\.0"),
    "target_update NaN": ({"target_update": float("nan")}, "target_update .*got nan"),
    "target_update infinite": ({"target_update": float("inf")}, "target_update .*got inf"),
    "target_update text": ({"target_update": "soft"}, "target_update .*got 'soft'"),
    "target_update bool": ({"target_update": True}, "target_update .*got True"),
    "jit_compile text": ({"jit_compile": "yes"}, r"jit_compile .*got 'yes'"),
    "jit_compile number": ({"jit_compile": 1}, r"jit_compile .*got 1"),
    "jit_compile array": ({"jit_compile": np.array([1, 2])}, r"jit_compile .*got array\(\[1, 2\]\)"),
    "steps_per_execution array": (
        {"steps_per_execution": np.array([1, 2])},
        r"steps_per_execution .*got array",
    ),
    "steps_per_execution": ({"steps_per_execution": 0}, r"steps_per_execution .*got 0"),
    "steps_per_execution text": ({"steps_per_execution": "all"}, r"steps_per_execution .*got 'all'"),
    "optimizer class": ({"optimizer": keras.optimizers.Adam}, "^optimizer .*got .*Adam"),
    "optimizer name": ({"optimizer": "adamm"}, r"optimizer.*'adamm'"),
    "optimizer number": ({"optimizer": -0.001}, r"^optimizer.*got -0\.001"),
    "optimizers too many": ({"optimizer": ["adam", "sgd"]}, "^optimizer .*got 2"),
    "optimizers by name": ({"optimizer": {"actor": "adam"}}, r"^optimizer .*\['optimizer'\].*got \['actor'\]"),
}


@pytest.fixture(scope="module")
def agent() -> Any:
    """Return a compiled agent with an episode in progress."""
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(
        policy=policies.EpsGreedyQPolicy(0.5),
        replay=noterl.Replay(500),
        learning_starts=100,
        batch_size=4,
        target_update=500,
    )
    agent.fit(steps=5, num_envs=2, verbose=0)
    return agent


@pytest.mark.parametrize("case", COMPILE)
def test_compile_raises_for_bad_argument_and_changes_nothing(case: str, agent: Any) -> None:
    arguments, message = COMPILE[case]
    before = agent.get_state()

    def parts() -> tuple[Any, ...]:
        return agent.policy, agent.replay, agent.schedule, agent.optimizer, lanes_of(agent), learner_of(agent)

    parts_before = parts()
    with pytest.raises(ValueError, match=message):
        # The first arguments are valid: an error in a later one must not leave them applied.
        agent.compile(**{"policy": policies.GreedyQPolicy(), "target_update": 0.5, **arguments})
    assert parts() == parts_before
    learner = learner_of(agent)
    assert float(agent.tau) == 1.0 and learner.jit_compile == "auto" and learner.steps_per_execution == "auto"
    assert_same_state(before, agent)


@pytest.mark.backends("tensorflow", "jax")
def test_optimizer_of_another_framework_names_the_remedy(agent: Any, backend: str) -> None:
    def build(parameters: Any) -> Any:
        raise AssertionError("must not be called")

    optimizer = type("Adam", (), {"__module__": "torch.optim.adam"})()
    for other, kind in ((build, "a function"), (optimizer, "Adam")):
        with pytest.raises(ValueError, match=rf"^optimizer: {kind} .*KERAS_BACKEND=torch"):
            agent.compile(other)


class UncopiableEnv(CountingEnv):
    """An environment that cannot be copied, because it holds a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = (number for number in range(3))


FIT: dict[str, tuple[dict[str, Any], str]] = {
    "no budget": ({}, "episodes or steps"),
    "no stopping callback": ({"callbacks": [Checkpoint("nowhere")]}, "episodes or steps"),
    "episodes zero": ({"episodes": 0}, r"episodes .*got 0"),
    "episodes negative": ({"episodes": -3}, r"episodes .*got -3"),
    "episodes fraction": ({"episodes": 1.5}, r"episodes .*got 1\.5"),
    "episodes bool": ({"episodes": True}, r"episodes .*got True"),
    "steps zero": ({"steps": 0, "episodes": 3}, r"steps .*got 0"),
    "steps text": ({"steps": "100"}, r"steps .*got '100'"),
    "num_envs": ({"steps": 1, "num_envs": 0}, r"num_envs .*got 0"),
    "verbose": ({"steps": 1, "verbose": 3}, r"verbose .*got 3"),
    "verbose array": ({"steps": 1, "verbose": np.array([1, 2])}, r"verbose .*got array\(\[1, 2\]\)"),
    "episodes as env": ({"env": 10}, r"^env.*got 10: .*fit\(episodes=10\)$"),
    "verbose bool": ({"steps": 1, "verbose": True}, r"verbose .*got True"),
    "verbose text": ({"steps": 1, "verbose": "loud"}, r"verbose .*got 'loud'"),
    "log_every": ({"steps": 1, "log_every": 0}, r"log_every .*got 0"),
    "seed": ({"steps": 1, "seed": -1}, r"seed .*got -1"),
    "callback class": ({"steps": 1, "callbacks": [EarlyStopping]}, "callbacks: .*class EarlyStopping"),
    "no callback": ({"steps": 1, "callbacks": [print]}, "callbacks: .*print"),
    "no list": ({"steps": 1, "callbacks": EarlyStopping(1, 1)}, "callbacks"),
    "unknown env": ({"steps": 1, "env": "CartPoll-v1"}, "^env: .*CartPoll"),
    "other observations": ({"steps": 1, "env": "Acrobot-v1"}, "^env .*observation_space"),
    "other actions": ({"steps": 1, "env": "MountainCar-v0"}, "^env .*observation_space"),
    "vector num_envs": (
        {"steps": 1, "num_envs": 3, "env": gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")},
        "num_envs .*3.* 2",
    ),
}


@pytest.mark.parametrize("case", FIT)
def test_fit_raises_for_bad_argument_and_changes_nothing(case: str, agent: Any) -> None:
    arguments, message = FIT[case]
    before, lanes = agent.get_state(), lanes_of(agent)
    with pytest.raises(ValueError, match=message):
        agent.fit(**{"seed": 9, "verbose": 0, **arguments})
    assert lanes_of(agent) is lanes
    assert_same_state(before, agent)


def test_fit_raises_for_another_action_space(agent: Any) -> None:
    env = WrongSpaceEnv(agent.observation_space, spaces.Discrete(3))
    with pytest.raises(ValueError, match=r"^env .*Discrete\(3\).*Discrete\(2\)"):
        agent.fit(env, steps=1, verbose=0)


def test_fit_that_raises_closes_only_environments_it_created(agent: Any) -> None:
    created = []
    with pytest.raises(ValueError, match="observation_space"):
        agent.fit(lambda: created.append(CountingEnv()) or created[-1], steps=1, verbose=0)
    assert [env.closed for env in created] == [1]
    own = CountingEnv()
    with pytest.raises(ValueError, match="observation_space"):
        agent.fit(own, steps=1, verbose=0)
    assert own.closed == 0, "fit must not close an environment of the user"


def test_lanes_that_cannot_be_created_keep_the_episode_in_progress() -> None:
    def build() -> noterl.DQN:
        agent = noterl.DQN(UncopiableEnv(), hidden=(4,), seed=1)
        agent.fit(steps=3, verbose=0)
        return agent

    whole, agent = build(), build()
    before = agent.get_state()
    for seed in (None, 5):
        with pytest.raises(ValueError, match=r"^env: .*UncopiableEnv.*factory"):
            agent.fit(steps=2, num_envs=2, seed=seed, verbose=0)
        assert_same_state(before, agent)
    # Seed and actions restore the step within the episode; the observation counts episodes and differs.
    with pytest.warns(RuntimeWarning, match="environment 0"):
        agent.fit(steps=9, verbose=0)
    whole.fit(steps=9, verbose=0)
    assert agent.steps == whole.steps


def test_evaluate_and_act_raise_for_bad_argument(agent: Any) -> None:
    before = agent.get_state()
    for arguments, message in (
        ({"episodes": 0}, r"episodes .*got 0"),
        ({"num_envs": 1.5}, r"num_envs .*got 1\.5"),
        ({"seed": -4}, r"seed .*got -4"),
        ({"env": "Acrobot-v1"}, "^env .*observation_space"),
        ({"env": 3}, "^env .*got 3"),
        ({"deterministic": "x"}, r"deterministic .*got 'x'"),
        ({"deterministic": None}, r"deterministic .*got None"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.evaluate(**arguments)
    with pytest.raises(ValueError, match=r"deterministic .*got 1"):
        agent.act(np.zeros(4), deterministic=1)
    for observation in (np.zeros(3), np.zeros((2, 3)), np.float32(1), np.zeros((1, 1, 4))):
        with pytest.raises(ValueError, match=r"^observation .*\(4,\)"):
            agent.act(observation)
    assert_same_state(before, agent)


def test_save_and_stop_raise_for_bad_argument(agent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"replay .*got 'x'"):
        agent.save(tmp_path / "a.noterl", replay="x")
    assert list(tmp_path.iterdir()) == []
    before = agent.stop_training, agent.stop_reason
    for reason in (3, None):
        with pytest.raises(ValueError, match=rf"reason .*got {reason}"):
            agent.stop(reason)
    assert (agent.stop_training, agent.stop_reason) == before


def test_unknown_rule_or_bad_value_raises(agent: Any) -> None:
    before = agent.get_state()
    with pytest.raises(ValueError, match=r"optimizer Adam .*'momentum'"):
        agent.set_rule("momentum", 0.5)
    with pytest.raises(ValueError, match=r"optimizer .*got 'actor'"):
        agent.set_rule("learning_rate", 0.5, "actor")
    for value in (True, "0.5", None):
        with pytest.raises(ValueError, match="learning_rate must be"):
            agent.set_rule("learning_rate", value)
    with pytest.raises(ValueError, match=r"gamma must be"):
        agent.gamma = 2.0
    assert_same_state(before, agent)


def test_agent_of_spaces_needs_env_for_fit_and_evaluate() -> None:
    agent = noterl.DQN((spaces.Box(-1, 1, (4,)), spaces.Discrete(2)), hidden=(4,), seed=1)
    with pytest.raises(ValueError, match=r"^env: .*env="):
        agent.fit(steps=1, verbose=0)
    with pytest.raises(ValueError, match=r"^env: .*env="):
        agent.evaluate(episodes=1)
    assert agent.steps == 0


def test_capacity_beyond_free_memory_raises() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(replay=noterl.Replay(10**15))
    for call in (agent.build, lambda: agent.fit(steps=1, verbose=0)):
        with pytest.raises(ValueError, match=r"capacity=10{15} .*GB"):
            call()
    agent.compile(replay=100)
    agent.fit(steps=1, verbose=0)
    assert agent.steps == 1


def test_unwritable_checkpoint_raises_before_training(agent: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    steps = agent.steps
    with pytest.raises(OSError, match="file"):
        agent.fit(steps=1, callbacks=[Checkpoint(tmp_path / "file" / "runs")], verbose=0)
    assert agent.steps == steps


def test_build_compiles_with_the_defaults() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=0)
    agent.build()
    assert agent.replay.capacity == agent.defaults().capacity


@pytest.mark.parametrize("method", ["restore", "set_state", "compile", "fit", "close"])
def test_method_raises_while_fit_is_running(method: str, tmp_path: Path) -> None:
    agent = noterl.DQN(CountingEnv, hidden=(4,), seed=0)
    agent.compile(replay=noterl.Replay(64), learning_starts=64)
    agent.save(tmp_path / "a.noterl")
    before = agent.get_state()

    def call(episode: int, logs: dict[str, Any]) -> None:
        arguments = {"restore": (tmp_path / "a.noterl",), "set_state": (before,), "fit": (None, 1)}.get(method, ())
        getattr(agent, method)(*arguments)

    with pytest.raises(RuntimeError, match=rf"^{method} .*fit is running"):
        agent.fit(episodes=2, callbacks=[LambdaCallback(on_episode_end=call)], verbose=0)
    agent.set_state(before)  # allowed after the fit
    assert agent.steps == 0


class TestCompletion:
    def test_dir_lists_what_users_use(self) -> None:
        class Mine(noterl.PPO):
            def greet(self) -> None: ...

            def _greet(self) -> None: ...

        names = dir(Mine("CartPole-v1", hidden=(4,)))
        assert {"compile", "fit", "evaluate", "act", "save", "restore", "steps", "summary", "learning_rate"} <= set(
            names
        )
        assert {"actor", "critic", "gamma", "clip", "rollout_steps", "epochs", "greet"} <= set(names)
        assert not {"minimize", "prepare", "get_document", "set_document", "preserved", "trace_counts"} & set(names)
        assert not [name for name in names if name.startswith("_")]
        assert len(names) < 60

    def test_every_listed_name_exists(self) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,))
        agent.compile()
        assert all(hasattr(agent, name) for name in dir(agent))

    @pytest.mark.parametrize(
        "agent",
        [noterl.DQN, noterl.PPO, noterl.A2C, noterl.ACER, noterl.DDPG, noterl.TD3, noterl.SAC, noterl.MADDPG],
    )
    def test_help_shows_every_argument(self, agent: Any) -> None:
        text = pydoc.plain(pydoc.render_doc(agent))
        shown = text.partition("Methods defined here")[0] + re.search(r"\n \|  __init__\(.*\n", text)[0]
        assert "**" not in shown
        for argument in inspect.signature(agent).parameters:
            assert re.search(rf"\n \|      {argument}: ", text), argument
        assert {"hidden", "network", "seed", "normalize_reward"} <= set(inspect.signature(agent.__init__).parameters)


@pytest.mark.backends("torch")
class TestShortForms:
    """Short forms of arguments: 1e6 as a number of steps, a number as a memory or learning rate, a name as a policy."""

    def test_budgets_accept_floats_without_a_fraction(self) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
        agent.fit(steps=2e1, verbose=0)
        assert (agent.steps, type(agent.steps)) == (20, int)
        before = agent.episodes
        agent.fit(episodes=np.float64(1), verbose=0)
        assert agent.episodes == before + 1
        for name, value in (("steps", 2.5), ("steps", math.inf), ("episodes", math.nan), ("steps", -1e3)):
            with pytest.raises(ValueError, match=rf"^{name} must be a positive int"):
                agent.fit(**{name: value}, verbose=0)

    def test_other_counts_accept_floats(self) -> None:
        counts = [
            StopOnSteps(1e6).steps,
            Evaluate(every=1e6).every.count,
            Checkpoint("files", 1e6, unit="steps").every.count,
            noterl.schedules.Linear(1.0, 0.0, 1e6).steps,
            noterl.schedules.Piecewise([1e6], [1.0, 0.0]).boundaries[0],
            noterl.policies.LinearEpsGreedyPolicy(steps=1e6).steps,
            noterl.noise.GaussianWhiteNoiseProcess(n_steps_annealing=1e6).n_steps_annealing,
            noterl.replay.Prioritized(beta_steps=1e6).beta_steps,
        ]
        assert counts == [1_000_000] * len(counts) and all(type(count) is int for count in counts)

    def test_compile_counts_accept_floats(self) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,))
        agent.compile(learning_starts=1e3, update_every=4e0, target_update=1e4, replay=noterl.Replay(1e5))
        schedule = agent.schedule
        assert (schedule.learning_starts, schedule.update_every, schedule.hard_copy_every) == (1000, 4, 10_000)
        assert agent.replay.capacity == 100_000
        for target_update in (1.0, 2.5):
            with pytest.raises(ValueError, match="target_update"):
                agent.compile(target_update=target_update)

    @pytest.mark.parametrize("capacity", [10_000, 1e4, np.int64(10_000)])
    def test_number_for_replay_is_the_capacity_of_the_default_memory(self, capacity: Any) -> None:
        for kind, n_step in ((noterl.DQN, 3), (noterl.SAC, 1)):
            agent = kind("CartPole-v1" if kind is noterl.DQN else "Pendulum-v1", hidden=(4,))
            agent.compile(replay=capacity)
            assert (agent.replay.capacity, agent.replay.n_step) == (10_000, n_step)
            assert agent.compile_arguments["replay"] is agent.replay
            agent.compile()
            assert agent.replay.n_step == n_step

    @pytest.mark.parametrize("capacity", [0, 2.5, True, "big"])
    def test_other_values_for_replay_raise(self, capacity: Any) -> None:
        with pytest.raises(ValueError, match=r"^replay must"):
            noterl.DQN("CartPole-v1", hidden=(4,)).compile(replay=capacity)

    def test_number_for_optimizer_is_the_learning_rate_of_the_default(self) -> None:
        for kind, optimizer in ((noterl.DQN, "Adam"), (noterl.PPO, "Adam"), (noterl.A2C, "RMSprop")):
            agent = kind("CartPole-v1", hidden=(4,))
            agent.compile(optimizer=2e-3)
            assert type(agent.optimizer).__name__ == optimizer
            assert agent.learning_rate == pytest.approx(2e-3)
            assert agent.optimizer.global_clipnorm == (None if kind is noterl.DQN else 0.5)
        agent.compile()
        assert agent.learning_rate == pytest.approx(7e-4)

    def test_numbers_for_several_optimizers(self) -> None:
        agent = noterl.DDPG("Pendulum-v1", hidden=(4,))
        for optimizer in ({"actor": 1e-4, "critic": 3e-3}, [1e-4, 3e-3], [1e-4, keras.optimizers.SGD(3e-3)]):
            agent.compile(optimizer=optimizer)
            rates = [agent.get_rule("learning_rate", name) for name in ("actor", "critic")]
            assert rates == pytest.approx([1e-4, 3e-3])

    @pytest.mark.parametrize("rate", [0, -1e-3, math.nan, math.inf, True])
    def test_bad_learning_rate_raises(self, rate: Any) -> None:
        with pytest.raises(ValueError, match="optimizer"):
            noterl.DQN("CartPole-v1", hidden=(4,)).compile(optimizer=rate)

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("epsilon_greedy", policies.EpsGreedyQPolicy),
            ("linear_epsilon_greedy", policies.LinearEpsGreedyPolicy),
            ("boltzmann", policies.BoltzmannQPolicy),
            ("EpsGreedyQPolicy", policies.EpsGreedyQPolicy),
        ],
    )
    def test_policy_can_be_a_name(self, name: str, kind: type) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,))
        agent.compile(policy=name)
        assert type(agent.policy) is kind

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("eps_greedy", r"did you mean 'epsilon_greedy'"),
            ("MlpPolicy", r"Stable-Baselines3's MlpPolicy in noterl: noterl\.PPO\(env\)"),
            ("quux", r"epsilon_greedy, "),
        ],
    )
    def test_unknown_name_of_a_policy_is_explained(self, name: str, expected: str) -> None:
        with pytest.raises(ValueError, match=rf"^policy .*{name!r}.*{expected}"):
            noterl.DQN("CartPole-v1", hidden=(4,)).compile(policy=name)

    def test_short_forms_survive_a_file(self, tmp_path: Path) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
        agent.compile(optimizer=2e-3, replay=500, policy="epsilon_greedy", learning_starts=1e1, batch_size=4)
        agent.fit(steps=40, verbose=0)
        agent.save(tmp_path / "agent.noterl")
        loaded = noterl.load(tmp_path / "agent.noterl")
        assert (loaded.replay.capacity, type(loaded.policy)) == (500, policies.EpsGreedyQPolicy)
        assert_same_state(loaded, agent)

    def test_repr_shows_arguments_and_counts(self) -> None:
        agent = noterl.DQN("CartPole-v1", double=True, hidden=(4,), seed=1)
        assert repr(agent) == "<DQN('CartPole-v1', double=True, hidden=(4,), seed=1): 0 steps, 0 episodes, 0 updates>"
        agent.fit(steps=3, verbose=0)
        assert repr(agent).endswith("3 steps, 0 episodes, 0 updates>")
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        assert len(repr(noterl.DQN(gymnasium.make("CartPole-v1"), network=network))) < 160

    def test_repr_of_a_loaded_agent_names_the_environment(self, tmp_path: Path) -> None:
        noterl.DQN("CartPole-v1", hidden=(4,), seed=1).save(tmp_path / "agent.noterl")
        assert repr(noterl.load(tmp_path / "agent.noterl")).startswith("<DQN('CartPole-v1', hidden=(4,), seed=1)")

    def test_repr_of_an_unfinished_agent(self) -> None:
        assert repr(noterl.DQN.__new__(noterl.DQN)).startswith("<")

    def test_repr_of_parts_is_their_constructor_call(self) -> None:
        assert repr(noterl.Replay(100, n_step=3)) == "Replay(100, n_step=3)"
        assert repr(policies.EpsGreedyQPolicy(0.2)) == "EpsGreedyQPolicy(0.2)"
