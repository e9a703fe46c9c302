"""How an agent learns from rollouts: once from each, in several epochs of minibatches, and then never again.

Or again and again: `Replayed` keeps prepared rollouts in a replay memory, and draws the minibatches from that.

Owns: the order of the rows, and the compiled programs for a rollout. What the loop asks of an agent that learns from a
replay memory (what is due, draw, run) is answered here for one that learns from rollouts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium import spaces

from noterl import backends
from noterl.backends.common import GroupResult
from noterl.hyperparameters import discount_factor
from noterl.replay import Replay
from noterl.replay.rollout import Rollout
from noterl.types import Batch
from noterl.utils.checks import check_positive

import keras  # isort: skip  (noterl.backends has chosen by now)

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm
    from noterl.normalization import Normalizers


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
        if agent.extra_spec:
            self._prepared_fields()
        agent.trace_counts.setdefault("prepare", 0)
        self._prepare = programs.compile_prepare(agent, agent.jit_compile)
        self._update = programs.compile_minibatches(agent, agent.jit_compile)

    def _prepared_fields(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Return name -> (shape, dtype) of what `prepare` returns, which is what `extra_spec` says, if it is there.

        Raises:
            ValueError: if `extra_spec` says something else.
        """
        from noterl.learning.dry_run import zeros

        fields = {name: field for name, field in zeros(self._agent).extra.items() if name not in ("continues", "ended")}
        found: dict[str, tuple[tuple[int, ...], Any]] = {
            name: (tuple(field.shape[1:]), np.float32) for name, field in fields.items()
        }
        for name, (shape, _) in self._agent.extra_spec.items():
            if name not in found or tuple(shape) != found[name][0]:
                got = f"of the shape {found[name][0]}" if name in found else f"not among {', '.join(found) or 'none'}"
                raise ValueError(
                    f"extra_spec says {name!r} of the shape {shape}, but in what prepare returns it is {got}"
                )
        return found

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

    @property
    def memory(self) -> Any:
        """The memory that minibatches are drawn from."""
        return self.rollout

    @property
    def learned(self) -> Any:
        """The prepared rows `[T N, ...]` of the rollout that was learned from at this very step; None at others."""
        return self._data if self.rollout.is_full else None

    def prepared(self) -> Any:
        """Return the complete rollout as prepared rows `[T N, ...]`, on the device."""
        gamma, normalizers = discount_factor(self._agent), cast("Normalizers | None", self._agent.normalizers)
        rollout = self.rollout.batch(gamma=gamma)
        return self._prepare(rollout if normalizers is None else normalizers.rollout(rollout, gamma))

    def draw(self, updates: int) -> Any:
        """Return the rows `[K, B]` of all minibatches, and prepare the rollout for them.

        Each epoch goes through all rows in an order of its own; what its last minibatch lacks is filled up with the
        first rows of another such order.
        """
        self._data = self.prepared()
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

    def gather(self, drawn: Any) -> Any:
        """Return what `run` is given for a part of what was drawn: the rows, since their data are on the device."""
        return drawn

    def run(self, rows: Any, count: int) -> GroupResult:
        """Make updates on the first `count` of the minibatches with these rows `[K, B]`, in one compiled call."""
        result: GroupResult = self._update(self._data, rows, count)
        return result


class Replayed(OnPolicy):
    """The learning of an agent whose prepared rollouts go to a replay memory, from which each of them is drawn again.

    There are as many updates after each rollout as an agent without the memory makes. What `prepare` said of a
    transition (its old log-probability and advantage) stays with it for as long as it is remembered.

    Args:
        agent: compiled.
        replay: the memory; its sampler decides what is learned from.

    Raises:
        ValueError: if the memory relabels, or the agent may have `enough` of a rollout.
    """

    def __init__(self, agent: Algorithm, replay: Replay) -> None:
        super().__init__(agent)
        if replay.relabel is not None:
            raise ValueError(f"replay must not relabel what was prepared already, got {replay!r}")
        if replay.n_step > 1:
            raise ValueError(f"replay must have n_step=1, its returns were prepared already, got {replay!r}")
        if agent.enough(defaultdict(float)) is not None:
            raise ValueError("replay cannot be given to an agent that may have enough of a rollout (`target_kl`)")
        self._replay = replay

    def build(self) -> None:
        """Allocate the memory and compile; the agent's variables are known."""
        agent = self._agent
        spec = self._prepared_fields()
        self._fields = list(spec)
        # What was prepared is remembered: bytes and ints that were normalised are numbers.
        seen = spaces.Box(-np.inf, np.inf, agent.observation_shape, np.float32)
        space = seen if agent.observation_dtype == np.float32 else agent.view.space
        self._replay.build(space, agent.action_space, extra_spec=spec)
        agent.trace_counts.setdefault("prepare", 0)
        self._prepare = backends.rollout_programs().compile_prepare(agent, agent.jit_compile)
        self._update = backends.current().compile_update(agent, agent.jit_compile)

    @property
    def memory(self) -> Any:
        """The memory that minibatches are drawn from."""
        return self._replay

    def draw(self, updates: int) -> Any:
        """Remember the prepared rollout, and draw the minibatches of `updates` updates from all that is remembered."""
        self._remember()
        generator = self._agent.generators("sampler")
        drawn = self._replay.sample(updates, min(self.batch_size, len(self._replay)), generator=generator)
        drawn.gamma = discount_factor(self._agent)
        return drawn

    def gather(self, drawn: Any) -> Any:
        """Return the batches `[K, B, ...]` of a part of what was drawn."""
        return self._replay.gather(drawn, gamma=drawn.gamma)

    def run(self, batch: Any, count: int) -> GroupResult:
        """Make updates on the first `count` of the batches, in one compiled call."""
        result: GroupResult = self._update(batch, count)
        return result

    def _remember(self) -> None:
        """Store what counts of the rollout, with what was prepared of it."""
        data, fetch = self.prepared(), backends.current().fetch
        steps, lanes = self.rollout.length, self.rollout.num_envs
        extra = {name: fetch(data.extra[name]) for name in self._fields}
        observation, following, reward = (
            fetch(part) for part in (data.observation, data.next_observation, data.reward)
        )
        terminated, ended = self.rollout.terminated.reshape(-1), self.rollout.ended.reshape(-1)
        action = self.rollout.action.reshape(steps * lanes, *self.rollout.action.shape[2:])
        for row in np.flatnonzero(self.rollout.valid.reshape(-1)).tolist():
            over = bool(terminated[row])
            self._replay.add(
                row % lanes,
                observation[row],
                action[row],
                reward[row],
                following[row],
                over,
                bool(ended[row]) and not over,
                {name: values[row] for name, values in extra.items()},
            )


def prepared(agent: Algorithm, rollout: Batch) -> Batch:
    """Return a rollout `[T, N, ...]` with what `Agent.prepare` says of it as rows `[T N, ...]`; backends compile it.

    Raises:
        ValueError: if `prepare` returns no dict.
    """
    said: Any = agent.prepare(rollout)
    if not isinstance(said, dict):
        raise ValueError(f"prepare must return a dict of fields [T, N, ...], {type(agent).__name__}'s gave {said!r}")
    whole = rollout._replace(extra={**rollout.extra, **said})

    def flat(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: flat(part) for name, part in value.items()}
        return keras.ops.reshape(value, (-1, *value.shape[2:]))

    return Batch(*map(flat, whole))
