"""Options that are generated from the signatures and docstrings of functions and classes, and parsed by tyro."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from noterl.cli.errors import UsageError
from noterl.cli.values import alternatives, is_sequence, parse_value
from noterl.utils.optional import require
from noterl.utils.words import explain_name, hint

# What a docstring says about an argument that a base class documents.
_SEE = re.compile(r"(see|as in) `")

# Callbacks whose names on the command line do not follow from the names of their classes.
_NAMES_OF_CALLBACKS = {"MLflowLogger": "mlflow", "TensorBoard": "tensorboard", "TerminateOnNaN": "terminate-on-nan"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        key: the name in TOML files and results, such as "batch_size" or "early_stopping.criterion".
        annotation: the types of the value, as in Python's source.
        default: the default value, which the help shows; None for no default.
        help: what the option does.
        group: the title of the box in the help.
        required: whether the user must give the option.
        switch: whether the value may be left out: a bool, or a callback whose arguments all have defaults.
    """

    key: str
    annotation: str
    default: Any = None
    help: str = ""
    group: str = "options"
    required: bool = False
    switch: bool = False

    @property
    def flag(self) -> str:
        """The option on the command line, such as `--early-stopping.criterion`."""
        return "--" + self.key.replace("_", "-")


class Given(NamedTuple):
    """The value of an option that the user gave.

    Attributes:
        value: the value.
        source: what a TOML file holds for the option: a str, a number, a bool, or a list of these.
    """

    value: Any
    source: Any


def cli_name(class_name: str) -> str:
    """Return the name of a callback on the command line.

    Example:
    >>> from noterl.cli.options import cli_name
    >>> [cli_name(name) for name in ("EarlyStopping", "CSVLogger", "ESSWindow", "ReduceLROnPlateau", "TensorBoard")]
    ['early-stopping', 'csv', 'ess-window', 'reduce-lr-on-plateau', 'tensorboard']
    """
    # A word begins after a small letter, or before the last capital of a row: "LRScheduler" is "lr-scheduler".
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", class_name.removesuffix("Logger"))
    return _NAMES_OF_CALLBACKS.get(class_name, words.lower())


def options_of(
    function: Callable[..., Any], group: str, *, prefix: str = "", skip: Collection[str] = ()
) -> list[Option]:
    """Return an option for each argument of a function or class.

    Args:
        function: the function or class.
        group: the title of the options' box in the help.
        prefix: what keys begin with, such as "checkpoint.".
        skip: names of arguments that are not options.
    """
    helps = help_of_arguments(function)
    options = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in (*skip, "self") or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        # `env` may be any object in Python, but a text on the command line.
        annotation = "str | None" if name == "env" else _annotation(parameter)
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        switch = "bool" in alternatives(annotation)
        text = helps.get(name, "")
        options.append(Option(prefix + name, annotation, default, text, group, required, switch))
    return options


def _annotation(parameter: inspect.Parameter) -> str:
    """Return an annotation as in Python's source.

    A parameter of a user's class may have no annotation, or one that is a class instead of text.
    """
    if isinstance(parameter.annotation, str):
        return parameter.annotation
    if parameter.annotation is parameter.empty:
        return type(parameter.default).__name__ if isinstance(parameter.default, bool | int | float | str) else "Any"
    return inspect.formatannotation(parameter.annotation)


def help_of_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """Return the first sentence about each argument, from the docstrings of a function, or a class with all bases."""
    parse = require("docstring_parser", "cli", "the command noterl").parse
    sentences: dict[str, str] = {}
    for owner in function.__mro__[:-1] if isinstance(function, type) else [function]:
        for parameter in parse(inspect.cleandoc(owner.__doc__ or "")).params:
            text = _first_sentence(parameter.description or "")
            # A class comes before its bases, so the sentence of the base fills only what is missing.
            if not _SEE.match(text):
                sentences.setdefault(parameter.arg_name, text)
    return sentences


def summary_of(function: Any) -> str:
    """Return the first sentence of a docstring."""
    return _first_sentence(inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0])


def parse_options(
    options: Sequence[Option], arguments: Sequence[str], *, prog: str, description: str, shown: Collection[str] = ()
) -> dict[str, Given]:
    """Return the options that a command line gives, by key.

    Args:
        options: all options of the command.
        arguments: the arguments after the command.
        prog: the command, for the help.
        description: the text at the top of the help.
        shown: the groups that the help shows; all for an empty collection. Errors suggest options of all groups.

    Raises:
        SystemExit: with code 0 after `--help`; with code 2 if an option is unknown or a value is wrong. The message has
            been printed then.
        UsageError: if an unknown option is an option of another library. The message names the options that replace it.
    """
    tyro = require("tyro", "cli", "the command noterl")
    arguments = _positive_flags(options, arguments)  # `--no-option` becomes `--option false`
    _check_foreign_flags(options, arguments)
    _check_single_numbers(options, arguments)
    wants_help = {"-h", "--help"} & {*arguments}
    # The help of all callbacks would take hundreds of lines.
    if wants_help and shown:
        options = [option for option in options if option.group in shown]
    groups = {option.group: [member for member in options if member.group == option.group] for option in options}
    fields: list[Any] = []
    for group, members in groups.items():
        members_class = dataclasses.make_dataclass(group, [_field(tyro, option) for option in members])
        fields.append((re.sub(r"\W", "_", group), members_class, dataclasses.field(default_factory=members_class)))
    parser = dataclasses.make_dataclass("Options", fields)
    parser.__doc__ = description
    parsed = tyro.cli(parser, prog=prog, description=description, args=arguments, config=(tyro.conf.OmitArgPrefixes,))
    values = {name: value for group in vars(parsed).values() for name, value in vars(group).items()}
    pairs = [(option, values[_identifier(option.key)]) for option in options]
    # An option that was not given keeps its default None.
    return {option.key: _checked(option, value) for option, value in pairs if value is not None}


def parse_table(options: Sequence[Option], table: Mapping[str, Any], path: str) -> dict[str, Given]:
    """Return the options in a table of a TOML file, by key.

    Raises:
        UsageError: if a key is unknown; the message suggests the nearest one.
    """
    options_by_key = {option.key: option for option in options}
    values = {}
    for key, source in _flat(table, options_by_key).items():
        if key not in options_by_key:
            raise UsageError(f"{path}: unknown key {key!r}: {explain_name(key, sorted(options_by_key))}")
        values[key] = _checked(options_by_key[key], _given(options_by_key[key], source, path))
    return values


def _checked(option: Option, given: Given) -> Given:
    """Return the value unchanged; raise a `UsageError` if the option is a bool, and the value is another one."""
    value = given.value
    if option.annotation == "bool" and isinstance(value, str | int | float) and not isinstance(value, bool):
        raise UsageError(f"{option.flag} must be true or false, got {value!r}")
    return given


def check_required(options: Iterable[Option], given: Collection[str]) -> None:
    """Raise a `UsageError` if a required option is missing."""
    missing = [option.flag for option in options if option.required and option.key not in given]
    if missing:
        raise UsageError(f"missing: {', '.join(missing)}")


def _given(option: Option, source: Any, path: str) -> Given:
    """Return the value of an option from a TOML file; texts are parsed as on the command line.

    The entries of a list stay texts if the option takes a sequence of texts. A number or bool for an option that takes
    only sequences becomes a tuple of one entry.

    Raises:
        UsageError: if a list is given and the option takes no sequences, or a text cannot be parsed.
    """
    if isinstance(source, str):
        return Given(parse_value(source, option.annotation), source)
    if isinstance(source, list):
        if _holds_texts(option.annotation):
            return Given(tuple(map(str, source)), source)
        if not re.search(r"\b(Any|Sequence|tuple|list)\b", option.annotation):
            raise UsageError(f"{path}: {option.key} must not be a list, got {source!r}")
        return Given(tuple(parse_value(entry, "Any") if isinstance(entry, str) else entry for entry in source), source)
    return Given((source,) if is_sequence(option.annotation) else source, source)


def _flat(table: Mapping[str, Any], known: Mapping[str, Option], prefix: str = "") -> dict[str, Any]:
    """Return the entries of nested tables, with dots in the keys. An empty table is True, which enables a callback."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        key = prefix + str(name).replace("-", "_")
        # A table may be the value of one option, such as the keywords of a network.
        if not isinstance(value, Mapping) or (key in known and "Mapping" in known[key].annotation):
            flat[key] = value
        elif value:
            flat.update(_flat(value, known, f"{key}."))
        else:
            flat[key] = True
    return flat


def _field(tyro: Any, option: Option) -> tuple[str, Any, Any]:
    """Return the field of a dataclass that tyro parses as this option."""

    def construct(texts: list[str]) -> Given:
        if not texts and not is_sequence(option.annotation):
            # The flag without a value.
            return Given(True, True)
        if _holds_texts(option.annotation):
            return Given(tuple(texts), texts)
        if is_sequence(option.annotation):
            # As one text, so that `--hidden 64 64`, `64,64` and `(64, 64)` are the same.
            text = ",".join(texts)
            value = parse_value(text, option.annotation)
            return Given(value, list(value) if _is_plain(value) else text)
        value = parse_value(texts[0], option.annotation)
        return Given(value, value if _is_plain(value) else texts[0])

    # tyro's word for any number of values, for none or one, and for one.
    nargs: Any = "*" if is_sequence(option.annotation) else (0, 1) if option.switch else 1
    spec = tyro.constructors.PrimitiveConstructorSpec(
        nargs=nargs,
        metavar=_metavar(option),
        instance_from_str=construct,
        is_instance=lambda value: True,
        str_from_instance=lambda default: [_show(default)],
    )
    hint = "(required)" if option.required else "" if option.default is None else f"(default: {_show(option.default)})"
    arg = tyro.conf.arg(name=option.key.replace("_", "-"), help=option.help or " ", help_behavior_hint=hint)
    return _identifier(option.key), Annotated[Any, spec, arg], dataclasses.field(default=None)


def _positive_flags(options: Sequence[Option], arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with `--no-option` replaced by `--option false`."""
    flags = {option.flag for option in options}
    # If the value may be a bool, the flag alone means True and `--no-...` False.
    bools = [option.flag for option in options if "bool" in alternatives(option.annotation)]
    negative = {f"--no-{flag[2:]}": [flag, "false"] for flag in bools if f"--no-{flag[2:]}" not in flags}
    return [text for argument in arguments for text in negative.get(argument, [argument])]


def _check_foreign_flags(options: Sequence[Option], arguments: Iterable[str]) -> None:
    """Raise a `UsageError` for the first unknown option that is an option of another library."""
    flags = {option.flag for option in options}
    for argument in arguments:
        flag = argument.partition("=")[0]
        replacement = hint(flag) if flag.startswith("--") and flag not in flags else None
        if replacement:
            shown = ", ".join([*difflib.get_close_matches(flag, flags, 1, 0.85), *_flags_in(replacement, options)])
            raise UsageError(f"unknown option {flag}: {replacement}" + (f". Options: {shown}" if shown else ""))


def _check_single_numbers(options: Sequence[Option], arguments: Sequence[str]) -> None:
    """Raise a `UsageError` for the first option with two numbers that takes one, as ranges of xagents are written."""
    single = {option.flag for option in options if not is_sequence(option.annotation)}
    for flag, first, second in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if flag in single and all(re.fullmatch(r"-?[\d_.]+(e-?\d+)?", text) for text in (first, second)):
            both = f"{first}, {second}"
            raise UsageError(
                f'{flag} takes one value, got {both}; a range for `noterl tune` is {flag} "Float({both})" or '
                f'{flag} "Choice({both})"'
            )


def _flags_in(line: str, options: Sequence[Option]) -> list[str]:
    """Return the options that a line of a migration table names as arguments of functions and callbacks."""
    keys = set(re.findall(r"(\w+)=", line))
    for name, names in re.findall(r"(\w+)\(([\w, =]*)\)", line):
        callback = cli_name(name).replace("-", "_")
        keys |= {callback, *(f"{callback}.{argument}" for argument in re.findall(r"\w+", names))}
    return [option.flag for option in options if option.key in keys]


def _holds_texts(annotation: str) -> bool:
    """Return whether the values of an annotation are sequences of strings."""
    return alternatives(annotation)[:1] == ["Sequence[str]"]


def _is_plain(value: Any) -> bool:
    """Return whether TOML can hold a value without conversion."""
    if isinstance(value, tuple | list):
        return all(isinstance(element, int | float | bool) for element in value)
    return isinstance(value, int | float | bool | str)


def _metavar(option: Option) -> str:
    """Return what stands for the value in the help, such as "INT|TEXT"; in brackets if the value may be left out."""
    names_of_types = {"Any": "VALUE", "str": "TEXT", "Callable": "SCHEDULE", "bool": "BOOL", "Path": "PATH"}
    names_of_types |= dict.fromkeys(("Sequence", "tuple", "list"), "VALUE ...")
    types = [re.split(r"[\[.]", part)[0] for part in alternatives(option.annotation)]
    names = [names_of_types.get(name, name.upper()) for name in types]
    # Each path is a text, so "TEXT|PATH" would say nothing more than "PATH".
    names = [name for name in names if name != "TEXT" or "PATH" not in names]
    text = "|".join(dict.fromkeys(names))
    return f"[{text}]" if option.switch else text


def _show(default: Any) -> str:
    if isinstance(default, tuple | list):
        return " ".join(map(str, default)) or "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _first_sentence(text: str) -> str:
    text = " ".join(text.split())
    # Only before a capital or a backtick: a point in a number or after "e.g." ends no sentence.
    match = re.match(r"(.+?\.)\s+(?=[A-Z`])", text)
    return (match[1] if match else text).rstrip(".")


def _identifier(key: str) -> str:
    return key.replace(".", "__")
