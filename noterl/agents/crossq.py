"""CrossQ: soft actor-critic with batch renormalization instead of target networks.

Paper: Bhatt et al., "CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
simplicity" (2024), figure 3, with the batch renormalization of Ioffe (2017), algorithm 1.

Differs: the critics have 512 units in each layer; the paper's have 2,048. Batches are normalized with their own
statistics for 100,000 updates and then renormalized, as in the authors' code. Variances of a batch divide by n - 1, as
in Stable-Baselines3 Contrib.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noterl import losses, networks
from noterl.agent import Agent
from noterl.agents.sac import SAC
from noterl.algorithm import Defaults
from noterl.backends import keras, ops
from noterl.networks.critics import joint
from noterl.registry import register
from noterl.types import Batch


@register
class CrossQ(SAC):
    """Soft actor-critic without target networks, for Box actions with finite bounds.

    All dense layers have batch renormalization, except those inside of encoders of images and residual blocks. A critic
    receives the taken and the next actions of a batch in one pass, so its statistics are those of both. Make one update
    for each step, as by default. The actor acts with running statistics.

    Args:
        env: see `noterl.Agent`.
        critic_hidden: units of each hidden layer of the critics; None for the units of the actor. The paper has
            (2048, 2048), with 15 times the weights.
        policy_delay: number of critic updates for each update of actor and temperature.
        **options: see `SAC`. `dropout` is also in targets. Networks of your own should have such layers.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.CrossQ("Pendulum-v1", hidden=(32,), critic_hidden=(32,), seed=7)
    >>> agent.compile(learning_starts=50, batch_size=32)
    >>> history = agent.fit(steps=60, verbose=0)
    >>> agent.updates
    10
    """

    action_spaces: tuple[str, ...] = ("Box",)
    needs_whole_batch = True  # for the statistics of a batch
    update_target = Agent.update_target  # there is no target to move
    finished = staticmethod(networks.batch_renormalized)

    def __init__(
        self, env: Any, *, critic_hidden: Sequence[int] | None = (512, 512), policy_delay: int = 3, **options: Any
    ) -> None:
        networks.refuse_options(self, options)
        super().__init__(env, critic_hidden=critic_hidden, policy_delay=policy_delay, **options)

    def defaults(self) -> Defaults:
        """Return the settings of SAC with the paper's optimizers."""
        betas = {name: 0.9 if name == "temperature" else 0.5 for name in self.optimizer_names}
        optimizer = {name: keras.optimizers.Adam(1e-3, beta_1=beta) for name, beta in betas.items()}
        return super().defaults()._replace(optimizer=optimizer, target_update=None)

    def critic_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the sum of the critics' mean squared errors, and the mean of the absolute errors `[B]`."""
        with networks.inference_mode(self.actor):
            following = self.actor(batch.next_observation)
        next_action, log_probability = self.head.sample(following, batch.extra["next_noise"])
        taken = joint(batch.observation, self.head.scale(batch.action))
        inputs = ops.concatenate([taken, joint(batch.next_observation, next_action)])
        pairs = [ops.split(self.critic_values(critic(inputs)), 2) for critic in self.critics]  # [B] and [B] each
        next_q = self.target_value([q for _, q in pairs], batch)
        target = losses.td_target(batch.reward, batch.discount, next_q - self.entropy_weight() * log_probability)
        return self.squared_loss([q - target for q, _ in pairs], batch)

    def actor_loss(self, batch: Batch) -> tuple[Any, Any]:
        """Return the actor's loss and the log-probabilities; critics compute with running statistics, unchanged."""
        with networks.inference_mode(*self.critics):
            return super().actor_loss(batch)
