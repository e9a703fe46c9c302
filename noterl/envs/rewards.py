"""Rewards in the `info` of a step."""

from __future__ import annotations

from typing import Any

# The reward of the environment, if agents learn from a clipped one. Logs and evaluations add up this one.
UNCLIPPED_REWARD = "unclipped_reward"
# The reward of a whole game, in the `info` of its last step.
GAME_REWARD = "game_reward"


def unclipped(reward: Any, info: Any) -> float:
    """Return the environment's reward from the reward and the `info` of a step, which may not be a dict."""
    return float(info.get(UNCLIPPED_REWARD, reward) if isinstance(info, dict) else reward)
