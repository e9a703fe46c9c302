"""Atomic writing: after any failure there is exactly one complete file, the old or the new one."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from safetensors import SafetensorError

from noterl import saving
from noterl.saving import FileError
from noterl.utils.files import reading

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[2]
OLD = {"steps": 1, "replay": np.arange(5)}
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs signals, limits and mounts of Linux")


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(script: str, *arguments: object) -> str:
    process = start(script, *arguments)
    try:
        output, errors = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output


def assert_only_old(path: Path) -> None:
    assert os.listdir(path.parent) == [path.name]
    tree = saving.read(path)
    assert tree["steps"] == 1 and np.array_equal(tree["replay"], OLD["replay"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "saves").mkdir()
    path = tmp_path / "saves" / "agent.noterl"
    saving.write(path, OLD)
    return path


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("no")])
def test_exception_while_writing_leaves_old_file(
    error: BaseException, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = np.lib.format.write_array

    def write_half(stream: Any, array: Any, **options: Any) -> None:
        written(stream, array[: len(array) // 2], **options)
        raise error

    monkeypatch.setattr(np.lib.format, "write_array", write_half)
    with pytest.raises(type(error)) as caught:
        saving.write(path, {"replay": np.zeros(100_000)})
    assert caught.value is error
    assert_only_old(path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failing_system_call_is_raised_with_the_path(call: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    for write in (lambda: saving.write(path, {}), lambda: saving.write_weights(path, {"a": np.ones(2)})):
        with pytest.raises(OSError, match=r"Input/output error.*agent\.noterl") as caught:
            write()
        assert caught.value.errno == errno.EIO
    assert_only_old(path)


INTERRUPTED = """
import os, random, signal, sys
import numpy as np
from noterl import saving

path, generator, counts = sys.argv[1], random.Random(3), {"interrupted": 0, "written": 0}
trees = [{"steps": 1, "replay": np.full(300_000, number)} for number in (1, 2)]
saving.write(path, trees[0])
signal.signal(signal.SIGALRM, signal.default_int_handler)
for attempt in range(60):
    before = saving.read(path)["replay"][0]
    tree = trees[int(before) % 2]
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-4, 8e-3))
            saving.write(path, tree)
            counts["written"] += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (KeyboardInterrupt, RuntimeError) as error:  # also after the write, before the timer is stopped
        # An interrupt while `threading.Condition` takes its lock back becomes an error of the lock.
        assert isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt), repr(error)
        counts["interrupted"] += 1
    replay = saving.read(path)["replay"]
    assert np.all(replay == replay[0]) and replay.shape == (300_000,)
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)], os.listdir(os.path.dirname(path))
print(counts["interrupted"], counts["written"])
"""


@linux
def test_interrupt_at_any_moment_leaves_one_complete_file(path: Path) -> None:
    interrupted, _ = map(int, run(INTERRUPTED, path).split())
    assert interrupted >= 5


LIMITED = """
import resource, signal, sys
import numpy as np
from noterl import saving

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
for write, value in ((saving.write, {"replay": np.zeros(2**18)}), (saving.write_weights, {"q": np.zeros(2**18)})):
    try:
        write(sys.argv[1], value)
    except OSError as error:
        print(error.errno, error)
"""


@linux
def test_file_beyond_the_size_limit_leaves_old_file(path: Path) -> None:
    lines = run(LIMITED, path).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{errno.EFBIG} ") and str(path) in line for line in lines)
    assert_only_old(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@linux
def test_full_disk_leaves_old_file(small_disk: Path) -> None:
    path = small_disk / "agent.noterl"
    saving.write(path, OLD)
    for value in ({"replay": np.zeros(2**18)}, {"replay": [np.zeros(100) for _ in range(2_000)]}):
        with pytest.raises(OSError, match=str(path)) as caught:
            saving.write(path, value)
        assert caught.value.errno == errno.ENOSPC
        assert_only_old(path)
    with pytest.raises(OSError, match=str(path)):
        saving.write_weights(path, {"q": np.zeros(2**18)})
    assert_only_old(path)
    (small_disk / "filler").write_bytes(bytes(2**20 - os.path.getsize(path) - 2**13 & ~0xFFF))
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "rest").write_bytes(bytes(2**14))
    with pytest.raises(OSError, match="cannot be written"):
        saving.check_writable(small_disk / "new.noterl")


HANGING = """
import os, sys, time
import numpy as np
from noterl import saving

def hang(descriptor):
    print("written", flush=True)
    time.sleep(60)

os.fsync = hang
saving.write(sys.argv[1], {"replay": np.zeros(200_000)})
"""


@linux
def test_kill_while_writing_leaves_old_file_and_next_write_removes_the_rest(path: Path) -> None:
    process = start(HANGING, path)
    try:
        assert process.stdout is not None and process.stdout.readline() == "written\n"
        (temporary,) = {*path.parent.iterdir()} - {path}
        assert temporary.stat().st_size > 1_600_000
        saving.write(path, OLD)
        assert temporary.exists(), "the file of a running writer must stay"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert np.array_equal(saving.read(path)["replay"], OLD["replay"])
    saving.write(path.with_name("other.noterl"), OLD)
    assert temporary.exists(), "new temporary files of another path must stay"
    path.with_name("other.noterl").unlink()
    saving.write(path, OLD)
    assert_only_old(path)


@linux
@pytest.mark.parametrize("is_written", [True, False])
def test_old_temporary_file_of_another_path_is_removed_unless_written(is_written: bool, path: Path) -> None:
    process = start(HANGING, path.with_name("other.noterl"))
    try:
        assert process.stdout is not None and process.stdout.readline() == "written\n"
        (temporary,) = {*path.parent.iterdir()} - {path}
        os.utime(temporary, (0, 0))
        if is_written:
            saving.write(path, OLD)
            assert temporary.exists()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    saving.write(path, OLD)
    assert_only_old(path)


@linux
def test_temporary_file_removed_before_its_lock_is_created_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = []

    def remove_first(file: Any, operation: int) -> None:
        if not removed:
            os.unlink(file.name)
            removed.append(file.name)

    monkeypatch.setattr("fcntl.flock", remove_first)
    saving.write(path, {"steps": 2})
    assert removed and saving.read(path) == {"steps": 2} and os.listdir(path.parent) == [path.name]


def test_offset_before_the_start_raises_file_error(path: Path) -> None:
    with pytest.raises(FileError, match="an offset is outside of it"), reading(path) as file:
        file.seek(-5)


def test_threads_writing_one_path_leave_one_complete_file(path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: saving.write(path, {"replay": np.full(1_000, number)}), range(64)))
    assert len(set(saving.read(path)["replay"].tolist())) == 1
    assert os.listdir(path.parent) == [path.name]


def test_directories_are_created_and_long_names_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / ("n" * 255)
    saving.write(path, OLD)
    assert_only_old(path)


def test_symbolic_link_and_permissions_are_kept(path: Path) -> None:
    path.chmod(0o640)
    link = path.parent.parent / "link"
    link.symlink_to(path)
    saving.write(link, {"steps": 2})
    assert link.is_symlink() and saving.read(path) == {"steps": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("path", ["", "a\0b", None, 3, b"bytes"])
def test_invalid_path_raises(path: Any) -> None:
    calls = (saving.read, saving.read_weights, saving.check_writable, lambda path: saving.write(path, {}))
    for call in calls:
        with pytest.raises(ValueError, match="path must be the path of a file"):
            call(path)


def test_directory_or_device_is_not_replaced(tmp_path: Path) -> None:
    for path in (tmp_path, f"{tmp_path}/new/"):
        with pytest.raises(IsADirectoryError, match="path must name a file"):
            saving.write(path, OLD)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="path must name a regular file"):
        saving.write(tmp_path / "pipe", OLD)
    with pytest.raises(FileError, match="device, pipe or socket"):
        saving.read(tmp_path / "pipe")
    assert os.listdir(tmp_path) == ["pipe"]


def test_check_writable_leaves_only_directories(tmp_path: Path, path: Path) -> None:
    saving.check_writable(tmp_path / "runs" / "dqn" / "a.noterl")
    assert os.listdir(tmp_path / "runs" / "dqn") == []
    saving.check_writable(path)
    assert_only_old(path)


def test_check_writable_raises_for_a_file_among_the_parents(path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot be written.*agent\.noterl"):
        saving.check_writable(path / "dqn" / "a.noterl")
    with pytest.raises(IsADirectoryError, match="path must name a file"):
        saving.check_writable(path.parent)
    assert_only_old(path)


FORBIDDEN = """
import os, sys, tempfile
from noterl import saving

with tempfile.TemporaryDirectory() as directory:
    saving.write(os.path.join(directory, "a"), {})
if os.geteuid() == 0:
    os.seteuid(65534)
for call in (saving.check_writable, lambda path: saving.write(path, {})):
    for path in sys.argv[1:]:
        try:
            call(path)
        except PermissionError as error:
            print(error.filename == path)
"""


@linux
def test_directory_without_permission_raises_permission_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        output = run(FORBIDDEN, tmp_path / "a.noterl", tmp_path / "new" / "a.noterl")
    finally:
        tmp_path.chmod(0o700)
    assert output.split() == ["True"] * 4
    assert list(tmp_path.iterdir()) == []


def weights() -> dict[str, np.ndarray]:
    return {
        "q/kernel": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "q/bias": np.array(0.5),
        "mask": np.array([True, False]),
        "empty": np.empty((0, 3), np.float16),
        "é": np.arange(3, dtype=np.uint8)[::-1],
    }


def test_weights_are_read_here_and_by_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    saving.write_weights(path, weights())
    for arrays in (saving.read_weights(path), safetensors.numpy.load_file(path)):
        assert set(arrays) == set(weights())
        for name, array in weights().items():
            assert arrays[name].dtype == array.dtype and np.array_equal(arrays[name], array)
            assert arrays[name].shape == array.shape
    assert all(array.flags.writeable for array in saving.read_weights(path).values())
    first = path.read_bytes()
    saving.write_weights(path, dict(reversed(weights().items())))
    assert path.read_bytes() == first


def test_truncated_weights_raise(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    saving.write_weights(path, weights())
    whole = path.read_bytes()
    for data in (*(whole[:length] for length in range(len(whole))), whole + b"\0", b"\xff" * 64):
        path.write_bytes(data)
        with pytest.raises(FileError, match=r"weights\.safetensors"):
            saving.read_weights(path)
    with pytest.raises(FileNotFoundError, match="absent"):
        saving.read_weights(tmp_path / "absent")


@pytest.mark.parametrize("array", [np.array([None]), np.zeros(2, "c16"), np.longdouble(1), np.array(["x"])])
def test_weights_of_unsupported_dtype_raise(array: Any, tmp_path: Path) -> None:
    with pytest.raises(SafetensorError, match="dtype"):
        saving.write_weights(tmp_path / "a", {"kernel": array})
    assert list(tmp_path.iterdir()) == []
