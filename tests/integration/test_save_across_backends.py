"""Files do not depend on the backend: another backend loads a file, acts the same, trains and saves it again.

The tests run on torch; the other backends run in child processes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import saving
from tests.support.doubles import ImageEnv
from tests.support.states import differences, run_python

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]

NAMES = ("vector", "dueling", "dueling image")

# Loads the files of the parent and saves them again; trains all but the image agents, and saves those too.
CHILD = """
import sys
import numpy as np
import keras
import noterl
from tests.integration.test_save_across_backends import NAMES, answers
directory, backend = sys.argv[1:]
assert keras.backend.backend() == backend
for name in NAMES:
    agent = noterl.load(f"{directory}/torch-{name}.noterl")
    agent.save(f"{directory}/{backend}-{name}-again.noterl")
    np.savez(f"{directory}/{backend}-{name}-again.npz", **answers(agent))
    if "image" not in name:
        agent.fit(steps=20, verbose=0)
        assert agent.updates > 5
    agent.save(f"{directory}/{backend}-{name}.noterl")
    agent.save_weights(f"{directory}/{backend}-{name}.safetensors")
    np.savez(f"{directory}/{backend}-{name}.npz", **answers(agent))
"""


def answers(agent: Any) -> dict[str, np.ndarray]:
    """Return action values and actions for a few observations."""
    generator = np.random.default_rng(0)
    shape = (16, *agent.observation_space.shape)
    if agent.is_image:
        observations = generator.integers(0, 256, shape, np.uint8)
    else:
        observations = generator.normal(size=shape).astype(np.float32)
    tensor = keras.ops.convert_to_tensor(observations)
    values = {name: keras.ops.convert_to_numpy(getattr(agent, name)(tensor)) for name in ("q", "target_q")}
    return {**values, "actions": agent.act(observations)}


def trained(name: str) -> noterl.DQN:
    # The convolutions reduce each image to two pixels, so the order of flattening matters.
    env = (lambda: ImageEnv((44, 40, 2))) if "image" in name else "CartPole-v1"
    agent = noterl.DQN(env, dueling="dueling" in name, hidden=(8, 6), seed=4)
    agent.compile(
        keras.optimizers.Adam(0.01, beta_1=0.8),
        replay=noterl.Replay(100),
        batch_size=4,
        learning_starts=5,
        update_every=3,
        updates=1,
        target_update=7,
    )
    agent.fit(steps=20, num_envs=2, verbose=0)
    assert agent.updates == 5
    return agent


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("backends")
    agents = {name: trained(name) for name in NAMES}
    for name, agent in agents.items():
        agent.save(directory / f"torch-{name}.noterl")
    return directory, agents


@pytest.fixture(scope="module", params=["tensorflow", "jax"])
def other(request: pytest.FixtureRequest, agents: Any) -> str:
    """Run the child on another backend and return its name."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    run_python(CHILD, agents[0], request.param, KERAS_BACKEND=request.param)
    return request.param


def assert_same_answers(first: Any, second: Any) -> None:
    for name in ("q", "target_q"):
        np.testing.assert_allclose(first[name], second[name], rtol=1e-4, atol=2e-6)
    assert np.array_equal(first["actions"], second["actions"])


def without_step_dtype(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state whose optimizer scalars are floats: backends store the step count in different dtypes."""
    state = {**state, "optimizers": {name: dict(values) for name, values in state["optimizers"].items()}}
    for values in state["optimizers"].values():
        values["scalars"] = [float(value) for value in values["scalars"]]
    return state


@pytest.mark.parametrize("name", NAMES)
def test_agent_acts_the_same_on_another_backend(name: str, other: str, agents: Any) -> None:
    directory, ours = agents
    assert_same_answers(answers(ours[name]), np.load(directory / f"{other}-{name}-again.npz"))


@pytest.mark.parametrize("name", NAMES)
def test_another_backend_saves_the_state_that_it_loaded(name: str, other: str, agents: Any) -> None:
    directory = agents[0]
    first, second = (saving.read(directory / f"{file}.noterl") for file in (f"torch-{name}", f"{other}-{name}-again"))
    slots = first["state"]["optimizers"]["optimizer"]["slots"]
    assert all(any(np.any(slot) for slot in found) for found in slots.values()), "the slots should not be zero"
    assert not differences(without_step_dtype(first["state"]), without_step_dtype(second["state"]))
    for part in ("class", "config", "compile", "environment"):
        assert first[part] == second[part]


@pytest.mark.parametrize("name", NAMES)
def test_file_of_another_backend_loads(name: str, other: str, agents: Any, tmp_path: Path) -> None:
    directory, ours = agents
    theirs = np.load(directory / f"{other}-{name}.npz")
    agent = noterl.load(directory / f"{other}-{name}.noterl")
    assert_same_answers(answers(agent), theirs)
    agent.save(tmp_path / "a.noterl")
    first, second = (
        saving.read(path)["state"] for path in (directory / f"{other}-{name}.noterl", tmp_path / "a.noterl")
    )
    assert not differences(without_step_dtype(first), without_step_dtype(second))
    fresh = trained(name) if "image" not in name else ours[name]
    fresh.load_weights(directory / f"{other}-{name}.safetensors")
    assert_same_answers(answers(fresh), theirs)
