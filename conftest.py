"""The configuration of all tests: the backend, the markers of backends, and reproducible test processes.

The variable `KERAS_BACKEND` selects the backend; by default, the first installed one is used. A test runs on every
backend if its statement is about numbers that a compiled program computes, or about the backend layer. Other tests are
marked `backends("torch")`, because torch compiles nothing. `pytest --backend-free` runs only the tests that need no
backend, in a process in which `import keras` fails.
"""

from __future__ import annotations

import importlib.util
import os
import random
import secrets
import signal
import tempfile
import tomllib
from pathlib import Path

import hypothesis
import pytest

BACKENDS = ("tensorflow", "jax", "torch")
# In tests, agents without a seed take one from this generator instead of from the operating system.
seeds = random.Random()
# Keras has no backend of this name, so importing Keras raises.
NO_BACKEND = "none"
ROOT = Path(__file__).parent
# Modules that `make check` runs on torch: their number of tests, and the seconds that these took when they were listed.
FAST = tomllib.loads((ROOT / "tests" / "fast.toml").read_text(encoding="utf-8"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend-free", action="store_true", help="run only the tests marked backend_free")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--backend-free"):
        os.environ["KERAS_BACKEND"] = NO_BACKEND
    elif "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = next((name for name in BACKENDS if importlib.util.find_spec(name)), NO_BACKEND)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # All processes of a run share their compiled programs, also those that tests start.
        cache = getattr(config, "cache", None)  # missing with "-p no:cacheprovider"
        folder = cache.mkdir("noterl") if cache else None
        os.environ["NOTERL_CACHE"] = str(folder or 0)
        if folder:
            folder.chmod(0o700)  # noterl does not use a folder that others can write, whatever the umask
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Trackio reads its folder once, and would write to the home folder.
    os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="noterl-trackio-"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if "PYTEST_XDIST_WORKER" in os.environ:  # parallel processes share the cores: threads would wait for each other
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    # `nohup` ignores SIGHUP, and a shell lets background jobs ignore SIGINT: the tests send both to this process.
    for name, handler in (("SIGHUP", signal.SIG_DFL), ("SIGINT", signal.default_int_handler)):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    secrets.randbits = seeds.getrandbits
    # A busy machine generates examples slowly, and fails neither by `deadline` nor by `too_slow`.
    patient = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    hypothesis.settings.register_profile("noterl", derandomize=True, max_examples=50, **patient)
    hypothesis.settings.load_profile("noterl")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In a backend-free run, skip files without backend-free tests, because importing them may import Keras."""
    if not config.getoption("--backend-free") or collection_path.suffix != ".py":
        return None
    return "backend_free" not in collection_path.read_text() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--backend-free"):
        config.hook.pytest_deselected(items=[item for item in items if not item.get_closest_marker("backend_free")])
        items[:] = [item for item in items if item.get_closest_marker("backend_free")]
    for item in items:
        if item.path.is_relative_to(ROOT) and item.path.relative_to(ROOT).as_posix() in FAST:
            item.add_marker("fast")
        if item.get_closest_marker("backend_free"):
            continue
        names = _backends_of(item)
        if os.environ["KERAS_BACKEND"] not in names:
            item.add_marker(pytest.mark.skip(reason=f"runs on {', '.join(sorted(names))}"))


def _backends_of(item: pytest.Item) -> set[str]:
    """Return the backends of a test: those that all marks of the test name, else those of its class or its module."""
    for node in reversed(item.listchain()):
        marks = [set(mark.args) for mark in node.own_markers if mark.name == "backends"]
        names = set(BACKENDS).intersection(*marks)
        if not names or any(mark.difference(BACKENDS) for mark in marks):
            raise pytest.UsageError(f"{item.nodeid}: backends must be some of {BACKENDS}, got {marks}")
        if marks:
            return names
    return set(BACKENDS)


@pytest.hookimpl(tryfirst=True)  # before all fixtures, also those of modules
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the generators that agents, networks and environments use if they receive no seed.

    Set `NOTERL_TEST_SEED` to another seed to find tests that pass only by chance.
    """
    seed = int(os.environ.get("NOTERL_TEST_SEED", "0"))
    random.seed(seed)
    seeds.seed(seed)
    if os.environ["KERAS_BACKEND"] == "torch":
        import torch

        torch.manual_seed(seed)


@pytest.fixture(scope="session")
def backend() -> str:
    """Return the name of the backend on which the tests run."""
    return os.environ["KERAS_BACKEND"]
