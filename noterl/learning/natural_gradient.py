"""Natural-gradient steps within a trust region: Fisher-vector products, conjugate gradients and a line search.

All functions run inside a compiled call. The Fisher matrix is never formed. The matrix is the Hessian of the KL
divergence at the current weights, so a product with a vector differentiates the divergence twice. Schulman et al.,
"Trust region policy optimization", 2015, appendix C.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from noterl import backends
from noterl.backends import ops
from noterl.backends.replicas import mean_over_replicas

_TINY = 1e-30  # far below the curvature of any step
Tensor = Any
Product = Callable[[Tensor], Tensor]


class TrustRegion(Protocol):
    """Rules of a step, such as an agent with these attributes; numbers may be hyperparameters.

    Attributes:
        target_kl: the divergence for which the longest step is scaled, to second order.
        kl_tolerance: a step is refused if its divergence exceeds this multiple of `target_kl`.
        cg_iterations: the most iterations of the conjugate gradients.
        cg_residual_tolerance: the iterations end earlier if the squared norm of the residual is at most this.
        cg_damping: this multiple of the identity is added to the Fisher matrix.
        line_search_steps: the most steps that are tried.
        line_search_shrink: each step that is tried is this multiple of the one before.
    """

    target_kl: Any
    kl_tolerance: Any
    cg_iterations: int
    cg_residual_tolerance: Any
    cg_damping: Any
    line_search_steps: int
    line_search_shrink: Any


class Solution(NamedTuple):
    """The result of conjugate gradients.

    Attributes:
        x: the solution `[P]`.
        iterations: how many iterations were made.
        residual: the squared norm of the residual.
    """

    x: Tensor
    iterations: Tensor
    residual: Tensor


class Search(NamedTuple):
    """The result of a line search.

    Attributes:
        accepted: whether a step was accepted.
        scale: the share of the longest step that was accepted.
        steps: how many steps were tried.
        objective: of the step that was tried last.
        divergence: of the step that was tried last.
    """

    accepted: Tensor
    scale: Tensor
    steps: Tensor
    objective: Tensor
    divergence: Tensor


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Return the values of all tensors as one vector `[P]`."""
    return ops.concatenate([ops.reshape(tensor, (-1,)) for tensor in tensors], axis=0)


def unflatten(vector: Tensor, variables: Sequence[Any]) -> list[Tensor]:
    """Return the parts of a vector `[P]` in the shapes of the variables."""
    ends = itertools.accumulate(math.prod(variable.shape) for variable in variables)
    return [
        ops.reshape(vector[end - math.prod(variable.shape) : end], tuple(variable.shape))
        for end, variable in zip(ends, variables, strict=True)
    ]


def fisher_product(divergence: Callable[[], Tensor], variables: Sequence[Any], damping: Tensor) -> Product:
    """Return the function `v -> (F + damping I) v` of vectors `[P]`.

    Args:
        divergence: returns the mean KL divergence from the policy of the current weights; F is the Hessian.
        variables: the weights of the policy.
        damping: a number of at least 0.
    """
    product = backends.current().hessian_product(divergence, variables)
    return lambda vector: flatten(product(unflatten(vector, variables))) + damping * vector


def conjugate_gradients(product: Product, vector: Tensor, iterations: int, tolerance: Tensor) -> Solution:
    """Solve `A x = vector` for a positive definite matrix A, starting from 0.

    Hestenes and Stiefel, "Methods of conjugate gradients for solving linear systems", 1952.

    Args:
        product: returns `A v` for a vector `v` `[P]`.
        vector: the right side `[P]`.
        iterations: the most iterations.
        tolerance: the iterations end if the squared norm of the residual is at most this.
    """

    def unfinished(x: Tensor, residual: Tensor, direction: Tensor, square: Tensor, count: Tensor) -> Tensor:
        return ops.logical_and(count < iterations, square > tolerance)

    def iterate(x: Tensor, residual: Tensor, direction: Tensor, square: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        image = product(direction)
        length = square / ops.sum(direction * image)
        residual = residual - length * image
        new = ops.sum(ops.square(residual))
        return x + length * direction, residual, residual + (new / square) * direction, new, count + 1

    # At x = 0, the residual is the right side, and the first direction is the residual.
    start = ops.zeros_like(vector), vector, vector, ops.sum(ops.square(vector)), ops.zeros((), "int32")
    x, _, _, square, count = ops.while_loop(unfinished, iterate, start)
    return Solution(x, count, square)


def line_search(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], objective: Tensor, limit: Tensor, rules: TrustRegion
) -> Search:
    """Shrink a step until it improves the objective within the limit of the divergence.

    Args:
        evaluate: returns objective and divergence for this share of the longest step.
        objective: of the current weights.
        limit: the largest divergence that is accepted.
        rules: with `line_search_steps` and `line_search_shrink`.
    """

    def unfinished(accepted: Tensor, scale: Tensor, count: Tensor, *last: Tensor) -> Tensor:
        return ops.logical_and(count < rules.line_search_steps, ops.logical_not(accepted))

    def attempt(accepted: Tensor, scale: Tensor, count: Tensor, *last: Tensor) -> tuple[Tensor, ...]:
        new, divergence = evaluate(scale)
        # A comparison with NaN is false, but an objective may also be infinite.
        accepted = ops.logical_and(ops.isfinite(new), ops.logical_and(new > objective, divergence <= limit))
        return accepted, ops.where(accepted, scale, scale * shrink), count + 1, new, divergence

    shrink = ops.convert_to_tensor(rules.line_search_shrink)
    none = ops.zeros_like(objective)
    start = ops.zeros((), "bool"), ops.ones_like(objective), ops.zeros((), "int32"), none, none
    return Search(*ops.while_loop(unfinished, attempt, start))


def step(
    evaluate: Callable[[], tuple[Tensor, Tensor]],
    fisher_divergence: Callable[[], Tensor],
    variables: Sequence[Any],
    rules: TrustRegion,
) -> dict[str, Tensor]:
    """Move the variables along the natural gradient of an objective, or leave the variables if no step is accepted.

    With the gradient g and the damped Fisher matrix F, the direction is `x = F^-1 g`, and the longest step is
    `x sqrt(2 target_kl / x F x)`.

    Args:
        evaluate: returns the objective and the mean KL divergence from the policy before the step, for the values that
            the variables have when it is called. Steps increase the objective.
        fisher_divergence: returns a mean KL divergence, maybe on fewer rows, whose Hessian is the Fisher matrix.
        variables: the weights of the policy.
        rules: of the step.

    Returns:
        Metrics: `surrogate_gain`, by how much the objective increased; `kl`, the divergence of the step;
        `step_accepted`, 1 or 0; `line_search_steps`, how many steps were tried; `cg_iterations` and `cg_residual`, the
        squared norm of what the conjugate gradients left. Gain and divergence are 0 if no step was accepted.
    """
    backend = backends.current()
    before, slopes = backend.gradients(lambda: evaluate()[0], variables)
    product = fisher_product(fisher_divergence, variables, ops.convert_to_tensor(rules.cg_damping))
    tolerance = ops.convert_to_tensor(rules.cg_residual_tolerance)
    solution = conjugate_gradients(product, flatten(slopes), rules.cg_iterations, tolerance)
    target = ops.convert_to_tensor(rules.target_kl)
    # A solution of zeros, as in the dry run, is a step of zeros: no infinity, which checks of numbers would report.
    curvature = ops.maximum(ops.sum(solution.x * product(solution.x)), _TINY)
    longest = solution.x * ops.sqrt(2.0 * target / curvature)
    start = flatten([ops.convert_to_tensor(variable) for variable in variables])

    def assign(weights: Tensor) -> None:
        for variable, value in zip(variables, unflatten(weights, variables), strict=True):
            variable.assign(value)

    def try_step(scale: Tensor) -> tuple[Tensor, Tensor]:
        def move() -> tuple[Tensor, Tensor]:
            assign(start + scale * longest)
            objective, divergence = evaluate()
            return mean_over_replicas(objective), mean_over_replicas(divergence)

        return backend.isolated(move, variables)

    search = line_search(try_step, before, target * ops.convert_to_tensor(rules.kl_tolerance), rules)
    assign(ops.where(search.accepted, start + search.scale * longest, start))
    none = ops.zeros_like(before)
    return {
        "surrogate_gain": ops.where(search.accepted, search.objective - before, none),
        "kl": ops.where(search.accepted, search.divergence, none),
        "step_accepted": ops.cast(search.accepted, "float32"),
        "line_search_steps": ops.cast(search.steps, "float32"),
        "cg_iterations": ops.cast(solution.iterations, "float32"),
        "cg_residual": solution.residual,
    }
