"""`Pool`: what the rounds and the saved state use of lanes in worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from noterl.collect.base import Lanes
from noterl.collect.workers.process import Inbox
from noterl.collect.workers.settings import WorkerSettings
from noterl.collect.workers.worker import WANTED
from noterl.envs import EnvSource
from noterl.envs.observation import ObservationEncoder
from noterl.random import Generators
from noterl.types import InfoSpec


class Pool(Lanes):
    """Base of `PoolLanes`.

    Attributes:
        settings: number of processes, and what happens if one fails.
        own: the lanes of each worker.
        generators: the agent's generators.
        encoder: encodes observations for networks.
        earned: the return of each agent of a team, `[N, agents]`.
        resets: how often each lane was reset since the lane's generator was synchronized, `[N]`.
        step: environment steps so far.
        rounds: who chooses the actions; None outside of a `fit`.
        supervisor: the processes; None outside of a `fit`.
        memory: shared with the processes; None outside of a `fit`.
        control: the control array of each worker.
        inboxes: the rounds of each worker that the loop has not consumed.
    """

    def __init__(
        self,
        source: EnvSource,
        num_envs: int,
        generators: Generators,
        workers: WorkerSettings,
        info_spec: InfoSpec | None,
    ) -> None:
        super().__init__(source, num_envs, info_spec)
        self.settings: WorkerSettings = workers
        self.generators: Generators = generators
        ends = [index * num_envs // workers.count for index in range(workers.count + 1)]
        self.own: list[slice] = [slice(*bounds) for bounds in pairwise(ends)]
        self.encoder: ObservationEncoder = ObservationEncoder(source.observation_space)
        self.earned: np.ndarray = np.zeros((num_envs, 0 if source.team is None else len(source.team)))
        self.resets: np.ndarray = np.zeros(num_envs, np.int64)
        self.step: int = 0
        self.rounds: Any = None
        self.supervisor: Any = None
        self.memory: Any = None
        self.control: list[np.ndarray] = []
        self.inboxes: list[Inbox] = []
        self._is_over = False  # whether all transitions of the round were returned, and its rows are not released

    def end_round(self) -> None:
        """Between rounds, release the rows of the last one, and cut the episodes that failures of workers have ended.

        Transitions are views of these rows until then.
        """
        if self._is_over:
            self._is_over = False
            for inbox in self.inboxes:
                if inbox.rows:
                    inbox.release()
        if self.actions is None:
            self.rounds.cut_lost()

    def rows_in_round(self) -> int:
        """Return how many rows of the inboxes the loop has already received."""
        return self.cursor if self.actions is not None or self._is_over else 0

    def wait_for_rounds(self, indices: Sequence[int]) -> None:
        """Wait until these workers have a round; without an actor in the worker, also until one has failed."""
        for index in reversed(indices):  # the last one has received its command last
            inbox = self.inboxes[index]
            control = self.control[index]
            if inbox.rows:
                continue
            control[WANTED] = inbox.ring.published + self.rounds.phases.rows_to_wait_for(index)
            self.supervisor.wait_until(lambda inbox=inbox, index=index: inbox.rows or index in self.rounds.lost)
            control[WANTED] = 0

    def cut(self, lanes: list[int]) -> None:
        """Cut the episodes of these lanes, because a worker has failed."""
        for lane in lanes:
            self.ledger.finish(lane)
        self.interrupted += lanes
