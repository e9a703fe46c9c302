"""State trees in files: reading returns what was written, or raises a FileError."""

from __future__ import annotations

import contextlib
import enum
import io
import json
import math
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from noterl import saving
from noterl.saving import FileError

pytestmark = [pytest.mark.backend_free, pytest.mark.slow]

DTYPES = ["?", "u1", "i1", "<u2", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", ">f4", ">i8"]
KEYS = ["variables", "$npy", "$dict", "$tensor", "$object", "a/b", "__metadata__"]


def same(first: Any, second: Any) -> bool:
    """Return whether two trees are equal to the bit, types included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        described = first.dtype == second.dtype and first.shape == second.shape
        return described and first.tobytes() == second.tobytes() and second.flags.writeable
    if isinstance(first, np.generic):
        return first.dtype == second.dtype and first.tobytes() == second.tobytes()
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float):
        return struct.pack("d", first) == struct.pack("d", second) or (math.isnan(first) and math.isnan(second))
    return first == second


def example_tree() -> dict[str, Any]:
    generator = np.random.default_rng(3)
    return {
        "variables": {"q": [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)]},
        "replay": {"observation": generator.integers(0, 255, (4, 3), np.uint8), "terminated": np.array([True, False])},
        "generators": {"numpy": generator.bit_generator.state, "epsilon": np.float32(0.1)},
        "history": [0.1 * step for step in range(70)],
        "others": [None, True, -0.0, math.nan, math.inf, "naïve \ud800"],
    }


def forge(path: Path, content: Any, members: dict[str, bytes] | None = None, compression: int = 0) -> Path:
    """Write a valid zip with the given content."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("agent.json", content if isinstance(content, bytes) else json.dumps(content))
        for name, data in (members or {}).items():
            archive.writestr(name, data)
    return path


def document(tree: Any, **changes: Any) -> dict[str, Any]:
    return {"format": "noterl", "version": 1, "libraries": {}, "tree": tree, **changes}


def npy(descr: str = "'<f4'", shape: str = "(2,)", data: bytes = b"\0" * 8, order: str = "False") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@contextlib.contextmanager
def peak_below(limit: float) -> Iterator[None]:
    """Fail if the block has more than `limit` bytes allocated at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


shapes = hypothesis_numpy.array_shapes(min_dims=0, min_side=0, max_side=3)
arrays = st.sampled_from(DTYPES).flatmap(lambda dtype: hypothesis_numpy.arrays(dtype, shapes))
scalars = st.sampled_from(DTYPES).flatmap(lambda dtype: hypothesis_numpy.arrays(dtype, 1)).map(lambda array: array[0])
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), arrays, scalars)
keys = st.one_of(st.text(max_size=5), st.sampled_from(KEYS))
trees = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=10)


@given(tree=trees)
@settings(max_examples=100)
def test_tree_comes_back_the_same(tree: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.noterl"
    saving.write(path, tree)
    assert same(tree, saving.read(path))


def test_ints_of_any_size_come_back(tmp_path: Path) -> None:
    for value in (10**5000, -(2**63), 2**64, -(2**127) - 1):
        saving.write(tmp_path / "a", [value, [value] * 100])
        assert saving.read(tmp_path / "a") == [value, [value] * 100]


def test_memory_layout_of_arrays_does_not_matter(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    for view in (array.T, array[:, ::2], array[::-1], np.broadcast_to(array[0, 0], (3, 4)), array.T[1:, ::2]):
        tree = {"variables": {"w": view}, "replay": view}
        saving.write(tmp_path / "a", tree)
        assert same(tree, saving.read(tmp_path / "a"))


def test_generator_continues_from_its_state(tmp_path: Path) -> None:
    for bits in (np.random.PCG64(3), np.random.PCG64DXSM(3), np.random.Philox(3)):
        np.random.default_rng(bits).integers(10, size=7, dtype=np.uint8)
        saving.write(tmp_path / "a", bits.state)
        again = type(bits)(0)
        again.state = saving.read(tmp_path / "a")
        assert np.array_equal(np.random.default_rng(bits).random(9), np.random.default_rng(again).random(9))


def test_long_lists_of_numbers_are_stored_as_arrays(tmp_path: Path) -> None:
    tree = {"floats": [0.1, math.nan] * 50_000, "ints": [2**62, -1] * 50_000, "mixed": [1, 2.0, True] * 30}
    saving.write(tmp_path / "a", tree)
    with zipfile.ZipFile(tmp_path / "a") as archive:
        assert archive.getinfo("agent.json").file_size < 2_000
    assert same(tree, saving.read(tmp_path / "a"))


def test_variables_with_equal_joined_names_are_kept_apart(tmp_path: Path) -> None:
    tree = {"variables": {"a": {"b": np.ones(1)}, "a/b": np.zeros(2), "__metadata__": np.ones(3), "\ud800": np.ones(4)}}
    saving.write(tmp_path / "a", {**tree, "a": tree})
    assert same({**tree, "a": tree}, saving.read(tmp_path / "a"))


def test_equal_trees_make_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving.write(tmp_path / "a", example_tree())
    monkeypatch.setattr("time.time", lambda: 2e9)
    saving.write(tmp_path / "b", example_tree())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with zipfile.ZipFile(tmp_path / "a") as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_other_programs_can_read_the_members(tmp_path: Path) -> None:
    tree = example_tree()
    saving.write(tmp_path / "a", tree)
    with zipfile.ZipFile(tmp_path / "a") as archive:
        assert archive.testzip() is None
        weights = safetensors.numpy.load(archive.read("variables.safetensors"))
        (name,) = (name for name in archive.namelist() if "replay_observation" in name)
        observation = np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
        versions = json.loads(archive.read("agent.json"))["libraries"]
    assert np.array_equal(weights["q/0"], tree["variables"]["q"][0]) and set(weights) == {"q/0", "q/1"}
    assert np.array_equal(observation, tree["replay"]["observation"])
    assert versions["numpy"] == np.__version__ and "noterl" in versions


def test_large_array_is_never_in_memory_twice(tmp_path: Path) -> None:
    array = np.zeros((64, 2**20), np.uint8)
    with peak_below(0.6 * array.nbytes):
        saving.write(tmp_path / "a", {"replay": [array, array.T]})
    with peak_below(2.2 * array.nbytes):
        tree = saving.read(tmp_path / "a")
    assert [array.shape for array in tree["replay"]] == [(64, 2**20), (2**20, 64)]


class Color(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"replay": {"info": [1, np.array([{}])]}}, r"tree\['replay'\]\['info'\]\[1\].*object"),
        ({"a": (1, print)}, r"tree\['a'\]\[1\].*builtin_function"),
        ({"a": {1: object()}}, r"tree\['a'\]\[1\].*object"),
        ({"a": Color.RED}, r"tree\['a'\].*Color"),
        ([{3}], r"tree\[0\].*set"),
        ({"a": np.longdouble(1)}, r"tree\['a'\]"),
        ({"variables": np.ma.zeros(2)}, r"tree\['variables'\].*Masked"),
    ],
)
def test_unsupported_type_is_named_before_anything_is_written(tree: Any, place: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=place):
        saving.write(tmp_path / "new" / "a", tree)
    assert list(tmp_path.iterdir()) == []


def test_tree_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(101):
        deep = [deep]
    with pytest.raises(ValueError, match="must not be nested more than 100 deep"):
        saving.write(tmp_path / "a", deep)
    with pytest.raises(ValueError, match=r"tree must .*8388608"):
        saving.write(tmp_path / "a", "x" * 2**23)
    with pytest.raises(ValueError, match=r"262144 values .* must be arrays"):
        saving.write(tmp_path / "a", [["x"]] * 2**17)
    with pytest.raises(ValueError, match="tree must have fewer arrays, got 30000"):
        saving.write(tmp_path / "a", {"x" * 250: [np.zeros(1)] * 30_000})
    assert list(tmp_path.iterdir()) == []


def test_truncated_file_raises(tmp_path: Path) -> None:
    saving.write(tmp_path / "a", example_tree())
    whole = (tmp_path / "a").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:length])
        with pytest.raises(FileError, match="b'"):
            saving.read(tmp_path / "b")


def read_or_refuse(data: bytes, path: Path, tree: Any) -> bool:
    """Return whether the bytes were read as the tree, or False if they raise a FileError."""
    path.write_bytes(data)
    with contextlib.suppress(FileError):
        assert same(tree, saving.read(path))
        return True
    return False


def test_file_with_one_changed_byte_raises_or_is_read_the_same(tmp_path: Path) -> None:
    tree = example_tree()
    saving.write(tmp_path / "a", tree)
    whole = (tmp_path / "a").read_bytes()
    harmless = 0
    for position, byte in enumerate(whole):
        changed = byte ^ (0x01, 0x80, 0xFF)[position % 3]
        harmless += read_or_refuse(whole[:position] + bytes([changed]) + whole[position + 1 :], tmp_path / "b", tree)
    # The zip's tables hold time stamps and versions, which do not affect the tree.
    assert 0 < harmless < 80 * len(zipfile.ZipFile(tmp_path / "a").namelist())


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_file_is_refused_or_read_the_same(data: st.DataObject, tmp_path_factory: Any) -> None:
    base = tmp_path_factory.getbasetemp()
    tree = example_tree()
    saving.write(base / "whole", tree)
    damaged = bytearray((base / "whole").read_bytes())
    position = st.integers(0, len(damaged) - 1)
    for place, byte in data.draw(st.lists(st.tuples(position, st.integers(0, 255)), max_size=6)):
        damaged[place] = byte
    if data.draw(st.booleans()):
        start, end = sorted((data.draw(position), data.draw(position)))
        damaged[start:end] = data.draw(st.binary(max_size=40))
    read_or_refuse(bytes(damaged), base / "damaged", tree)


kinds = st.sampled_from(
    [
        "$npy",
        "$tensor",
        "$packed",
        "$scalar",
        "$int",
        "$float",
        "$dict",
        "$tuple",
        "$deque",
        "$bytes",
        "$generator",
        "$space",
        "$object",
        "$keras",
        "$opaque",
        "$new",
        "shape",
        "low",
        "parts",
        "bit_generator",
        "a",
    ]
)
names = st.sampled_from(
    ["arrays/0_a.npy", "arrays/1_b.npy", "q", "../x", "<f4", "0000", "nan", "0x1f", "-0x", "", "Box", "Tuple"]
)
json_leaves = st.none() | st.booleans() | st.integers() | names | st.floats(allow_nan=False, allow_infinity=False)
structures = st.recursive(json_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(kinds, inner))


@given(structure=structures)
@settings(max_examples=150)
def test_forged_structure_is_read_or_refused(structure: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "forged"
    weights = safetensors.numpy.save({"q": np.ones(2)})
    members = {"arrays/0_a.npy": npy(), "arrays/1_b.npy": npy("'<i8'"), "variables.safetensors": weights}
    forge(path, document(structure), members)
    with contextlib.suppress(FileError):
        saving.read(path)
    with contextlib.suppress(FileError):
        saving.read(forge(path, document(structure)))


GOOD = document({"a": {"$npy": "arrays/0_a.npy"}})


@pytest.mark.parametrize(
    ("descr", "shape", "data", "order"),
    [
        ("'|O'", "(1,)", b"\0" * 8, "False"),
        ("'<f4'", "(3,)", b"\0" * 8, "False"),
        ("'<f4'", "(1,)", b"\0" * 8, "False"),
        ("'<f4'", "(1099511627776,)", b"\0" * 8, "False"),
        ("'<f4'", "(4611686018427387904, 4)", b"", "False"),
        ("'<f4'", "(2, 0, 99999999999999999999)", b"", "False"),
        ("'<f4'", f"({'1, ' * 70})", b"\0" * 4, "False"),
        ("'<f4'", "__import__('os').getcwd()", b"\0" * 8, "False"),
        ("[('a', '<f4')]", "(2,)", b"\0" * 8, "False"),
        ("'|b1'", "(2,)", b"\x01\x02", "False"),
        ("'<f4'", " " * 70_000 + "(2,)", b"\0" * 8, "False"),
        ("'<f4'", "(2,)" + " " * 5_000, b"\0" * 8, "False"),
        ("'<f4'", "(-2, -1)", b"\0" * 8, "False"),
        ("'<f4'", "(2, -1, 0)", b"", "False"),
        ("'<f4'", "(" * 900 + ")" * 900, b"\0" * 8, "False"),
        ("'<f4'", "-" * 1_900 + "2", b"\0" * 8, "False"),
        ("'<f4'", '"""', b"\0" * 8, "False"),
        ("'f4, f4'", "(1,)", b"\0" * 8, "False"),
        ("'<M8[s]'", "(1,)", b"\0" * 8, "False"),
    ],
)
def test_array_with_false_header_raises_before_allocation(
    descr: str, shape: str, data: bytes, order: str, tmp_path: Path
) -> None:
    assert same(np.zeros(2, "f4"), saving.read(forge(tmp_path / "good", GOOD, {"arrays/0_a.npy": npy()}))["a"])
    member = npy(descr, shape[:60_000], data, order)
    with peak_below(2**20), pytest.raises(FileError):
        saving.read(forge(tmp_path / "a", GOOD, {"arrays/0_a.npy": member}))


class Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["NOTERL_TEST_PAYLOAD"],)


def test_pickle_inside_an_array_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTERL_TEST_PAYLOAD", str(tmp_path / "ran"))
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload()], dtype=object), allow_pickle=True)
    forge(tmp_path / "a", GOOD, {"arrays/0_a.npy": buffer.getvalue()})
    with pytest.raises(FileError):
        saving.read(tmp_path / "a")
    forge(tmp_path / "b", pickle.dumps(Payload()))
    with pytest.raises(FileError):
        saving.read(tmp_path / "b")
    assert not (tmp_path / "ran").exists()
    np.load(io.BytesIO(buffer.getvalue()), allow_pickle=True)
    assert (tmp_path / "ran").exists(), "the payload does not work"


@pytest.mark.parametrize(
    ("content", "members", "reason"),
    [
        (document(1, version=2), {}, r"version is 2, .*newer noterl"),
        (document(1, version=True), {}, "version is True"),
        (document(1, format="other"), {}, "not written by noterl"),
        ([1], {}, "not written by noterl"),
        ({"format": "noterl", "version": 1}, {}, "no tree"),
        (b'{"format": "noterl", "version": 1, "tree": 1, "tree": 2}', {}, "a key twice"),
        (b'{"format": "noterl", "version": 1, "tree": NaN}', {}, "NaN"),
        (b'{"format": "noterl", "version": 1, "tree": ' + b"9" * 5_000 + b"}", {}, "damaged"),
        (b"[" * 200_000, {}, "100 deep"),
        (b" " * (2**23 + 1), {}, "agent.json.* 8,388,608 bytes"),
        (b'{"format": "noterl", "version": 1, "tree": [' + b"{}," * 2**18 + b"{}]}", {}, "agent.json.* 262,144 values"),
        (b'{"format": "noterl", "version": 1, "tree": ' + b"[" * 102 + b"]" * 102 + b"}", {}, "100 deep"),
        (document([{"$npy": "arrays/0_a.npy"}] * 2), {"arrays/0_a.npy": npy()}, "used twice"),
        (document(1), {"arrays/0_a.npy": npy()}, "does not use"),
        (document(1), {"variables.safetensors": safetensors.numpy.save({"q": np.ones(2)})}, "does not use"),
        (document({"$tensor": "q"}), {}, "missing"),
        (document({"$npy": "variables.safetensors"}), {"arrays/0_a.npy": npy()}, "missing"),
        (document({"$new": 1}), {}, "does not write"),
        (document(1), {"/etc/passwd": b""}, "does not write"),
        (document(1), {"arrays/../../a.npy": npy()}, "does not write"),
        (document(1), {"variables.safetensors": b"\xff" * 16}, "damaged"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_forged_file_raises(content: Any, members: dict[str, bytes], reason: str, tmp_path: Path) -> None:
    forge(tmp_path / "a", content, members)
    with pytest.raises(FileError, match=reason):
        saving.read(tmp_path / "a")


def test_compressed_member_raises_before_it_is_opened(tmp_path: Path) -> None:
    members = {"arrays/0_a.npy": npy("'|u1'", f"({2**26},)", bytes(2**26))}
    forge(tmp_path / "a", GOOD, members, zipfile.ZIP_DEFLATED)
    with peak_below(2**20), pytest.raises(FileError, match="compressed or encrypted"):
        saving.read(tmp_path / "a")


def test_member_larger_than_the_file_raises(tmp_path: Path) -> None:
    forge(tmp_path / "a", GOOD, {"arrays/0_a.npy": npy("'|u1'", f"({2**31},)", b"")})
    data = bytearray((tmp_path / "a").read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    struct.pack_into("<II", data, entry + 20, 2**31 + 90, 2**31 + 90)
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(FileError, match="larger than the file"):
        saving.read(tmp_path / "a")


def test_large_table_of_contents_raises_before_it_is_parsed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        archive.writestr("agent.json", b"{}")
        for number in range(25_000):
            archive.writestr(zipfile.ZipInfo(f"{'x' * 120}{number:06d}"), b"")
    with peak_below(2**20), pytest.raises(FileError, match="table of contents: at most"):
        saving.read(tmp_path / "a")


def test_two_members_of_one_name_raise(tmp_path: Path) -> None:
    forge(tmp_path / "a", GOOD, {"arrays/0_a.npy": npy()})
    with zipfile.ZipFile(tmp_path / "a", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("arrays/0_a.npy", npy())
    with pytest.raises(FileError, match="two members of one name"):
        saving.read(tmp_path / "a")


def test_file_inside_a_file_raises(tmp_path: Path) -> None:
    saving.write(tmp_path / "inner", {"steps": 1})
    inner = (tmp_path / "inner").read_bytes()
    saving.write(tmp_path / "outer", {"replay": np.frombuffer(inner, np.uint8)})
    outer = (tmp_path / "outer").read_bytes()
    for data in (outer[: outer.index(inner) + len(inner)], b"MZ" + inner, inner + b"\n"):
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(FileError):
            saving.read(tmp_path / "a")


def test_error_for_another_file_names_the_reason(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", np.ones(2))
    (tmp_path / "a.txt").write_text("not a zip")
    (tmp_path / "empty").touch()
    with pytest.raises(FileError, match=r"a\.npz.* no agent\.json"):
        saving.read(tmp_path / "a.npz")
    for name in ("a.txt", "empty"):
        with pytest.raises(FileError, match=f"{name}.*not a file of noterl"):
            saving.read(tmp_path / name)
    with pytest.raises(FileError, match="device, pipe or socket"):
        saving.read("/dev/zero")
    with pytest.raises(FileNotFoundError, match="absent"):
        saving.read(tmp_path / "absent")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        saving.read(tmp_path)
