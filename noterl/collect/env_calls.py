"""Calls of methods of the training environments between the steps, for `Agent.env_call` and `Agent.env_get`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from noterl.envs.wrappers.classic import layers

# The training calls these itself; a call in between would break its episodes.
_REFUSED = ("reset", "step", "close")


class BadCallError(ValueError):
    """Raised if an environment does not have the method or the attribute; nothing was called."""


class EnvCall(NamedTuple):
    """A method to call, or an attribute to read, of every environment.

    Attributes:
        name: of the method or attribute.
        args: positional arguments; None to read an attribute.
        kwargs: keyword arguments.
    """

    name: str
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{'env_get' if self.args is None else 'env_call'}({self.name!r})"

    def check(self) -> None:
        """Check the name.

        Raises:
            ValueError: if the name is not a str, or names a method that only the training calls.
        """
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name must be the name of a method or an attribute, got {self.name!r}")
        if self.args is not None and self.name in _REFUSED:
            raise ValueError(f"name must not be one of {', '.join(_REFUSED)}, which the training calls: {self}")

    def check_found(self, environment: Any) -> Any:
        """Return the attribute of an environment, or of the first wrapped environment that has the attribute.

        Raises:
            BadCallError: if there is no such attribute, or if a method is to be read or another attribute called.
        """
        stack = list(layers(environment))
        owner = next((layer for layer in stack if hasattr(layer, self.name)), None)
        if owner is None:
            names = {name for layer in stack for name in dir(layer) if not name.startswith("_")}
            near = difflib.get_close_matches(self.name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadCallError(f"{self}: the environment {stack[-1]!r} has no attribute {self.name!r}{hint}")
        attribute = getattr(owner, self.name)
        if self.args is not None and not callable(attribute):
            raise BadCallError(f"{self}: {self.name!r} of the environment is not a method; use env_get to read it")
        if self.args is None and callable(attribute):
            raise BadCallError(f"{self}: {self.name!r} of the environment is a method; use env_call to call it")
        return attribute

    def run(self, environment: Any) -> Any:
        """Return the result of one environment."""
        attribute = self.check_found(environment)
        return attribute if self.args is None else attribute(*self.args, **self.kwargs)
