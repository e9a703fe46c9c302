"""Lanes: N scalar environments, stepped one after another in this process.

Owns: resets with a fresh seed per episode, and where each environment is. A round is one action for every lane; it is
stepped lane by lane, so that a budget may end and a run go on in the middle of a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl import envs
from noterl.collect.ledger import Checker, Ledger, resume, warn_afresh
from noterl.envs.observation import View, present
from noterl.types import Transition

if TYPE_CHECKING:
    from noterl.envs import EnvSource
    from noterl.random import Generators


class Lanes:
    """N environments under one interface.

    Args:
        source: where environments come from.
        num_envs: the number of lanes.
        generators: seeds come from the one named "environment/<lane>".

    Attributes:
        actions: of the present round; None between rounds.
        cursor: the lane that steps next in the round.
        waiting: lanes whose next step is dead; here there are none.
    """

    native = False
    waiting = None

    def __init__(self, source: EnvSource, num_envs: int, generators: Generators) -> None:
        """Make the environments; none is reset yet."""
        self.source, self.num_envs = source, num_envs
        self.ledger = Ledger(num_envs)
        self.actions: Any = None
        self.cursor = 0
        self._generators = generators
        self._environments = [source.make(lane) for lane in range(num_envs)]
        self._steps = [environment.step for environment in self._environments]
        self._checker = Checker(source.observation_space)
        self._discrete = isinstance(source.action_space, spaces.Discrete)
        self._observations, self._seen = present(View(source.observation_space), num_envs)
        self._seeds: list[int] = [0] * num_envs
        self._past: list[list[Any]] = [[] for _ in range(num_envs)]

    def observations(self) -> np.ndarray:
        """Return what is seen of the present observations `[N, ...]`."""
        return self._seen

    def claim(self) -> None:
        """Go on stepping, in the next `fit`; these environments are nobody else's."""

    def idle(self) -> list[int]:
        """Return the lanes that need a reset."""
        running = self.ledger.running
        return [] if all(running) else [lane for lane, runs in enumerate(running) if not runs]

    def reset(self, lane: int, number: int, step: int) -> None:
        """Begin episode `number` in a lane, under a fresh seed."""
        seed = int(self._generators(f"environment/{lane}").integers(2**31))
        observation, _ = self._environments[lane].reset(seed=seed)
        self._checker.observation(observation, lane, step)
        self._observations[lane] = observation
        self._seeds[lane] = seed
        self._past[lane].clear()
        self.ledger.begin(lane, number)

    def begin_round(self, actions: np.ndarray) -> None:
        """Take one action for every lane."""
        self.actions = self._single(actions)
        self.cursor = 0

    def _single(self, actions: np.ndarray) -> Any:
        """Return actions `[N, ...]` so that each is what its space has; see `noterl.heads.one_of`."""
        if self._discrete:
            return actions.tolist()
        return [actions[lane, ...] for lane in range(len(actions))] if actions.ndim == 1 else actions

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Step the next lane of the round and return its transition.

        Whatever the environment raises leaves the lane to be reset; the other lanes are untouched.
        """
        lane, action = self.cursor, self.actions[self.cursor]
        self.cursor += 1
        if self.cursor == self.num_envs:
            self.actions = None
        ledger = self.ledger
        if not ledger.running[lane]:
            return ()
        ledger.running[lane] = False
        given = action if self._discrete else action.copy()  # what it does to it in place is its own affair
        observation, reward, terminated, truncated, _ = self._steps[lane](given)
        self._checker.observation(observation, lane, step)
        self._checker.reward(reward, lane, step)
        ledger.running[lane] = True
        self._past[lane].append(action)
        gained = float(reward)
        ledger.returns[lane] += gained
        ledger.lengths[lane] += 1
        before = self._observations[lane].copy()
        self._observations[lane] = observation
        return (Transition(lane, before, action, gained, observation, bool(terminated), bool(truncated)),)

    def logs(self, lane: int) -> dict[str, float]:
        """Return what the logs of a lane's episode hold besides its return and length."""
        return {}

    def finish(self, lane: int) -> None:
        """Note that the lane's episode is over."""
        self.ledger.running[lane] = False

    def get_state(self) -> dict[str, Any]:
        """Return where the environments are: seed of the last reset, actions since, and what they say themselves.

        An episode that is over counts too, for environments in which something outlives it.
        """
        lanes = [
            {
                "seed": self._seeds[lane],
                "actions": np.array(self._past[lane]),
                "environment": envs.get_state(environment) if self.ledger.numbers[lane] >= 0 else None,
                "observation": self._observations[lane].copy(),
            }
            for lane, environment in enumerate(self._environments)
        ]
        actions = None if self.actions is None else np.array(self.actions)
        return {"lanes": lanes, "ledger": self.ledger.get_state(), "actions": actions, "cursor": self.cursor}

    def set_state(self, state: dict[str, Any]) -> None:
        """Bring the environments to where they were; a lane that does not get there starts afresh, with a warning."""
        self.ledger.set_state(state["ledger"])
        actions = state["actions"]
        self.actions = None if actions is None else self._single(actions)
        self.cursor = state["cursor"]
        for lane, saved in enumerate(state["lanes"]):
            self._observations[lane] = saved["observation"]
            self._seeds[lane] = saved["seed"]
            self._past[lane] = list(self._single(saved["actions"]))
            if self.ledger.numbers[lane] < 0:
                continue
            past = self._past[lane]
            over = not self.ledger.running[lane] and bool(past)  # the last action ended the episode
            fault = resume(self._environments[lane], saved, past, over=over)
            if fault is not None:
                self.ledger.running[lane] = False
                warn_afresh(f"environment {lane}", fault)

    def close(self) -> None:
        """Close the environments that were made here."""
        self.source.close()
