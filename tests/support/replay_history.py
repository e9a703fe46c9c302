"""A memory of every composition beside a plain list of what was added: slow, and plain to see that it is right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.replay import Hindsight, Prioritized, Relabel, Replay, Sample, Triplets
from noterl.types import Batch
from tests.support.prioritized_memory import sample_of
from tests.support.replay_model import assert_same

GAMMA = 0.9
INITIAL = 7.0  # the score of a new transition, until there is feedback
NUMBER = spaces.Box(0.0, 999.0, (1,), np.float32)
OWN_GOAL = 500


class Rule:
    """What is earned under a goal, and whether the episode ends: functions that tell all pairs apart."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal + desired_goal / 1024)[:, 0]

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal + desired_goal)[:, 0] % 3 == 0


class Layout:
    """How frames of numbers make up an observation; `frames` is k, or None for observations that are no stacks."""

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
        """The observation that shows these frames, as the environment gives it."""
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

    def delivered(self, stacks: list[list[int]]) -> Any:
        """What a batch of these stacks must be."""
        each = [self.observation(stack) for stack in stacks]
        if self.kind in ("dict", "goals"):
            dtypes = {"goal": np.int32}
            return {name: np.array([one[name] for one in each], dtypes.get(name, np.float32)) for name in each[0]}
        dtypes = {"last": np.uint8, "choices": np.int32, "bits": np.int8}
        return np.array(each, dtypes.get(self.kind, np.float32))


@dataclass(eq=False)
class Added:
    """One transition, with links to the others of its episode."""

    generation: int
    lane: int
    shown: list[int]  # the frames that the environment showed
    following: list[int]
    reward: float
    terminated: bool
    truncated: bool
    score: float
    before: Added | None = None
    after: Added | None = None


class History:
    """A memory and its model, driven together.

    Args:
        capacity: of the memory.
        layout: of its observations.
        n_step: see `Replay`.
        prioritized: whether sampling is.
        relabel: Hindsight, Triplets or None.
        folder: where it lies on disk; None for in memory.
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
        self.replay = self.fresh()
        self.live: list[Added] = []
        self.hidden: set[int] = set()  # generations
        self.open: dict[int, Added] = {}
        self.now: dict[int, list[int]] = {}  # lane -> what it shows
        self.drawn: list[tuple[Any, list[Added]]] = []  # rows that the loss has yet to speak of
        self.number = self.count = 0
        self.largest: float | None = None

    def fresh(self) -> Replay:
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
        for _ in range(times):
            self._add(lane, ending if _ == times - 1 else None)

    def _add(self, lane: int, ending: str | None) -> None:
        k = self.layout.frames or 1
        self.number = self.number % 250 + 1
        shown = self.now.pop(lane, None) or [self.number] * k
        self.number = self.number % 250 + 1
        following = [*shown[1:], self.number]
        score = INITIAL if self.largest is None else self.largest
        over = ending in ("terminated", "both"), ending in ("truncated", "both")
        added = Added(self.count, lane, shown, following, self.number / 8, *over, score)
        now, then = self.layout.observation(shown), self.layout.observation(following)
        row = self.replay.add(lane, now, self.count % 5, added.reward, then, *over)
        assert row == self.count % self.capacity
        before = self.open.pop(lane, None)
        if before is not None:
            before.after, added.before = added, before
        if not ending:
            self.open[lane], self.now[lane] = added, following
        self.count += 1
        self.live.append(added)
        self._die(len(self.live) - self.capacity)

    def _die(self, count: int) -> None:
        """The oldest are no part of anything any more."""
        for dead in self.live[: max(0, count)]:
            if dead.after is not None:
                dead.after.before = None
            self.open = {lane: added for lane, added in self.open.items() if added is not dead}
        self.live = self.live[max(0, count) :]

    def interrupt(self, lane: int, reset: bool) -> None:
        """Break a lane off; without a reset the environment goes on, and shows frames the memory never had."""
        self.replay.interrupt(lane)
        self.open.pop(lane, None)
        if reset:
            self.now.pop(lane, None)

    def drop(self, count: int) -> None:
        self.replay.drop_oldest(count)
        self._die(min(count, len(self.live)))

    def keep(self, bits: int) -> None:
        kept = [each for place, each in enumerate(self.live) if bits >> place % 20 & 1]
        self.replay.keep(self.rows(kept))
        self.hidden = {each.generation for each in self.live} - {each.generation for each in kept}

    def feedback(self, scores: list[tuple[int, float]]) -> None:
        """Feed back what the loss says of rows that were drawn, one of them since overwritten."""
        drawable = self.drawable()
        if not drawable or not self.prioritized:
            return
        chosen = [drawable[place % len(drawable)] for place, _ in scores]
        sample = sample_of(self.replay, self.rows(chosen)[None])
        if len(self.live) == self.capacity:
            self._add(9, "truncated")
        errors = np.array([[score for _, score in scores]], np.float32)
        self.replay.feedback(sample, {"td_error": errors})
        final = {each: score for each, (_, score) in zip(chosen, scores, strict=True) if each in self.live}
        final = {each: score for each, score in final.items() if np.isfinite(score)}
        for each, score in final.items():
            each.score = score
        if final:
            self.largest = max([*final.values(), self.largest or 0.0])

    def draw(self, count: int) -> None:
        """Draw rows, of which the loss will say something later."""
        if self.prioritized and self.replay.num_sampleable():
            generator = np.random.default_rng(self.count)
            sample = self.replay.sample(1, min(count, self.replay.num_sampleable()), generator=generator)
            by_row = {each.generation % self.capacity: each for each in self.live}
            self.drawn.append((sample, [by_row[row] for row in sample.indices[0].tolist()]))

    def late(self, score: float) -> None:
        """Feed back what the loss says of the oldest rows that were drawn for it."""
        if not self.drawn:
            return
        sample, drawn = self.drawn.pop(0)
        errors = score + np.arange(len(drawn), dtype=np.float32)
        self.replay.feedback(sample, {"td_error": errors[None]})
        final = {each: error for each, error in zip(drawn, errors.tolist(), strict=True) if each in self.live}
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
        self.live, self.open, self.hidden, self.largest = [], {}, set(), None

    def restore(self, used: bool) -> None:
        """Go on with another memory that took the state; `used` says whether it held something before."""
        other = self.fresh()
        if used:
            observation = self.layout.observation([3] * (self.layout.frames or 1))
            for step in range(7):
                other.add(step % 2, observation, 0, 0.0, observation, step == 4, False)
            other.keep([other.capacity - 1] if len(other) == other.capacity else [])
            other._storage.episodes  # noqa: B018  (what it knows is then of another past)
        self.drawn.clear()
        other.set_state(self.replay.get_state())
        assert_same(other.get_state(), self.replay.get_state())
        self.replay = other

    def rows(self, added: list[Added]) -> Any:
        return np.array([each.generation % self.capacity for each in added], np.int64)

    def drawable(self) -> list[Added]:
        return [each for each in self.live if each.generation not in self.hidden]

    def complete(self, added: Added) -> bool:
        """Whether all frames of its stack are in the memory, or repeat the first one that is."""
        episode, frames = self.episode(added), self.layout.frames or 1
        return episode.index(added) >= frames - 1 or len(set(episode[0].shown)) == 1

    def usable(self, added: Added) -> bool:
        least = 3 if self.relabel is Triplets else 1
        return self.complete(added) and sum(map(self.complete, self.episode(added))) >= least

    def look(self) -> None:
        """Hold everything that can be seen of the memory against the model."""
        self.replay.check()
        drawable = self.drawable()
        usable = [each for each in drawable if self.usable(each)]
        assert (len(self.replay), self.replay.num_sampleable()) == (len(self.live), len(usable))
        if not self.live:
            return
        self._look_at_episodes()
        if self.relabel is not Triplets and any(map(self.complete, self.live)):
            self._look_at_batch()
        if drawable:
            self._look_at_chances(drawable)
        if usable:
            self._look_at_draws(usable)

    def _look_at_batch(self) -> None:
        complete = [each for each in self.live if self.complete(each)]
        rows = self.rows(complete)[None]
        own = {"goal": np.full(rows.shape, -1)}
        batch = self.replay.gather(Sample(rows, np.ones(rows.shape, np.float32), own), gamma=GAMMA)
        expected = [self._expected(each, None) for each in complete]
        np.testing.assert_array_equal(batch.reward[0], np.array([each[0] for each in expected], np.float32))
        np.testing.assert_array_equal(batch.discount[0], np.array([each[1] for each in expected], np.float32))
        assert batch.action[0].tolist() == [each.generation % 5 for each in complete]
        stacks = [each.shown for each in complete]
        for seen, numbers in (
            (batch.observation, stacks),
            (batch.next_observation, [each[2] for each in expected]),
        ):
            wanted = self.layout.delivered(numbers)
            parts = seen if isinstance(seen, dict) else {"": seen}
            for name, part in parts.items():
                assert_same(part[0], wanted[name] if isinstance(wanted, dict) else wanted)

    def _look_at_episodes(self) -> None:
        episodes, rows = self.replay._storage.episodes, self.rows(self.live)
        whole = [self.episode(each) for each in self.live]
        place = [episode.index(each) for episode, each in zip(whole, self.live, strict=True)]
        assert len(episodes._first) - len(episodes._free) == sum(each.after is None for each in self.live)
        assert episodes.before(rows).tolist() == place
        assert (episodes.before(rows) + episodes.after(rows) + 1).tolist() == [len(each) for each in whole]
        assert episodes.start(rows).tolist() == self.rows([each[0] for each in whole]).tolist()
        assert episodes.end(rows).tolist() == self.rows([each[-1] for each in whole]).tolist()
        none = [each.before is None for each in self.live]
        previous = self.rows([each.before or each for each in self.live])
        assert episodes.previous(rows).tolist() == np.where(none, -1, previous).tolist()
        none = [each.after is None for each in self.live]
        following = self.rows([each.after or each for each in self.live])
        assert self.replay._storage.next_indices(rows).tolist() == np.where(none, -1, following).tolist()

    def episode(self, added: Added) -> list[Added]:
        """The live transitions of its episode so far, the oldest first."""
        episode = [added]
        while episode[0].before is not None:
            episode.insert(0, episode[0].before)
        while episode[-1].after is not None:
            episode.append(episode[-1].after)
        return episode

    def _expected(self, added: Added, goal: int | None) -> tuple[float, float, list[int]]:
        """Reward, discount and next stack of a transition, under another goal or (None) its own."""
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

    def _look_at_chances(self, drawable: list[Added]) -> None:
        scores = [np.float64(np.float32(each.score)) + 1e-7 for each in drawable]
        powers = np.array(scores) ** self.alpha if self.prioritized else np.ones(len(drawable))
        chances = powers / powers.sum()
        np.testing.assert_allclose(self.replay.sampler.probabilities(), chances, rtol=1e-9)
        plain = np.array(scores) / np.sum(scores) if self.prioritized else chances
        np.testing.assert_allclose(self.replay.sampler.probabilities(alpha=False), plain, rtol=1e-9)
        size = 1 / np.square(chances).sum()
        np.testing.assert_allclose(self.replay.effective_sample_size(), size, rtol=1e-9)
        lanes = {each.lane for each in drawable}
        by_lane = self.replay.effective_sample_size(by_lane=True)
        for lane in lanes:
            own = powers[[each.lane == lane for each in drawable]]
            np.testing.assert_allclose(by_lane[lane], own.sum() ** 2 / np.square(own).sum(), rtol=1e-9)
        assert set(by_lane) == lanes

    def _look_at_draws(self, usable: list[Added]) -> None:
        state = self.replay.get_state()["sampler"]
        drawn = self.replay.sample(2, len(usable), generator=np.random.default_rng(self.count))
        by_row = {each.generation % self.capacity: each for each in self.live}
        allowed = set(self.rows(usable).tolist())
        assert set(drawn.indices.ravel().tolist()) <= allowed
        once = self.replay.sample_pass(len(usable), generator=np.random.default_rng(0))
        assert sorted(once.indices.ravel().tolist()) == sorted(allowed)
        assert_same(self.replay.get_state()["sampler"], state)
        for rows, weights in zip(drawn.indices, drawn.weight, strict=True):
            scores = np.array([np.float64(np.float32(by_row[row].score)) + 1e-7 for row in rows.tolist()])
            powers = scores**self.alpha if self.prioritized else np.ones(len(rows))
            np.testing.assert_allclose(weights, (powers / powers.min()) ** -0.4, rtol=1e-5)
        batch = self.replay.gather(drawn, gamma=GAMMA)
        np.testing.assert_array_equal(batch.weight, drawn.weight)
        for place in np.ndindex(*drawn.indices.shape):
            each = by_row[int(drawn.indices[place])]
            if self.relabel is Triplets:
                self._look_at_triplet(batch, place, each, [by_row[row] for row in drawn.choices["triplet"][place]])
            elif self.relabel is Hindsight:
                self._look_at_goal(batch, place, each, by_row.get(int(drawn.choices["goal"][place])))

    def _look_at_goal(self, batch: Batch, place: Any, each: Added, source: Added | None) -> None:
        goal = source and source.following[-1]
        episode = self.episode(each)
        assert source is None or source in episode[episode.index(each) :]
        total, discount, following = self._expected(each, goal)
        assert batch.reward[place] == np.float32(total) and batch.discount[place] == np.float32(discount)
        for seen, numbers in ((batch.observation, each.shown), (batch.next_observation, following)):
            wanted = self.layout.observation(numbers) | {"desired_goal": [OWN_GOAL if goal is None else goal]}
            for name, part in wanted.items():
                np.testing.assert_array_equal(seen[name][place], part)

    def _look_at_triplet(self, batch: Batch, place: Any, each: Added, triplet: list[Added]) -> None:
        episode = self.episode(each)
        places = [episode.index(one) for one in triplet]
        assert each in triplet and all(map(self.complete, triplet)) and places[0] < places[1] < places[2]
        assert batch.reward[place].tolist() == [np.float32(one.reward) for one in triplet[:2]]
        assert batch.discount[place].tolist() == [np.float32(GAMMA)] * 2
        assert batch.action[place].tolist() == [one.generation % 5 for one in triplet[:2]]
        stacks = [one.shown for one in triplet]
        wanted = self.layout.delivered(stacks[:2])
        np.testing.assert_array_equal(batch.observation[place], wanted)
        last = self.layout.delivered([stacks[1], triplet[2].following])
        np.testing.assert_array_equal(batch.next_observation[place], last)
