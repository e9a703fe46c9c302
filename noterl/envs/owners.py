"""Which object owns an environment, so that lanes notice if another agent has stepped their environments."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from noterl.envs.wrappers.classic import layers

# The owners of environments, by the id of the innermost environment. Lanes keep their environments alive, so no other
# object has this id. Keys are ids because environments that are dataclasses may have no hash.
_owners: WeakValueDictionary[int, Any] = WeakValueDictionary()


def set_owner(environment: Any, owner: object) -> None:
    """Record that an object, such as lanes, owns an environment: only the owner steps the environment from now on."""
    _owners[_innermost_id(environment)] = owner


def is_owner(environment: Any, owner: object) -> bool:
    """Return whether no other object has stepped an environment since `set_owner`."""
    return _owners.get(_innermost_id(environment)) is owner


def _innermost_id(environment: Any) -> int:
    *_, base = layers(environment)
    return id(base)
