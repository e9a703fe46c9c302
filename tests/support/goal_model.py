"""A goal memory and a plain list that receive the same transitions.

Observations and goals are unique numbers, and rewards and terminations are different for all pairs of goals. So every
field of a batch shows which transition and goal it comes from.
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
    """Rewards under a goal; every third pair terminates. Counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        assert len(info) == len(achieved_goal) and all(one == {} for one in info)
        self.calls.append(len(info))
        return reward_under(achieved_goal[:, 0], desired_goal[:, 0])

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return is_terminated(achieved_goal[:, 0], desired_goal[:, 0])


def reward_under(achieved: Any, desired: Any) -> Any:
    return achieved + desired / 4096


def is_terminated(achieved: Any, desired: Any) -> Any:
    return (achieved + 2 * desired) % 3 == 0


@dataclass
class Stored:
    row: int
    lane: int
    episode: int
    number: int
    desired: int
    reward: float
    terminated: bool
    following: int  # number of the next observation; its achieved goal is 1000 more


def observe(number: int, desired: int) -> dict[str, Any]:
    return {"observation": [number], "achieved_goal": [number + 1000], "desired_goal": [desired]}


class Goals:
    """A memory and its model, which receive the same transitions."""

    def __init__(self, capacity: int, **keywords: Any) -> None:
        self.rule, self.keywords = Rule(), keywords
        self.replay = self.new_replay(capacity)
        self.stored: list[Stored] = []
        self.masked: set[int] = set()  # numbers
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
        stored.row = self.replay.add(
            lane,
            observe(number, stored.desired),
            number % 4,
            stored.reward,
            observe(stored.following, stored.desired),
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
        """Mask all but every `step`-th stored transition."""
        if self.stored:
            kept = self.stored[::step]
            self.replay.keep(np.array([each.row for each in kept]))
            self.masked = {each.number for each in self.stored if each not in kept}

    def restore(self) -> None:
        state = self.replay.get_state()
        self.replay = self.new_replay(self.replay.capacity)
        self.replay.set_state(state)

    def unmasked(self) -> list[Stored]:
        return [each for each in self.stored if each.number not in self.masked]

    def rest_of_episode(self, stored: Stored) -> list[Stored]:
        """Return the stored transitions of its episode, from this one to the end."""
        return [each for each in self.stored if each.episode == stored.episode and each.number >= stored.number]

    def goals(self, stored: Stored, strategy: str) -> set[int]:
        """Return the goals that hindsight may choose."""
        episode = [each for each in self.stored if each.episode == stored.episode]
        chosen = {"future": self.rest_of_episode(stored), "final": episode[-1:], "episode": episode}[strategy]
        return {each.following + 1000 for each in chosen}

    def expected(self, stored: Stored, goal: int | None, n_step: int) -> tuple[Any, ...]:
        """Return reward, discount and number of the next observation, under another goal or (None) its own."""
        total, discount = 0.0, 1.0
        for each in self.rest_of_episode(stored)[:n_step]:
            achieved = each.following + 1000
            reward = each.reward if goal is None else reward_under(achieved, goal)
            over = each.terminated if goal is None else bool(is_terminated(achieved, goal))
            total, discount = total + discount * reward, discount * GAMMA
            if over:
                discount = 0.0
                break
        return total, discount, each.following
