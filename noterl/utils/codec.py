"""Encoding values as JSON: containers, numbers, NumPy arrays and generators, and gymnasium spaces.

A value of a type that JSON does not have becomes a dict with one key, such as `{"$tuple": [1, 2]}`. Arrays are stored
outside of the JSON, which refers to arrays by name. Instances of subclasses, such as named tuples and enums, are
rejected, because they would be decoded as another type.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from noterl.utils.budget import LIMITS, MAX_DEPTH, Budget
from noterl.utils.files import FileError, Keys, key_path

Array = npt.NDArray[Any]

# Lists of at least this many numbers, such as histories, become arrays: smaller in the file, and faster to parse.
_PACKED_LENGTH = 64
_SPACE_BYTES = 2**12  # the least that a space counts, so that their number is limited too
_MAX_HEX_DIGITS = 2**15  # of an int
_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16)")
# The kinds of items in a list that is stored as arrays: floats, ints, the constants, words, and from 6 on the scalars
# of one dtype of NumPy each.
_CONSTANTS = [None, False, True]
_FLOATS = 0
_INTS = 1
_WORDS = 2 + len(_CONSTANTS)
_SCALARS = 3 + len(_CONSTANTS)
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_GENERATORS = {name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")}


def copy(value: Any) -> Any:
    """Return a copy of a value, exactly as if read from a file.

    Raises:
        TypeError: if the value holds something that cannot be encoded.
        ValueError: if the value is nested more than 100 deep.
    """
    encoder = Encoder()
    encoded = encoder.encode(value)
    return Decoder(lambda name: encoder.arrays[name].copy()).decode(encoded)


def generator(state: dict[str, Any]) -> np.random.Generator:
    """Return a new generator in the given state of a bit generator.

    Raises:
        ValueError: if the position in a buffer is outside of the buffer; NumPy does not check the position, and would
            read beyond.
    """
    inner = state["state"] if state["bit_generator"] == "MT19937" else state
    for name, size in (("pos", 624), ("buffer_pos", 4)):
        if name in inner and not 0 <= inner[name] <= size:
            raise ValueError(f"generator: {name} must be from 0 to {size}, got {inner[name]}")
    bits = _GENERATORS[state["bit_generator"]](0)
    bits.state = state
    return np.random.Generator(bits)


def is_encodable(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of the dtype can be encoded: bool, ints, floats up to 64 and complex up to 128 bits."""
    return _DTYPE.fullmatch(dtype.str) is not None


def check_bools(array: Array) -> Array:
    """Return the array; raise a FileError if bools are stored as bytes other than 0 and 1, which crash compilers."""
    if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise FileError("an array of bools holds other bytes than 0 and 1")
    return array


class Encoder:
    """Encodes values.

    Attributes:
        arrays: the arrays that the encoded values refer to, by name.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._encoders: dict[type, Callable[[Any, Keys], Any]] = {
            **dict.fromkeys((type(None), bool, str), lambda value, keys: value),
            np.str_: lambda value, keys: str(value),
            int: _encode_int,
            float: lambda value, keys: value if math.isfinite(value) else {"$float": repr(value)},
            list: self._list,
            tuple: lambda value, keys: {"$tuple": self._list(list(value), keys)},
            deque: lambda value, keys: {"$deque": [self._list(list(value), keys), value.maxlen]},
            bytes: lambda value, keys: {"$bytes": self._store(np.frombuffer(value, np.uint8), keys)},
            dict: self._dict,
            OrderedDict: self._dict,
            np.ndarray: self.array,
            np.random.Generator: self._generator,
            **dict.fromkeys(_SPACES, self._space),
        }

    def encode(self, value: Any, keys: Keys = ()) -> Any:
        """Return the value as JSON.

        Args:
            value: the value to encode.
            keys: the place of the value, for error messages and the names of arrays.

        Raises:
            TypeError: if the value cannot be encoded; the message names the place.
            ValueError: if the value is nested more than 100 deep.
        """
        if len(keys) > MAX_DEPTH:
            raise ValueError(f"{key_path(keys[:1], 'tree')} must not be nested more than {MAX_DEPTH} deep")
        return self._encoders.get(type(value), self.other)(value, keys)

    def other(self, value: Any, keys: Keys) -> Any:
        """Encode a value of a type without a separate encoder; a subclass may support more types."""
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):  # such as a memory map
            return self.array(np.asarray(value), keys)
        if isinstance(value, np.generic) and is_encodable(value.dtype):
            return {"$scalar": [value.dtype.str, value.tobytes().hex()]}
        raise TypeError(f"{key_path(keys, 'tree')}: a file cannot hold a value of type {type_name(value)}")

    def array(self, value: Array, keys: Keys) -> Any:
        """Encode an array."""
        if not is_encodable(value.dtype):
            raise TypeError(f"{key_path(keys, 'tree')}: a file cannot hold an array of dtype {value.dtype}")
        return {"$npy": self._store(value, keys)}

    def _store(self, array: Array, keys: Keys) -> str:
        """Add an array to `arrays`, and return the name by which the JSON refers to the array."""
        # The keys help a reader of the file; the number makes the name unique.
        slug = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(map(str, keys)))[:80]
        name = f"arrays/{len(self.arrays)}_{slug}.npy"
        self.arrays[name] = array
        return name

    def _list(self, value: list[Any], keys: Keys) -> Any:
        """Encode a list, as arrays if the list is long and has only numbers, words, bools and None."""
        if len(value) >= _PACKED_LENGTH:
            kinds = list(dict.fromkeys(map(type, value)))
            if all(item_type in (float, int, bool, str, type(None)) or _is_scalar(item_type) for item_type in kinds):
                with suppress(OverflowError):  # an int of more than 64 bits
                    return self._pack(value, kinds, keys)
        return [self.encode(entry, (*keys, index)) for index, entry in enumerate(value)]

    def _pack(self, value: list[Any], kinds: list[type], keys: Keys) -> Any:
        """Return a list of numbers, words, bools, None and NumPy scalars as arrays.

        A list of only floats or only ints is one array. For other lists, `Decoder._mixed` describes the arrays.

        Args:
            value: the list.
            kinds: the types that occur, in the order of their first occurrence.
            keys: the place of the list, for file names and errors.
        """
        if kinds in ([float], [int]):
            return {"$packed": self._store(np.array(value, np.float64 if kinds == [float] else np.int64), keys)}
        scalars = list(filter(_is_scalar, kinds))
        codes: dict[type, int] = {float: _FLOATS, int: _INTS, str: _WORDS}
        codes |= {dtype: _SCALARS + number for number, dtype in enumerate(scalars)}
        values_by_code: dict[int, list[Any]] = {code: [] for code in codes.values()}
        entry_codes = []
        for entry in value:
            code = codes.get(type(entry))
            if code is None:
                code = 2 + _CONSTANTS.index(entry)  # None and bools have a code and no value
            else:
                values_by_code[code].append(entry)
            entry_codes.append(code)
        words = [word.encode("utf-8", "surrogatepass") for word in values_by_code[_WORDS]]
        lengths = np.array(list(map(len, words)), np.int64)
        # Arrays of scalars follow those of words, which are empty if there are scalars but no words.
        word_arrays: list[Array] = [lengths, np.frombuffer(b"".join(words), np.uint8)] if words or scalars else []
        scalar_arrays: list[Array] = [np.array(values_by_code[codes[dtype]], dtype) for dtype in scalars]
        numbers = [np.array(values_by_code[_FLOATS], np.float64), np.array(values_by_code[_INTS], np.int64)]
        arrays: list[Array] = [np.array(entry_codes, np.int64), *numbers, *word_arrays, *scalar_arrays]
        return {"$mixed": [self._store(array, keys) for array in arrays]}

    def _dict(self, value: dict[Any, Any], keys: Keys) -> dict[str, Any]:
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str(key): self.encode(entry, (*keys, key)) for key, entry in value.items()}
        return {"$dict": [[self.encode(key, keys), self.encode(entry, (*keys, key))] for key, entry in value.items()]}

    def _generator(self, value: np.random.Generator, keys: Keys) -> Any:
        if type(value.bit_generator) not in _GENERATORS.values():
            raise TypeError(f"{key_path(keys, 'tree')}: a file cannot hold the generator {value}")
        return {"$generator": self.encode(value.bit_generator.state, keys)}

    def _space(self, value: Any, keys: Keys) -> Any:
        return {"$space": [type(value).__name__, self.encode(_SPACES[type(value)][0](value), keys)]}


class Decoder:
    """Decodes what an `Encoder` returned. The input may come from a file and is not trusted.

    Args:
        load: returns an array by name; must raise a FileError if there is none of this name.
    """

    def __init__(self, load: Callable[[str], Array]) -> None:
        self._load = load
        self._budget = Budget("its spaces")
        # For malformed content, each may raise any error.
        self._decoders: dict[str, Callable[[Any, Keys], Any]] = {
            "$int": lambda content, keys: _decode_int(content),
            "$float": lambda content, keys: _NOT_FINITE[content],
            "$scalar": _decode_scalar,
            "$npy": lambda content, keys: self._load(expect(content, str)),
            "$packed": self._packed,
            "$mixed": self._mixed,
            "$bytes": lambda content, keys: self._load(expect(content, str)).tobytes(),
            "$tuple": lambda content, keys: tuple(expect(self.decode(content, keys), list)),
            "$deque": lambda content, keys: deque(expect(self.decode(content[0], keys), list), *content[1:]),
            "$dict": self._dict,
            "$generator": lambda content, keys: generator(self.decode(content, keys)),
            "$space": self._space,
        }

    def decode(self, value: Any, keys: Keys = ()) -> Any:
        """Return the decoded value.

        Raises:
            FileError: if `value` is not what `Encoder` returns; the message names the place.
        """
        if len(keys) > MAX_DEPTH:
            raise FileError(f"its {key_path(keys[:1], 'tree')} is nested more than {MAX_DEPTH} deep")
        if isinstance(value, list):
            return [self.decode(entry, (*keys, index)) for index, entry in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if not any(key.startswith("$") for key in value):
            return {key: self.decode(entry, (*keys, key)) for key, entry in value.items()}
        ((key, content), *others) = value.items()
        if others or key not in self._decoders:
            raise FileError(f"its {key_path(keys, 'tree')} holds {key!r:.40}, which noterl does not write")
        try:
            return self._decoders[key](content, keys)
        except FileError:
            raise
        except Exception as error:
            reason = f"{error!r:.200}"  # quoted: words of the file may control a terminal
            raise FileError(f"its {key_path(keys, 'tree')} holds a malformed {key[1:]} ({reason})") from error

    def call(self, content: Any, keys: Keys) -> tuple[str, dict[str, Any]]:
        """Return the name and the decoded arguments of `[name, {argument: value}]`."""
        name, arguments = content
        return expect(name, str), expect(self.decode(arguments, keys), dict)

    def _packed(self, content: Any, keys: Keys) -> list[Any]:
        """Return a list of floats or of ints, whose array the content names."""
        array = self._load(expect(content, str))
        if array.ndim != 1 or array.dtype not in (np.float64, np.int64):
            raise ValueError(f"got {array.dtype}{list(array.shape)}")
        return array.tolist()

    def _mixed(self, content: Any, keys: Keys) -> list[Any]:
        """Return a list of values of several kinds.

        The content is `[codes, floats, ints]` or `[codes, floats, ints, lengths of words, words, scalars, ...]`: the
        code of each value, and the values of each kind in their order. Constants have codes from 2 on, after the codes
        of floats and ints, and no values.
        """
        names = expect(content, list)
        codes, floats, ints = (self._packed(name, keys) for name in names[:3])
        values_by_code = {_FLOATS: floats, _INTS: ints}
        if len(names) > 3:
            values_by_code[_WORDS] = _split_words(self._packed(names[3], keys), self._load(expect(names[4], str)))
            scalars = [self._load(expect(name, str)) for name in names[5:]]
            if any(array.ndim != 1 for array in scalars):
                raise ValueError("scalars are not in one row")
            values_by_code |= {_SCALARS + number: list(array) for number, array in enumerate(scalars)}
        counts = Counter(codes)
        constants = {2 + number: value for number, value in enumerate(_CONSTANTS)}
        has_known_codes = all(type(code) is int and code in {**values_by_code, **constants} for code in counts)
        has_all_values = all(len(part) == counts[code] for code, part in values_by_code.items())
        if not has_known_codes or not has_all_values:
            raise ValueError("the numbers of values differ, or a kind is unknown")
        # Each code takes the next value of its kind, so the values return to their order.
        values = {code: iter(part) for code, part in values_by_code.items()}
        return [next(values[code]) if code in values else constants[code] for code in codes]

    def _dict(self, content: Any, keys: Keys) -> dict[Any, Any]:
        pairs = [(self.decode(key, keys), self.decode(item, (*keys, str(key)))) for key, item in expect(content, list)]
        if len(dict(pairs)) != len(pairs):
            raise ValueError("it has a key twice")
        return dict(pairs)

    def _space(self, content: Any, keys: Keys) -> Any:
        """Return a space, after its bytes were counted in the budget for all spaces of the file."""
        name, fields = self.call(content, keys)
        build = {cls.__name__: build for cls, (_, build) in _SPACES.items()}[name]
        self._budget.place = f"its spaces, up to {key_path(keys, 'tree')}"
        self._budget.spend("bytes of spaces", _SPACE_BYTES + _space_bytes(fields))
        return build(**fields)


def _is_scalar(kind: type) -> bool:
    """Return whether arrays of NumPy scalars of this type can be encoded."""
    return issubclass(kind, np.generic) and not issubclass(kind, np.flexible) and is_encodable(np.dtype(kind))


def _split_words(lengths: list[int], data: Array) -> list[str]:
    """Return words from the numbers of bytes in UTF-8, and the bytes of all words one after another."""
    content = data.tobytes()
    ends = list(itertools.accumulate(lengths))
    if min(lengths, default=0) < 0 or (ends[-1] if ends else 0) != len(content):
        raise ValueError("the lengths of words do not fit")
    starts = [0, *ends]
    return [content[start:end].decode("utf-8", "surrogatepass") for start, end in zip(starts, ends, strict=False)]


def type_name(value: object) -> str:
    """Return the name of the value's type for an error message."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def expect(value: Any, kind: type) -> Any:
    """Return the value; raise a TypeError for a value of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type_name(value)}")
    return value


def _space_bytes(fields: dict[str, Any]) -> int:
    """Return how many bytes the bounds of a space take, and whether there are bounds, from the fields in a file."""
    shape = expect(fields.get("shape", []), list)
    if len(shape) > 64 or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"shape must be a list of at most 64 non-negative ints, got {shape!r:.80}")
    itemsize = fields["low"].dtype.itemsize if "low" in fields else 0
    return math.prod(min(length, LIMITS["bytes of spaces"]) for length in shape) * (2 * itemsize + 2)


def _encode_int(value: int, keys: Keys) -> Any:
    if value.bit_length() > 4 * _MAX_HEX_DIGITS:
        raise TypeError(f"{key_path(keys, 'tree')}: a file cannot hold an int of {value.bit_length()} bits")
    # Python refuses to print or parse thousands of decimal digits; hexadecimal digits have no limit.
    return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}


def _decode_int(digits: str) -> int:
    if len(digits) > _MAX_HEX_DIGITS + len("-0x"):
        raise ValueError(f"it has more than {_MAX_HEX_DIGITS} digits")
    return int(digits, 16)


def _decode_scalar(content: Any, keys: Keys) -> np.generic:
    """Return a NumPy scalar from the dtype and the bytes as hexadecimal digits."""
    dtype, digits = content
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"there is no scalar of dtype {dtype!r:.40}")
    array = np.frombuffer(bytearray.fromhex(digits), np.uint8).view(dtype)
    (scalar,) = check_bools(array)
    return scalar


def _uniform(array: Array) -> Any:
    """Return one element if all elements of the array are equal, otherwise the array."""
    content = array.tobytes()
    first = array.reshape(-1)[:1]
    return first[0] if array.size > 1 and content == first.tobytes() * array.size else array


def _box_fields(space: spaces.Box) -> dict[str, Any]:
    arrays = {"low": space.low, "high": space.high, "below": space.bounded_below, "above": space.bounded_above}
    return {"shape": list(space.shape), **{name: _uniform(array) for name, array in arrays.items()}}


def _box(shape: list[int], low: Any, high: Any, below: Any, above: Any) -> spaces.Box:
    """Return a Box from the fields of `_box_fields`."""
    box = spaces.Box(np.full(shape, low), np.full(shape, high), dtype=low.dtype)
    # The bound of an unbounded side of an integer box is the smallest or largest int, so it does not show whether the
    # side is unbounded.
    box.bounded_below = np.full(shape, below, np.bool_)
    box.bounded_above = np.full(shape, above, np.bool_)
    return box


def _discrete(n: int, start: np.integer[Any]) -> spaces.Discrete[Any]:
    return spaces.Discrete(n, start=int(start), dtype=start.dtype.type)


# For each space: a function that returns its fields, and a function that makes the space from them.
_SPACES: dict[type, tuple[Callable[[Any], dict[str, Any]], Callable[..., Any]]] = {
    spaces.Box: (_box_fields, _box),
    spaces.Discrete: (lambda space: {"n": int(space.n), "start": np.dtype(space.dtype).type(space.start)}, _discrete),
    spaces.MultiDiscrete: (
        lambda space: {"nvec": space.nvec, "start": space.start},
        lambda nvec, start: spaces.MultiDiscrete(nvec, dtype=nvec.dtype.type, start=start),
    ),
    spaces.MultiBinary: (
        # gymnasium distinguishes MultiBinary(4) from MultiBinary([4]).
        lambda space: {"shape": list(space.shape), "flat": isinstance(space.n, int | np.integer)},
        lambda shape, flat: spaces.MultiBinary(shape[0] if flat else shape),
    ),
    # gymnasium would sort the keys of a plain dict.
    spaces.Dict: (
        lambda space: {"parts": [[key, part] for key, part in space.spaces.items()]},
        lambda parts: spaces.Dict(OrderedDict(parts)),
    ),
    spaces.Tuple: (lambda space: {"parts": list(space.spaces)}, lambda parts: spaces.Tuple(parts)),
}
