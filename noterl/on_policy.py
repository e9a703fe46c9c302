"""How an agent learns from rollouts: once from each, in several epochs of minibatches, and then never again.

Owns: the order of the rows, and the compiled programs for a rollout. What the loop asks of an agent that learns from a
replay memory (what is due, draw, run) is answered here for one that learns from rollouts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends
from noterl.backends.common import GroupResult
from noterl.checks import check_positive
from noterl.replay.rollout import Rollout
from noterl.types import Batch

import keras  # isort: skip  (noterl.backends has chosen by now)

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm


class OnPolicy:
    """The learning of one agent.

    Args:
        agent: with `rollout_steps` and `epochs`; compiled.

    Attributes:
        rollout: the memory of the rollout in progress.

    Raises:
        ValueError: if `rollout_steps` or `epochs` is no positive int, or the agent asks for what a replay memory gives.
    """

    def __init__(self, agent: Algorithm) -> None:
        self._agent = agent
        self.rollout = Rollout(agent.rollout_steps)
        check_positive("epochs", agent.epochs)
        if agent.update_period != 1 or agent.random_spec:
            raise ValueError(
                f"update_period and random_spec are not for agents that learn from rollouts; {type(agent).__name__} "
                f"has {agent.update_period!r} and {agent.random_spec!r}"
            )
        self._data: Any = None

    def build(self) -> None:
        """Compile; the agent's variables are known."""
        agent, programs = self._agent, backends.rollout_programs()
        agent.trace_counts.setdefault("prepare", 0)
        self._prepare = programs.compile_prepare(agent, agent.jit_compile)
        self._update = programs.compile_minibatches(agent, agent.jit_compile)

    @property
    def batch_size(self) -> int:
        """Rows of a minibatch: as many as asked for, but no more than a rollout has."""
        asked, rows = self._agent.schedule.batch_size, self.rollout.length * self.rollout.num_envs
        return rows if isinstance(asked, str) else min(asked, rows)

    @property
    def updates(self) -> int:
        """Gradient updates on each rollout."""
        rows = self.rollout.length * self.rollout.num_envs
        return self._agent.epochs * math.ceil(rows / self.batch_size)

    def draw(self) -> np.ndarray:
        """Return the rows `[K, B]` of all minibatches, and prepare the rollout for them.

        Each epoch goes through all rows in an order of its own; what its last minibatch lacks is filled up with the
        first rows of another such order.
        """
        gamma, normalizers = self._agent.discount_factor(), self._agent.normalizers
        rollout = self.rollout.batch(gamma=gamma)
        self._data = self._prepare(rollout if normalizers is None else normalizers.rollout(rollout, gamma))
        count, size = self.rollout.length * self.rollout.num_envs, self.batch_size
        if size == count:  # their order would change nothing but rounding
            return np.tile(np.arange(count, dtype=np.int32), (self._agent.epochs, 1))
        generator = self._agent.generators("sampler")
        orders = []
        for _ in range(self._agent.epochs):
            orders.append(generator.permutation(count))
            if count % size:
                orders.append(generator.permutation(count)[: -count % size])
        return np.concatenate(orders).astype(np.int32).reshape(-1, size)

    def run(self, rows: np.ndarray, count: int) -> GroupResult:
        """Make updates on the first `count` of the minibatches with these rows `[K, B]`, in one compiled call."""
        result: GroupResult = self._update(self._data, rows, count)
        return result


def prepared(agent: Algorithm, rollout: Batch) -> Batch:
    """Return a rollout `[T, N, ...]` with what `Agent.prepare` says of it as rows `[T N, ...]`; backends compile it."""
    whole = rollout._replace(extra={**rollout.extra, **agent.prepare(rollout)})

    def flat(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: flat(part) for name, part in value.items()}
        return keras.ops.reshape(value, (-1, *value.shape[2:]))

    return Batch(*map(flat, whole))
