"""Games for search: the protocol, boards, single-agent environments that can be restored, and opponents."""

from noterl.envs.games.connect_four import ConnectFour as ConnectFour
from noterl.envs.games.game import Game as Game
from noterl.envs.games.game import GameEnv as GameEnv
from noterl.envs.games.game import Outcome as Outcome
from noterl.envs.games.players import RandomPlayer as RandomPlayer
from noterl.envs.games.players import play_all_lines as play_all_lines
from noterl.envs.games.players import play_games as play_games
from noterl.envs.games.restored import RestoredEnv as RestoredEnv
from noterl.envs.games.tic_tac_toe import TicTacToe as TicTacToe
