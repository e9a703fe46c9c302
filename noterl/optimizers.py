"""Optimizers that Keras lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from noterl.backends import keras, ops
from noterl.registry import register


@register
@keras.saving.register_keras_serializable("noterl")
class RAdam(keras.optimizers.Optimizer):
    """Rectified Adam, with the numbers of `torch.optim.RAdam`.

    Liu et al., "On the variance of the adaptive learning rate and beyond", 2020, algorithm 2. While the variance of the
    adaptive rate cannot be estimated (rho at most 5, the first five steps with the default `beta_2`), a step is one of
    momentum without the adaptive rate.

    Args:
        learning_rate: a number or a schedule.
        beta_1: decay of the mean of the gradients.
        beta_2: decay of the mean of the gradients' squares.
        epsilon: is added to the root of the second mean.
        **options: see `keras.optimizers.Optimizer`, such as `global_clipnorm`.

    Example:
    >>> import noterl
    >>> from noterl.optimizers import RAdam
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=7)
    >>> agent.compile(optimizer=RAdam(1e-3, global_clipnorm=10.0))
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        name: str = "radam",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.beta_1: Any = beta_1
        self.beta_2: Any = beta_2
        self.epsilon: float = epsilon

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create both means of each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(variables, ["momentum", "velocity"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Make a step on one variable."""
        rate, gradient = (ops.cast(value, variable.dtype) for value in (learning_rate, gradient))
        step = ops.cast(self.iterations + 1, variable.dtype)
        beta_1, beta_2 = (ops.cast(value, variable.dtype) for value in (self.beta_1, self.beta_2))
        index = self._get_variable_index(variable)
        momentum = self._momentums[index]
        velocity = self._velocities[index]
        self.assign_add(momentum, (gradient - momentum) * (1.0 - beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1.0 - beta_2))

        # With a number, the logarithm is exact; 1 - beta_2 ** step would lose digits in the first steps.
        is_number = isinstance(self.beta_2, float)
        decay = -math.log(self.beta_2) if is_number else -ops.log(beta_2)
        largest = 2.0 / (1.0 - (self.beta_2 if is_number else beta_2)) - 1.0
        rho = largest - 2.0 * step / ops.expm1(decay * step)
        safe = ops.maximum(rho, 5.0)
        rectification = (safe - 4.0) * (safe - 2.0) * largest / ((largest - 4.0) * (largest - 2.0) * safe)
        correction = -ops.expm1(-decay * step)  # 1 - beta_2 ** step
        adaptive = ops.sqrt(rectification * correction) / (ops.sqrt(velocity) + self.epsilon)
        mean = momentum / (1.0 - ops.power(beta_1, step))
        self.assign_sub(variable, rate * mean * ops.where(rho > 5.0, adaptive, ops.ones_like(adaptive)))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        rules = {"beta_1": float(self.beta_1), "beta_2": float(self.beta_2), "epsilon": self.epsilon}
        return {**super().get_config(), **rules}
