"""Measure the strategies of `fit`: equivalence with one device, learning, and the overhead of one replica.

    PYTHONPATH=. .venv/bin/python benchmarks/distribute.py --seeds 3 --pairs 5

`equivalence` compares two replicas with one device on the same global batches (tests/support/replica_equivalence.py):
200 updates in float64, 10 in float32. `learning` trains on CartPole-v1 until the mean of 20 evaluation episodes is at
least 475, within a budget of steps. `overhead` is the time of an update with one replica over that without a strategy:
the median over alternating pairs, with its 90 % interval; the bar of 1.3 is met if the upper end is within it. Each
part runs in processes of its own. The result is stored in results/distribute.json if all parts ran.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.processes import RESULTS, machine, store, warn_if_busy  # noqa: E402
from benchmarks.summaries import summarize_pairs  # noqa: E402

RESULT = RESULTS / "distribute.json"
BAR = 1.3

_LAUNCH = ["-m", "noterl", "launch", "--processes", "2", "--strategy"]

# Word -> backend, further variables, and the launcher of two processes (none for the devices of one).
STRATEGIES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "data_parallel": ("jax", {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, []),
    "ddp": ("torch", {}, [*_LAUNCH, "ddp"]),
    "mirrored": ("tensorflow", {}, []),
    "multiworker": ("tensorflow", {}, [*_LAUNCH, "multiworker"]),
    "parameter_server": ("tensorflow", {}, [*_LAUNCH, "parameter_server"]),
}

# Parts that do not exist: asynchronous updates differ from those of one device, and always need other processes.
LEFT_OUT = {("parameter_server", "equivalence"), ("parameter_server", "overhead")}

# Trains until the greedy policy reaches 475, in the chief's evaluations every 2,000 steps.
LEARNING = """
import json, os, sys, time
import noterl
from noterl.callbacks import Callback, Every

class Goal(Callback):
    every = Every(2_000, "steps", at="step")
    stops_training = True
    best = 0.0
    def on_due(self, logs):
        mean = self.agent.evaluate(episodes=20, seed=1_000)["reward_mean"]
        self.best = max(self.best, mean)
        if mean >= 475:
            self.agent.stop("goal")

strategy, seed = sys.argv[1], int(sys.argv[2])
if strategy == "mirrored":
    from tests.support.tensorflow_strategies import two_devices
    two_devices()
task = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]
agent, goal = noterl.DQN("CartPole-v1", seed=seed), Goal()
started = time.perf_counter()
history = agent.fit(steps=100_000, strategy=strategy, callbacks=[goal], verbose=0)
if os.environ.get("RANK", "0") == "0" and task["index"] == 0:
    result = {"reached": history.stop_reason == "goal", "best": goal.best, "steps": agent.steps}
    print("RESULT", json.dumps({**result, "seconds": round(time.perf_counter() - started, 1)}))
"""

# Times groups of updates with one replica and without a strategy, in turn, after both are compiled.
OVERHEAD = """
import json, os, sys, time
import numpy as np
import noterl
from noterl import backends, distribute
from noterl.distribute import SINGLE
from tests.support.batches import CONTINUOUS, VECTOR, random_batch
from tests.support.parts import learner_of

word, pairs = sys.argv[1], int(sys.argv[2])
if word == "multiworker":
    alone = {"cluster": {"worker": ["127.0.0.1:29498"]}, "task": {"type": "worker", "index": 0}}
    os.environ["TF_CONFIG"] = json.dumps(alone)
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29499")
found = {}
for name, make, env in (("DQN", noterl.DQN, VECTOR), ("SAC", noterl.SAC, CONTINUOUS)):
    times = {}
    for strategy in (distribute.resolve(word), SINGLE):
        agent = make(env, seed=1)
        agent.compile(batch_size=64, learning_starts=0)
        learner = learner_of(agent)
        agent._counters.updates = 1_000  # as in a long run: torch does not trace losses in the first updates
        learner.use(strategy)
        times[strategy.word] = [learner, strategy, []]
    batch = random_batch(16, 64, env)
    with times[word][1].attached(times[word][0].variables):
        for pair in range(pairs + 2):
            for learner, _, seconds in times.values():
                started = time.perf_counter()
                for _ in range(20):
                    result = learner.update(batch, 16)
                backends.current().fetch(result.logs["loss"])
                seconds.append((time.perf_counter() - started) / 320)
    found[name] = {"ours": times[word][2][2:], "theirs": times[""][2][2:]}
print("RESULT", json.dumps(found))
"""


def execute(word: str, command: list[str], *, devices: bool = True) -> str:
    """Return the output of Python with the variables of a strategy.

    Raises:
        RuntimeError: if it fails.
    """
    backend, variables, _ = STRATEGIES[word]
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), **(variables if devices else {})}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{word} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def result_of(output: str) -> Any:
    """Return the JSON value that a program has printed."""
    found = re.search(r"RESULT (.*)", output)
    assert found is not None, output
    return json.loads(found.group(1))


def equivalence(word: str) -> dict[str, Any]:
    """Return the largest differences of weights and losses, by dtype and algorithm."""
    if STRATEGIES[word][0] == "tensorflow":
        script = str(ROOT / "tests" / "support" / "tensorflow_strategies.py")
        return {"float64": result_of(execute(word, [*STRATEGIES[word][2], script, f"equivalence_{word}"]))}
    script = str(ROOT / "tests" / "support" / "replica_equivalence.py")
    output = execute(word, [*STRATEGIES[word][2], script, word])
    found = dict(re.findall(r"(float32|float64) (\{.*\})", output))
    return {dtype: json.loads(values.replace("'", '"')) for dtype, values in found.items()}


def learning(word: str, seeds: int) -> list[dict[str, Any]]:
    """Return whether each seed has reached the goal, and after how many steps."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "learning.py")
        script.write_text(LEARNING)
        for seed in range(seeds):
            output = execute(word, [*STRATEGIES[word][2], str(script), word, str(seed)])
            results.append({"strategy": word, "seed": seed, **result_of(output)})
            print(word, results[-1], flush=True)
    return results


def overhead(word: str, pairs: int) -> dict[str, Any]:
    """Return the ratio of the times of an update, by algorithm."""
    found = result_of(execute(word, ["-c", OVERHEAD, word, str(pairs)], devices=False))
    return {name: summarize_pairs(times["ours"], times["theirs"], BAR) for name, times in found.items()}


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=list(STRATEGIES))
    parser.add_argument("--parts", nargs="+", default=["equivalence", "learning", "overhead"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=7)
    arguments = parser.parse_args()
    found = machine()
    warn_if_busy(found)
    parts: dict[str, dict[str, Any]] = {}
    runs: list[dict[str, Any]] = []
    for word in arguments.strategies:
        parts[word] = {}
        if "equivalence" in arguments.parts and (word, "equivalence") not in LEFT_OUT:
            parts[word]["equivalence"] = equivalence(word)
        if "overhead" in arguments.parts and (word, "overhead") not in LEFT_OUT:
            parts[word]["overhead"] = overhead(word, arguments.pairs)
        if "learning" in arguments.parts:
            runs += learning(word, arguments.seeds)
        print(word, json.dumps(parts[word], indent=1))
    if len(arguments.parts) == 3 and set(arguments.strategies) == set(STRATEGIES):
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        store({"date": today, "machine": found, "bar": BAR, "strategies": parts, "runs": runs}, RESULT)


if __name__ == "__main__":
    main()
