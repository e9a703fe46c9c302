"""Learning from a replay memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np

from noterl import backends
from noterl.algorithm import Algorithm
from noterl.envs import EnvSource
from noterl.hyperparameters import discount_factor
from noterl.learning.device_observations import DeviceObservations
from noterl.learning.dry_run import sequence_spec
from noterl.learning.learner import Learner, pad
from noterl.learning.schedule import Due
from noterl.learning.update import stored_fields
from noterl.replay import Replay, Sample
from noterl.replay.columns import fits_int32
from noterl.types import Batch, Transition


class ReplayLearner(Learner):
    """Stores each transition in a replay memory and samples batches from it.

    Args:
        algorithm: the agent.
        replay: the memory.
        **settings: see `Learner`.
    """

    replay: Replay

    def __init__(self, algorithm: Algorithm, *, replay: Replay, **settings: Any) -> None:
        super().__init__(algorithm, **settings)
        self.replay: Replay = replay
        self.memory: Any = replay
        self.updater.memory = replay
        self.updater.replaces_reward = True
        self._least_refilled = 0  # transitions that a memory being refilled must hold before updates; see `attach`

    def declare_memory(self) -> None:
        """Set the layout of the replay memory.

        Raises:
            ValueError: if `forward` does not return a field of `extra_spec`.
        """
        algorithm = self.algorithm
        source = self.algorithm.spaces.source
        missing = [name for name in algorithm.extra_spec if name not in self.actor_fields]
        if missing:
            raise ValueError(f"extra_spec declares {', '.join(missing)}, but forward does not return it")
        agents = 0 if source.team is None else len(source.team)
        spec = stored_fields(algorithm, self.actor_fields)
        spaces = source.observation_space, source.action_space
        self.replay.build(*spaces, extra_spec=spec, agents=agents, next_actions=algorithm.next_actions, allocate=False)
        if algorithm.state_spec:
            self.replay.store_sequences(sequence_spec(algorithm))

    def build_memory(self) -> None:
        """Allocate the replay memory.

        Raises:
            ValueError: if networks would not receive observations on the device in the stored form.
        """
        on_device = self.replay.on_device and self._check_on_device()
        super().build_memory()
        if on_device:
            self.replay.device_copy = DeviceObservations(self.replay, self.updater.find_variables()[0])

    def _check_on_device(self) -> bool:
        """Return whether the backend can gather batches on the device; warn if not.

        Raises:
            ValueError: if networks would not receive observations in the stored form.
        """
        algorithm = self.algorithm
        space = algorithm.spaces.source.observation_space
        dtype = np.dtype(space.dtype)
        reasons = {
            "several agents": algorithm.spaces.team is not None,
            f"observations of {space}, which are encoded on the host": not algorithm.spaces.encoder.is_identity,
            "normalize_observation": algorithm.spaces.normalizes_observation,
            f"relabel={type(self.replay.relabel).__name__}(...)": self.replay.relabel is not None,
            f"observations of {dtype}, which torch cannot gather": dtype in (np.uint16, np.uint32, np.uint64),
            "observations of int64 beyond 32 bits, which JAX cannot store": dtype == np.int64 and not fits_int32(space),
        }
        for reason, applies in reasons.items():
            if applies:
                raise ValueError(f"on_device must be False with {reason}, got True")
        if "tables" in backends.current().capabilities:
            return True
        message = "Replay(on_device=True) changes nothing on TensorFlow: observations stay on the host"
        warnings.warn(message, UserWarning, stacklevel=2)
        return False

    def attach(self, source: EnvSource, num_envs: int, processes: int = 1) -> None:
        """Attach the memory's relabelling to the agent and the environments; begin to refill a memory that is empty.

        While the memory is refilled, `ready` is 0 and no updates are due.
        """
        if self.replay.relabel is not None:
            self.replay.relabel.attach(self.algorithm, source)
        least = min(self.schedule.learning_starts, self.replay.capacity)
        was_filled = self.algorithm.steps > self.schedule.learning_starts
        # Transitions that are still on the device are not loaded to be counted.
        if least and was_filled and self.replay.pending_load is None and not len(self.replay):
            warnings.warn(
                f"the replay memory is empty after {self.algorithm.steps:,} steps, such as after a load without it. "
                f"The agent acts by its policy, without updates until learning_starts={least:,} transitions are "
                "stored. save(path) and Checkpoint(save_replay=True) keep the memory",
                RuntimeWarning,
                stacklevel=3,
            )
            self._least_refilled = least

    @contextmanager
    def learning_from(self, memory: Any) -> Iterator[None]:
        """Sample the updates inside the context from another memory, such as one that holds a data set.

        Feedback goes to this memory too. `add` still stores transitions in `replay`.
        """
        before = self.memory
        self.memory = self.updater.memory = memory
        try:
            yield
        finally:
            self.memory = self.updater.memory = before

    def begin_round(self, observations: np.ndarray, actions: np.ndarray, fields: Mapping[str, np.ndarray]) -> None:
        """Keep the states of the policy before the round, for the sequences that start in this round."""
        if self.replay.sequences is not None:
            self.replay.sequences.begin_round(fields)

    def add(self, transition: Transition) -> None:
        """Store a transition, and update the statistics of the normalizers with this transition."""
        self.replay.add(*transition)
        if self.replay.sequences is not None:
            self.replay.sequences.add(transition.lane, self.replay.storage.count - 1)
        normalizers = self.algorithm.spaces.normalizers
        if normalizers is not None:
            encoder = self.algorithm.spaces.encoder
            relabel = self.replay.relabel
            observation = encoder(transition.observation)
            normalizers.update(transition._replace(observation=observation), discount_factor(self.algorithm))
            if relabel is not None and normalizers.observation is not None:
                # Networks also receive relabelled observations, so the statistics include such an observation.
                further = relabel.further_observation(transition.observation, transition.next_observation)
                if further is not None:
                    normalizers.observation.add(np.asarray(encoder(further), np.float32))

    def interrupt(self, lane: int) -> None:
        """End a lane's episode in the memory and in the normalizers' running returns."""
        if self.algorithm.spaces.normalizers is not None:
            self.algorithm.spaces.normalizers.interrupt(lane)
        self.replay.interrupt(lane)

    def due(self, before: int, after: int, ended: int, ready: float | None = None) -> Due:
        """Return what is due by the schedule, if the memory holds enough transitions."""
        if ready is not None or self._least_refilled:
            return self.schedule.due(before, after, ended, lambda: int(self.ready if ready is None else ready))
        at_most = None if self.schedule.updates == "pass" else self.schedule.batch_size  # counting may stop there
        return self.schedule.due(before, after, ended, partial(self.memory.num_sampleable, at_most))

    @property
    def ready(self) -> float:
        """Transitions that can be sampled; 0 while the memory is refilled."""
        if self._least_refilled and not self.is_refilled(len(self.replay)):
            return 0
        return self.memory.num_sampleable(None if self.schedule.updates == "pass" else self.schedule.batch_size)

    def is_refilled(self, stored: int) -> bool:
        """Return whether a memory with so many transitions is refilled; see `attach`."""
        if stored >= self._least_refilled:
            self._least_refilled = 0  # a callback may drop transitions later
        return not self._least_refilled

    def rounds_within(self, updates: int | None, step: int, num_envs: int) -> float:
        """Return how many rounds can begin before more than `updates` updates can be due; inf if there is no limit."""
        if updates is None:
            return math.inf
        most = math.ceil(self.replay.capacity / self.schedule.batch_size)
        return 1 + self.schedule.steps_within(updates, step, most) // num_envs

    def sample(self, updates: int) -> Sample:
        """Sample the transitions of a group of updates, `[K, B]`."""
        size = self.share
        generator = self.algorithm.generators("sampler")
        # `updates` of `compile` does not apply to a data set.
        if self.schedule.updates != "pass" or self.memory is not self.replay:
            sample = self.memory.sample(updates, size, generator=generator)
        else:
            sample = self.replay.sample_pass(size, generator=generator)
            while len(sample) < updates:  # several passes are due if several episodes end in one tick
                sample = sample.joined(self.replay.sample_pass(size, generator=generator))
            sample = sample[:updates]  # a pass is longer here if other processes hold fewer transitions
        # One value for the whole group, also if it runs as several calls.
        sample.gamma = discount_factor(self.algorithm)
        return sample

    def batches(self, samples: Sequence[Sample], size: int) -> AbstractContextManager[Iterator[Batch]]:
        """Return a context manager that yields an iterator over the batches `[K, B, ...]` of each part."""
        return self.memory.gather_ahead(partial(self._gather_padded, size), samples)

    def _gather_padded(self, size: int, part: Sample) -> Batch:
        """Return the batches of a part, padded to `size`; with `Replay(prefetch=)`, another thread calls this."""
        if len(part) == size:
            return self.gather(part)
        if self.memory.device_copy is None:
            return pad(self.gather(part), size)
        # The last batch is repeated, so that the device gathers few numbers of rows, each of which is compiled.
        return self.gather(part[np.minimum(np.arange(size), len(part) - 1)])

    def gather(self, sample: Sample) -> Batch:
        """Return the batches `[K, B, ...]` of a sample, encoded and normalized in the form for networks."""
        algorithm = self.algorithm
        batch = self.memory.gather(sample, gamma=sample.gamma)
        encoder = algorithm.spaces.encoder
        # The memory keeps other dtypes of a Box, such as int16.
        if not encoder.is_identity or encoder.space.dtype != encoder.dtype:
            encode = partial(_cast, encoder.dtype) if encoder.is_identity else encoder
            batch = batch._replace(
                observation=encode(batch.observation), next_observation=encode(batch.next_observation)
            )
        return batch if algorithm.spaces.normalizers is None else algorithm.spaces.normalizers.normalize_batch(batch)

    @property
    def description(self) -> str:
        """One line about the memory and the update schedule."""
        return f"{describe_replay(self.replay)}; {self.schedule.description}"

    @property
    def first_update(self) -> str:
        """When the first update is made."""
        schedule = self.schedule
        return (
            f"the first one needs more than learning_starts={schedule.learning_starts} steps, "
            f"batch_size={schedule.batch_size} transitions in the memory, and update_every={schedule.update_every!r}; "
            "train longer, or lower them in compile"
        )


def _cast(dtype: np.dtype[Any], values: Any) -> Any:
    """Return an array of NumPy or of the backend in the dtype."""
    if isinstance(values, np.ndarray):
        return values.astype(dtype, copy=False)
    return keras.ops.cast(values, dtype.name)


def describe_replay(replay: Replay) -> str:
    """Return a line about a replay memory, for summaries."""
    allocated = f"{replay.nbytes / 2**20:,.1f} MiB allocated" if replay.nbytes else "not allocated yet"
    size = f"{allocated}{', observations also on the device' * replay.on_device}"
    return f"replay: {len(replay):,} of {replay.capacity:,} transitions, {size}"
