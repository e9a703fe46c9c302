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
from noterl.utils.compilation_cache import MARKER, Store

pytestmark = pytest.mark.backend_free
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, platformdirs.user_cache_path("noterl")),
        ("", platformdirs.user_cache_path("noterl")),
        ("0", None),
        (str(ROOT), ROOT / "noterl"),
    ],
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
    assert folder is not None and folder.parent == tmp_path / "noterl"
    assert folder == compilation_cache.folder("jax", "0.5")
    assert folder.stat().st_mode & 0o077 == folder.parent.stat().st_mode & 0o077 == 0
    assert (folder.parent / MARKER).is_file()
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
    assert [path.name for path in tmp_path.iterdir()] == ["a.program"]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_file_is_absent_and_is_written_again(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path, 1000)
    store.put("a", b"program")
    path = tmp_path / "a.program"
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-1], "changed": content[:-1] + b"x", "empty": b""}[damage])
    assert store.get("a") is None
    store.put("a", b"program")
    assert store.get("a") == b"program"


def test_errors_of_the_file_system_do_not_reach_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key.program").mkdir()  # a file that cannot be read
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
    assert store.get("a") is None and [path.name for path in tmp_path.iterdir()] == ["key.program"]


def folders(root: Path, *names: str) -> list[Path]:
    """Return new folders of a cache."""
    root.mkdir(exist_ok=True)
    (root / MARKER).touch()
    made = [root / f"{name}-0123456789ab" for name in names]
    for folder in made:
        folder.mkdir()
    return made


def test_least_recently_used_files_of_all_versions_are_evicted(tmp_path: Path) -> None:
    old, new, other = folders(tmp_path, "jax-1", "jax-2", "tensorflow-1")
    Store(other, 10_000).put("kept", bytes(900))
    Store(old, 10_000).put("evicted", bytes(400))
    Store(new, 10_000).put("used", bytes(400))
    for path in (old / "evicted.program", new / "used.program"):
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
    [folder] = folders(tmp_path, "jax-1")
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        assert [process.communicate()[1] for process in processes] == ["", "", ""]
    finally:
        for process in processes:
            process.kill()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3_000_000
    assert not list(folder.glob(".*"))


class TestOtherFiles:
    """Files beside the cache, and files with other names in it, are never removed."""

    def tree(self, folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def fill(self, folder: Path, key: str = "added") -> None:
        """Store more bytes than the limit."""
        Store(folder, 100).put(key, bytes(400))

    @pytest.mark.parametrize("name", ["jax-experiments", "jax-0.5-0123456789ab", "jax", "tensorflow-1"])
    def test_folders_beside_the_cache_are_kept(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / name / "results").mkdir(parents=True)
        (tmp_path / name / "results" / "run.npz").write_bytes(bytes(900))
        (tmp_path / name / "run.program").write_bytes(bytes(900))
        before = self.tree(tmp_path / name)
        monkeypatch.setenv("NOTERL_CACHE", str(tmp_path))
        folder = compilation_cache.folder(name.partition("-")[0], "0.5")
        assert folder is not None
        self.fill(folder)
        assert self.tree(tmp_path / name) == before

    def test_only_entries_in_folders_of_versions_are_removed(self, tmp_path: Path) -> None:
        [folder] = folders(tmp_path / "noterl", "jax-1")
        names = [
            f"{folder.name}/notes.txt",
            f"{folder.name}/results/run.program",
            "jax-experiments/run.program",
            "jax-1-0123456789abc/run.program",
            "jax-1-0123456789ab-old/run.program",
            "run.program",
        ]
        for name in names:
            (folder.parent / name).parent.mkdir(exist_ok=True)
            (folder.parent / name).write_bytes(bytes(900))
        Store(folder, 10_000).put("evicted", bytes(400))
        (folder / f".{'a' * 16}.part").write_bytes(bytes(900))  # of a process that was killed
        self.fill(folder)
        assert sorted(self.tree(folder.parent)) == sorted([*names, MARKER])

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        (other / "run.program").write_bytes(bytes(900))
        (other / "part").write_bytes(bytes(900))
        [folder] = folders(tmp_path / "noterl", "jax-1")
        (folder.parent / "jax-2-0123456789ab").symlink_to(other)
        (folder / "link.program").symlink_to(other / "part")
        (folder / "broken.program").symlink_to(tmp_path / "missing")
        before = self.tree(other)
        store = Store(folder, 100)
        for key in ("link", "broken"):
            store.put(key, bytes(400))
            assert store.get(key) is None and (folder / f"{key}.program").is_symlink()
        self.fill(folder)
        assert self.tree(other) == before and not (tmp_path / "missing").exists()
        assert sorted(path.name for path in folder.iterdir()) == ["broken.program", "link.program"]

    def test_nothing_is_removed_in_a_folder_without_the_marker(self, tmp_path: Path) -> None:
        [folder] = folders(tmp_path, "jax-1")
        Store(folder, 10_000).put("kept", bytes(400))
        (tmp_path / MARKER).unlink()
        self.fill(folder)
        assert Store(folder, 100).names() == ["added", "kept"]

    def test_folder_named_noterl_that_holds_other_files_is_not_used(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "noterl").mkdir()
        (tmp_path / "noterl" / "setup.py").write_text("mine")
        monkeypatch.setenv("NOTERL_CACHE", str(tmp_path))
        with pytest.warns(UserWarning, match=r"noterl holds other files.*NOTERL_CACHE") as caught:
            assert compilation_cache.folder("jax", "0.5") is None
        assert len(caught) == 1 and list(self.tree(tmp_path)) == [str(Path("noterl", "setup.py"))]

    def test_cache_of_an_earlier_version_gets_the_marker(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        folders(tmp_path / "noterl", "jax-0.4", "tensorflow-2.21.0")
        (tmp_path / "noterl" / ".tensorflow-jmgbnv3_").mkdir()
        (tmp_path / "noterl" / MARKER).unlink()
        monkeypatch.setenv("NOTERL_CACHE", str(tmp_path))
        assert compilation_cache.folder("jax", "0.5") is not None
        assert (tmp_path / "noterl" / MARKER).is_file()


class TestTrust:
    """Compiled programs are code, so a folder that others can write is not used."""

    @pytest.fixture(params=["chosen", "default"])
    def cache(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """Return the folder above those of the versions."""
        if request.param == "chosen":
            monkeypatch.setenv("NOTERL_CACHE", str(tmp_path / "cache"))
        else:
            monkeypatch.delenv("NOTERL_CACHE")
            monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / "cache" / name)
        assert compilation_cache.folder("jax", "0.5") is not None
        return tmp_path / "cache" / "noterl"

    def refused(self, path: Path) -> None:
        with pytest.warns(UserWarning, match=rf"{path} .*others can write") as caught:
            assert compilation_cache.folder("jax", "0.5") is None
        assert len(caught) == 1

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
    @pytest.mark.parametrize("place", ["cache", "version"])
    def test_folder_that_others_can_write_is_not_used(self, cache: Path, place: str, mode: int) -> None:
        path = cache if place == "cache" else next(cache.glob("jax-*"))
        path.chmod(mode)
        self.refused(path)

    @pytest.mark.parametrize("cache", ["chosen"], indirect=True)
    def test_chosen_folder_that_others_can_write_is_not_used(self, cache: Path, tmp_path: Path) -> None:
        cache.parent.chmod(0o777)
        self.refused(cache.parent)

    def test_folder_of_another_user_is_not_used(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        self.refused(cache.parent if os.environ.get("NOTERL_CACHE") else cache)

    def test_new_folders_are_private_whatever_the_umask(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("NOTERL_CACHE", str(tmp_path / "new" / "cache"))
        before = os.umask(0)
        try:
            folder = compilation_cache.folder("jax", "0.5")
        finally:
            os.umask(before)
        assert folder is not None and not {path.stat().st_mode & 0o022 for path in (folder, *folder.parents[:2])} - {0}
