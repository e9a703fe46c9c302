"""Networks with a memory: cells, and the loops that pass the state of a cell along an episode.

A cell is any network that is called as `cell(inputs [B, I], state) -> (output, new_state)`. Its attribute `state_spec`
gives the shape of each part of the state, by name; all parts are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gymnasium import spaces

from noterl import backends
from noterl.backends import keras, ops
from noterl.losses import map_rows
from noterl.networks.access import Composite, Network, get_weights, is_network, set_weights
from noterl.networks.builders import cell_layer, default_encoder, dueling_mlp, is_image_shape, mlp
from noterl.registry import Configurable, register
from noterl.types import Batch
from noterl.utils.checks import check_bool, check_int, check_word

Tensor = Any
State = Mapping[str, Tensor]

KINDS = ("gru", "lstm")


@register
class Cell(Composite, Configurable):
    """A cell of two dense layers, one for the inputs and one for the state; `recurrent` returns it.

    Keras's and torch's own cells order their gates differently and have different numbers of biases, so a file of one
    backend would not fit another. These layers have the weights of `torch.nn.GRUCell` and `torch.nn.LSTMCell`.

    Args:
        kind: "gru" or "lstm".
        units: U, the number of outputs.
        inputs: I, the number of inputs; None to build the layers in the first call.
        layer_norm: whether the results of both layers are normalized, and for "lstm" also the cell before its output.

    Attributes:
        state_spec: `{"hidden": (U,)}`, and for "lstm" also `"cell": (U,)`.
    """

    def __init__(self, kind: str, units: int, inputs: int | None = None, *, layer_norm: bool = False) -> None:
        self.kind: str = check_word("kind", kind, KINDS)
        self.units: int = check_int("units", units)
        self.layer_norm: bool = check_bool("layer_norm", layer_norm)
        self.state_spec: dict[str, tuple[int, ...]] = {"hidden": (units,)}
        if kind == "lstm":
            self.state_spec["cell"] = (units,)
        self.parts: dict[str, Network] = {}
        if inputs is not None:
            self._build(check_int("inputs", inputs))

    def _build(self, inputs: int) -> None:
        """Build the layers for this number of inputs; the gates of all units are side by side."""
        gates = 4 if self.kind == "lstm" else 3
        self.parts = {
            "inputs": cell_layer(inputs, self.units, gates, layer_norm=self.layer_norm),
            "hidden": cell_layer(self.units, self.units, gates, layer_norm=self.layer_norm),
        }
        if self.layer_norm and self.kind == "lstm":
            self.parts["cell"] = cell_layer(self.units, self.units, 0, layer_norm=True)

    def __call__(self, inputs: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output `[B, U]` for inputs `[B, I]`, and the next state."""
        state = self.advance(self.project(inputs), state)
        return state["hidden"], state

    def project(self, inputs: Tensor) -> Tensor:
        """Return the share of the inputs `[B, I]` in the gates, for many steps at once.

        If the cell was made without `inputs`, the first call builds the layers.
        """
        if not self.parts:
            self._build(int(inputs.shape[-1]))
        return self.parts["inputs"](inputs)

    def advance(self, projected: Tensor, state: State) -> dict[str, Tensor]:
        """Return the next state for what `project` returned; its part "hidden" is the output."""
        recurrent = self.parts["hidden"](state["hidden"])
        if self.kind == "gru":
            return _gru(projected, recurrent, state)
        return _lstm(projected, recurrent, state, self.parts.get("cell"))


def _gru(inputs: Tensor, recurrent: Tensor, state: State) -> dict[str, Tensor]:
    """Return the next state of a gated recurrent unit (Cho et al., 2014), in the form of cuDNN.

    `r = sigmoid(.)`, `z = sigmoid(.)`, `n = tanh(inputs_n + r recurrent_n)` and `h <- (1 - z) n + z h`, in this order.
    """
    reset, update, candidate = ops.split(inputs, 3, axis=-1)
    reset_by, update_by, candidate_by = ops.split(recurrent, 3, axis=-1)
    new = ops.tanh(candidate + ops.sigmoid(reset + reset_by) * candidate_by)
    kept = ops.sigmoid(update + update_by)
    return {"hidden": new + kept * (state["hidden"] - new)}


def _lstm(inputs: Tensor, recurrent: Tensor, state: State, normalize: Network | None) -> dict[str, Tensor]:
    """Return the next state of a long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000).

    `c <- sigmoid(f) c + sigmoid(i) tanh(g)` and `h = sigmoid(o) tanh(c)`, with the gates in the order i, f, g, o. With
    layer normalization, `h = sigmoid(o) tanh(normalize(c))` (Ba et al., 2016, equation 22).
    """
    into, forget, candidate, out = ops.split(inputs + recurrent, 4, axis=-1)
    cell = ops.sigmoid(forget) * state["cell"] + ops.sigmoid(into) * ops.tanh(candidate)
    shown = cell if normalize is None else normalize(cell)
    return {"hidden": ops.sigmoid(out) * ops.tanh(shown), "cell": cell}


def recurrent(kind: str, units: int = 64, inputs: int | None = None, *, layer_norm: bool = False) -> Cell:
    """Return a cell. The kernels of each gate are orthogonal, and biases zero.

    Args:
        kind: "gru" (Cho et al., 2014) or "lstm" (Hochreiter and Schmidhuber, 1997).
        units: the number of outputs.
        inputs: the number of inputs. None builds the layers in the first call; the argument `recurrent` of agents takes
            such a cell, and builds one of this kind for each network. In an agent of your own, pass the number.
        layer_norm: whether the inputs of the gates are normalized (Ba et al., 2016, equations 20 to 22), which helps
            with observations of different scales and with long sequences.

    Raises:
        ValueError: if an argument is not one of these.

    Example:
    >>> from noterl import networks
    >>> networks.recurrent("lstm", 8, inputs=3).state_spec
    {'hidden': (8,), 'cell': (8,)}
    """
    return Cell(kind, units, inputs, layer_norm=layer_norm)


class RecurrentNetwork(Composite):
    """Layers before a cell, the cell, and the layers after it; called as a cell is.

    Args:
        encoder: a network `[B, observation] -> [B, I]`.
        cell: the cell.
        output: a network `[B, U] -> [B, outputs]`.
        make_cell: returns another cell of the same kind, for copies.

    Attributes:
        state_spec: of the cell.
    """

    def __init__(self, encoder: Network, cell: Any, output: Network, make_cell: Callable[[], Any]) -> None:
        self.parts: dict[str, Network] = {"encoder": encoder, "cell": cell, "output": output}
        self._make_cell = make_cell
        self.state_spec: dict[str, Any] = dict(cell.state_spec)

    def __call__(self, observation: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the outputs `[B, outputs]` for observations `[B, ...]`, and the next state."""
        features, state = self.parts["cell"](self.parts["encoder"](observation), state)
        return self.parts["output"](features), state

    def clone_part(self, name: str) -> Network:
        """Return an untrainable copy of a part.

        Keras can copy models, but no single layers. A cell that is a Keras layer is made by `make_cell`, and receives
        the weights of the part.
        """
        part = self.parts[name]
        if not isinstance(part, keras.layers.Layer) or isinstance(part, keras.Model):
            return super().clone_part(name)
        copied = self._make_cell()
        set_weights(copied, get_weights(part))
        copied.trainable = False
        return copied

    def features(
        self, observations: Tensor, state: State, starts: Tensor, burn_in: int = 0, *, initial: State | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the outputs of the cell along sequences, and its states; arguments and results as in `unroll`."""
        inputs = map_rows(self.parts["encoder"], observations)
        return unroll(self.parts["cell"], inputs, state, starts, burn_in, initial=initial)

    def batch_features(self, batch: Batch, state: State | None, burn_in: int, *, following: bool) -> Tensor:
        """Return the outputs of the cell for the observations of sequences, as rows `[T S, U]`.

        Args:
            batch: sequences `[T, S, ...]`.
            state: before the first row, `[S, ...]` by name; None for zeros.
            burn_in: see `unroll`.
            following: whether to return the outputs for the next observations.
        """
        starts = batch.extra["starts"]
        if state is None:
            state = {name: ops.zeros((starts.shape[1], *shape)) for name, shape in self.state_spec.items()}
        features, states = self.features(batch.observation, state, starts, burn_in)
        if following:
            # One step from each row.
            features, _ = step(self.parts["cell"], map_rows(self.parts["encoder"], batch.next_observation), states)
        return ops.reshape(features, (-1, features.shape[-1]))

    def with_output(self, outputs: int, hidden: Sequence[int], **last_layer: Any) -> RecurrentNetwork:
        """Return a network with other layers after the cell, which shares those up to the cell; see `mlp`."""
        encoder, cell, output = self.parts.values()
        inputs = get_weights(output)[0].shape[0]
        return RecurrentNetwork(encoder, cell, mlp(inputs, hidden, outputs, **last_layer), self._make_cell)


def recurrent_network(
    space: spaces.Space[Any],
    cell: str | Cell | Callable[[int], Any],
    units: int,
    hidden: Sequence[int],
    outputs: int,
    *,
    dueling: bool = False,
    actions: int = 0,
    **last_layer: Any,
) -> RecurrentNetwork:
    """Build a network of an encoder for observations, a cell, and dense layers.

    Images go through the convolutions and the 512 units of Mnih et al. (2015), as in `nature_cnn`.

    Args:
        space: of observations; see `default_network`.
        cell: "gru", "lstm", a cell of `recurrent`, or a function that returns a cell for a number of inputs.
        units: of "gru" and "lstm".
        hidden: units of each layer after the cell; as in `nature_cnn`, none follow for images without `actions`.
        outputs: the number of outputs.
        actions: the values of an action that the layers after the cell receive beside its outputs.
        dueling: whether a value and an advantage stream follow, as in `dueling_mlp`.
        **last_layer: `activation`, `gain`, `log_std`, `layer_norm` and `dropout`, as in `mlp`.

    Raises:
        ValueError: if the cell is not one of these, if no hidden layers follow that `layer_norm` or `dropout` could
            change, or if another argument is not one of the allowed values.
    """
    encoder, size = default_encoder(space, last_layer.get("gain"))
    if isinstance(cell, str) and cell in KINDS:
        cell = Cell(cell, check_int("recurrent_units", units))
    if not callable(cell):
        raise ValueError(f"recurrent must be 'gru', 'lstm' or a function `inputs -> cell`, got {cell!r}")
    if is_network(cell):
        raise ValueError(
            f"recurrent must be a function that returns a new cell for each network, such as the class {type(cell)}, "
            f"got one cell: {cell!r:.200}"
        )
    make: Callable[[int], Any] = (
        partial(Cell, cell.kind, cell.units, layer_norm=cell.layer_norm) if isinstance(cell, Cell) else cell
    )
    built = make(size)
    shapes = getattr(built, "state_spec", None)
    is_cell = isinstance(shapes, Mapping) and all(isinstance(size, int) for shape in shapes.values() for size in shape)
    if not is_cell or not callable(built):
        raise ValueError(
            "recurrent: the function must return a cell, which is called as cell(inputs, state) and has a state_spec "
            f'such as {{"hidden": (64,)}}, got {built!r:.200}'
        )
    build = dueling_mlp if dueling else mlp
    if is_image_shape(space.shape or ()) and not actions:
        if last_layer.get("layer_norm") or last_layer.get("dropout"):
            raise ValueError("layer_norm and dropout must be left out with recurrent, images and Discrete actions")
        hidden = ()
    inputs = _num_outputs(built, size) + actions
    return RecurrentNetwork(encoder, built, build(inputs, hidden, outputs, **last_layer), partial(make, size))


def check_memory(recurrent: Any, network: Any, **arguments: Any) -> None:
    """Check that an agent has no arguments for a memory without `recurrent`, and no `network` with it.

    Raises:
        ValueError: if an argument is not None.
    """
    if recurrent is not None and network is not None:
        raise ValueError(f"network must be None with recurrent, which may be a cell of your own, got {network!r}")
    for name, value in arguments.items():
        if recurrent is None and value is not None:
            raise ValueError(f"{name} must be left out without recurrent, got {value!r}")


def refuse_options(agent: Any, options: Mapping[str, Any], **reasons: str) -> None:
    """Refuse options of a base class, and options of a memory, in an agent that learns from single transitions.

    Args:
        agent: the agent, for the error message.
        options: what the constructor has received.
        **reasons: further options that the agent refuses, each with the reason.

    Raises:
        ValueError: if the options have one of these names.
    """
    memory = ("recurrent", "recurrent_units", "sequence_length", "burn_in")
    for name, reason in {**reasons, **dict.fromkeys(memory, "its loss is that of single transitions")}.items():
        if name in options:
            raise ValueError(f"{name} must be left out with {type(agent).__name__}, because {reason}")


def _num_outputs(cell: Any, inputs: int) -> int:
    """Return the number of outputs of a cell; one of a user is called on zeros."""
    if isinstance(cell, Cell):
        return cell.units
    state = {name: ops.zeros((1, *shape)) for name, shape in cell.state_spec.items()}
    return int(cell(ops.zeros((1, inputs)), state)[0].shape[-1])


def unroll(
    cell: Any, inputs: Tensor, state: State, starts: Tensor, burn_in: int = 0, *, initial: State | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the outputs of a cell along sequences, and its states after each row.

    Args:
        cell: a cell, or a `RecurrentNetwork`.
        inputs: `[T, S, ...]`, for S sequences of T rows.
        state: the state before the first row, `[S, ...]` by name.
        starts: `[T, S]`, above 0 on the first row of an episode, before which the state is set to `initial`.
        burn_in: rows at the start that only compute the state and get no gradient.
        initial: the state at the first step of an episode, `[...]` by name, such as `agent.initial_state()`; None for
            zeros.

    Returns:
        outputs `[T, S, ...]`, and states `[T, S, ...]` by name.

    Example:
    >>> import numpy as np
    >>> from noterl import networks
    >>> cell = networks.recurrent("gru", 8)
    >>> inputs, starts = np.ones((5, 2, 3), "float32"), np.zeros((5, 2), "float32")
    >>> outputs, states = networks.unroll(cell, inputs, {"hidden": np.zeros((2, 8), "float32")}, starts)
    >>> tuple(outputs.shape), tuple(states["hidden"].shape)
    ((5, 2, 8), (5, 2, 8))
    """
    if burn_in:
        before, states_before = unroll(cell, inputs[:burn_in], state, starts[:burn_in], initial=initial)
        state = {name: ops.stop_gradient(values[-1]) for name, values in states_before.items()}
        outputs, states = unroll(cell, inputs[burn_in:], state, starts[burn_in:], initial=initial)
        return ops.concatenate([ops.stop_gradient(before), outputs]), {
            name: ops.concatenate([ops.stop_gradient(states_before[name]), values]) for name, values in states.items()
        }
    scan = backends.current().scan
    state = {name: ops.convert_to_tensor(value) for name, value in state.items()}
    starts = ops.convert_to_tensor(starts)
    if isinstance(cell, RecurrentNetwork):
        features, states = cell.features(inputs, state, starts, initial=initial)
        return map_rows(cell.parts["output"], features), states
    if isinstance(cell, Cell):
        states = scan(
            lambda value, row: cell.advance(row[0], _restarted(value, row[1], initial)),
            state,
            (map_rows(cell.project, inputs), starts),
        )
        return states["hidden"], states
    inputs = ops.convert_to_tensor(inputs)
    output, _ = cell(inputs[0], state)  # for its shape
    start = ops.zeros_like(output), state
    return scan(lambda value, row: cell(row[0], _restarted(value[1], row[1], initial)), start, (inputs, starts))


def step(cell: Any, inputs: Tensor, states: State) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the outputs and next states of one step from each row, all `[T, S, ...]`.

    With `next_observation` and the states that `unroll` returned, these are the outputs for the next observations, also
    for the last observation of an episode.

    Args:
        cell: a cell, or a `RecurrentNetwork`.
        inputs: `[T, S, ...]`.
        states: `[T, S, ...]` by name.
    """
    names = list(states)

    def call(inputs: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        output, state = cell(inputs, dict(zip(names, values, strict=True)))
        return output, *(state[name] for name in names)

    output, *values = map_rows(call, inputs, *states.values())
    return output, dict(zip(names, values, strict=True))


def _restarted(state: State, starts: Tensor, initial: State | None) -> dict[str, Tensor]:
    """Return states `[S, ...]` with zeros or `initial` in the rows in which an episode starts, without a gradient."""
    restarted = {}
    for name, value in state.items():
        is_start = ops.reshape(starts > 0, (-1, *(1 for _ in value.shape[1:])))
        first = ops.zeros_like(value) if initial is None else ops.cast(initial[name], value.dtype)
        restarted[name] = ops.where(is_start, ops.stop_gradient(first), value)
    return restarted
