"""Measure the strategies of `fit`: equivalence with one device, learning, the overhead of one replica, and a model.

    PYTHONPATH=. .venv/bin/python -m benchmarks.distribute --seeds 3 --pairs 5
    PYTHONPATH=. .venv/bin/python -m benchmarks.distribute --parts model

`equivalence` compares two replicas with one device on the same global batches (tests/support/replica_equivalence.py):
200 updates in float64, 10 in float32. `learning` trains on CartPole-v1 until the mean of 20 evaluation episodes is at
least 475, within a budget of steps. `overhead` is the time of an update with one replica over that without a strategy:
the median over alternating pairs, with its 90 % interval; the bar of 1.3 is met if the upper end is within it. `model`
measures the constants of `scaling_model.py`, and speeds that check it. Each part runs in processes of its own. The
result of a part and a strategy is stored as results/distribute/PART-STRATEGY.json when it is there, `learning` after
each seed, beside the seeds that the file holds already.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import scaling_model
from benchmarks.processes import RESULTS, ROOT, machine, store, warn_if_busy
from benchmarks.summaries import summarize_pairs

FOLDER = RESULTS / "distribute"
BAR = 1.3
STEPS = 100_000
PARTS = ("equivalence", "learning", "overhead", "model")


class Strategy(NamedTuple):
    """How to run a strategy: its word, backend, whether a launcher starts two processes, and further variables."""

    word: str
    backend: str
    is_launched: bool = False
    variables: Sequence[tuple[str, str]] = ()


STRATEGIES = {
    "data_parallel": Strategy(
        "data_parallel", "jax", variables=[("XLA_FLAGS", "--xla_force_host_platform_device_count=2")]
    ),
    "ddp": Strategy("ddp", "torch", True),
    "mirrored": Strategy("mirrored", "tensorflow"),
    "multiworker": Strategy("multiworker", "tensorflow", True),
    "parameter_server": Strategy("parameter_server", "tensorflow", True),
}

# The parts that a strategy lacks. Asynchronous updates differ from those of one device and need other processes. The
# model is that of the processes of torch.
LEFT_OUT = {
    *((name, "model") for name in ("data_parallel", "mirrored", "multiworker", "parameter_server")),
    *(("parameter_server", part) for part in ("equivalence", "overhead")),
}

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

strategy, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if strategy == "mirrored":
    from tests.support.tensorflow_strategies import two_devices
    two_devices()
task = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]
rank = os.environ.get("RANK") or task["index"]
agent, goal = noterl.DQN("CartPole-v1", seed=seed), Goal()
started = time.perf_counter()
history = agent.fit(steps=steps, strategy=strategy, callbacks=[goal], verbose=0)
if int(rank) == 0:
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


def execute(
    name: str, arguments: Sequence[str], *, added: dict[str, str] | None = None, launched: bool | None = None
) -> str:
    """Return the output of a script, or of another command of Python, under a strategy.

    Args:
        name: of the strategy.
        arguments: of Python.
        added: environment variables; by default those of the strategy, which divide the CPU.
        launched: whether two processes run; by default if the strategy says so.

    Raises:
        RuntimeError: if it fails.
    """
    word, backend, is_launched, variables = STRATEGIES[name]
    if is_launched if launched is None else launched:
        options = ["--trusted-network"] if backend == "tensorflow" else []
        arguments = ["-m", "noterl", "launch", "--processes", "2", "--strategy", word, *options, *arguments]
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(ROOT),
        **(dict(variables) if added is None else added),
    }
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def result_of(output: str) -> Any:
    """Return the JSON value that a program has printed."""
    found = re.search(r"RESULT (.*)", output)
    assert found is not None, output
    return json.loads(found.group(1))


def equivalence(name: str) -> dict[str, Any]:
    """Return the largest differences of weights and losses, by dtype and algorithm."""
    word = STRATEGIES[name].word
    if STRATEGIES[name].backend == "tensorflow":
        script = str(ROOT / "tests" / "support" / "tensorflow_strategies.py")
        return {"float64": result_of(execute(name, [script, f"equivalence_{word}"]))}
    output = execute(name, [str(ROOT / "tests" / "support" / "replica_equivalence.py"), word])
    found = dict(re.findall(r"(float32|float64) (\{.*\})", output))
    return {dtype: json.loads(values.replace("'", '"')) for dtype, values in found.items()}


def learning(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Return whether a seed has reached the goal, and after how many steps."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "learning.py")
        script.write_text(LEARNING)
        output = execute(name, [str(script), STRATEGIES[name].word, str(seed), str(steps)])
    return {"seed": seed, "budget": steps, **result_of(output)}


def overhead(name: str, pairs: int) -> dict[str, Any]:
    """Return the ratio of the times of an update, by algorithm."""
    command = ["-c", OVERHEAD, STRATEGIES[name].word, str(pairs)]
    found = result_of(execute(name, command, added={}, launched=False))
    return {agent: summarize_pairs(times["ours"], times["theirs"], BAR) for agent, times in found.items()}


def model(name: str) -> dict[str, Any]:
    """Return the constants of the model, and the speeds that check it."""

    def run(arguments: list[str], launched: bool) -> Any:
        return result_of(execute(name, arguments, added=scaling_model.ONE_THREAD, launched=launched))

    return scaling_model.measure(run, STRATEGIES[name].word)


def stored_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs that a file holds."""
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    return runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=list(STRATEGIES))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=STEPS, help="budget of `learning`; others are not stored")
    parser.add_argument("--output", type=Path, help="the folder of the results; then other budgets are stored too")
    options = parser.parse_args(arguments)
    found = machine()
    warn_if_busy(found)
    folder = options.output or (FOLDER if options.steps == STEPS else None)

    def keep(part: str, name: str, result: dict[str, Any]) -> None:
        print(part, name, json.dumps(result), flush=True)
        if folder is not None:
            today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
            head = {"date": today, "machine": found, "part": part, "strategy": name}
            store({**head, "runs": [], **result}, folder / f"{part}-{name}.json")

    for name in options.strategies:
        parts = [part for part in options.parts if (name, part) not in LEFT_OUT]
        if "equivalence" in parts:
            keep("equivalence", name, {"differences": equivalence(name)})
        if "overhead" in parts:
            keep("overhead", name, {"bar": BAR, "ratios": overhead(name, options.pairs)})
        if "model" in parts:
            keep("model", name, model(name))
        runs = [] if folder is None else stored_runs(folder / f"learning-{name}.json")
        for seed in range(options.seeds if "learning" in parts else 0):
            others = [run for run in runs if run["seed"] != seed]
            runs = sorted([*others, learning(name, seed, options.steps)], key=lambda run: run["seed"])
            keep("learning", name, {"runs": runs})


if __name__ == "__main__":
    main()
