"""The default search space of each algorithm: the ranges of rl-zoo3, with noterl's names.

Source: github.com/DLR-RM/rl-baselines3-zoo, `rl_zoo3/hyperparams_opt.py` (2025). Other than there, the norm at which
gradients are clipped, the noise of actions, and the initial standard deviation of SAC are not searched.
"""

from __future__ import annotations

from typing import Any

from noterl.policies import LinearEpsGreedyPolicy
from noterl.tune.ranges import Choice, Float, Int, OneMinus, sample

# The choices and bounds of rl-zoo3; widths of networks by rl-zoo3's names.
_GAMMA = Choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
_TINY = (64,)
_SMALL = (64, 64)
_MEDIUM = (256, 256)
_BIG = (400, 300)
_ON_POLICY = {
    "gamma": OneMinus(0.0001, 0.03),
    "gae_lambda": OneMinus(0.0001, 0.1),
    "optimizer": Float(1e-5, 2e-3, log=True),
    "entropy_coefficient": Float(1e-8, 0.1, log=True),
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


def a2c(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of A2C."""
    rollouts = Choice(32, 64, 128, 256, 512, 1024, 2048)
    return sample({**_ON_POLICY, "rollout_steps": rollouts, "hidden": Choice(_SMALL, _MEDIUM)}, trial)


def ppo(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of PPO; a minibatch is at most a rollout of one environment."""
    ranges = {
        "rollout_steps": Choice(32, 64, 128, 256, 512, 1024, 2048),
        "batch_size": Choice(32, 64, 128, 256, 512),
        "clip": Choice(0.1, 0.2, 0.3, 0.4),
        "epochs": Choice(1, 5, 10, 20),
        "hidden": Choice(_TINY, _SMALL, _MEDIUM),
    }
    values = sample({**_ON_POLICY, **ranges}, trial)
    return {**values, "batch_size": min(values["batch_size"], values["rollout_steps"])}


def trpo(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of TRPO."""
    ranges = {
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
    }
    values = sample(ranges, trial)
    return {**values, "batch_size": min(values["batch_size"], values["rollout_steps"])}


def dqn(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of DQN; epsilon falls during up to half of the `steps` of a trial."""
    ranges = {
        "gamma": _GAMMA,
        "optimizer": Float(1e-5, 1.0, log=True),
        "batch_size": Choice(16, 32, 64, 100, 128, 256, 512),
        "replay": Choice(10_000, 50_000, 100_000, 1_000_000),
        "target_update": Choice(1, 1_000, 5_000, 10_000, 15_000, 20_000),
        "learning_starts": Choice(0, 1_000, 5_000, 10_000, 20_000),
        "update_every": Choice(1, 4, 8, 16, 128, 256, 1_000),
        "hidden": Choice(_TINY, _SMALL, _MEDIUM),
    }
    values = sample(ranges, trial)
    final = Float(0.0, 0.2).suggest(trial, "exploration_final_eps")
    fraction = Float(0.0, 0.5).suggest(trial, "exploration_fraction")
    subsample = Choice(1, 2, 4, 8).suggest(trial, "subsample_steps")
    # rl-zoo3's `subsample_steps` is the number of steps for each update.
    values["updates"] = max(values["update_every"] // subsample, 1)
    values["policy"] = LinearEpsGreedyPolicy(1.0, final, max(1, round(fraction * steps)))
    return values


def sac(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of SAC, with one update for each step."""
    ranges = {
        "batch_size": Choice(16, 32, 64, 128, 256, 512, 1024, 2048),
        "learning_starts": Choice(0, 1_000, 10_000, 20_000),
    }
    return _one_update_per_step(sample({**_OFF_POLICY, **ranges}, trial))


def td3(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of TD3 and DDPG, with one update for each step."""
    ranges = {"batch_size": Choice(16, 32, 64, 100, 128, 256, 512, 1024, 2048)}
    return _one_update_per_step(sample({**_OFF_POLICY, **ranges}, trial))


def qrdqn(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of QRDQN: as for DQN, and the number of quantiles."""
    return {**dqn(trial, steps), "quantiles": Int(5, 200).suggest(trial, "quantiles")}


def pqn(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of PQN."""
    ranges = {
        "gamma": _GAMMA,
        "optimizer": Float(1e-5, 1e-2, log=True),
        "q_lambda": Float(0.0, 1.0),
        "rollout_steps": Choice(8, 16, 32, 64, 128),
        "epochs": Choice(1, 2, 4, 8),
        "hidden": Choice(_SMALL, (128, 128), _MEDIUM),
    }
    return sample(ranges, trial)


def tqc(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of TQC: as for SAC, and the quantiles that a target leaves out."""
    return {**sac(trial, steps), "quantiles": 25, "drop": Int(0, 24).suggest(trial, "drop")}


def rainbow(trial: Any, steps: int) -> dict[str, Any]:
    """Return the hyperparameters of DQN for Rainbow, without a policy, because the layers explore."""
    return {name: value for name, value in dqn(trial, steps).items() if name != "policy"}


SPACES = {
    **{"A2C": a2c, "DDPG": td3, "PPO": ppo, "PQN": pqn, "SAC": sac, "TD3": td3, "TQC": tqc, "TRPO": trpo},
    **{"C51": dqn, "DQN": dqn, "IQN": dqn, "QRDQN": qrdqn, "Rainbow": rainbow},
}


def _one_update_per_step(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "updates": values["update_every"]}
