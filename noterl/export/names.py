"""The names of the formats and the endings of the files; this module imports no backend."""

from __future__ import annotations

import os
from pathlib import Path

from noterl.utils.checks import check_word
from noterl.utils.files import checked_path

# The ending of the file whose path `export` returns, and of the file beside it. A SavedModel is a folder.
ENDINGS: dict[str, tuple[str, ...]] = {
    "keras": (".keras",),
    "saved_model": (),
    "onnx": (".onnx",),
    "torch": (".py", ".pt"),
    "numpy": (".py", ".npz"),
}
FORMAT_NAMES = tuple(ENDINGS)


def export_path(path: str | os.PathLike[str], format: str) -> Path:
    """Return the path of the file or folder of a format; a missing ending is added.

    Raises:
        ValueError: if the format is unknown, `path` is not a path, or `path` has the ending of another format.
    """
    endings_of_format = ENDINGS[check_word("format", format, FORMAT_NAMES)]
    target = Path(checked_path(path))
    if target.suffix in endings_of_format:
        return target.with_suffix(endings_of_format[0])
    others = [name for name, endings in ENDINGS.items() if target.suffix in endings]
    if others:
        raise ValueError(
            f"path must have the ending of format={format!r} or none, got {str(path)!r}: "
            f"{' or '.join(f'format={name!r}' for name in others)} writes such a file"
        )
    return target.with_name(target.name + endings_of_format[0]) if endings_of_format else target
