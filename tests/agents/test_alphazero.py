"""AlphaZero: targets and updates against NumPy, what is stored, search and act, saving and exact resume."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import envs, networks, saving
from noterl.backends import current
from noterl.envs.games import ConnectFour, GameEnv, TicTacToe, play_all_lines
from noterl.replay import Hindsight
from noterl.types import Batch
from tests.support import reference_numpy as reference
from tests.support.masked_env import MaskedWalk
from tests.support.parts import actor_of, lanes_of, learner_of, run_updates
from tests.support.representatives import representatives
from tests.support.states import assert_same_state, run_python

pytestmark = pytest.mark.backends("torch")

L2 = 1e-3


def agent_of(env: Any = None, **changes: Any) -> noterl.AlphaZero:
    agent = noterl.AlphaZero(TicTacToe() if env is None else env, simulations=6, hidden=(8,), seed=4, l2=L2)
    replay = noterl.Replay(200, n_step=9)
    agent.compile(**{"replay": replay, "batch_size": 8, "learning_starts": 20, "update_every": 8, **changes})
    return agent


def random_batch(updates: int, size: int, features: int, actions: int, players: int) -> Batch:
    rng, rows = np.random.default_rng(0), (updates, size)
    mask = rng.random((*rows, actions)) < 0.7
    mask[..., 0] = True
    shares = np.where(mask, rng.random((*rows, actions)), 0)
    extra = {
        "visit_shares": (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32),
        "action_mask": mask,
        "next_action_mask": mask,
        "to_play": rng.integers(players, size=rows).astype(np.int8),
        "next_to_play": rng.integers(players, size=rows).astype(np.int8),
    }
    return Batch(
        observation=rng.normal(size=(*rows, features)).astype(np.float32),
        action=rng.integers(actions, size=rows).astype(np.int32),
        reward=rng.integers(-1, 2, size=rows).astype(np.float32),
        next_observation=rng.normal(size=(*rows, features)).astype(np.float32),
        discount=np.where(rng.random(rows) < 0.5, 0, 0.9).astype(np.float32),
        weight=rng.uniform(0.2, 1.5, rows).astype(np.float32),
        index=np.arange(updates * size).reshape(rows),
        extra=extra,
    )


class Reference:
    """One update of AlphaZero in float64, row by row."""

    def __init__(self, agent: noterl.AlphaZero, gamma: float) -> None:
        self.weights = [np.array(weight, np.float64) for weight in networks.get_weights(agent.network)]
        self.players, self.gamma = agent.players, gamma
        self.network, self.optimizer = reference.mlp((8,)), reference.Adam(3e-3)

    def value(self, output: float) -> float:
        return float(np.tanh(output)) if self.players == 2 else output

    def target(self, batch: Batch, row: int, following: float) -> float:
        if self.players == 1:
            return (1 - self.gamma) * float(batch.reward[row]) + float(batch.discount[row]) * following
        sign, next_sign = (-1 if batch.extra[name][row] else 1 for name in ("to_play", "next_to_play"))
        return sign * (float(batch.reward[row]) + float(batch.discount[row]) * next_sign * following)

    def update(self, batch: Batch) -> dict[str, float]:
        following = self.network.forward(batch.next_observation.astype(np.float64), self.weights)[:, -1]
        outputs = self.network.forward(batch.observation.astype(np.float64), self.weights)
        slopes, count = np.zeros(outputs.shape), len(outputs)
        policy_loss = value_loss = 0.0
        for row, output in enumerate(outputs):
            weight = float(batch.weight[row]) / count
            legal = np.flatnonzero(batch.extra["action_mask"][row])
            powers = np.exp(output[legal] - output[legal].max())
            policy, shares = powers / powers.sum(), batch.extra["visit_shares"][row, legal].astype(np.float64)
            policy_loss -= weight * float(shares @ np.log(policy))
            slopes[row, legal] = weight * (policy * shares.sum() - shares)
            value = self.value(output[-1])
            error = value - self.target(batch, row, self.value(following[row]))
            value_loss += weight * error**2
            slopes[row, -1] = weight * 2 * error * (1 - value**2 if self.players == 2 else 1)
        gradients = self.network.backward(slopes, self.weights)[1]
        squares = sum(float((one**2).sum()) for one in self.weights)
        gradients = [slope + 2 * L2 * one for slope, one in zip(gradients, self.weights, strict=True)]
        self.weights = self.optimizer.apply(self.weights, gradients)
        return {"policy_loss": policy_loss, "value_loss": value_loss, "loss": policy_loss + value_loss + L2 * squares}


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("players", representatives([2, 1], 2))
def test_updates_match_the_reference(players: int) -> None:
    env = TicTacToe() if players == 2 else (spaces.Box(-1, 1, (18,)), spaces.Discrete(9))
    agent = agent_of(env, optimizer=keras.optimizers.Adam(3e-3))
    agent.build()
    truth = Reference(agent, float(agent.gamma))
    batch = random_batch(4, 16, 18, 9, players)
    result = run_updates(agent, batch, 4)
    logs = {name: current().fetch(value) for name, value in result.logs.items()}
    for k in range(4):
        extra = {name: value[k] for name, value in batch.extra.items()}
        expected = truth.update(Batch(*(field[k] for field in batch[:-1]), extra=extra))
        for name, value in expected.items():
            np.testing.assert_allclose(logs[name][k], value, rtol=1e-4, atol=2e-6, err_msg=name)
    for weight, other in zip(networks.get_weights(agent.network), truth.weights, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=2e-6)


@pytest.fixture(scope="module")
def agent() -> noterl.AlphaZero:
    agent = agent_of()
    agent.fit(episodes=12, num_envs=3, verbose=0)
    return agent


class TestStoredGames:
    """A memory after some games: everything of a transition is that of its position."""

    def rows(self, agent: noterl.AlphaZero) -> Batch:
        """Return all stored transitions, one after another."""
        learner: Any = learner_of(agent)
        storage = agent.replay._storage
        return learner.replay._gather(storage, storage.stored_indices(), 1.0, 9)

    def test_fields_describe_the_position_and_the_next_one(self, agent: noterl.AlphaZero) -> None:
        batch = self.rows(agent)
        own, other = batch.observation[:, :9], batch.observation[:, 9:]
        np.testing.assert_array_equal(batch.extra["action_mask"], own + other == 0)
        np.testing.assert_array_equal(batch.extra["to_play"], (own + other).sum(axis=1) % 2)
        after = batch.next_observation[:, :9] + batch.next_observation[:, 9:]
        full = (after > 0).all(axis=1, keepdims=True)  # terminal masks that forbid everything are stored as True
        np.testing.assert_array_equal(batch.extra["next_action_mask"], (after == 0) | full)
        np.testing.assert_array_equal(batch.extra["next_to_play"], after.sum(axis=1) % 2)
        shares = batch.extra["visit_shares"]
        np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)
        assert shares[~batch.extra["action_mask"]].sum() == 0
        np.testing.assert_allclose(shares * 6, np.round(shares * 6), atol=1e-5)
        assert batch.extra["action_mask"][np.arange(len(shares)), batch.action].all()

    def test_targets_are_the_outcome_for_the_player_to_move(self, agent: noterl.AlphaZero) -> None:
        batch = self.rows(agent)
        ended = batch.discount == 0
        assert ended.sum() >= 12 * 5
        result = TicTacToe().result
        own, other = np.split(batch.next_observation[ended], 2, axis=1)
        sign = 1 - 2 * batch.extra["next_to_play"][ended].astype(int)
        final = ((own - other) * sign[:, None]).astype(np.int8)  # boards with 1 for the first player
        np.testing.assert_array_equal(batch.reward[ended], result(final))
        tensors = Batch(*(keras.ops.convert_to_tensor(field) for field in batch._replace(weight=batch.reward)[:-1]), {})
        extra = {name: keras.ops.convert_to_tensor(value) for name, value in batch.extra.items()}
        targets = current().fetch(agent.value_target(tensors._replace(extra=extra)))[ended]
        np.testing.assert_array_equal(targets, np.where(batch.extra["to_play"][ended] == 0, 1, -1) * result(final))

    def test_logged_reward_is_the_first_players_result(self, agent: noterl.AlphaZero) -> None:
        assert agent.history is not None
        assert set(agent.history.history["reward"]) <= {1.0, 0.0, -1.0}
        assert all(5 <= length <= 9 for length in agent.history.history["length"])
        assert {"policy_loss", "value_loss"} <= agent.history.history.keys()


def test_gumbel_search_trains_on_improved_policies() -> None:
    agent = noterl.AlphaZero(TicTacToe(), simulations=6, gumbel=True, hidden=(8,), seed=4)
    agent.compile(replay=noterl.Replay(200, n_step=9), batch_size=8, learning_starts=20, update_every=8)
    agent.fit(episodes=10, num_envs=3, verbose=0)
    storage = agent.replay._storage
    rows = storage.stored_indices()
    shares, mask = storage.extra["visit_shares"][rows], storage.extra["action_mask"][rows]
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
    assert (shares[~mask] == 0).all() and (shares[mask] > 0).all()
    assert agent.updates > 0
    first = agent.search(TicTacToe().start(1)[0])
    np.testing.assert_array_equal(first.visit_shares, agent.search(TicTacToe().start(1)[0]).visit_shares)


def test_random_moves_do_not_change_the_stored_shares() -> None:
    agent = agent_of(learning_starts=10_000)
    agent.random_moves, agent.temperature = 1.0, 0.0
    agent.fit(episodes=60, num_envs=4, verbose=0)
    storage = agent.replay._storage
    indices = storage.stored_indices()
    shares, action = storage.extra["visit_shares"][indices], storage.action[indices]
    first = storage.observation[indices].sum(axis=1) == 0
    assert first.sum() >= 15
    assert len(set(action[first].tolist())) >= 6, "uniform over nine cells"
    assert (shares[np.arange(len(shares)), action] == 0).any(), "played, although the search never tried it"


def test_temperature_0_plays_the_most_visited_action() -> None:
    agent = agent_of(learning_starts=10_000)
    agent.random_moves, agent.temperature = 0.0, 0.0
    agent.fit(episodes=8, num_envs=2, verbose=0)
    storage = agent.replay._storage
    indices = storage.stored_indices()
    np.testing.assert_array_equal(storage.action[indices], storage.extra["visit_shares"][indices].argmax(axis=1))


def test_actions_have_the_probabilities_of_the_temperature() -> None:
    agent = agent_of(learning_starts=10_000)
    agent.random_moves, agent.temperature, agent.dirichlet_share = 0.0, 0.5, 0.0
    agent.fit(steps=1, num_envs=400, verbose=0)
    lanes = lanes_of(agent)
    actions, _ = actor_of(agent).choose_actions(lanes.observations(), 0)
    shares = actor_of(agent).fields["visit_shares"][1:].astype(float)  # the first lane has moved
    assert (shares == shares[0]).all(), "without noise, all searches are equal"
    expected = shares[0] ** 2 / (shares[0] ** 2).sum()
    np.testing.assert_allclose(np.bincount(actions[1:], minlength=9) / 399, expected, atol=0.08)


class TestSearch:
    def test_shares_and_value_of_a_state_and_of_states(self) -> None:
        agent = agent_of()
        states = np.array([[1, 1, 0, -1, -1, 0, 0, 0, 0], [0] * 9], np.int8)
        both = agent.search(states, simulations=80)
        one = agent.search(states[0], simulations=80)
        assert both.visit_shares.shape == (2, 9) and both.value.shape == (2,)
        np.testing.assert_allclose(one.visit_shares, both.visit_shares[0], atol=0.05)
        assert one.visit_shares.argmax() == 2 and isinstance(one.value, float) and one.value > 0.5

    def test_environment_of_the_game_is_its_state(self) -> None:
        agent, env = agent_of(), GameEnv(TicTacToe())
        env.reset(seed=0)
        env.step(4)
        np.testing.assert_array_equal(agent.search(env).visit_shares, agent.search(env.state).visit_shares)

    def test_search_does_not_change_training(self) -> None:
        agent, other = agent_of(), agent_of()
        for each in (agent, other):
            each.fit(steps=11, num_envs=2, verbose=0)
        agent.search(TicTacToe().start(3), simulations=9)
        for each in (agent, other):
            each.fit(steps=30, verbose=0)
        assert_same_state(agent, other)

    @pytest.mark.parametrize(
        ("state", "simulations", "message"),
        [
            (np.zeros(8, np.int8), None, "state"),
            (np.array([1, 1, 1, -1, -1, 0, 0, 0, 0], np.int8), None, "state.*over"),
            (np.zeros((0, 9), np.int8), None, "state"),
            (np.zeros(9, np.int8), 0, "simulations"),
        ],
    )
    def test_bad_argument_raises(self, state: Any, simulations: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            agent_of().search(state, simulations)

    def test_mask_of_a_game_raises(self) -> None:
        with pytest.raises(ValueError, match="action_mask"):
            agent_of().search(TicTacToe().start(1)[0], action_mask=np.ones(9, np.bool_))


class TestAct:
    def test_move_is_the_most_probable_legal_one(self) -> None:
        agent, game = agent_of(), ConnectFour()
        agent = agent_of(game)
        states = game.start(40)
        rng = np.random.default_rng(0)
        for _ in range(12):
            states = game.step(states, np.where(game.legal_actions(states), rng.random((40, 7)), -1).argmax(axis=1))
        observations = game.observe(states)
        outputs, _ = actor_of(agent).outputs(observations)
        expected = np.where(game.legal_actions(states), outputs[:, :-1], -np.inf).argmax(axis=1)
        np.testing.assert_array_equal(agent.act(observations), expected)
        assert agent.act(observations[3]) == expected[3]

    @pytest.mark.parametrize("first", [True, False])
    def test_moves_are_legal_on_every_line(self, first: bool) -> None:
        agent = agent_of()

        def checked(game: Any, states: Any, generator: Any) -> Any:
            actions = agent.act(game.observe(states))
            sampled = agent.act(game.observe(states), deterministic=False)
            rows = np.arange(len(states))
            assert (states[rows, actions] == 0).all() and (states[rows, sampled] == 0).all()
            return actions

        assert sum(play_all_lines(TicTacToe(), checked, first=first)) > 40

    def test_evaluate_plays_legal_games(self) -> None:
        result = agent_of().evaluate(episodes=3, deterministic=False)
        assert set(result["returns"].tolist()) <= {1.0, 0.0, -1.0}


class TestOnePlayer:
    """CartPole, which is restored by copies."""

    def agent(self) -> noterl.AlphaZero:
        agent = noterl.AlphaZero("CartPole-v1", simulations=5, hidden=(8,), seed=4)
        agent.compile(replay=noterl.Replay(100, n_step=4), batch_size=8, learning_starts=10, update_every=8)
        return agent

    def test_fit_leaves_the_environments_as_if_there_was_no_search(self) -> None:
        agent = self.agent()
        agent.fit(steps=30, num_envs=2, verbose=0)
        storage = agent.replay._storage
        lane = storage.lane[storage.stored_indices()] == 0
        env: Any = gymnasium.make("CartPole-v1")
        seed = int(noterl.random.Generators(4)("environment/0").integers(2**31))
        observation, _ = env.reset(seed=seed)
        for row in np.flatnonzero(lane).tolist():
            np.testing.assert_array_equal(storage.observation[row], observation)
            observation, _, terminated, *_ = env.step(storage.action[row])
            if terminated:
                break
        assert agent.updates > 0
        assert storage.extra["action_mask"][: storage.length].all()
        agent.close()

    def test_search_of_an_environment(self) -> None:
        agent, env = self.agent(), gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=1)
        found = agent.search((env, observation), simulations=12)
        assert found.visit_shares.sum() == pytest.approx(1.0) and found.value > 0.0
        before = env.unwrapped.state  # type: ignore[attr-defined]
        np.testing.assert_array_equal(np.array(before, np.float32), observation)
        with pytest.raises(ValueError, match="state"):
            agent.search(observation)
        agent.close()

    @pytest.mark.parametrize("gumbel", [False, True])
    def test_search_visits_legal_actions_only(self, gumbel: bool) -> None:
        agent = noterl.AlphaZero(MaskedWalk, simulations=8, gumbel=gumbel, hidden=(8,), seed=4)
        env = MaskedWalk()  # raises if an action is illegal
        for seed in range(3):
            observation, info = env.reset(seed=seed)
            shares = agent.search((env, observation), action_mask=info["action_mask"]).visit_shares
            assert (shares[env.legal()] > 0).any() and (shares[~env.legal()] == 0).all()

    @pytest.mark.parametrize("mask", [np.ones(3, np.bool_), np.zeros(2, np.bool_), np.ones(2)])
    def test_mask_that_does_not_fit_raises(self, mask: np.ndarray) -> None:
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=1)
        with pytest.raises(ValueError, match="action_mask"):
            self.agent().search((env, observation), action_mask=mask)

    def test_vector_environment_raises(self) -> None:
        agent = self.agent()
        vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
        with pytest.raises(ValueError, match="env"):
            agent.fit(vector, steps=10, verbose=0)

    def test_hindsight_raises(self) -> None:
        agent = noterl.AlphaZero(lambda: envs.BitFlip(4), hidden=(4,), seed=4)
        with pytest.raises(ValueError, match=r"relabel.*AlphaZero"):
            agent.compile(replay=noterl.Replay(100, relabel=Hindsight()), batch_size=8)

    def test_gamma_must_be_below_1(self) -> None:
        with pytest.raises(ValueError, match="gamma"):
            noterl.AlphaZero("CartPole-v1", gamma=1.0)


class Coin(gymnasium.Env[Any, Any]):
    """Rewards an action that equals the next toss of a coin; it has state methods if `restores`."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, generator: Any = None) -> None:
        self.generator, self.count = generator, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        if seed is not None and self.generator is not None:
            self.generator.seed(seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        toss = self.np_random.random() if self.generator is None else self.generator.random()
        return np.zeros(1, np.float32), float(action == (toss < 0.5)), False, self.count == 9, {}


class SavedCoin(Coin):
    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


COINS: dict[str, Any] = {
    "copied": Coin,
    "restored": SavedCoin,
    "RandomState": lambda: Coin(np.random.RandomState()),
    "Random": lambda: Coin(random.Random()),
}


class TestChance:
    """A search samples chance; it does not foresee what the environment will do."""

    def agent(self, env: Any, **options: Any) -> noterl.AlphaZero:
        return noterl.AlphaZero(env, simulations=8, gamma=0.0, hidden=(8,), seed=4, **options)

    @pytest.mark.parametrize("name", COINS)
    def test_training_actions_do_not_follow_tosses_to_come(self, name: str) -> None:
        agent = self.agent(COINS[name], temperature=0.0, dirichlet_share=0.0)
        agent.compile(replay=noterl.Replay(1_000), learning_starts=10_000)
        agent.fit(steps=400, num_envs=8, verbose=0)
        storage = agent.replay._storage
        indices = storage.stored_indices()
        assert 0.4 < storage.reward[indices].mean() < 0.6
        env = COINS[name]()
        env.reset(seed=int(noterl.random.Generators(4)("environment/0").integers(2**31)))
        rows = indices[storage.lane[indices] == 0][:9].tolist()
        assert [env.step(storage.action[row])[1] for row in rows] == storage.reward[rows].tolist()

    def test_searches_sample_different_futures_and_leave_the_environment(self) -> None:
        agent, env, other = self.agent(Coin), Coin(), Coin()
        observation, _ = env.reset(seed=1)
        other.reset(seed=1)
        best = [agent.search((env, observation)).visit_shares.argmax() for _ in range(20)]
        assert set(best) == {0, 1}
        assert [env.step(0)[1] for _ in range(9)] == [other.step(0)[1] for _ in range(9)]

    def test_search_of_a_deterministic_environment_repeats(self) -> None:
        agent, env = self.agent("CartPole-v1"), gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=1)
        first, second = (agent.search((env, observation)) for _ in range(2))
        np.testing.assert_array_equal(first.visit_shares, second.visit_shares)
        assert first.value == second.value


@pytest.mark.parametrize("env", ["FrozenLake-v1", Coin, SavedCoin])
def test_resumed_run_of_one_player_equals_an_uninterrupted_one(env: Any, tmp_path: Path) -> None:
    def trained(steps: int) -> noterl.AlphaZero:
        agent = agent_of(env, replay=noterl.Replay(100, n_step=3))
        agent.fit(steps=steps, num_envs=3, verbose=0)
        return agent

    whole = trained(91)
    trained(50).save(tmp_path / "half.noterl")  # ends in the middle of a round
    resumed = noterl.load(tmp_path / "half.noterl")
    resumed.fit(env, steps=41, num_envs=3, verbose=0)
    assert whole.updates > 5
    assert_same_state(resumed, whole)


LOAD = """
import sys, noterl
agent = noterl.load(f"{sys.argv[1]}/agent.noterl")
agent.fit(steps=43, num_envs=4, verbose=0)
agent.save(f"{sys.argv[1]}/resumed.noterl")
"""


@pytest.mark.backends("jax", "torch")
class OnePlayer(TicTacToe):
    """One player places both kinds of stones, and is paid the first player's result."""

    players = 1

    def to_play(self, states: np.ndarray) -> np.ndarray:
        return np.zeros(len(states), np.int8)


def test_game_of_one_player_trains_and_is_searched() -> None:
    agent = agent_of(OnePlayer())
    agent.fit(episodes=4, verbose=0)
    shares, value = agent.search(agent.game.start(2))
    assert shares.shape == (2, 9) and value.shape == (2,)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    agent = agent_of()
    agent.fit(steps=50, num_envs=4, verbose=0)  # ends in the middle of a round
    agent.save(tmp_path / "agent.noterl")
    agent.fit(steps=43, num_envs=4, verbose=0)
    run_python(LOAD, tmp_path)
    assert agent.updates > 5
    assert_same_state(saving.read(tmp_path / "resumed.noterl")["state"], agent.get_state())


def test_loaded_agent_has_its_game(tmp_path: Path) -> None:
    agent = agent_of(ConnectFour())
    agent.fit(episodes=1, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    loaded: Any = noterl.load(tmp_path / "agent.noterl")
    assert isinstance(loaded.game, ConnectFour)
    state = ConnectFour().start(1)[0]
    np.testing.assert_allclose(loaded.search(state).visit_shares, agent.search(state).visit_shares)


@pytest.mark.parametrize("name", ["Replay", "NoSuchGame"])
def test_description_of_another_class_is_not_built(name: str) -> None:
    described = envs.resolve(TicTacToe()).describe()
    described["game"] = {"class": name, "arguments": {"capacity": 3}}
    if name == "Replay":
        with pytest.raises(ValueError, match="description"):
            envs.from_description(described)
        return
    source = envs.from_description(described)
    assert source.game is None and source.action_space == spaces.Discrete(9)
    with pytest.raises(ValueError, match="NoSuchGame"):
        source.make(0)


def test_state_with_foreign_fields_raises() -> None:
    agent = agent_of()
    agent.fit(steps=10, num_envs=4, verbose=0)
    state = agent.get_state()
    state["lanes"]["extra"] = {"visit_shares": np.zeros((4, 3), np.float32)}
    with pytest.raises(ValueError, match="lanes"):
        agent.set_state(state)


def test_network_of_the_user_is_used() -> None:
    network = keras.Sequential([keras.Input((18,)), keras.layers.Reshape((3, 6)), keras.layers.Flatten()])
    network.add(keras.layers.Dense(10))
    agent = noterl.AlphaZero(TicTacToe(), network=network, simulations=4, seed=1)
    agent.compile(replay=noterl.Replay(50, n_step=9), batch_size=8, learning_starts=10, update_every=8)
    agent.fit(steps=20, num_envs=2, verbose=0)
    assert not actor_of(agent).forward.in_numpy
    traces = agent.trace_counts["forward"]
    agent.fit(steps=20, verbose=0)
    assert agent.trace_counts["forward"] == traces, "forward passes of one search have one shape"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"simulations": 0}, "simulations"),
        ({"gumbel": 1}, "gumbel"),
        ({"c_puct": -1.0}, "c_puct"),
        ({"temperature": -0.5}, "temperature"),
        ({"dirichlet_alpha": "low"}, "dirichlet_alpha"),
        ({"dirichlet_share": 1.5}, "dirichlet_share"),
        ({"random_moves": 2}, "random_moves"),
        ({"gamma": 1.1}, "gamma"),
        ({"l2": -1}, "l2"),
        ({"normalize_reward": True}, "normalize_reward"),
    ],
)
def test_bad_argument_raises(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        noterl.AlphaZero(TicTacToe(), **arguments)


def test_same_seed_gives_the_same_run() -> None:
    first, second = agent_of(), agent_of()
    for agent in (first, second):
        agent.fit(episodes=6, num_envs=3, verbose=0)
    assert_same_state(first, second)


def test_saved_agent_keeps_its_arguments(tmp_path: Path) -> None:
    agent = noterl.AlphaZero(TicTacToe(), simulations=7, random_moves=0.1, hidden=(8,), seed=1)
    agent.save(tmp_path / "agent.noterl")
    loaded: Any = noterl.load(tmp_path / "agent.noterl")
    assert loaded.simulations == 7 and float(loaded.random_moves) == 0.1
