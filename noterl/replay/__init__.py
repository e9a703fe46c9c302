"""Replay memories: what was experienced, kept to be learned from again.

Owns the public names of this package. `columns` says how a space lies in arrays, `building` allocates them, in memory
or on `disk`; `storage` keeps the transitions, `frames` of a stack once, `episodes` finds what belongs together, `mask`
what must not be drawn, `windows` trims, `snapshot` says and takes their state, `machine` knows how much memory there
is. `samplers` choose rows (`drawing`), `prioritized` ones by their `scores` in a `sum_tree`; `gathering` makes batches
of them, `relabel` sees them in another light: in `hindsight`, or as `triplets`; `memory` is what users construct.
"""

from noterl.replay.building import bytes_needed
from noterl.replay.hindsight import Hindsight
from noterl.replay.prioritized import Prioritized
from noterl.replay.relabel import Drawn, Relabel
from noterl.replay.replay import Replay
from noterl.replay.samplers import Sampler, Uniform
from noterl.replay.scores import RatioScore, Score
from noterl.replay.triplets import Triplets

__all__ = [
    "Drawn",
    "Hindsight",
    "Prioritized",
    "RatioScore",
    "Relabel",
    "Replay",
    "Sampler",
    "Score",
    "Triplets",
    "Uniform",
    "bytes_needed",
]
