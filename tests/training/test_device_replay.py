"""Training from a replay memory on the device: the memory, updates, positions, hooks, resume and faults."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.backends.common import NonFiniteError
from noterl.callbacks import LambdaCallback
from noterl.collect import DeviceLanes, VectorLanes
from noterl.envs.functional import functional, import_jax
from noterl.learning.device_replay import rounds_per_call
from noterl.learning.device_runner import runs_on_device
from noterl.noise import OrnsteinUhlenbeckProcess
from noterl.policies import BoltzmannQPolicy, LinearEpsGreedyPolicy
from noterl.replay import Prioritized, Replay
from noterl.schedules import Linear
from noterl.types import Batch, Transition
from tests.support.functional import box_walk, dict_counter, line
from tests.support.replay_invariants import check_replay
from tests.training.test_device_loop import Tape, check_stop, same

pytestmark = pytest.mark.backends("jax")

LANES = 3


class Live(LambdaCallback):
    """A call is one round, and each function runs after it."""

    needs_live_updates = True


def dqn(capacity: int = 40, env: Any = None, **options: Any) -> Any:
    """Return an agent with 3-step returns, hard copies and schedules; most tests share its compiled programs."""
    env = line() if env is None else env
    agent = noterl.DQN(env, hidden=(4,), gamma=Linear(0.9, 0.5, 200), seed=3)
    arguments = {
        "batch_size": 4,
        "learning_starts": 9,
        "update_every": 4,
        "updates": 2,
        "target_update": 10,
        "replay": Replay(capacity, n_step=3),
        "policy": LinearEpsGreedyPolicy(1.0, 0.2, steps=60),
    }
    agent.compile(**arguments | options)
    return agent


def fit(agent: Any, steps: int | None = None, **options: Any) -> Any:
    return agent.fit(steps=steps, num_envs=LANES, verbose=0, **options)


def transitions(agent: Any) -> list[Transition]:
    """Return what the memory of an agent holds, the oldest first."""
    storage = agent.replay.sampler.storage
    indices = storage.stored_indices()
    columns = storage.lane, storage.action, storage.reward, storage.terminated, storage.truncated
    lane, action, reward, terminated, truncated = (column[indices] for column in columns)
    fields = lane, storage.observations(indices), action, reward, storage.next_observations(indices)
    return [Transition(*values) for values in zip(*fields, terminated, truncated, strict=True)]


def same_memory(first: Any, second: Any) -> None:
    ours, theirs = first.replay.get_state(), second.replay.get_state()
    for name in ("begin", "count"):
        assert ours[name] == theirs[name]
    for name in ("distance", "hidden"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    for name, column in ours["columns"].items():
        np.testing.assert_array_equal(np.concatenate(column), np.concatenate(theirs["columns"][name]))
    np.testing.assert_array_equal(ours["apart"][0], theirs["apart"][0])
    assert dict(zip(*map(np.ndarray.tolist, ours["heads"].values()), strict=True)) == dict(
        zip(*map(np.ndarray.tolist, theirs["heads"].values()), strict=True)
    )


@pytest.fixture(scope="module")
def whole() -> Any:
    """An uninterrupted run of 100 steps, its tape and its history."""
    tape, agent = Tape(), dqn()
    history = fit(agent, 100, callbacks=[tape])
    return agent, tape, history


class TestMemory:
    def test_memory_holds_the_steps_of_all_lanes_in_order(self) -> None:
        """Every transition follows from the one before it in its lane, with the dynamics of the environment."""
        agent = dqn(200, learning_starts=1000)
        history = fit(agent, 101)
        found = transitions(agent)
        assert len(found) == 101
        ended, length, lengths = [False] * LANES, [0] * LANES, []
        for number, each in enumerate(found):
            assert each.lane == number % LANES
            position, after = each.observation[0], each.next_observation[0]
            assert abs(after - position - (each.action - 0.5)) < 0.6
            assert each.reward == pytest.approx(0.1 * after, rel=1e-5)
            assert each.terminated == (abs(after) > 2)
            length[each.lane] += 1
            assert each.truncated == (length[each.lane] == 7)
            if number >= LANES and not ended[each.lane]:
                np.testing.assert_array_equal(each.observation, found[number - LANES].next_observation)
            elif number >= LANES:
                assert abs(position) <= 1
            ended[each.lane] = each.terminated or each.truncated
            if ended[each.lane]:
                lengths.append(length[each.lane])
                length[each.lane] = 0
        assert history.history["length"] == lengths
        assert {0, 1} == {int(each.action) for each in found}

    def test_full_memory_equals_one_that_added_every_transition(self) -> None:
        """With random actions, agents with memories of different sizes take the same steps."""
        large, small = dqn(200, learning_starts=1000), dqn(learning_starts=1000)
        for agent in (large, small):
            fit(agent, 50)
            len(agent.replay)  # loads the transitions, the rest follows
            fit(agent, 51)
        host = noterl.DQN(line(), hidden=(4,))
        host.compile(replay=Replay(40, n_step=3), batch_size=4)
        host.build()
        for each in transitions(large):
            host.replay.add(*each[:7])
        same_memory(small, host)
        assert len(small.replay) == 40

    def test_batches_are_those_of_the_host(self, whole: Any) -> None:
        """n-step returns, discounts and next observations, also at ends of episodes and at the newest transitions."""
        from noterl.backends.jax.scope import Scope, read_values

        agent = whole[0]
        storage, learner = agent.replay.sampler.storage, agent._parts.learner
        runner = learner.device_runner
        runner.memory.open(100 % LANES, agent._parts.session.lanes.carry.observations)
        indices = storage.stored_indices()
        slots = (storage.insertion_numbers(indices) + runner.memory._offset) % runner.program.slots
        with Scope(learner.variables, read_values(learner.variables)):
            batch = runner.program._gather(runner.memory.ring, slots, slots[-1], {})
        sample = agent.replay._sample_of(indices[None], np.random.default_rng())
        expected = agent.replay.gather(sample, gamma=float(agent.gamma))
        for name in ("observation", "action", "next_observation"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name)[0], err_msg=name)
        for name in ("reward", "discount"):
            np.testing.assert_allclose(getattr(batch, name), getattr(expected, name)[0], rtol=1e-6, err_msg=name)
        assert len(set(np.round(batch.discount, 4).tolist())) > 2

    def test_transitions_are_loaded_only_when_they_are_used(self) -> None:
        agent = dqn()
        fit(agent, 30)
        assert agent.replay.pending_load is not None
        assert agent.replay._storage.count == 0
        fit(agent, 30)
        assert agent.replay._storage.count == 0
        assert len(agent.replay) == 40
        assert agent.replay.pending_load is None

    def test_restored_memory_holds_no_later_transitions(self) -> None:
        agent = dqn()
        fit(agent, 20)
        state = copy.deepcopy(agent.replay.get_state())
        fit(agent, 10)
        agent.replay.set_state(state)
        assert len(agent.replay) == 20

    @pytest.mark.parametrize("used", ["before", "after", "never"])
    def test_agent_survives_a_call_that_destroys_the_ring(self, used: str, monkeypatch: Any) -> None:
        """As XLA does if a call runs out of memory; the memory is used before or after it, or in neither place."""
        agent = dqn()
        fit(agent, 30)
        assert len(agent.replay) == 30
        fit(agent, 6)
        runner = agent._parts.learner.device_runner

        def run(*arguments: Any, ring: Any, **options: Any) -> Any:
            for array in ring:
                array.delete()
            raise RuntimeError("RESOURCE_EXHAUSTED")

        if used == "before":
            assert len(agent.replay) == 36
        with monkeypatch.context() as patch:
            patch.setattr(runner.program, "_run", run)
            with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
                fit(agent, 6)
        if used == "after":
            with pytest.warns(RuntimeWarning, match="destroyed the newest 6 transitions"):
                assert len(agent.replay) == 30
        if used == "never":
            with pytest.warns(RuntimeWarning, match="destroyed the newest 6 transitions"):
                fit(agent, 6)
        else:
            fit(agent, 6)
        assert len(agent.replay) == (40 if used == "before" else 36) and agent.steps == 42
        check_replay(agent.replay)

    def test_host_continues_with_the_memory_and_the_device_with_the_hosts(self, monkeypatch: Any) -> None:
        agent = dqn(200)
        fit(agent, 31)
        before = transitions(agent)
        with monkeypatch.context() as patch:
            patch.setattr("noterl.training.fit.runs_on_device", lambda *arguments: False)
            with pytest.warns(RuntimeWarning, match="episodes restart"):
                fit(agent, 30)
        assert isinstance(agent._parts.session.lanes, VectorLanes)
        middle = transitions(agent)
        with pytest.warns(RuntimeWarning, match="on the host"):
            fit(agent, 20)
        after = transitions(agent)
        assert isinstance(agent._parts.session.lanes, DeviceLanes)
        assert [len(each) for each in (before, middle, after)] == [31, 61, 81]
        for ours, theirs in zip(before + middle[31:], after[:61], strict=True):
            assert all(np.array_equal(one, other) for one, other in zip(ours[:7], theirs[:7], strict=True))
        links = agent.replay.get_state()["distance"]
        assert (links[28:31] == 0).all()
        assert (links[58:61] == 0).all()
        assert agent.updates == (30 // 4 - 9 // 4 + 61 // 4 - 31 // 4 + 79 // 4 - 61 // 4) * 2

    def test_dropped_transitions_are_not_sampled(self) -> None:
        """After each call only 2 transitions remain; with the next round, there are 5 for a batch of 4."""
        agent = dqn()
        live = Live(on_step_end=lambda: agent.replay.drop_oldest(max(0, len(agent.replay) - 2)))
        fit(agent, 30, callbacks=[live])
        assert agent.updates == (30 // 4 - 9 // 4) * 2
        assert len(agent.replay) == 2
        memory, count = agent._parts.learner.device_runner.memory, agent.replay.sampler.storage.count
        memory.open(0, agent._parts.session.lanes.carry.observations)
        assert [memory.sampleable(count + more) for more in (0, 3, 60)] == [(2, 0, 0), (5, 0, 0), (40, 0, 0)]

    def test_excluded_transitions_are_not_sampled(self) -> None:
        """Rewards of excluded transitions are not finite, so one of them in a batch would end the run."""
        agent = dqn(200)
        fit(agent, 31)
        rewards = agent.replay.sampler.storage.reward
        rewards[:20] = np.nan
        rewards[3:12] = 0.5  # of the transitions that are kept, and of the two that follow each
        agent.replay.keep([3, 4, 5, *range(20, 31)])
        fit(agent, 60)
        memory = agent._parts.learner.device_runner.memory
        np.testing.assert_array_equal(memory.table[:3], memory._slots(np.array([3, 4, 5])))
        assert [memory.sampleable(count) for count in (91, 204, 221)] == [(71, 3, 0), (184, 2, 1), (200, 0, 3)]
        assert agent.replay.num_sampleable() == 74


class TestUpdates:
    @pytest.mark.parametrize("kind", ["dqn", "sac", "td3", "crossq"])
    def test_update_equals_that_of_the_host(self, kind: str) -> None:
        """The weights after a group of two updates are those of the host, from the same weights and batches."""
        agent, host = (self.agent(kind) for _ in range(2))
        fit(agent, 29)
        before, key = agent.get_weights(), agent._parts.session.lanes.carry.key
        assert agent.updates == 0
        fit(agent, 1)
        after = agent.get_weights()
        assert agent.updates == 2
        host.set_weights(before)
        host._parts.build()[0].update(self.batches(agent, key), 2)
        for name, value in host.get_weights().items():
            np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=2e-6, err_msg=name)
        changed = {name.split("/")[0] for name in before if not np.array_equal(before[name], after[name])}
        assert changed == ({"q"} if kind == "dqn" else {name.split("/")[0] for name in before})
        assert kind != "td3" or agent._parts.built_actor.explorer.n == 30

    @staticmethod
    def agent(kind: str) -> Any:
        if kind == "dqn":
            return dqn(learning_starts=24, target_update=1000)
        own = {"critic_hidden": (4,), "policy_delay": 1} if kind == "crossq" else {}
        agent_class = {"sac": noterl.SAC, "td3": noterl.TD3, "crossq": noterl.CrossQ}[kind]
        agent = agent_class(box_walk(), hidden=(4,), seed=1, **own)
        options = {"batch_size": 4, "learning_starts": 24, "update_every": 4, "updates": 2}
        options |= {} if kind == "crossq" else {"target_update": 0.1}
        agent.compile(**options, replay=Replay(40, n_step=2))
        return agent

    @staticmethod
    def batches(agent: Any, key: Any) -> Batch:
        """Return the batches `[2, 4, ...]` that the key of the round samples, from the memory of the host."""
        jax, batches = import_jax(), []
        key = jax.random.split(key, 6)[4]
        for k in range(2):
            own = jax.random.fold_in(key, k)
            first, *others = jax.random.split(own, 1 + len(agent.random_spec)) if agent.random_spec else [own]
            ages = np.array(jax.random.bits(first, (4,), np.uint32) % 30).astype(int)
            extra = {
                name: np.array(getattr(jax.random, distribution)(other, (4, *shape)))[None]
                for other, (name, (shape, distribution)) in zip(others, agent.random_spec.items(), strict=True)
            }
            sample = agent.replay._sample_of(29 - ages[None], np.random.default_rng())
            batches.append(agent.replay.gather(sample, gamma=float(agent.gamma))._replace(extra=extra))
        found: Batch = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
        return found

    def test_copies_and_updates_are_due_at_the_steps_of_the_host(self, monkeypatch: Any) -> None:
        device, host = ([] for _ in range(2))
        for record, on_device in ((device, True), (host, False)):
            agent = dqn(target_update=12)
            with monkeypatch.context() as patch:
                if not on_device:
                    patch.setattr("noterl.training.fit.runs_on_device", lambda *arguments: False)
                fit(agent, 60, callbacks=[Live(on_step_end=lambda a=agent, r=record: r.append(snapshot(a)))])
        assert [each[:2] for each in device] == [each[:2] for each in host]
        for run in (device, host):
            last = run[0]
            for now in run[1:]:
                if now[0] // 12 > last[0] // 12:  # the copy precedes the updates of this round
                    np.testing.assert_array_equal(now[3], last[2])
                else:
                    np.testing.assert_array_equal(now[3], last[3])
                last = now

    def test_copies_can_count_updates(self) -> None:
        agent, record = dqn(env=dict_counter(), target_update=3, target_unit="updates", learning_starts=5), []
        fit(agent, 45, callbacks=[Live(on_step_end=lambda: record.append(snapshot(agent)))])
        last = record[0]
        for now in record[1:]:
            if now[1] > last[1]:
                is_copy, is_equal = now[1] % 3 == 0, np.array_equal(now[2], now[3])
                assert is_copy == is_equal
                assert (now[1] // 3 == last[1] // 3) == np.array_equal(now[3], last[3])
            last = now
        assert agent.updates == (45 // 4 - 5 // 4) * 2
        storage = agent.replay.sampler.storage  # dicts are stored as the host stores them
        observations = storage.observations(storage.stored_indices())
        np.testing.assert_array_equal(observations["choice"], observations["place"][:, 0].astype(int) % 3)


def snapshot(agent: Any) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Return the steps, the updates, and the weights of the online and of the target network."""
    online, target = (
        np.concatenate([value.ravel() for name, value in agent.get_weights().items() if name.startswith(prefix)])
        for prefix in ("q/", "target_q/")
    )
    return agent.steps, agent.updates, online, target


class TestActing:
    def test_first_actions_are_random_and_epsilon_follows_its_schedule(self) -> None:
        """With a tiny learning rate the network does not change; epsilon is 0 from step 12 on."""
        agent = dqn(200, learning_starts=7, policy=LinearEpsGreedyPolicy(1.0, 0.0, 12), optimizer=1e-30)
        fit(agent, 90)
        found = transitions(agent)
        best = [agent.act(each.observation) for each in found]
        assert [each.action for each in found[12:]] == best[12:]
        assert [each.action for each in found[:12]] != best[:12]

    def test_greedy_policy_explores_only_at_the_start(self) -> None:
        agent = dqn(200, learning_starts=17, policy="greedy", optimizer=1e-30)
        fit(agent, 60)
        found = transitions(agent)
        assert [each.action for each in found[17:]] == [agent.act(each.observation) for each in found[17:]]
        assert [each.action for each in found[:17]] != [agent.act(each.observation) for each in found[:17]]


class TestPositions:
    def test_budget_of_steps_is_exact(self, whole: Any) -> None:
        agent, _, history = whole
        assert (agent.steps, len(agent.replay)) == (100, 40)  # which fetches the memory from the device
        assert agent.replay._storage.count == 100
        assert agent.updates == (99 // 4 - 9 // 4) * 2
        assert history.stop_reason == "steps"
        assert agent.trace_counts["device"] == 1
        assert agent.trace_counts["update"] == 0

    def test_splitting_at_any_step_changes_nothing(self, whole: Any) -> None:
        agent, tape = dqn(), Tape()
        for steps in (1, 30, 11, 12, 46):
            fit(agent, steps, callbacks=[tape])
        assert agent.steps == 100
        assert same(agent, whole[0])
        same_memory(agent, whole[0])
        assert complete(tape) == complete(whole[1])

    def test_calls_of_one_round_change_nothing(self, whole: Any) -> None:
        agent, tape, steps = dqn(), Tape(), []
        fit(agent, 100, callbacks=[tape, Live(on_step_end=lambda: steps.append(agent.steps))])
        assert steps == [*range(3, 100, 3), 100]
        assert same(agent, whole[0])
        assert tape.events == whole[1].events
        assert float(agent.gamma) == float(whole[0].gamma) == pytest.approx(0.9 - 0.4 * 96 / 200)

    def test_a_number_of_updates_in_one_call_sets_its_rounds(self) -> None:
        learner = dqn(steps_per_execution=30)._parts.build()[0]
        assert rounds_per_call(learner, LANES) == 20
        assert rounds_per_call(learner, 1_000) == 1


def complete(tape: Tape) -> list[Any]:
    return [event for event in tape.events if event[0] == "end" and event[2]["complete"]]


class TestHooks:
    def test_updates_and_episodes_are_in_order_of_steps(self, whole: Any) -> None:
        """The updates of a round follow its last step, and the ends of its episodes."""
        batches, rounds = 0, []
        for number in range(1, 34):
            due = number * LANES // 4 - max((number - 1) * LANES, 9) // 4 if number * LANES > 9 else 0
            rounds += [number * LANES - 0.5] * (2 * due)
        for event in whole[1].events:
            if event[0] == "batch":
                assert event[1] == batches
                batches += 1
            elif event[0] == "end" and event[2]["complete"]:
                assert event[2]["updates"] == batches == sum(each < event[2]["steps"] for each in rounds)
        assert batches == len(rounds) == 44

    def test_batches_have_their_own_losses(self, whole: Any) -> None:
        losses = [event[2]["loss"] for event in whole[1].events if event[0] == "batch"]
        assert len(set(losses)) == len(losses) == 44

    def test_returns_are_those_of_the_stored_rewards(self) -> None:
        agent = dqn(200)
        history = fit(agent, 150)
        total, found = [0.0] * LANES, []
        for each in transitions(agent):
            total[each.lane] += float(each.reward)
            if each.terminated or each.truncated:
                found.append(total[each.lane])
                total[each.lane] = 0.0
        np.testing.assert_allclose(history.history["reward"], found, rtol=1e-12)


class TestBudgetsAndResume:
    def test_later_episodes_of_the_call_do_not_count(self) -> None:
        agent, tape = dqn(), Tape()
        history = fit(agent, episodes=5, callbacks=[tape])
        ends = [event for event in tape.events if event[0] == "end"]
        assert len(history) == agent.episodes == 5
        assert [event[2]["complete"] for event in ends[:6]] == [True] * 5 + [False]
        assert history.stop_reason == f"episodes (at episode {ends[4][1]})"

    @pytest.mark.parametrize(("event", "number"), [("begin", 5), ("batch", 1), ("end", 4)])
    def test_ends_after_the_round_of_a_stop_do_not_count(self, event: str, number: int) -> None:
        check_stop(dqn(env=line(limit=2)), event, number)

    @pytest.mark.parametrize("episode", [0, 6])
    def test_run_saved_in_a_hook_continues_exactly(self, whole: Any, tmp_path: Path, episode: int) -> None:
        agent, tape, path, count = dqn(), Tape(), tmp_path / "run.noterl", []

        def save(number: int, logs: Any) -> None:
            count.append(number)
            if len(count) == episode + 1:
                agent.save(path)

        fit(agent, 80, callbacks=[LambdaCallback(on_episode_end=save)])
        restored = dqn()
        restored.restore(path)
        fit(restored, 100 - restored.steps, callbacks=[tape])
        assert (restored.steps, restored.updates) == (100, whole[0].updates)
        assert same(restored, whole[0])
        same_memory(restored, whole[0])
        assert complete(tape) == complete(whole[1])[episode + 1 :]

    def test_file_without_the_memory_does_not_link_episodes(self, tmp_path: Path) -> None:
        agent = dqn(200)
        fit(agent, 31)
        agent.save(tmp_path / "run.noterl", replay=False)
        fit(agent, 31)
        agent.restore(tmp_path / "run.noterl")
        fit(agent, 31)
        assert agent.steps == 62
        assert len(agent.replay) == 93
        distance = agent.replay.get_state()["distance"]
        assert (distance[59:62] == 0).all()

    def test_another_number_of_environments_continues_with_the_memory(self) -> None:
        agent = dqn(200)
        fit(agent, 31)
        agent.fit(steps=9, num_envs=2, verbose=0)
        assert [each.lane for each in transitions(agent)[25:]] == [1, 2, 0, 1, 2, 0, *[0, 1] * 4, 0]
        assert (agent.replay.get_state()["distance"][28:31] == 0).all()


class TestRefill:
    def test_memory_is_refilled_before_updates(self, tmp_path: Path) -> None:
        """As on the host, after a load without the memory."""
        agent = dqn(200, learning_starts=60)
        fit(agent, 90)
        agent.save(tmp_path / "agent.noterl", replay=False)
        agent = noterl.load(tmp_path / "agent.noterl")
        before = agent.updates
        with pytest.warns(RuntimeWarning, match="until learning_starts=60"):
            agent.fit(line(), steps=48, num_envs=LANES, verbose=0)
        assert agent.updates == before
        agent.fit(line(), steps=30, num_envs=LANES, verbose=0)
        assert agent.updates == before + 2 * (168 // 4 - 147 // 4)  # from the round with the 60th transition on


class TestChoice:
    @pytest.mark.parametrize(
        "options",
        [
            {"replay": Replay(40, sampler=Prioritized())},
            {"policy": BoltzmannQPolicy()},
            {"update_every": "episode"},
            {"updates": "pass"},
        ],
        ids=["prioritized", "boltzmann", "episode", "pass"],
    )
    def test_others_step_a_vector_environment(self, options: dict[str, Any]) -> None:
        agent = dqn(**options)
        assert not runs_on_device(*agent._parts.build(), agent.spaces.source)

    def test_noise_with_a_state_steps_a_vector_environment(self) -> None:
        agent = noterl.DDPG(box_walk(), hidden=(4,))
        agent.compile(noise=OrnsteinUhlenbeckProcess(0.15))
        assert not runs_on_device(*agent._parts.build(), agent.spaces.source)

    def test_default_agents_run_on_the_device(self) -> None:
        for agent in (noterl.DQN(line()), noterl.SAC(box_walk()), noterl.SAC(line()), noterl.TD3(box_walk())):
            agent.compile(replay=1_000)
            assert runs_on_device(*agent._parts.build(), agent.spaces.source)


class TestFaults:
    def test_loss_that_is_not_finite_is_named_and_undone(self) -> None:
        agent = dqn(learning_starts=0)
        fit(agent, 24)
        weights, updates = agent.get_weights(), agent.updates
        agent.replay.sampler.storage.reward[5:10] = np.nan
        agent._parts.learner.device_runner.memory.release()
        with pytest.raises(NonFiniteError) as error:
            fit(agent, 600)
        assert error.value.update == agent.updates >= updates
        assert error.value.step == agent.steps < 100
        assert all(np.isfinite(value).all() for value in agent.get_weights().values())
        changed = any(not np.array_equal(weights[name], value) for name, value in agent.get_weights().items())
        assert changed == (agent.updates > updates)
        assert len(agent.replay) == min(agent.steps, 40)


class TestLearning:
    def test_dqn_learns_to_return_to_the_middle(self) -> None:
        """A reward of 1 for each step towards the middle; random actions get half of it."""
        jax = import_jax()

        def reset(key: Any) -> tuple[Any, Any]:
            position = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
            return position, position

        def step(key: Any, position: Any, action: Any) -> tuple[Any, ...]:
            reward = jax.numpy.where((action == 1) == (position[0] < 0), 1.0, 0.0)
            position, state = reset(key)
            return position, state, reward, False, False

        env = functional(reset, step, spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2), max_episode_steps=20)
        agent = noterl.DQN(env, hidden=(16,), gamma=0.5, seed=1)
        agent.compile(1e-2, batch_size=32, learning_starts=200, update_every=4, updates=2, target_update=0.05)
        history = agent.fit(steps=8_000, num_envs=4, verbose=0)
        assert np.mean(history.history["reward"][:5]) < 14
        assert agent.evaluate(episodes=5)["reward_mean"] > 18.5
