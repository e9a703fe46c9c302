"""Multi-agent deep deterministic policy gradient, and independent DDPG.

Paper: Lowe et al., "Multi-agent actor-critic for mixed cooperative-competitive environments" (2017), algorithm 1. For
discrete actions: Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax" (2017), section 2.2.

Differs: critics receive discrete actions as one-hot vectors. An actor's gradient flows through the straight-through
sample; the authors' code uses the relaxed sample. The targets' discrete actions are the most probable ones. Large
logits are penalized as in that code. Exploration uses white noise instead of an Ornstein-Uhlenbeck process. Training
starts with 1,024 random steps. Agents that have left are masked out of every critic's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from noterl import heads, losses, networks
from noterl.agent import AgentOptions, Defaults
from noterl.backends import keras, ops
from noterl.hyperparameters import Hyperparameter
from noterl.multi_agent import MultiAgent
from noterl.networks.critics import scalar_values
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_bool

Tensor = Any


@register
class MADDPG(MultiAgent):
    """Actors that receive their own observations, and critics that receive observations and actions of all agents.

    Agents may have different spaces. Box actions with finite bounds are scaled to [-1, 1]; Discrete and MultiDiscrete
    actions are one-hot. Continuous agents explore with `noise=`, whose `size` is the number of values in the actions of
    all of them. Discrete agents sample from the softmax of their logits. If all agents are Discrete, `policy=` can
    replace this; each agent then uses it on its logits. Each agent learns from its own reward, unless `team_reward` is
    overridden. The feedback for the memory is the mean absolute error over the agents.

    Args:
        env: an environment with several agents; see `noterl.MultiAgent`.
        hidden: units of each hidden layer, of actors and critics.
        independent: whether critics receive only their own agent's observation and action (independent DDPG).
        shared: whether agents with equal spaces share an actor and a critic. A shared critic evaluates the agent that
            comes first in its input.
        network: your own networks, a pair (actors, critics) of lists with one network for each agent. If one of the
            lists is None, its networks are built. Actors are `[B, observation] -> [B, A]` and return logits, or actions
            before the tanh. Critics are `[B, all observations + all actions] -> [B, 1]`. In a critic's input its own
            agent comes first; the others follow, grouped by equal spaces. Bytes are divided by 255. Several agents may
            share a network.
        gamma: discount factor, 0 to 1. Can be changed during training.
        temperature: temperature of the Gumbel-softmax, at least 1e-6. A lower value reduces the bias of gradients and
            increases their variance. Can be changed during training.
        logit_penalty: weight of the mean squared logit in the actors' loss, at least 0. Can be changed during training.
        normalize_observation: see `noterl.MultiAgent`.
        normalize_reward: see `noterl.MultiAgent`.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> from noterl.envs import Signals
    >>> agent = noterl.MADDPG(Signals, hidden=(16,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32, update_every=1)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates, agent.names
    (10, ('speaker', 'listener'))
    """

    optimizer_names: tuple[str, ...] = ("actor", "critic")
    gamma: Hyperparameter
    temperature: Hyperparameter
    logit_penalty: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (64, 64),
        independent: bool = False,
        shared: bool = False,
        network: Any = None,
        gamma: float | Schedule = 0.95,
        temperature: float | Schedule = 1.0,
        logit_penalty: float | Schedule = 1e-3,
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        spaces = list(zip(self._team.observation_space, self._team.action_space, strict=True))
        # For each agent, the first agent with the same spaces.
        self.groups: list[int] = [spaces.index(pair) for pair in spaces]
        check_bool("independent", independent)
        self.inputs: list[list[int]] = [self._input_order(agent, independent) for agent in range(len(self.names))]
        chosen = self.groups if check_bool("shared", shared) else list(range(len(self.names)))
        actors, critics = networks.split_networks(network, "actor", "critic")
        # Default critics scale pixels themselves.
        inputs = self.spaces.network_space
        scales = [networks.column_scales(space) for space in inputs]
        own = isinstance(critics, list | tuple)
        self.scales: list[Any] = [factors if own and (factors != 1).any() else 1.0 for factors in scales]
        self.actors, self.actor_of = self._networks_of(
            actors, chosen, hidden, lambda i, layers: networks.default_network(inputs[i], layers, self.action_size[i])
        )
        self.critics, self.critic_of = self._networks_of(critics, chosen, hidden, self._build_critic)
        self.target_actors: list[networks.Network] = [networks.clone(actor) for actor in self.actors]
        self.target_critics: list[networks.Network] = [networks.clone(critic) for critic in self.critics]
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.temperature = self.hyperparameter("temperature", temperature, minimum=1e-6)
        self.logit_penalty = self.hyperparameter("logit_penalty", logit_penalty, minimum=0.0)
        num_logits = sum(part.size for part in self.head.parts if isinstance(part, heads.Categorical))
        self.random_spec: dict[str, Any] = {"gumbel": ((num_logits,), "uniform")} if num_logits else {}

    def _input_order(self, agent: int, independent: bool) -> list[int]:
        """Return the agents whose observations and actions the agent's critic receives, in order."""
        others = [] if independent else [other for other in range(len(self.names)) if other != agent]
        return [agent, *sorted(others, key=self.groups.__getitem__)]

    def _build_critic(self, agent: int, hidden: Any) -> Any:
        inputs = self.inputs[agent]
        actions = sum(self.action_size[other] for other in inputs)
        return networks.default_critic([self.spaces.network_space[other] for other in inputs], hidden, actions)

    def _networks_of(self, own: Any, chosen: list[int], hidden: Any, build: Any) -> tuple[list[Any], list[int]]:
        """Return the distinct networks, and each agent's index; `chosen` are the agents whose networks are built."""
        if isinstance(own, networks.HiddenLayers):
            own, hidden = None, own
        if own is not None:
            if not isinstance(own, list | tuple) or len(own) != len(self.names):
                raise ValueError(
                    f"network must be (actors, critics), each a list of one network for each of the "
                    f"{len(self.names)} agents, or None; got {own!r}"
                )
            chosen = [[id(network) for network in own].index(id(network)) for network in own]
        first = sorted(set(chosen))
        built = [build(i, hidden) if own is None else networks.check_network("network", own[i]) for i in first]
        return built, [first.index(i) for i in chosen]

    def defaults(self) -> Defaults:
        """Return the settings of the paper's appendix, and the gradient clipping of its authors' code."""
        size = self.head.noise_size
        return Defaults(
            optimizer=keras.optimizers.Adam(1e-2, clipnorm=0.5),
            capacity=1_000_000,
            batch_size=1_024,
            learning_starts=1_024,
            update_every=100,
            target_update=0.01,
            noise=GaussianWhiteNoiseProcess(sigma=0.1, size=size) if size else None,
        )

    def forward(self, observation: Tensor, agent: int) -> Tensor:
        """Return one agent's logits, or actions before the tanh, `[B, A]`."""
        return self.actors[self.actor_of[agent]](observation)

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update all critics, then all actors; the losses of all agents are summed."""
        loss, feedback = self.minimize(self.critic_loss, self.critics, "critic", batch)
        actor_loss, _ = self.minimize(self.actor_loss, self.actors, "actor", batch)
        return {"loss": loss, "actor_loss": actor_loss}, feedback

    def critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        """Return the sum of the critics' mean squared errors (equation 6), and the mean absolute errors `[B]`."""
        errors = self.td_errors(batch)
        loss = sum(losses.weighted_mean(losses.squared(error), batch.weight) for error in errors)
        present = ops.maximum(sum(batch.extra["present"]), 1.0)
        return loss, {"td_error": sum(ops.abs(error) for error in errors) / present}

    def td_errors(self, batch: Batch) -> list[Tensor]:
        """Return each critic's temporal-difference error `[B]`, 0 if its agent is absent."""
        present = batch.extra["present"]
        remaining = batch.extra["remaining"]
        actions, next_actions = self._taken_actions(batch), self._target_actions(batch)
        errors = []
        for agent, (reward, discount) in enumerate(zip(batch.reward, batch.discount, strict=True)):
            next_q = self._q(self.target_critics, agent, batch.next_observation, next_actions, remaining)
            q = self._q(self.critics, agent, batch.observation, actions, present)
            errors.append((q - losses.td_target(reward, discount, next_q)) * present[agent])
        return errors

    def actor_loss(self, batch: Batch) -> Tensor:
        """Return the sum of the agents' losses."""
        return sum(self.actor_losses(batch))

    def actor_losses(self, batch: Batch) -> list[Tensor]:
        """Return each agent's loss (equation 5); its own action comes from its actor, the others from the batch."""
        present = batch.extra["present"]
        actions = self._taken_actions(batch)
        gumbel: Any = batch.extra.get("gumbel")
        agent_losses = []
        for agent, part in enumerate(self.head.parts):
            values = self.forward(batch.observation[agent], agent)
            penalty = 0.0
            if isinstance(part, heads.Categorical):
                own_action = part.straight_through(values, gumbel[:, : part.size], self.temperature)
                gumbel = gumbel[:, part.size :]
                penalty = self.logit_penalty * ops.mean(ops.square(values), axis=-1)
            else:
                own_action = part.act(values)
            joint_action = [*actions[:agent], own_action, *actions[agent + 1 :]]
            q = self._q(self.critics, agent, batch.observation, joint_action, present)
            agent_losses.append(ops.mean((penalty - q) * present[agent]))
        return agent_losses

    def update_target(self) -> None:
        """Update the target networks."""
        targets = [*self.target_actors, *self.target_critics]
        for network, target in zip([*self.actors, *self.critics], targets, strict=True):
            networks.copy(network, target)

    def _taken_actions(self, batch: Batch) -> list[Tensor]:
        """Return the taken actions as critics receive them, `[B, A]` each."""
        return [
            part.one_hot(action) if isinstance(part, heads.Categorical) else part.scale(action)
            for part, action in zip(self.head.parts, batch.action, strict=True)
        ]

    def _target_actions(self, batch: Batch) -> list[Tensor]:
        """Return the target actors' next actions as critics receive them, `[B, A]` each."""
        outputs = [
            self.target_actors[network](observation)
            for network, observation in zip(self.actor_of, batch.next_observation, strict=True)
        ]
        return [
            part.greedy(values) if isinstance(part, heads.Categorical) else part.act(values)
            for part, values in zip(self.head.parts, outputs, strict=True)
        ]

    def _q(
        self,
        critics: Sequence[Any],
        agent: int,
        observations: Sequence[Tensor],
        actions: Sequence[Tensor],
        present: Sequence[Tensor],
    ) -> Tensor:
        """Return the value `[B]` that one agent's critic predicts; the inputs of absent agents are set to zero."""
        kinds = ((observations, self.observation_size, self.scales), (actions, self.action_size, [1.0] * len(actions)))
        inputs = [
            ops.multiply(ops.reshape(ops.cast(values[other], "float32"), (-1, sizes[other])), scales[other])
            * present[other][:, None]
            for values, sizes, scales in kinds
            for other in self.inputs[agent]
        ]
        return scalar_values(critics[self.critic_of[agent]](ops.concatenate(inputs, axis=-1)))
