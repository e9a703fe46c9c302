"""An actor whose training actions a tree search chooses, with one forward pass for all lanes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from noterl.acting.actor import Actor, ActorLanes
from noterl.acting.gumbel import GumbelTree
from noterl.acting.policy_state import NO_STATE, State
from noterl.acting.search import SearchResult, Tree, with_temperature
from noterl.envs import EnvSource
from noterl.envs.games.game import Game
from noterl.envs.games.players import random_choice
from noterl.envs.games.restored import RestoredEnv
from noterl.utils.cores import one_blas_thread


@dataclass(frozen=True)
class SearchSettings:
    """How to search; each number may be a `Hyperparameter`.

    Attributes:
        simulations: of each search.
        gumbel: whether to search with a `GumbelTree`, which has no `c_puct`, Dirichlet noise and temperature.
        c_puct: the weight of the prior.
        discount: of the value after each move.
        dirichlet_alpha: the parameter of the noise at the root.
        dirichlet_share: the share of the noise in the priors of the root.
        temperature: visit counts to the power of 1 / temperature are the probabilities of training actions.
        random_moves: the probability that a training action is a uniformly random legal one.
    """

    simulations: int
    gumbel: bool
    c_puct: Any
    discount: Any
    dirichlet_alpha: Any
    dirichlet_share: Any
    temperature: Any
    random_moves: Any


@dataclass(eq=False)
class SearchActor(Actor):
    """Chooses training actions by a search from the states of all lanes, in lockstep.

    `act` does not search and returns the most probable legal action.

    Attributes:
        settings: how to search.
        source: makes the environments if `search` is called before `attach`.
        fields: the visit shares of the last `choose_actions`, as "visit_shares".
    """

    searches = True

    settings: SearchSettings = field(kw_only=True)
    source: EnvSource = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lanes: ActorLanes | None = None
        self._game: tuple[EnvSource, Game] | None = None

    def attach(self, lanes: ActorLanes) -> None:
        """Search from the states of these lanes from now on.

        Raises:
            ValueError: if the environment cannot be restored, or is a vector environment.
        """
        if lanes.source.steps_together:
            raise ValueError("env: a search needs environments that step one by one; pass one of them and num_envs=")
        self._lanes = lanes
        self.game_of(lanes.source)

    def game_of(self, source: EnvSource) -> Game:
        """Return the game that the environments of a source play; a single-agent environment is wrapped as one.

        The first call for a source opens an environment for searches, and closes the environment of another source.
        """
        if source.game is not None:
            return source.game
        if self._game is None or self._game[0] is not source:
            self.close()
            env = source.make_evaluation()
            try:
                self._game = (source, RestoredEnv(env))
            except BaseException:
                env.close()
                raise
        return self._game[1]

    def close(self) -> None:
        """Close the environment that searches step; the next search makes another."""
        if self._game is not None:
            game: Any = self._game[1]
            self._game = None
            game.close()

    def choose_actions(
        self,
        observations: np.ndarray,
        step: int,
        waiting: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        state: State = NO_STATE,
    ) -> tuple[np.ndarray, State]:
        """Search from all lanes, set `fields`, and return the training actions `[N]`; also before `learning_starts`."""
        settings = self.settings
        generator = self.explorer.generator
        assert self._lanes is not None, "attach comes first"
        game = self.game_of(self._lanes.source)
        states = self._states(game, self._lanes)
        # The search may step environments, which may hang.
        search = partial(self._tree, game, states, settings.simulations, explore=True)
        tree: Tree = self._lanes.guard.call(search)
        shares = tree.result().visit_shares
        self.fields: dict[str, np.ndarray] = {"visit_shares": shares.astype(np.float32)}
        if isinstance(tree, GumbelTree):
            actions = tree.best()
        else:
            # A sample from each row of probabilities: the first action whose cumulative sum exceeds a random number.
            ends = with_temperature(shares, float(settings.temperature)).cumsum(axis=1)
            actions = (generator.random((len(states), 1)) * ends[:, -1:] >= ends).sum(axis=1)
        is_random = generator.random(len(states)) < float(settings.random_moves)
        return np.where(is_random, random_choice(game.legal_actions(states), generator), actions), state

    def search(self, game: Game, states: np.ndarray, simulations: int) -> SearchResult:
        """Return the visit shares and values of states `[N, ...]`, from searches without noise."""
        return self._tree(game, states, simulations, explore=False).result()

    def _tree(self, game: Game, states: np.ndarray, simulations: int, *, explore: bool) -> Tree:
        """Return one `Tree` for states `[N, ...]` after all simulations; `explore` adds noise at the roots."""
        settings = self.settings
        generator = self.explorer.generator
        options: dict[str, Any] = {"simulations": simulations, "discount": float(settings.discount)}
        if settings.gumbel:
            options["generator"] = generator if explore else None
        else:
            noise = (float(settings.dirichlet_alpha), float(settings.dirichlet_share), generator)
            options |= {"c_puct": float(settings.c_puct), "dirichlet": noise if explore else None}
        evaluate = partial(self.evaluate, game, rows=len(states))
        tree = (GumbelTree if settings.gumbel else Tree)(game, states, evaluate, **options)
        with one_blas_thread():
            tree.run(simulations)
        return tree

    def evaluate(self, game: Game, observations: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits `[n, A]` and the values `[n]`, in the game's units, of `n <= rows` encoded observations."""
        count = len(observations)
        if count < rows and not self.forward.in_numpy:  # a compiled call is traced for each number of rows
            padding = np.zeros((rows - count, *observations.shape[1:]), observations.dtype)
            observations = np.concatenate([observations, padding])
        outputs = self.outputs(observations)[0][:count]
        logits = outputs[:, :-1]
        value = outputs[:, -1].astype(np.float64)
        return logits, np.tanh(value) if game.players == 2 else value / (1.0 - float(self.settings.discount))

    def select(
        self,
        observations: np.ndarray,
        step: int,
        explorer: Any,
        mask: np.ndarray | None = None,
        state: State = NO_STATE,
    ) -> tuple[np.ndarray, State]:
        """Return the most probable legal actions `[N]`, or samples of the network's policy if there is an explorer."""
        game = self.source.game
        if mask is None and game is not None:
            mask = game.legal_in(observations)
        return super().select(observations, step, explorer, mask, state)

    def _states(self, game: Any, lanes: ActorLanes) -> np.ndarray:
        """Return the states of all lanes, `[N, ...]`."""
        if not isinstance(game, RestoredEnv):
            return np.stack([environment.state for environment in lanes.environments])
        rows = zip(lanes.environments, lanes.observations(), lanes.info["action_mask"], strict=True)
        # Without new seeds, a search would foresee what chance does in the environment.
        generator = self.generators("search")
        return game.pack([game.with_new_seeds(game.snapshot(*row), generator) for row in rows])
