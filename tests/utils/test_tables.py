"""Cells of tables."""

from __future__ import annotations

import decimal
import fractions
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from noterl.utils.tables import columns_of, plain_row, read_columns, write_parquet

pytestmark = pytest.mark.backend_free


def test_objects_are_left_out() -> None:
    values = {"object": object(), "class": int, "decimal": decimal.Decimal(1), "fraction": fractions.Fraction(1, 2)}
    assert plain_row({**values, "complex": np.complex64(1), "text": np.array("x"), "reward": 1.0}) == {"reward": 1.0}


def test_scalars_become_numbers() -> None:
    row = plain_row({"a": np.float32(0.5), "b": np.array(3), "c": np.bool_(True), "d": None, "e": "x", "f": [1]})
    assert row == {"a": 0.5, "b": 3, "c": True, "d": None, "e": "x"}
    assert [type(value) for value in row.values()] == [float, int, bool, type(None), str]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.csv", b"steps,reward\n1,2,3\n", "more cells than the header"),
        ("log.csv", b"steps,reward\n1," + b"9" * 200_000 + b"\n", "log.csv is not a table: field larger"),
        ("log.csv", b"steps\n\xff\n", "log.csv.*utf-8"),
        ("log.jsonl", b"[" * 200_000 + b"\n", "log.jsonl is not a table: .*recursion"),
        ("log.jsonl", b'{"steps"\n', "log.jsonl is not a table: .*delimiter"),
        ("log.jsonl", b"3\n", r"log\.jsonl must hold an object"),
        ("log.jsonl", b'{"a": ' + b"9" * 5_000 + b"}\n", "log.jsonl is not a table: .*digits"),
        ("log.jsonl", b"".join(b'{"%d": 1}\n' % number for number in range(3_000)), "log.jsonl: at most .* cells"),
        ("log.parquet", b"PAR1", "log.parquet"),
        ("log.parquet", b"PAR1" + b"\xff" * 16 + (16).to_bytes(4, "little") + b"PAR1", "log.parquet is not a Parquet"),
    ],
)
def test_file_that_is_not_a_table_raises(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_columns(tmp_path / name)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_sparse_file_is_refused_before_it_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noterl.utils.budget.available_bytes", lambda: 2**28)
    with (tmp_path / name).open("wb") as sparse:
        sparse.truncate(2**26)
    with pytest.raises(ValueError, match=rf"{name}.*16,777,216 fit"):
        read_columns(tmp_path / name)


def test_size_of_a_sparse_file_allows_no_cells_that_memory_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("noterl.utils.tables.available_bytes", lambda: 2**27)
    path = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.table({"a": np.zeros(2**22)}), path, compression="zstd")
    content = path.read_bytes()
    with path.open("r+b") as file:  # the pages, a hole, and the table of contents
        file.seek(2**30)
        file.write(content[-(int.from_bytes(content[-8:-4], "little") + 8) :])
    with pytest.raises(ValueError, match=r"log.parquet: at most .* cells"):
        read_columns(path)


def test_short_rows_make_no_cells(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(50_000))
    (tmp_path / "log.csv").write_text(f"steps,reward,{names}\n" + "1,2.5\n" * 5_000)
    assert read_columns(tmp_path / "log.csv") == {"steps": [1] * 5_000, "reward": [2.5] * 5_000}


def test_empty_lines_of_a_csv_file_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("reward\n1\n" + "\n" * 200_000 + "2\n")
    tracemalloc.start()
    try:
        assert read_columns(path) == {"reward": [1, 2]}
        assert tracemalloc.get_traced_memory()[1] < 10 * path.stat().st_size
    finally:
        tracemalloc.stop()


def test_quoted_cells_keep_their_lines(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes('a,b\n"x\ny\u2028",-3\n1e3,True\n'.encode())
    assert read_columns(tmp_path / "log.csv") == {"a": ["x\ny\u2028", 1000.0], "b": [-3, True]}
    (tmp_path / "log.jsonl").write_text(json.dumps({"a": "x\u2028"}, ensure_ascii=False) + "\n")
    assert read_columns(tmp_path / "log.jsonl") == {"a": ["x\u2028"]}


def test_parquet_file_of_many_rows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"a": np.zeros(2**21)}), tmp_path / "log.parquet", compression="zstd")
    with pytest.raises(ValueError, match=r"log.parquet: at most .* cells"):
        read_columns(tmp_path / "log.parquet")


def test_damaged_pages_of_a_parquet_file_are_read_or_refused(tmp_path: Path) -> None:
    """The pages hold the numbers of words in a dictionary, which may be larger than the dictionary."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "log.parquet"
    table = pyarrow.table({"word": ["a", "b", "c", "a", "b", "c"]})
    parquet.write_table(table, path, compression="none", write_statistics=False)
    content, refused = path.read_bytes(), 0
    for place in range(4, len(content) - parquet.read_metadata(path).serialized_size - 8):
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        try:
            words = {None, *read_columns(path)["word"]}
            assert all(word is None or isinstance(word, str) for word in words), place
        except (ValueError, OSError):
            refused += 1
    assert refused > 10


def test_words_of_a_parquet_file_come_back(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = [{"a": "x", "b": 1}, {"a": None, "b": 2}, {"a": "x", "b": 3}]
    write_parquet(tmp_path / "log.parquet", rows)
    assert read_columns(tmp_path / "log.parquet") == {
        "a": ["x", pytest.approx(np.nan, nan_ok=True), "x"],
        "b": [1, 2, 3],
    }
    assert columns_of(rows) == ["a", "b"]


@pytest.mark.parametrize("ending", [".parquet", ".parquet.gz"])
def test_folder_of_parquet_files_is_one_table(ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "history.parquet"
    folder.mkdir()
    for part in range(3):
        write_parquet(folder / f"{part:04}{ending}", [{"episode": part, "reward": 2.0 * part}])
    # pyarrow reads no file of such a name, and no folder.
    (folder / "_SUCCESS").touch()
    (folder / ".trash").mkdir()
    write_parquet(folder / ".trash" / f"0{ending}", [{"episode": 9, "reward": 9.0}])
    assert read_columns(folder) == {"episode": [0, 1, 2], "reward": [0.0, 2.0, 4.0]}


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_missing_file_is_an_error_of_the_system(ending: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        read_columns(tmp_path / f"missing{ending}")
