"""Games: rules, the environment around them, restored environments, players, and descriptions in files."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from noterl import envs
from noterl.envs.games import (
    ConnectFour,
    Game,
    GameEnv,
    RandomPlayer,
    RestoredEnv,
    TicTacToe,
    play_all_lines,
    play_games,
)
from tests.support.minimax import Minimax

pytestmark = pytest.mark.backend_free

GAMES = [TicTacToe(), ConnectFour()]


def played(game: Game, actions: list[int]) -> np.ndarray:
    states = game.start(1)
    for action in actions:
        assert np.isnan(game.result(states)[0])
        states = game.step(states, np.array([action]))
    return states


def count_games(game: Game) -> tuple[int, int, int]:
    """Count all games of tic-tac-toe that the first player wins, draws and loses."""
    states, counts = game.start(1), np.zeros(3, np.int64)
    while len(states):
        rows, actions = np.nonzero(game.legal_actions(states))
        outcome = game.advance(states[rows], actions)
        counts += [(outcome.terminated & (outcome.reward == value)).sum() for value in (1, 0, -1)]
        states = outcome.states[~outcome.terminated]
    return tuple(counts.tolist())


def test_tic_tac_toe_has_the_known_number_of_games() -> None:
    assert count_games(TicTacToe()) == (131184, 46080, 77904)


def test_connect_four_has_the_known_number_of_positions() -> None:
    game, states = ConnectFour(), ConnectFour().start(1)
    counts = []
    for _ in range(7):  # John Tromp's table counts positions that differ, with those in which a player has won
        rows, actions = np.nonzero(game.legal_actions(states))
        outcome = game.advance(states[rows], actions)
        counts.append(len(np.unique(outcome.states, axis=0)))
        states = np.unique(outcome.states[~outcome.terminated], axis=0)
    assert counts == [7, 49, 238, 1120, 4263, 16422, 54859]


@pytest.mark.parametrize(
    ("actions", "result"),
    [
        ([0, 1, 0, 1, 0, 1, 0], 1),  # a column
        ([0, 0, 1, 1, 2, 2, 3], 1),  # a row
        ([6, 0, 1, 1, 2, 2, 3, 2, 3, 3, 5, 3], -1),  # a rising diagonal
        ([0, 6, 5, 5, 4, 4, 3, 4, 3, 3, 1, 3], -1),  # a falling diagonal
    ],
)
def test_four_in_a_row_wins(actions: list[int], result: int) -> None:
    assert ConnectFour().result(played(ConnectFour(), actions)).tolist() == [result]


def test_full_columns_are_illegal() -> None:
    game = ConnectFour()
    states = played(game, [3, 3, 3, 3, 3, 3])
    assert game.legal_actions(states)[0].tolist() == [True, True, True, False, True, True, True]


@pytest.mark.parametrize("game", GAMES, ids=["tic-tac-toe", "connect four"])
def test_observations_show_own_stones_first_and_the_legal_actions(game: Game) -> None:
    states, rng = game.start(8), np.random.default_rng(0)
    for move in range(6):
        assert (game.to_play(states) == move % 2).all()
        observations = game.observe(states)
        own, other = np.split(observations, 2, axis=1)
        sign = 1 if move % 2 == 0 else -1
        np.testing.assert_array_equal(own - other, sign * states.reshape(8, -1))
        np.testing.assert_array_equal(game.legal_in(observations), game.legal_actions(states))
        before = states.copy()
        following = game.step(states, RandomPlayer()(game, states, rng))
        np.testing.assert_array_equal(states, before, "step does not change its argument")
        states = following


class TestGameEnv:
    def test_reward_is_the_first_players_result(self) -> None:
        env = GameEnv(TicTacToe())
        env.reset(seed=0)
        steps = [env.step(action)[1:4] for action in (8, 0, 7, 1, 3, 2)]
        assert steps == [(0.0, False, False)] * 5 + [(-1.0, True, False)]

    def test_info_holds_legal_actions_and_the_player(self) -> None:
        env = GameEnv(TicTacToe())
        _, info = env.reset(seed=0)
        assert info["to_play"] == 0 and info["action_mask"].all()
        *_, info = env.step(2)
        assert info["to_play"] == 1 and np.flatnonzero(~info["action_mask"]).tolist() == [2]

    @pytest.mark.parametrize("action", [4, 9, -1])
    def test_illegal_action_raises(self, action: int) -> None:
        env = GameEnv(TicTacToe())
        env.reset(seed=0)
        env.step(4)
        with pytest.raises(ValueError, match="action"):
            env.step(action)

    def test_state_is_restored(self) -> None:
        env = GameEnv(ConnectFour())
        env.reset(seed=0)
        env.step(3)
        state = envs.get_state(env)
        assert state is not None
        env.step(3)
        envs.set_state(env, state)
        assert env.state.sum() == 1
        with pytest.raises(ValueError, match="state"):
            env.set_state({"state": np.zeros(9, np.int8)})

    def test_render_is_the_board_as_text(self) -> None:
        env = GameEnv(TicTacToe(), render_mode="ansi")
        env.reset(seed=1)
        env.step(0)
        env.step(4)
        assert env.render() == "X . .\n. O .\n. . ."

    def test_bad_arguments_raise(self) -> None:
        wrong: Any = "tic-tac-toe"
        with pytest.raises(ValueError, match="game"):
            GameEnv(wrong)
        with pytest.raises(ValueError, match="render_mode"):
            GameEnv(TicTacToe(), render_mode="human")


class TestSource:
    def test_a_game_is_an_environment(self) -> None:
        source = envs.resolve(TicTacToe())
        assert isinstance(source.game, TicTacToe)
        lane, evaluation = source.make(0), source.make_evaluation()
        assert isinstance(lane, GameEnv) and lane is not evaluation

    def test_description_makes_the_game_again(self) -> None:
        described = envs.resolve(ConnectFour()).describe()
        assert described["game"] == {"class": "ConnectFour", "arguments": {}}
        source = envs.from_description(described)
        assert isinstance(source.game, ConnectFour) and isinstance(source.make(0), GameEnv)

    @pytest.mark.parametrize(
        "entry",
        [
            "TicTacToe",
            {"class": "TicTacToe"},
            {"class": "TicTacToe", "arguments": {"size": 4}},
            {"class": 3, "arguments": {}},
            {"class": "TicTacToe", "arguments": {}, 1: 2},
        ],
    )
    def test_malformed_description_raises(self, entry: Any) -> None:
        described = {**envs.resolve(TicTacToe()).describe(), "game": entry}
        with pytest.raises(ValueError, match="description"):
            envs.from_description(described)

    def test_wrapper_around_a_game_raises(self) -> None:
        source = envs.resolve(gymnasium.wrappers.TimeLimit(GameEnv(TicTacToe()), 3))
        with pytest.raises(ValueError, match="env"):
            _ = source.game

    def test_other_environments_have_no_game(self) -> None:
        assert envs.resolve("CartPole-v1").game is None


class Counter(gymnasium.Env[Any, Any]):
    """Counts up by the action; it has state methods if `restores`, and does not repeat steps if `drifts`."""

    shared: int = 0

    def __init__(self, drifts: bool = False) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(2)
        self.count, self.drifts = 0, drifts

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.see(), {"action_mask": np.array([True, False])}

    def see(self) -> np.ndarray:
        return np.array([self.count], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += int(action) + 1
        Counter.shared += 1
        noise = self.np_random.random() + (Counter.shared if self.drifts else 0)
        return self.see(), noise, self.count > 5, False, {}


class SavedCounter(Counter):
    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class TestRestoredEnv:
    @pytest.mark.parametrize("kind", [Counter, SavedCounter])
    def test_states_branch_and_repeat(self, kind: type[Counter]) -> None:
        env = gymnasium.wrappers.TimeLimit(kind(), 3)
        game = RestoredEnv(gymnasium.wrappers.TimeLimit(kind(), 3))
        observation, info = env.reset(seed=4)
        states = game.pack([game.snapshot(env, observation, info["action_mask"])] * 2)
        assert game.legal_actions(states).tolist() == [[True, False]] * 2
        first = game.advance(states, np.array([0, 1]))
        assert game.observe(first.states).tolist() == [[1.0], [2.0]]
        assert first.reward[0] == first.reward[1], "the generator is restored too"
        assert game.legal_actions(first.states).all()
        second = game.advance(first.states, np.array([1, 1]))
        assert game.observe(second.states).tolist() == [[3.0], [4.0]]
        third = game.advance(second.states, np.array([0, 1]))
        assert third.terminated.tolist() == [False, True] and third.truncated.tolist() == [True, False]
        again = game.advance(first.states, np.array([1, 1]))
        np.testing.assert_array_equal(again.reward, second.reward)
        assert env.step(0)[0].tolist() == [1.0], "the environment itself was not stepped"

    @pytest.mark.parametrize("kind", [Counter, SavedCounter])
    def test_new_seeds_change_the_chance_of_a_state_only(self, kind: type[Counter]) -> None:
        env, game, generator = kind(), RestoredEnv(kind()), np.random.default_rng(0)
        observation, info = env.reset(seed=4)
        snapshot = game.snapshot(env, observation, info["action_mask"])
        states = game.pack([snapshot, *(game.with_new_seeds(snapshot, generator) for _ in range(3))])
        outcome = game.advance(states, np.zeros(4, np.int64))
        assert (game.observe(outcome.states) == 1).all() and len(set(outcome.reward.tolist())) == 4
        again = game.advance(states, np.zeros(4, np.int64))
        np.testing.assert_array_equal(again.reward, outcome.reward)
        assert env.step(0)[1] == outcome.reward[0]

    def test_environment_that_does_not_repeat_raises(self) -> None:
        with pytest.raises(ValueError, match="env: Counter does not repeat"):
            RestoredEnv(Counter(drifts=True))

    def test_environment_that_cannot_be_copied_raises(self) -> None:
        env = Counter()
        env.handle = (number for number in range(3))  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="env: Counter cannot be restored"):
            RestoredEnv(env)

    @pytest.mark.parametrize("mask", [np.zeros(2, np.bool_), np.ones(3, np.bool_), np.ones(2)])
    def test_mask_that_does_not_fit_raises(self, mask: np.ndarray) -> None:
        class Masked(Counter):
            def step(self, action: int) -> Any:
                return *super().step(action)[:4], {"action_mask": mask if self.count > 1 else np.ones(2, np.int8)}

        env = Masked()
        with pytest.raises(ValueError, match="action_mask"):
            RestoredEnv(env)

    def test_mask_of_a_terminated_state_may_forbid_everything(self) -> None:
        class Short(Counter):
            def step(self, action: int) -> Any:
                return *super().step(action)[:2], True, False, {"action_mask": np.zeros(2, np.int8)}

        game = RestoredEnv(Short())
        outcome = game.advance(game.start(1), np.array([0]))
        assert outcome.terminated.all()

    def test_continuous_actions_raise(self) -> None:
        env = Counter()
        env.action_space = spaces.Box(-1, 1, (1,))
        with pytest.raises(ValueError, match="env"):
            RestoredEnv(env)

    def test_cartpole_repeats_its_steps(self) -> None:
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=3)
        game = RestoredEnv(gymnasium.make("CartPole-v1"))
        states = game.pack([game.snapshot(env, observation)])
        for action in (0, 1, 1, 0):
            outcome = game.advance(states, np.array([action]))
            observation = env.step(action)[0]
            np.testing.assert_array_equal(game.observe(outcome.states)[0], observation)
            states = outcome.states


class TestPlayers:
    def test_random_moves_are_uniform_among_legal_ones(self) -> None:
        game = TicTacToe()
        states = np.repeat(np.array([[1, -1, 0, 1, 0, 0, -1, 1, -1]], np.int8), 6000, axis=0)
        counts = np.bincount(RandomPlayer()(game, states, np.random.default_rng(0)), minlength=9)
        assert counts[states[0] != 0].sum() == 0
        np.testing.assert_allclose(counts[[2, 4, 5]], 2000, rtol=0.08)

    def test_minimax_draws_with_itself_and_never_loses(self) -> None:
        game, rng = TicTacToe(), np.random.default_rng(0)
        best = Minimax(depth=9)
        assert (play_games(game, best, best, 20, rng) == 0).all()
        assert (play_games(game, RandomPlayer(), best, 50, rng) <= 0).all()

    def test_minimax_sees_a_win_two_moves_ahead(self) -> None:
        game = ConnectFour()
        states = played(game, [2, 0, 3, 0])  # only after 4, three stones have space on both sides
        values = Minimax(depth=3).values(game, states)[0]
        assert values.tolist() == [0, 0, 0, 0, 1, 0, 0]
        assert Minimax(depth=2).values(game, states)[0].tolist() == [0] * 7

    def test_every_line_of_play_is_counted(self) -> None:
        """A player that takes the first empty cell, compared with a walk over all boards."""

        def first_legal(game: Game, states: np.ndarray, generator: Any) -> np.ndarray:
            return game.legal_actions(states).argmax(axis=1)

        def walk(board: list[int], mine: bool) -> np.ndarray:
            result = TicTacToe().result(np.array([board], np.int8))[0]
            if not np.isnan(result):
                return np.eye(3, dtype=int)[1 - int(result)]
            empty = [cell for cell in range(9) if board[cell] == 0]
            sign = 1 if len(empty) % 2 else -1
            return sum(
                walk([sign if place == cell else old for place, old in enumerate(board)], not mine)
                for cell in (empty[:1] if mine else empty)
            )

        won, drawn, lost = walk([0] * 9, True).tolist()
        assert play_all_lines(TicTacToe(), first_legal, first=True) == (won, drawn, lost)
        won, drawn, lost = walk([0] * 9, False).tolist()
        assert play_all_lines(TicTacToe(), first_legal, first=False) == (lost, drawn, won)

    def test_openings_are_random_moves(self) -> None:
        def count(game: Game, states: np.ndarray, generator: Any) -> np.ndarray:
            assert (np.count_nonzero(states, axis=1) >= 2).all()
            return game.legal_actions(states).argmax(axis=1)

        results = play_games(TicTacToe(), count, count, 30, np.random.default_rng(0), openings=2)
        assert len(set(results.tolist())) > 1 and not np.isnan(results).any()

    @pytest.mark.parametrize("action", [0, -1, 9])
    def test_player_that_makes_an_illegal_move_is_refused(self, action: int) -> None:
        def constant(game: Game, states: np.ndarray, generator: Any) -> np.ndarray:
            return np.full(len(states), action)

        with pytest.raises(ValueError, match=f"a player must return legal actions, got {action}"):
            play_games(TicTacToe(), constant, RandomPlayer(), 8, np.random.default_rng(0))
        with pytest.raises(ValueError, match=f"a player must return legal actions, got {action}"):
            play_all_lines(TicTacToe(), constant, first=True)
