"""Training on the device: the programs that collect and learn in one compiled call, which JAX implements.

A `DeviceProgram` learns from rollouts, a `ReplayProgram` from a replay memory. A call makes up to C iterations. An
iteration is what updates follow: a rollout, or one round with a replay memory. A round is one step of every lane, and a
position counts the steps of all lanes from the begin of the iteration in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from noterl.backends.common import UpdateProgram
from noterl.types import Batch


class Sums(NamedTuple):
    """Episodes, with any leading axes; those in flight have `[N]`.

    Attributes:
        returns: sums of rewards, float32.
        compensation: the rounding error of `returns`, to be added to `returns`.
        lengths: numbers of steps.
    """

    returns: Any
    compensation: Any
    lengths: Any

    def on_host(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the returns and the lengths, flat, as float64 and int64."""
        returns, compensation, lengths = (np.asarray(values).reshape(-1) for values in self)
        return returns.astype(np.float64) + compensation, lengths.astype(np.int64)


class Carry(NamedTuple):
    """What a call receives from the last one.

    Attributes:
        key: of the iteration in progress.
        states: of the environments, a pytree of arrays `[N, ...]`.
        observations: as the rollout or the replay memory stores observations, `[N, ...]`.
        sums: of the episodes in flight, `[N]`.
        memory: the `Rollout` in progress. With a replay memory, whether a lane's last transition is N slots before the
            lane's next transition, and the episode goes on, `[N]`.
        policy: the state of the policy before the next step and "starts", `[N, ...]` by name; {} without a state.
        learner_state: see `noterl.replay.rollout.Rollout`; {} if there is none.
    """

    key: Any
    states: Any
    observations: Any
    sums: Sums
    memory: Any
    policy: dict[str, Any] = {}  # noqa: RUF012
    learner_state: dict[str, Any] = {}  # noqa: RUF012


class Report(NamedTuple):
    """What happened in a call of C iterations with R rounds.

    Attributes:
        ended: whether the step of a lane in a round ended the episode, `[R, N]`.
        sums: where an episode ended, the episode's return and length, `[R, N]`.
        iterations: the number of iterations that ran.
        applied: the number of updates of each iteration that were applied, `[C]`.
        stopped: whether `stop` ended the updates of an iteration, `[C]`.
        logs: values by name, `[updates of a call, ...]`.
    """

    ended: Any
    sums: Sums
    iterations: Any
    applied: Any
    stopped: Any
    logs: dict[str, Any]


class Functions(Protocol):
    """One environment of pure functions; see `noterl.envs.functional`."""

    @property
    def reset(self) -> Callable[[Any], tuple[Any, Any]]:
        """`key -> (observation, state)`."""

    @property
    def step(self) -> Callable[..., tuple[Any, ...]]:
        """`(key, state, action) -> (observation, state, reward, terminated, truncated)`."""


class Exploration(Protocol):
    """The random numbers with which actions are chosen, and the settings of this choice.

    Attributes:
        sampled_from: the distribution of the random numbers, "uniform" (in [0, 1)) or "normal".
        num_sampled: the number of random numbers for one action.
        num_settings: E, the number of settings.
    """

    sampled_from: str
    num_sampled: int
    num_settings: int


@dataclass(eq=False, kw_only=True)
class Training:
    """What a program collects and learns, with any memory.

    Args:
        functions: of the environment.
        encode: observations -> inputs of networks, with the same leading axes.
        exploration: the random numbers that `act` receives.
        act: (observations of networks, random numbers `[N, num_sampled]`, settings `[E]`, the state of the policy by
            name) -> (the actions that are stored, those for environments, the next state).
        policy_start: the state of the policy before the first step of an episode, `[...]` by name.
        discount: returns the discount factor.
        updates: the gradient updates. All functions of the program may read or assign the updates' variables.
        scheduled: the variables that have a schedule.
        num_envs: N, the number of lanes.
        batch_size: B, the rows of an update.
        on_trace: called for each program that is traced.
    """

    functions: Functions
    encode: Callable[[Any], Any]
    exploration: Exploration
    act: Callable[[Any, Any, Any, dict[str, Any]], tuple[Any, Any, dict[str, Any]]]
    policy_start: Mapping[str, np.ndarray]
    discount: Callable[[], Any]
    updates: UpdateProgram
    scheduled: Sequence[Any]
    num_envs: int
    batch_size: int
    on_trace: Callable[[], None]


@dataclass(eq=False, kw_only=True)
class TrainingProgram:
    """Collecting and learning on the device; the base of both programs.

    Args:
        training: what is collected and learned.
        iterations: C, the largest number of iterations in one call.

    Attributes:
        size: the steps of an iteration.
        start: `key -> carry` of new episodes in all lanes, for a key of uint32 `[2]`.
    """

    training: Training
    iterations: int
    size: int = field(init=False)
    start: Callable[[Any], Carry] = field(init=False, repr=False)

    @property
    def num_envs(self) -> int:
        """N, the number of lanes."""
        return self.training.num_envs


class Rollout(NamedTuple):
    """A rollout, `[T, N, ...]` each; `policy` is `Carry.policy` before each step."""

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    terminated: Any
    ended: Any
    policy: dict[str, Any]


@dataclass(eq=False, kw_only=True)
class DeviceProgram(TrainingProgram):
    """Collecting and learning on the device, called as `program(carry, begin, end, scheduled)`.

    `TrainingProgram` documents the arguments that are not listed here.

    Args:
        act_best: observations of networks `[N, ...]` -> the actions for environments, without exploration.
        prepare: a rollout `[T, N, ...]` -> (rows `[T N, ...]`, or sequences for a policy with a state; learner state
            after the last row).
        learner_start: the learner state of new episodes, `[N, ...]` by name.
        length: T, the rounds of a rollout.
        sequence_length: steps of a sequence; 1 for rows.
        epochs: passes over each rollout.

    Attributes:
        num_updates: K, the gradient updates on a rollout.
    """

    act_best: Callable[[Any], Any]
    prepare: Callable[[Batch], tuple[Batch, dict[str, Any]]]
    learner_start: Mapping[str, np.ndarray]
    length: int
    sequence_length: int
    epochs: int

    def __post_init__(self) -> None:
        self.size = self.length * self.num_envs
        self.num_updates: int = self.epochs * -(-self.size // self.training.batch_size)

    def __call__(self, carry: Carry, begin: int, end: int, scheduled: np.ndarray) -> tuple[Carry, Report]:
        """Train from position `begin` of the rollout in progress to `end`, and write the variables back.

        If an update is not finite, the call ends with the rollout of this update, of which `applied` updates are kept.

        Args:
            carry: what `start` or the last call returned.
            begin: below T N.
            end: at most C T N.
            scheduled: for each rollout, the values of the scheduled variables, followed by the settings of the
                exploration for each round, `[C, variables + T E]`.
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
        """Make the calls of some members, each as a call of `DeviceProgram`."""

    def play(self, variables: Sequence[Any], key: np.ndarray, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Play the same episodes with members of these variables; return returns and lengths, `[S, episodes]`."""


class Transitions(NamedTuple):
    """Transitions with any leading axes; in the ring, the axes are `[R, N, ...]`.

    Attributes:
        ahead: the distance in slots at which the next transition of the episode is, if there is one.
        behind: the distance in slots to the previous transition of the episode; 0 if there is none. A transition and
            the one that is `ahead` belong together if the later one is stored and has the same distance as `behind`.
            So each column is written once for a transition. If a column is written twice, XLA copies the whole column
            in each round.
    """

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    terminated: Any
    truncated: Any
    ahead: Any
    behind: Any


class Plan(NamedTuple):
    """What happens in each of the C rounds of a call that trains from a memory on the device.

    Attributes:
        settings: of the exploration, float32 `[C, E]`.
        random: number of first lanes whose actions are uniformly random, `[C]`.
        updates: gradient updates after the round, `[C]`.
        copies: 1 if a hard copy to the target precedes these updates, otherwise 0, `[C]`.
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
    """Where a call of a `ReplayProgram` begins and ends; integers.

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
class ReplayProgram(TrainingProgram):
    """Collecting and learning on the device, called as `program(carry, ring, table, place, plan)`.

    `TrainingProgram` documents the arguments that are not listed here.

    Args:
        store: observations of the environments `[N, ...]` -> observations for the memory.
        act_randomly: uniform numbers `[N, num_random]` -> actions.
        num_random: the number of uniform numbers for one action.
        observe: receives the observations of networks, rewards, ends and counted lanes of each round, `[N, ...]`, and
            the discount factor; None if not needed.
        update_target: makes a hard copy.
        copy_every: gradient updates between hard copies; 0 if none follow updates.
        random_spec: the shape and the distribution of the random numbers of an update, by name.
        n_step: number of rewards that are summed.
        capacity: transitions that can be sampled.
        num_updates: the largest number of updates in one call.

    Attributes:
        rows: the rows of the ring.
        slots: the slots of the ring.
    """

    store: Callable[[Any], Any]
    act_randomly: Callable[[Any], Any]
    num_random: int
    observe: Callable[..., None] | None
    update_target: Callable[[], None]
    copy_every: int
    random_spec: Mapping[str, tuple[tuple[int, ...], str]]
    n_step: int
    capacity: int
    num_updates: int

    def __post_init__(self) -> None:
        self.size = self.num_envs
        # Two more rows, because the memory may begin within a row, and a call within a round.
        self.rows: int = -(-self.capacity // self.num_envs) + self.iterations + 2
        self.slots: int = self.rows * self.num_envs

    def __call__(
        self, carry: Carry, ring: Transitions, table: np.ndarray, place: Place, plan: Plan
    ) -> tuple[Carry, Transitions, Report]:
        """Train, and write the variables back; `ring` must not be used again.

        If an update is not finite, the update is not applied, and the call ends with that round.

        Args:
            carry: what `start` or the last call returned.
            ring: of `make_ring` or the last call.
            table: slots of transitions that can be sampled, apart from the newest ones, int32.
            place: where the call begins and ends.
            plan: what happens in the rounds of the call.
        """
        raise NotImplementedError

    def make_ring(self, rows: Mapping[str, Any], slots: np.ndarray) -> Transitions:
        """Return a ring with transitions in slots `[n]`: the fields of `Transitions` by name, `[n, ...]`."""
        raise NotImplementedError

    def is_destroyed(self, ring: Transitions) -> bool:
        """Return whether a call that has raised an error has destroyed the donated ring."""
        raise NotImplementedError

    def read(self, ring: Transitions, slots: np.ndarray) -> dict[str, Any]:
        """Return copies of the transitions in slots `[n]`: the fields of `Transitions` by name, NumPy `[n, ...]`."""
        raise NotImplementedError
