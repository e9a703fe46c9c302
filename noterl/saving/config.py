"""Constructor arguments as JSON, and back.

Owns: which objects a file can name, and how they are built again. A class is found in `custom_objects`, in the
registry, or among Keras's optimizers and learning-rate schedules; nothing is imported by a name in a file, and nothing
is called but constructors. An object is a dict with the single key `__...__`; a dict of the user's with such a key is
written as `__dict__`, in pairs.
"""

from __future__ import annotations

import base64
import functools
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noterl.registry import Configurable, lookup
from noterl.saving.arrays import Array, fits_file, from_bytes, pack_scalar, parse_dtype, unpack_scalar
from noterl.utils.files import Keys, key_path

# Each level becomes up to three in the state tree, whose own limit is 100.
MAX_DEPTH = 16
_MAX_ARRAY_BYTES = 2**24


def encode(value: Any, *, opaque: bool = False) -> Any:
    """Return constructor arguments, or any other value, as strict JSON from which `decode` makes an equal value.

    Args:
        value: numbers, str, bool, None; tuples, lists and dicts with str keys; NumPy scalars and arrays of at most
            16 MiB; gymnasium spaces; policies and other `Configurable` objects, agents aside; Keras optimizers and
            learning-rate schedules.
        opaque: note the type of what is none of these, instead of raising. `decode` refuses such a note.

    Raises:
        TypeError: for anything else, naming its place and type.
        ValueError: if it is nested more than 16 deep.

    Example:
    >>> from noterl.saving import decode, encode
    >>> encode({"hidden": (256, 256), "gamma": 0.99})
    {'hidden': {'__tuple__': [256, 256]}, 'gamma': 0.99}
    >>> decode(encode((1, [2.5, None]))), encode(print, opaque=True)
    ((1, [2.5, None]), {'__opaque__': 'builtin_function_or_method'})
    """
    return _Encoder(opaque).value(value, ())


def decode(value: Any, custom_objects: Mapping[str, type] | None = None) -> Any:
    """Return what `encode` was given.

    Args:
        value: what `encode` returned, or a file claims it did.
        custom_objects: classes by name, which go before those of the registry.

    Raises:
        ValueError: if it holds a note of something that a file cannot hold, a class nobody knows, or nonsense.
    """
    return _Decoder(dict(custom_objects or {})).value(value, ())


class _Encoder:
    def __init__(self, opaque: bool) -> None:
        self._opaque = opaque

    def value(self, value: Any, keys: Keys) -> Any:
        if len(keys) > MAX_DEPTH:
            raise ValueError(f"{key_path(keys[:1])} must not be nested more than {MAX_DEPTH} deep")
        # Exact types: an Enum that is an int, or a named tuple, would come back as something else.
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"__float__": repr(value)}
        if type(value) is list:
            return self._items(value, keys)
        if type(value) is tuple:
            return {"__tuple__": self._items(value, keys)}
        if type(value) is dict:
            return self._dict(value, keys)
        return self._object(value, keys)

    def _items(self, values: Any, keys: Keys) -> list[Any]:
        return [self.value(item, (*keys, index)) for index, item in enumerate(values)]

    def _dict(self, value: dict[Any, Any], keys: Keys) -> Any:
        if not all(type(key) is str for key in value):
            return self._unsayable(value, keys)
        encoded = self._fields(value, keys)
        if any(_is_note(key) for key in value):
            return {"__dict__": [list(pair) for pair in encoded.items()]}
        return encoded

    def _fields(self, value: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
        return {key: self.value(item, (*keys, key)) for key, item in value.items()}

    def _object(self, value: Any, keys: Keys) -> Any:
        if isinstance(value, np.generic) and fits_file(value.dtype):
            return {"__scalar__": pack_scalar(value, key_path(keys))}
        if type(value) is np.ndarray and fits_file(value.dtype) and value.nbytes <= _MAX_ARRAY_BYTES:
            return {"__array__": _pack_array(value)}
        if isinstance(value, Configurable) and not _is_agent(type(value)):
            name = type(value).__name__
            if _find(lookup, name) not in (None, type(value)):
                return self._unsayable(value, keys, f": another class is registered as {name!r}")
            return {"__object__": [name, self._fields(value.get_config(), keys)]}
        space = _space_fields(value)
        if space is not None:
            return {"__space__": [type(value).__name__, self._fields(space, keys)]}
        if _is_keras(value):
            return self._keras(value, keys)
        return self._unsayable(value, keys)

    def _keras(self, value: Any, keys: Keys) -> Any:
        name = type(value).__name__
        known = _find(_keras_class, name)
        # On torch Keras makes an instance of a class of its own that derives from the one that was called.
        ours = type(value).__module__.startswith("keras.src.") and issubclass(type(value), known or object)
        if known not in (None, type(value)) and not ours:
            return self._unsayable(value, keys, f": {name!r} is another class, of Keras or of the registry")
        rate = getattr(value, "noterl_schedule", getattr(value, "_learning_rate", None))
        scheduled = isinstance(rate, Configurable)
        if callable(rate) and not scheduled and not _is_keras(rate):
            # Asked for its config, Keras would warn of functions each time.
            return {"__keras__": [name, self._fields({"learning_rate": rate}, keys)]}
        config = dict(value.get_config())
        # Keras says these as dicts that name modules to import; the objects themselves are said in our own way.
        for argument, attribute in (("learning_rate", "_learning_rate"), ("inner_optimizer", "inner_optimizer")):
            if isinstance(config.get(argument), dict):
                config[argument] = getattr(value, attribute)
        if scheduled:
            config["learning_rate"] = rate
        if any(_has_dict(item) for item in config.values()):
            return self._unsayable(value, keys)
        return {"__keras__": [name, self._fields(config, keys)]}

    def _unsayable(self, value: Any, keys: Keys, reason: str = "") -> dict[str, str]:
        if not self._opaque:
            raise TypeError(f"{key_path(keys)}: a file cannot hold a value of type {_type_name(value)}{reason}")
        return {"__opaque__": _type_name(value)}


class _Decoder:
    def __init__(self, custom_objects: dict[str, type]) -> None:
        self._custom_objects = custom_objects
        self._notes: dict[str, Callable[[Any, Keys], Any]] = {
            "__float__": _float,
            "__tuple__": self._tuple,
            "__dict__": self._pairs,
            "__scalar__": lambda content, keys: _build(unpack_scalar, content, "a scalar", keys),
            "__array__": lambda content, keys: _build(_unpack_array, content, "an array", keys),
            "__object__": self._object,
            "__space__": self._space,
            "__keras__": self._keras,
            "__opaque__": _refuse,
        }

    def value(self, value: Any, keys: Keys) -> Any:
        if len(keys) > MAX_DEPTH:
            raise ValueError(f"{key_path(keys[:1])} is nested too deeply")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self.value(item, (*keys, index)) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            raise ValueError(f"{key_path(keys)}: {_type_name(value)} is not what encode returns")
        if not any(_is_note(key) for key in value):
            return {key: self.value(item, (*keys, key)) for key, item in value.items()}
        ((note, content), *others) = value.items()
        if others or note not in self._notes:
            raise ValueError(f"{key_path(keys)}: {note!r:.40} is no note that encode writes")
        return self._notes[note](content, keys)

    def _tuple(self, content: Any, keys: Keys) -> tuple[Any, ...]:
        return tuple(self.value(_expect(content, list, keys), keys))

    def _pairs(self, content: Any, keys: Keys) -> dict[str, Any]:
        pairs = [_expect(pair, list, keys) for pair in _expect(content, list, keys)]
        if not all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise ValueError(f"{key_path(keys)}: a dict is malformed")
        return {key: self.value(item, (*keys, key)) for key, item in pairs}

    def _call(self, content: Any, keys: Keys) -> tuple[str, dict[str, Any]]:
        """Return the name of a class and its decoded arguments."""
        if not isinstance(content, list) or len(content) != 2 or not isinstance(content[0], str):
            raise ValueError(f"{key_path(keys)}: an object is malformed")
        fields = _expect(content[1], dict, keys)
        return content[0], {name: self.value(item, (*keys, name)) for name, item in fields.items()}

    def _object(self, content: Any, keys: Keys) -> Any:
        name, config = self._call(content, keys)
        cls = lookup(name, self._custom_objects)
        if not isinstance(cls, type) or not issubclass(cls, Configurable):
            raise ValueError(
                f"{key_path(keys)}: the class {name!r} must be a noterl.registry.Configurable, got {cls!r}"
            )
        # gymnasium imports the module of an id "module:name", and constructors of agents take ids.
        if _is_agent(cls):
            raise ValueError(f"{key_path(keys)}: an agent may not stand among the arguments in a file, got {name!r}")
        return _build(cls.from_config, config, name, keys)

    def _space(self, content: Any, keys: Keys) -> Any:
        name, fields = self._call(content, keys)
        if name not in _SPACES:
            raise ValueError(f"{key_path(keys)}: there is no space {name!r:.40} in files of noterl")
        from gymnasium import spaces

        return _build(functools.partial(_SPACES[name], spaces), fields, name, keys)

    def _keras(self, content: Any, keys: Keys) -> Any:
        name, config = self._call(content, keys)
        cls = _keras_class(name, self._custom_objects)
        # The constructor, never Keras's from_config: that one imports the modules that a nested dict names.
        if any(_has_dict(item) for item in config.values()):
            raise ValueError(f"{key_path(keys)}: the arguments of {name!r} hold a dict, which Keras might run")
        return _build(lambda arguments: cls(**arguments), config, name, keys)


def _is_note(key: str) -> bool:
    return key.startswith("__") and key.endswith("__")


def _is_agent(cls: type) -> bool:
    """Say whether a class is an agent's; where their module is not imported none is."""
    agent: type | None = getattr(sys.modules.get("noterl.agent"), "Agent", None)
    return agent is not None and issubclass(cls, agent)


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _expect(content: Any, kind: type, keys: Keys) -> Any:
    if not isinstance(content, kind):
        raise ValueError(f"{key_path(keys)}: expected a {kind.__name__}, got {_type_name(content)}")
    return content


def _has_dict(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and any(_has_dict(item) for item in value))


def _find(find: Callable[[str], type], name: str) -> type | None:
    try:
        return find(name)
    except ValueError:
        return None


def _build(construct: Callable[[Any], Any], config: Any, name: str, keys: Keys) -> Any:
    try:
        return construct(config)
    except Exception as error:  # Arguments out of a file may make any constructor fail, in any way.
        raise ValueError(f"{key_path(keys)}: {name} cannot be built from {config!r:.200}: {error}") from error


def _refuse(content: Any, keys: Keys) -> None:
    raise ValueError(
        f"the agent was built with {key_path(keys)}={content}, which a file cannot hold: "
        "build the agent in your script and call agent.restore(path)"
    )


def _float(content: Any, keys: Keys) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise ValueError(f"{key_path(keys)}: a float is malformed")
    return float(content)


def _pack_array(value: Array) -> dict[str, Any]:
    data = value.tobytes()
    packed = {"dtype": value.dtype.str, "shape": list(value.shape)}
    item = data[: value.itemsize]
    if value.size > 1 and data == item * value.size:  # The bounds of an image are one number many times over.
        return {**packed, "fill": item.hex()}
    return {**packed, "data": base64.b64encode(data).decode("ascii")}


def _unpack_array(content: Any) -> Array:
    if not isinstance(content, dict) or set(content) not in ({"dtype", "shape", "fill"}, {"dtype", "shape", "data"}):
        raise ValueError("an array is malformed")
    dtype, shape = parse_dtype(content["dtype"]), content["shape"]
    if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("the shape of an array is malformed")
    size = math.prod(shape)
    if size * dtype.itemsize > _MAX_ARRAY_BYTES or len(shape) > 32:
        raise ValueError(f"an array of shape {shape} is larger than encode writes")
    if "fill" in content:
        return from_bytes(bytes.fromhex(str(content["fill"])) * size, dtype, tuple(shape))
    return from_bytes(base64.b64decode(str(content["data"]), validate=True), dtype, tuple(shape))


def _space_fields(value: Any) -> dict[str, Any] | None:
    """Return what a gymnasium space was built with, or None if `value` is none of those that a file can hold."""
    spaces = sys.modules.get("gymnasium.spaces")
    # Exact classes: one that derives from them may mean something else by its bounds.
    if spaces is None or type(value) is not vars(spaces).get(type(value).__name__):
        return None
    if type(value) is spaces.Box:
        return {"low": value.low, "high": value.high, "bounded": [value.bounded_below, value.bounded_above]}
    if type(value) is spaces.Discrete:
        return {"n": int(value.n), "start": int(value.start), "dtype": np.dtype(value.dtype).str}
    if type(value) is spaces.MultiDiscrete:
        return {"nvec": value.nvec, "start": value.start}
    if type(value) is spaces.MultiBinary:
        return {"n": value.n if isinstance(value.n, int) else list(value.shape)}
    if type(value) is spaces.Dict and all(type(key) is str for key in value.spaces):
        return {"spaces": [[key, space] for key, space in value.spaces.items()]}
    if type(value) is spaces.Tuple:
        return {"spaces": list(value.spaces)}
    return None


def _box(spaces: Any, fields: dict[str, Any]) -> Any:
    box = spaces.Box(fields["low"], fields["high"], dtype=fields["low"].dtype)
    # An open side of an integer box has the smallest or greatest int for a bound: only these tell that it is open.
    box.bounded_below, box.bounded_above = (_expect_like(bounded, box.low) for bounded in fields["bounded"])
    return box


def _expect_like(bounded: Array, low: Array) -> Array:
    if bounded.dtype != np.bool_ or bounded.shape != low.shape:
        raise ValueError("its bounds and what says whether they hold differ in shape")
    return bounded


def _discrete(spaces: Any, fields: dict[str, Any]) -> Any:
    dtype = parse_dtype(fields["dtype"])
    # Older gymnasium has no argument for what it always is there.
    optional = {} if dtype == np.int64 else {"dtype": dtype.type}
    return spaces.Discrete(fields["n"], start=fields["start"], **optional)


def _multi_discrete(spaces: Any, fields: dict[str, Any]) -> Any:
    return spaces.MultiDiscrete(fields["nvec"], dtype=fields["nvec"].dtype.type, start=fields["start"])


_SPACES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda spaces, fields: spaces.MultiBinary(fields["n"]),
    # Of a plain dict gymnasium would sort the keys.
    "Dict": lambda spaces, fields: spaces.Dict(OrderedDict(fields["spaces"])),
    "Tuple": lambda spaces, fields: spaces.Tuple(fields["spaces"]),
}


def _is_keras(value: Any) -> bool:
    """Say whether `value` is an optimizer or schedule of Keras; where Keras is not imported nothing is."""
    optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
    return optimizers is not None and isinstance(
        value, (optimizers.Optimizer, optimizers.schedules.LearningRateSchedule)
    )


def _keras_class(name: str, custom_objects: dict[str, type] | None = None) -> type:
    from keras import optimizers

    cls = (custom_objects or {}).get(name) or vars(optimizers).get(name) or vars(optimizers.schedules).get(name)
    kinds = (optimizers.Optimizer, optimizers.schedules.LearningRateSchedule)
    if not isinstance(cls, type) or not issubclass(cls, kinds):
        cls = lookup(name, custom_objects)
    if not issubclass(cls, kinds):
        raise ValueError(f"the class {name!r} must be an optimizer or a learning-rate schedule of Keras, got {cls!r}")
    return cls
