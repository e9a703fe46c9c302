"""Rollouts in environments of JAX, and the updates on them, as one compiled call on the device.

A position counts the steps of all lanes within a rollout: position `t N + lane` is the step of a lane in round t. A
call goes from one position to another one, which may lie several rollouts ahead, or in the middle of a round. All
positions share one compiled program, and the random numbers of a step depend on its rollout, round and lane only. So
splitting training into calls does not change a result.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from noterl.backends import on_device
from noterl.backends.common import GatheredRows
from noterl.backends.jax.environments import SAMPLERS, Environments, Sums, add_rewards, select
from noterl.backends.jax.scope import Scope, compiler, read_values, write_values
from noterl.backends.jax.updates import Updates, all_finite, replaced, row_of
from noterl.backends.on_device import Carry, Report, Rollout
from noterl.types import Batch


class DeviceProgram(on_device.DeviceProgram):
    """Collecting and learning as one compiled while loop; see `on_device.DeviceProgram`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._environments = Environments(self.reset, self.step_environment, self.encode, self.num_envs)
        self._updates = Updates(self.step, self.variables, stop=self.stop, jit_compile=self.jit_compile)
        compiled = compiler(self.jit_compile)
        # Its shapes are needed before it is traced in the loop; a jitted function is traced once for both.
        self._learn = compiled(self._learn_traced)
        self._run, self._learn_carefully = compiled(self.run), compiled(self._carefully)
        self.start = compiled(self._start)

    def __call__(self, carry: Carry, begin: int, end: int, scheduled: np.ndarray) -> tuple[Carry, Report]:
        """Train from position `begin` of the rollout in progress to `end`, and write the variables back."""
        state, carry, report = self.train(read_values(self.variables), carry, begin, end, scheduled)
        write_values(self.variables, state)
        return carry, report

    def train(self, state: list[Any], carry: Carry, begin: int, end: int, scheduled: np.ndarray) -> tuple:
        """Return the state, the carry and the report of a call; pure."""
        state, carry, report, finite = self._run(state, carry, np.int32(begin), np.int32(end), scheduled)
        report = jax.tree.map(np.asarray, report)
        if not finite and self.stop is None:
            number = int(np.flatnonzero(report.applied < self.updates)[0])
            state, carry, applied, logs = self._learn_carefully(state, carry, scheduled[number])
            report = report._replace(applied=report.applied.copy(), logs=jax.tree.map(np.array, report.logs))
            report.applied[number] = min(int(applied), self.updates - 1)
            for name, values in logs.items():
                report.logs[name][number] = values
        return state, carry, report

    def run(
        self, state: list[Any], carry: Carry, begin: Any, end: Any, scheduled: Any, *, ends_early: bool = True
    ) -> tuple[list[Any], Carry, Report, Any]:
        """Return the state, the carry, the report, and whether all updates are finite; pure."""
        self.on_trace()
        learned = jax.eval_shape(self._learn, state, carry, scheduled[0])
        report = self._empty_report(learned[-1])

        def unfinished(loop: tuple) -> Any:
            number, _, _, _, finite = loop
            more = number * self.size < end
            return more & finite if ends_early else more

        def body(loop: tuple) -> tuple:
            number, state, carry, report, finite = loop
            first = jnp.maximum(begin - number * self.size, 0)
            last = jnp.minimum(end - number * self.size, self.size)
            carry, report = self._collect(state, carry, report, number, first, last)
            full = last == self.size
            state, carry, report, finite = jax.lax.cond(
                full, self._learn_and_report, self._skip, state, carry, report, finite, number, scheduled
            )
            return number + 1, state, carry, report, finite

        start = jnp.zeros((), jnp.int32), state, carry, report, jnp.asarray(True)
        _, state, carry, report, finite = jax.lax.while_loop(unfinished, body, start)
        return state, carry, report, finite

    def _start(self, key: Any) -> Carry:
        """Return the carry of new episodes in all lanes, for a key of uint32 `[2]`."""
        first, second = jax.random.split(key)
        observations, states = self._environments.start(first)
        lanes = jnp.zeros(self.num_envs, jnp.float32)
        action = jax.eval_shape(self._act, read_values(self.variables), observations, first)[0]

        def rows(like: Any) -> Any:
            return jnp.zeros((self.length, *like.shape), like.dtype)

        flags = jnp.zeros(self.num_envs, bool)
        fields = Rollout(observations, action, lanes, observations, flags, flags)
        rollout = Rollout(*map(rows, fields))
        return Carry(second, states, observations, *Sums.zeros(self.num_envs), rollout)

    def _empty_report(self, logs: dict[str, Any]) -> Report:
        rounds, lanes = (self.rollouts * self.length, self.num_envs), jnp.zeros
        return Report(
            lanes(rounds, bool),
            lanes(rounds, jnp.float32),
            lanes(rounds, jnp.float32),
            lanes(rounds, jnp.int32),
            lanes(self.rollouts, jnp.int32),
            lanes(self.rollouts, bool),
            {name: lanes((self.rollouts, *value.shape), value.dtype) for name, value in logs.items()},
        )

    def play(self, state: list[Any], key: Any, episodes: int) -> tuple[Any, Any]:
        """Play episodes without exploration; return their returns and lengths, `[episodes]`; pure."""

        def act(observations: Any) -> Any:
            with Scope(self.variables, state):
                return self.act_best(observations)

        return self._environments.play(act, key, episodes)

    # Collecting

    def _collect(
        self, state: list[Any], carry: Carry, report: Report, number: Any, first: Any, last: Any
    ) -> tuple[Carry, Report]:
        """Take the steps of rollout `number` from position `first` to `last`."""
        rounds = first // self.num_envs, -(-last // self.num_envs)

        def counted(t: Any) -> Any:
            place = t * self.num_envs + jnp.arange(self.num_envs)
            return (place >= first) & (place < last)

        carry = jax.lax.fori_loop(*rounds, lambda t, carry: self._round(state, carry, t, counted(t)), carry)
        # A loop of its own: fused with the products of an environment, sums would be rounded differently.
        found: tuple[Carry, Report] = jax.lax.fori_loop(
            *rounds, lambda t, loop: self._add_rewards(loop, number, t, counted(t)), (carry, report)
        )
        return found

    def _round(self, state: list[Any], carry: Carry, t: Any, counted: Any) -> Carry:
        """Step the `counted` lanes `[N]` in round t; the others do not change."""
        act_key, step_key, reset_key = jax.random.split(jax.random.fold_in(carry.key, t), 3)
        actions, executed = self._act(state, carry.observations, act_key)
        before = carry.observations, carry.states
        step = self._environments.step_all(step_key, reset_key, before, executed)
        ended = step.terminated | step.truncated
        rows = Rollout(carry.observations, actions, step.reward, step.next_observations, step.terminated, ended)
        rollout = jax.tree.map(lambda all_, new: all_.at[t].set(select(counted, new, all_[t])), carry.rollout, rows)
        kept = jax.tree.map(partial(select, counted), (step.observations, step.states), before)
        return carry._replace(observations=kept[0], states=kept[1], rollout=rollout)

    def _add_rewards(self, loop: tuple[Carry, Report], number: Any, t: Any, counted: Any) -> tuple[Carry, Report]:
        """Add the rewards of the `counted` lanes in round t to the returns of their episodes, and report ends."""
        carry, report = loop
        rewards, ended = carry.rollout.reward[t], carry.rollout.ended[t]
        sums, kept = add_rewards(Sums(carry.returns, carry.compensation, carry.lengths), rewards, ended, counted)
        row = number * self.length + t
        fields = dict(zip(Report._fields, (ended & counted, *sums), strict=False))
        report = report._replace(**{name: getattr(report, name).at[row].set(new) for name, new in fields.items()})
        return carry._replace(**kept._asdict()), report

    def _act(self, state: list[Any], observations: Any, key: Any) -> tuple[Any, Any]:
        numbers = SAMPLERS[self.sampled_from](key, (self.num_envs, self.num_sampled), jnp.float32)
        with Scope(self.variables, state):
            return self.act(observations, numbers)

    # Learning

    def _learn_traced(self, state: list[Any], carry: Carry, scheduled: Any) -> tuple:
        """Learn from a complete rollout; return state, carry, finite, applied, stopped and logs.

        If an update is not finite and there is no `stop`, state and carry are those before the updates.
        """
        before, rows, following = self._prepared(state, carry, scheduled)
        if self.stop is not None:
            after, applied, stopped, (logs, _) = self._updates.until_stop(before, rows, self.updates, 0)
            return after, following, (applied == self.updates) | stopped, applied, stopped, logs

        def once(loop: tuple[list[Any], Any], indices: Any) -> tuple[tuple[list[Any], Any], dict[str, Any]]:
            values, finite = loop
            with Scope(self.variables, values) as scope:
                logs, _ = self.step(row_of(rows.data, indices), 0)
            return (scope.values(), finite & scope.finite_losses), logs

        (after, finite), logs = jax.lax.scan(once, (before, jnp.asarray(True)), rows.indices)
        finite &= all_finite(after)
        after = [jnp.where(finite, new, old) for new, old in zip(after, state, strict=True)]
        following = following._replace(key=jnp.where(finite, following.key, carry.key))
        return after, following, finite, jnp.where(finite, self.updates, 0), jnp.asarray(False), logs

    def _carefully(self, state: list[Any], carry: Carry, scheduled: Any) -> tuple[list[Any], Carry, Any, dict]:
        """Learn until an update is not finite; return the state, the carry, the number applied and the logs."""
        before, rows, following = self._prepared(state, carry, scheduled)
        after, applied, _, (logs, _) = self._updates.until_stop(before, rows, self.updates, 0)
        return after, following, applied, logs

    def _prepared(self, state: list[Any], carry: Carry, scheduled: Any) -> tuple[list[Any], GatheredRows, Carry]:
        """Return the state with scheduled values, the minibatches, and the carry for the next rollout."""
        state = replaced(state, self.scheduled_positions, [scheduled[k] for k in range(len(self.scheduled_positions))])
        with Scope(self.variables, state) as scope:
            rows = self.prepare(self._batch(carry.rollout))
        indices = self._indices(jax.random.fold_in(carry.key, self.length))
        following = carry._replace(key=jax.random.fold_in(carry.key, self.length + 1))
        return scope.values(), GatheredRows(rows, indices), following

    def _batch(self, rows: Rollout) -> Batch:
        """Return the rollout in the layout of `noterl.replay.rollout.Rollout.batch`."""
        ended = rows.ended.astype(jnp.float32)
        gamma = jnp.asarray(self.discount(), jnp.float32)
        return Batch(
            observation=rows.observation,
            action=rows.action,
            reward=rows.reward,
            next_observation=rows.next_observation,
            discount=jnp.where(rows.terminated, 0, gamma),
            weight=jnp.ones_like(rows.reward),
            index=jnp.arange(self.size, dtype=jnp.int32).reshape(self.length, self.num_envs),
            extra={"continues": (1 - ended).at[-1].set(0), "ended": ended},
        )

    def _indices(self, key: Any) -> Any:
        """Return the rows `[K, B]` of all minibatches, in the layout of `RolloutLearner.sample`."""
        if self.batch_size == self.size:
            return jnp.tile(jnp.arange(self.size, dtype=jnp.int32), (self.epochs, 1))
        missing = -self.size % self.batch_size

        def epoch(key: Any) -> Any:
            first, second = jax.random.split(key)
            order = jax.random.permutation(first, self.size)
            return jnp.concatenate([order, jax.random.permutation(second, self.size)[:missing]]) if missing else order

        orders = jax.lax.map(epoch, jax.random.split(key, self.epochs))
        return orders.astype(jnp.int32).reshape(self.updates, self.batch_size)

    def _learn_and_report(
        self, state: list[Any], carry: Carry, report: Report, finite: Any, number: Any, scheduled: Any
    ) -> tuple[list[Any], Carry, Report, Any]:
        after, following, learned, applied, stopped, logs = self._learn(state, carry, scheduled[number])
        # If `ends_early` is False, a member that has failed keeps its weights.
        state = [jnp.where(finite, new, old) for new, old in zip(after, state, strict=True)]
        report = report._replace(
            applied=report.applied.at[number].set(jnp.where(finite, applied, 0)),
            stopped=report.stopped.at[number].set(stopped),
            logs={name: report.logs[name].at[number].set(values) for name, values in logs.items()},
        )
        return state, following, report, finite & learned

    def _skip(
        self, state: list[Any], carry: Carry, report: Report, finite: Any, number: Any, scheduled: Any
    ) -> tuple[list[Any], Carry, Report, Any]:
        return state, carry, report, finite
