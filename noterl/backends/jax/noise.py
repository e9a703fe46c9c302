"""The spread of gradients on JAX, as one jitted loop over batches; the agent's state is read and left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from noterl.backends.jax.core import _Scope
from noterl.learning.gradient_noise import gradients_of
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent


def compile_spread(agent: Agent) -> Callable[[Batch], tuple[float, float, int]]:
    """Return the function from batches `[K, B, ...]` to the sum of |g_k - G|^2, |G|^2 and the length of a gradient."""
    variables = agent.all_variables

    def gradients(state: list[Any], row: Batch) -> list[Any]:
        with _Scope(variables, state):
            return gradients_of(agent, row)

    def spread(state: list[Any], batch: Batch) -> tuple[Any, Any, Any]:
        agent.trace_counts["noise"] = agent.trace_counts.get("noise", 0) + 1

        def welford(carry: tuple, row: Batch) -> tuple[tuple, None]:
            count, mean, squares = carry
            found = gradients(state, row)
            before = [gradient - center for gradient, center in zip(found, mean, strict=True)]
            mean = [center + delta / (count + 1) for center, delta in zip(mean, before, strict=True)]
            after = [gradient - center for gradient, center in zip(found, mean, strict=True)]
            squares += sum(jnp.vdot(one, other) for one, other in zip(before, after, strict=True))
            return (count + 1, mean, squares), None

        shapes = jax.eval_shape(gradients, state, jax.tree.map(lambda array: array[0], batch))
        start = (0, [jnp.zeros(shape.shape, shape.dtype) for shape in shapes], jnp.zeros(()))
        (_, mean, squares), _ = jax.lax.scan(welford, start, batch)
        size = sum(center.size for center in mean)
        return squares, sum(jnp.vdot(center, center) for center in mean), size

    compiled = jax.jit(spread)

    def run(batch: Batch) -> tuple[float, float, int]:
        squares, mean_square, size = compiled([variable._value for variable in variables], batch)
        return float(squares), float(mean_square), int(size)

    return run
