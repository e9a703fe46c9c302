"""The doctor's measurements, and what it prints."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward

import noterl
from noterl.callbacks import CSVLogger, Doctor
from noterl.callbacks.support.diagnosis import diagnose
from noterl.callbacks.support.probe import recent_rows
from noterl.cli import main
from tests.support import space_envs
from tests.support.doubles import CountingEnv

pytestmark = pytest.mark.backends("torch")


def small_dqn(**arguments: Any) -> noterl.DQN:
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1, **arguments)
    agent.compile(learning_starts=50, update_every=1, updates=1, batch_size=8)
    return agent


def test_fault_is_found_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    doctor = Doctor()
    small_dqn(gamma=0.0).fit(steps=400, callbacks=[doctor], verbose=2)
    assert doctor.findings[0].name == "gamma_low"
    # When it enters the list, and at the end.
    assert capsys.readouterr().err.count("Doctor: gamma_low") == 2


def test_short_run_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    doctor = Doctor()
    small_dqn(gamma=0.0).fit(steps=80, callbacks=[doctor], verbose=2)
    assert doctor.findings == []
    assert "Doctor: too little was measured to judge" in capsys.readouterr().err


def test_second_fit_is_judged_on_its_own() -> None:
    doctor = Doctor()
    agent = small_dqn()
    agent.fit(steps=300, callbacks=[doctor], verbose=0)
    agent.fit(steps=200, callbacks=[doctor], verbose=0)
    assert doctor.measures["updates_so_far"][0] < 100


def test_series_have_one_length() -> None:
    doctor = Doctor()
    agent = noterl.PPO("CartPole-v1", rollout_steps=32, epochs=1, hidden=(8,), seed=1)
    history = agent.fit(steps=1_600, num_envs=2, callbacks=[doctor], verbose=0).history
    measured = {name: values for name, values in doctor.measures.items() if name not in history}
    (measurements,) = {len(values) for values in measured.values()}
    # 25 updates; the second of them follows update 13 or the end of the episode that contains update 13.
    assert measurements >= 2
    assert np.isfinite(doctor.measures["policy_direction"][1:]).all()
    assert 0 < doctor.measures["progress"][-1] <= 1


@pytest.mark.backends("jax")  # whose programs are for one number of rows
def test_measurements_are_compiled_once() -> None:
    agent = small_dqn()
    agent.fit(steps=300, callbacks=[Doctor()], verbose=0)
    assert agent.trace_counts["doctor"] == 1


def test_reference_takes_at_most_one_percent_of_the_steps() -> None:
    steps: list[int] = []

    class Counted(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            steps.append(1)
            return super().step(action)

    agent = noterl.PPO(lambda: Counted(gymnasium.make("CartPole-v1")), rollout_steps=100, hidden=(8,), seed=1)
    agent.fit(steps=1_000, callbacks=[Doctor()], verbose=0)
    assert 1_000 < len(steps) <= 1_010


def test_reference_adds_up_unclipped_rewards() -> None:
    """Constant and random actions earn 0.1 in each of the ten steps."""
    small = lambda: TransformReward(CountingEnv(10), lambda reward: 0.1)  # noqa: E731
    agent, doctor = noterl.DQN(lambda: noterl.envs.ClipRewards(small()), hidden=(8,), seed=1), Doctor()
    agent.compile(learning_starts=50, update_every=10, updates=1, batch_size=8)
    agent.fit(steps=3_000, callbacks=[doctor], verbose=0)
    assert set(np.round(doctor.measures["reference"], 6)) == {1.0}


@pytest.mark.parametrize(
    ("normalized", "remaining"), [("normalize_observation", "reward_size"), ("normalize_reward", "observation_scale")]
)
def test_scale_that_is_normalized_does_not_matter(normalized: str, remaining: str) -> None:
    doctor = Doctor()
    small_dqn(**{normalized: True}).fit(steps=400, callbacks=[doctor], verbose=0)
    scales = {"reward_size", "observation_scale"}
    finite = {name for name in scales if np.isfinite(doctor.measures[name]).any()}
    assert finite == {remaining}


class BinaryActions(CountingEnv):
    action_space: Any = gymnasium.spaces.MultiBinary(2)


@pytest.mark.filterwarnings("ignore:observations of the shape")  # small images
@pytest.mark.parametrize("kind", [*space_envs.SPACES, "masked Dict", "binary actions", "no copy"])
def test_any_environment_can_be_examined(kind: str) -> None:
    builders: dict[str, Any] = {"binary actions": BinaryActions, "no copy": partial(space_envs.make, "Box")}
    build = builders.get(kind, partial(space_envs.make, kind))
    made = 0

    def make() -> Any:
        nonlocal made
        made += 1
        if kind == "no copy" and made > 1:
            raise OSError("the device is in use")
        return build()

    doctor = Doctor()
    if kind == "binary actions":
        agent: Any = noterl.A2C(make, rollout_steps=8, hidden=(8,), seed=1)
    else:
        agent = noterl.DQN(make, hidden=(8,), seed=1)
        agent.compile(learning_starts=50, update_every=1, updates=1, batch_size=8)
    agent.fit(steps=400, callbacks=[doctor], verbose=0)
    assert len(doctor.measures["progress"]) >= 4
    assert ("reference" in doctor.measures) == (kind not in ("masked Dict", "no copy"))
    # Pixels, one-hot codes and the numbers of a Dict have no scale of their own.
    assert ("observation_scale" in doctor.measures) == (kind in ("Box", "no copy", "binary actions"))


def test_returns_without_variance_do_not_condemn_the_value_loss() -> None:
    solved = {"value_loss": [20.0] * 40, "reward": [500.0] * 40}
    assert diagnose(solved) == []
    assert [finding.name for finding in diagnose({**solved, "value_loss": [1e6] * 40})] == ["value_loss_large"]


def test_bounds_that_have_no_effect_are_found() -> None:
    class Wide(gymnasium.ActionWrapper):
        def __init__(self) -> None:
            super().__init__(gymnasium.make("Pendulum-v1"))
            self.action_space = gymnasium.spaces.Box(-20.0, 20.0, (1,))

        def action(self, action: Any) -> Any:
            return np.clip(action, -2.0, 2.0)

    differences = []
    for env in (Wide, "Pendulum-v1"):
        agent = noterl.DDPG(env, hidden=(8,), seed=1)
        agent.compile(learning_starts=190, batch_size=8, update_every=10)
        doctor = Doctor()
        agent.fit(steps=800, callbacks=[doctor], verbose=0)
        differences.append(doctor.measures["large_actions_differ"][0])
    assert differences[0] == 0 < differences[1]


@pytest.mark.parametrize("memory", ["replay", "rollout"])
def test_rows_of_an_environment_follow_each_other(memory: str) -> None:
    if memory == "replay":
        agent: Any = noterl.DQN(CountingEnv, hidden=(8,), seed=1)
        agent.compile(learning_starts=5, batch_size=4)
        agent.fit(steps=42, num_envs=2, verbose=0)
    else:
        agent = noterl.A2C(CountingEnv, rollout_steps=20, hidden=(8,), seed=1)
        agent.fit(steps=76, num_envs=2, verbose=0)
    rows = recent_rows(agent)
    following = np.flatnonzero(rows.continues)
    assert 0 < len(following) < len(rows.reward)
    assert not rows.ended[following].any()
    np.testing.assert_array_equal(rows.next_observation[following], rows.observation[following + 1])
    np.testing.assert_array_equal(rows.reward, rows.next_observation[:, 1])


def test_command_reads_a_log(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{max(9, 300 - 20 * n)},{max(9, 300 - 20 * n)},{n},{0.69 if n < 5 else 0.001}\n" for n in range(40))
    path = tmp_path / "log.csv"
    path.write_text("reward,length,updates,entropy\n" + rows)
    assert main(["doctor", str(path)]) == 0
    assert capsys.readouterr().out.startswith("entropy_collapsed: The entropy fell to 0.001 at update 5")
    assert main(["doctor"]) == 2


def test_command_finds_nothing_in_the_log_of_a_healthy_run(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    small_dqn().fit(steps=600, callbacks=[CSVLogger(tmp_path / "log.csv")], verbose=0)
    assert main(["doctor", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing is wrong, as far as this log shows\n"


def test_command_refuses_words_and_short_logs(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("reward,length\n1,2\n")
    assert main(["doctor", str(path)]) == 0
    assert capsys.readouterr().out == "1 rows are too few to judge\n"
    path.write_text("reward,length,updates\n" + "inf,inf,nan\n" * 30)
    assert main(["doctor", str(path)]) == 0
    path.write_text("reward,length,terminated,truncated\n" + "1,long,0,0\n" * 30)
    assert main(["doctor", str(path)]) == 2
    assert "log.csv holds something else than numbers" in capsys.readouterr().err


class OtherValue(noterl.DQN):
    """`value` has other arguments than the values of observations."""

    def value(self, critic: Any, observation: Any, action: Any) -> Any:
        return critic(observation)


class ValueNetwork(noterl.DQN):
    def __init__(self, env: Any, **options: Any) -> None:
        super().__init__(env, **options)
        self.value = noterl.networks.mlp(self.observation_size, [4], 1)


@pytest.mark.parametrize("kind", [OtherValue, ValueNetwork])
def test_value_of_another_kind_is_not_called(kind: Any, tmp_path: Any) -> None:
    agent = kind("CartPole-v1", hidden=(4,), seed=1)
    agent.compile(learning_starts=50, batch_size=8)
    agent.fit(steps=300, callbacks=[Doctor()], verbose=0)
    agent.play(frame_dir=tmp_path, overlay=True, max_steps=3)
    assert list(tmp_path.iterdir())


def test_epsilon_of_a_second_fit_is_low_rightly() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=7)
    policy = noterl.policies.LinearEpsGreedyPolicy(1.0, 0.01, 200)
    agent.compile(policy=policy, learning_starts=100, update_every=4, updates=4, batch_size=16)
    for steps in (500, 2_500):
        doctor = Doctor()
        agent.fit(steps=steps, callbacks=[doctor], verbose=0)
    assert doctor.measures["epsilon"][0] < 0.02 and doctor.measures["progress"][0] < 0.25
    assert "epsilon_low" not in [finding.name for finding in doctor.findings]
