"""Sequences of consecutive steps of one lane, sampled from a replay memory."""

from __future__ import annotations

import numpy as np

from noterl.replay.columns import Array
from noterl.replay.replay import Replay
from noterl.replay.returns import Steps, follow
from noterl.replay.samplers import Sample, Uniform
from noterl.types import Batch

# So often a start without enough later steps is sampled again. Afterwards, the sequence may be shorter.
ATTEMPTS = 100


class Sequences:
    """Samples sequences of T steps, each from one lane of a replay memory.

    A sequence may start at each stored step, and continues after the end of an episode with the lane's next episode.
    Links from each step to the lane's next one are derived from the memory when a sequence needs the links. So there is
    no state to save. `SequenceLearner` makes this object for agents such as ACER.

    Args:
        replay: the memory, which must be built.
        length: T.

    Raises:
        ValueError: if the memory relabels, has n-step returns, or does not sample uniformly.

    Example:
        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from noterl.replay import Replay
        >>> from noterl.replay.sequences import Sequences
        >>> replay = Replay(100)
        >>> replay.build(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))
        >>> for step in range(20):
        ...     index = replay.add(0, np.full(3, step / 20), 1, 0.5, np.full(3, (step + 1) / 20), step == 9, False)
        >>> sequences = Sequences(replay, 4)
        >>> sample = sequences.sample(2, 3, generator=np.random.default_rng(0))
        >>> sequences.gather(sample, gamma=0.99).reward.shape
        (2, 4, 3)
    """

    def __init__(self, replay: Replay, length: int) -> None:
        self.check(replay)
        self.replay: Replay = replay
        self.length: int = length
        self._following = np.full(replay.capacity, -1, np.int64)  # index of the lane's next step; -1 if there is none
        self._newest: dict[int, int] = {}  # lane -> insertion number of its newest step
        # Of the storage, when its links were last read.
        self._epoch = -1
        self._count = 0

    @staticmethod
    def check(replay: Replay) -> None:
        """Raise a ValueError if the memory relabels, has n-step returns, is on the device or samples non-uniformly."""
        if replay.relabel is not None:
            raise ValueError(f"replay must not relabel, because sequences keep their rewards, got {replay!r}")
        if replay.n_step > 1:
            raise ValueError(f"replay must have n_step=1, because sequences hold every step, got {replay!r}")
        if type(replay.sampler) is not Uniform:
            raise ValueError(f"replay must have sampler=Uniform(), the only one for sequences, got {replay!r}")
        if replay.on_device:
            raise ValueError(f"replay must have on_device=False, because it stores rollouts, got {replay!r}")

    def sample(self, updates: int, lanes: int, *, generator: np.random.Generator) -> Sample:
        """Return `updates` times `lanes` random sequences, as indices `[K, T, N]`.

        Starts are uniform over the steps with at least T - 1 later ones. If there are hardly any, sequences may be
        shorter; the missing steps have the weight 0.
        """
        starts = np.empty(updates * lanes, np.int64)
        wrong = np.arange(updates * lanes)
        for _ in range(ATTEMPTS):
            starts[wrong] = self.replay.sample(len(wrong), 1, generator=generator).indices[:, 0]
            wrong = wrong[~self._steps(starts[wrong]).present[-1]]
            if not wrong.size:
                break
        steps = self._steps(starts)
        shape = self.length, updates, lanes
        return self.sample_of(*(array.reshape(shape).transpose(1, 0, 2) for array in steps))

    def sample_of(self, indices: Array, present: Array) -> Sample:
        """Return the sample of steps `[K, T, N]`; the weight is 0 where a step is not present, otherwise 1.

        `sample` calls this method for sampled steps, and the learner calls this method for the newest rollout. A step
        whose stack of frames is incomplete does not count as present.
        """
        storage = self.replay.storage
        complete = storage.sampleable(indices.reshape(-1))
        if complete is not None:
            present = present & complete.reshape(present.shape)
        return Sample(indices, present.astype(np.float32), next_insertion=storage.count, epoch=storage.epoch)

    def gather(self, sample: Sample, *, gamma: float) -> Batch:
        """Return the batches `[K, T, N, ...]` of a sample.

        `extra["continues"]` is 1 if the next step of the sequence belongs to the same episode, otherwise 0.
        """
        batch = self.replay.gather(sample, gamma=gamma)
        present = sample.weight > 0
        following = self.replay.storage.successor.take(sample.indices[:, :-1])
        continues = np.zeros(sample.weight.shape, np.float32)
        continues[:, :-1] = (following == sample.indices[:, 1:]) & present[:, :-1] & present[:, 1:]
        return batch._replace(extra={**batch.extra, "continues": continues})

    def _steps(self, starts: Array) -> Steps:
        """Return T steps from each start `[n]`, or fewer where the lane has no later step."""
        self._update()
        return follow(self._following, starts, self.length)

    def _update(self) -> None:
        """Link the steps that were stored since the last call to the steps before."""
        storage = self.replay.storage
        if self._epoch != storage.epoch:
            self._newest = {}
            self._count = storage.begin
        numbers = np.arange(max(self._count, storage.begin), storage.count)
        indices = numbers % storage.capacity
        lanes = storage.lane[indices]
        self._following[indices] = -1  # the links of overwritten steps are stale
        for lane in np.unique(lanes).tolist():
            in_lane = lanes == lane
            path = indices[in_lane]
            before = self._newest.get(lane, -1)
            if before >= storage.begin:  # otherwise its index may hold another step
                self._following[before % storage.capacity] = path[0]
            self._following[path[:-1]] = path[1:]
            self._newest[lane] = int(numbers[in_lane][-1])
        self._epoch = storage.epoch
        self._count = storage.count
