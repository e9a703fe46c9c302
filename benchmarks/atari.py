"""Train DQN on Atari Pong beside a bare program and Stable-Baselines3: time per update, memory and return.

    make peers; OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.atari

All participants have the same settings: one lane, a memory of 50,000 frames, an update on 32 transitions every four
steps. The bare program is a loop in PyTorch on ale-py's vector environment, with a ring of frames in NumPy; stacks may
begin in the episode before. Each run is a process of its own; the participants run in turn. The ratio is noterl's time
per update divided by the other's, without the first 2,000 steps; steps between updates are included. The bar is 1 for
Stable-Baselines3, and 1.1 for the bare program of the same framework (benchmarks/limit.py has those of the others).
The result is stored in benchmarks/results/atari/ if all participants made at least 5,000 steps: 750 timed updates.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.evaluation import versions
from benchmarks.processes import RESULTS, ROOT, execute, machine, store, variables, warn_if_busy
from benchmarks.summaries import summarize_pairs

RESULT = RESULTS / "atari" / "atari.json"
STEPS = 5_000
PARTICIPANTS = ("noterl-torch", "noterl-jax", "noterl-tensorflow", "bare", "sb3")
BARS = {"bare": 1.1, "sb3": 1.0}
# rl-zoo3's settings for Atari, with a memory and a start for this number of steps.
CAPACITY, LEARNING_STARTS, EVERY, BATCH, TARGET = 50_000, 1_000, 4, 32, 1_000
RATE, GAMMA, EPSILON = 1e-4, 0.99, 0.1

Train = Callable[[int, int], tuple[float, int]]


def noterl(seed: int, steps: int) -> tuple[float, int]:
    """Train noterl and return the seconds and the number of updates after `LEARNING_STARTS`."""
    import keras

    import noterl
    from noterl.policies import EpsGreedyQPolicy

    agent = noterl.DQN(noterl.envs.Atari("Pong", threads=1), double=False, gamma=GAMMA, seed=seed)
    agent.compile(
        keras.optimizers.Adam(RATE),
        policy=EpsGreedyQPolicy(EPSILON),
        replay=noterl.Replay(CAPACITY, frame_stack=4),
        batch_size=BATCH,
        learning_starts=LEARNING_STARTS,
        update_every=EVERY,
        target_update=TARGET,
    )
    start = 2 * LEARNING_STARTS  # the first updates compile
    agent.fit(steps=start, verbose=0)
    before, begun = agent.updates, time.perf_counter()
    agent.fit(steps=steps - start, verbose=0)
    seconds = time.perf_counter() - begun
    agent.close()
    return seconds, agent.updates - before


def bare(seed: int, steps: int) -> tuple[float, int]:
    """Train a loop in PyTorch and return the seconds and the number of updates after `LEARNING_STARTS`."""
    import torch
    from ale_py.vector_env import AtariVectorEnv

    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    env = AtariVectorEnv("pong", 1, num_threads=1, stack_num=1, autoreset_mode="SameStep")
    q, target = _network(env.single_action_space.n), _network(env.single_action_space.n)
    target.load_state_dict(q.state_dict())
    adam = torch.optim.Adam(q.parameters(), RATE)
    frames = np.zeros((CAPACITY, 84, 84), np.uint8)
    actions, rewards = np.zeros(CAPACITY, np.int64), np.zeros(CAPACITY, np.float32)
    ends = np.zeros(CAPACITY, bool)
    observation, _ = env.reset(seed=seed)
    stack = np.repeat(observation[0], 4, axis=0)
    updates, begun, counted = 0, 0.0, 0
    for step in range(steps):
        if step == 2 * LEARNING_STARTS:
            begun, counted = time.perf_counter(), updates
        if step < LEARNING_STARTS or generator.random() < EPSILON:
            action = int(generator.integers(6))
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(stack[None])).argmax())
        row = step % CAPACITY
        frames[row], actions[row] = stack[-1], action
        observation, reward, terminated, truncated, _ = env.step(np.array([action]))
        rewards[row], ends[row] = reward[0], terminated[0]
        over = terminated[0] or truncated[0]
        stack = np.repeat(observation[0], 4, axis=0) if over else np.concatenate([stack[1:], observation[0]])
        if step >= LEARNING_STARTS and step % EVERY == 0:
            rows = generator.integers(3, min(step, CAPACITY - 1), BATCH)
            window = rows[:, None] + np.arange(-3, 2)
            batch = frames[window]  # [B, 5, 84, 84]: the stack and the next frame
            chosen = [torch.from_numpy(array[rows]) for array in (actions, rewards, ends)]
            _update(q, target, adam, torch.from_numpy(batch), *chosen)
            updates += 1
        if step % TARGET == 0:
            target.load_state_dict(q.state_dict())
    return time.perf_counter() - begun, updates - counted


def _network(actions: int) -> Any:
    """Return the network of the Nature paper."""
    from torch import nn

    class Scale(nn.Module):
        def forward(self, observation: Any) -> Any:
            return observation.float() / 255

    convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1)]
    dense = [nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, int(actions))]
    return nn.Sequential(Scale(), *convolutions, *dense)


def _update(q: Any, target: Any, adam: Any, frames: Any, actions: Any, rewards: Any, ends: Any) -> None:
    import torch

    with torch.no_grad():
        value = rewards + GAMMA * (1 - ends.float()) * target(frames[:, 1:]).max(1).values
    chosen = q(frames[:, :4]).gather(1, actions[:, None])[:, 0]
    loss = torch.nn.functional.smooth_l1_loss(chosen, value)
    adam.zero_grad()
    loss.backward()
    adam.step()


def sb3(seed: int, steps: int) -> tuple[float, int]:
    """Train Stable-Baselines3 and return the seconds and the number of updates after `LEARNING_STARTS`."""
    import ale_py
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    options = {"repeat_action_probability": 0.0, "frameskip": 1}
    wrappers = {"terminal_on_life_loss": False}
    env = make_atari_env("ALE/Pong-v5", 1, seed=seed, env_kwargs=options, wrapper_kwargs=wrappers)
    agent = DQN(
        "CnnPolicy",
        VecFrameStack(env, 4),
        learning_rate=RATE,
        buffer_size=CAPACITY,
        learning_starts=LEARNING_STARTS,
        batch_size=BATCH,
        gamma=GAMMA,
        train_freq=EVERY,
        target_update_interval=TARGET,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        optimize_memory_usage=False,
        seed=seed,
    )
    agent.learn(2 * LEARNING_STARTS)
    before, begun = agent._n_updates, time.perf_counter()
    agent.learn(steps - 2 * LEARNING_STARTS, reset_num_timesteps=False)
    return time.perf_counter() - begun, agent._n_updates - before


TRAIN: dict[str, Train] = {"noterl": noterl, "bare": bare, "sb3": sb3}


def run(name: str, seed: int, steps: int) -> None:
    """Train one participant and print the result as JSON."""
    seconds, updates = TRAIN[name](seed, steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "updates": updates, "peak_gib": peak}))


def measure(who: str, seed: int, steps: int, peer_python: str) -> dict[str, Any]:
    """Return the result of a run in a process of its own."""
    name, _, backend = who.partition("-")
    words = [peer_python if who == "sb3" else sys.executable, "-m", "benchmarks.atari", "--run", name]
    result = execute([*words, "--seed", str(seed), "--steps", str(steps)], variables(backend or None))
    per_update = result["seconds"] / result["updates"]
    return {"who": who, "seed": seed, "milliseconds_per_update": 1e3 * per_update, **result}


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each pair of noterl on a backend and another participant."""
    times = {who: [run["milliseconds_per_update"] for run in runs if run["who"] == who] for who in PARTICIPANTS}
    ours = [who for who in PARTICIPANTS if who.startswith("noterl") and times[who]]
    return [
        {"name": f"{who} / {other}", **summarize_pairs(times[who], times[other], BARS[other])}
        for who in ours
        for other in BARS
        if times[other] and (other != "bare" or who == "noterl-torch")
    ]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], prog="atari.py")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--participants", nargs="+", choices=PARTICIPANTS, default=list(PARTICIPANTS))
    parser.add_argument("--peer-python", default=str(ROOT / ".venv-peers/bin/python"))
    parser.add_argument("--run", choices=TRAIN, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.steps <= 2 * LEARNING_STARTS + EVERY:
        parser.error(f"--steps must be above {2 * LEARNING_STARTS + EVERY}, because the start is not timed")
    if arguments.run:
        run(arguments.run, arguments.seed, arguments.steps)
        return
    start = machine()
    warn_if_busy(start)
    runs = []
    for seed in range(arguments.pairs):
        order = arguments.participants[seed % 2 :] + arguments.participants[: seed % 2]
        for who in order:
            runs.append(measure(who, seed, arguments.steps, arguments.peer_python))
            print(json.dumps(runs[-1]), flush=True)
    result = {
        "task": "atari",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "steps": arguments.steps,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "machine": start,
        "versions": versions(("noterl", "numpy", "gymnasium", "ale-py", "torch", "jax", "tensorflow-cpu", "keras")),
        "summary": summarize(runs),
        "runs": runs,
    }
    for row in result["summary"]:
        print(f"{row['name']}: {row['ours']:.2f} / {row['theirs']:.2f} ms, ratio {row['ratio']}, bar {row['bar']}")
    if arguments.steps >= STEPS and set(arguments.participants) == set(PARTICIPANTS):
        store(result, RESULT)
        print(f"stored in {RESULT}")


if __name__ == "__main__":
    main()
