"""What must hold before an agent takes a memory for its own.

Owns: that a memory has one agent, and that it has room for what that agent sees, which is told when the agent is
compiled rather than when it begins to train.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from noterl.replay.building import check_room
from noterl.replay.columns import action_layout, observation_layout

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm
    from noterl.replay.replay import Replay


def claim(replay: Replay, agent: Algorithm) -> None:
    """Let the memory be the agent's.

    Raises:
        ValueError: if it is the memory of another agent, or needs more memory than is available.
    """
    owner = replay.owner() if replay.owner is not None else None
    if owner is not None and owner is not agent and getattr(owner, "replay", None) is replay:
        raise ValueError(
            f"replay must belong to one agent alone, got the memory of another {type(owner).__name__}: make a new "
            "Replay, and to begin with the same transitions give it the other's, set_state(replay.get_state())"
        )
    if not replay.nbytes:
        observation, action = agent.source.observation_space, agent.source.action_space
        layouts = observation_layout(observation), action_layout(action)
        check_room(replay.capacity, *layouts, {}, replay._frame_stack, replay._memmap)
    replay.owner = weakref.ref(agent)
