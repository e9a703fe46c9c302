"""The replay memory that users construct."""

from __future__ import annotations

import copy
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.registry import Configurable, register
from noterl.replay import state as storage_state
from noterl.replay.columns import (
    Allocate,
    Array,
    ExtraSpec,
    Layout,
    Leaf,
    action_layout,
    extra_layout,
    observation_layout,
    reshape,
)
from noterl.replay.frame_stack import FrameStackStorage, StackLayout
from noterl.replay.relabel import Relabel
from noterl.replay.returns import Observations, gather_team_transitions, gather_transitions, reshape_group, team_layout
from noterl.replay.samplers import Sample, Sampler, Selection, Uniform
from noterl.replay.sources import Sources
from noterl.replay.state_sequences import SequenceSpec, StateSequences
from noterl.replay.storage import Ring, Storage, allocator_on_disk, check_folder, free_bytes
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_count, check_int, check_positive
from noterl.utils.memory import available_bytes, total_bytes


@register
class Replay(Configurable):
    """The last `capacity` transitions of all lanes, from which batches are sampled.

    Each observation is stored once, in the dtype of the space: the next observation of a transition is the observation
    of the lane's next transition. Only the last observation of an episode is stored separately.

    Args:
        capacity: how many transitions are stored; a new one replaces the oldest.
        sampler: which transitions are sampled; `Uniform()` by default.
        relabel: how batches change the stored transitions, such as `Hindsight()`; None leaves transitions unchanged.
        n_step: n, how many discounted rewards are summed before the value of the next observation is used. There are
            fewer at the end of an episode, and at the newest transitions of a running one.
        frame_stack: k, if observations are stacks of k frames. Each frame is then stored once, and stacks are rebuilt
            when a batch is gathered, never across the start of an episode. A transition is sampled only while all
            frames of the stack are stored. None stores observations unchanged.
        stack_axis: 0 if the frames lie along a first axis of size k (gymnasium's `FrameStackObservation`), -1 if the
            frames lie side by side in the last axis (`noterl.envs.FrameStack`). None takes the first axis if that axis
            has size k, otherwise the last axis.
        memmap: a folder for files with observations, actions and extra fields, for memories that exceed the machine's
            RAM. A missing folder is created. The files have no names; the disk space is freed with the memory.
            None keeps everything in RAM.
        prefetch: how many calls ahead another thread gathers batches, if a group of updates runs as several calls
            (`steps_per_execution`). Results do not change. Prefetching saves time if updates run on another device; see
            `gather_ahead`. Reward functions that relabel are then called on that thread. 0 disables it.
        on_device: whether an agent keeps a copy of the observations on the device that makes its updates. Batches are
            then gathered there, instead of being sent. For large observations, such as images, and a GPU with room for
            `capacity` observations. Results do not change. On JAX and torch, for Box observations of a single agent
            that are neither normalized nor relabeled.

    Attributes:
        capacity: how many transitions can be stored.
        sampler: which transitions are sampled.
        relabel: how batches change the stored transitions.
        n_step: how many rewards are summed.
        on_device: whether an agent keeps a copy of the observations on the agent's device.
        device_copy: gathers observations from this copy; None without one.
        sources: which worker each transition comes from, since the first `fit`.
        observation_space: of the transitions; None before the memory has spaces.
        action_space: of the transitions; None before the memory has spaces.

    Raises:
        ValueError: if an argument is not allowed.

    Example:
        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from noterl.replay import Replay
        >>> replay = Replay(1000)
        >>> replay.build(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))
        >>> for step in range(10):
        ...     index = replay.add(0, np.full(3, step / 10), 1, 0.5, np.full(3, (step + 1) / 10), step == 9, False)
        >>> sample = replay.sample(2, 4, generator=np.random.default_rng(0))
        >>> batch = replay.gather(sample, gamma=0.99)
        >>> batch.observation.shape, batch.reward.shape
        ((2, 4, 3), (2, 4))
    """

    def __init__(
        self,
        capacity: float,
        *,
        sampler: Sampler | None = None,
        relabel: Relabel | None = None,
        n_step: int = 1,
        frame_stack: int | None = None,
        stack_axis: int | None = None,
        memmap: str | os.PathLike[str] | None = None,
        prefetch: int = 0,
        on_device: bool = False,
    ) -> None:
        self.capacity: int = check_count("capacity", capacity)
        self.n_step: int = check_positive("n_step", n_step)
        self.sampler: Uniform | Sampler = Uniform() if sampler is None else sampler
        if not isinstance(self.sampler, Sampler):
            raise ValueError(f"sampler must be a noterl.replay.Sampler, got {sampler!r}")
        if relabel is not None and not isinstance(relabel, Relabel):
            raise ValueError(f"relabel must be None or a noterl.replay.Relabel, got {relabel!r}")
        if relabel is not None and self.n_step > 1 and not relabel.supports_n_step:
            raise ValueError(f"n_step must be 1 with relabel={type(relabel).__name__}(...), got {n_step!r}")
        self.relabel = relabel
        self._frame_stack = check_positive("frame_stack", frame_stack, none=True)
        if stack_axis not in ((None,) if frame_stack is None else (None, 0, -1)):
            raise ValueError(f"stack_axis must be None, or 0 or -1 with a frame_stack, got {stack_axis!r}")
        self._stack_axis = stack_axis
        self._prefetch = check_int("prefetch", prefetch, least=0)
        self.on_device: bool = check_bool("on_device", on_device)
        self.device_copy: Observations | None = None
        self._pending_trims: list[Callable[[], None]] | None = None  # trims, while a group of updates is gathered
        self._memmap = check_folder(memmap)
        if memmap is not None:
            self._config["memmap"] = self._memmap
        self._layouts: tuple[Any, ...] | None = None
        self.observation_space: spaces.Space[Any] | None = None
        self.action_space: spaces.Space[Any] | None = None
        self._next_actions = False
        self._storage: Storage | None = None
        self._kept: Mapping[str, Any] | None = None  # the restored state of a memory that is not allocated
        self._interrupted: list[int] = []  # lanes, before the memory is allocated
        self._selection: Selection | None = None
        self._sequence_spec: SequenceSpec | None = None
        self.sequences: StateSequences | None = None
        self._owner: Any = None  # a weak reference
        self.sources: Sources | None = None

    @property
    def feedback_fields(self) -> tuple[str, ...]:
        """Names of the values that the loss must pass to `feedback` after every group of updates."""
        return self.sampler.feedback_fields

    @property
    def stacks_frames(self) -> bool:
        """Whether observations are stacks of frames."""
        return self._frame_stack is not None

    @property
    def most_sampleable(self) -> int:
        """How many transitions of one lane can be sampled: in a full memory, the oldest ones lack frames."""
        return self.capacity - (0 if self._frame_stack is None else self._frame_stack - 1)

    @property
    def extra_names(self) -> tuple[str, ...]:
        """Names of the further fields that `add` stores."""
        return tuple(self._spaces()[2])

    @property
    def nbytes(self) -> int:
        """Bytes allocated; 0 before `build`, or before an agent trains with the memory."""
        sequences = 0 if self.sequences is None else self.sequences.nbytes
        return 0 if self._storage is None else self._storage.nbytes + sequences

    @property
    def storage(self) -> Storage:
        """The ring buffer of transitions, which the first use allocates; calls the function of `load_later`, if any."""
        return self._built()

    def __len__(self) -> int:
        if self._kept is not None:
            return int(self._kept["count"] - self._kept["begin"])
        return 0 if self._storage is None else self._built().length

    def num_sampleable(self, at_most: int | None = None) -> int:
        """Return how many transitions can be sampled, or `at_most` if there are more.

        A transition is not counted if `keep` excluded the transition, if relabeling is impossible, or if frames of the
        stack were evicted. With `at_most`, a lower bound mostly suffices, so the transitions are rarely counted.
        """
        if self._kept is not None:
            self.allocate()
        if self._selection is None:
            return 0
        self._built()
        if self.sequences is not None:
            # `Storage.add` does not notify the sequences when steps are evicted.
            self.sequences.evict()
        return self._selection.count(at_most)

    def set_owner(self, agent: Any, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        """Record the only agent that may use this memory; called before `build`.

        Raises:
            ValueError: if the memory belongs to another agent, or cannot store such observations and actions.
        """
        owner = self._owner() if self._owner is not None else None
        if owner is not None and owner is not agent and getattr(owner, "replay", None) is self:
            raise ValueError(
                f"replay must belong to one agent only, got the memory of another {type(owner).__name__}: make a new "
                "Replay; to start with the same transitions, call set_state(replay.get_state()) on it"
            )
        if self._storage is None:
            # Raises the errors of layouts that cannot be stored, without allocating the memory.
            self._new_storage(1, observation_layout(observation_space), action_layout(action_space), {})
        self._owner = weakref.ref(agent)

    def build(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        extra_spec: ExtraSpec | None = None,
        agents: int = 0,
        next_actions: bool = False,
        allocate: bool = True,
    ) -> None:
        """Set the spaces and allocate the memory; a second call with spaces of the same layout changes nothing.

        Args:
            observation_space: Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these.
            action_space: Box, Discrete, MultiDiscrete or MultiBinary.
            extra_spec: further fields that `add` stores: name -> (shape, dtype). In a batch, a field `next_...` comes
                from the last of the `n_step` transitions, as the next observation does.
            agents: the number of agents if each has a separate reward and termination; 0 for a single agent.
            next_actions: whether batches hold the action that followed, as `next_action` in `extra`, and whether there
                is one, as `has_next_action` (float32 `[B]`).
            allocate: whether to allocate the memory now, instead of at the first use.

        Raises:
            ValueError: if a space is not supported, if the memory was built for other spaces, if the transitions need
                more memory than is available, or if `sampler` or `relabel` belongs to another memory or does not fit.
        """
        layouts = observation_layout(observation_space), action_layout(action_space), team_layout(extra_spec, agents)
        if (self._storage or self._kept) and self._layouts != layouts:
            raise ValueError(
                f"observation_space={observation_space!r}, action_space={action_space!r} and extra_spec="
                f"{extra_spec!r} do not fit this Replay, which was built for {self._layouts}; use a new one"
            )
        self._layouts = layouts
        self.observation_space = observation_space
        self.action_space = action_space
        self._gather = gather_team_transitions if agents else gather_transitions
        self._next_actions = next_actions
        if self._storage is not None:
            self._storage.next_actions = next_actions
        if allocate:
            self.allocate()

    def store_sequences(self, spec: SequenceSpec) -> None:
        """Sample sequences instead of transitions, for an agent with a state; called before the memory is allocated.

        Raises:
            ValueError: if the memory is built for other sequences, or cannot hold one.
        """
        if spec.length > self.capacity:
            raise ValueError(f"replay must hold a sequence of {spec.length} steps, got a capacity of {self.capacity}")
        if self._storage is not None and spec != self._sequence_spec:
            raise ValueError(f"replay was built for sequences of {self._sequence_spec}, not of {spec}; use a new one")
        self._sequence_spec = spec

    def allocate(self) -> None:
        """Allocate the memory and restore the state of `restore_later`; a second call changes nothing.

        Raises:
            RuntimeError: if the memory has no spaces.
            ValueError: as for `build`.
        """
        if self._storage is not None:
            return
        layouts = self._spaces()
        self._check_room(*layouts)
        empty: Allocate = np.empty if self._memmap is None else allocator_on_disk(self._memmap)
        storage = self._new_storage(self.capacity, *layouts, empty)
        storage.next_actions = self._next_actions
        # Not `_kept` itself, because attributes such as `alpha` may have been changed since.
        state = None if self._kept is None else self.get_state()
        for lane in self._interrupted:  # by a restored state, before the first episode of a `fit`
            storage.resume(lane)
        if state is not None:
            storage_state.set_state(storage, state)
        if self.relabel:
            assert self.observation_space is not None
            self.relabel.bind(storage, self.observation_space)
        entries: Ring = storage
        if self._sequence_spec is not None:
            entries = self.sequences = StateSequences(storage, self._sequence_spec)
            if state is not None:
                self.sequences.set_state(state["sequences"])
        self.sampler.bind(entries)
        if state is not None:
            self.sampler.set_state(state["sampler"])
        # Last, so that an interruption loses nothing.
        self._storage = storage
        self._kept = None
        self._selection = Selection(self.sampler, entries, self.relabel)
        self._position = np.zeros(entries.capacity if self.feedback_fields else 0, np.int64)  # scratch of `feedback`

    def add_fields(self, spec: Mapping[str, tuple[tuple[int, ...], Any, Any]]) -> None:
        """Add further fields, name -> (shape, dtype, default), to a memory with spaces.

        Called when a `fit` begins or a state is restored, for the infos of the environment that the agent uses.
        Transitions that are stored already get the defaults; fields that the memory has are kept.
        """
        observation, action, extra = self._spaces()
        added = {name: entry for name, entry in spec.items() if name not in extra}
        layouts = extra_layout({name: entry[:2] for name, entry in added.items()})
        if self._storage or self._kept:
            self._built().add_fields(layouts, {name: entry[2] for name, entry in added.items()})
        self._layouts = observation, action, {**extra, **layouts}

    def remove_fields(self, names: Collection[str]) -> None:
        """Remove further fields from a memory with spaces."""
        if self._storage or self._kept:
            self._built().remove_fields(names)
        observation, action, extra = self._spaces()
        self._layouts = observation, action, {name: leaf for name, leaf in extra.items() if name not in names}

    def add(
        self,
        lane: int,
        observation: Any,
        action: Any,
        reward: float,
        next_observation: Any,
        terminated: bool,
        truncated: bool,
        extra: Mapping[str, Any] | None = None,
    ) -> int:
        """Store one transition, in place of the oldest one if the memory is full.

        Args:
            lane: number of the environment that the transition comes from; any 32-bit int.
            observation: the observation that the action was chosen for.
            action: the action.
            reward: the reward, stored as float32.
            next_observation: the true next observation: at the end of an episode the last one of that episode, never
                the one of a reset.
            terminated: whether the environment terminated the episode.
            truncated: whether the episode was truncated.
            extra: a value for each field of `extra_spec`.

        Returns:
            The index of the transition, `0 <= index < capacity`.

        Raises:
            ValueError: if a value does not fit the space (for a scalar of the wrong kind, TypeError), or if `extra`
                does not have the fields of `extra_spec`. The transition is not stored.
        """
        # `_built` without a call in the usual case.
        storage = self._storage
        if storage is None or storage.pending_load is not None:
            storage = self._built()
        return storage.add(lane, observation, action, reward, next_observation, terminated, truncated, extra)

    def load_later(self, load: Callable[[], None]) -> None:
        """Call `load` before the next use of this memory; `load` adds transitions that were collected on the device."""
        assert self._storage is not None
        self._storage.pending_load = load

    @property
    def pending_load(self) -> Callable[[], None] | None:
        """The function of `load_later` that has not been called yet, or None."""
        return None if self._storage is None else self._storage.pending_load

    def interrupt(self, lane: int) -> None:
        """End a lane's episode early, because the lane was reset: the next transition starts another episode.

        The next observation of the lane's newest transition is kept.
        """
        if self._storage is None and self._kept is None:
            self._spaces()
            self._interrupted.append(lane)
        else:
            self._built().interrupt(lane)

    def sample(self, updates: int, batch_size: int, *, generator: np.random.Generator) -> Sample:
        """Sample the transitions of a group of updates, and make all random choices of the batches.

        Args:
            updates: K, the number of batches.
            batch_size: B, the number of transitions in each.
            generator: of the random choices.

        Raises:
            ValueError: if `updates` or `batch_size` is not a positive int, or `batch_size` exceeds `num_sampleable()`.
        """
        if not (type(updates) is type(batch_size) is int and updates > 0 and batch_size > 0):  # not the usual case
            updates = check_positive("updates", updates)
            batch_size = check_positive("batch_size", batch_size)
        indices = self._selection_for(batch_size).sample_indices(updates, batch_size, generator)
        return self._sample_of(indices, generator)

    def sample_pass(self, batch_size: int, *, generator: np.random.Generator) -> Sample:
        """Sample one pass: the smallest number of batches that can hold all sampleable transitions.

        With `Uniform()`, each transition is sampled once, in random order; the first transitions of another random
        order fill the last batch. With other samplers, the batches are sampled as by `sample`, so that weights and
        probabilities match.

        Raises:
            ValueError: if `batch_size` is not a positive int, or exceeds `num_sampleable()`.
        """
        selection = self._selection_for(check_positive("batch_size", batch_size))
        return self._sample_of(selection.sample_pass(batch_size, generator), generator)

    def gather(self, sample: Sample, *, gamma: float) -> Batch:
        """Return the batches of a sample.

        Args:
            sample: of this memory.
            gamma: the discount of one step.

        Returns:
            A `Batch` of new arrays `[K, B, ...]`. float64 becomes float32, and int64 becomes int32 if the bounds of the
            space fit; other dtypes are kept. `reward` is the sum of `gamma**i` times the i-th of m rewards, where m is
            n or less. `next_observation` is the one after the last of these m transitions, and `discount` is
            `gamma**m * (1 - terminated)`. `index` holds the sample's indices.
        """
        storage = self._built()
        indices = sample.indices.reshape(-1)
        if self.sequences is not None:
            return self.sequences.gather(sample, gamma)
        if self.relabel:
            choices = {name: array.reshape(-1, *array.shape[2:]) for name, array in sample.choices.items()}
            batch = self.relabel.gather(indices, choices, gamma, self.n_step)
        elif self.device_copy is not None:
            batch = gather_transitions(storage, indices, gamma, self.n_step, self.device_copy)
        else:
            batch = self._gather(storage, indices, gamma, self.n_step)
        return reshape_group(batch, sample.indices, sample.weight)

    @contextmanager
    def gather_ahead(self, gather: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Iterator[Any]]:
        """Return a context whose iterator yields the result of `gather` for each part of a sample.

        Up to `prefetch` parts are gathered ahead, on another thread, which ends with the context. `drop_oldest` and
        `keep` take effect when the context ends. A sample does not depend on the updates, so `prefetch` does not change
        the results. A group that is one compiled call (`steps_per_execution="auto"`) has nothing to gather ahead.

        Args:
            gather: returns a part's batches; if `prefetch` is not 0, another thread calls `gather`.
            parts: the parts of a sample.
        """
        # The gathered parts may refer to transitions that `drop_oldest` or `keep` would remove.
        self._pending_trims = []
        try:
            if not self._prefetch or len(parts) < 2:
                yield map(gather, parts)
            else:
                # One thread, so that parts are gathered in order and never two at once.
                pool = ThreadPoolExecutor(1, "noterl-prefetch")
                try:
                    yield _gathered(pool, gather, parts, self._prefetch)
                finally:
                    pool.shutdown(cancel_futures=True)
        finally:
            pending, self._pending_trims = self._pending_trims, None
            for trim in pending:
                trim()

    def feedback(self, sample: Sample, values: Mapping[str, Any]) -> None:
        """Pass the loss's feedback for a sample to the sampler; if an index occurs twice, the last value counts.

        Transitions that have been evicted since are ignored. If the sampler has no `feedback_fields`, this does
        nothing.

        Args:
            sample: of this memory, or a part of such a sample.
            values: by name, arrays `[K, B, ...]` like the indices of the sample.

        Raises:
            ValueError: if `sample` is not a `Sample`, or a field is missing or lacks a transition's value.
        """
        if not self.feedback_fields:
            return
        if not isinstance(sample, Sample):
            raise ValueError(f"sample must be what Replay.sample or sample_pass returned, got {type(sample).__name__}")
        storage = self._entries()
        shape = sample.indices.shape
        indices = sample.indices.reshape(-1)
        if self.sequences is not None:
            values = {name: self.sequences.priority(np.asarray(value)) for name, value in values.items()}
        if sample.epoch != storage.epoch:  # the memory was cleared or restored after the sampling
            return
        order = np.arange(len(indices))
        self._position[indices] = order  # of equal indices the last one stays
        stored = storage.insertion_numbers(indices) < sample.next_insertion
        last = (stored & (self._position[indices] == order)).nonzero()[0]
        fields = {}
        for name in self.feedback_fields:
            if name not in values:
                raise ValueError(f"feedback must hold {name} [B] for {type(self.sampler).__name__}")
            value = np.asarray(values[name])
            if value.shape[: len(shape)] != shape:
                raise ValueError(
                    f"{name} must be [B], a number for each transition: {shape[-1:]}, got the shape "
                    f"{value.shape[len(shape) - 1 :]}"
                )
            fields[name] = value.reshape(-1, *value.shape[len(shape) :])[last]
        if last.size:
            self.sampler.feedback(indices[last], fields)

    def drop_oldest(self, n: int) -> None:
        """Evict the `n` oldest transitions, or all if there are fewer.

        While a group of updates is gathered, the eviction is deferred until the end of the group, because the
        group may need these transitions.

        Raises:
            ValueError: if `n` is not an int of at least 0.
        """
        storage = self._built()
        # Fixed now, so that a deferred eviction does not count transitions that are added later.
        begin = storage.begin + min(check_int("n", n, least=0), storage.length)
        self._trim(lambda: storage.drop_before(begin))

    def keep(self, indices: Any) -> None:
        """Of the transitions that are stored now, sample only these from now on; later ones are sampled as usual.

        Excluded transitions stay stored until their eviction, because other transitions may need them: as next
        observations, in n-step returns and stacks of frames, as goals, and as later steps of a sequence. A transition
        that was excluded before is sampled again if `indices` holds the transition. While a group of updates is
        gathered, the call takes effect at the end of the group.

        Args:
            indices: `[n]`, as in `batch.index`; repetitions are allowed.

        Raises:
            ValueError: if one of the indices does not belong to a stored transition.
        """
        if self.sequences is not None:
            raise ValueError("keep: single transitions of a memory of sequences cannot be excluded")
        storage = self._built()
        kept = np.asarray(indices)
        if kept.ndim != 1 or (kept.size and kept.dtype.kind not in "iu"):
            raise ValueError(f"indices must be ints [n], got {kept.dtype}{list(kept.shape)}")
        kept = kept.astype(np.int64)
        ages = storage.insertion_numbers(kept) - storage.begin
        stored = (kept >= 0) & (kept < storage.capacity) & (ages < storage.length)
        if not stored.all():
            raise ValueError(f"indices must be those of stored transitions, got {kept[~stored][0]}")
        masked = storage.begin + np.delete(np.arange(storage.length), ages)
        self._trim(lambda: storage.mask(masked))

    def set_sources(self, lanes: Sequence[int]) -> None:
        """Set which environments belong to which worker; `fit` calls this.

        Args:
            lanes: number of environments of each worker, in the order of the lanes; one number without workers.
        """
        if self.sources is None or self.sources.lanes != tuple(lanes):
            self.sources = Sources(self._built(), lanes)

    def effective_sample_size(self, alpha: bool = True, *, by_worker: bool = False) -> Any:
        """Return 1 / sum of p^2 over the sampler's probabilities: the size of a uniform sample with the same variance.

        The size is between 1 and the number of transitions; for uniform sampling, the size is that number. The size of
        an empty memory is 0.0. Transitions that `keep` excluded do not count. A memory of sequences measures the share
        of the sequences, times the number of transitions.

        Args:
            alpha: False for the probabilities without the exponent of prioritized sampling.
            by_worker: whether to return a list with the size for each worker's own transitions.

        Raises:
            ValueError: if `by_worker` is True for a memory of sequences.
        """
        storage = self._built()
        if self.sequences is not None:
            if by_worker:
                raise ValueError("by_worker must be False for a memory of sequences")
            self.sequences.evict()
            return _kish(self.sampler.probabilities(alpha=alpha)) * storage.length / max(1, self.sequences.length)
        probabilities = self.sampler.probabilities(alpha=alpha)
        if not by_worker:
            return _kish(probabilities)
        if self.sources is None:
            return [_kish(probabilities)]
        source = self.sources.of(storage.unmasked_indices())
        return [_kish(probabilities[source == number]) for number in range(len(self.sources.lanes))]

    def clear(self) -> None:
        """Evict all transitions; the memory stays allocated."""
        self._kept = None
        if self._storage is not None:
            self._storage.pending_load = None
            self._storage.clear()
            if self.sequences is not None:
                self.sequences.clear()
            self.sampler.clear()

    def get_state(self) -> dict[str, Any]:
        """Return the stored transitions, the oldest first, and the state of the sampler; `{}` without spaces.

        The arrays are views of the memory: save or copy the arrays before the next `add`.
        """
        if self._storage is not None:
            sequences = {} if self.sequences is None else {"sequences": self.sequences.get_state()}
            return {**storage_state.get_state(self._built()), **sequences, "sampler": self.sampler.get_state()}
        if self._layouts is None:
            return {}
        state = self._empty_state() if self._kept is None else self._kept
        numbers = {name: getattr(self.sampler, name) for name in self.sampler.settable}
        return {**state, "sampler": {**state["sampler"], **numbers}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `get_state`, so that the same transitions are sampled and overwritten from then on.

        An empty state clears the memory. `n_step` and `relabel` are not part of the state.

        Raises:
            ValueError: if the state has another capacity or other spaces, or is inconsistent. The memory is then
                unchanged.
        """
        if state:
            self.allocate()
        self.restore_later(state)

    def restore_later(self, state: Mapping[str, Any]) -> None:
        """Check a state, and restore the state when the memory is allocated; until then, only the state takes memory.

        The arrays must not change. A memory that is allocated already restores the state at once.

        Raises:
            ValueError: as `set_state`.
        """
        if not state:
            self.clear()
            return
        storage = self._storage
        # A storage for one transition has the layouts that the check needs.
        layouts = storage or self._new_storage(1, *self._spaces())
        transitions = {name: value for name, value in state.items() if name != "sequences"}
        storage_state.check_state(layouts, transitions, self.capacity)
        sampled: Any = state
        if self._sequence_spec is not None:
            sampled = state.get("sequences")
            sequences = StateSequences(layouts, self._sequence_spec)
            # The capacity follows from that of `layouts`, which may be 1.
            sequences.capacity = max(1, self._sequence_spec.count(self.capacity))
            sequences.check_state(sampled, state["begin"], state["count"])
        self.sampler.check_state(state["sampler"], sampled["count"] - sampled["begin"])
        if storage is None:
            # Attributes such as `alpha` may be read and changed before the memory is allocated.
            for name in self.sampler.settable:
                setattr(self.sampler, name, state["sampler"][name])
            self._kept = state
            return
        storage.pending_load = None  # entries of the device, which follow the restored ones no more
        storage_state.set_state(storage, state)
        if self.sequences is not None:
            self.sequences.set_state(state["sequences"])
        self.sampler.clear()
        self.sampler.set_state(state["sampler"])

    def _empty_state(self) -> dict[str, Any]:
        """Return the state of an empty memory that is not allocated."""
        storage = self._new_storage(1, *self._spaces())
        # A copy, because a sampler can be bound to one storage only.
        sampler = copy.copy(self.sampler)
        sampler.bind(storage)
        state = {**storage_state.get_state(storage), "capacity": self.capacity, "sampler": sampler.get_state()}
        if self._sequence_spec is not None:
            state["sequences"] = StateSequences(storage, self._sequence_spec).get_state()
        return state

    def _spaces(self) -> tuple[Any, ...]:
        """Return the layouts of observations, actions and extra fields.

        Raises:
            RuntimeError: if the memory has none.
        """
        if self._layouts is None:
            raise RuntimeError("this Replay has no spaces yet: call build(observation_space, action_space)")
        return self._layouts

    def _built(self) -> Storage:
        """Return the storage, with all transitions; the first call allocates the memory."""
        if self._storage is None:
            self.allocate()
        storage = self._storage
        assert storage is not None
        return storage if storage.pending_load is None else storage.loaded()

    def _entries(self) -> Ring:
        """Return what is sampled: the transitions or the sequences."""
        storage = self._built()
        return storage if self.sequences is None else self.sequences

    def _trim(self, trim: Callable[[], None]) -> None:
        """Call `trim` now, or at the end of the group of updates that is being gathered."""
        if self._pending_trims is None:
            trim()
        else:
            self._pending_trims.append(trim)

    def _selection_for(self, batch_size: int) -> Selection:
        """Return the selection, or raise a ValueError if fewer than `batch_size` transitions can be sampled."""
        self._built()
        number = self.num_sampleable(batch_size)
        if batch_size > number:
            raise ValueError(
                f"batch_size must be at most the number of sampleable transitions, {number}, got {batch_size}"
            )
        assert self._selection is not None
        return self._selection

    def _sample_of(self, indices: Array, generator: np.random.Generator) -> Sample:
        """Return the sample of these indices, with weights and random choices."""
        entries = self._entries()
        weight = self.sampler.weights(indices)
        choices: dict[str, Array] = {}
        if self.relabel is not None:
            flat_choices = self.relabel.sample_choices(indices.reshape(-1), generator)
            choices = {name: reshape(array, indices.shape) for name, array in flat_choices.items()}
        return Sample(indices, weight, choices, next_insertion=entries.count, epoch=entries.epoch)

    def _new_storage(self, capacity: int, observation: Layout, *others: Any) -> Storage:
        """Return a storage for these layouts; `others` are the further arguments of `Storage`."""
        if self._frame_stack is None:
            return Storage(observation, capacity, *others)
        return FrameStackStorage(StackLayout(observation, self._frame_stack, self._stack_axis), capacity, *others)

    def _sizes(self, *layouts: Any) -> tuple[int, int]:
        """Return the bytes for observations, actions and extra fields, and the bytes for the bookkeeping columns."""
        # The final observations have a number of slots that does not depend on the capacity.
        storage = self._new_storage(1, *layouts)
        bookkeeping = sum(dtype.itemsize for dtype in storage.BOOKKEEPING.values())
        final = storage.final_observations.nbytes
        return final + self.capacity * (storage.nbytes - final - bookkeeping), self.capacity * bookkeeping

    def _check_room(self, observation: Layout, action: Leaf, extra: Mapping[str, Leaf]) -> None:
        """Raise a ValueError that states the sizes if memory or disk has no room for the transitions."""
        columns, bookkeeping = self._sizes(observation, action, extra)
        # With `memmap`, only the bookkeeping columns stay in RAM.
        rooms = [(bookkeeping if self._memmap else bookkeeping + columns, available_bytes(), "")]
        if self._memmap is not None:
            rooms.append((columns, free_bytes(self._memmap), f" on the disk of memmap={self._memmap!r}"))
        for needed, available, where in rooms:
            if needed > available:
                advice = self._advice(available / needed, observation)
                raise ValueError(
                    f"capacity={self.capacity} needs {needed} bytes ({needed / 1e9:.2f} GB){where} for these spaces, "
                    f"but only {available} bytes ({available / 1e9:.2f} GB) are available; at most "
                    f"{self.capacity * available // needed} transitions fit: {advice}"
                )

    def _advice(self, share: float, observation: Layout) -> str:
        """Return the call of `compile` for a memory of at most this share of the capacity."""
        line = f"compile(replay=noterl.Replay({_rounded(self.capacity * share):_}))"
        shape = observation.shape if isinstance(observation, Leaf) else ()
        axes = (shape[0], shape[-1]) if len(shape) == 3 and self._frame_stack is None else ()
        k = next((size for size in axes if size in (2, 4, 5, 6, 7, 8)), None)  # three are the colors of one frame
        if k is None:
            return line
        stacked = min(self.capacity, _rounded(self.capacity * share * k))
        return (
            f"{line}; if each observation stacks {k} frames, store each frame once: "
            f"compile(replay=noterl.Replay({stacked:_}, frame_stack={k}))"
        )


def bytes_needed(
    capacity: int,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    extra_spec: ExtraSpec | None = None,
    frame_stack: int | None = None,
) -> int:
    """Return the bytes that `Replay(capacity, frame_stack=...)` allocates for these spaces.

    The memory may grow as episodes end, because the last observation of each episode is stored separately.

    >>> from gymnasium import spaces
    >>> from noterl.replay import bytes_needed
    >>> frames = spaces.Box(0, 255, (84, 84, 4), "uint8")
    >>> round(bytes_needed(1_000_000, frames, spaces.Discrete(18), frame_stack=4) / 1e9, 2)
    7.08
    """
    layouts = observation_layout(observation_space), action_layout(action_space), extra_layout(extra_spec)
    return sum(Replay(capacity, frame_stack=frame_stack)._sizes(*layouts))


def default_capacity(
    capacity: int,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    frame_stack: int | None = None,
) -> int:
    """Return an algorithm's default capacity, or less if the memory would take more than half of the machine's RAM.

    The result depends on the machine, but not on how much RAM is in use.
    """
    needed = bytes_needed(capacity, observation_space, action_space, frame_stack=frame_stack)
    most = total_bytes() // 2
    return capacity if needed <= most else _rounded(capacity * most / needed)


def _rounded(number: float) -> int:
    """Return the largest of 1, 2, 5, 10, 20, 50 ... that is at most this number, or 1."""
    power = 10 ** (len(str(int(number))) - 1)
    return next((digit * power for digit in (5, 2, 1) if digit * power <= number), 1)


def _gathered(
    pool: ThreadPoolExecutor, gather: Callable[[Any], Any], parts: Sequence[Any], ahead: int
) -> Iterator[Any]:
    """Yield the result of `gather` for each part; the pool gathers up to `ahead` parts ahead."""
    waiting: deque[Future[Any]] = deque()
    for part in parts:
        waiting.append(pool.submit(gather, part))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _kish(probabilities: Array) -> float:
    """Return (sum of p)^2 / sum of p^2 (Kish, 1965); for equal probabilities, exactly the number of transitions."""
    if not len(probabilities) or (probabilities == probabilities[0]).all():
        return float(len(probabilities))
    return float(probabilities.sum() ** 2 / np.square(probabilities).sum())
