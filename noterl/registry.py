"""The registry of named classes, and the base class of objects that record constructor arguments.

A name in a file is looked up here or in `custom_objects`. The name is never imported.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import reprlib
from typing import TYPE_CHECKING, Any, TypeVar

from noterl.utils import words

Class = TypeVar("Class", bound=type)

_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY

_registry: dict[str, type] = {}
_modules: list[str] = []


def register_modules(*names: str) -> None:
    """Add modules that `lookup` imports if a name is not registered. These modules register classes when imported."""
    _modules.extend(names)


def register(cls: Class) -> Class:
    """Register a class by name, so that `noterl.load` can build objects of the class.

    Use the function as a decorator on your own agents, policies and other parts.

    Raises:
        ValueError: if another class has the same name.

    Example:
    >>> import noterl
    >>> @noterl.register
    ... class Mine:
    ...     pass
    """
    other = _registry.get(cls.__name__)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        # A notebook's cell or a reloaded module may define the same class again.
        raise ValueError(
            f"register(cls): the name {cls.__name__!r} is taken by {other.__module__}.{other.__qualname__}; "
            f"rename {cls.__module__}.{cls.__qualname__}"
        )
    _registry[cls.__name__] = cls
    return cls


def lookup(name: str, custom_objects: dict[str, type] | None = None) -> type:
    """Return the class that a file calls `name`.

    Args:
        name: the name of the class.
        custom_objects: classes by name, which take precedence over the registry.

    Raises:
        ValueError: if neither `custom_objects` nor the registry has the name.
    """
    if custom_objects and name in custom_objects:
        return custom_objects[name]
    for module in _modules:
        if name not in _registry:
            importlib.import_module(module)
    if name not in _registry:
        raise ValueError(
            f"the class {name!r} is not registered: decorate it with @noterl.register, or pass "
            f"custom_objects={{{name!r}: ...}}; on the command line, --import MODULE imports the module of the class"
        )
    return _registry[name]


def arguments() -> dict[str, type]:
    """Import all modules of `register_modules`, and return the classes whose instances may be arguments, by name."""
    for module in _modules:
        importlib.import_module(module)
    return {name: cls for name, cls in _registry.items() if issubclass(cls, Configurable) and cls._is_argument}


class _Recorder(type):
    """Records the constructor arguments of each instance as `_config`, before `__init__` runs."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        # noterl's classes pass all `**options` to their base class, so `help` can show the arguments by name.
        if "__init__" in namespace and cls.__module__.partition(".")[0] == "noterl":
            instance = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
            namespace["__init__"].__signature__ = inspect.Signature([instance, *cls.__signature__.parameters.values()])

    # Type checkers would take the return type of `__call__` for the type of each instance, and every name for an
    # attribute.
    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Make an instance with the arguments in `_config`; a TypeError for wrong arguments gets advice."""
            class_: Any = cls
            instance = class_.__new__(cls)
            # Recorded before `__init__`, whose assignments may read it; see `Explorer`.
            try:
                bound = inspect.signature(class_.__init__).bind(instance, *args, **kwargs)
                # With copies of containers, because the caller may change them later.
                vars(instance)["_config"] = _copied(dict(list(bound.arguments.items())[1:]))
                cls._initialize(instance, args, kwargs)
            except TypeError as error:
                message = words.explain_constructor(error, cls, args, kwargs)
                if message is None:
                    raise
                raise TypeError(message) from None
            return instance

        def __getattr__(cls, name: str) -> Any:
            raise words.missing_attribute(cls, name, f"type object {cls.__name__!r}")

    @property
    def __signature__(cls) -> inspect.Signature:
        """The arguments of the class, including arguments that `__init__` passes to the base class as keywords."""
        named_parameters: dict[str, inspect.Parameter] = {}
        keywords: list[inspect.Parameter] = []
        for init in (vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base)):
            parameters = list(inspect.signature(init).parameters.values())[1:]
            keywords = [entry for entry in parameters if entry.kind is inspect.Parameter.VAR_KEYWORD]
            if named_parameters:  # arguments of a base class can be passed by keyword only
                named = [entry for entry in parameters if entry.kind is not inspect.Parameter.VAR_POSITIONAL]
                parameters = [entry if entry in keywords else entry.replace(kind=_KEYWORD_ONLY) for entry in named]
            for entry in parameters:
                if entry not in keywords:
                    named_parameters.setdefault(entry.name, entry)
            # Without `**options`, a constructor passes nothing on to its base class.
            if not keywords:
                break
        return inspect.Signature([*named_parameters.values(), *keywords])

    def _initialize(cls, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        instance.__init__(*args, **kwargs)


def _copied(value: Any) -> Any:
    """Return a copy of a container; its other contents, such as networks, stay the same objects."""
    if type(value) is dict:
        return {key: _copied(entry) for key, entry in value.items()}
    return copy.copy(value) if type(value) in (list, set) else value


class Configurable(metaclass=_Recorder):
    """An object that records constructor arguments; base of agents, policies, noises and memories."""

    _config: dict[str, Any]
    _is_argument = True  # whether a file may hold instances as arguments of other objects

    def __repr__(self) -> str:
        """Return the call of the constructor, with long arguments cut short."""
        names = inspect.signature(type(self)).parameters
        shown = [
            reprlib.repr(value) if index == 0 and name in names else f"{name}={reprlib.repr(value)}"
            for index, (name, value) in enumerate(vars(self).get("_config", {}).items())
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments by name, unchanged."""
        config = dict(self._config)
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            # Keywords of `**options` are arguments like the others.
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in config:
                config.update(config.pop(name))
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Build an object from the arguments that `get_config` returned."""
        named = dict(config)
        positional = []
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        for index, parameter in enumerate(parameters):
            # Arguments before `*names` can only be passed by position.
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL and parameter.name in named:
                positional = [named.pop(before.name) for before in parameters[:index]] + list(named.pop(parameter.name))
        return cls(*positional, **named)
