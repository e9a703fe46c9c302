"""Small networks on vectors train on the CPU, unless the user has chosen a device; on torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl

pytestmark = pytest.mark.backends("torch")


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return `placement`, in a process whose Keras prefers an accelerator and that has no agent."""
    placement = pytest.importorskip("noterl.backends.torch.placement")
    monkeypatch.delenv("KERAS_TORCH_DEVICE", raising=False)
    monkeypatch.setattr(placement, "_chosen", [])
    monkeypatch.setattr(placement.core, "DEFAULT_DEVICE", "cuda")
    yield placement


def test_a_small_first_agent_moves_the_process_to_the_cpu(accelerated: Any, capsys: pytest.CaptureFixture[str]) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    assert accelerated.core.DEFAULT_DEVICE == "cpu"
    agent.summary()
    assert "updates on cpu (small networks train on the CPU; KERAS_TORCH_DEVICE=cuda" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="KERAS_TORCH_DEVICE=cuda"):
        accelerated.choose_device(False)
    assert accelerated.core.DEFAULT_DEVICE == "cpu"


def test_a_large_first_agent_keeps_the_accelerator(accelerated: Any) -> None:
    accelerated.choose_device(False)
    accelerated.choose_device(True)
    assert accelerated.core.DEFAULT_DEVICE == "cuda"
    assert accelerated.reason() == ""


def test_the_choice_of_the_user_stays(accelerated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.setenv("KERAS_TORCH_DEVICE", "cuda")
    accelerated.choose_device(True)
    assert accelerated.core.DEFAULT_DEVICE == "cuda"
    monkeypatch.delenv("KERAS_TORCH_DEVICE")
    with keras.device("cpu"):
        accelerated.choose_device(True)
    assert accelerated.core.DEFAULT_DEVICE == "cuda"
    assert not accelerated._chosen


@pytest.mark.parametrize(
    ("agent", "is_small"),
    [
        (lambda: noterl.DQN("CartPole-v1"), True),
        (lambda: noterl.TD3("Pendulum-v1", hidden=(400, 300)), False),
        (lambda: noterl.TQC("Pendulum-v1", critic_hidden=(2_048,), hidden=(8,)), False),
        (lambda: noterl.DQN((spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Discrete(2))), False),
        (
            lambda: noterl.DQN(
                (spaces.Dict(image=spaces.Box(0, 255, (48, 48, 3), np.uint8), speed=spaces.Box(-1, 1, (2,))),
                 spaces.Discrete(2)),
            ),
            False,
        ),
        (lambda: noterl.DQN("CartPole-v1", network=noterl.networks.mlp(4, [8], 2)), False),
    ],
)  # fmt: skip
def test_what_is_small(agent: Any, is_small: bool) -> None:
    built = agent()
    assert built._has_small_networks(built.spaces) is is_small
