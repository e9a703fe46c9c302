"""Traced gradients on torch: equal numbers, and a warning for losses that cannot be traced."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import noterl  # noqa: E402  (needs torch)
from noterl.backends import keras  # noqa: E402
from noterl.backends.torch.tracing import TracedGradients, is_tracing  # noqa: E402
from noterl.backends.torch.updates import EAGER_UPDATES  # noqa: E402
from tests.backends.test_updates import cartpole_agent  # noqa: E402
from tests.integration.test_parity import assert_all_close  # noqa: E402
from tests.integration.test_torch_native import OPTIMIZERS, NativeDQN  # noqa: E402
from tests.support.batches import VECTOR, copied, differences, random_batch  # noqa: E402
from tests.support.parts import run_updates  # noqa: E402

pytestmark = pytest.mark.backends("torch")
nn = torch.nn


class Tied(NativeDQN):
    """Two layers share a weight, which a trace may treat as two."""

    def __init__(self, env, *, seed=None):
        super().__init__(env, seed=seed)
        self.extra = nn.Linear(5, 5)
        self.again = nn.Linear(5, 5)
        self.again.weight = self.extra.weight

    def loss(self, batch):
        loss, aux = super().loss(batch)
        return loss + self.again(self.extra(batch.observation)).square().mean(), aux


class Branching(NativeDQN):
    """Computes a loss that depends on a condition on the data."""

    def loss(self, batch):
        loss, aux = super().loss(batch)
        return (3 * loss if batch.reward.sum() > 0 else loss), aux


class Counting(NativeDQN):
    """Multiplies its loss by a Python number that changes with every call."""

    calls = 0

    def loss(self, batch):
        self.calls += 1
        loss, aux = super().loss(batch)
        return loss * (1 + self.calls % 2), aux


class Recurrent(NativeDQN):
    """Has an LSTM, whose gradient torch computes only outside of a trace."""

    def __init__(self, env, *, seed=None):
        super().__init__(env, seed=seed)
        self.lstm = nn.LSTM(5, 5, batch_first=True)

    def loss(self, batch):
        loss, aux = super().loss(batch)
        return loss + self.lstm(batch.observation.unsqueeze(1))[0].square().mean(), aux


class Ramped(NativeDQN):
    """Multiplies its loss by a number that depends on the updates so far."""

    def loss(self, batch):
        loss, aux = super().loss(batch)
        return loss * (1.0 + self.updates), aux


@pytest.mark.filterwarnings("ignore:.*it runs eagerly:RuntimeWarning")
@pytest.mark.parametrize("kind", [NativeDQN, Tied, Branching, Recurrent])
def test_traced_and_eager_updates_are_equal(kind: type) -> None:
    """A loss that cannot be traced runs eagerly."""
    batch, states = random_batch(8, 16), []
    for jit_compile in ("auto", False):
        agent = kind(VECTOR, seed=3)
        agent.compile(OPTIMIZERS["Adam"], replay=noterl.Replay(100), batch_size=8, jit_compile=jit_compile)
        agent.build()
        run_updates(agent, batch, 8)
        states.append(agent.get_state()["variables"])
    for name in states[0]:
        assert_all_close(states[0][name], states[1][name], name, atol=1e-6)


def test_a_run_traces_its_losses_after_some_updates_and_continues_exactly() -> None:
    """The number of the update decides, so it does not matter where a run was stopped and restored."""
    whole = cartpole_agent(update_every=1, updates=1)
    whole.fit(steps=EAGER_UPDATES, verbose=0)
    assert 0 < whole.updates < EAGER_UPDATES and whole.trace_counts["update"] == 0
    state = copied(whole.get_state())
    whole.fit(steps=40, verbose=0)
    assert whole.updates > EAGER_UPDATES and whole.trace_counts["update"] == 1
    middle = copied(whole.get_state())
    whole.fit(steps=20, verbose=0)
    for start, steps in ((state, 60), (middle, 20)):
        restored = cartpole_agent(update_every=1, updates=1)
        restored.set_state(start)
        restored.fit(steps=steps, verbose=0)
        assert differences(whole.get_state(), restored.get_state()) == []


def test_compiling_the_traces_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)  # no C++ compiler, so the trace is not compiled
    agent = cartpole_agent(update_every=1, updates=1, jit_compile=True)
    agent.fit(steps=40, verbose=0)
    assert agent.trace_counts["update"] == 1


@pytest.mark.parametrize("kind", [Branching, Counting, Recurrent, Ramped])
def test_loss_that_cannot_be_traced_warns_once_with_its_name(kind: type) -> None:
    agent = kind(VECTOR, seed=3)
    agent.compile(OPTIMIZERS["Adam"], replay=noterl.Replay(100), batch_size=8)
    agent.build()
    with pytest.warns(RuntimeWarning, match=rf"{kind.__name__}\.loss .*eagerly") as caught:
        run_updates(agent, random_batch(4, 8), 4)
    assert len(caught) == 1
    assert agent.trace_counts["update"] == 0


def test_value_that_became_a_constant_of_the_trace_is_found() -> None:
    """PyTorch 2.8 did so with the conditions of `where`; on the rows of the trace, such a trace is right."""
    weight = keras.Variable([1.0])
    rows = torch.arange(4.0)
    constant = rows.clone()

    def loss(x):
        return torch.where((constant if is_tracing() else x) > 1, weight.value * x, 0.0).square().mean()

    reading = SimpleNamespace(assigned=set(), is_kept=False)
    traces = TracedGradients([weight], "auto", lambda: None, lambda: nullcontext(reading))
    with pytest.warns(RuntimeWarning, match=r"loss returns different numbers .*eagerly"):
        assert traces.find(loss, [weight], (rows,)) is None
