"""Random changes of bytes, texts, JSON trees and zip files."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import zipfile
from collections.abc import Iterator
from typing import Any

VALUES: list[Any] = [
    *(0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**30, 1e308, -1e308, 1e-320, True, False, None, "", "x" * 1000),
    *("../../../evil", "/etc/passwd", "os:system", "module:Env", [], {}, [[]], {"a": 1}),
    *({"$float": "nan"}, {"$float": "inf"}, {"$int": "0x" + "f" * 100}, {"$tuple": []}, {"$deque": [[1, 2], 1]}),
    *({"$deque": [[1], 10**18]}, {"$bytes": "x"}, {"$scalar": ["<f8", "00" * 8]}, {"$scalar": ["|O", "00" * 8]}),
    *({"$dict": [[1, 2]]}, {"$mixed": ["a", "b", "c"]}, {"$packed": "a"}, {"$npy": "arrays/0.npy"}),
    *({"$tensor": "q/000"}, {"$opaque": ["x", {}]}, {"$generator": {"bit_generator": "MT19937", "state": {}}}),
    *({"$object": ["Replay", {"capacity": 10**9}]}, {"$object": ["Replay", {"capacity": 99, "memmap": "evil"}]}),
    {"$object": ["DQN", {"env": "os:system"}]},
    *({"$object": ["GAIL", {}]}, {"$object": ["NetworkDescription", {"document": "/etc/passwd"}]}),
    *({"$keras": ["Adam", {"learning_rate": 1e-3}]}, {"$keras": ["LearningRateSchedule", {}]}),
    {"$space": ["Discrete", {"n": 10**9, "start": {"$scalar": ["<i8", "00" * 8]}}]},
]
WORDS = [
    *(b"0", b"-1", b"1e308", b"nan", b"inf", b"9" * 20, b"9" * 5_000, b'"x"', b"[]", b"{}", b"null", b"true"),
    *(b"os:system", b"Lambda", b"../../x", b"\0", b"\xff", b"\\u0000", b"'", b'"', b"\n", b"[[", b"]]", b"=", b","),
    *(b"layer", b"units", b"keras.layers", b"Replay(10**9)", b"[" * 2_000, b"-" * 5_000, b"(" * 300, b"a." * 2_000),
]


def places(tree: Any, keys: tuple = ()) -> Iterator[tuple]:
    """Yield the place of each value in nested dicts and lists."""
    yield keys
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*keys, key))


def change_tree(tree: Any, dice: random.Random) -> Any:
    """Return a JSON tree with some values replaced, removed, repeated or scaled."""
    root = [copy.deepcopy(tree)]
    for _ in range(dice.choice([1, 1, 1, 2, 3, 6])):
        found = list(places(root))[1:]
        keys = dice.choice(found)
        parent: Any = root
        for key in keys[:-1]:
            parent = parent[key]
        value, last = parent[keys[-1]], keys[-1]
        action = dice.random()
        if action < 0.55:
            parent[last] = copy.deepcopy(dice.choice(VALUES))
        elif action < 0.65 and len(keys) > 1:
            del parent[last]
        elif isinstance(value, list):
            value.extend(copy.deepcopy(value) * dice.choice([1, 2, 5]))
        elif isinstance(value, dict):
            value[dice.choice(["x", "$npy", "class_name", "module", "registered_name"])] = copy.deepcopy(
                dice.choice(VALUES)
            )
        elif isinstance(value, int | float) and not isinstance(value, bool):
            parent[last] = value * dice.choice([-1, 0, 2, 1000, 10**9, 0.5]) + dice.choice([-1, 0, 1, 0.5])
        elif isinstance(value, str):
            parent[last] = value + dice.choice(["x", "/..", ":os", "\0"])
    return root[0]


def change_bytes(content: bytes, dice: random.Random) -> bytes:
    """Return bytes with some of them changed, removed or inserted."""
    data = bytearray(content)
    for _ in range(dice.choice([1, 1, 2, 4, 16])):
        if not data:
            break
        place, action = dice.randrange(len(data)), dice.random()
        if action < 0.5:
            data[place] = dice.randrange(256)
        elif action < 0.6:
            del data[place : place + dice.choice([1, 4, 64, 1000])]
        elif action < 0.7:
            data[place:place] = dice.randbytes(dice.choice([1, 4, 16]))
        elif action < 0.8:
            del data[place:]
        elif action < 0.9:
            data[place : place + 8] = dice.choice([0, 2**31, 2**62, 2**64 - 1, 1]).to_bytes(8, "little")
        else:
            other = dice.randrange(len(data))
            data[place : place + 64] = data[other : other + 64]
    return bytes(data)


def change_text(content: bytes, dice: random.Random) -> bytes:
    """Return a text with words, lines and numbers changed."""
    for _ in range(dice.choice([1, 1, 2, 3, 8])):
        place, action = dice.randrange(len(content) + 1), dice.random()
        if action < 0.4:
            word = dice.choice(WORDS)
            content = content[:place] + word + content[place + dice.choice([0, len(word), 3]) :]
        elif action < 0.6:
            lines = content.split(b"\n")
            line = lines.pop(dice.randrange(len(lines)))
            lines[place % (len(lines) + 1) : 0] = [line] * dice.choice([0, 2, 3])
            content = b"\n".join(lines)
        elif action < 0.8 and (numbers := list(re.finditer(rb"\d+", content))):
            number = dice.choice(numbers)
            other = dice.choice([b"0", b"-5", b"1000000000000", b"3.5", b"1e400", b"7"])
            content = content[: number.start()] + other + content[number.end() :]
        else:
            content = change_bytes(content, dice)
    return content


def members_of(content: bytes) -> dict[str, bytes]:
    """Return the members of a zip file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def zip_of(members: dict[str, bytes]) -> bytes:
    """Return a zip file with these members, uncompressed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def change_zip(content: bytes, text: str, dice: random.Random) -> bytes:
    """Return a zip file with its JSON member `text`, another member, a name or the whole file changed."""
    members, action = members_of(content), dice.random()
    if action < 0.62:
        members[text] = json.dumps(change_tree(json.loads(members[text]), dice)).encode()
    elif action < 0.8:
        name = dice.choice(sorted(members))
        members[name] = change_bytes(members[name], dice)
    elif action < 0.87:
        name, other = (dice.choice(sorted(members)) for _ in range(2))
        members[dice.choice([other, "../evil", "/tmp/evil", "arrays/x.npy", f"{name}x"])] = members.pop(name)
    else:
        return change_bytes(content, dice)
    return zip_of(members)
