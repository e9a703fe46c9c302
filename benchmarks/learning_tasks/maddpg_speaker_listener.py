"""MADDPG and independent DDPG on mpe2's simple_speaker_listener: what one agent sees and must tell the other."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import multi_agent

SEEDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of each run")


def make() -> Any:
    from mpe2 import simple_speaker_listener_v4

    return simple_speaker_listener_v4.parallel_env(max_cycles=25)


def run(seeds: int, *, steps: int) -> dict[str, Any]:
    return multi_agent.run("simple_speaker_listener", make, seeds, steps)


table, draw = multi_agent.table, multi_agent.draw
