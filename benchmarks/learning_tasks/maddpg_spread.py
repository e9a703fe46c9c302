"""MADDPG and independent DDPG on mpe2's simple_spread: three agents cover three landmarks."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import multi_agent

SEEDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps of each run")


def make() -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(max_cycles=25)


def run(seeds: int, *, steps: int) -> dict[str, Any]:
    return multi_agent.run("simple_spread", make, seeds, steps)


table, draw = multi_agent.table, multi_agent.draw
