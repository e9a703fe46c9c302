"""Agents on environments with action masks: updates equal NumPy references, and no action is illegal."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import heads, policies
from noterl.backends import current
from noterl.collect import WorkerError, Workers
from noterl.learning.info_fields import store_info
from noterl.replay import Prioritized
from noterl.utils.masks import mask_spec
from tests.agents.test_on_policy import assert_equals_reference, ppo
from tests.support import reference_on_policy as reference
from tests.support.batches import VECTOR, random_batch
from tests.support.doubles import TogetherVectorEnv
from tests.support.masked_env import LateMask, MaskedWalk, legal_actions
from tests.support.parts import learner_of, run_updates, sample_batch
from tests.support.representatives import representatives
from tests.support.rollouts import enlarged
from tests.support.states import assert_same_state

torch_only = pytest.mark.backends("torch")


def dqn(env: Any = MaskedWalk, *, kind: Any = noterl.DQN, replay: Any = None, **changes: Any) -> noterl.DQN:
    agent = kind(env, hidden=(8,), gamma=0.9, seed=3, **changes)
    agent.compile(
        policy=policies.EpsGreedyQPolicy(0.5),
        replay=noterl.Replay(300, n_step=2, sampler=Prioritized()) if replay is None else replay,
        batch_size=8,
        learning_starts=20,
        update_every=4,
        updates=2,
        target_update=20,
    )
    return agent


def small(kind: Any, env: Any = MaskedWalk, **changes: Any) -> Any:
    if issubclass(kind, noterl.DQN):
        return dqn(env, kind=kind, **changes)
    if kind is noterl.SAC:
        agent = noterl.SAC(env, hidden=(8,), gamma=0.9, seed=3, **changes)
        agent.compile(batch_size=8, learning_starts=20)
        return agent
    arguments = {noterl.ACER: {"replay_starts": 20}, noterl.A2C: {}}.get(kind, {"epochs": 2})
    return kind(env, hidden=(8,), rollout_steps=10, gamma=0.9, seed=3, **arguments, **changes)


KINDS = (noterl.DQN, noterl.PPO, noterl.A2C, noterl.TRPO, noterl.ACER, noterl.SAC, noterl.QRDQN, noterl.C51, noterl.IQN)


# Exact values


@pytest.mark.parametrize("double", representatives([False, True], True))
def test_dqn_targets_use_legal_actions_only(double: bool) -> None:
    agent = noterl.DQN(VECTOR, double=double, hidden=(8,), gamma=0.9, seed=3)
    agent.compile("sgd", replay=noterl.Replay(64, sampler=Prioritized()), batch_size=6, target_update=500)
    learner = learner_of(agent)
    store_info(learner, mask_spec(agent.action_space))
    state = agent.get_state()
    rng = np.random.default_rng(0)
    for weight in state["variables"]["target_q"]:
        weight += rng.normal(scale=0.3, size=weight.shape).astype(np.float32)
    agent.set_state(state)
    batch = random_batch(1, 6)
    masks = rng.random((2, 1, 6, 3)) < 0.5
    masks[..., 1] = True
    batch = batch._replace(extra={"action_mask": masks[0], "next_action_mask": masks[1]})

    def network(weights: list[np.ndarray], observations: np.ndarray) -> np.ndarray:
        first, bias, second, second_bias = (np.array(weight, np.float64) for weight in weights)
        return np.maximum(observations @ first + bias, 0) @ second + second_bias

    own, target = state["variables"]["q"], state["variables"]["target_q"]
    q, rows = network(own, batch.observation[0]), np.arange(6)
    values = np.where(masks[1, 0], network(target, batch.next_observation[0]), -np.inf)
    best = np.where(masks[1, 0], network(own, batch.next_observation[0]), -np.inf) if double else values
    expected = q[rows, batch.action[0]] - (batch.reward[0] + batch.discount[0] * values[rows, best.argmax(axis=1)])
    found = current().fetch(run_updates(agent, batch, 1).feedback["td_error"])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)
    unmasked = network(target, batch.next_observation[0]).argmax(axis=1)
    assert (values[rows, unmasked] == -np.inf).any(), "the masks matter"


class MaskedReference(reference.ActorCritic):
    """PPO's and A2C's formulas with the masked categorical of Stable-Baselines3 Contrib's MaskablePPO.

    Logits of illegal choices are -1e8, and the entropy sums over the legal choices.
    """

    def prepared(self, rollout: dict[str, Any]) -> dict[str, Any]:
        self.mask = rollout["action_mask"]
        return super().prepared(rollout)

    def losses(self, batch: dict[str, Any]) -> dict[str, float]:
        self.mask = batch["action_mask"]
        return super().losses(batch)

    def distribution(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs, other = super().distribution(observation)
        return np.where(self.mask, outputs, -1e8), other

    def entropy(self, observation: np.ndarray) -> np.ndarray:
        outputs, _ = self.distribution(observation)
        parts = [outputs] if self.kind == "discrete" else [outputs[:, :3], outputs[:, 3:]]
        found = [reference.softmax(part) for part in parts]
        return sum(-(part * np.log(np.where(part > 0, part, 1.0))).sum(-1) for part in found)


@pytest.mark.parametrize("kind", representatives(["discrete", "multi"], "discrete"))
def test_masked_ppo_equals_the_reference(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ppo(kind, entropy_coefficient=0.05)
    enlarged(agent)
    agent.compile(keras.optimizers.Adam(0.01, epsilon=1e-5, global_clipnorm=0.1), batch_size=4)
    store_info(learner_of(agent), mask_spec(agent.action_space))
    variables = agent.get_state()["variables"]
    rules = {"gae_lambda": 0.95, "clip": 0.2, "entropy": 0.05, "value": 0.5}
    model = MaskedReference(variables["actor"], variables["critic"], kind=kind, **rules)
    optimizers: list[Any] = [reference.Adam(0.01, 0.1, list(range(len(model.weights))))]
    assert_equals_reference(agent, model, optimizers, masked=True)


def test_masked_probabilities_are_those_of_the_legal_choices() -> None:
    head: Any = heads.Probabilities().bind(spaces.MultiDiscrete([3, 2]))
    values = np.array([[0.5, 0.3, 0.2, 0.9, 0.1], [0.0, 0.4, 0.6, 0.5, 0.5]], np.float32)
    mask = np.array([[1, 0, 1, 0, 1], [1, 1, 0, 1, 1]], np.bool_)
    actions = np.array([[2, 1], [1, 0]], np.int32)
    tensor = keras.ops.convert_to_tensor
    outputs = head.masked(tensor(values), tensor(mask))
    found = current().fetch(head.log_prob(outputs, tensor(actions)))
    np.testing.assert_allclose(np.exp(found), [0.2 / 0.7, 0.5], rtol=1e-5)
    entropy = -(0.5 / 0.7) * np.log(0.5 / 0.7) - (0.2 / 0.7) * np.log(0.2 / 0.7)
    np.testing.assert_allclose(current().fetch(head.entropy(outputs)), [entropy, np.log(2)], rtol=1e-4)


def test_discrete_sac_averages_over_legal_actions() -> None:
    agent = noterl.SAC(VECTOR, hidden=(8,), gamma=0.9, seed=3)
    batch = random_batch(1, 6)
    rng = np.random.default_rng(0)
    mask = rng.random((6, 3)) < 0.5
    mask[:, 1] = True
    tensor, fetch = keras.ops.convert_to_tensor, current().fetch
    observation = tensor(batch.observation[0])
    masks = {"next_action_mask": tensor(mask), "action_mask": tensor(mask)}
    row = batch._replace(next_observation=observation, extra=masks)
    found = [fetch(each) for each in agent._evaluate(agent.critics, agent.value_for_actor, row, "next_")]
    logits = np.where(mask, fetch(agent.actor(observation)).astype(np.float64), -np.inf)
    policy = np.exp(logits - logits.max(axis=1, keepdims=True))
    policy /= policy.sum(axis=1, keepdims=True)
    q = np.minimum(*(fetch(critic(observation)) for critic in agent.critics))
    entropy = -(policy * np.log(np.where(policy > 0, policy, 1.0))).sum(axis=1)
    np.testing.assert_allclose(found[0], (policy * q).sum(axis=1), rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(found[1], -entropy, rtol=1e-4, atol=2e-6)
    loss = fetch(agent.temperature_loss(tensor(found[1]), row))
    target = 0.98 * np.log(mask.sum(axis=1))
    expected = -np.mean(fetch(agent.log_temperature.value) * (found[1] + target))
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-6)


# Runs: `MaskedWalk` raises if an action is illegal


@pytest.mark.parametrize("kind", representatives(KINDS, noterl.DQN))
def test_training_and_evaluation_take_legal_actions_only(kind: Any) -> None:
    agent = small(kind)
    assert dict(agent.info_spec) == {}
    history = agent.fit(steps=120, num_envs=2, verbose=0)
    assert agent.updates > 0 and np.isfinite(history.history["loss"][-1])
    assert "action_mask" in agent.info_spec
    agent.evaluate(episodes=2, num_envs=2)
    agent.evaluate(episodes=2, deterministic=False)


@torch_only
def test_batches_hold_the_masks_of_both_observations() -> None:
    agent = dqn()
    agent.fit(steps=100, num_envs=2, verbose=0)
    batch = sample_batch(agent, 40)
    assert batch.extra["action_mask"].tolist() == legal_actions(batch.observation).tolist()
    goes_on = batch.discount > 0
    expected = legal_actions(batch.next_observation)[goes_on]
    assert batch.extra["next_action_mask"][goes_on].tolist() == expected.tolist()
    assert batch.extra["next_action_mask"][~goes_on].all() and 0 < goes_on.mean() < 1


@torch_only
@pytest.mark.parametrize("policy", ["greedy", "boltzmann", "max_boltzmann", "boltzmann_gumbel"])
def test_policies_take_legal_actions_only(policy: str) -> None:
    agent = noterl.DQN(MaskedWalk, hidden=(8,), seed=3)
    agent.compile(policy=policy, batch_size=8, learning_starts=10)
    agent.fit(steps=60, verbose=0)  # MaskedWalk raises if an action is illegal
    assert agent.updates > 0


@torch_only
@pytest.mark.filterwarnings("ignore:the budget ended within a step")
@pytest.mark.parametrize("kind", [noterl.DQN, noterl.PPO, noterl.ACER])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vector_environments_take_legal_actions_only(kind: Any, mode: str) -> None:
    agent = small(kind, TogetherVectorEnv([MaskedWalk] * 3, autoreset_mode=mode))
    agent.fit(steps=90, verbose=0)
    assert agent.updates > 0


@torch_only
@pytest.mark.parametrize("kind", [noterl.DQN, noterl.PPO])
def test_masks_that_allow_all_change_no_weight(kind: Any) -> None:
    runs = []
    for masks in ("none", "all"):
        agent = small(kind, lambda masks=masks: MaskedWalk(masks))
        if kind is noterl.DQN:
            agent.compile(**{**agent.compile_arguments, "learning_starts": 0})  # random actions differ
        agent.fit(steps=60, verbose=0)
        runs.append(agent)
    assert dict(runs[0].info_spec) == {} and "action_mask" in runs[1].info_spec
    assert runs[0].updates == runs[1].updates > 0
    for first, second in zip(*(agent.get_weights().values() for agent in runs), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-7)


@torch_only
def test_rollouts_in_a_replay_memory_keep_their_masks() -> None:
    agent = small(noterl.PPO)
    agent.compile(replay=noterl.Replay(200, sampler=Prioritized()), batch_size=8)
    agent.fit(steps=80, num_envs=2, verbose=0)
    batch = sample_batch(agent, 2) if agent.updates else None
    assert batch is not None
    assert batch.extra["action_mask"].tolist() == legal_actions(batch.observation).tolist()


@torch_only
def test_masks_found_in_a_later_environment_are_stored_from_then_on() -> None:
    agent = dqn(lambda: MaskedWalk("none"))
    agent.fit(steps=60, verbose=0)
    assert dict(agent.info_spec) == {}
    agent.fit(MaskedWalk, steps=60, verbose=0)
    batch = sample_batch(agent, 30)
    masks = batch.extra["action_mask"]
    first = masks.all(axis=-1)  # of the steps without masks
    assert first.any() and masks[~first].tolist() == legal_actions(batch.observation[~first]).tolist()


@torch_only
def test_stacked_frames_and_masks_fit_together() -> None:
    agent = dqn(lambda: noterl.envs.FrameStack(MaskedWalk(), 3), replay=noterl.Replay(100, frame_stack=3, n_step=2))
    agent.fit(steps=80, verbose=0)
    batch = sample_batch(agent, 2)
    assert batch.extra["action_mask"].tolist() == legal_actions(batch.observation[..., -2:]).tolist()


# Saving


@torch_only
@pytest.mark.parametrize("kind", [noterl.DQN, noterl.PPO])
def test_resumed_run_equals_an_uninterrupted_one(kind: Any, tmp_path: Path) -> None:
    whole = small(kind)
    whole.fit(steps=97, num_envs=2, verbose=0)
    half = small(kind)
    half.fit(steps=53, num_envs=2, verbose=0)
    half.save(tmp_path / "half.noterl")
    resumed = noterl.load(tmp_path / "half.noterl", {"MaskedWalk": MaskedWalk})
    assert "action_mask" in resumed.info_spec
    resumed.fit(MaskedWalk, steps=44, num_envs=2, verbose=0)
    assert_same_state(resumed.get_state(), whole.get_state())


@torch_only
@pytest.mark.parametrize("kind", [noterl.DQN, noterl.PPO])
def test_state_from_before_the_first_mask_is_restored(kind: Any) -> None:
    agent = small(kind)
    state = agent.get_state()
    with agent.preserved():
        agent.fit(MaskedWalk, steps=55, verbose=0)
    agent.fit(steps=55, verbose=0)
    expected = small(kind)
    expected.set_state(state)
    expected.fit(steps=55, verbose=0)
    assert_same_state(agent.get_state(), expected.get_state())


@torch_only
@pytest.mark.parametrize("kind", [noterl.DQN, noterl.PPO, noterl.ACER])
def test_state_that_does_not_fit_leaves_the_agent_without_masks(kind: Any) -> None:
    agent, masked = small(kind), small(kind)
    before = agent.get_state()
    masked.fit(steps=55, num_envs=2, verbose=0)
    state = masked.get_state()
    memory = state["rollout" if kind is noterl.PPO else "replay"]
    memory["length" if kind is noterl.PPO else "capacity"] += 1
    with pytest.raises(ValueError, match=r"rollout|capacity"):
        agent.set_state(state)
    assert dict(agent.info_spec) == {}
    after = agent.get_state()
    for each in (before, after):
        del each["generators"]  # names that did not exist before stay
    assert_same_state(after, before)
    agent.fit(lambda: MaskedWalk("none"), steps=40, verbose=0)


# Acting


@torch_only
def test_act_takes_a_mask() -> None:
    agent = dqn()
    observations = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    masks = np.zeros((40, 4), np.int8)
    masks[np.arange(40), np.arange(40) % 4] = 1
    assert agent.act(observations, action_mask=masks).tolist() == (np.arange(40) % 4).tolist()
    assert agent.act(observations, action_mask=masks, deterministic=False).tolist() == (np.arange(40) % 4).tolist()
    assert agent.act(observations[0], action_mask=masks[2]) == 2
    for wrong in (masks[0], masks[:3], np.zeros((40, 4), np.int8)):
        with pytest.raises(ValueError, match="action_mask"):
            agent.act(observations, action_mask=wrong)


@torch_only
def test_act_takes_a_tuple_of_masks_of_different_sizes() -> None:
    agent = noterl.PPO((VECTOR[0], spaces.MultiDiscrete([2, 3])), hidden=(4,), seed=1)
    one, batch = np.zeros(VECTOR[0].shape, np.float32), np.zeros((2, *VECTOR[0].shape), np.float32)
    masks = np.array([0, 1], np.int8), np.array([1, 0, 0], np.int8)
    assert agent.act(one, action_mask=masks).tolist() == [1, 0]
    assert agent.act(batch, action_mask=tuple(np.stack([part, part]) for part in masks)).tolist() == [[1, 0]] * 2
    assert agent.act(batch, action_mask=[masks, masks]).tolist() == [[1, 0]] * 2


@torch_only
def test_mask_for_continuous_actions_raises() -> None:
    agent = noterl.SAC((VECTOR[0], spaces.Box(-1.0, 1.0, (2,), np.float32)), hidden=(4,), seed=1)
    with pytest.raises(ValueError, match="action_mask"):
        agent.act(np.zeros(5, np.float32), action_mask=[True, True])


@torch_only
def test_head_without_masks_ignores_them() -> None:
    class Plain(heads.Q):
        takes_mask = False

    class Own(noterl.DQN):
        head = Plain()

    agent = Own(lambda: MaskedWalk("all"), hidden=(4,), seed=1)
    agent.fit(steps=30, verbose=0)
    assert dict(agent.info_spec) == {}


class OutOfNumPy(keras.layers.Layer):
    """A layer that NumPy cannot run, so the learner chooses the actions."""

    def call(self, inputs: Any) -> Any:
        return inputs


@torch_only
@pytest.mark.parametrize("kind", [noterl.DQN, noterl.PPO, noterl.ACER])
@pytest.mark.parametrize("before", [0, 20])
def test_workers_respect_masks(kind: Any, before: int) -> None:
    agent = small(kind)
    if before:
        agent.fit(steps=before, num_envs=2, verbose=0)
    agent.fit(steps=40, num_envs=2, workers=2, verbose=0)  # the environment raises if an action is illegal
    agent.fit(steps=40, workers=Workers(2, overlap=True), verbose=0)
    agent.fit(steps=40, verbose=0)
    assert agent.info_spec == mask_spec(agent.action_space)


@torch_only
@pytest.mark.parametrize("learner_acts", [False, True])
def test_masks_of_workers_are_stored(learner_acts: bool) -> None:
    network = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(8), *[OutOfNumPy()] * learner_acts, keras.layers.Dense(4)]
    )
    agent = noterl.DQN(MaskedWalk, network=network, seed=3)
    agent.compile(policy=policies.EpsGreedyQPolicy(0.5), replay=300, batch_size=8, learning_starts=20)
    with pytest.warns(RuntimeWarning, match="NumPy") if learner_acts else contextlib.nullcontext():
        agent.fit(steps=60, num_envs=2, workers=2, verbose=0)
    batch = sample_batch(agent, 64)
    np.testing.assert_array_equal(batch.extra["action_mask"], legal_actions(batch.observation))
    goes_on = batch.discount > 0
    following = legal_actions(batch.next_observation)
    np.testing.assert_array_equal(batch.extra["next_action_mask"][goes_on], following[goes_on])


@torch_only
def test_workers_ignore_masks_if_the_head_does() -> None:
    class Plain(heads.Q):
        takes_mask = False

    class Own(noterl.DQN):
        head = Plain()

    agent = Own(lambda: MaskedWalk("all"), hidden=(4,), seed=1)
    agent.fit(steps=30, workers=1, verbose=0)
    assert dict(agent.info_spec) == {}


@torch_only
def test_workers_refuse_masks_that_come_late() -> None:
    with pytest.raises(WorkerError, match=r"action_mask.*every reset"):
        small(noterl.PPO, LateMask).fit(steps=20, workers=1, verbose=0)
