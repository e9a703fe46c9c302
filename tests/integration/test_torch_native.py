"""Agents in plain PyTorch: modules, torch and Keras optimizers, buffers, training mode and random numbers."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import networks
from noterl.backends import current
from noterl.types import Batch
from tests.integration.test_parity import assert_all_close
from tests.support import reference_numpy as reference
from tests.support.batches import VECTOR, Corridor, copied, differences, part, random_batch, row
from tests.support.parts import actor_of, run_updates

pytestmark = pytest.mark.backends("torch")
torch = pytest.importorskip("torch")
nn = torch.nn


def network(*, norm: bool = False, dropout: float = 0.0, inputs: int = 5, outputs: int = 3) -> Any:
    layers = [nn.Linear(inputs, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.Dropout(dropout)] if dropout else []), nn.Linear(8, outputs))


@noterl.register
class NativeDQN(noterl.Agent):
    """DQN on plain PyTorch."""

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env, *, norm=False, dropout=0.0, gamma=0.9, seed=None):
        super().__init__(env, seed=seed)
        sizes = {"inputs": self.observation_size, "outputs": self.action_size}
        self.q = network(norm=norm, dropout=dropout, **sizes)
        self.target_q = networks.clone(self.q)
        self.gamma = self.hyperparameter("gamma", gamma)

    def forward(self, observation):
        return self.q(observation)

    def loss(self, batch):
        q = self.q(batch.observation).gather(1, batch.action.long()[:, None])[:, 0]
        with torch.no_grad():
            target = batch.reward + batch.discount * self.target_q(batch.next_observation).max(-1).values
        td_error = q - target
        return (batch.weight * nn.functional.smooth_l1_loss(q, target, reduction="none")).mean(), {"td_error": td_error}

    def update_target(self):
        networks.copy(self.q, self.target_q, self.tau)


OPTIMIZERS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True),
}


def built(optimizer: Any = None, env: Any = VECTOR, target_update: Any = 0.1, **arguments: Any) -> NativeDQN:
    agent = NativeDQN(env, seed=3, **arguments)
    agent.compile(optimizer, replay=noterl.Replay(200), batch_size=8, learning_starts=8, target_update=target_update)
    agent.build()
    return agent


def tensors(batch: Batch) -> Batch:
    return Batch(*(torch.from_numpy(np.asarray(field)) for field in batch[:-1]), extra={})


def train_in_plain_torch(
    agent: NativeDQN, make_optimizer: Any, batch: Batch, count: int, tau: float
) -> tuple[Any, Any]:
    """Return the online and target modules after a plain PyTorch training loop."""
    online, target = copy.deepcopy(agent.q), copy.deepcopy(agent.target_q)
    optimizer = make_optimizer(online.parameters())
    for k in range(count):
        one = tensors(row(batch, k))
        q = online(one.observation).gather(1, one.action.long()[:, None])[:, 0]
        with torch.no_grad():
            expected = one.reward + one.discount * target(one.next_observation).max(-1).values
        loss = (one.weight * nn.functional.smooth_l1_loss(q, expected, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for source, moved in zip(online.parameters(), target.parameters(), strict=True):
                moved.copy_(tau * source + (1 - tau) * moved)
    return online, target


def weights_of(module: Any) -> list[np.ndarray]:
    return [tensor.detach().numpy().copy() for tensor in module.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("how", ["function", "instance"])
def test_torch_optimizers_match_a_plain_torch_loop(name: str, how: str) -> None:
    agent = NativeDQN(VECTOR, seed=3)
    make = OPTIMIZERS[name]
    optimizer = make if how == "function" else make(agent.q.parameters())
    agent.compile(optimizer, replay=noterl.Replay(200), batch_size=8, target_update=0.1)
    agent.build()
    batch = random_batch(8, 16)
    online, target = train_in_plain_torch(agent, make, batch, 8, 0.1)
    assert int(run_updates(agent, batch, 8).applied) == 8
    assert type(agent.optimizer) is getattr(torch.optim, name)
    assert how == "function" or agent.optimizer is optimizer
    assert_all_close(weights_of(agent.q), weights_of(online), "weights", atol=1e-6)
    assert_all_close(weights_of(agent.target_q), weights_of(target), "target", atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_restored_run_equals_an_uninterrupted_one(name: str, tmp_path) -> None:
    def agent(steps: int) -> NativeDQN:
        agent = NativeDQN(Corridor, norm=True, dropout=0.3, seed=3)
        agent.compile(
            OPTIMIZERS[name], replay=noterl.Replay(200), batch_size=8, learning_starts=20, update_every=4, updates=3
        )
        agent.fit(steps=steps, verbose=0)
        return agent

    uninterrupted = agent(120)
    first = agent(60)
    first.save(tmp_path / "half.noterl")
    second = agent(15)
    torch.manual_seed(5)
    second.restore(tmp_path / "half.noterl")
    assert differences(first.get_state(), second.get_state()) == []
    second.fit(steps=60, verbose=0)
    assert uninterrupted.updates == second.updates == 75
    assert differences(uninterrupted.get_state(), second.get_state()) == []


def test_rules_of_a_torch_optimizer_can_change_during_training() -> None:
    agent = built(OPTIMIZERS["AdamW"])
    batch = random_batch(8, 16)
    start = copied(agent.get_state())
    run_updates(agent, part(batch, 0, 4), 4)
    slow = networks.get_weights(agent.q)
    for rule, value in (("learning_rate", 0.1), ("beta_1", 0.5), ("beta_2", 0.9), ("weight_decay", 0.2)):
        agent.set_state(start)
        agent.set_rule(rule, value)
        assert noterl.learning.optimizers.get_rule(agent.optimizer, rule) == value
        run_updates(agent, part(batch, 0, 4), 4)
        assert not np.allclose(slow[0], networks.get_weights(agent.q)[0], rtol=1e-6)
    assert agent.optimizer.param_groups[0]["betas"] == (0.9, 0.999), "the state should restore the other rules"


def test_keras_optimizer_on_modules_matches_the_formula_of_keras() -> None:
    """Keras adds epsilon before the bias correction, torch after it; a large epsilon shows the difference."""
    agent = built(keras.optimizers.Adam(3e-3, epsilon=1e-2))
    weights, target = networks.get_weights(agent.q), networks.get_weights(agent.target_q)
    adam = reference.Adam(3e-3, epsilon=1e-2)
    truth = reference.DQN(reference.mlp((8,)), weights, target, adam, double=False)
    batch = random_batch(8, 16)
    online, _ = train_in_plain_torch(agent, lambda found: torch.optim.Adam(found, lr=3e-3, eps=1e-2), batch, 8, 0.1)
    run_updates(agent, batch, 8)
    for k in range(8):
        truth.update(row(batch, k))
        truth.move_target(0.1)
    assert_all_close(networks.get_weights(agent.q), truth.weights, "weights")
    assert_all_close(networks.get_weights(agent.target_q), truth.target, "target")
    slots = agent.get_state()["optimizers"]["optimizer"]["slots"]
    assert_all_close(slots["momentums"], adam.momentums, "momentums")
    assert_all_close(slots["velocities"], adam.velocities, "velocities")
    assert not np.allclose(agent.q[0].weight.detach().numpy(), online[0].weight.detach().numpy(), rtol=1e-3)


def test_variables_share_storage_with_parameters() -> None:
    module = network(norm=True)
    variables = networks.variables(module)
    assert [variable.name for variable in variables][:2] == ["0.weight", "0.bias"]
    assert len(variables) == 6 + 3 and len(networks.trainable_variables(module)) == 6
    variables[1].assign(np.full(8, 2.0))
    assert module[0].bias.tolist() == [2.0] * 8
    with torch.no_grad():
        module[0].bias.fill_(3.0)
    assert current().fetch(variables[1]).tolist() == [3.0] * 8
    assert [id(variable) for variable in networks.variables(module)] == [id(variable) for variable in variables]
    module[0].weight.requires_grad_(False)
    assert len(networks.trainable_variables(module)) == 5


def test_buffers_belong_to_the_state() -> None:
    agent = built(OPTIMIZERS["Adam"], norm=True)
    batch = random_batch(6, 16)
    start = copied(agent.get_state())
    run_updates(agent, part(batch, 0, 3), 3)
    assert int(agent.q[1].num_batches_tracked) == 3
    online, target = agent.q[1], agent.target_q[1]
    assert float(online.running_mean.abs().sum()) > 0
    assert target.running_mean.tolist() == online.running_mean.tolist(), "statistics should be copied hard"
    assert not torch.equal(target.weight, online.weight), "the target should lag behind"
    middle = copied(agent.get_state())
    assert {"/variables/q/6", "/variables/q/7", "/variables/q/8"} <= set(differences(start, middle))
    run_updates(agent, part(batch, 3, 6), 3)
    end = copied(agent.get_state())
    agent.set_state(middle)
    assert int(agent.q[1].num_batches_tracked) == 3
    run_updates(agent, part(batch, 3, 6), 3)
    assert differences(end, agent.get_state()) == []


@pytest.mark.parametrize("bad", [0, 2])
def test_non_finite_update_restores_buffers_and_slots(bad: int) -> None:
    agent = built(OPTIMIZERS["Adam"], norm=True, dropout=0.5)
    batch = random_batch(4, 16)
    start = copied(agent.get_state())
    run_updates(agent, part(batch, 0, 4), bad) if bad else None
    expected = copied(agent.get_state())
    agent.set_state(start)
    batch.observation[bad, 3, 1] = np.nan
    assert int(run_updates(agent, batch, 4).applied) == bad
    assert differences(expected, agent.get_state()) == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_that_overflows_is_rolled_back(name: str) -> None:
    agent, batch = built(OPTIMIZERS[name], norm=True), random_batch(4, 16)
    run_updates(agent, part(batch, 0, 2), 2)
    agent.set_rule("learning_rate", 1e37)
    before = copied(agent.get_state())
    applied = int(run_updates(agent, part(batch, 2, 4), 2).applied)
    after = agent.get_state()
    assert applied < 2 and all(np.isfinite(weight).all() for weight in after["variables"]["q"])
    if applied == 0:
        assert differences(before, after) == []


def test_acting_and_evaluation_use_eval_mode_and_keep_buffers() -> None:
    agent = built(OPTIMIZERS["Adam"], env=Corridor, norm=True, dropout=0.5)
    agent.fit(steps=40, verbose=0)
    assert not actor_of(agent).forward.in_numpy
    before = copied(agent.get_state())
    observations = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    values = [actor_of(agent).forward(observations) for _ in range(3)]
    assert np.array_equal(values[0], values[1]) and np.array_equal(values[0], values[2])
    one_by_one = np.concatenate([actor_of(agent).forward(observations[i : i + 1]) for i in range(6)])
    np.testing.assert_allclose(one_by_one, values[0], rtol=1e-5, atol=1e-6)
    agent.evaluate(episodes=2)
    assert differences(before, agent.get_state()) == []
    assert agent.q.training and agent.q[1].training and not agent.target_q.training


def test_random_numbers_of_modules_follow_the_seed_of_the_agent() -> None:
    states = []
    for seed, elsewhere in ((3, 1), (3, 2), (4, 1)):
        torch.manual_seed(elsewhere)
        before = torch.get_rng_state()
        agent = NativeDQN(Corridor, dropout=0.5, seed=seed)
        agent.compile(OPTIMIZERS["SGD"], replay=noterl.Replay(200), batch_size=8, learning_starts=10)
        agent.fit(steps=40, verbose=0)
        assert torch.equal(before, torch.get_rng_state()), "the global generator of torch should not change"
        states.append(copied(agent.get_state()))
    assert differences(states[0], states[1]) == []
    assert differences(states[0]["variables"], states[2]["variables"])


def test_dropout_differs_in_every_update() -> None:
    agent = built(lambda found: torch.optim.SGD(found, lr=0.0), dropout=0.5)
    batch = random_batch(1, 16)
    repeated = Batch(*(np.repeat(field, 6, axis=0) for field in batch[:-1]), extra={})
    found = current().fetch(run_updates(agent, repeated, 6).logs["loss"])
    assert len(set(found.tolist())) == 6


class Twins(noterl.Agent):
    """Trains two networks with one loss function, one after the other."""

    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env, *, seed=None):
        super().__init__(env, seed=seed)
        self.q, self.other = network(), network()

    def forward(self, observation):
        return self.q(observation)

    def loss(self, batch):
        return (self.q(batch.observation).square() + 2 * self.other(batch.observation).square()).mean()

    def update(self, batch):
        first, _ = self.minimize(self.loss, self.q, "optimizer", batch)
        second, _ = self.minimize(self.loss, self.other, "optimizer", batch)
        return {"first": first, "second": second}, {}


def test_one_loss_can_train_two_networks_in_turn() -> None:
    agent = Twins(VECTOR, seed=3)
    agent.compile("sgd", replay=noterl.Replay(100), batch_size=8)
    agent.build()
    batch = random_batch(1, 16)
    one = tensors(row(batch, 0))
    before = [weights_of(agent.q), weights_of(agent.other)]
    gradients = [
        torch.autograd.grad(factor * module(one.observation).square().mean(), list(module.parameters()))
        for factor, module in ((1, agent.q), (2, agent.other))
    ]
    run_updates(agent, batch, 1)
    for module, start, found in zip((agent.q, agent.other), before, gradients, strict=True):
        expected = [weight - 0.01 * gradient.numpy() for weight, gradient in zip(start, found, strict=True)]
        assert_all_close(weights_of(module), expected, "weights", atol=1e-6)


def test_target_with_requires_grad_is_not_trained() -> None:
    frozen, thawed = NativeDQN(VECTOR, seed=3), NativeDQN(VECTOR, seed=3)
    thawed.target_q.requires_grad_(True)
    for agent in (frozen, thawed):
        optimizer = torch.optim.AdamW(agent.q.parameters(), lr=3e-3, weight_decay=0.1)
        agent.compile(optimizer, replay=noterl.Replay(100), batch_size=8)
        agent.build()
        run_updates(agent, random_batch(2, 16), 2)
    for first, second in ((frozen.q, thawed.q), (frozen.target_q, thawed.target_q)):
        assert_all_close(weights_of(first), weights_of(second), "weights", atol=0.0)


def test_torch_optimizer_class_is_accepted() -> None:
    agent = built(torch.optim.Adam)
    assert type(agent.optimizer) is torch.optim.Adam and agent.learning_rate == 1e-3
    with pytest.raises(ValueError, match="optimizer"):
        built(keras.optimizers.Adam)


@pytest.mark.parametrize("how", ["instance", "class", "function"])
def test_optimizer_that_needs_a_closure_raises(how: str) -> None:
    agent = NativeDQN(VECTOR, seed=3)
    optimizer = {
        "instance": lambda: torch.optim.LBFGS(agent.q.parameters()),
        "class": lambda: torch.optim.LBFGS,
        "function": lambda: lambda parameters: torch.optim.LBFGS(parameters, max_iter=3),
    }[how]()
    with pytest.raises(ValueError, match=r"^optimizer .*LBFGS"):
        agent.compile(optimizer, replay=noterl.Replay(100), batch_size=8)
        agent.build()


def test_optimizer_of_other_parameters_raises() -> None:
    foreign = torch.optim.Adam(network().parameters())
    with pytest.raises(ValueError, match=r"optimizer .*0\.weight"):
        built(foreign)
    agent = NativeDQN(VECTOR, seed=3)
    agent.compile(torch.optim.Adam(agent.q[0].parameters()), replay=noterl.Replay(100), batch_size=8)
    with pytest.raises(ValueError, match="are missing"):
        agent.build()
    with pytest.raises(ValueError, match=r"torch\.optim\.Optimizer, got None"):
        built(lambda parameters: None)


def test_frozen_parameters_are_not_trained() -> None:
    agent = NativeDQN(VECTOR, seed=3)
    agent.q[0].weight.requires_grad_(False)
    agent.compile(OPTIMIZERS["SGD"], replay=noterl.Replay(100), batch_size=8)
    agent.build()
    before = weights_of(agent.q)
    run_updates(agent, random_batch(2, 8), 2)
    after = weights_of(agent.q)
    assert np.array_equal(before[0], after[0]) and not np.array_equal(before[1], after[1])


def test_non_finite_update_restores_all_optimizers() -> None:
    class Both(noterl.Agent):
        memory, head = "replay", noterl.heads.Q()
        optimizer_names = ("first", "second")

        def __init__(self, env, *, seed=None):
            super().__init__(env, seed=seed)
            self.q, self.other = network(), network()

        def forward(self, observation):
            return self.q(observation)

        def update(self, batch):
            first, _ = self.minimize(lambda: self.q(batch.observation).square().mean(), self.q, "first")
            second, _ = self.minimize(
                lambda: (self.other(batch.observation) - batch.reward[:, None]).square().mean(), self.other, "second"
            )
            return {"first": first, "second": second}, {}

    agent = Both(VECTOR, seed=3)
    with pytest.raises(ValueError, match="first, second"):
        agent.compile(torch.optim.Adam(agent.q.parameters()))
    agent.compile(
        {"first": torch.optim.Adam(agent.q.parameters()), "second": OPTIMIZERS["SGD"]},
        replay=noterl.Replay(100),
        batch_size=8,
    )
    agent.build()
    batch = random_batch(4, 8)
    for bad in (0, 2):
        start = copied(agent.get_state())
        run_updates(agent, batch, bad) if bad else None
        expected = copied(agent.get_state())
        agent.set_state(start)
        faulty = batch._replace(reward=batch.reward.copy())
        faulty.reward[bad, 1] = np.inf
        assert int(run_updates(agent, faulty, 4).applied) == bad
        assert differences(expected, agent.get_state()) == []


def test_dropout_of_an_actor_that_learns_in_every_second_update_is_seeded() -> None:
    """The first update of TD3's period trains only the critics and samples no numbers."""

    def weights(global_seed: int) -> dict[str, np.ndarray]:
        torch.manual_seed(0)
        actor = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
        agent = noterl.TD3("Pendulum-v1", network=(actor, None, None), hidden=(8,), seed=1)
        agent.compile(learning_starts=20, batch_size=8)
        torch.manual_seed(global_seed)
        agent.fit(steps=60, verbose=0)
        return copied(agent.get_weights())

    assert differences(weights(1), weights(2)) == []


class FailingDDPG(noterl.DDPG):
    fails = False

    def actor_loss(self, batch):
        if self.fails:
            raise RuntimeError("the actor's loss failed")
        return super().actor_loss(batch)


@pytest.mark.parametrize("updates", [0, 30])
def test_update_whose_second_loss_raises_is_undone(updates: int) -> None:
    agent = FailingDDPG("Pendulum-v1", hidden=(8,), seed=1)
    agent.compile(learning_starts=20, batch_size=8, update_every=1, updates=1, jit_compile=False)
    agent.fit(steps=20 + updates, verbose=0)
    before, agent.fails = copied(agent.get_weights()), True
    with pytest.raises(RuntimeError, match="the actor's loss failed"):
        agent.fit(steps=5, verbose=0)
    assert agent.updates == updates
    assert differences(before, agent.get_weights()) == []


class LoggingDQN(NativeDQN):
    def update(self, batch):
        loss, feedback = self.minimize(self.loss, self.q, "optimizer", batch)
        return {"loss": loss, "q": self.q(batch.observation).mean(0).detach()}, feedback


def test_failed_update_of_an_agent_that_logs_arrays_is_reported() -> None:
    agent = LoggingDQN("CartPole-v1", seed=1)
    agent.compile("sgd", learning_starts=20, batch_size=8, update_every=4, updates=4)
    agent.fit(steps=24, verbose=0)
    agent.set_rule("learning_rate", 1e25)
    with pytest.raises(FloatingPointError, match="not finite"):
        agent.fit(steps=20, verbose=0)


def test_dry_runs_keep_the_statistics_of_batch_normalization() -> None:
    module = network(norm=True, inputs=4, outputs=2)
    module(torch.randn(64, 4))
    before = copy.deepcopy(module.state_dict())
    agent = noterl.DQN("CartPole-v1", network=module, seed=1)
    for _ in range(2):
        agent.compile(batch_size=8)
        agent.fit(steps=1, verbose=0)
    assert agent.updates == 0
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name


class Dropping(nn.Module):
    """Outputs of 100, of which dropout in training mode makes 0 or 1,000."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(4, 2), nn.Dropout(0.9)

    def forward(self, observation: Any) -> Any:
        return self.dropout(self.layer(observation) + 100.0)


def test_traced_losses_follow_the_mode_of_a_module() -> None:
    agent = noterl.DQN("CartPole-v1", network=Dropping(), seed=1)
    agent.compile(torch.optim.SGD(agent.q.parameters(), 1e-9), batch_size=8, learning_starts=20, update_every=1)
    found: list[float] = []
    record = noterl.callbacks.LambdaCallback(on_batch_end=lambda _, logs: found.append(float(logs["loss"])))
    agent.fit(steps=150, verbose=0, callbacks=[record])
    assert max(found) > 100 and agent.trace_counts.total()
    found.clear()
    agent.q.eval()
    agent.fit(steps=20, verbose=0, callbacks=[record])
    assert len(found) >= 20 and max(found) < 50


def test_replaced_buffer_of_a_module_raises() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, observation: Any) -> Any:
            self.mean = 0.9 * self.mean
            return self.layer(observation)

    with pytest.raises(ValueError, match=r"replaces the buffer 'mean'.*self\.mean\.copy_"):
        noterl.DQN("CartPole-v1", network=Replacing(), seed=1)


@pytest.mark.parametrize("kind", [lambda one: one, lambda one: [one], lambda one: {"a": one}])
@pytest.mark.parametrize("trainable", [False, True])
def test_parameter_outside_of_a_module_raises(kind: Any, trainable: bool) -> None:
    class Scaled(NativeDQN):
        def __init__(self, env: Any, *, seed: Any = None) -> None:
            super().__init__(env, seed=seed)
            self.parameters_of_q = list(self.q.parameters())
            self.bias = self.q[0].bias
            self.scale = kind(nn.Parameter(torch.ones(()), requires_grad=trainable))

    if trainable:
        with pytest.raises(ValueError, match=r"^scale: a parameter outside .*ParameterList"):
            Scaled(Corridor(), seed=1).build()
    else:
        Scaled(Corridor(), seed=1).build()
