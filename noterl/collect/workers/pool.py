"""`Pool`: what the rounds and the saved state use of lanes in worker processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.collect.base import Lanes
from noterl.collect.workers.process import Inbox
from noterl.collect.workers.settings import WorkerSettings
from noterl.envs.observation import ObservationEncoder

if TYPE_CHECKING:
    from noterl.random import Generators


class Pool(Lanes):
    """Base of `PoolLanes`.

    Attributes:
        settings: number of processes, and what happens if one fails.
        own: the lanes of each worker.
        generators: the agent's generators.
        encoder: encodes observations for networks.
        earned: the return of each agent of a team, `[N, agents]`.
        resets: how often each lane was reset since its generator was synchronized, `[N]`.
        step: environment steps so far.
        cursor: the lane whose transition is next in the round.
        supervisor: the processes; None outside of a `fit`.
        memory: shared with the processes; None outside of a `fit`.
        control: the control array of each worker.
        inboxes: the rounds of each worker that the loop has not consumed.
    """

    settings: WorkerSettings
    own: list[slice]
    generators: Generators
    encoder: ObservationEncoder
    earned: np.ndarray
    resets: np.ndarray
    step: int
    cursor: int
    supervisor: Any
    memory: Any
    control: list[np.ndarray]
    inboxes: list[Inbox]

    @abstractmethod
    def end_round(self) -> None:
        """Between rounds, release the rows of the last one, and cut the episodes that failures of workers have ended.

        Transitions are views of these rows until then.
        """

    @abstractmethod
    def wait_for_rounds(self, indices: Sequence[int]) -> None:
        """Wait until these workers have a round; without an actor in the worker, also until one has failed."""

    @abstractmethod
    def rows_in_round(self) -> int:
        """Return how many rows of the inboxes the loop has already received."""

    @abstractmethod
    def cut(self, lanes: list[int]) -> None:
        """Cut the episodes of these lanes, because a worker has failed."""
