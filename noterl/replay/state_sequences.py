"""Sequences of the steps of one lane, each with the state of the policy before the first step.

This is the "stored state" of Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning",
2019, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from noterl.replay.columns import Array, ExtraSpec, reshape
from noterl.replay.returns import gather_transitions
from noterl.replay.samplers import Sample
from noterl.replay.state import MOST_TRANSITIONS
from noterl.replay.storage import Ring, Storage
from noterl.types import STARTS, STATE, Batch
from noterl.utils import schema


class SequenceSpec(NamedTuple):
    """What the sequences of a memory are.

    Attributes:
        length: T, the rows of a sequence, including the burn-in.
        burn_in: rows at the start that only compute the state; the weight of these rows is 0.
        every: a sequence starts at each multiple of so many rows of a lane.
        state: name -> (shape, dtype) of the policy's state.
    """

    length: int
    burn_in: int
    every: int
    state: ExtraSpec

    def count(self, capacity: int) -> int:
        """Return how many sequences a memory of this capacity holds."""
        return capacity // self.every


class Part(NamedTuple):
    """A sequence in progress.

    Attributes:
        rows: the insertion numbers of the steps so far.
        starts: whether the first step starts an episode.
        state: the state of the policy before the first step, by name.
    """

    rows: list[int]
    starts: bool
    state: dict[str, Array]


class StateSequences(Ring):
    """A ring buffer of complete sequences; a lane's next episode continues the lane's sequence.

    `Replay` makes this object for agents with a state, and samples the sequences instead of transitions. The learner
    calls `begin_round` and `add`.

    Args:
        storage: holds the transitions.
        spec: what the sequences are.
    """

    begin: int
    count: int
    epoch: int

    def __init__(self, storage: Storage, spec: SequenceSpec) -> None:
        super().__init__(max(1, spec.count(storage.capacity)))
        self.storage: Storage = storage
        self.spec: SequenceSpec = spec
        self.spacing: int = spec.every
        self._rows = np.zeros((self.capacity, spec.length), np.int64)  # insertion numbers of the transitions
        self._starts = np.zeros(self.capacity, np.bool_)
        self._state = {name: np.zeros((self.capacity, *shape), dtype) for name, (shape, dtype) in spec.state.items()}
        self._counts: dict[int, int] = {}  # lane -> its steps so far
        self._parts: dict[int, list[Part]] = {}  # lane -> its sequences in progress, the oldest first
        self._round: dict[str, Array] = {}  # of the round in progress: STARTS `[N]`, and the state `[N, ...]`

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._rows.nbytes + self._starts.nbytes + sum(values.nbytes for values in self._state.values())

    def begin_round(self, fields: Mapping[str, Array]) -> None:
        """Copy what `Ledger.fields_of_state` returned for the steps of the round; called before the round's `add`."""
        self._round = {name: np.array(fields[name]) for name in (STARTS, *(f"{STATE}{name}" for name in self._state))}
        # A lane that is gone may come back much later. A sequence of steps from before and after would be evicted when
        # the first one is, with all sequences that are stored before it.
        for lane in [lane for lane in self._counts if lane >= len(self._round[STARTS])]:
            del self._counts[lane], self._parts[lane]

    def add(self, lane: int, number: int) -> None:
        """Add a step of the round in progress; a complete sequence is stored. Called for each new transition.

        Args:
            lane: of the step.
            number: the insertion number of the step's transition.
        """
        if not self._round:  # a run that was restored within a round, without its memory
            return
        count = self._counts.get(lane, 0)
        in_progress = self._parts.setdefault(lane, [])
        if count % self.spec.every == 0:
            state = {name: np.array(self._round[f"{STATE}{name}"][lane]) for name in self._state}
            in_progress.append(Part([], bool(self._round[STARTS][lane]), state))
        self._counts[lane] = count + 1
        for part in in_progress:
            part.rows.append(number)
        # A step completes at most one sequence, the oldest, because all have the same length.
        if in_progress and len(in_progress[0].rows) == self.spec.length:
            self._store(in_progress.pop(0))

    def _store(self, part: Part) -> None:
        """Store a complete sequence in place of the oldest, unless a step lacks older frames of its stack."""
        complete = self.storage.sampleable(np.array(part.rows) % self.storage.capacity)
        # The first steps of an episode that a resumed run continues.
        if complete is not None and not complete.all():
            return
        index = self.count % self.capacity
        if self.length == self.capacity:
            self.begin += 1
        self._rows[index] = part.rows
        self._starts[index] = part.starts
        for name, value in part.state.items():
            self._state[name][index] = value
        self.count += 1

    def evict(self) -> None:
        """Evict the sequences whose first transition or its older frames are not stored any more.

        Called before sequences are counted or saved.
        """
        begin = self.storage.begin
        if self.length and begin:
            first = self._rows[self.stored_indices(), 0]
            # Only the first rows of a lane in the memory may lack older frames.
            evicted = np.flatnonzero(first < begin + (self.storage.frames - 1) * len(self._counts))
            complete = self.storage.sampleable(first[evicted] % self.storage.capacity)
            if complete is not None:
                evicted = evicted[(first[evicted] < begin) | ~complete]
            if evicted.size:
                self.begin += int(evicted[-1]) + 1

    def rows_of(self, batch_size: int) -> int:
        """Return the number of newest transitions that hold at least this number of sequences."""
        lanes = max(1, len(self._counts))
        # Each lane may lose a sequence and older frames at the old end.
        return self.spec.every * (batch_size + lanes) + (self.spec.length + self.storage.frames - 1) * lanes

    def clear(self) -> None:
        """Evict all sequences; those in progress are given up."""
        self.epoch += 1
        self.begin = self.count
        self._counts = {}
        self._parts = {}

    def gather(self, sample: Sample, gamma: float) -> Batch:
        """Return the batches `[K, S, T, ...]` of a sample of sequences `[K, S]`.

        `weight` is 0 on the rows of the burn-in, and the importance weight of the sequence on the others. `index` is
        the index of the sequence, `[K, S]`. `extra` holds `starts`, which is 1 on the first row of an episode;
        `continues`, which is 1 if the next row of the sequence belongs to the same episode; and `state` before the
        first row, `[K, S, ...]` by name.
        """
        storage = self.storage
        shape = (*sample.indices.shape, self.spec.length)
        rows = (self._rows[sample.indices] % storage.capacity).reshape(-1)
        batch = gather_transitions(storage, rows, gamma, 1)
        batch = Batch(**reshape(batch._replace(weight=np.ones(len(rows), np.float32))._asdict(), shape))
        indices = rows.reshape(shape)
        follows = storage.successor.take(indices[..., :-1]) == indices[..., 1:]
        continues = np.zeros(shape, np.float32)
        continues[..., :-1] = follows
        starts = np.concatenate([self._starts[sample.indices][..., None], ~follows], -1).astype(np.float32)
        weight = np.repeat(sample.weight[..., None], self.spec.length, -1)
        weight[..., : self.spec.burn_in] = 0
        state = {name: values[sample.indices] for name, values in self._state.items()}
        extra = {**batch.extra, "continues": continues, "starts": starts, "state": state}
        return batch._replace(weight=weight, index=sample.indices.astype(np.int32), extra=extra)

    def priority(self, values: Array) -> Array:
        """Return one number for each sequence `[K, S]` from the absolute values of the rows `[K, T, S]`.

        The number is 0.9 times the largest plus 0.1 times the mean (Kapturowski et al., section 2.3). The burn-in does
        not count.
        """
        counted = np.abs(values[:, self.spec.burn_in :])
        return 0.9 * counted.max(axis=1) + 0.1 * counted.mean(axis=1)

    def get_state(self) -> dict[str, Any]:
        """Return the stored sequences, the oldest first, and those in progress."""
        self.evict()
        stored = self.stored_indices()
        return {
            "begin": self.begin,
            "count": self.count,
            "rows": self._rows[stored],
            "starts": self._starts[stored],
            "state": {name: values[stored] for name, values in self._state.items()},
            "round": {name: values.copy() for name, values in self._round.items()},
            "lanes": [
                {
                    "lane": lane,
                    "count": count,
                    "parts": [
                        {"rows": np.array(part.rows, np.int64), "starts": part.starts, "state": dict(part.state)}
                        for part in self._parts.get(lane, [])
                    ],
                }
                for lane, count in self._counts.items()
            ],
        }

    def check_state(self, state: Any, first: int, end: int) -> None:
        """Check a state before `set_state`.

        Args:
            state: of `get_state`, perhaps from a file.
            first: the oldest insertion number of the transitions in the file.
            end: the insertion number after the newest transition in the file.

        Raises:
            ValueError: if the state is malformed.
        """
        spec = self.spec

        def states(*leading: int | None) -> dict[str, Any]:
            return {name: schema.Array(dtype, (*leading, *shape)) for name, (shape, dtype) in spec.state.items()}

        part = {"rows": schema.Array(np.int64, (None,)), "starts": bool, "state": states()}
        expected = {
            "begin": schema.Int(0, MOST_TRANSITIONS),
            "count": schema.Int(0, MOST_TRANSITIONS),
            "rows": schema.Array(np.int64, (None, spec.length)),
            "starts": schema.Array(np.bool_, (None,)),
            "state": states(None),
            "round": dict,
            "lanes": schema.ListOf(
                {"lane": int, "count": schema.Int(0, MOST_TRANSITIONS), "parts": schema.ListOf(part)}
            ),
        }
        if not isinstance(state, Mapping):
            raise ValueError("state['sequences'] must hold the sequences of an agent with a state")
        schema.check(state, expected, "state['sequences']")
        fields = {f"{STATE}{name}": value for name, value in states(None).items()}
        schema.check(state["round"], ({}, {STARTS: schema.Array(np.float32, (None,)), **fields}), "state['sequences']")
        number = state["count"] - state["begin"]
        lengths = {len(state["rows"]), len(state["starts"]), *(len(values) for values in state["state"].values())}
        if not 0 <= number <= self.capacity or lengths != {number}:
            raise ValueError(f"state['sequences'] must have count - begin sequences, got {number} and {lengths}")
        unfinished = [part["rows"] for lane in state["lanes"] for part in lane["parts"]]
        longest = max(map(len, unfinished), default=0)
        rows = np.concatenate([state["rows"].reshape(-1), *unfinished])
        if longest >= spec.length or (rows >= end).any() or (state["rows"][-1:, 0] < first).any():
            raise ValueError("state['sequences'] holds steps that the memory does not hold")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `check_state` accepts; the storage must be restored first."""
        self.clear()
        self._round = {name: np.array(values) for name, values in state["round"].items()}
        self.begin = state["begin"]
        self.count = state["count"]
        stored = self.stored_indices()
        self._rows[stored] = state["rows"]
        self._starts[stored] = state["starts"]
        for name, values in state["state"].items():
            self._state[name][stored] = values
        for lane in state["lanes"]:
            self._counts[lane["lane"]] = lane["count"]
            self._parts[lane["lane"]] = [
                Part(
                    part["rows"].tolist(),
                    part["starts"],
                    {name: np.array(value) for name, value in part["state"].items()},
                )
                for part in lane["parts"]
            ]
