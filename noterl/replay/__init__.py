"""Replay memories: what was experienced, kept to be learned from again.

Owns the public names of this package. `columns` says how a space lies in arrays, `storage` keeps the transitions,
`snapshot` says and takes their state, `machine` knows how much memory there is, `memory` is what users construct.
"""

from noterl.replay.memory import Replay, bytes_needed

__all__ = ["Replay", "bytes_needed"]
