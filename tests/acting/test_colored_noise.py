"""Coloured noise in DDPG, TD3 and SAC: it explores, and evaluation and updates draw none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl.heads import SquashedGaussian
from noterl.noise import ColoredNoise, GaussianWhiteNoiseProcess
from tests.support.batches import CONTINUOUS
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("torch")


def make(name: str, **noise: Any) -> Any:
    agent = getattr(noterl, name)("Pendulum-v1", hidden=(8,), seed=3)
    agent.compile(noise=ColoredNoise(**{"length": 7, **noise}), batch_size=8, learning_starts=10)
    return agent


def test_sac_takes_the_noise_for_its_gaussian_samples() -> None:
    head: Any = SquashedGaussian().bind(CONTINUOUS[1])
    noise = ColoredNoise(size=2)
    noise.generator = np.random.default_rng(1)
    values = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    state = noise.get_state()
    actions = head.explore(values, noise, 0)
    noise.set_state(state)
    expected = np.tanh(values[:, :2] + np.exp(values[:, 2:]) * noise.sample(3))
    np.testing.assert_allclose(head.scale(actions), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["DDPG", "TD3", "SAC"])
def test_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole, half = make(name), make(name)
    whole.fit(steps=61, num_envs=2, verbose=0)
    half.fit(steps=33, num_envs=2, verbose=0)
    half.save(tmp_path / "half.noterl")
    resumed = noterl.load(tmp_path / "half.noterl")
    resumed.fit(steps=28, num_envs=2, verbose=0)
    assert_same_state(resumed.get_state(), whole.get_state())
    assert len(whole.noise.sequences) == 2 and whole.updates > 30


@pytest.mark.parametrize("name", ["TD3", "SAC"])
def test_evaluation_draws_none_of_the_noise_of_training(name: str) -> None:
    agent = make(name)
    agent.fit(steps=15, verbose=0)
    before = agent.noise.get_state()
    agent.evaluate(episodes=1, deterministic=False)
    agent.act(np.zeros(3, np.float32), deterministic=False)
    after = agent.noise.get_state()
    assert (after["positions"] == before["positions"]).all() and after["generator"] == before["generator"]


@pytest.mark.parametrize("name", ["TD3", "SAC"])
def test_exploring_actions_for_one_observation_differ(name: str) -> None:
    agent = make(name)
    agent.fit(steps=15, verbose=0)
    actions = [float(agent.act(np.zeros(3, np.float32), deterministic=False)[0]) for _ in range(5)]
    assert len(set(actions)) == 5


def test_workers_have_the_noise_of_their_lanes() -> None:
    agent = make("SAC")
    agent.fit(steps=40, num_envs=2, workers=2, verbose=0)
    assert agent.updates > 0


def test_other_noises_are_refused_by_sac() -> None:
    with pytest.raises(ValueError, match="noise must be"):
        noterl.SAC("Pendulum-v1").compile(noise=GaussianWhiteNoiseProcess(sigma=0.1))
    with pytest.raises(ValueError, match="noise must have the size"):
        noterl.SAC("Pendulum-v1").compile(noise=ColoredNoise(size=2))
