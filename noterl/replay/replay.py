"""The replay memory that users construct.

Owns the public face: the checks, the allocation once the spaces are known, and how rows become a `Batch`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.registry import Configurable, register
from noterl.replay import state as snapshot
from noterl.replay import team
from noterl.replay import trimming as windows
from noterl.replay.building import ExtraSpec, new_storage
from noterl.replay.columns import Array, action_layout, flat, observation_layout, reshape
from noterl.replay.disk import checked_folder
from noterl.replay.drawing import Count, Feedback, draw_usable, pass_usable
from noterl.replay.prefetch import ahead
from noterl.replay.relabel import Drawn, Relabel
from noterl.replay.returns import grouped, plain
from noterl.replay.samplers import Sampler, Uniform
from noterl.replay.storage import Storage
from noterl.types import Batch
from noterl.utils.checks import check_int, check_positive


@register
class Replay(Configurable):
    """The last `capacity` transitions of all lanes, from which batches are drawn.

    Each observation is stored once, in the dtype of its space: the next observation of a transition is the observation
    of its lane's next one. Only the last observation of an episode needs a place of its own.

    Args:
        capacity: how many transitions are kept; the oldest makes room for the newest.
        sampler: which transitions are drawn; `Uniform()` where none is given.
        relabel: in what light they are seen; None for the one they were stored in.
        n_step: n, how many rewards a batch adds up (discounted) before the next observation and its value. The tail of
            an episode, of one that still runs too, has fewer.
        frame_stack: k, if observations are stacks of k frames: of each only the newest is stored, and stacks are put
            together when they are sampled, never across the start of an episode. None stores observations as they come.
        prefetch: how many calls ahead batches are gathered, by another thread, where a group of updates runs as several
            calls (`steps_per_execution`); it changes nothing but the time, and that for the better where updates run on
            another device (`noterl.replay.prefetch` has the figures). The rule of rewards for relabelling is asked on
            that thread, too. 0 gathers in turn.
        memmap: a folder, in files of which observations, actions and extra fields are to lie, for memories larger than
            the machine's; it is made if it is missing, and the files have no names there and go when the memory goes.
            None keeps everything in memory.

    Raises:
        ValueError: if an argument is not what it may be.

    Example:
        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from noterl.replay import Replay
        >>> replay = Replay(1000)
        >>> replay.build(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))
        >>> for step in range(10):
        ...     row = replay.add(0, np.full(3, step / 10), 1, 0.5, np.full(3, (step + 1) / 10), step == 9, False)
        >>> batch = replay.sample(2, 4, generator=np.random.default_rng(0), gamma=0.99)
        >>> batch.observation.shape, batch.reward.shape
        ((2, 4, 3), (2, 4))
    """

    def __init__(
        self,
        capacity: int,
        *,
        sampler: Sampler | None = None,
        relabel: Relabel | None = None,
        n_step: int = 1,
        frame_stack: int | None = None,
        memmap: str | os.PathLike[str] | None = None,
        prefetch: int = 0,
    ) -> None:
        self._capacity = check_positive("capacity", capacity)
        self._n_step = check_positive("n_step", n_step)
        self._sampler = Uniform() if sampler is None else sampler
        if not isinstance(self._sampler, Sampler):
            raise ValueError(f"sampler must be a sampler of noterl.replay, got {sampler!r}")
        if relabel is not None and not isinstance(relabel, Relabel):
            raise ValueError(f"relabel must be None or a relabelling of noterl.replay, got {relabel!r}")
        if relabel is not None and self._n_step > 1 and not relabel.takes_n_step:
            raise ValueError(f"n_step must be 1 with relabel={type(relabel).__name__}(...), got {n_step!r}")
        self._relabel = relabel
        self._frame_stack = check_positive("frame_stack", frame_stack, none=True)
        self._prefetch = check_int("prefetch", prefetch, least=0)
        self._held: windows.Held | None = None
        self._memmap = checked_folder(memmap)
        if memmap is not None:
            self._config["memmap"] = self._memmap
        self._layouts: tuple[Any, ...] | None = None
        self._storage: Storage | None = None
        self._count: Count | None = None
        self._feedback: Feedback | None = None
        self.owner: Any = None  # `noterl.replay.claiming` says whose it is

    @property
    def sampler(self) -> Sampler:
        """Which transitions are drawn."""
        return self._sampler

    @property
    def relabel(self) -> Relabel | None:
        """In what light they are seen."""
        return self._relabel

    @property
    def n_step(self) -> int:
        """How many rewards a batch adds up."""
        return self._n_step

    @property
    def feedback_fields(self) -> tuple[str, ...]:
        """The fields of the loss's feedback that are wanted after every group."""
        return self._sampler.feedback_fields

    @property
    def drawable(self) -> int:
        """How many transitions may be drawn: those that are masked, or cannot be relabelled yet, may not."""
        return self.count_drawable()

    def count_drawable(self, enough: int | None = None) -> int:
        """Return `drawable`; counting may stop at `enough`."""
        return self._count(enough) if self._count else 0

    @property
    def capacity(self) -> int:
        """How many transitions are kept."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes allocated; 0 before `build`."""
        return self._storage.nbytes if self._storage else 0

    def __len__(self) -> int:
        return self._storage.length if self._storage else 0

    def build(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        extra_spec: ExtraSpec | None = None,
        agents: int = 0,
    ) -> None:
        """Allocate the rows; a second call with spaces of the same form changes nothing.

        Args:
            observation_space: Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these.
            action_space: Box, Discrete, MultiDiscrete or MultiBinary.
            extra_spec: further fields that `add` is given: name -> (shape, dtype).
            agents: how many have rewards and ends of their own, as `noterl.replay.team` says; 0 where there is one.

        Raises:
            ValueError: if a space is of another kind, if the memory was built for other spaces, or if it needs more
                memory than is available.
        """
        layouts = observation_layout(observation_space), action_layout(action_space), team.layout(extra_spec, agents)
        if self._storage:
            if self._layouts != layouts:
                raise ValueError(
                    f"observation_space={observation_space!r}, action_space={action_space!r} and extra_spec="
                    f"{extra_spec!r} do not fit this Replay, which was built for rows of {self._layouts}; use a new one"
                )
            return
        storage = new_storage(self._capacity, *layouts, self._frame_stack, self._memmap)
        if self._relabel:
            self._relabel.bind(storage, observation_space)
        self._sampler.bind(storage)
        self._gathered = team.gathered if agents else plain
        self._layouts, self._storage, self._count = layouts, storage, Count(storage, self._relabel)
        self._feedback = Feedback(storage) if self.feedback_fields else None
        # Whoever asks for `add` from now on gets the storage's own: one call less for every step.
        self.add = self._storage.add  # type: ignore[method-assign]

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
        """Store one transition, over the oldest when the memory is full.

        Args:
            lane: which of the environments that are stepped side by side it comes from; any int of 32 bits.
            observation: what the action was chosen on.
            action: the action.
            reward: the reward, stored as float32.
            next_observation: the true one: at the end of an episode its last observation, never a reset's first.
            terminated: whether the environment ended the episode.
            truncated: whether the episode was cut off from outside.
            extra: a value for each field of `extra_spec`.

        Returns:
            the row it lies in, `0 <= row < capacity`.

        Raises:
            ValueError: if a value cannot be written to a row of its space (a scalar of the wrong kind is a TypeError),
                or `extra` has not the fields of `extra_spec`; the transition is then not stored.
        """
        return self._built().add(lane, observation, action, reward, next_observation, terminated, truncated, extra)

    def interrupt(self, lane: int) -> None:
        """Say that a lane was broken off (reset before its episode ended): its next transition starts afresh.

        Its last transition keeps the next observation it was added with.
        """
        self._built().interrupt(lane)

    def sample(self, updates: int, batch_size: int, *, generator: np.random.Generator, gamma: float) -> Batch:
        """Draw the batches of a group of updates, as the sampler chooses.

        Args:
            updates: K, how many batches.
            batch_size: B, rows of each.
            generator: where the draws come from.
            gamma: the discount of one step.

        Returns:
            A `Batch` of new arrays `[K, B, ...]`. float64 comes as float32 and int64 as int32 (if the space's values
            fit); all else as it is stored. `reward` is the sum of `gamma**i` times the i-th of (at most) n rewards,
            `next_observation` what came after the last of them and `discount` is `gamma**n * (1 - terminated)`;
            `index` holds the rows as int64.

        Raises:
            ValueError: if `updates` or `batch_size` is not a positive int, or `batch_size` is more than may be drawn.
        """
        return self.gather(self.draw(updates, batch_size, generator=generator), gamma=gamma)

    def draw(self, updates: int, batch_size: int, *, generator: np.random.Generator) -> Drawn:
        """Draw the rows `[K, B]` of a group of updates, with all choices; `sample` says how, and what is raised."""
        self._check_batch_size(batch_size)
        rows = draw_usable(self._sampler, self._relabel, check_positive("updates", updates), batch_size, generator)
        return self._drawn(rows, generator)

    def draw_pass(self, batch_size: int, *, generator: np.random.Generator) -> Drawn:
        """Draw the rows `[K, B]` of one pass: every transition that may be drawn once, in random order.

        What the last batch lacks is filled up with the first rows of another such order.

        Raises:
            ValueError: if `batch_size` is not a positive int, or more than may be drawn.
        """
        self._check_batch_size(batch_size)
        return self._drawn(pass_usable(self._sampler, self._relabel, batch_size, generator), generator)

    def gather(self, drawn: Drawn, *, gamma: float) -> Batch:
        """Return the batches that were drawn; see `sample`."""
        storage, rows = self._built(), drawn.rows.reshape(-1)
        if self._relabel:
            choices = {name: flat(array) for name, array in drawn.choices.items()}
            batch = self._relabel.gather(rows, choices, gamma, self._n_step)
        else:
            batch = self._gathered(storage, rows, gamma, self._n_step)
        return grouped(batch, drawn.rows, drawn.weight)

    def feedback(self, index: Array, feedback: Mapping[str, Any]) -> None:
        """Take what the loss said of rows `[K, B]` that were drawn; of a row that occurs twice the last counts.

        Rows overwritten since they were drawn are left out: `index` is the batch's own, or a part of it (of a copy the
        draw may have to be guessed). Without a sampler that has `feedback_fields` this does nothing.

        Raises:
            ValueError: if a row was never drawn, or a field has not a value for each row.
        """
        if self._feedback is not None:
            self._feedback.give(self._sampler, index, feedback)

    def _drawn(self, rows: Array, generator: np.random.Generator) -> Drawn:
        if self._feedback is not None:
            self._feedback.note(rows)
        weight = self._sampler.weights(rows)
        if self._relabel is None:
            return Drawn(rows, weight)
        choices = self._relabel.draw(rows.reshape(-1), generator)
        return Drawn(rows, weight, {name: reshape(array, rows.shape) for name, array in choices.items()})

    def _check_batch_size(self, batch_size: int) -> None:
        self._built()
        drawable = self.count_drawable(check_positive("batch_size", batch_size))
        if batch_size > drawable:
            raise ValueError(f"batch_size must be at most what may be drawn, {drawable}, got {batch_size}")

    @contextmanager
    def gathering(self, gather: Callable[[Drawn], Batch], parts: Sequence[Drawn]) -> Iterator[Iterator[Batch]]:
        """Give the batches of a group of updates, part by part; until it ends no transition is dropped or masked.

        Args:
            gather: makes a part's batches; with `prefetch` another thread calls it.
            parts: what was drawn.
        """
        self._held = windows.Held()
        try:
            with ahead(gather, parts, self._prefetch) as batches:
                yield batches
        finally:
            held, self._held = self._held, None
            held.apply(self._built())

    def drop_oldest(self, n: int) -> None:
        """Forget the `n` oldest transitions, or all if there are fewer.

        While a group of updates runs this waits for its end, since the group may need them.

        Raises:
            ValueError: if `n` is not an int of at least 0.
        """
        windows.drop_oldest(self._built(), n, self._held)

    def keep(self, indices: Any) -> None:
        """Draw, of the transitions that are there now, only these from now on; later ones as ever.

        The others stay where they are until they are overwritten: as next observations, as part of n-step returns and
        stacks, and as goals. What was left out before comes back if it is among `indices`. While a group of updates
        runs this waits for its end.

        Args:
            indices: rows [n] as in `batch.index`.

        Raises:
            ValueError: if one of them is not the row of a transition that the memory holds.
        """
        windows.keep(self._built(), indices, self._held)

    def effective_sample_size(self, alpha: bool = True, *, by_lane: bool = False) -> Any:
        """Return how many transitions, drawn uniformly, would vary as those that the sampler draws: 1 / sum of p^2.

        Between 1 and the number that may be drawn, which it is for uniform sampling; 0.0 for an empty memory.

        Args:
            alpha: False for the chances that scores would have without prioritized sampling's exponent.
            by_lane: return a dict, with a number for each lane's own transitions.
        """
        return windows.effective_sample_size(self._sampler, self._built(), alpha, by_lane)

    def clear(self) -> None:
        """Forget every transition; what is allocated stays."""
        if self._storage:
            self._storage.clear()
            self._sampler.clear()

    def check(self) -> None:
        """Assert that the memory hangs together.

        Raises:
            AssertionError: naming the broken invariant.
        """
        if self._storage:
            snapshot.check(self._storage)
            self._sampler.check()

    def get_state(self) -> dict[str, Any]:
        """Return the live transitions, in order of age; `{}` before `build`.

        The arrays are views of the memory: save or copy them before the next `add`.
        """
        if self._storage is None:
            return {}
        return {**snapshot.get_state(self._storage), "sampler": self._sampler.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take what `get_state` said: what is sampled and overwritten from here on is the same.

        What is formed at sampling is not part of it: `n_step` and `relabel` stay as they are here.

        Raises:
            ValueError: if the state is of another capacity or other spaces, or contradicts itself; nothing is changed
                then.
        """
        if state:
            storage = self._built()
            take = snapshot.checked(storage, state)
            known = snapshot.entry(state, ("sampler",))
            if not isinstance(known, Mapping):
                raise ValueError(f"state['sampler'] must be a dict, got {type(known).__name__}")
            self._sampler.check_state(known, int(state["count"]) - int(state["begin"]))
            take()
            if self._feedback is not None:  # what was drawn before is not what is there now
                self._feedback.forget()
            self._sampler.clear()
            self._sampler.set_state(known)
        else:
            self.clear()

    def _built(self) -> Storage:
        if self._storage is None:
            raise RuntimeError("this Replay does not know its spaces yet: call build(observation_space, action_space)")
        return self._storage
