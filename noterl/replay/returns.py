"""Batches from rows: the n-step return, the state it ends in, and the fields in between.

Owns: what n-step means (Sutton, 1988; with the true bootstrap at truncation). It is formed when rows are sampled, from
the gamma of that moment, so nothing of it is stored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from noterl.replay.columns import Array, gather, reshape
from noterl.replay.storage import Storage
from noterl.types import Batch


class Steps(NamedTuple):
    """The transitions that follow one another from each of m rows, at most n.

    `rows[i]` is the i-th of them `[n, m]`, the last there is repeated; `present[i]` says whether there is an i-th.
    """

    rows: Array
    present: Array


def follow(storage: Storage, rows: Array, n_step: int) -> Steps:
    """Return the `n_step` transitions from rows `[m]` on, or as many as the episode has so far."""
    following = np.empty((n_step, len(rows)), np.int64)
    present = np.ones((n_step, len(rows)), np.bool_)
    following[0] = rows
    for i in range(1, n_step):
        before = following[i - 1]
        successor = storage.successor.take(before)
        # Where none follows the row itself is repeated, and none follows it the next time either.
        np.greater_equal(successor, 0, out=present[i])
        following[i] = np.where(present[i], successor, before)
    return Steps(following, present)


def fold(steps: Steps, reward: Array, terminated: Array, gamma: float) -> tuple[Array, Array, Array]:
    """Return the n-step reward, the discount of the value after it, and the row it ends with, `[m]` each.

    The reward is `sum of gamma**i * reward[i]` over the steps up to the first that terminates, the discount
    `gamma**count * (1 - terminated)` with the count of these steps.

    Args:
        steps: of `follow`.
        reward: of each step, float32 `[n, m]`; what lies beyond the last present step is not looked at.
        terminated: whether the episode terminates with it, `[n, m]`.
        gamma: the discount of one step.
    """
    if len(reward) == 1:
        return reward[0], np.where(terminated[0], np.float32(0), np.float32(gamma)), steps.rows[0]
    going = steps.present.copy()
    for i in range(1, len(reward)):  # up to the first that terminates
        going[i] &= going[i - 1]
        np.greater(going[i], terminated[i - 1], out=going[i])
    powers = powers_of(gamma, len(reward))
    # Summed over the first axis numbers are added in turn, so that the sum is that of a plain loop.
    total = np.where(going, reward * powers[:-1, None], 0.0).sum(axis=0)
    count = going.sum(axis=0)
    last = (count - 1) * reward.shape[1] + np.arange(reward.shape[1])
    discount = np.where(terminated.reshape(-1).take(last), 0.0, powers.take(count))
    return total.astype(np.float32), discount.astype(np.float32), steps.rows.reshape(-1).take(last)


def powers_of(gamma: float, count: int) -> Array:
    """Return `gamma**i` for i from 0 to `count`, multiplied one by one: float64 `[count + 1]`."""
    return np.multiply.accumulate([1.0, *[gamma] * count])


def plain(storage: Storage, rows: Array, gamma: float, n_step: int) -> Batch:
    """Return the batch of rows `[m]` as they are stored, fields `[m, ...]`, without `weight`."""
    if n_step == 1:
        reward, last = storage.reward.take(rows), rows
        discount = np.multiply(~storage.terminated.take(rows), gamma, dtype=np.float32)
    else:
        steps = follow(storage, rows, n_step)
        outcomes = storage.reward.take(steps.rows), storage.terminated.take(steps.rows)
        reward, discount, last = fold(steps, *outcomes, gamma)
    return assembled(storage, rows, last, reward, discount)


def assembled(storage: Storage, rows: Array, last: Array, reward: Array, discount: Array) -> Batch:
    """Return the batch of rows `[m]` with this reward and discount, and the next observation of the rows `last`.

    `weight` is left to whoever knows how the rows were drawn.
    """
    return Batch(
        observation=storage.observations(rows),
        action=gather(storage.action, rows, storage.action_layout),
        reward=reward,
        next_observation=storage.next_observations(last),
        discount=discount,
        weight=None,
        index=rows,
        extra={name: gather(storage.extra[name], rows, leaf) for name, leaf in storage.extra_layout.items()},
    )


def grouped(batch: Batch, rows: Array, weight: Array) -> Batch:
    """Return a batch `[K * B, ...]` of rows `[K, B]` as `[K, B, ...]`, with the weight of each."""
    shape = rows.shape
    return Batch(
        observation=reshape(batch.observation, shape),
        action=reshape(batch.action, shape),
        reward=reshape(batch.reward, shape),
        next_observation=reshape(batch.next_observation, shape),
        discount=reshape(batch.discount, shape),
        weight=weight,
        index=rows,
        extra=reshape(batch.extra, shape),
    )
