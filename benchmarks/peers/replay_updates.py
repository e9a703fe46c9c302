"""Record 1,000 updates of TQC, CrossQ and QR-DQN by Stable-Baselines3 Contrib.

    .venv-peers/bin/python -m benchmarks.peers.replay_updates

Weights, batches and the noise of actions come from a seed. The result holds the weights before and after the updates.
benchmarks/tests/test_replay_updates.py compares noterl with it. TQC has two critics. Other settings are the peer's
defaults, except sizes, and QR-DQN's target network, which is copied after half of the updates.

CrossQ computes in float64. In float32, the peer differs from itself in float64 by some percent after 100 updates,
because rounding errors grow without a target network. Log-probabilities add nothing to the derivative of the tanh, as
in noterl; by default the peer adds 1e-6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from gymnasium import spaces

from benchmarks.evaluation import versions
from benchmarks.peers.trpo_update import OBSERVATION, PACKAGES, Spaces
from benchmarks.processes import RESULTS, machine, store

UPDATES, ROWS, ACTIONS, QUANTILES, PARTS = 1_000, 32, 2, 8, 2
HIDDEN = [16, 16]
GAMMA, DELAY = 0.99, 3
PATH = RESULTS / "peers" / "replay_updates.json"
BOX = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
SPACES: dict[str, spaces.Space] = {"TQC": BOX, "CrossQ": BOX, "QRDQN": spaces.Discrete(3)}


def batches(space: spaces.Space) -> dict[str, np.ndarray]:
    """Return the batches of all updates, `[UPDATES, ROWS, ...]`, and the noise of both actions of each row."""
    generator = np.random.default_rng(12)
    rows = (UPDATES, ROWS)
    actions = generator.uniform(-1, 1, (*rows, ACTIONS)).astype(np.float32)
    if isinstance(space, spaces.Discrete):
        actions = generator.integers(space.n, size=rows).astype(np.int32)
    observation = generator.normal(size=(*rows, OBSERVATION)).astype(np.float32)
    next_observation = generator.normal(size=(*rows, OBSERVATION)).astype(np.float32)
    return {
        "observation": observation,
        "action": actions,
        # The state and the action decide, so that there is something to learn.
        "reward": observation[..., 0] * actions.reshape(*rows, -1)[..., 0].astype(np.float32),
        "next_observation": next_observation,
        "terminated": (generator.random(rows) < 0.1).astype(np.float32),
        "noise": generator.normal(size=(*rows, ACTIONS)).astype(np.float32),
        "next_noise": generator.normal(size=(*rows, ACTIONS)).astype(np.float32),
    }


def make(name: str) -> Any:
    """Return the model of Stable-Baselines3 Contrib."""
    import sb3_contrib
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    policy: dict[str, Any] = {"net_arch": HIDDEN}
    if name == "TQC":
        policy |= {"n_critics": 2}
    if name == "QRDQN":
        policy |= {"n_quantiles": QUANTILES}
    environment = DummyVecEnv([lambda: Spaces(SPACES[name])])
    arguments = {"buffer_size": ROWS, "batch_size": ROWS, "policy_kwargs": policy, "device": "cpu", "seed": 3}
    model = getattr(sb3_contrib, name)("MlpPolicy", environment, **arguments)
    model.set_logger(configure(format_strings=[]))
    if name == "CrossQ":
        model.policy.double()
        model.log_ent_coef.data = model.log_ent_coef.data.double()
        model.actor.action_dist.epsilon = 0.0
    return model


def layers(module: Any) -> list[np.ndarray]:
    """Return the weights of a stack of layers in Keras's layout and noterl's order."""
    found = []
    for layer in module:
        if hasattr(layer, "ra_mean"):
            found += [layer.scale, layer.bias, layer.ra_mean, layer.ra_var, layer.steps]
        else:
            found += list(layer.parameters())
    return [tensor.detach().numpy().T.copy() for tensor in found]


def weights(name: str, model: Any) -> dict[str, list[Any]]:
    """Return the weights of actor and critics, and of the network of QR-DQN, as lists."""
    if name == "QRDQN":
        networks = {"q": layers(model.quantile_net.quantile_net)}
    else:
        actor = model.actor
        mean, log_std = layers([actor.mu]), layers([actor.log_std])
        outputs = [np.concatenate(pair, axis=-1) for pair in zip(mean, log_std, strict=True)]
        critics = model.critic.q_networks
        networks = {f"critic {number}": layers(critic) for number, critic in enumerate(critics)}
        networks["actor"] = [*layers(actor.latent_pi), *outputs]
        networks["temperature"] = [model.log_ent_coef.detach().numpy()[0]]
    return {network: [array.tolist() for array in arrays] for network, arrays in networks.items()}


def noises(name: str, data: dict[str, np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the noise of each sample of the policy, in the order of the peer's updates."""
    for k in range(UPDATES):
        if name == "TQC":
            yield from (data["noise"][k], data["next_noise"][k])
        else:
            yield data["next_noise"][k]
            if (k + 1) % DELAY == 0:
                yield data["noise"][k]


def record(name: str) -> dict[str, Any]:
    """Return the weights before and after the updates."""
    import torch
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    data = batches(SPACES[name])
    model = make(name)
    if name == "CrossQ":
        data = {field: array.astype(np.float64) for field, array in data.items()}
    shaped = {field: torch.from_numpy(array) for field, array in data.items()}
    samples = iter(
        ReplayBufferSamples(
            shaped["observation"][k],
            shaped["action"][k].reshape(ROWS, -1),
            shaped["next_observation"][k],
            shaped["terminated"][k][:, None],
            shaped["reward"][k][:, None],
        )
        for k in range(UPDATES)
    )
    model.replay_buffer.sample = lambda *arguments, **options: next(samples)
    noise = noises(name, data)
    before = weights(name, model)
    with patch.object(
        torch.distributions.normal, "_standard_normal", lambda *arguments, **options: torch.from_numpy(next(noise))
    ):
        for _ in range(PARTS):
            model.train(UPDATES // PARTS, ROWS)
            if name == "QRDQN":
                model.quantile_net_target.load_state_dict(model.quantile_net.state_dict())
    return {"before": before, "after": weights(name, model)}


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)  # the networks are small
    runs = [{"name": name, **record(name)} for name in SPACES]
    store({"updates": UPDATES, "machine": machine(), "versions": versions(PACKAGES), "runs": runs}, PATH)
