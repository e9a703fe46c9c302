"""Tests of what shortens the start and the end of a process."""

from __future__ import annotations

import gc
import gzip
import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from noterl.utils.start import collector_paused, imported_late
from tests.support.representatives import representatives

# Placeholders stay in the modules of a test, so each test has a package of its own.
PACKAGE = """
import sys
sys.imports = getattr(sys, "imports", 0) + 1
class Frame:
    width = 3
    def __init__(self, value=0):
        self.value = value
def double(number):
    return 2 * number
"""


def run(program: str, *arguments: str) -> str:
    """Return what a program prints in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package with a class, a function and a submodule; `sys.imports` counts its imports."""
    name = f"package_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(PACKAGE)
    (tmp_path / name / "part.py").write_text("number = 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "imports", 0, raising=False)
    return name


@pytest.mark.backend_free
@pytest.mark.parametrize("enabled", [True, False])
def test_pause_restores_the_setting_of_the_collector(enabled: bool) -> None:
    thresholds = gc.get_threshold()
    if not enabled:
        gc.disable()
    try:
        with pytest.raises(KeyError), collector_paused(), collector_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0


@pytest.mark.backend_free
def test_pause_leaves_what_a_program_has_frozen_itself() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collector_paused():
            pass
        assert gc.get_freeze_count() >= frozen - 10  # objects that died since
    finally:
        gc.unfreeze()


@pytest.mark.backend_free
def test_collector_finds_cycles_of_a_paused_block() -> None:
    class Node:
        pass

    with collector_paused():
        node = Node()
        node.itself = node  # type: ignore[attr-defined]
        del node
    assert gc.collect() > 0


@pytest.mark.backend_free
def test_classes_and_submodules_do_not_import_a_late_package(package: str) -> None:
    with imported_late({package: {"ready": 7}}):
        late = importlib.import_module(package)
        names: dict[str, object] = {}
        exec(f"import {package}.part\nfrom {package} import part", names)
        assert not isinstance(4, late.Frame)
        assert late.ready == 7
    assert sys.imports == 0  # type: ignore[attr-defined]
    assert package not in sys.modules
    assert names["part"].number == 5  # type: ignore[attr-defined]
    assert late.double(4) == 8
    assert sys.imports == 1  # type: ignore[attr-defined]
    frame = late.Frame(value=2)
    assert frame.value == 2
    assert isinstance(frame, late.Frame)
    assert late.Frame.width == 3
    module = importlib.import_module(package)
    assert isinstance(frame, module.Frame)
    assert module.part.number == 5
    with pytest.raises(AttributeError, match="missing"):
        _ = late.missing


@pytest.mark.backend_free
def test_placeholder_of_a_class_recognizes_objects_of_a_later_import(package: str) -> None:
    with imported_late({package: {}}):
        late_class = importlib.import_module(package).Frame
    frame = importlib.import_module(package).Frame()
    assert isinstance(frame, (int, late_class))
    assert not isinstance("frame", late_class)


@pytest.mark.backend_free
def test_call_within_the_block_imports_the_package_itself(package: str) -> None:
    with imported_late({package: {}}):
        late = importlib.import_module(package)
        assert late.double(3) == 6
        assert importlib.import_module(package).double is late.double
    assert sys.imports == 1  # type: ignore[attr-defined]


@pytest.mark.backend_free
def test_package_that_was_imported_before_is_not_replaced(package: str) -> None:
    module = importlib.import_module(package)
    with imported_late({package: {}}):
        assert importlib.import_module(package) is module
        part = importlib.import_module(f"{package}.part")
    assert importlib.import_module(package) is module
    assert not hasattr(module, "part")  # the placeholder is gone
    assert importlib.import_module(f"{package}.part") is not part
    assert module.part.number == part.number == 5


@pytest.mark.backend_free
def test_missing_package_raises_an_import_error() -> None:
    with imported_late({"no_such_package": {}}), pytest.raises(ImportError, match="no_such_package"):
        importlib.import_module("no_such_package")


@pytest.mark.backend_free  # Keras imports psutil too
def test_packages_that_few_calls_need_are_imported_by_them() -> None:
    program = """
import sys
import noterl, noterl.callbacks, noterl.envs, noterl.replay, noterl.utils.compilation_cache, noterl.utils.memory
print(sys.modules.keys() & {"matplotlib", "psutil", "platformdirs"})
"""
    assert run(program) == "set()\n"


@pytest.mark.backends("torch")
def test_training_shows_its_bar_on_a_host_where_the_widget_of_tqdm_fails() -> None:
    program = """
import sys
sys.modules.update(dict.fromkeys(("ipywidgets", "tqdm.auto", "tqdm.autonotebook", "tqdm.notebook")))
import noterl
print(len(noterl.DQN("CartPole-v1", hidden=(4,), seed=1).fit(episodes=2, verbose=1)))
"""
    assert run(program).endswith("\n2\n")  # after the line of the end


@pytest.mark.parametrize("first", representatives(["", "import matplotlib, pandas"], ""))
def test_plots_and_data_frames_work_after_the_import_of_keras(first: str, tmp_path: Path) -> None:
    program = f"""
import sys
{first}
import noterl
agent = noterl.PPO("CartPole-v1", rollout_steps=8, seed=1)
agent.compile(batch_size=8)
if not {bool(first)}:
    assert not sys.modules.keys() & {{"matplotlib", "pandas", "torch._dynamo", "IPython"}}, sys.modules.keys()
import keras, gc
from keras.src.trainers.data_adapters import array_slicing
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas
assert array_slicing.can_slice_array(pandas.DataFrame({{"a": [1.0]}}))
assert keras.src.visualization.plot_image_gallery.plt.figure is plt.figure
history = agent.fit(steps=16, verbose=0)
figure = history.plot()
figure.savefig(sys.argv[1])
assert gc.isenabled() and gc.get_freeze_count() == 0
print("done")
"""
    path = tmp_path / "plot.png"
    assert run(program, str(path)) == "done\n"
    assert path.stat().st_size > 1_000


@pytest.mark.backend_free
def test_buffered_lines_of_objects_in_cycles_are_written_at_exit(tmp_path: Path) -> None:
    program = """
import sys
import noterl
class Logger:
    def __init__(self):
        self.itself = self
        self.file = open(sys.argv[1], "w")
        self.file.write("the last line")
Logger()
"""
    run(program, str(tmp_path / "log.txt"))
    assert (tmp_path / "log.txt").read_text() == "the last line"


@pytest.mark.backend_free
def test_compressed_files_of_objects_in_cycles_are_closed_at_exit(tmp_path: Path) -> None:
    program = """
import gzip, sys, zipfile
import noterl
class Logger:
    def __init__(self):
        self.itself = self
        self.text = gzip.open(sys.argv[1] + ".gz", "wt")
        self.text.write("the last line")
        self.raw = open(sys.argv[1] + ".own", "wb")
        self.lines = gzip.GzipFile(fileobj=self.raw, mode="wb")
        self.lines.write(b"the last line")
        self.archive = zipfile.ZipFile(sys.argv[1] + ".zip", "w")
        self.archive.writestr("member", "the last line")
Logger()
"""
    run(program, str(tmp_path / "log"))
    assert gzip.decompress((tmp_path / "log.gz").read_bytes()) == b"the last line"
    assert gzip.decompress((tmp_path / "log.own").read_bytes()) == b"the last line"
    with zipfile.ZipFile(tmp_path / "log.zip") as archive:
        assert archive.read("member") == b"the last line"
