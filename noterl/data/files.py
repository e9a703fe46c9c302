"""The sources of a data set: files, which are not trusted, Minari data sets, memories and arrays.

No member of a file is unpickled, and sizes are checked before memory is allocated.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from noterl import saving
from noterl.data.rows import ARRAYS, KEYS, rows_of
from noterl.registry import Configurable
from noterl.replay import Replay
from noterl.replay.columns import Array
from noterl.saving.archive import check_directory
from noterl.saving.arrays import read_npy
from noterl.saving.codec import TreeDecoder, TreeEncoder
from noterl.utils.budget import LIMITS, UNPACKED_PER_BYTE, Budget, check_hdf5, checked_size, parse
from noterl.utils.files import FileError, PathLike, check_writable, checked_path, reading, replacing
from noterl.utils.memory import available_bytes
from noterl.utils.optional import require

# The file in a folder of noterl.
_FILE = "dataset.noterl"
# The key of the spaces and the origin in an `.npz` file of noterl, which D4RL does not have.
_SPACES = "noterl"
_HDF5 = (".h5", ".hdf5")
# What Minari calls a data set: perhaps a namespace, a name and a version.
_MINARI_ID = re.compile(r"[\w./-]+-v\d+", re.ASCII)


def read(source: Any) -> dict[str, Any]:
    """Return what `Dataset.from_config` takes; `Dataset.load` documents the sources.

    Raises:
        ValueError: if a source is damaged, or of another kind.
        OSError: if there is no such file.
    """
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, Replay):
        return _rows_of_memory(source)
    if isinstance(source, Configurable):
        return source.get_config()
    if not isinstance(source, str | os.PathLike):
        return _read_minari(source)
    path = Path(checked_path(source))
    if path.is_dir():
        return saving.read(path / _FILE, mapped=True) if (path / _FILE).exists() else _open_minari(path, path)
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix in _HDF5:
        return _read_hdf5(path)
    if not path.exists() and _MINARI_ID.fullmatch(str(source)):
        places = require("minari.storage.datasets_root_dir", "offline", "Dataset.load")
        return _open_minari(Path(places.get_dataset_path(source)), source)
    return saving.read(path, mapped=True)


def check_target(path: PathLike, observation_space: Space[Any]) -> Path:
    """Check that a data set can be written to `path`, and return the path of the file.

    Raises:
        ValueError: if the format has no place for the observations.
        OSError: if the file cannot be written.
    """
    target = Path(checked_path(path))
    if target.suffix != ".npz":
        target = target / _FILE
    elif isinstance(observation_space, spaces.Dict):
        raise ValueError(f"path must name a folder, because .npz has no keys for a Dict space, got {str(path)!r}")
    check_writable(target)
    return target


def write(path: PathLike, dataset: Any) -> None:
    """Write a `Dataset`; `Dataset.save` documents the formats and the errors."""
    target = check_target(path, dataset.observation_space)
    if target.suffix != ".npz":
        saving.write(target, {"kind": "dataset", **dataset.get_config()})
        return
    encoder = TreeEncoder()
    text = json.dumps(encoder.encode([dataset.observation_space, dataset.action_space, dataset.origin])).encode()
    members: dict[str, Any] = {name.removesuffix(".npy"): array for name, array in encoder.arrays.items()}
    members |= {**rows_of(dataset), _SPACES: np.frombuffer(text, np.uint8)}
    with replacing(target) as file:
        np.savez(file, **members)


def _read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of D4RL's keys, and the spaces and the origin if noterl wrote the file."""
    with reading(path) as file:
        size = checked_size(file.fileno())
        check_directory(file, size)
        budget = Budget("its members")
        budget.spend("unpacked bytes", -min(UNPACKED_PER_BYTE * size, available_bytes()))
        arrays: dict[str, Array] = {}
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                budget.spend("unpacked bytes", info.file_size)
                key = info.filename.removesuffix(".npy")
                # NumPy writes no other compression, and others may unpack more than a member declares.
                if key in arrays or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise FileError(f"it has the key {key!r:.80} twice, or in a compression that NumPy does not write")
                try:
                    with archive.open(info) as member:
                        arrays[key] = read_npy(member, info.file_size)
                except FileError as error:
                    raise FileError(f"its key {key!r:.80}: {error}") from error
        rows: dict[str, Any] = {key: array for key, array in arrays.items() if key in KEYS}
        if _SPACES in arrays:
            decoder = TreeDecoder(lambda name: arrays[name.removesuffix(".npy")], {})
            observation_space, action_space, *origin = decoder.decode(parse(arrays[_SPACES].tobytes(), json.loads))
            # Files of older versions have no origin.
            rows |= {"observation_space": observation_space, "action_space": action_space, "origin": dict(*origin[:1])}
        return rows


def _read_hdf5(path: Path) -> dict[str, Any]:
    """Return the arrays of D4RL's keys."""
    import h5py

    with reading(path):  # names the path in errors
        try:
            check_hdf5(path)
            with h5py.File(path, "r") as file:
                for key in KEYS:
                    if key in file and not (isinstance(file[key], h5py.Dataset) and file[key].dtype.kind in "fiub"):
                        raise FileError(f"its key {key!r} does not hold an array of numbers")
                return {key: file[key][()] for key in KEYS if key in file}
        except OSError as error:
            if error.errno:  # h5py's own errors have no number
                raise
            raise FileError(f"it is not a file of HDF5, or damaged: {error}") from error


def _rows_of_memory(replay: Replay) -> dict[str, Any]:
    """Return the transitions of a replay memory, lane after lane."""
    if not len(replay):
        raise ValueError("replay must hold transitions, got an empty memory")
    storage = replay.storage
    indices = storage.stored_indices()
    complete = storage.sampleable(indices)
    indices = indices if complete is None else indices[complete]  # the others lack frames of their stacks
    indices = indices[np.argsort(storage.lane[indices], kind="stable")]
    return {
        "observations": storage.observations(indices),
        "actions": storage.action[indices],
        "rewards": storage.reward[indices],
        "terminals": storage.terminated[indices],
        "timeouts": (storage.successor[indices] != np.roll(indices, -1)) & ~storage.terminated[indices],
        "next_observations": storage.next_observations(indices),
        "observation_space": replay.observation_space,
        "action_space": replay.action_space,
    }


def _open_minari(folder: Path, name: PathLike) -> dict[str, Any]:
    """Return the episodes of the folder of a Minari data set, which errors call `name`."""
    minari = require("minari", "offline", "Dataset.load")
    folder = folder / "data"
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no data set of noterl or Minari", str(name))
    # Before Minari opens the data set and allocates memory for the sizes that its files declare.
    files = list(folder.glob("*.hdf5"))
    try:
        for path in files:
            check_hdf5(path)
        description = folder / "metadata.json"
        if files and description.exists():
            with description.open("rb") as file:
                episodes = parse(file.read(LIMITS["bytes of JSON"] + 1), json.loads)["total_episodes"]
            # An episode takes at least a byte.
            if not 0 <= episodes <= sum(path.stat().st_size for path in files):
                raise ValueError(f"its files are too small for {episodes} episodes")
        return _read_minari(minari.MinariDataset(folder))
    except Exception as error:  # a damaged data set may make Minari and h5py raise anything
        # An OSError of the system has a number; the errors of h5py do not name the file.
        if isinstance(error, ImportError | MemoryError) or getattr(error, "errno", None):
            raise
        raise FileError(f"dataset: {str(name)!r:.200} is not a Minari data set of episodes: {error}") from error


def _read_minari(dataset: Any) -> dict[str, Any]:
    """Return the episodes of a `minari.MinariDataset`, as the arguments of a `Dataset`."""
    if not hasattr(dataset, "iterate_episodes"):
        raise ValueError(f"dataset must be a path, a Minari data set, a Replay or arrays, got {dataset!r:.80}")
    episodes = list(dataset.iterate_episodes())
    fields = {name: [getattr(episode, name) for episode in episodes] for name in ARRAYS}
    fields["terminated"] = [bool(episode.terminations[-1]) for episode in episodes]
    return {**fields, "observation_space": dataset.observation_space, "action_space": dataset.action_space}


def to_minari(dataset: Any, dataset_id: str, env: Any, metadata: dict[str, Any]) -> Any:
    """Write a `Dataset` as a Minari data set; `Dataset.to_minari` documents the arguments."""
    minari = require("minari", "offline", "Dataset.to_minari")
    buffers = require("minari.data_collector", "offline", "Dataset.to_minari")

    def buffer(number: int, episode: Any) -> Any:
        # In Minari's format, only the last step of an episode has an end.
        ended = np.arange(len(episode.actions)) == len(episode.actions) - 1
        ends = {"terminations": ended & episode.terminated, "truncations": ended & (not episode.terminated)}
        return buffers.EpisodeBuffer(number, **{name: getattr(episode, name) for name in ARRAYS}, **ends)

    written = [buffer(number, episode) for number, episode in enumerate(dataset.episodes)]
    space_pair = {"observation_space": dataset.observation_space, "action_space": dataset.action_space}
    return minari.create_dataset_from_buffers(dataset_id, written, env=env, **space_pair, **metadata)
