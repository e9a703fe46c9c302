"""Demonstrations: the observations, actions and rewards of an expert's episodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from noterl import saving
from noterl.envs.observation import ObservationEncoder
from noterl.envs.spaces import convert
from noterl.registry import Configurable, register
from noterl.replay.columns import action_layout
from noterl.utils import schema
from noterl.utils.budget import LIMITS, check_hdf5, parse
from noterl.utils.files import FileError, PathLike
from noterl.utils.optional import require

Array = np.ndarray[Any, Any]

# Box actions may exceed their bounds by this share of the largest bound, from rounding.
_TOLERANCE = 1e-5


class Episode(NamedTuple):
    """One episode of L steps.

    Attributes:
        observations: `[L + 1, ...]`, the last one included; a dict of arrays for a Dict space.
        actions: `[L, ...]`.
        rewards: `[L]`, float32.
        terminated: whether the environment terminated the episode; otherwise the episode was truncated.
    """

    observations: Any
    actions: Array
    rewards: Array
    terminated: bool

    @property
    def total_reward(self) -> float:
        """The return: the sum of the rewards."""
        return float(self.rewards.sum(dtype=np.float64))


@register
class Demonstrations(Configurable):
    """Episodes of an expert; `len` is the number of steps.

    Arguments are lists with one entry for each episode. An episode of L steps has L + 1 observations, the last one
    included.

    Args:
        observations: arrays `[L + 1, ...]`; dicts of arrays for a Dict space.
        actions: arrays `[L, ...]`.
        rewards: arrays `[L]`.
        terminated: bools, False for episodes that were truncated.
        observation_space: of the environment.
        action_space: of the environment.

    Raises:
        ValueError: if there is no episode, a shape or dtype does not fit the spaces, a number is not finite, or an
            action is not in its space.

    Attributes:
        episodes: the episodes, a tuple of `Episode`.
        observation_space: of the environment.
        action_space: of the environment.

    Example:
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from noterl.imitation import Demonstrations
    >>> box, two = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
    >>> steps = np.zeros((5, 3)), [0, 1, 1, 0], np.ones(4)
    >>> data = Demonstrations(*([each] for each in steps), [True], observation_space=box, action_space=two)
    >>> len(data), len(data.episodes), data.returns.tolist()
    (4, 1, [4.0])
    """

    def __init__(
        self,
        observations: Sequence[Any],
        actions: Sequence[Any],
        rewards: Sequence[Any],
        terminated: Sequence[bool],
        *,
        observation_space: Space[Any],
        action_space: Space[Any],
    ) -> None:
        self.observation_space: Any = convert(observation_space, "observation_space")
        self.action_space: Any = convert(action_space, "action_space")
        ObservationEncoder(self.observation_space)  # raises for a space that agents do not support
        action_layout(self.action_space)
        fields = {"observations": observations, "actions": actions, "rewards": rewards, "terminated": terminated}
        for name, values in fields.items():
            # A str has a length, too, and a Mapping would be iterated by its keys.
            if isinstance(values, str | Mapping) or not hasattr(values, "__len__"):
                raise ValueError(f"{name} must be a list with an entry for each episode, got {values!r:.80}")
            if len(values) != len(observations) or not len(values):
                raise ValueError(
                    f"{name} must have an entry for each episode, at least one and as many as observations "
                    f"({len(observations)}), got {len(values)}"
                )
        episodes = zip(*fields.values(), strict=True)
        self.episodes: tuple[Episode, ...] = tuple(
            self._episode(number, *episode) for number, episode in enumerate(episodes)
        )

    def _episode(self, number: int, observations: Any, actions: Any, rewards: Any, terminated: Any) -> Episode:
        length = len(actions) if hasattr(actions, "__len__") else 0
        if not length:
            raise ValueError(f"actions[{number}] must hold at least one action, got {actions!r:.80}")
        taken = _values(f"actions[{number}]", actions, self.action_space, length)
        _check_in_space(f"actions[{number}]", taken, self.action_space)
        earned = _values(f"rewards[{number}]", rewards, spaces.Box(-np.inf, np.inf, ()), length)
        # One observation more than actions: the last one follows the last action.
        seen = _values(f"observations[{number}]", observations, self.observation_space, length + 1)
        if not isinstance(terminated, bool | np.bool_):
            raise ValueError(f"terminated[{number}] must be a bool, got {terminated!r:.80}")
        return Episode(seen, taken, earned, bool(terminated))

    def __len__(self) -> int:
        return sum(len(episode.actions) for episode in self.episodes)

    def __repr__(self) -> str:
        count = len(self.episodes)
        mean = self.returns.mean()
        return f"<Demonstrations: {count:,} episodes, {len(self):,} steps, mean return {mean:.4g}>"

    @property
    def returns(self) -> Array:
        """The return of each episode, `[episodes]`."""
        return np.array([episode.total_reward for episode in self.episodes])

    def pairs(self) -> tuple[Any, Array]:
        """Return the observations `[n, ...]` in which the expert acted, and the actions `[n, ...]`."""
        # Without the last observation of each episode, in which the expert did not act.
        observations = _joined([_map(lambda values: values[:-1], episode.observations) for episode in self.episodes])
        return observations, np.concatenate([episode.actions for episode in self.episodes])

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {
            **{name: [getattr(episode, name) for episode in self.episodes] for name in Episode._fields},
            "observation_space": self.observation_space,
            "action_space": self.action_space,
        }

    def save(self, path: PathLike) -> None:
        """Write one file in the format of `Agent.save`, atomically and without pickle.

        Raises:
            OSError: if the file cannot be written; an older file at `path` is kept.
        """
        tree = {
            "kind": "demonstrations",
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            # One array for each field, because the number of arrays in a file is limited.
            "lengths": np.array([len(episode.actions) for episode in self.episodes]),
            "observations": _joined([episode.observations for episode in self.episodes]),
            "actions": np.concatenate([episode.actions for episode in self.episodes]),
            "rewards": np.concatenate([episode.rewards for episode in self.episodes]),
            "terminated": np.array([episode.terminated for episode in self.episodes]),
        }
        saving.write(path, tree)

    @classmethod
    def load(cls, path: PathLike) -> Demonstrations:
        """Return the demonstrations of a file that `save` wrote.

        Raises:
            noterl.saving.FileError: if the file is damaged, or does not hold demonstrations.
        """
        tree = saving.read(path)
        try:
            return cls._from_tree(tree)
        except (LookupError, TypeError, ValueError) as error:
            raise FileError(f"{path} does not hold demonstrations of noterl: {error}") from error

    @classmethod
    def _from_tree(cls, tree: Any) -> Demonstrations:
        kinds = {"kind": schema.Constant("demonstrations"), "lengths": schema.Array(np.int64, (None,))}
        # The other fields must have as many entries, so their number comes first.
        count = tree["lengths"].shape if isinstance(tree, dict) and isinstance(tree.get("lengths"), np.ndarray) else ()
        kinds |= {"terminated": schema.Array(np.bool_, count), "rewards": schema.Array(np.float32, (None,))}
        kinds |= {"actions": schema.Array(), "observations": (schema.Array(), dict)}
        whole = {name: tree.get(name) for name in kinds} if isinstance(tree, dict) else tree
        schema.check(whole, kinds, "the file")
        file_spaces = [tree.get(name) for name in ("observation_space", "action_space")]
        if not all(isinstance(space, Space) for space in file_spaces):
            raise ValueError("the file has no spaces")
        lengths = tree["lengths"]
        if (lengths < 1).any() or lengths.sum() != len(tree["rewards"]) or len(tree["actions"]) != len(tree["rewards"]):
            raise ValueError("the lengths of the episodes do not fit the numbers of actions and rewards")
        ends = np.cumsum(lengths)[:-1]
        # Each episode has one observation more than actions.
        observations = _split(tree["observations"], np.cumsum(lengths + 1)[:-1])
        return cls(
            observations,
            np.split(tree["actions"], ends),
            np.split(tree["rewards"], ends),
            tree["terminated"].tolist(),
            observation_space=file_spaces[0],
            action_space=file_spaces[1],
        )

    @classmethod
    def from_minari(cls, dataset: Any) -> Demonstrations:
        """Return the episodes of a Minari data set.

        Args:
            dataset: a `minari.MinariDataset`, such as a part of one from `filter_episodes`, or the id of a local one.

        Raises:
            ImportError: if Minari is not installed.
            OSError: if there is no data set of this id, or the data set cannot be read.
            ValueError: if the data set is damaged, or the data do not fit the spaces.
        """
        minari = require("minari", "offline", "Demonstrations.from_minari")
        try:
            if isinstance(dataset, str):
                places = require("minari.storage.datasets_root_dir", "offline", "Demonstrations.from_minari")
                # Before Minari opens the data set and allocates memory for it.
                _check_minari(Path(places.get_dataset_path(dataset)) / "data")
            opened = minari.load_dataset(dataset) if isinstance(dataset, str) else dataset
            episodes = list(opened.iterate_episodes())
            return cls(
                [episode.observations for episode in episodes],
                [episode.actions for episode in episodes],
                [episode.rewards for episode in episodes],
                [bool(episode.terminations[-1]) for episode in episodes],
                observation_space=opened.observation_space,
                action_space=opened.action_space,
            )
        except Exception as error:  # a damaged data set may make Minari and h5py raise anything
            # An OSError of the system has a number; those of h5py do not name the file.
            if isinstance(error, ImportError | MemoryError) or getattr(error, "errno", None):
                raise
            raise ValueError(f"dataset: {dataset!r:.200} is not a Minari data set of episodes: {error}") from error

    def to_minari(self, dataset_id: str, *, env: Any = None, **metadata: Any) -> Any:
        """Write and return a local Minari data set, a `minari.MinariDataset`.

        Args:
            dataset_id: the id, such as "cartpole/expert-v0".
            env: the environment that `recover_environment` makes again: an id or an environment; None for none.
            **metadata: further arguments of `minari.create_dataset_from_buffers`, such as `author` and `description`.

        Raises:
            ImportError: if Minari is not installed.
        """
        minari = require("minari", "offline", "Demonstrations.to_minari")
        buffers = require("minari.data_collector", "offline", "Demonstrations.to_minari")

        def buffer(number: int, episode: Episode) -> Any:
            # In Minari's format, only the last step of an episode has an end.
            ended = np.arange(len(episode.actions)) == len(episode.actions) - 1
            return buffers.EpisodeBuffer(
                id=number,
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=ended & episode.terminated,
                truncations=ended & (not episode.terminated),
            )

        return minari.create_dataset_from_buffers(
            dataset_id,
            buffer=[buffer(number, episode) for number, episode in enumerate(self.episodes)],
            env=env,
            observation_space=self.observation_space,
            action_space=self.action_space,
            **metadata,
        )


def _check_minari(folder: Path) -> None:
    """Check the sizes that the files of a data set declare, if there are any: Minari allocates memory for these."""
    files = list(folder.glob("*.hdf5"))
    for path in files:
        check_hdf5(path)
    description = folder / "metadata.json"
    if files and description.exists():
        with description.open("rb") as file:
            episodes = parse(file.read(LIMITS["bytes of JSON"] + 1), json.loads)["total_episodes"]
        # An episode takes at least a byte.
        if not 0 <= episodes <= sum(path.stat().st_size for path in files):
            raise ValueError(f"its files are too small for {episodes} episodes")


def _values(name: str, values: Any, space: Space[Any], length: int) -> Any:
    """Return values as an array `[length, ...]` of a space, or a dict of arrays.

    Raises:
        ValueError: if the shape or dtype does not fit the space, or a value is not finite.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(values, Mapping) or not set(space.spaces) <= set(values):
            keys = sorted(values) if isinstance(values, Mapping) else repr(values)[:80]
            raise ValueError(f"{name} must be a dict with the keys {sorted(space.spaces)}, got {keys}")
        members = space.spaces.items()
        return {key: _values(f"{name}[{key!r}]", values[key], part, length) for key, part in members}
    array = np.asarray(values)
    shape = (length, *(space.shape or ()))
    dtype = np.dtype(space.dtype)
    if array.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {array.shape}")
    if array.dtype.kind not in ("fiub" if dtype.kind == "f" else "iub"):
        raise ValueError(f"{name} must hold {'numbers' if dtype.kind == 'f' else 'ints'}, got {array.dtype}")
    # A value beyond the dtype becomes infinite, which the next lines report.
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    if not np.isfinite(cast).all():
        raise ValueError(f"{name} must be finite in {dtype}, got {array[~np.isfinite(cast)][0]}")
    # Ints wrap around in a cast, so the result is compared.
    if dtype.kind != "f" and (cast != array).any():
        raise ValueError(f"{name} must fit {dtype}, got {array[cast != array][0]}")
    return cast


def _check_in_space(name: str, actions: Array, space: Space[Any]) -> None:
    """Raise a ValueError if one of the actions `[L, ...]` is not in the space."""
    if isinstance(space, spaces.Box):
        # Bounds may be infinite on some sides.
        finite = [np.abs(side[np.isfinite(side)]).max(initial=0.0) for side in (space.low, space.high)]
        slack = _TOLERANCE * max(finite)
        outside = (actions < space.low - slack) | (actions > space.high + slack)
    elif isinstance(space, spaces.MultiBinary):
        outside = (actions < 0) | (actions > 1)
    else:
        assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        size = space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n
        outside = (actions < 0) | (actions >= size)
    if outside.any():
        raise ValueError(f"{name} must be in {space}, got {actions[outside][0]}")


def _map(function: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _map(function, part) for name, part in value.items()}
    return function(value)


def _joined(parts: Sequence[Any]) -> Any:
    """Return arrays, or dicts of arrays, one after the other."""
    if isinstance(parts[0], Mapping):
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)


def _split(value: Any, ends: Array) -> list[Any]:
    """Return the parts of an array, or of a dict of arrays, that `_joined` joined."""
    if isinstance(value, Mapping):
        splits = {name: _split(part, ends) for name, part in value.items()}
        return [dict(zip(splits, pieces, strict=True)) for pieces in zip(*splits.values(), strict=True)]
    return np.split(value, ends)


def stack_observations(space: Space[Any], observations: Iterable[Any]) -> Any:
    """Return observations as one array `[n, ...]`, or a dict of arrays for a Dict space."""
    observations = list(observations)
    if isinstance(space, spaces.Dict):
        return {name: stack_observations(part, [entry[name] for entry in observations]) for name, part in space.items()}
    return np.stack([np.asarray(observation, space.dtype) for observation in observations])
