"""User-defined agents that learn from rollouts: the fields of `prepare` in updates and in a replay memory."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import heads
from tests.support.batches import Corridor

pytestmark = pytest.mark.backends("torch")


class Reinforce(noterl.Agent):
    """Learns from rollouts, with two fields from `prepare`."""

    memory, head, rollout_steps, epochs = "rollout", heads.Categorical(), 4, 2

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.policy_network = noterl.networks.mlp(self.observation_size, (4,), self.action_size)
        self.gamma = 0.9

    def forward(self, observation: Any) -> Any:
        return self.policy_network(observation)

    def prepare(self, rollout: Any) -> dict[str, Any]:
        return {"twice": 2.0 * rollout.reward, "copy": rollout.observation}

    def loss(self, batch: Any) -> Any:
        log_prob = self.head.log_prob(self.forward(batch.observation), batch.action)
        return -keras.ops.mean(log_prob * batch.extra["twice"]) + 0.0 * keras.ops.mean(batch.extra["copy"])


def test_replay_memory_stores_prepared_rollouts_of_user_agent() -> None:
    agent = Reinforce(lambda: Corridor(), seed=1)
    agent.compile(replay=noterl.Replay(20), batch_size=4)
    agent.fit(steps=16, num_envs=2, verbose=0)
    assert len(agent.replay) == 16 and agent.updates == 2 * 2 * 2
    sample = agent.replay.sample(1, 6, generator=np.random.default_rng(0))
    batch = agent.replay.gather(sample, gamma=0.9)
    np.testing.assert_array_equal(batch.extra["twice"], 2.0 * batch.reward)
    np.testing.assert_array_equal(batch.extra["copy"], batch.observation)


@pytest.mark.parametrize(
    ("memory", "spec", "message"),
    [
        ("rollout", {"twice": ((), "float32")}, None),
        ("rollout", {"twice": ((2,), "float32")}, r"extra_spec .*'twice'.*\(2,\).*\(\)"),
        ("rollout", {"twice": ((), "int32")}, r"extra_spec .*'twice'.*int32.*float32"),
        ("rollout", {"thrice": ((), "float32")}, "extra_spec .*'thrice'.*'twice'.*'copy'"),
        ("rollout", {"twice": 3}, "extra_spec of Declared"),
        ("replay", {"twice": ((), "float32")}, "extra_spec declares twice"),
    ],
)
@pytest.mark.parametrize("has_replay", [False, True])
def test_extra_spec_must_declare_fields_of_prepare(memory: str, spec: Any, message: str, has_replay: bool) -> None:
    kind = type("Declared", (Reinforce,), {"memory": memory, "extra_spec": spec})
    agent = kind(lambda: Corridor(), seed=1)
    with contextlib.nullcontext() if message is None else pytest.raises(ValueError, match=message):
        agent.compile(batch_size=4, **({"replay": noterl.Replay(20)} if has_replay else {}))
        agent.build()


@pytest.mark.parametrize("field", ["transposed", "longer", "scalar"])
def test_fields_of_prepare_must_have_the_shape_of_the_rollout(field: str) -> None:
    class Misshapen(Reinforce):
        def prepare(self, rollout: Any) -> dict[str, Any]:
            reward = rollout.reward
            longer = keras.ops.concatenate([reward, reward[:1]])
            fields = {"transposed": keras.ops.transpose(reward), "longer": longer, "scalar": reward[0, 0]}
            return {**super().prepare(rollout), field: fields[field]}

    agent = Misshapen(lambda: Corridor(), seed=1)
    with pytest.raises(ValueError, match=rf"prepare must .*'{field}' of Misshapen"):
        agent.fit(steps=64, num_envs=2, verbose=0)


class RampedReinforce(Reinforce):
    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * (1 + self.steps)


class RampedDQN(noterl.DQN):
    def loss(self, batch: Any) -> Any:
        loss, feedback = super().loss(batch)
        return loss * (1 + self.steps), feedback


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize(
    ("kind", "settings"), [(RampedReinforce, {}), (RampedDQN, {"learning_starts": 4, "update_every": 4})]
)
def test_steps_are_read_in_eager_updates_only(kind: Any, settings: dict[str, Any]) -> None:
    agent = kind(lambda: Corridor(), seed=1)
    agent.compile(batch_size=4, jit_compile=False, **settings)
    agent.fit(steps=16, num_envs=2, verbose=0)
    assert agent.updates > 0
    if noterl.backends.name() == "torch":  # there such a loss always runs eagerly
        return
    agent.compile(batch_size=4, **settings)
    with pytest.raises(RuntimeError, match=r"steps would .*constant"):
        agent.fit(steps=16, num_envs=2, verbose=0)


def test_memory_keeps_the_dtypes_of_prepared_fields() -> None:
    class Marked(Reinforce):
        """Its field `mark` is 2^24 + 1, which float32 cannot hold."""

        def prepare(self, rollout: Any) -> dict[str, Any]:
            return {**super().prepare(rollout), "mark": 0 * keras.ops.cast(rollout.index, "int32") + 2**24 + 1}

    agent = Marked(lambda: Corridor(), seed=1)
    agent.compile(replay=noterl.Replay(20), batch_size=4)
    agent.fit(steps=8, verbose=0)
    batch = agent.replay.gather(agent.replay.sample(1, 4, generator=np.random.default_rng(0)), gamma=0.9)
    assert batch.extra["mark"].dtype == np.int32 and (batch.extra["mark"] == 2**24 + 1).all()


@pytest.mark.parametrize("shared", [None, True])
def test_critic_is_built_for_a_passed_actor(shared: bool | None) -> None:
    actor = noterl.networks.mlp(3, (5,), 2)
    agent = noterl.PPO(
        (spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)), network=actor, hidden=(6,), shared=shared, seed=1
    )
    shapes = [weight.shape for weight in noterl.networks.get_weights(agent.critic)]
    assert agent.actor is actor and shapes == ([(3, 5), (5,), (5, 1), (1,)] if shared else [(3, 6), (6,), (6, 1), (1,)])


@pytest.mark.parametrize("memory", [None, 64])
@pytest.mark.parametrize("returned", [3, None, [1]])
def test_prepare_must_return_a_dict(returned: Any, memory: int | None) -> None:
    agent = type("Unprepared", (Reinforce,), {"prepare": lambda self, rollout: returned})(Corridor(), seed=1)
    agent.compile(batch_size=4, **({} if memory is None else {"replay": noterl.Replay(memory)}))
    with pytest.raises(ValueError, match=r"prepare .*Unprepared"):
        agent.fit(steps=8, verbose=0)
    assert agent.updates == 0
