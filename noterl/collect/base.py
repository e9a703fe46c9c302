"""`Lanes`: what the training loop, the session and the state of an agent use of N environments.

`ScalarLanes`, `TeamLanes`, `VectorLanes`, `PoolLanes` and `DeviceLanes` implement this interface.
"""

# Most methods without a body are hooks: a kind of lanes overrides those that it needs.
# ruff: noqa: B027

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from noterl.collect.env_calls import EnvCall
from noterl.collect.fields import InfoFields
from noterl.collect.ledger import Ledger
from noterl.types import Counters, InfoSpec, Transition
from noterl.utils.interrupts import InterruptGuard
from noterl.utils.masks import ACTION_MASK

if TYPE_CHECKING:
    from noterl.acting.actor import Actor
    from noterl.acting.policy_state import State
    from noterl.algorithm import Algorithm
    from noterl.callback import Budget
    from noterl.envs import EnvSource
    from noterl.replay import Replay
    from noterl.replay.rollout import Rollout


Chosen = tuple[np.ndarray, np.ndarray, Mapping[str, np.ndarray]] | None  # see `Lanes.choose_actions`


class LanesLearner(Protocol):
    """What lanes that collect ahead of the loop need of the learner; see `noterl.learning.learner.Learner`."""

    algorithm: Algorithm
    rollout: Rollout | None

    @property
    def rounds_left(self) -> int | None:
        """Number of rounds until the next update; None if the workers' setting decides how many are collected."""

    def rounds_within(self, updates: int | None, step: int, num_envs: int) -> float:
        """Return how many rounds can begin before more than `updates` updates can be due; inf if there is no limit."""

    def keep_acting_policy(self) -> None:
        """Called before an update if workers collect the next rollout with the current weights meanwhile."""


class Lanes(ABC):
    """Base of the lanes: N environments under one interface. A round is one action for every lane.

    Args:
        source: makes the environments.
        num_envs: the number of lanes.
        info_spec: fields of `info` that transitions hold; see `Algorithm.info_spec`.

    Attributes:
        ledger: the episodes in flight.
        actions: the actions of the round in progress; None between rounds.
        cursor: the lane that is next in the round, for lanes whose ticks are single lanes.
        fields: the fields of `info_spec`, and a mask that the environments offer.
        info: the current values of these fields, `[N, ...]` by name.
        guard: the agent's guard, which the session sets. Lanes that wait call `guard.check`. The guard is open while an
            environment of this process steps or resets.
        environments: the environment of each lane; empty if this process does not step single environments.
        waiting: the lanes `[N]` that the next tick resets instead of stepping; None if lanes never reset themselves.
        interrupted: lanes whose episode was cut because a worker process has failed; the loop empties the list.
        tick_width: the largest number of steps of a tick.
        copies_policy: whether other processes have copies of the policy, and choose the actions.
        acting_clock: the name of the clock that counts the time of choosing actions.
        stepping_clock: the name of the clock that counts the time of resets and ticks.
    """

    environments: Sequence[Any] = ()
    waiting: np.ndarray | None = None
    tick_width = 1
    copies_policy = False
    acting_clock = "act"
    stepping_clock = "environment"

    def __init__(self, source: EnvSource, num_envs: int, info_spec: InfoSpec | None = None) -> None:
        self.source = source
        self.num_envs = num_envs
        self.ledger: Ledger = Ledger(num_envs)
        self.guard: InterruptGuard = InterruptGuard()
        self.actions: Any = None
        self.cursor: int = 0
        self.fields: InfoFields = InfoFields(info_spec, num_envs, source.action_space if source.team is None else None)
        self.info: dict[str, np.ndarray] = self.fields.values
        self._extra: dict[str, np.ndarray] = {}  # of the actions of the round, [N, ...] by name
        self.interrupted: list[int] = []

    @property
    def has_rounds(self) -> bool:
        """Whether rounds are left that an earlier policy may have begun; only valid between rounds."""
        return False

    # The session opens, keeps and closes lanes

    def serves(self, source: EnvSource, num_envs: int, on_device: bool) -> bool:
        """Return whether the open lanes can continue in a `fit` without workers with these settings."""
        return self.source is source and self.num_envs == num_envs and not on_device

    def claim(self) -> None:
        """Take ownership of the environments; episodes in environments that others have stepped restart."""

    def restart(self) -> None:
        """Make all lanes idle; the environments stay open."""
        self.ledger = Ledger(self.num_envs)
        self.actions = None

    def close(self) -> None:
        """Close the environments."""
        self.source.close()

    def look_for_masks(self) -> None:
        """Offer in `fields` the masks that must be known before `start`; called if the head takes masks."""

    def set_sources(self, replay: Replay) -> None:
        """Set in the replay memory which lanes belong to which worker; without workers, there is one source."""
        replay.set_sources([self.num_envs])

    def start(self, actor: Actor, rollout_steps: int | None = None) -> None:
        """Called before the first round of a `fit`.

        Args:
            actor: chooses the actions.
            rollout_steps: rounds of a rollout, if the agent learns from rollouts.
        """

    def attach_loop(self, learner: LanesLearner, counters: Counters, budget: Budget) -> None:
        """Called after `start` by the loop that uses the lanes.

        Args:
            learner: learns from the transitions.
            counters: the agent's counters.
            budget: the counts at which the fit ends.
        """

    def end(self, *, hurry: bool) -> None:
        """Called at the end of a `fit`. `get_state` then still returns what the next `fit` continues.

        Args:
            hurry: whether an error has ended the training.
        """

    def keep_policy_state(self, start: State) -> None:
        """Keep a state of the policy for each episode from now on; see `Ledger.record_policy_state`."""
        self.ledger.record_policy_state(start)

    # The loop, round by round

    def idle(self) -> list[int]:
        """Return the lanes whose next episode can start."""
        running = self.ledger.running
        return [] if all(running) else [lane for lane, runs in enumerate(running) if not runs]

    @abstractmethod
    def reset(self, lane: int, number: int, step: int) -> None:
        """Start episode `number` in a lane; `step` is the number of environment steps so far."""

    def reset_noise(self, actor: Actor, lane: int) -> None:
        """Reset the noise of a lane in which an episode starts."""
        actor.reset_noise(lane)

    @abstractmethod
    def observations(self) -> np.ndarray:
        """Return the current observations, encoded for networks, `[N, ...]`."""

    def choose_actions(self, actor: Actor, step: int) -> Chosen:
        """Begin a round; return the observations, the actions and further fields by name, `[N, ...]` each.

        The actor explores, and the states of the policy in `ledger` become the states after the step. The returned
        actions are the input of `Head.executed`, not the result. If the policy has a state, the fields hold the state
        before the step.

        Returns:
            None if no round has begun, because worker processes have failed: `interrupted` is then set.
        """
        mask = self.fields.values.get(ACTION_MASK) if actor.head.takes_mask else None
        observations = self.observations()
        states = self.ledger.policy_state
        actions, state = actor.choose_actions(observations, step, self.waiting, mask, states.values)
        if self.waiting is not None:
            actor.explorer.skip(-int(self.waiting.sum()))  # the actions of these lanes are no environment steps
        fields = actor.fields
        self.begin_round(actor.head.executed(actions), fields)
        if state:
            fields = {**fields, **self.ledger.fields_of_state()}
            states.advance(state)
        return observations, actions, fields

    @abstractmethod
    def begin_round(self, actions: np.ndarray, extra: Mapping[str, np.ndarray] | None = None) -> None:
        """Set the next action of every lane, and further fields `[N, ...]` that the transitions then have."""

    @abstractmethod
    def tick(self, step: int) -> tuple[Transition, ...]:
        """Step the next lane or lanes of the round, and return the transitions; called in each training step.

        The rewards and steps are added to the episodes of `ledger`. After the last lane of the round, `actions` is
        None.

        Args:
            step: the number of this environment step, for messages.
        """

    def discard(self, transitions: tuple[Transition, ...]) -> None:
        """Exclude the surplus transitions of the last tick from the ledger, because the budget is spent."""

    def before_updates(self, updates: int) -> None:
        """Called before a group of updates."""

    def learned(self, updates: int) -> None:
        """Called after each compiled call, with the number of gradient updates so far."""

    def logs(self, lane: int) -> dict[str, float]:
        """Return the logs of a lane's episode besides the return and the length."""
        return {}

    @abstractmethod
    def call(self, call: EnvCall) -> list[Any]:
        """Call a method of every environment, or read an attribute; return the results of the lanes."""

    # State

    def round_state(self) -> dict[str, Any]:
        """Return what is saved of the round in progress: actions, the next lane and the further fields."""
        if self.actions is None:
            return {"actions": None, "cursor": 0, "extra": {}}
        extra = {name: values.copy() for name, values in self._extra.items()}
        return {"actions": np.array(self.actions), "cursor": self.cursor, "extra": extra}

    @abstractmethod
    def get_state(self) -> dict[str, Any] | None:
        """Return the state, with the entries "ledger" and "lanes"; None if there is nothing to restore."""

    @abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of `get_state`, of any kind of lanes; episodes that cannot be restored restart."""
