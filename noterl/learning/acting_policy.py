"""The policy that has begun a rollout, if the agent has other weights now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import networks
from noterl.backends import keras
from noterl.utils.schema import Array, check

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm


class ActingPolicy:
    """The weights and the statistics for normalization with which a rollout is collected.

    `prepare` of an agent computes log-probabilities and values with the current networks. If workers collect the
    rollout while the agent learns, another policy has acted, with older weights. `in_place` restores this policy while
    `prepare` runs.

    Args:
        algorithm: the agent, whose current weights are copied.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._weights = self._current()
        normalizers = algorithm.spaces.normalizers
        self._statistics = {} if normalizers is None else _copies(normalizers.arrays())

    def _networks(self) -> list[tuple[str, Any]]:
        """Return the networks by name, without generators of random numbers, which `prepare` advances."""
        by_name = self._algorithm.networks()
        return [
            (name, network) for name, network in by_name.items() if not isinstance(network, keras.random.SeedGenerator)
        ]

    def _current(self) -> dict[str, list[np.ndarray[Any, Any]]]:
        """Return copies of the current weights, because the weights of torch's networks may be views."""
        return {
            name: [np.array(weight) for weight in networks.get_weights(network)] for name, network in self._networks()
        }

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Return a context manager in which the networks have these weights.

        Raises:
            RuntimeError: if the networks are changed inside of the context: the changes are lost.
        """
        current = self._current()
        try:
            self._set(self._weights)
            yield
            if not _are_equal(self._current(), self._weights):
                raise RuntimeError(
                    f"prepare of {type(self._algorithm).__name__} changes the networks, so workers must not collect "
                    "the next rollout meanwhile: set learns_in_prepare = True in the class"
                )
        finally:
            # Also after an error, because the agent must keep the weights that it has learned.
            self._set(current)

    def _set(self, weights: Mapping[str, Any]) -> None:
        for name, network in self._networks():
            networks.set_weights(network, weights[name])

    def is_current(self) -> bool:
        """Return whether the algorithm has these weights and statistics now."""
        normalizers = self._algorithm.spaces.normalizers
        statistics = {} if normalizers is None else normalizers.arrays()
        same = all(np.array_equal(array, self._statistics[name]) for name, array in statistics.items())
        return same and _are_equal(self._current(), self._weights)

    @property
    def statistics(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """The statistics for normalization, for `Normalizers.normalize_rollout`; None without normalization."""
        return self._statistics or None

    def get_state(self) -> dict[str, Any]:
        """Return the weights and the statistics."""
        weights = {name: [np.array(weight) for weight in arrays] for name, arrays in self._weights.items()}
        return {"weights": weights, "statistics": _copies(self._statistics)}

    def set_state(self, state: Any) -> None:
        """Restore what `get_state` returned.

        Raises:
            ValueError: if the state does not fit the networks; this object is then unchanged.
        """
        schema = {
            "weights": {
                name: [Array(shape=weight.shape) for weight in arrays] for name, arrays in self._weights.items()
            },
            "statistics": {name: Array(array.dtype, array.shape) for name, array in self._statistics.items()},
        }
        check(state, schema, "the acting policy")
        self._weights = {name: list(weights) for name, weights in state["weights"].items()}
        self._statistics = _copies(state["statistics"])


def _copies(arrays: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.array(array) for name, array in arrays.items()}


def _are_equal(first: Mapping[str, list[Any]], second: Mapping[str, list[Any]]) -> bool:
    """Return whether networks have the same weights; two weights that are NaN are equal."""
    return all(
        np.array_equal(weight, other, equal_nan=True)
        for name, weights in first.items()
        for weight, other in zip(weights, second[name], strict=True)
    )
