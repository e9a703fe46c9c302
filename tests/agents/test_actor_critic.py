"""DDPG, TD3 and SAC: updates equal the NumPy reference and do not depend on their grouping; networks are checked."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.backends import current
from noterl.learning.update import add_random_numbers
from noterl.replay import Prioritized
from tests.support import reference_continuous as reference
from tests.support.batches import CONTINUOUS, VECTOR, copied, differences, part, random_batch, row
from tests.support.doubles import RandomWalkEnv
from tests.support.parts import run_updates
from tests.support.representatives import representatives

mlp = noterl.networks.mlp

RTOL, ATOL = 1e-4, 2e-6  # tolerances for float32
RATE, TAU, HIDDEN, UPDATES, SIZE = 3e-3, 0.05, (7, 6), 5, 16

# Per case: the agent, its arguments, the reference, the spaces.
CASES: dict[str, tuple[Any, dict[str, Any], type, Any]] = {
    "ddpg": (noterl.DDPG, {}, reference.DDPG, CONTINUOUS),
    "td3": (noterl.TD3, {}, reference.TD3, CONTINUOUS),
    "sac": (noterl.SAC, {}, reference.SAC, CONTINUOUS),
    "sac, fixed temperature": (noterl.SAC, {"temperature": 0.3}, reference.SAC, CONTINUOUS),
    "sac, from a low temperature": (noterl.SAC, {"initial_temperature": 0.1}, reference.SAC, CONTINUOUS),
    "sac, discrete": (noterl.SAC, {}, reference.DiscreteSAC, VECTOR),
}


class Case:
    """An agent, the reference in the same state, and batches for both."""

    def __init__(self, name: str) -> None:
        kind, arguments, reference_class, env = CASES[name]
        self.agent = kind(env, hidden=HIDDEN, gamma=0.9, seed=5, **arguments)
        replay = noterl.Replay(64, sampler=Prioritized())  # needs the feedback `td_error`
        self.agent.compile(
            keras.optimizers.Adam(RATE), replay=replay, batch_size=4, target_update=TAU, learning_starts=0
        )
        self.agent.build()
        self._disturb_targets()
        self.start = copied(self.agent.get_state())
        self.batch = add_random_numbers(self.agent, random_batch(UPDATES, SIZE, env), UPDATES)
        self.expected = self._reference(reference_class, env)
        if "initial_temperature" in arguments:
            self.expected.log_temperature = np.log(arguments["initial_temperature"])
        if "temperature" in arguments:
            self.expected.log_temperature, self.expected.is_trained = np.log(arguments["temperature"]), False

    def _disturb_targets(self) -> None:
        """Add noise to the targets, and set some standard deviations beyond their clip."""
        state, rng = copied(self.agent.get_state()), np.random.default_rng(5)
        for name, weights in state["variables"].items():
            if name.startswith("target_"):
                for weight in weights:
                    weight += rng.normal(scale=0.02, size=weight.shape).astype(np.float32)
        if isinstance(self.agent, noterl.SAC) and not self.agent.discrete:
            state["variables"]["actor"][-1][2:] = [1.2, -1.0]
        self.agent.set_state(state)

    def _reference(self, kind: type, env: Any) -> Any:
        names = {"critic": "critics/0", "target_critic": "target_critics/0"}
        weights = {names.get(name, name): found for name, found in self.start["variables"].items()}
        weights.pop("log_temperature", None)
        return kind(weights, HIDDEN, env[1], tau=TAU, learning_rate=RATE)

    def names(self) -> dict[str, str]:
        """Return the names of the networks: of the agent -> of the reference."""
        single = {"critic": "critics/0", "target_critic": "target_critics/0"}
        return {name: single.get(name, name) for name in self.agent.networks() if name != "log_temperature"}


@pytest.fixture(scope="module", params=representatives(CASES, "td3", "sac"))
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def close(actual: Any, expected: Any, what: str, atol: float = ATOL) -> None:
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=atol, err_msg=what)


def test_updates_equal_the_reference(case: Case) -> None:
    agent, expected = case.agent, case.expected
    agent.set_state(case.start)
    result = run_updates(agent, case.batch, UPDATES)
    assert int(result.applied) == UPDATES
    fetch = current().fetch
    for k in range(UPDATES):
        logs, feedback = expected.update(row(case.batch, k), k)
        assert set(logs) == set(result.logs)
        for name, value in logs.items():
            close(fetch(result.logs[name])[k], value, f"{name} of update {k}")
        close(fetch(result.feedback["td_error"])[k], feedback, f"errors of update {k}", atol=1e-5)
    state = agent.get_state()
    for ours, theirs in case.names().items():
        for left, right in zip(state["variables"][ours], expected.weights[theirs], strict=True):
            close(left, right, ours)
    for name in agent.optimizer_names:
        slots = state["optimizers"][name]["slots"]
        for kind in ("momentums", "velocities"):
            for left, right in zip(slots[kind], getattr(expected.optimizers[name], kind), strict=True):
                close(left, right, f"{kind} of {name}", atol=2e-7)
    if "log_temperature" in state["variables"]:
        close(state["variables"]["log_temperature"][0], expected.log_temperature, "log_temperature")
        assert abs(expected.log_temperature) > 1e-3


@pytest.mark.parametrize("case", representatives(CASES, "td3"), indirect=True)
def test_grouping_of_updates_changes_nothing(case: Case) -> None:
    """A group of two starts in the middle of a period, too; each size is a program of its own."""
    agent, states = case.agent, []
    if not agent.random_spec:
        pytest.skip("the tests of DQN cover updates without random numbers and periods")
    for split in ((2, 2), (1,) * 4, (1, 2, 1)):
        agent.set_state(case.start)
        first = 0
        for size in split:
            run_updates(agent, part(case.batch, first, first + size), size)
            first = agent._counters.updates = first + size
        states.append(copied(agent.get_state()))
    assert differences(states[0], states[1]) == []
    assert differences(states[0], states[2]) == []
    assert differences(case.start, states[0])


@pytest.mark.backends("torch")
def test_gradients_of_the_reference_equal_finite_differences(case: Case) -> None:
    env = VECTOR if isinstance(case.expected, reference.DiscreteSAC) else CONTINUOUS
    expected = case._reference(type(case.expected), env)
    batch, rng = row(case.batch, 0), np.random.default_rng(1)
    pairs = [("actor", expected.actor_value, expected.actor_gradients(batch), ["actor"])]
    gradients, names = expected.critic_gradients(batch), expected.critic_names()
    pairs.append(("critics", expected.critic_value, gradients, names))
    for what, value, analytic, trained in pairs:
        weights = [weight for name in trained for weight in expected.weights[name]]
        for weight, gradient in zip(weights, analytic, strict=True):
            values = weight.reshape(-1)
            for place in rng.integers(weight.size, size=2):
                before, step = values[place], 1e-4  # with smaller steps, the rounding of tanh's tails dominates
                values[place] = before + step
                above = value(batch)
                values[place] = before - step
                below = value(batch)
                values[place] = before
                slope = (above - below) / (2 * step)
                assert gradient.reshape(-1)[place] == pytest.approx(slope, rel=1e-4, abs=1e-8), what


def test_initial_critics_differ() -> None:
    for kind in (noterl.TD3, noterl.SAC):
        first, second = (
            noterl.networks.get_weights(critic) for critic in kind(CONTINUOUS, hidden=(4,), seed=1).critics
        )
        assert not np.array_equal(first[0], second[0])


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", [noterl.DDPG, noterl.TD3, noterl.SAC])
def test_value_that_is_not_a_network_raises(kind: Any) -> None:
    critics = (None, 1) if kind is noterl.DDPG else (None, 1, 2)
    for network in (1, critics):
        with pytest.raises(ValueError, match=r"network .*got 1"):
            kind(CONTINUOUS, hidden=(4,), network=network)
    with pytest.raises(ValueError, match=r"network .*got \[None\]"):
        kind(CONTINUOUS, network=[None])


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", [noterl.DDPG, noterl.TD3, noterl.SAC])
def test_passed_networks_are_used(kind: Any) -> None:
    count = 1 if kind is noterl.DDPG else 2
    actor, critics = mlp(5, [3], 4 if kind is noterl.SAC else 2), [mlp(7, [3], 1) for _ in range(count)]
    for network in (actor, (actor, *critics), (None, *critics)):
        agent = kind(CONTINUOUS, hidden=(4,), network=network)
        found = [agent.critic] if kind is noterl.DDPG else agent.critics
        several = isinstance(network, tuple)
        assert (agent.actor is actor) == (not several or network[0] is actor)
        assert [critic in critics for critic in found] == [several] * count
        agent.compile(replay=noterl.Replay(64), batch_size=4)
        agent.build()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", [noterl.TD3, noterl.SAC])
def test_equal_critics_raise(kind: Any) -> None:
    critic = mlp(7, [3], 1)
    with pytest.raises(ValueError, match="network"):
        kind(CONTINUOUS, network=(None, critic, critic))


@pytest.mark.backends("torch")
def test_critic_with_several_outputs_raises_in_the_constructor() -> None:
    with pytest.raises(ValueError, match=r"network .*critic .*got \(2, 2\)"):
        noterl.DDPG(CONTINUOUS, network=(None, mlp(7, [4], 2)))
    with pytest.raises(ValueError, match=r"network .*critic .*got \(2, 2\)"):
        noterl.PPO(CONTINUOUS, network=(mlp(5, [4], 2, log_std=0.0), mlp(5, [4], 2)))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("outputs", [1, 4])
def test_critic_with_wrong_number_of_actions_raises_in_the_constructor(outputs: int) -> None:
    critics = [mlp(5, [4], outputs) for _ in range(2)]
    with pytest.raises(ValueError, match=rf"critic .*got .*{outputs}\)"):
        noterl.SAC((CONTINUOUS[0], spaces.Discrete(3)), hidden=(4,), network=(None, *critics))


@pytest.mark.backends("torch")
def test_critics_receive_scaled_actions() -> None:
    """Shifting and stretching the action space does not change the updates."""
    low, high = np.array([-1.0, -1.0], np.float32), np.array([1.0, 1.0], np.float32)
    spaces_ = [CONTINUOUS[1], spaces.Box(low, high)]
    states = []
    for space in spaces_:
        agent = noterl.TD3((CONTINUOUS[0], space), hidden=(4,), seed=1)
        agent.compile(replay=noterl.Replay(64), batch_size=4)
        agent.build()
        batch = add_random_numbers(agent, random_batch(1, 8, CONTINUOUS), 1)
        center, half = (space.high + space.low) / 2, (space.high - space.low) / 2
        scaled = np.random.default_rng(0).uniform(-1, 1, (1, 8, 2)).astype(np.float32)
        run_updates(agent, batch._replace(action=(center + half * scaled).astype(np.float32)), 1)
        states.append(agent.get_state()["variables"]["critics/0"])
    for left, right in zip(*states, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


@pytest.mark.backends("torch")
def test_td3_logs_actor_loss_only_in_updates_of_the_actor() -> None:
    names: list[set[str]] = []
    agent = noterl.TD3(RandomWalkEnv, hidden=(4,), seed=1)
    agent.compile(batch_size=4, learning_starts=8)
    callback = noterl.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: names.append(set(logs)))
    agent.fit(steps=12, callbacks=[callback], verbose=0)
    assert names[:2] == [{"loss"}, {"loss", "actor_loss"}] or names[:2] == [{"loss", "actor_loss"}, {"loss"}]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), "auto", None])
def test_bad_initial_temperature_raises(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^initial_temperature .*got "):
        noterl.SAC(CONTINUOUS, hidden=(4,), initial_temperature=value)


def test_learned_temperature_cannot_be_set() -> None:
    agent = noterl.SAC("Pendulum-v1", hidden=(4,), seed=1)
    with pytest.raises(ValueError, match=r"temperature .*learned"):
        agent.temperature = 0.1
    agent = noterl.SAC("Pendulum-v1", hidden=(4,), temperature=0.3, seed=1)
    agent.temperature = 0.1
    assert float(agent.entropy_weight()) == pytest.approx(0.1)
