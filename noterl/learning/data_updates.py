"""Groups of updates on a data set, and the loss on held-out data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends import keras
from noterl.backends.common import GroupResult
from noterl.hyperparameters import discount_factor
from noterl.learning.data_memory import follow_settings
from noterl.learning.gradient_noise import compile_measurement
from noterl.learning.learner import Learner
from noterl.learning.replay_learner import ReplayLearner
from noterl.learning.runner import UpdateSource
from noterl.learning.schedule import UpdateSchedule
from noterl.learning.update import add_random_numbers
from noterl.random import Generators
from noterl.replay import Replay, Sample, Uniform
from noterl.types import Batch, map_arrays

# The most updates of a group: priorities and schedules change after each group, and larger ones are hardly faster.
_LARGEST_GROUP = 32
# The batches of one group are in memory at the same time, so they hold at most this many bytes of observations.
_LARGEST_BATCHES = 2**26


class DataUpdates(UpdateSource):
    """The groups of updates of `fit(dataset=, updates=)`: `learning_starts`, `update_every` and `updates` do not apply.

    Args:
        learner: the agent's learner, which samples a data set.
        updates_per_epoch: a group does not go beyond the end of an epoch.

    Attributes:
        schedule: a copy of the learner's, in which an int `target_update` counts updates.
        group: the number of updates of a group, unless an epoch or `fit` ends before.
        is_divisible: whether smaller groups would sample the same batches.
    """

    def __init__(self, learner: ReplayLearner, updates_per_epoch: int) -> None:
        self._learner = learner
        self.memory: Replay = learner.memory
        self.schedule: UpdateSchedule = copy.copy(learner.schedule)
        self.schedule.hard_copy_updates = self.schedule.hard_copy_updates or self.schedule.hard_copy_every
        spaces = learner.algorithm.spaces
        # The bytes of an observation and a next observation for each transition.
        size = 2 * self.schedule.batch_size * math.prod(spaces.network_shape) * np.dtype(spaces.network_dtype).itemsize
        most = min(_LARGEST_GROUP, max(1, _LARGEST_BATCHES // size))
        # Groups of one size: a compiled call of fewer updates is padded.
        self.group: int = math.ceil(updates_per_epoch / math.ceil(updates_per_epoch / most))
        is_plain = isinstance(self.memory.sampler, Uniform) and self.memory.relabel is None
        self.is_divisible: bool = is_plain and not self.memory.stacks_frames

    def call_size(self, updates: int) -> int:
        """Return how many updates run in one compiled call; no call goes beyond a hard copy."""
        size = self._learner.steps_per_execution
        most = min(self.group, self.schedule.hard_copy_updates or self.group)
        return most if isinstance(size, str) else min(size, most)

    def sample(self, updates: int) -> Sample:
        """Sample the transitions of a group of updates, `[K, B]`."""
        follow_settings(self.memory.sampler, self._learner.replay.sampler)
        return self._learner.sample(updates)

    def batches(self, samples: Sequence[Sample], size: int) -> AbstractContextManager[Iterator[Batch]]:
        """Return a context manager that yields an iterator over the batches `[K, B, ...]` of each part."""
        return self._learner.batches(samples, size)

    def update(self, batch: Any, count: int) -> GroupResult:
        """Make the first `count` updates of `batch` in one compiled call."""
        return self._learner.update(batch, count)


def validation_loss(learner: ReplayLearner, memory: Replay) -> Callable[[], float]:
    """Return a function that returns the mean loss on a data set; the agent does not change.

    Each call uses the same batches and random numbers. `fit(dataset=, validation_data=)` calls the function at the end
    of each epoch.

    Args:
        learner: the agent's learner, which is built.
        memory: holds the data set.
    """
    seed = learner.algorithm.generators.seed
    sample = memory.sample_pass(memory.num_sampleable(learner.batch_size), generator=Generators(seed)("validation"))
    loss_of = compile_measurement(learner, partial(_loss, learner), "validation", training=False)

    def measure() -> float:
        # Gamma may have changed since the last epoch.
        sample.gamma = discount_factor(learner.algorithm)
        generators = Generators(seed)
        losses = []
        with learner.learning_from(memory):
            for k in range(len(sample)):
                batch = add_random_numbers(learner.algorithm, learner.gather(sample[k : k + 1]), 1, generators)
                losses.append(loss_of(map_arrays(lambda array: array[0], batch)))
        return float(np.mean([backends.current().fetch(loss) for loss in losses]))

    return measure


def _loss(learner: Learner, batch: Batch) -> Any:
    """Return the loss of an update on a batch, without the update; backends compile this."""
    loss = backends.current().isolated(lambda: learner.updater.loss_of(batch), learner.variables)
    return keras.ops.convert_to_tensor(loss)
