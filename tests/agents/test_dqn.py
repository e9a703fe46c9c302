"""DQN: arguments, defaults, images and learning; `tests/integration/test_parity.py` checks what an update computes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import networks
from noterl.backends import current
from noterl.policies import LinearEpsGreedyPolicy
from tests.support.batches import IMAGE, VECTOR, Corridor, copied, differences, part, random_batch, small_dqn
from tests.support.doubles import ImageEnv
from tests.support.parts import run_updates, sample_batch

BOX, DISCRETE = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(2)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ((BOX, spaces.Box(-1.0, 1.0, (2,))), r"^env: DQN .*Discrete.*got Box"),
        ((BOX, spaces.MultiDiscrete([2, 2])), "^env: DQN .*Discrete.*got MultiDiscrete"),
        ((spaces.Tuple([BOX]), DISCRETE), "^env: DQN .*observation.*got Tuple"),
        ("NoSuchEnv-v0", "NoSuchEnv"),
        (3, "^env"),
    ],
)
def test_unsupported_environment_raises(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noterl.DQN(env)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "mse"}, "loss .*got 'mse'"),
        ({"loss": ["huber"]}, "loss .*got "),
        ({"gamma": 1.5}, "gamma .*got 1.5"),
        ({"gamma": "high"}, "gamma .*got 'high'"),
        ({"gamma": -0.1}, r"gamma .*got -0\.1"),
        ({"gamma": None}, "gamma .*got None"),
        ({"hidden": (8, 0)}, "hidden .*got 0"),
        ({"hidden": 8}, "hidden .*got 8"),
        ({"hidden": (64.0,)}, r"hidden .*got 64\.0"),
        ({"double": 1}, "double .*got 1"),
        ({"dueling": "no"}, "dueling .*got 'no'"),
        ({"network": "mlp"}, "network"),
        ({"network": keras.layers.Dense(3)}, "variables"),
    ],
)
def test_bad_argument_raises_with_its_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noterl.DQN(VECTOR, **arguments)


def test_arguments_after_env_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        noterl.DQN(VECTOR, True)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("outputs", [2, 4])
def test_network_with_wrong_number_of_actions_raises(outputs: int) -> None:
    network = keras.Sequential([keras.Input((5,)), keras.layers.Dense(outputs)])
    with pytest.raises(ValueError, match=rf"network .*got \(2, {outputs}\)"):
        noterl.DQN(VECTOR, network=network)


@pytest.mark.backends("torch")
def test_networks_have_the_shapes_of_spaces_and_arguments() -> None:
    def shapes(env: Any, **arguments: Any) -> list[tuple[int, ...]]:
        return [weight.shape for weight in networks.get_weights(noterl.DQN(env, **arguments).q)]

    assert shapes(VECTOR) == [(5, 128), (128,), (128, 128), (128,), (128, 3), (3,)]
    assert shapes(VECTOR, hidden=(7,)) == [(5, 7), (7,), (7, 3), (3,)]
    assert shapes(VECTOR, hidden=(7, 6), dueling=True)[-4:] == [(7, 6), (6,), (6, 3), (3,)]
    assert shapes(IMAGE)[0] == (8, 8, 2, 32) and shapes(IMAGE)[-1] == (3,)
    small = (spaces.Box(0, 255, (12, 10, 3), np.uint8), DISCRETE)
    with pytest.warns(UserWarning, match="flattened"):
        assert shapes(small, hidden=(4,)) == [(360, 4), (4,), (4, 2), (2,)], "too small for the convolutions"
    own = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    assert noterl.DQN(VECTOR, network=own).q is own


@pytest.mark.backends("torch")
def test_defaults_are_from_the_paper_for_images_and_smaller_for_vectors() -> None:
    image = noterl.DQN((spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Discrete(6))).defaults()
    assert (image.capacity, image.batch_size, image.learning_starts) == (1_000_000, 32, 50_000)
    assert (image.update_every, image.updates, image.target_update, image.n_step) == (4, 1, 10_000, 1)
    assert isinstance(image.policy, LinearEpsGreedyPolicy)
    assert image.policy.get_config() == {"start": 1.0, "end": 0.1, "steps": 1_000_000}
    agent = noterl.DQN(VECTOR)
    agent.compile()
    vector = agent.defaults()
    assert vector.capacity <= 100_000 and vector.learning_starts <= 1_000
    assert (agent.replay.capacity, agent.replay.n_step) == (vector.capacity, vector.n_step) == (100_000, 3)
    assert agent.learning_rate == pytest.approx(1e-3) and agent.optimizers["optimizer"].epsilon == 1e-4
    assert (agent.schedule.batch_size, float(agent.tau)) == (vector.batch_size, pytest.approx(vector.target_update))
    assert float(agent.gamma) == 0.99


@pytest.mark.backends("torch")
def test_target_update_accepts_steps_or_coefficient() -> None:
    agent = noterl.DQN(VECTOR, hidden=(4,))
    agent.compile(target_update=250)
    assert agent.schedule.hard_copy_every == 250 and not agent.schedule.polyak and float(agent.tau) == 1.0
    agent.compile(target_update=0.005)
    assert agent.schedule.polyak and float(agent.tau) == 0.005
    with pytest.raises(ValueError, match=r"target_update .*got -1"):
        agent.compile(target_update=-1)
    assert float(agent.tau) == 0.005, "a compile that raises changes nothing"


@pytest.fixture(scope="module")
def image_agent() -> noterl.DQN:
    return small_dqn(IMAGE, dueling=True)


def test_splitting_a_group_does_not_change_updates_on_images(image_agent: noterl.DQN) -> None:
    batch, start, states = random_batch(4, 4, IMAGE), copied(image_agent.get_state()), []
    for size in (4, 1):
        image_agent.set_state(start)
        for first in range(0, 4, size):
            run_updates(image_agent, part(batch, first, first + size), size)
        states.append(copied(image_agent.get_state()))
    assert differences(*states) == []
    assert differences(start, states[0])


@pytest.mark.backends("torch")
@pytest.mark.parametrize("shape", [(36, 36, 2), (2, 36, 36)])
def test_images_stay_bytes_from_the_environment_to_the_update(shape: tuple[int, ...]) -> None:
    agent = noterl.DQN(lambda: ImageEnv(shape), seed=1)
    assert networks.get_weights(agent.q)[0].shape == (8, 8, 2, 32)
    agent.compile(replay=noterl.Replay(100), batch_size=4, learning_starts=10, update_every=5, updates=2)
    agent.fit(steps=30, verbose=0)
    assert agent.updates == 8
    assert sample_batch(agent, 1).observation.dtype == np.uint8
    assert agent.act(np.zeros(shape, np.uint8)) in range(4)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("variant", [{"double": False}, {"dueling": True}, {"loss": "squared"}], ids=str)
def test_dqn_learns_the_corridor(variant: dict[str, Any]) -> None:
    agent = noterl.DQN(Corridor, hidden=(32,), seed=4, **variant)
    agent.compile(
        keras.optimizers.Adam(3e-3), replay=noterl.Replay(2_000), policy=LinearEpsGreedyPolicy(1.0, 0.1, steps=400),
        batch_size=32, learning_starts=50, update_every=8, updates=8, target_update=40,
    )  # fmt: skip
    before = agent.evaluate(episodes=20)["reward_mean"]
    agent.fit(steps=1_200, verbose=0)
    after = agent.evaluate(episodes=20)
    # From place p the goal is 4 - p steps away, with the return 1 - 0.1 (3 - p): 0.85 on average.
    assert before < 0.6, "an untrained network must not solve the task"
    assert after["reward_mean"] > 0.75 and after["length_mean"] < 3.5


def test_dqn_is_registered_and_records_its_arguments() -> None:
    agent = noterl.DQN("CartPole-v1", double=False, hidden=(8,), gamma=0.9)
    assert noterl.registry.lookup("DQN") is noterl.DQN
    assert agent.get_config() == {"env": "CartPole-v1", "double": False, "hidden": (8,), "gamma": 0.9}


def test_summary_names_backend_networks_memory_and_steps(capsys: pytest.CaptureFixture, backend: str) -> None:
    agent = small_dqn(hidden=(8, 6))
    agent.summary()
    text = capsys.readouterr().out
    for expected in (
        backend,
        "devices: ",
        *current().device_names(),
        "DQN",
        "NumPy",
        "q:",
        "target_q:",
        "123 values",
        "Adam",
        "64 transitions",
        "0 steps",
    ):
        assert expected in text
