"""The spread of gradients on TensorFlow, as one compiled loop over batches; what a loss assigns is put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from noterl.learning.gradient_noise import gradients_of
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent


def compile_spread(agent: Agent) -> Callable[[Batch], tuple[float, float, int]]:
    """Return the function from batches `[K, B, ...]` to the sum of |g_k - G|^2, |G|^2 and the length of a gradient."""

    def gradients(row: Batch) -> list[Any]:
        old = [variable.value.read_value() for variable in agent.all_variables]
        found = gradients_of(agent, row)
        for variable, value in zip(agent.all_variables, old, strict=True):
            variable.value.assign(value)
        return found

    def spread(batch: Batch) -> tuple[Any, Any, Any]:
        agent.trace_counts["noise"] = agent.trace_counts.get("noise", 0) + 1
        first = gradients(tf.nest.map_structure(lambda array: array[0], batch))

        def welford(k: Any, mean: list[Any], squares: Any) -> tuple[Any, list[Any], Any]:
            found = gradients(tf.nest.map_structure(lambda array: array[k], batch))
            before = [gradient - center for gradient, center in zip(found, mean, strict=True)]
            mean = [center + delta / tf.cast(k + 1, delta.dtype) for center, delta in zip(mean, before, strict=True)]
            after = [gradient - center for gradient, center in zip(found, mean, strict=True)]
            squares += tf.add_n([tf.reduce_sum(one * other) for one, other in zip(before, after, strict=True)])
            return k + 1, mean, squares

        start = (tf.constant(1), first, tf.constant(0.0))
        samples = batch.reward.shape[0]
        _, mean, squares = tf.while_loop(lambda k, *_: k < samples, welford, start)
        size = sum(center.shape.num_elements() for center in mean)
        return squares, tf.add_n([tf.reduce_sum(center * center) for center in mean]), tf.constant(size)

    compiled = tf.function(spread, jit_compile=True, autograph=False)

    def run(batch: Batch) -> tuple[float, float, int]:
        squares, mean_square, size = compiled(tf.nest.map_structure(tf.constant, batch))
        return float(squares), float(mean_square), int(size)

    return run
