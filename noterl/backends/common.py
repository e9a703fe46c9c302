"""Types and rules that the three backends share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from noterl.types import Batch

# step(batch, index) -> (logs, feedback): one gradient update on tensors [B, ...].
Step = Callable[[Batch, int], tuple[dict[str, Any], dict[str, Any]]]


class NonFiniteError(FloatingPointError):
    """A loss or gradient is not finite; the agent keeps the last finite state."""

    def __init__(self, loss: float, *, update: int | None = None, step: int | None = None) -> None:
        where = "" if update is None else f" at update {update} (environment step {step})"
        super().__init__(
            f"the loss ({loss}) or a gradient of it is not finite{where}; the agent keeps the last finite state"
        )
        self.loss, self.update, self.step = loss, update, step


class GatheredRows(NamedTuple):
    """Batches of K updates, as indices of rows that are on the device already.

    Attributes:
        data: tensors `[T N, ...]`.
        indices: the rows of each batch, a host array `[K, B]` of int32.
    """

    data: Batch
    indices: Any


class GroupResult(NamedTuple):
    """The result of a compiled call of K gradient updates. Arrays stay on the device until they are fetched.

    Attributes:
        logs: values by name, `[K, ...]` each; those of the updates that ran come first.
        feedback: values for the memory by name, `[K, B]` each.
        applied: number of updates that were applied. It is smaller than the number asked for if an update was not
            finite, or if training on these batches stopped early. The state is then that before the failed update.
        stopped_early: whether `stop` returned true for update number `applied`, which was undone.
        weights: the flat weights of the variables to report, or None.
    """

    logs: dict[str, Any]
    feedback: dict[str, Any]
    applied: int
    stopped_early: bool = False
    weights: Any = None


def split_loss(result: Any) -> tuple[Any, Any]:
    """Split the result of a loss function, a scalar or `(scalar, aux)`, into `(loss, aux)`.

    Raises:
        ValueError: if it is neither.
    """
    pair = result if isinstance(result, tuple) else (result, {})
    if len(pair) != 2:
        raise ValueError(f"a loss function must return a scalar or (scalar, feedback), got a tuple of {len(pair)}")
    shape = getattr(pair[0], "shape", None)
    if shape is None or len(shape):
        raise ValueError(f"a loss is a scalar tensor, got {pair[0]!r}: take the mean over the batch")
    return pair


def bucket(count: int) -> int:
    """Return the smallest power of two that is at least `count`, so that varying group sizes compile few shapes."""
    return 1 << (count - 1).bit_length()


def apply_finite_prefix(apply: Callable[[int], bool], first_non_finite: int, count: int) -> int:
    """Apply as many of `count` updates as leave a finite state, after it is known that not all of them do.

    Args:
        apply: makes this number of updates and returns True; or changes nothing and returns False.
        first_non_finite: the first update whose loss or gradient is not finite; `count` if only the state overflows.
        count: the number of updates asked for.

    Returns:
        the number of updates applied, smaller than `count`.
    """
    applied = min(first_non_finite, count - 1)
    while applied and not apply(applied):
        applied -= 1
    return applied


def must_loop(variables: Sequence[Any]) -> bool:
    """Whether even a single update must run inside a compiled loop.

    Splitting a group into calls must not change a bit, and XLA computes convolutions differently outside of loops.
    Dense layers give equal bits, and a loop of one takes as long as a small update.
    """
    return any(len(variable.shape) > 2 for variable in variables)
