"""The base of all heads, and the head of action values."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from noterl.explorer import Explorer
from noterl.utils.masks import legal_choice


class _Ops:
    """`keras.ops`, imported when it is first used, because worker processes only act and do not import a backend."""

    def __getattr__(self, name: str) -> Any:
        from noterl.backends import ops

        return getattr(ops, name)


ops: Any = _Ops()

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)

# The value or logit of an illegal action: its probability underflows to 0, and logarithms stay finite.
ILLEGAL = -1e9


class Head:
    """Base of the heads: from the network's output `[N, ...]` to actions, on the host in NumPy.

    The head of an agent is bound to its action space. It explores with an `Explorer`: the agent's policy, its noise, or
    a plain `Explorer`, whose generator a head with its own distribution samples with.

    Attributes:
        kinds: the kinds of action space that the head accepts; a Box must hold floats.
        outputs: what the network returns for each observation, for error messages.
        width: the number of outputs for each value or choice of an action.
        further: the number of outputs beside those of an action.
        acts_on: the kinds of output that a policy for this head may use (`Policy.acts_on`); empty if it takes none.
        takes_noise: whether a noise of `noterl.noise` can explore.
        samples: whether the head can explore with its own distribution, without policy and noise.
        output_activation: the activation that the head applies to the outputs; networks have linear outputs.
        sampled_from: the distribution of the numbers that `sample_actions` needs, "uniform" (in [0, 1)) or "normal";
            None if actions are sampled in NumPy only.
        takes_mask: whether `deterministic`, `explore` and `random` take a further argument `mask`, bool `[N, A]`, and
            return legal actions only. See `noterl.utils.masks` for the layout of a mask.
        noisy: whether the weights of the network have noise while the head explores.
        action_space: the space that the head is bound to.
        read_by_losses: see `noterl.backends.reads`.
    """

    read_by_losses: ClassVar[bool] = True
    kinds: ClassVar[tuple[type, ...]]
    outputs: ClassVar[str] = "a number for each value of an action"
    width: ClassVar[int] = 1
    further: ClassVar[int] = 0
    acts_on: tuple[str, ...] = ()
    takes_noise: bool = False
    samples: bool = False
    output_activation: ClassVar[str] = "linear"
    sampled_from: str | None = None
    takes_mask: ClassVar[bool] = False
    noisy: bool = False
    action_space: spaces.Space[Any]

    @property
    def size(self) -> int:
        """The number of the network's outputs for each observation."""
        return self.width * spaces.flatdim(self.action_space) + self.further

    @property
    def num_sampled(self) -> int:
        """The number of random numbers for one action of `sample_actions`."""
        return spaces.flatdim(self.action_space)

    @property
    def noise_size(self) -> int:
        """The number of values of a noise for one action."""
        return self.num_sampled

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return a copy of this head for an action space.

        Raises:
            ValueError: if the head cannot choose actions of this space.
        """
        is_box_of_ints = isinstance(action_space, spaces.Box) and action_space.dtype.kind != "f"
        if is_box_of_ints or not isinstance(action_space, self.kinds):
            kinds = " or ".join("Box of floats" if space is spaces.Box else space.__name__ for space in self.kinds)
            raise ValueError(f"env: the head {type(self).__name__} takes {kinds} action spaces, got {action_space}")
        bound = copy.copy(self)
        bound.action_space = action_space
        return bound

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise a ValueError if outputs of this shape `[N, ...]` do not fit the action space."""
        if shape[1:] != (self.size,):
            raise ValueError(f"forward must return {self.outputs}, [B, {self.size}], got {shape}")

    def check_values(self, values: np.ndarray) -> None:
        """Raise a ValueError if outputs `[N, ...]` have values that the head does not accept.

        Called with the outputs for a random observation when the actor is made.
        """

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the best actions `[N, ...]` for the network's outputs."""
        raise NotImplementedError(f"{type(self).__name__} must define deterministic(values)")

    def explore(self, values: np.ndarray, explorer: Explorer, step: int) -> np.ndarray:
        """Return the training actions `[N, ...]` at environment step `step`.

        Actors call this method in each round of training. Random numbers come from the generator of the explorer, whose
        schedules are set to `step`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define explore(values, explorer, step)")

    def sample_actions(self, values: Any, numbers: Any) -> Any:
        """Return actions `[B, ...]` for outputs `[B, ...]`, as tensors, from random numbers `[B, num_sampled]`.

        The distribution is the same as in `explore` with a plain `Explorer`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define sample_actions(values, numbers)")

    def cloning_loss(self, values: Any, action: Any) -> Any:
        """Return the loss `[B]` of outputs `[B, ...]` for an expert's actions `[B, ...]`, for `Agent.pretrain`."""
        raise NotImplementedError(f"{type(self).__name__} must define cloning_loss(values, action)")

    def random(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return uniformly random actions `[count, ...]`."""
        return random_actions(self.action_space, count, generator)

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions `[N, ...]` that the environment receives; the same actions by default."""
        return actions

    def masked(self, values: Any, mask: Any) -> Any:
        """Return outputs `[B, ...]` in which illegal actions are excluded, for losses.

        Args:
            values: the network's outputs, `[B, ...]`.
            mask: bool `[B, A]`, such as `batch.extra.get("action_mask")`. None returns `values`.
        """
        if mask is None:
            return values
        raise NotImplementedError(f"{type(self).__name__} must define masked(values, mask)")


class Q(Head):
    """Outputs are action values `[N, A]` of a Discrete action space; a policy explores."""

    kinds: ClassVar[tuple[type, ...]] = (spaces.Discrete,)
    outputs = "a value for each action"
    acts_on: tuple[str, ...] = ("q",)
    takes_mask = True

    def deterministic(self, values: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Return the actions `[N]` with the highest value; the first of equal ones."""
        return np.argmax(values if mask is None else np.where(mask, values, -np.inf), axis=-1)

    def explore(self, values: np.ndarray, explorer: Any, step: int, mask: np.ndarray | None = None) -> np.ndarray:
        """Return the actions `[N]` that the policy selects."""
        return select(explorer, values, step, mask)

    def random(self, count: int, generator: np.random.Generator, mask: np.ndarray | None = None) -> np.ndarray:
        """Return uniformly random actions `[count]`."""
        return super().random(count, generator) if mask is None else legal_choice(mask, generator.random(count))

    def masked(self, values: Any, mask: Any) -> Any:
        """Return the values `[B, A]`, with -1e9 for illegal actions."""
        return values if mask is None else ops.where(mask, values, ILLEGAL)

    def cloning_loss(self, values: Any, action: Any) -> Any:
        """Return the large-margin loss `[B]` of Hester et al., "Deep Q-learning from demonstrations" (2018), section 4.

        `max over a of (Q(a) + 0.8 if a is not the expert's) - Q(expert's action)`.
        """
        from noterl import losses

        return losses.large_margin(values, action)


def select(policy: Any, values: np.ndarray, step: int, mask: np.ndarray | None) -> Any:
    """Return the actions `[N]` that a policy selects."""
    # Without a mask, a policy whose `select_action` has no such argument works too.
    return policy.select_action(values, step) if mask is None else policy.select_action(values, step, mask)


def halves(values: Any) -> tuple[Any, Any]:
    """Split `[N, 2 A]`, an array or a tensor, into two parts `[N, A]`."""
    size = values.shape[1] // 2
    return values[:, :size], values[:, size:]


def split(values: Any, sizes: Sequence[int]) -> list[Any]:
    """Split `[N, sum(sizes)]`, an array or a tensor, into parts `[N, size]`."""
    if len(sizes) == 1:
        return [values]
    return [values[:, end - size : end] for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True)]


def one_of(actions: np.ndarray, index: int, space: spaces.Space[Any]) -> Any:
    """Return one of actions `[N, ...]` in the form of its space: an int if it is Discrete, else an array.

    Example:
    >>> from noterl.heads import one_of
    >>> one_of(np.array([0.5, 1.0]), 1, spaces.Box(-1.0, 1.0, ()))
    array(1.)
    """
    return actions[index].item() if isinstance(space, spaces.Discrete) else actions[index, ...]


def members(actions: np.ndarray, space: spaces.Space[Any]) -> Any:
    """Return actions `[N, ...]` as a sequence of members of their space; see `one_of`."""
    if isinstance(space, spaces.Discrete):
        return actions.tolist()
    return [actions[index, ...] for index in range(len(actions))] if actions.ndim == 1 else actions


def random_actions(space: spaces.Space[Any], count: int, generator: np.random.Generator) -> np.ndarray:
    """Return uniformly random actions `[count, ...]` of a Discrete, MultiDiscrete, MultiBinary or Box space.

    Values of a Box without finite bounds come from a standard normal distribution.
    """
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.n, size=count)
    if isinstance(space, spaces.MultiDiscrete):
        return generator.integers(space.nvec, size=(count, *space.nvec.shape)).astype(space.dtype, copy=False)
    if isinstance(space, spaces.MultiBinary):
        return generator.integers(2, size=(count, *space.shape), dtype=space.dtype)
    box: Any = space
    low = box.low
    high = box.high
    shape = (count, *box.shape)
    bounded = np.isfinite(low) & np.isfinite(high)
    uniform = generator.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), shape)
    if not bounded.all():
        uniform = np.where(bounded, uniform, np.clip(generator.standard_normal(shape), low, high))
    return uniform.astype(space.dtype)
