"""The base class of TD3, SAC, TQC and CrossQ: an actor with any number of critics.

Paper: Chen et al., "Randomized ensembled double Q-learning: learning fast without a model" (2021), algorithm 1, if
`critics_in_target` is smaller than `critics`: targets are the minimum of random critics, and the actor maximizes the
mean of all. The settings of REDQ are on the page of SAC.

Differs: each row of a batch has its own random critics; in the paper, all rows have the same critics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Unpack

from gymnasium import spaces

from noterl import losses, networks
from noterl.agent import Agent, AgentOptions
from noterl.algorithm import moves_target
from noterl.backends import ops
from noterl.networks.builders import check_sizes
from noterl.networks.critics import action_values, build_critics, joint, scalar_values
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_int, check_positive, probability


class EnsembleOptions(AgentOptions, total=False):
    """The keyword arguments of `CriticEnsemble`, except `policy_delay`."""

    critics: int
    critics_in_target: int | None
    critic_hidden: Sequence[int] | None
    layer_norm: bool
    dropout: float


class CriticEnsemble(Agent):
    """Base of the agents with several critics.

    Args:
        env: see `noterl.Agent`.
        critics: the number of critics.
        critics_in_target: the number of random critics whose minimum a target takes; by default all. With fewer, the
            actor maximizes the mean of all critics.
        critic_hidden: units of each hidden layer of the critics; by default as in the actor.
        layer_norm: whether the hidden layers of the critics normalize their values; see `networks.mlp`.
        dropout: the share of the critics' hidden values that is 0 in each update; not in targets.
        policy_delay: number of critic updates for each update of the actor.
        **options: see `noterl.Agent`.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    actor: networks.Network
    finished: Callable[[Any], Any] = staticmethod(lambda network: network)  # CrossQ adds layers to a default network

    def __init__(
        self,
        env: Any,
        *,
        critics: int = 2,
        critics_in_target: int | None = None,
        critic_hidden: Sequence[int] | None = None,
        layer_norm: bool = False,
        dropout: float = 0.0,
        policy_delay: int = 1,
        **options: Unpack[AgentOptions],
    ) -> None:
        super().__init__(env, **options)
        self.num_critics: int = check_positive("critics", critics)
        chosen = critics if critics_in_target is None else check_int("critics_in_target", critics_in_target, least=1)
        if chosen > critics:
            raise ValueError(f"critics_in_target must be at most critics, {critics}, got {critics_in_target!r}")
        self.critics_in_target: int = chosen
        self.update_period: int = check_positive("policy_delay", policy_delay)
        check_sizes(critic_hidden=() if critic_hidden is None else critic_hidden)
        self._critic_hidden: Sequence[int] | None = critic_hidden
        # The options of the critics' builders that are set, because those of dueling networks have none of them.
        self.critic_norm: dict[str, Any] = {"layer_norm": True} if check_bool("layer_norm", layer_norm) else {}
        if probability("dropout", dropout):
            self.critic_norm["dropout"] = dropout

    @property
    def has_random_critics(self) -> bool:
        """Whether targets take the minimum of random critics."""
        return self.critics_in_target < self.num_critics

    @property
    def choice_spec(self) -> dict[str, Any]:
        """The entry of `random_spec` that chooses the critics of a target; empty if all are chosen."""
        return {"critic_choice": ((self.num_critics,), "uniform")} if self.has_random_critics else {}

    def build_ensemble(
        self, critics: list[Any], hidden: Any, build: Callable[[Any], networks.Network], shape: tuple[int, ...]
    ) -> None:
        """Build the critics, and the targets if there are any; arguments as in `networks.critics.build_critics`."""
        described = any(isinstance(critic, networks.HiddenLayers) for critic in critics)
        if self.critic_norm and (described or not any(critic is None for critic in critics)):
            raise ValueError(
                f"{' and '.join(self.critic_norm)}: the critics in network are used as they are; leave this out, or "
                "add such layers to them"
            )
        hidden = hidden if self._critic_hidden is None else self._critic_hidden
        self.critics: list[networks.Network] = build_critics(critics, hidden, build, shape)
        self.target_critics: list[networks.Network] = [networks.clone(q) for q in self.critics if moves_target(self)]

    def target_value(self, values: Sequence[Any], batch: Batch) -> Any:
        """Return the minimum of the critics' values, `[B, ...]` each, or of `critics_in_target` random critics."""
        if not self.has_random_critics:
            return reduce(ops.minimum, values)
        # In each row, the critics with the smallest random numbers are chosen.
        numbers = ops.reshape(batch.extra["critic_choice"], (-1, self.num_critics))
        chosen = numbers <= ops.sort(numbers, axis=-1)[:, self.critics_in_target - 1 : self.critics_in_target]  # [B, N]
        stacked = ops.stack(values, axis=1)  # [B, N, ...]
        chosen = ops.reshape(chosen, (-1, self.num_critics, *(1 for _ in stacked.shape[2:])))
        return ops.min(ops.where(chosen, stacked, float("inf")), axis=1)

    def value_for_actor(self, values: Sequence[Any]) -> Any:
        """Return the minimum of the critics' values, `[B, ...]` each, or their mean if targets take random critics."""
        return sum(values) / len(values) if self.has_random_critics else reduce(ops.minimum, values)

    def critic_values(self, outputs: Any) -> Any:
        """Return the values `[B]` of a critic's outputs `[B, 1]`."""
        return scalar_values(outputs)

    def taken_values(self, critics: Sequence[Any], batch: Batch) -> list[Any]:
        """Return each critic's values of the taken actions, `[B]` each; sequences `[T, S]` become `[T S]`."""
        taken = ops.reshape(batch.action, (-1, *batch.action.shape[len(batch.reward.shape) :]))
        if isinstance(self.action_space, spaces.Discrete):
            return [losses.take(self._q(critic, batch), taken) for critic in critics]
        return [self._q(critic, batch, "", self.head.scale(taken)) for critic in critics]

    def _q(self, critic: Any, batch: Batch, prefix: str = "", action: Any = None) -> Any:
        """Return a critic's values of actions, `[B]`; of all discrete actions, `[B, A]`."""
        features, layers = self.features(critic, batch, prefix)
        if action is None:
            return action_values(layers(features), self.action_size)
        return self.critic_values(layers(joint(features, action)))

    def squared_loss(self, errors: Sequence[Any], batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the sum of the critics' mean squared errors, and the mean of the absolute errors, `[B, ...]`."""
        mean = losses.sequence_mean if self.state_spec else losses.weighted_mean
        loss = sum(mean(losses.squared(error), batch.weight) for error in errors)
        return loss, {"td_error": self.mean_error(errors)}

    def mean_error(self, errors: Sequence[Any]) -> Any:
        """Return the mean of the critics' absolute errors, `[B, ...]` each: the feedback for the memory."""
        return (1.0 / len(errors)) * sum(map(ops.abs, errors))

    def features(self, network: Any, batch: Batch, prefix: str) -> tuple[Any, Any]:
        """Return the observations, or what a memory makes of them, as rows `[B, ...]`, and the layers that follow.

        The prefix "next_" selects the next observations.
        """
        if not self.state_spec:
            return (batch.next_observation if prefix else batch.observation), network
        state = batch.extra["state"] if network is self.actor else None  # the memory of a critic starts from zeros
        return network.batch_features(batch, state, self.burn_in, following=bool(prefix)), network.parts["output"]

    def mean_over_rows(self, values: Any, batch: Batch) -> Any:
        """Return the mean over rows `[B]`, or over the rows of sequences that count."""
        counts = ops.reshape(ops.cast(batch.weight > 0, "float32"), (-1,))
        return losses.masked_mean(values, counts) if self.state_spec else ops.mean(values)

    def update_target(self) -> None:
        """Update the target networks of the critics."""
        for critic, target in zip(self.critics, self.target_critics, strict=True):
            networks.copy(critic, target)
