"""Adaptive callbacks in training: resuming, compiled sizes, and agents without a tunable."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl import policies
from noterl.callbacks import AdaBatch, Adapt, Checkpoint, ESSAdapt, LambdaCallback, Rate, Scale
from noterl.replay import Prioritized, RatioScore
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("torch")

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
        # Measured at every step, also at steps that end an episode and write a file.
        "ESS": ESSAdapt(30, every=1, unit="steps", **EVERYTHING),
        "noise": Adapt(target_noise=0.01, num_samples=3, **noise),
    }


@pytest.mark.parametrize("kind", ["ESS", "noise"])
def test_resumed_run_adapts_exactly_as_uninterrupted(kind: str, tmp_path: Path) -> None:
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


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_updates_compile_once_per_batch_size(backend: str) -> None:
    learner = agent(updates=1, jit_compile="auto")
    wave = iter(100.0 * (1 + 0.9 * np.sin(np.arange(400))))
    adapt = ESSAdapt(100, 1.0, every=3, unit="steps", batch=Scale(min=4, max=16, align=4), gamma=Rate(0.01, 0.9, 0.99))
    learner.build()
    measured = LambdaCallback(on_train_begin=lambda logs: setattr(adapt, "_measure", lambda: next(wave)))
    sizes = set()
    measured.on_step_end = lambda: sizes.add(learner.schedule.batch_size)
    learner.fit(steps=200, callbacks=[measured, adapt], verbose=0)
    assert sizes == {4, 8, 12, 16}
    if backend != "torch":
        assert learner.trace_counts["update"] <= 4


@pytest.mark.parametrize(
    "make",
    [
        lambda batch: ESSAdapt(target_ess=5, batch=batch),
        lambda batch: AdaBatch(3, target_noise=1e-9, batch=batch),
    ],
)
def test_batch_stays_within_the_memory(make: Any) -> None:
    learner, batch = agent(replay=noterl.Replay(30, sampler=Prioritized())), Scale(max=60)
    learner.fit(steps=150, callbacks=[make(batch)], verbose=0)
    assert 4 < learner.update_batch_size <= 30
    updates = learner.updates
    learner.fit(steps=50, verbose=0)
    assert learner.updates == updates + 50
    with pytest.raises(ValueError, match="min of batch"):
        learner.fit(steps=1, callbacks=[make(Scale(min=31, align=31))], verbose=0)


@pytest.mark.parametrize(
    ("changes", "adjusted", "message"),
    [
        ({"target_update": 100}, {"tau": RATE}, r"^tau .*target_update"),
        (
            {"policy": policies.GreedyQPolicy()},
            {"eps": RATE},
            r"^eps .*GreedyQPolicy",
        ),
        (
            {"replay": noterl.Replay(100)},
            {"alpha": RATE},
            r"^alpha .*Uniform",
        ),
        (
            {"updates": "pass"},
            {"updates": Scale()},
            r"^updates .*UpdateSchedule",
        ),
        ({}, {"clip": RATE}, r"^clip .*DQN .*gamma, tau"),
        ({"optimizer": "sgd"}, {"beta1": RATE}, r"SGD has no rule 'beta_1'"),
    ],
)
def test_missing_tunable_raises_before_the_first_step(
    changes: dict[str, Any], adjusted: dict[str, Any], message: str
) -> None:
    learner = agent(**changes)
    with pytest.raises(ValueError, match=message):
        learner.fit(steps=5, callbacks=[ESSAdapt(**adjusted)], verbose=0)
    assert learner.steps == 0


@pytest.mark.parametrize(
    ("policy", "name"), [(policies.LinearEpsGreedyPolicy(), "end"), (policies.AdaptiveEpsGreedyPolicy(), "min_eps")]
)
def test_eps_is_the_end_of_an_annealed_epsilon(policy: Any, name: str) -> None:
    learner = agent(policy=policy)
    first = getattr(policy, name)
    history = learner.fit(steps=100, callbacks=[ESSAdapt(5, eps=Rate(0.01, 0.001, 0.5))], verbose=0)
    assert history.history["eps"][-1] == getattr(learner.policy, name) == 0.001 < first
    assert learner.policy.epsilon(0) == 1.0


@pytest.mark.filterwarnings("ignore:callbacks. ESSAdapt:UserWarning")
def test_eps_works_with_the_default_policy() -> None:
    learner = noterl.DQN("CartPole-v1", hidden=(4,), seed=4)
    learner.fit(steps=30, callbacks=[ESSAdapt(5, eps=Rate(0.01, 0.001, 0.5))], verbose=0)
    assert learner.policy.end == learner.history.history["eps"][-1]


def on_policy_agent(**changes: Any) -> noterl.PPO:
    agent = noterl.PPO("CartPole-v1", rollout_steps=8, epochs=2, hidden=(6,), seed=4)
    agent.compile(batch_size=4, **changes)
    return agent


class TestFromRollouts:
    """Agents that learn from rollouts, with and without a replay memory."""

    @pytest.mark.parametrize("with_replay", [False, True])
    def test_resumed_run_adapts_exactly_as_uninterrupted(self, with_replay: bool, tmp_path: Path) -> None:
        def make() -> noterl.PPO:
            memory = {"replay": noterl.Replay(64, sampler=Prioritized(score=RatioScore()))} if with_replay else {}
            return on_policy_agent(**memory)

        def callbacks() -> list[Any]:
            moved = {"batch": Scale(min=2, max=8, align=2), "lr": Rate(1e-4, 1e-4, 1e-2), "clip": Rate(0.05, 0.05, 0.4)}
            adapt = Adapt(target_noise=0.01, num_samples=3, every=2, **moved)
            return [adapt, Checkpoint(tmp_path, 3, save_replay=True)]

        whole, made = make(), callbacks()
        history = whole.fit(episodes=6, callbacks=made, verbose=0)
        second = make()
        second.restore(made[1].files[0])
        rest = second.fit(episodes=3, callbacks=callbacks(), verbose=0)
        assert_same_state(second, whole)
        for name in ("gradient_noise", "batch", "lr", "clip"):
            np.testing.assert_array_equal(history.history[name][3:], rest.history[name])
            assert len(set(history.history[name])) > 1, f"{name} did not move"

    def test_measurement_waits_for_the_end_of_a_rollout(self) -> None:
        agent = on_policy_agent()
        adapt = AdaBatch(2, every=1, unit="steps", lr=RATE)
        measured, updates = [], LambdaCallback()
        updates.on_step_end = lambda: measured.append((agent.steps, adapt.ema))
        agent.fit(steps=20, callbacks=[adapt, updates], verbose=0)
        changes = [step for (_, before), (step, after) in itertools.pairwise([(0, None), *measured]) if before != after]
        assert changes == [8, 16]

    def test_unsupported_tunables_of_rollouts_raise(self) -> None:
        with pytest.raises(ValueError, match=r"^update_every .*PPO"):
            on_policy_agent().fit(steps=5, callbacks=[AdaBatch(2, update_every=Scale())], verbose=0)
        single = noterl.A2C("CartPole-v1", hidden=(4,), rollout_steps=1, seed=1)
        with pytest.raises(ValueError, match=r"rollout of A2C .*rollout_steps"):
            single.fit(steps=5, callbacks=[AdaBatch(2, lr=RATE)], verbose=0)

    @pytest.mark.parametrize("with_replay", [False, True])
    def test_batch_grows_up_to_the_rollout(self, with_replay: bool) -> None:
        memory = {"replay": noterl.Replay(64)} if with_replay else {}
        agent, batch = on_policy_agent(**memory), Scale(max=64, align=4)
        history = agent.fit(steps=40, callbacks=[AdaBatch(3, 1e-9, batch=batch, every=1, unit="steps")], verbose=0)
        assert history.history["batch"][-1] == agent.update_batch_size == agent.schedule.batch_size == 8
        updates = agent.updates
        history = agent.fit(steps=8, callbacks=[AdaBatch(3, 1e9, batch=batch, every=1, unit="steps")], verbose=0)
        assert with_replay or agent.updates == updates + 2  # with a memory, noise is measured before the rollout's end
        assert agent.update_batch_size == 4, "the noise is measured and the batch shrinks again"
        with pytest.raises(ValueError, match=r"min of batch .*8, got 12"):
            agent.fit(steps=8, callbacks=[AdaBatch(3, batch=Scale(min=12, align=4))], verbose=0)

    def test_batch_starts_at_the_size_that_rollouts_allow(self) -> None:
        agent = noterl.PPO("CartPole-v1", rollout_steps=8, epochs=1, hidden=(6,), seed=4)
        assert agent.schedule is None
        adapt = AdaBatch(3, 1e9, batch=Scale(min=2, align=2), every=1, unit="steps")
        agent.fit(steps=8, callbacks=[adapt], verbose=0)
        assert agent.update_batch_size == 2, "the default of 64 is 8 transitions here"


@pytest.mark.parametrize("with_replay", [False, True])
def test_batch_beyond_the_rollout_raises_before_the_first_step(with_replay: bool) -> None:
    memory = {"replay": noterl.Replay(64)} if with_replay else {}
    agent = noterl.PPO("CartPole-v1", rollout_steps=8, epochs=1, hidden=(4,), seed=4)
    agent.compile(batch_size=12, **memory)
    with pytest.raises(ValueError, match=r"^batch_size must"):
        agent.fit(steps=8, verbose=0)
    assert agent.steps == 0
    agent.fit(steps=16, num_envs=2, verbose=0)
    assert agent.updates == 2
