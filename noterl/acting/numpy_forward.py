"""From observations to the network's output, on the host.

Owns: the NumPy copy of a small network that acting uses, its check against the real one, and the fallback. A framework
call for one observation costs tens to hundreds of microseconds, the same network in plain NumPy eight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from noterl import backends, networks
from noterl.learning.dry_run import unique
from noterl.learning.update import trace_counter

if TYPE_CHECKING:
    from noterl.agent import Agent

# Above this many weights a compiled forward pass beats NumPy even at one observation (benchmarks/micro/test_act.py).
NUMPY_WEIGHTS_LIMIT = 2_000_000

# Up to this many weights are handed over as one array; beyond, copying them twice costs more than it saves.
LARGEST_PACKED = 2**14

# Of observations, at which the NumPy copy is compared with the network.
PROBED_SCALES = (1, 10, 1_000)

Step = Callable[[np.ndarray, list[np.ndarray]], np.ndarray]

_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0, out=x),
    "tanh": lambda x: np.tanh(x, out=x),
    "sigmoid": lambda x: _sigmoid(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x * _sigmoid(x),
    "linear": lambda x: x,
}


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) by the hyperbolic tangent, which does not overflow."""
    half: np.ndarray = np.tanh(0.5 * x)
    return 0.5 * half + 0.5


class Actor:
    """Computes `agent.forward` for acting: in NumPy where that can be done and is checked, else by the compiled call.

    Attributes:
        stale: set by the loop when weights may have changed; they are fetched again at the next call.
        in_numpy: whether the NumPy copy is used.
        packed: the variables whose weights a compiled call may hand over as one array `fresh`; none if they are large.
        fresh: their weights after an update, if that was all that happened to them; None otherwise.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._forward = backends.current().compile_call(
            agent.outputs,
            agent.all_variables,
            acting=True,
            jit_compile=agent.jit_compile,
            on_trace=trace_counter(agent, "forward"),
        )
        self.stale, self.fresh = True, None
        self.packed: list[keras.Variable] = []
        self._program = self._find_joint() if agent.multi_agent else self._find_program()
        self.in_numpy = self._program is not None
        if self.in_numpy:
            self._fetch = backends.current().HostWeights(self._variables)
            trained = {id(variable) for variable in agent.trained_variables()}
            self._follows_target = not all(id(variable) in trained for variable in self._variables)
            ends = list(accumulate(math.prod(one.shape) for one in self._variables))
            if ends[-1] <= LARGEST_PACKED and all(one.dtype == "float32" for one in self._variables):
                self.packed = self._variables
            self._places = [
                (start, stop, tuple(one.shape))
                for start, stop, one in zip([0, *ends], ends, self._variables, strict=False)
            ]
        agent.head.check(self(self._probe(1)).shape, agent.action_space)

    def __call__(self, observations: Any) -> np.ndarray:
        """Return the network's output for observations `[N, ...]`, as an array `[N, ...]`."""
        if self._program is None:
            return self._forward(observations)
        if self.stale:
            self._weights = self._fetch()
            self.stale, self.fresh = False, None
        elif self.fresh is not None:
            self._weights, self.fresh = self._unpacked(backends.current().fetch(self.fresh)), None
        if len(observations) == 1 and observations.ndim == 2:
            # A vector times a matrix is another routine than a matrix of one row, and takes half the time.
            return self._program(observations[0], self._weights)[None]
        return self._program(observations, self._weights)

    def updated(self, weights: Any) -> None:
        """Note that the agent was updated.

        Args:
            weights: those of `packed`, one after the other, or None if they are not at hand.
        """
        self.fresh = weights
        self.stale |= weights is None

    def _unpacked(self, weights: np.ndarray) -> list[np.ndarray]:
        return [weights[start:stop].reshape(shape) for start, stop, shape in self._places]

    def target_moved(self) -> None:
        """Note that `update_target` ran: it moves networks that are not trained, which acting seldom uses."""
        if self.in_numpy and self._follows_target:
            self.stale = True

    def _find_program(self) -> Step | None:
        """Find the network whose NumPy copy gives what `agent.forward` gives; None where there is none."""
        for network in self._agent.networks().values():
            described = describe(network)
            if described is not None and sum(np.prod(v.shape) for v in described[1]) <= NUMPY_WEIGHTS_LIMIT:
                program, self._variables = described
                if self._agrees(program):
                    return program
        return None

    def _find_joint(self) -> Step | None:
        """Find a network for each agent, one after the other; None where one of them has none."""
        agent: Any = self._agent
        parts: list[tuple[Step, int, int]] = []  # each agent's program, and where its variables begin and end
        found: list[keras.Variable] = []

        def joined(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
            seen = agent.seen_parts(np.atleast_2d(x))
            outputs = [part(own, weights[start:stop]) for (part, start, stop), own in zip(parts, seen, strict=False)]
            whole: np.ndarray = np.concatenate(outputs, axis=-1)
            return whole[0] if x.ndim == 1 else whole

        widths = np.cumsum([part.size for part in agent.head.parts]).tolist()
        for width in widths:
            for network in agent.networks().values():
                described = describe(network)
                if described is None:
                    continue
                parts.append((described[0], len(found), len(found) + len(described[1])))
                self._variables = [*found, *described[1]]
                if self._agrees(joined, width):
                    break
                parts.pop()
            else:
                return None
            found = self._variables
        return joined if sum(np.prod(v.shape) for v in found) <= NUMPY_WEIGHTS_LIMIT else None

    def _agrees(self, program: Step, width: int | None = None) -> bool:
        """Whether the copy gives what `forward` gives, and goes on doing so when variables of the agent change.

        The second half tells a network from its target, which starts out equal, and finds what `forward` does beside
        the network and cannot be seen yet: a scale of 1, a bias of 0. With a `width` only so many of `forward`'s
        outputs are there.
        """
        return self._same_at_all_scales(program, width) and self._same_elsewhere(program, width)

    def _same_elsewhere(self, program: Step, width: int | None) -> bool:
        """Whether they are the same with other values of the agent's networks and hyperparameters."""
        rng, fetch, live = np.random.default_rng(1), backends.current().fetch, self._agent.hyperparameters.values()
        found = unique(part for one in self._agent.networks().values() for part in networks.variables(one))
        saved = [(variable, fetch(variable)) for variable in found if keras.backend.is_float_dtype(variable.dtype)]
        before = [(number, float(number)) for number in live]
        try:
            for variable, value in saved:
                variable.assign(value + rng.normal(size=value.shape).astype(value.dtype))
            for number, _ in before:
                number.restore(number.another())
            return self._same_at_all_scales(program, width)
        finally:
            for variable, value in saved:
                variable.assign(value)
            for number, host in before:
                number.restore(host)

    def _probe(self, count: int) -> np.ndarray:
        """Return observations `[N, ...]` as good as any."""
        rng, shape = np.random.default_rng(0), (count, *self._agent.view.space.shape)
        if self._agent.observation_dtype == np.uint8:
            return rng.integers(256, size=shape, dtype=np.uint8)
        return rng.normal(size=shape).astype(np.float32)

    def _same_at_all_scales(self, program: Step, width: int | None) -> bool:
        """Whether they are the same for observations small and large, which bounds within `forward` would cut off."""
        probe, weights = self._probe(8), [backends.current().fetch(variable) for variable in self._variables]
        scales = (1,) if probe.dtype == np.uint8 else PROBED_SCALES
        return all(self._same(program, probe * probe.dtype.type(scale), weights, width) for scale in scales)

    def _same(self, program: Step, probe: np.ndarray, weights: list[np.ndarray], width: int | None) -> bool:
        expected = self._forward(probe)[:, :width] if width else self._forward(probe)
        try:
            result = program(probe, weights)
        except ValueError:  # a network of other inputs, such as a critic
            return False
        # Frameworks multiply in another order, on some devices with fewer bits.
        scale = float(np.abs(expected).max()) + 1e-6
        return result.shape == expected.shape and bool(np.allclose(result, expected, rtol=1e-3, atol=1e-4 * scale))


def describe(network: Any) -> tuple[Step, list[keras.Variable]] | None:
    """Return a network as a NumPy function of `(observations, weights)`, and the variables whose weights it takes.

    Understands Keras Sequential models and `torch.nn.Sequential` of dense layers, activations and Flatten, and the
    dueling networks of `noterl.networks`; None for anything else.
    """
    variables: list[keras.Variable] = []
    program = _describe(network, variables)
    return None if program is None else (program, variables)


def _describe(network: Any, variables: list[keras.Variable]) -> Step | None:
    if type(network).__name__ == "Dueling" and type(network).__module__.startswith("noterl."):
        trunk, value, advantage = (
            _describe(part, variables) for part in (network.trunk, network.value, network.advantage)
        )
        return None if trunk is None or value is None or advantage is None else _dueling(trunk, value, advantage)
    if isinstance(network, keras.Sequential):
        layers = list(network.layers)
    elif networks.is_module(network) and type(network).__name__ == "Sequential":
        layers = list(network)
    else:
        return None
    flat: list[Step] = []
    for layer in layers:
        steps = _layer(layer, variables)
        if steps is None:
            return None
        flat += steps
    return lambda x, weights: _run(flat, x, weights)


def _run(steps: list[Step], x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    for step in steps:
        x = step(x, weights)
    return x


def _dueling(trunk: Step, value: Step, advantage: Step) -> Step:
    def combined(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
        features = trunk(x, weights)
        advantages = advantage(features, weights)
        return value(features, weights) + advantages - advantages.mean(-1, keepdims=True)

    return combined


def _layer(layer: Any, variables: list[keras.Variable]) -> list[Step] | None:
    """Return one layer as steps, noting the variables it reads; None for a layer NumPy does not know here."""
    if not type(layer).__module__.startswith(("keras.", "torch.nn.", "noterl.")):
        return None
    kind = type(layer).__name__
    if kind == "Flatten":
        return [lambda x, weights: x if x.ndim == 1 else x.reshape(len(x), -1)]
    if kind in ("Identity", "InputLayer", "Float"):  # NumPy takes bytes times float32 as float32
        return []
    if kind in ("Dense", "Linear"):
        return _dense(layer, variables)
    if kind == "LogStd":
        return _log_std(layer, variables)
    if kind == "Activation":
        kind = layer.activation.__name__
    parameters = [getattr(layer, name, default) for name, default in (("negative_slope", 0.0), ("max_value", None))]
    if kind.lower() in ("relu", "tanh", "sigmoid", "silu") and parameters in ([0.0, None], [0, None]):
        activation = _ACTIVATIONS[kind.lower()]
        return [lambda x, weights: activation(x.copy())]  # in place it might change the observations
    return None


def _dense(layer: Any, variables: list[keras.Variable]) -> list[Step] | None:
    first = len(variables)
    found = networks.variables(layer)
    if len(found) != 2:
        return None
    variables += found
    if networks.is_module(layer):
        return [lambda x, weights: _affine(x, weights[first].T, weights[first + 1])]
    activation = getattr(layer.activation, "__name__", "")
    if activation not in _ACTIVATIONS or layer.activation is not getattr(keras.activations, activation, None):
        return None
    apply = _ACTIVATIONS[activation]
    return [lambda x, weights: apply(_affine(x, weights[first], weights[first + 1]))]


def _log_std(layer: Any, variables: list[keras.Variable]) -> list[Step]:
    position = len(variables)
    variables += networks.variables(layer)
    return [lambda x, weights: np.concatenate([x, np.broadcast_to(weights[position], x.shape)], axis=-1)]


def _affine(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    product = x @ kernel
    product += bias
    return product
