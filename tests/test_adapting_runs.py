"""Adapting in training: that a run which is restored adapts on, what is compiled, and what an agent has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl import policies
from noterl.callbacks import Adapt, Checkpoint, ESSAdapt, LambdaCallback, Rate, Scale
from noterl.replay import Prioritized
from tests.states import assert_same_state

RATE = Rate(0.05, 0.0, 1.0)


def agent(**changes: Any) -> noterl.DQN:
    agent = noterl.DQN("CartPole-v1", hidden=(6,), seed=4)
    settings: dict[str, Any] = {
        "policy": policies.EpsGreedyQPolicy(0.3),
        "replay": noterl.Replay(100, sampler=Prioritized()),
        "batch_size": 4,
        "learning_starts": 20,
        "update_every": 2,
        "updates": 2,
        "target_update": 0.05,
    }
    agent.compile(**{**settings, **changes})
    return agent


EVERYTHING: dict[str, Any] = {
    "batch": Scale(min=4, max=8),
    "updates": Scale(max=2),
    "update_every": Scale(max=4),
    "alpha": Rate(0.1, 0.1, 1.0),
    "lr": Rate(1e-4, 1e-4, 1e-2),
    "eps": Rate(0.1, 0.05, 0.5),
    "tau": Rate(0.01, 0.01, 0.1),
    "gamma": Rate(0.01, 0.9, 0.999),
    "beta": Rate(0.1, 0.1, 1.0),
    "beta1": Rate(0.01, 0.8, 0.95),
    "beta2": Rate(0.001, 0.9, 0.999),
}


def measures() -> dict[str, Any]:
    noise = {name: how for name, how in EVERYTHING.items() if name != "updates"}
    return {
        "ESS": ESSAdapt(30, every=7, unit="steps", **EVERYTHING),
        "noise": Adapt(target_noise=0.01, num_samples=3, **noise),
    }


@pytest.mark.parametrize("kind", ["ESS", "noise"])
def test_a_run_that_is_restored_adapts_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    whole = agent()
    saver = Checkpoint(tmp_path, 3, save_replay=True)
    history = whole.fit(episodes=6, callbacks=[measures()[kind], saver], verbose=0)
    second = agent()
    second.restore(saver.files[0])
    assert second.episodes == 3
    rest = second.fit(episodes=3, callbacks=[measures()[kind], Checkpoint(tmp_path, 3, save_replay=True)], verbose=0)
    assert_same_state(second, whole)
    assert second.schedule.batch_size == whole.schedule.batch_size
    assert (second.schedule.updates, second.schedule.update_every) == (
        whole.schedule.updates,
        whole.schedule.update_every,
    )
    for name in ("batch", "lr", "eps", "gamma", "tau"):
        assert history.history[name][3:] == rest.history[name]
        assert len(set(history.history[name])) > 1 or name == "batch", f"{name} did not move"


def test_nothing_compiles_more_often_than_there_are_sizes(backend: str) -> None:
    learner = agent(updates=1, jit_compile="auto")
    wave = iter(100.0 * (1 + 0.9 * np.sin(np.arange(400))))
    adapt = ESSAdapt(100, 1.0, every=3, unit="steps", batch=Scale(min=4, max=16, align=4), gamma=Rate(0.01, 0.9, 0.99))
    learner.build()
    measured = LambdaCallback(on_train_begin=lambda logs: setattr(adapt, "measured", lambda: next(wave)))
    sizes = set()
    measured.between_steps = lambda: sizes.add(learner.schedule.batch_size)
    learner.fit(steps=200, callbacks=[measured, adapt], verbose=0)
    assert sizes == {4, 8, 12, 16}
    if backend != "torch":
        assert learner.trace_counts["update"] <= 4


@pytest.mark.parametrize(
    ("changes", "adjusted", "message"),
    [
        ({"target_update": 100}, {"tau": RATE}, r"tau cannot be adjusted: the target moves by hard copies"),
        (
            {"policy": policies.GreedyQPolicy()},
            {"eps": RATE},
            r"eps cannot be adjusted: GreedyQPolicy has no number",
        ),
        (
            {"replay": noterl.Replay(100)},
            {"alpha": RATE},
            r"alpha cannot be adjusted: Uniform has no number 'alpha'",
        ),
        (
            {"updates": "pass"},
            {"updates": Scale()},
            r"updates cannot be adjusted: Schedule has no number 'updates'",
        ),
        ({}, {"clip": RATE}, r"clip cannot be adjusted: DQN has the live numbers gamma, tau"),
        ({"optimizer": "sgd"}, {"beta1": RATE}, r"SGD has no rule 'beta_1'"),
    ],
)
def test_what_the_agent_has_not_is_named_before_the_first_step(
    changes: dict[str, Any], adjusted: dict[str, Any], message: str
) -> None:
    learner = agent(**changes)
    with pytest.raises(ValueError, match=message):
        learner.fit(steps=5, callbacks=[ESSAdapt(**adjusted)], verbose=0)
    assert learner.steps == 0
