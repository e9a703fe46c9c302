"""The tasks that `compare.py` knows: one neutral description, which each runner puts into its own words."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """A training run that noterl and its peers can do alike.

    Attributes:
        algorithm: what trains; the runners know "dqn".
        environment: an id of gymnasium.
        steps: environment steps of one run.
        settings: hyperparameters under noterl's names; frequencies count environment steps.
        return_range: (lowest, highest) return of an episode; 5 % of it is the margin of "equal".
        bars: for a peer, the ratio of steps/s that noterl must reach on each backend.
        source: where the settings come from.
    """

    algorithm: str
    environment: str
    steps: int
    settings: dict[str, object]
    return_range: tuple[float, float]
    bars: dict[str, dict[str, float]] = field(default_factory=dict)
    source: str = ""


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
            "sb3": {"tensorflow": 5, "jax": 5, "torch": 1.5, "torch-inductor": 2},
            "sbx": {"tensorflow": 2, "jax": 1.8},
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
}
