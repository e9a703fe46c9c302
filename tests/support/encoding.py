"""Values through the codec of saved files, and a comparison that includes types."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import numpy as np

from noterl import saving
from noterl.saving.codec import TreeDecoder, TreeEncoder


def encoded(value: Any) -> tuple[Any, TreeEncoder]:
    """Return the JSON of a value as a file holds it, and the encoder that has its arrays."""
    encoder = TreeEncoder()
    return json.loads(json.dumps(encoder.encode(value), allow_nan=False)), encoder


def decoded(structure: Any, arrays: dict[str, Any] | None = None, custom_objects: Any = None) -> Any:
    """Return the value of a JSON structure, with its objects built."""
    tree = TreeDecoder(lambda name: (arrays or {})[name].copy(), {}).decode(structure)
    return saving.build(tree, custom_objects)


def through_json(value: Any, custom_objects: Any = None) -> Any:
    """Return a value after it was encoded as JSON and decoded."""
    structure, encoder = encoded(value)
    return decoded(structure, encoder.arrays, custom_objects)


def same(first: Any, second: Any) -> bool:
    """Return whether two values are equal to the bit, types included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, deque) and first.maxlen != second.maxlen:
        return False
    if isinstance(first, list | tuple | deque):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray | np.generic):
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    return repr(first) == repr(second)
