"""The time the loop adds to a step: `fit` without updates against the bare environment, actor and memory."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

import noterl
from noterl.policies import GreedyQPolicy
from tests.support.parts import actor_of

# An untrained agent never ends an episode before its 200 steps, so both sides reset rarely and equally often.
ENVIRONMENT = "MountainCar-v0"
STEPS = 5_000


def make_agent(steps: int) -> noterl.Agent:
    """Return an agent that acts by its network from the first step and never learns."""
    agent = noterl.DQN(ENVIRONMENT, hidden=(256, 256), seed=0)
    agent.compile(
        policy=GreedyQPolicy(),
        replay=noterl.Replay(50_000),
        learning_starts=1,
        update_every=10**9,
        target_update=10**9,
    )
    agent.fit(steps=steps, verbose=0)
    return agent


def time_bare_steps(agent: noterl.Agent, steps: int) -> float:
    """Return the seconds that the same steps take without the loop."""
    environment = gymnasium.make(ENVIRONMENT, disable_env_checker=True)
    add, forward = agent.replay.add, actor_of(agent).forward
    observation, _ = environment.reset(seed=0)
    start = time.perf_counter()
    for _ in range(steps):
        action = int(forward(observation[None]).argmax(-1)[0])
        following, reward, terminated, truncated, _ = environment.step(action)
        add(0, observation, action, reward, following, terminated, truncated)
        observation = following
        if terminated or truncated:
            observation, _ = environment.reset()
    return time.perf_counter() - start


def test_overhead_of_a_step(benchmark: Any, size: Any) -> None:
    steps = size(STEPS, 250)
    agent = make_agent(steps)
    without = []

    def time_bare() -> None:
        # Both sides alternate, so that a machine that slows down does not count as overhead.
        without.append(time_bare_steps(agent, steps))

    benchmark.pedantic(agent.fit, setup=time_bare, kwargs={"steps": steps, "verbose": 0}, rounds=15)
    if benchmark.stats is None:
        return
    overhead = (benchmark.stats.stats.min - min(without)) / steps * 1e6
    benchmark.extra_info["microseconds of overhead"] = overhead
    benchmark.extra_info["microseconds without the loop"] = min(without) / steps * 1e6
    assert overhead <= 10
