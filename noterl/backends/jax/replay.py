"""Collecting into a replay memory on the device, and the updates from it, as one compiled call.

A round is one step of every lane. The transitions of a round are one row `[N, ...]` of a ring, and the updates that are
due follow it. A call begins and ends at any step; the updates of a round that is not complete follow in the next call.
The random numbers of a round depend on its number only. So splitting training into calls does not change a result.

A slot is a position in the ring without the axis of lanes: `row N + lane`. The ring has room for the steps of one call
beside the memory's capacity. So a call can be repeated if an update is not finite: it has overwritten nothing that it
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from noterl.backends import on_device
from noterl.backends.jax.environments import SAMPLERS, Environments, Sums, add_rewards, select
from noterl.backends.jax.scope import Scope, compiler, read_values, write_values
from noterl.backends.jax.updates import Updates, all_finite, replaced
from noterl.backends.on_device import Place, Plan, ReplayCarry, ReplayReport, Transitions
from noterl.types import Batch


class ReplayProgram(on_device.ReplayProgram):
    """Collecting and learning as one compiled while loop; see `on_device.ReplayProgram`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._environments = Environments(self.reset, self.step_environment, self.store, self.num_envs)
        self._updates = Updates(self.step, self.variables, period=self.period, jit_compile=self.jit_compile)
        compiled = compiler(self.jit_compile)
        if self.jit_compile is not False:
            compiled = partial(jax.jit, donate_argnames="ring", static_argnames="careful")
        self._run, self.start = compiled(self._train), compiler(self.jit_compile)(self._start)

    def __call__(
        self, carry: ReplayCarry, ring: Transitions, table: np.ndarray, place: Place, plan: Plan
    ) -> tuple[ReplayCarry, Transitions, ReplayReport]:
        """Train, and write the variables back; `ring` must not be used again."""
        place = Place(*map(np.int32, place))
        run = partial(self._run, read_values(self.variables), carry, table=table, place=place, plan=plan)
        state, after, ring, report, finite = run(ring=ring)
        if not finite:
            state, after, ring, report, _ = run(ring=ring, careful=True)
        write_values(self.variables, state)
        return after, ring, jax.tree.map(np.asarray, report)

    def make_ring(self, rows: Mapping[str, Any], slots: np.ndarray) -> Transitions:
        """Return a ring with transitions in slots `[n]`: the fields of `Transitions` by name, `[n, ...]`."""

        def fill(shape: Any, values: Any) -> Any:
            table = np.zeros((self.slots, *shape.shape[1:]), shape.dtype)
            table[slots] = values
            return jnp.array(table.reshape(self.rows, self.num_envs, *shape.shape[1:]))

        shapes = self._row_shapes()._asdict()
        return Transitions(**{name: jax.tree.map(fill, shape, rows[name]) for name, shape in shapes.items()})

    def is_destroyed(self, ring: Transitions) -> bool:
        """Return whether a call that has raised an error has destroyed the ring, which was donated to it."""
        return any(array.is_deleted() for array in jax.tree.leaves(ring))

    def read(self, ring: Transitions, slots: np.ndarray) -> dict[str, Any]:
        """Return copies of the transitions in slots `[n]`: the fields of `Transitions` by name, NumPy `[n, ...]`."""
        tables = ring._asdict()
        return {name: jax.tree.map(lambda array: _flat(np.asarray(array))[slots], tables[name]) for name in tables}

    def _row_shapes(self) -> Transitions:
        """Return the shapes and dtypes of one round, `[N, ...]`."""
        carry = jax.eval_shape(self._start, np.zeros(2, np.uint32))
        settings = np.zeros(self.num_settings, np.float32)
        action = jax.eval_shape(self._act, read_values(self.variables), carry.observations, carry.key, settings)
        lanes = partial(jax.ShapeDtypeStruct, (self.num_envs,))
        flag, observation = lanes(np.bool_), carry.observations
        distances = lanes(np.int32), lanes(np.int32)
        return Transitions(observation, action, lanes(np.float32), observation, flag, flag, *distances)

    def _start(self, key: Any) -> ReplayCarry:
        """Return the carry of new episodes in all lanes, for a key of uint32 `[2]`."""
        first, second = jax.random.split(key)
        observations, states = self._environments.start(first)
        sums, linked = Sums.zeros(self.num_envs), jnp.zeros(self.num_envs, bool)
        return ReplayCarry(second, states, observations, *sums, linked)

    def _train(
        self,
        state: list[Any],
        carry: ReplayCarry,
        *,
        ring: Transitions,
        table: Any,
        place: Place,
        plan: Plan,
        careful: bool = False,
    ) -> tuple[list[Any], ReplayCarry, Transitions, ReplayReport, Any]:
        """Return the state, the carry, the ring, the report, and whether all updates are finite; pure.

        Without `careful`, an update that is not finite stays in the returned state. The caller then repeats the call
        with `careful=True`.
        """
        self.on_trace()
        lanes = jnp.arange(self.num_envs)
        outcome = jnp.zeros((self.rounds, self.num_envs), jnp.float32), jnp.zeros((self.rounds, self.num_envs), bool)
        logs = self._empty_logs(state, partial(self._sample, ring=ring, table=table), plan)

        def counted(t: Any) -> Any:
            steps = t * self.num_envs + lanes
            return (steps >= place.begin) & (steps < place.end)

        def body(loop: tuple) -> tuple:
            t, state, carry, ring, outcome, (applied, finite, logs) = loop
            now = jax.tree.map(lambda values: values[t], plan)
            *keys, learn_key, next_key = jax.random.split(carry.key, 6)
            row = (place.row + t) % self.rows
            carry, ring, new = self._round(state, carry, ring, row, now, counted(t), keys)
            outcome = tuple(all_.at[t].set(one) for all_, one in zip(outcome, new, strict=True))
            after = (t + 1) * self.num_envs
            newest = row * self.num_envs + self.num_envs - 1
            sample = partial(self._sample, ring=ring, table=table, newest=newest, now=now, key=learn_key)
            learned = self._learn(state, sample, now, place.number, (applied, finite, logs), careful)
            carry = carry._replace(key=jnp.where(after <= place.end, next_key, carry.key))
            return t + 1, learned[0], carry, ring, outcome, learned[1:]

        start = jnp.int32(0), state, carry, ring, outcome, (jnp.int32(0), jnp.asarray(True), logs)
        rounds, state, carry, ring, outcome, (applied, finite, logs) = jax.lax.while_loop(
            lambda loop: (loop[0] * self.num_envs < place.end) & loop[5][1], body, start
        )
        carry, sums = self._add_rewards(carry, outcome, counted, rounds)
        finite = finite if careful else finite & all_finite(state)
        return state, carry, ring, ReplayReport(outcome[1], *sums, rounds, applied, logs), finite

    # Collecting

    def _round(
        self,
        state: list[Any],
        carry: ReplayCarry,
        ring: Transitions,
        row: Any,
        now: Plan,
        counted: Any,
        keys: list[Any],
    ) -> tuple[ReplayCarry, Transitions, tuple[Any, Any]]:
        """Step the `counted` lanes `[N]` and store their transitions; return also the rewards and ends, `[N]`."""
        act_key, random_key, step_key, reset_key = keys
        actions = self._act(state, carry.observations, act_key, now.settings)
        numbers = jax.random.uniform(random_key, (self.num_envs, self.num_random))
        is_random = jnp.arange(self.num_envs) < now.random
        actions = select(is_random, self.act_randomly(numbers).astype(actions.dtype), actions)
        before = carry.observations, carry.states
        step = self._environments.step_all(step_key, reset_key, before, actions)
        ended = step.terminated | step.truncated
        ahead = jnp.full(self.num_envs, self.num_envs, jnp.int32)  # a lane's transitions are N slots apart
        behind = jnp.where(carry.linked, ahead, 0)
        ends = step.terminated, step.truncated
        new = Transitions(before[0], actions, step.reward, step.next_observations, *ends, ahead, behind)
        rows = jax.tree.map(lambda all_, one: all_.at[row].set(select(counted, one, all_[row])), ring, new)
        after = step.observations, step.states, ~ended
        kept = jax.tree.map(partial(select, counted), after, (*before, carry.linked))
        carry = carry._replace(observations=kept[0], states=kept[1], linked=kept[2])
        return carry, rows, (step.reward, ended & counted)

    def _act(self, state: list[Any], observations: Any, key: Any, settings: Any) -> Any:
        numbers = SAMPLERS[self.sampled_from](key, (self.num_envs, self.num_sampled), jnp.float32)
        with Scope(self.variables, state):
            return self.act(self.encode(observations), numbers, settings)

    def _add_rewards(
        self, carry: ReplayCarry, outcome: tuple[Any, Any], counted: Callable[[Any], Any], rounds: Any
    ) -> tuple[ReplayCarry, Sums]:
        """Add the rewards of all rounds; return also the sums of the episodes after each round, `[C, N]`."""
        rewards, ended = outcome
        shape = rewards.shape
        empty = Sums(jnp.zeros(shape), jnp.zeros(shape), jnp.zeros(shape, jnp.int32))

        def body(t: Any, loop: tuple[Sums, Sums]) -> tuple[Sums, Sums]:
            found, sums = loop
            after, kept = add_rewards(sums, rewards[t], ended[t], counted(t))
            return Sums(*(all_.at[t].set(new) for all_, new in zip(found, after, strict=True))), kept

        sums = Sums(carry.returns, carry.compensation, carry.lengths)
        found, sums = jax.lax.fori_loop(0, rounds, body, (empty, sums))
        return carry._replace(**sums._asdict()), found

    # Learning

    def _learn(
        self, state: list[Any], sample: Callable[..., Batch], now: Plan, first: Any, before: tuple, careful: bool
    ) -> tuple[list[Any], Any, Any, dict[str, Any]]:
        """Make the updates that are due after a round; return the state, and `before` with them.

        Args:
            state: before the round.
            sample: (state, number of the update after this round) -> a batch; see `_sample`.
            now: what happens in this round.
            first: updates before the call.
            before: the updates applied in this call, whether all are finite, and what they logged.
            careful: whether an update that is not finite is undone and ends the updates.
        """
        values = [
            jnp.where(now.updates > 0, now.scheduled[k], state[p]) for k, p in enumerate(self.scheduled_positions)
        ]
        state = replaced(state, self.scheduled_positions, values)
        # Loops of no or one pass: a branch would copy the whole state in each round.
        state = jax.lax.fori_loop(0, now.copies, lambda _, state: self._with_copy(state), state)

        def once(loop: tuple) -> tuple:
            k, state, applied, finite, logs = loop
            number = first + applied
            batch = sample(state, k)
            after, good, (found, _) = self._updates.update(state, batch, number, losses_only=not careful)
            logs = {name: all_.at[applied].set(found[name]) for name, all_ in logs.items()}
            if careful:
                good &= all_finite(after)
                after = [jnp.where(good, new, old) for new, old in zip(after, state, strict=True)]
            if self.copy_every:
                copies = jnp.where(good & ((number + 1) % self.copy_every == 0), 1, 0)
                after = jax.lax.fori_loop(0, copies, lambda _, state: self._with_copy(state), after)
            return k + 1, after, applied + (good if careful else 1), finite & good, logs

        def unfinished(loop: tuple) -> Any:
            return (loop[0] < now.updates) & loop[3]

        loop: tuple = jax.lax.while_loop(unfinished, once, (jnp.int32(0), state, *before))
        return loop[1:]

    def _with_copy(self, state: list[Any]) -> list[Any]:
        """Return the state after a hard copy to the target."""
        with Scope(self.variables, state) as scope:
            self.update_target()
        return scope.values()

    def _sample(
        self, state: list[Any], k: Any, *, ring: Transitions, table: Any, newest: Any, now: Plan, key: Any
    ) -> Batch:
        """Return a batch of transitions, all with the same probability, with the random numbers of an update.

        Args:
            state: the variables.
            k: number of the update after this round.
            ring: the memory.
            table: further slots that can be sampled.
            newest: the slot of the newest transition.
            now: what happens in this round.
            key: of this round's updates.
        """
        key = jax.random.fold_in(key, k)
        keys = jax.random.split(key, 1 + len(self.random_spec)) if self.random_spec else [key]
        # The bias is below 0.1 % for four million transitions; `jax.random.randint` takes longer to compile.
        count = (now.recent + now.older).astype(jnp.uint32)
        chosen = (jax.random.bits(keys[0], (self.batch_size,), jnp.uint32) % count).astype(jnp.int32)
        older = jnp.take(table, now.first + chosen - now.recent, mode="clip")
        slots = jnp.where(chosen < now.recent, (newest - chosen) % self.slots, older)
        extra = {
            name: SAMPLERS[distribution](each, (self.batch_size, *shape), jnp.float32)
            for each, (name, (shape, distribution)) in zip(keys[1:], self.random_spec.items(), strict=True)
        }
        with Scope(self.variables, state):
            return self._gather(ring, slots, newest, extra)

    def _gather(self, ring: Transitions, slots: Any, newest: Any, extra: dict[str, Any]) -> Batch:
        """Return the batch of slots `[B]`; the returns are those of `noterl.replay.returns.n_step_return`."""
        rows = jax.tree.map(_flat, ring)

        def take(table: Any, slots: Any) -> Any:
            return jax.tree.map(lambda array: jnp.take(array, slots, axis=0, mode="clip"), table)

        gamma = jnp.asarray(self.discount(), jnp.float32)
        reward, last, power = take(rows.reward, slots), slots, jnp.broadcast_to(gamma, slots.shape)
        for _ in range(1, self.n_step):
            ahead = take(rows.ahead, last)
            following = (last + ahead) % self.slots
            goes_on = ((newest - last) % self.slots >= ahead) & (take(rows.behind, following) == ahead)
            last = jnp.where(goes_on, following, last)
            reward += jnp.where(goes_on, power * take(rows.reward, last), 0)
            power = jnp.where(goes_on, power * gamma, power)
        return Batch(
            observation=self.encode(take(rows.observation, slots)),
            action=take(rows.action, slots),
            reward=reward,
            next_observation=self.encode(take(rows.next_observation, last)),
            discount=jnp.where(take(rows.terminated, last), 0, power),
            weight=jnp.ones(self.batch_size, jnp.float32),
            index=slots,
            extra=extra,
        )

    def _empty_logs(self, state: list[Any], sample: Callable[..., Batch], plan: Plan) -> dict[str, Any]:
        def update(state: list[Any], plan: Plan) -> dict[str, Any]:
            now = jax.tree.map(lambda values: values[0], plan)
            batch = sample(state, jnp.int32(0), newest=jnp.int32(0), now=now, key=jax.random.PRNGKey(0))
            found: dict[str, Any] = self._updates.update(state, batch, jnp.int32(0))[2][0]
            return found

        shapes = jax.eval_shape(update, state, plan)
        return {name: jnp.zeros((self.updates, *shape.shape), shape.dtype) for name, shape in shapes.items()}


def _flat(array: Any) -> Any:
    """Return an array `[R, N, ...]` as `[R N, ...]`."""
    return array.reshape(-1, *array.shape[2:])
