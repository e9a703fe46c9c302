"""A slow, simple model of a memory with goals, as a list, for comparison with the real one.

Observations and goals are numbers that occur once. Rewards and terminations are functions that distinguish all pairs of
goals, so each field of a batch identifies its origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.replay import Replay

NUMBER = spaces.Box(0.0, np.inf, (1,), np.float32)
OBSERVATIONS = spaces.Dict({"observation": NUMBER, "achieved_goal": NUMBER, "desired_goal": NUMBER})
GAMMA = 0.5


class Rule:
    """The reward for a goal; every third pair of goals terminates. It records its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        assert len(info) == len(achieved_goal) and all(one == {} for one in info)
        self.calls.append(len(info))
        return reward_of(achieved_goal[:, 0], desired_goal[:, 0])

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return is_terminated(achieved_goal[:, 0], desired_goal[:, 0])


def reward_of(achieved: Any, desired: Any) -> Any:
    return achieved + desired / 4096


def is_terminated(achieved: Any, desired: Any) -> Any:
    return (achieved + 2 * desired) % 3 == 0


@dataclass
class Stored:
    index: int
    lane: int
    episode: int
    number: int
    desired: int
    reward: float
    terminated: bool
    next_number: int  # the number of the next observation; the achieved goal is this number + 1000


def observe(number: int, desired: int) -> dict[str, Any]:
    return {"observation": [number], "achieved_goal": [number + 1000], "desired_goal": [desired]}


class Goals:
    """A memory and its model, which receive the same calls."""

    def __init__(self, capacity: int, **keywords: Any) -> None:
        self.rule, self.keywords = Rule(), keywords
        self.replay = self.new_replay(capacity)
        self.stored: list[Stored] = []
        self.hidden: set[int] = set()  # numbers
        self.current: dict[int, tuple[int, int]] = {}  # lane -> episode, current observation
        self.number = self.episode = 0

    def new_replay(self, capacity: int) -> Replay:
        keywords = {name: make() if callable(make) else make for name, make in self.keywords.items()}
        replay = Replay(capacity, **keywords)
        if replay.relabel is not None:
            replay.relabel.attach(self.rule)
        replay.build(OBSERVATIONS, spaces.Discrete(4))
        return replay

    def add(self, lane: int, ending: str | None) -> None:
        if lane not in self.current:
            self.episode += 1
            self.number += 1
            self.current[lane] = self.episode, self.number
        episode, number = self.current[lane]
        self.number += 1
        stored = Stored(-1, lane, episode, number, 5000 + episode, self.number / 8, ending == "terminated", self.number)
        stored.index = self.replay.add(
            lane,
            observe(number, stored.desired),
            number % 4,
            stored.reward,
            observe(stored.next_number, stored.desired),
            stored.terminated,
            ending == "truncated",
        )
        self.stored = [*self.stored, stored][-self.replay.capacity :]
        self.current[lane] = episode, self.number
        if ending:
            del self.current[lane]

    def interrupt(self, lane: int) -> None:
        self.replay.interrupt(lane)
        self.current.pop(lane, None)

    def keep(self, step: int) -> None:
        """Hide all stored transitions except every `step`-th."""
        if self.stored:
            kept = self.stored[::step]
            self.replay.keep(np.array([each.index for each in kept]))
            self.hidden = {each.number for each in self.stored if each not in kept}

    def restore(self) -> None:
        state = self.replay.get_state()
        self.replay = self.new_replay(self.replay.capacity)
        self.replay.set_state(state)

    def sampleable(self) -> list[Stored]:
        return [each for each in self.stored if each.number not in self.hidden]

    def successors(self, stored: Stored) -> list[Stored]:
        """Return the transitions of its episode from this one on."""
        return [each for each in self.stored if each.episode == stored.episode and each.number >= stored.number]

    def goals(self, stored: Stored, strategy: str) -> set[int]:
        """Return the goals with which hindsight may replace its own."""
        episode = [each for each in self.stored if each.episode == stored.episode]
        chosen = {"future": self.successors(stored), "final": episode[-1:], "episode": episode}[strategy]
        return {each.next_number + 1000 for each in chosen}

    def expected(self, stored: Stored, goal: int | None, n_step: int) -> tuple[Any, ...]:
        """Return reward, discount and number of the next observation under `goal`, or its own goal if None."""
        total, discount = 0.0, 1.0
        for each in self.successors(stored)[:n_step]:
            achieved = each.next_number + 1000
            reward = each.reward if goal is None else reward_of(achieved, goal)
            over = each.terminated if goal is None else bool(is_terminated(achieved, goal))
            total, discount = total + discount * reward, discount * GAMMA
            if over:
                discount = 0.0
                break
        return total, discount, each.next_number
