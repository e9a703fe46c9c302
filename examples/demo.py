"""The program of `make demo`: train DQN on CartPole-v1, and write a checkpoint, a curve and an animation."""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # render without a screen

import noterl
from noterl.callbacks import Checkpoint, EarlyStopping
from noterl.policies import LinearEpsGreedyPolicy

import keras

SOLVED = 475
MAX_STEPS = 150_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path("runs/demo"))
    arguments = parser.parse_args()

    agent = noterl.DQN("CartPole-v1", double=True, hidden=(128, 128), seed=arguments.seed)
    agent.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        policy=LinearEpsGreedyPolicy(1.0, 0.01, steps=10_000),
        replay=noterl.Replay(100_000),
        batch_size=64,
        update_every=32,
        updates=16,
        target_update=250,
    )
    agent.summary()

    checkpoint = Checkpoint(arguments.directory / "checkpoints", save_freq=50, max_save_files=2)
    stopping = EarlyStopping(trial_count=10, criterion=SOLVED)
    started = time.perf_counter()
    history = agent.fit(
        # The tests of noterl set this variable to shorten the run.
        episodes=int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None,
        steps=MAX_STEPS,
        callbacks=[stopping, checkpoint],
        verbose=1,
    )
    seconds = time.perf_counter() - started
    solved = history.stop_reason == f"reward reached {SOLVED}"

    curve, animation = arguments.directory / "curve.png", arguments.directory / "agent.gif"
    history.plot(path=curve)
    animated_return = agent.animate(animation)

    print(
        f"{'solved' if solved else 'not solved'} after {len(history)} episodes, {agent.steps:,} steps, {seconds:.1f} s "
        f"({agent.steps / seconds:,.0f} steps/s); return of the animated episode: {animated_return:.0f}"
    )
    for name, path in (("checkpoint", checkpoint.files[-1]), ("curve", curve), ("animation", animation)):
        print(f"{name:>10}: {path}")
    return 0 if solved or "NOTERL_MAX_EPISODES" in os.environ else 1


if __name__ == "__main__":
    sys.exit(main())
