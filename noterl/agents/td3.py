"""Twin delayed deep deterministic policy gradient.

Paper: Fujimoto, van Hoof and Meger, "Addressing function approximation error in actor-critic methods" (2018),
algorithm 1.

Differs: learning rate and network are from the authors' later code (256x256, 3e-4). Training starts with 1,000
random steps in all tasks. The last of each `policy_delay` updates also updates the actor and the targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from noterl import losses, networks
from noterl.agent import Defaults
from noterl.agents.ddpg import DeterministicActor
from noterl.agents.ensemble import CriticEnsemble, EnsembleOptions
from noterl.backends import ops
from noterl.hyperparameters import Hyperparameter
from noterl.networks.critics import q_values
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch


@register
class TD3(DeterministicActor, CriticEnsemble):
    """Deterministic actor and two or more critics, for Box actions with finite bounds.

    Actions are scaled to [-1, 1]. The critics receive scaled actions, and noise is added to scaled actions. A `noise`
    with sigma 0.1 therefore moves an action by 5 % of the width of its bounds. The feedback for the memory is the mean
    of the critics' absolute errors.

    Args:
        env: see `noterl.Agent`.
        hidden: units of each hidden layer, of actor and critics; with images, of the critics only.
        network: the path of a network file, or your own actor `[B, observation] -> [B, A]`, without the final tanh; or
            (actor, critic, critic), or (actor, critic) with one file for all critics. Critics are
            `[B, observation + A] -> [B, 1]`; their initial weights must differ. The agent builds a network that is
            None.
        gamma: discount factor, 0 to 1. Can be changed during training.
        policy_delay: number of critic updates for each update of the actor.
        target_noise: standard deviation of the noise on the target's scaled action. Can be changed during training.
        target_noise_clip: the largest absolute value of this noise. Can be changed during training.
        critics: the number of critics.
        critics_in_target: the number of random critics whose minimum a target takes; by default all. With fewer, the
            actor maximizes the mean of all critics; otherwise the first one.
        critic_hidden: units of each hidden layer of the critics; by default as in the actor.
        layer_norm: whether the hidden layers of the critics normalize their values.
        dropout: the share of the critics' hidden values that is 0 in each update; not in targets.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.TD3("Pendulum-v1", hidden=(32,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates
    10
    """

    target_noise: Hyperparameter
    target_noise_clip: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        hidden: Sequence[int] = (256, 256),
        network: Any = None,
        gamma: float | Schedule = 0.99,
        policy_delay: int = 2,
        target_noise: float | Schedule = 0.2,
        target_noise_clip: float | Schedule = 0.5,
        **options: Unpack[EnsembleOptions],
    ) -> None:
        super().__init__(env, policy_delay=policy_delay, **options)
        outputs = self.action_size
        actor, *critics = networks.split_networks(network, "actor", *["critic"] * self.num_critics)
        self.actor = self.spaces.network_or_default(actor, hidden, outputs)

        def build(layers: Any) -> networks.Network:
            return networks.default_critic(self.spaces.network_space, layers, outputs, **self.critic_norm)

        self.build_ensemble(critics, hidden, build, (self.observation_size + outputs,))
        self.target_actor: networks.Network = networks.clone(self.actor)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)
        self.target_noise = self.hyperparameter("target_noise", target_noise, minimum=0.0)
        self.target_noise_clip = self.hyperparameter("target_noise_clip", target_noise_clip, minimum=0.0)
        self.target_period: int = self.update_period
        self.random_spec: dict[str, Any] = {"target_noise": ((outputs,), "normal"), **self.choice_spec}

    def defaults(self) -> Defaults:
        """Return the settings of the authors' later code, but with 1,000 random steps."""
        return super().defaults()._replace(learning_rate=3e-4)

    def value(self, observation: Any) -> Any:
        """Return the first critic's values `[B]` of the actor's actions."""
        (q,) = q_values(self.critics[:1], observation, self.head.act(self.actor(observation)))
        return q

    def update(self, batch: Batch, index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update the critics; the last of each `policy_delay` updates also updates the actor."""
        loss, feedback = self.minimize(self.critic_loss, self.critics, "critic", batch)
        logs = {"loss": loss}
        if index == self.update_period - 1:
            logs["actor_loss"], _ = self.minimize(self.actor_loss, self.actor, "actor", batch)
        return logs, feedback

    def critic_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the sum of the critics' mean squared errors, and the mean of the absolute errors `[B]`."""
        next_value = self.next_value(batch, self.next_action(batch))
        target = losses.td_target(batch.reward, batch.discount, next_value)  # [B]
        errors = [q - target for q in q_values(self.critics, batch.observation, self.head.scale(batch.action))]
        return self.squared_loss(errors, batch)

    def next_action(self, batch: Batch) -> Any:
        """Return the scaled actions of the target actor for the next observations, with clipped noise, `[B, A]`."""
        noise = self.target_noise * batch.extra["target_noise"]  # [B, A]
        noise = ops.maximum(ops.minimum(noise, self.target_noise_clip), -self.target_noise_clip)
        return ops.clip(self.head.act(self.target_actor(batch.next_observation)) + noise, -1.0, 1.0)

    def next_value(self, batch: Batch, action: Any) -> Any:
        """Return the values `[B]` of the next observations and these scaled actions `[B, A]`, for targets."""
        return self.target_value(q_values(self.target_critics, batch.next_observation, action), batch)

    def actor_loss(self, batch: Batch) -> Any:
        """Return the negated mean value of the actor's actions, as the first critic or their mean predicts it."""
        action = self.head.act(self.actor(batch.observation))
        return -ops.mean(self.actor_value(batch.observation, action))

    def actor_value(self, observation: Any, action: Any) -> Any:
        """Return what the actor maximizes, `[B]`: the value of the first critic, or the mean if targets are random."""
        judges = self.critics if self.has_random_critics else self.critics[:1]
        return sum(q_values(judges, observation, action)) / len(judges)

    def update_target(self) -> None:
        """Update the target networks."""
        networks.copy(self.actor, self.target_actor)
        super().update_target()
