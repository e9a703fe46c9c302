"""Learning from each new rollout, and then from sequences of earlier ones."""

from __future__ import annotations

import math
from typing import Any

from noterl.hyperparameters import Hyperparameter, discount_factor
from noterl.learning.learner import LARGEST_CALL
from noterl.learning.replay_learner import describe_replay
from noterl.learning.rollout_learner import StoredRolloutLearner
from noterl.learning.schedule import Due
from noterl.random import SHARED
from noterl.replay import Replay, Sample
from noterl.replay.sequences import Sequences
from noterl.types import Batch
from noterl.utils.checks import check_int, check_number


class SequenceLearner(StoredRolloutLearner):
    """Makes an update on each new rollout, and then a random number of updates on stored sequences.

    A complete rollout is stored in a replay memory, step by step, with the fields of `prepare`. The first update is on
    the rollout itself. After `replay_starts` environment steps, Poisson(`replay_ratio`) updates follow. Each is on as
    many sequences as there are lanes. An update receives batches `[T, N, ...]`, where T is `rollout_steps`. The memory
    stores observations before normalization.

    Args:
        algorithm: the agent, with `rollout_steps`, `replay_ratio` and `replay_starts`.
        replay: the memory.
        **settings: see `Learner`.

    Raises:
        ValueError: if the agent may stop epochs early, or `replay_ratio` or `replay_starts` is not allowed.
    """

    stores_normalized = False
    batch_axis = 1  # the sequences of a batch `[T, N, ...]`

    def check_replay(self, replay: Replay) -> None:
        """Check the memory and the agent."""
        algorithm = self.algorithm
        check_number("replay_ratio", self.replay_ratio, low=0)
        check_int("replay_starts", algorithm.replay_starts, least=0)
        if self.may_stop:
            raise ValueError(f"memory of {type(algorithm).__name__} must be 'rollout' for stop_epochs, got 'sequences'")
        Sequences.check(replay)

    @property
    def replay_ratio(self) -> Any:
        """The mean number of updates on stored sequences after each rollout."""
        ratio = self.algorithm.replay_ratio
        return float(ratio) if isinstance(ratio, Hyperparameter) else ratio

    def build_memory(self) -> None:
        """Allocate the replay memory."""
        super().build_memory()
        self.sequences: Sequences = Sequences(self.replay, self.rollout.length)

    def open(self, num_envs: int) -> None:
        """Allocate the rollout for this number of lanes.

        Raises:
            ValueError: if the memory cannot hold a rollout of so many lanes.
        """
        needed = self.rollout.length * num_envs
        if self.replay.capacity < needed:
            raise ValueError(
                f"replay must hold a rollout, rollout_steps={self.rollout.length} steps of num_envs={num_envs} "
                f"environments: a capacity of at least {needed}, got {self.replay.capacity}"
            )
        super().open(num_envs)

    def due(self, before: int, after: int, ended: int, ready: float | None = None) -> Due:
        """Return the updates once the rollout is complete, and whether a hard copy to the target is due.

        For a complete rollout, each call draws another number of updates from a generator, so the loop calls this
        method once. Several processes draw the same number.
        """
        every = self.schedule.hard_copy_every
        target = bool(every) and after // every > before // every
        if not (self.ready if ready is None else ready):
            return Due(0, target)
        replays = 0
        if after >= self.algorithm.replay_starts:
            if isinstance(self.algorithm.replay_ratio, Hyperparameter):
                self.algorithm.replay_ratio.update_schedules(after)  # the draw comes before the updates of schedules
            name = f"{SHARED}replay_ratio" if self.strategy.processes > 1 else "replay_ratio"
            replays = int(self.algorithm.generators(name).poisson(self.replay_ratio))
        return Due(1 + replays, target)

    def call_size(self, updates: int) -> int:
        """Return how many updates run in one compiled call.

        By default, the smallest power of two that holds `1 + replay_ratio` updates. The number of updates is random,
        and padding compiles less than one program for each number.
        """
        if self.steps_per_execution != "auto":
            return int(self.steps_per_execution)
        mean = math.ceil(1 + self.replay_ratio)
        return min(1 << (mean - 1).bit_length(), LARGEST_CALL)

    def sample(self, updates: int) -> Sample:  # type: ignore[override]
        """Store the rollout, and sample the sequences `[K, T, N]` of a group; the first update has the rollout's."""
        rollout = self.rollout
        extra = self.prepare().extra
        rows = [
            array.reshape(self.num_rows, *array.shape[2:])
            for array in (rollout.observation, rollout.next_observation, rollout.reward)
        ]
        indices = self._store_rows(rows, extra)
        shape = rollout.valid.shape
        sample = self.sequences.sample_of(indices.reshape(1, *shape), rollout.valid[None])
        if updates > 1:
            generator = self.algorithm.generators("sampler")
            sample = sample.joined(self.sequences.sample(updates - 1, shape[1], generator=generator))
        # One value for the whole group, also if it runs as several calls.
        sample.gamma = discount_factor(self.algorithm)
        return sample

    def gather(self, sample: Sample) -> Batch:
        """Return the batches `[K, T, N, ...]` of a sample, normalized in the form for networks."""
        assert sample.gamma is not None
        batch = self.sequences.gather(sample, gamma=sample.gamma)
        normalizers = self.algorithm.spaces.normalizers
        return batch if normalizers is None else normalizers.normalize_batch(batch)

    @property
    def description(self) -> str:
        """One line about the rollouts and the memory."""
        return (
            f"rollouts of {self.rollout.length:,} steps per environment, one update on each and {self.replay_ratio:g} "
            f"on average on sequences of a {describe_replay(self.replay)}"
        )
