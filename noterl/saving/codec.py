"""Encoding state trees as JSON: the types of `noterl.utils.codec`, and objects among constructor arguments.

Reading a file does not construct objects: each one becomes a `Description`, which `build` replaces later. A class is
then looked up in `custom_objects`, in the registry, or among the optimizers and schedules of Keras and torch. Names in
a file are never imported, and only constructors are called.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from noterl.registry import Configurable, lookup
from noterl.saving.arrays import SAFETENSORS_DTYPES
from noterl.utils import codec
from noterl.utils.codec import Array, type_name
from noterl.utils.files import FileError, Keys, key_path
from noterl.utils.keras_backend import optimizer_config


@dataclass(frozen=True)
class Arguments:
    """Constructor arguments in a tree.

    If a file cannot hold one of the values, the name of the type is written instead, and `build` raises.
    """

    values: dict[str, Any]


@dataclass(frozen=True)
class Description:
    """An object in a file: the kind, the name of the class, and the constructor arguments.

    Attributes:
        kind: "$object" for a `Configurable`, "$keras" for an optimizer or schedule of Keras, "$torch" for an optimizer
            of torch, "$opaque" for any other object.
        name: name of the class.
        arguments: constructor arguments by name, perhaps with further descriptions.
    """

    kind: str
    name: str
    arguments: dict[str, Any]


class TreeEncoder(codec.Encoder):
    """Encodes a state tree.

    Attributes:
        tensors: the arrays below a key "variables", by name; the others are in `arrays`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, Array] = {}
        self._opaque = False

    def array(self, value: Array, keys: Keys) -> Any:
        """Encode an array."""
        if "variables" not in keys or value.dtype.str not in SAFETENSORS_DTYPES:
            return super().array(value, keys)
        keys = keys[1:] if keys[0] == "variables" else keys
        stem = name = "/".join(map(str, keys)).encode("utf-8", "backslashreplace").decode()
        while name in self.tensors or name == "__metadata__":
            name = f"{stem}~{len(self.tensors)}"
        self.tensors[name] = value
        return {"$tensor": name}

    def encode(self, value: Any, keys: Keys = ()) -> Any:
        """Return the value as JSON."""
        try:
            return super().encode(value, keys)
        except TypeError:
            if not self._opaque:
                raise
            return {"$opaque": [type_name(value), {}]}

    def other(self, value: Any, keys: Keys) -> Any:
        """Encode an object, or a value of a type without a separate encoder."""
        if isinstance(value, Arguments):
            self._opaque = True
            try:
                return self.encode(value.values, keys)
            finally:
                self._opaque = False
        description = _describe(value, keys)
        if description is None:
            return super().other(value, keys)
        return {description.kind: [description.name, self.encode(description.arguments, keys)]}


class TreeDecoder(codec.Decoder):
    """Decodes a state tree from a file.

    Args:
        load: returns the array of a `.npy` member by name; must raise a `FileError` if there is none.
        tensors: the arrays of the safetensors member. The decoder removes each tensor at the first use.
    """

    def __init__(self, load: Callable[[str], Array], tensors: dict[str, Array]) -> None:
        super().__init__(load)
        self._tensors = tensors
        self._decoders["$tensor"] = self._tensor
        self._decoders |= {prefix: functools.partial(self._description, prefix) for prefix in _BUILDERS}

    def _description(self, kind: str, content: Any, keys: Keys) -> Description:
        return Description(kind, *self.call(content, keys))

    def _tensor(self, content: Any, keys: Keys) -> Array:
        """Return a tensor by name, and remove the tensor, so that none is used twice."""
        name = codec.expect(content, str)
        if name not in self._tensors:
            raise FileError(f"the tensor {name!r:.80} is missing or used twice")
        return self._tensors.pop(name)


def build(value: Any, custom_objects: Mapping[str, type] | None = None) -> Any:
    """Return a value from a file with each description replaced by the object.

    Args:
        value: what `noterl.saving.read` returned, or a part.
        custom_objects: classes by name, which take precedence over the registry.

    Raises:
        ValueError: if a class is unknown, a constructor fails, or the file could not hold the object.
    """
    return _build(value, dict(custom_objects or {}), ())


def _build(value: Any, custom_objects: dict[str, type], keys: Keys) -> Any:
    """Return a value with objects in place of descriptions, the innermost built first; see `build`."""
    if isinstance(value, dict):
        return {key: _build(entry, custom_objects, (*keys, key)) for key, entry in value.items()}
    if isinstance(value, list | tuple | deque):
        items = [_build(entry, custom_objects, (*keys, index)) for index, entry in enumerate(value)]
        return deque(items, value.maxlen) if isinstance(value, deque) else type(value)(items)
    if not isinstance(value, Description):
        return value
    arguments = _build(value.arguments, custom_objects, keys)
    return _BUILDERS[value.kind](value.name, arguments, custom_objects, key_path(keys))


def _build_object(name: str, config: dict[str, Any], custom_objects: dict[str, type], place: str) -> Any:
    """Return a `Configurable` that may be an argument, such as a policy."""
    cls = lookup(name, custom_objects)
    if not isinstance(cls, type) or not issubclass(cls, Configurable):
        raise ValueError(f"{place}: the class {name!r} must be a noterl.registry.Configurable, got {cls!r}")
    # gymnasium imports the module of an id "module:name", and an agent's constructor accepts ids.
    if not cls._is_argument:
        raise ValueError(f"{place}: an agent must not be among the arguments in a file, got {name!r}")
    return _construct(cls.from_config, config, name, place)


def _build_keras(name: str, config: dict[str, Any], custom_objects: dict[str, type], place: str) -> Any:
    """Return an optimizer or a schedule of Keras."""
    cls = _keras_class(name, custom_objects)
    # Keras's from_config would import the modules that a nested dict names, so only the constructor is called.
    if any(_has_dict(argument) for argument in config.values()):
        raise ValueError(f"{place}: the arguments of {name!r} hold a dict, which Keras might run")
    return _construct(lambda arguments: cls(**arguments), config, name, place)


def _build_torch(name: str, config: dict[str, Any], custom_objects: dict[str, type], place: str) -> Any:
    """Return a function `parameters -> optimizer`, because the optimizer holds parameters of networks."""
    return functools.partial(_torch_class(name, custom_objects), **config)


def _refuse(name: str, config: dict[str, Any], custom_objects: dict[str, type], place: str) -> Any:
    """Raise a ValueError for an object that `Arguments` could not store."""
    raise ValueError(
        f"the agent was built with {place}={name}, which a file cannot hold: "
        "build the agent in your script and call agent.restore(path)"
    )


_BUILDERS: dict[str, Callable[[str, dict[str, Any], dict[str, type], str], Any]] = {
    "$object": _build_object,
    "$keras": _build_keras,
    "$torch": _build_torch,
    "$opaque": _refuse,
}


def _construct(call: Callable[[dict[str, Any]], Any], config: dict[str, Any], name: str, place: str) -> Any:
    """Return `call(config)`; an error becomes a ValueError that names the place in the file."""
    try:
        return call(config)
    except FileError:
        raise
    except Exception as error:  # Arguments from a file may make a constructor raise anything.
        raise ValueError(f"{place}: {name} cannot be built from {config!r:.200}: {error}") from error


def _describe(value: Any, keys: Keys) -> Description | None:
    """Return the description of an object, or None.

    Raises:
        TypeError: if the name of the class would be looked up as another class.
    """
    if isinstance(value, Description):
        return value
    name = type(value).__name__
    if isinstance(value, Configurable) and value._is_argument:
        if _find(lookup, name) not in (None, type(value)):
            raise TypeError(f"{key_path(keys, 'tree')}: another class is registered as {name!r}")
        return Description("$object", name, value.get_config())
    if _is_torch(type(value)):
        return _describe_torch(value, name, keys)
    return _describe_keras(value, name, keys) if _is_keras(value) else None


def _describe_torch(value: Any, name: str, keys: Keys) -> Description | None:
    """Return the description of an optimizer of torch; the state has the current numbers.

    None if the arguments do not describe the optimizer: with hooks, or several groups of parameters.
    """
    if _find(_torch_class, name) not in (None, type(value)):
        raise TypeError(f"{key_path(keys, 'tree')}: {name!r} is another class, of torch or of the registry")
    if len(value.param_groups) > 1 or value._optimizer_step_pre_hooks or value._optimizer_step_post_hooks:
        return None
    accepted = inspect.signature(type(value)).parameters  # the defaults of AdamW hold arguments of Adam, too
    return Description("$torch", name, {key: number for key, number in value.defaults.items() if key in accepted})


def _describe_keras(value: Any, name: str, keys: Keys) -> Description | None:
    """Return the description of an optimizer or a schedule of Keras; None if an argument is a dict."""
    class_of_name = _find(_keras_class, name)
    # On torch, calling an optimizer class of Keras returns an instance of a subclass.
    from_keras = type(value).__module__.startswith("keras.src.") and issubclass(type(value), class_of_name or object)
    if class_of_name not in (None, type(value)) and not from_keras:
        raise TypeError(f"{key_path(keys, 'tree')}: {name!r} is another class, of Keras or of the registry")
    rate = getattr(value, "noterl_schedule", getattr(value, "_learning_rate", None))
    if callable(rate) and not isinstance(rate, Configurable) and not _is_keras(rate):
        return Description("$keras", name, {"learning_rate": rate})  # get_config would warn about the function
    config = optimizer_config(value)
    # Keras returns these as dicts that name modules to import, so the objects themselves are described.
    for argument, attribute in (("learning_rate", "_learning_rate"), ("inner_optimizer", "inner_optimizer")):
        if isinstance(config.get(argument), dict):
            config[argument] = getattr(value, attribute)
    if isinstance(rate, Configurable):
        config["learning_rate"] = rate
    return None if any(_has_dict(argument) for argument in config.values()) else Description("$keras", name, config)


def _has_dict(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple | deque) and any(map(_has_dict, value)))


def _find(find: Callable[[str], type], name: str) -> type | None:
    try:
        return find(name)
    except ValueError:
        return None


def _is_keras(value: Any) -> bool:
    """Return whether a value is an optimizer or schedule of Keras, without importing Keras."""
    optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
    kinds = () if optimizers is None else (optimizers.Optimizer, optimizers.schedules.LearningRateSchedule)
    return isinstance(value, kinds)


def _is_torch(cls: type) -> bool:
    """Return whether a class is an optimizer of torch, without importing torch."""
    return any(base.__module__ == "torch.optim.optimizer" for base in cls.__mro__)


def _torch_class(name: str, custom_objects: dict[str, type] | None = None) -> type:
    """Return the class of an optimizer of torch, from `custom_objects`, `torch.optim` or the registry.

    Raises:
        ValueError: if torch is not imported, or there is no such optimizer.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise ValueError(
            f"the file's optimizer {name!r} is one of torch: set KERAS_BACKEND=torch before Keras is imported"
        )
    cls = (custom_objects or {}).get(name) or vars(torch.optim).get(name)
    if not isinstance(cls, type) or not _is_torch(cls):
        cls = lookup(name, custom_objects)
    if not _is_torch(cls) or cls is torch.optim.Optimizer:
        raise ValueError(f"the class {name!r} must be an optimizer of torch, got {cls!r}")
    return cls


def _keras_class(name: str, custom_objects: dict[str, type] | None = None) -> type:
    from keras import optimizers

    cls = (custom_objects or {}).get(name) or vars(optimizers).get(name) or vars(optimizers.schedules).get(name)
    kinds = (optimizers.Optimizer, optimizers.schedules.LearningRateSchedule)
    if not isinstance(cls, type) or not issubclass(cls, kinds):
        cls = lookup(name, custom_objects)
    if not issubclass(cls, kinds):
        raise ValueError(f"the class {name!r} must be an optimizer or a learning-rate schedule of Keras, got {cls!r}")
    return cls
