"""Advice of error messages: what to write in place of a name that a class, a function or a module does not have."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def hint(word: str) -> str | None:
    """Return what replaces a word of other libraries in noterl; None if no library has the word.

    Example:
    >>> from noterl.utils.words import hint
    >>> hint("n_epochs")
    "Stable-Baselines3's n_epochs in noterl: epochs="
    """
    # Imported when an error is raised. `from noterl import migration` would ask the package for the name, and so this
    # function for a hint.
    from noterl.migration import replacement_of

    return replacement_of(word)


def find_again(owner: Any, name: str) -> Any:
    """Raise the error of an attribute that `owner` does not have, or whose property has raised; for `__getattr__`."""
    if hasattr(type(owner), name):
        return object.__getattribute__(owner, name)  # raises the error of the property again
    raise missing_attribute(owner, name, f"{type(owner).__name__!r} object")


def missing_attribute(owner: Any, name: str, described: str) -> AttributeError:
    """Return the AttributeError for a missing name; the message has the replacement of another library's name."""
    replacement = hint(name)
    message = f"{described} has no attribute {name!r}" + (f". {replacement}" if replacement else "")
    return AttributeError(message, name=name, obj=owner)


def explain_keyword(
    name: str, value: Any, known: Iterable[str], elsewhere: Mapping[str, Iterable[str]] | None = None
) -> str:
    """Return advice on what to write in place of a keyword that a function does not have.

    Args:
        name: the keyword.
        value: the value, which may be a word of another library too, such as "MlpPolicy".
        known: the arguments of the function.
        elsewhere: the arguments of related functions, by function name.
    """
    advice = [
        _hint_of_value(value),
        *(
            ". ".join(filter(None, [f"{name} is an argument of {function}", hint(name)]))
            for function, names in (elsewhere or {}).items()
            if name in names
        ),
        " ".join(filter(None, [_nearest(name, known, 0.85), hint(name)])),
        _nearest(name, known, 0.5),
        f"its arguments are {', '.join(known)}",
    ]
    return next(filter(None, advice))


def explain_name(name: str, known: Iterable[str]) -> str:
    """Return advice on what to write in place of a name that is not one of the known names."""
    names = list(known)
    advice = " ".join(filter(None, [_nearest(name, names, 0.85), hint(name)]))
    return advice or _nearest(name, names, 0.7) or f"the names are {', '.join(names)}"


def warn_of_unknown_events(callback: Any, base: type, stacklevel: int, unused: Iterable[str] = ()) -> None:
    """Warn of the methods of a callback that are named like an event but are never called.

    Args:
        callback: the callback.
        base: the base class of callbacks, which has a method for each event.
        stacklevel: as in `warnings.warn`, from the caller of this function.
        unused: methods of the callback that have the names of events which this `fit` does not have.
    """
    unused = set(unused)
    owner = type(callback)
    for name in dir(owner):
        foreign = name.startswith("_on_") and hint(name)
        is_called = name not in unused and hasattr(base, name)
        if (name.startswith("on_") or foreign) and not is_called and callable(getattr(owner, name)):
            events = [event for event in dir(base) if event.startswith("on_") and event not in unused]
            warnings.warn(
                f"{owner.__name__}.{name} is never called, because it is not an event of this fit; "
                f"{explain_name(name, events)}",
                stacklevel=stacklevel + 1,
            )


def explain_constructor(error: TypeError, cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return a message that names the class, for wrong arguments of the constructor; None for other errors.

    Args:
        error: what the constructor raised.
        cls: the class that was called.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    text = str(error)
    name = cls.__name__
    if text.startswith("missing a required argument"):
        return f"{name}() is {text}"
    if text == "too many positional arguments":
        advice = next(filter(None, map(_hint_of_value, args)), "use keywords")
        return f"{name}() got {text}, {', '.join(map(repr, args))}: {advice}"
    match = re.match(r"(?:.*?(\w+)\.__init__\(\) )?got an unexpected keyword argument", text)
    if match is None or match[1] not in {None, *(base.__name__ for base in cls.__mro__)}:
        return None
    arguments = _arguments(cls)
    for keyword, value in kwargs.items():
        if keyword not in arguments:
            advice = explain_keyword(keyword, value, arguments, _arguments_of_methods(cls))
            return f"{name}() got an unexpected keyword argument {keyword!r}: {advice}"
    return None


def explain_arguments(method: Method) -> Method:
    """Decorate a method so that an unknown keyword raises a TypeError with advice on what to write instead.

    The error names the class of the object; Python would name the class that defines the method. A method that accepts
    any keyword is returned unchanged.
    """
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(method).parameters.values()):
        return method
    arguments = _arguments(method)

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name, value in kwargs.items():
            if name not in arguments:
                owner = type(self)
                elsewhere = {f"{owner.__name__}(...)": _arguments(owner), **_arguments_of_methods(owner)}
                caller = owner.__name__ + ("" if method.__name__ == "__init__" else f".{method.__name__}")
                raise TypeError(
                    f"{caller}() got an unexpected keyword argument {name!r}: "
                    f"{explain_keyword(name, value, arguments, elsewhere)}"
                )
        return method(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


def _hint_of_value(value: Any) -> str | None:
    """Return the hint for a value such as "MlpPolicy"."""
    return hint(value) if isinstance(value, str) and value.endswith("Policy") else None


def _nearest(name: str, known: Iterable[str], similarity: float) -> str | None:
    """Return a question with the known name that is nearest to `name`; None if none is similar enough."""
    matches = difflib.get_close_matches(name, known, 1, similarity)
    return f"did you mean {matches[0]!r}?" if matches else None


def _arguments(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [entry.name for entry in parameters if entry.name != "self" and entry.kind is not entry.VAR_KEYWORD]


def _arguments_of_methods(cls: type) -> dict[str, list[str]]:
    return {name: _arguments(getattr(cls, name)) for name in ("compile", "fit", "evaluate") if hasattr(cls, name)}
