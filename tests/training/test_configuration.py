"""`Agent.configuration`: what determines a run, with all defaults."""

from __future__ import annotations

import keras
import pytest

import noterl
from noterl.noise import OrnsteinUhlenbeckProcess
from noterl.replay import Hindsight, Prioritized
from noterl.schedules import Linear

pytestmark = pytest.mark.backends("torch")


def test_optimizers_and_noise_of_an_actor_critic() -> None:
    agent = noterl.TD3("Pendulum-v1", hidden=(4,), seed=1)
    rates = [keras.optimizers.SGD(Linear(0.1, 0.0, 100)), keras.optimizers.RMSprop(0.02)]
    agent.compile(rates, noise=OrnsteinUhlenbeckProcess(size=1, theta=0.3), batch_size=8)
    found = agent.configuration
    first, second = agent.optimizer_names
    assert found[f"optimizer/{first}"] == "SGD"
    assert found[f"optimizer/{first}/learning_rate"] == "Linear(start=0.1, end=0.0, steps=100)"
    assert found[f"optimizer/{second}/learning_rate"] == pytest.approx(0.02)
    assert found["noise"].startswith("OrnsteinUhlenbeckProcess(")
    assert "theta=0.3" in found["noise"] and "sigma=" in found["noise"]
    assert (found["policy"], found["batch_size"], found["env"]) == (None, 8, "Pendulum-v1")
    assert {"network/actor", "target_update", "updates", "learning_starts"} <= found.keys()


def test_rollouts_have_no_schedule_of_steps() -> None:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=16, seed=1)
    found = agent.configuration
    assert (found["rollout_steps"], found["epochs"], found["batch_size"]) == (16, agent.epochs, 64)
    assert "learning_starts" not in found and found["replay"] is None


def test_objects_inside_the_memory_have_their_defaults() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(
        replay=noterl.Replay(50, sampler=Prioritized(alpha=0.5)), batch_size=8, target_update=7, target_unit="updates"
    )
    found = agent.configuration
    assert "sampler=Prioritized(alpha=0.5, beta=0.4" in found["replay"]
    assert (found["target_update"], found["target_unit"]) == (7, "updates")
    assert "ratio=" in noterl.training.configuration.full_repr(Hindsight())


@pytest.mark.backends("torch")
def test_rules_of_a_torch_optimizer() -> None:
    import torch

    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9))
    found = agent.configuration
    assert (found["optimizer"], found["optimizer/learning_rate"], found["optimizer/momentum"]) == ("SGD", 0.3, 0.9)
