"""Reading Keras models from `.json` and `.keras` files, without Keras's deserialization, which may run their code.

The configuration is read here. Only layers of the table in `noterl.networks.layers` are built.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from noterl.backends import keras
from noterl.networks.config import StoredNetwork, build_model
from noterl.networks.layers import LAYER_TABLE
from noterl.networks.size_limit import NetworkSizeError
from noterl.utils.budget import Budget, check_hdf5, checked_size, parse, using
from noterl.utils.files import FileError
from noterl.utils.words import explain_name

# The initializers that a file may name. Their arguments are numbers, strings, bools or None.
_INITIALIZERS = (
    *("Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "LecunNormal", "LecunUniform", "Ones"),
    *("Orthogonal", "RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling", "Zeros"),
)

# Arguments of layers that do not change what an agent computes.
_IGNORED = ("name", "dtype", "batch_shape", "seed", "renorm_momentum")

_CONFIG = "config.json"
_WEIGHTS = "model.weights.h5"

# A model may need so many more weights than its file holds, because the weights of normalization are overestimated.
_SPARE_VALUES = 2**23

# The most values of a data set that is not a weight, such as the state of a generator.
_LARGEST_OTHER = 2**10


class _ConfigurationError(ValueError):
    """A mistake in a configuration, with the file and the line."""


def read_keras_json(path: Path) -> Any:
    """Return the model in a file that holds `model.to_json()`, with new weights.

    Raises:
        ValueError: if the file does not hold such a model, or it has layers that are not on the allow-list.
    """
    return _Reader(str(path), path.read_bytes()).model()


def read_keras_archive(path: Path) -> Any:
    """Return the model in a `.keras` file, with its weights.

    Raises:
        ValueError: if the file does not hold such a model, its weights do not fit, or it has layers that are not on the
            allow-list.
    """
    place = f"{path}: {_CONFIG}"
    try:
        # Four copies: the bytes, the file in the temporary folder, the model, and the values that are checked.
        checked_size(path, factor=4)
        with zipfile.ZipFile(path) as archive:
            content, weights = (_member(archive, name, path) for name in (_CONFIG, _WEIGHTS))
    except (zipfile.BadZipFile, KeyError, OSError, RuntimeError, EOFError, FileError) as error:
        raise ValueError(f"network: {path} is not a file of keras.Model.save: {error}") from error
    limit = len(weights) // 4 + _SPARE_VALUES
    with using(Budget("the model does not fit its weights", NetworkSizeError, weights=limit)):
        model = _Reader(place, content).model()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, _WEIGHTS)
        file.write_bytes(weights)
        try:
            check_hdf5(file, max(_LARGEST_OTHER, *(weight.size for weight in model.get_weights())))
            model.load_weights(file)
        except Exception as error:  # a damaged file may make h5py and Keras raise anything
            raise ValueError(f"network: {path}: {_WEIGHTS} does not fit the model: {error}") from error
    if not all(np.isfinite(np.asarray(value)).all() for value in model.get_weights()):
        raise ValueError(f"network: {path}: {_WEIGHTS} holds weights that are not finite")
    return model


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """Return a member. `keras.Model.save` stores members uncompressed, so none is larger than the file."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > path.stat().st_size:
        raise ValueError(f"network: {path}: {name} must be stored uncompressed, as keras.Model.save writes it")
    return archive.read(info)


class _Reader:
    """Reads one configuration.

    Args:
        place: the name of the file, for error messages.
        content: the configuration.
    """

    def __init__(self, place: str, content: bytes) -> None:
        self.place = place
        self.content = content
        self.initializers: dict[int, dict[str, Any]] = {}

    def model(self) -> Any:
        """Return the model."""
        try:
            document = parse(self.content, json.loads)
        except json.JSONDecodeError as error:
            raise ValueError(f"network: {self.place}, line {error.lineno}: {error.msg}") from None
        except ValueError as error:
            raise ValueError(f"network: {self.place}: {error}") from None
        try:
            stored = self._stored(document)
        except _ConfigurationError:
            raise
        except Exception as error:  # a text of another form may raise anything
            raise ValueError(f"network: {self.place} is not a configuration of a Keras model: {error!r}") from error
        try:
            return build_model(stored, self.initializers)
        except Exception as error:  # of a layer in Keras
            raise ValueError(f"network: {self.place}: {error}") from error

    def _stored(self, document: Any) -> StoredNetwork:
        """Return the configuration in noterl's form, and keep the initializers; may raise any error."""
        model_class = document["class_name"]
        if model_class not in ("Sequential", "Functional", "Model"):
            self._fail(model_class, f"the model must be Sequential or Functional, got {model_class!r:.80}")
        config = document["config"]
        return self._sequential(config) if model_class == "Sequential" else self._functional(config)

    def _sequential(self, config: Mapping[str, Any]) -> StoredNetwork:
        """Return the configuration of a Sequential model; see `_stored`."""
        layers = config["layers"]
        shape = config.get("build_input_shape")
        if layers and layers[0]["class_name"] == "InputLayer":
            shape = _shape_of(layers[0])
            layers = layers[1:]
        if not shape:
            self._fail("layers", "the model has no shape of inputs: add keras.Input before you write the file")
        stored = [[*self._layer(layer, index), [index - 1]] for index, layer in enumerate(layers)]
        return StoredNetwork("Sequential", tuple(shape[1:]), stored)

    def _functional(self, config: Mapping[str, Any]) -> StoredNetwork:
        """Return the configuration of a Functional model with one input; see `_stored`."""
        starts = [layer for layer in config["layers"] if layer["class_name"] == "InputLayer"]
        if len(starts) != 1:
            self._fail("InputLayer", f"the model must have one input, got {len(starts)}")
        layers = [layer for layer in config["layers"] if layer is not starts[0]]
        places = {layer["name"]: index for index, layer in enumerate(layers)} | {starts[0]["name"]: -1}
        stored = [
            [*self._layer(layer, index), [places[name] for name in self._inputs(layer)]]
            for index, layer in enumerate(layers)
        ]
        outputs = config["output_layers"]
        outputs = [outputs] if isinstance(outputs[0], str) else outputs
        ends = [places[output[0]] for output in outputs]
        return StoredNetwork("Functional", tuple(_shape_of(starts[0])[1:]), stored, ends)

    def _inputs(self, layer: Mapping[str, Any]) -> list[str]:
        """Return the names of the layers whose outputs a layer receives."""
        name = layer["name"]
        nodes = layer["inbound_nodes"]
        if len(nodes) != 1:
            self._fail(name, f"the layer {name!r} is called {len(nodes)} times; a file may call it once")
        options = {key: value for key, value in nodes[0]["kwargs"].items() if value not in (None, False)}
        arguments = nodes[0]["args"]
        if options or len(arguments) != 1:
            self._fail(name, f"the layer {name!r} is called with further arguments")
        tensors = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
        histories = [tensor["config"]["keras_history"] for tensor in tensors]
        if any(history[1:] != [0, 0] for history in histories):
            self._fail(name, f"the layer {name!r} receives one of several outputs of a layer")
        return [history[0] for history in histories]

    def _layer(self, layer: Mapping[str, Any], index: int) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments of a layer, and keep its initializers."""
        name = layer["class_name"]
        config = layer["config"]
        is_of_keras = layer.get("module", "keras.layers") in ("keras.layers", "keras.src.layers")
        if layer.get("registered_name") not in (None, name) or not is_of_keras or name not in LAYER_TABLE:
            self._fail(name, f"a file cannot hold the layer {name!r:.80}: {explain_name(str(name), LAYER_TABLE)}")
        dtype = config.get("dtype")
        dtype = dtype["config"].get("name") if isinstance(dtype, dict) else dtype
        if dtype not in (None, "float32"):
            self._fail(name, f"{name} must compute in float32, got {dtype!r:.80}")
        arguments: dict[str, Any] = {}
        for key, value in config.items():
            # The seed of a shared generator is a configuration. Another seed does not change what an agent computes.
            if key in LAYER_TABLE[name].stored and not (key == "seed" and isinstance(value, dict)):
                arguments[key] = value
            elif key.endswith("_initializer") and value is not None:
                self.initializers.setdefault(index, {})[key] = self._initializer(value)
            elif key not in _IGNORED and value not in (None, False):
                self._fail(key, f"{name} has the argument {key!r}, which a file cannot hold: {value!r:.80}")
        return name, arguments

    def _initializer(self, value: Any) -> Any:
        """Return an initializer of the allow-list, from a name or a configuration."""
        value = {"class_name": value, "config": {}} if isinstance(value, str) else value
        name = value["class_name"]
        config = value["config"]
        if value.get("registered_name") not in (None, name) or name not in _INITIALIZERS:
            self._fail(name, f"unknown initializer {name!r:.80}: {explain_name(str(name), _INITIALIZERS)}")
        if not all(entry is None or type(entry) in (bool, int, float, str) for entry in config.values()):
            self._fail(name, f"the initializer {name} has the arguments {config!r:.120}")
        return getattr(keras.initializers, name)(**config)

    def _fail(self, word: Any, text: str) -> NoReturn:
        """Raise an error with the first line that holds a word in quotes."""
        start = self.content.find(json.dumps(word).encode())
        line = "" if start < 0 else f", line {self.content.count(10, 0, start) + 1}"
        raise _ConfigurationError(f"network: {self.place}{line}: {text}")


def _shape_of(layer: Mapping[str, Any]) -> list[Any]:
    """Return the shape of an `InputLayer`, with the axis of the batch."""
    config = layer["config"]
    return list(config.get("batch_shape") or config["batch_input_shape"])
