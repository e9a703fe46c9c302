"""Replay memories: what was experienced, kept to be learned from again.

Owns the public names of this package. `columns` says how a space lies in arrays, `storage` keeps the transitions,
`episodes` finds what belongs together, `mask` what must not be drawn, `snapshot` says and takes their state, `machine`
knows how much memory there is. `samplers` choose rows (`drawing`), `gathering` makes batches of them, `relabel` sees
them in another light; `memory` is what users construct.
"""

from noterl.replay.memory import Replay, bytes_needed
from noterl.replay.relabel import Drawn, Relabel
from noterl.replay.samplers import Sampler, Uniform

__all__ = ["Drawn", "Relabel", "Replay", "Sampler", "Uniform", "bytes_needed"]
