"""The gradients of an agent's losses on one batch, for histograms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends.common import NonFiniteError
from noterl.learning.gradient_noise import recorded
from noterl.learning.learner import Learner
from noterl.networks import access
from noterl.random import Generators
from noterl.types import Batch, map_arrays


class GradientValues:
    """Returns the gradients on a batch that is sampled as for the agent's updates; it does not change the agent.

    Args:
        learner: the agent's learner, which is built.

    Attributes:
        generator: samples the batches. It is seeded by the agent's seed but is not one of the agent's generators.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner, named = learner, learner.algorithm.networks()
        self._names = {
            id(variable): f"{name}/{position:03d}"
            for name, network in named.items()
            for position, variable in enumerate(access.variables(network))
        }
        layout = access.keras_layout(named.values())
        self._axes = {name: layout[key] for key, name in self._names.items() if key in layout}
        self.generator = Generators(learner.algorithm.generators.seed)("gradient_values")
        self._gradients = backends.current().compile_call(
            partial(_gradients, learner, self._names),
            learner.variables,
            jit_compile=learner.jit_compile,
            on_trace=learner.trace_counter("gradients"),
            training=True,
            torch_seed=lambda advance: learner.algorithm.updates,
        )

    def __call__(self) -> dict[str, np.ndarray] | None:
        """Return the gradients by the names of `Agent.get_weights`; None if there are no data at this step.

        A weight that is not among those has the name "<optimizer>/<position>". On torch, the result is None if a loss
        is not finite.
        """
        batch = self._learner.noise_batch(1, self.generator)
        if batch is None:
            return None
        try:
            found = self._gradients(map_arrays(_first, batch))
        except NonFiniteError:
            return None
        gradients = {name: backends.current().fetch(value) for name, value in found.items()}
        return {
            name: value.transpose(self._axes[name]) if name in self._axes else value
            for name, value in gradients.items()
        }


def _first(array: Any) -> Any:
    return array[0]


def _gradients(learner: Learner, names: Mapping[int, str], batch: Batch) -> dict[str, Any]:
    found = {}
    for optimizer, pairs in backends.current().isolated(lambda: recorded(learner, batch), learner.variables).items():
        for position, (gradient, variable) in enumerate(pairs):
            found[names.get(id(variable), f"{optimizer}/{position:03d}")] = gradient
    return found
