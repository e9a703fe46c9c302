"""Data sets: their sources, files and formats, what `describe` finds, and parts."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from noterl import saving
from noterl.data.dataset import Dataset
from noterl.replay import Replay
from noterl.saving import FileError, archive

pytestmark = pytest.mark.backend_free

OBSERVATIONS = spaces.Box(-9.0, 9.0, (3,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)
MIXED = spaces.Dict({"gear": spaces.Discrete(3), "speed": spaces.Box(0.0, 1.0, (2,), np.float32)})
COUNT = 12


def rows(**changes: Any) -> dict[str, Any]:
    """Return rows with all keys of D4RL: a termination, a timeout and both flags; None removes a key."""
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(COUNT + 1, 3)).astype(np.float32)
    columns = {
        "observations": observations[:-1],
        "actions": rng.uniform(-1, 1, (COUNT, 2)).astype(np.float32),
        "rewards": rng.normal(size=COUNT).astype(np.float32),
        "terminals": np.isin(np.arange(COUNT), (2, 8)),
        "timeouts": np.isin(np.arange(COUNT), (5, 8)),
        "next_observations": observations[1:].copy(),
    }
    return {key: value for key, value in {**columns, **changes}.items() if value is not None}


def write(path: Path, columns: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez_compressed(path, **columns)
    else:
        with h5py.File(path, "w") as file:
            for key, value in columns.items():
                file[key] = value
    return path


def dataset(
    *lengths: int, action_space: Any = ACTIONS, observation_space: Any = OBSERVATIONS, seed: int = 0
) -> Dataset:
    rng = np.random.default_rng(seed)
    for space in (observation_space, action_space):
        space.seed(seed)

    def sampled(space: Any, count: int) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: sampled(part, count) for name, part in space.spaces.items()}
        return np.stack([space.sample() for _ in range(count)])

    return Dataset(
        [sampled(observation_space, length + 1) for length in lengths],
        [sampled(action_space, length) for length in lengths],
        [rng.normal(size=length) for length in lengths],
        [index % 2 == 0 for index in range(len(lengths))],
        observation_space=observation_space,
        action_space=action_space,
    )


def leaves(value: Any) -> list[Any]:
    return [leaf for part in value.values() for leaf in leaves(part)] if isinstance(value, dict) else [value]


def assert_same(first: Dataset, second: Dataset) -> None:
    assert (first.observation_space, first.action_space) == (second.observation_space, second.action_space)
    for name in ("observations", "actions", "rewards", "lengths", "terminated"):
        for ours, theirs in zip(leaves(getattr(first, name)), leaves(getattr(second, name)), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def test_episodes_are_views_of_the_arrays() -> None:
    data = dataset(4, 2)
    assert (len(data), data.lengths.tolist(), [episode.terminated for episode in data.episodes]) == (
        6,
        [4, 2],
        [True, False],
    )
    second = data.episodes[1]
    assert second.observations.shape == (3, 3) and np.shares_memory(second.observations, data.observations)
    np.testing.assert_array_equal(second.observations, data.observations[5:])
    np.testing.assert_array_equal(second.actions, data.actions[4:])
    np.testing.assert_allclose(data.returns, [episode.rewards.sum() for episode in data.episodes], rtol=1e-6)


class TestRows:
    """Rows with the keys of D4RL."""

    @pytest.mark.parametrize("name", ["data.npz", "data.h5", "data.hdf5"])
    def test_flags_end_episodes(self, name: str, tmp_path: Path) -> None:
        columns = rows()
        data = Dataset.load(write(tmp_path / name, columns))
        assert data.lengths.tolist() == [3, 3, 3, 3]
        assert data.terminated.tolist() == [True, False, True, False], (
            "both flags are a termination, the last row is not"
        )
        for number, episode in enumerate(data.episodes):
            first, last = 3 * number, 3 * number + 2
            np.testing.assert_array_equal(episode.observations[:-1], columns["observations"][first : last + 1])
            np.testing.assert_array_equal(episode.observations[-1], columns["next_observations"][last])
        assert_same(Dataset.load(columns), data)

    def test_without_next_observations_transitions_before_timeouts_are_left_out(self) -> None:
        columns = rows(next_observations=None)
        data = Dataset.load(columns)
        assert (data.lengths.tolist(), data.origin) == ([3, 2, 3, 2], {"left_out": 2, "inferred_spaces": 1})
        np.testing.assert_array_equal(data.episodes[1].observations, columns["observations"][3:6])
        np.testing.assert_array_equal(data.episodes[1].actions, columns["actions"][3:5])
        np.testing.assert_array_equal(data.episodes[0].observations[-1], columns["observations"][2])
        assert data.describe()["left_out"] == 2

    def test_timeout_after_one_step_leaves_no_episode_without_next_observations(self) -> None:
        data = Dataset.load(rows(next_observations=None, timeouts=np.isin(np.arange(COUNT), (3, 5, 6))))
        assert data.lengths.tolist() == [3, 1, 2, 2]
        np.testing.assert_array_equal(data.episodes[1].observations, rows()["observations"][4:6])

    def test_other_next_observation_cuts_the_episode(self) -> None:
        columns = rows()
        columns["next_observations"][0] += 1
        data = Dataset.load(columns)
        assert (data.lengths.tolist(), data.origin["cut"]) == ([1, 2, 3, 3, 3], 1)
        np.testing.assert_array_equal(data.episodes[0].observations[-1], columns["next_observations"][0])
        assert not data.terminated[0]

    def test_missing_timeouts_are_named(self) -> None:
        data = Dataset.load(rows(timeouts=None))
        assert data.lengths.tolist() == [3, 6, 3]
        assert "'timeouts' is missing" in " ".join(data.describe()["warnings"])

    def test_columns_of_one_value_are_accepted(self) -> None:
        columns = rows(actions=np.arange(COUNT)[:, None] % 3)
        flat = Dataset.load({**columns, "actions": columns["actions"][:, 0]})
        for key in ("rewards", "terminals", "timeouts"):
            columns[key] = columns[key][:, None]
        assert_same(Dataset.load(columns), flat)
        assert flat.action_space == spaces.Discrete(3)

    def test_next_observations_count_for_an_inferred_space(self) -> None:
        columns = rows(observations=np.arange(COUNT), next_observations=np.arange(1, COUNT + 1))
        assert Dataset.load(columns).observation_space == spaces.Discrete(COUNT + 1)

    @pytest.mark.parametrize(
        ("values", "space"),
        [
            ({"actions": np.full((COUNT, 2), 0.5)}, spaces.Box(-1.0, 1.0, (2,))),
            ({"actions": np.full((COUNT, 2), -3.0)}, spaces.Box(-3.0, 3.0, (2,))),
            ({"actions": np.full((COUNT, 2), 2)}, spaces.MultiDiscrete([3, 3])),
            ({"actions": np.full(COUNT, 0.25)}, spaces.Box(-1.0, 1.0, (1,))),
        ],
    )
    def test_action_space_is_inferred_until_an_agent_has_one(self, values: dict[str, Any], space: Any) -> None:
        data = Dataset.load(rows(**values))
        assert data.action_space == space and data.origin["inferred_spaces"] == 1
        if isinstance(space, spaces.Box):
            wider = data.with_spaces(OBSERVATIONS, spaces.Box(-5.0, 5.0, space.shape))
            assert "inferred_spaces" not in wider.origin and wider.observation_space == OBSERVATIONS
        with pytest.raises(ValueError, match="actions must"):
            data.with_spaces(OBSERVATIONS, spaces.Discrete(2))

    def test_space_that_is_not_given_stays_inferred(self) -> None:
        data = Dataset.load(rows(actions=np.full((COUNT, 2), 0.5)), observation_space=OBSERVATIONS)
        wider = data.with_spaces(OBSERVATIONS, spaces.Box(-5.0, 5.0, (2,)))
        assert wider.action_space == spaces.Box(-5.0, 5.0, (2,))

    def test_images_stay_bytes(self, tmp_path: Path) -> None:
        images = np.random.default_rng(0).integers(0, 255, (COUNT + 1, 4, 4, 1), np.uint8)
        data = Dataset.load(rows(observations=images[:-1], next_observations=images[1:]))
        assert data.observation_space == spaces.Box(0, 255, (4, 4, 1), np.uint8)
        assert data.observations.dtype == np.uint8 and len(data.observations) == COUNT + 4
        data.save(tmp_path / "images")
        assert_same(Dataset.load(tmp_path / "images"), data)


OBJECTS = np.array([{}] * COUNT, object)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no observations": ({"observations": None}, "'observations' is missing"),
    "no actions": ({"actions": None}, "'actions' is missing"),
    "no rewards": ({"rewards": None}, "'rewards' is missing"),
    "no terminals": ({"terminals": None}, "'terminals' is missing"),
    "NaN": ({"observations": np.full((COUNT, 3), np.nan)}, "observations must be finite"),
    "NaN after": ({"next_observations": np.full((COUNT, 3), np.nan)}, "next_observations must be finite"),
    "infinite reward": ({"rewards": np.full(COUNT, np.inf)}, "rewards must be finite"),
    "NaN action": ({"actions": np.full((COUNT, 2), np.nan)}, "actions must be finite|env: action_space"),
    "flag of two": ({"terminals": np.full(COUNT, 2)}, "terminals must hold a flag"),
    "NaN flag": ({"timeouts": np.full(COUNT, np.nan)}, "timeouts must hold a flag"),
    "fewer actions": ({"actions": np.zeros((COUNT - 1, 2))}, "actions must have the shape"),
    "fewer timeouts": ({"timeouts": np.zeros(3)}, "timeouts must hold a flag"),
    "other width": ({"next_observations": np.zeros((COUNT, 4))}, "next_observations must have the shape"),
    "negative action": ({"actions": np.full(COUNT, -1)}, r"actions must be in Discrete\(1\), got -1"),
    "huge action": ({"actions": np.full(COUNT, 2**62)}, "actions must be in Discrete"),
    "no rows": ({key: value[:0] for key, value in rows().items()}, "rewards must hold at least one row"),
    "no transition": (
        {"next_observations": None, "terminals": np.zeros(COUNT), "timeouts": np.ones(COUNT)},
        "'next_observations' is missing",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", ["data.npz", "data.h5"])
def test_bad_rows_raise_an_error_that_names_the_key(case: str, name: str, tmp_path: Path) -> None:
    changes, message = BAD[case]
    with pytest.raises(FileError, match=message):
        Dataset.load(write(tmp_path / name, rows(**changes)))


@pytest.mark.parametrize("key", ["actions", "infos"])
def test_objects_are_never_unpickled(key: str, tmp_path: Path) -> None:
    path = write(tmp_path / "data.npz", rows(**{key: OBJECTS}))
    with pytest.raises(FileError, match=f"'{key}'.*object"):
        Dataset.load(path)


def test_text_in_hdf5_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "data.h5", rows(rewards=None))
    with h5py.File(path, "r+") as file:
        file.create_dataset("rewards", (COUNT,), h5py.string_dtype())
    with pytest.raises(FileError, match="'rewards' does not hold an array of numbers"):
        Dataset.load(path)


def zip_bomb(path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10 * 2**22,)})
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as members,
        members.open("rewards.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for _ in range(10):
            member.write(bytes(2**24))


def huge_shape(path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**45,)})
    with zipfile.ZipFile(path, "w") as members:
        members.writestr("rewards.npy", header.getvalue() + bytes(64))


def key_twice(path: Path) -> None:
    write(path, rows())
    with zipfile.ZipFile(path, "a") as members, pytest.warns(UserWarning, match="Duplicate"):
        members.writestr("rewards.npy", b"")


def other_compression(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as members:
        members.writestr("rewards.npy", bytes(100))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**42)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (zip_bomb, "unpacked bytes"),
        (huge_shape, "'rewards'.*does not fit"),
        (key_twice, "'rewards' twice"),
        (other_compression, "compression"),
        (sparse, "fit in memory"),
        (lambda path: path.write_bytes(b"nothing"), "cannot read"),
    ],
)
def test_hostile_npz_is_refused_before_memory_is_allocated(
    make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "data.npz")
    with pytest.raises(FileError, match=message):
        Dataset.load(tmp_path / "data.npz")


def test_sparse_hdf5_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("observations", (10**9, 3), "f4", chunks=(2**20, 3))
    with pytest.raises(FileError, match=r"bytes|chunks"):
        Dataset.load(tmp_path / "data.h5")


@pytest.mark.parametrize(
    "spaces_of", [(OBSERVATIONS, ACTIONS), (MIXED, spaces.Discrete(4)), (spaces.Discrete(5), ACTIONS)]
)
def test_folder_holds_the_same_data(spaces_of: tuple[Any, Any], tmp_path: Path) -> None:
    data = dataset(4, 2, observation_space=spaces_of[0], action_space=spaces_of[1])
    data.save(tmp_path / "data")
    assert (tmp_path / "data").is_dir()
    assert_same(Dataset.load(tmp_path / "data"), data)
    dataset(3).save(tmp_path / "data")
    assert len(Dataset.load(tmp_path / "data")) == 3


def test_npz_has_the_keys_of_d4rl_and_equal_bytes(tmp_path: Path) -> None:
    uneven = spaces.Box(np.float32([-1.0, 0.0]), np.float32([1.0, 4.0]))
    data = dataset(4, 2, action_space=uneven)
    for name in ("first.npz", "second.npz"):
        data.save(tmp_path / name)
    assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "second.npz").read_bytes()
    with np.load(tmp_path / "first.npz") as file:
        assert {"observations", "actions", "rewards", "terminals", "timeouts", "next_observations"} <= set(file)
        assert (file["terminals"].sum(), file["timeouts"].sum()) == (1, 1)
    loaded = Dataset.load(tmp_path / "first.npz")
    assert_same(loaded, data)
    assert loaded.origin == {}
    with pytest.raises(FileError, match="actions must be in"):
        Dataset.load(tmp_path / "first.npz", action_space=ACTIONS)
    with pytest.raises(ValueError, match="path must name a folder"):
        dataset(2, observation_space=MIXED).save(tmp_path / "dict.npz")


@pytest.mark.parametrize("name", ["copy.npz", "copy"])
def test_copies_hold_what_was_found_in_the_rows(name: str, tmp_path: Path) -> None:
    """A copy without it would be refused by an agent whose spaces replace inferred ones."""
    columns = {key: values for key, values in rows().items() if key not in ("timeouts", "next_observations")}
    data = Dataset.load(write(tmp_path / "rows.npz", columns))
    assert {"inferred_spaces", "without_timeouts"} <= set(data.origin)
    data.save(tmp_path / name)
    loaded = Dataset.load(tmp_path / name)
    assert loaded.origin == data.origin
    assert loaded.describe()["warnings"] == data.describe()["warnings"]
    own_spaces = spaces.Box(-50, 50, data.observation_space.shape), spaces.Box(-50, 50, data.action_space.shape)
    assert loaded.with_spaces(*own_spaces).action_space == own_spaces[1]


def test_npz_without_what_was_found_is_read(tmp_path: Path) -> None:
    """Older versions wrote the spaces alone."""
    data = dataset(4, 2)
    data.save(tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as file:
        members = dict(file)
    pair = json.loads(members["noterl"].tobytes())[:2]
    members["noterl"] = np.frombuffer(json.dumps(pair).encode(), np.uint8)
    assert_same(Dataset.load(write(tmp_path / "old.npz", members)), data)


@pytest.mark.parametrize(
    "spaces_text", [b"[]", b"3", b'["a", "b"]', b'[{"$space": ["Discrete", {"n": 1000000000}]}, 1]', b"{"]
)
def test_damaged_spaces_are_refused(spaces_text: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        Dataset.load(write(tmp_path / "data.npz", rows(noterl=np.frombuffer(spaces_text, np.uint8))))


class TestMapped:
    """Large arrays of a folder are mapped from the file."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive, "_MIN_MAPPED", 200)

    def test_large_arrays_are_mapped(self, tmp_path: Path) -> None:
        data = dataset(40, 2)
        data.save(tmp_path / "data")
        loaded = Dataset.load(tmp_path / "data")
        assert_same(loaded, data)
        assert isinstance(loaded.observations.base, np.memmap) and not loaded.observations.flags.writeable
        loaded.save(tmp_path / "data")  # over the file that is mapped
        assert_same(Dataset.load(tmp_path / "data"), data)

    def test_memory_is_not_needed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        data = dataset(400)
        data.save(tmp_path / "data")
        monkeypatch.setattr(archive, "available_bytes", lambda: 1_000)
        assert_same(Dataset.load(tmp_path / "data"), data)
        monkeypatch.setattr(archive, "available_bytes", lambda: 100)
        with pytest.raises(FileError, match="fit in memory"):
            Dataset.load(tmp_path / "data")

    def test_damage_is_refused(self, tmp_path: Path) -> None:
        data = dataset(40)
        data.save(tmp_path / "data")
        path = tmp_path / "data" / "dataset.noterl"
        content = path.read_bytes()
        path.write_bytes(content.replace(b"(41, 3)", b"(49, 3)"))
        with pytest.raises(FileError, match="observations"):
            Dataset.load(tmp_path / "data")
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(FileError, match="cannot read"):
            Dataset.load(tmp_path / "data")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "agent"},
        {"lengths": np.array([4, 3])},
        {"lengths": np.array([2**62, 2**62, 2**62, 2**62 + 6])},
        {"terminated": np.array([True])},
        {"rewards": np.full(6, np.nan, np.float32)},
        {"observations": None},
        {"action_space": None},
        {"action_space": spaces.Discrete(2)},
        {"observation_space": spaces.Discrete(10**9)},
        {"origin": {"left_out": -1}},
        {"origin": 3},
    ],
)
def test_damaged_folder_raises_file_error(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    tree = {"kind": "dataset", **dataset(4, 2).get_config(), **change}
    saving.write(tmp_path / "data" / "dataset.noterl", tree)
    with pytest.raises(FileError, match="data"):
        Dataset.load(tmp_path / "data")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("none.npz", OSError),
        ("none", OSError),
        ("none/none-v0", OSError),
        (".", OSError),
        (3, ValueError),
        ("", ValueError),
    ],
)
def test_other_sources_are_refused(source: Any, error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        Dataset.load(source)


def test_replay_memory_becomes_the_episodes_of_each_lane() -> None:
    replay = Replay(20)
    with pytest.raises(ValueError, match="empty"):
        Dataset.load(replay)
    replay.build(OBSERVATIONS, ACTIONS)
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(2, 15, 3)).astype(np.float32)
    for step in range(14):
        for lane in range(2):
            ends = step == 9 and lane == 0, step == 11 and lane == 1
            replay.add(lane, seen[lane, step], np.full(2, step / 20), step, seen[lane, step + 1], *ends)
    data = Dataset.load(replay)
    # The last 20 of 28 transitions are stored, from step 4 on.
    assert data.lengths.tolist() == [6, 4, 8, 2] and data.terminated.tolist() == [True, False, False, False]
    np.testing.assert_array_equal(data.episodes[0].observations, seen[0, 4:11])
    np.testing.assert_array_equal(data.episodes[2].observations, seen[1, 4:13])
    np.testing.assert_array_equal(data.episodes[2].rewards, np.arange(4, 12))
    assert data.action_space == ACTIONS and data.origin == {}


def test_memories_of_dicts_and_of_stacked_frames_become_data_sets() -> None:
    replay = Replay(20)
    replay.build(MIXED, spaces.Discrete(2))
    seen = [{"gear": step % 3, "speed": np.full(2, step / 10, np.float32)} for step in range(9)]
    for step in range(8):
        replay.add(0, seen[step], 1, 0.0, seen[step + 1], step == 3, False)
    data = Dataset.load(replay)
    assert data.lengths.tolist() == [4, 4] and data.observations["gear"].tolist() == [0, 1, 2, 0, 1, 1, 2, 0, 1, 2]
    stacks = Replay(6, frame_stack=2)
    stacks.build(spaces.Box(-9.0, 9.0, (2, 3), np.float32), ACTIONS)
    frames = [np.full((2, 3), step) + np.array([[-1], [0]]) for step in range(10)]
    for step in range(9):
        stacks.add(0, frames[max(step, 0)], np.zeros(2), 0.0, frames[step + 1], False, False)
    data = Dataset.load(stacks)
    assert data.lengths.tolist() == [5], "the oldest stored transition lacks a frame"
    np.testing.assert_array_equal(data.observations, frames[4:])


class TestDescription:
    """What looks wrong is named."""

    def warnings(self, data: Dataset) -> str:
        return "\n".join(data.describe()["warnings"])

    def test_figures_are_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = dataset(4, 2)
        figures = data.describe()
        assert figures["transitions"] == 6 and figures["episodes"] == 2 and figures["terminated"] == 1
        assert figures["return_mean"] == pytest.approx(data.returns.mean()) and figures["warnings"] == []
        printed = capsys.readouterr().out
        assert str(ACTIONS) in printed and "transitions       6" in printed
        json.dumps(figures)

    def test_truncation_that_is_recorded_as_termination(self) -> None:
        data = dataset(*[5] * 6)
        assert "truncation may be recorded as termination" in self.warnings(data)
        data.terminated[:] = False
        assert self.warnings(data) == ""
        assert self.warnings(dataset(3, 4, 5, 6)) == ""

    def test_actions_outside_the_bounds(self) -> None:
        data = dataset(4, 2)
        data.actions[1, 0] = 1.5
        assert "1 transitions have actions outside the bounds" in self.warnings(data)

    def test_constant_rewards(self) -> None:
        data = dataset(4, 2)
        data.rewards[:] = 1
        assert "rewards are constant: all are 1" in self.warnings(data)

    def test_duplicated_episodes(self) -> None:
        data = dataset(4)
        twice = Dataset(
            *([getattr(data.episodes[0], name)] * 2 for name in ("observations", "actions", "rewards", "terminated")),
            observation_space=OBSERVATIONS,
            action_space=ACTIONS,
        )
        assert "1 episodes are duplicated" in self.warnings(twice)


def test_split_divides_whole_episodes() -> None:
    data = dataset(*range(1, 11))
    first, second = data.split(0.8, by="episode", seed=3)
    assert (len(first.episodes), len(second.episodes)) == (8, 2)
    assert sorted([*first.lengths, *second.lengths]) == list(range(1, 11))
    assert sorted(first.lengths) == list(first.lengths), "the order is kept"
    number = int(second.lengths[0]) - 1
    np.testing.assert_array_equal(second.episodes[0].observations, data.episodes[number].observations)
    assert_same(data.split(0.8, seed=3)[0], first)
    assert data.split(0.8, seed=4)[1].lengths.tolist() != second.lengths.tolist()
    assert [len(part.episodes) for part in data.split(0.999)] == [9, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share": 0}, "share"),
        ({"share": 1.0}, "share"),
        ({"share": "x"}, "share"),
        ({"share": 0.5, "by": "step"}, "by"),
    ],
)
def test_bad_split_raises(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(3, 3).split(**arguments)
    with pytest.raises(ValueError, match="share"):
        dataset(3).split(0.5)
