"""The persistent compilation cache: a second process loads the programs of the first, with the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = """
import hashlib, json, os, sys, warnings
warnings.simplefilter("error", UserWarning)
import noterl
import noterl.backends

for _ in range(int(os.environ.get("TENSORS", 0))):
    noterl.backends.keras.ops.zeros(1)

def inodes():
    words = [word for word in os.environ.get("TF_XLA_FLAGS", "").split() if "persistent_cache_directory=" in word]
    folder = words[0].split("=")[1] if words else None
    return {name: os.stat(os.path.join(folder, name)).st_ino for name in os.listdir(folder)} if folder else {}

hits = []
if os.environ["KERAS_BACKEND"] == "jax":
    import jax
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
copied = inodes()
agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=int(os.environ.get("SEED", 1)))
agent.compile(learning_starts=8, batch_size=8, update_every=4, updates=4)
agent.fit(steps=32, verbose=0)
weights = hashlib.sha256(b"".join(array.tobytes() for array in agent.q.get_weights())).hexdigest()
now = inodes()
kept = sum(now.get(name) == inode for name, inode in copied.items() if name.endswith(".pb"))
print(json.dumps({"weights": weights, "loaded": len(hits) + kept}))
"""


def train(cache: Path | str, **variables: str) -> dict[str, Any]:
    """Train in a new process; return a digest of the weights, and how many programs JAX and TensorFlow loaded."""
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"NOTERL_CACHE": str(cache), **variables}
    result = subprocess.run([sys.executable, "-c", TRAIN], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Error" not in result.stderr, result.stderr
    return dict(json.loads(result.stdout.splitlines()[-1]))


def programs(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("noterl/*/*")}


@pytest.mark.slow
@pytest.mark.backends("jax", "tensorflow")
def test_second_process_loads_what_is_not_damaged(tmp_path: Path, backend: str) -> None:
    first = train(tmp_path)
    stored = programs(tmp_path)
    assert first["loaded"] == 0 and stored
    damaged = max(tmp_path.glob("noterl/*/*"), key=lambda path: path.stat().st_size)
    damaged.write_bytes(stored[damaged.name][:-10])
    second = train(tmp_path)
    assert second["loaded"] == len(stored) - 1
    after = programs(tmp_path)
    assert after.keys() == stored.keys() and len(after[damaged.name]) > 1000
    assert all(after[name] == stored[name] for name in stored if name != damaged.name)
    assert first["weights"] == second["weights"]
    assert not list(tmp_path.glob("noterl/.tensorflow-*")), "a process left its folder"


@pytest.mark.backends("tensorflow")
def test_another_seed_and_other_work_before_find_the_same_programs(tmp_path: Path, backend: str) -> None:
    """The key of a program contains TensorFlow's number of its function, which counts all tensors of the process."""
    train(tmp_path)
    stored = programs(tmp_path)
    other = train(tmp_path, SEED="2", TENSORS="9")
    assert other["loaded"] == len(stored)
    assert programs(tmp_path).keys() == stored.keys()


@pytest.mark.slow
@pytest.mark.backends("jax")
def test_users_folder_and_zero_are_respected(tmp_path: Path) -> None:
    cache, own = tmp_path / "noterl", tmp_path / "own"
    own.mkdir()
    chosen = train(cache, JAX_COMPILATION_CACHE_DIR=str(own), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
    assert list(own.iterdir()) and not cache.exists()
    off = train("0", XDG_CACHE_HOME=str(tmp_path))
    assert not cache.exists()
    assert off["weights"] == chosen["weights"]


@pytest.mark.backends("jax")
def test_cache_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert train("", XDG_CACHE_HOME=str(tmp_path / "file"))["loaded"] == 0
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.backends("tensorflow")
class TestSession:
    """The folder of a TensorFlow process."""

    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        from noterl.backends.tensorflow import cache

        monkeypatch.setenv("NOTERL_CACHE", str(tmp_path))
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        monkeypatch.setattr(cache, "_session", None)
        monkeypatch.setattr(cache.atexit, "register", lambda function: None)
        return cache

    def test_only_new_files_are_stored_and_the_folder_is_removed(self, cache: Any, tmp_path: Path) -> None:
        cache.enable()
        session = cache._session
        assert os.environ["TF_XLA_FLAGS"] == f"--tf_xla_persistent_cache_directory={session.folder}"
        (session.folder / "one.pb").write_bytes(b"program")
        (session.folder / "two.pb.tmp").write_bytes(b"half a prog")
        cache.publish()
        session.close()
        assert not session.folder.exists()
        assert [path.name for path in tmp_path.glob("noterl/*/*")] == ["one.pb.program"]
        cache.enable()
        assert (cache._session.folder / "one.pb").read_bytes() == b"program"
        assert cache._session.folder != session.folder, "the variable that was inherited is replaced"
        cache._session.close()

    def test_programs_that_tensorflow_refuses_are_removed_and_made_again(self, cache: Any, tmp_path: Path) -> None:
        from tensorflow.errors import DataLossError

        cache.enable()
        (cache._session.folder / "one.pb").write_bytes(b"not a program")
        cache.publish()
        calls = []

        def make() -> Any:
            calls.append(sorted(path.name for path in tmp_path.glob("noterl/*/*.pb*")))
            if len(calls) == 1:
                return lambda: (_ for _ in ()).throw(DataLossError(None, None, "cannot parse"))
            return lambda: "result"

        with pytest.warns(UserWarning, match="removed: cannot parse"):
            assert cache.first_call(make) == "result"
        assert calls == [["one.pb", "one.pb.program"], []]
        cache._session.close()

    def test_flags_of_the_user_are_kept(self, cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=/somewhere")
        cache.enable()
        assert cache._session is None and not list(tmp_path.iterdir())
        monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_enable_lazy_compilation=false")
        cache.enable()
        assert os.environ["TF_XLA_FLAGS"].split()[0] == "--tf_xla_enable_lazy_compilation=false"
        cache._session.close()

    def test_folder_of_the_parent_is_not_used_without_a_cache(
        self, cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NOTERL_CACHE", "0")
        monkeypatch.setenv("TF_XLA_FLAGS", f"--a=1 --tf_xla_persistent_cache_directory={tmp_path / '.tensorflow-x'}")
        cache.enable()
        assert cache._session is None and os.environ["TF_XLA_FLAGS"] == "--a=1"

    def test_folders_of_killed_processes_are_removed(self, cache: Any, tmp_path: Path) -> None:
        cache.enable()
        running = cache._session
        root = tmp_path / "noterl"
        for name in ("killed_1", "old_proc", "starting", "notes"):
            (root / f".tensorflow-{name}").mkdir()
        for name in ("killed_1", "notes"):
            (root / f".tensorflow-{name}" / ".lock").touch()
        (tmp_path / ".tensorflow-old_proc").mkdir()
        for path in (root / ".tensorflow-old_proc", root / ".tensorflow-notes", tmp_path / ".tensorflow-old_proc"):
            os.utime(path, (1e9, 1e9))
        cache.enable()
        left = {path.name for path in root.glob(".tensorflow-*")}
        assert left == {running.folder.name, cache._session.folder.name, ".tensorflow-starting", ".tensorflow-notes"}
        assert (tmp_path / ".tensorflow-old_proc").exists(), "it is not in the folder of the cache"
        cache._session.close()
        running.close()

    def test_folder_is_kept_while_its_process_starts(
        self, cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process starts immediately before the lock is taken."""
        lock = cache.fcntl.flock

        def starting(*arguments: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(cache.fcntl, "flock", lock)
                cache._remove_abandoned(tmp_path / "noterl")
            lock(*arguments)

        monkeypatch.setattr(cache.fcntl, "flock", starting)
        cache.enable()
        monkeypatch.setattr(cache.fcntl, "flock", lock)
        cache._remove_abandoned(tmp_path / "noterl")
        assert cache._session is not None and cache._session.folder.exists()
        cache._session.close()
        assert not list(tmp_path.glob("noterl/.tensorflow-*"))
