"""Behavior cloning: gradient updates of an agent's policy on the actions of an expert.

Paper: Pomerleau, "Efficient training of artificial neural networks for autonomous navigation" (1991). The agent's head
defines the loss, `Head.cloning_loss`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from noterl import backends, networks
from noterl.backends import ops
from noterl.backends.common import NonFiniteError
from noterl.learning import optimizers
from noterl.learning.expert_data import ExpertData
from noterl.learning.learner import LARGEST_CALL, Learner, pad
from noterl.networks import training_mode
from noterl.types import Batch

# The batches of one compiled call are in memory at the same time, so they hold at most this many bytes of observations.
_LARGEST_GROUP = 2**26


class Cloning:
    """Behavior cloning of one agent.

    Only the variables that the agent's policy depends on are trained, by a separate optimizer.

    Args:
        learner: the agent's learner, which is built.
        data: the demonstrations.
        optimizer: a Keras optimizer, or what else `compile` takes; None for Adam with 1e-3.
        report: variables whose weights each call returns, for acting.

    Raises:
        ValueError: if the policy depends on no trainable variable.
    """

    def __init__(self, learner: Learner, data: ExpertData, optimizer: Any, report: Sequence[Any]) -> None:
        self._learner, self._data = learner, data
        (resolved,) = optimizers.resolve(optimizer, ("optimizer",), 1e-3).values()
        self.variables = self._policy_variables()
        self.optimizer = optimizers.build(resolved, self.variables)
        self._known = networks.unique([*learner.find_variables(), *optimizers.variables(self.optimizer)])
        self._program = backends.current().compile_updates(
            self.step,
            self._known,
            report=report,
            jit_compile=learner.jit_compile,
            on_trace=learner.trace_counter("pretrain"),
            torch_seed=learner.torch_seed,
        )

    def run(self, updates: int, batch_size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """Make the updates and yield the losses of each compiled call, `[K]`.

        Raises:
            NonFiniteError: if a loss or gradient is not finite; the agent holds the last finite state.
        """
        size = min(updates, LARGEST_CALL, max(1, _LARGEST_GROUP // (batch_size * self._data.observation[0].nbytes)))
        for start in range(0, updates, size):
            count = min(size, updates - start)
            indices = self._data.sample_indices((count, batch_size), generator)
            result = self._program(pad(self._batch(indices), size), count)
            losses = backends.current().fetch(result.logs["loss"])
            if result.applied < count:
                raise NonFiniteError(float(losses[result.applied]), update=start + result.applied, step=0)
            yield losses[:count]

    def step(self, batch: Batch, index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one update on a batch `[B, ...]`; backends compile this."""
        arguments = batch.observation, batch.action
        with training_mode(self._learner.updated_networks, self._learner.precision):
            loss, _ = backends.current().minimize(
                self.loss, self.variables, self.optimizer, arguments, known=self._known, traceable=True
            )
        return {"loss": loss}, {}

    def loss(self, observation: Any, action: Any) -> Any:
        """Return the mean loss of the head on observations and actions `[B, ...]`."""
        return ops.mean(self._learner.algorithm.head.cloning_loss(self._outputs(observation), action))

    def _outputs(self, observation: Any) -> Any:
        return self._learner.algorithm._output_and_fields(observation)[0]

    def _batch(self, indices: np.ndarray) -> Batch:
        observation, action = self._data.gather(indices)
        none = np.zeros(indices.shape, np.float32)
        return Batch(observation, action, none, none, none, none + 1, indices.astype(np.int32), {})

    def _policy_variables(self) -> list[Any]:
        """Return the variables that change the outputs of `forward`, found by the gradient of random sums of them.

        TensorFlow and torch return no gradient for other variables. JAX returns zeros, so a network whose gradients are
        all zero is left out as a whole.
        """
        learner, used = self._learner, _Gradients()
        observation, _ = self._data.gather(np.arange(min(8, len(self._data))))
        trained = learner.algorithm.trained_variables()

        def random_sum(observation: Any) -> Any:
            outputs = self._outputs(observation)
            factors = np.random.default_rng(0).normal(size=tuple(outputs.shape)).astype(np.float32)
            return ops.sum(ops.multiply(outputs, factors))

        tensor, known = ops.convert_to_tensor(observation), learner.find_variables()
        backends.current().minimize(random_sum, trained, used, (tensor,), known=known)
        found = []
        for network in learner.algorithm.networks().values():
            own = {id(variable) for variable in networks.trainable_variables(network)}
            if own & used.moving:
                found += [variable for variable in trained if id(variable) in own & used.reached]
        if not found:
            raise ValueError(f"pretrain: forward of {type(learner.algorithm).__name__} depends on nothing to train")
        return networks.unique(found)


class _Gradients:
    """Stands in for an optimizer: stores which variables have a gradient, and for which it is not zero."""

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Store the ids of the variables."""
        pairs = [(found, variable) for found, variable in zip(gradients, variables, strict=True) if found is not None]
        fetch = backends.current().fetch
        self.reached = {id(variable) for _, variable in pairs}
        self.moving = {id(variable) for found, variable in pairs if fetch(found).any()}
