"""The graph of a policy: observation encoding, normalization, network and head."""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import backends
from noterl.acting.numpy_forward import run_graph
from noterl.envs.observation import ObservationEncoder
from noterl.export.code import identifier
from noterl.heads import Bernoulli, Categorical, Deterministic, Gaussian, Head, PolicyValue, Q, SquashedGaussian
from noterl.heads.base import random_actions
from noterl.networks.graph import Graph, UnsupportedNetworkError, add_network, add_recurrent
from noterl.normalization import CLIP, EPSILON, Normalizers
from noterl.types import STATE
from noterl.utils.masks import part_sizes

# The outputs of a policy. With a memory, its state is an input, and the next state an output.
ACTION = "action"
OUTPUTS = "outputs"
NEXT_STATE = "next_state."

# Number of random observations for which an export is compared with the agent; images are larger.
_PROBES = 256
_IMAGE_PROBES = 32


@dataclass(frozen=True)
class Policy:
    """What an export needs of an agent.

    Attributes:
        name: of the agent, for the texts in files.
        graph: the operations.
        encoder: encodes observations.
        head: converts outputs into actions.
        inputs: observations as inputs of the graph, by name.
        outputs: the outputs of the agent's network for these inputs, `[N, W]`.
        start: the state before the first step of an episode, `[...]` by name; else empty.
        next_state: the next state of a policy with a memory, `[N, ...]` by the names of the results; else empty.
        actions: the agent's actions for these inputs, `[N, ...]`.
        exact: whether the agent computed in float32, and not with the fewer bits of an accelerator.
    """

    name: str
    graph: Graph
    encoder: ObservationEncoder
    head: Head
    inputs: dict[str, np.ndarray]
    outputs: np.ndarray
    start: dict[str, np.ndarray]
    next_state: dict[str, np.ndarray]
    actions: np.ndarray
    exact: bool

    def check(self, results: dict[str, np.ndarray], format: str, *, exact: bool) -> None:
        """Compare the results of an export with the agent.

        Numbers must be equal up to `1e-6 + 1e-5 |number|`. Choices must be equal where the margin between the best two
        exceeds that; outputs of a row may also differ by 1e-6 of the largest. If one side was computed on an
        accelerator, whose products may have fewer bits, a thousand times as much is allowed.

        Args:
            results: of the export, for `inputs`.
            format: the format, for the error message.
            exact: whether the results were computed in float32.

        Raises:
            ValueError: if the results differ from the agent's.
        """
        scale = 1.0 if exact and self.exact else 1e3
        # An expectation is a sum of terms as large as its support, whose rounding errors remain if the terms cancel.
        supports = [np.abs(node.arrays["support"]).max() for node in self.graph.nodes if node.kind == "expectation"]
        largest = np.maximum(np.abs(self.outputs).max(axis=-1, keepdims=True), max(supports, default=1.0))
        tolerance = scale * (1e-6 * largest + 1e-5 * np.abs(self.outputs))
        if results[OUTPUTS].shape != self.outputs.shape:
            raise ValueError(f"format {format!r}: the outputs have the shape {results[OUTPUTS].shape[1:]}")
        difference = np.abs(results[OUTPUTS] - self.outputs)
        agrees = bool((difference <= tolerance).all())
        action = np.asarray(results[ACTION])
        if self.actions.dtype.kind == "f":
            agrees &= bool(np.allclose(action, self.actions, rtol=scale * 1e-5, atol=scale * 1e-6))
        else:
            clear = _is_clear(self.head, self.outputs, tolerance).reshape(self.actions.shape)
            agrees &= bool((action == self.actions)[clear].all())
        for name, expected in self.next_state.items():
            agrees &= bool(np.allclose(results[name], expected, rtol=scale * 1e-5, atol=scale * 1e-6))
        if not agrees:
            raise ValueError(
                f"format {format!r}: the exported policy and the agent differ by up to {difference.max():.3g} in the "
                "network's outputs, which is more than float32 explains; nothing was written"
            )


def make_policy(name: str, networks: Iterable[Any], actor: Any, encoder: ObservationEncoder) -> Policy:
    """Return the policy of an agent.

    Args:
        name: of the agent.
        networks: the agent's networks, one of which `forward` calls.
        actor: the agent's `Actor`.
        encoder: encodes the observations.

    Raises:
        ValueError: if the policy is not one network of supported layers with a head that can be exported.
    """
    head = actor.head
    statistics = actor.normalizers.observation if isinstance(actor.normalizers, Normalizers) else None
    probes = _probes(encoder, statistics)
    encoded = encoder(_nested(encoder, probes))
    rng = np.random.default_rng(1)
    starts = actor.start.items()
    state = {name: rng.uniform(-1, 1, (len(encoded), *value.shape)).astype(value.dtype) for name, value in starts}
    outputs, after = actor.outputs(encoded, state)
    outputs = np.asarray(outputs)
    probes |= {f"{STATE}{name}": value for name, value in state.items()}
    next_state = {f"{NEXT_STATE}{name}": np.asarray(value) for name, value in after.items()}
    reasons = []
    fitting: dict[float, Graph] = {}  # by the difference from the agent's outputs; a target is near, too
    for network in networks:
        graph = Graph()
        start = _add_inputs(graph, encoder)
        start = _add_normalization(graph, statistics, start)
        try:
            graph.outputs[OUTPUTS] = _add_network(graph, network, start, state)
            graph = graph.with_values()
            results = run_graph(graph, probes)
        except UnsupportedNetworkError as error:
            reasons.append(str(error))
            continue
        except (ValueError, IndexError):  # a network with other inputs, such as a critic
            continue
        # This comparison only finds the network; `Policy.check` compares what was written, with float32's accuracy.
        if results[OUTPUTS].shape == outputs.shape and np.allclose(results[OUTPUTS], outputs, rtol=1e-2, atol=1e-2):
            fitting.setdefault(float(np.abs(results[OUTPUTS] - outputs).max()), graph)
    if fitting:
        graph = fitting[min(fitting)]
        graph.outputs[ACTION] = _add_head(graph, head, graph.outputs[OUTPUTS])
        actions = head.executed(head.deterministic(outputs))
        exact = actor.forward.in_numpy or on_cpu()
        return Policy(name, graph, encoder, head, probes, outputs, actor.start, next_state, actions, exact)
    if actor.start and not reasons:
        reasons = ["its state_spec is not that of a network with a cell of noterl.networks.recurrent"]
    reason = f": {'; '.join(dict.fromkeys(reasons))}" if reasons else ""
    raise ValueError(f"forward of {name} is not a network that can be exported{reason}")


def _add_network(graph: Graph, network: Any, start: int, state: dict[str, np.ndarray]) -> int:
    """Add a network, and the inputs and outputs of the state; return the position of the network's output.

    Raises:
        ValueError: if an operation is not supported.
    """
    if not state:
        return add_network(graph, network, start)
    places = {}
    for name, value in state.items():
        places[name] = graph.add("input", name=f"{STATE}{name}", shape=value.shape[1:], dtype="float32")
    end, after = add_recurrent(graph, network, start, places)
    graph.outputs |= {f"{NEXT_STATE}{name}": position for name, position in after.items()}
    return end


# An input of a policy: the name, the keys in an observation, and the space.
Input = tuple[str, tuple[str, ...], Any]


def inputs_of(encoder: ObservationEncoder) -> list[Input]:
    """Return the inputs: "observation", or the parts of a Dict, named by the keys, joined by dots.

    Letters of the keys that Python and the frameworks do not allow in names are replaced by underscores. A name that
    is a keyword of Python, or would be taken for the state of a memory, begins with "input_".
    """
    inputs: list[Input] = []
    for part in encoder.parts:
        name = re.sub(r"[^0-9A-Za-z_.]", "_", ".".join(map(str, part.path))) or "observation"
        # "state." begins the names of the inputs that hold the state of a memory.
        name = f"input_{name}" if keyword.iskeyword(name) or name.startswith(STATE) or not name[0].isalpha() else name
        taken = {identifier(other) for other, _, _ in inputs}
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        unique = next(candidate for candidate in names if identifier(candidate) not in taken)
        inputs.append((unique, part.path, part.space))
    return inputs


def _nested(encoder: ObservationEncoder, inputs: dict[str, np.ndarray]) -> Any:
    """Return inputs by name as a batch of observations of the space."""
    nested: dict[str, Any] = {}
    for name, keys, _ in inputs_of(encoder):
        if not keys:
            return inputs[name]
        table = nested
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = inputs[name]
    return nested


def _add_inputs(graph: Graph, encoder: ObservationEncoder) -> int:
    """Add the inputs and the encoding of observations."""
    encoded = []
    for name, _, space in inputs_of(encoder):
        shape = tuple(space.shape or ())
        if sizes := part_sizes(space):
            start = graph.add("input", name=name, shape=shape, dtype="int32")
            encoded.append(graph.add("one_hot", start, sizes=sizes))
            continue
        dtype = str(space.dtype) if space.dtype in (np.uint8, np.int8) else "float32"
        start = graph.add("input", name=name, shape=shape, dtype=dtype)
        start = start if dtype == "float32" else graph.add("as_float32", start)
        encoded.append(start if encoder.is_identity else graph.add("flatten", start))
    return encoded[0] if len(encoded) == 1 else graph.add("concatenate", encoded)


def _add_normalization(graph: Graph, statistics: Any, place: int) -> int:
    """Add the normalization of encoded observations, with the current statistics; nothing if there is none."""
    if statistics is None:
        return place
    # The agent subtracts in float64. The difference to the first float32 is exact near the mean.
    mean = statistics.mean.astype(np.float32)
    mean_rest = (statistics.mean - mean).astype(np.float32)
    deviation = np.sqrt(statistics.variance + EPSILON).astype(np.float32)
    return graph.add("normalize", place, mean=mean, mean_rest=mean_rest, deviation=deviation, bound=CLIP)


def _add_head(graph: Graph, head: Head, place: int) -> int:
    """Add the operations that convert outputs into actions.

    Raises:
        ValueError: if the head cannot be exported.
    """
    space: Any = head.action_space
    shape = tuple(space.shape or ())
    if isinstance(head, Q | Categorical):
        sizes = part_sizes(space)
        if isinstance(head, PolicyValue):
            place = graph.add("columns", place, start=0, stop=sum(sizes))
        return graph.add("argmax", place, sizes=sizes, shape=shape)
    if isinstance(head, Bernoulli):
        return graph.add("positive", place, shape=shape)
    if not isinstance(head, Gaussian | Deterministic | SquashedGaussian):
        raise ValueError(f"policies with the head {type(head).__name__} cannot be exported")
    low, high = (np.asarray(side, np.float32) for side in (space.low, space.high))
    size = int(np.prod(shape))
    if head.width == 2:
        place = graph.add("columns", place, start=0, stop=size)
    if not isinstance(head, Gaussian):
        place = graph.add("affine", graph.add("tanh", place), scale=head.half, offset=head.center)
    return graph.add("clip", graph.add("reshape", place, target_shape=shape), low=low, high=high)


def _is_clear(head: Head, outputs: np.ndarray, tolerance: np.ndarray) -> np.ndarray:
    """Return for each choice of each row whether the margin exceeds twice the tolerance, `[N, choices]`."""
    if isinstance(head, Bernoulli):
        return np.abs(outputs) > tolerance
    columns = []
    ends = np.cumsum(part_sizes(head.action_space))[:-1]
    for part, limits in zip(np.split(outputs, ends, axis=-1), np.split(tolerance, ends, axis=-1), strict=True):
        *_, second, best = np.sort(np.insert(part, 0, -np.inf, axis=-1), axis=-1).T  # a single choice has no second
        columns.append(best - second > 2 * limits.max(axis=-1))
    return np.stack(columns, axis=-1)


def _probes(encoder: ObservationEncoder, statistics: Any) -> dict[str, np.ndarray]:
    """Return random observations as inputs of the graph, by name."""
    rng = np.random.default_rng(0)
    count = _IMAGE_PROBES if int(np.prod(encoder.space.shape)) > 1_000 else _PROBES
    probes = {name: random_values(space, count, rng) for name, _, space in inputs_of(encoder)}
    if statistics is not None and encoder.is_identity:
        values = statistics.mean + np.sqrt(statistics.variance) * rng.normal(size=(count, *statistics.mean.shape))
        probes["observation"] = values.astype(probes["observation"].dtype)
    return probes


def on_cpu() -> bool:
    """Return whether the backend computes on the CPU."""
    return "cpu" in backends.current().device_name().lower()


def random_values(space: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return random values `[count, ...]` of a space; values of an unbounded Box are standard normal."""
    if not isinstance(space, spaces.Box):
        return random_actions(space, count, rng).astype(np.int32 if part_sizes(space) else np.int8)
    shape = (count, *space.shape)
    if space.dtype in (np.uint8, np.int8):
        return rng.integers(space.low, space.high, shape, space.dtype, endpoint=True)
    # Bounds that are 1,000 or more apart say little about usual values, so they only clip.
    width = space.high.astype(np.float64) - space.low
    uniform = np.isfinite(width) & (width < 1e3)
    bounded = rng.uniform(np.where(uniform, space.low, 0.0), np.where(uniform, space.high, 1.0), shape)
    free = np.clip(rng.normal(size=shape), space.low, space.high)
    return np.where(uniform, bounded, free).astype(np.float32)
