"""The default search space of each algorithm: the ranges of rl-zoo3, with noterl's names.

Source: github.com/DLR-RM/rl-baselines3-zoo, `rl_zoo3/hyperparams_opt.py` (2025). Other than there, the norm at which
gradients are clipped, the noise of actions, and the initial standard deviation of SAC are not searched. The zoo has no
agents for data sets; their ranges are around the papers' values.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from noterl.policies import LinearEpsGreedyPolicy
from noterl.tune.ranges import Choice, Float, Int, OneMinus, sample

# The choices and bounds of rl-zoo3; widths of networks by rl-zoo3's names.
_GAMMA = Choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
_TINY = (64,)
_SMALL = (64, 64)
_MEDIUM = (256, 256)
_BIG = (400, 300)
_A2C = {
    "gamma": OneMinus(0.0001, 0.03),
    "gae_lambda": OneMinus(0.0001, 0.1),
    "optimizer": Float(1e-5, 2e-3, log=True),
    "entropy_coefficient": Float(1e-8, 0.1, log=True),
    "rollout_steps": Choice(32, 64, 128, 256, 512, 1024, 2048),
    "hidden": Choice(_SMALL, _MEDIUM),
    "activation": Choice("tanh", "relu"),
}
_OFF_POLICY = {
    "gamma": _GAMMA,
    "optimizer": Float(1e-5, 1.0, log=True),
    "replay": Choice(10_000, 100_000, 1_000_000),
    "target_update": Choice(0.001, 0.005, 0.01, 0.02, 0.05, 0.08),
    "update_every": Choice(1, 4, 8, 16, 32, 64, 128, 256, 512),
    "hidden": Choice(_SMALL, _MEDIUM, _BIG),
}

_TD3 = {**_OFF_POLICY, "batch_size": Choice(16, 32, 64, 100, 128, 256, 512, 1024, 2048)}
_SAC = {
    **_OFF_POLICY,
    "batch_size": Choice(16, 32, 64, 128, 256, 512, 1024, 2048),
    "learning_starts": Choice(0, 1_000, 10_000, 20_000),
}
_DQN = {
    "gamma": _GAMMA,
    "optimizer": Float(1e-5, 1.0, log=True),
    "batch_size": Choice(16, 32, 64, 100, 128, 256, 512),
    "replay": Choice(10_000, 50_000, 100_000, 1_000_000),
    "target_update": Choice(1, 1_000, 5_000, 10_000, 15_000, 20_000),
    "learning_starts": Choice(0, 1_000, 5_000, 10_000, 20_000),
    "update_every": Choice(1, 4, 8, 16, 128, 256, 1_000),
    "hidden": Choice(_TINY, _SMALL, _MEDIUM),
}
_OFFLINE = {
    "gamma": Choice(0.98, 0.99, 0.995),
    "optimizer": Float(1e-4, 3e-3, log=True),
    "batch_size": Choice(64, 128, 256, 512, 1024),
    "target_update": Choice(0.001, 0.005, 0.01, 0.02),
    "hidden": Choice(_SMALL, _MEDIUM),
}
# For each algorithm, the ranges; other values are constants.
_RANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("C51", "DQN", "IQN", "Rainbow"), _DQN),
    **dict.fromkeys(("DDPG", "TD3"), _TD3),
    "A2C": _A2C,
    "CrossQ": {name: part for name, part in _SAC.items() if name != "target_update"},
    "CQL": {**_OFFLINE, "alpha": Float(0.1, 10.0, log=True)},
    "IQL": {**_OFFLINE, "expectile": Float(0.5, 0.95), "temperature": Float(0.3, 10.0, log=True)},
    "ReBRAC": {**_OFFLINE, "actor_beta": Float(1e-3, 1.0, log=True), "critic_beta": Float(1e-4, 1.0, log=True)},
    "TD3BC": {**_OFFLINE, "alpha": Float(0.5, 10.0, log=True)},
    "PPO": {
        **_A2C,
        "batch_size": Choice(32, 64, 128, 256, 512),
        "clip": Choice(0.1, 0.2, 0.3, 0.4),
        "epochs": Choice(1, 5, 10, 20),
        "hidden": Choice(_TINY, _SMALL, _MEDIUM),
    },
    "PQN": {
        "gamma": _GAMMA,
        "optimizer": Float(1e-5, 1e-2, log=True),
        "q_lambda": Float(0.0, 1.0),
        "rollout_steps": Choice(8, 16, 32, 64, 128),
        "epochs": Choice(1, 2, 4, 8),
        "hidden": Choice(_SMALL, (128, 128), _MEDIUM),
    },
    "QRDQN": {**_DQN, "quantiles": Int(5, 200)},
    "SAC": _SAC,
    "TQC": {**_SAC, "quantiles": 25, "drop": Int(0, 24)},
    "TRPO": {
        "rollout_steps": Choice(8, 16, 32, 64, 128, 256, 512, 1024, 2048),
        "batch_size": Choice(8, 16, 32, 64, 128, 256, 512),
        "gamma": _GAMMA,
        "optimizer": Float(1e-5, 1.0, log=True),
        "epochs": Choice(5, 10, 20, 25, 30),
        "cg_iterations": Choice(5, 10, 20, 25, 30),
        "target_kl": Choice(0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.001),
        "gae_lambda": Choice(0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0),
        "hidden": Choice(_SMALL, _MEDIUM),
        "activation": Choice("tanh", "relu"),
    },
}


def _suggest(name: str, trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of an algorithm for a trial of so many environment steps."""
    values = sample(_RANGES[name], trial)
    if {"batch_size", "rollout_steps"} <= values.keys():
        # A minibatch is at most a rollout of one environment.
        values["batch_size"] = min(values["batch_size"], values["rollout_steps"])
    if name in ("CrossQ", "DDPG", "SAC", "TD3", "TQC"):
        values["updates"] = values["update_every"]  # one update for each step
    if _RANGES[name].items() >= _DQN.items():
        final = Float(0.0, 0.2).suggest(trial, "exploration_final_eps")
        fraction = Float(0.0, 0.5).suggest(trial, "exploration_fraction")
        # rl-zoo3's `subsample_steps` is the number of steps for each update.
        subsample = Choice(1, 2, 4, 8).suggest(trial, "subsample_steps")
        values["updates"] = max(values["update_every"] // subsample, 1)
        if name != "Rainbow":  # whose layers explore
            values["policy"] = LinearEpsGreedyPolicy(1.0, final, max(1, round(fraction * steps)))
    return values


SPACES = {name: partial(_suggest, name) for name in _RANGES}
