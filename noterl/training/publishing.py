"""Publishing an agent: a folder with the agent's file, and a card that model hubs show."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from noterl import saving
from noterl.history import History
from noterl.utils.checks import check_bool
from noterl.utils.files import user_path, write_bytes
from noterl.utils.tables import plain_row, read_columns

_CARD = "README.md"
_CURVE = "curve.png"
_VIDEO = "replay.gif"


def publish(agent: Any, folder: Any, env: Any, episodes: int, license: str, video: bool, log: Any) -> Path:
    """Write the folder that `Agent.publish` documents, and return the path."""
    target = _checked_folder(folder)
    check_bool("video", video)
    if not isinstance(license, str) or not re.fullmatch(r"[\w.+-]+", license, re.ASCII):
        raise ValueError(f"license must be an identifier such as 'mit' or 'apache-2.0', got {license!r:.200}")
    card = resources.files(__package__).joinpath("card.md").read_text(encoding="utf-8")
    history = agent.history if log is None else History()
    if log is not None:
        history.history = read_columns(log)
    # Everything is complete before the first file is replaced, so that an interrupt leaves the old files.
    with tempfile.TemporaryDirectory(prefix="noterl-publish-") as temporary:
        staging = Path(temporary)
        result = agent.evaluate(env, episodes)
        agent.save(staging / saving.AGENT_FILE, replay=False)
        trained_in = agent.spaces.source.describe().get("id", agent.configuration["env"].strip("'"))
        environment = trained_in if env is None else getattr(env, "spec", None) or env
        values = {
            "license": license.lower(),
            "environment": json.dumps(str(getattr(environment, "id", environment))),  # JSON is also YAML
            "results": _table({"episodes": episodes, **plain_row(result)}),
            "video": _video(agent, env, staging / _VIDEO) if video else "There is no video.",
            "curve": _curve(history, staging / _CURVE),
            "settings": _settings(agent, log, staging / saving.RUN_FILE),
            "versions": _table(saving.library_versions()),
        }
        (staging / _CARD).write_text(card.format(agent=agent, result=result, **values), encoding="utf-8")
        # The card is the first by name: a folder with a card may be written again after an interrupt.
        for path in sorted(staging.iterdir()):
            write_bytes(target / path.name, path.read_bytes())
        for name in {_VIDEO, _CURVE, saving.RUN_FILE} - {path.name for path in staging.iterdir()}:
            (target / name).unlink(missing_ok=True)  # of an earlier call
    return target


def _checked_folder(folder: Any) -> Path:
    """Return the path of a folder that is missing, empty or published; raise a ValueError for any other."""
    if isinstance(folder, str | Path) and str(folder):
        path = user_path(folder)
        published = (path / _CARD).is_file() and b"\nlibrary_name: noterl\n" in (path / _CARD).read_bytes()
        if published or not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return path
    raise ValueError(f"folder must be a new or empty folder, or a published agent, got {str(folder)!r:.200}")


def _video(agent: Any, env: Any, path: Path) -> str:
    try:
        agent.animate(path, env, max_steps=500)  # 17 s
    except Exception as error:  # Rendering depends on libraries and displays, and must not lose the results.
        warnings.warn(f"the environment was not rendered: {error}", stacklevel=4)
        return f"There is no video: {error}."
    return f"![An episode]({path.name})"


def _curve(history: History | None, path: Path) -> str:
    """Draw the rewards of a history, if there are any."""
    if history is None or not history.history.get("reward"):
        return "There is no log of the training."
    history.plot("reward", path=path)
    return f"![The learning curve]({path.name})"


def _settings(agent: Any, log: Any, path: Path) -> str:
    """Return the text of the `run.toml` beside a log, which is copied, or else the settings of the agent."""
    if log is None or not user_path(log).with_name(path.name).exists():
        return _table(agent.configuration)
    path.write_bytes(user_path(log).with_name(path.name).read_bytes())
    text = path.read_text(encoding="utf-8")
    return f"`noterl train --config {path.name}` repeats the training:\n\n```toml\n{text}```"


def _table(rows: Mapping[str, Any]) -> str:
    """Return a table in Markdown, in which a cell ends at a bar or a line break, and code at a backtick."""
    texts = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in rows.items()}
    cells = {name: " ".join(text.split()).replace("|", r"\|").replace("`", "'") for name, text in texts.items()}
    return "\n".join(["| name | value |", "| --- | --- |", *(f"| {name} | `{text}` |" for name, text in cells.items())])
