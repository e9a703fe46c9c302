"""The folder of compiled programs: where it is, damaged files, the limit, and processes side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import platformdirs
import pytest

from noterl.utils import compilation_cache
from noterl.utils.compilation_cache import Store

pytestmark = pytest.mark.backend_free
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [(None, platformdirs.user_cache_path("noterl")), ("", platformdirs.user_cache_path("noterl")), ("0", None)],
)
def test_variable_selects_the_folder(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: Path | None
) -> None:
    monkeypatch.delenv("NOTERL_CACHE")
    if variable is not None:
        monkeypatch.setenv("NOTERL_CACHE", variable)
    assert compilation_cache.root() == expected


def test_folder_is_private_and_depends_on_version_and_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTERL_CACHE", str(tmp_path))
    folder = compilation_cache.folder("jax", "0.5")
    assert folder is not None and folder.parent == tmp_path and folder == compilation_cache.folder("jax", "0.5")
    if sys.platform != "win32":
        assert folder.stat().st_mode & 0o077 == 0
    assert folder != compilation_cache.folder("jax", "0.6")
    values = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true", "NPROC": "17", "TF_NUM_INTRAOP_THREADS": "17"}
    for name, value in values.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert folder != compilation_cache.folder("jax", "0.5"), name
    assert folder == compilation_cache.folder("jax", "0.5")


def test_folder_that_cannot_be_used_warns_only_if_it_was_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NOTERL_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="NOTERL_CACHE"):
        assert compilation_cache.folder("jax", "0.5") is None
    monkeypatch.delenv("NOTERL_CACHE")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / "file")
    assert compilation_cache.folder("jax", "0.5") is None


def test_disk_that_is_almost_full_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTERL_CACHE", str(tmp_path))
    monkeypatch.setattr(compilation_cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.warns(UserWarning, match="free"):
        assert compilation_cache.folder("jax", "0.5") is None


def test_store_returns_what_was_put(tmp_path: Path) -> None:
    store = Store(tmp_path, 1000)
    assert store.get("a") is None and store.names() == []
    store.put("a", b"program")
    store.put("a", b"another")
    assert (store.get("a"), Store(tmp_path, 1000).get("a"), store.names()) == (b"program", b"program", ["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_file_is_absent_and_is_written_again(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path, 1000)
    store.put("a", b"program")
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes({"cut": content[:-1], "changed": content[:-1] + b"x", "empty": b""}[damage])
    assert store.get("a") is None
    store.put("a", b"program")
    assert store.get("a") == b"program"


def test_errors_of_the_file_system_do_not_reach_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()  # a file that cannot be read
    missing = Store(tmp_path / "missing", 1000)
    with warnings.catch_warnings(action="error"):
        assert Store(tmp_path, 1000).get("key") is None
        missing.put("a", b"program")
        assert missing.get("a") is None and missing.names() == []

    def full(path: Path, content: bytes) -> int:
        with open(path, "wb") as file:
            file.write(content[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    store = Store(tmp_path, 1000)
    store.put("a", b"program")
    assert store.get("a") is None and [path.name for path in tmp_path.iterdir()] == ["key"]


def test_least_recently_used_files_of_all_versions_are_evicted(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in ("jax-1", "jax-2", "tensorflow-1"))
    for folder in (old, new, other):
        folder.mkdir()
    Store(other, 10_000).put("kept", bytes(900))
    Store(old, 10_000).put("evicted", bytes(400))
    Store(new, 10_000).put("used", bytes(400))
    for path in (old / "evicted", new / "used"):
        os.utime(path, (time.time() - 100,) * 2)
    store = Store(new, 1000)
    assert store.get("used") is not None
    store.put("added", bytes(400))
    assert (store.names(), Store(old, 1000).names(), Store(other, 1000).names()) == (["added", "used"], [], ["kept"])


def test_readers_see_complete_files_while_processes_write(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from noterl.utils.compilation_cache import Store\n"
        "store = Store(Path(sys.argv[1]), 2_000_000)\n"
        "for k in range(400):\n"
        "    content = bytes([k % 256]) * 50_000\n"
        "    found = store.get(str(k))\n"
        "    assert found in (None, content)\n"
        "    if found is None: store.put(str(k), content)\n"
    )
    folder = tmp_path / "jax-1"
    folder.mkdir()
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.communicate(timeout=60)[1] == ""
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3_000_000
    assert not list(folder.glob(".*"))
