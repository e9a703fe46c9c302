"""The environments within gymnasium's `SyncVectorEnv`, one by one.

Owns: that each of their resets has a seed of its own, and what happened since; an episode is brought back from the two.
gymnasium resets them without a seed, after which nothing says where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import envs
from noterl.collect.ledger import resume
from noterl.envs.observation import own

if TYPE_CHECKING:
    from gymnasium.vector import SyncVectorEnv

    from noterl.envs import EnvSource
    from noterl.random import Generators


class Part:
    """One environment, as it stands in the vector environment while that resets and steps.

    Args:
        env: the environment.
        generators: seeds come from the one named "environment/<lane>".
        lane: which of the environments it is.

    Attributes:
        seed: of the last reset.
        past: the actions since.
        whole: the environment.
    """

    def __init__(self, env: Any, generators: Generators, lane: int) -> None:
        self._env, self._generators, self._name = env, generators, f"environment/{lane}"
        self.step = env.step
        self.seed, self.past = 0, list[Any]()
        self.whole = env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode under a fresh seed; nobody gives another."""
        self.seed = int(self._generators(self._name).integers(2**31))
        self.past.clear()
        result: tuple[Any, dict[str, Any]] = self._env.reset(seed=self.seed, options=options)
        return result


class Parts:
    """All of them; within `with`, they stand in the vector environment.

    Args:
        vector: what steps them.
        source: where it comes from.
        generators: see `Part`.
    """

    def __init__(self, vector: SyncVectorEnv, source: EnvSource, generators: Generators) -> None:
        self._vector, self._source, self._own = vector, source, vector.envs
        self._parts = [Part(env, generators, lane) for lane, env in enumerate(vector.envs)]

    def __enter__(self) -> None:
        self._own, self._vector.envs = self._vector.envs, self._parts  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        self._vector.envs = self._own

    def note(self, actions: np.ndarray, alive: np.ndarray) -> None:
        """Remember the actions `[N, ...]` that the lanes which are alive are about to take."""
        for lane in np.flatnonzero(alive).tolist():
            self._parts[lane].past.append(actions[lane])

    def get_state(self) -> list[dict[str, Any]]:
        """Return where each environment is: seed of the last reset, actions since, and what it says itself."""
        return [
            {"seed": part.seed, "actions": np.array(part.past), "environment": envs.get_state(part.whole)}
            for part in self._parts
        ]

    def set_state(self, lanes: list[dict[str, Any]], over: np.ndarray) -> str | None:
        """Bring all environments to where they were; return why that failed, or None.

        Args:
            lanes: what `get_state` returned, with each lane's "observation".
            over: lanes `[N]` whose last action ended the episode.
        """
        for lane, (part, saved) in enumerate(zip(self._parts, lanes, strict=True)):
            part.seed, part.past = saved["seed"], list(saved["actions"])
            fault = resume(part.whole, saved, part.past, over=bool(over[lane]))
            if fault is not None:
                return f"environment {lane}: {fault}"
        self._remind([saved["observation"] for saved in lanes], over)
        return None

    def _remind(self, observations: list[Any], over: np.ndarray) -> None:
        """Let the vector environment see the present observations, and which episodes are over, in a step of its own.

        It holds both in attributes that are nobody's business, and takes them from what its environments return.
        """
        space = self._source.observation_space
        shown: list[Any] = [
            _Shown(own(space, observation), bool(ended)) for observation, ended in zip(observations, over, strict=True)
        ]
        ours, self._vector.envs = self._vector.envs, shown
        try:
            self._vector.reset()
            actions = self._vector.action_space
            self._vector.step(np.zeros(actions.shape or (), actions.dtype))
        finally:
            self._vector.envs = ours


class _Shown:
    """Stands in for an environment that is somewhere already."""

    def __init__(self, observation: Any, over: bool) -> None:
        self._observation, self._over = observation, over

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._observation, {}

    def step(self, _: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, self._over, False, {}
