"""A worker process imports collect and envs without Keras or a framework."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.backend_free

BLOCKED = ("keras", "tensorflow", "jax", "torch", "noterl.backends")


def test_collect_and_envs_import_no_framework() -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({BLOCKED})); import noterl.collect, noterl.envs"
    subprocess.run([sys.executable, "-c", code], check=True)
