"""Deep Q-learning.

Paper: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518 (2015). `double=True`: van
Hasselt, Guez and Silver, "Deep reinforcement learning with double Q-learning" (2016), equation 4. `dueling=True`: Wang
et al., "Dueling network architectures" (2016), equation 9.

Differs: Adam instead of RMSProp, as in Stable-Baselines3 and CleanRL, and `double=True` by default. For vector
observations, the network is a multi-layer perceptron. The defaults for them were tuned on small tasks and use 3-step
returns (benchmarks/first_programs.py). Rewards and gradients are not clipped: the Huber loss bounds the gradient of the
error, as the paper's clipping does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from noterl import heads, losses, networks
from noterl.agent import Agent, AgentOptions, Defaults
from noterl.backends import keras, ops
from noterl.hyperparameters import Hyperparameter
from noterl.policies import LinearEpsGreedyPolicy
from noterl.registry import register
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_word

_LOSSES = {"huber": losses.huber, "squared": losses.squared}


@register
class DQN(Agent):
    """Deep Q-learning for Discrete actions, on vectors, images, discrete values or a Dict of them.

    Args:
        env: see `noterl.Agent`.
        double: whether the online network chooses the next action that the target network evaluates, which reduces
            overestimation; False gives the targets of the Nature paper.
        dueling: whether the network has a value and an advantage stream.
        hidden: units of each hidden layer for vector observations; images use the network of the Nature paper.
        network: the path of a network file, or your own network `[B, observation] -> [B, actions]`.
        gamma: discount factor, 0 to 1; near 1 for long tasks. Can be changed during training.
        loss: "huber", or "squared" for 0.5 e^2.
        normalize_observation: see `noterl.Agent`.
        normalize_reward: see `noterl.Agent`.
        seed: see `noterl.Agent`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.DQN("CartPole-v1", double=True, hidden=(64,), seed=7)
    >>> history = agent.fit(steps=100, verbose=0)
    >>> agent.steps
    100
    """

    memory: str = "replay"
    head: Any = heads.Q()
    action_spaces: tuple[str, ...] = ("Discrete",)
    gamma: Hyperparameter

    def __init__(
        self,
        env: Any,
        *,
        double: bool = True,
        dueling: bool = False,
        hidden: Sequence[int] = (128, 128),
        network: Any = None,
        gamma: float | Schedule = 0.99,
        loss: str = "huber",
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        check_word("loss", loss, tuple(_LOSSES))
        self.double: bool = check_bool("double", double)
        dueling = check_bool("dueling", dueling)
        self.error_loss: Callable[..., Any] = _LOSSES[loss]
        (network,) = networks.split_networks(network, "q")
        if dueling and network is not None and not isinstance(network, networks.HiddenLayers):
            raise ValueError("dueling must be False with a network of your own, which is used as it is")
        space = self.spaces.network_space
        self.q: networks.Network = networks.network_or_default(
            network,
            hidden,
            lambda layers: networks.default_network(space, layers, self.action_size, dueling=dueling),
            self.observation_shape,
        )
        self.target_q: networks.Network = networks.clone(self.q)
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)

    def defaults(self) -> Defaults:
        """Return the default settings.

        For images, they are the Nature paper's, with the learning rate of Stable-Baselines3. For vectors, they were
        tuned on small tasks.
        """
        if self.is_image:
            return Defaults(
                learning_rate=1e-4,
                capacity=1_000_000,
                batch_size=32,
                learning_starts=50_000,
                update_every=4,
                target_update=10_000,
                policy=LinearEpsGreedyPolicy(1.0, 0.1, steps=1_000_000),
            )
        return Defaults(
            # Rainbow's epsilon is 1.5e-4. With Keras's 1e-7, the greedy return on CartPole reaches 500 and then drops.
            optimizer=keras.optimizers.Adam(1e-3, epsilon=1e-4),
            capacity=100_000,
            n_step=3,
            batch_size=64,
            learning_starts=1_000,
            update_every=32,
            updates=16,
            target_update=0.01,
            policy=LinearEpsGreedyPolicy(1.0, 0.05, steps=10_000),
        )

    def forward(self, observation: Any) -> Any:
        """Return the action values `[B, A]`."""
        return self.q(observation)

    def loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the mean loss of the temporal-difference errors, and the errors `[B]`."""
        q = losses.take(self.q(batch.observation), batch.action)  # [B]
        legal = batch.extra.get("next_action_mask")  # None if the environment reports no masks
        next_q = self.head.masked(self.target_q(batch.next_observation), legal)  # [B, A]
        if self.double:
            best = ops.argmax(self.head.masked(self.q(batch.next_observation), legal), axis=-1)
            next_value = losses.take(next_q, best)
        else:
            next_value = ops.max(next_q, axis=-1)
        td_error = q - losses.td_target(batch.reward, batch.discount, next_value)
        return losses.weighted_mean(self.error_loss(td_error), batch.weight), {"td_error": td_error}

    def update_target(self) -> None:
        """Update the target network: a hard copy, or Polyak averaging."""
        networks.copy(self.q, self.target_q)
