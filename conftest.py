"""What all tests share: which backend runs, what a test may say about it, and a quiet, reproducible process.

The backend is Keras's own choice, `KERAS_BACKEND`. `pytest --backend-free` runs the tests that need none, and makes
sure of it: there `import keras` fails.
"""

from __future__ import annotations

import importlib.util
import os
import random
import secrets
import tempfile
from pathlib import Path

import hypothesis
import pytest

BACKENDS = ("tensorflow", "jax", "torch")
# Where the seeds of agents that are given none come from in tests, in place of the operating system.
seeds = random.Random()
# No backend of Keras is called so; importing Keras under this name raises.
NO_BACKEND = "none"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend-free", action="store_true", help="run only the tests marked backend_free")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--backend-free"):
        os.environ["KERAS_BACKEND"] = NO_BACKEND
    elif "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = next((name for name in BACKENDS if importlib.util.find_spec(name)), NO_BACKEND)
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "PYTEST_XDIST_WORKER" in os.environ:  # processes side by side share the cores: threads would wait for each other
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if os.environ["KERAS_BACKEND"] == "jax":
        _keep_what_is_compiled(config)
    secrets.randbits = seeds.getrandbits
    hypothesis.settings.register_profile("noterl", deadline=None, derandomize=True, max_examples=50)
    hypothesis.settings.load_profile("noterl")


def _keep_what_is_compiled(config: pytest.Config) -> None:
    """Let JAX compile once what many tests' agents have in common; it halves the time of a run.

    Each process that tests has a folder of its own, since JAX may read what another has only half written.
    """
    folder = tempfile.TemporaryDirectory(prefix="noterl-jax-")
    config.add_cleanup(folder.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files without backend-free tests in a backend-free run: importing them may import Keras."""
    if not config.getoption("--backend-free") or collection_path.suffix != ".py":
        return None
    return "backend_free" not in collection_path.read_text() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--backend-free"):
        config.hook.pytest_deselected(items=[item for item in items if not item.get_closest_marker("backend_free")])
        items[:] = [item for item in items if item.get_closest_marker("backend_free")]
    for item in items:
        names = {name for marker in item.iter_markers("backends") for name in marker.args}
        if unknown := names.difference(BACKENDS):
            raise pytest.UsageError(f"{item.nodeid}: backends{tuple(sorted(unknown))} are none of {BACKENDS}")
        if names and os.environ["KERAS_BACKEND"] not in names:
            item.add_marker(pytest.mark.skip(reason=f"runs on {', '.join(sorted(names))}"))


@pytest.hookimpl(tryfirst=True)  # before fixtures, those of a module too
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what agents, networks and environments take their numbers from where they are given no seed.

    `NOTERL_TEST_SEED` gives other numbers, to find tests that pass by the luck of theirs.
    """
    seed = int(os.environ.get("NOTERL_TEST_SEED", "0"))
    random.seed(seed)
    seeds.seed(seed)
    if os.environ["KERAS_BACKEND"] == "torch":
        import torch

        torch.manual_seed(seed)


@pytest.fixture(scope="session")
def backend() -> str:
    """Return the name of the backend that this run is on."""
    return os.environ["KERAS_BACKEND"]
