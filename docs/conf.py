"""Sphinx configuration: `make docs` builds the site offline, with warnings as errors."""

from __future__ import annotations

import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GENERATED = DOCS / "_generated"
sys.path.insert(0, str(ROOT))
os.environ.setdefault("MPLBACKEND", "agg")

import noterl  # noqa: E402 - autodoc imports the checkout, not an installed copy

project = "noterl"
author = "the noterl developers"
version = release = noterl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "_generated"]

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4

# A name in single backticks in a docstring links to its documentation, if there is any, and is shown as code.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"noterl {release}"
html_static_path = ["_static"]
html_show_copyright = False
html_show_sphinx = False
html_show_sourcelink = False

# keras.io publishes no inventory, so the pages that noterl's docs mention are listed here.
KERAS_PAGES = {
    "keras.Model": "models/model/",
    "keras.Sequential": "models/sequential/",
    "keras.callbacks.BackupAndRestore": "callbacks/backup_and_restore/",
    "keras.callbacks.CSVLogger": "callbacks/csv_logger/",
    "keras.callbacks.Callback": "callbacks/base_callback/",
    "keras.callbacks.EarlyStopping": "callbacks/early_stopping/",
    "keras.callbacks.LambdaCallback": "callbacks/lambda_callback/",
    "keras.callbacks.LearningRateScheduler": "callbacks/learning_rate_scheduler/",
    "keras.callbacks.ModelCheckpoint": "callbacks/model_checkpoint/",
    "keras.callbacks.ReduceLROnPlateau": "callbacks/reduce_lr_on_plateau/",
    "keras.callbacks.SwapEMAWeights": "callbacks/swap_ema_weights/",
    "keras.callbacks.TensorBoard": "callbacks/tensorboard/",
    "keras.callbacks.TerminateOnNaN": "callbacks/terminate_on_nan/",
    "keras.optimizers.Adam": "optimizers/adam/",
    "keras.optimizers.Optimizer": "optimizers/",
}


def write_keras_inventory(path: Path) -> None:
    """Write `KERAS_PAGES` as a Sphinx inventory, so that intersphinx resolves them without the network."""
    lines = "".join(f"{name} py:class 1 {page} -\n" for name, page in KERAS_PAGES.items())
    header = "# Sphinx inventory version 2\n# Project: keras\n# Version: 3\n# The rest is compressed using zlib.\n"
    path.write_bytes(header.encode() + zlib.compress(lines.encode()))


GENERATED.mkdir(exist_ok=True)
write_keras_inventory(GENERATED / "keras.inv")
intersphinx_mapping = {"keras": ("https://keras.io/api", str(GENERATED / "keras.inv"))}
# The other inventories are downloaded. A build without them lacks only the links to these projects.
if os.environ.get("NOTERL_DOCS_ONLINE"):
    intersphinx_mapping |= {
        "gymnasium": ("https://gymnasium.farama.org", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "python": ("https://docs.python.org/3", None),
    }

# Code, doctest lines and directives stay as they are; the characters of reStructuredText's markup elsewhere do not.
_KEPT = re.compile(r"(``[^`]+``|`[^`]+`)")
_MARKUP = re.compile(r"([*|]|(?<=\w)_(?!\w))")


def escape_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape characters that reStructuredText would take for markup: docstrings are plain text with backticks."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...", "..")):
            continue
        parts = _KEPT.split(line)
        lines[number] = "".join(part if index % 2 else _MARKUP.sub(r"\\\1", part) for index, part in enumerate(parts))


def setup(app: Any) -> None:
    """Register the hook that runs before napoleon reads a docstring (napoleon's priority is 500)."""
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)
