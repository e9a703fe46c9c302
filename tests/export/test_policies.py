"""Exports of all spaces, heads and layers, and what is refused."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces
from keras import layers

import noterl
from noterl.callbacks import Export
from noterl.export import formats, policy
from tests.export.test_formats import module_of, read

pytestmark = pytest.mark.backends("torch")

VECTOR, DISCRETE, BOX = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(3), spaces.Box(-2.0, 3.0, (2, 2))
PARTS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (36, 36, 1), np.uint8),
        "gears": spaces.Dict({"first": spaces.Discrete(3), "others": spaces.MultiDiscrete([2, 4])}),
        "lamps": spaces.MultiBinary(3),
        "speed": spaces.Box(-5.0, 5.0, ()),
        "it's": spaces.Box(-1.0, 1.0, (2,)),
        "class": spaces.Box(-1.0, 1.0, (1,)),
        '"""\n': spaces.Discrete(2),
        "gears_first": spaces.Discrete(2),
    }
)
# The part "state" would be the state of a memory; the other names are those of the code in an exported file.
RESERVED = spaces.Dict(
    {
        "state": spaces.Dict({"pos": spaces.Box(-1.0, 1.0, (2,)), "vel": spaces.Box(-1.0, 1.0, (3,))}),
        **{name: spaces.Box(-1.0, 1.0, (1,)) for name in ("self", "self_", "torch", "functional", "x0", "x1", "x9")},
    }
)


def functional() -> keras.Model:
    inputs = keras.Input((4,))
    first = layers.LayerNormalization()(layers.Dense(5, "gelu")(inputs))
    second = layers.BatchNormalization()(layers.Dense(5, "selu", use_bias=False)(inputs))
    parts = [
        *(kind()([first, second]) for kind in (layers.Add, layers.Subtract, layers.Multiply, layers.Average)),
        *(kind()([first, second]) for kind in (layers.Maximum, layers.Minimum)),
        *(layers.Activation(name)(second) for name in ("softplus", "softsign", "exponential", "relu6", "mish", "elu")),
        *(layers.Activation(name)(second) for name in ("sigmoid", "silu", "leaky_relu", "softmax", "tanh")),
        layers.Rescaling(0.5, 0.25)(layers.LeakyReLU(negative_slope=0.3)(first)),
        layers.Reshape((5,))(layers.Dropout(0.1)(layers.ReLU()(first))),
    ]
    return keras.Model(inputs, layers.Dense(3)(layers.Concatenate()(parts)))


def convolutional() -> keras.Model:
    stack = [layers.Conv2D(3, (3, 2), (2, 1), data_format="channels_last"), layers.Flatten(data_format="channels_last")]
    return keras.Sequential([keras.Input((8, 7, 2)), *stack, layers.Dense(3)])


def modules() -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6, bias=False), nn.GELU(), nn.Dropout(0.1), nn.Linear(6, 3))


CASES: dict[str, Any] = {
    "dict of parts": lambda: noterl.PPO((PARTS, spaces.MultiDiscrete([3, 2])), hidden=(8,)),
    "reserved names": lambda: noterl.DQN((RESERVED, DISCRETE), hidden=(8,)),
    "normalized parts": lambda: noterl.A2C(
        (spaces.Dict({"a": spaces.Discrete(2), "b": VECTOR}), DISCRETE), hidden=(8,), normalize_observation=True
    ),
    "boards": lambda: noterl.DQN((spaces.Box(-1, 1, (9,), np.int8), DISCRETE), hidden=(8,)),
    "discrete observations": lambda: noterl.DQN((spaces.Discrete(5), DISCRETE), hidden=(8,)),
    "images": lambda: noterl.DQN((spaces.Box(0, 255, (2, 36, 36), np.uint8), DISCRETE), dueling=True),
    "quantiles": lambda: noterl.QRDQN((VECTOR, DISCRETE), quantiles=6, hidden=(8,)),
    "atoms of a dueling network": lambda: noterl.C51((VECTOR, DISCRETE), hidden=(8,), dueling=True),
    "implicit quantiles": lambda: noterl.IQN((spaces.Discrete(5), DISCRETE), hidden=(8, 6)),
    "quantiles of images": lambda: noterl.QRDQN((spaces.Box(0, 255, (36, 36), np.uint8), DISCRETE), quantiles=3),
    "binary actions": lambda: noterl.PPO((VECTOR, spaces.MultiBinary((2, 2))), hidden=(8,)),
    "gaussian": lambda: noterl.TRPO((VECTOR, BOX), hidden=(8,)),
    "deterministic": lambda: noterl.TD3((VECTOR, BOX), hidden=(8,)),
    "unbounded actions": lambda: noterl.PPO((VECTOR, spaces.Box(-np.inf, np.inf, (2,))), hidden=(8,)),
    "discrete SAC": lambda: noterl.SAC((VECTOR, DISCRETE), hidden=(8,)),
    "keras model": lambda: noterl.DQN((VECTOR, DISCRETE), network=functional()),
    "convolutions of keras": lambda: noterl.DQN((spaces.Box(-1.0, 1.0, (8, 7, 2)), DISCRETE), network=convolutional()),
    "torch modules": lambda: noterl.DQN((VECTOR, DISCRETE), network=modules()),
    "probabilities": lambda: noterl.PPO(
        (VECTOR, DISCRETE),
        network=keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(3, "softmax")]),
    ),
    "described network": lambda: noterl.PPO(
        (VECTOR, BOX),
        network=noterl.networks.NetworkDescription({"layers": [{"layer": "dense", "units": 5, "activation": "elu"}]}),
    ),
}


@pytest.mark.parametrize("format", ["numpy", "torch", "keras"])
@pytest.mark.parametrize("case", CASES)
def test_every_space_head_and_layer(case: str, format: str, tmp_path: Path) -> None:
    agent = CASES[case]()
    path = agent.export(tmp_path / "policy", format)  # compares with the agent
    space = copy.deepcopy(agent.spaces.encoder.original_space)
    space.seed(1)
    observations = [space.sample() for _ in range(20)]
    rng = np.random.default_rng(2)
    inputs = {name: policy.random_values(part, 20, rng) for name, _, part in policy.inputs_of(agent.spaces.encoder)}
    results = read(path, format)(inputs)
    assert results["action"].shape == (20, *agent.action_space.shape)
    if format == "numpy":
        act = module_of(path).act
        for observation in observations:
            expected = agent.act(observation)
            np.testing.assert_allclose(act(observation), expected, rtol=1e-5, atol=1e-6)


def test_mean_far_from_zero_keeps_precision(tmp_path: Path) -> None:
    agent = noterl.SAC("Pendulum-v1", normalize_observation=True, hidden=(16, 16), seed=1)
    agent.build()
    rng = np.random.default_rng(1)
    agent.spaces.normalizers.observation.update(5_000.0 + rng.normal(size=(100, 3)))
    for format in ("numpy", "torch", "keras"):
        agent.export(tmp_path / format, format)  # compares with the agent


class TestRefused:
    def test_agents_that_act_otherwise(self, tmp_path: Path) -> None:
        from noterl.envs import Signals

        for agent in (noterl.AlphaZero("CartPole-v1", hidden=(8,)), noterl.MADDPG(Signals, hidden=(8,))):
            with pytest.raises(ValueError, match="one network"):
                agent.export(tmp_path / "policy", "numpy")

    def test_networks_of_unknown_parts(self, tmp_path: Path) -> None:
        from torch import nn

        class Mine(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.last = nn.Linear(4, 3)

            def forward(self, x: Any) -> Any:
                return self.last(x)

        for network, name in ((Mine(), "Mine"), (nn.Sequential(nn.Linear(4, 3), nn.RReLU()), "RReLU")):
            agent = noterl.DQN((VECTOR, DISCRETE), network=network)
            with pytest.raises(ValueError, match=f"DQN.*{name}"):
                agent.export(tmp_path / "policy", "numpy")

    def test_forward_that_does_more_than_its_network(self, tmp_path: Path) -> None:
        class Shifted(noterl.Agent):
            memory, head = "replay", noterl.heads.Q()

            def __init__(self, env: Any) -> None:
                super().__init__(env)
                self.q = noterl.networks.mlp(4, [8], 3)

            def forward(self, observation: Any) -> Any:
                return self.q(observation) + 1.0

            def loss(self, batch: Any) -> Any:
                return self.q(batch.observation).sum()

        with pytest.raises(ValueError, match="forward of Shifted"):
            Shifted((VECTOR, DISCRETE)).export(tmp_path / "policy", "numpy")

    @pytest.mark.parametrize("format", ["numpy", "torch"])
    def test_difference_to_the_agent_leaves_old_files(
        self, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        agent = noterl.PPO((VECTOR, BOX), hidden=(8,))
        agent.export(tmp_path / "policy", format)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert len(before) == 2
        agent.set_weights({name: weight + 0.1 for name, weight in agent.get_weights().items()})
        write = formats.FORMATS[format]

        def write_wrong(made: Any, path: Path) -> Any:
            run = write.write(made, path)
            return lambda inputs: shifted(run(inputs))

        wrong = write._replace(write=write_wrong)
        monkeypatch.setitem(formats.FORMATS, format, wrong)
        with pytest.raises(ValueError, match="differ"):
            agent.export(tmp_path / "policy", format)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_fewer_bits_of_an_accelerator_are_allowed(self) -> None:
        agent = noterl.PPO((VECTOR, BOX), hidden=(8,), seed=1)
        agent.build()
        made = policy.make_policy("PPO", agent.networks().values(), agent._parts.built_actor, agent.spaces.encoder)
        assert made.exact  # its network acts in NumPy
        results = {"action": made.actions, "outputs": made.outputs}
        made.check(results, "keras", exact=True)
        made.check(shifted(results), "keras", exact=False)
        with pytest.raises(ValueError, match="differ"):
            made.check(shifted(results), "keras", exact=True)
        with pytest.raises(ValueError, match="differ"):
            made.check({**results, "outputs": made.outputs + 0.1}, "keras", exact=False)

    def test_weights_of_another_policy(self, tmp_path: Path) -> None:
        for name in ("first", "second"):
            noterl.PPO((VECTOR, BOX), hidden=(8,)).export(tmp_path / name, "numpy")
        (tmp_path / "first.npz").write_bytes((tmp_path / "second.npz").read_bytes())
        with pytest.raises(ValueError, match="another policy"):
            module_of(tmp_path / "first.py")

    def test_unknown_format(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="format"):
            noterl.DQN((VECTOR, DISCRETE)).export(tmp_path / "policy", "tflite")

    @pytest.mark.parametrize(
        ("name", "format", "words"),
        [
            ("policy.onnx", "keras", "format='onnx' writes"),
            ("policy.py", "saved_model", "format='torch' or format='numpy' writes"),
            ("policy.pt", "numpy", "format='torch' writes"),
        ],
    )
    def test_ending_of_another_format(self, name: str, format: str, words: str, tmp_path: Path) -> None:
        for export in (Export, noterl.DQN((VECTOR, DISCRETE)).export):
            with pytest.raises(ValueError, match=rf"path must .*'{format}' .*{words}"):
                export(tmp_path / name, format)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("name", ["policy", "policy.py", "policy.npz"])
    def test_ending_is_added_once(self, name: str, tmp_path: Path) -> None:
        assert noterl.DQN((VECTOR, DISCRETE)).export(tmp_path / name, "numpy") == tmp_path / "policy.py"
        assert sorted(file.name for file in tmp_path.iterdir()) == ["policy.npz", "policy.py"]


def shifted(results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**results, "action": results["action"] + 3e-5, "outputs": results["outputs"] + 3e-5}


class TestCallback:
    def test_exports_the_best_policy_only(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=2)
        agent.compile(learning_starts=20, batch_size=8, update_every=4)
        scores: list[float] = []
        export = Export(tmp_path / "policy", "numpy", window=3)
        original = noterl.DQN.export

        def counted(self: Any, *arguments: Any) -> Path:
            scores.append(float(np.mean(list(export._monitor.recent))))
            return original(self, *arguments)

        monkeypatch.setattr(noterl.DQN, "export", counted)
        history = agent.fit(episodes=15, callbacks=[export], verbose=0)
        rewards = history.history["reward"]
        means = [np.mean(rewards[end - 3 : end]) for end in range(3, 16)]
        best = [mean for index, mean in enumerate(means) if mean > max([-np.inf, *means[:index]])]
        assert scores == pytest.approx(best) and export.best == pytest.approx(max(means))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.npz", "policy.py"]

    def test_short_run_is_exported_at_its_end(self, tmp_path: Path) -> None:
        agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=2)
        agent.compile(learning_starts=10, batch_size=4)
        agent.fit(episodes=2, callbacks=[Export(tmp_path / "policy", "numpy")], verbose=0)
        observation = np.array([0.1, -0.2, 0.3, 0.4], "float32")
        assert module_of(tmp_path / "policy.py").act(observation) == agent.act(observation)

    def test_state_is_restored(self, tmp_path: Path) -> None:
        export = Export(tmp_path / "policy", "numpy")
        export.set_state({"recent": [1.0, 2.0], "is_rare": False, "best": 5.0})
        assert export.get_state() == {"recent": [1.0, 2.0], "is_rare": False, "best": 5.0}


def test_command_line_exports_the_best_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from noterl.cli import main

    monkeypatch.chdir(tmp_path)
    options = ["--env", "CartPole-v1", "--hidden", "8", "--episodes", "3", "--learning-starts", "10", "--quiet"]
    assert (
        main(["train", "dqn", *options, "--export", "policy", "--export.format", "numpy", "--export.window", "2"]) == 0
    )
    assert {"policy.py", "policy.npz"} <= {path.name for path in tmp_path.iterdir()}


class TwoNetworks(noterl.Agent):
    """Declares the target first; `forward` reads an array."""

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env: Any, *, seed: Any = None) -> None:
        super().__init__(env, seed=seed)
        q = noterl.networks.mlp(self.observation_size, [8], self.action_size)
        self.target_q = noterl.networks.clone(q)
        self.q = q
        self.sign = np.ones(2, np.float32)

    def forward(self, observation: Any) -> Any:
        return self.q(observation)

    def loss(self, batch: Any) -> Any:
        return keras.ops.mean(keras.ops.square(self.q(batch.observation)))


@pytest.mark.backends("torch")
def test_network_that_acts_is_found_beside_a_near_one(tmp_path: Path) -> None:
    agent = TwoNetworks("CartPole-v1", seed=1)
    weights = [weight + 1e-3 for weight in noterl.networks.get_weights(agent.target_q)]
    noterl.networks.set_weights(agent.target_q, weights)
    observations = np.random.default_rng(0).normal(size=(6, 4))
    act = runpy.run_path(str(agent.export(tmp_path / "policy", "numpy")))["act"]
    assert (act(observations) == agent.act(observations)).all()


@pytest.mark.backends("jax")
def test_arrays_that_have_changed_are_exported(tmp_path: Path) -> None:
    class Signed(TwoNetworks):
        def forward(self, observation: Any) -> Any:
            return self.q(observation) * self.sign

    agent = Signed("CartPole-v1", seed=1)
    observations = np.random.default_rng(0).normal(size=(6, 4))
    agent.act(observations)
    agent.sign[:] = -1
    with pytest.raises(ValueError, match="not a network that can be exported"):
        agent.export(tmp_path / "policy", "numpy")
