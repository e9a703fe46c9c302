"""Train AlphaZero on tic-tac-toe by self-play, play against every line of play, and draw a game."""

import os
from pathlib import Path

import noterl
from noterl.callbacks import Arena
from noterl.envs.games import RandomPlayer, TicTacToe, play_all_lines

import matplotlib.pyplot as plt

# The tests of noterl set this variable to shorten the run.
EPISODES = min(48_000, int(os.environ.get("NOTERL_MAX_EPISODES", "48000")))

game = TicTacToe()
agent = noterl.AlphaZero(game, seed=1)
arena = Arena({"random": RandomPlayer()}, every=4_000, games=40, older=True)
history = agent.fit(episodes=EPISODES, num_envs=128, callbacks=[arena], log_every=4_000)


def choose(game, states, generator):
    return agent.act(game.observe(states))


for first in (True, False):
    won, drawn, lost = play_all_lines(game, choose, first=first)
    print(f"moving {'first' if first else 'second'}: {won} lines won, {drawn} drawn, {lost} lost")

# A game of the network with itself; each board shows the shares of the visits of a search.
env = noterl.envs.GameEnv(game)
observation, _ = env.reset()
figure, axes = plt.subplots(1, 9, figsize=(18, 2.4))
for axis in axes:
    found = agent.search(env, simulations=100)
    axis.imshow(found.visit_shares.reshape(3, 3), cmap="Blues", vmin=0, vmax=1)
    for cell, stone in enumerate(env.state):
        axis.text(cell % 3, cell // 3, ".XO"[stone].strip("."), ha="center", va="center", fontsize=22)
    axis.set(xticks=[], yticks=[], title=f"value {found.value:+.2f}")
    observation, _, terminated, *_ = env.step(agent.act(observation))
    if terminated:
        break

path = Path("runs/alphazero/game.png")
path.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(path)
print(f"the game: {path}")
