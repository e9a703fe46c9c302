"""The base of noterl's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar

import gymnasium
from gymnasium.envs.registration import EnvSpec


class Task(gymnasium.Env[Any, Any]):
    """An environment that can be copied and restored: the state of an episode consists of some attributes.

    Args:
        arguments: of the constructor, from which copies of the environment are made.

    Attributes:
        saved: the names of the attributes that change within an episode.
    """

    saved: ClassVar[Sequence[str]]

    def __init__(self, **arguments: Any) -> None:
        name = type(self).__name__
        # The spec is not registered, but enough for copies of the environment.
        entry_point = f"{type(self).__module__}:{name}"
        self.spec: EnvSpec | None = EnvSpec(f"noterl/{name}-v0", entry_point, kwargs=arguments, order_enforce=False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._begin()
        return self._observe(), self._info()

    def _begin(self) -> None:
        """Set the attributes of `saved` to the start of an episode."""
        raise NotImplementedError

    def _observe(self) -> Any:
        """Return the current observation."""
        raise NotImplementedError

    def _info(self) -> dict[str, Any]:
        """Return the info of a reset."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Return the state of the episode."""
        return {name: copy(getattr(self, name)) for name in self.saved}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of an episode."""
        for name in self.saved:
            setattr(self, name, copy(state[name]))
