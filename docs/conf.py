"""Sphinx configuration: `make docs` builds the site offline, with warnings as errors."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import latex2mathml.converter
import matplotlib
import nbconvert
import nbformat
import optuna
from cycler import cycler
from docutils import nodes
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GENERATED = DOCS / "_generated"
sys.path.insert(0, str(ROOT))
os.environ.setdefault("MPLBACKEND", "agg")

import noterl.callbacks  # noqa: E402 - autodoc imports the checkout, not an installed copy
from benchmarks import learning, pong, report, time_to_score  # noqa: E402
from noterl import migration, plotting  # noqa: E402
from noterl.presets import Preset, catalogue  # noqa: E402
from noterl.tune import Result, search  # noqa: E402
from noterl.utils import figures  # noqa: E402

project = "noterl"
author = "the noterl developers"
version = release = noterl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
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
html_css_files = ["noterl.css"]
html_show_copyright = False
html_show_sphinx = False
html_show_sourcelink = False

# keras.io publishes no inventory, so the pages that noterl's docs mention are listed here.
KERAS_PAGES = {
    "keras.Model": "models/model/",
    "keras.Sequential": "models/sequential/",
    "keras.callbacks": "callbacks/",
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
    "keras.ops": "ops/",
    "keras.optimizers.Optimizer": "optimizers/",
}


def write_keras_inventory(path: Path) -> None:
    """Write `KERAS_PAGES` as a Sphinx inventory, so that intersphinx resolves them without the network."""
    lines = "".join(f"{name} py:class 1 {page} -\n" for name, page in KERAS_PAGES.items())
    header = "# Sphinx inventory version 2\n# Project: keras\n# Version: 3\n# The rest is compressed using zlib.\n"
    path.write_bytes(header.encode() + zlib.compress(lines.encode()))


def write_benchmark_tables(folder: Path) -> None:
    """Write the tables of benchmarks/results/ for the pages to include."""
    for table in report.TABLES:
        (folder / f"{table.__name__}.md").write_text(table(), encoding="utf-8")
    for page in (path.stem for path in (DOCS / "algorithms").glob("*.md")):
        (folder / f"learning_{page}.md").write_text(report.algorithm_tables(page), encoding="utf-8")


def draw_result(draw: Callable[[Any], Any], result: Path, picture: Path) -> None:
    """Draw the result in a file."""
    with matplotlib.rc_context({**figures.STYLE, "axes.prop_cycle": cycler(color=figures.PALETTE)}):
        draw(json.loads(result.read_text(encoding="utf-8"))).savefig(picture)


def draw_learning_curves(folder: Path) -> None:
    """Draw the results of benchmarks/results/, and write a page that shows all learning curves."""
    folder.mkdir(exist_ok=True)
    names = [path.stem for path in sorted((report.RESULTS / "learning").glob("*.json"))]
    for name in names:
        draw_result(learning.load(name).draw, report.RESULTS / "learning" / f"{name}.json", folder / f"{name}.svg")
    for path in (report.RESULTS / "pong").glob("*.json"):
        draw_result(pong.draw, path, folder / f"pong-{path.stem}.svg")
    for path in (report.RESULTS / "time_to_score").glob("*.json"):
        time_to_score.save_figure(json.loads(path.read_text(encoding="utf-8")), folder / f"time-{path.stem}.svg")
    pictures = "\n\n".join(f"### {name}\n\n![{name}](../_generated/curves/{name}.svg)" for name in names)
    (GENERATED / "curves.md").write_text(f"{pictures}\n", encoding="utf-8")
    overview = report.short_speed_table([json.loads(path.read_text()) for path in speed_results()])
    (GENERATED / "overview.md").write_text(f"{overview}\n", encoding="utf-8")


def speed_results() -> list[Path]:
    """Return the results of compare.py, in the order of the tasks."""
    return [path for name in report.TASKS if (path := report.RESULTS / "compare" / f"{name}.json").exists()]


def draw_examples(folder: Path) -> None:
    """Draw what `plot` and `compare` show, from the stored evaluations of PPO on Pendulum."""
    folder.mkdir(exist_ok=True)
    groups = {}
    for who, name in (("noterl-jax", "noterl"), ("sb3", "Stable-Baselines3")):
        result = json.loads((report.RESULTS / "learning" / "pendulum-ppo.json").read_text(encoding="utf-8"))
        groups[name] = [run["curve"] for run in result["runs"] if run["who"] == who]
    plotting.compare(groups, "reward_mean", window=1, path=folder / "compare.svg")
    plotting.compare(groups, "reward_mean", window=1, band="seeds", path=folder / "compare_seeds.svg")
    history = noterl.History()
    for number, (steps, reward) in enumerate(zip(*groups["noterl"][0].values(), strict=False)):
        history.on_episode_end(number, {"steps": steps, "reward": reward})
    history.plot("reward", window=3, path=folder / "history.svg")


def draw_study(folder: Path) -> None:
    """Draw what `tune` writes, from the stored study of PPO on CartPole."""
    folder.mkdir(exist_ok=True)
    journal = JournalFileBackend(str(report.RESULTS / "tune" / "ppo-cartpole.log"))
    study = optuna.load_study(study_name="noterl", storage=JournalStorage(journal))
    search.plot(optuna, Result(study, {}, study.best_value, study.user_attrs["default"], folder))


# Browsers ignore MathML's variants of letters, such as blackboard bold; Unicode has a character for each.
_VARIANT = re.compile(r"\\math(bb|cal) ([A-Z])")


def letter(match: re.Match[str]) -> str:
    """Return the character of a letter in blackboard bold or script."""
    name = f"{'DOUBLE-STRUCK' if match[1] == 'bb' else 'SCRIPT'} CAPITAL {match[2]}"
    try:
        return unicodedata.lookup(name)
    except KeyError:
        return unicodedata.lookup(f"MATHEMATICAL {name}")


def show_formula(display: str) -> tuple[Any, None]:
    """Return visitors that write a formula as MathML, which browsers show without a script and without the network."""

    def visit(translator: Any, node: Any) -> None:
        text = _VARIANT.sub(letter, node.astext())
        translator.body.append(latex2mathml.converter.convert(text, display=display))
        raise nodes.SkipNode

    return visit, None


def convert_notebook(path: Path) -> None:
    """Convert the notebook of the examples, with its outputs, to a page and its pictures."""
    notebook = nbformat.read(ROOT / "examples" / "notebooks" / "first_hour.ipynb", as_version=4)
    text, resources = nbconvert.MarkdownExporter().from_notebook_node(notebook)
    for name, picture in resources["outputs"].items():
        path.with_name(f"notebook_{name}").write_bytes(picture)
        text = text.replace(f"({name})", f"(_generated/notebook_{name})")
    path.write_text(text.replace("(../../docs/", "("), encoding="utf-8")


def write_presets(path: Path) -> None:
    """Write one row for each preset, with the median time of a "fast" preset's race on JAX, if there was one."""

    def seconds(preset: Preset) -> str:
        race = time_to_score.RACES.get(preset.env)
        result = time_to_score.FOLDER / f"{preset.env}.json"
        if preset.name != "fast" or race is None or race.algorithm != preset.algorithm or not result.exists():
            return ""
        participants = json.loads(result.read_text(encoding="utf-8"))["summary"]["participants"]
        return f"{participants['noterl-jax']['seconds']:.1f} s"

    rows = [
        (
            f"`{preset.algorithm}`",
            f"`{preset.env}`",
            f"`{preset.name}`",
            f"{preset.arguments['steps']:,}",
            preset.evidence,
            seconds(preset),
            f"`noterl train {preset.algorithm.lower()} --env {preset.env.replace('*', 'Pong')} --preset {preset.name}`",
            preset.source,
        )
        for preset in catalogue()
    ]
    header = ("agent", "environment", "name", "steps", "result", "time to the score", "command", "source")
    path.write_text(report.markdown_table(header, rows), encoding="utf-8")


def write_word_tables(folder: Path) -> None:
    """Write the tables of noterl/migration/ for the pages of docs/migration/ to include."""
    for library in migration.LIBRARIES:
        for section in migration.sections(library):
            (folder / migration.file_name(library, section)).write_text(
                migration.markdown(library, section), encoding="utf-8"
            )


GENERATED.mkdir(exist_ok=True)
write_benchmark_tables(GENERATED)
write_word_tables(GENERATED)
write_presets(GENERATED / "presets.md")
convert_notebook(GENERATED / "first_hour.md")
draw_learning_curves(GENERATED / "curves")
draw_examples(GENERATED / "examples")
draw_study(GENERATED / "study")
write_keras_inventory(GENERATED / "keras.inv")
intersphinx_mapping = {"keras": ("https://keras.io/api", str(GENERATED / "keras.inv"))}
# The other inventories are downloaded. A build without them lacks only the links to these projects.
if os.environ.get("NOTERL_DOCS_ONLINE"):
    intersphinx_mapping |= {
        "gymnasium": ("https://gymnasium.farama.org", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "python": ("https://docs.python.org/3", None),
    }

# Docstrings are plain text with code in backticks. The other characters of reStructuredText's markup are escaped.
_QUOTED = re.compile(r"(``[^`]+``|`[^`]+`)")
_NAME = re.compile(r"`[A-Za-z_][\w.]*(\(\))?`")
_MARKUP = re.compile(r"([*|]|(?<=\w)_(?!\w))")


def convert_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText with napoleon's sections.

    A doctest under "Example:" is indented, as napoleon expects it, and kept as it is; everything else is escaped.
    """
    text, example, rest = "\n".join(lines).partition("\nExample:\n")
    doctest, _, after = rest.partition("\n\n")
    converted = escape(text)
    if example:
        converted += f"{example}{textwrap.indent(doctest, '    ')}\n\n{escape(after)}"
    lines[:] = converted.split("\n")


def escape(text: str) -> str:
    """Escape what reStructuredText would take for markup; backticks may touch letters, as in `fit`s."""
    parts = _QUOTED.split(text)
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = part if part.startswith("``") or _NAME.fullmatch(part) else f"`{part}`"
            continue
        before = "\\ " if index and re.match(r"\w", part) else ""
        after = "\\ " if index + 1 < len(parts) and re.search(r"\w$", part) else ""
        parts[index] = before + _MARKUP.sub(r"\\\1", part) + after
    return "".join(parts)


def skip_handlers(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Omit the members of a callback that `Callback` documents."""
    owner = getattr(getattr(obj, "fget", obj), "__qualname__", "").partition(".")[0]
    cls = getattr(noterl.callbacks, owner, None)
    is_callback = isinstance(cls, type) and issubclass(cls, noterl.Callback) and cls is not noterl.Callback
    return True if is_callback and hasattr(noterl.Callback, name) else None


def setup(app: Any) -> None:
    """Connect the hooks and the math renderer; docstrings are converted before napoleon (priority 500) reads them."""
    app.add_html_math_renderer("mathml", show_formula("inline"), show_formula("block"))
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_handlers)
