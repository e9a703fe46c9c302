"""Record one update of RecurrentPPO by Stable-Baselines3 Contrib.

    .venv-peers/bin/python -m benchmarks.peers.ppo_lstm_update

Weights, rollout and the states before it come from a seed. The result holds them, the advantages and value targets, and
the weights after `train()`, for two kinds of action space. benchmarks/tests/test_ppo_lstm_update.py compares noterl
with it. Each minibatch is the whole rollout and each sequence begins with its first row, because the peer begins the
first sequence at a random row. Advantages are not normalized, because noterl divides by the deviation of the
population. The optimizer is SGD, because Adam divides small gradients by their own size, and rounding with them.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
from gymnasium import spaces

from benchmarks.evaluation import versions
from benchmarks.peers.trpo_update import HIDDEN, LANES, PACKAGES, STEPS, Spaces, rollout
from benchmarks.processes import RESULTS, machine, store

UNITS = 4
PATH = RESULTS / "peers" / "ppo_lstm_update.json"
# Under noterl's names.
SETTINGS: dict[str, Any] = {
    "gamma": 0.9,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_coefficient": 0.02,
    "value_coefficient": 0.4,
    "epochs": 3,
    "learning_rate": 1.0,
    "clipnorm": 0.5,
}
SPACES: dict[str, spaces.Space] = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1.0, 1.0, (2,), np.float32)}


def make(space: spaces.Space) -> Any:
    """Return the model of Stable-Baselines3 Contrib."""
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    model = RecurrentPPO(
        "MlpLstmPolicy",
        DummyVecEnv([lambda: Spaces(space)] * LANES),
        learning_rate=SETTINGS["learning_rate"],
        n_steps=STEPS,
        batch_size=STEPS * LANES,
        n_epochs=SETTINGS["epochs"],
        gamma=SETTINGS["gamma"],
        gae_lambda=SETTINGS["gae_lambda"],
        clip_range=SETTINGS["clip"],
        normalize_advantage=False,
        ent_coef=SETTINGS["entropy_coefficient"],
        vf_coef=SETTINGS["value_coefficient"],
        max_grad_norm=SETTINGS["clipnorm"],
        policy_kwargs={
            "lstm_hidden_size": UNITS,
            "net_arch": {"pi": [HIDDEN], "vf": [HIDDEN]},
            "optimizer_class": torch.optim.SGD,
        },
        device="cpu",
    )
    model.set_logger(configure(format_strings=[]))
    return model


def parameters(policy: Any) -> dict[str, list[Any]]:
    """Return the parameters of actor and critic, in noterl's order: the layers of the cell, then those after it."""

    def cell(lstm: Any) -> list[Any]:
        return [lstm.weight_ih_l0, lstm.bias_ih_l0, lstm.weight_hh_l0, lstm.bias_hh_l0]

    extractor = policy.mlp_extractor
    log_std = [policy.log_std] if hasattr(policy, "log_std") else []
    actor = [*cell(policy.lstm_actor), *extractor.policy_net.parameters(), *policy.action_net.parameters(), *log_std]
    critic = [*cell(policy.lstm_critic), *extractor.value_net.parameters(), *policy.value_net.parameters()]
    return {"actor": actor, "critic": critic}


def weights(policy: Any) -> dict[str, list[Any]]:
    """Return the weights in Keras's layout, as lists."""
    return {name: [one.detach().numpy().T.tolist() for one in found] for name, found in parameters(policy).items()}


def collect(model: Any, data: dict[str, np.ndarray], states: Any) -> list[Any]:
    """Fill the buffer with a rollout that begins with these states, and return the actor's states before each row."""
    import torch

    policy, buffer = model.policy, model.rollout_buffer
    starts = np.zeros(LANES, bool)
    before = []
    for t in range(STEPS):
        observation, begun = torch.from_numpy(data["observation"][t]), torch.tensor(starts, dtype=torch.float32)
        action = torch.from_numpy(data["action"][t].astype(np.float32))
        value, log_prob, _ = policy.evaluate_actions(observation, action, states, begun)
        before.append([part[0].tolist() for part in states.pi])
        shaped = data["action"][t].reshape(LANES, -1)
        fields = (data["observation"][t], shaped, data["reward"][t], starts, value.flatten(), log_prob)
        buffer.add(*fields, lstm_states=states)
        *_, states = policy.forward(observation, states, begun)
        starts = data["terminated"][t]
    begun = torch.tensor(starts, dtype=torch.float32)
    last = policy.predict_values(torch.from_numpy(data["observation"][-1]), states.vf, begun).flatten()
    buffer.compute_returns_and_advantage(last, starts)
    return before


def record(space: spaces.Space) -> dict[str, Any]:
    """Return weights, states and rollout before the update, and the results of it."""
    import torch
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    generator = np.random.default_rng(11)
    model, data = make(space), rollout(space, generator)
    policy, buffer = model.policy, model.rollout_buffer

    def normal(shape: tuple[int, ...]) -> Any:
        return torch.from_numpy(generator.normal(scale=0.5, size=shape).astype(np.float32))

    with torch.no_grad():
        for found in parameters(policy).values():
            for one in found:
                one.copy_(normal(tuple(one.shape)))
        actor, critic = (tuple(normal((1, LANES, UNITS)) for _ in range(2)) for _ in range(2))
        before = weights(policy)
        states = collect(model, data, RNNStates(actor, critic))
    advantage, target = buffer.advantages.tolist(), buffer.returns.tolist()
    with patch("numpy.random.randint", lambda *_: 0):  # the first row of the first sequence
        model.train()
    return {
        **{name: array.tolist() for name, array in data.items()},
        "before": before,
        "actor_states": states,
        "critic_state": [part[0].tolist() for part in critic],
        "advantage": advantage,
        "target": target,
        "after": weights(policy),
        "logs": {name: float(value) for name, value in model.logger.name_to_value.items()},
    }


if __name__ == "__main__":
    runs = [{"kind": kind, **record(space)} for kind, space in SPACES.items()]
    store({"settings": SETTINGS, "machine": machine(), "versions": versions(PACKAGES), "runs": runs}, PATH)
