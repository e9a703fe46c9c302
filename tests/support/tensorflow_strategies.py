"""Programs of the tests of TensorFlow's strategies, each run in processes of its own.

Usage: python tensorflow_strategies.py PROGRAM [arguments]. The last line of the output is the result, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np


def numbers(agent: Any) -> np.ndarray:
    """Return all variables of an agent, including those of its optimizers, as one vector."""
    from noterl import backends

    fetch = backends.current().fetch
    return np.concatenate([np.ravel(fetch(variable)).astype(float) for variable in agent._learner.variables])


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


def mirrored() -> dict[str, Any]:
    """Compare updates on two devices with those on one, then train."""
    two_devices()
    return {"compared": compared_in_float64("mirrored"), **_mirrored_fit()}


def compared_in_float64(word: str) -> dict[str, float]:
    """Return the largest differences between 200 updates under a strategy and on one device; see `differences`."""
    import keras

    from noterl import backends
    from tests.support.replica_equivalence import differences

    try:
        for precision in (keras.config.set_floatx, keras.config.set_dtype_policy):
            precision("float64")
        with mock.patch.object(backends, "check_precision"):
            return differences(word, 200, "float64")
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


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
    return {
        "updates": [agents[None].updates, agent.updates],
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
    compared = compared_in_float64("multiworker") if os.environ["FAULT"] == "kill" else {}
    history = agent.fit(steps=80, strategy="multiworker", verbose=0)
    result = {
        "compared": compared,
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
    """Train on two workers, of which one is killed, and then the other; other processes serve."""
    from noterl.callbacks import Callback

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
    agent.fit(steps=80, strategy="parameter_server", verbose=0)
    updates = [agent.updates]
    agent.fit(steps=40, strategy="parameter_server", verbose=0, callbacks=[Kill("worker0")])
    updates.append(agent.updates)
    started = perf_counter()
    error = _error_of(
        lambda: agent.fit(steps=40, strategy="parameter_server", verbose=0, callbacks=[Kill(os.environ["LAST"])])
    )
    finite = bool(np.isfinite(numbers(agent)).all())
    return {"updates": updates, "error": error, "seconds": perf_counter() - started, "finite": finite}


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
