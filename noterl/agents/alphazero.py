"""AlphaZero: a tree search that is guided by a network, which learns to predict the search and the outcome.

Paper: Silver et al., "A general reinforcement learning algorithm that masters chess, shogi and Go through self-play",
Science 362 (2018): the search, the noise at the root and the loss. Games of one player: the scaling of values in the
tree and the n-step targets of Schrittwieser et al., "Mastering Atari, Go, chess and shogi by planning with a learned
model", Nature 588 (2020), equations 3 and 5, with the environment itself as the model. `gumbel=True`: Danihelka et al.,
"Policy improvement by planning with Gumbel", 2022, with the game itself as the model.

Differs: a share of the moves in self-play is uniformly random, with unchanged targets. Without them, self-play leaves
positions unseen that an opponent can reach. `c_puct` is constant. N(s) in the score counts the evaluation of the node,
so the prior decides the first visit. The noise parameter is 10 divided by the number of actions by default. Each search
starts with a new tree. Updates follow self-play in one process, and no second network is evaluated against the first.
Moves have the same temperature in the whole game. The tree has no chance nodes: in a stochastic environment of one
player, each search samples one outcome of each action of a node, from copies with new seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from noterl import heads, losses, networks
from noterl.acting.search import SearchResult
from noterl.acting.search_actor import SearchActor, SearchSettings
from noterl.agent import Agent, AgentOptions, Defaults
from noterl.backends import keras, ops
from noterl.envs.games.game import Game, GameEnv
from noterl.hyperparameters import Hyperparameter
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_positive


@register
class AlphaZero(Agent):
    """AlphaZero for games of two players, and for environments of one player that can be restored.

    In training, each action is chosen by a search from the environment's state. All lanes search in lockstep: a
    simulation is one forward pass for all lanes, so use many, such as `fit(num_envs=64)`. In a game of two
    players, the agent plays both sides, and `reward` in the logs is the first player's result. `act` and `evaluate` do
    not search; they use the network's most probable legal action. `search` searches.

    A replay memory of your own should have an `n_step` of at least the length of a game; the default memory has. With
    fewer steps, value targets are the network's own values after `n_step` moves.

    Args:
        env: a `noterl.envs.Game` for two players, or an environment of one player with Discrete actions, as for
            `noterl.Agent`. `noterl.envs.games.RestoredEnv` documents how such an environment is restored.
        simulations: of each search in training. More give better targets and take longer.
        gumbel: whether the root halves a sample of actions, and the network learns the search's improved policy instead
            of visit shares (Danihelka et al., 2022). Fewer simulations suffice. `c_puct`, `temperature` and the
            Dirichlet noise are then not used, and `search` returns the improved policy as the visit shares.
        c_puct: the weight of the prior in the search. Can be changed during training.
        temperature: visit counts to the power of 1 / temperature are the probabilities of actions in training; 0 for
            the action with the most visits. Can be changed during training.
        dirichlet_alpha: the parameter of the noise in the priors at the root; by default 10 / actions. Can be changed
            during training.
        dirichlet_share: the share of the noise, 0 to 1. Can be changed during training.
        random_moves: the probability that an action in training is a uniformly random legal one; by default 0.25 for
            two players and 0 for one. Can be changed during training.
        gamma: discount factor, 0 to 1; by default 1 for two players, and 0.99 for one, where it is at most 0.9999. Can
            be changed during training.
        l2: the weight of the sum of all squared weights in the loss. Can be changed during training.
        hidden: units of each hidden layer for vector observations; images use the network of Mnih et al. (2015).
        network: the path of a network file, or your own network `[B, observation] -> [B, actions + 1]`: logits, then
            the value. For two players, the value is the tanh of this output. For one, the value is this output divided
            by `1 - gamma`.
        normalize_observation: see `noterl.Agent`.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> from noterl.envs.games import TicTacToe
    >>> agent = noterl.AlphaZero(TicTacToe(), simulations=8, hidden=(16,), seed=7)
    >>> history = agent.fit(episodes=20, num_envs=4, verbose=0)
    >>> result = agent.search(TicTacToe().start(1)[0], simulations=50)
    >>> result.visit_shares.shape, bool(abs(result.value) <= 1)
    ((9,), True)
    """

    memory, head = "replay", heads.PolicyValue()
    action_spaces: tuple[str, ...] = ("Discrete",)
    actor_fields, searches = ("visit_shares",), True
    gamma: Hyperparameter
    c_puct: Hyperparameter
    l2: Hyperparameter
    temperature: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        simulations: int = 32,
        gumbel: bool = False,
        c_puct: float | Schedule = 2.0,
        temperature: float | Schedule = 1.0,
        dirichlet_alpha: float | Schedule | None = None,
        dirichlet_share: float | Schedule = 0.25,
        random_moves: float | Schedule | None = None,
        gamma: float | Schedule | None = None,
        l2: float | Schedule = 1e-4,
        hidden: Sequence[int] = (128, 128),
        network: Any = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        if options.get("normalize_reward"):
            raise ValueError("normalize_reward must be False, because a search adds up the environment's rewards")
        self.simulations, self.gumbel = check_positive("simulations", simulations), check_bool("gumbel", gumbel)
        game, size = self.spaces.source.game, self.action_size
        self.players: int = 1 if game is None else game.players
        self.longest: int = 32 if game is None else game.max_length  # moves until a value is bootstrapped
        self.extra_spec: dict[str, Any] = {"visit_shares": ((size,), np.float32)}
        self.info_spec: dict[str, Any] = {"action_mask": ((size,), np.bool_, True), "to_play": ((), np.int8, 0)}
        (network,) = networks.split_networks(network, "network")
        self.network: networks.Network = self.spaces.network_or_default(network, hidden, size + 1)

        def number(name: str, value: Any, default: float = 0.0, maximum: float | None = None) -> Any:
            return self.hyperparameter(name, default if value is None else value, minimum=0.0, maximum=maximum)

        self.gamma = number("gamma", gamma, *((1.0, 1.0) if self.players == 2 else (0.99, 0.9999)))
        self.c_puct, self.l2 = number("c_puct", c_puct), number("l2", l2)
        self.temperature = number("temperature", temperature)
        self.dirichlet_alpha: Any = number("dirichlet_alpha", dirichlet_alpha, 10.0 / size)
        self.dirichlet_share: Any = number("dirichlet_share", dirichlet_share, maximum=1.0)
        self.random_moves: Any = number("random_moves", random_moves, 0.25 if self.players == 2 else 0.0, maximum=1.0)

    @property
    def game(self) -> Game | None:
        """The game of two players that the agent plays; None for an environment of one player."""
        return self.spaces.source.game

    def defaults(self) -> Defaults:
        """Return the default settings, which were checked on tic-tac-toe (benchmarks/learning_tasks/)."""
        return Defaults(
            optimizer=keras.optimizers.Adam(2e-3),
            capacity=30_000,
            batch_size=256,
            learning_starts=2_000,
            update_every=64,
            updates=1,
            target_update=None,
            n_step=self.longest,
        )

    def forward(self, observation: Any) -> Any:
        """Return the logits and the value of observations, `[B, A + 1]`."""
        return self.network(observation)

    def values(self, outputs: Any) -> Any:
        """Return the values `[B]` in outputs `[B, A + 1]`: of the player to move, or scaled by `1 - gamma` for one."""
        value = outputs[:, -1]
        return ops.tanh(value) if self.players == 2 else value

    def value_target(self, batch: Batch) -> Any:
        """Return the targets `[B]` of `values`: the outcome for the player to move, without a gradient.

        The batch's reward is the first player's, summed over `n_step` moves. If the game goes on after these, the value
        of the next observation is added.
        """
        following = self.values(self.network(batch.next_observation))
        if self.players == 1:
            return ops.stop_gradient((1.0 - self.gamma) * batch.reward + batch.discount * following)
        sign, next_sign = (1.0 - 2.0 * ops.cast(batch.extra[name], "float32") for name in ("to_play", "next_to_play"))
        return ops.stop_gradient(sign * (batch.reward + batch.discount * next_sign * following))

    def loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return `cross entropy + squared error of the value + l2 * squared weights`, and metrics."""
        outputs = self.network(batch.observation)
        log_policy = self.head.log_policy(self.head.masked(outputs, batch.extra["action_mask"]))
        cross_entropy = -ops.sum(batch.extra["visit_shares"] * log_policy, axis=-1)
        error = self.value_target(batch) - self.values(outputs)
        policy_loss = losses.weighted_mean(cross_entropy, batch.weight)
        value_loss = losses.weighted_mean(ops.square(error), batch.weight)
        squares = sum(ops.sum(ops.square(weights)) for weights in networks.trainable_tensors(self.network))
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "td_error": error}
        return policy_loss + value_loss + self.l2 * squares, metrics

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one gradient step."""
        loss, metrics = self.minimize(self.loss, self.network, "optimizer", batch)
        feedback = {"td_error": metrics.pop("td_error")}
        return {"loss": loss, **metrics}, feedback

    def search(self, state: Any, simulations: int | None = None, *, action_mask: Any = None) -> SearchResult:
        """Search from a state without noise; training is not affected.

        Args:
            state: for a game, a state `[...]` or states `[N, ...]` of it, or its `GameEnv`. For an environment of one
                player, a pair (environment, current observation); the environment is not changed. If it is stochastic,
                each search samples what happens by chance.
            simulations: by default as many as in training.
            action_mask: for an environment of one player, the legal actions `[A]`, such as `info["action_mask"]`; None
                if all are legal.

        Returns:
            The visit shares `[A]` and the value for the player to move; for states `[N, ...]`, `[N, A]` and `[N]`.

        Raises:
            ValueError: if the game is over, or an argument is not one of these.
        """
        count = self.simulations if simulations is None else check_positive("simulations", simulations)
        actor = self._parts.actor
        actor.mark_stale()
        game: Any = actor.game_of(self.spaces.source)  # type: ignore[attr-defined]
        if self.game is None:
            states, single = game.root(state, self._parts.act_generator, action_mask), True
        elif action_mask is not None:
            raise ValueError(f"action_mask must be None, because the game has legal_actions, got {action_mask!r}")
        else:
            states = np.asarray(state.state if isinstance(state, GameEnv) else state)
            shape = game.start(1).shape[1:]
            single = states.ndim == len(shape)
            states = states[None] if single else states
            if states.shape[1:] != shape or not len(states):
                raise ValueError(f"state must be of the shape {shape} or (N, *{shape}), got {np.shape(state)}")
            if not np.isnan(game.result(states)).all():
                raise ValueError(f"state must be one in which the game is not over, got {state!r}")
        result: SearchResult = actor.search(game, states, count)  # type: ignore[attr-defined]
        return SearchResult(result.visit_shares[0], float(result.value[0])) if single else result

    def close(self) -> None:
        """Close the environments; a later `fit` opens them again and continues their episodes."""
        if isinstance(self._parts.built_actor, SearchActor):
            self._parts.built_actor.close()
        super().close()

    def _new_actor(self, *parts: Any) -> SearchActor:
        settings = SearchSettings(
            simulations=self.simulations,
            gumbel=self.gumbel,
            c_puct=self.c_puct,
            discount=self.gamma,
            dirichlet_alpha=self.dirichlet_alpha,
            dirichlet_share=self.dirichlet_share,
            temperature=self.temperature,
            random_moves=self.random_moves,
        )
        return SearchActor(*parts, settings=settings, source=self.spaces.source)
