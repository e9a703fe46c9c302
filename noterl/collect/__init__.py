"""Where environment steps run: in-process lanes and native vector environments."""

from noterl.collect.lanes import Lanes
from noterl.collect.vector import VectorLanes

__all__ = ["Lanes", "VectorLanes"]
