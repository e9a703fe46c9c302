"""Damaged, foreign and hostile files and full disks: each raises a clear error and changes nothing."""

from __future__ import annotations

import ast
import builtins
import errno
import importlib
import io
import pickle
import re
import resource
import signal
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.callbacks import Checkpoint, EarlyStopping
from noterl.saving import Description, FileError
from tests.support.batches import copied
from tests.support.parts import lanes_of
from tests.support.states import ROOT, assert_same_state, differences, one_lane

pytestmark = pytest.mark.backends("torch")


@pytest.fixture(scope="module")
def trained() -> Any:
    agent = one_lane()
    agent.fit(steps=41, callbacks=[EarlyStopping(2, criterion=1e9)], num_envs=2, verbose=0)
    assert agent.updates > 0 and lanes_of(agent).actions is not None
    return agent, agent.get_state()


@pytest.fixture
def victim(trained: Any) -> Any:
    """Return a trained agent with unfinished episodes, whose state must not change."""
    agent, state = trained
    agent.set_state(state)
    return agent


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of another agent, which the victim can restore."""
    agent = one_lane(seed=8)
    agent.fit(steps=50, callbacks=[EarlyStopping(2, criterion=1e9)], num_envs=2, verbose=0)
    path = tmp_path_factory.mktemp("files") / "agent.noterl"
    agent.save(path)
    return path


@contextmanager
def unchanged(agent: Any) -> Iterator[None]:
    before = agent.get_state()
    yield
    assert_same_state(before, agent)


def pickled() -> bytes:
    return pickle.dumps({"class": "DQN"})


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("_", "."), data)
    return buffer.getvalue()


FOREIGN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"episode,reward\n1,20\n" * 40,
    "pickle": pickled,
    "picture": lambda: b"\x89PNG\r\n\x1a\n" + bytes(200),
    "another zip": lambda: zipped(model_json=b"{}"),
    "a zip with our member": lambda: zipped(agent_json=b"{}"),
    "a zip with a pickle in it": lambda: zipped(agent_json=pickled(), data_pkl=pickled()),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_file_raises(kind: str, victim: Any, tmp_path: Path) -> None:
    path = tmp_path / "agent.noterl"
    path.write_bytes(FOREIGN[kind]())
    with unchanged(victim):
        for take in (noterl.load, victim.restore, victim.load_weights):
            with pytest.raises(FileError, match=r"agent\.noterl"):
                take(path)


def test_agent_file_and_weights_file_are_not_interchangeable(victim: Any, file: Path, tmp_path: Path) -> None:
    victim.save_weights(tmp_path / "w.safetensors")
    saving.write(tmp_path / "tree.noterl", {"class": "DQN"})
    with unchanged(victim):
        with pytest.raises(FileError, match="not of weights"):
            victim.load_weights(file)
        for path, message in (
            ("w.safetensors", r"load_weights\(path\) reads it"),
            ("tree.noterl", "does not hold an agent"),
        ):
            for take in (noterl.load, victim.restore):
                with pytest.raises(FileError, match=message):
                    take(tmp_path / path)


def test_weights_that_networks_share_are_written_once(tmp_path: Path) -> None:
    agents = [noterl.PPO("CartPole-v1", hidden=(8,), shared=True, seed=seed) for seed in (1, 2, 3)]
    weights, path = agents[0].get_weights(), tmp_path / "w.safetensors"
    agents[0].save_weights(path)
    written = saving.read_weights(path)
    assert sorted(set(weights) - set(written)) == ["critic/000", "critic/001"]
    agents[1].load_weights(path)
    saving.write_weights(path, weights)  # as earlier versions wrote it
    agents[2].load_weights(path)
    for agent in agents[1:]:
        assert not differences(agent.get_weights(), weights)
    agents[0].fit(steps=4, callbacks=[Checkpoint(tmp_path / "runs", save_weights_only=True)], verbose=0)
    (last,) = (tmp_path / "runs").glob("*.safetensors")
    assert saving.read_weights(last).keys() == written.keys()
    separate = noterl.PPO("CartPole-v1", hidden=(8,), shared=False, seed=1)
    with unchanged(separate), pytest.raises(ValueError, match="critic/000"):
        agents[0].save_weights(path)
        separate.load_weights(path)


def test_truncated_file_raises(victim: Any, file: Path, tmp_path: Path) -> None:
    complete, path = file.read_bytes(), tmp_path / "agent.noterl"
    victim.save_weights(tmp_path / "w.safetensors")
    weights = (tmp_path / "w.safetensors").read_bytes()
    with unchanged(victim):
        for share in (0.001, 0.1, 0.5, 0.9, 0.999):
            path.write_bytes(complete[: int(share * len(complete))])
            for take in (noterl.load, victim.restore):
                with pytest.raises(FileError, match=r"agent\.noterl"):
                    take(path)
            path.write_bytes(weights[: int(share * len(weights))])
            with pytest.raises(FileError, match=r"agent\.noterl"):
                victim.load_weights(path)


def test_missing_file_raises_os_error(victim: Any, tmp_path: Path) -> None:
    for take in (noterl.load, victim.restore, victim.load_weights):
        with pytest.raises(FileNotFoundError, match=r"missing\.noterl"):
            take(tmp_path / "missing.noterl")
        with pytest.raises(IsADirectoryError):
            take(tmp_path)


INVALID_VALUES: list[Any] = [None, -1, "junk", [], {}, [1, {}], np.zeros((3, 3)), True]


def places(tree: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys of every value in a tree. Of a list, only the first item is included."""
    if keys:
        yield keys
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*keys, key))
    elif isinstance(tree, list) and tree:
        yield from places(tree[0], (*keys, 0))


def replaced(tree: Any, keys: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of the tree with another value at one place; `...` removes the key."""
    if not keys:
        return value
    copied = dict(tree) if isinstance(tree, dict) else list(tree)
    if value is ... and len(keys) == 1:
        del copied[keys[0]]
    else:
        copied[keys[0]] = replaced(copied[keys[0]], keys[1:], value)
    return copied


# Places where a value may be missing, where every bool or number is valid, or where the value was None, [] or {}.
# States of callbacks are checked by the next fit.
HARMLESS = re.compile(
    r"normalizers|rollout|dataset|seeds(\.\w+)?|replay\.sampler|"
    r"lanes|lanes\.(actions|extra|info)|lanes\.lanes\.0\.(actions|environment)|lanes\.ledger\.(over|(running|lengths|numbers|info)\.0)|"
    r"replay|reward_model|polyak|schedule|acting_policy|worker_explorers|loss\.(last|sums)(\.loss)?|"
    r"optimizers\.optimizer\.scalars\.0|callbacks.*|generators\.states(\.[a-z_/0-9]+(\..*)?)?|explorer\.(counts|generator\..*)"
)


def restore_raises(agent: Any, document: dict[str, Any], before: dict[str, Any]) -> bool:
    """Restore a document; return whether that raised, after a check that the agent's state is then still `before`."""
    try:
        agent.set_document(document)
    except ValueError:
        assert_same_state(before, agent)
        return True
    return False


def test_invalid_value_in_a_state_raises(victim: Any, file: Path) -> None:
    document, good = saving.read(file), copied(victim.get_state())
    accepted, raised = set(), 0
    for keys in places(document["state"]):
        for value in [..., *INVALID_VALUES]:
            if restore_raises(victim, replaced(document, ("state", *keys), value), good):
                raised += 1
                continue
            accepted.add((".".join(map(str, keys)), repr(value)))
            victim.set_state(good)
    assert raised > 400
    harmful = {place for place, _ in accepted if not HARMLESS.fullmatch(place)}
    assert not harmful, sorted((p, v) for p, v in accepted if p in harmful)


def test_invalid_state_of_a_callback_raises_in_fit_with_that_callback(victim: Any, file: Path, tmp_path: Path) -> None:
    saving.write(
        tmp_path / "a.noterl", replaced(saving.read(file), ("state", "callbacks", "EarlyStopping"), {"best": 1})
    )
    victim.restore(tmp_path / "a.noterl")
    steps = victim.steps
    with pytest.raises(ValueError, match=r"^callbacks: "):
        victim.fit(steps=2, callbacks=[EarlyStopping(2, criterion=1e9)], verbose=0)
    assert victim.steps == steps
    victim.fit(steps=2, verbose=0)


def test_accepted_value_does_not_break_the_next_fit(victim: Any, file: Path) -> None:
    document, good = saving.read(file), copied(victim.get_state())
    for keys in places(document["state"]["lanes"]):
        for value in INVALID_VALUES:
            changed = replaced(document, ("state", "lanes", *keys), value)
            if not restore_raises(victim, changed, good):
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "could not restore environment")
                    victim.fit(steps=2, verbose=0)
            victim.set_state(good)


@pytest.mark.parametrize(
    "place",
    [
        *("class", "environment", "config", "compile", "state", "environment.id", "environment.kwargs"),
        *("environment.max_episode_steps", "environment.observation_space", "config.hidden", "config.seed"),
        *("compile.policy", "compile.replay", "compile.batch_size", "compile.update_every", "compile.target_update"),
    ],
)
def test_invalid_constructor_argument_raises(place: str, file: Path, tmp_path: Path) -> None:
    document, keys = saving.read(file), place.split(".")
    values: list[Any] = [0.5, [1, 2], {"$new": ["os", {}]}, Description("$object", "os.system", {"command": "true"})]
    for value in values[1:2] if place == "environment.kwargs" else values:
        if place == "compile.target_update" and value == 0.5:
            continue
        saving.write(tmp_path / "a.noterl", replaced(document, tuple(keys), value))
        with pytest.raises(ValueError):
            noterl.load(tmp_path / "a.noterl")


def test_unknown_argument_raises(file: Path, tmp_path: Path) -> None:
    document = saving.read(file)
    for part in ("config", "compile"):
        saving.write(tmp_path / "a.noterl", {**document, part: {**document[part], "surplus": 1}})
        with pytest.raises(FileError, match=r"do not fit the class DQN: .*surplus"):
            noterl.load(tmp_path / "a.noterl")


def test_network_larger_than_memory_raises(file: Path, tmp_path: Path) -> None:
    document = saving.read(file)
    saving.write(tmp_path / "a.noterl", {**document, "config": {**document["config"], "hidden": [10**12]}})
    with pytest.raises(FileError, match="larger networks"):
        noterl.load(tmp_path / "a.noterl")


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Limit the files of this process to `limit` bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_leaves_old_file_and_agent_unchanged(victim: Any, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "agent.noterl"
    victim.save(path)
    old = path.read_bytes()
    with unchanged(victim), file_size_limit(len(old) // 2), pytest.raises(OSError, match=r"agent\.noterl") as caught:
        victim.save(path)
    assert caught.value.errno == errno.EFBIG
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
    steps = victim.steps
    victim.fit(steps=5, verbose=0)
    assert victim.steps == steps + 5
    victim.save(path)
    assert path.read_bytes() != old


def test_full_disk_during_checkpoint_ends_fit_and_loses_nothing(victim: Any, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, save_freq=1, max_save_files=2, save_replay=True)
    victim.fit(episodes=1, callbacks=[checkpoint], verbose=0)
    (kept,) = tmp_path.glob("episode-*")
    episodes = victim.episodes
    with file_size_limit(5000), pytest.raises(OSError, match=r"\.noterl"):
        victim.fit(episodes=3, callbacks=[checkpoint], verbose=0)
    assert list(tmp_path.glob("episode-*")) == [kept] and victim.episodes == episodes + 1
    noterl.load(kept)
    victim.fit(episodes=1, callbacks=[checkpoint], verbose=0)
    assert kept in tmp_path.glob("episode-*") and len(list(tmp_path.glob("episode-*"))) == 2


def test_unwritable_path_is_named(victim: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a directory")
    with unchanged(victim):
        for path in (tmp_path / "taken" / "agent.noterl", tmp_path):
            for save in (victim.save, victim.save_weights):
                with pytest.raises(OSError, match=str(path)):
                    save(path)
        with pytest.raises(ValueError, match="path"):
            victim.save("")


def test_checkpoint_path_is_checked_before_training_starts(victim: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a directory")
    before = victim.get_state()
    with pytest.raises(OSError, match="taken"):
        victim.fit(episodes=1, callbacks=[Checkpoint(tmp_path / "taken" / "runs")], verbose=0)
    after = victim.get_state()
    assert after["callbacks"].pop("Checkpoint")["files"] == []
    assert_same_state(before, after)


def test_load_neither_unpickles_nor_imports(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"a file made us run {args}")

    def import_known(name: str, *args: Any, **kwargs: Any) -> Any:
        # A relative name and the name of a loaded module import nothing.
        level = args[3] if len(args) > 3 else kwargs.get("level", 0)
        if not level and name not in sys.modules:
            refuse(name)
        return original(name, *args, **kwargs)

    first = noterl.load(file)
    first.fit(steps=1, verbose=0)  # performs all late imports
    original = builtins.__import__
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.setattr(builtins, "__import__", import_known)
    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, refuse)
    again = noterl.load(file)
    monkeypatch.undo()
    assert not differences(saving.read(file)["state"]["counters"], again.get_state()["counters"])


UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def unsafe_lines(text: str) -> list[str]:
    """Return the lines of a module that a hostile file could exploit."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [f"{node.lineno}: imports {name}" for name in names if name.split(".")[0] in UNSAFE]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
            found.append(f"{node.lineno}: calls {node.func.id}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "torch.load",
            "torch.save",
            "keras.models.load_model",
        ):
            found.append(f"{node.lineno}: calls {ast.unparse(node.func)}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"{node.lineno}: allow_pickle={ast.unparse(node.value)}")
    return found


def test_no_module_that_reads_files_uses_pickle() -> None:
    files = [path for folder in ("noterl", "callbacks") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 40
    found = {path.relative_to(ROOT).as_posix() for path in files if unsafe_lines(path.read_text())}
    # Through pipes to processes of its own, and never from a file; and exports, which an agent is not loaded from.
    # `processes` only names pickle's error.
    rooms = {"ray": ("actor", "launcher"), "workers": ("pickling", "process", "supervisor", "worker")}
    pipes = {f"noterl/collect/{room}/{name}.py" for room, names in rooms.items() for name in names}
    pipes.add("noterl/utils/processes.py")
    assert found == pipes | {f"noterl/export/{name}.py" for name in ("formats", "torch_file")}
    planted = "import pickle\nfrom dill import load\nnp.load(f, allow_pickle=True)\ntorch.load(f)\neval('1')"
    assert len(unsafe_lines(planted)) == 5
