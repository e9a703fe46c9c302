"""Small files that declare much: functions from good files of a kind to a bomb, by kind and name of the file."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

from tests.faults.mutations import members_of, zip_of

Files = dict[str, bytes]


def agent_with(**changes: Any) -> Callable[[Files], bytes]:
    """Return a function that sets values in the tree of an agent, by place with `__` between keys."""

    def make(good: Files) -> bytes:
        members = members_of(good["dqn.noterl"])
        document = json.loads(members["agent.json"])
        for place, value in changes.items():
            parent = document["tree"]
            *keys, last = place.split("__")
            for key in keys:
                parent = parent[key]
            parent[last] = value
        members["agent.json"] = json.dumps(document).encode()
        return zip_of({name: content for name, content in members.items() if "state_replay" not in name})

    return make


def with_replay(**arguments: Any) -> Callable[[Files], bytes]:
    return agent_with(compile__replay={"$object": ["Replay", arguments]}, state__replay=None)


def text_of_agent(text: bytes) -> Callable[[Files], bytes]:
    return lambda good: zip_of({**members_of(good["dqn.noterl"]), "agent.json": text})


def data_set(change: Callable[[h5py.File, str], None], member: str) -> Callable[[Files], bytes]:
    """Return a function that changes the first data set of an HDF5 file, which may be a member of a zip file."""

    def make(good: Files) -> bytes:
        (content,) = [content for name, content in good.items() if name.endswith(("keras", "hdf5"))]
        members = members_of(content) if member else {}
        stream = io.BytesIO(members[member] if member else content)
        with h5py.File(stream, "r+") as file:
            names: list[str] = []
            file.visititems(lambda name, entry: names.append(name) if isinstance(entry, h5py.Dataset) else None)
            del file[names[0]]
            change(file, names[0])
        return zip_of({**members, member: stream.getvalue()}) if member else stream.getvalue()

    return make


def sparse(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (10**9,), "f4", chunks=(2**20,), fillvalue=1.0)


def many_chunks(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (10**7,), "f4", chunks=(8,))


def compressed(file: h5py.File, name: str) -> None:
    data = file.create_dataset(name, (2**28,), "f4", chunks=(2**22,), compression="gzip")
    chunk = zlib.compress(bytes(2**24), 9)
    for start in range(0, 2**28, 2**22):
        data.id.write_direct_chunk((start,), chunk)


def layers(count: int) -> bytes:
    start = {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "name": "i"}}
    dense = [{"class_name": "Dense", "config": {"units": 1, "name": f"d{number}"}} for number in range(count)]
    return json.dumps({"class_name": "Sequential", "config": {"layers": [start, *dense]}}).encode()


def constant(content: bytes) -> Callable[[Files], bytes]:
    return lambda good: content


def parquet(good: Files) -> bytes:
    import pyarrow
    from pyarrow import parquet as files

    stream = io.BytesIO()
    files.write_table(pyarrow.table({"reward": np.zeros(2 * 10**7)}), stream, compression="zstd")
    return stream.getvalue()


OPEN = b'{"format":"noterl","version":1,"tree":'
NAMES = b"".join(b",c%d" % number for number in range(100_000))
ROWS = b"reward,length,loss,steps,updates,time,episode"
BOMBS: dict[str, Callable[[Files], bytes]] = {
    "agents hidden.noterl": agent_with(config__hidden=[10**6] * 3),
    "agents layers.noterl": agent_with(config__hidden=[1] * 5_000),
    "agents capacity.noterl": with_replay(capacity=3 * 10**7),
    "agents folder.noterl": with_replay(capacity=3 * 10**9, memmap="made/by/file"),
    "agents updates.noterl": agent_with(compile__updates=10**15),
    "agents batch.noterl": agent_with(compile__batch_size=10**12),
    "agents call.noterl": agent_with(compile__steps_per_execution=10**9),
    "agents schedule.noterl": agent_with(state__schedule={"updates": 10**12}),
    "agents map.noterl": agent_with(environment__id="FrozenLake-v1", environment__kwargs={"desc": ["F" * 600] * 600}),
    "agents seed.noterl": agent_with(state__generators__seed={"$int": "0x" + "f" * 30_000}),
    "agents deep.noterl": text_of_agent(OPEN + b"[" * 10**5 + b"]" * 10**5 + b"}"),
    "agents dicts.noterl": text_of_agent(OPEN + b"[" + b"{}," * 2_000_000 + b"0]}"),
    "agents digits.noterl": text_of_agent(OPEN + b"9" * 5_000_000 + b"}"),
    "networks layers.toml": constant(b'[[layers]]\nlayer="dense"\nunits=1\n' * 3_900),
    "networks layers.cfg": constant(b"".join(b"[dense-%d]\nunits=1\n" % number for number in range(5_500))),
    "networks layers.json": constant(layers(20_000)),
    "networks nested.toml": constant(b"a=" + b"[" * 60_000 + b"]" * 60_000),
    "networks keys.toml": constant(b"a" + b".a" * 60_000 + b"=1"),
    "networks inline.toml": constant(b"a=" + b"{b=" * 25_000 + b"1" + b"}" * 25_000),
    "networks dicts.json": constant(b'{"class_name":"Sequential","config":[' + b"{}," * 2_500_000 + b"0]}"),
    "networks sparse.keras": data_set(sparse, "model.weights.h5"),
    "networks gzip.keras": data_set(compressed, "model.weights.h5"),
    "networks config.keras": lambda good: zip_of(
        {**members_of(good["model.keras"]), "config.json": b'{"a":[' + b"{}," * 4 * 10**7 + b"0]}"}
    ),
    "logs columns.csv": constant(ROWS + NAMES + b"\n" + b"1,1,,1,1,1,1\n" * 5_000),
    "logs dense.csv": constant(ROWS + NAMES + b"\n" + b"1," * 100_000 + b"\n" + b"1,1,,1,1,1,1\n" * 50_000),
    "logs blank.csv": constant(ROWS + b"\n" * 10**7),
    "logs keys.jsonl": constant(b"".join(b'{"k%d":1}\n' % number for number in range(50_000))),
    "logs nested.jsonl": constant(b"[" * 200_000 + b"\n"),
    "logs rows.parquet": parquet,
    "logs names.json": constant(b'{"files":[' + b'"a",' * 4_000_000 + b'"a"]}'),
    "run nested.toml": constant(b"a=" + b"[" * 60_000 + b"]" * 60_000),
    "run long.toml": constant(b"a=1\n" * 10**6),
    "run minus.txt": constant(b"-" * 200_000 + b"1"),
    "run calls.txt": constant(b"f(" * 90_000 + b")" * 90_000),
    "run sum.txt": constant(b"1" + b"+1" * 100_000),
    "tf_config nested.json": constant(b"[" * 100_000),
    "tf_config type.json": constant(b'{"cluster":{"worker":["a:1"]},"task":{"type":[],"index":0}}'),
    "minari sparse.hdf5": data_set(sparse, ""),
    "minari gzip.hdf5": data_set(compressed, ""),
    "minari chunks.hdf5": data_set(many_chunks, ""),
}
