"""The base class of PPO, A2C, TRPO and ACER: an actor, a critic, and generalized advantages of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from gymnasium import spaces

from noterl import heads, losses, networks
from noterl.agent import Agent, AgentOptions
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import scalar_values
from noterl.types import ACTING_OUTPUTS, Batch
from noterl.utils.checks import check_bool, check_number


class ActorCriticOptions(AgentOptions, total=False):
    """The keyword arguments of `ActorCritic`."""

    hidden: Sequence[int]
    network: Any
    shared: bool | None
    activation: str
    log_std: float


class ActorCritic(Agent):
    """Base of the actor-critics that learn from rollouts.

    Args:
        env: see `noterl.Agent`.
        hidden: units of each hidden layer for vector observations; images use the network of Mnih et al. (2015).
        network: the path of a network file, or your own actor `[B, observation] -> [B, outputs of the head]`; or
            (actor, critic), with a critic `[B, observation] -> [B, 1]`; or one network that returns both. The agent
            builds a network that is None. For Discrete and MultiDiscrete actions, the actor returns logits, or
            probabilities if its last layer is a softmax. For MultiBinary actions, it returns logits.
        shared: whether actor and critic share all layers but the last; by default only for images, unless you pass
            an actor.
        activation: of the hidden layers.
        log_std: the initial log standard deviations of Box actions; they do not depend on the observation.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.
        seed: see `noterl.Agent`.
    """

    memory = "rollout"
    gamma: Hyperparameter
    gae_lambda: Hyperparameter = 0.95  # type: ignore[assignment]
    entropy_coefficient: Hyperparameter
    critic: Any = None  # None if the actor also returns the values
    _optional_hyperparameters: tuple[str, ...] = ()  # those that may be None, which leaves a part of the update out

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (64, 64),
        network: Any = None,
        shared: bool | None = None,
        activation: str = "tanh",
        log_std: float = 0.0,
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        continuous = isinstance(self.action_space, spaces.Box)
        actor, critic = networks.split_networks(network, "actor", "critic", shareable=shared is not False)
        if self.head is None:
            self.head: Any = self._default_head(actor).bind(self.action_space)
        scale = check_number("log_std", log_std) if continuous else None
        outputs = self.head.size // 2 if continuous else self.head.size
        last_layer = {"outputs": outputs, "gain": 0.01, "log_std": scale}
        self.build_networks((actor, critic), hidden, shared, activation, last_layer)

    def build_networks(
        self, network: Any, hidden: Sequence[int], shared: bool | None, activation: str, last_layer: dict[str, Any]
    ) -> None:
        """Build the networks; `network` is a pair (actor, critic), and other arguments are as in the constructor.

        `last_layer` holds the arguments of the actor's last layer: `outputs`, `gain` and `log_std`.
        """
        actor, critic = network
        if shared is True and critic is not None and not isinstance(critic, networks.HiddenLayers):
            raise ValueError("shared must be False with a critic of your own, which is used as it is")
        shared = self._shares(actor, critic) if shared is None else check_bool("shared", shared)

        def build_critic(layers: Any) -> Any:
            width = self.num_values
            if not shared:
                space = self.spaces.network_space
                return networks.default_network(space, layers, width, activation=activation, gain=1.0)
            described = isinstance(actor, networks.HiddenLayers) and isinstance(layers, networks.HiddenLayers)
            options = {"hidden": layers, "own_layers": actor.num_own} if described else {}
            return networks.share_trunk(self.actor, width, gain=1.0, **options)

        shape = self.observation_shape
        self.actor: networks.Network = self.spaces.network_or_default(
            actor, hidden, activation=activation, **last_layer
        )
        if critic is not None or not networks.returns_pair(actor, shape):
            self.critic = networks.network_or_default(critic, hidden, build_critic, shape)

    def __setattr__(self, name: str, value: Any) -> None:
        unused = name in self._optional_hyperparameters and name in self.__dict__ and self.__dict__[name] is None
        if unused and value is not None:  # updates are compiled without it
            raise ValueError(f"{name} cannot be set to {value!r}, because it was None in the constructor")
        super().__setattr__(name, value)

    def _shares(self, actor: Any, critic: Any) -> bool:
        """Return whether actor and critic share layers by default: for images, or if a description says so."""
        layers = [network for network in (actor, critic) if isinstance(network, networks.HiddenLayers)]
        if not layers:
            return self.is_image and actor is None
        if len({id(own.description) for own in layers}) > 1 or len(layers) == 1 or not layers[0].is_shareable:
            return False
        described = layers[0].description.shared
        return self.is_image if described is None else described

    def _default_head(self, actor: Any) -> heads.Head:
        """Return the default head for the action space and the outputs of the actor.

        If the agent builds the actor (None), the actor returns logits for discrete actions.
        """
        if isinstance(self.action_space, spaces.Box):
            return heads.Gaussian()
        if isinstance(self.action_space, spaces.MultiBinary):
            return heads.Bernoulli()
        return heads.Probabilities() if networks.ends_in_softmax(actor) else heads.Categorical()

    def forward(self, observation: Any) -> Any:
        """Return the input of the head: logits, or means and log standard deviations."""
        return self.actor(observation)[0] if self.critic is None else self.actor(observation)

    def value(self, observation: Any) -> Any:
        """Return the values `[B]` of observations `[B, ...]`."""
        return scalar_values(self.actor(observation)[1] if self.critic is None else self.critic(observation))

    @property
    def num_values(self) -> int:
        """The number of values that the critic returns for each observation."""
        return 1

    @property
    def _trained_networks(self) -> list[Any]:
        return [self.actor] if self.critic is None else [self.actor, self.critic]

    def outputs(self, observation: Any, mask: Any = None) -> Any:
        """Return the input of the head, in which illegal actions are excluded.

        `mask` is `batch.extra.get("action_mask")`, bool `[B, A]`; None if the environment reports no masks.
        """
        return self.head.masked(self.forward(observation), mask)

    def log_prob(self, observation: Any, action: Any, mask: Any = None) -> Any:
        """Return the log-probabilities `[B]` of actions `[B, ...]` for observations `[B, ...]`."""
        return self.head.log_prob(self.outputs(observation, mask), action)

    def policy_outputs(self, batch: Batch) -> Any:
        """Return the input of the head for the observations of a batch, in which illegal actions are excluded."""
        return self.outputs(batch.observation, batch.extra.get("action_mask"))

    def values(self, batch: Batch) -> Any:
        """Return the values of the observations of a batch."""
        return self.value(batch.observation)

    def _as_rows(self, batch: Batch) -> Batch:
        """Return a batch as rows `[B, ...]`, which `policy_outputs` and `values` refer to."""
        return batch

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Return values, log-probabilities, advantages and value targets of a rollout; all `[T, N]`."""
        value = losses.map_rows(self.value, rollout.observation)
        # The return of a truncated episode is bootstrapped from its true last observation.
        next_value = losses.map_rows(self.value, rollout.next_observation)
        log_prob = losses.map_rows(self.log_prob, rollout.observation, rollout.action, *masks(rollout))
        return self._with_advantages(rollout, value, next_value, log_prob)

    def _log_prob_of(self, outputs: Any, rollout: Batch) -> Any:
        """Return the log-probabilities `[T, N]` of a rollout's actions under outputs `[T, N, ...]`."""
        if masks(rollout):
            outputs = losses.map_rows(self.head.masked, outputs, *masks(rollout))
        return losses.map_rows(self.head.log_prob, outputs, rollout.action)

    def _with_advantages(self, rollout: Batch, value: Any, next_value: Any, log_prob: Any) -> dict[str, Any]:
        """Return what `prepare` adds to a rollout, from its values and log-probabilities; all `[T, N]`.

        If an older policy has acted, V-trace gives targets and advantages, and the log-probabilities are of
        the older policy.
        """
        reward = rollout.reward
        discount = rollout.discount
        continues = rollout.extra["continues"] * self.gae_lambda
        if ACTING_OUTPUTS not in rollout.extra:
            advantage = losses.gae(reward, discount, value, next_value, discount * continues)
            return {"value": value, "log_prob": log_prob, "advantage": advantage, "target": advantage + value}
        acting = self._log_prob_of(rollout.extra[ACTING_OUTPUTS], rollout)
        ratio = losses.importance_weight(log_prob, acting)
        target = losses.v_trace(reward, discount, value, next_value, ratio, continues)
        advantage = self.corrected_advantage(rollout, continues, target, value, next_value)
        return {"value": value, "log_prob": acting, "advantage": advantage, "target": target}

    def corrected_advantage(self, rollout: Batch, continues: Any, target: Any, value: Any, next_value: Any) -> Any:
        """Return the advantages `[T, N]` if an older policy has acted, from the targets of V-trace.

        `continues` is 0 where an episode ends, and otherwise `gae_lambda`.
        """
        return target - value


def masks(batch: Batch, name: str = "action_mask") -> tuple[Any, ...]:
    """Return the masks of a batch in a tuple, as a further argument of `losses.map_rows`; () if there are none."""
    return (batch.extra[name],) if name in batch.extra else ()
