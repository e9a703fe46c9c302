"""Deep deterministic policy gradient.

Paper: Lillicrap et al., "Continuous control with deep reinforcement learning" (2016), algorithm 1.

Differs: white noise instead of an Ornstein-Uhlenbeck process, in which Fujimoto et al. (2018) found no benefit. For the
paper's noise, pass `noise=noterl.noise.OrnsteinUhlenbeckProcess(theta=0.15, sigma=0.2, size=...)`. No batch
normalization, no weight decay, and the same initialization for every layer. Learning rate and Polyak's coefficient are
from Fujimoto et al.'s experiments. The batch size is from the authors' later code, as in Stable-Baselines3. Training
starts with 1,000 random steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from noterl import heads, losses, networks
from noterl.agent import Agent, AgentOptions, Defaults
from noterl.backends import ops
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import q_values
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch


class DeterministicActor(Agent):
    """Base of agents with a deterministic actor, for Box actions with finite bounds."""

    head: Any = heads.Deterministic()
    action_spaces: tuple[str, ...] = ("Box",)
    optimizer_names: tuple[str, ...] = ("actor", "critic")
    gamma: Hyperparameter
    actor: networks.Network

    def defaults(self) -> Defaults:
        """Return the settings of the baseline of Fujimoto et al. (2018), with the authors' later batch size."""
        return Defaults(
            learning_rate=1e-3,
            capacity=1_000_000,
            batch_size=256,
            learning_starts=1_000,
            target_update=0.005,
            noise=GaussianWhiteNoiseProcess(sigma=0.1, size=self.action_size),
        )

    def forward(self, observation: Any) -> Any:
        """Return the actions before the tanh, `[B, A]`."""
        return self.actor(observation)


@register
class DDPG(DeterministicActor):
    """Deterministic actor and one critic, for Box actions with finite bounds.

    Actions are scaled to [-1, 1]. The critic receives scaled actions, and noise is added to scaled actions. A `noise`
    with sigma 0.1 therefore moves an action by 5 % of the width of its bounds.

    Args:
        env: see `noterl.Agent`.
        hidden: units of each hidden layer, of actor and critic; with images, of the critic only.
        network: the path of a network file, or your own actor `[B, observation] -> [B, A]`, without the final tanh; or
            (actor, critic). The critic is `[B, observation + A] -> [B, 1]`. The agent builds a network that is None.
        gamma: discount factor, 0 to 1. Can be changed during training.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.DDPG("Pendulum-v1", hidden=(32,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates
    10
    """

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (400, 300),
        network: Any = None,
        gamma: float | Schedule = 0.99,
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        outputs = self.action_size
        actor, critic = networks.split_networks(network, "actor", "critic")
        self.actor = self.spaces.network_or_default(actor, hidden, outputs)

        def build(layers: Any) -> networks.Network:
            return networks.default_critic(self.spaces.network_space, layers, outputs)

        joint = (self.observation_size + outputs,)
        self.critic: networks.Network = networks.network_or_default(critic, hidden, build, joint)
        self.target_actor: networks.Network = networks.clone(self.actor)
        self.target_critic: networks.Network = networks.clone(self.critic)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)

    def value(self, observation: Any) -> Any:
        """Return the critic's values `[B]` of the actor's actions."""
        (q,) = q_values([self.critic], observation, self.head.act(self.actor(observation)))
        return q

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update the critic, then the actor."""
        loss, feedback = self.minimize(self.critic_loss, self.critic, "critic", batch)
        actor_loss, _ = self.minimize(self.actor_loss, self.actor, "actor", batch)
        return {"loss": loss, "actor_loss": actor_loss}, feedback

    def critic_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the mean squared temporal-difference error (equations 4 and 5), and the errors `[B]`."""
        next_action = self.head.act(self.target_actor(batch.next_observation))  # [B, A]
        (next_q,) = q_values([self.target_critic], batch.next_observation, next_action)  # [B]
        (q,) = q_values([self.critic], batch.observation, self.head.scale(batch.action))
        td_error = q - losses.td_target(batch.reward, batch.discount, next_q)
        return losses.weighted_mean(losses.squared(td_error), batch.weight), {"td_error": td_error}

    def actor_loss(self, batch: Batch) -> Any:
        """Return the negated mean value of the actor's actions (equation 6)."""
        return -ops.mean(self.value(batch.observation))

    def update_target(self) -> None:
        """Update the target networks."""
        networks.copy(self.actor, self.target_actor)
        networks.copy(self.critic, self.target_critic)
