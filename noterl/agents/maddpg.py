"""Multi-agent deep deterministic policy gradient, and independent learners beside it.

Paper: Lowe et al., "Multi-agent actor-critic for mixed cooperative-competitive environments" (2017), algorithm 1. For
discrete actions Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax" (2017), section 2.2.

Differs: discrete actions reach the critics as one-hot vectors, and an actor's gradient comes through the
straight-through sample, where the authors' code hands critics the relaxed ones; the targets' discrete actions are their
most probable ones. Logits are held small by the penalty of that code. White noise instead of an Ornstein-Uhlenbeck
process; 1,024 random steps come first. An agent that has left is masked out of every critic's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noterl import heads, losses, networks
from noterl.agent import Defaults
from noterl.backends import keras, ops
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
    """An actor for each agent that sees its own observation, and a critic for each that sees those and actions of all.

    Agents may have different spaces: Box actions with finite bounds are scaled to [-1, 1], Discrete and MultiDiscrete
    ones are one-hot. Continuous agents explore by `noise=`, whose numbers are those of all their actions side by side;
    discrete ones draw from their softmax, or all of them by a `policy=` on logits. Each learns from its own reward,
    unless `team_reward` says otherwise. The memory is fed back the mean absolute error over the agents.

    Args:
        env: an environment of several agents; see `noterl.MultiAgent`.
        hidden: units of each hidden layer, of actors and critics.
        independent: give each critic its own agent's observation and action alone (independent DDPG).
        shared: let agents with equal spaces share one actor and one critic, which sees its agent first.
        network: networks of your own instead, a pair (actors, critics) of lists with one for each agent, or None in
            place of a list. Actors are `[B, observation] -> [B, A]`: logits, or actions before the tanh. Critics are
            `[B, all observations + all actions] -> [B, 1]`: a critic's own agent comes first, then the others, those
            with equal spaces side by side. One network may stand there for several agents.
        gamma: discount factor, 0 to 1. Live.
        temperature: of the Gumbel-softmax, at least 1e-6: lower brings gradients nearer to those of a hard choice, and
            makes them noisier. Live.
        logit_penalty: weight of the mean square of logits in the actors' loss, at least 0. Live.
        normalize_observation: whether networks see each agent's observations shifted and scaled by its running moments.
        normalize_reward: whether each agent's rewards are scaled by the running deviation of its discounted return.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: for another kind of space or a bad argument.

    Example:
    >>> import noterl
    >>> from noterl.envs import Signals
    >>> agent = noterl.MADDPG(Signals, hidden=(16,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32, update_every=1)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates, agent.names
    (10, ('speaker', 'listener'))
    """

    optimizer_names = ("actor", "critic")

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
        normalize_observation: bool = False,
        normalize_reward: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(env, seed=seed, normalize_observation=normalize_observation, normalize_reward=normalize_reward)
        self.groups = self._groups_of_equals()
        check_bool("independent", independent)
        self.inputs = [self._input_order(agent, independent) for agent in range(len(self.names))]
        chosen = self.groups if check_bool("shared", shared) else list(range(len(self.names)))
        sizes = [observed + acted for observed, acted in zip(self.observation_size, self.action_size, strict=True)]
        actors, critics = networks.split_networks(network, "actors", "critics")
        self.actors, self.actor_of = self._each(
            actors, chosen, lambda i: networks.mlp(self.observation_shape[i], hidden, self.action_size[i])
        )
        self.critics, self.critic_of = self._each(
            critics, chosen, lambda i: networks.mlp(sum(sizes[j] for j in self.inputs[i]), hidden, 1)
        )
        self.target_actors = [networks.clone(actor) for actor in self.actors]
        self.target_critics = [networks.clone(critic) for critic in self.critics]
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.temperature = self.hyperparameter("temperature", temperature, minimum=1e-6)
        self.logit_penalty = self.hyperparameter("logit_penalty", logit_penalty, minimum=0.0)
        uniform = sum(part.size for part in self.head.parts if isinstance(part, heads.Categorical))
        self.random_spec = {"gumbel": ((uniform,), "uniform")} if uniform else {}

    def _groups_of_equals(self) -> list[int]:
        """Return for each agent the first one that has the same spaces."""
        both = list(zip(self._team.observation_space, self._team.action_space, strict=True))
        return [both.index(pair) for pair in both]

    def _input_order(self, agent: int, independent: bool) -> list[int]:
        """Return whose observations and actions the agent's critic sees, in which order."""
        others = [] if independent else [other for other in range(len(self.names)) if other != agent]
        return [agent, *sorted(others, key=self.groups.__getitem__)]

    def _each(self, given: Sequence[Any] | None, chosen: list[int], build: Any) -> tuple[list[Any], list[int]]:
        """Return the different networks, and which of them each agent has."""
        if given is not None:
            if not isinstance(given, list | tuple) or len(given) != len(self.names):
                raise ValueError(
                    f"network must be (actors, critics), each a list of one network for each of the "
                    f"{len(self.names)} agents, or None; got {given!r}"
                )
            chosen = [[id(network) for network in given].index(id(network)) for network in given]
        first = sorted(set(chosen))
        return [build(i) if given is None else networks.check_network("network", given[i]) for i in first], [
            first.index(i) for i in chosen
        ]

    def defaults(self) -> Defaults:
        """Return the paper's settings (its appendix), and the norm that its authors' code clips gradients to."""
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

    def forward(self, observation: Tensor, agent: int) -> Tensor:  # type: ignore[override]
        """Return one agent's logits, or actions before the tanh, `[B, A]`."""
        return self.actors[self.actor_of[agent]](observation)

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update all critics, then all actors: losses of different agents are added up, their gradients do not meet."""
        loss, feedback = self.minimize(self.critic_loss, self.critics, "critic", batch)
        actor_loss, _ = self.minimize(self.actor_loss, self.actors, "actor", batch)
        return {"loss": loss, "actor_loss": actor_loss}, feedback

    def critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        """Return the sum of the critics' mean squared errors (equation 6), and the mean absolute error."""
        errors = self.td_errors(batch)
        loss = sum(losses.weighted_mean(losses.squared(error), batch.weight) for error in errors)
        present = ops.maximum(sum(batch.extra["present"]), 1.0)
        return loss, {"td_error": sum(ops.abs(error) for error in errors) / present}

    def td_errors(self, batch: Batch) -> list[Tensor]:
        """Return each critic's temporal-difference error `[B]`, 0 where its agent is not there."""
        present, remaining = batch.extra["present"], batch.extra["remaining"]
        actions, following = self._taken(batch), self._target_actions(batch)
        errors = []
        for agent, (reward, discount) in enumerate(zip(batch.reward, batch.discount, strict=True)):
            next_q = self._q(self.target_critics, agent, batch.next_observation, following, remaining)
            q = self._q(self.critics, agent, batch.observation, actions, present)
            errors.append((q - losses.td_target(reward, discount, next_q)) * present[agent])
        return errors

    def actor_loss(self, batch: Batch) -> Tensor:
        """Return the sum over the agents of minus the mean value of their own actions, among those of the others."""
        return sum(self.actor_losses(batch))

    def actor_losses(self, batch: Batch) -> list[Tensor]:
        """Return each agent's loss (equation 5): its own action is the actor's, those of others are as they were."""
        present, actions = batch.extra["present"], self._taken(batch)
        gumbel: Any = batch.extra.get("gumbel")
        found = []
        for agent, part in enumerate(self.head.parts):
            values = self.forward(batch.observation[agent], agent)
            penalty = 0.0
            if isinstance(part, heads.Categorical):
                own = part.straight_through(values, gumbel[:, : part.size], self.temperature)
                gumbel = gumbel[:, part.size :]
                penalty = self.logit_penalty * ops.mean(ops.square(values), axis=-1)
            else:
                own = part.act(values)
            joint = [*actions[:agent], own, *actions[agent + 1 :]]
            q = self._q(self.critics, agent, batch.observation, joint, present)
            found.append(ops.mean((penalty - q) * present[agent]))
        return found

    def update_target(self) -> None:
        """Move the target networks."""
        moving, targets = [*self.actors, *self.critics], [*self.target_actors, *self.target_critics]
        for network, target in zip(moving, targets, strict=True):
            networks.copy(network, target, self.tau)

    def _taken(self, batch: Batch) -> list[Tensor]:
        """Return the actions that were taken as critics see them, `[B, A]` each."""
        return [
            part.one_hot(action) if isinstance(part, heads.Categorical) else part.scale(action)
            for part, action in zip(self.head.parts, batch.action, strict=True)
        ]

    def _target_actions(self, batch: Batch) -> list[Tensor]:
        """Return the target actors' next actions as critics see them, `[B, A]` each."""
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
        there: Sequence[Tensor],
    ) -> Tensor:
        """Return one agent's value `[B]` of observations and actions, zeros in place of agents that are not there."""
        kinds = ((observations, self.observation_size), (actions, self.action_size))
        parts = [
            ops.reshape(ops.cast(values[other], "float32"), (-1, sizes[other])) * there[other][:, None]
            for values, sizes in kinds
            for other in self.inputs[agent]
        ]
        return scalar_values(critics[self.critic_of[agent]](ops.concatenate(parts, axis=-1)))
