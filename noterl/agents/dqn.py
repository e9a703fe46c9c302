"""Deep Q-learning.

Paper: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518 (2015). `double=True`: van
Hasselt, Guez and Silver, "Deep reinforcement learning with double Q-learning" (2016), equation 4. `dueling=True`: Wang
et al., "Dueling network architectures" (2016), equation 9.

`noisy=True`: Fortunato et al., "Noisy networks for exploration" (2018), with factorized noise.

`recurrent=`: Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning" (2019), with
stored states and burn-in.

Differs: Adam instead of RMSProp, as in Stable-Baselines3 and CleanRL, and `double=True` by default. For vector
observations, the network is a multi-layer perceptron. The defaults were tuned on small tasks and use 3-step
returns (benchmarks/first_programs.py). Rewards and gradients are not clipped: the Huber loss bounds the gradient of the
error, as the paper's clipping does. With a memory, values are not rescaled, and there is one actor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from noterl import heads, losses, networks
from noterl.agent import Agent, AgentOptions, Defaults
from noterl.backends import keras, ops
from noterl.hyperparameters import Hyperparameter
from noterl.policies import GreedyQPolicy, LinearEpsGreedyPolicy
from noterl.registry import register
from noterl.replay import Prioritized
from noterl.schedules import Schedule
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_word


class DQNOptions(AgentOptions, total=False):
    """The keyword arguments of `DQN`, except `double`."""

    dueling: bool
    noisy: bool
    hidden: Sequence[int]
    network: Any
    gamma: float | Schedule
    loss: str
    recurrent: str | Callable[[int], Any] | None
    recurrent_units: int
    sequence_length: int | None
    burn_in: int


_LOSSES = {"huber": losses.huber, "squared": losses.squared}


@register
class DQN(Agent):
    """Deep Q-learning for Discrete actions, on vectors, images, discrete values or a Dict of them.

    Args:
        env: see `noterl.Agent`.
        double: whether the online network chooses the next action that the target network evaluates, which reduces
            overestimation; False gives the targets of the Nature paper.
        dueling: whether the network has a value and an advantage stream.
        noisy: whether the last two dense layers explore by noise in their weights (Fortunato et al., 2018); the default
            policy is then greedy. Evaluation uses the weights without noise.
        hidden: units of each hidden layer for vector observations; images use the network of the Nature paper.
        network: the path of a network file, or your own network `[B, observation] -> [B, actions]`.
        recurrent: "gru", "lstm" or a function `inputs -> cell` for a network with a memory; None for none. The cell
            lies between the convolutions, if there are any, and the hidden layers. A batch then counts sequences.
        recurrent_units: the number of outputs of the cell.
        sequence_length: steps of each sequence through which gradients flow; by default 32.
        burn_in: steps before these that only compute the state of the memory.
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
        noisy: bool = False,
        hidden: Sequence[int] = (128, 128),
        network: Any = None,
        gamma: float | Schedule = 0.99,
        loss: str = "huber",
        recurrent: str | Callable[[int], Any] | None = None,
        recurrent_units: int = 64,
        sequence_length: int | None = None,
        burn_in: int = 0,
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        check_word("loss", loss, tuple(_LOSSES))
        self.double: bool = check_bool("double", double)
        self.noisy: bool = check_bool("noisy", noisy)
        dueling = check_bool("dueling", dueling)
        self.error_loss: Callable[..., Any] = _LOSSES[loss]
        (network,) = networks.split_networks(network, "q")
        if dueling and network is not None and not isinstance(network, networks.HiddenLayers):
            raise ValueError("dueling must be False with a network of your own, which is used as it is")
        networks.check_memory(recurrent, network, sequence_length=sequence_length, burn_in=burn_in or None)
        if self.noisy and not (network is recurrent is None):
            raise ValueError("noisy must be False with network= and recurrent=, because the agent builds noisy layers")
        if recurrent is None:
            self.q: networks.Network = self.build_q(network, hidden, dueling)
        else:
            sizes = recurrent_units, hidden, self.action_size
            self.q = networks.recurrent_network(self.spaces.network_space, recurrent, *sizes, dueling=dueling)
        self.state_spec: Any = self.q.state_spec if recurrent is not None else {}
        self.sequence_length: int | None = sequence_length
        self.burn_in: int = burn_in
        self.target_q: networks.Network = networks.clone(self.q)
        if self.noisy:
            self.head.noisy = True
            # A network of distributions holds the noisy network as a part.
            candidates = (self.q, *self.q.parts.values())
            network = next(part for part in candidates if isinstance(part, networks.NoisyNetwork))
            # `noises` returns the noises in this order.
            names = ("noise", "selecting_noise", "target_noise")
            self.random_spec: dict[str, Any] = dict.fromkeys(names, ((network.noise_size,), "batch_normal"))
        self.gamma = self.hyperparameter("gamma", gamma, minimum=0.0, maximum=1.0)

    def build_q(self, network: Any, hidden: Any, dueling: bool) -> networks.Network:
        """Return the network of action values without a memory; arguments as in the constructor."""
        return self.value_network(network, hidden, 1, dueling)

    def value_network(self, network: Any, hidden: Any, atoms: int, dueling: bool) -> networks.Network:
        """Return a network that returns `atoms` values for each action; other arguments as in the constructor."""
        outputs = atoms * self.action_size
        values = atoms if dueling else 0
        if self.noisy:
            return networks.NoisyNetwork(self.spaces.network_space, hidden, outputs, values)
        return self.spaces.network_or_default(network, hidden, outputs, dueling=values)

    def defaults(self) -> Defaults:
        """Return the default settings.

        For images, the settings are the Nature paper's, with the learning rate of Stable-Baselines3. For vectors, the
        settings were tuned on small tasks.
        """
        defaults = Defaults(
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
        if self.is_image:
            defaults = Defaults(
                learning_rate=1e-4,
                capacity=1_000_000,
                batch_size=32,
                learning_starts=50_000,
                update_every=4,
                target_update=10_000,
                policy=LinearEpsGreedyPolicy(1.0, 0.1, steps=1_000_000),
            )
        if self.noisy:
            defaults = defaults._replace(policy=GreedyQPolicy())
        if not self.state_spec:
            return defaults
        # Each update has 16 times as many rows.
        return defaults._replace(n_step=3, updates=1 if self.is_image else 4, sampler=Prioritized(alpha=0.9, beta=0.6))

    def forward(self, observation: Any, *state: Any) -> Any:
        """Return the action values `[B, A]`; with a memory, `(action values, next state)`."""
        return self.q(observation, *state)

    def loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the mean loss of the temporal-difference errors, and the errors `[B]`."""
        if self.state_spec:
            return self.sequence_loss(batch)
        td_error, _ = self.errors_and_values(batch)
        return losses.weighted_mean(self.error_loss(td_error), batch.weight), {"td_error": td_error}

    def errors_and_values(self, batch: Batch) -> tuple[Any, Any]:
        """Return the temporal-difference errors `[B]`, and the values `[B, A]` of all actions."""
        noise, selecting_noise, target_noise = self.noises(batch)
        values = self.q(batch.observation, *noise)
        next_q = self.q(batch.next_observation, *selecting_noise)
        target_q = self.target_q(batch.next_observation, *target_noise)
        next_value = self.next_value(batch, next_q, target_q)
        target = losses.td_target(batch.reward, batch.discount, next_value)
        return losses.take(values, batch.action) - target, values

    def noises(self, batch: Batch) -> tuple[Any, ...]:
        """Return the noise of the online, the selecting and the target pass, as further arguments of each network."""
        if not self.noisy:
            return (), (), ()
        return tuple((batch.extra[name][0],) for name in self.random_spec)

    def sequence_loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the mean loss and the errors of sequences, `[T, S]`; both networks start from the stored states."""
        state = batch.extra["state"]
        starts = batch.extra["starts"]
        q, states = networks.unroll(self.q, batch.observation, state, starts, self.burn_in)  # [T, S, A]
        _, target_states = networks.unroll(self.target_q, batch.observation, state, starts)
        next_q, _ = networks.step(self.q, batch.next_observation, states)
        target_q, _ = networks.step(self.target_q, batch.next_observation, target_states)
        next_value = self.next_value(batch, next_q, target_q)
        continues = batch.extra["continues"]
        target = losses.n_step_target(batch.reward, batch.discount, next_value, continues, self.replay.n_step)
        td_error = losses.take(q, batch.action) - target
        return losses.sequence_mean(self.error_loss(td_error), batch.weight), {"td_error": td_error}

    def next_value(self, batch: Batch, q: Any, target_q: Any) -> Any:
        """Return the values of the next observations, from the action values `[..., A]` of both networks for them."""
        legal = batch.extra.get("next_action_mask")  # None if the environment reports no masks
        next_q = self.head.masked(target_q, legal)
        if not self.double:
            return ops.max(next_q, axis=-1)
        return losses.take(next_q, ops.argmax(self.head.masked(q, legal), axis=-1))

    def update_target(self) -> None:
        """Update the target network: a hard copy, or Polyak averaging."""
        networks.copy(self.q, self.target_q)
