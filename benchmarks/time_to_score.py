"""Measure the time from the start of a process until its weights hold a score, beside the peers.

    python -m benchmarks.time_to_score CartPole-v1 --seeds 10
    python -m benchmarks.time_to_score CartPole-v1 --draw docs/_static/time_to_score.svg

noterl trains with its preset "fast", Stable-Baselines3 and SBX with the settings of rl-zoo3. The protocol:

- Each run is a process of its own. It writes its weights after each so many environment steps, and at its end.
- Afterwards, a judge plays 100 greedy episodes with each of these weights. The time of a run is that from the start of
  its process to the first of two weights in a row whose mean return reaches the score. The judge's time does not count.
- A run that never holds the score counts with its whole time, and is marked. Long runs of a peer stop early
  (`stop` in peers/zoo.py).
- The participants take turns, and each seed starts with another one. The seeds 0 to 9 did not tune the presets.
- noterl's compilation cache is warm, as in a user's second run; a participant "cold" has an empty cache in each run.

Each run is stored when it ends, in benchmarks/results/time_to_score/TASK.json; a stored run is not repeated.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import study
from benchmarks.evaluation import evaluate, print_json, versions
from benchmarks.judging import judge
from benchmarks.processes import RESULTS, ROOT, execute, machine, variables, warn_if_busy
from benchmarks.summaries import summarize_pairs

FOLDER = RESULTS / "time_to_score"
PACKAGES = ("noterl", "keras", "numpy", "gymnasium", "jax", "torch", "tensorflow-cpu")


@dataclass(frozen=True)
class Race:
    """A task, its score and its participants.

    Attributes:
        score: the least mean return of 100 greedy episodes.
        algorithm: of noterl's preset "fast".
        every: environment steps between two weights.
        peers: each peer with its algorithms; of several algorithms the fastest counts.
        backends: of noterl.
        bars: (noterl's participant, peer) -> the ratio of times that the upper end of its interval may reach.
        seeds: how many runs each participant has.
    """

    score: float
    algorithm: str
    every: int
    peers: dict[str, tuple[str, ...]]
    bars: dict[tuple[str, str], float]
    backends: tuple[str, ...] = ("jax",)
    seeds: int = 10

    @property
    def participants(self) -> list[str]:
        """The names: noterl-BACKEND with a warm and a cold cache, and PEER-ALGORITHM."""
        ours = [f"noterl-{backend}{end}" for backend in self.backends for end in ("", "-cold")]
        return ours + [f"{peer}-{algorithm.lower()}" for peer, names in self.peers.items() for algorithm in names]


DISCRETE: dict[str, Any] = {"peers": {"sb3": ("PPO", "DQN")}, "bars": {("noterl-jax", "sb3"): 0.35}}
RACES = {
    "CartPole-v1": Race(
        475,
        "PPO",
        2_000,
        {"sb3": ("PPO",), "sbx": ("PPO",)},
        {
            ("noterl-jax", "sb3"): 0.6,
            ("noterl-jax", "sbx"): 0.3,
            ("noterl-torch", "sb3"): 0.9,
            ("noterl-tensorflow", "sb3"): 1.0,
        },
        backends=("jax", "torch", "tensorflow"),
    ),
    "Acrobot-v1": Race(-85, "PPO", 5_000, **DISCRETE),
    "MountainCar-v0": Race(-110, "DQN", 5_000, **DISCRETE),
    "LunarLander-v3": Race(200, "PPO", 20_000, **DISCRETE, seeds=5),
    "Pendulum-v1": Race(-160, "SAC", 1_000, {"sb3": ("SAC",), "sbx": ("SAC",)}, {("noterl-jax", "sb3"): 0.2}),
    "LunarLanderContinuous-v3": Race(250, "PPO", 10_000, {"sb3": ("SAC",)}, {("noterl-jax", "sb3"): 0.5}, seeds=5),
    "HalfCheetah-v5": Race(5_000, "PPO", 25_000, {"sb3": ("SAC",)}, {("noterl-jax", "sb3"): 0.5}, seeds=5),
}


def agent_of(environment: str, seed: int) -> Any:
    """Return the agent of the preset."""
    import noterl

    return getattr(noterl, RACES[environment].algorithm).from_preset(environment, name="fast", seed=seed)


def train(environment: str, seed: int, folder: Path) -> None:
    """Train noterl's agent, and write its weights from time to time."""
    import noterl

    class Weights(noterl.Callback):
        every = noterl.callback.Every(RACES[environment].every, "steps")

        def on_due(self, logs: dict[str, Any]) -> None:
            self.agent.save_weights(folder / f"{self.agent.steps}.noterl")

    agent = agent_of(environment, seed)
    agent.fit(callbacks=[Weights()], verbose=0)
    agent.save_weights(folder / f"{agent.steps}.noterl")


def judged(environment: str, folder: Path) -> dict[str, Any]:
    """Return when the weights of a folder hold the score."""
    agent = agent_of(environment, 0)

    def mean_return(path: Path) -> float:
        agent.load_weights(path)
        return float(np.mean(evaluate(agent.act, environment)))

    paths = sorted(folder.glob("*.noterl"), key=lambda path: int(path.stem))
    return judge(paths, mean_return, RACES[environment].score)


def commands(environment: str, who: str, seed: int, folder: Path, peer_python: str) -> tuple[list[str], list[str]]:
    """Return the command that trains, and the command that judges."""
    race = RACES[environment]
    side, algorithm = who.split("-")[:2]
    if side == "noterl":
        own = [sys.executable, "-m", "benchmarks.time_to_score", environment, "--folder", str(folder), "--child"]
        return [*own, "train", "--seed", str(seed)], [*own, "judge"]
    module = [peer_python, "-m", "benchmarks.peers.zoo"]
    task = [side, algorithm.upper(), environment]
    return (
        [*module, "train", *task, str(seed), str(folder), str(race.every)],
        [*module, "judge", *task, str(race.score), str(folder)],
    )


def variables_of(who: str, cache: str) -> dict[str, str]:
    """Return the environment variables of a participant's process; `cache` is the folder of noterl's compilations."""
    backend = who.split("-")[1] if who.startswith("noterl") else None
    return {**variables(backend), "NOTERL_CACHE": cache}


def timed(command: list[str], added: dict[str, str]) -> tuple[float, float, float]:
    """Run a process; return the time at its begin and its duration, in seconds, and its peak of memory in MB."""
    begun = time.time()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **added}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.time() - begun
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return begun, seconds, usage.ru_maxrss / 1024


def warm_up(environment: str, who: str, seed: int, cache: str) -> None:
    """Train a participant of noterl once, so that the cache has its compilations."""
    with tempfile.TemporaryDirectory(prefix="noterl-race-") as folder:
        training, _ = commands(environment, who, seed, Path(folder), sys.executable)
        timed(training, variables_of(who, cache))


def race_once(environment: str, who: str, seed: int, peer_python: str, cache: str) -> dict[str, Any]:
    """Return the run of a participant: when it held the score, its whole time and its peak of memory."""
    with tempfile.TemporaryDirectory(prefix="noterl-race-") as place:
        folder = Path(place)
        training, judging = commands(environment, who, seed, folder, peer_python)
        added = variables_of(who, str(folder / "cache") if who.endswith("-cold") else cache)
        begun, seconds, memory = timed(training, added)
        found = execute(judging, added)
    points = [(steps, at - begun, mean) for steps, at, mean in found["points"]]
    held = found["held"] is not None
    return {
        "who": who,
        "seed": seed,
        "held": held,
        "seconds": points[found["held"]][1] if held else seconds,
        "steps": points[found["held"]][0] if held else points[-1][0],
        "whole_seconds": seconds,
        "final": found["final"],
        "memory_mb": memory,
        "points": [[steps, round(at, 3), round(mean, 2)] for steps, at, mean in points],
    }


def summarize(environment: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median time and memory of each participant, and the ratios of times beside each peer."""
    race = RACES[environment]
    ordered = sorted(runs, key=lambda run: run["seed"])
    of = {who: [run for run in ordered if run["who"] == who] for who in race.participants}
    of = {who: found for who, found in of.items() if found}
    seconds = {who: [run["seconds"] for run in found] for who, found in of.items()}
    fastest = {}
    for peer in race.peers:
        names = [who for who in seconds if who.startswith(peer)]
        if names:
            fastest[peer] = min(names, key=lambda who: float(np.median(seconds[who])))
    rows = []
    for who in (who for who in seconds if who.startswith("noterl")):
        for peer, name in fastest.items():
            count = min(len(seconds[who]), len(seconds[name]))
            bar = race.bars.get((who, peer))
            rows.append(
                {"name": f"{who} / {name}", **summarize_pairs(seconds[who][:count], seconds[name][:count], bar)}
            )
    return {
        "participants": {
            who: {
                "seconds": float(np.median(seconds[who])),
                "steps": float(np.median([run["steps"] for run in found])),
                "held": sum(run["held"] for run in found),
                "final": sum(run["final"] >= race.score for run in found),
                "runs": len(found),
                "memory_mb": float(np.median([run["memory_mb"] for run in found])),
            }
            for who, found in of.items()
        },
        "rows": rows,
    }


def returns_at(run: dict[str, Any], times: np.ndarray) -> np.ndarray:
    """Return the mean return of a run's last weights at each time, `[T]`: NaN before the first weights.

    The judge stops once the score is held, so the last return stands for the later ones.
    """
    _, at, returns = (np.array(column) for column in zip(*run["points"], strict=True))
    return np.concatenate([[np.nan], returns])[np.searchsorted(at, times, side="right")]


def draw(result: dict[str, Any]) -> Any:
    """Return a figure: the median return of each participant over wall time, with the middle half of the seeds.

    Participants with a cold cache are in the table only.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    runs = result["runs"]
    times = np.geomspace(0.5, max(run["seconds"] for run in runs), 400)
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for who in (who for who in result["summary"]["participants"] if not who.endswith("-cold")):
        returns = np.stack([returns_at(run, times) for run in runs if run["who"] == who])
        seen = ~np.isnan(returns).any(axis=0)  # all seeds have written weights
        low, median, high = np.quantile(returns[:, seen], (0.25, 0.5, 0.75), axis=0)
        (line,) = axes.plot(times[seen], median, label=who, linewidth=2)
        axes.fill_between(times[seen], low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.axhline(result["score"], color="tab:gray", linestyle=":", label="score")
    axes.set(xscale="log", xlabel="seconds since the start of the process", ylabel="mean return of 100 episodes")
    seconds = [first * 10**power for power in range(5) for first in (1, 2, 5)]
    axes.set_xticks([tick for tick in seconds if tick <= times[-1]], minor=False)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(result["task"])
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.grid(alpha=0.3)
    return figure


def save_figure(result: dict[str, Any], path: Path) -> None:
    """Save the figure in noterl's style as an SVG file, which is the same for the same result."""
    import matplotlib

    from noterl.utils import figures

    with matplotlib.rc_context({**figures.STYLE, "svg.hashsalt": result["task"]}):
        draw(result).savefig(path, metadata={"Date": None})


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="time_to_score.py")
    parser.add_argument("task", choices=RACES)
    parser.add_argument("--seeds", type=int, help="by default those of the task")
    parser.add_argument("--participants", nargs="+", help="by default all of the task")
    parser.add_argument("--draw", type=Path, help="draw the stored result in this SVG file, without any run")
    parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
    parser.add_argument("--child", choices=("train", "judge"), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    known = RACES[arguments.task].participants
    for who in arguments.participants or []:
        if who not in known:
            parser.error(f"--participants must be of {', '.join(known)}, got {who}")
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = parse(words)
    environment, race = arguments.task, RACES[arguments.task]
    if arguments.child == "train":
        train(environment, arguments.seed, arguments.folder)
        return
    if arguments.child == "judge":
        print_json(judged(environment, arguments.folder))
        return
    path = FOLDER / f"{environment}.json"
    if arguments.draw:
        save_figure(json.loads(path.read_text()), arguments.draw)
        return
    start = machine()
    warn_if_busy(start)
    participants = arguments.participants or race.participants
    seeds = range(arguments.seeds or race.seeds)
    count = len(participants)
    wanted = [(participants[(place + seed) % count], seed) for seed in seeds for place in range(count)]
    with tempfile.TemporaryDirectory(prefix="noterl-races-") as cache:
        warm: set[str] = set()

        def train_one(key: tuple[str, int]) -> tuple[dict[str, Any], str]:
            who, seed = key
            if who.startswith("noterl") and not who.endswith("-cold") and who not in warm:
                warm_up(environment, who, seed, cache)
                warm.add(who)
            run = race_once(environment, who, seed, arguments.peer_python, cache)
            words = "held" if run["held"] else "never held"
            return run, f"{who} seed {seed}: {words} {race.score} after {run['seconds']:.1f} s, {run['steps']:,} steps"

        result = study.complete(
            study.stored_runs(path),
            wanted,
            key_of=lambda run: (run["who"], run["seed"]),
            train=train_one,
            result_of=lambda runs: {
                "task": environment,
                "score": race.score,
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "machine": start,
                "versions": versions(PACKAGES),
                "summary": summarize(environment, runs),
                "runs": runs,
            },
            path=path,
        )
    from benchmarks.report import time_to_score_table

    print(time_to_score_table(result))


if __name__ == "__main__":
    main()
