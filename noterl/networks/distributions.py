"""Networks of the distributions of action values. Called, they return the means, as networks of action values do.

Z is the number of atoms: the quantiles of a distribution, or the values of its support.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.backends import ops
from noterl.networks.access import Composite, Network

Tensor = Any

# The number of cosines of a fraction (Dabney et al., 2018b, equation 4).
NUM_COSINES = 64


def midpoints(count: int) -> np.ndarray:
    """Return the midpoints of equal intervals of [0, 1], `[count]`, float64."""
    return (np.arange(count) + 0.5) / count


class Distribution(Composite):
    """A network `[B, observation] -> [B, Z A]`: for each atom in turn, a number for each action.

    Args:
        network: returns quantiles, or the logits of the probabilities of a support.
        num_atoms: Z.
        support: the values of the atoms, `[Z]`; None for quantiles.

    Example:
    >>> from keras import ops
    >>> from noterl import networks
    >>> q = networks.Distribution(networks.mlp(4, [8], 5 * 2), num_atoms=5)
    >>> tuple(q(ops.zeros((3, 4))).shape)
    (3, 2)
    """

    def __init__(self, network: Network, num_atoms: int, support: np.ndarray | None = None) -> None:
        self.parts: dict[str, Network] = {"network": network}
        self.num_atoms: int = num_atoms
        self.support: np.ndarray | None = support

    def __call__(self, observation: Tensor, *noise: Tensor) -> Tensor:
        """Return the action values `[B, A]`; `noise` as in a `NoisyNetwork`."""
        return self.mean(self.atoms(observation, *noise))

    def atoms(self, observation: Tensor, *noise: Tensor) -> Tensor:
        """Return the quantiles or logits, `[B, Z, A]`.

        Raises:
            ValueError: if the network has another number of outputs.
        """
        outputs = self.parts["network"](observation, *noise)
        if outputs.shape[-1] % self.num_atoms:
            raise ValueError(
                f"network must have {self.num_atoms} outputs for each action, got outputs {tuple(outputs.shape)}"
            )
        return ops.reshape(outputs, (-1, self.num_atoms, outputs.shape[-1] // self.num_atoms))

    def mean(self, atoms: Tensor) -> Tensor:
        """Return the means `[B, A]` of distributions `[B, Z, A]`."""
        if self.support is None:
            return ops.mean(atoms, axis=1)
        return ops.sum(ops.softmax(atoms, axis=1) * ops.convert_to_tensor(self.support[:, None]), axis=1)


class ImplicitQuantiles(Composite):
    """A network of quantiles at any fractions; called, it returns their mean at the midpoints of equal intervals.

    Dabney et al., "Implicit quantile networks for distributional reinforcement learning" (2018b), section 3.1:
    `Z(s, a; tau) = f(psi(s) phi(tau))_a` with `phi_j(tau) = relu(sum_i cos(pi i tau) w_ij + b_j)`.

    Args:
        encoder: psi before its last ReLU, `[B, observation] -> [B, F]`.
        fractions: phi before its ReLU, `[B, NUM_COSINES] -> [B, F]`.
        output: f, `[B, F] -> [B, A]`.
        num_fractions: the number of midpoints.

    Attributes:
        cosines: of the midpoints, `[Z, NUM_COSINES]`.
    """

    def __init__(self, encoder: Network, fractions: Network, output: Network, num_fractions: int) -> None:
        self.parts: dict[str, Network] = {"encoder": encoder, "fractions": fractions, "output": output}
        angles = np.pi * np.outer(midpoints(num_fractions), np.arange(NUM_COSINES))
        self.cosines: np.ndarray = np.cos(angles).astype(np.float32)

    def __call__(self, observation: Tensor) -> Tensor:
        """Return the action values `[B, A]`."""
        return self.mean(self.features(observation))

    def features(self, observation: Tensor) -> Tensor:
        """Return psi of the observations, `[B, F]`."""
        return ops.relu(self.parts["encoder"](observation))

    def mean(self, features: Tensor) -> Tensor:
        """Return the action values `[B, A]` of features: the mean at the midpoints."""
        return ops.mean(self._quantiles(features, ops.convert_to_tensor(self.cosines)), axis=1)

    def quantiles(self, features: Tensor, fractions: Tensor) -> Tensor:
        """Return the quantiles `[B, Z, A]` at fractions `[B, Z]`."""
        angles = np.pi * np.arange(NUM_COSINES, dtype=np.float32)
        return self._quantiles(features, ops.cos(ops.expand_dims(fractions, -1) * ops.convert_to_tensor(angles)))

    def _quantiles(self, features: Tensor, cosines: Tensor) -> Tensor:
        """Return the quantiles for the cosines of fractions, `[Z, NUM_COSINES]` or `[B, Z, NUM_COSINES]`."""
        size = features.shape[-1]
        count = cosines.shape[-2]
        embedding = ops.relu(self.parts["fractions"](ops.reshape(cosines, (-1, NUM_COSINES))))
        embedding = ops.reshape(embedding, (*((-1,) if len(cosines.shape) == 3 else ()), count, size))
        product = ops.reshape(ops.expand_dims(features, 1) * embedding, (-1, size))
        values = self.parts["output"](product)
        return ops.reshape(values, (-1, count, values.shape[-1]))
