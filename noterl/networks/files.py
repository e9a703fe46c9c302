"""Reading the networks of an agent from files: TOML, the `.cfg` files of xagents, and files of Keras.

Nothing in a file is evaluated, imported or unpickled.
"""

from __future__ import annotations

import configparser
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noterl.networks.description import NetworkDescription, Origin
from noterl.networks.keras_files import read_keras_archive, read_keras_json
from noterl.utils.budget import Budget, current, parse
from noterl.utils.files import FileError, Keys, user_path
from noterl.utils.words import explain_name

ENDINGS = (".toml", ".cfg", ".json", ".keras")

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")

# Characters of a line in which a key is looked for. The time of the search grows with their square.
_LONGEST_LINE = 200
_CFG_KEYS = {
    "convolutional": ("filters", "size", "stride", "activation", "initializer", "gain", "common", "output"),
    "flatten": ("common",),
    "dense": ("units", "activation", "initializer", "gain", "common", "output"),
}


def read_network(path: str | os.PathLike[str]) -> Any:
    """Read the networks of an agent from a file.

    Args:
        path: a `.toml` file or a `.cfg` file of xagents, which describe layers; a `.json` file of Keras with a model;
            or a `.keras` file, with its weights.

    Returns:
        A `NetworkDescription`, or a Keras model; each is a value of the agents' argument `network`.

    Raises:
        ValueError: if the file does not exist or does not describe a network; the message contains file and line.
    """
    path = user_path(path)
    readers: dict[str, Any] = {
        ".json": read_keras_json,
        ".keras": read_keras_archive,
        ".toml": read_toml,
        ".cfg": read_cfg,
    }
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(f"network must be a file that ends in {', '.join(ENDINGS)}, got {str(path)!r}")
    if not path.is_file():
        raise ValueError(f"network must be a network or the path of a file; there is no file {str(path)!r}")
    if ending != ".keras":  # of which only members are read
        form = "JSON" if ending == ".json" else "TOML"
        Budget(f"network: {path}", ValueError).spend(f"bytes of {form}", path.stat().st_size)
    return readers[ending](path)


def resolve_network(network: Any) -> Any:
    """Return the argument `network` of an agent with each path, also in a list or tuple, replaced by its network.

    Raises:
        ValueError: as `read_network`.
        FileError: if a saved agent is loaded, whose file holds a path.
    """
    if isinstance(network, list | tuple):
        return type(network)([resolve_network(each) for each in network])
    if not isinstance(network, str | os.PathLike):
        return network
    if current():  # a saved agent holds its networks, so only a manipulated file has a path
        raise FileError("the arguments in its member 'agent.json' have a path in place of a network")
    return read_network(network)


def read_toml(path: Path) -> NetworkDescription:
    """Return the description in a TOML file; errors name the file and the line."""
    content = path.read_bytes()
    try:
        document = parse(content, tomllib.loads, form="TOML")
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at (line \d+), column \d+\)", str(error))
        place, reason = (str(path), str(error)) if found is None else (f"{path}, {found[2]}", found[1])
        raise ValueError(f"network: {place}: {reason}") from None
    except ValueError as error:
        raise ValueError(f"network: {path}: {error}") from None
    return NetworkDescription.from_file(document, Origin(str(path), _lines_of_toml(content.decode())))


def read_cfg(path: Path) -> NetworkDescription:
    """Return the description in a `.cfg` file of xagents; errors name the file and the line.

    A section `[dense-1]` is a layer. A dense layer with `output=1` or without units is an output. With two outputs, the
    layers up to the one with `common=1` are shared by the actor and the critic, in this order.
    """
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        text = path.read_text(encoding="utf-8")
        parser.read_string(text)
    except (configparser.Error, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = str(path) if line is None else f"{path}, line {line}"
        reason = " ".join(str(error).split())
        raise ValueError(f"network: {place}: {reason}") from None
    lines = _lines_of_cfg(text)
    sections = [_Section(str(path), name, dict(parser[name]), lines) for name in parser.sections()]
    if not sections:
        raise ValueError(f"network: {path} has no sections, such as [dense-1]")
    found: dict[Keys, Any] = {}
    document = _arrange(sections, str(path), found)
    return NetworkDescription.from_file(document, Origin(str(path), _lines_of_document(found)))


class _Section:
    """One section of a `.cfg` file: a layer."""

    def __init__(self, path: str, name: str, options: Mapping[str, str], lines: Mapping[Keys, int]) -> None:
        self.path, self.name, self.keys, self.lines = path, name, list(options), lines
        kind = name.partition("-")[0].strip().lower()
        if kind not in _CFG_KEYS:
            raise self.error(None, f"unknown section [{name}]: {explain_name(kind, _CFG_KEYS)}")
        for key in options:
            if key not in _CFG_KEYS[kind]:
                raise self.error(key, f"unknown key {key!r}: {explain_name(key, _CFG_KEYS[kind])}")
        self.is_common = self._flag(options, "common")
        self.is_output = self._flag(options, "output") or (kind == "dense" and "units" not in options)
        if self.is_output and kind != "dense":
            raise self.error("output", "an output must be a dense layer")
        self.layer: dict[str, Any] = {"layer": "convolution" if kind == "convolutional" else kind}
        for key, value in options.items():
            if key not in ("common", "output"):
                self.layer[key] = self._number(key, value) if key in _NUMBERS else value.strip()
        if kind != "flatten":
            self.layer.setdefault("initializer", "glorot_uniform")  # Keras's default, which xagents uses

    def error(self, key: str | None, text: str) -> ValueError:
        """Return an error about a key, or about the section."""
        line = self.lines.get((self.name, key) if key else (self.name,), self.lines.get((self.name,), 0))
        return ValueError(f"network: {self.path}, line {line}: {text}")

    def lines_of(self, place: Keys) -> dict[Keys, int]:
        """Return the lines of this section and its keys, for its place in the document."""
        keys = {(*place, key): self.lines.get((self.name, key)) for key in self.keys}
        return {place: self.lines[(self.name,)], **{name: line for name, line in keys.items() if line is not None}}

    def _flag(self, options: Mapping[str, str], key: str) -> bool:
        value = options.get(key, "0").strip().lower()
        if value not in (*_TRUE, *_FALSE):
            raise self.error(key, f"{key} must be 1 or 0, got {value!r}")
        return value in _TRUE

    def _number(self, key: str, value: str) -> int | float:
        try:
            return _NUMBERS[key](value)
        except ValueError:
            raise self.error(key, f"{key} must be a number, got {value!r}") from None


_NUMBERS: dict[str, Any] = {"filters": int, "size": int, "stride": int, "units": int, "gain": float}


def _arrange(sections: Sequence[_Section], path: str, places: dict[Keys, Any]) -> dict[str, Any]:
    """Return the document of a `.cfg` file, and add the section of each place in it to `places`."""
    ends = [index for index, section in enumerate(sections) if section.is_output]
    if len(ends) > 2:
        raise sections[ends[2]].error("output", "a file has at most two outputs, of the actor and of the critic")
    if ends and ends[-1] != len(sections) - 1:
        raise sections[ends[-1] + 1].error(None, f"[{sections[ends[-1] + 1].name}] follows the last output")
    if len(ends) < 2:
        document = _layers_of(sections[: ends[0]] if ends else sections, (), places)
        return {**document, **(_output_of(sections[ends[0]], (), places) if ends else {})}
    common = [index for index, section in enumerate(sections) if section.is_common]
    if len(common) != 1 or common[0] > ends[0]:
        text = "with two outputs, exactly one layer before them must have common=1: the last one that they share"
        raise sections[common[1] if len(common) > 1 else ends[0]].error("common", text)
    first = common[0] + 1
    document = {**_layers_of(sections[:first], (), places), "shared": True}
    for role, start, end in (("actor", first, ends[0]), ("critic", ends[0] + 1, ends[1])):
        own = _layers_of(sections[start:end], (role,), places)
        document[role] = {**own, **_output_of(sections[end], (role,), places)}
    return document


def _layers_of(sections: Sequence[_Section], place: Keys, places: dict[Keys, Any]) -> dict[str, Any]:
    places.update({(*place, "layers", index): section for index, section in enumerate(sections)})
    return {"layers": [section.layer for section in sections]}


def _output_of(section: _Section, place: Keys, places: dict[Keys, Any]) -> dict[str, Any]:
    places[(*place, "output")] = section
    return {"output": {key: value for key, value in section.layer.items() if key != "layer"}}


def _lines_of_document(places: Mapping[Keys, _Section]) -> dict[Keys, int]:
    found: dict[Keys, int] = {}
    for place, section in places.items():
        found |= section.lines_of(place)
    return found


def _lines_of_cfg(text: str) -> dict[Keys, int]:
    """Return the lines of `(section,)` and `(section, key)`."""
    found: dict[Keys, int] = {}
    section = ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole[:_LONGEST_LINE]
        if header := re.match(r"\s*\[(.+)\]", line):
            section = header[1]
            found.setdefault((section,), number)
        elif key := re.match(r"\s*([^#;=:\s][^=:]*?)\s*[=:]", line):
            found.setdefault((section, key[1].lower()), number)
    return found


def _lines_of_toml(text: str) -> dict[Keys, int]:
    """Return the lines of tables and keys. Keys of inline tables have the line of the table."""
    found: dict[Keys, int] = {}
    counts: dict[Keys, int] = {}
    table: Keys = ()
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole[:_LONGEST_LINE]
        if header := re.match(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]", line):
            table = _names(header[2])
            for end in range(1, len(table)):
                found.setdefault(table[:end], number)
            if header[1] == "[[":
                index = counts[table] = counts.get(table, -1) + 1
                found.setdefault(table, number)
                table = (*table, index)
            found[table] = number
        elif key := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line):
            found.setdefault((*table, *_names(key[1])), number)
    return found


def _names(text: str) -> Keys:
    return tuple(name.strip(" \"'") for name in text.split("."))
