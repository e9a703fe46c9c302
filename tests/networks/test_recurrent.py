"""Cells, and the loops that pass their states along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import backends, networks
from tests.support.representatives import representatives

ops = keras.ops
KINDS = ("gru", "lstm")
INPUTS, UNITS, ROWS, SEQUENCES = 5, 8, 128, 3


class OwnCell(keras.layers.Layer):
    """A cell of a user: a leaky sum of its inputs, whose output has another width than its state."""

    state_spec: ClassVar[dict[str, tuple[int, ...]]] = {"total": (INPUTS,)}

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__(dtype=dtype)
        self.output_layer = keras.layers.Dense(2, dtype=dtype)
        self.output_layer.build((None, INPUTS))
        self.built = True

    def call(self, inputs: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        total = 0.9 * state["total"] + inputs
        return self.output_layer(total), {"total": total}


def normalized(kind: str) -> networks.Cell:
    """Return a cell with layer normalization, whose weights are random."""
    cell = networks.recurrent(kind, UNITS, INPUTS, layer_norm=True)
    rng = np.random.default_rng(3)
    for part in cell.parts.values():
        networks.set_weights(part, [rng.normal(size=w.shape).astype("float32") for w in networks.get_weights(part)])
    return cell


CELLS: dict[str, Any] = {
    **{kind: lambda kind=kind: networks.recurrent(kind, UNITS, INPUTS) for kind in KINDS},
    **{f"{kind}, normalized": lambda kind=kind: normalized(kind) for kind in KINDS},
    "own": OwnCell,
}


def inputs_of(cell: Any) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Return inputs, a state and random starts for `unroll`."""
    rng = np.random.default_rng(0)
    state = {name: rng.normal(size=(SEQUENCES, *shape)).astype("float32") for name, shape in cell.state_spec.items()}
    starts = (rng.random((ROWS, SEQUENCES)) < 0.1).astype("float32")
    starts[0, 0] = 1
    return rng.normal(size=(ROWS, SEQUENCES, INPUTS)).astype("float32"), state, starts


def host(value: Any) -> np.ndarray:
    return backends.current().fetch(ops.stop_gradient(value))


@pytest.mark.backends("jax")
@pytest.mark.parametrize(("kind", "gates"), [("gru", 3), ("lstm", 4)])
def test_kernels_of_each_gate_are_orthogonal(kind: str, gates: int) -> None:
    cell = networks.recurrent(kind, UNITS, INPUTS)
    for part, size in (("inputs", INPUTS), ("hidden", UNITS)):
        kernel, bias = networks.get_weights(cell.parts[part])
        blocks = np.split(kernel, gates, axis=-1)
        for block in blocks:
            np.testing.assert_allclose(block @ block.T, np.eye(size), atol=1e-5)
        assert not np.allclose(blocks[0], blocks[1])
        assert not bias.any()


@pytest.mark.parametrize("kind", representatives(CELLS, "lstm, normalized", "own"))
def test_unrolled_outputs_are_those_of_single_steps(kind: str) -> None:
    cell = CELLS[kind]()
    inputs, state, starts = inputs_of(cell)
    outputs, states = networks.unroll(cell, inputs, state, starts)
    current = {name: ops.convert_to_tensor(value) for name, value in state.items()}
    for row in range(ROWS):
        kept = ops.convert_to_tensor((1 - starts[row])[:, None])
        output, current = cell(ops.convert_to_tensor(inputs[row]), {name: v * kept for name, v in current.items()})
        np.testing.assert_allclose(host(outputs[row]), host(output), atol=1e-5)
        for name, value in current.items():
            np.testing.assert_allclose(host(states[name][row]), host(value), atol=1e-5)


@pytest.mark.parametrize("kind", representatives(CELLS, "lstm, normalized", "own"))
def test_episodes_start_from_the_initial_state(kind: str) -> None:
    cell = CELLS[kind]()
    inputs, state, starts = inputs_of(cell)
    initial = {name: np.linspace(-1, 1, value[0].size, dtype="float32") for name, value in state.items()}
    outputs, _ = networks.unroll(cell, inputs, state, np.ones_like(starts), 2, initial=initial)
    begun = {name: np.broadcast_to(value, state[name].shape) for name, value in initial.items()}
    for row in range(ROWS):
        expected, _ = cell(ops.convert_to_tensor(inputs[row]), {n: ops.convert_to_tensor(v) for n, v in begun.items()})
        np.testing.assert_allclose(host(outputs[row]), host(expected), atol=1e-5)


@pytest.mark.parametrize("kind", representatives(CELLS, "lstm, normalized", "own"))
def test_step_continues_from_every_row(kind: str) -> None:
    cell = CELLS[kind]()
    inputs, state, starts = inputs_of(cell)
    outputs, states = networks.unroll(cell, inputs, state, np.zeros_like(starts))
    following, _ = networks.step(cell, inputs[1:], {name: value[:-1] for name, value in states.items()})
    np.testing.assert_allclose(host(following), host(outputs[1:]), atol=1e-5)


@pytest.mark.parametrize("kind", representatives(CELLS, "lstm, normalized", "own"))
def test_no_gradient_flows_through_a_start(kind: str) -> None:
    cell = CELLS[kind]()
    inputs, state, _ = inputs_of(cell)
    starts = np.zeros((6, SEQUENCES), "float32")
    starts[3, 1] = 1
    first = keras.Variable(inputs[0], name="first")

    def last_output() -> Any:
        rows = ops.concatenate([first.value[None], inputs[1:6]])
        outputs, _ = networks.unroll(cell, rows, state, starts)
        return ops.sum(ops.square(outputs[-1]))

    known = [first, *networks.variables(cell)]
    gradients: list[np.ndarray] = []

    class Kept:
        def apply(self, found: Any, variables: Any = None) -> None:
            gradients.extend(map(host, found))

    backends.current().minimize(last_output, [first], Kept(), (), known=known)
    assert np.abs(gradients[0][[0, 2]]).min(axis=1).all()
    assert not gradients[0][1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_cell_computes_what_keras_computes(kind: str) -> None:
    cell = networks.recurrent(kind, UNITS, INPUTS)
    inputs, state, _ = inputs_of(cell)
    rng = np.random.default_rng(1)
    kernel, bias, recurrent, recurrent_bias = (
        rng.normal(size=weight.shape).astype("float32")
        for part in ("inputs", "hidden")
        for weight in networks.get_weights(cell.parts[part])
    )
    networks.set_weights(cell.parts["inputs"], [kernel, bias])
    networks.set_weights(cell.parts["hidden"], [recurrent, recurrent_bias])
    output, after = cell(ops.convert_to_tensor(inputs[0]), {n: ops.convert_to_tensor(v) for n, v in state.items()})
    if kind == "lstm":
        other = keras.layers.LSTMCell(UNITS)
        weights = [kernel, recurrent, bias + recurrent_bias]
        states = [state["hidden"], state["cell"]]
    else:
        other = keras.layers.GRUCell(UNITS)

        def update_first(weight: np.ndarray) -> np.ndarray:  # Keras's order of the gates
            reset, update, new = np.split(weight, 3, axis=-1)
            return np.concatenate([update, reset, new], axis=-1)

        weights = [update_first(kernel), update_first(recurrent), update_first(np.stack([bias, recurrent_bias]))]
        states = [state["hidden"]]
    other.build((None, INPUTS))
    other.set_weights(weights)
    expected, [*expected_states] = other(ops.convert_to_tensor(inputs[0]), [*map(ops.convert_to_tensor, states)])
    np.testing.assert_allclose(host(output), host(expected), atol=1e-5)
    for value, other_value in zip(after.values(), expected_states, strict=True):
        np.testing.assert_allclose(host(value), host(other_value), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_normalized_cell_is_that_of_the_paper(kind: str) -> None:
    def normalize(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        return (x - x.mean(axis=-1, keepdims=True)) / deviation * gamma + beta

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    cell = normalized(kind)
    inputs, state, _ = inputs_of(cell)
    sides = []
    for part, x in (("inputs", inputs[0]), ("hidden", state["hidden"])):
        kernel, bias, gamma, beta = (weight.astype("float64") for weight in networks.get_weights(cell.parts[part]))
        sides.append(normalize(x @ kernel + bias, gamma, beta))
    if kind == "lstm":
        i, f, g, o = np.split(sides[0] + sides[1], 4, axis=-1)
        memory = sigmoid(f) * state["cell"] + sigmoid(i) * np.tanh(g)
        expected = {"hidden": sigmoid(o) * np.tanh(normalize(memory, *networks.get_weights(cell.parts["cell"])))}
        expected["cell"] = memory
    else:
        (r, z, n), (r_by, z_by, n_by) = (np.split(side, 3, axis=-1) for side in sides)
        new, kept = np.tanh(n + sigmoid(r + r_by) * n_by), sigmoid(z + z_by)
        expected = {"hidden": (1 - kept) * new + kept * state["hidden"]}
    output, after = cell(ops.convert_to_tensor(inputs[0]), {n: ops.convert_to_tensor(v) for n, v in state.items()})
    np.testing.assert_allclose(host(output), expected["hidden"], atol=1e-5)
    assert after.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(host(after[name]), value, atol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", KINDS)
def test_cell_has_the_weights_of_torch(kind: str) -> None:
    import torch

    cell = networks.recurrent(kind, UNITS, INPUTS)
    inputs, state, _ = inputs_of(cell)
    other = (torch.nn.GRUCell if kind == "gru" else torch.nn.LSTMCell)(INPUTS, UNITS)
    names = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
    weights = [*networks.variables(cell.parts["inputs"]), *networks.variables(cell.parts["hidden"])]
    with torch.no_grad():
        for name, variable in zip(names, weights, strict=True):
            getattr(other, name).copy_(variable.value)
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    found, _ = cell(torch.tensor(inputs[0]), tensors)
    expected = other(torch.tensor(inputs[0]), tensors["hidden"] if kind == "gru" else tuple(tensors.values()))
    torch.testing.assert_close(found, expected if kind == "gru" else expected[0])


@contextmanager
def double_precision() -> Iterator[None]:
    """Let JAX compute in float64; other backends do if the numbers are float64."""
    if backends.name() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


def test_unrolled_outputs_in_double_precision() -> None:
    with double_precision():
        cell = OwnCell("float64")
        inputs, state, starts = inputs_of(cell)
        inputs = inputs.astype("float64")
        starts = starts.astype("float64")
        total = state["total"].astype("float64")
        outputs, _ = networks.unroll(cell, inputs, {"total": total}, starts)
        assert host(outputs).dtype == np.float64
        for row in range(ROWS):
            output, current = cell(
                ops.convert_to_tensor(inputs[row]),
                {"total": ops.convert_to_tensor(total * (1 - starts[row])[:, None])},
            )
            total = host(current["total"])
            np.testing.assert_allclose(host(outputs[row]), host(output), rtol=1e-12)


@pytest.mark.backends("torch")
def test_double_precision_of_a_torch_cell() -> None:
    import torch

    class Own(torch.nn.Module):
        state_spec: ClassVar[dict[str, tuple[int, ...]]] = {"hidden": (UNITS,)}

        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRUCell(INPUTS, UNITS)

        def forward(self, inputs: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            hidden = self.cell(inputs, state["hidden"])
            return hidden, {"hidden": hidden}

    cell = Own().double()
    inputs, state, starts = inputs_of(cell)
    rows, hidden = torch.tensor(inputs).double(), torch.tensor(state["hidden"]).double()
    outputs, _ = networks.unroll(cell, rows, {"hidden": hidden}, starts)
    for row in range(ROWS):
        hidden = cell.cell(rows[row], hidden * (1 - torch.tensor(starts[row])[:, None]).double())
        torch.testing.assert_close(outputs[row], hidden, rtol=1e-12, atol=1e-12)


@pytest.mark.backends("torch")
class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "argument"), [(("rnn", 8), "kind"), (("gru", 0), "units"), (("gru", 8, 0), "inputs")]
    )
    def test_recurrent_names_the_argument(self, arguments: Any, argument: str) -> None:
        with pytest.raises(ValueError, match=f"^{argument} must"):
            networks.recurrent(*arguments)


@pytest.mark.backends("torch")
def test_cell_without_a_number_of_inputs_is_built_in_its_first_call() -> None:
    cell = networks.recurrent("lstm", UNITS)
    inputs, state, starts = inputs_of(cell)
    outputs, _ = networks.unroll(cell, inputs, state, starts)
    assert tuple(outputs.shape) == (ROWS, SEQUENCES, UNITS)
    assert networks.get_weights(cell.parts["inputs"])[0].shape == (INPUTS, 4 * UNITS)


class PairOfLayers(keras.layers.Layer):
    """A cell of a user that has a number of inputs."""

    state_spec: ClassVar[dict[str, tuple[int, ...]]] = {"total": (UNITS,)}

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(UNITS)
        self.layer.build((None, inputs))
        self.built = True

    def call(self, inputs: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        total = 0.9 * state["total"] + self.layer(inputs)
        return total, {"total": total}


@pytest.mark.backends("torch")
def test_cell_computes_in_inference_mode() -> None:
    cell = networks.recurrent("gru", UNITS, INPUTS)
    inputs, state = ops.ones((2, INPUTS)), {"hidden": ops.ones((2, UNITS))}
    expected = host(cell(inputs, state)[0])
    with networks.inference_mode(cell):
        assert (host(cell(inputs, state)[0]) == expected).all()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("action", [spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))])
def test_own_cell_is_shared_by_policy_and_value(action: Any) -> None:
    box = spaces.Box(-1.0, 1.0, (3,))
    agent = noterl.PPO((box, action), recurrent=PairOfLayers, hidden=(4,), shared=True, seed=1)
    assert networks.get_weights(agent.critic.parts["output"])[0].shape == (UNITS, 4)
    agent.build()


@pytest.mark.backends("torch")
def test_cell_whose_state_has_a_dtype_raises() -> None:
    class Counting(OwnCell):
        state_spec: ClassVar[dict[str, Any]] = {"count": ((), "int32")}

    with pytest.raises(ValueError, match=r"^recurrent: .*state_spec"):
        noterl.A2C("CartPole-v1", recurrent=lambda inputs: Counting(), seed=1)
