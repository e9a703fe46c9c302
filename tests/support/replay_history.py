"""A replay memory with any sampler, relabeling and frame stack, compared with a plain list of its transitions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.replay import Hindsight, Prioritized, Relabel, Replay, Sample, Triplets
from noterl.types import Batch
from tests.support.prioritized_memory import sample_of
from tests.support.replay_invariants import check_replay, next_indices
from tests.support.replay_model import assert_same

GAMMA = 0.9
INITIAL = 7.0  # score of new transitions before the first feedback
NUMBER = spaces.Box(0.0, 999.0, (1,), np.float32)
OWN_GOAL = 500


class Rule:
    """Rewards and terminations under a goal, different for all pairs."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal + desired_goal / 1024)[:, 0]

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal + desired_goal)[:, 0] % 3 == 0


class Layout:
    """Observations made of numbered frames; `frames` is k, or None if they are not stacks."""

    def __init__(self, kind: str, frames: int | None) -> None:
        self.kind, self.frames = kind, frames
        k = frames or 1
        self.space: spaces.Space[Any] = {
            "last": spaces.Box(0, 255, (2, 3, k), np.uint8),
            "first": spaces.Box(-np.inf, np.inf, (k, 2), np.float64),
            "choices": spaces.MultiDiscrete(np.full((2 * k,), 1000)),
            "bits": spaces.MultiBinary((k, 8)),
            "dict": spaces.Dict({"observation": spaces.Box(-9, 9, (2 * k,)), "goal": spaces.Discrete(1000)}),
            "goals": spaces.Dict(
                {"observation": spaces.Box(0, 999, (2 * k,)), "achieved_goal": NUMBER, "desired_goal": NUMBER}
            ),
        }[kind]

    def observation(self, numbers: list[int]) -> Any:
        """Return the environment's observation with these frames."""
        frames = [np.array([number, number + 1]) for number in numbers]
        if self.kind == "last":
            return np.stack([np.full((2, 3), number) for number in numbers], -1).astype(np.uint8)
        if self.kind == "first":
            return np.stack(frames).astype(np.float64)
        if self.kind == "choices":
            return np.concatenate(frames)
        if self.kind == "bits":
            return np.stack([np.unpackbits(np.array([number], np.uint8)) for number in numbers]).astype(np.int8)
        stack = np.concatenate(frames).astype(np.float32)
        if self.kind == "goals":
            return {"observation": stack, "achieved_goal": [numbers[-1]], "desired_goal": [OWN_GOAL]}
        return {"observation": stack, "goal": numbers[-1]}

    def expected_batch(self, stacks: list[list[int]]) -> Any:
        """Return the expected batch of these stacks."""
        each = [self.observation(stack) for stack in stacks]
        if self.kind in ("dict", "goals"):
            dtypes = {"goal": np.int32}
            return {name: np.array([one[name] for one in each], dtypes.get(name, np.float32)) for name in each[0]}
        dtypes = {"last": np.uint8, "choices": np.int32, "bits": np.int8}
        return np.array(each, dtypes.get(self.kind, np.float32))


@dataclass(eq=False)
class Added:
    """One transition, with links to the others of its episode."""

    number_added: int
    lane: int
    shown: list[int]  # frames of the observation
    following: list[int]
    reward: float
    terminated: bool
    truncated: bool
    score: float
    before: Added | None = None
    after: Added | None = None


class History:
    """A memory and its model, which receive the same transitions.

    Args:
        capacity: of the memory.
        layout: of its observations.
        n_step: see `Replay`.
        prioritized: whether sampling is prioritized.
        relabel: Hindsight, Triplets or None.
        folder: for the files of the memory; None keeps it in RAM.
    """

    def __init__(
        self,
        capacity: int,
        layout: Layout,
        n_step: int,
        prioritized: bool,
        relabel: type[Relabel] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.capacity, self.layout, self.n_step, self.prioritized = capacity, layout, n_step, prioritized
        self.relabel, self.folder = relabel, folder
        self.alpha = 0.6  # of the priorities
        self.replay = self.new_replay()
        self.stored: list[Added] = []
        self.masked: set[int] = set()  # insertion numbers
        self.newest: dict[int, Added] = {}
        self.current: dict[int, list[int]] = {}  # lane -> its current frames
        self.samples: list[tuple[Any, list[Added]]] = []  # samples without feedback so far
        self.number = self.count = 0
        self.largest: float | None = None

    def new_replay(self) -> Replay:
        sampler = Prioritized(alpha=self.alpha) if self.prioritized else None
        relabel = self.relabel and self.relabel()
        if isinstance(relabel, Hindsight):
            relabel.attach(Rule())
        replay = Replay(
            self.capacity,
            sampler=sampler,
            relabel=relabel,
            n_step=self.n_step,
            frame_stack=self.layout.frames,
            memmap=self.folder,
        )
        replay.build(self.layout.space, spaces.Discrete(5))
        return replay

    def add(self, lane: int, ending: str | None, times: int) -> None:
        for step in range(times):
            self._add(lane, ending if step == times - 1 else None)

    def _add(self, lane: int, ending: str | None) -> None:
        k = self.layout.frames or 1
        self.number = self.number % 250 + 1
        shown = self.current.pop(lane, None) or [self.number] * k
        self.number = self.number % 250 + 1
        following = [*shown[1:], self.number]
        score = INITIAL if self.largest is None else self.largest
        over = ending in ("terminated", "both"), ending in ("truncated", "both")
        added = Added(self.count, lane, shown, following, self.number / 8, *over, score)
        now, then = self.layout.observation(shown), self.layout.observation(following)
        row = self.replay.add(lane, now, self.count % 5, added.reward, then, *over)
        assert row == self.count % self.capacity
        before = self.newest.pop(lane, None)
        if before is not None:
            before.after, added.before = added, before
        if not ending:
            self.newest[lane], self.current[lane] = added, following
        self.count += 1
        self.stored.append(added)
        self._evict(len(self.stored) - self.capacity)

    def _evict(self, count: int) -> None:
        """Remove the oldest transitions from the model."""
        for evicted in self.stored[: max(0, count)]:
            if evicted.after is not None:
                evicted.after.before = None
            self.newest = {lane: added for lane, added in self.newest.items() if added is not evicted}
        self.stored = self.stored[max(0, count) :]

    def interrupt(self, lane: int, reset: bool) -> None:
        """Interrupt a lane; without a reset, its next stack holds frames that are not stored."""
        self.replay.interrupt(lane)
        self.newest.pop(lane, None)
        if reset:
            self.current.pop(lane, None)

    def drop(self, count: int) -> None:
        self.replay.drop_oldest(count)
        self._evict(min(count, len(self.stored)))

    def keep(self, bits: int) -> None:
        kept = [each for place, each in enumerate(self.stored) if bits >> place % 20 & 1]
        self.replay.keep(self.indices(kept))
        self.masked = {each.number_added for each in self.stored} - {each.number_added for each in kept}

    def feedback(self, scores: list[tuple[int, float]]) -> None:
        """Feed back scores of a sample, of which one transition may have been overwritten since."""
        unmasked = self.unmasked()
        if not unmasked or not self.prioritized:
            return
        chosen = [unmasked[place % len(unmasked)] for place, _ in scores]
        sample = sample_of(self.replay, self.indices(chosen)[None])
        if len(self.stored) == self.capacity:
            self._add(9, "truncated")
        errors = np.array([[score for _, score in scores]], np.float32)
        self.replay.feedback(sample, {"td_error": errors})
        final = {each: score for each, (_, score) in zip(chosen, scores, strict=True) if each in self.stored}
        final = {each: score for each, score in final.items() if np.isfinite(score)}
        for each, score in final.items():
            each.score = score
        if final:
            self.largest = max([*final.values(), self.largest or 0.0])

    def sample(self, count: int) -> None:
        """Sample transitions that get feedback later."""
        if self.prioritized and self.replay.num_sampleable():
            generator = np.random.default_rng(self.count)
            sample = self.replay.sample(1, min(count, self.replay.num_sampleable()), generator=generator)
            by_index = {each.number_added % self.capacity: each for each in self.stored}
            self.samples.append((sample, [by_index[row] for row in sample.indices[0].tolist()]))

    def late_feedback(self, score: float) -> None:
        """Feed back scores of the oldest sample."""
        if not self.samples:
            return
        sample, sampled = self.samples.pop(0)
        errors = score + np.arange(len(sampled), dtype=np.float32)
        self.replay.feedback(sample, {"td_error": errors[None]})
        final = {each: error for each, error in zip(sampled, errors.tolist(), strict=True) if each in self.stored}
        for each, error in final.items():
            each.score = error
        if final:
            self.largest = max([*final.values(), self.largest or 0.0])

    def exponent(self, alpha: float) -> None:
        """Change the exponent of the priorities."""
        if self.prioritized:
            self.alpha = self.replay.sampler.alpha = alpha

    def clear(self) -> None:
        self.replay.clear()
        self.stored, self.newest, self.masked, self.largest = [], {}, set(), None

    def restore(self, used: bool) -> None:
        """Continue with another memory that restored the state; `used` if it held transitions before."""
        other = self.new_replay()
        if used:
            observation = self.layout.observation([3] * (self.layout.frames or 1))
            for step in range(7):
                other.add(step % 2, observation, 0, 0.0, observation, step == 4, False)
            other.keep([other.capacity - 1] if len(other) == other.capacity else [])
            other._storage.episodes  # noqa: B018  (uses the episodes before the restore)
        self.samples.clear()
        other.set_state(self.replay.get_state())
        assert_same(other.get_state(), self.replay.get_state())
        self.replay = other

    def indices(self, added: list[Added]) -> Any:
        return np.array([each.number_added % self.capacity for each in added], np.int64)

    def unmasked(self) -> list[Added]:
        return [each for each in self.stored if each.number_added not in self.masked]

    def complete(self, added: Added) -> bool:
        """Return whether all frames of its stack are stored, or repeat the first stored frame."""
        episode, frames = self.episode(added), self.layout.frames or 1
        return episode.index(added) >= frames - 1 or len(set(episode[0].shown)) == 1

    def sampleable(self, added: Added) -> bool:
        least = 3 if self.relabel is Triplets else 1
        return self.complete(added) and sum(map(self.complete, self.episode(added))) >= least

    def look(self) -> None:
        """Compare the memory with the model."""
        check_replay(self.replay)
        unmasked = self.unmasked()
        sampleable = [each for each in unmasked if self.sampleable(each)]
        assert (len(self.replay), self.replay.num_sampleable()) == (len(self.stored), len(sampleable))
        if not self.stored:
            return
        self._compare_episodes()
        if self.relabel is not Triplets and any(map(self.complete, self.stored)):
            self._compare_batch()
        if unmasked:
            self._compare_probabilities(unmasked)
        if sampleable:
            self._compare_samples(sampleable)

    def _compare_batch(self) -> None:
        complete = [each for each in self.stored if self.complete(each)]
        rows = self.indices(complete)[None]
        own = {"goal": np.full(rows.shape, -1)}
        batch = self.replay.gather(Sample(rows, np.ones(rows.shape, np.float32), own), gamma=GAMMA)
        expected = [self._expected(each, None) for each in complete]
        np.testing.assert_array_equal(batch.reward[0], np.array([each[0] for each in expected], np.float32))
        np.testing.assert_array_equal(batch.discount[0], np.array([each[1] for each in expected], np.float32))
        assert batch.action[0].tolist() == [each.number_added % 5 for each in complete]
        stacks = [each.shown for each in complete]
        for seen, numbers in (
            (batch.observation, stacks),
            (batch.next_observation, [each[2] for each in expected]),
        ):
            wanted = self.layout.expected_batch(numbers)
            parts = seen if isinstance(seen, dict) else {"": seen}
            for name, part in parts.items():
                assert_same(part[0], wanted[name] if isinstance(wanted, dict) else wanted)

    def _compare_episodes(self) -> None:
        episodes, rows = self.replay._storage.episodes, self.indices(self.stored)
        whole = [self.episode(each) for each in self.stored]
        place = [episode.index(each) for episode, each in zip(whole, self.stored, strict=True)]
        assert len(episodes._first) - len(episodes._free) == sum(each.after is None for each in self.stored)
        assert episodes.before(rows).tolist() == place
        assert (episodes.before(rows) + episodes.after(rows) + 1).tolist() == [len(each) for each in whole]
        start, end = (episodes.shifted(rows, by) for by in (-episodes.before(rows), episodes.after(rows)))
        assert start.tolist() == self.indices([each[0] for each in whole]).tolist()
        assert end.tolist() == self.indices([each[-1] for each in whole]).tolist()
        later = self.indices([each for each in self.stored if each.before is not None])
        previous = self.indices([each.before for each in self.stored if each.before is not None])
        assert episodes.shifted(later, -1).tolist() == previous.tolist()
        none = [each.after is None for each in self.stored]
        following = self.indices([each.after or each for each in self.stored])
        assert next_indices(self.replay._storage, rows).tolist() == np.where(none, -1, following).tolist()

    def episode(self, added: Added) -> list[Added]:
        """Return the stored transitions of its episode, the oldest first."""
        episode = [added]
        while episode[0].before is not None:
            episode.insert(0, episode[0].before)
        while episode[-1].after is not None:
            episode.append(episode[-1].after)
        return episode

    def _expected(self, added: Added, goal: int | None) -> tuple[float, float, list[int]]:
        """Return reward, discount and next stack of a transition, under another goal or (None) its own."""
        total, discount, at = 0.0, 1.0, added
        for step in range(self.n_step):
            achieved = at.following[-1]
            reward = at.reward if goal is None else achieved + goal / 1024
            over = at.terminated if goal is None else (achieved + goal) % 3 == 0
            total, discount = total + discount * reward, discount * GAMMA
            if over or at.after is None or step == self.n_step - 1:
                break
            at = at.after
        return total, 0.0 if over else discount, at.following

    def _compare_probabilities(self, unmasked: list[Added]) -> None:
        scores = [np.float64(np.float32(each.score)) + 1e-7 for each in unmasked]
        powers = np.array(scores) ** self.alpha if self.prioritized else np.ones(len(unmasked))
        chances = powers / powers.sum()
        np.testing.assert_allclose(self.replay.sampler.probabilities(), chances, rtol=1e-9)
        plain = np.array(scores) / np.sum(scores) if self.prioritized else chances
        np.testing.assert_allclose(self.replay.sampler.probabilities(alpha=False), plain, rtol=1e-9)
        size = 1 / np.square(chances).sum()
        np.testing.assert_allclose(self.replay.effective_sample_size(), size, rtol=1e-9)

    def _compare_samples(self, sampleable: list[Added]) -> None:
        state = self.replay.get_state()["sampler"]
        sample = self.replay.sample(2, len(sampleable), generator=np.random.default_rng(self.count))
        by_index = {each.number_added % self.capacity: each for each in self.stored}
        allowed = set(self.indices(sampleable).tolist())
        assert set(sample.indices.ravel().tolist()) <= allowed
        once = self.replay.sample_pass(len(sampleable), generator=np.random.default_rng(0))
        if self.prioritized:
            assert once.indices.shape == (1, len(sampleable)) and set(once.indices.ravel().tolist()) <= allowed
        else:
            assert sorted(once.indices.ravel().tolist()) == sorted(allowed)
        assert_same(self.replay.get_state()["sampler"], state)
        for rows, weights in zip(sample.indices, sample.weight, strict=True):
            scores = np.array([np.float64(np.float32(by_index[row].score)) + 1e-7 for row in rows.tolist()])
            powers = scores**self.alpha if self.prioritized else np.ones(len(rows))
            np.testing.assert_allclose(weights, (powers / powers.min()) ** -0.4, rtol=1e-5)
        batch = self.replay.gather(sample, gamma=GAMMA)
        np.testing.assert_array_equal(batch.weight, sample.weight)
        for place in np.ndindex(*sample.indices.shape):
            each = by_index[int(sample.indices[place])]
            if self.relabel is Triplets:
                self._compare_triplet(batch, place, each, [by_index[row] for row in sample.choices["triplet"][place]])
            elif self.relabel is Hindsight:
                self._compare_goal(batch, place, each, by_index.get(int(sample.choices["goal"][place])))

    def _compare_goal(self, batch: Batch, place: Any, each: Added, source: Added | None) -> None:
        goal = source and source.following[-1]
        episode = self.episode(each)
        assert source is None or source in episode[episode.index(each) :]
        total, discount, following = self._expected(each, goal)
        assert batch.reward[place] == np.float32(total) and batch.discount[place] == np.float32(discount)
        for seen, numbers in ((batch.observation, each.shown), (batch.next_observation, following)):
            wanted = self.layout.observation(numbers) | {"desired_goal": [OWN_GOAL if goal is None else goal]}
            for name, part in wanted.items():
                np.testing.assert_array_equal(seen[name][place], part)

    def _compare_triplet(self, batch: Batch, place: Any, each: Added, triplet: list[Added]) -> None:
        episode = self.episode(each)
        places = [episode.index(one) for one in triplet]
        assert each in triplet and all(map(self.complete, triplet)) and places[0] < places[1] < places[2]
        assert batch.reward[place].tolist() == [np.float32(one.reward) for one in triplet[:2]]
        assert batch.discount[place].tolist() == [np.float32(GAMMA)] * 2
        assert batch.action[place].tolist() == [one.number_added % 5 for one in triplet[:2]]
        stacks = [one.shown for one in triplet]
        wanted = self.layout.expected_batch(stacks[:2])
        np.testing.assert_array_equal(batch.observation[place], wanted)
        last = self.layout.expected_batch([stacks[1], triplet[2].following])
        np.testing.assert_array_equal(batch.next_observation[place], last)
