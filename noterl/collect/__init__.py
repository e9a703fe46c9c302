"""Where environment steps run: in-process lanes and native vector environments."""

from noterl.collect.lanes import Lanes
from noterl.collect.team import TeamLanes
from noterl.collect.vector import VectorLanes

__all__ = ["Lanes", "TeamLanes", "VectorLanes"]
