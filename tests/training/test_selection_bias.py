"""Episodes that select an agent are not those that report on it."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.callbacks import Evaluate
from noterl.random import selection_seed
from noterl.tune import tune
from noterl.tune.ranges import Float

pytestmark = pytest.mark.backends("torch")


class Noise(gymnasium.Env):
    """Nothing can be learned: the return is noise of mean 0, which depends on the seed of the episode only."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(self.np_random.normal()), True, False, {}


def test_evaluate_plays_other_episodes_than_the_callback() -> None:
    agent = noterl.A2C(Noise, rollout_steps=8, hidden=(4,), seed=3)
    callback = Evaluate(every=10, episodes=4)
    agent.fit(episodes=20, verbose=0, callbacks=[callback])
    selected, reported = callback.results["reward_mean"], agent.evaluate(episodes=4)["reward_mean"]
    assert selected[0] == selected[1] != reported
    assert selected[0] == agent.evaluate(episodes=4, seed=selection_seed(3))["reward_mean"]
    own = Evaluate(every=10, episodes=4, seed=3)
    agent.fit(episodes=10, verbose=0, callbacks=[own])
    assert own.results["reward_mean"] == [reported]


@pytest.mark.slow
def test_tune_compares_with_the_defaults_on_other_seeds(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    space = {"optimizer": Float(1e-4, 1e-2, log=True), "hidden": (4,)}
    result = tune(
        noterl.A2C, Noise, space, trials=2, steps=16, evaluations=1, episodes=3, out=tmp_path, pruner="none", verbose=1
    )
    # The returns depend on the seeds only, so the values differ only because of those.
    assert result.value == result.default != result.fresh_value == result.fresh_default
    assert not result.is_better and f"with other seeds {result.fresh_value:.4g}" in capsys.readouterr().out
