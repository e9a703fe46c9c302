"""Tasks that need a memory, as environments of NumPy and as pure functions of JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs.functional import FunctionalEnv, functional, import_jax
from noterl.envs.tasks.task import Task
from noterl.utils.checks import check_int

SUITS = 4
CARDS = 52
# Observations of the T-maze as in Bakker (2002): the two signals, the corridor and the junction.
NORTH, SOUTH, CORRIDOR, JUNCTION = np.array([[0, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 0]], np.float32)
STAY = -0.1


class RepeatPrevious(Task):
    """Cards are shown one after another; the right action is the suit of the card that was shown `k` cards before.

    From Morad et al., "POPGym: Benchmarking partially observable reinforcement learning" (2023). The rewards of an
    episode are between -1 and 1; a policy without a memory gets about -0.5.

    Args:
        k: how many cards an agent must remember.
        decks: the number of decks of 52 cards, which are shuffled together.

    Raises:
        ValueError: if an argument is not a positive int, or `k` is not below the number of cards.

    Example:
    >>> from noterl.envs import RepeatPrevious
    >>> env = RepeatPrevious(k=1)
    >>> first, _ = env.reset(seed=0)
    >>> _, _, _, _, _ = env.step(0)
    >>> env.step(first)[1] * 51
    1.0
    """

    saved = ("deck", "shown")

    def __init__(self, k: int = 4, decks: int = 1) -> None:
        super().__init__(k=k, decks=decks)
        self.k: int = check_int("k", k)
        self.cards: int = CARDS * check_int("decks", decks)
        if k >= self.cards:
            raise ValueError(f"k must be below the number of cards, {self.cards}, got {k}")
        self.observation_space: Any = spaces.Discrete(SUITS)
        self.action_space: Any = spaces.Discrete(SUITS)
        self.deck: np.ndarray[Any, Any] = np.zeros(self.cards, np.int64)
        self.shown: int = 0

    def _begin(self) -> None:
        self.deck = self.np_random.permutation(self.cards) % SUITS
        self.shown = 0

    def _observe(self) -> np.int64:
        # After the last card there is no next one: the last is shown again.
        return self.deck[min(self.shown, self.cards - 1)]

    def step(self, action: Any) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Judge the action, and show the next card; the episode ends with the last card."""
        reward = 0.0
        if self.shown >= self.k:
            right = int(action) == self.deck[self.shown - self.k]
            # The rewards of an episode without mistakes add up to 1.
            reward = (1.0 if right else -1.0) / (self.cards - self.k)
        self.shown += 1
        return self._observe(), reward, self.shown == self.cards, False, {}


class TMaze(Task):
    """A corridor whose first observation says in which direction the goal lies at the junction at the end.

    From Bakker, "Reinforcement learning with long short-term memory" (2002), section 5. The actions are north, east,
    south and west. The right turn at the junction has the reward 4 and ends the episode, the wrong one has -0.1 and
    ends it too. A step into a wall has the reward -0.1. `info["is_success"]` is whether the turn was right.

    Args:
        length: steps from the start to the junction.
        max_steps: the number of steps after which an episode is truncated; by default three times the length plus 10.

    Raises:
        ValueError: if an argument is not a positive int.

    Example:
    >>> from noterl.envs import TMaze
    >>> env = TMaze(length=2)
    >>> signal, _ = env.reset(seed=0)
    >>> [env.step(1)[1] for _ in range(2)], env.step(0 if signal[2] else 2)[1]
    ([0.0, 0.0], 4.0)
    """

    saved = ("is_north", "place", "number")

    def __init__(self, length: int = 20, max_steps: int | None = None) -> None:
        super().__init__(length=length, max_steps=max_steps)
        self.length: int = check_int("length", length)
        self.max_steps: int = 3 * length + 10 if max_steps is None else check_int("max_steps", max_steps)
        self.observation_space: Any = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space: Any = spaces.Discrete(4)
        self.is_north: bool = False
        self.place: int = 0
        self.number: int = 0

    def _begin(self) -> None:
        self.is_north = bool(self.np_random.integers(2))
        self.place = 0
        self.number = 0

    def _info(self) -> dict[str, Any]:
        return {"is_success": False}

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        """Move."""
        self.number += 1
        at_junction = self.place == self.length
        reward = STAY
        over = False
        right = False
        if at_junction and action in (0, 2):
            over = True
            right = (action == 0) == self.is_north
            reward = 4.0 if right else STAY
        elif (action == 1 and not at_junction) or (action == 3 and self.place > 0):
            self.place += 1 if action == 1 else -1
            reward = 0.0
        truncated = not over and self.number >= self.max_steps
        return self._observe(), reward, over, truncated, {"is_success": bool(right)}

    def _observe(self) -> np.ndarray[Any, Any]:
        if self.place == 0:
            return (NORTH if self.is_north else SOUTH).copy()
        return (JUNCTION if self.place == self.length else CORRIDOR).copy()


def functional_repeat_previous(k: int = 4) -> FunctionalEnv:
    """Return `RepeatPrevious` with one deck as pure functions of JAX.

    Example:
    >>> from noterl.envs import functional_repeat_previous
    >>> functional_repeat_previous().action_space
    Discrete(4)
    """
    if not 0 < check_int("k", k) < CARDS:
        raise ValueError(f"k must be below the number of cards, {CARDS}, got {k}")

    def reset(key: Any) -> tuple[Any, Any]:
        jax = import_jax()
        deck = jax.random.permutation(key, CARDS) % SUITS
        return deck[0], (deck, jax.numpy.int32(0))

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        jnp = import_jax().numpy
        deck, shown = state
        right = jnp.where(action == deck[shown - k], 1.0, -1.0) / (CARDS - k)
        reward = jnp.where(shown >= k, right, 0.0)
        shown = shown + 1
        # After the last card there is no next one: the last is shown again, as in `RepeatPrevious`.
        return deck[jnp.minimum(shown, CARDS - 1)], (deck, shown), reward, shown == CARDS, False

    return functional(reset, step, spaces.Discrete(SUITS), spaces.Discrete(SUITS), name="functional_repeat_previous")


def functional_t_maze(length: int = 20) -> FunctionalEnv:
    """Return `TMaze` as pure functions of JAX.

    Example:
    >>> from noterl.envs import functional_t_maze
    >>> functional_t_maze().observation_space.shape
    (3,)
    """
    check_int("length", length)

    def observe(is_north: Any, place: Any) -> Any:
        jnp = import_jax().numpy
        later = jnp.where(place == length, jnp.asarray(JUNCTION), jnp.asarray(CORRIDOR))
        return jnp.where(place == 0, jnp.where(is_north, jnp.asarray(NORTH), jnp.asarray(SOUTH)), later)

    def reset(key: Any) -> tuple[Any, Any]:
        jax = import_jax()
        is_north = jax.random.bernoulli(key)
        place = jax.numpy.int32(0)
        return observe(is_north, place), (is_north, place)

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        jnp = import_jax().numpy
        is_north, place = state
        at_junction = place == length
        turns = at_junction & ((action == 0) | (action == 2))
        move = jnp.where((action == 1) & ~at_junction, 1, 0) - jnp.where((action == 3) & (place > 0), 1, 0)
        # Without a move, the step was into a wall, or the turn was wrong.
        reward = jnp.where(turns & ((action == 0) == is_north), 4.0, jnp.where(move == 0, STAY, 0.0))
        place = place + move
        return observe(is_north, place), (is_north, place), reward, turns, False

    space = spaces.Box(0.0, 1.0, (3,), np.float32)
    steps = 3 * length + 10
    return functional(reset, step, space, spaces.Discrete(4), max_episode_steps=steps, name="functional_t_maze")
