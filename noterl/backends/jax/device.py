"""Rollouts in environments of JAX, and the updates on these rollouts, as one compiled call on the device.

A position counts the steps of all lanes within a rollout: position `t N + lane` is the step of a lane in round t. A
call goes from one position to another one, which may lie several rollouts ahead, or in the middle of a round. All
positions share one compiled program, and the random numbers of a step depend only on the rollout, round and lane of the
step. So splitting training into calls does not change a result.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from noterl.backends import on_device
from noterl.backends.common import GatheredRows
from noterl.backends.jax.environments import Environments, add_rewards, states_of, store, with_dtypes
from noterl.backends.jax.scope import Scope, compiler, read_values, write_values
from noterl.backends.jax.updates import Updates, all_finite, replaced, take
from noterl.backends.on_device import Carry, Report, Rollout
from noterl.types import STARTS, Batch


class DeviceProgram(on_device.DeviceProgram):
    """Collecting and learning as one compiled while loop; see `on_device.DeviceProgram`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        updates = self.training.updates
        assert isinstance(updates, Updates)
        self._updates = updates
        self._scheduled_positions = updates.positions(self.training.scheduled)
        self._environments = Environments(self.training, self.training.encode)
        compiled = compiler(updates.jit_compile)
        # Its shapes are needed before it is traced in the loop; a jitted function is traced once for both.
        self._learn = compiled(self._learn_traced)
        self._run = compiled(self.run)
        self._learn_carefully = compiled(self._carefully)
        self.start = compiled(self._start)

    def __call__(self, carry: Carry, begin: int, end: int, scheduled: np.ndarray) -> tuple[Carry, Report]:
        """Train from position `begin` of the rollout in progress to `end`, and write the variables back."""
        state, carry, report = self.train(read_values(self._updates.variables), carry, begin, end, scheduled)
        write_values(self._updates.variables, state)
        return carry, report

    def train(self, state: list[Any], carry: Carry, begin: int, end: int, scheduled: np.ndarray) -> tuple:
        """Return the state, the carry and the report of a call; pure."""
        state, carry, report, finite = self._run(state, carry, np.int32(begin), np.int32(end), scheduled)
        report = jax.tree.map(np.asarray, report)
        # With `stop`, the program has checked each update already. Otherwise the updates on the failed rollout are
        # repeated, to keep the updates before the failure.
        if not finite and self._updates.stop is None:
            number = int(report.iterations) - 1
            count = self.num_updates
            state, carry, applied, logs = self._learn_carefully(state, carry, scheduled[number])
            report = report._replace(applied=report.applied.copy(), logs=jax.tree.map(np.array, report.logs))
            report.applied[number] = min(int(applied), count - 1)
            for name, values in logs.items():
                report.logs[name][number * count : (number + 1) * count] = values
        return state, carry, report

    def run(
        self, state: list[Any], carry: Carry, begin: Any, end: Any, scheduled: Any, *, ends_early: bool = True
    ) -> tuple[list[Any], Carry, Report, Any]:
        """Return the state, the carry, the report, and whether all updates are finite; pure.

        If `ends_early` is False, the call collects further rollouts after an update that is not finite, but does not
        learn from these.
        """
        self.training.on_trace()
        shapes = jax.eval_shape(self._learn, state, carry, scheduled[0])[-1]
        logs = {name: jnp.zeros((self.iterations, *value.shape), value.dtype) for name, value in shapes.items()}
        report = self._environments.empty_report(self.iterations * self.length, self.iterations, logs)

        def unfinished(loop: tuple) -> Any:
            _, _, report, finite = loop
            more = report.iterations * self.size < end
            return more & finite if ends_early else more

        def body(loop: tuple) -> tuple:
            state, carry, report, finite = loop
            number = report.iterations
            first = jnp.maximum(begin - number * self.size, 0)
            last = jnp.minimum(end - number * self.size, self.size)
            carry, report = self._collect(state, carry, report, (first, last), scheduled[number])
            # The next call continues a rollout that is not complete.
            full = last == self.size
            state, carry, report, finite = jax.lax.cond(
                full, self._learn_and_report, lambda *loop: loop[:-1], state, carry, report, finite, scheduled
            )
            return state, carry, report._replace(iterations=number + 1), finite

        state, carry, report, finite = jax.lax.while_loop(unfinished, body, (state, carry, report, jnp.asarray(True)))
        logs = {name: values.reshape(-1, *values.shape[2:]) for name, values in report.logs.items()}
        return state, carry, report._replace(logs=logs), finite

    def _start(self, key: Any) -> Carry:
        """Return the carry of new episodes in all lanes, for a key of uint32 `[2]`."""
        carry = self._environments.start(key)
        reward = carry.sums.returns
        ended = carry.sums.lengths > 0
        action = self._environments.action_shape(carry, jnp.zeros(self.training.exploration.num_settings))
        fields = Rollout(carry.observations, action, reward, carry.observations, ended, ended, carry.policy)
        return carry._replace(
            memory=jax.tree.map(lambda like: jnp.zeros((self.length, *like.shape), like.dtype), fields),
            learner_state={name: jnp.asarray(value) for name, value in self.learner_start.items()},
        )

    def play(self, state: list[Any], key: Any, episodes: int) -> tuple[Any, Any]:
        """Play episodes without exploration; return the returns and lengths, `[episodes]`; pure."""

        def act(observations: Any) -> Any:
            with Scope(self._updates.variables, state):
                return self.act_best(observations)

        return self._environments.play(act, key, episodes)

    # Collecting

    def _collect(
        self, state: list[Any], carry: Carry, report: Report, places: tuple[Any, Any], scheduled: Any
    ) -> tuple[Carry, Report]:
        """Take the steps of the next rollout from the first to the last of the places."""
        first, last = places
        settings = scheduled[len(self._scheduled_positions) :]
        settings = settings.reshape(self.length, self.training.exploration.num_settings)
        rounds = first // self.num_envs, -(-last // self.num_envs)

        def counted(t: Any) -> Any:
            place = t * self.num_envs + jnp.arange(self.num_envs)
            return (place >= first) & (place < last)

        def added(t: Any, loop: tuple[Carry, Report]) -> tuple[Carry, Report]:
            rollout = carry.memory
            row = report.iterations * self.length + t
            return add_rewards(loop, row, rollout.reward[t], rollout.ended[t], counted(t))

        def step(t: Any, carry: Carry) -> Carry:
            return self._round(state, carry, t, counted(t), settings[t])

        carry = jax.lax.fori_loop(*rounds, step, carry)
        # A loop of its own: fused with the products of an environment, sums would be rounded differently.
        return jax.lax.fori_loop(*rounds, added, (carry, report))

    def _round(self, state: list[Any], carry: Carry, t: Any, counted: Any, settings: Any) -> Carry:
        """Step the `counted` lanes `[N]` in round t; the others do not change."""
        # The numbers depend on the round alone, so two calls that share a round give its lanes the same numbers.
        act_key, *keys = jax.random.split(jax.random.fold_in(carry.key, t), 3)
        actions, executed, states = self._environments.act(state, carry, act_key, settings)
        after, step = self._environments.step(carry, executed, (keys[0], keys[1]), counted)
        outcome = step.reward, step.next_observations, step.terminated, step.ended
        rows = Rollout(carry.observations, actions, *outcome, carry.policy)
        policy = self._environments.follow_policy(carry, states, step.ended, counted)
        return after._replace(memory=store(carry.memory, t, rows, counted), policy=policy)

    # Learning

    def _learn_traced(self, state: list[Any], carry: Carry, scheduled: Any) -> tuple:
        """Learn from a complete rollout; return state, carry, finite, applied, stopped and logs.

        If an update is not finite: a program with a condition to `stop` checks each update and returns the state of the
        last finite one. Another program returns the given state, without any update; `train` then repeats the updates.
        """
        before, rows, following = self._prepared(state, carry, scheduled)
        if self._updates.stop is not None:
            after, applied, stopped, (logs, _) = self._updates.until_stop(before, rows, self.num_updates, 0)
            # If the condition did not stop the updates, an update is missing only because it was not finite.
            return after, following, (applied == self.num_updates) | stopped, applied, stopped, logs

        def once(loop: tuple[list[Any], Any], indices: Any) -> tuple[tuple[list[Any], Any], dict[str, Any]]:
            values, finite = loop
            with Scope(self._updates.variables, values) as scope:
                logs, _ = self._updates.step(take(rows.data, indices), 0)
            return (scope.values(), finite & scope.finite_losses), logs

        (after, finite), logs = jax.lax.scan(once, (before, jnp.asarray(True)), rows.indices)
        finite &= all_finite(after)
        after = [jnp.where(finite, new, old) for new, old in zip(after, state, strict=True)]
        # After a failure, the updates are repeated with checks, from the same key and learner state.
        kept = (following.key, following.learner_state), (carry.key, carry.learner_state)
        key, learner_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), *kept)
        following = following._replace(key=key, learner_state=learner_state)
        return after, following, finite, jnp.where(finite, self.num_updates, 0), jnp.asarray(False), logs

    def _carefully(self, state: list[Any], carry: Carry, scheduled: Any) -> tuple[list[Any], Carry, Any, dict]:
        """Learn until an update is not finite; return the state, the carry, the number applied and the logs."""
        before, rows, following = self._prepared(state, carry, scheduled)
        after, applied, _, (logs, _) = self._updates.until_stop(before, rows, self.num_updates, 0)
        return after, following, applied, logs

    def _prepared(self, state: list[Any], carry: Carry, scheduled: Any) -> tuple[list[Any], GatheredRows, Carry]:
        """Return the state with scheduled values, the minibatches, and the carry for the next rollout."""
        positions = self._scheduled_positions
        state = replaced(state, positions, [scheduled[k] for k in range(len(positions))])
        with Scope(self._updates.variables, state) as scope:
            rows, learner_state = self.prepare(self._batch(carry.memory, carry.learner_state))
        indices = self._indices(jax.random.fold_in(carry.key, self.length))
        # Rounds have the numbers below `length`, and the minibatches have `length`.
        following = carry._replace(
            key=jax.random.fold_in(carry.key, self.length + 1),
            learner_state=with_dtypes(learner_state, carry.learner_state),
        )
        return scope.values(), GatheredRows(rows, indices), following

    def _batch(self, rows: Rollout, learner_state: dict[str, Any]) -> Batch:
        """Return the rollout in the layout of `noterl.replay.rollout.Rollout.batch`."""
        states = {STARTS: rows.policy[STARTS], "state": states_of(rows.policy)} if rows.policy else {}
        states |= {"learner_state": learner_state} if learner_state else {}
        ended = rows.ended.astype(jnp.float32)
        gamma = jnp.asarray(self.training.discount(), jnp.float32)
        return Batch(
            observation=rows.observation,
            action=rows.action,
            reward=rows.reward,
            next_observation=rows.next_observation,
            discount=jnp.where(rows.terminated, 0, gamma),
            weight=jnp.ones_like(rows.reward),
            index=jnp.arange(self.size, dtype=jnp.int32).reshape(self.length, self.num_envs),
            extra={"continues": (1 - ended).at[-1].set(0), "ended": ended, **states},
        )

    def _indices(self, key: Any) -> Any:
        """Return the rows or sequences `[K, B]` of all minibatches, in the layout of `RolloutLearner.sample`."""
        count = self.size // self.sequence_length
        size = self.training.batch_size // self.sequence_length
        if size == count:
            return jnp.tile(jnp.arange(count, dtype=jnp.int32), (self.epochs, 1))
        # The last minibatch of an epoch is filled up with rows of a second permutation.
        missing = -count % size

        def epoch(key: Any) -> Any:
            first, second = jax.random.split(key)
            order = jax.random.permutation(first, count)
            return jnp.concatenate([order, jax.random.permutation(second, count)[:missing]]) if missing else order

        orders = jax.lax.map(epoch, jax.random.split(key, self.epochs))
        return orders.astype(jnp.int32).reshape(self.num_updates, size)

    def _learn_and_report(
        self, state: list[Any], carry: Carry, report: Report, finite: Any, scheduled: Any
    ) -> tuple[list[Any], Carry, Report, Any]:
        """Learn from a complete rollout; return the state, the carry, the report, and whether all is finite so far."""
        number = report.iterations
        after, following, learned, applied, stopped, logs = self._learn(state, carry, scheduled[number])
        # If `ends_early` is False, a member that has failed keeps its weights.
        state = [jnp.where(finite, new, old) for new, old in zip(after, state, strict=True)]
        report = report._replace(
            applied=report.applied.at[number].set(jnp.where(finite, applied, 0)),
            stopped=report.stopped.at[number].set(stopped),
            logs={name: report.logs[name].at[number].set(values) for name, values in logs.items()},
        )
        return state, following, report, finite & learned
