"""Reading the networks of an agent from files: TOML, the `.cfg` files of xagents, and files of Keras.

Nothing in a file is evaluated, imported or unpickled.
"""

from __future__ import annotations

import configparser
import contextlib
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

# Characters of a line in which a key is looked for. The time of the search grows with their square.
_LONGEST_LINE = 200


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
        ".toml": read_toml,
        ".cfg": read_cfg,
        ".json": read_keras_json,
        ".keras": read_keras_archive,
    }
    ending = path.suffix.lower()
    if ending not in readers:
        raise ValueError(f"network must be a file that ends in {', '.join(readers)}, got {str(path)!r}")
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
        return type(network)([resolve_network(element) for element in network])
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
        match = re.fullmatch(r"(.*) \(at (line \d+), column \d+\)", str(error))
        place, reason = (str(path), str(error)) if match is None else (f"{path}, {match[2]}", match[1])
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
        raise ValueError(f"network: {place}: {' '.join(str(error).split())}") from None
    if not parser.sections():
        raise ValueError(f"network: {path} has no sections, such as [dense-1]")
    reader = _CfgReader(str(path), parser, _lines_of_cfg(text))
    return NetworkDescription.from_file(reader.document(), Origin(str(path), reader.lines))


class _CfgReader:
    """Converts the sections of a `.cfg` file, each of which is a layer, into the document of a description.

    Names of layers and keys are checked by the description.

    Args:
        path: of the file.
        parser: holds the sections.
        cfg_lines: the lines of `(section,)` and `(section, key)`.

    Attributes:
        lines: the lines of the tables and keys of the document.
    """

    def __init__(self, path: str, parser: configparser.ConfigParser, cfg_lines: Mapping[Keys, int]) -> None:
        self._path = path
        self._parser = parser
        self._cfg_lines = cfg_lines
        self.lines: dict[Keys, int] = {}

    def document(self) -> dict[str, Any]:
        """Return the document."""
        sections = self._parser.sections()
        ends = [index for index, section in enumerate(sections) if self._is_output(section)]
        if len(ends) > 2:
            raise self._error(sections[ends[2]], "output", "a file has at most two outputs, of actor and critic")
        if ends and ends[-1] != len(sections) - 1:
            section = sections[ends[-1] + 1]
            raise self._error(section, "", f"[{section}] follows the last output")
        if len(ends) < 2:
            return self._table((), sections)
        common = [index for index, section in enumerate(sections) if self._flag(section, "common")]
        if len(common) != 1 or common[0] >= ends[0]:
            text = "with two outputs, exactly one layer before them must have common=1: the last one that they share"
            raise self._error(sections[common[1] if len(common) > 1 else ends[0]], "common", text)
        first = common[0] + 1
        return {
            **self._table((), sections[:first]),
            "shared": True,
            "actor": self._table(("actor",), sections[first : ends[0] + 1]),
            "critic": self._table(("critic",), sections[ends[0] + 1 :]),
        }

    def _table(self, place: Keys, sections: Sequence[str]) -> dict[str, Any]:
        """Return the layers and the outputs of some sections as a part of the document; add the lines to `lines`.

        Args:
            place: the keys of this part in the document.
            sections: their names.
        """
        layers: list[dict[str, Any]] = []
        table: dict[str, Any] = {"layers": layers}
        for section in sections:
            layer = self._layer(section)
            if self._is_output(section):
                keys: Keys = (*place, "output")
                table["output"] = {key: value for key, value in layer.items() if key != "layer"}
            else:
                keys = (*place, "layers", len(layers))
                layers.append(layer)
            own_lines = ((names[1:], line) for names, line in self._cfg_lines.items() if names[0] == section)
            self.lines |= {(*keys, *names): line for names, line in own_lines}
        return table

    def _layer(self, section: str) -> dict[str, Any]:
        """Return the table of a layer, without the keys `common` and `output`."""
        name = _layer_name(section)
        options = {key: _number(value) for key, value in self._parser[section].items() if key not in _FLAGS}
        # Keras's default, which xagents uses.
        default = {"initializer": "glorot_uniform"} if name in ("dense", "convolution") else {}
        return {"layer": name, **default, **options}

    def _is_output(self, section: str) -> bool:
        """Return whether a section is an output: a dense layer with `output=1` or without units."""
        is_dense = _layer_name(section) == "dense"
        is_marked = self._flag(section, "output")
        if is_marked and not is_dense:
            raise self._error(section, "output", "an output must be a dense layer")
        # Without units, a layer is an output; with an unknown key, `units` may be misspelled.
        return is_marked or (is_dense and self._parser[section].keys() <= _OUTPUT_KEYS)

    def _flag(self, section: str, key: str) -> bool:
        try:
            return self._parser.getboolean(section, key, fallback=False)
        except ValueError:
            raise self._error(section, key, f"{key} must be 1 or 0, got {self._parser[section][key]!r}") from None

    def _error(self, section: str, key: str, text: str) -> ValueError:
        """Return an error about a key, or about the section."""
        line = self._cfg_lines.get((section, key), self._cfg_lines.get((section,), 0))
        return ValueError(f"network: {self._path}, line {line}: {text}")


_FLAGS = ("common", "output")
_OUTPUT_KEYS = {*_FLAGS, "activation", "initializer", "gain"}


def _layer_name(section: str) -> str:
    return section.partition("-")[0].strip().lower().replace("convolutional", "convolution")


def _number(text: str) -> int | float | str:
    """Return the number that a text is, or the text."""
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            return convert(text)
    return text


def _lines_of_cfg(text: str) -> dict[Keys, int]:
    """Return the lines of `(section,)` and `(section, key)`."""
    lines: dict[Keys, int] = {}
    section = ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole[:_LONGEST_LINE]
        if header := re.match(r"\s*\[(.+)\]", line):
            section = header[1]
            lines.setdefault((section,), number)
        elif key := re.match(r"\s*([^#;=:\s][^=:]*?)\s*[=:]", line):
            lines.setdefault((section, key[1].lower()), number)
    return lines


def _lines_of_toml(text: str) -> dict[Keys, int]:
    """Return the line number of each table and key, for error messages.

    Keys in inline tables are not listed, so `Origin.place` uses the line of the inline table.
    """
    lines: dict[Keys, int] = {}
    counts: dict[Keys, int] = {}
    table: Keys = ()
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole[:_LONGEST_LINE]
        if header := re.match(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]", line):
            table = _names(header[2])
            for end in range(1, len(table)):
                lines.setdefault(table[:end], number)
            if header[1] == "[[":  # an array of tables, whose tables are numbered
                index = counts[table] = counts.get(table, -1) + 1
                lines.setdefault(table, number)
                table = (*table, index)
            lines[table] = number
        elif key := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line):
            lines.setdefault((*table, *_names(key[1])), number)
    return lines


def _names(text: str) -> Keys:
    return tuple(name.strip(" \"'") for name in text.split("."))
