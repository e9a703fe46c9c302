"""MADDPG and independent DDPG on mpe2's simple_speaker_listener: only one agent observes the other's goal."""

from __future__ import annotations

from typing import Any

from benchmarks import multi_agent


def make() -> Any:
    from mpe2 import simple_speaker_listener_v4

    return simple_speaker_listener_v4.parallel_env(max_cycles=25)


SEEDS, add_arguments, run, summarize, table, draw = multi_agent.task("simple_speaker_listener", make, steps=50_000)
