"""Finding the file of an agent: by a path, in a folder, or in a repository of a model hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from noterl.utils.files import PathLike, checked_path
from noterl.utils.memory import available_bytes
from noterl.utils.optional import require

# The files in the folder of a run.
AGENT_FILE = "agent.noterl"
RUN_FILE = "run.toml"
LOG_FILE = "log.csv"
HUB = "hub:"  # the beginning of an address


def locate(path: PathLike) -> Path:
    """Return the path of an agent's file; a file in a hub is downloaded first, unless the cache of the hub has it.

    Args:
        path: of the file, or of a folder with the file `agent.noterl`; or an address, `hub:OWNER/NAME` or
            `hub:OWNER/NAME@REVISION`.

    Raises:
        ValueError: if `path` is neither a path nor an address.
        ImportError: if `path` is an address and the extra is missing.
        OSError: if the file cannot be downloaded, or is larger than the free memory.
    """
    text = checked_path(path)
    if not text.startswith(HUB):
        file = Path(text, AGENT_FILE)
        return file if file.is_file() else Path(text)
    address = re.fullmatch(rf"{HUB}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", text, re.ASCII)
    if address is None:
        raise ValueError(f"path must be hub:OWNER/NAME or hub:OWNER/NAME@REVISION, got {text!r:.200}")
    hub: Any = require("huggingface_hub", "hub", text)
    try:
        # Only this file is requested, so the other files of a repository have no effect, whatever their names are.
        file_info = hub.hf_hub_download(address[1], AGENT_FILE, revision=address[2], dry_run=True)
        if (file_info.file_size or 0) > available_bytes():  # `read` would refuse it, after it has filled the disk
            raise ValueError(f"{AGENT_FILE} takes {file_info.file_size:,} bytes, which do not fit in memory")
        return Path(hub.hf_hub_download(address[1], AGENT_FILE, revision=address[2]))
    except Exception as error:  # the errors of huggingface_hub and of its HTTP client have no common class
        raise OSError(f"cannot download {text!r}: {error}") from error
