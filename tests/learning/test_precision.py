"""`compile(precision="bfloat16")`: layers compute in bfloat16 in updates, and everything else is float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest

import noterl
from noterl import backends, networks
from tests.support.batches import CONTINUOUS, IMAGE, VECTOR, copied, differences, random_batch
from tests.support.parts import learner_of, run_updates
from tests.support.representatives import representatives
from tests.support.states import assert_same_state


def make(name: str, precision: str, env: Any = None, **arguments: Any) -> noterl.Agent:
    env = env or (VECTOR if name in ("DQN", "PPO") else CONTINUOUS)
    agent = getattr(noterl, name)(env, hidden=(16, 16), seed=1, **arguments)
    settings = {} if name == "PPO" else {"replay": 100, "learning_starts": 0}
    agent.compile(1e-3, batch_size=8, precision=precision, **settings)
    agent.build()
    return agent


def keras_q() -> keras.Sequential:
    initial = [keras.initializers.GlorotUniform(seed=seed) for seed in range(2)]
    layers = [keras.layers.Dense(16, "relu", kernel_initializer=initial[0])]
    layers += [keras.layers.Dense(3, kernel_initializer=initial[1])]
    return keras.Sequential([keras.Input((5,)), *layers])


class Recording(noterl.Callback):
    """Keeps the logs of the last update."""

    def on_batch_end(self, batch: int, logs: Any) -> None:
        self.logs = {name: float(value) for name, value in logs.items()}


class Watching(noterl.DQN):
    """Records the dtypes of the network's outputs."""

    seen: ClassVar[set[str]] = set()

    def loss(self, batch):
        output = self.q(batch.observation)
        self.seen.add(backends.keras.backend.standardize_dtype(output.dtype))
        return super().loss(batch)


@pytest.mark.parametrize("network", [None, keras_q])
def test_updates_are_close_to_those_in_float32_but_not_equal(network: Any) -> None:
    weights = []
    for precision in ("float32", "bfloat16"):
        options = {} if network is None else {"network": network()}
        agent = make("DQN", precision, **options)
        before = networks.get_weights(agent.q)
        run_updates(agent, random_batch(4, 8), 4)
        weights.append(networks.get_weights(agent.q))
    assert all(array.dtype == np.float32 for array in weights[1])
    assert any((first != second).any() for first, second in zip(*weights, strict=True))
    for start, first, second in zip(before, *weights, strict=True):
        np.testing.assert_allclose(second, first, atol=0.3 * max(np.abs(first - start).max(), 1e-3))


def test_layers_compute_in_bfloat16_and_outputs_are_float32() -> None:
    agent = Watching(VECTOR, hidden=(16,), seed=1)
    agent.compile(batch_size=8, precision="bfloat16", learning_starts=0, replay=100)
    observation = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    with networks.training_mode([agent.q], "bfloat16"):
        rounded = backends.current().fetch(agent.q(backends.ops.convert_to_tensor(observation)))
    exact = backends.current().fetch(agent.q(backends.ops.convert_to_tensor(observation)))
    assert rounded.dtype == exact.dtype == np.float32
    assert (rounded != exact).any()
    np.testing.assert_allclose(rounded, exact, atol=0.05)
    run_updates(agent, random_batch(2, 8), 2)
    assert agent.seen == {"float32"}


@pytest.mark.parametrize("name", representatives(["SAC", "PPO"], "PPO"))
def test_agents_train_act_and_resume(name: str, tmp_path: Path) -> None:
    env = "Pendulum-v1" if name == "SAC" else "CartPole-v1"
    arguments = {"rollout_steps": 16} if name == "PPO" else {}
    agent = make(name, "bfloat16", env, **arguments)
    agent.fit(steps=48, verbose=0)
    assert agent.updates > 0 and agent.compile_arguments["precision"] == "bfloat16"
    assert agent.configuration["precision"] == "bfloat16"
    agent.save(tmp_path / "agent.noterl")
    again = noterl.load(tmp_path / "agent.noterl")
    for each in (agent, again):
        each.fit(env, steps=32, verbose=0)
    assert_same_state(agent.get_state(), again)


def test_update_that_is_not_finite_is_undone() -> None:
    agent = make("DQN", "bfloat16")
    batch = random_batch(3, 8)
    run_updates(agent, batch, 3)
    start = copied(agent.get_state())
    batch.reward[1, 0] = np.nan
    run_updates(agent, batch, 1)
    one = copied(agent.get_state())
    agent.set_state(start)
    assert int(run_updates(agent, batch, 3).applied) == 1
    assert differences(one, agent.get_state()) == []


def test_images_are_trained() -> None:
    agent = noterl.DQN(IMAGE, seed=1)
    agent.compile(replay=100, batch_size=4, learning_starts=0, precision="bfloat16")
    agent.build()
    before = networks.get_weights(agent.q)
    run_updates(agent, random_batch(1, 4, IMAGE), 1)
    assert all((old != new).any() for old, new in zip(before, networks.get_weights(agent.q), strict=True))
    assert learner_of(agent).updater.precision == "bfloat16"


@pytest.mark.backends("torch")
@pytest.mark.parametrize("precision", ["float16", "bf16", 16, None])
def test_other_words_are_refused(precision: Any) -> None:
    if precision is None:
        noterl.DQN(VECTOR, seed=1).compile(precision=precision)
        return
    with pytest.raises(ValueError, match="precision must"):
        noterl.DQN(VECTOR, seed=1).compile(precision=precision)


def test_ratio_of_ppo_is_1_before_the_first_update() -> None:
    agent = make("PPO", "bfloat16", "Pendulum-v1", rollout_steps=16, epochs=1, log_std=-3.0)
    agent.compile(1e-3, batch_size=16, precision="bfloat16")
    kernels = {name: 4 * value for name, value in agent.get_weights().items() if value.ndim == 2}
    agent.set_weights({**agent.get_weights(), **kernels})  # as after training: means of several standard deviations
    record = Recording()
    agent.fit(steps=16, verbose=0, callbacks=[record])
    assert agent.updates == 1
    assert abs(record.logs["approximate_kl"]) < 1e-6 and record.logs["clip_fraction"] == 0
