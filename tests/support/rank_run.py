"""Runs of several processes, started by `noterl launch`: `rank_run.py MODE,MODE... FOLDER`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import noterl
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.replay import Prioritized, Replay
from tests.support.masked_env import MaskedWalk
from tests.support.replica_equivalence import main
from tests.support.stateful import counter, stored_faults

MODES, FOLDER = sys.argv[1].split(","), Path(sys.argv[2])
STRATEGY = "ddp"
RANK = int(os.environ["RANK"])


class Record(noterl.Callback):
    """Records what it receives; in the chief only."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.ended: list[int] = []
        self.first_step = -1

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        self.first_step = self.agent.steps

    def on_episode_begin(self, episode: int, logs: dict[str, Any]) -> None:
        self.began.append(episode)

    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        self.ended.append(episode)


class Act(noterl.Callback):
    """Fails, stops or changes the learning rate at an update, in the process and way that the mode names."""

    all_ranks = True

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        if batch != 20:
            return
        if self.mode == "kill" and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode == "raise" and RANK == 0:
            raise KeyError("the callback of the chief")
        if self.mode == "stop" and RANK == 1:
            self.agent.stop("rank 1 is content")
        if self.mode == "train" and RANK == 0:
            self.agent.set_rule("learning_rate", 0.002)


class ListAddresses(noterl.Callback):
    """After the first update, lists the addresses at which the launcher and the processes below it listen."""

    all_ranks = True

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        if self.addresses:
            return
        launcher = psutil.Process(os.getppid())
        for process in [launcher, *launcher.children(recursive=True)]:
            # psutil 5 has another name.
            connections = getattr(process, "net_connections", None) or process.connections
            for connection in connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    self.addresses.append(connection.laddr.ip)


def digest(agent: noterl.Agent) -> str:
    return hashlib.sha256(b"".join(value.tobytes() for value in agent.get_weights().values())).hexdigest()


def summary(agent: noterl.Agent, history: noterl.History) -> dict[str, Any]:
    return {
        "weights": digest(agent),
        "steps": agent.steps,
        "updates": agent.updates,
        "episodes": agent.episodes,
        "reason": history.stop_reason,
        "rank": history.history.get("rank", []),
        "numbers": history.episode,
        "begun": agent.get_state()["counters"]["episodes_begun"],
        "learning_rate": agent.learning_rate,
    }


def continue_rollouts() -> None:
    """The chief continues a rollout of which it has 100 of 128 steps."""
    agent = noterl.PPO("CartPole-v1", hidden=(8,), rollout_steps=128, epochs=1, seed=1)
    agent.compile(batch_size=128)
    if RANK == 0:
        agent.fit(steps=100, verbose=0)
    results = [summary(agent, agent.fit(steps=1001, strategy=STRATEGY, verbose=0)) for _ in range(2)]
    (FOLDER / f"rollouts-{RANK}.json").write_text(json.dumps({"fits": results}))


def replay_sequences() -> None:
    """Train ACER, whose number of updates is random."""
    agent = noterl.ACER("CartPole-v1", hidden=(8,), rollout_steps=8, replay_starts=64)
    result = summary(agent, agent.fit(steps=256, num_envs=2, strategy=STRATEGY, verbose=0))
    (FOLDER / f"sequences-{RANK}.json").write_text(json.dumps({"fits": [result]}))


def diverge() -> None:
    """Train until a loss is not finite, which `TerminateOnNaN` makes the end of the run."""
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    agent.compile(optimizer="sgd", batch_size=16, learning_starts=64, update_every=16)
    agent.set_rule("learning_rate", 1e30)
    callbacks = [noterl.callbacks.TerminateOnNaN()]
    result = summary(agent, agent.fit(steps=400, strategy=STRATEGY, callbacks=callbacks, verbose=0))
    (FOLDER / f"diverge-{RANK}.json").write_text(json.dumps({"fits": [result]}))


class Change(noterl.Callback):
    """Changes the learning rate after each update, and halves `update_every` when five episodes have ended."""

    needs_live_updates = True

    def on_batch_begin(self, batch: int, logs: dict[str, Any]) -> None:
        self.agent.set_rule("learning_rate", 0.01 / (1 + batch))

    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        if self.agent.episodes == 5:
            self.agent.schedule.update_every = 8


def follow() -> None:
    """Train while a callback of the chief changes settings, with one update in each call."""
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    agent.compile(batch_size=16, learning_starts=64, update_every=16, updates=4)
    result = summary(agent, agent.fit(steps=400, strategy=STRATEGY, callbacks=[Change()], verbose=0))
    (FOLDER / f"follow-{RANK}.json").write_text(json.dumps({"fits": [result]}))


def count_steps() -> None:
    """Act by a state that counts the steps of each episode, and record the stored actions that are wrong."""
    agent = counter()
    agent.fit(steps=80, num_envs=2, strategy=STRATEGY, verbose=0)
    result = {"faults": stored_faults(agent, skip=2), "stored": len(agent.replay)}
    (FOLDER / f"count-{RANK}.json").write_text(json.dumps(result))


def remember() -> None:
    """Train PPO and DQN with a memory, with masks."""
    results = []
    memory: dict[str, Any] = {"recurrent": "gru", "recurrent_units": 4, "sequence_length": 8, "hidden": (8,)}
    for agent in (noterl.PPO(MaskedWalk, rollout_steps=16, epochs=1, **memory), noterl.DQN(MaskedWalk, **memory)):
        is_ppo = isinstance(agent, noterl.PPO)
        agent.compile(
            **({"batch_size": 32} if is_ppo else {"batch_size": 8, "learning_starts": 32, "update_every": 16})
        )
        results.append(summary(agent, agent.fit(steps=160, num_envs=2, strategy=STRATEGY, verbose=0)))
    (FOLDER / f"remember-{RANK}.json").write_text(json.dumps({"fits": results}))


def anneal() -> None:
    """Train with a noise whose deviation falls for 200 steps."""
    agent = noterl.TD3("Pendulum-v1", hidden=(8,), seed=1)
    noise = GaussianWhiteNoiseProcess(sigma=1.0, sigma_min=0.0, n_steps_annealing=200, size=1)
    agent.compile(noise=noise, learning_starts=50, batch_size=16, replay=Replay(1000), update_every=50, updates=1)
    agent.fit(steps=100, strategy=STRATEGY, verbose=0)
    (FOLDER / f"anneal-{RANK}.json").write_text(json.dumps({"sigma": float(agent.noise.current_sigma)}))


def listen() -> None:
    """Train with a worker, and record the addresses at which the processes of the run listen meanwhile."""
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    agent.compile(batch_size=16, learning_starts=64, update_every=16)
    listing = ListAddresses()
    agent.fit(steps=160, strategy=STRATEGY, workers=1, callbacks=[listing], verbose=0)
    (FOLDER / f"listen-{RANK}.json").write_text(json.dumps(listing.addresses))


def train(mode: str) -> None:
    """Train an agent, and change, stop or end the run as the mode names."""
    # Without a seed, the processes build different networks and receive the chief's.
    agent = noterl.DQN("CartPole-v1", hidden=(8,), normalize_observation=True)
    replay = Replay(1000, sampler=Prioritized())
    agent.compile(batch_size=16, learning_starts=64, update_every=16, updates=4, replay=replay)
    record = Record()
    callbacks = [record, Act(mode)]
    if mode == "train":
        callbacks.append(noterl.callbacks.Checkpoint(FOLDER / f"files-{RANK}", save_freq=5))
    if mode in ("kill", "resume"):
        callbacks.append(noterl.callbacks.BackupAndRestore(FOLDER / "backup.noterl", 4, unit="updates"))
    results = [summary(agent, agent.fit(steps=301, strategy=STRATEGY, callbacks=callbacks, verbose=0))]
    if mode == "train":
        history = agent.fit(episodes=5, strategy=STRATEGY, callbacks=[record], workers=1, verbose=0)
        results.append(summary(agent, history))
        if RANK == 0:
            agent.save(FOLDER / "chief.noterl")
    seen: dict[str, Any] = {"first_step": record.first_step}
    seen |= {"began": sorted(record.began), "ended": record.ended, "priorities": len(agent.replay)}
    (FOLDER / f"{mode}-{RANK}.json").write_text(json.dumps({"fits": results, **seen}))


if __name__ == "__main__":
    equivalence = partial(main, STRATEGY, ["PPO"])
    others = {
        "rollouts": continue_rollouts,
        "sequences": replay_sequences,
        "diverge": diverge,
        "follow": follow,
        "count": count_steps,
        "remember": remember,
        "listen": listen,
        "anneal": anneal,
        "equivalence": equivalence,
    }
    for each in MODES:
        others[each]() if each in others else train(each)
