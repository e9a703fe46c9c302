"""Behavior cloning: gradient updates of an agent's policy on the actions of an expert.

Paper: Pomerleau, "Efficient training of artificial neural networks for autonomous navigation" (1991). The agent's head
defines the loss, `Head.cloning_loss`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from noterl import backends, networks
from noterl.backends import ops
from noterl.backends.common import GroupResult, Program
from noterl.learning import optimizers
from noterl.learning.expert_data import ExpertData
from noterl.learning.gradient_noise import Recorder
from noterl.learning.learner import LARGEST_CALL, Learner, pad
from noterl.learning.runner import UpdateSource
from noterl.learning.schedule import UpdateSchedule
from noterl.networks import training_mode
from noterl.types import Batch

# The batches of one compiled call are in memory at the same time, so they hold at most this many bytes of observations.
_LARGEST_GROUP = 2**26


class Cloning(UpdateSource):
    """Behavior cloning of one agent: the source of groups for an `UpdateRunner`. `Agent.pretrain` makes one per call.

    Only the variables that the agent's policy depends on are trained, by a separate optimizer.

    Args:
        learner: the agent's learner, which is built.
        data: the demonstrations.
        optimizer: a Keras optimizer, or what else `compile` takes; None for Adam with 1e-3.
        updates: the number of updates.
        batch_size: pairs of observation and action in one update.

    Attributes:
        schedule: `schedule.updates` is the number of updates in one group, which is one compiled call.

    Raises:
        ValueError: if the policy depends on no trainable variable.
    """

    def __init__(self, learner: Learner, data: ExpertData, optimizer: Any, updates: int, batch_size: int) -> None:
        self._learner = learner
        self._data = data
        (resolved,) = optimizers.resolve(optimizer, ("optimizer",), 1e-3).values()
        self.variables: list[Any] = self._policy_variables()
        self.optimizer: Any = optimizers.build(resolved, self.variables)
        self._made = 0  # updates, which a schedule of the learning rate follows one by one
        largest = 1 if optimizers.schedule_of(self.optimizer) is not None else LARGEST_CALL
        size = min(updates, largest, max(1, _LARGEST_GROUP // (batch_size * data.observation[0].nbytes)))
        # Only the batch size and the size of a group are used.
        self.schedule: UpdateSchedule = UpdateSchedule(
            batch_size=batch_size, learning_starts=0, update_every=1, updates=size, target_update=None
        )
        self._known = networks.unique([*learner.updater.find_variables(), *optimizers.variables(self.optimizer)])
        self._program: Program = learner.algorithm._reads.renewed(self._compile)

    def _compile(self) -> Program:
        """Return the compiled program of `step`; called again if an attribute that the program has read changes."""
        learner = self._learner
        return backends.current().compile_updates(
            learner.updater.traced(self.step), self._known, report=learner.report, **learner.updater.options("pretrain")
        )

    def call_size(self, updates: int) -> int:
        """Return how many updates run in one compiled call; the last group is padded to the size of the others."""
        return int(self.schedule.updates)

    def sample(self, updates: int) -> np.ndarray:
        """Sample the pairs of a group of updates, with replacement: indices `[K, B]`."""
        generator = self._learner.algorithm.generators("pretrain")
        return self._data.sample_indices((updates, self.schedule.batch_size), generator)

    def batches(self, samples: Sequence[np.ndarray], size: int) -> AbstractContextManager[Iterator[Batch]]:
        """Return a context manager that yields an iterator over the batches `[K, B, ...]` of each part."""
        return nullcontext(pad(self._batch(part), size) for part in samples)

    def update(self, batch: Batch, count: int) -> GroupResult:
        """Make the first `count` updates of `batch` in one compiled call."""
        optimizers.update_rules(self.optimizer, self._made)
        self._made += count
        return self._program(batch, count)

    def step(self, batch: Batch, index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one update on a batch `[B, ...]`; backends compile this."""
        arguments = batch.observation, batch.action
        updater = self._learner.updater
        with training_mode(updater.networks, updater.precision):
            minimize = backends.current().minimize
            loss, _ = minimize(self.loss, self.variables, self.optimizer, arguments, known=self._known, traceable=True)
        return {"loss": loss}, {}

    def loss(self, observation: Any, action: Any) -> Any:
        """Return the mean loss of the head on observations and actions `[B, ...]`."""
        return ops.mean(self._learner.algorithm.head.cloning_loss(self._outputs(observation), action))

    def _outputs(self, observation: Any) -> Any:
        return self._learner.algorithm._output_and_fields(observation)[0]

    def _batch(self, indices: np.ndarray) -> Batch:
        """Return the demonstrations at indices `[k, B]` as batches."""
        observation, action = self._data.gather(indices)
        # `step` reads only observations and actions; the other fields complete the batch.
        none = np.zeros(indices.shape, np.float32)
        return Batch(observation, action, none, none, none, none + 1, indices.astype(np.int32), {})

    def _policy_variables(self) -> list[Any]:
        """Return the variables that change the outputs of `forward`, found by the gradient of random sums of outputs.

        TensorFlow and torch return no gradient for other variables. JAX returns zeros, so a network whose gradients are
        all zero is left out as a whole.
        """
        learner = self._learner
        pairs = list[tuple[Any, Any]]()
        # A few observations show which variables have a gradient.
        observation, _ = self._data.gather(np.arange(min(8, len(self._data))))
        trained = learner.algorithm.trained_variables()

        def random_sum(observation: Any) -> Any:
            outputs = self._outputs(observation)
            # Random factors, because a plain sum can be constant, such as the sum of probabilities.
            factors = np.random.default_rng(0).normal(size=tuple(outputs.shape)).astype(np.float32)
            return ops.sum(ops.multiply(outputs, factors))

        tensor = ops.convert_to_tensor(observation)
        variables = learner.updater.find_variables()
        backends.current().minimize(random_sum, trained, Recorder(pairs), (tensor,), known=variables)
        fetch = backends.current().fetch
        policy_variables: list[Any] = []
        reached = {id(variable) for _, variable in pairs}
        moving = {id(variable) for gradient, variable in pairs if fetch(gradient).any()}
        for network in learner.algorithm.networks().values():
            ids = {id(variable) for variable in networks.trainable_variables(network)}
            # JAX returns zeros for unused variables, so all variables of a network with some gradient are kept.
            if ids & moving:
                policy_variables += [variable for variable in trained if id(variable) in ids & reached]
        if not policy_variables:
            raise ValueError(f"pretrain: forward of {type(learner.algorithm).__name__} depends on nothing to train")
        return networks.unique(policy_variables)
