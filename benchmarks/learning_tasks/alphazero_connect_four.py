"""AlphaZero on Connect Four, judged by its search against minimax, and by its first move.

The agent trains for a fixed time. Then it plays 200 games with a search of 100 simulations against minimax of depth 4,
which chooses at random between moves of equal value. The agent moves first in half of the games, and a draw counts
half. It plays 200 more games in which the first two moves are random, so that it meets positions that it would avoid.

The network begins with a convolution of 4x4 windows, each of which holds ten lines of four. Two dense layers of 256
units scored between 0.85 and 0.94 after 30 minutes, in seven runs.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import keras
import numpy as np

import noterl
from benchmarks.report import markdown_table
from noterl.callbacks import Arena, LearningRateScheduler, StopOnTime
from noterl.envs.games import ConnectFour, play_games
from noterl.schedules import Linear
from tests.support.minimax import Minimax

SEEDS = 5
DEPTH, GAMES, SIMULATIONS, OPENINGS = 4, 200, 100, 2
LANES, EVERY = 256, 4_000
SETTINGS: dict[str, Any] = {"simulations": 32, "gumbel": True, "random_moves": 0.1}
FILTERS, WINDOW, UNITS = 64, 4, 128
MEMORY, BATCH_SIZE, UPDATE_EVERY = 200_000, 512, 64
RATES = 1e-3, 1e-4  # the learning rate at the start and at the end of the training time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="time of training of each run")
    parser.add_argument("--simulations", type=int, default=SETTINGS["simulations"], help="of each search in training")


def run(seeds: int, *, minutes: float, simulations: int) -> dict[str, Any]:
    settings = {**SETTINGS, "simulations": simulations}
    return {
        "title": "AlphaZero, Connect Four",
        "settings": {
            **settings,
            "filters": FILTERS,
            "window": WINDOW,
            "units": UNITS,
            "num_envs": LANES,
            "replay": MEMORY,
            "batch_size": BATCH_SIZE,
            "update_every": UPDATE_EVERY,
            "learning_rate": RATES,
            "minutes": minutes,
            "depth": DEPTH,
            "games": GAMES,
            "search simulations": SIMULATIONS,
            "random openings": OPENINGS,
        },
        "runs": [train(seed, minutes, settings) for seed in range(seeds)],
    }


def network(game: ConnectFour) -> keras.Model:
    """Return a network for the observations of the game: a convolution and a dense layer, then logits and value."""
    layers, (rows, columns) = keras.layers, game.start(1).shape[1:]
    return keras.Sequential(
        [
            layers.Input(game.observation_space.shape),
            layers.Reshape((2, rows, columns)),
            layers.Permute((2, 3, 1)),
            layers.Conv2D(FILTERS, WINDOW, activation="relu"),
            layers.Flatten(),
            layers.Dense(UNITS, activation="relu"),
            layers.Dense(game.num_actions + 1),
        ]
    )


def train(seed: int, minutes: float, settings: dict[str, Any]) -> dict[str, Any]:
    keras.utils.set_random_seed(seed)  # of the initial weights
    game = ConnectFour()
    agent = noterl.AlphaZero(game, network=network(game), seed=seed, **settings)
    agent.compile(
        keras.optimizers.Adam(RATES[0]),
        replay=noterl.Replay(MEMORY, n_step=game.max_length),
        batch_size=BATCH_SIZE,
        update_every=UPDATE_EVERY,
        learning_starts=5_000,
    )
    # The network's own move, without a search: the arena takes little of the training time.
    arena = Arena({"minimax": Minimax(depth=2)}, every=EVERY, games=40, openings=OPENINGS)
    # How many games the time allows depends on the machine, so the rate falls with the time.
    begun, seconds = time.monotonic(), 60 * minutes
    schedule = Linear(*RATES, steps=max(round(seconds), 1))
    rate = LearningRateScheduler(lambda _: schedule(int(time.monotonic() - begun)), unit="episodes")
    processor = time.process_time()
    agent.fit(num_envs=LANES, callbacks=[arena, rate, StopOnTime(seconds)], verbose=0)
    processor = time.process_time() - processor
    shares = agent.search(game.start(1)[0], simulations=SIMULATIONS).visit_shares
    games = {name: against_minimax(agent, seed, count) for name, count in (("games", 0), ("random openings", OPENINGS))}
    agent.close()
    return {
        "seed": seed,
        "first move": int(shares.argmax()),
        **games,
        "score": score(games["games"]),
        "arena": arena.scores("minimax"),
        "episodes": agent.episodes,
        "steps": agent.steps,
        "updates": agent.updates,
        "processor seconds": round(processor, 1),
    }


def against_minimax(agent: Any, seed: int, openings: int) -> list[int]:
    """Return how many games the agent's search wins, draws and loses, moving first in half of them."""

    def choose(game: Any, states: Any, generator: Any) -> Any:
        return agent.search(states, simulations=SIMULATIONS).visit_shares.argmax(axis=1)

    generator, opponent, half = np.random.default_rng(seed), Minimax(depth=DEPTH), GAMES // 2
    first = play_games(ConnectFour(), choose, opponent, half, generator, openings=openings)
    second = -play_games(ConnectFour(), opponent, choose, half, generator, openings=openings)
    results = np.concatenate([first, second])
    return [int((results == value).sum()) for value in (1, 0, -1)]


def score(games: list[int]) -> float:
    """Return the share of points of games that were won, drawn and lost."""
    won, drawn, lost = games
    return (won + 0.5 * drawn) / (won + drawn + lost)


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
            f"{run['episodes']:,}",
            str(run["first move"] + 1),
            " / ".join(map(str, run["games"])),
            f"{run['score']:.3f}",
            " / ".join(map(str, run["random openings"])),
        )
        for run in result["runs"]
    ]
    opponent = f"won / drawn / lost against minimax of depth {result['settings']['depth']}"
    heading = ("seed", "games of self-play", "column of the first move", opponent, "score", "with random openings")
    return markdown_table(heading, rows)


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
