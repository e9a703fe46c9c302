"""Stored experience: the observations, actions and rewards of episodes."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium import Space

from noterl.data import files
from noterl.data.description import describe
from noterl.data.rows import ARRAYS, REWARD, check_inside, check_spaces, checked, join_rows, joined
from noterl.envs.spaces import same_layout, show
from noterl.noise import NoiseProcess
from noterl.random import Generators
from noterl.registry import Configurable, register
from noterl.replay.columns import Array, map_leaves
from noterl.utils import schema
from noterl.utils.checks import check_number, check_word
from noterl.utils.files import FileError, PathLike


class Episode(NamedTuple):
    """One episode of L steps.

    Attributes:
        observations: `[L + 1, ...]`, the last one included; a dict of arrays for a Dict space.
        actions: `[L, ...]`.
        rewards: `[L]`, before noterl's wrappers clip rewards; float32 in a data set.
        terminated: whether the environment terminated the episode; otherwise the episode was truncated.
    """

    observations: Any
    actions: Array
    rewards: Array
    terminated: bool

    def __repr__(self) -> str:
        """Return one line, because the arrays are long."""
        return f"<Episode of {len(self.rewards)} steps with the return {self.rewards.sum():g}>"


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
        ValueError: if there is no episode, a shape or dtype does not fit the spaces, a number is not finite, or a
            value is not in a space that is not a Box.

    Attributes:
        observation_space: of the environment.
        action_space: of the environment.
        observations: of all episodes, one after the other, `[transitions + episodes, ...]`.
        actions: of all episodes, `[transitions, ...]`.
        rewards: of all episodes, float32 `[transitions]`.
        terminated: bool `[episodes]`.
        lengths: the number of steps of each episode, int64 `[episodes]`.
        origin: counts of what was found when rows of D4RL were read: "left_out" transitions, "cut" episodes, and 1 for
            "without_timeouts" and "inferred_spaces"; what was not found is missing.

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
        columns = []
        for number, (*arrays, end) in enumerate(zip(*fields.values(), strict=True)):
            length = len(arrays[1]) if hasattr(arrays[1], "__len__") else 0
            if not length:
                raise ValueError(f"actions[{number}] must hold at least one action, got {arrays[1]!r:.80}")
            if not isinstance(end, bool | np.bool_):
                raise ValueError(f"terminated[{number}] must be a bool, got {end!r:.80}")
            columns.append(self._checked(arrays, length, 1, f"[{number}]"))
        lengths = [len(taken) for _, taken, _ in columns]
        self._set_arrays([joined(*column) for column in zip(*columns, strict=True)], lengths, terminated, {})

    def _set_spaces(self, observation_space: Any, action_space: Any) -> None:
        self._config = {}  # without the arguments, whose arrays are joined
        converted = check_spaces(observation_space, action_space)
        self.observation_space: Any = converted[0]
        self.action_space: Any = converted[1]

    def _checked(self, arrays: Sequence[Any], length: int, episodes: int, place: str = "") -> list[Any]:
        """Return observations, actions and rewards of some episodes in the dtypes of the spaces.

        Raises:
            ValueError: if an array does not fit; the message names the array and `place`.
        """
        observations, actions, rewards = arrays
        taken = checked(f"actions{place}", actions, self.action_space, length)
        if self._checks_bounds:
            check_inside(f"actions{place}", taken, self.action_space)
        earned = checked(f"rewards{place}", rewards, REWARD, length)
        # One observation more than actions: the last one follows the last action.
        seen = checked(f"observations{place}", observations, self.observation_space, length + episodes)
        return [seen, taken, earned]

    def _set_arrays(self, arrays: Sequence[Any], lengths: Any, terminated: Any, origin: Mapping[str, int]) -> None:
        """Set the attributes from checked arrays of all episodes: observations, actions and rewards."""
        self.observations: Any = arrays[0]
        self.actions: Array = arrays[1]
        self.rewards: Array = arrays[2]
        self.lengths: Array = np.asarray(lengths, np.int64)
        self.terminated: Array = np.asarray(terminated, np.bool_)
        self.origin: dict[str, int] = {name: count for name, count in origin.items() if count}

    @property
    def clipped(self) -> Dataset:
        """This data set with the signs of the rewards."""
        return self.from_config({**self.get_config(), "rewards": np.sign(self.rewards)})

    @functools.cached_property
    def episodes(self) -> tuple[Episode, ...]:
        """The episodes, whose arrays are views of the arrays of all episodes."""
        episodes = []
        end = 0
        for number, (length, ended) in enumerate(zip(self.lengths.tolist(), self.terminated.tolist(), strict=True)):
            steps = slice(end, end + length)
            end += length
            # Each episode before has one observation more than actions.
            seen = slice(steps.start + number, end + number + 1)
            observations = map_leaves(lambda array, seen=seen: array[seen], self.observations)
            episodes.append(Episode(observations, self.actions[steps], self.rewards[steps], ended))
        return tuple(episodes)

    def __len__(self) -> int:
        return len(self.actions)

    def __repr__(self) -> str:
        counts = f"{len(self.lengths):,} episodes, {len(self):,} steps"
        return f"<{type(self).__name__}: {counts}, mean return {self.returns.mean():.4g}>"

    @property
    def returns(self) -> Array:
        """The return of each episode, `[episodes]`."""
        return np.add.reduceat(self.rewards, np.cumsum(self.lengths) - self.lengths, dtype=np.float64)

    def pairs(self) -> tuple[Any, Array]:
        """Return the observations `[n, ...]` in which an action was chosen, and the actions `[n, ...]`."""
        # Without the last observation of each episode.
        acted = np.delete(np.arange(len(self) + len(self.lengths)), np.cumsum(self.lengths + 1) - 1)
        return map_leaves(lambda array: array[acted], self.observations), self.actions

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` takes: the arrays of all episodes, and the spaces."""
        names = ("lengths", "observations", "actions", "rewards", "terminated", "observation_space", "action_space")
        return {name: getattr(self, name) for name in (*names, "origin")}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build a data set from what `get_config` returned, from rows with the keys of D4RL, or from the arguments.

        Raises:
            ValueError: if the arrays do not fit together.
        """
        if "terminated" not in config:
            config = join_rows(config)
        if "lengths" not in config:
            return super().from_config(config)
        expected: dict[str, Any] = {
            "lengths": schema.Array(np.int64, (None,)),
            "terminated": schema.Array(np.bool_, (None,)),
        }
        expected |= {"rewards": schema.Array(np.float32, (None,)), "actions": schema.Array()}
        expected |= {"observations": (schema.Array(), dict), "origin": schema.DictOf(schema.Int(0))}
        schema.check({name: config.get(name, {}) for name in expected}, expected, "the data set")
        lengths = config["lengths"]
        count = len(config["rewards"])
        # Each length is compared, too, because the sum of large ints wraps around.
        fits = 0 < len(lengths) == len(config["terminated"]) and lengths.min() > 0 and lengths.max() <= count
        if not fits or lengths.sum() != count:
            raise ValueError("the lengths of the episodes do not fit the numbers of ends and rewards")
        dataset = cls.__new__(cls)
        dataset._set_spaces(config["observation_space"], config["action_space"])
        arrays = dataset._checked([config[name] for name in ARRAYS], count, len(lengths))
        dataset._set_arrays(arrays, lengths, config["terminated"], config.get("origin", {}))
        return dataset

    def with_spaces(self, observation_space: Space[Any] | None = None, action_space: Space[Any] | None = None) -> Self:
        """Return this data set for an agent's spaces; spaces that were inferred from the values are replaced.

        Raises:
            ValueError: if the data set is of other spaces, or its values do not fit.
        """
        are_inferred = int(observation_space is None or action_space is None)  # one of them, still
        was_inferred = "inferred_spaces" in self.origin and (observation_space or action_space)
        observation_space = observation_space or self.observation_space
        action_space = action_space or self.action_space
        if was_inferred:
            own_spaces = {"observation_space": observation_space, "action_space": action_space}
            origin = {**self.origin, "inferred_spaces": are_inferred}
            return self.from_config({**self.get_config(), **own_spaces, "origin": origin})
        if not same_layout(self.observation_space, observation_space):
            raise ValueError(f"observations must be in {show(observation_space)}, got {show(self.observation_space)}")
        if self.action_space != action_space:
            raise ValueError(f"actions must be in {show(action_space)}, got {show(self.action_space)}")
        return self

    def save(self, path: PathLike) -> None:
        """Write an `.npz` file with the keys of D4RL if `path` ends so, otherwise a folder of noterl.

        The folder holds one file in the format of `Agent.save`. Equal data give equal bytes.

        Raises:
            ValueError: if observations of a Dict space are to go into an `.npz` file.
            OSError: if a file cannot be written; an older data set at `path` is kept.
        """
        files.write(path, self)

    @classmethod
    def load(
        cls, source: Any, *, observation_space: Space[Any] | None = None, action_space: Space[Any] | None = None
    ) -> Self:
        """Return the data set that a path, a Minari id or an object holds.

        Rows have the keys of D4RL: observations, actions, rewards, terminals and, if known, timeouts and
        next_observations. An episode ends at a flag, at the last row, and where the next observation is not the
        observation of the next row. A row with both flags is a termination. Without next_observations, the last
        transition before a timeout is left out.

        A `noterl.Replay` holds what its agent learns from. Observations of float64 are rounded to float32. If the
        environment clips rewards, the rewards are clipped. In a memory of rollouts, as of PPO and A2C, observations
        and rewards are normalized if the agent normalizes them. `record` returns the values of the environment.

        Args:
            source: an `.npz` or HDF5 file of rows, or a dict of these arrays; a folder of `save` or Minari; the id of a
                local Minari data set, or a `minari.MinariDataset`; a `noterl.Replay`; or a `Dataset`.
            observation_space: of the environment. By default, the space that the source stores; if the source stores
                none, a space that holds the values. `with_spaces` replaces such a space later.
            action_space: as `observation_space`.

        Raises:
            noterl.saving.FileError: if a file is damaged, lacks a key, or holds objects or numbers that do not fit; the
                error names the key.
            OSError: if there is no such file.
            ValueError: if an object does not fit.
        """
        given_spaces = {"observation_space": observation_space, "action_space": action_space}
        try:
            content = files.read(source)
            if content.pop("kind", "dataset") not in ("dataset", "demonstrations"):
                raise ValueError("it holds something else")
            # Rows of D4RL store no spaces.
            return cls.from_config({**given_spaces, **content}).with_spaces(**given_spaces)
        except FileError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            what = source if isinstance(source, str | os.PathLike) else type(source).__name__
            raise FileError(f"{what} does not hold a data set or demonstrations of noterl: {error}") from error

    @classmethod
    def from_minari(cls, dataset: Any) -> Self:
        """Return the episodes of a Minari data set: the same as `load`."""
        return cls.load(dataset)

    def to_minari(self, dataset_id: str, *, env: Any = None, **metadata: Any) -> Any:
        """Write and return a local Minari data set, a `minari.MinariDataset`.

        Args:
            dataset_id: the id, such as "cartpole/expert-v0".
            env: what Minari's `recover_environment` makes again: an id or an environment; None for nothing.
            **metadata: further arguments of `minari.create_dataset_from_buffers`, such as `author` and `description`.

        Raises:
            ImportError: if Minari is not installed.
        """
        return files.to_minari(self, dataset_id, env, metadata)

    @classmethod
    def record(
        cls,
        agent_or_function: Any,
        env: Any = None,
        *,
        steps: int | None = None,
        episodes: int | None = None,
        path: str | Path | None = None,
        seed: int | None = None,
        deterministic: bool = False,
        noise: NoiseProcess | None = None,
    ) -> Self:
        """Play episodes and return their data; the agent does not learn, and training is not affected.

        Recording ends after `steps` or `episodes`, whichever comes first. Equal seeds give equal data. If the
        environment reports `info["action_mask"]`, an agent takes legal actions only. A function receives no mask.

        Args:
            agent_or_function: an agent, or a function that returns the action for an observation.
            env: environment to play in; by default a new copy of the agent's training environment.
            steps: number of transitions; the last episode is cut there. None for whole episodes.
            episodes: number of episodes.
            path: also save the data there; see `save`.
            seed: seed of the environments, the exploration and the noise; by default the agent's seed, or 0 for a
                function. Episodes start in other states than in `evaluate`.
            deterministic: whether an agent acts without exploration.
            noise: disturbs the executed actions of a bounded Box space; the data hold the actions before the noise. So
                the data of an expert show how the expert recovers, and a clone learns to recover. As for agents, the
                noise is added to actions that are scaled to [-1, 1]. The process itself does not change.

        Raises:
            ValueError: if an argument is not one of the allowed values, or the environment has several agents.
            OSError: if `path` cannot be written.

        Example:
        >>> import noterl
        >>> from noterl.noise import GaussianWhiteNoiseProcess
        >>> noise = GaussianWhiteNoiseProcess(sigma=0.5)
        >>> data = noterl.Dataset.record(lambda observation: [0.0], "Pendulum-v1", episodes=1, noise=noise)
        >>> len(data), float(data.actions.max())
        (200, 0.0)
        """
        # Here, because acting imports Keras, and reading a data set does not.
        from noterl.data.recording import play

        dataset = cls(**play(agent_or_function, env, path, steps, episodes, seed, deterministic, noise))
        if path is not None:
            dataset.save(path)
        return dataset

    def describe(self) -> dict[str, Any]:
        """Print what the data set holds and what looks wrong, and return the same by name.

        The names are "observation_space", "action_space", "transitions", "episodes"; "return_" and "length_" with
        "mean", "std", "min" and "max"; "terminated" and "truncated", which count episodes; "left_out", which counts
        transitions; and "warnings", a list of sentences.
        """
        figures = describe(self)
        for name, value in figures.items():
            for entry in value if name == "warnings" else [value]:
                print(f"{name:<18}{entry:,.6g}" if isinstance(entry, float) else f"{name:<18}{entry}")
        return figures

    def split(self, share: float, *, by: str = "episode", seed: int = 0) -> tuple[Self, Self]:
        """Return two data sets: a random `share` of the episodes, and the others, both in the order of this data set.

        Raises:
            ValueError: if there is only one episode, `share` is not above 0 and below 1, or `by` is not "episode".
        """
        check_word("by", by, ("episode",))
        count = len(self.lengths)
        if not 0 < check_number("share", share) < 1 or count < 2:
            raise ValueError(f"share must be above 0 and below 1, of at least 2 episodes; got {share!r} of {count}")
        first = min(max(1, round(share * count)), count - 1)
        order = Generators(seed)("dataset/split").permutation(count)
        return self._part(np.sort(order[:first])), self._part(np.sort(order[first:]))

    def _part(self, numbers: Array) -> Self:
        """Return the data set of some of the episodes."""
        chosen = [self.episodes[number] for number in numbers]
        arrays = {name: joined(*(getattr(episode, name) for episode in chosen)) for name in ARRAYS}
        ends = {"lengths": self.lengths[numbers], "terminated": self.terminated[numbers]}
        return self.from_config({**self.get_config(), **arrays, **ends})
