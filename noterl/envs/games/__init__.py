"""Games for search: the protocol, boards, single-agent environments that can be restored, and opponents."""

from noterl.envs.games.connect_four import ConnectFour
from noterl.envs.games.game import Game, GameEnv, Outcome
from noterl.envs.games.pettingzoo_game import PettingZooGame
from noterl.envs.games.players import Minimax, RandomPlayer, play_all_lines, play_games
from noterl.envs.games.restored import RestoredEnv
from noterl.envs.games.tic_tac_toe import TicTacToe

__all__ = [
    "ConnectFour",
    "Game",
    "GameEnv",
    "Minimax",
    "Outcome",
    "PettingZooGame",
    "RandomPlayer",
    "RestoredEnv",
    "TicTacToe",
    "play_all_lines",
    "play_games",
]
