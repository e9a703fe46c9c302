"""N environments of pure functions in a compiled call: their steps, their resets and the returns of their episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

SAMPLERS: dict[str, Callable[..., Any]] = {"uniform": jax.random.uniform, "normal": jax.random.normal}


class Stepped(NamedTuple):
    """One step of N environments, `[N, ...]` each; the last two are those after the resets."""

    next_observations: Any
    reward: Any
    terminated: Any
    truncated: Any
    observations: Any
    states: Any


class Sums(NamedTuple):
    """The episodes of N environments.

    Attributes:
        returns: sums of rewards, `[N]`, float32.
        compensation: the rounding error of `returns`, to be added to them, `[N]`.
        lengths: numbers of steps, `[N]`.
    """

    returns: Any
    compensation: Any
    lengths: Any

    @classmethod
    def zeros(cls, num_envs: int) -> Sums:
        """Return those of new episodes."""
        lanes = jnp.zeros(num_envs, jnp.float32)
        return cls(lanes, lanes, lanes.astype(jnp.int32))


@dataclass(eq=False, frozen=True)
class Environments:
    """N environments whose functions are called in a compiled call.

    Args:
        reset: `key -> (observation, state)` of one environment.
        step: `(key, state, action) -> (observation, state, reward, terminated, truncated)` of one environment.
        encode: observations `[N, ...]` of the environments -> those that this object returns, `[N, ...]`.
        num_envs: N.
    """

    reset: Callable[[Any], tuple[Any, Any]]
    step: Callable[..., tuple[Any, ...]]
    encode: Callable[[Any], Any]
    num_envs: int

    def start(self, key: Any) -> tuple[Any, Any]:
        """Return the observations and states of new episodes, `[N, ...]`."""
        observations, states = self._reset_all(key)
        return observations, jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), states)

    def step_all(self, step_key: Any, reset_key: Any, before: tuple[Any, Any], actions: Any) -> Stepped:
        """Step all environments, and reset those whose episode ends.

        Args:
            step_key: for the steps.
            reset_key: for the resets.
            before: observations and states, `[N, ...]`.
            actions: as environments receive them, `[N, ...]`.
        """
        keys = jax.random.split(step_key, self.num_envs)
        observations, states, *outcome = jax.vmap(self.step)(keys, before[1], actions)
        reward, terminated, truncated = (
            jnp.broadcast_to(jnp.asarray(value).astype(dtype), (self.num_envs,))
            for value, dtype in zip(outcome, (jnp.float32, bool, bool), strict=True)
        )
        after = with_dtypes((self._encoded(observations), states), before)
        ended = terminated | truncated
        # A reset costs as much as a step, and most rounds of a few lanes need none.
        now = jax.lax.cond(ended.any(), self._reset_ended, lambda key, ended, after: after, reset_key, ended, after)
        return Stepped(after[0], reward, terminated, truncated, *now)

    def play(self, act: Callable[[Any], Any], key: Any, episodes: int) -> tuple[Any, Any]:
        """Play one episode in each of so many environments; return returns and lengths, `[episodes]`."""
        first, second = jax.random.split(key)
        observations, states = jax.vmap(self.reset)(jax.random.split(first, episodes))
        zeros = jnp.zeros(episodes, jnp.float32)
        start = (self._encoded(observations), states, zeros, zeros.astype(jnp.int32), zeros == 0, jnp.int32(0))

        def body(loop: tuple) -> tuple:
            observations, states, returns, lengths, alive, t = loop
            keys = jax.random.split(jax.random.fold_in(second, t), episodes)
            now, new, reward, terminated, truncated = jax.vmap(self.step)(keys, states, act(observations))
            after = with_dtypes((self._encoded(now), new), (observations, states))
            returns, lengths = returns + jnp.where(alive, reward, 0), lengths + alive
            return *after, returns, lengths, alive & ~(terminated | truncated), t + 1

        _, _, returns, lengths, *_ = jax.lax.while_loop(lambda loop: loop[4].any(), body, start)
        return returns, lengths

    def _reset_all(self, key: Any) -> tuple[Any, Any]:
        observations, states = jax.vmap(self.reset)(jax.random.split(key, self.num_envs))
        return self._encoded(observations), states

    def _reset_ended(self, key: Any, ended: Any, after: tuple[Any, Any]) -> tuple[Any, Any]:
        fresh = with_dtypes(self._reset_all(key), after)
        found: tuple[Any, Any] = jax.tree.map(partial(select, ended), fresh, after)
        return found

    def _encoded(self, observations: Any) -> Any:
        return jax.tree.map(jnp.asarray, self.encode(observations))


def add_rewards(sums: Sums, reward: Any, ended: Any, counted: Any) -> tuple[Sums, Sums]:
    """Add the rewards of a step to the sums of the `counted` environments.

    Call it in a loop without the environments' steps: fused with their products, sums would be rounded differently.

    Returns:
        the sums with this step, and those of the episodes in flight after it: zero where an episode has ended.
    """
    returns, lost = _two_sum(sums.returns, reward)
    after = Sums(returns, sums.compensation + lost, sums.lengths + 1)
    kept = (jnp.where(counted, jnp.where(ended, 0, new), old) for new, old in zip(after, sums, strict=True))
    return after, Sums(*kept)


def select(mask: Any, first: Any, second: Any) -> Any:
    """Return the rows `[N, ...]` of `first` where `mask` `[N]` is true, else those of `second`."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (first.ndim - mask.ndim)), first, second)


def with_dtypes(new: Any, old: Any) -> Any:
    """Return the arrays of `new` with the dtypes of `old`, so that they fit into a loop."""
    return jax.tree.map(lambda one, other: jax.lax.convert_element_type(one, other.dtype), new, old)


def _two_sum(first: Any, second: Any) -> tuple[Any, Any]:
    """Return a sum and its rounding error (Knuth, 1969): their sum is exact, so float32 suffices for returns."""
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)
