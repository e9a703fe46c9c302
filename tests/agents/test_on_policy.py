"""PPO and A2C: updates equal the NumPy reference, restored runs continue exactly, and CartPole is learned."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import heads
from noterl.backends import current
from noterl.backends.common import GroupResult
from noterl.callbacks import LambdaCallback
from noterl.envs import FrameStack
from noterl.policies import GumbelSoftmaxPolicy, SoftmaxPolicy
from noterl.replay import Prioritized, RatioScore
from noterl.types import Transition
from tests.support import reference_on_policy as reference
from tests.support.doubles import RandomWalkEnv, branching_vector
from tests.support.parts import gather_batch, learner_of, run_updates, sample_batch
from tests.support.representatives import representatives
from tests.support.rollouts import LANES, OBSERVATIONS, ROUNDS, SPACES, enlarged, fetched, filled, flat
from tests.support.states import assert_same_state

# Per case: kind of action space, arguments of the agent, number of weights that actor and critic share.
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "discrete, values clipped": ("discrete", {"value_clip": 0.1, "entropy_coefficient": 0.01}, 0),
    "several choices, shared layers": ("multi", {"shared": True, "entropy_coefficient": 0.02}, 2),
    "continuous, two optimizers": ("box", {"optimizers": 2, "entropy_coefficient": 0.01}, 0),
    "several bits": ("binary", {"entropy_coefficient": 0.01}, 0),
}
RTOL, ATOL = 1e-4, 2e-6


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", [noterl.PPO, noterl.A2C])
def test_gumbel_softmax_policy_for_rollouts_raises(kind: Any) -> None:
    """The stored log-probabilities would not be those of the policy."""
    agent = kind((OBSERVATIONS, SPACES["discrete"]), hidden=(4,), seed=3)
    with pytest.raises(ValueError, match=r"policy .*GumbelSoftmaxPolicy"):
        agent.compile(policy=GumbelSoftmaxPolicy(eps=0.5))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", [noterl.PPO, noterl.A2C])
def test_softmax_policy_for_agents_that_sample_is_answered_with_leave_it_out(kind: Any) -> None:
    """Each PPO line of Note_rl's README has this policy."""
    agent = kind((OBSERVATIONS, SPACES["discrete"]), hidden=(4,), seed=3)
    with pytest.raises(ValueError, match=r"policy SoftmaxPolicy .*probabilities"):
        agent.compile(policy=SoftmaxPolicy())


def softmax_network(functional: bool) -> Any:
    if keras.backend.backend() == "torch":
        import torch

        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Softmax(dim=-1))
    inputs = keras.Input((3,))
    if functional:
        return keras.Model(inputs, keras.layers.Softmax()(keras.layers.Dense(3)(inputs)))
    return keras.Sequential([inputs, keras.layers.Dense(3, activation="softmax")])


@pytest.mark.parametrize("functional", [False, True])
def test_actor_that_ends_in_softmax_returns_probabilities(functional: bool) -> None:
    agent = ppo("discrete", network=softmax_network(functional))
    assert isinstance(agent.head, heads.Probabilities)
    agent.build()
    tensor = keras.ops.convert_to_tensor
    observations = tensor(np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32))
    actions = np.array([0, 1, 2, 0, 1], np.int32)
    probabilities = current().fetch(agent.forward(observations))
    expected = np.log(probabilities[np.arange(5), actions])
    np.testing.assert_allclose(current().fetch(agent.log_prob(observations, tensor(actions))), expected, rtol=1e-4)


def two_headed(inputs: int = 3, actions: int = 3) -> Any:
    if keras.backend.backend() == "torch":
        import torch

        class Both(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.trunk = torch.nn.Linear(inputs, 8)
                self.policy, self.value = torch.nn.Linear(8, actions), torch.nn.Linear(8, 1)

            def forward(self, observation: Any) -> Any:
                features = torch.tanh(self.trunk(observation))
                return self.policy(features), self.value(features)

        return Both()
    observation = keras.Input((inputs,))
    features = keras.layers.Dense(8, activation="tanh")(observation)
    return keras.Model(observation, [keras.layers.Dense(actions)(features), keras.layers.Dense(1)(features)])


@pytest.mark.parametrize("kind", [noterl.PPO, noterl.A2C])
def test_network_with_two_outputs_is_actor_and_critic(kind: Any) -> None:
    network = two_headed()
    agent = kind((OBSERVATIONS, SPACES["discrete"]), network=network, rollout_steps=ROUNDS, seed=3)
    assert list(agent.networks()) == ["actor"]
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    logits, values = (current().fetch(each) for each in network(keras.ops.convert_to_tensor(observations)))
    np.testing.assert_allclose(current().fetch(agent.forward(keras.ops.convert_to_tensor(observations))), logits)
    np.testing.assert_allclose(current().fetch(agent.value(keras.ops.convert_to_tensor(observations))), values[:, 0])
    assert agent.act(observations).tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.backends("torch")
def test_network_with_two_outputs_is_trained() -> None:
    agent = noterl.PPO("CartPole-v1", network=two_headed(4, 2), rollout_steps=8, epochs=1, seed=3)
    before = agent.get_weights()
    agent.fit(steps=16, verbose=0)
    after = agent.get_weights()
    assert agent.updates > 0 and not any(np.array_equal(before[name], after[name]) for name in before)


def test_network_with_two_outputs_needs_one_optimizer() -> None:
    with pytest.raises(ValueError, match="optimizers"):
        ppo("discrete", network=two_headed(), optimizers=2)


def test_list_of_optimizers_names_the_argument_for_two() -> None:
    agent = ppo("discrete")
    with pytest.raises(ValueError, match="optimizers=2"):
        agent.compile([keras.optimizers.Adam(), keras.optimizers.Adam()])


def test_softmax_inside_forward_raises() -> None:
    class Softmaxed(noterl.PPO):
        def forward(self, observation: Any) -> Any:
            return keras.ops.softmax(super().forward(observation))

    with pytest.raises(ValueError, match=r"logits.*Probabilities"):
        Softmaxed((OBSERVATIONS, SPACES["discrete"]), hidden=(4,), seed=3).build()


def ppo(kind: str, **arguments: Any) -> noterl.PPO:
    rules: dict[str, Any] = {"hidden": (4,), "rollout_steps": ROUNDS, "epochs": 2, "gamma": 0.9, "seed": 3}
    return noterl.PPO((OBSERVATIONS, SPACES[kind]), **rules, **arguments)


def assert_equals_reference(
    agent: Any, model: reference.ActorCritic, optimizers: list[Any], masked: bool = False
) -> None:
    """Update the agent and the reference on the same rollout; compare prepared fields, logs and weights."""
    rollout, learner = filled(agent, masked), learner_of(agent)
    rows: Any = learner.sample(learner.due(0, 0, 0).updates)
    prepared = model.prepared(rollout)
    data = fetched(learner.prepared_rows.extra)
    for name, expected in prepared.items():
        np.testing.assert_allclose(data[name], expected.reshape(-1), rtol=RTOL, atol=ATOL, err_msg=name)
    result = run_updates(agent, rows, len(rows))
    assert result.applied == len(rows) and not result.stopped_early
    logs, fields = fetched(result.logs), flat({**rollout, **prepared})
    for k, row in enumerate(rows):
        batch = {name: array[row] for name, array in fields.items()}
        for name, expected in model.losses(batch).items():
            np.testing.assert_allclose(logs[name][k], expected, rtol=RTOL, atol=1e-5, err_msg=f"{name} {k}")
        gradients = model.gradients(batch)
        for optimizer in optimizers:
            optimizer.apply(model.weights, gradients)
    networks = (agent.actor, model.actors), (agent.critic, model.critics)
    for network, which in networks:
        for weight, k in zip(noterl.networks.get_weights(network), which, strict=True):
            np.testing.assert_allclose(weight, model.weights[k], rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("case", representatives(CASES, "discrete, values clipped", "continuous, two optimizers"))
def test_ppo_equals_the_reference(case: str) -> None:
    kind, arguments, shared = CASES[case]
    agent = ppo(kind, **arguments)
    enlarged(agent)
    agent.compile(keras.optimizers.Adam(0.01, epsilon=1e-5, global_clipnorm=0.1), batch_size=4)
    agent.build()
    variables = agent.get_state()["variables"]
    model = reference.ActorCritic(
        variables["actor"],
        variables["critic"],
        kind=kind,
        shared=shared,
        gae_lambda=0.95,
        clip=0.2,
        value_clip=arguments.get("value_clip"),
        entropy=arguments["entropy_coefficient"],
        value=0.5,
    )
    own = [model.actors, model.critics] if "optimizers" in arguments else [list(range(len(model.weights)))]
    assert_equals_reference(agent, model, [reference.Adam(0.01, 0.1, which) for which in own])


def test_a2c_equals_the_reference() -> None:
    agent = noterl.A2C(
        (OBSERVATIONS, SPACES["discrete"]),
        hidden=(4,),
        rollout_steps=ROUNDS,
        gamma=0.9,
        gae_lambda=1.0,
        entropy_coefficient=0.01,
        seed=3,
    )
    enlarged(agent)
    agent.compile()
    agent.build()
    variables = agent.get_state()["variables"]
    model = reference.ActorCritic(
        variables["actor"], variables["critic"], kind="discrete", gae_lambda=1.0, entropy=0.01, value=0.5
    )
    rules = agent.optimizer.get_config()
    assert (rules["rho"], rules["epsilon"], rules["global_clipnorm"]) == (0.99, 1e-10, 0.5)
    assert_equals_reference(agent, model, [reference.RMSprop(7e-4, 0.5, list(range(len(model.weights))))])


def recording(env: Any, **arguments: Any) -> tuple[noterl.PPO, list[Any]]:
    """Return an agent that makes no updates, and the list to which it adds copies of its rollouts."""
    agent, rollouts = noterl.PPO(env, hidden=(4,), epochs=1, **arguments), []
    learner: Any = learner_of(agent)
    sample = learner.sample

    def record(updates: int) -> Any:
        rollouts.append(copy.deepcopy(learner.rollout.batch(gamma=0.9)))
        return sample(updates)

    learner.sample = record
    learner.update = lambda batch, count: GroupResult({"loss": np.zeros(count, np.float32)}, {}, count)
    return agent, rollouts


@pytest.mark.backends("torch")
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vector_environments_fill_rollouts(mode: str) -> None:
    agent, rollouts = recording(branching_vector(2, mode), rollout_steps=8, seed=1)
    agent.fit(steps=40, verbose=0)
    batch = rollouts[0]
    steps, lanes = batch.reward.shape
    assert (batch.weight == 0).any() == (mode == "NextStep")
    for lane in range(lanes):
        for t in range(steps):
            if not batch.weight[t, lane]:
                continue
            episode, step, total = batch.observation[t, lane]
            action, after = batch.action[t, lane], batch.next_observation[t, lane]
            assert batch.reward[t, lane] == 100 * (step + 1) + action
            assert after.tolist() == [episode, step + 1, total + action]
            over = after[2] >= 6 or after[1] == 5
            assert batch.discount[t, lane] == np.float32(0.0 if after[2] >= 6 else 0.9)
            assert batch.extra["continues"][t, lane] == (not over and t + 1 < steps)
            if batch.extra["continues"][t, lane]:
                assert batch.observation[t + 1, lane].tolist() == after.tolist()


class RecordingWalk(RandomWalkEnv):
    """Records its actions, and checks that they are within the bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.pushes: list[float] = []

    def step(self, action):
        assert self.action_space.contains(action)
        self.pushes.append(float(action[0]))
        return super().step(action)


@pytest.mark.backends("torch")
def test_environment_receives_clipped_actions_and_rollout_stores_sampled_ones() -> None:
    env = RecordingWalk()
    agent, rollouts = recording(env, rollout_steps=32, log_std=1.0, seed=1)
    agent.fit(steps=32, verbose=0)
    sampled = rollouts[0].action[:, 0, 0]
    assert (np.abs(sampled) > 1).any()
    assert env.pushes == np.clip(sampled, -1.0, 1.0).tolist()


def walker(**settings: Any) -> noterl.PPO:
    agent = noterl.PPO(RandomWalkEnv, hidden=(4,), rollout_steps=5, epochs=2, seed=settings.pop("seed", 2))
    agent.compile(batch_size=6, **settings)
    return agent


@pytest.fixture(scope="module")
def runs() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states after the first rollout, and after 80 steps."""
    agent = walker()
    agent.fit(steps=15, num_envs=3, verbose=0)
    first = agent.get_state()
    agent.fit(steps=65, verbose=0)
    assert agent.updates == 5 * 2 * 3
    return first, agent.get_state()


@pytest.fixture(scope="module")
def whole(runs: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    return runs[1]


@pytest.mark.backends("jax", "torch")
class TestResuming:
    """Three lanes and rollouts of five rounds: 15 steps in minibatches of 6, of which the last is padded."""

    @pytest.mark.parametrize("first", representatives([37, 60], 37))
    def test_restored_run_continues_within_a_rollout_and_a_round(self, whole: dict[str, Any], first: int, tmp_path):
        agent = walker()
        agent.fit(steps=first, num_envs=3, verbose=0)
        agent.save(tmp_path / "agent.noterl", replay=False)
        again = walker(seed=9)
        again.restore(tmp_path / "agent.noterl")
        again.fit(steps=80 - first, verbose=0)
        assert_same_state(whole, again)

    def test_results_do_not_depend_on_steps_per_execution(self, whole: dict[str, Any]) -> None:
        agent = walker(steps_per_execution=4)
        agent.fit(steps=80, num_envs=3, verbose=0)
        assert_same_state(whole, agent)

    @pytest.mark.backends("tensorflow", "torch")  # JAX would compile each operation
    def test_uncompiled_run_gives_the_same_weights(self, runs: tuple[dict[str, Any], dict[str, Any]]) -> None:
        agent = walker(jit_compile=False)
        agent.fit(steps=15, num_envs=3, verbose=0)
        for name, weights in runs[0]["variables"].items():
            for expected, weight in zip(weights, agent.get_state()["variables"][name], strict=True):
                np.testing.assert_allclose(weight, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replay": -100}, "replay .*got -100"),
        ({"learning_starts": 5}, "learning_starts"),
        ({"update_every": 4}, "update_every"),
        ({"batch_size": 0}, "batch_size .*got 0"),
        ({"noise": noterl.noise.GaussianWhiteNoiseProcess()}, "noise"),
        ({"policy": noterl.policies.GreedyQPolicy()}, "policy GreedyQPolicy .*head Categorical"),
    ],
)
def test_compile_raises_for_bad_argument(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ppo("discrete").compile(**settings)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizers": 3}, "optimizers .*got 3"),
        ({"optimizers": True}, "optimizers .*got True"),
        ({"optimizers": np.array([1, 2])}, r"optimizers .*got array"),
        ({"clip": -1.0}, "clip"),
        ({"gamma": 1.5}, "gamma"),
        ({"network": 1}, "network .*got 1"),
        ({"network": (1, 2, 3)}, "network"),
        ({"network": (1, 2)}, "network .*got 1"),
        ({"shared": "no"}, "shared .*got 'no'"),
        ({"normalize_observation": "no"}, "normalize_observation"),
        ({"normalize_reward": 3}, "normalize_reward"),
        ({"normalize_advantage": 2}, "normalize_advantage"),
    ],
)
def test_constructor_raises_for_bad_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noterl.PPO("CartPole-v1", **arguments)


@pytest.mark.backends("torch")
def test_log_std_must_be_finite() -> None:
    with pytest.raises(ValueError, match=r"log_std .*got nan"):
        noterl.PPO("Pendulum-v1", log_std=float("nan"))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("arguments", [{"rollout_steps": 0}, {"epochs": 1.5}])
def test_rollout_steps_and_epochs_must_be_positive_ints(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        noterl.PPO("CartPole-v1", **arguments)
    agent = noterl.PPO("CartPole-v1")
    setattr(agent, name, arguments[name])
    with pytest.raises(ValueError, match=name):
        agent.compile()


@pytest.mark.backends("torch")
def test_a2c_checks_rollout_steps() -> None:
    with pytest.raises(ValueError, match="rollout_steps"):
        noterl.A2C("CartPole-v1", rollout_steps=-5)


@pytest.mark.parametrize("shape", [(36, 36, 1), (1, 36, 36)])
def test_images_use_shared_nature_network(shape: tuple[int, ...]) -> None:
    agent = noterl.PPO((spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(2)), seed=1)
    actor, critic = (noterl.networks.variables(network) for network in (agent.actor, agent.critic))
    assert all(ours is theirs for ours, theirs in zip(actor[:-2], critic[:-2], strict=True)) and len(actor) == 10
    assert isinstance(agent.head, heads.Categorical) and agent.defaults().batch_size == 256


@pytest.mark.backends("jax")
def test_ppo_learns_cart_pole() -> None:
    agent = noterl.PPO("CartPole-v1", gamma=0.98, gae_lambda=0.8, rollout_steps=32, epochs=10, hidden=(32, 32), seed=1)
    agent.compile(keras.optimizers.Adam(2e-3, epsilon=1e-5, global_clipnorm=0.5), batch_size=128)
    agent.fit(steps=16_000, num_envs=8, verbose=0)
    # A random policy has a return of 22.
    assert agent.evaluate(episodes=10)["reward_mean"] > 150


def with_replay(capacity: int = 40, seed: int = 2) -> noterl.PPO:
    """Return an agent that stores its rollouts in a prioritized memory and samples batches of 6."""
    agent = noterl.PPO(RandomWalkEnv, hidden=(4,), rollout_steps=5, epochs=2, gamma=0.9, seed=seed)
    sampler = Prioritized(score=RatioScore())
    agent.compile(batch_size=6, replay=noterl.Replay(capacity, sampler=sampler))
    return agent


@pytest.mark.backends("torch")
class TestReplayOfRollouts:
    def test_memory_stores_the_prepared_rollout(self) -> None:
        agent = with_replay()
        learner: Any = learner_of(agent)
        rng, memory = np.random.default_rng(4), learner.rollout
        memory.open(LANES)
        for t in range(5):
            memory.begin_round(rng.normal(size=(LANES, 2)), rng.normal(scale=3, size=(LANES, 1)))
            for lane in range(LANES):
                if (t, lane) != (3, 1):
                    ends = ((t, lane) == (1, 0), (t, lane) in ((2, 1), (2, 0)))
                    memory.add(Transition(lane, None, None, rng.normal(), rng.normal(size=2), *ends))
            memory.end_round()
        prepared = learner.prepare()
        expected = {**fetched(prepared._asdict() | {"extra": 0}), **fetched(prepared.extra)}
        sample = learner.sample(4)
        assert len(agent.replay) == 9 and sample.indices.shape == (4, 6)
        batch = gather_batch(agent, sample)
        valid = np.flatnonzero(expected["weight"])
        for name in ("observation", "action", "reward", "next_observation", "discount"):
            rows = expected[name][valid][sample.indices]
            np.testing.assert_array_equal(getattr(batch, name), rows, err_msg=name)
        for name in ("value", "log_prob", "advantage", "target"):
            np.testing.assert_array_equal(batch.extra[name], expected[name][valid][sample.indices], err_msg=name)

    def test_feedback_holds_td_error_and_ratio(self) -> None:
        agent = ppo("discrete")
        agent.compile(
            keras.optimizers.Adam(0.01), batch_size=4, replay=noterl.Replay(50, sampler=Prioritized(score=RatioScore()))
        )
        agent.build()
        filled(agent)
        batch = sample_batch(agent, 2)
        variables = agent.get_state()["variables"]
        rules = {"gae_lambda": 0.95, "clip": 0.2, "entropy": 0.0, "value": 0.5}
        model = reference.ActorCritic(variables["actor"], variables["critic"], kind="discrete", **rules)
        feedback = fetched(run_updates(agent, batch, 2).feedback)
        np.testing.assert_allclose(feedback["ratio"][0], 1.0, rtol=1e-5)
        errors = batch.extra["target"][0] - model.value(batch.observation[0].astype(float))
        np.testing.assert_allclose(feedback["td_error"][0], errors, rtol=RTOL, atol=ATOL)
        assert abs(feedback["ratio"][1] - 1).max() > 1e-4

    def test_restored_run_continues_as_if_uninterrupted(self, tmp_path) -> None:
        whole, part, again = with_replay(), with_replay(), with_replay(seed=9)
        whole.fit(steps=80, num_envs=3, verbose=0)
        assert len(whole.replay) == 40 and whole.updates == 5 * 2 * 3
        part.fit(steps=37, num_envs=3, verbose=0)
        part.save(tmp_path / "part.noterl")
        again.restore(tmp_path / "part.noterl")
        again.fit(steps=43, verbose=0)
        assert_same_state(whole, again)
        # The memory holds transitions of several rollouts, with priorities from updates.
        scores = whole.replay.sampler.probabilities()
        assert len(scores) == 40 and len(set(scores.tolist())) > 20

    def test_batches_are_smaller_while_fewer_transitions_can_be_sampled(self) -> None:
        """The oldest transitions of a full memory lack frames of their stack, and `keep` excludes others."""
        agent = noterl.PPO(lambda: FrameStack(RandomWalkEnv(), 4), rollout_steps=16, epochs=2, hidden=(4,), seed=1)
        agent.compile(replay=noterl.Replay(16, frame_stack=4, stack_axis=-1), batch_size="rollout")
        agent.fit(steps=64, verbose=0)
        assert agent.updates == 2 * 4 and agent.replay.num_sampleable() < 16
        exclude = LambdaCallback(on_batch_end=lambda *_: agent.replay.keep(agent.replay._storage.stored_indices()[8:]))
        agent.fit(steps=32, callbacks=[exclude], verbose=0)
        assert agent.updates == 2 * 6

    @pytest.mark.parametrize("kind", [noterl.PPO, noterl.ACER])
    @pytest.mark.parametrize("discard", ["set_weights", "compile"])
    def test_stacks_do_not_span_a_discarded_rollout(self, kind: Any, discard: str) -> None:
        """The frame 4 comes twice, and the step between is discarded, so the newest frames seem to continue."""

        class Still(gymnasium.Env):
            observation_space, action_space = gymnasium.spaces.Box(0, 99, (1,)), gymnasium.spaces.Discrete(2)
            path = (1, 2, 3, 4, 4, *range(5, 20))

            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                self.time = 0
                return np.array([self.path[0]], np.float32), {}

            def step(self, action: Any) -> Any:
                self.time += 1
                return np.array([self.path[self.time]], np.float32), 0.0, False, self.time == 19, {}

        options = {} if kind is noterl.ACER else {"epochs": 1}
        agent = kind(lambda: FrameStack(Still(), 3), hidden=(4,), rollout_steps=3, seed=1, **options)
        replay = noterl.Replay(200, frame_stack=3, stack_axis=-1)
        batch = {} if kind is noterl.ACER else {"batch_size": 3}
        agent.compile(replay=replay, **batch)
        agent.fit(steps=4, verbose=0)
        if discard == "set_weights":
            agent.set_weights({name: value + 0.1 for name, value in agent.get_weights().items()})
        else:
            agent.compile(replay=replay, **batch)
        agent.fit(steps=6, verbose=0)
        storage = replay.sampler.storage
        indices = storage.stored_indices()
        sampled = indices[storage.sampleable(indices)]
        stacks = storage.observations(sampled)[:, ::1], storage.next_observations(sampled)
        path = (1, 1, *Still.path)
        real = {path[start : start + 3] for start in range(len(path) - 2)}
        assert len(sampled) >= 4 and len(indices) == 9
        assert all(tuple(row.tolist()) in real for rows in stacks for row in rows)

    def test_no_noise_is_measured_without_a_rollout(self) -> None:
        agents = with_replay(), noterl.ACER("CartPole-v1", hidden=(4,), rollout_steps=4, replay_starts=0, seed=1)
        for agent in agents:
            assert agent.gradient_noise(2)() is None
            agent.fit(steps=60, num_envs=2, verbose=0)
            agent.compile(replay=agent.replay)
            assert agent.gradient_noise(2)() is None

    def test_unsupported_replay_raises(self) -> None:
        normalizing = noterl.PPO(lambda: FrameStack(RandomWalkEnv(), 4), normalize_observation=True)
        with pytest.raises(ValueError, match="replay must"):
            normalizing.compile(replay=noterl.Replay(100, frame_stack=4, stack_axis=-1))
        with pytest.raises(ValueError, match=r"replay .*target_kl"):
            ppo("discrete", target_kl=0.1).compile(replay=noterl.Replay(100))
        with pytest.raises(ValueError, match="replay"):
            noterl.A2C("CartPole-v1").compile(replay=noterl.Replay(100))
        with pytest.raises(ValueError, match=r"replay .*relabel"):
            ppo("discrete").compile(replay=noterl.Replay(100, relabel=noterl.replay.Hindsight()))
