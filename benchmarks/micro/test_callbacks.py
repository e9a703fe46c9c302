"""The share of training time that callbacks take: History, the progress bar and a checkpoint every ten episodes.

The share comes from the loop's own clock, in 300 episodes of DQN on CartPole-v1. A checkpoint costs the same for short
and long episodes, so the share is larger in a run that learns nothing and whose episodes stay short.

The clock counts the processor time of the process. In seconds, a save of 8 ms took 46 to 73 ms while other programs
used the disk and the cores, because it waits for the disk; so the share rose to 4 %.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import keras
import pytest

import noterl
from noterl.callbacks import Checkpoint, CSVLogger, JSONLogger, ProgressBar, TensorBoard
from noterl.policies import EpsGreedyQPolicy
from noterl.training import loop

EPISODES = 300

SETS = {
    "history": lambda folder: [],
    "history and bar": lambda folder: [ProgressBar(episodes=EPISODES, always=True)],
    "default": lambda folder: [ProgressBar(episodes=EPISODES, always=True), Checkpoint(folder, save_freq=10)],
    "default, in the background": lambda folder: [
        ProgressBar(episodes=EPISODES, always=True),
        Checkpoint(folder, save_freq=10, background=True),
    ],
}


@pytest.mark.parametrize("name", SETS)
def test_share_of_callbacks(
    benchmark: Any,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
    size: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "perf_counter", time.process_time)
    agent = noterl.DQN("CartPole-v1", double=True, hidden=(256, 256), seed=7)
    agent.compile(
        keras.optimizers.Adam(1e-3),
        policy=EpsGreedyQPolicy(0.05),
        replay=noterl.Replay(50_000),
        batch_size=64,
        learning_starts=1_000,
        update_every=32,
        updates=16,
        target_update=250,
    )
    agent.fit(steps=1_200, verbose=0)  # compile now

    def run() -> tuple[noterl.History, float]:
        started = time.process_time()
        history = agent.fit(episodes=size(EPISODES, 10), callbacks=SETS[name](tmp_path), verbose=0)
        return history, time.process_time() - started

    history, seconds = benchmark.pedantic(run, rounds=1)
    if benchmark.stats is None:
        return
    split = history.time_split
    share = split["callbacks"] / seconds
    benchmark.extra_info.update(share=share, steps=sum(history.history["length"]))
    with capsys.disabled():
        steps = benchmark.extra_info["steps"]
        print(f"\n{name}: {share:.2%} of {seconds:.1f} s, {split['callbacks'] * 1e3:.0f} ms in {steps:,} steps")
    if name.startswith("default"):
        assert share <= 0.02


def test_row_of_each_logger(benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], size: Any) -> None:
    """Print the microseconds per episode of the loggers that write a table."""
    episodes = size(1_000, 10)
    loggers: list[noterl.Callback] = []

    class Counter:
        steps = log_step = 0
        configuration: ClassVar[dict[str, object]] = {}

    def make_loggers() -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))  # in the files of the last round, they would find another run
        loggers[:] = [CSVLogger(folder / "a.csv"), JSONLogger(folder / "a.jsonl"), TensorBoard(folder / "charts")]

    def write() -> None:
        for logger in loggers:
            logger.agent = Counter()  # type: ignore[assignment]
            logger.on_train_begin({})
            for episode in range(episodes):
                logs = {"reward": 1.0, "length": 9, "loss": 0.5, "steps": episode, "updates": 3, "time": 0.1 * episode}
                logger.on_episode_end(episode, {**logs, "complete": True})
            logger.on_train_end({})

    benchmark.pedantic(write, setup=make_loggers, rounds=3)
    if benchmark.stats is not None:
        with capsys.disabled():
            each = benchmark.stats.stats.min / len(loggers) / episodes * 1e6
            print(f"\n{each:.0f} µs per episode and logger")
