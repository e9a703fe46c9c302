"""Stored experience: the observations, actions and rewards of episodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np
from gymnasium import Space, spaces

from noterl import saving
from noterl.data.tables import REWARD, Array, checked, joined, outside
from noterl.envs.observation import ObservationEncoder
from noterl.envs.spaces import convert
from noterl.registry import Configurable, register
from noterl.replay.columns import action_layout
from noterl.types import map_arrays
from noterl.utils import schema
from noterl.utils.budget import LIMITS, check_hdf5, parse
from noterl.utils.files import FileError, PathLike
from noterl.utils.optional import require


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


class Episodes(Sequence[Episode]):
    """The episodes of a data set, as views of the arrays that hold all episodes one after the other.

    Args:
        arrays: observations, actions and rewards.
        lengths: the number of steps of each episode.
        terminated: whether each episode terminated.
    """

    def __init__(self, arrays: Sequence[Any], lengths: Array, terminated: Array) -> None:
        self._observations, self._actions, self._rewards = arrays
        self._ends = np.cumsum(lengths).tolist()
        self._terminated = terminated.tolist()

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | Sequence[Episode]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]  # also a negative index
        end = self._ends[number]
        begin = self._ends[number - 1] if number else 0
        # Each episode before has one observation more than actions.
        seen = map_arrays(lambda array: array[begin + number : end + number + 1], self._observations)
        return Episode(seen, self._actions[begin:end], self._rewards[begin:end], self._terminated[number])


@register
class Dataset(Configurable):
    """Stored experience: whole episodes, or transitions as episodes of one step; `len` is the number of transitions.

    The first four arguments are lists with one entry for each episode. An episode of L steps has L + 1 observations,
    the last one included. Actions of a Box space may exceed the bounds.

    Args:
        observations: arrays `[L + 1, ...]`; dicts of arrays for a Dict space.
        actions: arrays `[L, ...]`.
        rewards: arrays `[L]`.
        terminated: bools, False for episodes that were truncated, or cut.
        observation_space: of the environment.
        action_space: of the environment.

    Raises:
        ValueError: if there is no episode, a shape or dtype does not fit the spaces, a number is not finite, or an
            action is not in a space without a Box.

    Attributes:
        episodes: the episodes, a sequence of `Episode`. Their arrays are views of the arrays below.
        observation_space: of the environment.
        action_space: of the environment.
        observations: of all episodes, one after the other, `[transitions + episodes, ...]`.
        actions: of all episodes, `[transitions, ...]`.
        rewards: of all episodes, float32 `[transitions]`.
        terminated: bool `[episodes]`.
        lengths: the number of steps of each episode, int64 `[episodes]`.

    Example:
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> import noterl
    >>> box, two = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
    >>> steps = np.zeros((5, 3)), [0, 1, 1, 0], np.ones(4)
    >>> data = noterl.Dataset(*([each] for each in steps), [True], observation_space=box, action_space=two)
    >>> len(data), len(data.episodes), data.returns.tolist()
    (4, 1, [4.0])
    """

    # Whether a Box action outside of the bounds is an error.
    _checks_bounds = False

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
        self._set_spaces(observation_space, action_space)
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
        lengths = []
        columns = []
        for number, (*arrays, end) in enumerate(zip(*fields.values(), strict=True)):
            length = len(arrays[1]) if hasattr(arrays[1], "__len__") else 0
            if not length:
                raise ValueError(f"actions[{number}] must hold at least one action, got {arrays[1]!r:.80}")
            if not isinstance(end, bool | np.bool_):
                raise ValueError(f"terminated[{number}] must be a bool, got {end!r:.80}")
            lengths.append(length)
            columns.append(self._checked(arrays, length, 1, f"[{number}]"))
        self._set_arrays([joined(column) for column in zip(*columns, strict=True)], lengths, terminated)

    def _set_spaces(self, observation_space: Any, action_space: Any) -> None:
        self._config = {}  # without the arguments, whose arrays are joined
        self.observation_space: Any = convert(observation_space, "observation_space")
        self.action_space: Any = convert(action_space, "action_space")
        ObservationEncoder(self.observation_space)  # raises for a space that agents do not support
        action_layout(self.action_space)

    def _checked(self, arrays: Sequence[Any], length: int, episodes: int, place: str = "") -> list[Any]:
        """Return observations, actions and rewards of some episodes in the dtypes of the spaces.

        Raises:
            ValueError: if an array does not fit; the message names the array and `place`.
        """
        observations, actions, rewards = arrays
        taken = checked(f"actions{place}", actions, self.action_space, length)
        if self._checks_bounds or not isinstance(self.action_space, spaces.Box):
            wrong = outside(taken, self.action_space)
            if wrong.any():
                raise ValueError(f"actions{place} must be in {self.action_space}, got {taken[wrong][0]}")
        earned = checked(f"rewards{place}", rewards, REWARD, length)
        # One observation more than actions: the last one follows the last action.
        seen = checked(f"observations{place}", observations, self.observation_space, length + episodes)
        return [seen, taken, earned]

    def _set_arrays(self, arrays: Sequence[Any], lengths: Any, terminated: Any) -> None:
        self.observations, self.actions, self.rewards = arrays
        self.lengths: Array = np.asarray(lengths, np.int64)
        self.terminated: Array = np.asarray(terminated, np.bool_)
        self.episodes: Sequence[Episode] = Episodes(arrays, self.lengths, self.terminated)

    @classmethod
    def _of(cls, arrays: Sequence[Any], lengths: Any, terminated: Any, *space_pair: Any) -> Self:
        """Return a data set of arrays that hold all episodes one after the other."""
        dataset = cls.__new__(cls)
        dataset._set_spaces(*space_pair)
        dataset._set_arrays(dataset._checked(arrays, int(np.sum(lengths)), len(lengths)), lengths, terminated)
        return dataset

    def __len__(self) -> int:
        return len(self.actions)

    def __repr__(self) -> str:
        count = len(self.episodes)
        mean = self.returns.mean()
        return f"<{type(self).__name__}: {count:,} episodes, {len(self):,} steps, mean return {mean:.4g}>"

    @property
    def returns(self) -> Array:
        """The return of each episode, `[episodes]`."""
        return np.add.reduceat(self.rewards, np.cumsum(self.lengths) - self.lengths, dtype=np.float64)

    def pairs(self) -> tuple[Any, Array]:
        """Return the observations `[n, ...]` in which an action was chosen, and the actions `[n, ...]`."""
        # Without the last observation of each episode.
        acted = np.delete(np.arange(len(self) + len(self.lengths)), np.cumsum(self.lengths + 1) - 1)
        return map_arrays(lambda array: array[acted], self.observations), self.actions

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` takes: the arrays of all episodes, and the spaces."""
        names = ("lengths", "observations", "actions", "rewards", "terminated", "observation_space", "action_space")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Build a data set from what `get_config` returned, or from the constructor arguments."""
        return cls._from_tree(config) if "lengths" in config else super().from_config(config)

    def save(self, path: PathLike) -> None:
        """Write one file in the format of `Agent.save`, atomically and without pickle.

        Raises:
            OSError: if the file cannot be written; an older file at `path` is kept.
        """
        saving.write(path, {"kind": "dataset", **self.get_config()})

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Return the data set of a file that `save` wrote.

        Raises:
            noterl.saving.FileError: if the file is damaged, or does not hold a data set.
        """
        tree = saving.read(path)
        try:
            if tree["kind"] not in ("dataset", "demonstrations"):
                raise ValueError(f"its kind is {tree['kind']!r:.80}")
            return cls._from_tree({name: value for name, value in tree.items() if name != "kind"})
        except (LookupError, TypeError, ValueError) as error:
            raise FileError(f"{path} does not hold a data set or demonstrations of noterl: {error}") from error

    @classmethod
    def _from_tree(cls, tree: dict[str, Any]) -> Self:
        """Return the data set of a `get_config` from a file.

        Raises:
            ValueError: if the arrays do not fit together.
        """
        expected = {"lengths": schema.Array(np.int64, (None,)), "terminated": schema.Array(np.bool_, (None,))}
        expected |= {"rewards": schema.Array(np.float32, (None,)), "actions": schema.Array()}
        expected |= {"observations": (schema.Array(), dict)}
        schema.check({name: tree[name] for name in expected}, expected, "the file")
        lengths = tree["lengths"]
        fits = len(lengths) == len(tree["terminated"]) > 0 and lengths.min() > 0
        # Each length is compared, too, because the sum of large ints wraps around.
        if not fits or lengths.max() > len(tree["rewards"]) or lengths.sum() != len(tree["rewards"]):
            raise ValueError("the lengths of the episodes do not fit the numbers of ends and rewards")
        space_pair = tree["observation_space"], tree["action_space"]
        if not all(isinstance(space, Space) for space in space_pair):
            raise ValueError("the file has no spaces")
        arrays = [tree[name] for name in ("observations", "actions", "rewards")]
        return cls._of(arrays, lengths, tree["terminated"], *space_pair)

    @classmethod
    def from_minari(cls, dataset: Any) -> Self:
        """Return the episodes of a Minari data set.

        Args:
            dataset: a `minari.MinariDataset`, such as a part of one from `filter_episodes`, or the id of a local one.

        Raises:
            ImportError: if Minari is not installed.
            OSError: if there is no data set of this id, or the data set cannot be read.
            ValueError: if the data set is damaged, or the data do not fit the spaces.
        """
        minari = require("minari", "offline", "Dataset.from_minari")
        try:
            if isinstance(dataset, str):
                places = require("minari.storage.datasets_root_dir", "offline", "Dataset.from_minari")
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
        minari = require("minari", "offline", "Dataset.to_minari")
        buffers = require("minari.data_collector", "offline", "Dataset.to_minari")

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
