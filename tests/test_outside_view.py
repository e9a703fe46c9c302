"""What an outside reader of the design found that an agent did not do, each as a task that must go through."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces
from keras import ops

import noterl
from noterl import heads, losses, networks
from noterl.callbacks import ESSAdapt, ESSWindow, Rate, Window
from noterl.envs import Signals
from noterl.envs.team import Team
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.normalization import Normalizers
from noterl.replay import Prioritized, RatioScore
from noterl.schedules import Linear
from tests.doubles import RandomWalkEnv
from tests.states import run_python

BOX = spaces.Box(-1.0, 1.0, (3,))
AGENTS = {"A2C": BOX, "DDPG": BOX, "DQN": spaces.Discrete(2), "PPO": BOX, "SAC": BOX, "TD3": BOX}

LOAD = """
import sys
import noterl
for path in sys.argv[1:]:
    print(type(noterl.load(path)).__name__)
"""


def test_every_built_in_agent_loads_in_a_process_that_has_not_seen_its_class(tmp_path) -> None:
    made = {name: getattr(noterl, name)((BOX, action), hidden=(4,), seed=1) for name, action in AGENTS.items()}
    made["MADDPG"] = noterl.MADDPG(Signals, hidden=(4,), seed=1)
    paths = [tmp_path / f"{name}.noterl" for name in made]
    for agent, path in zip(made.values(), paths, strict=True):
        agent.compile(replay=None if agent.memory == "rollout" else noterl.Replay(1_100))
        agent.save(path)
    assert run_python(LOAD, *paths).split() == list(made)


class Deterministic(noterl.Agent):
    """The class of the design, with a head for numbers."""

    memory, head, optimizer_names = "replay", heads.Deterministic(), ("actor", "critic")

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.actor = networks.mlp(self.observation_size, [4], self.action_size)
        self.critic = networks.mlp(self.observation_size + self.action_size, [4], 1)
        self.gamma = self.hyperparameter("gamma", 0.9)

    def forward(self, observation: Any) -> Any:
        return self.actor(observation)

    def update(self, batch: Any) -> Any:
        critic, feedback = self.minimize(self.of_critic, self.critic, "critic", batch)
        self.minimize(self.of_actor, self.actor, "actor", batch)
        return {"loss": critic}, feedback

    def value(self, observation: Any, action: Any) -> Any:
        return self.critic(ops.concatenate([observation, action], axis=-1))[:, 0]

    def of_critic(self, batch: Any) -> Any:
        following = self.value(batch.next_observation, self.head.act(self.actor(batch.next_observation)))
        error = self.value(batch.observation, batch.action) - losses.td_target(batch.reward, batch.discount, following)
        return ops.mean(ops.square(error)), {"td_error": error}

    def of_actor(self, batch: Any) -> Any:
        return -ops.mean(self.value(batch.observation, self.head.act(self.actor(batch.observation))))


def test_an_agent_of_ones_own_takes_the_actions_that_its_head_takes() -> None:
    agent = Deterministic(RandomWalkEnv, seed=1)
    agent.compile(noise=GaussianWhiteNoiseProcess(sigma=0.1, size=1), batch_size=4, learning_starts=8)
    agent.fit(steps=12, verbose=0)
    assert agent.updates > 0
    for head, action in ((heads.Gaussian(), BOX), (heads.Categorical(), spaces.MultiDiscrete([2, 3]))):
        kind = type("Mine", (noterl.Agent,), {"head": head})
        assert kind((BOX, action)).head.size in (6, 5)
    with pytest.raises(ValueError, match="the head Q takes a Discrete action space, got Box"):
        type("Mine", (noterl.Agent,), {"head": heads.Q()})((BOX, BOX))


def test_the_actions_of_a_team_lie_in_their_bounds_in_float64_too() -> None:
    narrow = spaces.Box(-0.1, 0.1, (1,), np.float64)
    team, head = Team(["a"], [narrow], [narrow]), heads.Joint().bind(spaces.Tuple([narrow]))
    for output in (20.0, -20.0):
        vectors = head.deterministic(np.array([[output]], np.float32))
        for action in (team.actions(vectors[0])[0], team.batched_actions(vectors)[0][0]):
            assert narrow.contains(action) and abs(action[0]) == 0.1


@pytest.mark.parametrize(
    "callback", [lambda: ESSWindow(), lambda: Window(20), lambda: ESSAdapt(target_ess=20, lr=Rate(1.0, 1e-4, 1e-2))]
)
def test_callbacks_go_with_batches_of_a_whole_rollout(callback: Any) -> None:
    agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=16, epochs=1, seed=1)
    agent.compile(batch_size="rollout", replay=noterl.Replay(64, sampler=Prioritized(score=RatioScore())))
    agent.fit(steps=100, callbacks=[callback()], verbose=0)
    assert agent.updates > 0


class Averaging(noterl.DQN):
    """Moves its target by a coefficient of its own."""

    def __init__(self, env: Any, *, tau: float = 0.25, seed: int | None = None) -> None:
        super().__init__(env, hidden=(), seed=seed)
        self.tau = tau


def test_a_coefficient_of_ones_own_is_not_lost() -> None:
    agent = Averaging("CartPole-v1", seed=1)
    agent.compile(target_update=10)
    assert float(agent.tau) == 0.25
    networks.set_weights(agent.q, [weight + 1 for weight in networks.get_weights(agent.q)])
    before = networks.get_weights(agent.target_q)
    agent.update_target()
    for old, new in zip(before, networks.get_weights(agent.target_q), strict=True):
        np.testing.assert_allclose(new, old + 0.25, rtol=1e-5)
    agent.compile(target_update=0.5)
    assert float(agent.tau) == 0.5
    agent.compile(target_update=10)  # a hard copy is whole again
    assert float(agent.tau) == 1.0


@pytest.mark.parametrize("name", ["policy", "noise", "networks"])
def test_a_network_under_a_name_that_is_taken_is_refused(name: str) -> None:
    class Taking(noterl.Agent):
        head = heads.Q()

        def __init__(self, env: Any, *, seed: int | None = None) -> None:
            super().__init__(env, seed=seed)
            setattr(self, name, [networks.mlp(3, [4], 2)])

    with pytest.raises(ValueError, match=f"{name} of an agent is no place for a network"):
        Taking((BOX, spaces.Discrete(2)))


def wide(inputs: int, outputs: int) -> Any:
    return networks.mlp(inputs, [4], outputs)


@pytest.mark.parametrize(
    ("kind", "action", "network"),
    [
        (noterl.PPO, BOX, lambda: wide(3, 3)),  # means without deviations
        (noterl.PPO, BOX, lambda: (None, wide(3, 2))),
        (noterl.A2C, spaces.Discrete(2), lambda: wide(3, 3)),
        (noterl.DQN, spaces.Discrete(2), lambda: wide(3, 3)),
        (noterl.DQN, spaces.Discrete(2), lambda: wide(4, 2)),
        (noterl.SAC, spaces.Discrete(2), lambda: wide(3, 5)),
        (noterl.TD3, BOX, lambda: wide(3, 1)),
        (noterl.DDPG, BOX, lambda: (None, wide(5, 1))),
    ],
)
def test_a_network_that_does_not_fit_is_named(kind: Any, action: Any, network: Any) -> None:
    agent = kind((BOX, action), network=network(), seed=1)
    with pytest.raises(ValueError, match=f"network does not fit {kind.__name__} on Box"):
        agent.build()


def test_a_learning_rate_below_zero_ends_training_by_name() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    rate = Linear(1e-3, -1e-3, 40)
    agent.compile(keras.optimizers.SGD(rate), batch_size=4, learning_starts=4, update_every=1, updates=1)
    with pytest.raises(ValueError, match=r"learning_rate must be finite and at least 0, but Linear.* gives -"):
        agent.fit(steps=60, verbose=0)
    assert 0 < agent.updates < 30


def test_what_is_acted_on_is_what_is_learned_from_where_float32_is_coarse() -> None:
    normalizers = Normalizers((1,), reward=False)
    times = 1.7e9 + 100.0 * np.arange(7)[:, None]
    normalizers.observation.update(times.astype(np.float32))
    np.testing.assert_array_equal(normalizers.seen(times), normalizers.seen(times.astype(np.float32)))


def test_td3_says_what_its_actor_lost_only_as_it_learns() -> None:
    heard: list[set[str]] = []
    agent = noterl.TD3(RandomWalkEnv, hidden=(4,), seed=1)
    agent.compile(batch_size=4, learning_starts=8)
    listener = noterl.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: heard.append(set(logs)))
    agent.fit(steps=12, callbacks=[listener], verbose=0)
    assert heard[:2] == [{"loss"}, {"loss", "actor_loss"}] or heard[:2] == [{"loss", "actor_loss"}, {"loss"}]


def test_the_advantage_of_a_single_row_is_left_as_it_is() -> None:
    one, several = np.array([3.0], np.float32), np.array([1.0, 3.0], np.float32)
    fetch = ops.convert_to_numpy
    assert fetch(losses.normalized(ops.convert_to_tensor(one), ops.ones((1,)))).tolist() == [3.0]
    np.testing.assert_allclose(fetch(losses.normalized(ops.convert_to_tensor(several), ops.ones((2,)))), [-1.0, 1.0])
