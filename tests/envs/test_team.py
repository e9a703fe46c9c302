"""Environments with several agents behind gymnasium's interface, and the memory of each agent."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from noterl import envs
from noterl.collect import TeamLanes
from noterl.envs import Signals
from noterl.envs.multi_agent.parallel import ListEnv, ParallelEnv
from noterl.envs.multi_agent.team import Team
from noterl.random import Generators
from noterl.replay import Replay
from tests.support.doubles import LeavingTeam, ListTeam

pytestmark = pytest.mark.backend_free


def mixed_team() -> Team:
    """Return a team with every kind of space."""
    observations = [spaces.Discrete(3), spaces.Box(0.0, 1.0, (2, 2), np.float64), spaces.MultiDiscrete([2, 2])]
    actions = [spaces.MultiDiscrete([2, 3]), spaces.Box(-1.0, 1.0, (2, 1), np.float64), spaces.Discrete(4)]
    return Team(["a", "b", "c"], observations, actions)


class TestTeam:
    def test_observations_lie_side_by_side(self) -> None:
        team, box = mixed_team(), np.arange(4.0).reshape(2, 2)
        vector = team.joined_observations([2, box, np.array([1, 0])])
        assert vector.tolist() == [0, 0, 1, 0, 1, 2, 3, 0, 1, 1, 0]
        parts = team.split_observations(vector[None])
        assert [part.shape for part in parts] == [(1, 3), (1, 2, 2), (1, 4)]
        np.testing.assert_array_equal(parts[1][0], box)
        many = team.joined_observations([np.array([2, 2]), np.stack([box, box]), np.array([[1, 0], [1, 0]])])
        np.testing.assert_array_equal(many, [vector, vector])

    def test_actions_are_members_of_their_spaces(self) -> None:
        team = mixed_team()
        actions = team.actions(np.array([1, 2, 0.5, -0.5, 3], np.float32))
        assert actions[0].tolist() == [1, 2] and actions[1].tolist() == [[0.5], [-0.5]] and actions[2] == 3
        assert all(action in space for action, space in zip(actions, team.action_space, strict=True))
        low, high = team.joined_action_space.low, team.joined_action_space.high
        assert (low.tolist(), high.tolist()) == ([0, 0, -1, -1, 0], [1, 2, 1, 1, 3])

    def test_images_of_all_agents_stay_bytes(self) -> None:
        image = spaces.Box(0, 255, (4, 4, 1), np.uint8)
        assert Team(["a"], [image], [spaces.Discrete(2)]).joined_observation_space.dtype == np.uint8
        mixed = Team(["a", "b"], [image, spaces.Discrete(2)], [spaces.Discrete(2)] * 2)
        assert mixed.joined_observation_space.dtype == np.float32

    @pytest.mark.parametrize(
        ("names", "observations", "message"),
        [
            (["a"], [spaces.Discrete(2)] * 2, "action space for each agent"),
            (["a", "a"], [spaces.Discrete(2)] * 2, "the names of agents must differ"),
            (["a", "b"], [spaces.Discrete(2), spaces.Text(3)], "agent 'b' must be a Box"),
        ],
    )
    def test_wrong_agents_raise(self, names: list[str], observations: list[Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Team(names, observations, [spaces.Discrete(2)] * 2)


class TestLeaving:
    def test_outcomes_of_agents_that_leave(self) -> None:
        env = ParallelEnv(LeavingTeam())
        env.reset(seed=0)
        action, outcomes, ends = np.zeros(3, np.float32), [], []
        for _ in range(4):
            observation, reward, terminated, truncated, _ = env.step(action)
            outcomes.append((env.outcome, observation.tolist(), reward))
            ends.append((terminated, truncated))
        assert ends == [(False, False)] * 3 + [(False, True)]
        flags = [
            (outcome.present.tolist(), outcome.terminated.tolist(), outcome.remaining.tolist())
            for outcome, _, _ in outcomes
        ]
        yes, no = True, False
        assert flags == [
            ([yes, yes, yes], [no, no, no], [yes, yes, yes]),
            ([yes, yes, yes], [yes, no, no], [no, yes, yes]),
            ([no, yes, yes], [yes, no, no], [no, yes, yes]),  # the second is truncated and would have continued
            ([no, no, yes], [yes, no, no], [no, no, yes]),
        ]
        assert [reward for _, _, reward in outcomes] == pytest.approx([37.0, 37.0, 110 / 3, 100 / 3])
        assert [observed for _, observed, _ in outcomes] == [[1, 1, 1], [2, 2, 2], [2, 3, 3], [2, 3, 4]]

    def test_episode_terminates_if_no_agent_would_have_continued(self) -> None:
        for truncate in (False, True):
            for form in (4, 5):
                env = ListEnv(ListTeam(form, truncate))
                env.reset(seed=0)
                ends = [env.step(np.array([1, 2], np.float32))[2:4] for _ in range(3)]
                assert ends == [(False, False)] * 2 + [(not truncate, truncate)]
                assert env.outcome.remaining.tolist() == [truncate] * 2
                assert env.env.taken == [[1, 2]] * 3

    def test_team_reward_may_be_shared(self) -> None:
        env = ListEnv(ListTeam())
        env.team_reward = lambda rewards, terminations: rewards.sum()
        env.reset(seed=0)
        assert env.step(np.zeros(2, np.float32))[1] == 3.0
        assert env.outcome.reward.tolist() == [3.0, 3.0] and env.outcome.earned.tolist() == [1.0, 2.0]
        env.team_reward = lambda rewards, terminations: [1.0, 2.0, 3.0]
        with pytest.raises(ValueError, match="team_reward must"):
            env.step(np.zeros(2, np.float32))


class TestSignals:
    def test_later_episodes_are_reproducible_without_a_seed(self) -> None:
        def symbols() -> list[int]:
            env, found = Signals(length=3), []
            for seed in (5, None, None):
                observations, _ = env.reset(seed=seed)
                while env.agents:
                    found.append(observations["speaker"])
                    observations, *_ = env.step({"speaker": 0, "listener": 0})
            return found

        first = symbols()
        assert len(first) == 12 and symbols() == first


class TestSources:
    def test_description_has_the_agents(self) -> None:
        source = envs.resolve(Signals)
        described = source.describe()
        again = envs.from_description(described)
        assert again.team == source.team and again.observation_space == source.observation_space
        for agents in ("speaker", ["speaker", 1], ["speaker"]):
            with pytest.raises(ValueError):
                envs.from_description({**described, "agents": agents})

    def test_lanes_and_evaluation_have_separate_environments(self) -> None:
        source = envs.resolve(Signals)
        made = [source.make(0), source.make(1), source.make_evaluation()]
        assert len({id(env.env) for env in made}) == 3
        single = envs.resolve(Signals())
        single.make(0)
        for make in (lambda: single.make(1), single.make_evaluation):
            with pytest.raises(ValueError, match=r"it has no spec.*a factory"):
                make()

    def test_gymnasium_environment_with_tuple_spaces_has_several_agents(self) -> None:
        class Pair(gymnasium.Env):
            observation_space = spaces.Tuple([spaces.Discrete(2)] * 2)
            action_space = spaces.Tuple([spaces.Discrete(2)] * 2)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return (0, 1), {"began": True}

            def step(self, action):
                return (1, 0), np.array([1.0, 2.0]), False, True, {"is_success": True}

        env = envs.resolve(Pair()).make()
        observation, info = env.reset(seed=1)
        assert observation.tolist() == [1, 0, 0, 1] and info == {"began": True}
        _, reward, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        assert (reward, terminated, truncated, info) == (1.5, False, True, {"is_success": True})

    def test_environment_with_agents_in_turn_raises(self) -> None:
        class InTurn(LeavingTeam):
            def agent_iter(self) -> None: ...

            def last(self) -> None: ...

        with pytest.raises(ValueError, match="use its parallel_env"):
            envs.resolve(InTurn())

    def test_wrong_observation_names_the_agent(self) -> None:
        class Wrong(LeavingTeam):
            def _observations(self, agents):
                return {agent: np.zeros(2, np.float32) for agent in agents}

        with pytest.raises(ValueError, match="observation of agent 'first' must"):
            envs.resolve(Wrong()).make().reset()

    def test_pettingzoo_wrapper_is_accepted(self) -> None:
        pettingzoo = pytest.importorskip("pettingzoo")

        class Zoo(LeavingTeam, pettingzoo.ParallelEnv):
            metadata = {"name": "leaving"}  # noqa: RUF012
            render_mode = None

        env = envs.resolve(pettingzoo.utils.BaseParallelWrapper(Zoo())).make()
        assert env.team.names == ("first", "second", "third")
        env.reset(seed=1)
        assert env.step(np.ones(3, np.float32))[1] == 37.0


def test_signals_rewards_the_answer_to_the_previous_symbol() -> None:
    env = Signals(3, continuous=True, length=2)
    observations = env.reset(seed=4)[0]
    symbols, earned = [observations["speaker"]], []
    for answer in (0.0, 1.0, -1.0):
        observations, rewards, _, truncated, _ = env.step({"speaker": 0, "listener": np.array([answer])})
        symbols.append(observations["speaker"])
        earned.append(rewards["listener"])
    assert earned == [0.0, -((1 - (symbols[0] - 1)) ** 2), -((-1 - (symbols[1] - 1)) ** 2)]
    assert truncated["speaker"] and not env.agents
    for arguments in ({"symbols": 1}, {"length": 0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Signals(**arguments)


class RespawningTeam(LeavingTeam):
    """The first agent terminates at step 2 and goes on at once."""

    def step(self, actions):
        first = self.number == 1
        results = super().step(actions)
        if first:
            self.agents = ["first", *self.agents]
        return results


def stored_batch(n_step: int, team: Any = LeavingTeam) -> Any:
    """Return the batch of all four transitions of a team, in order."""
    source = envs.resolve(team)
    lanes = TeamLanes(source, 1, Generators(0), lambda rewards, terminations: rewards)
    replay = Replay(16, n_step=n_step)
    replay.build(source.observation_space, source.action_space, agents=3)
    lanes.reset(0, 0, 0)
    for step in range(4):
        lanes.begin_round(np.full((1, 3), step % 2, np.float32))
        (transition,) = lanes.tick(step)
        replay.add(*transition)
    earned = 2.0 if team is LeavingTeam else 4.0
    assert lanes.logs(0) == {"reward/first": earned, "reward/second": 30.0, "reward/third": 400.0}
    batch = replay.gather(replay.sample(1, 4, generator=np.random.default_rng(0)), gamma=0.5)
    from noterl.replay.returns import gather_team_transitions

    assert batch.reward.shape == batch.discount.shape == batch.extra["present"].shape == (1, 4, 3)
    return gather_team_transitions(replay._storage, np.arange(4), 0.5, n_step)


class TestMemory:
    def test_one_step_rewards_and_discounts(self) -> None:
        batch = stored_batch(1)
        assert batch.reward.tolist() == [[1, 10, 100], [1, 10, 100], [0, 10, 100], [0, 0, 100]]
        # Termination cuts a bootstrap, truncation never does.
        assert batch.discount.tolist() == [[0.5] * 3, [0, 0.5, 0.5], [0, 0.5, 0.5], [0, 0.5, 0.5]]
        assert batch.extra["present"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]]
        assert batch.extra["remaining"].tolist() == [[1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 0, 1]]
        assert batch.observation[:, 1].tolist() == [0, 1, 2, 3]
        assert batch.next_observation.tolist() == [[1, 1, 1], [2, 2, 2], [2, 3, 3], [2, 3, 4]]

    def test_three_steps_end_when_an_agent_leaves(self) -> None:
        batch = stored_batch(3)
        assert batch.reward.tolist() == [[1.5, 15, 150], [1, 10, 100], [0, 10, 100], [0, 0, 100]]
        assert batch.discount.tolist() == [[0, 0.25, 0.25], [0, 0.5, 0.5], [0, 0.5, 0.5], [0, 0.5, 0.5]]
        assert batch.next_observation[0].tolist() == [2, 2, 2]

    def test_three_steps_end_when_an_agent_terminates_and_stays(self) -> None:
        batch = stored_batch(3, RespawningTeam)
        assert batch.reward[:, 0].tolist() == [1.5, 1, 1, 1]
        assert batch.discount[:, 0].tolist() == [0, 0, 0.5, 0.5]

    def test_relabel_raises(self) -> None:
        from noterl.replay.relabel import Relabel

        source = envs.resolve(LeavingTeam)
        with pytest.raises(ValueError, match="relabel must be None for several agents"):
            Replay(16, relabel=Relabel()).build(source.observation_space, source.action_space, agents=3)
