"""Bad input to an agent: a ValueError that names the argument, and nothing half done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import policies
from noterl.callbacks import Checkpoint, EarlyStopping, LambdaCallback
from tests.support.doubles import CountingEnv, RandomWalkEnv
from tests.support.parts import lanes_of
from tests.support.states import assert_same_state


class WrongSpaceEnv(CountingEnv):
    """Observations of a kind that no network of ours takes."""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        super().__init__()
        self.observation_space = observation_space or self.observation_space
        self.action_space = action_space or self.action_space


CONSTRUCTOR: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unknown id": ("CartPoll-v1", {}, r"env: .*CartPoll.*Did you mean: `CartPole`"),
    "no environment": (3, {}, r"env must be .*, got 3"),
    "a class that needs arguments": (gymnasium.Wrapper, {}, r"env: the factory .*Wrapper.* must need no arguments"),
    "without spaces": (gymnasium.Env, {}, r"env: observation_space must be a Box.*, got None"),
    "a factory of something else": (dict, {}, r"env: the factory .*dict.* must return an environment"),
    "one space": (spaces.Discrete(2), {}, r"env must be .*, got Discrete"),
    "text observations": (WrongSpaceEnv(spaces.Text(5)), {}, r"observation_space.*Text"),
    "an image among others": (
        WrongSpaceEnv(spaces.Dict(eye=spaces.Box(0, 255, (64, 64, 3), np.uint8), speed=spaces.Box(0, 1, (1,)))),
        {},
        r"observation.*eye",
    ),
    "observations in a tuple": (WrongSpaceEnv(spaces.Tuple([spaces.Discrete(4)])), {}, r"observation.*Tuple"),
    "continuous actions": (RandomWalkEnv(), {}, r"DQN.*action.*Box"),
    "several actions": (WrongSpaceEnv(None, spaces.MultiDiscrete([2, 2])), {}, r"DQN.*action.*MultiDiscrete"),
    "negative seed": ("CartPole-v1", {"seed": -1}, r"seed must be a non-negative int or None, got -1"),
    "fraction as seed": ("CartPole-v1", {"seed": 1.5}, r"seed must be .*, got 1\.5"),
    "bool as seed": ("CartPole-v1", {"seed": True}, r"seed must be .*, got True"),
    "hidden number": ("CartPole-v1", {"hidden": 64}, r"hidden must be a sequence of positive ints.*got 64"),
    "hidden text": ("CartPole-v1", {"hidden": "64"}, r"hidden must be a sequence of positive ints.*got '64'"),
    "hidden fraction": ("CartPole-v1", {"hidden": (64.0,)}, r"hidden must hold positive ints, got 64\.0"),
    "hidden nothing": ("CartPole-v1", {"hidden": (8, 0)}, r"hidden must hold positive ints, got 0"),
    "hidden dueling": ("CartPole-v1", {"hidden": 8, "dueling": True}, r"hidden must be a sequence"),
    "gamma above": ("CartPole-v1", {"gamma": 1.01}, r"gamma must be a finite number from 0\.0 to 1\.0, got 1\.01"),
    "gamma below": ("CartPole-v1", {"gamma": -0.1}, r"gamma must be .*, got -0\.1"),
    "gamma NaN": ("CartPole-v1", {"gamma": float("nan")}, r"gamma must be .*, got nan"),
    "gamma text": ("CartPole-v1", {"gamma": "high"}, r"gamma must be a number, got 'high'"),
    "loss": ("CartPole-v1", {"loss": "hinge"}, r"loss must be 'huber' or 'squared', got 'hinge'"),
    "no network": ("CartPole-v1", {"network": lambda x: x}, r"network.* Keras model"),
}


@pytest.mark.parametrize("case", CONSTRUCTOR)
def test_the_constructor_refuses(case: str) -> None:
    env, options, message = CONSTRUCTOR[case]
    with pytest.raises(ValueError, match=message):
        noterl.DQN(env, **options)


def network_only(agent: Any, env: Any, *, seed: int | None = None) -> None:
    agent.q = noterl.networks.mlp(5, [4], 3)


DECLARED = {
    "no head": ({}, r"^head of Mine must be one of noterl\.heads, such as noterl\.heads\.Q\(\), got None$"),
    "the class of a head": ({"head": noterl.heads.Q}, r"^head of Mine must be one of noterl\.heads.*, got <class"),
    "another memory": ({"head": noterl.heads.Q(), "memory": "list"}, r"^memory of Mine must be 'replay' or.*'list'$"),
    "random_spec": ({"head": noterl.heads.Q(), "random_spec": 3}, r"^random_spec of Mine must be a dict of.*, got 3$"),
    "no optimizer": (
        {"head": noterl.heads.Q(), "optimizer_names": ()},
        r"^optimizer_names of Mine must be different names.*, got \(\)$",
    ),
    "letters": (
        {"head": noterl.heads.Q(), "optimizer_names": "abc"},
        r"^optimizer_names of Mine must be different names.*, got 'abc'$",
    ),
    "an optimizer twice": (
        {"head": noterl.heads.Q(), "optimizer_names": ["a", "a"]},
        r"^optimizer_names of Mine must be different names.*, got \['a', 'a'\]$",
    ),
    "an optimizer for nothing": (
        {"head": noterl.heads.Q(), "optimizer_names": ("a", "b"), "loss": lambda self, batch: 0.0},
        r"^optimizer_names of Mine must be one name unless Mine defines update.*, got \('a', 'b'\)$",
    ),
    "no super": ({"head": noterl.heads.Q(), "__init__": network_only}, r"^Mine\.__init__ must call super\(\)"),
}


@pytest.mark.parametrize("case", DECLARED)
def test_what_a_class_of_ones_own_forgot_is_named(case: str) -> None:
    declared, message = DECLARED[case]
    with pytest.raises(ValueError, match=message):
        type("Mine", (noterl.Agent,), declared)((spaces.Box(-1, 1, (5,)), spaces.Discrete(3))).compile()


def test_logs_whose_names_are_no_words_are_refused() -> None:
    class Numbered(noterl.DQN):
        def update(self, batch: Any) -> Any:
            loss, feedback = self.minimize(self.loss, self.q, "optimizer", batch)
            return {"loss": loss, 3: loss}, feedback

    with pytest.raises(ValueError, match=r"update must return logs whose names are str, Numbered's has \[3\]"):
        Numbered("CartPole-v1", hidden=(4,), seed=1).build()


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="gama"):
        noterl.DQN("CartPole-v1", gama=0.9)


COMPILE: dict[str, tuple[dict[str, Any], str]] = {
    "policy class": ({"policy": policies.GreedyQPolicy}, r"policy must be .*noterl\.policies, got .*GreedyQPolicy"),
    "policy name": ({"policy": "greedy"}, r"policy must be .*, got 'greedy'"),
    "policy on probabilities": (
        {"policy": policies.SoftmaxPolicy()},
        r"policy SoftmaxPolicy acts on probabilities.* Q ",
    ),
    "policy on logits": ({"policy": policies.GumbelSoftmaxPolicy()}, r"policy GumbelSoftmaxPolicy acts on logits"),
    "replay number": ({"replay": 1000}, r"replay must be a noterl\.Replay, got 1000"),
    "replay class": ({"replay": noterl.Replay}, r"replay must be a noterl\.Replay"),
    "batch too large": ({"replay": noterl.Replay(10), "batch_size": 11}, r"batch_size must be at most .*10, got 11"),
    "default batch too large": ({"replay": noterl.Replay(10)}, r"batch_size must be at most .*10, got 64"),
    "batch zero": ({"batch_size": 0}, r"batch_size must be an int of at least 1, got 0"),
    "batch bool": ({"batch_size": True}, r"batch_size must be an int"),
    "learning_starts": ({"learning_starts": -1}, r"learning_starts must be an int of at least 0, got -1"),
    "update_every": ({"update_every": 0}, r"update_every must be an int of at least 1 or 'episode', got 0"),
    "update_every text": ({"update_every": "step"}, r"update_every must be .*, got 'step'"),
    "update_every array": ({"update_every": np.array([1, 2])}, r"update_every must be .*, got array\(\[1, 2\]\)"),
    "updates array": ({"updates": np.array([1, 2])}, r"updates must be .*, got array\(\[1, 2\]\)"),
    "batch array": ({"batch_size": np.array([1, 2])}, r"batch_size must be .*, got array\(\[1, 2\]\)"),
    "updates": ({"updates": 1.5}, r"updates must be an int of at least 1 or 'pass', got 1\.5"),
    "target_update zero": ({"target_update": 0}, r"target_update must be .*, got 0"),
    "target_update fraction": ({"target_update": 1.5}, r"target_update must be .*, got 1\.5"),
    "jit_compile text": ({"jit_compile": "yes"}, r"jit_compile must be 'auto', True or False, got 'yes'"),
    "jit_compile number": ({"jit_compile": 1}, r"jit_compile must be 'auto', True or False, got 1"),
    "jit_compile array": ({"jit_compile": np.array([1, 2])}, r"jit_compile must be .*, got array\(\[1, 2\]\)"),
    "steps_per_execution array": (
        {"steps_per_execution": np.array([1, 2])},
        r"steps_per_execution must be .*, got array",
    ),
    "steps_per_execution": ({"steps_per_execution": 0}, r"steps_per_execution must be .*, got 0"),
    "steps_per_execution text": ({"steps_per_execution": "all"}, r"steps_per_execution must be .*, got 'all'"),
    "optimizer class": ({"optimizer": keras.optimizers.Adam}, r"optimizer .*must be a keras\.optimizers\.Optimizer"),
    "optimizer name": ({"optimizer": "adamm"}, r"optimizer.*'adamm'"),
    "optimizer number": ({"optimizer": 0.001}, r"optimizer .*must be .*got 0\.001"),
    "optimizers too many": ({"optimizer": ["adam", "sgd"]}, r"optimizer must list 1 optimizers"),
    "optimizers by name": ({"optimizer": {"actor": "adam"}}, r"optimizer must have the keys \['optimizer'\]"),
}


@pytest.fixture(scope="module")
def agent() -> Any:
    """Return an agent with settings of its own and an episode in flight."""
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(policy=policies.EpsGreedyQPolicy(0.5), replay=noterl.Replay(500), learning_starts=100, batch_size=4)
    agent.fit(steps=5, num_envs=2, verbose=0)
    return agent


@pytest.mark.parametrize("case", COMPILE)
def test_compile_refuses_and_leaves_what_was_compiled(case: str, agent: Any) -> None:
    arguments, message = COMPILE[case]
    before = agent.get_state()
    parts = (agent.policy, agent.replay, agent.schedule, agent.optimizer, lanes_of(agent), agent._update)
    with pytest.raises(ValueError, match=message):
        # What comes first in the check is right: a check that comes later must not find it taken over.
        agent.compile(**{"policy": policies.GreedyQPolicy(), "target_update": 0.5, **arguments})
    assert parts == (agent.policy, agent.replay, agent.schedule, agent.optimizer, lanes_of(agent), agent._update)
    assert float(agent.tau) == 1.0 and agent.jit_compile == "auto" and agent.steps_per_execution == "auto"
    assert_same_state(before, agent)


@pytest.mark.backends("tensorflow", "jax")
def test_an_optimizer_of_another_framework_is_told_what_to_do(agent: Any, backend: str) -> None:
    def build(parameters: Any) -> Any:
        raise AssertionError("must not be called")

    optimizer = type("Adam", (), {"__module__": "torch.optim.adam"})()
    for given, kind in ((build, "a function"), (optimizer, "Adam")):
        with pytest.raises(
            ValueError, match=rf"optimizer: {kind} .*torch backend.*runs on {backend}: .*KERAS_BACKEND=torch"
        ):
            agent.compile(given)


class UncopiableEnv(CountingEnv):
    """An environment that cannot be made again or copied: it holds something that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = (number for number in range(3))


FIT: dict[str, tuple[dict[str, Any], str]] = {
    "no budget": ({}, r"episodes or steps must be given, or a callback that stops training"),
    "no stopping callback": ({"callbacks": [Checkpoint("nowhere")]}, r"episodes or steps must be given"),
    "episodes zero": ({"episodes": 0}, r"episodes must be a positive int, got 0"),
    "episodes negative": ({"episodes": -3}, r"episodes must be a positive int, got -3"),
    "episodes fraction": ({"episodes": 1.5}, r"episodes must be a positive int, got 1\.5"),
    "episodes bool": ({"episodes": True}, r"episodes must be a positive int, got True"),
    "steps zero": ({"steps": 0, "episodes": 3}, r"steps must be a positive int, got 0"),
    "steps text": ({"steps": "100"}, r"steps must be a positive int, got '100'"),
    "num_envs": ({"steps": 1, "num_envs": 0}, r"num_envs must be a positive int, got 0"),
    "verbose": ({"steps": 1, "verbose": 3}, r"verbose must be 'auto', 0, 1 or 2, got 3"),
    "verbose array": ({"steps": 1, "verbose": np.array([1, 2])}, r"verbose must be .*, got array\(\[1, 2\]\)"),
    "episodes as env": ({"env": 10}, r"^env, the first argument of fit, must be .*, got 10: write fit\(episodes=10\)$"),
    "verbose bool": ({"steps": 1, "verbose": True}, r"verbose must be 'auto', 0, 1 or 2, got True"),
    "verbose text": ({"steps": 1, "verbose": "loud"}, r"verbose must be .*, got 'loud'"),
    "log_every": ({"steps": 1, "log_every": 0}, r"log_every must be a positive int, got 0"),
    "seed": ({"steps": 1, "seed": -1}, r"seed must be a non-negative int or None, got -1"),
    "callback class": ({"steps": 1, "callbacks": [EarlyStopping]}, r"callbacks: got the class EarlyStopping"),
    "no callback": ({"steps": 1, "callbacks": [print]}, r"callbacks: .*print.* is neither"),
    "no list": ({"steps": 1, "callbacks": EarlyStopping(1, 1)}, r"callbacks must be a list"),
    "unknown env": ({"steps": 1, "env": "CartPoll-v1"}, r"env: .*CartPoll"),
    "other observations": ({"steps": 1, "env": "Acrobot-v1"}, r"env has the observation_space .*agent was built for"),
    "other actions": ({"steps": 1, "env": "MountainCar-v0"}, r"env has the observation_space"),
    "vector num_envs": (
        {"steps": 1, "num_envs": 3, "env": gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")},
        r"num_envs is 3, but env is a vector environment of 2",
    ),
}


@pytest.mark.parametrize("case", FIT)
def test_fit_refuses_and_does_nothing(case: str, agent: Any) -> None:
    arguments, message = FIT[case]
    before, lanes = agent.get_state(), lanes_of(agent)
    with pytest.raises(ValueError, match=message):
        agent.fit(**{"seed": 9, "verbose": 0, **arguments})
    assert lanes_of(agent) is lanes
    assert_same_state(before, agent)


def test_other_actions_are_refused(agent: Any) -> None:
    env = WrongSpaceEnv(agent.observation_space, spaces.Discrete(3))
    with pytest.raises(
        ValueError, match=r"env has the action_space Discrete\(3\), the agent was built for Discrete\(2\)"
    ):
        agent.fit(env, steps=1, verbose=0)


def test_the_environment_of_a_refused_fit_is_closed(agent: Any) -> None:
    made = []
    with pytest.raises(ValueError, match="observation_space"):
        agent.fit(lambda: made.append(CountingEnv()) or made[-1], steps=1, verbose=0)
    assert [env.closed for env in made] == [1]
    own = CountingEnv()
    with pytest.raises(ValueError, match="observation_space"):
        agent.fit(own, steps=1, verbose=0)
    assert own.closed == 0, "an environment of the user's is not ours to close"


def test_lanes_that_cannot_be_made_leave_the_episode_in_flight() -> None:
    def build() -> noterl.DQN:
        agent = noterl.DQN(UncopiableEnv(), hidden=(4,), seed=1)
        agent.fit(steps=3, verbose=0)
        return agent

    whole, agent = build(), build()
    before = agent.get_state()
    for seed in (None, 5):
        with pytest.raises(ValueError, match=r"env: .*UncopiableEnv.*a factory"):
            agent.fit(steps=2, num_envs=2, seed=seed, verbose=0)
        assert_same_state(before, agent)
    # Seed and actions do not bring this environment back to the same episode, but to the same place of another.
    with pytest.warns(RuntimeWarning, match="could not restore environment 0"):
        agent.fit(steps=9, verbose=0)
    whole.fit(steps=9, verbose=0)
    assert agent.steps == whole.steps


def test_evaluate_and_act_refuse(agent: Any) -> None:
    before = agent.get_state()
    for arguments, message in (
        ({"episodes": 0}, r"episodes must be a positive int, got 0"),
        ({"num_envs": 1.5}, r"num_envs must be a positive int, got 1\.5"),
        ({"seed": -4}, r"seed must be a non-negative int or None, got -4"),
        ({"env": "Acrobot-v1"}, r"env has the observation_space"),
        ({"env": 3}, r"env must be"),
        ({"deterministic": "x"}, r"deterministic must be True or False, got 'x'"),
        ({"deterministic": None}, r"deterministic must be True or False, got None"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.evaluate(**arguments)
    with pytest.raises(ValueError, match=r"deterministic must be True or False, got 1"):
        agent.act(np.zeros(4), deterministic=1)
    for observation in (np.zeros(3), np.zeros((2, 3)), np.float32(1), np.zeros((1, 1, 4))):
        with pytest.raises(ValueError, match=r"observation must have the shape \(4,\) or \(N, \*\(4,\)\)"):
            agent.act(observation)
    assert_same_state(before, agent)


def test_save_and_stop_refuse(agent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"replay must be True or False, got 'x'"):
        agent.save(tmp_path / "a.noterl", replay="x")
    assert list(tmp_path.iterdir()) == []
    before = agent.stop_training, agent.stop_reason
    for reason in (3, None):
        with pytest.raises(ValueError, match=rf"reason must be a str, got {reason}"):
            agent.stop(reason)
    assert (agent.stop_training, agent.stop_reason) == before


def test_rules_that_are_none_are_refused(agent: Any) -> None:
    before = agent.get_state()
    with pytest.raises(ValueError, match=r"optimizer Adam has no rule 'momentum'"):
        agent.set_rule("momentum", 0.5)
    with pytest.raises(ValueError, match=r"optimizer must be one of optimizer, got 'actor'"):
        agent.set_rule("learning_rate", 0.5, "actor")
    with pytest.raises(ValueError, match=r"gamma must be"):
        agent.gamma = 2.0
    assert_same_state(before, agent)


def test_spaces_alone_cannot_be_trained_in() -> None:
    agent = noterl.DQN((spaces.Box(-1, 1, (4,)), spaces.Discrete(2)), hidden=(4,), seed=1)
    with pytest.raises(ValueError, match=r"env: there is no environment, only its spaces; pass env="):
        agent.fit(steps=1, verbose=0)
    with pytest.raises(ValueError, match=r"env: .*pass env="):
        agent.evaluate(episodes=1)
    assert agent.steps == 0


def test_more_memory_than_there_is_is_refused_with_figures() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    with pytest.raises(ValueError, match=r"capacity=10{15} needs .* GB.* are available"):
        agent.compile(replay=noterl.Replay(10**15))
    agent.compile()
    agent.fit(steps=1, verbose=0)
    assert agent.steps == 1


def test_a_checkpoint_that_cannot_be_written_is_found_before_training(agent: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    steps = agent.steps
    with pytest.raises(OSError, match="file"):
        agent.fit(steps=1, callbacks=[Checkpoint(tmp_path / "file" / "runs")], verbose=0)
    assert agent.steps == steps


def test_build_compiles_with_the_defaults() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=0)
    agent.build()
    assert agent.replay.capacity == agent.defaults().capacity


@pytest.mark.parametrize("method", ["restore", "set_state", "compile", "fit"])
def test_what_would_pull_the_ground_away_is_refused_in_the_middle_of_a_fit(method: str, tmp_path: Path) -> None:
    agent = noterl.DQN(CountingEnv, hidden=(4,), seed=0)
    agent.compile(replay=noterl.Replay(64), learning_starts=64)
    agent.save(tmp_path / "a.noterl")
    before = agent.get_state()

    def take(episode: int, logs: dict[str, Any]) -> None:
        given = {"restore": (tmp_path / "a.noterl",), "set_state": (before,), "fit": (None, 1)}.get(method, ())
        getattr(agent, method)(*given)

    with pytest.raises(RuntimeError, match=f"{method} cannot be called while fit is running"):
        agent.fit(episodes=2, callbacks=[LambdaCallback(on_episode_end=take)], verbose=0)
    agent.set_state(before)  # afterwards it can
    assert agent.steps == 0
