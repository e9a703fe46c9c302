"""The tasks of `compare.py` and `learning.py`, described independently of the library that trains them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Learning:
    """What `learning.py` trains for a task, and the goals.

    Attributes:
        median: the least mean return that the median seed must reach; None if the peers are the only measure.
        worst: the least mean return that the worst seed must reach.
        success: the least success rate that the median seed must reach, for tasks with goals.
        share: the share of the seeds that must reach `median`, instead of the median seed.
        published: a published figure to show beside ours.
        peers: the peers that are trained with the same settings.
        beside: a task of another algorithm, whose stored returns are compared with these.
        backends: the backends of a complete result.
        seeds: the seeds of a complete result: 10 if a run takes under two minutes, 3 above an hour, otherwise 5.
        steps: environment steps; None for those of the task.
        episodes: if given, the run ends after so many episodes instead.
    """

    median: float | None = None
    worst: float | None = None
    success: float | None = None
    share: float | None = None
    published: str = ""
    peers: tuple[str, ...] = ()
    beside: str | None = None
    backends: tuple[str, ...] = ("jax",)
    seeds: int = 10
    steps: int | None = None
    episodes: int | None = None

    @property
    def min_seeds(self) -> int:
        """The number of seeds below which goals and differences are not judged."""
        return min(5, self.seeds)


@dataclass(frozen=True)
class Task:
    """A training run that noterl and its peers can all do.

    Attributes:
        algorithm: one of `ALGORITHMS` in run.py, such as "dqn".
        environment: an id of gymnasium, or the name of an environment of noterl.
        steps: environment steps of one run.
        settings: hyperparameters under noterl's names; frequencies count environment steps.
        return_range: (lowest, highest) return of an episode; 5 % of it is the margin of "equal".
        bars: for each peer, the ratio of steps/s that noterl must reach on each backend.
        source: where the settings come from.
        learning: what `learning.py` trains; None for a task that only measures speed.
    """

    algorithm: str
    environment: str
    steps: int
    settings: dict[str, Any]
    return_range: tuple[float, float]
    bars: dict[str, dict[str, float]] = field(default_factory=dict)
    source: str = ""
    learning: Learning | None = None

    @property
    def span(self) -> float:
        """The highest less the lowest return."""
        return self.return_range[1] - self.return_range[0]


ALL = ("jax", "tensorflow", "torch")


def default_task(
    kind: str,
    environment: str,
    steps: int,
    return_range: tuple[float, float],
    goals: dict[str, Any],
    source: str = "",
    **settings: Any,
) -> Task:
    """Return the task of an agent with its defaults, except for `settings`; see `defaults` in run.py."""
    settings = {"class": kind, **settings}
    source = source or f"the defaults of noterl.{kind}"
    return Task(kind.lower(), environment, steps, settings, return_range, source=source, learning=Learning(**goals))


PPO = {
    "hidden": [64, 64],
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "batch_size": 64,
    "epochs": 10,
    "clip": 0.2,
    "learning_rate": 3e-4,
    "entropy_coefficient": 0.0,
}
# `anneal`: clip and learning rate fall linearly to 0.
CARTPOLE_PPO = {
    **PPO,
    "num_envs": 8,
    "rollout_steps": 32,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "batch_size": 256,
    "epochs": 20,
    "learning_rate": 1e-3,
    "anneal": True,
}
# The defaults of sb3-contrib, with two environments as in rl-zoo3. `target_kl` and `cg_damping` are for divergences
# that are summed over the values of an action. sb3-contrib averages them: its values are ours, divided by their number.
# `anneal`: the target of the divergence falls linearly to a twentieth.
TRPO = {
    "num_envs": 2,
    "hidden": [64, 64],
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "rollout_steps": 1_024,
    "batch_size": 128,
    "epochs": 10,
    "learning_rate": 1e-3,
    "target_kl": 0.01,
    "cg_iterations": 15,
    "cg_damping": 0.1,
    "line_search_steps": 10,
    "line_search_shrink": 0.8,
    "fisher_stride": 1,
}
# Stable-Baselines 2's defaults; its memory of 5,000 steps and its start after 1,000 are per environment, here of 8.
ACER = {
    "num_envs": 8,
    "hidden": [64, 64],
    "gamma": 0.99,
    "rollout_steps": 20,
    "learning_rate": 7e-4,
    "replay_ratio": 4.0,
    "replay_starts": 8_000,
    "capacity": 40_000,
    "truncation": 10.0,
    "trust_region": 1.0,
    "target_update": 0.01,
    "entropy_coefficient": 0.01,
    "value_coefficient": 0.5,
    "anneal": True,
}
# A window of four rollouts.
PRIORITIZED = {"capacity": 1_024, "alpha": 0.7, "beta": 0.4, "ratio_share": 0.5}
WINDOW = {"scale": 1.0, "smooth": 0.2, "mode": "target", "min_size": 256, "every": 256, "unit": "steps"}
OFF_POLICY = {"batch_size": 256, "update_every": 1, "updates": 1, "target_update": 0.005}
PENDULUM_RANGE = (-1_700, 0)
PENDULUM_SAC: dict[str, Any] = {
    **OFF_POLICY,
    "hidden": [256, 256],
    "gamma": 0.99,
    "learning_rate": 1e-3,
    "capacity": 1_000_000,
    "learning_starts": 100,
}
PENDULUM_DDPG = {
    **OFF_POLICY,
    "hidden": [400, 300],
    "gamma": 0.98,
    "learning_rate": 1e-3,
    "capacity": 200_000,
    "learning_starts": 10_000,
    "noise": 0.1,
}
REACH2D = {
    **OFF_POLICY,
    "num_envs": 8,
    "hidden": [64, 64],
    "gamma": 0.95,
    "learning_rate": 1e-3,
    "batch_size": 128,
    "capacity": 50_000,
    "learning_starts": 1_000,
    "update_every": 16,
    "updates": 16,
    "noise": 0.2,
}
HINDSIGHT = {"strategy": "future", "ratio": 0.8}


def bfloat16_tasks(
    algorithm: str, settings: dict[str, Any], published: str, *, steps: int, wide_steps: int
) -> dict[str, Task]:
    """Return the tasks of an algorithm on Pendulum in bfloat16, and with 1,024 units in both precisions."""
    name = f"pendulum-{algorithm}"
    half, wide = {"precision": "bfloat16"}, {"hidden": [1_024, 1_024]}
    narrow = Task(
        algorithm=algorithm,
        environment="Pendulum-v1",
        steps=steps,
        settings={**settings, **half},
        return_range=PENDULUM_RANGE,
        bars={"sb3": {"torch": 2}},
        source=f"{name}, with layers in bfloat16; SB3 in float32. The bar is for processors with AMX",
        learning=Learning(published=f"{published} (float32)", backends=("torch",), seeds=5, steps=20_000),
    )
    single = replace(
        narrow,
        steps=wide_steps,
        settings={**settings, **wide},
        bars={},
        source=f"{name}, with 1,024 units",
        learning=Learning(backends=("torch",), seeds=5),
    )
    mixed = replace(single, settings={**single.settings, **half}, source=f"{single.source} and layers in bfloat16")
    return {f"{name}-bfloat16": narrow, f"{name}-1024": single, f"{name}-1024-bfloat16": mixed}


def mujoco_tasks(environment: str, return_range: tuple[float, float], seeds: int) -> dict[str, Task]:
    """Return SAC and CrossQ with their defaults on an environment of MuJoCo, for 100,000 steps."""
    name = environment.lower()
    return {
        f"{name}-{kind.lower()}": default_task(
            kind, f"{environment}-v5", 100_000, return_range, {"seeds": seeds, **beside}
        )
        for kind, beside in (("SAC", {}), ("CrossQ", {"beside": f"{name}-sac"}))
    }


TASKS = {
    "cartpole-dqn": Task(
        algorithm="dqn",
        environment="CartPole-v1",
        steps=50_000,
        settings={
            "hidden": [256, 256],
            "gamma": 0.99,
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "capacity": 100_000,
            "learning_starts": 1_000,
            "update_every": 256,
            "updates": 128,
            "target_update": 10,
            "exploration_start": 1.0,
            "exploration_end": 0.04,
            "exploration_steps": 8_000,
        },
        return_range=(0, 500),
        bars={
            "sb3": {
                "tensorflow": 5,
                "jax": 5,
                "torch": 1.5,
                "torch-inductor": 2,
                "tensorflow-warm": 5.5,
                "jax-warm": 5.5,
            },
            "sbx": {"tensorflow": 2, "jax": 1.8, "tensorflow-warm": 2, "jax-warm": 2},
        },
        source="rl-zoo3, DQN on CartPole-v1",
    ),
    "cartpole-dqn-1": Task(
        algorithm="dqn",
        environment="CartPole-v1",
        steps=20_000,
        settings={
            "hidden": [128],
            "gamma": 0.99,
            "learning_rate": 1e-3,
            "batch_size": 64,
            "capacity": 100_000,
            "learning_starts": 1_000,
            "update_every": 1,
            "updates": 1,
            "target_update": 10,
            "exploration_start": 1.0,
            "exploration_end": 0.04,
            "exploration_steps": 3_200,
        },
        return_range=(0, 500),
        bars={"sb3": {"tensorflow": 1.5, "jax": 4, "torch": 1.2}},
        source="one update per environment step, for speed",
    ),
    "cartpole-ppo": Task(
        algorithm="ppo",
        environment="CartPole-v1",
        steps=100_000,
        settings=CARTPOLE_PPO,
        return_range=(0, 500),
        bars={
            "sb3": {
                "tensorflow": 5.5,
                "jax": 6.5,
                "torch": 1.5,
                "torch-inductor": 3,
                "tensorflow-warm": 4,
                "jax-warm": 5.5,
            },
            "sbx": {"tensorflow": 3, "jax": 3.5, "jax-warm": 3.5},
        },
        source="rl-zoo3, PPO on CartPole-v1",
        learning=Learning(median=500, worst=450, published="500 ± 0", backends=ALL),
    ),
    "cartpole-a2c": Task(
        algorithm="a2c",
        environment="CartPole-v1",
        steps=500_000,
        settings={
            "num_envs": 8,
            "hidden": [64, 64],
            "gamma": 0.99,
            "gae_lambda": 1.0,
            "rollout_steps": 5,
            "learning_rate": 7e-4,
            "entropy_coefficient": 0.0,
        },
        return_range=(0, 500),
        source="rl-zoo3, A2C on CartPole-v1",
        learning=Learning(median=490, published="500 ± 0", backends=ALL),
    ),
    "cartpole-ppo-replay": Task(
        algorithm="ppo",
        environment="CartPole-v1",
        steps=100_000,
        settings={**CARTPOLE_PPO, "prioritized": PRIORITIZED},
        return_range=(0, 500),
        source="rl-zoo3, PPO on CartPole-v1, with a prioritized memory of four rollouts",
        learning=Learning(median=500, backends=ALL),
    ),
    "cartpole-ppo-replay-window": Task(
        algorithm="ppo",
        environment="CartPole-v1",
        steps=100_000,
        settings={**CARTPOLE_PPO, "prioritized": PRIORITIZED, "window": WINDOW},
        return_range=(0, 500),
        source="rl-zoo3, PPO on CartPole-v1, with a prioritized memory trimmed by `ESSWindow`",
        learning=Learning(median=500, backends=ALL),
    ),
    "acrobot-ppo": Task(
        algorithm="ppo",
        environment="Acrobot-v1",
        steps=500_000,
        settings={
            **PPO,
            "num_envs": 16,
            "rollout_steps": 256,
            "gae_lambda": 0.94,
            "epochs": 4,
            "normalize_observation": True,
            "normalize_reward": True,
        },
        return_range=(-500, 0),
        source="rl-zoo3, PPO on Acrobot-v1, half of the steps",
        learning=Learning(median=-90, published="-73.5 ± 18.2 (1M steps)"),
    ),
    "lunarlander-ppo": Task(
        algorithm="ppo",
        environment="LunarLander-v3",
        steps=1_000_000,
        settings={
            **PPO,
            "num_envs": 16,
            "rollout_steps": 1_024,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "epochs": 4,
            "entropy_coefficient": 0.01,
        },
        return_range=(-500, 320),
        source="rl-zoo3, PPO on LunarLander-v3",
        learning=Learning(median=230, published="242.1 ± 31.8 (LunarLander-v2)", backends=("jax", "tensorflow")),
    ),
    "cartpole-acer": Task(
        algorithm="acer",
        environment="CartPole-v1",
        steps=500_000,
        settings={**ACER, "entropy_coefficient": 0.0},
        return_range=(0, 500),
        source="rl-baselines-zoo, ACER on CartPole-v1",
        learning=Learning(median=495, published="498.6 ± 23.9", seeds=5),
    ),
    "acrobot-acer": Task(
        algorithm="acer",
        environment="Acrobot-v1",
        steps=500_000,
        settings={**ACER, "entropy_coefficient": 0.0, "normalize_observation": True, "normalize_reward": True},
        return_range=(-500, 0),
        source="rl-baselines-zoo, ACER on Acrobot-v1, with 8 instead of 16 environments",
        learning=Learning(median=-91, published="-90.9 ± 32.8", seeds=5),
    ),
    "lunarlander-acer": Task(
        algorithm="acer",
        environment="LunarLander-v3",
        steps=1_000_000,
        settings={
            **ACER,
            "gamma": 0.995,
            "replay_starts": 10_000,
            "capacity": 50_000,
            "entropy_coefficient": 0.0,
            "anneal": False,
            "normalize_observation": True,
            "normalize_reward": True,
        },
        return_range=(-500, 320),
        source="our choice: with the settings of rl-baselines-zoo, a seed reached 26 here",
        learning=Learning(median=185, published="185.2 ± 64.8 (LunarLander-v2)", seeds=5),
    ),
    "pendulum-ppo": Task(
        algorithm="ppo",
        environment="Pendulum-v1",
        steps=100_000,
        settings={**PPO, "num_envs": 4, "rollout_steps": 1_024, "gamma": 0.9, "learning_rate": 1e-3},
        return_range=PENDULUM_RANGE,
        source="rl-zoo3, PPO on Pendulum-v1, without state-dependent exploration",
        # With five seeds, one outlier on each side left the comparison undecided.
        learning=Learning(published="-172.2 ± 104.2", peers=("sb3",), backends=ALL),
    ),
    "cartpole-trpo": Task(
        algorithm="trpo",
        environment="CartPole-v1",
        steps=100_000,
        settings={
            **TRPO,
            "rollout_steps": 512,
            "gae_lambda": 0.98,
            "batch_size": 512,
            "epochs": 20,
            "cg_damping": 1e-3,
        },
        return_range=(0, 500),
        source="rl-zoo3, TRPO on CartPole-v1",
        learning=Learning(median=490, published="500 ± 0", backends=ALL),
    ),
    "acrobot-trpo": Task(
        algorithm="trpo",
        environment="Acrobot-v1",
        steps=500_000,
        settings={**TRPO, "normalize_observation": True, "normalize_reward": True},
        return_range=(-500, 0),
        source="rl-zoo3, TRPO on Acrobot-v1, five times the steps",
        learning=Learning(median=-90, published="-83.1"),
    ),
    "lunarlandercontinuous-trpo": Task(
        algorithm="trpo",
        environment="LunarLanderContinuous-v3",
        steps=500_000,
        settings={
            **TRPO,
            "num_envs": 8,
            "gamma": 0.995,
            "gae_lambda": 0.98,
            "rollout_steps": 256,
            "target_kl": 0.04,
            "anneal": True,
        },
        return_range=(-500, 320),
        source="our choice: the settings of rl-zoo3 reached a median of 164 here",
        learning=Learning(median=200, published="262.4 (LunarLanderContinuous-v2)", seeds=5),
    ),
    "pendulum-trpo": Task(
        algorithm="trpo",
        environment="Pendulum-v1",
        steps=100_000,
        settings={**TRPO, "gamma": 0.9, "epochs": 15},
        return_range=PENDULUM_RANGE,
        source="rl-zoo3, TRPO on Pendulum-v1, without state-dependent exploration",
        learning=Learning(published="-174.6", peers=("sb3",), backends=ALL),
    ),
    "halfcheetah-trpo": Task(
        algorithm="trpo",
        environment="HalfCheetah-v5",
        steps=1_000_000,
        settings={**TRPO, "cg_iterations": 25, "epochs": 20, "target_kl": 0.24, "cg_damping": 0.6},
        return_range=(0, 5_000),
        source="rl-zoo3, TRPO on HalfCheetah-v4, without normalization",
        learning=Learning(published="1803 ± 46 (HalfCheetah-v3, normalized)", peers=("sb3",), seeds=5),
    ),
    "pendulum-sac": Task(
        algorithm="sac",
        environment="Pendulum-v1",
        steps=5_000,
        settings=PENDULUM_SAC,
        return_range=PENDULUM_RANGE,
        bars={
            "sb3": {"tensorflow": 3, "jax": 3.5, "torch": 1.2, "torch-inductor": 2},
            "sbx": {"tensorflow": 0.9, "jax": 1},
        },
        source="rl-zoo3, SAC on Pendulum-v1",
        learning=Learning(published="-157.0 ± 88.7", peers=("sb3",), backends=ALL, seeds=5, steps=20_000),
    ),
    "pendulum-td3": Task(
        algorithm="td3",
        environment="Pendulum-v1",
        steps=15_000,
        settings=PENDULUM_DDPG,
        return_range=PENDULUM_RANGE,
        bars={"sb3": {"tensorflow": 3, "jax": 3.5, "torch": 1.2}},
        source="rl-zoo3, TD3 on Pendulum-v1",
        learning=Learning(published="-151.9 ± 90.2", peers=("sb3",), backends=ALL, seeds=5, steps=20_000),
    ),
    **bfloat16_tasks("sac", PENDULUM_SAC, "-157.0 ± 88.7", steps=5_000, wide_steps=10_000),
    **bfloat16_tasks("td3", PENDULUM_DDPG, "-151.9 ± 90.2", steps=15_000, wide_steps=15_000),
    **{
        f"cartpole-{kind.lower()}": default_task(kind, "CartPole-v1", 50_000, (0, 500), {"median": 475, "share": 0.8})
        for kind in ("C51", "IQN", "Rainbow")
    },
    # With the defaults of noterl, 7 of 10 seeds reached 475.
    "cartpole-qrdqn": default_task(
        "QRDQN",
        "CartPole-v1",
        50_000,
        (0, 500),
        {"median": 475, "share": 0.8, "published": "500 ± 0"},
        source="rl-zoo3, QR-DQN on CartPole-v1",
        constructor={"hidden": [256, 256], "quantiles": 10},
        compile={"batch_size": 64, "learning_starts": 1_000, "update_every": 256, "updates": 128, "target_update": 10},
        learning_rate=2.3e-3,
        exploration=(1.0, 0.04, 8_000),
    ),
    # On the device. The learning rate falls to 0 as in CleanRL, and a fifth of the actions stay random as in purejaxql.
    "cartpole-pqn": default_task(
        "PQN",
        "functional_cartpole",
        500_000,
        (0, 500),
        {"median": 495, "worst": 450},
        num_envs=16,
        annealed_rate=2.5e-4,
        exploration=(1.0, 0.2, 50_000),
    ),
    "pendulum-tqc": default_task(
        "TQC",
        "Pendulum-v1",
        20_000,
        PENDULUM_RANGE,
        {"median": -160, "published": "-151 (rl-zoo3)", "peers": ("sb3",)},
        constructor={"critics": 2},
    ),
    "lunarlander-tqc": default_task(
        "TQC",
        "LunarLanderContinuous-v3",
        100_000,
        (-300, 300),
        {"median": 200, "seeds": 5, "peers": ("sb3",)},
        constructor={"critics": 2},
    ),
    "pendulum-crossq": default_task(
        "CrossQ",
        "Pendulum-v1",
        20_000,
        PENDULUM_RANGE,
        {"seeds": 5, "peers": ("sb3",)},
        source="rl-zoo3, CrossQ on Pendulum-v1, with 1,000 random steps",
        constructor={"critic_hidden": [256, 256], "policy_delay": 2},
    ),
    # With a gamma of 0.99, full force at each step is best, and earns 89 to 90. The speed is at most 0.07, so TD3
    # normalizes the observations: seeds 10 to 12 then earn 91.1 to 92.3, without that 87 to 93.
    **{
        f"mountaincar-{kind.lower()}-colored": default_task(
            kind,
            "MountainCarContinuous-v0",
            60_000,
            (-100, 100),
            {"median": 90, "share": 0.8, "seeds": 5},
            constructor={"hidden": [64, 64], "gamma": 0.999, **normalized},
            colored_noise={"length": 999, "sigma": sigma},
        )
        for kind, sigma, normalized in (("TD3", 0.6, {"normalize_observation": True}), ("SAC", 1.0, {}))
    },
    **{
        f"minatar-{kind.lower()}": default_task(
            kind,
            "MinAtar/Breakout",
            1_000_000,
            (0, 80),
            {"median": 4, "share": 1.0, "seeds": 3},
            compile={"learning_starts": 5_000, "update_every": 4, "target_update": 1_000},
            constructor={"hidden": [256, 256]},
        )
        for kind in ("DQN", "IQN", "Rainbow")
    },
    "minatar-pqn": default_task(
        "PQN", "MinAtar/Breakout", 3_000_000, (0, 80), {"median": 8, "share": 1.0, "seeds": 3}, num_envs=128
    ),
    **mujoco_tasks("HalfCheetah", (0, 10_000), seeds=5),
    **mujoco_tasks("Walker2d", (0, 5_000), seeds=5),
    **mujoco_tasks("Hopper", (0, 4_000), seeds=3),
    "halfcheetah-sac-simba": default_task(
        "SAC",
        "HalfCheetah-v5",
        100_000,
        (0, 10_000),
        {"seeds": 3, "beside": "halfcheetah-sac"},
        constructor={"normalize_observation": True},
        simba=256,
    ),
    "hopper-crossq-1024": default_task(
        "CrossQ",
        "Hopper-v5",
        100_000,
        (0, 4_000),
        {"seeds": 1, "beside": "hopper-sac"},
        constructor={"critic_hidden": [1_024, 1_024]},
    ),
    "pendulum-ddpg": Task(
        algorithm="ddpg",
        environment="Pendulum-v1",
        steps=20_000,
        settings=PENDULUM_DDPG,
        return_range=PENDULUM_RANGE,
        source="rl-zoo3, DDPG on Pendulum-v1",
        learning=Learning(published="-152.1 ± 94.3", peers=("sb3",), backends=ALL),
    ),
    "bipedalwalker-sac": Task(
        algorithm="sac",
        environment="BipedalWalker-v3",
        steps=500_000,
        settings={
            **OFF_POLICY,
            "hidden": [400, 300],
            "gamma": 0.98,
            "learning_rate": 7.3e-4,
            "capacity": 300_000,
            "learning_starts": 10_000,
            "update_every": 64,
            "updates": 64,
            "target_update": 0.02,
        },
        return_range=(-100, 330),
        source="rl-zoo3, SAC on BipedalWalker-v3, without state-dependent exploration",
        learning=Learning(median=280, published="297.7 ± 33.1", seeds=3),
    ),
    "halfcheetah-td3": Task(
        algorithm="td3",
        environment="HalfCheetah-v5",
        steps=300_000,
        settings={
            **OFF_POLICY,
            "hidden": [400, 300],
            "gamma": 0.99,
            "learning_rate": 1e-3,
            "capacity": 1_000_000,
            "learning_starts": 10_000,
            "noise": 0.1,
        },
        return_range=(0, 10_000),
        source="rl-zoo3, TD3 on HalfCheetah-v4, the first 300,000 steps",
        learning=Learning(published="9656 ± 970 (1M steps)", peers=("sb3",), seeds=3),
    ),
    "reach2d-ddpg": Task(
        algorithm="ddpg",
        environment="Reach2D",
        steps=100_000,
        settings={**REACH2D, "hindsight": HINDSIGHT},
        return_range=(-50, 0),
        source="noterl",
        learning=Learning(success=0.95, backends=ALL, episodes=2_000),
    ),
    "reach2d-ddpg-plain": Task(
        algorithm="ddpg",
        environment="Reach2D",
        steps=100_000,
        settings=REACH2D,
        return_range=(-50, 0),
        source="noterl; without hindsight",
        learning=Learning(episodes=2_000, backends=ALL),
    ),
    "fetchreach-sac": Task(
        algorithm="sac",
        environment="gymnasium_robotics:FetchReach-v4",
        steps=20_000,
        settings={
            **OFF_POLICY,
            "hidden": [64, 64],
            "gamma": 0.95,
            "learning_rate": 1e-3,
            "capacity": 1_000_000,
            "learning_starts": 1_000,
            "hindsight": HINDSIGHT,
        },
        return_range=(-50, 0),
        source="rl-zoo3, SAC with hindsight on FetchReach-v1, without a time feature",
        learning=Learning(
            median=-3,
            share=0.8,
            published="-1.7 ± 0.9 (TQC, FetchReach-v1); -17.6 ± 21.7 (Tianshou)",
            backends=ALL,
        ),
    ),
}
