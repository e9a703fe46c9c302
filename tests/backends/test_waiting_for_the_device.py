"""On torch, a group of updates on an accelerator reads no number from it until its end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import keras  # noqa: E402  (needs torch)
from keras.src.backend.common import global_state  # noqa: E402

import noterl  # noqa: E402
from noterl.backends.torch import tensors, updates  # noqa: E402
from noterl.backends.torch.modules import modules_with  # noqa: E402
from noterl.learning.update import add_random_numbers  # noqa: E402
from noterl.types import map_arrays  # noqa: E402
from tests.support.batches import VECTOR, copied, differences, random_batch, with_fault  # noqa: E402
from tests.support.parts import learner_of  # noqa: E402

pytestmark = pytest.mark.backends("torch")

META = torch.device("meta")
UPDATES = 8


def dqn(**settings: Any) -> noterl.Agent:
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    agent.compile(batch_size=16, learning_starts=32, update_every=8, updates=UPDATES, **settings)
    return agent


def actor_critic(kind: type, **settings: Any) -> noterl.Agent:
    agent = kind("Pendulum-v1", hidden=(8,), seed=1)
    agent.compile(batch_size=16, learning_starts=32, update_every=8, updates=UPDATES, **settings)
    return agent


AGENTS: dict[str, Callable[[], noterl.Agent]] = {
    "DQN": dqn,
    "DQN with torch's Adam": lambda: dqn(optimizer=lambda parameters: torch.optim.Adam(parameters, 1e-3)),
    "TD3": lambda: actor_critic(noterl.TD3),
    "SAC": lambda: actor_critic(noterl.SAC),
}


def batches_of(agent: noterl.Agent) -> Any:
    learner: Any = learner_of(agent)
    return add_random_numbers(agent, learner.gather(learner.sample(UPDATES)), UPDATES)


@contextmanager
def on_meta(agent: noterl.Agent) -> Iterator[None]:
    """Move an agent to the meta device, whose tensors have no numbers: reading one raises an error."""
    learner: Any = learner_of(agent)
    moved: dict[int, tuple[Any, Any]] = {}

    def on_device(tensor: Any) -> Any:
        if tensor.is_meta:
            return tensor
        empty = torch.empty_like(tensor, device=META)
        if isinstance(tensor, torch.nn.Parameter):
            empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
        return moved.setdefault(id(tensor), (empty, tensor))[0]

    for root in modules_with(learner.variables):
        for module in root.modules():
            for holder in (module._parameters, module._buffers):
                for name, tensor in holder.items():
                    holder[name] = None if tensor is None else on_device(tensor)
    for variable in learner.variables:
        number = None if variable.shape else tensors.host_number(variable)
        variable._value = value = on_device(variable._value)
        if number is not None:  # it was read before the group
            tensors._numbers[value] = value._version, number
    learner._update._device = "meta"
    global_state.set_global_attribute("torch_device", META)
    try:
        yield
    finally:
        global_state.set_global_attribute("torch_device", None)


@pytest.mark.parametrize("name", AGENTS)
def test_group_reads_no_number_from_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = AGENTS[name]()
    agent.fit(steps=64, verbose=0)
    batch, program = batches_of(agent), learner_of(agent)._update  # type: ignore[attr-defined]
    checked: list[int] = []
    monkeypatch.setattr(updates, "waits_for_device", lambda device: True)
    monkeypatch.setattr(updates, "all_finite", lambda values: not checked.append(len(values)))
    with on_meta(agent):
        on_device = map_arrays(lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(META), batch)
        result = program(on_device, UPDATES, 40)
    assert result.applied == UPDATES and result.logs["loss"].shape == (UPDATES,)
    assert len(checked) == 1 and checked[0] > UPDATES


def test_meta_device_refuses_to_return_a_number() -> None:
    """The test above would not notice a number that is read otherwise."""
    agent = dqn()
    agent.fit(steps=64, verbose=0)
    batch, program = batches_of(agent), learner_of(agent)._update  # type: ignore[attr-defined]
    with on_meta(agent):
        on_device = map_arrays(lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(META), batch)
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            program._checked_one_by_one(program._batches(on_device, UPDATES), UPDATES, 40)


@pytest.mark.parametrize("name", AGENTS)
def test_results_do_not_depend_on_when_updates_are_checked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces are made after 100 updates, so both eager and traced updates are compared."""
    states = []
    for waits in (False, True):
        monkeypatch.setattr(updates, "waits_for_device", lambda device, waits=waits: waits)
        agent = AGENTS[name]()
        agent.fit(steps=160, verbose=0)
        assert agent.updates > updates.EAGER_UPDATES
        states.append(copied(agent.get_state()))
    assert differences(*states) == []


def test_group_is_repeated_until_the_update_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "waits_for_device", lambda device: True)
    agent = noterl.DQN(VECTOR, hidden=(8,), seed=1)
    agent.compile(lambda parameters: torch.optim.Adam(parameters, 1e-3), replay=noterl.Replay(64), batch_size=4)
    agent.build()
    batch, program = random_batch(6, 4), learner_of(agent)._update  # type: ignore[attr-defined]
    assert program(batch, 2, 0).applied == 2
    start = copied(agent.get_state())
    assert program(batch, 3, 2).applied == 3
    expected = copied(agent.get_state())
    agent.set_state(start)
    assert program(with_fault(batch, 3, "reward", np.nan), 6, 2).applied == 3
    assert differences(expected, agent.get_state()) == []


class Raising(noterl.DQN):
    """Raises an error of its own if weights are not finite; counts its losses."""

    calls = 0

    def loss(self, batch: Any) -> Any:
        self.calls += 1
        loss, feedback = super().loss(batch)
        distribution = torch.distributions.Normal(self.q(batch.observation), 1.0)  # checks its arguments
        return loss - 0.1 * distribution.log_prob(torch.zeros(())).mean(), feedback


def raising(**networks: Any) -> tuple[Raising, Any]:
    agent = Raising(VECTOR, hidden=(8,), seed=1, **networks)
    agent.compile(replay=noterl.Replay(64), batch_size=4, jit_compile=False)
    agent.build()
    program = learner_of(agent)._update  # type: ignore[attr-defined]
    program(random_batch(1, 4), 1, 0)  # it samples no numbers, so later groups can be repeated
    agent.calls = 0
    return agent, program


def test_error_after_weights_that_are_not_finite_repeats_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "waits_for_device", lambda device: True)
    agent, program = raising()
    assert program(with_fault(random_batch(6, 4), 2, "reward", np.nan), 6, 1).applied == 2
    assert agent.calls > 3
    assert all(torch.isfinite(variable.value).all() for variable in learner_of(agent).variables)


def test_constants_that_are_not_finite_repeat_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "waits_for_device", lambda device: True)
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    network.register_buffer("mask", torch.full((3,), -torch.inf))
    agent, program = raising(network=network)
    assert program(random_batch(6, 4), 6, 1).applied == 6
    assert agent.calls == 6


def test_numbers_of_copied_variables_are_their_own() -> None:
    variable = keras.Variable(1.0)
    assert tensors.host_number(variable) == 1.0
    other = copy.deepcopy(variable)
    for value in (2.0, 3.0):
        other.assign(value)
    assert (tensors.host_number(variable), tensors.host_number(other)) == (1.0, 3.0)


def test_rows_of_two_tables_are_taken_on_the_device() -> None:
    tables = [torch.empty((count, 3), device=META) for count in (10, 4)]
    taken = tensors.take_rows_of_two(*tables, np.array([[1, 12], [3, 0]], np.int32))
    assert taken.is_meta and taken.shape == (2, 2, 3)
