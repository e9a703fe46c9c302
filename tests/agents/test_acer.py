"""ACER: updates equal the NumPy reference, rollouts are replayed as sequences, and restored runs continue exactly."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.backends import current
from noterl.callbacks import AdaBatch, ESSAdapt, ESSWindow, Rate, Scale, Window
from noterl.replay import Hindsight, Prioritized
from noterl.types import Transition
from tests.support import reference_acer as reference
from tests.support import sequence_updates
from tests.support.batches import Corridor
from tests.support.doubles import branching_vector
from tests.support.parts import gather_batch, learner_of, run_updates
from tests.support.representatives import representatives
from tests.support.sequence_updates import LANES, ROUNDS, disturb, fields
from tests.support.states import assert_same_state

OBSERVATIONS, ACTIONS = spaces.Box(-9.0, 9.0, (3,), np.float32), spaces.Discrete(3)
GROUP, RTOL = 4, 1e-4
# Per case: arguments of the agent, and the number of weights that actor and critic share.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "trust region": ({"trust_region": 0.1}, 0),
    "shared layers, all weights truncated": ({"shared": True, "truncation": 0.3}, 2),
    "no trust region": ({"trust_region": None, "truncation": 0.7}, 0),
}


def small(**arguments: Any) -> noterl.ACER:
    rules: dict[str, Any] = {"hidden": (4,), "rollout_steps": ROUNDS, "gamma": 0.9, "entropy_coefficient": 0.02}
    return noterl.ACER((OBSERVATIONS, ACTIONS), **{**rules, "replay_starts": 0, "seed": 3, **arguments})


def fill(agent: Any, seed: int) -> None:
    sequence_updates.fill(agent, seed, lambda rng: rng.integers(3, size=LANES))


def fetched(values: Any) -> dict[str, np.ndarray]:
    return {name: current().fetch(value) for name, value in values.items()}


def reference_of(agent: Any, shared: int) -> reference.ACER:
    variables, limit = agent.get_state()["variables"], agent.trust_region
    return reference.ACER(
        *(variables[name] for name in ("actor", "critic", "average_actor")),
        shared=shared,
        truncation=float(agent.truncation),
        limit=None if limit is None else float(limit),
        entropy=0.02,
        value=0.5,
        epsilon=1e-6,
    )


@pytest.mark.parametrize("case", representatives(CASES, "trust region"))
def test_updates_equal_the_reference(case: str) -> None:
    arguments, shared = CASES[case]
    agent = small(**arguments)
    agent.compile(target_update=0.1)
    learner: Any = learner_of(agent)
    disturb(agent, 1)
    fill(agent, 4)
    first = gather_batch(agent, learner.sample(1))
    assert first.extra["continues"].sum() == 6
    behavior = reference_of(agent, shared).policy(first.observation[0].astype(np.float64))
    present = first.weight[0] > 0
    np.testing.assert_allclose(first.extra["behavior"][0][present], behavior[present], rtol=1e-5)
    disturb(agent, 2)
    fill(agent, 5)
    batch = gather_batch(agent, learner.sample(GROUP))
    model = reference_of(agent, shared)
    optimizer = reference.SlowRMSprop(7e-4, 10.0, list(range(len(model.weights))))
    result = run_updates(agent, batch, GROUP)
    assert result.applied == GROUP and not result.feedback
    logs = fetched(result.logs)
    for k in range(GROUP):
        expected = model.update(fields(batch, k), optimizer, tau=0.1)
        assert set(logs) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(logs[name][k], value, rtol=RTOL, atol=1e-5, err_msg=f"{name} {k}")
    pairs = [(agent.actor, [model.weights[k] for k in model.actors])]
    pairs += [(agent.critic, [model.weights[k] for k in model.critics]), (agent.average_actor, model.average)]
    for network, weights in pairs:
        for actual, expected in zip(noterl.networks.get_weights(network), weights, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)
    reached = (logs["limited"] > 0).any(), (logs["limited"] < 1).any()
    assert reached == (agent.trust_region is not None, True)


@pytest.mark.backends("torch")
def test_first_update_of_a_group_is_on_the_new_rollout() -> None:
    agent = small()
    learner: Any = learner_of(agent)
    for seed in (4, 5):
        fill(agent, seed)
        batch = gather_batch(agent, learner.sample(3))
    rollout = learner.rollout.batch(gamma=0.9)
    present = rollout.weight > 0
    assert batch.weight[0].tolist() == rollout.weight.tolist()
    for name in ("observation", "action", "reward", "next_observation", "discount"):
        np.testing.assert_array_equal(getattr(batch, name)[0][present], getattr(rollout, name)[present])
    np.testing.assert_array_equal(batch.extra["continues"][0], rollout.extra["continues"])
    assert len(agent.replay) == 2 * (ROUNDS * LANES - 1)
    assert batch.reward.shape == (3, ROUNDS, LANES) and batch.extra["behavior"].shape == (3, ROUNDS, LANES, 3)


@pytest.mark.backends("torch")
def test_number_of_updates_is_poisson_after_replay_starts() -> None:
    agent = small(replay_ratio=2.0, replay_starts=100)
    learner: Any = learner_of(agent)
    fill(agent, 4)
    assert learner.due(98, 99, 0).updates == 1
    counts = np.array([learner.due(99, 100, 0).updates for _ in range(4_000)]) - 1
    assert abs(counts.mean() - 2.0) < 0.1 and abs(counts.var() - 2.0) < 0.2
    agent.replay_ratio = 0.0
    assert {learner.due(99, 100, 0).updates for _ in range(50)} == {1}
    assert [learner.call_size(updates) for updates in (1, 3, 9)] == [1, 1, 1]
    agent.replay_ratio = 4.0
    assert [learner.call_size(updates) for updates in (1, 3, 9)] == [8, 8, 8]


@pytest.mark.backends("torch")
def test_number_of_updates_follows_a_schedule() -> None:
    agent = small(replay_ratio=noterl.schedules.Linear(0.0, 1e6, steps=100), replay_starts=0)
    learner: Any = learner_of(agent)
    fill(agent, 4)
    assert abs(learner.due(49, 50, 0).updates - 5e5) < 5e3


def walker(seed: int = 2, **settings: Any) -> noterl.ACER:
    agent = noterl.ACER(
        Corridor,
        hidden=(4,),
        rollout_steps=5,
        replay_starts=30,
        replay_ratio=2.0,
        normalize_observation=True,
        seed=seed,
    )
    agent.compile(**{"replay": 64, **settings})
    return agent


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> dict[str, Any]:
    """Return the state after 120 steps of three lanes, a file without the memory, and the programs that were traced."""
    agent, path = walker(), tmp_path_factory.mktemp("acer") / "agent.noterl"
    agent.fit(steps=120, num_envs=3, verbose=0)
    assert agent.updates > 8 + 4 and len(agent.replay) == 64
    state, traces = agent.get_state(), [agent.trace_counts["update"]]
    agent.save(path, replay=False)
    agent.fit(steps=240, verbose=0)
    return {"state": state, "path": path, "traces": [*traces, agent.trace_counts["update"]]}


@pytest.mark.backends("jax", "torch")
class TestResuming:
    """Three lanes and rollouts of five rounds: 15 steps."""

    @pytest.mark.parametrize("first", representatives([37, 60], 37))
    def test_restored_run_continues_within_a_rollout_and_a_round(self, whole: dict[str, Any], first: int, tmp_path):
        agent = walker()
        agent.fit(steps=first, num_envs=3, verbose=0)
        agent.save(tmp_path / "agent.noterl")
        again = walker(seed=9)
        again.restore(tmp_path / "agent.noterl")
        again.fit(steps=120 - first, verbose=0)
        assert_same_state(whole["state"], again)

    @pytest.mark.backends("torch")
    def test_results_do_not_depend_on_steps_per_execution(self, whole: dict[str, Any]) -> None:
        agent = walker(steps_per_execution=2)
        agent.fit(steps=120, num_envs=3, verbose=0)
        assert_same_state(whole["state"], agent)

    @pytest.mark.backends("torch")
    def test_loaded_agent_has_its_settings(self, tmp_path) -> None:
        agent = noterl.ACER(Corridor(), trust_region=None, truncation=5.0, hidden=(4,), seed=1)
        agent.compile(replay=100, target_update=0.2)
        agent.save(tmp_path / "agent.noterl")
        again = noterl.load(tmp_path / "agent.noterl")
        assert again.trust_region is None and float(again.truncation) == 5.0
        assert again.replay.capacity == 100 and float(again.tau) == pytest.approx(0.2)

    @pytest.mark.backends("torch")
    def test_run_continues_from_a_file_without_the_memory(self, whole: dict[str, Any]) -> None:
        agent = walker(seed=9)
        agent.restore(whole["path"])
        before = agent.updates
        agent.fit(steps=30, verbose=0)
        assert len(agent.replay) == 30 and agent.updates >= before + 2

    def test_numbers_of_updates_share_one_program(self, whole: dict[str, Any]) -> None:
        assert whole["traces"][0] == whole["traces"][1]


@pytest.mark.backends("torch")
def test_sequences_continue_from_one_rollout_to_the_next() -> None:
    agent = small()
    learner: Any = learner_of(agent)
    learner.open(1)
    for start in (0, ROUNDS, 2 * ROUNDS):
        if start == 2 * ROUNDS:
            learner.interrupt(0)
        for t in range(start, start + ROUNDS):
            learner.rollout.begin_round(np.full((1, 3), t / 10), np.zeros(1))
            learner.add(Transition(0, None, None, 1.0, np.full(3, (t + 1) / 10), False, False))
            learner.end_round()
        learner.sample(1)
    successor, last = agent.replay.sampler.storage.successor, 2 * ROUNDS - 1
    assert successor[:last].tolist() == list(range(1, last + 1))
    assert successor[last] < 0 and successor[last + 1] == last + 2


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:the budget ended")
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_environments_fill_the_memory(mode: str) -> None:
    agent = noterl.ACER(branching_vector(2, mode), rollout_steps=8, replay_starts=0, hidden=(4,), seed=1)
    agent.fit(steps=200, verbose=0)
    learner: Any = learner_of(agent)
    sample = learner.sequences.sample(20, 2, generator=np.random.default_rng(0))
    batch = learner.sequences.gather(sample, gamma=0.9)
    assert batch.weight.all()
    total = batch.observation[..., 2] + batch.action
    np.testing.assert_array_equal(batch.next_observation[..., 2], total)
    over = (total >= 6) | (batch.next_observation[..., 1] == 5)
    np.testing.assert_array_equal(batch.extra["continues"][:, :-1], ~over[:, :-1])
    following = batch.extra["continues"][:, :-1] > 0
    np.testing.assert_array_equal(batch.observation[:, 1:][following], batch.next_observation[:, :-1][following])
    np.testing.assert_array_equal(batch.discount, np.where(total >= 6, np.float32(0), np.float32(0.9)))


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:callbacks. ESS:UserWarning")  # ACER samples uniformly
@pytest.mark.parametrize(
    ("callbacks", "measured"),
    [
        (lambda: [Window(20)], ["window"]),
        (
            lambda: [
                ESSWindow(min_size=20, mode="target", scale=0.5, trim="sampled"),
                ESSAdapt(target_ess=20, lr=Rate(1e-3, 1e-4, 1e-2), tau=Rate(0.01, 0.01, 0.1)),
                AdaBatch(2, scale="simple", every=20, unit="steps", gamma=Rate(1e-3, 0.8, 0.99)),
            ],
            ["window", "ess", "ess_ratio", "gradient_noise", "lr", "tau"],
        ),
    ],
)
def test_callbacks_for_replay_memories_work(callbacks: Any, measured: list[str]) -> None:
    agent = walker()
    history = agent.fit(steps=200, num_envs=3, callbacks=callbacks(), verbose=0).history
    assert agent.updates > 13 and np.isfinite([history[name][-1] for name in measured]).all()
    if measured == ["window"]:  # at least a rollout is kept
        assert max(history["window"]) < 64 and min(history["window"][10:]) >= 15


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:callbacks. ESS:UserWarning")
@pytest.mark.parametrize("name", ["batch", "updates", "update_every"])
def test_counts_cannot_be_adapted(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        walker().fit(steps=20, callbacks=[ESSAdapt(target_ess=20, **{name: Scale()})], verbose=0)


def two_headed() -> Any:
    if keras.backend.backend() == "torch":
        import torch

        class Both(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.policy, self.q = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

            def forward(self, observation: Any) -> Any:
                return self.policy(observation), self.q(observation)

        return Both()
    observation = keras.Input((3,))
    return keras.Model(observation, [keras.layers.Dense(2)(observation) for _ in range(2)])


NETWORKS: dict[str, Any] = {
    "actor and critic": lambda: (noterl.networks.mlp(3, [5], 2), noterl.networks.mlp(3, [6], 2)),
    "both in one": two_headed,
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", NETWORKS)
def test_own_networks_are_trained(name: str) -> None:
    agent = noterl.ACER(Corridor(), network=NETWORKS[name](), rollout_steps=5, replay_starts=0, seed=1)
    before = agent.get_weights()
    agent.fit(steps=10, verbose=0)
    after = agent.get_weights()
    assert not any(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.backends("torch")
def test_image_networks_share_convolutions() -> None:
    space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    agent = noterl.ACER((space, ACTIONS), rollout_steps=2, replay_starts=0, seed=1)
    agent.compile(replay=16)
    learner: Any = learner_of(agent)
    learner.open(2)
    rng = np.random.default_rng(0)
    for _ in range(2):
        learner.rollout.begin_round(rng.integers(256, size=(2, 36, 36, 1), dtype=np.uint8), np.array([0, 2]))
        for lane in range(2):
            after = rng.integers(256, size=(36, 36, 1), dtype=np.uint8)
            learner.add(Transition(lane, None, None, 1.0, after, False, False))
        learner.end_round()
    batch = gather_batch(agent, learner.sample(2))
    assert batch.observation.dtype == np.uint8 and agent.replay.sampler.storage.observation.dtype == np.uint8
    actor, critic = (noterl.networks.variables(network) for network in (agent.actor, agent.critic))
    assert all(ours is theirs for ours, theirs in zip(actor[:-2], critic[:-2], strict=True))
    before = agent.get_weights()
    assert run_updates(agent, batch, 2).applied == 2
    after = agent.get_weights()
    assert not any(np.array_equal(before[name], after[name]) for name in before if before[name].ndim > 1)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 32}, r"batch_size .*got 32"),
        ({"learning_starts": 5}, "learning_starts"),
        ({"update_every": 4}, "update_every"),
        ({"updates": 2}, "updates"),
        ({"replay": noterl.Replay(99, sampler=Prioritized())}, r"replay .*sampler"),
        ({"replay": noterl.Replay(99, n_step=3)}, r"replay .*n_step"),
        ({"replay": noterl.Replay(99, relabel=Hindsight())}, r"replay .*relabel"),
        ({"policy": noterl.policies.GumbelSoftmaxPolicy(eps=0.5)}, "policy"),
        ({"target_update": 1.5}, "target_update"),
    ],
)
def test_compile_raises_for_bad_argument(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().compile(**settings)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rollout_steps": 0}, "rollout_steps"),
        ({"replay_ratio": -1.0}, "replay_ratio"),
        ({"replay_starts": -1}, "replay_starts"),
        ({"truncation": -1.0}, "truncation"),
        ({"trust_region": -1.0}, "trust_region"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"gamma": 1.5}, "gamma"),
        ({"network": (1, 2, 3)}, "network"),
    ],
)
def test_constructor_raises_for_bad_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**arguments)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("space", [spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.MultiDiscrete([2, 3])])
def test_other_actions_raise(space: spaces.Space[Any]) -> None:
    with pytest.raises(ValueError, match=r"ACER takes a Discrete action space"):
        noterl.ACER((OBSERVATIONS, space))


@pytest.mark.backends("torch")
def test_critic_with_one_value_raises() -> None:
    network = noterl.networks.mlp(3, [5], 3), noterl.networks.mlp(3, [5], 1)
    with pytest.raises(ValueError, match="network"):
        small(network=network).build()


@pytest.mark.backends("torch")
def test_memory_that_cannot_hold_a_rollout_raises() -> None:
    agent = walker(replay=20)
    with pytest.raises(ValueError, match=r"replay .*num_envs=5.*25.*got 20"):
        agent.fit(steps=10, num_envs=5, verbose=0)


@pytest.mark.backends("torch")
def test_trust_region_cannot_be_added_later() -> None:
    agent = small(trust_region=None)
    with pytest.raises(ValueError, match="trust_region"):
        agent.trust_region = 1.0
    agent = small()
    agent.trust_region = 0.5
    assert float(agent.trust_region) == 0.5


@pytest.mark.backends("jax")
def test_acer_learns_cart_pole() -> None:
    agent = noterl.ACER("CartPole-v1", hidden=(32, 32), entropy_coefficient=0.0, replay_starts=1_000, seed=1)
    agent.compile(keras.optimizers.Adam(2e-3, global_clipnorm=10.0))
    agent.fit(steps=20_000, num_envs=4, verbose=0)
    assert agent.evaluate(episodes=10)["reward_mean"] > 150
