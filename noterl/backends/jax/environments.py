"""N environments of pure functions in a compiled call: actions, steps, resets and the sums of rewards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from noterl.backends.jax.scope import Scope, read_values
from noterl.backends.on_device import Carry, Report, Sums, Training
from noterl.types import STARTS, STATE

SAMPLERS: dict[str, Callable[..., Any]] = {
    **{"uniform": jax.random.uniform, "normal": jax.random.normal},
    # Numbers that are the same in all rows of a batch.
    "batch_normal": lambda key, shape, dtype: jnp.broadcast_to(jax.random.normal(key, shape[1:], dtype), shape),
}


class Stepped(NamedTuple):
    """One step of N environments, `[N, ...]` each; the observations are those before resets."""

    next_observations: Any
    reward: Any
    terminated: Any
    truncated: Any

    @property
    def ended(self) -> Any:
        """Whether the step ended the episode."""
        return self.terminated | self.truncated


class Environments:
    """The environments of a training, whose functions are called in a compiled call.

    Args:
        training: what is collected and learned.
        store: observations `[N, ...]` of the environments -> observations for the carry, `[N, ...]`.
        encode: observations of the carry -> observations for networks.
    """

    def __init__(
        self,
        training: Training,
        store: Callable[[Any], Any],
        encode: Callable[[Any], Any] = lambda observations: observations,
    ) -> None:
        self._training = training
        self._num_envs = training.num_envs
        self._variables = training.updates.variables
        self._store = store
        self._encode = encode
        self._step = training.functions.step
        self._reset = training.functions.reset

    def start(self, key: Any) -> Carry:
        """Return the carry of new episodes in all lanes, without a memory."""
        first, second = jax.random.split(key)
        observations, states = self._reset_all(first)
        # A loop needs equal types before and after a round, and constants of an environment have weak types.
        states = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), states)
        zeros = jnp.zeros(self._num_envs, jnp.float32)
        sums = Sums(zeros, zeros, zeros.astype(jnp.int32))
        return Carry(second, states, observations, sums, (), self._policy_starts())

    def _policy_starts(self) -> dict[str, Any]:
        """Return `Carry.policy` before the first steps of episodes."""
        if not self._training.policy_start:
            return {}
        start = {f"{STATE}{name}": jnp.asarray(value) for name, value in self._training.policy_start.items()}
        start[STARTS] = jnp.float32(1)
        return {name: jnp.repeat(value[None], self._num_envs, axis=0) for name, value in start.items()}

    def follow_policy(self, carry: Carry, after: dict[str, Any], ended: Any, counted: Any) -> dict[str, Any]:
        """Return `Carry.policy` after a step.

        Args:
            carry: before the step.
            after: the next states of the policy, by name.
            ended: the lanes whose episode the step ended, `[N]`.
            counted: the lanes that made the step, `[N]`; the others do not change.
        """
        if not carry.policy:
            return {}
        now = {STARTS: jnp.zeros_like(carry.policy[STARTS]), **{f"{STATE}{name}": after[name] for name in after}}
        now = jax.tree.map(partial(select, ended), self._policy_starts(), with_dtypes(now, carry.policy))
        return jax.tree.map(partial(select, counted), now, carry.policy)

    def act(self, state: list[Any], carry: Carry, key: Any, settings: Any = None) -> tuple[Any, Any, dict[str, Any]]:
        """Return the actions that are stored, those for the environments, and the policy's next states, `[N, ...]`."""
        exploration = self._training.exploration
        numbers = SAMPLERS[exploration.sampled_from](key, (self._num_envs, exploration.num_sampled), jnp.float32)
        with Scope(self._variables, state):
            return self._training.act(self._encode(carry.observations), numbers, settings, states_of(carry.policy))

    def action_shape(self, carry: Carry, settings: Any = None) -> Any:
        """Return the shape and dtype of the actions that are stored."""
        return jax.eval_shape(self.act, read_values(self._variables), carry, carry.key, settings)[0]

    def step(self, carry: Carry, actions: Any, keys: tuple[Any, Any], counted: Any) -> tuple[Carry, Stepped]:
        """Step all environments, and reset those whose episode ends.

        Args:
            carry: before the step.
            actions: for the environments, `[N, ...]`.
            keys: for the steps and for the resets.
            counted: the lanes that the carry follows, bool `[N]`; the others do not change.
        """
        num_envs = self._num_envs
        before = carry.observations, carry.states
        observations, states, *outcome = jax.vmap(self._step)(jax.random.split(keys[0], num_envs), before[1], actions)
        reward, terminated, truncated = (
            jnp.broadcast_to(jnp.asarray(value).astype(dtype), (num_envs,))
            for value, dtype in zip(outcome, (jnp.float32, bool, bool), strict=True)
        )
        after = with_dtypes((self._stored(observations), states), before)
        step = Stepped(after[0], reward, terminated, truncated)
        ended = step.ended
        # A reset costs as much as a step, and most rounds of a few lanes need none.
        now = jax.lax.cond(ended.any(), self._reset_ended, lambda key, ended, after: after, keys[1], ended, after)
        observations, states = jax.tree.map(partial(select, counted), now, before)
        return carry._replace(observations=observations, states=states), step

    def play(self, act: Callable[[Any], Any], key: Any, episodes: int) -> tuple[Any, Any]:
        """Play one episode in each of so many environments; return returns and lengths, `[episodes]`."""
        first, second = jax.random.split(key)
        observations, states = jax.vmap(self._reset)(jax.random.split(first, episodes))
        zeros = jnp.zeros(episodes, jnp.float32)
        start = (self._stored(observations), states, zeros, zeros.astype(jnp.int32), zeros == 0, jnp.int32(0))

        def body(loop: tuple) -> tuple:
            observations, states, returns, lengths, alive, t = loop
            keys = jax.random.split(jax.random.fold_in(second, t), episodes)
            # Environments whose episode has ended are stepped too, and do not count.
            now, new, reward, terminated, truncated = jax.vmap(self._step)(keys, states, act(observations))
            after = with_dtypes((self._stored(now), new), (observations, states))
            returns = returns + jnp.where(alive, reward, 0)
            lengths = lengths + alive
            return *after, returns, lengths, alive & ~(terminated | truncated), t + 1

        _, _, returns, lengths, *_ = jax.lax.while_loop(lambda loop: loop[4].any(), body, start)
        return returns, lengths

    def empty_report(self, rounds: int, iterations: int, logs: dict[str, Any]) -> Report:
        """Return the report of a call of so many rounds and iterations; `logs` are the empty logs."""
        lanes = jnp.zeros((rounds, self._num_envs), jnp.float32)
        none = jnp.zeros(iterations, jnp.int32)
        sums = Sums(lanes, lanes, lanes.astype(jnp.int32))
        return Report(lanes.astype(bool), sums, jnp.int32(0), none, none.astype(bool), logs)

    def _reset_all(self, key: Any) -> tuple[Any, Any]:
        """Return the first observations and states of new episodes in all lanes."""
        observations, states = jax.vmap(self._reset)(jax.random.split(key, self._num_envs))
        return self._stored(observations), states

    def _reset_ended(self, key: Any, ended: Any, after: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return `after`, the observations and states, with new episodes in the lanes that have ended, `[N]`."""
        return jax.tree.map(partial(select, ended), with_dtypes(self._reset_all(key), after), after)

    def _stored(self, observations: Any) -> Any:
        return jax.tree.map(jnp.asarray, self._store(observations))


def states_of(policy: dict[str, Any]) -> dict[str, Any]:
    """Return the states of the policy in `Carry.policy`, by the names in `state_spec`."""
    return {name.removeprefix(STATE): value for name, value in policy.items() if name != STARTS}


def store(table: Any, position: Any, rows: Any, counted: Any) -> Any:
    """Return a table `[R, N, ...]` with the rows of the `counted` lanes `[N]` at a position."""
    return jax.tree.map(lambda array, new: array.at[position].set(select(counted, new, array[position])), table, rows)


def add_rewards(loop: tuple[Carry, Report], row: Any, reward: Any, ended: Any, counted: Any) -> tuple[Carry, Report]:
    """Add the rewards of a round to the sums of the `counted` lanes, and report the episodes that end.

    Call this function in a loop without the environments' steps: fused with the products in the steps, sums would be
    rounded differently.

    Args:
        loop: the carry and the report.
        row: of the report.
        reward: of the round, `[N]`.
        ended: whether the round ended an episode, `[N]`.
        counted: the lanes that made a step, `[N]`.
    """
    carry, report = loop
    sums = carry.sums
    returns, lost = _two_sum(sums.returns, reward)
    after = Sums(returns, sums.compensation + lost, sums.lengths + 1)
    kept = (jnp.where(counted, jnp.where(ended, 0, new), old) for new, old in zip(after, sums, strict=True))
    reported = (all_.at[row].set(new) for all_, new in zip(report.sums, after, strict=True))
    report = report._replace(ended=report.ended.at[row].set(ended & counted), sums=Sums(*reported))
    return carry._replace(sums=Sums(*kept)), report


def select(mask: Any, first: Any, second: Any) -> Any:
    """Return the rows `[N, ...]` of `first` where `mask` `[N]` is true, else the rows of `second`."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (first.ndim - mask.ndim)), first, second)


def with_dtypes(new: Any, old: Any) -> Any:
    """Return the arrays of `new` with the dtypes of `old`, which a loop requires."""
    return jax.tree.map(lambda array, like: jax.lax.convert_element_type(array, like.dtype), new, old)


def _two_sum(first: Any, second: Any) -> tuple[Any, Any]:
    """Return a sum and the rounding error (Knuth, 1969): both together are exact, so float32 suffices for returns."""
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)
