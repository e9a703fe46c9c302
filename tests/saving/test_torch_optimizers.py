"""Files of agents that were compiled with optimizers of `torch.optim`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.saving.codec import Description, build

pytestmark = pytest.mark.backends("torch")

torch = pytest.importorskip("torch")


class OwnSGD(torch.optim.SGD):
    """An optimizer of the user."""


OPTIMIZERS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=2e-3, betas=(0.8, 0.99), weight_decay=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=2e-3, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True),
    "OwnSGD": lambda parameters: OwnSGD(parameters, lr=0.02),
}


def trained(optimizer: Any) -> noterl.SAC:
    agent = noterl.SAC("Pendulum-v1", hidden=(4,), seed=7)
    agent.compile(optimizer, batch_size=4, learning_starts=4, replay=100)
    agent.fit(steps=8, verbose=0)
    return agent


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loaded_agent_continues_as_the_saved_one(name: str, tmp_path: Path) -> None:
    agent = trained(OPTIMIZERS[name])
    agent.optimizers["actor"].param_groups[0]["lr"] = 5e-3  # the file holds the current rate
    agent.save(tmp_path / "a.noterl")
    loaded = noterl.load(tmp_path / "a.noterl", custom_objects={"OwnSGD": OwnSGD})
    optimizer = loaded.optimizers["actor"]
    assert type(optimizer) is type(agent.optimizers["actor"]) and optimizer.param_groups[0]["lr"] == 5e-3
    assert optimizer.defaults == agent.optimizers["actor"].defaults
    loaded.save(tmp_path / "b.noterl")
    assert (tmp_path / "a.noterl").read_bytes() == (tmp_path / "b.noterl").read_bytes()
    for each in (agent, loaded):
        each.fit(steps=4, verbose=0)
    for one, other in zip(agent.get_weights().values(), loaded.get_weights().values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_agent_that_has_not_trained_is_loaded(tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=7)
    agent.compile(torch.optim.Adam)
    agent.save(tmp_path / "a.noterl")
    assert type(noterl.load(tmp_path / "a.noterl").optimizer) is torch.optim.Adam


def test_optimizer_of_the_user_needs_custom_objects(tmp_path: Path) -> None:
    trained(OPTIMIZERS["OwnSGD"]).save(tmp_path / "a.noterl")
    with pytest.raises(ValueError, match=r"'OwnSGD'.*custom_objects"):
        noterl.load(tmp_path / "a.noterl")


def with_hook(parameters: Any) -> Any:
    optimizer = torch.optim.Adam(parameters)
    optimizer.register_step_pre_hook(lambda *arguments: None)
    return optimizer


def with_groups(parameters: Any) -> Any:
    first, *others = parameters
    return torch.optim.Adam([{"params": [first], "lr": 0.1}, {"params": others}])


@pytest.mark.parametrize("optimizer", [with_hook, with_groups])
def test_optimizer_that_its_arguments_do_not_describe_is_refused(optimizer: Any, tmp_path: Path) -> None:
    agent = trained(optimizer)
    agent.save(tmp_path / "a.noterl")
    with pytest.raises(ValueError, match=r"optimizer\['actor'\]=.*agent\.restore"):
        noterl.load(tmp_path / "a.noterl")
    again = trained(optimizer)
    again.restore(tmp_path / "a.noterl")


@pytest.mark.parametrize("name", ["Optimizer", "lr_scheduler", "Tensor", "system"])
def test_names_of_a_file_are_optimizers_only(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        build(Description("$torch", name, {}))


def test_file_needs_the_torch_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="KERAS_BACKEND=torch"):
        build(Description("$torch", "Adam", {}))


def test_file_names_the_optimizer(tmp_path: Path) -> None:
    trained(OPTIMIZERS["SGD"]).save(tmp_path / "a.noterl")
    described = saving.read(tmp_path / "a.noterl")["compile"]["optimizer"]["actor"]
    assert (described.kind, described.name, described.arguments["momentum"]) == ("$torch", "SGD", 0.9)


def test_parameter_groups_keep_their_ratio_and_their_number() -> None:
    def grouped(*rates: float) -> noterl.DQN:
        agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=7)
        parts = np.array_split(np.arange(len(list(agent.q.parameters()))), len(rates))
        parameters = list(agent.q.parameters())
        groups = [
            {"params": [parameters[k] for k in part], "lr": lr, "weight_decay": 10 * lr}
            for part, lr in zip(parts, rates, strict=True)
        ]
        agent.compile(torch.optim.Adam(groups))
        agent.build()
        return agent

    agent = grouped(1e-3, 1e-4)
    agent.set_rule("learning_rate", 5e-4)
    assert [group["lr"] for group in agent.optimizer.param_groups] == pytest.approx([5e-4, 5e-5])
    agent.set_rule("learning_rate", 0.0)
    agent.set_rule("learning_rate", 2e-3)
    assert [group["lr"] for group in agent.optimizer.param_groups] == pytest.approx([2e-3, 2e-4])
    agent.set_rule("weight_decay", 0.5)
    assert [group["weight_decay"] for group in agent.optimizer.param_groups] == pytest.approx([0.5, 0.05])
    with pytest.raises(ValueError, match="2 parameter groups"):
        grouped(1e-3).set_state(agent.get_state())
