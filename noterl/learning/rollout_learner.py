"""Learning from rollouts, which are discarded after some epochs or stored in a replay memory."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import backends, networks
from noterl.algorithm import Algorithm, running
from noterl.backends.common import GatheredRows
from noterl.envs import EnvSource
from noterl.hyperparameters import discount_factor
from noterl.learning.dry_run import example_batch, learner_state_of, start_of
from noterl.learning.learner import LARGEST_CALL, Learner, pad
from noterl.learning.replay_learner import describe_replay
from noterl.learning.schedule import Due
from noterl.learning.update import cut_prepared, flatten_prepared, stored_fields, without_learner_state
from noterl.networks.modes import training_mode
from noterl.replay import Replay, Sample
from noterl.replay.rollout import Rollout
from noterl.types import ACTING_OUTPUTS, STARTS, STATE, Batch, Transition
from noterl.utils.checks import check_positive

# The longest sequence by default; gradients through more rows cost time and change little.
LONGEST_SEQUENCE = 64

FieldSpec = dict[str, tuple[tuple[int, ...], Any]]


class RolloutLearner(Learner):
    """Learns from each rollout in several epochs of minibatches, and then discards the rollout.

    Args:
        algorithm: the agent, with `rollout_steps` and `epochs`.
        least_rows: transitions that a rollout must have: the batch size that `compile` received, or 0.
        **settings: see `Learner`.

    Attributes:
        sequence_length: rows of each sequence of an agent with a state; otherwise 1.
        prepared_rows: the rows `[T N, ...]` of the last rollout, on the device, with the fields of `prepare`.

    Raises:
        ValueError: if `rollout_steps` or `epochs` is not a positive int.
    """

    rollout: Rollout

    def __init__(self, algorithm: Algorithm, *, least_rows: int = 0, **settings: Any) -> None:
        super().__init__(algorithm, **settings)
        self._least_rows = least_rows
        self.rollout: Rollout = Rollout(algorithm.rollout_steps)
        self.memory: Any = self.rollout
        self.updater.memory = self.rollout
        check_positive("epochs", algorithm.epochs)
        self.sequence_length: int = sequence_length(algorithm, self.schedule.batch_size)
        self._next_policy: str | None = None  # becomes `acting_policy` when `prepare` is called
        self._has_outputs = False  # whether the last round had the field "acting_outputs"
        self.prepared_rows: Any = None

    def declare_memory(self) -> None:
        """Set the spaces of the rollout; the arrays are allocated when the number of lanes is known."""
        algorithm = self.algorithm
        spec = {name: algorithm.extra_spec[name] for name in self.forward_fields}
        spec[ACTING_OUTPUTS] = (algorithm.head.size,), np.float32
        start = start_of(algorithm)
        # An agent with a state also stores the state before each row, and where episodes start.
        if start:
            spec |= {
                STARTS: ((), np.float32),
                **{f"{STATE}{name}": (value.shape, value.dtype) for name, value in start.items()},
            }
        source = algorithm.spaces.source
        learner_state = learner_state_of(algorithm)
        steps = stored_fields(algorithm, ())
        self.rollout.build(source.observation_space, source.action_space, spec, steps, learner_state)

    def declare_prepared(self) -> None:
        """Check that `forward` and `prepare` return the fields of `extra_spec`."""
        if self.algorithm.extra_spec:
            self._prepared_fields()

    def compile_updates(self, stop: Callable[..., Any] | None = None) -> None:
        """Compile `prepare` and the updates, for the current strategy."""
        prepare = self.updater.traced(self._prepared_rows)
        self._prepare = self.strategy.compile_call(prepare, self.variables, self.updater.options("prepare"))
        super().compile_updates(self.algorithm.stop_epochs if self.may_stop else stop)

    @property
    def may_stop(self) -> bool:
        """Whether the agent may end the updates on a rollout early."""
        return self.algorithm.stop_epochs(defaultdict(float)) is not None

    def _prepared_rows(self, rollout: Batch) -> Batch:
        """Return a rollout with the fields of `prepare`, as rows or sequences; backends compile this."""
        if self.reward_model is not None:
            rollout = self.reward_model.replace_reward(rollout)
        updater = self.updater
        with running(updater), training_mode(updater.networks, updater.precision, mode=False):
            if self.algorithm.state_spec:
                return cut_prepared(self.algorithm, rollout, self.sequence_length)
            return flatten_prepared(self.algorithm, rollout)

    def _prepared_fields(self) -> FieldSpec:
        """Return name -> (shape, dtype) of the fields that `forward` and `prepare` return.

        Raises:
            ValueError: if `extra_spec` declares other fields.
        """
        fields: FieldSpec = {}

        def find() -> None:
            with running(self.updater):
                example = example_batch(self.algorithm, self.forward_fields)
            axes = len(example.reward.shape)  # one for rows, two for sequences
            for name, field in example.extra.items():
                if name not in ("continues", "ended", STARTS, "state", *self.algorithm.random_spec):
                    dtype = np.dtype(backends.keras.backend.standardize_dtype(field.dtype))
                    fields[name] = tuple(field.shape[axes:]), dtype

        # A dry run, because `prepare` may assign variables.
        backends.current().dry_run(find, self.variables, self.jit_compile)
        for name, (shape, dtype) in self.algorithm.extra_spec.items():
            # Fields of `forward` may have any dtype: they are stored as float32.
            declared = (shape, fields[name][1] if name in self.forward_fields else np.dtype(dtype))
            if name not in fields or fields[name] != declared:
                returned = {name: (shape, str(dtype)) for name, (shape, dtype) in fields.items()}
                raise ValueError(
                    f"extra_spec declares {name!r} as {(shape, str(np.dtype(dtype)))}, but forward and prepare return "
                    f"{returned}"
                )
        return fields

    def attach(self, source: EnvSource, num_envs: int, processes: int = 1) -> None:
        """Check that a rollout in so many environments holds a batch of the size that `compile` received."""
        length = self.rollout.length
        lanes = num_envs * processes
        if self._least_rows > length * lanes:
            raise ValueError(
                f"batch_size must be at most the transitions of a rollout, {length * lanes} (rollout_steps={length} "
                f'in {lanes} environments), got {self._least_rows}; "rollout" is a whole rollout'
            )

    def open(self, num_envs: int) -> None:
        """Allocate the rollout for this number of lanes."""
        # With another number of lanes, a new rollout begins.
        if num_envs != self.rollout.num_envs:
            self.acting_policy = None
        self.rollout.open(num_envs)

    @property
    def num_rows(self) -> int:
        """Transitions of a complete rollout."""
        return self.rollout.length * self.rollout.num_envs

    @property
    def batch_size(self) -> int:
        """Transitions of a minibatch: the configured number, but at most the transitions of a rollout."""
        return self.share * self.strategy.processes

    @property
    def share(self) -> int:
        """Transitions of a minibatch that this process samples, from the rollout of this process."""
        configured = self.schedule.batch_size
        if isinstance(configured, str):
            return self.num_rows
        length = self.sequence_length  # a callback may set a size that is no multiple of it
        return min(max(self.strategy.share(configured) // length, 1) * length, self.num_rows)

    @property
    def ready(self) -> float:
        """The transitions of the rollout if the rollout is complete, otherwise 0."""
        return self.num_rows if self.rollout.is_full else 0

    @property
    def rounds_left(self) -> int:
        """Number of rounds until the rollout is complete."""
        return self.rollout.length - self.rollout.round % self.rollout.length

    def begin_round(self, observations: np.ndarray, actions: np.ndarray, fields: Mapping[str, np.ndarray]) -> None:
        """Store the observations and actions of all lanes, and the fields of `forward` and of workers."""
        rollout: Any = self.rollout
        rollout.begin_round(observations, actions, fields)
        had_outputs = self._has_outputs
        self._has_outputs = ACTING_OUTPUTS in fields
        if not self._has_outputs and (had_outputs or not rollout.round):
            # The workers of an earlier `fit` have filled these rows for other actions.
            rollout.extra_acting_outputs[rollout.round :] = np.nan

    def end_round(self) -> None:
        """Complete a round of the rollout; discard a complete rollout of an older policy that `prepare` cannot correct.

        `prepare` would compute the log-probabilities of all rows with the current policy.
        """
        rollout: Any = self.rollout
        rollout.end_round()
        if self.acting_policy is None or not rollout.is_full:
            return
        if not self.algorithm.corrects_staleness or np.isnan(rollout.extra_acting_outputs).any():
            self.discard_old_rollout()

    def add(self, transition: Transition) -> None:
        """Store a lane's transition in the round in progress."""
        self.rollout.add(transition)

    def interrupt(self, lane: int) -> None:
        """End a lane's episode in the rollout.

        If the agent has already learned from the lane's last transition, reset the lane's running return instead.
        """
        if not self.rollout.interrupt(lane):
            self._interrupt_learned(lane)

    def _interrupt_learned(self, lane: int) -> None:
        """End the episode of a lane whose last transition the agent has learned from."""
        if self.algorithm.spaces.normalizers is not None:
            self.algorithm.spaces.normalizers.interrupt(lane)

    def due(self, before: int, after: int, ended: int, ready: float | None = None) -> Due:
        """Return the updates of all epochs once the rollout is complete."""
        if not (self.ready if ready is None else ready):
            return Due(0, False)
        return Due(self.algorithm.epochs * math.ceil(self.num_rows / self.share), False)

    def call_size(self, updates: int) -> int:
        """Return how many updates run in one compiled call: by default all updates."""
        return updates if self.steps_per_execution == "auto" else int(self.steps_per_execution)

    def prepare(self) -> Any:
        """Return the complete rollout as prepared rows `[T N, ...]` on the device.

        `sample` calls this method once per rollout, because it updates the normalizers, the learner state and
        `acting_policy`.
        """
        reads = self.algorithm._reads
        if reads.version != self._version or reads.in_place:  # as in `update`
            self._follow_attributes()
        gamma = discount_factor(self.algorithm)
        normalizers = self.algorithm.spaces.normalizers
        rollout = self.rollout.batch(gamma=gamma)
        # Only if an older policy has acted, the outputs of acting are needed to correct the rollout.
        if self.acting_policy is None or self.acting_policy == policy_digest(self.algorithm):
            extra = {name: field for name, field in rollout.extra.items() if name != ACTING_OUTPUTS}
            rollout = rollout._replace(extra=extra)
        if self.reward_model is not None and self.replay is None:
            # Before the statistics of the normalizers change, so that both sides are normalized alike. A rollout that
            # enters a replay memory gets none here: the sampled batches do.
            rollout = self.reward_model.add_demonstrations(rollout, self.rollout.length)
        if normalizers is not None:
            rollout = normalizers.normalize_rollout(rollout, gamma, self.merge_statistics)
        # If workers collect the next rollout meanwhile, they act with the weights before the updates on this one.
        self.acting_policy = self._next_policy
        self._next_policy = None
        # The learner state is kept for the next rollout, and the updates receive the other fields.
        rows, state = without_learner_state(self._prepare(rollout))
        self.rollout.learner_state = {name: backends.current().fetch(value) for name, value in state.items()}
        return rows

    def keep_acting_policy(self) -> None:
        """Store the digest of the current policy, with which workers collect the next rollout during the updates."""
        self._next_policy = policy_digest(self.algorithm)

    def before_new_weights(self) -> None:
        """Store the digest of the policy that began the rollout in progress, unless one is stored."""
        if self.acting_policy is None and self.rollout.num_envs and not self.rollout.is_full:
            self.acting_policy = policy_digest(self.algorithm)

    def discard_old_rollout(self) -> bool:
        """Discard the rollout if its first rows were collected with other weights; return whether it was discarded.

        The loops call this method before a round or a compiled call. `end_round` calls it when a rollout is complete.
        Afterwards, `acting_policy` is None.
        """
        acting_digest = self.acting_policy
        self.acting_policy = None
        if acting_digest is None or acting_digest == policy_digest(self.algorithm):
            return False
        self.discard_rollout()
        return True

    def discard_rollout(self) -> None:
        """Discard the rollout in progress; the next step of a lane does not continue the last one that was learned."""
        if not self.rollout.is_empty:
            self.rollout.restart()
            for lane in range(self.rollout.num_envs):
                self._interrupt_learned(lane)

    def sample(self, updates: int) -> np.ndarray:
        """Prepare the rollout and return the indices `[K, B]` of the rows, or of the sequences, of all minibatches.

        Each epoch visits all rows or sequences in a new random order. An incomplete last minibatch is filled up with
        the first ones of another random order.
        """
        self.prepared_rows = self.prepare()
        count = self.num_rows // self.sequence_length
        size = self.share // self.sequence_length
        if size == count:  # the order would change nothing but rounding
            return np.tile(np.arange(count, dtype=np.int32), (self.algorithm.epochs, 1))
        generator = self.algorithm.generators("sampler")
        orders = []
        for _ in range(self.algorithm.epochs):
            orders.append(generator.permutation(count))
            if count % size:
                orders.append(generator.permutation(count)[: -count % size])
        return np.concatenate(orders).astype(np.int32).reshape(-1, size)

    def batches(self, samples: Sequence[np.ndarray], size: int) -> AbstractContextManager[Iterator[GatheredRows]]:
        """Return a context manager that yields an iterator over `(prepared rows on the device, indices of a part)`."""
        return nullcontext(GatheredRows(self.prepared_rows, pad(part, size)) for part in samples)

    def largest_batch(self, size: int) -> int:
        """Return the smaller one of `size` and the transitions of a rollout."""
        return min(size, self.num_rows)

    @property
    def description(self) -> str:
        """One line about the rollouts."""
        return f"rollouts of {self.rollout.length:,} steps per environment, {self.algorithm.epochs:,} epochs on each"

    @property
    def first_update(self) -> str:
        """When the first update is made."""
        return f"the first one follows rollout_steps={self.rollout.length} steps of each environment"


def policy_digest(algorithm: Algorithm) -> str:
    """Return a digest of the weights and of the statistics for normalization; equal policies have equal digests.

    `RolloutLearner` compares digests to find out whether a rollout has rows of an older policy.
    """
    normalizers = algorithm.spaces.normalizers
    arrays = [] if normalizers is None else list(normalizers.arrays().values())
    for network in algorithm.networks().values():
        arrays += networks.get_weights(network)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def sequence_length(algorithm: Algorithm, batch_size: int | str) -> int:
    """Return the rows of each sequence for an agent with a state; 1 for other agents.

    The default is the largest divisor of `rollout_steps`, up to 64, that divides `batch_size`.

    Raises:
        ValueError: if `sequence_length` does not divide both.
    """
    if not algorithm.state_spec:
        return 1
    steps = algorithm.rollout_steps
    size = 0 if isinstance(batch_size, str) else batch_size
    if algorithm.sequence_length is None:
        return max(length for length in range(1, LONGEST_SEQUENCE + 1) if steps % length == size % length == 0)
    length = check_positive("sequence_length", algorithm.sequence_length)
    if steps % length:
        raise ValueError(f"sequence_length must divide rollout_steps={steps}, got {length}")
    if size % length:
        raise ValueError(f"batch_size must be a multiple of sequence_length={length}, got {size}")
    return length


class StoredRolloutLearner(RolloutLearner):
    """Base of the learners that store prepared rollouts in a replay memory and learn from the memory.

    Args:
        algorithm: the agent.
        replay: the memory.
        **settings: see `Learner`.

    Raises:
        ValueError: as `check_replay`.
    """

    replay: Replay
    stores_normalized: bool = True  # whether the memory stores observations after normalization

    def __init__(self, algorithm: Algorithm, *, replay: Replay, **settings: Any) -> None:
        super().__init__(algorithm, **settings)
        self.check_replay(replay)
        self.replay: Replay = replay
        self.memory: Any = replay
        self.updater.memory = replay

    @abstractmethod
    def check_replay(self, replay: Replay) -> None:
        """Raise a ValueError if the memory cannot store the rollouts, or the agent cannot learn from the memory."""

    def declare_prepared(self) -> None:
        """Set the layout of the replay memory, which stores what `prepare` returns."""
        algorithm = self.algorithm
        encoder = algorithm.spaces.encoder
        spec = self._prepared_fields()
        floats = spaces.Box(-np.inf, np.inf, encoder.space.shape, np.float32)
        dtype = algorithm.observation_dtype if self.stores_normalized else encoder.dtype
        # Prepared observations are float32 unless networks receive bytes.
        space = encoder.space if dtype == np.uint8 else floats
        self.replay.build(space, algorithm.action_space, extra_spec=spec, allocate=False)

    def _store_rows(self, rows: Sequence[Any], extra: Mapping[str, Any]) -> np.ndarray:
        """Store the valid transitions of the rollout in the replay memory.

        Args:
            rows: observations, next observations and rewards, `[T N, ...]` each.
            extra: the fields of `prepare`, `[T N, ...]` each, on the device.

        Returns:
            The indices `[T N]` of the transitions in the memory; 0 for rows without a step.
        """
        observation, next_observation, reward = rows
        fields = {name: backends.current().fetch(extra[name]) for name in self.replay.extra_names}
        rollout = self.rollout
        indices = np.zeros(self.num_rows, np.int64)
        terminated = rollout.terminated.reshape(-1)
        ended = rollout.ended.reshape(-1)
        action = rollout.action.reshape(self.num_rows, *rollout.action.shape[2:])
        for row in np.flatnonzero(rollout.valid.reshape(-1)).tolist():
            # A memory marks the end of an episode as either terminated or truncated.
            is_terminal = bool(terminated[row])
            indices[row] = self.replay.add(
                row % rollout.num_envs,
                observation[row],
                action[row],
                reward[row],
                next_observation[row],
                is_terminal,
                bool(ended[row]) and not is_terminal,
                {name: values[row] for name, values in fields.items()},
            )
        return indices

    @abstractmethod
    def gather(self, sample: Sample) -> Batch:
        """Return the batches of a sample."""

    def _interrupt_learned(self, lane: int) -> None:
        super()._interrupt_learned(lane)
        self.replay.interrupt(lane)

    def batches(self, samples: Sequence[Any], size: int) -> AbstractContextManager[Iterator[Any]]:
        """Return a context manager that yields an iterator over the batches `[K, ...]` of each part."""
        return self.replay.gather_ahead(lambda part: pad(self.gather(part), size), samples)


class ReplayedRolloutLearner(StoredRolloutLearner):
    """Stores prepared rollouts in a replay memory and samples the minibatches from this memory.

    After each rollout, this learner makes as many updates as `RolloutLearner`. The fields of `prepare` (old
    log-probability, advantage) stay with a transition for as long as the memory keeps the transition.

    Args:
        algorithm: the agent.
        replay: the memory.
        **settings: see `Learner`.

    Raises:
        ValueError: if the memory relabels, has n-step returns, is on the device or stacks frames that the agent
            normalizes, or the agent may stop epochs early (`stop_epochs`).
    """

    def check_replay(self, replay: Replay) -> None:
        """Check the memory and the agent."""
        if replay.relabel is not None:
            raise ValueError(f"replay must not relabel transitions that are prepared already, got {replay!r}")
        if replay.n_step > 1:
            raise ValueError(f"replay must have n_step=1, because returns are prepared already, got {replay!r}")
        if self.may_stop:
            raise ValueError("replay is not supported for an agent that may stop epochs early (`target_kl`)")
        if replay.on_device:
            raise ValueError(f"replay must have on_device=False, because it stores prepared rollouts, got {replay!r}")
        if replay.stacks_frames and self.algorithm.spaces.normalizes_observation:
            raise ValueError(
                "replay must have no frame_stack with normalize_observation=True, because the frames of a stack are "
                f"normalized with the statistics of several rollouts, got {replay!r}"
            )

    def call_size(self, updates: int) -> int:
        """Return how many updates run in one compiled call."""
        return min(updates, LARGEST_CALL) if self.steps_per_execution == "auto" else int(self.steps_per_execution)

    def sample(self, updates: int) -> Sample:  # type: ignore[override]
        """Store the prepared rollout, and sample the minibatches from everything that the memory holds."""
        prepared = self.prepare()
        arrays = (prepared.observation, prepared.next_observation, prepared.reward)
        self._store_rows([backends.current().fetch(array) for array in arrays], prepared.extra)
        generator = self.algorithm.generators("sampler")
        sample = self.replay.sample(updates, self.replay.num_sampleable(self.share), generator=generator)
        sample.gamma = discount_factor(self.algorithm)
        return sample

    def gather(self, sample: Sample) -> Batch:
        """Return the batches `[K, B, ...]` of a sample; observations are stored in the form for networks."""
        assert sample.gamma is not None
        return self.replay.gather(sample, gamma=sample.gamma)

    @property
    def description(self) -> str:
        """One line about the rollouts and the memory."""
        return f"{super().description}, kept in a {describe_replay(self.replay)}"
