"""Data parallelism on JAX: two devices of one process make the updates of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.replica_equivalence import assert_equivalent

pytestmark = [pytest.mark.backends("jax"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]

_PROGRAM = """
import jax, noterl
from noterl.distribute.data_parallel import DataParallel
from noterl.backends.jax import sharding

placed = []
place = sharding.ShardedProgram._divided
def watch(self, array):
    placed.append(place(self, array))
    return placed[-1]
sharding.ShardedProgram._divided = watch
agent = noterl.PPO("CartPole-v1", hidden=(8,), rollout_steps=16, epochs=1, seed=1)
agent.compile(batch_size=8)
agent.fit(steps=32, strategy="data_parallel", verbose=0)
shapes = {shard.data.shape[1] for array in placed for shard in array.addressable_shards}
print("devices", len(jax.devices()), "shares", shapes, "updates", agent.updates)
print("after", {str(variable._value.sharding) for variable in agent._parts.learner.variables})
try:
    agent.compile(batch_size=7)
    agent.fit(steps=32, strategy="data_parallel", verbose=0)
except ValueError as error:
    print(error)
sharding.ShardedProgram._divided = place

from tests.support import replica_equivalence

replica_equivalence.main("data_parallel", updates=40)
"""


@pytest.fixture(scope="module")
def output() -> str:
    """Return the output of a process with two devices of the host."""
    variables = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _PROGRAM,
        ],
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_devices_make_the_updates_of_one(output: str) -> None:
    assert_equivalent(output, float64=1e-12)


def test_each_device_holds_its_share_of_a_batch(output: str) -> None:
    assert "devices 2 shares {4} updates 4" in output
    assert output.count("SingleDeviceSharding") == 1, "variables return to one device"
    assert "batch_size must be divisible by the 2 replicas" in output
