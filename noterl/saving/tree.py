"""State trees as JSON: nested dicts and lists, with the arrays taken out and a note left in their place.

Owns: what a state tree may hold, and how each kind of value is written so that it comes back the same, to the bit.
A note is a dict with the single key `$...`; a dict of the user's with such a key is written as `$dict`, in pairs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.saving.arrays import Array, check_array, fits_safetensors, pack_scalar, unpack_scalar
from noterl.utils.files import FileError, Keys, key_path

MAX_DEPTH = 100
# Long lists of plain numbers (histories, actions of an episode) are arrays in the file: smaller, and quick to parse.
_PACKED_LENGTH = 64
_HEXADECIMAL = re.compile(r"-?0x[0-9a-f]+")
_KINDS = "dict, list, NumPy array or scalar, int, float, bool, str, None"


class TreeEncoder:
    """Takes trees apart.

    Attributes:
        members: the arrays that become `.npy` members, by member name.
        tensors: the arrays below a key "variables", by tensor name.
    """

    def __init__(self) -> None:
        """Begin with no arrays."""
        self.members: dict[str, Array] = {}
        self.tensors: dict[str, Array] = {}

    def structure(self, value: Any, keys: Keys = ()) -> Any:
        """Return `value` as JSON, with notes where arrays were.

        Raises:
            TypeError: for a value or key of another kind, naming its place.
            ValueError: if it is nested too deeply.
        """
        if len(keys) > MAX_DEPTH:
            raise ValueError(f"tree must not be nested more than {MAX_DEPTH} deep")
        if isinstance(value, dict):
            return self._dict(value, keys)
        if isinstance(value, list):
            return self._list(value, keys)
        if isinstance(value, np.ndarray):
            return self._array(value, keys)
        if isinstance(value, np.generic) and not isinstance(value, np.str_):
            return {"$scalar": pack_scalar(value, key_path(keys, "tree"))}
        return _plain(value, keys)

    def _dict(self, value: dict[Any, Any], keys: Keys) -> dict[str, Any]:
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{key_path(keys, 'tree')}: keys must be str, got {key!r}")
        pairs = [[str(key), self.structure(item, (*keys, key))] for key, item in value.items()]
        return {"$dict": pairs} if any(key.startswith("$") for key in value) else dict(pairs)

    def _list(self, value: list[Any], keys: Keys) -> Any:
        for kind, dtype in ((float, np.float64), (int, np.int64)):
            if len(value) >= _PACKED_LENGTH and all(type(item) is kind for item in value):
                try:
                    return {"$packed": self._member(np.array(value, dtype), keys)}
                except OverflowError:
                    break
        return [self.structure(item, (*keys, index)) for index, item in enumerate(value)]

    def _array(self, value: Array, keys: Keys) -> dict[str, str]:
        check_array(value, key_path(keys, "tree"))
        array = np.asarray(value)
        if "variables" in keys and fits_safetensors(array):
            return {"$tensor": self._tensor(array, keys)}
        return {"$npy": self._member(array, keys)}

    def _member(self, array: Array, keys: Keys) -> str:
        # The keys are there for people who look into the file; the number makes the name unique.
        slug = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(map(str, keys)))[:80]
        name = f"arrays/{len(self.members)}_{slug}.npy"
        self.members[name] = array
        return name

    def _tensor(self, array: Array, keys: Keys) -> str:
        keys = keys[1:] if keys[0] == "variables" else keys
        stem = name = "/".join(map(str, keys)).encode("utf-8", "backslashreplace").decode()
        while name in self.tensors or name == "__metadata__":
            name = f"{stem}~{len(self.tensors)}"
        self.tensors[name] = array
        return name


class TreeDecoder:
    """Puts trees together again; everything in a structure is doubted.

    Args:
        load: returns the array of a `.npy` member; must raise `FileError` for names it has not or gave before.
        tensors: the arrays of the safetensors member; those used are taken out.
    """

    def __init__(self, load: Callable[[str], Array], tensors: dict[str, Array]) -> None:
        """Take what the notes in a structure refer to."""
        self._load = load
        self._tensors = tensors
        self._notes: dict[str, Callable[[Any, int], Any]] = {
            "$dict": self._pairs,
            "$npy": lambda name, depth: self._load(_text(name)),
            "$tensor": self._tensor,
            "$packed": self._packed,
            "$scalar": lambda packed, depth: unpack_scalar(packed),
            "$int": _integer,
            "$float": _float,
        }

    def value(self, structure: Any, depth: int = 0) -> Any:
        """Return the tree of a structure.

        Raises:
            FileError: if it is not what `TreeEncoder` writes.
        """
        if depth > MAX_DEPTH:
            raise FileError(f"its tree is nested more than {MAX_DEPTH} deep")
        if isinstance(structure, list):
            return [self.value(item, depth + 1) for item in structure]
        if not isinstance(structure, dict):
            return structure
        if not any(key.startswith("$") for key in structure):
            return {key: self.value(item, depth + 1) for key, item in structure.items()}
        ((note, content), *others) = structure.items()
        if others or note not in self._notes:
            raise FileError(f"its tree has a note {note!r:.40} that noterl does not write")
        return self._notes[note](content, depth)

    def _pairs(self, pairs: Any, depth: int) -> dict[str, Any]:
        if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise FileError("a dict in its tree is malformed")
        result = {_text(key): self.value(item, depth + 1) for key, item in pairs}
        if len(result) != len(pairs):
            raise FileError("a dict in its tree has a key twice")
        return result

    def _tensor(self, name: Any, depth: int) -> Array:
        if _text(name) not in self._tensors:
            raise FileError(f"the tensor {name!r:.80} is missing or used twice")
        return self._tensors.pop(name)

    def _packed(self, name: Any, depth: int) -> Any:
        array = self._load(_text(name))
        if array.ndim != 1 or array.dtype not in (np.float64, np.int64):
            raise FileError("a list in its tree is malformed")
        return array.tolist()


def _plain(value: Any, keys: Keys) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        # Python refuses to print or parse decimals of thousands of digits; hexadecimal ones have no limit.
        return int(value) if -(2**63) <= value < 2**64 else {"$int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    raise TypeError(f"{key_path(keys, 'tree')}: a state holds {_KINDS}; got {type(value).__qualname__}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise FileError("a name in its tree is not a str")
    return value


def _integer(digits: Any, depth: int) -> int:
    if not _HEXADECIMAL.fullmatch(_text(digits)):
        raise FileError("an int in its tree is malformed")
    return int(digits, 16)


def _float(word: Any, depth: int) -> float:
    if word not in ("nan", "inf", "-inf"):
        raise FileError("a float in its tree is malformed")
    return float(word)
