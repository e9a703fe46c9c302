"""The forward pass for acting: the NumPy copy of a small network, checked once, or the compiled call.

For one observation, a compiled call takes 22 to 146 µs and an eager call up to 940 µs. NumPy takes 8 µs for the same
network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from noterl.acting.numpy_forward import describe, describe_recurrent
from noterl.acting.numpy_layers import Step, run_program
from noterl.acting.policy_state import State, as_rows, from_rows
from noterl.noise import sample_noise, with_noise
from noterl.types import NOISE

# Above this many weights a compiled forward pass beats NumPy even for one observation (benchmarks/micro/test_act.py).
NUMPY_WEIGHTS_LIMIT = 2_000_000

# Up to this many weights, an update returns them as one array. Above, copying them twice costs more than it saves.
LARGEST_REPORT = 2**14

# Scales of the random observations for which the NumPy copy is compared with the network.
PROBE_SCALES = (1, 10, 1_000)


class Joint(NamedTuple):
    """How several agents share one forward pass.

    Attributes:
        columns: the columns of each agent in joint observations `[N, D]`.
        widths: the number of outputs of each agent.
    """

    columns: Sequence[slice]
    widths: Sequence[int]


@dataclass(eq=False)
class HostForward:
    """The network's output `[N, ...]` for observations `[N, ...]`, in NumPy where possible: `Actor.forward`.

    Attributes:
        compiled: the compiled forward pass, for anything that NumPy cannot express.
        networks: the agent's networks; the NumPy copy is made from one of them, or from one for each agent of `joint`.
        hyperparameters: the agent's hyperparameters, which the forward pass might use.
        trained: the variables that updates train.
        shape: of one observation as networks receive observations.
        dtype: of observations as networks receive them.
        joint: how several agents share the forward pass; None for one agent.
        start: the state of the policy before the first step of an episode, `[...]` by name; empty without a state.
        stale: whether weights may have changed outside an update; the next call then fetches all weights.
        program: the NumPy copy, a function of `(observations, weights)` that can be pickled; None if there is none.
        report: the variables whose weights an update should return as one array; empty if the weights are large.
        noise_places: the positions of the noise of acting among `weights`.
    """

    compiled: Callable[[Any], np.ndarray]
    networks: Collection[Any]
    hyperparameters: Collection[Any]
    trained: Collection[Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    joint: Joint | None = None
    start: State = field(default_factory=dict)

    def __post_init__(self) -> None:
        from noterl import backends, networks

        self._backend = backends.current()
        self._all = networks.unique(part for network in self.networks for part in networks.variables(network))
        self._noise: list[Any] = [variable for variable in self._all if variable.name == NOISE]
        self.noise_places: list[int] = []
        self.stale: bool = True
        self.report: list[Any] = []
        self._reported: Any = None
        self._variables: list[Any] = []
        self._state_widths: dict[str, int] = {name: value.size for name, value in self.start.items()}
        self.program: Step | None = self._find_recurrent() if self.start else self._find_program(self.joint)
        if self.in_numpy:
            self._prepare_weights()

    @property
    def in_numpy(self) -> bool:
        """Whether the NumPy copy is used."""
        return self.program is not None

    def _prepare_weights(self) -> None:
        """Set how `weights` reads the variables of the NumPy copy: one by one, or from the array of an update."""
        trained = {id(variable) for variable in self.trained}
        self._fetch = self._backend.weights_reader(self._variables)
        self._uses_target = not all(id(variable) in trained for variable in self._variables)
        self.noise_places = [place for place, variable in enumerate(self._variables) if variable.name == NOISE]
        ends = list(accumulate(math.prod(variable.shape) for variable in self._variables))
        if ends[-1] <= LARGEST_REPORT and all(variable.dtype == "float32" for variable in self._variables):
            self.report = self._variables
        self._places = [
            (start, stop, tuple(variable.shape))
            for start, stop, variable in zip([0, *ends], ends, self._variables, strict=False)
        ]

    def outdate(self, make: Callable[[], HostForward]) -> None:
        """Make the forward pass again at the next call, because an attribute that `forward` reads has changed.

        The actor keeps this object, whose attributes are replaced by the ones of the new forward pass.
        """

        def compiled(inputs: Any) -> Any:
            vars(self).update(vars(make()))
            self.report = []  # updates return no weights before they are compiled for another `fit`
            return self.compiled(inputs) if self.start else self(inputs)

        self.program, self.compiled, self.report = None, compiled, []

    def __call__(self, observations: Any, noise: np.random.Generator | None = None) -> np.ndarray:
        """Return the output for observations `[N, ...]`, with noise in the weights if there is a generator."""
        if self.program is None:
            return self.compiled(observations) if noise is None else self._compiled_with_noise(observations, noise)
        weights = self.weights() if noise is None else with_noise(self.weights(), self.noise_places, noise)
        return run_program(self.program, observations, weights)

    def _compiled_with_noise(self, observations: Any, generator: np.random.Generator) -> np.ndarray:
        """Return the output of the compiled call with new noise in the weights; the noise is 0 again afterwards."""
        noise = self._noise
        for variable in noise:
            variable.assign(sample_noise(tuple(variable.shape), generator))
        try:
            return self.compiled(observations)
        finally:
            for variable in noise:
                variable.assign(np.zeros(variable.shape, np.float32))

    def with_state(self, observations: Any, state: State) -> tuple[np.ndarray, State]:
        """Return the output for observations `[N, ...]` and states `[N, ...]` by name, and the next states."""
        if self.program is None:
            result: Any = self.compiled((observations, dict(state)))
            return result
        rows = run_program(self.program, as_rows(observations, state, self._state_widths), self.weights())
        return from_rows(rows, self._state_widths)

    def weights(self) -> list[np.ndarray]:
        """Return the current weights of the NumPy copy; on torch, views that show later updates.

        Called before each forward pass. Weights are fetched from the device only if they may have changed.
        """
        if self.stale:
            self._weights = self._fetch()
            self.stale = False
            self._reported = None
        elif self._reported is not None:
            flat = self._backend.fetch(self._reported)
            self._reported = None
            self._weights = [flat[start:stop].reshape(shape) for start, stop, shape in self._places]
        return self._weights

    def weights_updated(self, weights: Any) -> None:
        """Called after each update.

        Args:
            weights: the weights of `report`, flat, in one array; None if the update returned none.
        """
        self._reported = weights
        self.stale |= weights is None

    def target_moved(self) -> None:
        """Called after `update_target`, which changes variables that are not trained; acting seldom uses such ones."""
        if self.in_numpy and self._uses_target:
            self.stale = True

    def probe(self, count: int) -> np.ndarray:
        """Return random observations `[count, ...]`."""
        rng = np.random.default_rng(0)
        shape = (count, *self.shape)
        if self.dtype == np.uint8:
            return rng.integers(256, size=shape, dtype=np.uint8)
        return rng.normal(size=shape).astype(np.float32)

    def _find_program(self, joint: Joint | None) -> Step | None:
        """Return a NumPy function that gives the outputs of the compiled call; None if there is none.

        With several agents, a network is searched for each agent in turn.
        """
        columns = [] if joint is None else joint.columns
        chosen: list[Any] = []
        program: Step | None = None
        for width in (None,) if joint is None else np.cumsum(joint.widths).tolist():
            for network in self.networks:
                program = self._accepted(describe([*chosen, network], self.shape, self.dtype, columns), width)
                if program is not None:
                    chosen.append(network)
                    break
            else:
                return None
        return program

    def _find_recurrent(self) -> Step | None:
        """Return a NumPy function of rows with observations and states; None if there is none."""
        described = (describe_recurrent(network, self.shape, self.dtype, self.start) for network in self.networks)
        return next(filter(None, map(self._accepted, described)), None)

    def _accepted(self, described: tuple[Step, list[Any]] | None, width: int | None = None) -> Step | None:
        """Return a NumPy function that is small enough and gives the first `width` outputs; otherwise None.

        Also keep the variables of the function, as those of the copy if the function is accepted.
        """
        if described is None:
            return None
        program, self._variables = described
        size = sum(math.prod(variable.shape) for variable in self._variables)
        return program if size <= NUMPY_WEIGHTS_LIMIT and self._agrees(program, width) else None

    def _expected(self, probe: np.ndarray) -> np.ndarray:
        """Return the outputs of the compiled call, for rows with observations and states if the policy has a state."""
        if not self.start:
            return self.compiled(probe)
        _, state = from_rows(probe, self._state_widths)
        observations = probe[:, : math.prod(self.shape)].reshape(-1, *self.shape)
        output, after = self.compiled((observations, state))
        return as_rows(output, after, self._state_widths)

    def _agrees(self, program: Step, width: int | None = None) -> bool:
        """Return whether the copy gives the outputs of the compiled call, also after the agent's variables change.

        The variables and hyperparameters are restored afterwards.
        The second check distinguishes a network from a target network, which starts with equal weights. The check also
        detects operations of `forward` outside of the network without effect so far, such as a scale of 1. `width`
        limits the comparison to the first outputs.
        """
        if not self._agrees_at_all_scales(program, width):
            return False
        from noterl.backends import keras

        rng = np.random.default_rng(1)
        fetch = self._backend.fetch
        saved = [(variable, fetch(variable)) for variable in self._all if keras.backend.is_float_dtype(variable.dtype)]
        before = [(number, float(number)) for number in self.hyperparameters]
        try:
            for variable, value in saved:
                changed = value + rng.normal(size=value.shape).astype(value.dtype)
                # The variances of a batch normalization stay positive.
                variable.assign(np.abs(changed) if (value > 0).all() else changed)
            for number, _ in before:
                number.restore(number.another())
            return self._agrees_at_all_scales(program, width)
        finally:
            for variable, value in saved:
                variable.assign(value)
            for number, host in before:
                number.restore(host)

    def _agrees_at_all_scales(self, program: Step, width: int | None) -> bool:
        """Return whether the copy gives the outputs of the compiled call, for small and for large observations.

        `forward` may clip observations, which a comparison at one scale would miss.
        """
        probe = self.probe(8)
        if self.start:
            states = np.random.default_rng(2).normal(size=(8, sum(self._state_widths.values())))
            probe = np.concatenate([probe.reshape(8, -1), states.astype(np.float32)], 1)
        weights = [self._backend.fetch(variable) for variable in self._variables]
        scales = (1,) if probe.dtype == np.uint8 else PROBE_SCALES
        return all(self._agrees_on(program, probe * probe.dtype.type(scale), weights, width) for scale in scales)

    def _agrees_on(self, program: Step, probe: np.ndarray, weights: list[np.ndarray], width: int | None) -> bool:
        """Return whether the copy gives the outputs of the compiled call for these observations, but for rounding."""
        expected = self._expected(probe)[..., :width]
        try:
            with np.errstate(all="ignore"):  # large probes may overflow, as in the compiled call
                result = program(probe, weights)
        except (IndexError, ValueError):  # a network with other inputs, such as a critic
            return False
        # Frameworks add products in another order, and on some devices with fewer bits.
        scale = float(np.abs(expected).max()) + 1e-6
        return result.shape == expected.shape and bool(np.allclose(result, expected, rtol=1e-3, atol=1e-4 * scale))
