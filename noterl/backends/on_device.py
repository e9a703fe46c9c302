"""Training on the device: the programs that collect and learn in one compiled call, which JAX implements.

A `DeviceProgram` learns from rollouts, a `ReplayProgram` from a replay memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from noterl.backends.common import Step
from noterl.types import Batch


@dataclass(eq=False, kw_only=True)
class CompiledTraining:
    """What both programs receive.

    Args:
        reset: `key -> (observation, state)` of one environment.
        step_environment: `(key, state, action) -> (observation, state, reward, terminated, truncated)`.
        encode: observations -> those of networks, which have the same leading axes.
        sampled_from: the distribution of the random numbers that `act` receives, "uniform" or "normal".
        num_sampled: the number of random numbers for one action.
        discount: returns the discount factor.
        step: one gradient update, as for `UpdateProgram`.
        variables: all variables that these functions may read or assign.
        scheduled: those of the variables that have a schedule.
        num_envs: N, the number of lanes.
        batch_size: B, the rows of an update.
        jit_compile: False runs it operation by operation.
        on_trace: called for each program that is traced.
    """

    reset: Callable[[Any], tuple[Any, Any]]
    step_environment: Callable[..., tuple[Any, ...]]
    encode: Callable[[Any], Any]
    sampled_from: str
    num_sampled: int
    discount: Callable[[], Any]
    step: Step
    variables: Sequence[Any]
    scheduled: Sequence[Any]
    num_envs: int
    batch_size: int
    jit_compile: bool | str = "auto"
    on_trace: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Prepare the program, after `__init__` has set the arguments."""
        positions = {id(variable): position for position, variable in enumerate(self.variables)}
        self.scheduled_positions: list[int] = [positions[id(variable)] for variable in self.scheduled]


class Rollout(NamedTuple):
    """A rollout, `[T, N, ...]` each."""

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    terminated: Any
    ended: Any


class Carry(NamedTuple):
    """What a call receives from the last one.

    Attributes:
        key: of the rollout in progress.
        states: of the environments, a pytree of arrays `[N, ...]`.
        observations: as networks receive them, `[N, ...]`.
        returns: sums of rewards of the episodes in flight, `[N]`, float32.
        compensation: the rounding error of `returns`, to be added to them, `[N]`.
        lengths: steps of the episodes in flight, `[N]`.
        rollout: the rollout in progress.
    """

    key: Any
    states: Any
    observations: Any
    returns: Any
    compensation: Any
    lengths: Any
    rollout: Rollout


class Report(NamedTuple):
    """What happened in a call of C rollouts.

    Attributes:
        ended: whether the step of a lane in a round ended its episode, `[C T, N]`.
        returns: where an episode ended, its return, float32 `[C T, N]`.
        compensation: the rounding error of `returns`, to be added to them, `[C T, N]`.
        lengths: where an episode ended, its number of steps, `[C T, N]`.
        applied: the number of updates on each rollout that were applied, `[C]`.
        stopped: whether `stop` ended the updates on the rollout, `[C]`.
        logs: values by name, `[C, K, ...]`.
    """

    ended: Any
    returns: Any
    compensation: Any
    lengths: Any
    applied: Any
    stopped: Any
    logs: dict[str, Any]


@dataclass(eq=False, kw_only=True)
class DeviceProgram(CompiledTraining):
    """Collecting and learning on the device, called as `program(carry, begin, end, scheduled)`.

    The arguments are those of `CompiledTraining`, and these.

    Args:
        act_best: observations of networks `[N, ...]` -> the actions for environments, without exploration.
        act: (observations of networks, random numbers `[N, num_sampled]`) -> (actions, those for environments).
        prepare: a rollout `[T, N, ...]` -> rows `[T N, ...]`.
        stop: as for `UpdateProgram`.
        length: T, the rounds of a rollout.
        epochs: passes over each rollout.
        rollouts: C, the largest number of rollouts in one call.

    Attributes:
        start: `key -> carry` of new episodes in all lanes, for a key of uint32 `[2]`.
        size: T N, the steps of a rollout.
        updates: K, the gradient updates on a rollout.
    """

    act_best: Callable[[Any], Any]
    act: Callable[[Any, Any], tuple[Any, Any]]
    prepare: Callable[[Batch], Batch]
    stop: Callable[[dict[str, Any]], Any] | None
    length: int
    epochs: int
    rollouts: int
    start: Callable[[Any], Carry] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.size: int = self.length * self.num_envs
        self.updates: int = self.epochs * -(-self.size // self.batch_size)

    def __call__(self, carry: Carry, begin: int, end: int, scheduled: np.ndarray) -> tuple[Carry, Report]:
        """Train from position `begin` of the rollout in progress to `end`, and write the variables back.

        If an update is not finite, the call ends with the rollout of this update, of which `applied` updates are kept.

        Args:
            carry: what `start` or the last call returned.
            begin: below T N.
            end: at most C T N.
            scheduled: the values of the scheduled variables for each rollout, `[C, variables]`.
        """
        raise NotImplementedError


class MemberCall(NamedTuple):
    """The variables of a member, and the arguments of `DeviceProgram.__call__`."""

    variables: Sequence[Any]
    carry: Carry
    begin: int
    end: int
    scheduled: np.ndarray


class Members(Protocol):
    """Makes the calls of the members of a population, which share the program of one member."""

    @property
    def program(self) -> DeviceProgram:
        """The program of one member."""

    def call(self, calls: Sequence[MemberCall]) -> list[tuple[Carry, Report]]:
        """Make the calls of some members, each as `DeviceProgram` makes it."""

    def play(self, variables: Sequence[Any], key: np.ndarray, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Play the same episodes with members of these variables; return returns and lengths, `[S, episodes]`."""


class Transitions(NamedTuple):
    """Transitions with any leading axes; those of the ring have `[R, N, ...]`.

    Attributes:
        ahead: the distance in slots at which the next transition of the episode is, if there is one.
        behind: the distance in slots to the one before it in its episode; 0 if there is none. A transition and one
            `ahead` of it belong together if that one is stored and its `behind` is the same distance. So each column is
            written once for a transition; XLA copies the whole column in each round if it is written twice.
    """

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    terminated: Any
    truncated: Any
    ahead: Any
    behind: Any


class ReplayCarry(NamedTuple):
    """What a call receives from the last one.

    Attributes:
        key: of the round in progress.
        states: of the environments, a pytree of arrays `[N, ...]`.
        observations: as the memory stores them, `[N, ...]`.
        returns, compensation, lengths: of the episodes in flight; see `Sums`.
        linked: whether a lane's last transition is N slots before its next one, and its episode goes on, `[N]`.
    """

    key: Any
    states: Any
    observations: Any
    returns: Any
    compensation: Any
    lengths: Any
    linked: Any


class ReplayReport(NamedTuple):
    """What happened in a call of C rounds.

    Attributes:
        ended: whether the step of a lane in a round ended its episode, `[C, N]`.
        returns, compensation, lengths: of the episodes that ended, `[C, N]`.
        rounds: number of rounds that ran.
        applied: number of updates that were applied.
        logs: values by name, `[updates of a call, ...]`.
    """

    ended: Any
    returns: Any
    compensation: Any
    lengths: Any
    rounds: Any
    applied: Any
    logs: dict[str, Any]


class Plan(NamedTuple):
    """What happens in each of the C rounds of a call that trains from a memory on the device.

    Attributes:
        settings: of the exploration, float32 `[C, E]`.
        random: number of first lanes whose actions are uniformly random, `[C]`.
        updates: gradient updates after the round, `[C]`.
        copies: 1 if a hard copy to the target precedes them, otherwise 0, `[C]`.
        recent: number of newest transitions that can be sampled then, `[C]`.
        older: number of entries of the table of further slots that can be sampled then, `[C]`.
        first: the first of these entries, `[C]`.
        scheduled: values of the scheduled variables from these updates on, float32 `[C, variables]`.
    """

    settings: Any
    random: Any
    updates: Any
    copies: Any
    recent: Any
    older: Any
    first: Any
    scheduled: Any


class Place(NamedTuple):
    """Where such a call begins and ends; integers.

    Attributes:
        row: of the ring, in which the round in progress is stored.
        begin: steps of the round in progress.
        end: steps at the end of the call, counted from the start of that round.
        number: updates before the call, modulo `period` times `copy_every`.
    """

    row: Any
    begin: Any
    end: Any
    number: Any


@dataclass(eq=False, kw_only=True)
class ReplayProgram(CompiledTraining):
    """Collecting and learning on the device, called as `program(carry, ring, table, place, plan)`.

    The arguments are those of `CompiledTraining`, and these.

    Args:
        store: observations of the environments `[N, ...]` -> those that the memory stores.
        act: (observations of networks, random numbers `[N, num_sampled]`, settings `[E]`) -> actions.
        num_settings: E, the number of settings.
        act_randomly: uniform numbers `[N, num_random]` -> actions.
        num_random: the number of uniform numbers for one action.
        period: as for `UpdateProgram`.
        update_target: makes a hard copy.
        copy_every: gradient updates between hard copies; 0 if none follow updates.
        random_spec: the shape and the distribution of the random numbers of an update, by name.
        n_step: number of rewards that are summed.
        capacity: transitions that can be sampled.
        rounds: C, the largest number of rounds in one call.
        updates: the largest number of updates in one call.

    Attributes:
        start: `key -> carry` of new episodes in all lanes, for a key of uint32 `[2]`.
        rows: the rows of the ring.
        slots: the slots of the ring.
    """

    store: Callable[[Any], Any]
    act: Callable[[Any, Any, Any], Any]
    num_settings: int
    act_randomly: Callable[[Any], Any]
    num_random: int
    period: int
    update_target: Callable[[], None]
    copy_every: int
    random_spec: Mapping[str, tuple[tuple[int, ...], str]]
    n_step: int
    capacity: int
    rounds: int
    updates: int
    start: Callable[[Any], ReplayCarry] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rows: int = -(-self.capacity // self.num_envs) + self.rounds + 2
        self.slots: int = self.rows * self.num_envs

    def __call__(
        self, carry: ReplayCarry, ring: Transitions, table: np.ndarray, place: Place, plan: Plan
    ) -> tuple[ReplayCarry, Transitions, ReplayReport]:
        """Train, and write the variables back; `ring` must not be used again.

        If an update is not finite, the call ends with the round of this update, which is not applied.

        Args:
            carry: what `start` or the last call returned.
            ring: of `make_ring` or the last call.
            table: slots of transitions that can be sampled, apart from the newest ones, int32.
            place: where the call begins and ends.
            plan: what happens in its rounds.
        """
        raise NotImplementedError

    def make_ring(self, rows: Mapping[str, Any], slots: np.ndarray) -> Transitions:
        """Return a ring with transitions in slots `[n]`: the fields of `Transitions` by name, `[n, ...]`."""
        raise NotImplementedError

    def is_destroyed(self, ring: Transitions) -> bool:
        """Return whether a call that has raised an error has destroyed the ring, which was donated to it."""
        raise NotImplementedError

    def read(self, ring: Transitions, slots: np.ndarray) -> dict[str, Any]:
        """Return copies of the transitions in slots `[n]`: the fields of `Transitions` by name, NumPy `[n, ...]`."""
        raise NotImplementedError
