"""Print the two benchmark tables of README.md from benchmarks/results/; tests/docs compares the README with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"

SPEED = {
    "cartpole-ppo": "PPO, CartPole, 8 environments",
    "cartpole-dqn": "DQN, CartPole, 128 updates every 256 steps",
    "cartpole-dqn-1": "DQN, CartPole, 1 update per step",
    "pendulum-sac": "SAC, Pendulum, 1 update per step",
    "pendulum-td3": "TD3, Pendulum, 1 update per step",
}
LEARNING = {
    "cartpole-ppo": ("PPO, CartPole", "rl-zoo3: 500 ± 0"),
    "cartpole-a2c": ("A2C, CartPole", "rl-zoo3: 500 ± 0"),
    "acrobot-ppo": ("PPO, Acrobot", "rl-zoo3, 1M steps: -73.5 ± 18.2"),
    "lunarlander-ppo": ("PPO, LunarLander", "rl-zoo3, v2: 242.1 ± 31.8"),
    "pendulum-sac": ("SAC, Pendulum", ""),
    "pendulum-td3": ("TD3, Pendulum", ""),
    "pendulum-ddpg": ("DDPG, Pendulum", ""),
    "bipedalwalker-sac": ("SAC, BipedalWalker", "rl-zoo3: 297.7 ± 33.1"),
    "halfcheetah-td3": ("TD3, HalfCheetah", ""),
    "fetchreach-sac": ("SAC with hindsight, FetchReach", "rl-zoo3, TQC, v1: -1.7 ± 0.9"),
}
BACKENDS = {"noterl-jax": "JAX", "noterl-tensorflow": "TensorFlow", "noterl-torch": "PyTorch"}


def speed_table(results: Path = RESULTS) -> str:
    """Return the steps per second of the fastest backend, and its ratios to the peers with their 90 % intervals."""
    rows = []
    for task, label in SPEED.items():
        summary = _read(results / f"{task}.json")["summary"]
        speeds = {who: one["steps_per_second"] for who, one in summary["participants"].items() if who in BACKENDS}
        best = max(speeds, key=lambda who: speeds[who])
        ratios = {one["peer"]: one["speed"] for one in summary["comparisons"] if one["ours"] == best}
        peers = [
            "" if peer not in ratios else "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**ratios[peer])
            for peer in ("sb3", "sbx")
        ]
        rows.append((label, BACKENDS[best], f"{speeds[best]:,.0f}", *peers))
    return _table(("task", "backend", "steps/s", "times SB3", "times SBX"), rows)


def learning_table(results: Path = RESULTS) -> str:
    """Return the mean return of the median and the worst seed on JAX, beside a peer or a published result."""
    rows = []
    for task, (label, published) in LEARNING.items():
        result = _read(results / "learning" / f"{task}.json")
        one = result["summary"]["noterl-jax"]
        peer = one["peers"].get("sb3")
        beside = published
        if peer is not None:
            beside = "SB3, difference: {difference:+.1f} ({low:+.1f} to {high:+.1f})".format(**peer)
        counts = f"{result['settings']['steps']:,}", str(one["seeds"])
        rows.append((label, *counts, f"{one['median']:.1f}", f"{one['worst']:.1f}", beside))
    return _table(("task", "steps", "seeds", "median seed", "worst seed", "compare"), rows)


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (head, ("---",) * len(head), *rows))


if __name__ == "__main__":
    print(speed_table(), learning_table(), sep="\n\n")
