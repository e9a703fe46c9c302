"""The gradients of an agent's losses on one batch, for histograms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends.common import NonFiniteError
from noterl.learning.gradient_noise import compile_measurement, noise_batch, recorded
from noterl.learning.learner import Learner
from noterl.networks import access
from noterl.random import Generators
from noterl.types import Batch, map_arrays


class GradientValues:
    """Returns the gradients on a batch that is sampled as for the agent's updates, without changing the agent.

    Args:
        learner: the agent's learner, which is built.

    Attributes:
        generator: samples the batches. Seeded by the agent's seed, but separate from the agent's generators.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        named = learner.algorithm.networks()
        self._names = {
            id(variable): f"{name}/{position:03d}"
            for name, network in named.items()
            for position, variable in enumerate(access.variables(network))
        }
        layout = access.keras_layout(named.values())
        self._axes = {name: layout[key] for key, name in self._names.items() if key in layout}
        self.generator: np.random.Generator = Generators(learner.algorithm.generators.seed)("gradient_values")
        self._gradients = compile_measurement(learner, partial(_gradients, learner, self._names), "gradients")

    def __call__(self) -> dict[str, np.ndarray] | None:
        """Return the gradients by the names of `Agent.get_weights`; None if there are no data at this step.

        A weight without such a name has the name "<optimizer>/<position>". On torch, the result is None if a loss
        is not finite.
        """
        batch = noise_batch(self._learner, 1, self.generator)
        if batch is None:
            return None
        try:
            tensors = self._gradients(map_arrays(lambda array: array[0], batch))
        except NonFiniteError:
            return None
        gradients = {name: backends.current().fetch(value) for name, value in tensors.items()}
        return {
            name: value.transpose(self._axes[name]) if name in self._axes else value
            for name, value in gradients.items()
        }


def _gradients(learner: Learner, names: Mapping[int, str], batch: Batch) -> dict[str, Any]:
    by_name = {}
    for optimizer, pairs in backends.current().isolated(lambda: recorded(learner, batch), learner.variables).items():
        for position, (gradient, variable) in enumerate(pairs):
            by_name[names.get(id(variable), f"{optimizer}/{position:03d}")] = gradient
    return by_name
