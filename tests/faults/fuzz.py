"""Damage files of each kind at random, and read them.

A reader must return, or raise an error that a user understands: a ValueError, an OSError, or an ImportError that names
an extra. Any other error is raw. A case that takes more CPU time or memory than `SECONDS` and `MEGABYTES` is a bomb.

    KERAS_BACKEND=torch python -m tests.faults.fuzz agents networks --minutes 10

The exit status is 1 if there is a raw error, a bomb or a crash. The file of such a case is kept, and its path is
printed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.faults.readers import READERS

SECONDS, MEGABYTES = 8.0, 500
LARGEST = 12 * 2**30  # bytes of addresses: a bomb raises a MemoryError instead of ending other processes
LONGEST = 60  # seconds of CPU time, after which a case is ended
BATCH = 25  # cases of a process: a crash ends it


class Endless(Exception):
    """A case that did not end."""


def end_case(number: int, frame: Any) -> None:
    raise Endless(f"{LONGEST} s of CPU time are over")


def run_batch(reader: Any, first: int, count: int, folder: Path, results: int) -> None:
    """Read some files in a forked process; write a line of JSON for each to the descriptor `results`."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST, LARGEST))
    signal.signal(signal.SIGVTALRM, end_case)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    os.chdir(folder)
    for number in range(first, first + count):
        path = reader.write(number, random.Random(number), folder / str(number))
        started, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
        try:
            reader.read(path, number)
            outcome = "read"
        except (ValueError, OSError, ImportError) as error:
            outcome = f"refused: {type(error).__name__}"
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"RAW {type(error).__name__}: {error!s:.150} at {place.filename}:{place.lineno}"
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) // 1024
        seconds = time.process_time() - started
        if seconds > SECONDS or grown > MEGABYTES:
            outcome = f"BOMB {seconds:.1f} s, {grown} MB: {outcome}"
        os.write(results, json.dumps([number, outcome, str(path)]).encode() + b"\n")
        if outcome[0].islower():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def fuzz(kind: str, minutes: float, first: int, folder: Path) -> tuple[collections.Counter[str], list[str]]:
    """Return how often each outcome occurred, and what must be mended."""
    reader = READERS[kind](folder)
    outcomes: collections.Counter[str] = collections.Counter()
    found: list[str] = []
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        source, sink = os.pipe()
        child = os.fork()
        if not child:
            try:
                run_batch(reader, first, BATCH, folder, sink)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(sink)
        with os.fdopen(source) as lines:
            cases = [json.loads(line) for line in lines]
        _, status = os.waitpid(child, 0)
        if status or len(cases) < BATCH:
            cases.append([first + len(cases), f"CRASH with the status {status}", str(folder)])
        for number, outcome, path in cases:
            outcomes[outcome if outcome[0].islower() else outcome.split()[0]] += 1
            if not outcome[0].islower():
                found.append(f"{kind} {number}: {outcome} ({path})")
        first += BATCH
    return outcomes, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=sorted(READERS), help=", ".join(sorted(READERS)))
    parser.add_argument("--minutes", type=float, default=1.0, help="the time for each kind")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case, which sets its seed")
    arguments = parser.parse_args()
    failed = False
    for kind in arguments.kinds:
        folder = Path(tempfile.mkdtemp(prefix=f"noterl-{kind}-"))
        outcomes, found = fuzz(kind, arguments.minutes, arguments.first, folder)
        print(
            f"{kind}: {outcomes.total():,} files: {dict(outcomes.most_common())}", *found[:20], sep="\n  ", flush=True
        )
        failed |= bool(found)
        if not found:
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
