"""The base class of QRDQN, C51 and IQN: Q-learning with the distribution of each action's return.

Paper: Bellemare, Dabney and Munos, "A distributional perspective on reinforcement learning" (2017), section 3.3: the
best next action has the largest mean.

Differs: the settings of `DQN`, with the targets of the Nature paper (`double=False`).
"""

from __future__ import annotations

from typing import Any, Unpack

from noterl import losses, networks
from noterl.agents.dqn import DQN, DQNOptions
from noterl.backends import ops
from noterl.types import Batch


class DistributionalDQN(DQN):
    """Base of the agents that learn the distribution of each action's return.

    Args:
        env: see `noterl.Agent`.
        double: see `DQN`.
        **options: see `DQN`; `loss` and options of a memory are refused.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.
    """

    def __init__(self, env: Any, *, double: bool = False, **options: Unpack[DQNOptions]) -> None:
        networks.refuse_options(self, options, loss="its loss follows from the distribution")
        super().__init__(env, double=double, **options)

    @property
    def num_atoms(self) -> int:
        """The number of atoms of a distribution, Z."""
        raise NotImplementedError(f"{type(self).__name__} must define num_atoms")

    @property
    def atom_values(self) -> Any:
        """The values of the atoms, `[Z]`, if the network returns their probabilities; None if it returns quantiles."""
        return None

    def build_q(self, network: Any, hidden: Any, dueling: bool) -> networks.Network:
        """Return the network of distributions; your own returns `[B, Z A]`, all actions of an atom first."""
        atoms = self.num_atoms
        return networks.Distribution(self.value_network(network, hidden, atoms, dueling), atoms, self.atom_values)

    def next_atoms(self, batch: Batch) -> Any:
        """Return the target network's quantiles or logits of the best next action, `[B, Z]`."""
        _, selecting, target = self.noises(batch)
        atoms = self.target_q.atoms(batch.next_observation, *target)
        values = self.q(batch.next_observation, *selecting) if self.double else self.target_q.mean(atoms)
        return take_atoms(atoms, self.best_action(batch, values))

    def quantile_loss(self, batch: Batch, quantiles: Any, following: Any, fractions: Any) -> tuple[Any, dict[str, Any]]:
        """Return the mean quantile Huber loss, and the absolute differences of the means `[B]`.

        Args:
            batch: the batch.
            quantiles: of the actions taken, `[B, Z]`.
            following: of the best next actions, `[B, Y]`.
            fractions: of the quantiles, `[Z]` or `[B, Z]`.
        """
        target = losses.td_target(batch.reward[:, None], batch.discount[:, None], following)  # [B, Y]
        error = losses.quantile_huber(quantiles, target, fractions)
        td_error = ops.abs(ops.mean(quantiles, axis=1) - ops.mean(target, axis=1))
        return losses.weighted_mean(error, batch.weight), {"td_error": td_error}

    def best_action(self, batch: Batch, values: Any) -> Any:
        """Return the legal next action of the largest value, `[B]`, for values `[B, A]`."""
        return ops.argmax(self.head.masked(values, batch.extra.get("next_action_mask")), axis=-1)


def take_atoms(atoms: Any, action: Any) -> Any:
    """Return the atoms `[B, Z]` of actions `[B]`, from the atoms of all actions, `[B, Z, A]`."""
    return losses.take(atoms, ops.expand_dims(action, -1))
