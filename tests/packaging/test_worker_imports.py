"""A worker process steps environments and acts in NumPy, so its imports need neither Keras nor a framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[2]
MODULES = (
    "noterl.acting.actor",
    "noterl.acting.numpy_forward",
    "noterl.acting.numpy_layers",
    "noterl.collect",
    "noterl.collect.workers.worker",
    "noterl.envs",
    "noterl.explorer",
    "noterl.heads",
    "noterl.hyperparameters",
    "noterl.noise",
    "noterl.normalization",
    "noterl.policies",
)
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("keras", "tensorflow", "jax", "jaxlib", "torch") or name == "noterl.backends":
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("module", MODULES)
def test_worker_module_imports_without_keras_and_frameworks(module: str) -> None:
    result = run(f"import {module}")
    assert result.returncode == 0, result.stderr


def test_heads_explore_without_keras_and_frameworks() -> None:
    result = run("""
import numpy as np
from gymnasium import spaces
from noterl import heads, noise, policies

box, discrete = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)
values = np.zeros((4, 3), np.float32)
heads.Q().bind(discrete).explore(values, policies.EpsGreedyQPolicy(0.5), 0)
heads.Categorical().bind(discrete).explore(values, policies.GumbelSoftmaxPolicy(), 0)
heads.Deterministic().bind(box).explore(values[:, :2], noise.GaussianWhiteNoiseProcess(size=2), 0)
heads.SquashedGaussian().bind(box).deterministic(np.zeros((4, 4), np.float32))
heads.Gaussian().bind(box).random(4, np.random.default_rng(0))
""")
    assert result.returncode == 0, result.stderr


def test_blocked_import_fails() -> None:
    assert "noterl.backends is blocked" in run("import noterl.losses").stderr
