"""The time the loop adds to a step: `fit` without updates against the bare environment, actor and memory.

The bar: a step takes at most twice the time of a bare step. So the loop takes less than half of a step even here, where
environment and network are among the cheapest. On an idle machine, the ratio is 1.5, and the loop adds 12 µs to 24 µs;
on a machine whose other programs slowed down every step to 6 to 12 times its time, the ratio was 1.6 to 1.7.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import gymnasium

import noterl
from noterl.policies import GreedyQPolicy
from tests.support.parts import actor_of

# An untrained agent never ends an episode before its 200 steps, so both sides reset rarely and equally often.
ENVIRONMENT = "MountainCar-v0"
STEPS = 1_000


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


def step_bare(agent: noterl.Agent, environment: gymnasium.Env[Any, Any], steps: int) -> None:
    """Make the same steps without the loop."""
    add, forward = agent.replay.add, actor_of(agent).forward
    observation, _ = environment.reset()
    for _ in range(steps):
        action = int(forward(observation[None]).argmax(-1)[0])
        following, reward, terminated, truncated, _ = environment.step(action)
        add(0, observation, action, reward, following, terminated, truncated)
        observation = following
        if terminated or truncated:
            observation, _ = environment.reset()


def test_time_of_a_step(benchmark: Any, size: Any, time_pairs: Any) -> None:
    steps = size(STEPS, 250)
    agent, environment = make_agent(steps), gymnasium.make(ENVIRONMENT, disable_env_checker=True)
    environment.reset(seed=0)
    pairs = time_pairs(
        lambda: agent.fit(steps=steps, verbose=0), lambda: step_bare(agent, environment, steps), rounds=75
    )
    if not pairs:
        return
    ratio = median(fit / bare for fit, bare in pairs)
    benchmark.extra_info["time of a step, relative to a bare step"] = ratio
    benchmark.extra_info["microseconds of overhead"] = median(fit - bare for fit, bare in pairs) / steps * 1e6
    benchmark.extra_info["microseconds without the loop"] = median(bare for _, bare in pairs) / steps * 1e6
    assert ratio <= 2
