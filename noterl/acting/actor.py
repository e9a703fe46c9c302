"""Choosing actions: the forward pass on the host, the head, exploration, and random actions at the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from noterl.acting.policy_state import NO_STATE, State
from noterl.envs import EnvSource
from noterl.explorer import Explorer
from noterl.heads import Head
from noterl.utils.interrupts import InterruptGuard


class ActorLanes(Protocol):
    """What an actor needs of lanes; see `noterl.collect.base.Lanes`."""

    source: EnvSource
    guard: InterruptGuard
    environments: Sequence[Any]
    info: dict[str, np.ndarray]

    def observations(self) -> np.ndarray:
        """Return the current observations, encoded for networks, `[N, ...]`."""

    def keep_policy_state(self, start: State) -> None:
        """Keep a state of the policy for each episode; `start` is the state before the first step."""


@dataclass(eq=False)
class Actor:
    """Chooses the actions of an agent, in training and in evaluations.

    The agent makes the actor at the first use after `compile`. Worker processes that choose actions have a copy each.

    Attributes:
        forward: returns the network's output `[N, ...]` for observations `[N, ...]`, such as a `HostForward`.
        head: the head, bound to the action space.
        explorer: the policy or the noise, or an `Explorer` whose generator the head samples with.
        generators: the agent's generators; exploration uses "exploration", random actions use "random_actions".
        dtype: dtype of the observations that networks receive.
        normalizers: normalizes observations before the forward pass; None for no normalization.
        learning_starts: number of environment steps at the start whose actions are uniformly random.
        forward_fields: the shapes of the fields that `forward` returns beside the output, by name.
        values: the input of the head for the actions that `select` returned last, `[N, ...]`.
        fields: further fields `[N, ...]` of the actions that `choose_actions` returned last, by name. The memory stores
            them with the transitions.
        searches: whether the actor steps copies of the environments, which must then be in this process.
        start: the state of the policy before the first step of an episode, `[...]` by name; empty without a state.
        worker_explorers: a policy or noise for each worker process, the first of which is `explorer`; empty if each
            worker has a copy of `explorer`.
        first_lane: number of the first lane that this actor acts for; above 0 in some worker processes.
    """

    searches: ClassVar[bool] = False

    forward: Any
    head: Head
    explorer: Explorer
    generators: Callable[[str], np.random.Generator]
    dtype: Any
    normalizers: Any = None
    learning_starts: int = 0
    forward_fields: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    first_lane: int = 0
    worker_explorers: Sequence[Explorer] = ()
    start: State = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values: np.ndarray = np.zeros(0)
        self.fields: dict[str, np.ndarray] = {}
        self.explorer.generator = self.generators("exploration")
        self._reset_noise: Callable[[int], None] | None = getattr(self.explorer, "reset", None)

    def attach(self, lanes: ActorLanes) -> None:
        """Called by `fit` with the lanes whose actions follow; the lanes keep the states of the policy."""
        lanes.keep_policy_state(self.start)

    def choose_actions(
        self,
        observations: np.ndarray,
        step: int,
        waiting: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        state: State = NO_STATE,
    ) -> tuple[np.ndarray, State]:
        """Return the training actions `[N, ...]` of one step in N lanes, before `Head.executed`, and the next state.

        Lanes and workers call this method once per round. The attributes `values` and `fields` are set for this round.

        Before `learning_starts`, they are uniformly random. If it is reached within this step, only the actions of the
        first lanes are.

        Args:
            observations: the encoded observations of all lanes, `[N, ...]`.
            step: environment steps so far.
            waiting: bool `[N]`, True for lanes whose step does not count; None if all count.
            mask: the legal actions of each lane, bool `[N, A]`; None if all are legal.
            state: the state of the policy in each lane, `[N, ...]` by name.
        """
        remaining = self.learning_starts - step - self.first_lane
        if remaining <= 0:
            return self.select(observations, step, self.explorer, mask, state)
        count = len(observations)
        num_random = min(remaining, count)
        # Waiting lanes do not count, so more lanes act randomly until enough of them have taken a step.
        if waiting is not None:
            num_random = int(np.searchsorted(np.cumsum(~waiting), num_random, side="right"))
        if num_random == count:
            self.explorer.skip(count)
            if self.forward_fields or state:  # random actions advance the state, too
                _, state = self.outputs(observations, state)
            return self.random_actions(count, mask), state
        actions, state = self.select(observations, step, self.explorer, mask, state)
        actions[:num_random] = self.random_actions(num_random, None if mask is None else mask[:num_random])
        return actions, state

    def act(
        self,
        observations: np.ndarray,
        step: int,
        explorer: Explorer | None,
        mask: np.ndarray | None = None,
        state: State = NO_STATE,
    ) -> tuple[np.ndarray, State]:
        """Return the actions `[N, ...]` that environments receive, and the next state of the policy.

        Args:
            observations: encoded observations, `[N, ...]`.
            step: environment steps so far; exploration may depend on these steps.
            explorer: the policy or the noise to explore with; None to act without exploration.
            mask: the legal actions, bool `[N, A]`; None if all are legal.
            state: the state of the policy, `[N, ...]` by name.
        """
        actions, state = self.select(observations, step, explorer, mask, state)
        return self.head.executed(actions), state

    def select(
        self,
        observations: np.ndarray,
        step: int,
        explorer: Explorer | None,
        mask: np.ndarray | None = None,
        state: State = NO_STATE,
    ) -> tuple[np.ndarray, State]:
        """Return the actions that the head chooses, before `Head.executed`, and the next state; see `act`.

        The attributes `values` and `fields` are set.
        """
        head: Any = self.head
        noise = explorer.generator if head.noisy and explorer is not None else None
        self.values, state = self.outputs(observations, state, noise)
        legal = () if mask is None else (mask,)
        if explorer is None:
            return head.deterministic(self.values, *legal), state
        return head.explore(self.values, explorer, step, *legal), state

    def outputs(
        self, observations: np.ndarray, state: State = NO_STATE, noise: np.random.Generator | None = None
    ) -> tuple[np.ndarray, State]:
        """Return the input of the head for encoded observations `[N, ...]` and the next state, and set `fields`.

        The generator samples the noise in the weights of a noisy network; None for none.
        """
        inputs = self.network_inputs(observations)
        if noise is not None:
            return self.forward(inputs, noise), state
        values, state = self.forward.with_state(inputs, state) if state else (self.forward(inputs), state)
        if self.forward_fields:
            values, self.fields = split_fields(values, self.forward_fields)
        return values, state

    def network_inputs(self, observations: np.ndarray) -> np.ndarray:
        """Return encoded observations `[N, ...]` as networks receive observations: normalized, in the right dtype."""
        if self.normalizers is not None:
            observations = self.normalizers.normalize_observation(observations)
        return observations if observations.dtype == self.dtype else observations.astype(self.dtype)

    def random_actions(self, count: int, mask: np.ndarray | None = None) -> np.ndarray:
        """Return uniformly random actions `[count, ...]`, before `Head.executed`; legal ones if there is a mask."""
        head: Any = self.head
        legal = () if mask is None else (mask,)
        return head.random(count, self.generators("random_actions"), *legal)

    def reset_noise(self, lane: int) -> None:
        """Reset the noise of a lane in which an episode starts."""
        if self._reset_noise is not None:
            self._reset_noise(lane)

    def mark_stale(self) -> None:
        """Fetch the weights again before the next forward pass; call this if weights changed outside of an update."""
        self.forward.stale = True


def split_fields(values: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Split outputs `[N, W + ...]` with fields as their last columns into outputs `[N, W]` and fields `[N, ...]`."""
    if not shapes:
        return values, {}
    fields = {}
    end = values.shape[1]
    for name in sorted(shapes, reverse=True):
        start = end - math.prod(shapes[name])
        fields[name] = values[:, start:end].reshape(len(values), *shapes[name])
        end = start
    return values[:, :end], fields
