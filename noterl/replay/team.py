"""What the memory keeps of several agents, beside what it keeps of one: rewards and ends of each.

Owns: these columns, and the n-step return of a team (`noterl.replay.returns` has that of one agent). A row's scalar
reward is the team's and serves nothing here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.replay.columns import Array, Leaf, extra_layout
from noterl.replay.returns import assembled, follow, powers_of
from noterl.replay.storage import Storage
from noterl.types import Batch

_FLOAT, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)

# What `Replay.add` finds in `extra`, [agents] each; `noterl.envs.multi_agent.parallel.Outcome` says what they mean.
COLUMNS = {"reward": _FLOAT, "terminated": _BOOL, "present": _BOOL, "remaining": _BOOL}


def layout(extra_spec: Any, agents: int) -> dict[str, Leaf]:
    """Return the layout of further fields, with the columns for so many agents; 0 adds none.

    Raises:
        ValueError: if an entry of `extra_spec` is no pair of a shape and a numeric dtype.
    """
    columns = {name: Leaf((agents,), dtype, dtype) for name, dtype in COLUMNS.items()} if agents else {}
    return {**extra_layout(extra_spec), **columns}


def gathered(storage: Storage, rows: Array, gamma: float, n_step: int) -> Batch:
    """Return the batch of rows `[m]`, `reward` and `discount` of each agent `[m, agents]`.

    An n-step return ends, besides where an episode does, where an agent leaves or joins: the agents of the row are
    those of the state that it is bootstrapped from. `extra` has, as float32 `[m, agents]`, who was `present` in the row
    and who is `remaining` in that state.

    Args:
        storage: with the columns.
        rows: live rows.
        gamma: the discount of one step.
        n_step: n, at most so many rewards are added up.
    """
    steps = follow(storage, rows, n_step)
    present = storage.extra["present"][steps.rows]  # [n, m, agents]
    going = steps.present.copy()
    for i in range(1, n_step):
        going[i] &= going[i - 1] & (present[i] == present[i - 1]).all(axis=-1)
    powers, count = powers_of(gamma, n_step), going.sum(axis=0)
    reward = storage.extra["reward"][steps.rows]
    total = np.where(going[..., None], reward * powers[:-1, None, None], 0.0).sum(axis=0)
    last = steps.rows[count - 1, np.arange(len(rows))]
    discount = np.where(storage.extra["terminated"][last], 0.0, powers[count][:, None])
    batch = assembled(storage, rows, last, total.astype(np.float32), discount.astype(np.float32))
    extra: dict[str, Any] = {name: value for name, value in batch.extra.items() if name not in COLUMNS}
    extra.update(present=present[0].astype(np.float32), remaining=storage.extra["remaining"][last].astype(np.float32))
    return batch._replace(extra=extra)
