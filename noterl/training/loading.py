"""Building an agent from a file, and copying an agent through a file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noterl import networks, registry, saving
from noterl.algorithm import Algorithm
from noterl.envs.source import from_description
from noterl.training import state


def load(path: str | Path, custom_objects: dict[str, type] | None, source: Any = None) -> Any:
    """Return the agent of a file, with the environments of a source; None for the file's environments."""
    if not isinstance(custom_objects, Mapping | None):
        raise ValueError(f"custom_objects must be a dict of classes by their names, or None, got {custom_objects!r}")
    document = saving.read(saving.locate(path))
    agent = build_from(document, path, custom_objects, source)
    try:
        agent.set_document(document)
    except BaseException:
        agent.close()
        raise
    return agent


def build_from(
    document: dict[str, Any], path: str | Path, custom_objects: dict[str, type] | None, source: Any = None
) -> Any:
    """Return the agent of a document that `noterl.saving.read` returned, without the state; `load` has the errors."""
    state.check_document(document)
    agent_class = registry.lookup(document["class"], custom_objects)
    if not (isinstance(agent_class, type) and issubclass(agent_class, Algorithm)):
        raise ValueError(f"the file names {document['class']!r} as its agent, which is not a noterl.Agent")
    try:
        with networks.size_limit(document["state"].get("variables")):
            config, arguments = (saving.build(document[name], custom_objects) for name in ("config", "compile"))
            if "env" in config:  # otherwise the constructor creates the environment
                config["env"] = from_description(document["environment"]) if source is None else source
            agent: Any = agent_class.from_config(config)
            agent.compile(**arguments)
    except saving.FileError as error:
        raise saving.FileError(f"cannot load {str(path)!r}: {error}") from error
    except (ImportError, ValueError):
        raise
    except Exception as error:  # arguments from a file may make a constructor fail in any way
        raise saving.FileError(f"the file's arguments do not fit the class {document['class']}: {error!r}") from error
    return agent


def copied(agent: Any) -> Any:
    """Return an independent agent with the same state, as by `save` and `load`; the copy opens other environments."""
    try:
        source = agent.spaces.source.detached()
    except ValueError:  # no second environment can be made, so the copy has the spaces only
        source = None
    with tempfile.TemporaryDirectory(prefix="noterl-copy-") as folder:
        agent.save(Path(folder) / "agent.noterl")
        return load(Path(folder) / "agent.noterl", {type(agent).__name__: type(agent)}, source)
