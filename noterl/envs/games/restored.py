"""A single-agent environment as a game that a search can simulate.

If `noterl.envs.get_state` returns the environment's state, `set_state` restores the state. Any other environment is
copied by `copy.deepcopy`, with all contents: the elapsed steps of a time limit, and the generator. Each search starts
from a state with new seeds, so that the search does not foresee the environment's next steps.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from noterl.envs.games.game import Array, Game, Outcome
from noterl.envs.observation import ObservationEncoder
from noterl.envs.snapshots import equal, get_state, reseed, set_state
from noterl.envs.wrappers.classic import layers
from noterl.utils.masks import ACTION_MASK, read_mask

# How many steps `RestoredEnv` takes to check that a restored environment repeats what it did.
_CHECKED_STEPS = 8


class Snapshot(NamedTuple):
    """One state of an environment.

    Attributes:
        saved: what restores the environment: the result of `get_state`, or the environment itself, which is copied.
        observation: the encoded observation.
        action_mask: the legal actions, bool `[A]`.
    """

    saved: Any
    observation: Array
    action_mask: Array


class RestoredEnv(Game):
    """An environment whose states are stored and restored, as `Snapshot`s in an array of objects `[N]`.

    Args:
        env: an environment that only this object uses, reset and stepped for a check.

    Raises:
        ValueError: if the actions are not Discrete, or a restored environment does not repeat its steps.
    """

    players: ClassVar[int] = 1

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        space: Any = env.action_space
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"env: a search needs Discrete actions, got {space}")
        self.num_actions: int = int(space.n)
        self.max_length: int = 0
        self._action_space = space
        self._encoder = ObservationEncoder(env.observation_space)
        self.observation_space: Any = self._encoder.space
        self._env = env
        observation, info = env.reset(seed=0)
        self._restores = get_state(env) is not None
        self._check(self.snapshot(env, self._encoder(observation), info.get(ACTION_MASK)))

    def snapshot(self, env: Any, observation: Any, action_mask: Any = None, terminated: bool = False) -> Snapshot:
        """Return the state of an environment like this one, which must not be stepped while the snapshot is used.

        Args:
            env: the environment.
            observation: the current observation, encoded.
            action_mask: the legal actions `[A]`; None if all are legal.
            terminated: whether the episode is over, so that the mask may forbid all actions.

        Raises:
            ValueError: if the mask does not fit the actions.
        """
        if action_mask is None:
            legal = np.ones(self.num_actions, np.bool_)
        else:
            legal = read_mask(action_mask, self._action_space, terminated=terminated)
        return Snapshot(get_state(env) if self._restores else env, np.array(observation), legal)

    def pack(self, snapshots: list[Snapshot]) -> Array:
        """Return snapshots as an array of states `[N]`."""
        # Filled one by one, because `np.array` would take the named tuples apart.
        states = np.empty(len(snapshots), object)
        for row, snapshot in enumerate(snapshots):
            states[row] = snapshot
        return states

    def with_new_seeds(self, snapshot: Snapshot, generator: np.random.Generator) -> Snapshot:
        """Return the same state with new seeds, drawn from `generator`, so that chance differs from the environment's.

        A search from the environment's own seeds would foresee what the environment will do.
        """
        env = self._restore(snapshot)
        reseed(env, generator)
        return snapshot._replace(saved=get_state(env) if self._restores else env)

    def root(self, pair: Any, generator: np.random.Generator, action_mask: Any = None) -> Array:
        """Return the current state of an environment with new seeds, as an array `[1]`.

        Args:
            pair: the environment and the current observation.
            generator: of the seeds.
            action_mask: the legal actions `[A]`; None if all are legal.

        Raises:
            ValueError: if `pair` is not a pair, or the mask does not fit the actions.
        """
        if not (isinstance(pair, tuple) and len(pair) == 2 and hasattr(pair[0], "step")):
            raise ValueError(f"state must be a pair (environment, current observation), got {pair!r}")
        mask = None if action_mask is None else read_mask(action_mask, self._action_space, name=ACTION_MASK)
        return self.pack([self.with_new_seeds(self.snapshot(pair[0], self._encoder(pair[1]), mask), generator)])

    def _restore(self, snapshot: Snapshot) -> Any:
        """Return an environment in the state of a snapshot: the own one, until the next call, or a copy."""
        if self._restores:
            set_state(self._env, snapshot.saved)
            return self._env
        # Spaces and specs do not change in an episode; sharing them makes a copy of CartPole four times as fast.
        shared = [
            part
            for layer in layers(snapshot.saved)
            for name, part in getattr(layer, "__dict__", {}).items()
            if isinstance(part, gymnasium.Space) or name in ("spec", "_cached_spec", "metadata", "_metadata")
        ]
        return copy.deepcopy(snapshot.saved, {id(part): part for part in shared})

    def _check(self, snapshot: Snapshot) -> None:
        """Raise a ValueError unless two restored environments take the same steps."""
        generator = np.random.default_rng(0)
        name = type(self._env.unwrapped).__name__
        current = self.pack([snapshot])
        for _ in range(_CHECKED_STEPS):
            action = np.array([generator.choice(np.flatnonzero(current[0].action_mask))])
            try:
                first, second = (self.advance(current, action) for _ in range(2))
            except Exception as error:
                raise ValueError(f"env: {name} cannot be restored ({error!r}); {_ADVICE}") from error
            if not equal((first.states[0].observation, *first[1:]), (second.states[0].observation, *second[1:])):
                raise ValueError(f"env: {name} does not repeat its steps after it was restored; {_ADVICE}")
            if first.terminated[0] or first.truncated[0]:
                break
            current = first.states

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def start(self, count: int) -> Array:
        """Return `count` states after a reset with the seed 0."""
        observation, info = self._env.reset(seed=0)
        env = self._env if self._restores else copy.deepcopy(self._env)
        return self.pack([self.snapshot(env, self._encoder(observation), info.get(ACTION_MASK))] * count)

    def legal_actions(self, states: Array) -> Array:
        """Return the legal actions, bool `[N, A]`: `info["action_mask"]`, or all actions."""
        return np.stack([state.action_mask for state in states])

    def step(self, states: Array, actions: Array) -> Array:
        """Return the states after the actions."""
        return self.advance(states, actions).states

    def to_play(self, states: Array) -> Array:
        """Return 0 for each state."""
        return np.zeros(len(states), np.int64)

    def observe(self, states: Array) -> Array:
        """Return the encoded observations, `[N, ...]`."""
        return np.stack([state.observation for state in states])

    def advance(self, states: Array, actions: Array) -> Outcome:
        """Return the states after the actions, the rewards, and how the episodes ended."""
        following = []
        rewards, terminated, truncated = np.zeros(len(states)), *np.zeros((2, len(states)), np.bool_)
        for row, (state, action) in enumerate(zip(states, actions.tolist(), strict=True)):
            env = self._restore(state)
            observation, rewards[row], terminated[row], truncated[row], info = env.step(action)
            mask = info.get(ACTION_MASK)
            following.append(self.snapshot(env, self._encoder(observation), mask, bool(terminated[row])))
        # An episode that does both ends for good, so its value is not estimated.
        return Outcome(self.pack(following), rewards, terminated, truncated & ~terminated)


_ADVICE = (
    "give it get_state() and set_state(state), see noterl.envs.snapshots, and run noterl.envs.check(env) for the reason"
)
