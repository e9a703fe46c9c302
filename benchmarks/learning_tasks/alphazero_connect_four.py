"""AlphaZero on Connect Four, judged by its search against minimax, and by its first move.

The agent trains for a fixed time. Then it plays 200 games with a search of 100 simulations against minimax of depth 4,
and moves first in half of them. The first two moves of each game are random, because both players hardly choose at
random. A draw counts half.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks.report import markdown_table
from noterl.callbacks import Arena, StopOnTime
from noterl.envs.games import ConnectFour, Minimax, play_games

SEEDS = 3
DEPTH, GAMES, SIMULATIONS, OPENINGS = 4, 200, 100, 2
LANES, EVERY = 256, 4_000
SETTINGS: dict[str, Any] = {"simulations": 32, "gumbel": True, "hidden": (256, 256), "random_moves": 0.1}
MEMORY, BATCH_SIZE, UPDATE_EVERY, RATE = 200_000, 512, 128, 1e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="time of training of each run")
    parser.add_argument("--simulations", type=int, default=SETTINGS["simulations"], help="of each search in training")


def run(seeds: int, *, minutes: float, simulations: int) -> dict[str, Any]:
    settings = {**SETTINGS, "simulations": simulations}
    return {
        "title": "AlphaZero, Connect Four",
        "settings": {
            **settings,
            "num_envs": LANES,
            "replay": MEMORY,
            "batch_size": BATCH_SIZE,
            "update_every": UPDATE_EVERY,
            "learning_rate": RATE,
            "minutes": minutes,
            "depth": DEPTH,
            "games": GAMES,
            "search simulations": SIMULATIONS,
            "openings": OPENINGS,
        },
        "runs": [train(seed, minutes, settings) for seed in range(seeds)],
    }


def train(seed: int, minutes: float, settings: dict[str, Any]) -> dict[str, Any]:
    game, agent = ConnectFour(), noterl.AlphaZero(ConnectFour(), seed=seed, **settings)
    agent.compile(
        keras.optimizers.Adam(RATE),
        replay=noterl.Replay(MEMORY, n_step=game.max_length),
        batch_size=BATCH_SIZE,
        update_every=UPDATE_EVERY,
        learning_starts=5_000,
    )
    # The network's own move, without a search: the arena takes little of the training time.
    arena = Arena({"minimax": Minimax(depth=2)}, every=EVERY, games=40, openings=OPENINGS)
    processor = time.process_time()
    agent.fit(num_envs=LANES, callbacks=[arena, StopOnTime(60 * minutes)], verbose=0)
    processor = time.process_time() - processor
    shares = agent.search(game.start(1)[0], simulations=SIMULATIONS).visit_shares
    won, drawn, lost = against_minimax(agent, seed)
    agent.close()
    return {
        "seed": seed,
        "first move": int(shares.argmax()),
        "won": won,
        "drawn": drawn,
        "lost": lost,
        "score": (won + 0.5 * drawn) / GAMES,
        "arena": arena.scores("minimax"),
        "games": agent.episodes,
        "steps": agent.steps,
        "updates": agent.updates,
        "processor seconds": round(processor, 1),
    }


def against_minimax(agent: Any, seed: int) -> tuple[int, int, int]:
    """Return how many games the agent's search wins, draws and loses, moving first in half of them."""

    def choose(game: Any, states: Any, generator: Any) -> Any:
        return agent.search(states, simulations=SIMULATIONS).visit_shares.argmax(axis=1)

    generator, opponent, half = np.random.default_rng(seed), Minimax(depth=DEPTH), GAMES // 2
    first = play_games(ConnectFour(), choose, opponent, half, generator, openings=OPENINGS)
    second = -play_games(ConnectFour(), opponent, choose, half, generator, openings=OPENINGS)
    results = np.concatenate([first, second])
    won, drawn, lost = (int((results == value).sum()) for value in (1, 0, -1))
    return won, drawn, lost


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    """Return the scores, and how many runs begin in the centre."""
    runs = result["runs"]
    return {
        "runs": len(runs),
        "first moves in the centre": sum(run["first move"] == 3 for run in runs),
        "scores": [run["score"] for run in runs],
        "lowest score": min(run["score"] for run in runs),
    }


def table(result: dict[str, Any]) -> str:
    rows = [
        (
            str(run["seed"]),
            f"{run['games']:,}",
            str(run["first move"] + 1),
            f"{run['won']} / {run['drawn']} / {run['lost']}",
            f"{run['score']:.3f}",
        )
        for run in result["runs"]
    ]
    opponent = f"won / drawn / lost against minimax of depth {result['settings']['depth']}"
    return markdown_table(("seed", "games of self-play", "column of the first move", opponent, "score"), rows)


def draw(result: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for run in result["runs"]:
        games = [EVERY * (place + 1) for place in range(len(run["arena"]))]
        axes.plot(games, run["arena"], label=f"seed {run['seed']}")
    axes.set_xlabel("games of self-play")
    axes.set_ylabel("score of the network's move against minimax of depth 2")
    axes.set_title(result["title"])
    axes.legend()
    axes.grid(alpha=0.3)
    return figure
