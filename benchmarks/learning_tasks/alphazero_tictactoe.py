"""AlphaZero on tic-tac-toe, judged by the network's move on every line of play of the opponent.

The agent moves first and second. The scores are the lines that it loses. Judging does not count as training time.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import noterl
from benchmarks.report import markdown_table
from noterl.callback import Callback
from noterl.envs.games import TicTacToe, play_all_lines

SEEDS = 5
EVERY = 2_000
SETTINGS = {"num_envs": 128}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--episodes", type=int, default=48_000, help="games of each run")


class Judge(Callback):
    """Counts the lost lines every `EVERY` games; `seconds` is the time that this took."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.seconds = 0.0

    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        if logs["complete"] and self.agent.episodes % EVERY == 0:
            started = time.perf_counter()
            self.lost.append(sum(lines(self.agent, first)[2] for first in (True, False)))
            self.seconds += time.perf_counter() - started


def lines(agent: Any, first: bool) -> tuple[int, int, int]:
    """Return how many lines of play the network's moves win, draw and lose."""
    return play_all_lines(TicTacToe(), lambda game, states, generator: agent.act(game.observe(states)), first=first)


def run(seeds: int, *, episodes: int) -> dict[str, Any]:
    runs = [train(seed, episodes) for seed in range(seeds)]
    return {
        "title": "AlphaZero, tic-tac-toe",
        "settings": {**SETTINGS, "episodes": episodes, "every": EVERY},
        "runs": runs,
    }


def train(seed: int, episodes: int) -> dict[str, Any]:
    judge, started, processor = Judge(), time.perf_counter(), time.process_time()
    agent = noterl.AlphaZero(TicTacToe(), seed=seed)
    agent.fit(episodes=episodes, num_envs=SETTINGS["num_envs"], callbacks=[judge], verbose=0)
    seconds, processor = time.perf_counter() - started - judge.seconds, time.process_time() - processor
    first, second = (lines(agent, first) for first in (True, False))
    agent.close()
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "processor seconds": round(processor, 1),
        "first": first,
        "second": second,
        "lost": judge.lost,
        "steps": agent.steps,
        "updates": agent.updates,
    }


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    """Return how many runs lose no line, and the longest training time."""
    lost = [run["first"][2] + run["second"][2] for run in result["runs"]]
    return {
        "runs": len(lost),
        "runs without a lost line": lost.count(0),
        "lost lines": lost,
        "seconds at most": max(run["seconds"] for run in result["runs"]),
        "processor seconds at most": max(run["processor seconds"] for run in result["runs"]),
    }


def table(result: dict[str, Any]) -> str:
    rows = [
        (
            str(run["seed"]),
            *(" / ".join(map(str, run[side])) for side in ("first", "second")),
            f"{run['seconds']:.0f} ({run['processor seconds']:.0f})",
        )
        for run in result["runs"]
    ]
    heading = "won / drawn / lost lines"
    return markdown_table(
        ("seed", f"{heading}, moving first", f"{heading}, moving second", "seconds (of processor time)"), rows
    )


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for run in result["runs"]:
        games = [result["settings"]["every"] * (place + 1) for place in range(len(run["lost"]))]
        axes.plot(games, run["lost"], label=f"seed {run['seed']}")
    axes.set_xlabel("games of self-play")
    axes.set_ylabel("lost lines of play")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_title(result["title"])
    axes.legend()
    axes.grid(alpha=0.3)
    return figure
