"""What a refused file may take: at most 64 MB, and 30 times the processor time of a small file that is loaded."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import networks, saving
from noterl.networks.builders import cell_layer
from noterl.networks.size_limit import plan_weights, size_limit
from noterl.saving import Description, FileError
from noterl.utils import codec
from tests.support.states import assert_same_state, one_lane

pytestmark = pytest.mark.backends("torch")

Limit = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    agent = one_lane(seed=8)
    agent.fit(steps=30, verbose=0)
    path = tmp_path_factory.mktemp("files") / "agent.noterl"
    agent.save(path)
    return path


@contextmanager
def measured() -> Iterator[list[float]]:
    """Append the processor seconds of the context to a list, and check what the context allocates."""
    spent: list[float] = []
    gc.freeze()  # the collector would walk the objects of all earlier tests again and again
    started = time.process_time()
    tracemalloc.start()
    try:
        yield spent
        assert tracemalloc.get_traced_memory()[1] < 64e6
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    spent.append(time.process_time() - started)


@pytest.fixture(scope="module")
def small(file: Path) -> Limit:
    """Return a context that limits memory and time; the unit of time is what this process needs for a sound file."""
    with measured() as unit:
        noterl.load(file)

    @contextmanager
    def limited() -> Iterator[None]:
        with measured() as spent:
            yield
        assert spent[0] < 30 * unit[0]

    return limited


def changed(path: Path, place: str, value: Any) -> dict[str, Any]:
    document = saving.read(path)
    *keys, last = place.split(".")
    inner = document
    for key in keys:
        inner = inner[key]
    inner[last] = value
    return document


SPACE = "environment.observation_space"
CASES: dict[str, tuple[str, Any, str]] = {
    "two wide layers": ("config.hidden", [20_000, 20_000], "larger networks.*variables.safetensors"),
    "layers beyond any memory": ("config.hidden", [10**12], "agent.json.*larger networks"),
    "many layers": ("config.hidden", [2] * 5_000, "agent.json.*larger networks"),
    "many updates": ("compile.updates", 10**15, "^updates times .*updates=1000000000000000"),
    "many updates in a call": ("compile.steps_per_execution", 10**9, "^steps_per_execution times batch_size"),
    "many updates since a callback": ("state.schedule", {"updates": 10**12}, "^updates times batch_size"),
    "a long argument of the environment": ("environment.kwargs", {"desc": ["F" * 600] * 600}, "bytes of arguments"),
    "a large batch": ("compile.batch_size", 10**8, "^(batch_size|updates)"),
    "a large batch and memory": ("compile.replay", Description("$object", "Replay", {"capacity": 10**15}), "capacity"),
    "a described network": (
        "config.network",
        Description("$object", "NetworkDescription", {"document": {"layers": [{"layer": "dense", "units": 10**12}]}}),
        "agent.json.*larger networks",
    ),
    "a path of a network": ("config.network", "model.keras", "agent.json.*path"),
    "a long seed": ("config.seed", 16**20_000, "^seed must be below"),
}


@pytest.mark.parametrize("case", CASES)
def test_arguments_of_a_file_are_refused_before_anything_is_built(
    case: str, file: Path, tmp_path: Path, small: Limit
) -> None:
    place, value, message = CASES[case]
    saving.write(tmp_path / "a.noterl", changed(file, place, value))
    with small(), pytest.raises(ValueError, match=message):
        noterl.load(tmp_path / "a.noterl")


def test_folder_of_a_memory_in_a_file_is_not_created(file: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for folder in (tmp_path / "made" / "by" / "file", there):
        replay = Description("$object", "Replay", {"capacity": 3 * 10**9, "memmap": str(folder)})
        document = changed(file, "compile.replay", replay)
        document["state"]["replay"] = None
        saving.write(tmp_path / "a.noterl", document)
        if folder == there:
            noterl.load(tmp_path / "a.noterl").act(np.zeros(4, np.float32))
            assert not list(there.iterdir())
        else:
            with pytest.warns(UserWarning, match=f"{folder}.* in RAM"):
                agent = noterl.load(tmp_path / "a.noterl")
            assert agent.replay is not None and agent.replay.get_config().get("memmap") is None
    assert not (tmp_path / "made").exists()


def test_sparse_file_of_weights_is_not_read(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Limit
) -> None:
    agent = noterl.load(file)
    path = tmp_path / "w.safetensors"
    with path.open("wb") as sparse:
        sparse.truncate(2**31)
    with small(), pytest.raises(FileError, match="fit the agent"):
        agent.load_weights(path)
    monkeypatch.setattr("noterl.utils.budget.available_bytes", lambda: 2**30)
    for read in (saving.read_weights, saving.read):
        with small(), pytest.raises(FileError, match="fit in memory"):
            read(path)


@pytest.mark.parametrize("part", ["observation_space", "action_space"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (2**21,), np.float64),
        spaces.Discrete(10**9),
        spaces.MultiDiscrete([3, 10**9]),
        spaces.Dict({str(n): spaces.Discrete(2) for n in range(4_100)}),
    ],
    ids=["Box", "Discrete", "MultiDiscrete", "Dict"],
)
def test_large_space_is_refused(part: str, space: Any, file: Path, tmp_path: Path, small: Limit) -> None:
    saving.write(tmp_path / "a.noterl", changed(file, f"environment.{part}", space))
    message = rf"its spaces, up to .*{part}.*at most 16,777,216 bytes|agent.json.*at most 4,194,304 values"
    with small(), pytest.raises(FileError, match=message):
        noterl.load(tmp_path / "a.noterl")


@pytest.mark.parametrize("shape", [[2**40], [2] * 65, [-1], [2**200]])
def test_shape_of_a_space_is_checked_before_it_is_built(shape: list[int]) -> None:
    fields = {"shape": shape, "low": {"$scalar": ["<f4", "00000000"]}}
    encoded = {"$space": ["Box", {**fields, "high": fields["low"], "below": True, "above": True}]}
    with pytest.raises(FileError):
        codec.Decoder(lambda name: np.zeros(1)).decode(encoded)


@pytest.mark.parametrize("frames", [(4, 512, 512, 3), (84, 84, 4)])
def test_images_fit(frames: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, frames, np.uint8)
    assert codec.copy(space) == space


@pytest.mark.parametrize(
    ("place", "value"),
    [("counters.steps", 2**63), ("generators.seed", 2**128), ("generators.seed", 16**20_000)],
    ids=["steps", "seed", "long seed"],
)
def test_state_with_huge_numbers_is_refused(place: str, value: int, file: Path, tmp_path: Path, small: Limit) -> None:
    agent = one_lane(seed=8)
    agent.build()
    before = agent.get_state()
    saving.write(tmp_path / "a.noterl", changed(file, f"state.{place}", value))
    with small(), pytest.raises(ValueError, match=r"steps|seed"):
        agent.restore(tmp_path / "a.noterl")
    assert_same_state(before, agent)


def test_int_of_too_many_digits_is_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"tree\['x'\].*bits"):
        saving.write(tmp_path / "a", {"x": 2**200_000})
    with pytest.raises(FileError, match="digits"):
        codec.Decoder(lambda name: np.zeros(1)).decode({"$int": "0x" + "f" * 40_000})


PLANS = {
    "mlp": lambda: networks.mlp(5, [4, 3], 2),
    "log_std": lambda: networks.mlp((2, 3), [4], 2, gain=1.0, log_std=0.0),
    "layer_norm": lambda: cell_layer(4, 3, 2, layer_norm=True),
    "no hidden layer": lambda: networks.mlp(5, [], 2),
    "dueling": lambda: networks.dueling_mlp(5, [4, 3], 2),
    "shallow dueling": lambda: networks.dueling_mlp((5, 2), [], 2),
    "images": lambda: networks.nature_cnn((40, 48, 3), 2),
    "stacked images": lambda: networks.nature_cnn((2, 40, 48, 3), 2, dueling=True),
    "parts": lambda: networks.default_critic(
        spaces.Dict({"a": spaces.Box(0, 255, (36, 36), np.uint8), "b": spaces.Box(-1, 1, (3,))}), [4], 2
    ),
}


@pytest.mark.parametrize("kind", PLANS)
def test_sizes_of_a_plan_are_those_of_the_network(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[int]] = []
    monkeypatch.setattr("noterl.networks.builders.claim", lambda sizes: found.append(list(sizes)))
    network = PLANS[kind]()
    assert [sorted(sizes) for sizes in found] == [sorted(array.size for array in networks.get_weights(network))]


def test_limit_counts_all_networks_of_the_block() -> None:
    weights = {"q": [np.zeros((300, 300), np.float32)], "broken": 3, "odd": ["x"]}
    with size_limit(weights):
        networks.mlp(300, [300], 1)
        with pytest.raises(FileError, match="larger networks"):
            networks.mlp(300, [300, 300], 1)
    networks.mlp(300, [300, 300], 1)
    assert [weight.size for weight in plan_weights(("sequential", [("dense", 2, "relu", None)]), (3,))] == [6, 2]
