"""Compare the replay memory with its bars and with cpprb: prioritized sampling, adding, uniform sampling, hindsight.

    make peers; PYTHONPATH=. KERAS_BACKEND=jax .venv-peers/bin/python -m benchmarks.replay

All parts run in one process. The two sides of a comparison alternate, pair by pair. A ratio is our time divided by the
other: the median over pairs, with its 90 % interval; a bar is met if the upper end is within it. Times are medians in
microseconds. The part `agent` trains DQN on CartPole-v1 with rl-zoo3's settings and either sampler; it includes the
environment and the updates. The part `prefetch` shows when gathering batches ahead is faster. The result is printed. It
is stored in benchmarks/results/replay/ if all parts ran with at least five pairs.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks import stats
from benchmarks.evaluation import versions
from benchmarks.processes import RESULTS, machine, store, warn_if_busy
from benchmarks.report import replay_table
from benchmarks.summaries import summarize_pairs
from benchmarks.tasks import TASKS
from noterl.envs import BitFlip
from noterl.replay import Hindsight, Prioritized, Replay, Uniform

RESULT = RESULTS / "replay" / "replay.json"
CAPACITY = 1_000_000
CARTPOLE = spaces.Box(-10.0, 10.0, (4,), np.float32), spaces.Discrete(2)
ATARI = spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Discrete(18)
# Updates of one group.
K = 32

Call = Callable[[], Any]


def microseconds(call: Call, least: float = 0.02) -> float:
    """Return the median time of a call, from five rounds of at least `least` seconds."""
    call()
    count = 1
    begun = time.perf_counter()
    while time.perf_counter() - begun < least:
        call()
        count += 1
    rounds = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - begun) / count * 1e6)
    return float(np.median(rounds))


def time_once(call: Call) -> float:
    """Return the time of one call in microseconds."""
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e6


def median_of_five(call: Call) -> float:
    """Return the median time of five calls in microseconds."""
    return sorted(time_once(call) for _ in range(5))[2]


def compare(
    name: str,
    ours: Call,
    theirs: Call,
    pairs: int,
    *,
    bar: float | None,
    per: int = 1,
    timer: Callable[[Call], float] | None = None,
) -> dict[str, Any]:
    """Return the row of a comparison: our time divided by theirs. The side that runs first alternates."""
    measured: dict[str, list[float]] = {"ours": [], "theirs": []}
    for pair in range(pairs):
        both = [("ours", ours), ("theirs", theirs)]
        for who, call in both if pair % 2 else reversed(both):
            measured[who].append((timer or microseconds)(call) / per)
    return {"name": name, **summarize_pairs(**measured, bar=bar), "runs": measured}


def measure(name: str, call: Call, pairs: int, *, bar: float, per: int = 1) -> dict[str, Any]:
    """Return the row of one of noterl's times: the median, and whether it is within the bar."""
    runs = [microseconds(call) / per for _ in range(pairs)]
    ours = float(np.median(runs))
    return {"name": name, "ours": ours, "theirs": None, "ratio": None, "bar": bar, "met": ours <= bar, "runs": runs}


def make_full_memory(**arguments: Any) -> Replay:
    """Return a memory of `CAPACITY` transitions of CartPole."""
    memory = Replay(CAPACITY, **arguments)
    memory.build(*CARTPOLE)
    observation, add = np.zeros(4, np.float32), memory.add
    for step in range(CAPACITY):
        add(0, observation, 1, 1.0, observation, step % 200 == 199, False)
    return memory


def add_rows(memory: Replay, lanes: int) -> Call:
    """Return a function that adds one transition to each lane."""
    observations = np.random.default_rng(0).random((lanes, 4), np.float32)
    add = memory.add

    def call() -> None:
        for lane in range(lanes):
            add(lane, observations[lane], 1, 1.0, observations[lane], False, False)

    return call


def prioritized(pairs: int) -> list[dict[str, Any]]:
    """Compare sampling and feeding back errors with cpprb's `sample` and `update_priorities`."""
    from cpprb import PrioritizedReplayBuffer

    generator = np.random.default_rng(0)
    memory = make_full_memory(sampler=Prioritized())
    scores = generator.random(CAPACITY) + 0.01
    memory.sampler.feedback(np.arange(CAPACITY), {"td_error": scores.astype(np.float32)})
    fields = {"obs": {"shape": 4}, "act": {"dtype": np.int32}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}
    peer = PrioritizedReplayBuffer(CAPACITY, fields, alpha=0.7)
    ones, states = np.ones(CAPACITY, np.float32), np.zeros((CAPACITY, 4), np.float32)
    peer.add(obs=states, act=ones, rew=ones, next_obs=states, done=ones, priorities=scores)

    def pair(updates: int, size: int) -> tuple[Call, Call]:
        errors = generator.random((updates, size)).astype(np.float32)

        def ours() -> None:
            sample = memory.sample(updates, size, generator=generator)
            memory.gather(sample, gamma=0.99)
            memory.feedback(sample, {"td_error": errors})

        def theirs() -> None:
            batch = peer.sample(updates * size, 0.4)
            peer.update_priorities(batch["indexes"], errors.ravel())

        return ours, theirs

    one = np.zeros(4, np.float32)
    return [
        compare("prioritized, 64 per call", *pair(1, 64), pairs, bar=1.3),
        compare("prioritized, 256 per call", *pair(1, 256), pairs, bar=1.0),
        compare(f"prioritized, {K} batches of 64 per call, each", *pair(K, 64), pairs, bar=1 / 1.8, per=K),
        compare(
            "prioritized, add one",
            add_rows(memory, 1),
            lambda: peer.add(obs=one, act=1, rew=1.0, next_obs=one, done=0.0),
            pairs,
            bar=1.0,
        ),
        measure("prioritized, add one (absolute)", add_rows(memory, 1), pairs, bar=2.0),
    ]


def uniform(pairs: int) -> list[dict[str, Any]]:
    memory, generator = make_full_memory(), np.random.default_rng(0)
    return [
        measure("uniform, add to 8 lanes, each", add_rows(memory, 8), pairs, bar=2.0, per=8),
        measure("uniform, add one", add_rows(memory, 1), pairs, bar=5.0),
        measure(
            f"uniform, sample {K} batches of 64",
            lambda: memory.gather(memory.sample(K, 64, generator=generator), gamma=0.99),
            pairs,
            bar=500.0,
        ),
    ]


def hindsight(pairs: int, rows: int = 100_000) -> list[dict[str, Any]]:
    """Compare sampling 256 transitions of 15 flipped bits with and without relabeling."""
    env, generator = BitFlip(15), np.random.default_rng(0)
    relabel = Hindsight()
    relabel.attach(env)
    memories = [Replay(rows, relabel=relabel), Replay(rows)]
    for memory in memories:
        memory.build(env.observation_space, env.action_space)
    observation, ended = env.reset(seed=0)[0], False
    for action in generator.integers(15, size=rows).tolist():
        observation = env.reset()[0] if ended else observation
        following, reward, terminated, truncated, _ = env.step(action)
        for memory in memories:
            memory.add(0, observation, action, reward, following, terminated, truncated)
        observation, ended = following, terminated or truncated
    calls = [
        lambda memory=memory: memory.gather(memory.sample(1, 256, generator=generator), gamma=0.98)
        for memory in memories
    ]
    return [compare("hindsight / uniform, sample 256", *calls, pairs, bar=3.0)]


def memory(pairs: int, rows: int = 100_000) -> list[dict[str, Any]]:
    """Measure how much memory the process takes to fill a memory with frame stacks and to sample batches."""
    gc.collect()
    before = _resident()
    replay = Replay(rows, frame_stack=4)
    replay.build(*ATARI)
    frames = np.random.default_rng(0).integers(0, 255, (84, 84, 204), np.uint8)
    for step in range(rows):
        start = step % 200
        stack, following = frames[..., start : start + 4], frames[..., start + 1 : start + 5]
        replay.add(0, stack, 1, 1.0, following, start == 199, False)
    replay.gather(replay.sample(8, 32, generator=np.random.default_rng(0)), gamma=0.99)
    scaled = (_resident() - before) / rows * 1e6 / 1e9
    row = {"name": f"a million Atari stacks in GB, from {rows:,}", "ours": scaled, "theirs": None}
    return [{**row, "ratio": None, "bar": 7.5, "met": scaled <= 7.5, "runs": [scaled]}]


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def agent(pairs: int, steps: int = 10_000) -> list[dict[str, Any]]:
    """Compare an environment step of DQN on CartPole-v1 with prioritized and with uniform sampling."""
    import keras

    import noterl
    from noterl.policies import LinearEpsGreedyPolicy

    settings: Any = TASKS["cartpole-dqn"].settings
    schedule = ("batch_size", "learning_starts", "update_every", "updates", "target_update")
    exploration = settings["exploration_start"], settings["exploration_end"]

    def training(sampler: Prioritized | Uniform) -> Call:
        learner = noterl.DQN("CartPole-v1", double=False, hidden=settings["hidden"], gamma=settings["gamma"], seed=1)
        learner.compile(
            keras.optimizers.Adam(settings["learning_rate"]),
            policy=LinearEpsGreedyPolicy(*exploration, steps=settings["exploration_steps"]),
            replay=Replay(settings["capacity"], sampler=sampler),
            **{name: settings[name] for name in schedule},
        )
        learner.fit(steps=settings["learning_starts"] + 4 * settings["update_every"], verbose=0)  # compile now
        return lambda: learner.fit(steps=steps, verbose=0)

    name = f"DQN on CartPole-v1 ({keras.backend.backend()}), one step, prioritized / uniform"
    calls = training(Prioritized()), training(Uniform())
    return [compare(name, *calls, pairs, bar=1 / 0.7, per=steps, timer=time_once)]


def prefetch(pairs: int, seconds: float = 0.005) -> list[dict[str, Any]]:
    """Compare eight updates with and without gathering ahead; the updates run on another device or on this CPU."""
    rows = []
    generator, matrix = np.random.default_rng(0), np.ones((200, 200), np.float32)
    for kind, (observations, actions) in {"Atari stacks": ATARI, "CartPole rows": CARTPOLE}.items():
        memories = [Replay(2000, frame_stack=4 if kind == "Atari stacks" else None, prefetch=n) for n in (1, 0)]
        frames = generator.integers(0, 9, (*observations.shape[:-1], observations.shape[-1] + 200))
        size = observations.shape[-1]
        for replay in memories:
            replay.build(observations, actions)
            for step in range(2000):
                start = step % 200
                pair = [frames[..., at : at + size] for at in (start, start + 1)]
                replay.add(0, pair[0], 1, 1.0, pair[1], start == 199, False)
        sample = memories[0].sample(8, 32, generator=generator)
        parts = [sample[k : k + 1] for k in range(8)]

        def group(replay: Replay, elsewhere: bool, parts: list[Any] = parts) -> None:
            with replay.gather_ahead(lambda part: replay.gather(part, gamma=0.99), parts) as batches:
                for _ in parts:
                    next(batches)
                    until = time.perf_counter() + seconds
                    if elsewhere:
                        time.sleep(seconds)
                    while time.perf_counter() < until:
                        matrix @ matrix

        for elsewhere in (True, False):
            where = "on another device" if elsewhere else "on the same cores"
            calls = [lambda replay=replay, where=elsewhere: group(replay, where) for replay in memories]
            name = f"8 updates of {seconds * 1e3:.0f} ms {where}, {kind}, prefetch=1 / prefetch=0"
            rows.append(compare(name, *calls, pairs, bar=None, timer=median_of_five))
    return rows


PARTS = {
    "memory": memory,
    "prioritized": prioritized,
    "uniform": uniform,
    "hindsight": hindsight,
    "agent": agent,
    "prefetch": prefetch,
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="replay.py")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args(words)
    if arguments.pairs < 2:
        parser.error("--pairs must be at least 2")
    start = machine()
    warn_if_busy(start)
    rows = [row for part in arguments.parts for row in PARTS[part](arguments.pairs)]
    result = {
        "task": "replay",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "pairs": arguments.pairs,
        "machine": start,
        "versions": versions(("noterl", "numpy", "cpprb", "keras", "tensorflow-cpu", "jax", "torch")),
        "runs": rows,
    }
    print(replay_table(result))
    if arguments.pairs >= stats.MIN_PAIRS and arguments.parts == list(PARTS):
        store(result, RESULT)
        print(f"\nstored in {RESULT}")


if __name__ == "__main__":
    main()
