"""Q-learning with implicit quantiles.

Paper: Dabney et al., "Implicit quantile networks for distributional reinforcement learning" (2018), equations 3 and 4,
with the risk-neutral policy.

Differs: optimizer, n-step returns and schedule as in `DQN`. The policy's fractions are the midpoints of equal
intervals instead of random numbers, so that evaluation and exported policies repeat. For images, the product is with
the outputs of the 512 units, and another 512 units follow.
"""

from __future__ import annotations

from typing import Any, Unpack

from noterl import networks
from noterl.agents.distributional import DistributionalDQN, take_atoms
from noterl.agents.dqn import DQNOptions
from noterl.backends import ops
from noterl.networks.builders import check_hidden, default_encoder
from noterl.networks.distributions import NUM_COSINES
from noterl.registry import register
from noterl.types import Batch
from noterl.utils.checks import check_positive


@register
class IQN(DistributionalDQN):
    """Quantiles of each action's return at random fractions, for Discrete actions; the agent acts on the mean.

    The feedback for the memory is the absolute difference of the means of quantiles and target.

    Args:
        env: see `noterl.Agent`.
        fractions: the number of random fractions of a loss, for the prediction and for the target.
        acting_fractions: the number of fractions on whose mean the agent acts.
        double: see `DQN`.
        **options: see `DQN`. All hidden layers but the last come before the fractions. A `network` of your own is that
            part, `[B, observation] -> [B, features]`; a ReLU follows.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.IQN("CartPole-v1", acting_fractions=8, hidden=(64, 64), seed=7)
    >>> history = agent.fit(steps=100, verbose=0)
    >>> agent.steps
    100
    """

    def __init__(
        self,
        env: Any,
        *,
        fractions: int = 8,
        acting_fractions: int = 32,
        double: bool = False,
        **options: Unpack[DQNOptions],
    ) -> None:
        self.acting_fractions: int = check_positive("acting_fractions", acting_fractions)
        super().__init__(env, double=double, **options)
        shape = (check_positive("fractions", fractions),)
        self.random_spec: dict[str, Any] = {"fractions": (shape, "uniform"), "target_fractions": (shape, "uniform")}

    def build_q(self, network: Any, hidden: Any, dueling: bool) -> networks.Network:
        """Return the network of implicit quantiles."""
        if dueling or self.noisy:
            raise ValueError("dueling and noisy must be False for IQN, whose paper has neither")
        space = self.spaces.network_space
        units = (512,) if self.is_image else check_hidden(hidden)
        before = units[:-1] or units

        def build(layers: Any) -> networks.Network:
            if layers is not hidden:
                return networks.default_network(space, layers, before[-1])
            return default_encoder(space, None, before)[0]

        encoder = networks.network_or_default(network, hidden, build, self.observation_shape)
        with networks.inference_mode(encoder):  # batch normalization in training mode takes no single row
            size = int(encoder(ops.zeros((1, *self.observation_shape), self.observation_dtype.name)).shape[-1])
        after = units if self.is_image else units[len(before) :]
        output = networks.mlp(size, after, self.action_size)
        return networks.ImplicitQuantiles(encoder, networks.mlp(NUM_COSINES, [], size), output, self.acting_fractions)

    def loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the mean quantile Huber loss (equation 3), and the absolute differences of the means `[B]`."""
        fractions = batch.extra["fractions"]
        quantiles = self.q.quantiles(self.q.features(batch.observation), fractions)
        quantiles = take_atoms(quantiles, batch.action)  # [B, Z]
        features = self.target_q.features(batch.next_observation)
        values = self.q(batch.next_observation) if self.double else self.target_q.mean(features)
        following = self.target_q.quantiles(features, batch.extra["target_fractions"])
        following = take_atoms(following, self.best_action(batch, values))
        return self.quantile_loss(batch, quantiles, following, fractions)
