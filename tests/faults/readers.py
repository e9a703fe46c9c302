"""The kinds of files that noterl reads: for each, good files to damage, and what reads a damaged one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

import noterl
from noterl.callbacks import Checkpoint, CSVLogger, EarlyStopping, JSONLogger, ParquetLogger
from noterl.cli import config
from noterl.cli.environment import environment_of
from noterl.cli.options import parse_table
from noterl.cli.train import train_options
from noterl.cli.values import parse_value
from noterl.imitation import Demonstrations
from noterl.utils.tables import read_columns
from noterl.utils.tf_config import Cluster
from tests.faults.bombs import BOMBS
from tests.faults.mutations import change_bytes, change_text, change_tree, change_zip


def small_agent(**arguments: Any) -> noterl.DQN:
    agent = noterl.DQN("CartPole-v1", **{"hidden": (4,), "seed": 1, **arguments})
    agent.compile(replay=64, batch_size=8, learning_starts=16, update_every=8)
    return agent


class Reader:
    """Damages and reads the files of one kind. A case below `len(bombs)` is a small file that declares much.

    Args:
        folder: where good files may be written.
    """

    kind = ""

    def __init__(self, folder: Path) -> None:
        self.good: dict[str, bytes] = {}
        self.bombs = [(name, content) for name, content in BOMBS.items() if name.startswith(f"{self.kind} ")]
        self.make(folder)

    def make(self, folder: Path) -> None:
        """Set `good`, files by name."""
        raise NotImplementedError

    def change(self, name: str, content: bytes, dice: random.Random) -> bytes:
        """Return a damaged file."""
        return change_text(content, dice)

    def write(self, number: int, dice: random.Random, stem: Path) -> Path:
        """Write the file of a case, and return its path."""
        name = dice.choice(sorted(self.good))
        if number < len(self.bombs):
            name, make = self.bombs[number]
            content = make(self.good)
        else:
            content = self.change(name, self.good[name], dice)
        path = stem.with_suffix(Path(name).suffix)
        path.write_bytes(content)
        return path

    def read(self, path: Path, number: int) -> None:
        """Read a file as users do."""
        raise NotImplementedError


class Agents(Reader):
    kind = "agents"

    def make(self, folder: Path) -> None:
        agent = small_agent()
        callbacks = [Checkpoint(folder / "files", 2), CSVLogger(folder / "log.csv"), EarlyStopping(3, criterion=1e9)]
        agent.fit(steps=60, num_envs=2, callbacks=callbacks, verbose=0)
        agent.save(folder / "dqn.noterl")
        agent.save_weights(folder / "dqn.safetensors")
        rollouts = noterl.PPO("Pendulum-v1", rollout_steps=8, epochs=1, hidden=(4,), normalize_observation=True, seed=1)
        rollouts.compile(batch_size=8)
        rollouts.fit(steps=40, num_envs=2, verbose=0)
        rollouts.save(folder / "ppo.noterl")
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])
        own = small_agent(network=model)
        own.build()
        own.save(folder / "keras.noterl")
        for path in (*folder.glob("*.noterl"), *folder.glob("*.safetensors")):
            self.good[path.name] = path.read_bytes()
        self.agent = agent

    def change(self, name: str, content: bytes, dice: random.Random) -> bytes:
        if name.endswith("safetensors"):
            return change_bytes(content, dice)
        return change_zip(content, "agent.json", dice)

    def read(self, path: Path, number: int) -> None:
        if path.suffix == ".safetensors":
            self.agent.load_weights(path)
            return
        agent = noterl.load(path)
        try:
            agent.build()
            agent.evaluate(episodes=1, max_steps=1000)  # a file may say that episodes do not end
            if number % 4 == 0:
                agent.fit(steps=4, verbose=0)
        except (FloatingPointError, RuntimeError) as error:  # from numbers in the file
            if isinstance(error, RecursionError):
                raise
        finally:
            agent.close()


class Networks(Reader):
    kind = "networks"

    def make(self, folder: Path) -> None:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])
        model.save(folder / "model.keras")
        dense = b'[[layers]]\nlayer = "dense"\nunits = 8\nactivation = "tanh"\ninitializer = "orthogonal"\ngain = 1.4\n'
        output = b'[output]\ninitializer = "orthogonal"\ngain = 0.01\n'
        self.good = {
            "model.keras": (folder / "model.keras").read_bytes(),
            "model.json": model.to_json().encode(),
            "model.toml": dense + b'[[critic.layers]]\nlayer = "dense"\nunits = 4\n' + output,
            "model.cfg": b"[dense-0]\nunits=8\nactivation=relu\ncommon=1\n[dense-1]\noutput=1\n[dense-2]\nunits=1\n",
        }

    def change(self, name: str, content: bytes, dice: random.Random) -> bytes:
        if name.endswith("keras"):
            return change_zip(content, "config.json", dice)
        if name.endswith("json") and dice.random() < 0.7:
            return json.dumps(change_tree(json.loads(content), dice)).encode()
        return change_text(content, dice)

    def read(self, path: Path, number: int) -> None:
        noterl.DQN("CartPole-v1", network=str(path), seed=1).build()


class Logs(Reader):
    kind = "logs"

    def make(self, folder: Path) -> None:
        self.agent = small_agent()
        loggers = {"csv": CSVLogger, "jsonl": JSONLogger, "parquet": ParquetLogger}
        words = noterl.callback.LambdaCallback(on_episode_end=lambda episode, logs: logs.update(phase="wörd, \n"))
        logged = [logger(folder / f"log.{ending}") for ending, logger in loggers.items()]
        self.agent.fit(episodes=12, callbacks=[*logged, words], verbose=0)
        self.loggers = {f".{ending}": logger for ending, logger in loggers.items()}
        self.good = {path.name: path.read_bytes() for path in folder.glob("log.*")}
        self.good["files.json"] = json.dumps({"run": "0" * 32, "files": ["episode-000001-reward-1.00.noterl"]}).encode()

    def change(self, name: str, content: bytes, dice: random.Random) -> bytes:
        return (change_bytes if name.endswith("parquet") else change_text)(content, dice)

    def read(self, path: Path, number: int) -> None:
        if path.suffix == ".json":  # a manifest of Checkpoint
            folder = path.with_suffix(".folder")
            folder.mkdir(exist_ok=True)
            shutil.copy(path, folder / ".checkpoints.json")
            Checkpoint.latest(folder)
            return
        with contextlib.suppress(ValueError):
            noterl.plotting.compare([path])
        read_columns(path)
        self.agent.fit(steps=2, callbacks=[self.loggers[path.suffix](path, 1)], verbose=0)


class Run(Reader):
    """`run.toml`, and the values and environments in it."""

    kind = "run"

    def make(self, folder: Path) -> None:
        self.options = train_options("ppo")
        self.good = {
            "run.toml": b'agent = "ppo"\nenv = "CartPole-v1"\nsteps = 1_000\nseed = 3\nnum_envs = 2\nhidden = [8, 8]\n'
            b'optimizer = "Adam(3e-4, global_clipnorm=0.5)"\ngamma = 0.9\n\n'
            b'[early_stopping]\ntrial_count = 20\ncriterion = 475\n\n[csv]\npath = "x.csv"\n',
            "value.txt": b"Replay(50_000, sampler=Prioritized(alpha=0.6, beta=0.4), n_step=3)",
            "env.env": b'FrozenLake-v1(is_slippery=False, desc=["SF", "FG"])',
        }

    def read(self, path: Path, number: int) -> None:
        if path.suffix == ".toml":
            table = config.read_config(path)
            table.pop("agent", None)
            found = parse_table(self.options, table, str(path))
            if "env" in found:
                environment_of(found["env"].value)
            return
        text = path.read_bytes().decode("latin1")
        parse_value(text, "Any") if path.suffix == ".txt" else environment_of(text)


class TFConfig(Reader):
    kind = "tf_config"

    def make(self, folder: Path) -> None:
        cluster = {"worker": ["a:1", "b:2"], "chief": ["c:3"], "ps": ["d:4"]}
        self.good = {"tf.json": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}).encode()}

    def change(self, name: str, content: bytes, dice: random.Random) -> bytes:
        if dice.random() < 0.7:
            return json.dumps(change_tree(json.loads(content), dice)).encode()
        return change_text(content, dice)

    def read(self, path: Path, number: int) -> None:
        os.environ["TF_CONFIG"] = os.fsdecode(path.read_bytes().replace(b"\0", b""))
        try:
            Cluster.find()
            Cluster.read("multiworker")
        finally:
            del os.environ["TF_CONFIG"]


class Minari(Reader):
    """Data sets of Minari: the HDF5 file, and its description."""

    kind = "minari"

    def make(self, folder: Path) -> None:
        os.environ["MINARI_DATASETS_PATH"] = str(folder)
        Demonstrations.record(small_agent(), episodes=3).to_minari("noterl/good-v0", env="CartPole-v1")
        self.folder = folder / "noterl"
        self.good = {path.name: path.read_bytes() for path in (self.folder / "good-v0" / "data").iterdir()}

    def change(self, name: str, content: bytes, dice: random.Random) -> bytes:
        if name.endswith("json") and dice.random() < 0.8:
            return json.dumps(change_tree(json.loads(content), dice)).encode()
        return change_bytes(content, dice)

    def write(self, number: int, dice: random.Random, stem: Path) -> Path:
        file = super().write(number, dice, stem)
        path = self.folder / f"case{number}-v0"
        shutil.copytree(self.folder / "good-v0", path)
        (name,) = [name for name in self.good if Path(name).suffix == file.suffix]
        os.replace(file, path / "data" / name)
        return path

    def read(self, path: Path, number: int) -> None:
        Demonstrations.from_minari(f"noterl/{path.name}")


class DataSets(Reader):
    """Data sets: rows with the keys of D4RL, and the file in a folder of noterl."""

    kind = "data"

    def make(self, folder: Path) -> None:
        data = noterl.Dataset.record(small_agent(), steps=60)
        data.save(folder / "data.npz")
        data.save(folder / "data")
        with h5py.File(folder / "data.h5", "w") as file, np.load(folder / "data.npz") as rows:
            for key in rows.files:
                file[key] = rows[key]
        for path in (folder / "data.npz", folder / "data.h5", folder / "data" / "dataset.noterl"):
            self.good[path.name] = path.read_bytes()

    def change(self, name: str, content: bytes, dice: random.Random) -> bytes:
        return change_zip(content, "agent.json", dice) if name.endswith("noterl") else change_bytes(content, dice)

    def read(self, path: Path, number: int) -> None:
        if path.suffix == ".noterl":
            (folder := path.with_suffix("")).mkdir(exist_ok=True)
            path = shutil.copy(path, folder / "dataset.noterl").parent
        noterl.Dataset.load(path).describe()


class Studies(Reader):
    """The journal of `tune`."""

    kind = "studies"

    def make(self, folder: Path) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna = optuna
        study = self.open(folder / "study.log")
        study.optimize(lambda trial: trial.suggest_float("gamma", 0.9, 0.99), n_trials=4)
        study.set_user_attr("search", {"agent": "DQN"})
        self.good = {"study.log": (folder / "study.log").read_bytes()}

    def open(self, path: Path) -> Any:
        from noterl.tune.search import open_study

        return open_study(self.optuna, path, "noterl", "tpe", "median", 2)

    def read(self, path: Path, number: int) -> None:
        self.open(path)


READERS = {reader.kind: reader for reader in (Agents, Networks, Logs, Run, TFConfig, Minari, DataSets, Studies)}
