"""MADDPG and independent DDPG on mpe2's simple_spread: three agents cover three landmarks."""

from __future__ import annotations

from typing import Any

from benchmarks import multi_agent


def make() -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(max_cycles=25)


SEEDS, add_arguments, run, summarize, table, draw = multi_agent.task("simple_spread", make, steps=40_000)
