"""Attributes of an agent that change after its programs were compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras import ops

import noterl
from noterl import backends, networks
from noterl.backends import current
from noterl.imitation import GAIL
from tests.support.demonstrations import demonstrations
from tests.support.doubles import CountingEnv
from tests.support.functional import line

# Torch compiles a loss from this update on.
TRACED = 6


@pytest.fixture(autouse=True)
def _early_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    if backends.name() == "torch":
        from noterl.backends.torch import updates

        monkeypatch.setattr(updates, "EAGER_UPDATES", TRACED)


def whole(agent: Any) -> float:
    return 1.0


def quarter(agent: Any) -> float:
    return 0.25


# For each kind of attribute: its first value, how a method reads a factor of 1 from it, and a change to 0.25.
KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any, str], None]]] = {
    "number": (1.0, lambda value: value, lambda agent, name: setattr(agent, name, 0.25)),
    "flag": (False, lambda value: 0.25 if value else 1.0, lambda agent, name: setattr(agent, name, True)),
    "word": ("whole", lambda value: {"whole": 1.0}.get(value, 0.25), lambda agent, name: setattr(agent, name, "part")),
    "none": (None, lambda value: 1.0 if value is None else value, lambda agent, name: setattr(agent, name, 0.25)),
    "tuple": ((1.0, 2), lambda value: value[0], lambda agent, name: setattr(agent, name, (0.25, 2))),
    "array": (
        np.ones(1, "float32"),
        lambda value: value,
        lambda agent, name: setattr(agent, name, np.full(1, 0.25, "float32")),
    ),
    "array in place": (np.ones(1, "float32"), lambda value: value, lambda agent, name: getattr(agent, name).fill(0.25)),
    "entry": (
        {"factor": 1.0},
        lambda value: value["factor"],
        lambda agent, name: getattr(agent, name).update(factor=0.25),
    ),
    "item": ([1.0], lambda value: value[0], lambda agent, name: getattr(agent, name).__setitem__(0, 0.25)),
    "object": (
        SimpleNamespace(factor=1.0),
        lambda value: value.factor,
        lambda agent, name: setattr(getattr(agent, name), "factor", 0.25),
    ),
    "function": (whole, lambda value: value(None), lambda agent, name: setattr(agent, name, quarter)),
}


def program(seed: int, **base: Any) -> tuple[Any, list[tuple[int, Callable[[Any], None]]]]:
    """Return a class of agents whose loss and forward read four attributes, and the updates that change each."""
    rng = np.random.default_rng(seed)
    kinds = list(KINDS)
    chosen = [kinds[(4 * seed + k) % len(kinds)] for k in range(4)]
    places = {f"part_{k}": ("loss", "forward")[int(rng.integers(2))] for k in range(4)}
    start = {f"part_{k}": KINDS[kind][0] for k, kind in enumerate(chosen)}
    read = {f"part_{k}": KINDS[kind][1] for k, kind in enumerate(chosen)}

    class Program(noterl.Agent):
        memory, head = "replay", noterl.heads.Q()
        part_of_class = 1.0

        def __init__(self, env: Any, *, seed: int | None = None) -> None:
            super().__init__(env, seed=seed)
            self.q = networks.mlp(self.observation_size, [4], self.action_size)
            self.unused = 1.0
            for name, value in start.items():
                setattr(self, name, value.copy() if hasattr(value, "copy") else value)
            for name in [name for name, value in start.items() if isinstance(value, SimpleNamespace)]:
                setattr(self, name, SimpleNamespace(factor=1.0))

        def factor(self, place: str) -> Any:
            factors = [read[name](getattr(self, name)) for name in read if places[name] == place]
            return functools.reduce(lambda product, factor: product * factor, factors, self.part_of_class)

        def forward(self, observation: Any) -> Any:
            return ops.multiply(self.q(observation), self.factor("forward"))

        def loss(self, batch: Any) -> Any:
            q = noterl.losses.take(self.forward(batch.observation), batch.action)
            return ops.mean(ops.multiply(ops.square(q - batch.reward), self.factor("loss")))

    updates = sorted(int(number) for number in rng.choice(np.arange(2, 14), size=3, replace=False))
    changes = [
        (updates[min(k, 2)], functools.partial(KINDS[kind][2], name=f"part_{k}")) for k, kind in enumerate(chosen)
    ]
    return Program, [*changes, (updates[0], lambda agent: setattr(agent, "part_of_class", 2.0))]


class At(noterl.Callback):
    """Changes the agent after updates, and records the losses."""

    def __init__(self, changes: list[tuple[int, Callable[[Any], None]]]) -> None:
        self.changes, self.losses = changes, list[float]()

    def on_batch_end(self, batch: int, logs: Any) -> None:
        self.losses.append(logs["loss"])
        for number, change in self.changes:
            if number == batch:
                change(self.agent)


def train(kind: Any, changes: Any = (), *, steps: int = 18, **compiled: Any) -> tuple[Any, list[float]]:
    agent = kind(CountingEnv, seed=1)
    settings = {"optimizer": 1e-3, "batch_size": 4, "learning_starts": 4, "update_every": 1, "updates": 1}
    agent.compile(**{**settings, **compiled})
    callback = At(list(changes))
    agent.fit(steps=steps, verbose=0, callbacks=[callback])
    return agent, callback.losses


class TestNumbers:
    @pytest.mark.parametrize("seed", range(3))
    def test_generated_programs_learn_the_same_compiled_and_not(self, seed: int) -> None:
        kind, changes = program(seed)
        eager, expected = train(kind, changes, jit_compile=False)
        compiled, losses = train(kind, changes)
        _, unchanged = train(kind) if seed == 0 else (None, [0.0])
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        assert seed or abs(losses[-1] - unchanged[-1]) > 0.1 * unchanged[-1]
        observation = np.random.default_rng(0).normal(size=(32, 2)).astype("float32")
        values = current().fetch(compiled.forward(ops.convert_to_tensor(observation)))
        np.testing.assert_allclose(compiled._parts.actor.outputs(observation)[0], values, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(eager.act(observation), compiled.act(observation))

    def test_loss_that_assigns_an_attribute_is_found(self) -> None:
        class Mean(program(0)[0]):
            mean = 0.0

            def loss(self, batch: Any) -> Any:
                self.mean = 0.9 * self.mean + 0.1 * float(current().fetch(ops.mean(batch.reward)))
                return super().loss(batch) * self.mean

        class Count(program(0)[0]):
            count = 0

            def loss(self, batch: Any) -> Any:
                self.count += 1
                return super().loss(batch) * self.count

        if backends.name() == "torch":
            with pytest.warns(RuntimeWarning, match="Mean.loss assigns mean"):
                compiled, losses = train(Mean)
            eager, expected = train(Mean, jit_compile=False)
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
            assert compiled.mean == eager.mean > 0
        else:
            with pytest.raises(RuntimeError, match=r"Count assigns count .*keras\.Variable"):
                train(Count)

    def test_loss_that_changes_contents_is_found(self) -> None:
        class Counts(program(0)[0]):
            def __init__(self, env: Any, *, seed: int | None = None) -> None:
                super().__init__(env, seed=seed)
                self.counts = {"calls": [np.zeros(())]}

            def loss(self, batch: Any) -> Any:
                self.counts["calls"][0] += 1
                return super().loss(batch) * float(self.counts["calls"][0])

        if backends.name() == "torch":
            with pytest.warns(RuntimeWarning, match="Counts.loss .* runs eagerly"):
                compiled, losses = train(Counts)
            eager, expected = train(Counts, jit_compile=False)
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
            assert compiled.counts["calls"][0] == eager.counts["calls"][0] == len(losses)
        else:
            with pytest.raises(RuntimeError, match=r"Counts assigns counts .*keras\.Variable"):
                train(Counts)

    def test_optimizer_attributes_change_the_next_updates(self) -> None:
        def change(agent: Any) -> None:
            agent.optimizer.global_clipnorm, agent.optimizer.epsilon, agent.optimizer.weight_decay = 1e-3, 1.0, 0.5

        kind = program(0)[0]
        _, expected = train(kind, [(8, change)], jit_compile=False, optimizer=0.1)
        _, losses = train(kind, [(8, change)], optimizer=0.1)
        np.testing.assert_allclose(losses, expected, rtol=1e-3)


@pytest.mark.backends("torch", "jax")
class TestChanges:
    def test_attributes_that_no_program_reads_compile_nothing(self) -> None:
        changes = [(number, lambda agent: setattr(agent, "unused", agent.unused + 1)) for number in range(12)]
        agent, _ = train(program(0)[0], changes)
        assert agent.trace_counts["update"] == 1 and agent.unused == 13

    def test_equal_value_compiles_nothing_and_fourth_change_raises(self) -> None:
        equal = [(9, lambda agent: setattr(agent, "part_of_class", 1.0))]
        assert train(program(0)[0], equal)[0].trace_counts["update"] == 1

        def change(agent: Any) -> None:
            agent.part_of_class *= 0.5

        with pytest.raises(RuntimeError, match=r"part_of_class .*self\.hyperparameter"):
            train(program(0)[0], [(number, change) for number in range(TRACED + 1, TRACED + 5)])
        agent, _ = train(program(0)[0], [(number, change) for number in range(TRACED + 1, TRACED + 4)])
        assert agent.part_of_class == 0.125 and agent.trace_counts["update"] == 4

    @pytest.mark.backends("torch")
    def test_pretraining_uses_new_values(self) -> None:
        found = []
        for jit_compile in (False, "auto"):
            agent = program(0)[0](CountingEnv, seed=1)
            agent.compile(jit_compile=jit_compile)
            experts = demonstrations(CountingEnv().action_space, observation_space=CountingEnv().observation_space)
            changes = At([(TRACED + 2, lambda agent: setattr(agent, "part_of_class", 3.0))])
            changes.needs_live_updates = True
            found.append(agent.pretrain(experts, TRACED + 6, verbose=0, callbacks=[changes])["loss"])
        np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


@pytest.mark.backends("jax")
@pytest.mark.parametrize("name", ["head", "reward_model"])
def test_settings_of_other_objects_are_compared_by_the_next_fit(name: str) -> None:
    class Scaled(noterl.heads.Q):
        scale = 1.0

    class Headed(program(0)[0]):
        head = Scaled()

        def loss(self, batch: Any) -> Any:
            return super().loss(batch) * self.head.scale

    experts = demonstrations(CountingEnv().action_space, observation_space=CountingEnv().observation_space)
    model = GAIL(experts, hidden=(4,))
    agent, _ = train(Headed, reward_model=model)
    agent.fit(steps=2, verbose=0)
    assert agent.trace_counts["update"] == 1
    settings, attribute = {"head": (agent.head, "scale"), "reward_model": (model, "weight")}[name]
    setattr(settings, attribute, 0.0)
    callback = At([])
    agent.fit(steps=4, verbose=0, callbacks=[callback])
    assert agent.trace_counts["update"] == 2 and len(callback.losses) == 4
    assert name == "reward_model" or max(callback.losses) == 0


@pytest.fixture(scope="module")
def agent() -> Any:
    return train(program(0)[0], steps=5)[0]


@pytest.mark.backends("torch")
class TestRefused:
    def test_networks_cannot_be_replaced(self, agent: Any) -> None:
        before = agent.q
        with pytest.raises(ValueError, match=r"q: .*copy\(new, agent\.q\)"):
            agent.q = networks.mlp(2, [4], 2)
        with pytest.raises(ValueError, match=r"new_critic: "):
            agent.new_critic = [networks.mlp(2, [4], 2)]
        assert agent.q is before
        agent.q = before

    def test_declarations_cannot_change(self, agent: Any) -> None:
        with pytest.raises(ValueError, match="update_period of Program"):
            agent.update_period = 2

    def test_frozen_layers_are_found_by_the_next_fit(self, agent: Any) -> None:
        next(agent.q.parameters()).requires_grad_(False)
        with pytest.raises(ValueError, match="compile again"):
            agent.fit(steps=1, verbose=0)
        agent.compile(batch_size=4, learning_starts=4, optimizer=0.1)
        before = {key: value.copy() for key, value in agent.get_weights().items()}
        agent.fit(steps=40, verbose=0)
        moved = {key for key, value in agent.get_weights().items() if (value != before[key]).any()}
        next(agent.q.parameters()).requires_grad_(True)
        agent.compile()
        assert moved == {"q/001", "q/002", "q/003"}

    def test_forward_cannot_change_while_workers_act(self) -> None:
        def change(agent: Any) -> None:
            agent.part_of_class = 0.5

        agent = program(0)[0](CountingEnv, seed=1)
        agent.compile(batch_size=4, learning_starts=4)
        with pytest.raises(RuntimeError, match=r"part_of_class .*other processes"):
            agent.fit(steps=20, workers=1, verbose=0, callbacks=[At([(1, change)])])


def test_update_that_assigns_what_a_loss_reads_runs_eagerly() -> None:
    class Growing(program(0)[0]):
        count = 0

        def update(self, batch: Any) -> Any:
            self.count += 1
            loss, _ = self.minimize(self.loss, self.q, "optimizer", batch)
            return {"loss": loss}, {}

        def loss(self, batch: Any) -> Any:
            return super().loss(batch) * self.count

    if backends.name() == "torch":
        _, expected = train(Growing, jit_compile=False)
        with pytest.warns(RuntimeWarning, match="assigns count"):
            _, losses = train(Growing)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
    else:
        with pytest.raises(RuntimeError, match="assigns count"):
            train(Growing)


@pytest.mark.backends("jax")
def test_programs_on_the_device_are_compiled_again() -> None:
    agent = noterl.PPO(line(), rollout_steps=8, epochs=1, hidden=(4,), seed=1)
    agent.compile(batch_size=8)
    agent.fit(steps=8, verbose=0)
    agent.normalize_advantage = False
    agent.fit(steps=8, verbose=0)
    agent.fit(steps=8, verbose=0)
    assert agent.trace_counts["device"] == 2


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # of Keras on TensorFlow
def test_loss_assigns_what_it_trains() -> None:
    class Counting(program(0)[0]):
        def __init__(self, env: Any, *, seed: Any = None) -> None:
            super().__init__(env, seed=seed)
            self.count = backends.keras.Variable(0.0)

        def loss(self, batch: Any) -> Any:
            self.count.assign(self.count + 1.0)
            return super().loss(batch)

    agent, _ = train(Counting)
    assert current().fetch(agent.count) == agent.updates
