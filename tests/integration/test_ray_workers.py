"""`fit` with `RayWorkers` on a local cluster of two nodes: the same results as with processes, and failures."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from noterl.collect import RayWorkers, WorkerError, Workers
from noterl.collect.workers.worker import WAKE
from tests.collect.test_spaces_on_each_path import Run
from tests.collect.test_spaces_on_each_path import dqn as spaces_dqn
from tests.integration.test_workers import ROOT, Watcher, dqn, ppo
from tests.support.pools import Pool, pool, time_hung_worker, wait_until_gone
from tests.support.replay_invariants import check_replay
from tests.support.states import assert_same_state, differences
from tests.support.worker_envs import BrokenEnv, DiscreteWalkEnv, FaultyEnv, IdEnv, LevelEnv, SlowEnv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.backends("torch"),
    # Ray warns of sockets that its own processes leave open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # JAX, which other tests have imported in this process, warns of the forks that start Ray's processes.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
    # On a machine with other load, starting an actor may take longer than the time after which a warning says so.
    pytest.mark.filterwarnings("ignore:.*the cluster has not started it:RuntimeWarning"),
]

QUARTER = {"num_cpus": 0.25}  # of a core for each worker, so that a test may start several


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start two nodes, to which this process is connected."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    handler = signal.getsignal(signal.SIGTERM)
    # In a folder of its own, whose path is short enough for sockets: otherwise `ray.init` in other processes, such as
    # those of other tests, connects to this cluster.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=1, resources={"second": 1})
        ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
            signal.signal(signal.SIGTERM, handler)  # Ray has installed its own


def workers(count: int = 2, **settings: Any) -> RayWorkers:
    return RayWorkers(count, **{**QUARTER, **settings})


def nodes_of(made: Pool) -> set[str]:
    """Return the nodes on which the workers of a pool run."""
    from ray._private import state

    found = (state.actors(process.actor._actor_id.hex()) for process in made.lanes.supervisor.processes)
    return {actor["Address"]["NodeID"] for actor in found}


@pytest.mark.usefixtures("cluster")
class TestResults:
    @pytest.mark.parametrize("make", [dqn, ppo])
    def test_run_is_that_of_processes_and_resumes_exactly(self, make: Any, tmp_path: Path) -> None:
        processes, whole, parts = make(), make(), make()
        processes.fit(steps=80, num_envs=3, workers=Workers(2), verbose=0)
        history = whole.fit(steps=80, num_envs=3, workers=workers(), verbose=0)
        assert_same_state(processes, whole)
        assert set(history.history["worker"]) == {0, 1} and history.time_split["workers"] > 0
        parts.fit(steps=37, num_envs=3, workers=workers(), verbose=0)
        parts.save(tmp_path / "agent.noterl")
        resumed = make(seed=None)
        resumed.restore(tmp_path / "agent.noterl")
        resumed.fit(steps=43, workers=workers(), verbose=0)
        assert_same_state(whole, resumed)

    @pytest.mark.filterwarnings("ignore:observations of the shape .* are flattened:UserWarning")
    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    def test_run_with_dicts_that_is_saved_within_a_round_resumes_exactly(self, tmp_path: Path) -> None:
        processes, halves, resumed = (Run(spaces_dqn, "workers", "masked Dict-with-image") for _ in range(3))
        for run in (halves, resumed):
            run.arguments["workers"] = workers(collect=4)
        processes.fit(47)
        halves.fit(22)
        halves.fit(47, 34, tmp_path / "agent.noterl")
        resumed.agent.restore(tmp_path / "agent.noterl")
        resumed.fit(47)
        for run in (halves, resumed):
            assert_same_state(processes.agent, run.agent)

    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    @pytest.mark.parametrize(
        ("in_numpy", "settings"), [(True, {}), (False, {"collect": 7}), (True, {"collect": "episode"})]
    )
    def test_lanes_return_what_those_of_processes_return(self, in_numpy: bool, settings: dict[str, Any]) -> None:
        found = []
        for kind in (Workers(2, **settings), workers(**settings)):
            with pool(DiscreteWalkEnv, 5, kind, in_numpy=in_numpy) as made:
                found.append([list(each) for each in made.rounds(60)])
        assert not differences(*found)

    def test_long_phases_do_not_overflow_the_ring(self) -> None:
        found = []
        for kind in (Workers(1, collect=700), workers(1, collect=700)):
            with pool(DiscreteWalkEnv, 2, kind) as made:
                found.append([list(each) for each in made.rounds(900)])
        assert not differences(*found)

    def test_workers_run_on_all_nodes_in_processes_of_their_own(self) -> None:
        with pool(IdEnv, 4, workers()) as made:
            transitions = made.rounds(4)
            pids = made.processes()
            assert len(nodes_of(made)) == 2
        assert {int(each.observation[0]) for each in transitions} == {*pids} and os.getpid() not in pids
        wait_until_gone(pids)

    @pytest.mark.parametrize("most", [2, None])
    def test_overlap_keeps_its_bounds(self, most: int | None) -> None:
        agent = dqn()
        history = agent.fit(
            steps=203, num_envs=3, workers=workers(overlap=True, max_staleness=most), callbacks=[], verbose=0
        )
        assert agent.steps == 203
        staleness = np.array(history.history["staleness"])
        assert staleness.min() >= 0 and staleness.max() <= (256 if most is None else most)
        check_replay(agent.replay)

    def test_env_call_reaches_all_environments(self) -> None:
        agent = dqn(LevelEnv)
        found: list[Any] = []
        watcher = Watcher(lambda _, episode: found.append((episode, agent.env_call("set_level", episode))))
        agent.fit(episodes=4, num_envs=3, workers=workers(), callbacks=[watcher], verbose=0)
        episode, results = found[2]
        assert [level for level, _ in results] == [episode] * 3 and len({pid for _, pid in results}) == 2


@pytest.mark.usefixtures("cluster")
class TestFailures:
    @pytest.mark.parametrize("in_numpy", [True, False])
    @pytest.mark.filterwarnings("ignore:workers. NumPy")
    def test_exception_of_an_environment_arrives_with_its_traceback(self, in_numpy: bool) -> None:
        env = partial(FaultyEnv, "raise")
        with (
            pytest.raises(WorkerError, match=r"worker \d .*ZeroDivisionError") as raised,
            pool(env, 4, workers(), in_numpy=in_numpy) as made,
        ):
            made.rounds(10)
        assert "worker_envs.py" in str(raised.value)

    def test_environment_that_a_worker_cannot_make_raises(self) -> None:
        with pytest.raises(WorkerError, match="no display"), pool(partial(BrokenEnv, os.getpid()), 1, workers(1)):
            pass

    def test_killed_worker_is_noticed_and_replaced(self) -> None:
        with pool(DiscreteWalkEnv, 4, workers()) as made:
            made.rounds(7)
            victim, other = made.processes()
            os.kill(victim, signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="worker 0 .*has lost its actor"):
                transitions = made.rounds(40)
            assert made.processes()[0] != victim and made.processes()[1] == other
            assert {*made.cut} == {0, 1} and {each.lane for each in transitions} == {0, 1, 2, 3}

    @pytest.mark.parametrize("kind", ["sleep", "freeze"])
    def test_hung_environment_ends(self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        time_hung_worker(monkeypatch, tmp_path / "flag")
        env = partial(FaultyEnv, kind, 5, str(tmp_path / "flag"))
        with pool(env, 2, workers(step_timeout=1.0)) as made:
            made.rounds(3)
            with pytest.warns(RuntimeWarning, match="step_timeout=1"):
                made.rounds(20)
            assert len(made.cut) == 1

    def test_slow_learner_does_not_take_a_worker_for_hung(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from noterl.collect.ray.launcher import RayLauncher

        pass_on, stall, is_stalled = RayLauncher._pass_on, threading.Event(), threading.Event()

        def stalled(self: RayLauncher) -> None:
            if stall.is_set():
                is_stalled.set()
                time.sleep(0.01)
            else:
                pass_on(self)

        monkeypatch.setattr(RayLauncher, "_pass_on", stalled)
        with pool(partial(SlowEnv, 0.2), 1, workers(1, collect=9)) as made:
            supervisor = made.lanes.supervisor
            made.rounds(2)
            worker = supervisor.processes[0]
            supervisor.wait_until(lambda: worker.seconds_inside() > 0.0)
            stall.set()
            is_stalled.wait()
            before = worker.seconds_inside()
            time.sleep(0.1)
            assert worker.seconds_inside() == before
            stall.clear()

    def test_failed_command_fails_the_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pool(DiscreteWalkEnv, 2, workers()) as made:
            made.rounds(3)
            process = made.lanes.supervisor.processes[0]
            monkeypatch.setattr(process, "_number", np.zeros(1))  # the actor cannot hash it
            with pytest.warns(RuntimeWarning, match="worker 0 .*has lost its actor"):
                made.rounds(40)
            assert made.cut == [0]

    def test_full_pipe_does_not_hold_up_the_relay(self) -> None:
        from noterl.collect.ray.launcher import _LearnerPipe

        pipe = _LearnerPipe()
        putting = threading.Thread(target=lambda: [pipe.put(message) for message in [b"a", *[WAKE] * 200_000, b"b"]])
        putting.start()
        putting.join()
        assert [pipe.recv_bytes(), pipe.recv_bytes()] == [b"a", b"b"]
        pipe.put(WAKE)
        pipe.put(None)
        assert select.select([pipe], [], [], 0)[0] and pipe.recv_bytes() == WAKE
        with pytest.raises(EOFError):
            pipe.recv_bytes()
        assert not select.select([pipe], [], [], 0)[0]
        pipe.close()

    @pytest.mark.parametrize("where", ["launch", "receive"])
    def test_error_of_the_relay_reaches_the_learner(self, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from noterl.collect.ray.launcher import RayWorker

        def fail(*_: Any) -> None:
            raise OSError("no more memory")

        with pool(DiscreteWalkEnv, 2, workers()) as made:
            made.rounds(3)
            monkeypatch.setattr(RayWorker, "calls" if where == "launch" else "_receive", fail)
            with (
                pytest.warns(RuntimeWarning, match=r"lost .*Ray: OSError: no more memory"),
                pytest.raises(RuntimeError, match="connection to Ray was lost"),
            ):
                made.rounds(300)

    def test_restarts_are_limited(self) -> None:
        with (
            pool(partial(FaultyEnv, "exit"), 1, workers(1, restarts=1)) as made,
            pytest.warns(RuntimeWarning, match="has lost its actor"),
            pytest.raises(WorkerError, match="after 1 restarts"),
        ):
            made.rounds(50)

    def test_worker_that_the_cluster_cannot_start_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("noterl.collect.ray.launcher._SLOW_START", 0.2)
        settings = workers(1, resources={"third": 1}, start_timeout=0.6)
        with (
            pytest.warns(RuntimeWarning, match="has not started it after 0 seconds"),
            pytest.raises(WorkerError, match=r"TimeoutError.*'third': 1"),
            pool(DiscreteWalkEnv, 1, settings),
        ):
            pass

    def test_short_timeout_of_the_start_is_kept(self) -> None:
        settings = workers(1, resources={"third": 1}, start_timeout=0.5)
        # Without the timeout, the error would follow the warning of a slow start, which fails the test.
        with pytest.raises(WorkerError, match="TimeoutError"), pool(DiscreteWalkEnv, 1, settings):
            pass

    def test_lost_connection_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from noterl.collect.ray import launcher as ray_launcher

        def wait(*arguments: Any, **options: Any) -> Any:
            raise ConnectionError("no cluster")

        with pool(DiscreteWalkEnv, 2, workers()) as made:
            made.rounds(3)
            monkeypatch.setattr(ray_launcher.ray, "wait", wait)
            with (
                pytest.warns(RuntimeWarning, match=r"lost .*Ray: ConnectionError: no cluster"),
                pytest.raises(RuntimeError, match="connection to Ray was lost"),
            ):
                made.rounds(300)

    def test_workers_of_a_lost_node_continue_on_another(self, cluster: Any) -> None:
        node = cluster.add_node(num_cpus=1, resources={"third": 1})
        with pool(DiscreteWalkEnv, 3, workers(3)) as made:
            made.rounds(5)
            assert len(nodes_of(made)) == 3
            cluster.remove_node(node, allow_graceful=False)
            with pytest.warns(RuntimeWarning, match="has lost its actor"):
                transitions = made.rounds(40)
            assert len(made.cut) == 1 and {each.lane for each in transitions} == {0, 1, 2}


_SCRIPT = """
import gymnasium, noterl, signal, time
from noterl.collect import RayWorkers

class Mine(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.002)
        return self.env.step(action)

class Says(noterl.Callback):
    def on_episode_end(self, episode, logs=None):
        if not episode:
            print("trains", flush=True)

agent = noterl.DQN(lambda: Mine(gymnasium.make("CartPole-v1")), hidden=(8,), seed=3)
{before}
print("begins", flush=True)
try:
    agent.fit(steps={steps}, num_envs=2, workers=RayWorkers(2, num_cpus=0.25), callbacks=[Says()], verbose=0)
finally:
    import ray
    print(agent.steps > 0, ray.is_initialized(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
"""


def _start(steps: int, before: str = "") -> subprocess.Popen[str]:
    variables = {**os.environ, "RAY_ADDRESS": "local", "KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT.format(steps=steps, before=before)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    )


class TestWithoutInit:
    def test_fit_starts_ray_and_ends_it(self) -> None:
        process = _start(60)
        try:
            out, error = process.communicate()
        finally:
            process.kill()
        assert out.split() == ["begins", "trains", "True", "False", "True"], error

    @pytest.mark.parametrize(
        ("number", "code", "before"),
        [
            (signal.SIGINT, -signal.SIGINT, ""),
            (signal.SIGKILL, -signal.SIGKILL, ""),
            (signal.SIGTERM, 143, ""),
            (signal.SIGTERM, 143, "import ray; ray.init(include_dashboard=False)"),
        ],
    )
    def test_no_process_is_left(self, number: int, code: int, before: str) -> None:
        process = _start(10_000_000, before)
        try:
            self.end(process, number, code)
        finally:
            process.kill()

    def end(self, process: subprocess.Popen[str], number: int, code: int) -> None:
        assert process.stdout is not None
        while process.stdout.readline() != "trains\n":
            assert process.poll() is None
        root = psutil.Process(process.pid)
        assert sum("RayActor" in _name(child) for child in root.children(recursive=True)) == 2
        # Two helpers of Ray, with names such as DashboardAgent, look for its death only every few seconds.
        pids = [child.pid for child in root.children(recursive=True) if not _name(child).strip().endswith("Agent")]
        process.send_signal(number)
        error = process.communicate()[1]
        assert process.returncode == code, error
        wait_until_gone(pids)


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class TestConnection:
    def test_last_of_two_ends_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from noterl.collect.ray import launcher as ray_launcher

        states = [False]
        monkeypatch.setattr(ray_launcher, "_start_ray", lambda: states.append(True))
        monkeypatch.setattr(ray_launcher.ray, "is_initialized", lambda: states[-1])
        monkeypatch.setattr(ray_launcher.ray, "shutdown", lambda: states.append(False))
        connection = ray_launcher._Connection()
        connection.open()
        connection.open()
        connection.close()
        assert states == [False, True]
        connection.close()
        assert states == [False, True, False]

    def test_ray_of_the_program_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from noterl.collect.ray import launcher as ray_launcher

        monkeypatch.setattr(ray_launcher.ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray_launcher.ray, "shutdown", pytest.fail)
        connection = ray_launcher._Connection()
        connection.open()
        connection.close()


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"num_workers": 0}, "num_workers"),
            ({"num_workers": 2, "num_cpus": -1}, "num_cpus"),
            ({"num_workers": 2, "resources": ["a"]}, "resources"),
            ({"num_workers": 2, "start_timeout": 0}, "start_timeout"),
            ({"num_workers": 2, "collect": 2, "overlap": True}, "collect"),
        ],
    )
    def test_bad_argument_is_named(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            RayWorkers(**arguments)

    def test_without_ray_the_error_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "noterl.collect.ray.launcher", None)
        with pytest.raises(ImportError, match=r"RayWorkers.*noterl\[ray\]"):
            dqn().fit(steps=5, workers=workers(1), verbose=0)
