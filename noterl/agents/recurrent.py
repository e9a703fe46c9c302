"""The base class of PPO and A2C: an actor-critic whose networks may have a memory.

Paper: Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning", 2019, section 3: updates
on sequences start from the state that was stored while acting. Here the sequences come from a rollout.

Differs: the memory is reset within a sequence where an episode starts, so sequences have one length and need no
padding. The critic has a memory of its own, whose state before each row `prepare` computes from the whole rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from noterl import losses, networks
from noterl.agents.actor_critic import ActorCritic, ActorCriticOptions, masks
from noterl.backends import ops
from noterl.networks.critics import scalar_values
from noterl.types import Batch, map_arrays

# The fields of `prepare` with the critic's state before each row.
_CRITIC = "critic_"


class RecurrentOptions(ActorCriticOptions, total=False):
    """The keyword arguments of `RecurrentActorCritic`."""

    recurrent: str | Callable[[int], Any] | None
    recurrent_units: int
    sequence_length: int | None


class RecurrentActorCritic(ActorCritic):
    """Base of the actor-critics that may have a memory.

    Args:
        env: see `noterl.Agent`.
        recurrent: "gru", "lstm" or a function `inputs -> cell`; None for networks without a memory.
        recurrent_units: the number of outputs of each cell.
        sequence_length: steps of each sequence; see `PPO`.
        **options: see `ActorCritic`.
    """

    corrects_staleness = True

    def __init__(
        self,
        env: Any,
        *,
        recurrent: str | Callable[[int], Any] | None = None,
        recurrent_units: int = 64,
        sequence_length: int | None = None,
        **options: Unpack[ActorCriticOptions],
    ) -> None:
        networks.check_memory(recurrent, options.get("network"), sequence_length=sequence_length)
        self._cell: Any = (recurrent, recurrent_units)
        super().__init__(env, **options)
        if recurrent is not None:
            self.sequence_length: int | None = sequence_length

    def build_networks(
        self, network: Any, hidden: Sequence[int], shared: bool | None, activation: str, last_layer: dict[str, Any]
    ) -> None:
        """Build the networks; with `recurrent`, those with a cell."""
        cell, units = self._cell
        if cell is None:
            super().build_networks(network, hidden, shared, activation, last_layer)
            return
        layers = self.spaces.network_space, cell, units, hidden
        self.actor: networks.Network = networks.recurrent_network(*layers, activation=activation, **last_layer)
        self.state_spec: Any = self.actor.state_spec
        if shared:
            own_units = () if self.is_image else hidden
            self.critic: Any = self.actor.with_output(1, own_units, activation=activation, gain=1.0)
        else:
            self.critic = networks.recurrent_network(*layers, 1, activation=activation, gain=1.0)
            self.learner_state_spec: Any = self.critic.state_spec

    def forward(self, observation: Any, state: Mapping[str, Any] | None = None) -> Any:
        """Return the input of the head; with a memory, `(input of the head, next state)`."""
        return super().forward(observation) if state is None else self.actor(observation, state)

    def policy_outputs(self, batch: Batch) -> Any:
        """Return the input of the head for each row of a batch, in which illegal actions are excluded."""
        if not self.state_spec:
            return super().policy_outputs(batch)
        outputs, _ = networks.unroll(self.actor, batch.observation, batch.extra["state"], batch.extra["starts"])
        mask = [losses.rows_of(mask_rows) for mask_rows in masks(batch)] or [None]
        return self.head.masked(losses.rows_of(outputs), *mask)

    def values(self, batch: Batch) -> Any:
        """Return the values of the observations, one for each row of a batch."""
        if not self.state_spec:
            return super().values(batch)
        state = {name: batch.extra[f"{_CRITIC}{name}"][0] for name in self.learner_state_spec} or batch.extra["state"]
        values, _ = networks.unroll(self.critic, batch.observation, state, batch.extra["starts"])
        return scalar_values(losses.rows_of(values))

    def _as_rows(self, batch: Batch) -> Batch:
        """Return a batch as rows `[B, ...]`: of sequences `[T, S, ...]`, or the batch itself."""
        if not self.state_spec:
            return batch
        extra = {name: value for name, value in batch.extra.items() if name != "state"}
        return map_arrays(losses.rows_of, batch._replace(extra=extra))

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Return values, log-probabilities, advantages and value targets of a rollout; all `[T, N]`.

        With a memory, also the critic's state before each row, `[T, N, ...]`.
        """
        if not self.state_spec:
            return super().prepare(rollout)
        extra = rollout.extra
        starts = rollout.extra["starts"]
        outputs, _ = networks.unroll(self.actor, rollout.observation, extra["state"], starts)
        log_prob = self._log_prob_of(outputs, rollout)
        state = extra["learner_state"] if self.learner_state_spec else extra["state"]
        value, after = networks.unroll(self.critic, rollout.observation, state, starts)
        # The return of a truncated episode is bootstrapped from its true last observation.
        next_value, _ = networks.step(self.critic, rollout.next_observation, after)
        prepared = self._with_advantages(rollout, value[..., 0], next_value[..., 0], log_prob)
        if self.learner_state_spec:
            prepared["learner_state"] = {name: values[-1] for name, values in after.items()}
            for name, values in after.items():
                prepared[f"{_CRITIC}{name}"] = ops.concatenate([state[name][None], values[:-1]])
        return prepared
