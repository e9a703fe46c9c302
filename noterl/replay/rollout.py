"""The rollout buffer of on-policy agents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs.observation import ObservationEncoder
from noterl.replay.columns import Array, ExtraSpec, action_layout, extra_layout
from noterl.types import ACTING_OUTPUTS, STATE, Batch, Transition
from noterl.utils import schema
from noterl.utils.checks import check_positive

# A file may claim any number of lanes for a rollout without rows. More than this would not fit any memory.
MOST_LANES = 2**24

# Fields that `add` writes; they are undefined where a lane took no step.
_STEP_FIELDS = ("reward", "next_observation", "terminated", "ended")


class Rollout:
    """The last T rounds, in which each of N lanes takes one step: arrays `[T, N]`.

    A round starts with the observations and actions of all lanes; the lanes' steps follow one by one or together. A
    lane may have no step in a round, because a vector environment resets the lane. The stored actions are the
    ones that the agent chose, because log-probabilities refer to these actions. If the agent is compiled during a
    round, the rest of that round is ignored. `RolloutLearner` makes this object, and calls `begin_round`, `add` for
    each lane and `end_round` in each round.

    Args:
        length: T.

    Attributes:
        length: T.
        round: how many rounds are complete, 0 to T. If all are, `begin_round` starts the next rollout.
        learner_state: the state of networks that learn but do not act, after the last rollout, `[N, ...]` by name.

    Raises:
        ValueError: if `length` is not a positive int.

    Example:
        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from noterl.replay.rollout import Rollout
        >>> from noterl.types import Transition
        >>> rollout = Rollout(2)
        >>> rollout.build(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))
        >>> rollout.open(1)
        >>> for step in range(2):
        ...     rollout.begin_round(np.zeros((1, 3)), np.array([1]))
        ...     rollout.add(Transition(0, np.zeros(3), 1, 0.5, np.ones(3), False, False))
        ...     rollout.end_round()
        >>> rollout.is_full, rollout.batch(gamma=0.9).reward.shape
        (True, (2, 1))
    """

    feedback_fields: tuple[str, ...] = ()
    observation: Array
    action: Array
    reward: Array
    next_observation: Array
    terminated: Array
    ended: Array
    valid: Array

    def __init__(self, length: int) -> None:
        self.length: int = check_positive("rollout_steps", length)
        self.round: int = 0
        self.num_envs: int = 0
        self._begun = False  # whether a round is in progress
        self._learner_state_spec: dict[str, tuple[tuple[int, ...], Any]] = {}
        self.learner_state: dict[str, Array] = {}
        self._fields: dict[str, tuple[tuple[int, ...], Any]] = {}  # name -> shape and dtype of a lane's step
        # The names of further fields, without the prefix "extra_" of their arrays: of actions, and of steps.
        self._extra: tuple[str, ...] = ()
        self._step_extra: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether all rounds are complete."""
        return self.round == self.length

    def __len__(self) -> int:
        """Return how many transitions are stored, including the round in progress."""
        return int(self.valid[: self.round + 1].sum()) if self.num_envs else 0

    def build(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        extra_spec: ExtraSpec | None = None,
        step_spec: ExtraSpec | None = None,
        learner_state_spec: ExtraSpec | None = None,
    ) -> None:
        """Set the spaces, which determine the shapes and dtypes of the fields.

        Args:
            observation_space: of the environment.
            action_space: of the environment.
            extra_spec: name -> (shape, dtype) of further fields that `begin_round` receives with the actions.
            step_spec: name -> (shape, dtype) of further fields that transitions hold.
            learner_state_spec: name -> (shape, dtype) of `learner_state`.
        """
        self._learner_state_spec = dict(learner_state_spec or {})
        self._encoder = ObservationEncoder(observation_space)
        observation = self._encoder.space.shape, self._encoder.dtype
        action = action_layout(action_space)
        self._fields = {
            "observation": observation,
            "action": (action.shape, action.batch_dtype),
            "reward": ((), np.float32),
            "next_observation": observation,
            **dict.fromkeys(("terminated", "ended", "valid"), ((), np.bool_)),
        }
        extra = extra_layout(extra_spec)
        step_extra = extra_layout(step_spec)
        self._extra = tuple(extra)
        self._step_extra = tuple(step_extra)
        for name, leaf in {**extra, **step_extra}.items():
            self._fields[f"extra_{name}"] = leaf.shape, leaf.batch_dtype

    def add_fields(self, spec: Mapping[str, tuple[tuple[int, ...], Any, Any]]) -> None:
        """Add fields of transitions, name -> (shape, dtype, default), to a rollout that is built.

        Called when a `fit` begins or a state is restored, for the infos of the environment that the agent uses. Steps
        that are stored already get the defaults.
        """
        for name, leaf in extra_layout({name: entry[:2] for name, entry in spec.items()}).items():
            key = f"extra_{name}"
            if key not in self._fields:
                self._step_extra = (*self._step_extra, name)
                self._fields = {**self._fields, key: (leaf.shape, leaf.batch_dtype)}
                if self.num_envs:
                    shape = (*self.valid.shape, *leaf.shape)
                    setattr(self, key, np.full(shape, spec[name][2], leaf.batch_dtype))

    def remove_fields(self, names: Collection[str]) -> None:
        """Remove fields of transitions."""
        self._step_extra = tuple(name for name in self._step_extra if name not in names)
        removed = {f"extra_{name}" for name in names}
        self._fields = {name: entry for name, entry in self._fields.items() if name not in removed}

    def open(self, num_envs: int) -> None:
        """Allocate arrays for this many lanes; a rollout with another number of lanes is discarded."""
        is_same = num_envs == self.num_envs
        if is_same and (not num_envs or len(self.valid) == self.length):
            return
        assert self._fields, "call build first"
        for name, (shape, dtype) in self._fields.items():
            array = np.zeros((self.length, num_envs, *shape), dtype)
            if name == f"extra_{ACTING_OUTPUTS}":  # only workers return the outputs; NaN marks a row without outputs
                array[:] = np.nan
            if is_same:  # the rows of `set_state`
                stored = getattr(self, name)
                array[: len(stored)] = stored
            setattr(self, name, array)
        if not is_same:
            self.num_envs = num_envs
            self.restart()

    def restart(self) -> None:
        """Discard all rounds so far; see `RolloutLearner.discard_rollout`."""
        self.round = 0
        self._begun = False
        spec = self._learner_state_spec.items()
        self.learner_state = {name: np.zeros((self.num_envs, *shape), dtype) for name, (shape, dtype) in spec}
        if self.num_envs:
            self.valid[:1] = False  # there may be no row after `set_state`

    @property
    def is_empty(self) -> bool:
        """Whether no round has begun."""
        return not self.round and not self._begun

    def begin_round(self, observations: Array, actions: Array, extra: Mapping[str, Array] | None = None) -> None:
        """Start a round with the observations of all lanes, the actions that the agent chose, and further fields.

        If the rollout is full, this is the first round of the next rollout and overwrites the arrays. The field
        "acting_outputs" may be missing; it is NaN in a row that never had it.
        """
        if self.is_full:
            self.round = 0
        row = self.round
        if row:  # an incomplete round is replaced, so the episodes of its lanes do not continue in this one
            self.ended[row - 1] |= self.valid[row]
        self.observation[row] = observations
        self.action[row] = actions
        for name, values in (extra or {}).items():
            getattr(self, f"extra_{name}")[row] = values
        self.valid[row] = False
        self._begun = True

    def add(self, transition: Transition) -> None:
        """Store the outcome of a lane's step; observation and action were stored by `begin_round`."""
        if not self._begun:  # the agent was compiled after `begin_round`
            return
        place = self.round, transition.lane
        self.next_observation[place] = self._encoder(transition.next_observation)
        self.reward[place] = transition.reward
        self.terminated[place] = transition.terminated
        self.ended[place] = transition.terminated or transition.truncated
        for name in self._step_extra:
            assert transition.extra is not None, f"the transition has no {name}"
            getattr(self, f"extra_{name}")[place] = transition.extra[name]
        self.valid[place] = True

    def end_round(self) -> None:
        """Mark the round as complete; after T rounds, the rollout is full."""
        if not self._begun:  # see `add`
            return
        self.round += 1
        self._begun = False
        if not self.is_full:  # `__len__` counts the next row, which may hold a step of the previous rollout
            self.valid[self.round] = False

    def interrupt(self, lane: int) -> bool:
        """End a lane's episode early: the lane's next transition does not continue the last stored transition.

        Return whether the last stored transition belongs to an incomplete rollout. If the rollout is full, the result
        is False, because the learner has used the transition.
        """
        if lane >= self.num_envs:  # `open` has allocated no arrays for the lane
            return False
        # If the lane has not stepped in the round in progress, the last transition is in the round before.
        last_round = self.round if not self.is_full and self.valid[self.round, lane] else self.round - 1
        if last_round >= 0:
            self.ended[last_round, lane] = True
        return last_round >= 0 and not self.is_full

    def batch(self, *, gamma: float) -> Batch:
        """Return the whole rollout, `[T, N, ...]`; most arrays are those of the buffer, which the next round changes.

        `weight` is 0 if the lane took no step in the round, otherwise 1. `extra["continues"]` is 1 if the lane's next
        step continues this one, and 0 if the episode or the rollout ends. `extra["ended"]` is 1 if the episode ends.
        For a policy with a state, `extra["state"]` is the state before each row, by name.
        """
        extra = {name: getattr(self, f"extra_{name}") for name in (*self._extra, *self._step_extra)}
        state = {name.removeprefix(STATE): extra.pop(name) for name in list(extra) if name.startswith(STATE)}
        if state:
            extra["state"] = state
        if self.learner_state:
            extra["learner_state"] = self.learner_state
        continues = np.zeros(self.reward.shape, np.float32)
        continues[:-1] = ~self.ended[:-1] & self.valid[:-1] & self.valid[1:]
        return Batch(
            observation=self.observation,
            action=self.action,
            reward=self.reward,
            next_observation=self.next_observation,
            discount=np.where(self.terminated, np.float32(0), np.float32(gamma)),
            weight=self.valid.astype(np.float32),
            index=np.arange(self.reward.size, dtype=np.int32).reshape(self.reward.shape),
            extra={"continues": continues, "ended": self.ended.astype(np.float32), **extra},
        )

    def get_state(self) -> dict[str, Any]:
        """Return the rounds so far, including the one in progress; the arrays of a complete rollout are omitted."""
        rows = 0 if self.is_full else self.round + self._begun
        arrays = {name: getattr(self, name)[:rows].copy() for name in self._fields} if self.num_envs and rows else {}
        # Undefined values would make the states of equal rollouts differ.
        for name in (*_STEP_FIELDS, *(f"extra_{name}" for name in self._step_extra)) if arrays else ():
            arrays[name][~arrays["valid"]] = 0
        state: dict[str, Any] = {
            "length": self.length,
            "num_envs": self.num_envs,
            "round": self.round,
            "arrays": arrays,
        }
        if self._learner_state_spec:  # so that other files stay as they were
            state["learner_state"] = {name: value.copy() for name, value in self.learner_state.items()}
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `get_state`; only the rows of the state take memory before `open`.

        Raises:
            ValueError: if the state has another length or other spaces; the rollout is then unchanged.
        """
        round_schema = schema.Int(0, self.length)
        lanes_schema = schema.Int(0, MOST_LANES)
        numbers = {"length": schema.Constant(self.length), "num_envs": lanes_schema, "round": round_schema}
        further = {"learner_state": dict} if self._learner_state_spec else {}
        schema.check(state, {**numbers, "arrays": dict, **further}, "rollout")
        num_envs = state["num_envs"]
        rounds = state["round"]
        arrays = state["arrays"]
        # One row more than complete rounds: a round was in progress.
        begun = np.shape(arrays.get("valid"))[:1] == (rounds + 1,)
        rows = rounds + begun if num_envs and rounds < self.length else 0
        fields = self._fields.items() if rows else ()
        shapes = {name: schema.Array(dtype, (rows, num_envs, *shape)) for name, (shape, dtype) in fields}
        schema.check(arrays, shapes, "rollout['arrays']")
        spec = self._learner_state_spec.items() if num_envs else ()
        kept = {name: schema.Array(dtype, (num_envs, *shape)) for name, (shape, dtype) in spec}
        learner_state = state.get("learner_state", {})
        schema.check(learner_state, kept, "rollout['learner_state']")
        copied = {
            name: arrays[name].copy() if rows else np.empty((0, num_envs, *shape), dtype)
            for name, (shape, dtype) in self._fields.items()
        }
        vars(self).update(copied, num_envs=num_envs, round=rounds, _begun=begun)
        self.learner_state = {name: value.copy() for name, value in learner_state.items()}
