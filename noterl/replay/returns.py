"""Batches of the transitions at given indices, with n-step returns.

At a truncation, n-step returns (Sutton, 1988) bootstrap from the true next observation. The returns are computed
when a batch is gathered, with the discount of that moment.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from noterl.replay.columns import Array, ExtraSpec, Leaf, extra_layout, gather, reshape
from noterl.replay.storage import Storage
from noterl.types import Batch

# Fields of `extra` in `Replay.add` for several agents, `[agents]` each; see `noterl.envs.multi_agent.parallel.Outcome`.
TEAM_FIELDS = {"reward": np.float32, "terminated": np.bool_, "present": np.bool_, "remaining": np.bool_}


class Observations(Protocol):
    """Gathers the observations of a batch: a `Storage`, or the copy of the observations on the agent's device."""

    def observations(self, indices: Array) -> Any:
        """Return the observations `[n, ...]`."""

    def next_observations(self, indices: Array) -> Any:
        """Return the true next observations `[n, ...]`."""


class Steps(NamedTuple):
    """Up to n consecutive transitions from each of m indices.

    Both arrays are `[n, m]`. `indices[i]` holds the i-th transitions; where there are fewer, the last one is repeated.
    `present[i]` is whether there is an i-th transition.
    """

    indices: Array
    present: Array


def follow(successor: Array, indices: Array, count: int) -> Steps:
    """Return `count` transitions from each of the indices `[m]` on, or fewer where a transition has no successor.

    `successor` holds, by index, the index of the next transition; a negative number if there is none.
    """
    following = np.empty((count, len(indices)), np.int64)
    present = np.ones((count, len(indices)), np.bool_)
    following[0] = indices
    for i in range(1, count):
        before = following[i - 1]
        after = successor.take(before)
        # If there is no successor, the index is repeated. It has no successor in the next round either.
        np.greater_equal(after, 0, out=present[i])
        following[i] = np.where(present[i], after, before)
    return Steps(following, present)


def n_step_return(steps: Steps, reward: Array, terminated: Array, gamma: float) -> tuple[Array, Array, Array]:
    """Return the n-step reward, the discount of the value that follows, and the index of the last step, `[m]` each.

    The reward is `sum of gamma**i * reward[i]` over the steps up to the first that terminates. The discount is
    `gamma**count * (1 - terminated)` for `count` such steps.

    Args:
        steps: the result of `follow`.
        reward: of each step, float32 `[n, m]`; ignored where no step is present.
        terminated: whether the episode terminates with each step, `[n, m]`.
        gamma: the discount of one step.
    """
    if len(reward) == 1:  # the fast path of one-step returns
        return reward[0], np.multiply(~terminated[0], gamma, dtype=np.float32), steps.indices[0]
    # A step counts if all steps before count and none of these terminates.
    counted = steps.present.copy()
    for i in range(1, len(reward)):
        counted[i] &= counted[i - 1]
        np.greater(counted[i], terminated[i - 1], out=counted[i])
    total, discount, last = _sum_steps(counted, reward, terminated, gamma)
    return total, discount, steps.indices[last]


def _sum_steps(counted: Array, reward: Array, terminated: Array, gamma: float) -> tuple[Array, Array, Any]:
    """Return summed reward and discount `[m, ...]` of the steps that count, and the position of each last step.

    `counted` is `[n, m]`; `reward` and `terminated` are `[n, m]` or `[n, m, agents]`.
    """
    # gamma**i by repeated multiplication, with an axis for agents if rewards have one.
    powers = np.multiply.accumulate([1.0, *[gamma] * len(reward)]).reshape(-1, *[1] * (reward.ndim - 1))
    # NumPy adds along the first axis in order, so the sum is exactly that of a plain loop.
    total = np.where(counted.reshape(*counted.shape, *[1] * (reward.ndim - 2)), reward * powers[:-1], 0.0).sum(axis=0)
    count = counted.sum(axis=0)
    last = count - 1, np.arange(len(count))
    discount = np.where(terminated[last], 0.0, powers[count, 0])
    return total.astype(np.float32), discount.astype(np.float32), last


def gather_transitions(
    storage: Storage, indices: Array, gamma: float, n_step: int, observations: Observations | None = None
) -> Batch:
    """Return the batch of indices `[m]`, with fields `[m, ...]` and without `weight`.

    `observations` gathers the observations; None for the storage itself.
    """
    steps = follow(storage.successor, indices, n_step)
    outcomes = storage.reward.take(steps.indices), storage.terminated.take(steps.indices)
    reward, discount, last = n_step_return(steps, *outcomes, gamma)
    return make_batch(storage, indices, last, reward, discount, observations)


def gather_team_transitions(storage: Storage, indices: Array, gamma: float, n_step: int) -> Batch:
    """Return the batch of indices `[m]` for several agents, with `reward` and `discount` `[m, agents]`.

    An n-step return also ends where an agent terminates, leaves or joins, so that all transitions of the return have
    the same agents. `extra` holds two float32 arrays `[m, agents]`: `present` is 1 for agents that take part in the
    transition, `remaining` is 1 for agents that have a value at the end of the return. The scalar rewards of
    the storage are not used.

    Args:
        storage: with `TEAM_FIELDS` in `extra`.
        indices: of stored transitions.
        gamma: the discount of one step.
        n_step: n, the largest number of rewards that are summed.
    """
    steps = follow(storage.successor, indices, n_step)
    fields = {name: storage.extra[name][steps.indices] for name in TEAM_FIELDS}  # [n, m, agents]
    present = fields["present"]
    counted = steps.present.copy()
    # The flag of an absent agent has no meaning.
    over = (fields["terminated"] & present).any(axis=-1)
    for i in range(1, n_step):
        counted[i] &= counted[i - 1] & (present[i] == present[i - 1]).all(axis=-1) & ~over[i - 1]
    reward, discount, last = _sum_steps(counted, fields["reward"], fields["terminated"], gamma)
    batch = make_batch(storage, indices, steps.indices[last], reward, discount)
    extra: dict[str, Any] = {name: value for name, value in batch.extra.items() if name not in TEAM_FIELDS}
    extra.update(present=present[0].astype(np.float32), remaining=fields["remaining"][last].astype(np.float32))
    return batch._replace(extra=extra)


def team_layout(extra_spec: ExtraSpec | None, agents: int) -> dict[str, Leaf]:
    """Return the layouts of the extra fields and, unless `agents` is 0, of `TEAM_FIELDS`.

    Raises:
        ValueError: if an entry of `extra_spec` is not a pair of a shape and a numeric dtype.
    """
    fields = {name: ((agents,), dtype) for name, dtype in TEAM_FIELDS.items()} if agents else {}
    return extra_layout({**(extra_spec or {}), **fields})


def make_batch(
    storage: Storage,
    indices: Array,
    last: Array,
    reward: Array,
    discount: Array,
    observations: Observations | None = None,
) -> Batch:
    """Return the batch of indices `[m]` with the next observations of indices `last`, this reward and this discount.

    Extra fields named `next_...` describe the next observation, so these fields come from `last` too. `weight` is
    None; `reshape_group` sets the weight.
    """
    extra = {
        name: gather(storage.extra[name], last if name.startswith("next_") else indices, leaf)
        for name, leaf in storage.extra_layout.items()
    }
    if storage.next_actions:
        following = storage.successor.take(last)
        exists = following >= 0
        # Rows without a next action repeat their own, which the loss multiplies by 0.
        extra["next_action"] = gather(storage.action, np.where(exists, following, last), storage.action_layout)
        extra["has_next_action"] = exists.astype(np.float32)
    observations = observations or storage
    return Batch(
        observation=observations.observations(indices),
        action=gather(storage.action, indices, storage.action_layout),
        reward=reward,
        next_observation=observations.next_observations(last),
        discount=discount,
        weight=None,
        index=indices,
        extra=extra,
    )


def reshape_group(batch: Batch, indices: Array, weight: Array) -> Batch:
    """Reshape a batch `[K * B, ...]` to `[K, B, ...]`, and set the indices and weights `[K, B]`."""
    batch = batch._replace(weight=weight.reshape(-1), index=indices.reshape(-1))
    return Batch(**reshape(batch._asdict(), indices.shape))
