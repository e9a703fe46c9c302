"""Lanes: N scalar environments, stepped one after another in this process.

Owns: resets with a fresh seed per episode, and the state of the episodes in flight. A round is one action for every lane; it is stepped
lane by lane, so that a budget may end and a run go on in the middle of a round.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl import envs
from noterl.collect.common import Checker, Ledger
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
    """

    native = False

    def __init__(self, source: EnvSource, num_envs: int, generators: Generators) -> None:
        self.source, self.num_envs = source, num_envs
        self.ledger = Ledger(num_envs)
        self.actions: Any = None
        self.cursor = 0
        self._generators = generators
        self._environments = [source.make(lane) for lane in range(num_envs)]
        self._steps = [environment.step for environment in self._environments]
        self._checker = Checker(source.observation_space)
        self._discrete = isinstance(source.action_space, spaces.Discrete)
        shape, dtype = source.observation_space.shape, source.observation_space.dtype
        self._observations = np.zeros((num_envs, *shape), dtype)
        self._seeds: list[int] = [0] * num_envs
        self._past: list[list[Any]] = [[] for _ in range(num_envs)]

    def observations(self) -> np.ndarray:
        """Return the present observations `[N, ...]`."""
        return self._observations

    def idle(self) -> list[int]:
        """Return the lanes that need a reset."""
        return [lane for lane, running in enumerate(self.ledger.running) if not running]

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
        self.actions = actions.tolist() if self._discrete else actions
        self.cursor = 0

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Step the next lane of the round and return its transition.

        Whatever the environment raises leaves the lane to be reset; the other lanes are untouched.
        """
        lane, action = self.cursor, self.actions[self.cursor]
        self.cursor += 1
        if self.cursor == self.num_envs:
            actions, self.actions = self.actions, None
        ledger = self.ledger
        if not ledger.running[lane]:
            return ()
        ledger.running[lane] = False
        observation, reward, terminated, truncated, _ = self._steps[lane](action)
        self._checker.observation(observation, lane, step)
        self._checker.reward(reward, lane, step)
        ledger.running[lane] = True
        self._past[lane].append(action)
        ledger.returns[lane] += float(reward)
        ledger.lengths[lane] += 1
        before = self._observations[lane].copy()
        self._observations[lane] = observation
        return (Transition(lane, before, action, reward, observation, bool(terminated), bool(truncated)),)

    def finish(self, lane: int) -> None:
        """Note that the lane's episode is over."""
        self.ledger.running[lane] = False

    def get_state(self) -> dict[str, Any]:
        """Return the episodes in flight: an environment's own state where it says one, else seed and actions so far."""
        lanes = []
        for lane, environment in enumerate(self._environments):
            running = self.ledger.running[lane]
            lanes.append({
                "seed": self._seeds[lane],
                "actions": np.array(self._past[lane]) if running else np.zeros(0),
                "environment": envs.get_state(environment) if running else None,
                "observation": self._observations[lane].copy(),
            })
        actions = None if self.actions is None else np.array(self.actions)
        return {"lanes": lanes, "ledger": self.ledger.get_state(), "actions": actions, "cursor": self.cursor}

    def set_state(self, state: dict[str, Any]) -> None:
        """Bring the environments to where they were; a lane that does not get there starts afresh, with a warning."""
        self.ledger.set_state(state["ledger"])
        actions = state["actions"]
        self.actions = actions if actions is None or not self._discrete else actions.tolist()
        self.cursor = state["cursor"]
        for lane, saved in enumerate(state["lanes"]):
            self._observations[lane] = saved["observation"]
            self._seeds[lane] = saved["seed"]
            past = saved["actions"]
            self._past[lane] = past.tolist() if self._discrete else list(past)
            if self.ledger.running[lane] and not self._resumed(lane, saved):
                self.ledger.running[lane] = False
                warnings.warn(
                    f"environment {lane} cannot be brought back to where it was: its episode starts afresh and the run "
                    "goes on inexactly (noterl.envs.check says why)",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _resumed(self, lane: int, saved: dict[str, Any]) -> bool:
        environment = self._environments[lane]
        if saved["environment"] is not None:
            environment.reset(seed=saved["seed"])
            envs.set_state(environment, saved["environment"])
            return True
        actions = self._past[lane]
        observation = envs.replay(environment, saved["seed"], actions)
        return bool(np.array_equal(np.asarray(observation), saved["observation"]))

    def close(self) -> None:
        """Close the environments that were made here."""
        self.source.close()
