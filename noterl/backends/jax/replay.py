"""Collecting into a replay memory on the device, and the updates from this memory, as one compiled call.

A round is one step of every lane. The transitions of a round are one row `[N, ...]` of a ring, and the updates that are
due follow the round. A call begins and ends at any step; the updates of a round that is not complete follow in the next
call. The random numbers of a round depend on the round's number only. So splitting training into calls does not
change a result.

A slot is a position in the ring without the axis of lanes: `row N + lane`. The ring has room for the steps of one call
beside the memory's capacity. So a call can be repeated if an update is not finite: the call has overwritten no
transition that the call reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from noterl.backends import on_device
from noterl.backends.jax.environments import SAMPLERS, Environments, add_rewards, select, store
from noterl.backends.jax.scope import Scope, compiler, read_values, write_values
from noterl.backends.jax.updates import Updates, all_finite, replaced, take
from noterl.backends.on_device import Carry, Place, Plan, Report, Transitions
from noterl.types import Batch


class ReplayProgram(on_device.ReplayProgram):
    """Collecting and learning as one compiled while loop; see `on_device.ReplayProgram`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        updates = self.training.updates
        assert isinstance(updates, Updates)
        self._updates = updates
        self._scheduled_positions = updates.positions(self.training.scheduled)
        self._environments = Environments(self.training, self.store, self.training.encode)
        jit_compile = updates.jit_compile
        compiled = compiler(jit_compile)
        if jit_compile is not False:
            # The ring may take most of the device's memory, so the new ring gets the memory of the old one.
            compiled = partial(jax.jit, donate_argnames="ring", static_argnames="careful")
        self._run = compiled(self._train)
        self.start = compiler(jit_compile)(self._start)

    def __call__(
        self, carry: Carry, ring: Transitions, table: np.ndarray, place: Place, plan: Plan
    ) -> tuple[Carry, Transitions, Report]:
        """Train, and write the variables back; `ring` must not be used again."""
        place = Place(*map(np.int32, place))
        run = partial(self._run, read_values(self._updates.variables), carry, table=table, place=place, plan=plan)
        state, after, ring, report, finite = run(ring=ring)
        # Checking each update takes longer, so only a call that has failed is repeated with checks.
        if not finite:
            state, after, ring, report, _ = run(ring=ring, careful=True)
        write_values(self._updates.variables, state)
        report = jax.tree.map(np.asarray, report)
        # All updates of a round are applied before one of the next round.
        applied = np.diff(np.minimum(np.cumsum(plan.updates), report.applied), prepend=0)
        return after, ring, report._replace(applied=applied)

    def make_ring(self, rows: Mapping[str, Any], slots: np.ndarray) -> Transitions:
        """Return a ring with transitions in slots `[n]`: the fields of `Transitions` by name, `[n, ...]`."""

        def fill(shape: Any, values: Any) -> Any:
            table = np.zeros((self.slots, *shape.shape[1:]), shape.dtype)
            table[slots] = values
            return jnp.array(table.reshape(self.rows, self.num_envs, *shape.shape[1:]))

        shapes = self._row_shapes()._asdict()
        return Transitions(**{name: jax.tree.map(fill, shape, rows[name]) for name, shape in shapes.items()})

    def is_destroyed(self, ring: Transitions) -> bool:
        """Return whether a call that has raised an error has destroyed the donated ring."""
        return any(array.is_deleted() for array in jax.tree.leaves(ring))

    def read(self, ring: Transitions, slots: np.ndarray) -> dict[str, Any]:
        """Return copies of the transitions in slots `[n]`: the fields of `Transitions` by name, NumPy `[n, ...]`."""
        tables = ring._asdict()
        return {name: jax.tree.map(lambda array: _flat(np.asarray(array))[slots], tables[name]) for name in tables}

    def _row_shapes(self) -> Transitions:
        """Return the shapes and dtypes of one round, `[N, ...]`."""
        carry = jax.eval_shape(self._start, np.zeros(2, np.uint32))
        observation = carry.observations
        flag = carry.memory
        action = self._environments.action_shape(carry, np.zeros(self.training.exploration.num_settings, np.float32))
        distance = carry.sums.lengths
        return Transitions(observation, action, carry.sums.returns, observation, flag, flag, distance, distance)

    def _start(self, key: Any) -> Carry:
        """Return the carry of new episodes in all lanes, for a key of uint32 `[2]`."""
        return self._environments.start(key)._replace(memory=jnp.zeros(self.num_envs, bool))

    def _train(
        self,
        state: list[Any],
        carry: Carry,
        *,
        ring: Transitions,
        table: Any,
        place: Place,
        plan: Plan,
        careful: bool = False,
    ) -> tuple[list[Any], Carry, Transitions, Report, Any]:
        """Return the state, the carry, the ring, the report, and whether all updates are finite; pure.

        Without `careful`, an update that is not finite stays in the returned state. The caller then repeats the call
        with `careful=True`.
        """
        self.training.on_trace()
        lanes = jnp.arange(self.num_envs)
        report = self._environments.empty_report(self.iterations, self.iterations, {})
        outcome = report.sums.returns, report.ended  # rewards and ends of all rounds
        logs = self._empty_logs(state, partial(self._sample, ring=ring, table=table), plan)

        def counted(t: Any) -> Any:
            steps = t * self.num_envs + lanes
            return (steps >= place.begin) & (steps < place.end)

        def body(loop: tuple) -> tuple:
            t, state, carry, ring, outcome, (applied, finite, logs) = loop
            now = jax.tree.map(lambda values: values[t], plan)
            *keys, learn_key, next_key = jax.random.split(carry.key, 6)
            row = (place.row + t) % self.rows
            before = carry.observations
            carry, ring, new = self._round(state, carry, ring, row, now, counted(t), keys)
            state = self._observed(state, before, *new, counted(t))
            outcome = tuple(array.at[t].set(values) for array, values in zip(outcome, new, strict=True))
            after = (t + 1) * self.num_envs
            newest = row * self.num_envs + self.num_envs - 1
            sample = partial(self._sample, ring=ring, table=table, newest=newest, now=now, key=learn_key)
            learned = self._learn(state, sample, now, place.number, (applied, finite, logs), careful)
            # The next call continues a round that is not complete, with the same key.
            carry = carry._replace(key=jnp.where(after <= place.end, next_key, carry.key))
            return t + 1, learned[0], carry, ring, outcome, learned[1:]

        start = jnp.int32(0), state, carry, ring, outcome, (jnp.int32(0), jnp.asarray(True), logs)
        rounds, state, carry, ring, (rewards, ended), (applied, finite, logs) = jax.lax.while_loop(
            lambda loop: (loop[0] * self.num_envs < place.end) & loop[5][1], body, start
        )
        carry, report = jax.lax.fori_loop(
            0, rounds, lambda t, loop: add_rewards(loop, t, rewards[t], ended[t], counted(t)), (carry, report)
        )
        finite = finite if careful else finite & all_finite(state)
        return state, carry, ring, report._replace(iterations=rounds, applied=applied, logs=logs), finite

    # Collecting

    def _round(
        self, state: list[Any], carry: Carry, ring: Transitions, row: Any, now: Plan, counted: Any, keys: list[Any]
    ) -> tuple[Carry, Transitions, tuple[Any, Any]]:
        """Step the `counted` lanes `[N]` and store the transitions; return also the rewards and ends, `[N]`."""
        act_key, random_key, step_key, reset_key = keys
        actions, *_ = self._environments.act(state, carry, act_key, now.settings)
        numbers = jax.random.uniform(random_key, (self.num_envs, self.num_random))
        is_random = jnp.arange(self.num_envs) < now.random
        actions = select(is_random, self.act_randomly(numbers).astype(actions.dtype), actions)
        after, step = self._environments.step(carry, actions, (step_key, reset_key), counted)
        ahead = jnp.full(self.num_envs, self.num_envs, jnp.int32)  # a lane's transitions are N slots apart
        behind = jnp.where(carry.memory, ahead, 0)
        ends = step.terminated, step.truncated
        new = Transitions(carry.observations, actions, step.reward, step.next_observations, *ends, ahead, behind)
        after = after._replace(memory=select(counted, ~step.ended, carry.memory))
        return after, store(ring, row, new, counted), (step.reward, step.ended)

    def _observed(self, state: list[Any], observations: Any, reward: Any, ended: Any, counted: Any) -> list[Any]:
        """Return the state after `observe`; the other arguments are those of a round."""
        if self.observe is None:
            return state
        with Scope(self._updates.variables, state) as scope:
            encoded = self.training.encode(observations)
            self.observe(encoded, reward, ended, counted, jnp.asarray(self.training.discount(), jnp.float32))
        return scope.values()

    # Learning

    def _learn(
        self, state: list[Any], sample: Callable[..., Batch], now: Plan, first: Any, before: tuple, careful: bool
    ) -> tuple[list[Any], Any, Any, dict[str, Any]]:
        """Make the updates that are due after a round; return the state, and `before` including these updates.

        Args:
            state: before the round.
            sample: (state, number of the update after this round) -> a batch; see `_sample`.
            now: what happens in this round.
            first: updates before the call.
            before: the updates applied in this call, whether all are finite, and the logged values.
            careful: whether an update that is not finite is undone and ends the updates.
        """
        positions = self._scheduled_positions
        values = [jnp.where(now.updates > 0, now.scheduled[k], state[p]) for k, p in enumerate(positions)]
        state = replaced(state, positions, values)
        # Loops of no or one pass: a branch would copy the whole state in each round.
        state = jax.lax.fori_loop(0, now.copies, lambda _, state: self._with_copy(state), state)

        def once(loop: tuple) -> tuple:
            k, state, applied, finite, logs = loop
            number = first + applied
            batch = sample(state, k)
            after, good, (logged, _) = self._updates.update(state, batch, number, losses_only=not careful)
            logs = {name: array.at[applied].set(logged[name]) for name, array in logs.items()}
            if careful:
                good &= all_finite(after)
                after = [jnp.where(good, new, old) for new, old in zip(after, state, strict=True)]
            if self.copy_every:
                copies = jnp.where(good & ((number + 1) % self.copy_every == 0), 1, 0)
                after = jax.lax.fori_loop(0, copies, lambda _, state: self._with_copy(state), after)
            return k + 1, after, applied + (good if careful else 1), finite & good, logs

        start = jnp.int32(0), state, *before
        return jax.lax.while_loop(lambda loop: (loop[0] < now.updates) & loop[3], once, start)[1:]

    def _with_copy(self, state: list[Any]) -> list[Any]:
        """Return the state after a hard copy to the target."""
        with Scope(self._updates.variables, state) as scope:
            self.update_target()
        return scope.values()

    def _sample(
        self, state: list[Any], k: Any, *, ring: Transitions, table: Any, newest: Any, now: Plan, key: Any
    ) -> Batch:
        """Return a batch of transitions, all with the same probability, with the random numbers of an update.

        Args:
            state: the variables.
            k: number of the update, from 0, among the updates that follow this round.
            ring: the memory.
            table: the slots that can be sampled beside the newest `now.recent` slots, which lie side by side. This
                round uses `now.older` entries, from `now.first` on.
            newest: the slot of the newest transition.
            now: what happens in this round.
            key: of this round's updates.
        """
        key = jax.random.fold_in(key, k)
        keys = jax.random.split(key, 1 + len(self.random_spec)) if self.random_spec else [key]
        # The bias is below 0.1 % for four million transitions; `jax.random.randint` takes longer to compile.
        count = (now.recent + now.older).astype(jnp.uint32)
        chosen = (jax.random.bits(keys[0], (self.training.batch_size,), jnp.uint32) % count).astype(jnp.int32)
        older = jnp.take(table, now.first + chosen - now.recent, mode="clip")
        slots = jnp.where(chosen < now.recent, (newest - chosen) % self.slots, older)
        extra = {
            name: SAMPLERS[distribution](extra_key, (self.training.batch_size, *shape), jnp.float32)
            for extra_key, (name, (shape, distribution)) in zip(keys[1:], self.random_spec.items(), strict=True)
        }
        with Scope(self._updates.variables, state):
            return self._gather(ring, slots, newest, extra)

    def _gather(self, ring: Transitions, slots: Any, newest: Any, extra: dict[str, Any]) -> Batch:
        """Return the batch of slots `[B]`; returns as in `noterl.replay.returns.n_step_return`."""
        rows = jax.tree.map(_flat, ring)
        gamma = jnp.asarray(self.training.discount(), jnp.float32)
        reward = take(rows.reward, slots)
        last = slots
        power = jnp.broadcast_to(gamma, slots.shape)
        # A return ends where the episode does, or at the newest transition; see `Transitions.behind`.
        for _ in range(1, self.n_step):
            ahead = take(rows.ahead, last)
            following = (last + ahead) % self.slots
            goes_on = ((newest - last) % self.slots >= ahead) & (take(rows.behind, following) == ahead)
            last = jnp.where(goes_on, following, last)
            reward += jnp.where(goes_on, power * take(rows.reward, last), 0)
            power = jnp.where(goes_on, power * gamma, power)
        return Batch(
            observation=self.training.encode(take(rows.observation, slots)),
            action=take(rows.action, slots),
            reward=reward,
            next_observation=self.training.encode(take(rows.next_observation, last)),
            discount=jnp.where(take(rows.terminated, last), 0, power),
            weight=jnp.ones(self.training.batch_size, jnp.float32),
            index=slots,
            extra=extra,
        )

    def _empty_logs(self, state: list[Any], sample: Callable[..., Batch], plan: Plan) -> dict[str, Any]:
        """Return zeros for the logs of all updates of a call; only the shapes of an update are computed."""

        def update(state: list[Any], plan: Plan) -> dict[str, Any]:
            now = jax.tree.map(lambda values: values[0], plan)
            batch = sample(state, jnp.int32(0), newest=jnp.int32(0), now=now, key=jax.random.PRNGKey(0))
            return self._updates.update(state, batch, jnp.int32(0))[2][0]

        shapes = jax.eval_shape(update, state, plan)
        return {name: jnp.zeros((self.num_updates, *shape.shape), shape.dtype) for name, shape in shapes.items()}


def _flat(array: Any) -> Any:
    """Return an array `[R, N, ...]` as `[R N, ...]`."""
    return array.reshape(-1, *array.shape[2:])
