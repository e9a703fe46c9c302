"""A second `compile`, and errors that `fit` finds when it builds an agent."""

from __future__ import annotations

from typing import Any

import pytest
from keras import ops

import noterl
from noterl import networks
from noterl.policies import BoltzmannQPolicy, EpsGreedyQPolicy, LinearEpsGreedyPolicy
from noterl.schedules import Cosine, Exponential, Linear, Piecewise, Schedule
from tests.support.doubles import CountingEnv


def trained(**compiled: Any) -> noterl.DQN:
    agent = noterl.DQN(CountingEnv, hidden=(4,), seed=1)
    agent.compile(learning_starts=20, batch_size=8, **compiled)
    agent.fit(steps=60, verbose=0)
    return agent


@pytest.mark.backends("torch")
class TestCompileAgain:
    def test_memory_stays_and_other_settings_return(self, capsys: pytest.CaptureFixture[str]) -> None:
        agent = trained()
        agent._parts.session.verbose = 1
        memory = agent.replay
        agent.compile(optimizer=1e-4)
        assert agent.replay is memory and len(memory) == 60
        assert agent.schedule.batch_size == 64 and agent.learning_rate == pytest.approx(1e-4)
        message = capsys.readouterr().err
        assert "optimizer=0.0001" in message and "batch_size to its default" in message
        assert "learning_starts to its default" in message and "replay" not in message
        agent.fit(steps=10, verbose=0)
        assert len(agent.replay) == 70

    def test_new_memory_warns_of_the_transitions_that_are_lost(self) -> None:
        agent = trained()
        with pytest.warns(UserWarning, match="replay: .* 60 transitions"):
            agent.compile(replay=noterl.Replay(500))
        assert len(agent.replay) == 0

    def test_agents_without_a_memory_compile_again(self) -> None:
        agent = noterl.A2C(CountingEnv, rollout_steps=8, hidden=(4,), seed=1)
        agent.fit(steps=16, verbose=0)
        agent.compile(1e-3)
        agent.fit(steps=16, verbose=0)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("argument", "value", "match"),
    [
        ("optimizer", Linear(1e-3, 0.0, steps=60), "learning_rate of 'optimizer', Linear.* is 0 from now on"),
        ("optimizer", Cosine(1e-3, 1e-4, steps=50), "is 0.0001 from now on"),
        ("optimizer", Piecewise([5], [Linear(0.0, 1e-3, steps=5), Linear(1e-3, 0.0, steps=9)]), "is 0 from now on"),
        ("optimizer", Exponential(1e-3, 1.0), "from now on"),
        ("policy", LinearEpsGreedyPolicy(steps=60), "epsilon of LinearEps.* is 0.05 from now on"),
        ("policy", EpsGreedyQPolicy(Linear(1.0, 0.1, steps=60)), "epsilon of EpsGreedy.* is 0.1 from now on"),
        ("policy", BoltzmannQPolicy(Linear(1.0, 0.1, steps=60)), "tau, Linear.* is 0.1 from now on"),
    ],
)
def test_schedule_that_is_over_warns_if_it_is_compiled(argument: str, value: Any, match: str) -> None:
    agent = trained()
    with pytest.warns(UserWarning, match=f"{match}: schedules count all 60 steps"):
        agent.compile(**{argument: value})
    agent.compile(optimizer=Linear(1e-3, 0.0, steps=100), policy=LinearEpsGreedyPolicy(steps=100))  # no warning


@pytest.mark.backends("torch")
def test_schedule_without_late_values_may_be_compiled() -> None:
    class Table(Schedule):
        def value(self, step: int) -> float:
            return [1e-3, 1e-4][step // 100]

    trained().compile(optimizer=Table())


class Own(noterl.Agent):
    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.q = networks.mlp(self.observation_size, [4], self.action_size)

    def forward(self, observation: Any) -> Any:
        return self.q(observation)


class Scalars(Own):
    def loss(self, batch: Any) -> Any:
        q = noterl.losses.take(self.q(batch.observation), batch.action)
        return ops.mean(ops.square(q - batch.reward)), {"q_mean": ops.mean(q), "td_error": q - batch.reward}


class Constant(Own):
    def loss(self, batch: Any) -> Any:
        return ops.mean(ops.square(ops.stop_gradient(self.q(batch.observation))))


class Unused(Scalars):
    def loss(self, batch: Any) -> Any:
        loss, feedback = super().loss(batch)
        return loss, {"my_errors": feedback["td_error"]}


class Taken(Scalars):
    def loss(self, batch: Any) -> Any:
        loss, feedback = super().loss(batch)
        return loss, {**feedback, "reward": loss, "steps": loss}


class TestBuildingFindsErrors:
    def test_scalars_of_the_feedback_are_metrics(self) -> None:
        agent = Scalars(CountingEnv, seed=1)
        agent.compile(learning_starts=4, batch_size=4, update_every=1, updates=1)
        history = agent.fit(steps=15, verbose=0).history
        assert "q_mean" in agent.metric_names and history["q_mean"][-1] != 0

    @pytest.mark.parametrize(
        ("kind", "error", "match"),
        [
            (Constant, ValueError, "loss: .*Constant.loss .*gradient"),
            (Own, NotImplementedError, r"loss\(batch\)"),
            (Taken, ValueError, "update: .*'reward', 'steps'.* another name"),
        ],
    )
    def test_loss_that_is_missing_or_wrong_raises_before_the_first_step(
        self, kind: type, error: type[Exception], match: str
    ) -> None:
        agent = kind(CountingEnv, seed=1)
        with pytest.raises(error, match=match):
            agent.fit(steps=5, verbose=0)
        assert agent.steps == 0

    @pytest.mark.backends("torch")
    def test_feedback_that_nothing_uses_warns(self) -> None:
        with pytest.warns(UserWarning, match="feedback: Unused returns 'my_errors'"):
            Unused(CountingEnv, seed=1).build()
