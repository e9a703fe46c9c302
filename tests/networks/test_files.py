"""Networks in files of TOML, xagents and Keras: what is built, and the errors about mistakes."""

from __future__ import annotations

import cProfile
import io
import itertools
import json
import os
import pstats
import time
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from gymnasium import spaces
from keras import layers

import noterl
from noterl import networks

torch_only = pytest.mark.backends("torch")

VECTOR, IMAGE = spaces.Box(-1.0, 1.0, (4,)), spaces.Box(0, 255, (84, 84, 1), np.uint8)
DISCRETE, BOX = spaces.Discrete(6), spaces.Box(-2.0, 2.0, (3,))

DENSE = """
[[layers]]
layer = "dense"
units = 16
activation = "tanh"
initializer = "orthogonal"
gain = 2.0
"""

CRITIC = """
[[critic.layers]]
layer = "dense"
units = 8
activation = "relu"
"""

# The architectures of xagents (reference/xagents.md 1.4), as its sections and keys.
ANN = """
[dense-0]
units=64
activation=tanh
initializer=orthogonal
gain=1.4142135

[dense-1]
units=64
activation=tanh
initializer=orthogonal
gain=1.4142135
common=1

[dense-2]
initializer=orthogonal
gain=0.01
output=1

[dense-3]
initializer=orthogonal
gain=1.0
output=1
"""
CONVOLUTIONS = """
[convolutional-0]
filters=32
size=8
stride=4
activation=relu

[convolutional-1]
filters=64
size=4
stride=2
activation=relu

[convolutional-2]
filters=64
size=3
stride=1
activation=relu

[flatten-0]

[dense-0]
units=512
activation=relu
"""
CNN = CONVOLUTIONS + "common=1\n\n[dense-1]\noutput=1\n\n[dense-2]\noutput=1\n"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def shapes(network: Any) -> list[tuple[int, ...]]:
    return [weight.shape for weight in networks.get_weights(network)]


def dense(*units: int) -> list[tuple[int, ...]]:
    pairs = itertools.pairwise(units)
    return [shape for inputs, outputs in pairs for shape in ((inputs, outputs), (outputs,))]


@torch_only
def test_loaded_agent_does_not_need_the_file() -> None:
    path = write("model.toml", DENSE + CRITIC)
    agent = noterl.PPO((VECTOR, BOX), network=path, seed=3)
    assert shapes(agent.actor) == [*dense(4, 16, 3), (3,)] and shapes(agent.critic) == dense(4, 16, 8, 1)
    agent.build()
    agent.save("agent.noterl")
    os.remove(path)
    loaded = noterl.load("agent.noterl")
    observations = np.random.default_rng(1).normal(size=(5, 4)).astype("float32")
    np.testing.assert_array_equal(loaded.act(observations), agent.act(observations))
    kernel = networks.get_weights(agent.actor)[0]
    np.testing.assert_allclose(kernel @ kernel.T, 4.0 * np.eye(4), atol=1e-5)  # orthogonal rows of length 2


@torch_only
class TestToml:
    @pytest.mark.parametrize(
        ("kind", "action", "expected"),
        [
            ("DQN", DISCRETE, {"q": dense(4, 16, 6)}),
            ("A2C", DISCRETE, {"actor": dense(4, 16, 6), "critic": dense(4, 16, 1)}),
            ("TRPO", BOX, {"actor": [*dense(4, 16, 3), (3,)], "critic": dense(4, 16, 1)}),
            ("ACER", DISCRETE, {"actor": dense(4, 16, 6), "critic": dense(4, 16, 6)}),
            ("DDPG", BOX, {"actor": dense(4, 16, 3), "critic": dense(7, 16, 1)}),
            ("TD3", BOX, {"actor": dense(4, 16, 3), "critics/1": dense(7, 16, 1)}),
            ("SAC", BOX, {"actor": dense(4, 16, 6), "critics/1": dense(7, 16, 1)}),
            ("SAC", DISCRETE, {"actor": dense(4, 16, 6), "critics/0": dense(4, 16, 6)}),
            ("AlphaZero", DISCRETE, {"network": dense(4, 16, 7)}),
        ],
    )
    def test_outputs_follow_the_spaces(self, kind: str, action: Any, expected: dict[str, Any]) -> None:
        env: Any = (VECTOR, action)
        if kind == "AlphaZero":
            env = "CartPole-v1"
            expected = {"network": dense(4, 16, 3)}
        agent = getattr(noterl, kind)(env, network=write("model.toml", DENSE))
        found = agent.networks()
        assert {name: shapes(found[name]) for name in expected} == expected

    @pytest.mark.parametrize("kind", ["TD3", "SAC"])
    def test_one_file_describes_both_critics(self, kind: str) -> None:
        paths = [
            write(f"{name}.toml", DENSE.replace("16", str(units))) for name, units in (("actor", 16), ("critic", 12))
        ]
        networks = getattr(noterl, kind)((VECTOR, BOX), network=tuple(paths), seed=1).networks()
        assert shapes(networks["actor"])[0] == (4, 16)
        assert shapes(networks["critics/0"]) == shapes(networks["critics/1"]) == dense(7, 12, 1)
        with pytest.raises(ValueError, match="network must"):
            getattr(noterl, kind)((VECTOR, BOX), network=(paths[0], noterl.networks.mlp(7, [8], 1)))

    def test_several_agents(self) -> None:
        from noterl.envs import Signals

        agent = noterl.MADDPG(Signals, network=write("model.toml", DENSE + CRITIC))
        assert [shapes(actor)[1] for actor in agent.actors] == [(16,), (16,)]
        assert [shapes(critic)[1::2] for critic in agent.critics] == [[(16,), (8,), (1,)]] * 2

    def test_images_and_shared_layers(self) -> None:
        text = """
        shared = true
        layers = [
            { layer = "convolution", filters = 4, size = 8, stride = 4, activation = "relu" },
            { layer = "dense", units = 12 },
        ]
        [[actor.layers]]
        layer = "dense"
        units = 10
        [critic.output]
        initializer = "orthogonal"
        """
        agent = noterl.PPO((IMAGE, DISCRETE), network=write("model.toml", text))
        trunk = [(8, 8, 1, 4), (4,), *dense(1600, 12)]
        assert shapes(agent.actor) == [*trunk, *dense(12, 10, 6)] and shapes(agent.critic) == [*trunk, *dense(12, 1)]
        variables = [set(map(id, networks.variables(network))) for network in (agent.actor, agent.critic)]
        assert len(variables[0] & variables[1]) == 4
        agent.build()
        agent.save("agent.noterl")
        assert shapes(noterl.load("agent.noterl").critic) == shapes(agent.critic)

    @pytest.mark.parametrize(
        "own", [["layer_norm"], ["residual"], ["flatten", "dense"], ["layer_norm", "dense"], ["dense", "residual"]]
    )
    def test_critic_shares_all_common_layers(self, own: list[str]) -> None:
        common, units = {"layer": "dense", "units": 8, "activation": "relu"}, {"dense", "residual"}
        layers = [{"layer": name, **({"units": 8} if name in units else {})} for name in own]
        document = {"shared": True, "layers": [common, common], "actor": {"layers": layers}}
        agent = noterl.PPO((VECTOR, DISCRETE), network=networks.NetworkDescription(document))
        assert shapes(agent.critic) == dense(4, 8, 8, 1)
        variables = [set(map(id, networks.variables(network))) for network in (agent.actor, agent.critic)]
        assert len(variables[0] & variables[1]) == 4

    def test_convolutions_encode_images_beside_other_values(self) -> None:
        text = '[[layers]]\nlayer = "convolution"\nfilters = 2\nsize = 4\nstride = 4\n' + DENSE
        space = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,))})
        agent = noterl.DDPG((space, BOX), network=write("model.toml", text))
        assert shapes(agent.actor) == [(4, 4, 3, 2), (2,), *dense(2 * 2 * 2 + 2, 16, 3)]
        assert shapes(agent.critic) == [(4, 4, 3, 2), (2,), *dense(2 * 2 * 2 + 2 + 3, 16, 1)]
        agent.build()

    def test_dueling_network_and_initializers(self) -> None:
        text = DENSE + DENSE.replace("orthogonal", "glorot_uniform").replace("gain = 2.0", "")
        agent = noterl.DQN((VECTOR, DISCRETE), dueling=True, network=write("model.toml", text), seed=1)
        weights = networks.get_weights(agent.q)
        assert [weight.shape for weight in weights] == [*dense(4, 16), *dense(16, 16, 1), *dense(16, 16, 6)]
        np.testing.assert_allclose(weights[0] @ weights[0].T, 4.0 * np.eye(4), atol=1e-5)
        limit = (6 / 32) ** 0.5
        assert 0.9 * limit < np.abs(weights[2]).max() <= limit and not weights[3].any()

    def test_one_file_for_each_network(self) -> None:
        first, second = write("a.toml", DENSE), write("b.toml", DENSE.replace("16", "5"))
        agent = noterl.PPO((VECTOR, DISCRETE), network=(first, Path(second)))
        assert shapes(agent.actor) == dense(4, 16, 6) and shapes(agent.critic) == dense(4, 5, 1)

    def test_only_the_critic(self) -> None:
        agent = noterl.PPO((VECTOR, DISCRETE), network=write("model.toml", CRITIC), hidden=(7,))
        assert shapes(agent.actor) == dense(4, 7, 6) and shapes(agent.critic) == dense(4, 8, 1)

    @pytest.mark.parametrize(
        ("text", "line", "words"),
        [
            (DENSE.replace("units", "unit"), 4, "units"),
            (DENSE.replace("dense", "dens"), 3, "dense"),
            (DENSE.replace('"tanh"', '"tan"'), 5, "tanh"),
            (DENSE.replace("orthogonal", "ortogonal"), 6, "orthogonal"),
            (DENSE.replace("16", "0"), 4, "positive"),
            (DENSE.replace("orthogonal", "fan_in_uniform"), 7, "gain"),
            (DENSE.replace("units = 16", ""), 2, "units"),
            (DENSE.replace("layers", "layer"), 2, "layers"),
            (DENSE + CRITIC.replace("critic", "critics"), 9, "critic"),
            (DENSE + "[output]\nunits = 5\n", 9, "6 outputs"),
            (DENSE + '[output]\nactivation = "softmax"\n', 9, "linear"),
            (DENSE + '[[layers]]\nlayer = "convolution"\nfilters = 1\nsize = 2\nstride = 1\n', 8, "convolution"),
            ('[[layers]]\nlayer = "convolution"\nfilters = 1\nsize = 2\nstride = 1\n', 1, "images"),
            ("shared = true\n" + DENSE, 1, "share"),
            (DENSE + CRITIC, 9, "critic"),
            (DENSE + "units = 3\n", 8, "overwrite"),
        ],
    )
    def test_errors_name_file_line_and_nearest_key(self, text: str, line: int, words: str) -> None:
        with pytest.raises(ValueError, match=rf"network: .*line {line}\D.*{words}"):
            noterl.DQN((VECTOR, DISCRETE), network=write("model.toml", text))

    def test_convolution_larger_than_images(self) -> None:
        text = '[[layers]]\nlayer = "convolution"\nfilters = 1\nsize = 90\nstride = 1\n'
        with pytest.raises(ValueError, match=r"model.toml, line 1: .*90.*84x84"):
            noterl.DQN((IMAGE, DISCRETE), network=write("model.toml", text))

    def test_agents_whose_networks_cannot_share(self) -> None:
        path = write("model.cfg", ANN)
        for kind, action in (("TRPO", DISCRETE), ("DDPG", BOX)):
            with pytest.raises(ValueError, match=r"network: model.cfg.*share"):
                getattr(noterl, kind)((VECTOR, action), network=path)

    def test_hostile_description_is_refused(self) -> None:
        for document in ({"layers": [{"layer": "eval"}]}, {"layers": "os"}, {"lambda": 1}, {}, []):
            with pytest.raises(ValueError, match="network"):
                networks.NetworkDescription(document)


@torch_only
class TestCfg:
    def test_two_outputs_share_the_common_layers(self) -> None:
        agent = noterl.A2C((VECTOR, DISCRETE), network=write("ann-actor-critic.cfg", ANN))
        assert shapes(agent.actor) == dense(4, 64, 64, 6) and shapes(agent.critic) == dense(4, 64, 64, 1)
        shared = set(map(id, networks.variables(agent.actor))) & set(map(id, networks.variables(agent.critic)))
        assert len(shared) == 4
        last = networks.get_weights(agent.actor)[-2]
        np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(6), atol=1e-8)

    def test_parameters_of_the_convolutional_actor_critic(self) -> None:
        agent = noterl.PPO((IMAGE, DISCRETE), network=write("cnn-actor-critic.cfg", CNN))
        held = networks.unique(v for network in (agent.actor, agent.critic) for v in networks.variables(network))
        assert sum(int(np.prod(variable.shape)) for variable in held) == 1_681_575

    def test_softmax_of_acer(self) -> None:
        text = CNN.replace("[dense-1]\n", "[dense-1]\nactivation=softmax\n")
        agent = noterl.ACER((IMAGE, DISCRETE), network=write("cnn-actor-critic.cfg", text))
        assert shapes(agent.actor)[-1] == shapes(agent.critic)[-1] == (6,)
        with pytest.raises(ValueError, match=r"critic.*softmax"):
            noterl.PPO(
                (IMAGE, DISCRETE), network=write("x.cfg", CNN.replace("[dense-2]", "[dense-2]\nactivation=softmax"))
            )

    def test_single_output(self) -> None:
        agent = noterl.DQN((IMAGE, DISCRETE), network=write("cnn.cfg", CONVOLUTIONS + "\n[dense-1]\noutput=1\n"))
        assert shapes(agent.q)[-4:] == dense(7 * 7 * 64, 512, 6)

    def test_actor_and_critic_files(self) -> None:
        actor = write("ann-actor.cfg", "[dense-0]\nunits=40\nactivation=relu\n[dense-1]\nactivation=tanh\noutput=1\n")
        critic = write("ann-critic.cfg", "[dense-0]\nunits=30\nactivation=relu\n[dense-1]\noutput=1\n")
        agent = noterl.DDPG((VECTOR, BOX), network=(actor, critic))
        assert shapes(agent.actor) == dense(4, 40, 3) and shapes(agent.critic) == dense(7, 30, 1)

    def test_heads_may_have_several_layers(self) -> None:
        text = ANN.replace("[dense-2]\n", "[dense-5]\nunits=20\n\n[dense-2]\n")
        agent = noterl.PPO((VECTOR, DISCRETE), network=write("model.cfg", text))
        assert shapes(agent.actor) == dense(4, 64, 64, 20, 6) and shapes(agent.critic) == dense(4, 64, 64, 1)

    def test_flags_count_by_their_value(self) -> None:
        text = ANN.replace("[dense-0]\n", "[dense-0]\noutput=0\ncommon=0\n")
        agent = noterl.PPO((VECTOR, DISCRETE), network=write("model.cfg", text))
        assert shapes(agent.actor) == dense(4, 64, 64, 6)

    @pytest.mark.parametrize(
        ("text", "line", "words"),
        [
            (ANN.replace("units=64", "unit=64", 1), 3, "units"),
            (ANN.replace("[dense-0]", "[dens-0]"), 2, "dense"),
            (ANN.replace("tanh", "tahn", 1), 4, "tanh"),
            (ANN.replace("orthogonal", "ortho", 1), 5, "orthogonal"),
            (ANN.replace("64", "many", 1), 3, "units"),
            (ANN.replace("common=1", "common=2"), 13, "common"),
            (ANN.replace("common=1", ""), 15, "common"),
            (ANN + "[dense-9]\nunits=3\n", 24, "last output"),
            (ANN + "[dense-2]\nunits=3\n", 24, "already exists"),
            (ANN + "[dense-9]\noutput=1\n", 25, "two outputs"),
            ("units=3\n" + ANN, 1, "section"),
        ],
    )
    def test_errors_name_file_line_and_nearest_key(self, text: str, line: int, words: str) -> None:
        with pytest.raises(ValueError, match=rf"network: .*line {line}\D.*{words}"):
            noterl.PPO((VECTOR, DISCRETE), network=write("model.cfg", text))

    def test_empty_file(self) -> None:
        with pytest.raises(ValueError, match=r"model.cfg has no sections"):
            noterl.DQN((VECTOR, DISCRETE), network=write("model.cfg", ""))


def sequential(last: Any = None) -> keras.Model:
    stack = [keras.Input((4,)), layers.Dense(8, "tanh", kernel_initializer="orthogonal"), layers.Dropout(0.1)]
    return keras.Sequential([*stack, *([] if last is None else [last]), layers.Dense(6)])


def functional() -> keras.Model:
    inputs = keras.Input((4,))
    first, second = layers.Dense(5, "relu")(inputs), layers.Dense(5)(inputs)
    return keras.Model(inputs, layers.Dense(6)(layers.Concatenate()([layers.Add()([first, second]), inputs])))


@torch_only
class TestKeras:
    @pytest.mark.parametrize("build", [sequential, functional])
    def test_archive_has_the_weights_and_json_new_ones(self, build: Any) -> None:
        model = build()
        model.save("model.keras")
        Path("model.json").write_text(model.to_json(indent=1))
        probe = np.ones((2, 4), "float32")
        expected = keras.ops.convert_to_numpy(model(probe))
        np.testing.assert_allclose(keras.ops.convert_to_numpy(networks.read_network("model.keras")(probe)), expected)
        agents = [noterl.DQN((VECTOR, DISCRETE), network="model.json", seed=2) for _ in range(2)]
        first, second = (networks.get_weights(agent.q) for agent in agents)
        assert [weight.shape for weight in first if weight.ndim == 2] == [w.shape for w in model.get_weights()[::2]]
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)
        agents[0].build()
        agents[0].save("agent.noterl")
        os.remove("model.json")
        np.testing.assert_array_equal(noterl.load("agent.noterl").act(probe), agents[0].act(probe))

    def test_initializers_of_json(self) -> None:
        Path("model.json").write_text(sequential().to_json())
        kernel = networks.get_weights(networks.read_network("model.json"))[0]
        np.testing.assert_allclose(kernel @ kernel.T, np.eye(4), atol=1e-5)

    @pytest.mark.parametrize("ending", ["json", "keras"])
    def test_lambda_and_custom_objects_are_refused(self, ending: str) -> None:
        @keras.saving.register_keras_serializable("tests")
        class Mine(layers.Layer):
            pass

        for layer, name in ((layers.Lambda(lambda x: x), "Lambda"), (Mine(), "Mine")):
            model = sequential(layer)
            if ending == "keras":
                model.save("model.keras")
            else:
                Path("model.json").write_text(model.to_json(indent=1))
            with pytest.raises(ValueError, match=rf"network: .*{ending}.*line \d+: .*{name}"):
                noterl.DQN((VECTOR, DISCRETE), network=f"model.{ending}")

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            ('"Dense"', '"Dens"', "Dense"),
            ('"keras.layers"', '"os"', "cannot hold"),
            ('"Orthogonal"', '"Ortogonal"', "Orthogonal"),
            ('"tanh"', '"tahn"', "activation"),
            ('"kernel_regularizer": null', '"kernel_regularizer": "l2"', "kernel_regularizer"),
            ('"Sequential"', '"Mine"', "Sequential or Functional"),
            ('"layers"', '"layer"', "configuration"),
        ],
    )
    def test_changed_configurations_are_refused(self, before: str, after: str, words: str) -> None:
        text = sequential().to_json(indent=1)
        assert before in text
        Path("model.json").write_text(text.replace(before, after))
        with pytest.raises(ValueError, match=rf"network: model.json.*{words}"):
            noterl.DQN((VECTOR, DISCRETE), network="model.json")

    def test_syntax_errors_have_a_line(self) -> None:
        with pytest.raises(ValueError, match=r"model.json, line 2"):
            noterl.DQN((VECTOR, DISCRETE), network=write("model.json", "{\n,}"))

    def test_file_of_another_kind(self) -> None:
        with pytest.raises(ValueError, match=r"model.keras"):
            noterl.DQN((VECTOR, DISCRETE), network=write("model.keras", "text"))

    def test_network_that_does_not_fit_the_spaces(self) -> None:
        sequential().save("model.keras")
        with pytest.raises(ValueError, match="network does not fit DQN"):
            noterl.DQN((VECTOR, spaces.Discrete(2)), network="model.keras")


@torch_only
def test_paths_that_are_not_networks() -> None:
    for path in ("missing.toml", "model.py", write("weights.pkl", "")):
        with pytest.raises(ValueError, match="network"):
            noterl.DQN((VECTOR, DISCRETE), network=path)


@torch_only
def test_command_line_reads_network_files() -> None:
    from noterl.cli import main

    write("model.toml", DENSE)
    command = ["train", "dqn", "--env", "CartPole-v1", "--steps", "30", "--quiet", "--network", "model.toml"]
    with pytest.warns(UserWarning, match="without a gradient update"):
        assert main([*command, "--out", "run"]) == 0
    os.remove("model.toml")
    assert shapes(noterl.load("run/agent.noterl").q) == dense(4, 16, 2)


@torch_only
class TestHostileFiles:
    """Files that are refused before they take memory or time."""

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("model.toml", "x=" + "[" * 10_000 + "]" * 10_000),
            ("model.toml", DENSE.replace("16", "9" * 5_000)),
            ("model.toml", DENSE.replace("16", "9" * 30)),
            ("model.toml", DENSE.replace("16", "100_000_000")),
            ("model.toml", 2 * DENSE.replace("16", "100_000")),
            ("model.cfg", "[dense-0]\nunits=100000\n[dense-1]\nunits=100000\n"),
            ("model.toml", "# " + "x" * 200_000),
            ("model.cfg", "[dense-0]\nunits=1\n  a" + " " * 50_000 + "b\n"),
            ("model.toml", 'x = """\n' + "a " * 50_000 + '"""'),
            ("model.json", "[" * 200_000),
            ("model.json", "9" * 5_000),
        ],
    )
    def test_text_is_refused_with_the_name_of_the_file(self, name: str, text: str) -> None:
        sound = write("sound.toml", "".join(DENSE for _ in range(20)))
        started = time.process_time()
        for _ in range(10):
            networks.read_network(sound)
        ended = time.process_time()
        with pytest.raises(ValueError, match=f"network: {name}"):
            noterl.PPO((VECTOR, DISCRETE), network=write(name, text))
        # The dearest text, ten thousand brackets, takes 30 times as long as ten files of twenty layers.
        assert time.process_time() - ended < 200 * (ended - started)

    @pytest.mark.parametrize("units", [10**9, 10**12, 10**30])
    def test_model_with_too_many_weights_is_refused(self, units: int) -> None:
        Path("model.json").write_text(sequential().to_json().replace('"units": 8', f'"units": {units}'))
        with pytest.raises(ValueError, match=r"network: model.json: .* weights"):
            networks.read_network("model.json")

    def test_large_text_of_keras_is_not_read(self) -> None:
        Path("model.json").write_bytes(b" " * (2**23 + 1))
        with pytest.raises(ValueError, match=r"network: .*8,388,608 bytes"):
            networks.read_network("model.json")

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("model.toml", 600 * '[[layers]]\nlayer="dense"\nunits=1\n'),
            ("model.cfg", "".join(f"[dense-{number}]\nunits=1\n" for number in range(600))),
        ],
    )
    def test_number_of_layers_is_limited(self, name: str, text: str) -> None:
        write(name, text)
        for agent in (noterl.DQN, noterl.PPO):
            with pytest.raises(ValueError, match=f"network: {name}.*at most 1,024 arrays"):
                agent((VECTOR, DISCRETE), network=name)

    def test_calls_grow_with_the_number_of_sections(self) -> None:
        def calls(sections: int) -> int:
            write("many.cfg", "".join(f"[dense-{number}]\nunits=1\n" for number in range(sections)))
            profile = cProfile.Profile()
            profile.runcall(networks.read_network, "many.cfg")
            return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

        calls(2)
        assert calls(400) < 3 * calls(200)

    def test_number_of_layers_of_keras_is_limited(self) -> None:
        document = json.loads(sequential().to_json())
        document["config"]["layers"] += [
            {"class_name": "Dense", "config": {"units": 1, "name": f"layer_{number}"}} for number in range(600)
        ]
        Path("model.json").write_text(json.dumps(document))
        with pytest.raises(ValueError, match=r"network: .*512 layers"):
            networks.read_network("model.json")

    @pytest.mark.parametrize(
        "options",
        [
            {"shape": (10**9,), "chunks": (2**20,)},
            {"data": np.zeros(2**22, "f4"), "chunks": True, "compression": "gzip"},
        ],
        ids=["sparse", "compressed"],
    )
    def test_data_set_larger_than_the_weights_is_not_read(self, options: dict[str, Any]) -> None:
        def change(content: bytes) -> bytes:
            stream = io.BytesIO(content)
            with h5py.File(stream, "r+") as file:
                found: list[str] = []
                file.visititems(lambda place, entry: found.append(place) if isinstance(entry, h5py.Dataset) else None)
                del file[found[0]]
                file.create_dataset(found[0], **options)
            return stream.getvalue()

        _rewrite("model.keras", "model.weights.h5", change)
        with pytest.raises(ValueError, match=r"network: .*a weight has at most"):
            networks.read_network("model.keras")

    def test_sparse_file_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("noterl.utils.budget.available_bytes", lambda: 2**26)
        _rewrite("model.keras", "model.weights.h5", lambda content: content + bytes(2**25))
        with pytest.raises(ValueError, match=r"network: .*16,777,216 fit"):
            networks.read_network("model.keras")

    def test_link_in_the_weights_is_refused(self) -> None:
        def change(content: bytes) -> bytes:
            stream = io.BytesIO(content)
            with h5py.File(stream, "r+") as file:
                file["layers/other"] = h5py.ExternalLink("/other.h5", "x")
            return stream.getvalue()

        _rewrite("model.keras", "model.weights.h5", change)
        with pytest.raises(ValueError, match=r"model.weights.h5 .*link to another place"):
            networks.read_network("model.keras")

    def test_weights_that_are_not_finite_are_refused(self) -> None:
        model = sequential()
        model.set_weights([np.full_like(weight, np.nan) for weight in model.get_weights()])
        model.save("model.keras")
        with pytest.raises(ValueError, match=r"network: .*\.h5 .*not finite"):
            networks.read_network("model.keras")

    def test_initializer_with_wrong_arguments_names_the_file(self) -> None:
        Path("model.json").write_text(sequential().to_json().replace('"gain": 1.0', '"gain": "x", "seed": "y"'))
        with pytest.raises(ValueError, match=r"network: model.json"):
            networks.read_network("model.json")

    def test_model_larger_than_its_weights_is_refused(self) -> None:
        _rewrite("model.keras", "config.json", lambda content: content.replace(b'"units": 8', b'"units": 9000000'))
        with pytest.raises(ValueError, match=r"network: .*config\.json.* weights"):
            networks.read_network("model.keras")

    def test_compressed_member_is_refused(self) -> None:
        _rewrite("model.keras", "config.json", lambda content: content + b" " * 2**20, zipfile.ZIP_DEFLATED)
        with pytest.raises(ValueError, match=r"network: model.keras: config.json must"):
            networks.read_network("model.keras")

    def test_weights_of_other_shapes_name_the_file(self) -> None:
        _rewrite("model.keras", "config.json", lambda content: content.replace(b'"units": 8', b'"units": 9'))
        with pytest.raises(ValueError, match=r"network: .*\.h5 does not fit"):
            networks.read_network("model.keras")


def _rewrite(path: str, member: str, change: Any, compression: int = zipfile.ZIP_STORED) -> None:
    """Write a model whose archive has one member changed."""
    sequential().save("original.keras")
    with zipfile.ZipFile("original.keras") as source, zipfile.ZipFile(path, "w", compression) as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, change(content) if name == member else content)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("layer", [keras.layers.BatchNormalization, lambda: keras.layers.Dropout(0.1)])
@pytest.mark.parametrize("functional", [False, True])
def test_models_with_a_training_mode_are_read(layer: Any, functional: bool, tmp_path: Path) -> None:
    inputs = keras.Input((4,))
    stack = [keras.layers.Dense(8), layer(), keras.layers.Dense(2)]
    model = keras.Model(inputs, stack[2](stack[1](stack[0](inputs)))) if functional else None
    model = model or keras.Sequential([inputs, *stack])
    model.save(tmp_path / "model.keras")
    probe = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    expected = keras.ops.convert_to_numpy(model(probe))
    found = keras.ops.convert_to_numpy(networks.read_network(tmp_path / "model.keras")(probe))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
