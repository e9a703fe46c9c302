"""MADDPG: updates equal the NumPy reference; training, saving and evaluation work as for a single agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces
from keras import ops

import noterl
from noterl import heads, policies
from noterl.backends import current
from noterl.envs import Signals
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.replay import Prioritized
from noterl.types import Batch
from tests.support import reference_multi_agent as reference
from tests.support.batches import copied, row
from tests.support.doubles import LeavingTeam, ListTeam
from tests.support.parts import actor_of, run_updates, sample_batch
from tests.support.representatives import representatives
from tests.support.states import assert_same_state

RTOL, ATOL = 1e-4, 2e-6  # tolerances for float32
HIDDEN, SIZES, UPDATES, ROWS = (6,), (2, 3, 4), 3, 16
ACTIONS = (
    spaces.Discrete(3),
    spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
    spaces.Discrete(2),
)
TEAM = (spaces.Tuple([spaces.Box(-9.0, 9.0, (size,), np.float32) for size in SIZES]), spaces.Tuple(ACTIONS))


def team_batch() -> Batch:
    """Return batches `[K, B, ...]` in which agents are missing before or after the step, or terminate."""
    rng, rows = np.random.default_rng(3), (UPDATES, ROWS)
    present = (rng.random((*rows, 3)) < 0.8).astype(np.float32)
    observations = [rng.normal(size=(*rows, sum(SIZES))).astype(np.float32) for _ in range(2)]
    actions = [rng.integers(3, size=(*rows, 1)), rng.uniform([-2.0, 0.0], [2.0, 1.0], (*rows, 2))]
    return Batch(
        observation=observations[0],
        action=np.concatenate([*actions, rng.integers(2, size=(*rows, 1))], axis=-1).astype(np.float32),
        reward=rng.normal(scale=1.5, size=(*rows, 3)).astype(np.float32),
        next_observation=observations[1],
        discount=np.where(rng.random((*rows, 3)) < 0.25, 0, 0.9).astype(np.float32),
        weight=rng.uniform(0.2, 1.5, rows).astype(np.float32),
        index=np.arange(UPDATES * ROWS).reshape(rows),
        extra={
            "present": present,
            "remaining": present * (rng.random((*rows, 3)) < 0.8).astype(np.float32),
            "gumbel": rng.uniform(0.01, 0.99, (*rows, 5)).astype(np.float32),
        },
    )


class Case:
    """An agent, the reference in the same state, and batches for both."""

    def __init__(self, independent: bool) -> None:
        self.agent = noterl.MADDPG(TEAM, hidden=HIDDEN, independent=independent, temperature=0.7, seed=5)
        replay = noterl.Replay(64, sampler=Prioritized())  # needs the feedback `td_error`
        self.agent.compile(
            keras.optimizers.Adam(3e-3), replay=replay, batch_size=4, target_update=0.05, learning_starts=0
        )
        state, rng = copied(self.agent.get_state()), np.random.default_rng(5)
        for name, weights in state["variables"].items():
            for weight in weights:
                weight += rng.normal(scale=0.02 if name.startswith("target_") else 0.2, size=weight.shape)
        self.agent.set_state(state)
        self.batch, self.independent = team_batch(), independent

    def reference(self) -> reference.MADDPG:
        weights = copied(self.agent.get_state())["variables"]
        return reference.MADDPG(weights, HIDDEN, SIZES, ACTIONS, independent=self.independent, learning_rate=3e-3)


@pytest.fixture(scope="module", params=representatives([False, True], False), ids=["centralized", "independent"])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def close(actual: Any, expected: Any, what: str, atol: float = ATOL) -> None:
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=atol, err_msg=what)


def test_losses_of_each_agent_equal_the_reference(case: Case) -> None:
    agent, expected, batch = case.agent, case.reference(), row(case.batch, 0)
    tensors = Batch(*map(ops.convert_to_tensor, batch[:-1]), extra=dict(batch.extra))
    tensors = tensors._replace(extra={name: ops.convert_to_tensor(value) for name, value in batch.extra.items()})
    split = agent._per_agent_batch(tensors)
    errors, losses = agent.td_errors(split), agent.actor_losses(split)
    assert len(errors) == len(losses) == 3
    for i in range(3):
        close(current().fetch(errors[i]), expected.td_error(i, batch), f"errors of agent {i}", atol=1e-5)
        close(current().fetch(losses[i]), expected.actor_value(i, batch), f"actor loss of agent {i}")


def test_updates_equal_the_reference(case: Case) -> None:
    if case.independent:
        pytest.skip("the variants differ only in their losses, which the test above compares")
    agent, expected, fetch = case.agent, case.reference(), current().fetch
    result = run_updates(agent, case.batch, UPDATES)
    assert int(result.applied) == UPDATES
    for k in range(UPDATES):
        logs, feedback = expected.update(row(case.batch, k))
        assert set(logs) == set(result.logs)
        for name, value in logs.items():
            close(fetch(result.logs[name])[k], value, f"{name} of update {k}")
        close(fetch(result.feedback["td_error"])[k], feedback, f"errors of update {k}", atol=1e-5)
    for name, weights in agent.get_state()["variables"].items():
        for left, right in zip(weights, expected.weights[name], strict=True):
            close(left, right, name)


@pytest.mark.backends("torch")
def test_gradients_of_the_reference_equal_finite_differences(case: Case) -> None:
    expected, batch, rng = case.reference(), row(case.batch, 1), np.random.default_rng(1)
    for i in range(3):
        actor = expected.actor_gradients(i, batch)
        for name, gradients, value in (
            ("actors", actor, lambda i=i: expected.actor_value(i, batch, relaxed=True)),
            ("critics", expected.critic_gradients(i, batch), lambda i=i: expected.critic_value(i, batch)),
        ):
            for weight, gradient in zip(expected.weights[f"{name}/{i}"], gradients, strict=True):
                values, place = weight.reshape(-1), rng.integers(weight.size)
                before, found = values[place], []
                for step in (1e-6, -1e-6):
                    values[place] = before + step
                    found.append(value())
                values[place] = before
                slope = (found[0] - found[1]) / 2e-6
                assert gradient.reshape(-1)[place] == pytest.approx(slope, rel=1e-4, abs=1e-8), (name, i)


def gradient(function: Any, value: np.ndarray, backend: str) -> np.ndarray:
    """Return the gradient of a scalar function of a tensor."""
    if backend == "jax":
        import jax

        return np.asarray(jax.jit(jax.grad(function))(value))
    if backend == "tensorflow":
        import tensorflow as tf

        tensor = tf.Variable(value)
        with tf.GradientTape() as tape:
            result = function(tf.convert_to_tensor(tensor))
        return tape.gradient(result, tensor).numpy()
    import torch

    tensor = torch.tensor(value, requires_grad=True)
    function(tensor).backward()
    return tensor.grad.numpy()


def test_straight_through_is_hard_forward_and_soft_backward(backend: str) -> None:
    head: Any = heads.Categorical().bind(spaces.MultiDiscrete([2, 3]))
    logits = np.array([[0.3, -0.2, 1.0, 0.0, -1.0], [0.0, 0.0, 0.0, 2.0, 0.0]], np.float32)
    uniform = np.random.default_rng(2).uniform(0.05, 0.95, (2, 5)).astype(np.float32)
    worth = np.array([1.0, -2.0, 0.5, 3.0, -1.0], np.float32)
    disturbed = logits - np.log(-np.log(uniform))
    expected, slope = np.zeros((2, 5)), np.zeros((2, 5))
    for columns in (slice(0, 2), slice(2, 5)):
        part = disturbed[:, columns]
        expected[np.arange(2), columns.start + part.argmax(axis=1)] = 1.0
        powers = np.exp(part / 0.5)
        soft = powers / powers.sum(axis=1, keepdims=True)
        slope[:, columns] = soft * (worth[columns] - (soft * worth[columns]).sum(axis=1, keepdims=True)) / 0.5

    def sampled(values: Any) -> Any:
        return head.straight_through(values, ops.convert_to_tensor(uniform), 0.5)

    close(current().fetch(sampled(ops.convert_to_tensor(logits))), expected, "sample")
    close(
        gradient(lambda values: ops.sum(ops.multiply(sampled(values), ops.convert_to_tensor(worth))), logits, backend),
        slope,
        "slope",
    )
    assert np.isfinite(current().fetch(head.straight_through(ops.convert_to_tensor(logits), ops.zeros((2, 5))))).all()


# The setting with which a short run takes less time: JAX compiles each operation of an update that is not compiled.
QUICK = "auto" if keras.backend.backend() == "jax" else False


def trained(steps: int) -> noterl.MADDPG:
    """Return a team of two after some training from a prioritized memory with three-step returns.

    It is compiled on JAX only, because that takes most of the time and the tests of updates cover it.
    """
    agent = noterl.MADDPG(lambda: Signals(continuous=True), hidden=(8,), seed=3)
    agent.compile(
        noise=GaussianWhiteNoiseProcess(sigma=0.3, size=1),
        replay=noterl.Replay(64, sampler=Prioritized(), n_step=3),
        batch_size=8,
        learning_starts=20,
        update_every=8,
        jit_compile=QUICK,
    )
    agent.fit(steps=steps, num_envs=2, verbose=0)
    return agent


@pytest.fixture(scope="module")
def half() -> noterl.MADDPG:
    return trained(46)


@pytest.mark.backends("torch")
def test_loaded_run_continues_as_if_uninterrupted(half: noterl.MADDPG, tmp_path: Path) -> None:
    """Saved in the middle of a round and of two episodes, with an agent that has continuous actions."""
    half.save(tmp_path / "half.noterl")
    loaded = noterl.load(tmp_path / "half.noterl")
    assert (loaded.names, loaded.action_space) == (half.names, half.action_space)
    loaded.fit(lambda: Signals(continuous=True), steps=46, num_envs=2, verbose=0)
    whole = trained(92)
    assert whole.updates > 6
    assert_same_state(whole.get_state(), loaded.get_state())
    for agent in (whole, loaded):
        agent.close()


@pytest.mark.backends("torch")
def test_acting_runs_in_numpy_and_uses_the_agents_names(half: noterl.MADDPG) -> None:
    assert actor_of(half).forward.in_numpy
    signal, answer = half.act((2, np.zeros(3, np.float32)))
    assert signal in half.action_space[0] and answer in half.action_space[1]
    batch = {"speaker": np.array([2, 0]), "listener": np.zeros((2, 3), np.float32)}
    many = half.act(batch)
    assert many[0][0] == signal and many[0].shape == (2,)
    np.testing.assert_allclose(many[1], [answer, answer], rtol=1e-6)
    outputs = current().fetch(half._joint_forward(ops.convert_to_tensor(np.eye(6, dtype=np.float32))))
    np.testing.assert_allclose(actor_of(half).forward(np.eye(6, dtype=np.float32)), outputs, rtol=1e-4, atol=1e-6)
    before = copied(half.get_state())
    explored = [half.act(batch, deterministic=False)[1].tolist() for _ in range(3)]
    assert len({str(answers) for answers in explored}) == 3
    assert_same_state(before, half)  # acting does not change training
    with pytest.raises(ValueError, match="observation"):
        half.act((2,))
    with pytest.raises(ValueError, match="observation of agent 'listener'"):
        half.act((2, np.zeros(4, np.float32)))


@pytest.mark.backends("torch")
def test_acting_takes_the_ids_of_the_environment() -> None:
    class Numbered(LeavingTeam):
        possible_agents: Any = (0, 1, 2)

    agent = noterl.MADDPG(Numbered, hidden=(4,), seed=1)
    observations, _ = Numbered().reset()
    assert agent.act(observations) == agent.act(list(observations.values()))
    with pytest.raises(ValueError, match=r"for each of \('0', '1', '2'\), got \['0'\]"):
        agent.act({0: observations[0]})


@pytest.mark.backends("torch")
def test_logs_and_evaluation_hold_rewards_of_each_agent(half: noterl.MADDPG) -> None:
    history = half.fit(episodes=2, verbose=0).history
    for name in half.names:
        np.testing.assert_allclose(history[f"reward/{name}"], history["reward"])
    result = half.evaluate(episodes=3)
    assert result["reward_mean/speaker"] == pytest.approx(result["reward_mean"])
    # Frameworks multiply a single row in another order than rows of a batch; continuous actions show this.
    np.testing.assert_allclose(half.evaluate(episodes=3, num_envs=3)["returns"], result["returns"], rtol=1e-5)


class Shared(noterl.MADDPG):
    """All agents learn from the smallest reward."""

    def team_reward(self, rewards: np.ndarray, terminations: np.ndarray) -> Any:
        return rewards.min()


@pytest.mark.backends("torch")
def test_list_environment_with_team_reward() -> None:
    agent = Shared(ListTeam, hidden=(8,), shared=True, seed=1)
    policy = policies.GumbelSoftmaxPolicy()
    replay = noterl.Replay(32)
    agent.compile(policy=policy, learning_starts=4, batch_size=4, update_every=4, replay=replay, jit_compile=QUICK)
    assert len(agent.actors) == len(agent.critics) == 1  # agents with equal spaces share networks
    history = agent.fit(episodes=3, verbose=0).history
    assert agent.updates > 0
    assert history["reward/0"] == [6.0] * 3  # 1 + 2 + 3
    assert history["reward/1"] == [12.0] * 3
    assert history["reward"] == [6.0] * 3
    batch = sample_batch(agent, 1)
    np.testing.assert_array_equal(batch.reward[..., 0], batch.reward[..., 1])
    assert agent.evaluate(episodes=1)["reward_mean"] == 6.0


@pytest.mark.backends("torch")
def test_agent_that_left_does_not_affect_updates() -> None:
    """The placeholder values of an agent that is not present change no gradient."""
    agent = noterl.MADDPG(LeavingTeam, hidden=(8,), seed=1)
    agent.compile(learning_starts=6, batch_size=6, update_every=6, replay=noterl.Replay(64), jit_compile=QUICK)
    agent.fit(episodes=6, verbose=0)
    start, batch = copied(agent.get_state()), sample_batch(agent, 1)
    assert 0 < batch.extra["present"][..., 0].sum() < 6
    states = []
    for placeholder in (0.0, 9.0):
        gone = batch.extra["present"][..., :1] == 0
        changed = batch.observation.copy()
        changed[..., :1] = np.where(gone, placeholder, changed[..., :1])
        reward = batch.reward.copy()
        reward[..., :1] = np.where(gone, placeholder, reward[..., :1])
        agent.set_state(start)
        run_updates(agent, batch._replace(observation=changed, reward=reward), 1)
        states.append(copied(agent.get_state()))
    assert_same_state(*states)


@pytest.mark.backends("torch")
class TestErrors:
    def test_maddpg_needs_several_agents(self) -> None:
        with pytest.raises(ValueError, match=r"^env: MADDPG .*several agents"):
            noterl.MADDPG("CartPole-v1")

    def test_dqn_needs_a_single_agent(self) -> None:
        with pytest.raises(ValueError, match=r"DQN .*got Tuple.*MADDPG"):
            noterl.DQN(Signals)

    def test_several_agents_need_a_replay_memory(self) -> None:
        class OnPolicyTeam(noterl.MultiAgent):
            memory = "rollout"

        with pytest.raises(ValueError, match="memory of OnPolicyTeam"):
            OnPolicyTeam(Signals).fit(steps=4, verbose=0)

    def test_unsupported_space_names_the_agent(self) -> None:
        bad = spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(3)])
        with pytest.raises(ValueError, match=r"agent '1' .*MultiBinary"):
            noterl.MADDPG((spaces.Tuple([spaces.Box(0, 1, (1,))] * 2), bad))
        unbounded = spaces.Tuple([spaces.Box(-np.inf, 1, (1,))] * 2)
        with pytest.raises(ValueError, match=r"agent .*finite bounds"):
            noterl.MADDPG((spaces.Tuple([spaces.Box(0, 1, (1,))] * 2), unbounded))

    def test_networks_must_match_the_agents(self) -> None:
        with pytest.raises(ValueError, match=r"network .*3 agents"):
            noterl.MADDPG(TEAM, network=([noterl.networks.mlp(2, [4], 3)], None))
        with pytest.raises(ValueError, match=r"network .*got 1"):
            noterl.MADDPG(TEAM, network=(None, [1, 2, 3]))
        with pytest.raises(ValueError, match="network"):
            noterl.MADDPG(TEAM, network=[1, 2, 3])

    @pytest.mark.parametrize(
        ("name", "value"), [("independent", "no"), ("shared", 1), ("temperature", 0.0), ("logit_penalty", -1.0)]
    )
    def test_bad_argument_raises_with_its_name(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"{name} .*got {value!r}"):
            noterl.MADDPG(TEAM, **{name: value})

    def test_deterministic_must_be_a_bool(self, half: noterl.MADDPG) -> None:
        with pytest.raises(ValueError, match=r"deterministic .*got 'no'"):
            half.act([np.zeros(1)], deterministic="no")

    def test_env_of_another_team_raises(self, half: noterl.MADDPG) -> None:
        with pytest.raises(ValueError, match=r"^env .*team"):
            half.fit(lambda: Signals(4, continuous=True), steps=1)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"policy": policies.EpsGreedyQPolicy(0.1)}, "policy"),
            ({"noise": GaussianWhiteNoiseProcess(size=3)}, "noise"),
        ],
    )
    def test_unsupported_exploration_raises(self, half: noterl.MADDPG, arguments: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            half.compile(**arguments)
