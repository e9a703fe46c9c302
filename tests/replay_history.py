"""A memory of every composition beside a plain list of what was added: slow, and plain to see that it is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.replay import Drawn, Prioritized, Replay
from tests.replay_model import assert_same

GAMMA = 0.9
INITIAL = 7.0  # the score of a new transition, until there is feedback


class Layout:
    """How frames of numbers make up an observation; `frames` is k, or None for observations that are no stacks."""

    def __init__(self, kind: str, frames: int | None) -> None:
        self.kind, self.frames = kind, frames
        k = frames or 1
        self.space: spaces.Space[Any] = {
            "last": spaces.Box(0, 255, (2, 3, k), np.uint8),
            "first": spaces.Box(-np.inf, np.inf, (k, 2), np.float64),
            "dict": spaces.Dict({"observation": spaces.Box(-9, 9, (2 * k,)), "goal": spaces.Discrete(1000)}),
        }[kind]

    def observation(self, numbers: list[int]) -> Any:
        """The observation that shows these frames, as the environment gives it."""
        frames = [np.array([number, number + 1]) for number in numbers]
        if self.kind == "last":
            return np.stack([np.full((2, 3), number) for number in numbers], -1).astype(np.uint8)
        if self.kind == "first":
            return np.stack(frames).astype(np.float64)
        return {"observation": np.concatenate(frames).astype(np.float32), "goal": numbers[-1]}

    def delivered(self, stacks: list[list[int]]) -> Any:
        """What a batch of these stacks must be."""
        each = [self.observation(stack) for stack in stacks]
        if self.kind == "dict":
            return {
                "observation": np.array([one["observation"] for one in each]),
                "goal": np.array([one["goal"] for one in each], np.int32),
            }
        return np.array(each, each[0].dtype if self.kind == "last" else np.float32)


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
    """

    def __init__(self, capacity: int, layout: Layout, n_step: int, prioritized: bool) -> None:
        self.capacity, self.layout, self.n_step, self.prioritized = capacity, layout, n_step, prioritized
        self.replay = self.fresh()
        self.live: list[Added] = []
        self.hidden: set[int] = set()  # generations
        self.open: dict[int, Added] = {}
        self.now: dict[int, list[int]] = {}  # lane -> what it shows
        self.number = self.count = 0
        self.largest: float | None = None

    def fresh(self) -> Replay:
        sampler = Prioritized(alpha=0.6) if self.prioritized else None
        replay = Replay(self.capacity, sampler=sampler, n_step=self.n_step, frame_stack=self.layout.frames)
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
        self.replay._feedback.note(self.rows(chosen))
        if len(self.live) == self.capacity:
            self._add(9, "truncated")
        errors = np.array([[score for _, score in scores]], np.float32)
        self.replay.feedback(self.rows(chosen)[None], {"td_error": errors})
        final = {each: score for each, (_, score) in zip(chosen, scores, strict=True) if each in self.live}
        for each, score in final.items():
            each.score = score
        if final:
            self.largest = max([*final.values(), self.largest or 0.0])

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
        other.set_state(self.replay.get_state())
        assert_same(other.get_state(), self.replay.get_state())
        self.replay = other

    def rows(self, added: list[Added]) -> Any:
        return np.array([each.generation % self.capacity for each in added], np.int64)

    def drawable(self) -> list[Added]:
        return [each for each in self.live if each.generation not in self.hidden]

    def stack(self, added: Added) -> list[int]:
        """The frames that the memory has for a transition."""
        numbers, at = [added.shown[-1]], added
        for _ in range((self.layout.frames or 1) - 1):
            at = at.before or at
            numbers = [at.shown[-1], *numbers]
        return numbers

    def look(self) -> None:
        """Hold everything that can be seen of the memory against the model."""
        self.replay.check()
        drawable = self.drawable()
        assert (len(self.replay), self.replay.drawable) == (len(self.live), len(drawable))
        if not self.live:
            return
        self._look_at_episodes()
        rows = self.rows(self.live)[None]
        batch = self.replay.gather(Drawn(rows, np.ones(rows.shape, np.float32)), gamma=GAMMA)
        expected = [self._expected(each) for each in self.live]
        np.testing.assert_array_equal(batch.reward[0], np.array([each[0] for each in expected], np.float32))
        np.testing.assert_array_equal(batch.discount[0], np.array([each[1] for each in expected], np.float32))
        stacks = [self.stack(each) for each in self.live]
        for seen, numbers in (
            (batch.observation, stacks),
            (batch.next_observation, [each[2] for each in expected]),
        ):
            wanted = self.layout.delivered(numbers)
            parts = seen if isinstance(seen, dict) else {"": seen}
            for name, part in parts.items():
                assert_same(part[0], wanted[name] if isinstance(wanted, dict) else wanted)
        if drawable:
            self._look_at_chances(drawable)

    def _look_at_episodes(self) -> None:
        episodes, rows = self.replay._storage.episodes, self.rows(self.live)
        past, future = [], []
        for each in self.live:
            past.append([each])
            while past[-1][-1].before is not None:
                past[-1].append(past[-1][-1].before)
            future.append([each])
            while future[-1][-1].after is not None:
                future[-1].append(future[-1][-1].after)
        assert len(episodes._first) - len(episodes._free) == sum(each.after is None for each in self.live)
        assert episodes.before(rows).tolist() == [len(each) - 1 for each in past]
        assert episodes.after(rows).tolist() == [len(each) - 1 for each in future]
        assert episodes.start(rows).tolist() == self.rows([each[-1] for each in past]).tolist()
        assert episodes.end(rows).tolist() == self.rows([each[-1] for each in future]).tolist()
        none = [each.before is None for each in self.live]
        previous = self.rows([each.before or each for each in self.live])
        assert episodes.previous(rows).tolist() == np.where(none, -1, previous).tolist()
        none = [each.after is None for each in self.live]
        following = self.rows([each.after or each for each in self.live])
        assert self.replay._storage.next_row(rows).tolist() == np.where(none, -1, following).tolist()

    def _expected(self, added: Added) -> tuple[float, float, list[int]]:
        """Reward, discount and next stack of a transition."""
        total, discount, at = 0.0, 1.0, added
        for step in range(self.n_step):
            total, discount = total + discount * at.reward, discount * GAMMA
            if at.terminated or at.after is None or step == self.n_step - 1:
                break
            at = at.after
        following = [*self.stack(at), at.following[-1]][1:]
        return total, 0.0 if at.terminated else discount, following

    def _look_at_chances(self, drawable: list[Added]) -> None:
        scores = [np.float64(np.float32(each.score)) + 1e-7 for each in drawable]
        powers = np.array(scores) ** 0.6 if self.prioritized else np.ones(len(drawable))
        chances = powers / powers.sum()
        np.testing.assert_allclose(self.replay.sampler.probabilities(), chances, rtol=1e-9)
        size = 1 / np.square(chances).sum()
        np.testing.assert_allclose(self.replay.effective_sample_size(), size, rtol=1e-9)
        lanes = {each.lane for each in drawable}
        by_lane = self.replay.effective_sample_size(by_lane=True)
        for lane in lanes:
            own = powers[[each.lane == lane for each in drawable]]
            np.testing.assert_allclose(by_lane[lane], own.sum() ** 2 / np.square(own).sum(), rtol=1e-9)
        assert set(by_lane) == lanes
        state = self.replay.get_state()["sampler"]
        drawn = self.replay.draw(2, len(drawable), generator=np.random.default_rng(self.count))
        allowed = set(self.rows(drawable).tolist())
        assert set(drawn.rows.ravel().tolist()) <= allowed
        once = self.replay.draw_pass(len(drawable), generator=np.random.default_rng(0))
        assert sorted(once.rows.ravel().tolist()) == sorted(allowed)
        assert_same(self.replay.get_state()["sampler"], state)
