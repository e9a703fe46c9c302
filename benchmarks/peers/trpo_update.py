"""Record one update of TRPO by Stable-Baselines3 Contrib.

    .venv-peers/bin/python -m benchmarks.peers.trpo_update

Weights and rollout come from a seed. The result holds them, the advantages and value targets, and the weights after
`train()`, for each kind of action space. benchmarks/tests/test_trpo_update.py compares noterl with it. Adam's epsilon
is tiny, because Keras and torch add it at different places. Each minibatch of the critic is the whole rollout, because
the orders of rows differ.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.evaluation import versions
from benchmarks.processes import RESULTS, machine, store

STEPS, LANES, OBSERVATION, HIDDEN = 32, 2, 3, 5
PATH = RESULTS / "peers" / "trpo_update.json"
PACKAGES = ("numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "torch")
# Under noterl's names.
SETTINGS: dict[str, Any] = {
    "gamma": 0.9,
    "gae_lambda": 0.95,
    "target_kl": 0.003,
    "cg_iterations": 5,
    "cg_damping": 0.1,
    "line_search_steps": 10,
    "line_search_shrink": 0.8,
    "epochs": 4,
    "learning_rate": 0.01,
    "epsilon": 1e-10,
}
SPACES: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(3),
    "multi": spaces.MultiDiscrete([3, 2]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
}


class Spaces(gymnasium.Env):
    """An environment that only provides spaces."""

    def __init__(self, action_space: spaces.Space) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        self.action_space = action_space


def rollout(space: spaces.Space, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Return observations `[T + 1, N, D]`, actions, rewards and terminations `[T, N]`."""
    shape = (STEPS, LANES)
    actions = {
        "Discrete": lambda: generator.integers(3, size=shape),
        "MultiDiscrete": lambda: generator.integers([3, 2], size=(*shape, 2)),
        "MultiBinary": lambda: generator.integers(2, size=(*shape, 3)),
        "Box": lambda: generator.normal(size=(*shape, 2)),
    }
    return {
        "observation": generator.normal(size=(STEPS + 1, LANES, OBSERVATION)).astype(np.float32),
        "action": actions[type(space).__name__](),
        "reward": generator.normal(size=shape).astype(np.float32),
        "terminated": generator.random(shape) < 0.1,
    }


def make(space: spaces.Space) -> Any:
    """Return the model of Stable-Baselines3 Contrib."""
    from sb3_contrib import TRPO
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    model = TRPO(
        "MlpPolicy",
        DummyVecEnv([lambda: Spaces(space)] * LANES),
        learning_rate=SETTINGS["learning_rate"],
        n_steps=STEPS,
        batch_size=STEPS * LANES,
        gamma=SETTINGS["gamma"],
        gae_lambda=SETTINGS["gae_lambda"],
        target_kl=SETTINGS["target_kl"],
        cg_max_steps=SETTINGS["cg_iterations"],
        cg_damping=SETTINGS["cg_damping"],
        line_search_max_iter=SETTINGS["line_search_steps"],
        line_search_shrinking_factor=SETTINGS["line_search_shrink"],
        n_critic_updates=SETTINGS["epochs"],
        policy_kwargs={
            "net_arch": {"pi": [HIDDEN], "vf": [HIDDEN]},
            "optimizer_kwargs": {"eps": SETTINGS["epsilon"]},
        },
        device="cpu",
    )
    model.set_logger(configure(format_strings=[]))
    return model


def parameters(policy: Any) -> dict[str, list[Any]]:
    """Return the parameters of actor and critic."""
    extractor = policy.mlp_extractor
    actor = [*extractor.policy_net.parameters(), *policy.action_net.parameters()]
    log_std = [policy.log_std] if hasattr(policy, "log_std") else []
    critic = [*extractor.value_net.parameters(), *policy.value_net.parameters()]
    return {"actor": [*actor, *log_std], "critic": critic}


def weights(policy: Any) -> dict[str, list[Any]]:
    """Return the weights in Keras's layout, as lists."""
    return {name: [one.detach().numpy().T.tolist() for one in found] for name, found in parameters(policy).items()}


def record(space: spaces.Space) -> dict[str, Any]:
    """Return weights and rollout before the update, and the results of it."""
    import torch

    generator = np.random.default_rng(11)
    model, data = make(space), rollout(space, generator)
    policy, buffer = model.policy, model.rollout_buffer
    with torch.no_grad():
        for found in parameters(policy).values():
            for one in found:
                one.copy_(torch.from_numpy(generator.normal(scale=0.5, size=tuple(one.shape)).astype(np.float32)))
        before = weights(policy)
        starts = np.zeros(LANES, bool)
        for t in range(STEPS):
            observation = torch.from_numpy(data["observation"][t])
            action = torch.from_numpy(data["action"][t].astype(np.float32))
            value, log_prob, _ = policy.evaluate_actions(observation, action)
            shaped = data["action"][t].reshape(LANES, -1)
            buffer.add(data["observation"][t], shaped, data["reward"][t], starts, value.flatten(), log_prob)
            starts = data["terminated"][t]
        last = policy.predict_values(torch.from_numpy(data["observation"][-1])).flatten()
        buffer.compute_returns_and_advantage(last, starts)
    advantage, target = buffer.advantages.tolist(), buffer.returns.tolist()
    model.train()
    return {
        **{name: array.tolist() for name, array in data.items()},
        "before": before,
        "advantage": advantage,
        "target": target,
        "after": weights(policy),
        "logs": {name: float(value) for name, value in model.logger.name_to_value.items()},
    }


if __name__ == "__main__":
    runs = [{"kind": kind, **record(space)} for kind, space in SPACES.items()]
    store({"settings": SETTINGS, "machine": machine(), "versions": versions(PACKAGES), "runs": runs}, PATH)
