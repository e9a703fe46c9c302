"""Measure worker processes: collecting with 1 and 2 workers, other projects, slow environments, overlap, the start.

    NPROC=1 KERAS_BACKEND=jax python -m benchmarks.pool
    NPROC=1 KERAS_BACKEND=jax python -m benchmarks.pool --parts scaling async --pairs 11 --seconds 1.5

The parts are: "scaling" (2 workers against 1), "async" (gymnasium's AsyncVectorEnv), "sb3" (SubprocVecEnv, if
Stable-Baselines3 is installed), "sleep" (slow environments), "overlap" (TD3, 1 worker), "ppo" (2 workers against none),
"returns" (with overlap and without), "start", "ring" and "weights".

NPROC=1 limits JAX to one thread: a second one would take the core of a worker.

Collecting is measured without a learner, with the actor of a small agent: `PoolLanes` with four environments in each
worker, which collects all the time (`overlap=True`), and vector environments with the same actor and as many processes,
which have one environment each. Both sides are warm: the clock starts after some steps, so it measures neither the
start of processes nor the first steps. "scaling" also steps environments in one and in two processes that share
nothing, which shows what the machine allows. Runs alternate, pair by pair. A ratio is the median over pairs with its
90 % interval; a bar is met if the lower end meets it.

Each part is stored in benchmarks/results/pool/ when it ends, with the machine, if it has at least five pairs and all of
its tasks; see `benchmarks.report.pool_tables`.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

import noterl
from benchmarks import shared_memory, stats
from benchmarks.evaluation import FIRST_SEED, versions
from benchmarks.processes import RESULTS, machine, store, warn_if_busy
from benchmarks.summaries import summarize_rates
from noterl import envs
from noterl.callback import Callback, Every
from noterl.collect import PoolLanes, ScalarLanes, Workers
from noterl.collect.workers.rounds import WorkerRounds

FOLDER = RESULTS / "pool"
LANES = 4  # environments of each worker
ROUNDS = 64  # between two looks at the clock
# Steps before the clock starts.
WARM_UP = 16 * ROUNDS * LANES
# Bars of the ratio to AsyncVectorEnv, with two processes.
TASKS = {"CartPole-v1": 6.0, "BipedalWalker-v3": 2.0, "HalfCheetah-v5": 3.5}
SCALING_BAR = 1.7
OVERLAP_BAR, PPO_BAR = 0.85, 0.9
RETURN_BAR = -0.05 * 1_600  # 5 % of the range of Pendulum's returns
SLEEP_BAR = 7.0
SECONDS_BAR, MEBIBYTES_BAR = 0.5, 60.0
RING_BAR = 500_000.0
WALKER = "BipedalWalker-v3"
PPO_ROLLOUT = 2_048 * 2 * LANES  # steps
SLEEP_ROLLOUT = 128  # of an environment

Row = dict[str, Any]


class Sleeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps 5 ms in each step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return self.env.step(action)


def make_sleeping() -> gymnasium.Env[Any, Any]:
    return Sleeping(gymnasium.make("CartPole-v1"))


def agent_for(env: Any) -> Any:
    """Return an agent that only acts, with networks of two layers of 64 units."""
    discrete = isinstance(envs.resolve(env).action_space, gymnasium.spaces.Discrete)
    kind = noterl.DQN if discrete else noterl.TD3
    agent = kind(env, hidden=(64, 64), seed=1)
    agent.compile(replay=1_000, batch_size=8, learning_starts=0)
    agent.build()
    return agent


# Collecting


def steady_rate(advance: Callable[[], int], seconds: float, warm_up: int = WARM_UP) -> float:
    """Return the steps per second of `advance`, which returns how many it makes; the first `warm_up` do not count."""
    steps = 0
    while steps < warm_up:
        steps += advance()
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        steps += advance()
    return steps / (time.perf_counter() - begun)


def lanes_rate(
    agent: Any, num_envs: int, workers: Workers | None, seconds: float, warm_up: int = WARM_UP, rounds: int = ROUNDS
) -> float:
    """Return the transitions per second of lanes, which the learner would store; the clock is read after `rounds`."""
    source, actor = envs.resolve(agent._config["env"]), agent._parts.built_actor
    if workers is None:
        stepped = Stepped(ScalarLanes(source, num_envs, agent.generators), actor)
        return steady_rate(stepped.one_round, seconds, warm_up)
    lanes = PoolLanes(source, num_envs, agent.generators, workers)
    lanes.start(actor)
    stepped = Stepped(lanes, actor)
    try:
        return steady_rate(lambda: sum(stepped.one_round() for _ in range(rounds)), seconds, warm_up)
    finally:
        lanes.close()


class Stepped:
    """Lanes that are stepped without a learner.

    Args:
        lanes: the lanes.
        actor: chooses the actions.
    """

    def __init__(self, lanes: Any, actor: Any) -> None:
        self.lanes, self.actor, self.steps = lanes, actor, 0

    def one_round(self) -> int:
        """Step every lane, and return the number of transitions."""
        lanes, actor, before = self.lanes, self.actor, self.steps
        for lane in lanes.idle():
            lanes.reset(lane, 0, self.steps)
        if isinstance(lanes, PoolLanes) and isinstance(lanes.rounds, WorkerRounds):
            lanes.rounds.collect(self.steps, None)
        else:
            lanes.begin_round(actor.head.executed(actor.choose_actions(lanes.observations(), self.steps)[0]))
        while lanes.actions is not None:
            for transition in lanes.tick(self.steps + 1):
                self.steps += 1
                if transition.terminated or transition.truncated:
                    lanes.ledger.finish(transition.lane)
        return self.steps - before


def vector_rate(agent: Any, vector: Any, num_envs: int, seconds: float, observations: Any) -> float:
    """Return the transitions per second of a vector environment with the same actor; it is closed at the end."""
    actor, steps = agent._parts.built_actor, 0

    def advance() -> int:
        nonlocal observations, steps
        observations = vector.step(actor.head.executed(actor.choose_actions(observations, steps)[0]))[0]
        steps += num_envs
        return num_envs

    try:
        return steady_rate(advance, seconds)
    finally:
        vector.close()


def async_rate(agent: Any, num_envs: int, seconds: float) -> float:
    """Return the transitions per second of gymnasium's AsyncVectorEnv."""
    make = functools.partial(gymnasium.make, agent._config["env"], disable_env_checker=True)
    vector = AsyncVectorEnv([make] * num_envs, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    return vector_rate(agent, vector, num_envs, seconds, vector.reset(seed=1)[0])


def sb3_rate(agent: Any, num_envs: int, seconds: float) -> float:
    """Return the transitions per second of SB3's SubprocVecEnv."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    make = functools.partial(gymnasium.make, agent._config["env"], disable_env_checker=True)
    vector = SubprocVecEnv([make] * num_envs, start_method="spawn")
    return vector_rate(agent, vector, num_envs, seconds, vector.reset())


# Steps an environment with random actions for some seconds, after a second of warming up, and prints the rate.
BARE = """
import sys, time
import gymnasium

def step(seconds):
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += len(actions)
    return steps / (time.perf_counter() - begun)

env = gymnasium.make(sys.argv[1], disable_env_checker=True)
env.reset(seed=0)
env.action_space.seed(0)
actions = [env.action_space.sample() for _ in range(100)]
step(1.0)
print(step(float(sys.argv[2])))
"""


def bare_rate(name: str, processes: int, seconds: float) -> float:
    """Return the steps per second of processes that step one environment each and share nothing."""
    command = [sys.executable, "-W", "ignore", "-c", BARE, name, str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    return sum(float(process.communicate()[0]) for process in running)


def compare(name: str, ours: Callable[[], float], theirs: Callable[[], float], pairs: int, bar: float | None) -> Row:
    """Return the rates of both sides, in alternating runs, and their ratio."""
    return row_of(name, [(ours(), theirs()) for _ in range(pairs)], bar)


def row_of(name: str, rates: list[tuple[float, float]], bar: float | None, **details: Any) -> Row:
    """Return the row of a comparison from pairs of rates, and print it."""
    runs = {side: [pair[index] for pair in rates] for index, side in enumerate(("ours", "theirs"))}
    row = {"name": name, "runs": runs, **summarize_rates(**runs, bar=bar), **details}
    print(
        f"{name}: {row['ours']:,.0f} and {row['theirs']:,.0f} per second, ratio {row['ratio']['ratio']:.2f} "
        f"(bar {bar})",
        details or "",
        flush=True,
    )
    return row


def collecting(part: str, arguments: argparse.Namespace) -> list[Row]:
    """Return the comparisons of "scaling", "async" or "sb3", one for each task."""
    if part == "sb3" and importlib.util.find_spec("stable_baselines3") is None:
        print("Stable-Baselines3 is not installed, so SubprocVecEnv is not measured", flush=True)
        return []
    rows = []
    for name in arguments.tasks:
        agent, seconds = agent_for(name), arguments.seconds
        two = functools.partial(lanes_rate, agent, 2 * LANES, Workers(2, overlap=True), seconds)
        one = functools.partial(lanes_rate, agent, LANES, Workers(1, overlap=True), seconds)
        theirs: dict[str, tuple[str, Callable[[], float], float | None]] = {
            "scaling": ("1 worker", one, None if name == "CartPole-v1" else SCALING_BAR),
            "async": ("AsyncVectorEnv", functools.partial(async_rate, agent, 2, seconds), TASKS[name]),
            "sb3": ("SubprocVecEnv", functools.partial(sb3_rate, agent, 2, seconds), None),
        }
        label, peer, bar = theirs[part]
        rows.append(compare(f"{name}: 2 workers / {label}", two, peer, arguments.pairs, bar))
        if part == "scaling":
            both, alone = (functools.partial(bare_rate, name, processes, seconds) for processes in (2, 1))
            rows.append(compare(f"{name}: 2 processes / 1, without noterl", both, alone, arguments.pairs, None))
    return rows


# Training


class Stopwatch(Callback):
    """Measures a `fit` from the first multiple of `warm_up` steps on.

    Attributes:
        rate: environment steps per second, without the start and the end of the processes.
        seconds: of this time.
        split: the seconds of each part of the loop.
    """

    def __init__(self, warm_up: int) -> None:
        self.every = Every(warm_up, "steps")
        self.rate = self.seconds = 0.0
        self.split: dict[str, float] = {}

    def on_train_begin(self, logs: Any) -> None:
        self._begun, self._steps, self._first = 0.0, 0, dict[str, float]()

    def on_due(self, logs: Any) -> None:
        if not self._begun:
            self._first, self._steps = dict(self.agent.history.time_split), self.agent.steps
            self._begun = time.perf_counter()

    def on_train_end(self, logs: Any) -> None:
        if not self._begun:  # an error or Ctrl-C has ended the training
            return
        self.seconds = time.perf_counter() - self._begun
        self.rate = (self.agent.steps - self._steps) / self.seconds
        self.split = {name: value - self._first[name] for name, value in self.agent.history.time_split.items()}


def timed(agent: Any, steps: int, warm_up: int, seed: int, **settings: Any) -> Stopwatch:
    """Train for `warm_up + steps` steps with new episodes, and return the times of about the last `steps`."""
    watch = Stopwatch(warm_up)
    agent.fit(steps=warm_up + steps, seed=seed, callbacks=[watch], verbose=0, **settings)
    return watch


def sleeping(arguments: argparse.Namespace) -> list[Row]:
    """Return the comparisons of 8 workers with none, where each step takes 5 ms.

    PPO trains: its workers collect a rollout in one phase. The other rows only collect, with a phase for each round, as
    DQN has by default, with longer phases, and with overlap.
    """
    agents = [noterl.PPO(make_sleeping, rollout_steps=SLEEP_ROLLOUT, seed=1) for _ in range(2)]
    steps = 8 * SLEEP_ROLLOUT
    for agent, workers in zip(agents, (8, 0), strict=True):
        agent.fit(steps=steps, num_envs=8, workers=workers, verbose=0)  # compiles the updates

    def trained(pair: int) -> tuple[float, float]:
        two = zip(agents, (8, 0), strict=True)
        eight, none = (timed(agent, 4 * steps, steps, pair, num_envs=8, workers=each).rate for agent, each in two)
        return eight, none

    name = "a step of 5 ms: PPO, 8 workers / none"
    rows = [row_of(name, [trained(pair) for pair in range(arguments.pairs)], SLEEP_BAR)]
    slow = agent_for(make_sleeping)
    none = functools.partial(lanes_rate, slow, 8, None, arguments.seconds, 64)
    settings = {
        "8 workers": Workers(8),
        "with collect=16": Workers(8, collect=16),
        "with overlap": Workers(8, overlap=True),
    }
    for name, workers in settings.items():
        eight = functools.partial(lanes_rate, slow, 8, workers, arguments.seconds, 64, 16)
        rows.append(compare(f"a step of 5 ms: collecting, {name} / none", eight, none, arguments.pairs, SLEEP_BAR))
    return rows


def walker_td3() -> Any:
    agent = noterl.TD3(WALKER, hidden=(64, 64), seed=1)
    agent.compile(learning_starts=1_000)
    return agent


def overlap(arguments: argparse.Namespace) -> list[Row]:
    """Compare TD3 on BipedalWalker-v3 with overlap with its bound.

    In a run without overlap, c is the time for a step in which the agent waits for its worker, and u the rest. With
    overlap, a step takes at least max(c, u). So the speed-up is at most (c + u) / max(c, u).
    """
    agents = [walker_td3(), walker_td3()]
    settings = [Workers(1, overlap=True), Workers(1)]
    for agent, workers in zip(agents, settings, strict=True):
        agent.fit(steps=3_000, workers=workers, verbose=0)  # compiles the updates
    rates, details = [], []
    for pair in range(arguments.pairs):
        both, plain = (
            timed(agent, arguments.overlap_steps, 1_000, pair, workers=own)
            for agent, own in zip(agents, settings, strict=True)
        )
        c = plain.split["workers"]
        u = plain.seconds - c
        bound = plain.seconds / max(c, u)
        rates.append((both.rate, bound * plain.rate))
        steps = plain.rate * plain.seconds
        details.append((c / steps, u / steps, both.rate / plain.rate, bound))
    names = ("c", "u", "speedup", "bound")
    measured = dict(zip(names, np.median(details, axis=0).tolist(), strict=True))
    return [row_of("TD3: overlap / its bound", rates, OVERLAP_BAR, **measured)]


def ppo(arguments: argparse.Namespace) -> list[Row]:
    """Compare PPO on BipedalWalker-v3 with 2 workers with its bound.

    A run without workers measures the share s of collecting: acting and stepping. If two workers collect 1.7 times as
    fast, the speed-up is 1 / (1 - s + s / 1.7).
    """
    agents = [noterl.PPO(WALKER, seed=1), noterl.PPO(WALKER, seed=1)]
    rates, details = [], []
    for agent, workers in zip(agents, (2, 0), strict=True):
        agent.fit(steps=PPO_ROLLOUT, num_envs=2 * LANES, workers=workers, verbose=0)  # compiles the updates
    for pair in range(arguments.pairs):
        two, none = (
            timed(agent, arguments.ppo_steps, PPO_ROLLOUT, pair, num_envs=2 * LANES, workers=workers)
            for agent, workers in zip(agents, (2, 0), strict=True)
        )
        share = (none.split["environment"] + none.split["act"]) / none.seconds
        bound = 1 / (1 - share + share / SCALING_BAR)
        rates.append((two.rate, bound * none.rate))
        details.append((share, two.rate / none.rate, bound))
    measured = dict(zip(("s", "speedup", "bound"), np.median(details, axis=0).tolist(), strict=True))
    return [row_of("PPO: 2 workers / their bound", rates, PPO_BAR, **measured)]


def returns(arguments: argparse.Namespace) -> list[Row]:
    """Return how much more TD3 on Pendulum-v1 reaches with overlap than without: the greedy return of three seeds."""

    def score(seed: int, workers: Workers) -> float:
        agent = noterl.TD3("Pendulum-v1", seed=seed)
        agent.fit(steps=arguments.return_steps, workers=workers, verbose=0)
        return float(np.mean(agent.evaluate(episodes=20, seed=FIRST_SEED)["returns"]))

    pairs = [(score(seed, Workers(1, overlap=True)), score(seed, Workers(1))) for seed in range(3)]
    ours, theirs = (list(side) for side in zip(*pairs, strict=True))
    found = stats.difference(ours, theirs, span=1_600, min_seeds=3)
    name = f"return with overlap less that without: 3 seeds, {found['low']:.0f} to {found['high']:.0f}"
    scores = {"overlap": ours, "without": theirs}
    return [{**value_row(name, found["difference"], RETURN_BAR, bool(found["passes"])), "scores": scores}]


# Processes and memory


def value_row(name: str, value: float, bar: float | None, met: bool) -> Row:
    """Return the row of a value that is not compared with another program, and print it."""
    print(f"{name}: {value:,.3g} (bar {bar})", flush=True)
    return {"name": name, "value": value, "bar": bar, "met": met}


def starting(arguments: argparse.Namespace) -> list[Row]:
    """Return the seconds until two workers are ready, and the MiB that only one of them uses."""
    agent = agent_for("CartPole-v1")
    seconds, memory = [], []
    for _ in range(max(arguments.pairs, 1)):
        lanes = PoolLanes(envs.resolve(agent._config["env"]), 2, agent.generators, Workers(2))
        begun = time.perf_counter()
        lanes.start(agent._parts.built_actor)
        seconds.append(time.perf_counter() - begun)
        memory += [psutil.Process(each.pid).memory_full_info().uss / 2**20 for each in lanes.supervisor.processes]
        lanes.close()
    ready, size = float(np.median(seconds)), float(np.median(memory))
    return [
        value_row("seconds until two workers are ready", ready, SECONDS_BAR, ready <= SECONDS_BAR),
        value_row("MiB of one worker", size, MEBIBYTES_BAR, size <= MEBIBYTES_BAR),
    ]


def ring(arguments: argparse.Namespace) -> list[Row]:
    """Return the rows per second through one ring.

    Raises:
        RuntimeError: if a row was lost or torn.
    """
    found = shared_memory.ring_rate(arguments.rows)
    if found["lost_or_torn"]:
        raise RuntimeError(f"rows were lost or torn: {found}")
    name, rate = f"rows/s through one ring: {found['rows']:,} rows, 0 lost or torn", found["rows_per_second"]
    return [value_row(name, rate, RING_BAR, rate >= RING_BAR)]


def weights(arguments: argparse.Namespace) -> list[Row]:
    """Return how many weights per second are published while another process reads them.

    Raises:
        RuntimeError: if weights were torn.
    """
    found = shared_memory.torn_weights(arguments.publications)
    if found["torn"]:
        raise RuntimeError(f"weights were torn: {found}")
    name = "publications/s of weights: {publications:,} publications, {reads:,} read, {refused:,} refused, {torn} torn"
    return [value_row(name.format(**found), found["per_second"], None, True)]


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    **{part: functools.partial(collecting, part) for part in ("scaling", "async", "sb3")},
    "sleep": sleeping,
    "overlap": overlap,
    "ppo": ppo,
    "returns": returns,
    "start": starting,
    "ring": ring,
    "weights": weights,
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], prog="pool.py")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measurement of collecting, after the warm-up")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rows", type=int, default=10_000_000, help="through the ring")
    parser.add_argument("--publications", type=int, default=1_000_000, help="of weights")
    parser.add_argument("--overlap-steps", type=int, default=8_000)
    parser.add_argument("--ppo-steps", type=int, default=32_768)
    parser.add_argument("--return-steps", type=int, default=20_000)
    arguments = parser.parse_args(words)
    complete = arguments.pairs >= stats.MIN_PAIRS and arguments.tasks == list(TASKS)
    for part in arguments.parts:
        start = machine()
        warn_if_busy(start)
        rows = PARTS[part](arguments)
        if rows and complete:
            result = {
                "part": part,
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "pairs": arguments.pairs,
                "machine": start,
                "versions": versions(("noterl", "numpy", "gymnasium", "jax")),
                "runs": rows,
            }
            store(result, FOLDER / f"{part}.json")
            print(f"stored in {FOLDER / f'{part}.json'}", flush=True)


if __name__ == "__main__":
    main()
