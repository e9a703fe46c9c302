"""A callback that plays against opponents during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.callback import Every
from noterl.envs.games.game import Array, Game
from noterl.envs.games.players import Player, play_games
from noterl.random import Generators, check_seed
from noterl.types import Logs
from noterl.utils.checks import check_bool, check_int, check_positive

from .support.stateful import StatefulCallback


class Arena(StatefulCallback):
    """Play games of two players against opponents at a fixed frequency. Training is not affected.

    The agent moves first in half of the games. Its score, where a draw counts half, is added to the logs of the episode
    that ended just before, as `arena_<name>`. `History` and loggers record it, and a `Checkpoint` or `EarlyStopping`
    may monitor it.

    Args:
        opponents: by name, players such as `noterl.envs.games.RandomPlayer()`, or functions of
            `(game, states, generator)` that return an action for each state.
        every: number of `unit` between arenas, at the end of the first episode that reaches or passes a multiple.
        unit: "episodes", "steps", "updates" or "seconds".
        games: number of games against each opponent; an even number.
        simulations: of the agent's search for each move; None for the network's own move.
        openings: number of random moves at the start of each game. Without them, a game of two players that do not
            choose at random is the same each time.
        older: whether to play also against the agent's own weights at the last arena, as `arena_older`. The first arena
            has no older weights.
        seed: seed of every arena; by default the agent's seed.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the agent does not play a
            game of two players.

    Attributes:
        results: one list per quantity, with one entry per arena: `episodes` and `steps` so far, and `<name>_won`,
            `<name>_drawn` and `<name>_lost` for each opponent. The lists of `older` begin with the second arena.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import Arena
    >>> from noterl.envs.games import RandomPlayer, TicTacToe
    >>> arena = Arena({"random": RandomPlayer()}, every=10, games=8)
    >>> agent = noterl.AlphaZero(TicTacToe(), simulations=4, hidden=(8,), seed=1)
    >>> history = agent.fit(episodes=20, callbacks=[arena], verbose=0)
    >>> arena.results["episodes"], [0 <= score <= 1 for score in arena.scores("random")]
    ([10, 20], [True, True])
    """

    saved = ("results", "_older")

    def __init__(
        self,
        opponents: Mapping[str, Player],
        every: float = 1000,
        unit: str = "episodes",
        games: int = 20,
        *,
        simulations: int | None = None,
        openings: int = 0,
        older: bool = False,
        seed: int | None = None,
    ) -> None:
        self.older: bool = check_bool("older", older)
        are_players = isinstance(opponents, Mapping) and all(
            isinstance(name, str) and callable(player) for name, player in opponents.items()
        )
        if not are_players or "older" in opponents or not (opponents or older):
            raise ValueError(f"opponents must be a dict of players by name, other than 'older', got {opponents!r}")
        self.opponents: dict[str, Player] = dict(opponents)
        self.games: int = check_positive("games", games)
        if games % 2:
            raise ValueError(f"games must be even, so that the agent moves first in half of them, got {games!r}")
        self.simulations: Any = check_positive("simulations", simulations, none=True)
        self.openings: int = check_int("openings", openings, least=0)
        check_seed(seed)
        self.seed = seed
        self.adds: tuple[str, ...] = tuple(f"arena_{name}" for name in (*self.opponents, *["older"] * older))
        self.results: dict[str, list[int]] = {}
        self.every: Every = Every(every, unit, at="episode", name="every")
        self._older: dict[str, Array] = {}  # the weights at the last arena

    def scores(self, name: str) -> list[float]:
        """Return the score against an opponent in each arena; a draw counts half.

        Raises:
            ValueError: if there is no opponent of this name.
        """
        if f"arena_{name}" not in self.adds:
            raise ValueError(f"name must be one of {', '.join(self.adds).replace('arena_', '')}, got {name!r}")
        won, drawn = (self.results.get(f"{name}_{outcome}", []) for outcome in ("won", "drawn"))
        return [(win + 0.5 * draw) / self.games for win, draw in zip(won, drawn, strict=True)]

    def on_train_begin(self, logs: Logs) -> None:
        """Check that the agent plays a game of two players."""
        game = getattr(self.agent, "game", None)
        if game is None or game.players != 2:
            raise ValueError(f"Arena needs an agent that plays a noterl.envs.Game of two players, got {self.agent!r}")

    def on_due(self, logs: Logs) -> None:
        """Play against each opponent, add the scores to the logs and the counts to `results`, and store the weights.

        The weights are stored with `older` only, for the next arena.
        """
        agent: Any = self.agent
        row = {"episodes": agent.episodes, "steps": agent.steps}
        players: dict[str, Player] = dict(self.opponents)
        if self.older and self._older:
            players["older"] = self._play_older
        for name, player in players.items():
            results = self._play(agent.game, player)
            counts = {"won": (results > 0).sum(), "drawn": (results == 0).sum(), "lost": (results < 0).sum()}
            row.update({f"{name}_{outcome}": int(count) for outcome, count in counts.items()})
            logs[f"arena_{name}"] = float((results + 1).mean() / 2)
        for key, value in row.items():
            self.results.setdefault(key, []).append(value)
        if self.older:
            self._older = agent.get_weights()

    def _play(self, game: Game, player: Player) -> Array:
        """Return the agent's results `[games]` against a player: 1, 0 or -1."""
        # The same seed for each arena, so that two arenas differ by the agents only.
        generator = Generators(self.agent.generators.seed if self.seed is None else self.seed)("arena")
        half = self.games // 2
        first = play_games(game, self._choose, player, half, generator, openings=self.openings)
        second = play_games(game, player, self._choose, half, generator, openings=self.openings)
        return np.concatenate([first, -second])

    def _choose(self, game: Game, states: Array, generator: np.random.Generator) -> Array:
        """Return the agent's actions `[N]`."""
        agent: Any = self.agent
        if self.simulations is None:
            return np.asarray(agent.act(game.observe(states), action_mask=game.legal_actions(states)))
        shares: Array = agent.search(states, simulations=self.simulations).visit_shares
        return shares.argmax(axis=1)

    def _play_older(self, game: Game, states: Array, generator: np.random.Generator) -> Array:
        """Return the actions `[N]` of the agent with the older weights; the agent then has its own weights again."""
        weights = self.agent.get_weights()
        self.agent.set_weights(self._older)
        try:
            return self._choose(game, states, generator)
        finally:
            self.agent.set_weights(weights)
