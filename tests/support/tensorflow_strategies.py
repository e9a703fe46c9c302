"""Programs of the tests of TensorFlow's strategies, each run in processes of its own.

Usage: python tensorflow_strategies.py PROGRAM [arguments]. The last line of the output is the result, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np

UPDATES, ROWS, STEPS = 200, 8, 4


def make(name: str) -> Any:
    """Return a built agent with small networks."""
    import keras

    import noterl

    if name == "ACER":
        agent = noterl.ACER("CartPole-v1", hidden=(4,), rollout_steps=STEPS, replay_starts=8, seed=1)
    elif name == "PPO":
        agent = noterl.PPO("CartPole-v1", hidden=(4,), seed=1)
        agent.compile(batch_size=ROWS)
    elif name == "SAC":
        agent = noterl.SAC("Pendulum-v1", hidden=(4,), seed=1)
        agent.compile(batch_size=ROWS, replay=1000)
    else:
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
        agent.compile(keras.optimizers.Adam(1e-3, global_clipnorm=0.1), batch_size=ROWS, replay=1000)
    agent.build()
    return agent


def sequences() -> Any:
    """Return random batches `[K, T, N, ...]` of two lanes for ACER, float32."""
    from noterl.types import Batch, map_arrays

    rng = np.random.default_rng(7)
    rows = (UPDATES, STEPS, 2)
    probability = rng.uniform(0.2, 0.8, rows)
    extra = {"behavior": np.stack([probability, 1 - probability], -1), "continues": np.ones(rows)}
    observation, after = rng.normal(size=(2, *rows, 4))
    action, reward, weight = rng.integers(2, size=rows), rng.normal(size=rows), rng.random(rows) > 0.3
    discount, index = np.full(rows, 0.99), np.zeros(rows, np.int32)
    batch = Batch(observation, action, reward, after, discount, weight.astype(float), index, extra)
    return map_arrays(lambda array: array.astype(np.float32) if array.dtype.kind == "f" else array, batch)


def batches(name: str) -> Any:
    """Return random batches for all updates, float64."""
    from noterl.types import Batch

    rng = np.random.default_rng(7)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=(UPDATES, ROWS, *shape))

    size = 3 if name == "SAC" else 4
    action = rng.uniform(-2, 2, (UPDATES, ROWS, 1)) if name == "SAC" else rng.integers(2, size=(UPDATES, ROWS))
    weight = (rng.random((UPDATES, ROWS)) > 0.3).astype(float) if name == "PPO" else rng.random((UPDATES, ROWS))
    extra = {"noise": normal(1), "next_noise": normal(1)} if name == "SAC" else {}
    if name == "PPO":
        extra = {field: normal() for field in ("value", "advantage", "target")}
        extra.update(log_prob=-np.abs(normal()), continues=np.ones((UPDATES, ROWS)), ended=np.zeros((UPDATES, ROWS)))
    discount, index = np.full((UPDATES, ROWS), 0.99), np.zeros((UPDATES, ROWS), np.int32)
    return Batch(normal(size), action, normal(), normal(size), discount, weight, index, extra)


def widened_parts() -> list[tuple[Any, str, Any]]:
    """Return what to replace so that agents compute in float64, which noterl refuses; TensorFlow converts no dtypes."""
    import keras

    from noterl import backends
    from noterl.learning import dry_run

    def widened(function: Any) -> Any:
        def wide(value: Any) -> Any:
            if isinstance(value, np.float32):
                return np.float64(value)
            return "float64" if isinstance(value, str) and value == "float32" else value

        def call(*args: Any, **options: Any) -> Any:
            return function(*map(wide, args), **{name: wide(value) for name, value in options.items()})

        return call

    zeros = dry_run._zeros
    return [
        (backends, "check_precision", lambda: None),
        (keras.ops, "cast", widened(keras.ops.cast)),
        (keras.ops, "convert_to_tensor", widened(keras.ops.convert_to_tensor)),
        (keras.Variable, "__init__", widened(keras.Variable.__init__)),
        (dry_run, "_zeros", lambda shape, dtype: zeros(shape, "float64" if np.dtype(dtype).kind == "f" else dtype)),
    ]


def numbers(agent: Any) -> np.ndarray:
    """Return all variables of an agent, including those of its optimizers, as one vector."""
    from noterl import backends

    fetch = backends.current().fetch
    return np.concatenate([np.ravel(fetch(variable)).astype(float) for variable in agent._parts.learner.variables])


def compare(names: list[str], word: str, updates: int = UPDATES) -> dict[str, Any]:
    """Return the largest differences between updates under a strategy and on one device, by agent; in the chief."""
    from noterl import distribute
    from noterl.types import map_arrays

    strategy = distribute.resolve(word)
    found = {}
    for name in names:
        shared, rows = make(name), sequences() if name == "ACER" else batches(name)
        before, axis = numbers(shared), 1 + shared._parts.learner.batch_axis
        rows = map_arrays(lambda array: array[:updates], rows)
        own = map_arrays(lambda array, axis=axis: np.split(array, strategy.processes, axis)[strategy.rank], rows)
        shared._parts.learner.use(strategy)
        with strategy.attached(shared._parts.learner.variables):
            together = shared._parts.learner._update(own, updates, 0)
        if not strategy.is_chief:
            continue
        agent = make(name)
        alone = agent._parts.learner._update(rows, updates, 0)
        logs = [np.abs(np.asarray(alone.logs[key]) - np.asarray(together.logs[key])).max() for key in alone.logs]
        found[name] = {
            "applied": together.applied,
            "logs": float(max(logs)),
            "variables": float(np.abs(numbers(agent) - numbers(shared)).max()),
            "changed": float(np.abs(numbers(agent) - before)[: len(agent.trained_variables())].max()),
        }
    return found


def two_devices() -> None:
    """Divide the CPU into two devices."""
    import tensorflow as tf

    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)


def small_dqn() -> Any:
    """Return an agent that learns after 32 steps."""
    import noterl

    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    agent.compile(learning_starts=32, batch_size=16, replay=1000, updates=4, update_every=4)
    return agent


def equivalence_mirrored() -> dict[str, Any]:
    """Print the differences between two devices and one, for `benchmarks/distribute.py`."""
    two_devices()
    return _printed(compared_in_float64("mirrored"))


def equivalence_multiworker() -> dict[str, Any]:
    """Print the differences between two processes and one, for `benchmarks/distribute.py`."""
    return _printed(compared_in_float64("multiworker"))


def _printed(compared: dict[str, Any]) -> dict[str, Any]:
    if compared:  # the other processes have no result
        print("RESULT", json.dumps(compared), flush=True)
    return compared


def mirrored() -> dict[str, Any]:
    """Compare updates on two devices with those on one, then train."""
    two_devices()
    return {
        "compared": compared_in_float64("mirrored"),
        "sequences": compare(["ACER"], "mirrored", updates=10)["ACER"],
        **_mirrored_fit(),
    }


def compared_in_float64(word: str) -> dict[str, Any]:
    """Return `compare` in float64; later agents compute in float32 again."""
    import keras

    keras.config.set_floatx("float64")
    try:
        with contextlib.ExitStack() as patches:
            for owner, name, value in widened_parts():
                patches.enter_context(mock.patch.object(owner, name, value))
            return compare(["DQN", "PPO", "SAC"], word)
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def fit_with_network_of_scope() -> dict[str, Any]:
    """Train with a network that was built in the scope of a strategy.

    Returns:
        the number of updates, and whether a target that was copied in the scope is still copied.
    """
    import keras
    import tensorflow as tf

    import noterl

    reduction = tf.distribute.ReductionToOneDevice()  # other reductions of two strategies disturb each other
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=reduction)
    with strategy.scope():
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
        agent = noterl.DQN("CartPole-v1", network=network, seed=1)
        agent.compile(1e-3, learning_starts=32, batch_size=16, replay=1000, updates=4, update_every=4)
    agent.fit(steps=40, strategy=strategy, verbose=0)
    agent.fit(steps=8, verbose=0)
    updates = agent.updates
    with strategy.scope():
        agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
        noterl.networks.copy(agent.q, agent.target_q)
        agent.compile(1e-2, learning_starts=16, batch_size=16, replay=1000, target_update=8)
    agent.fit(steps=41, verbose=0)  # it has learned since the last copy, but less than since its beginning
    start = noterl.DQN("CartPole-v1", hidden=(8,), seed=1).get_weights()
    weights = agent.get_weights()
    moved = [float(np.abs(weights[f"target_q/{n:03d}"] - start[f"q/{n:03d}"]).max()) for n in range(4)]
    return {"updates": updates, "moved": max(moved)}


def _mirrored_fit() -> dict[str, Any]:
    agents = {}
    for word in (None, "mirrored"):
        agents[word] = small_dqn()
        agents[word].fit(steps=60, strategy=word, verbose=0)
    alone, shared = (numbers(agents[word]) for word in (None, "mirrored"))
    agent = agents["mirrored"]
    agent.set_rule("learning_rate", 1e38)
    broken = _error_of(lambda: agent.fit(steps=8, strategy="mirrored", verbose=0))
    agents[None].compile(batch_size=15)
    with_workers = small_dqn()
    with_workers.fit(steps=60, strategy="mirrored", workers=2, num_envs=2, verbose=0)
    return {
        "workers": [with_workers.steps, with_workers.updates],
        "updates": [agents[None].updates, agent.updates],
        "scope": fit_with_network_of_scope(),
        "difference": float(np.abs(alone - shared).max()),
        "broken": broken,
        "kept": bool(np.isfinite(numbers(agent)).all()),
        "evaluated": float(agent.evaluate(episodes=1)["length_mean"]),
        "odd": _error_of(lambda: agents[None].fit(steps=8, strategy="mirrored", verbose=0)),
        "other": _error_of(lambda: agents[None].fit(steps=8, strategy="ddp", verbose=0)),
    }


def multiworker() -> dict[str, Any]:
    """Compare updates of two processes with those of one, train, and lose one of the processes."""
    from noterl.callbacks import Callback

    class End(Callback):
        all_ranks = True

        def on_episode_end(self, episode: int, logs: dict) -> None:
            if os.environ["FAULT"] == "kill" and self.agent.steps > 80 and not is_chief:
                os.kill(os.getpid(), 9)
            if os.environ["FAULT"] == "raise" and self.agent.steps > 80 and is_chief:
                raise ArithmeticError("of the chief")

    is_chief = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
    import noterl  # noqa: F401

    agent = small_dqn()
    kills = os.environ["FAULT"] == "kill"
    compared = compared_in_float64("multiworker") if kills else {}
    sequence = make("ACER")
    if not kills:
        sequence.fit(steps=48, num_envs=2, strategy="multiworker", verbose=0)
    history = agent.fit(steps=80, strategy="multiworker", workers=1, verbose=0)
    result = {
        "compared": compared,
        "sequences": [sequence.updates, float(sum(np.abs(weight).sum() for weight in sequence.get_weights().values()))],
        "steps": agent.steps,
        "episodes": agent.episodes,
        "updates": agent.updates,
        "ranks": sorted(set(history.history.get("rank", []))),
        "weights": float(sum(np.abs(weight).sum() for weight in agent.get_weights().values())),
    }
    print(json.dumps(result), flush=True)
    error = _error_of(lambda: agent.fit(steps=4000, strategy="multiworker", verbose=0, callbacks=[End()]))
    return {**result, "error": error}


def parameter_server() -> dict[str, Any]:
    """Train on the workers; kill all workers but one, if there are several, train on, and kill the process LAST.

    Each process has one core, as in a small container.
    """
    from noterl.callbacks import Callback

    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [cores[os.getpid() % len(cores)]])
    folder = Path(os.environ["FOLDER"])
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    Path(folder, f"{task['type']}{task['index']}").write_text(str(os.getpid()))

    class Kill(Callback):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def on_train_begin(self, logs: dict) -> None:
            os.kill(int(Path(folder, self.name).read_text()), 9)

    agent = small_dqn()
    agent.fit(steps=80, strategy="parameter_server", workers=1, verbose=0)
    updates, sequence = [agent.updates], make("ACER")
    sequence.fit(steps=24, strategy="parameter_server", verbose=0)
    if len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]) > 1:
        agent.fit(steps=40, strategy="parameter_server", verbose=0, callbacks=[Kill("worker0")])
        updates.append(agent.updates)
    error = _error_of(
        lambda: agent.fit(steps=40, strategy="parameter_server", verbose=0, callbacks=[Kill(os.environ["LAST"])])
    )
    finite = bool(np.isfinite(numbers(agent)).all())
    return {
        "updates": updates,
        "sequences": sequence.updates,
        "error": error,
        "finite": finite,
    }


def connect() -> dict[str, Any]:
    """Build an agent, which connects to the other processes."""
    return {"error": _error_of(lambda: small_dqn().fit(steps=8, strategy="multiworker", verbose=0))}


def _error_of(function: Any) -> list[str] | None:
    try:
        function()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
