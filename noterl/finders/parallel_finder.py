"""Comparing agents and optimizers by trial runs in separate processes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from noterl.finders.candidates import CandidateFinder, Trial, kind_of, named
from noterl.finders.preserving import compile_with, preserving
from noterl.utils.checks import check_positive
from noterl.utils.processes import spawn

if TYPE_CHECKING:
    from noterl.agent import BaseAgent


class ParallelFinder(CandidateFinder):
    """Train several agents for a short time, each with an optimizer and in a separate process.

    Processes are spawned, so a script needs `if __name__ == "__main__":`. The processes receive the agents as files of
    `Agent.save`; the agents in the calling process do not change. The arguments of `find` must be picklable. Without
    `env`, the agents' training environments must have an id. A candidate that fails is reported in `results`, and the
    others continue.

    Args:
        agents: the agents; the keys of a dict are the names of the candidates.
        optimizers: one for each agent, in the same order, each as for the argument `optimizer` of `Agent.compile`; None
            for the agents' own.
        processes: the largest number of processes at a time; by default the number of CPU cores.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    def __init__(
        self,
        agents: Mapping[str, BaseAgent] | Sequence[BaseAgent],
        optimizers: Sequence[Any] | None = None,
        *,
        processes: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(agents, Mapping | Sequence) or not agents:
            raise ValueError(f"agents must be a list or a dict of agents, got {agents!r}")
        chosen = [None] * len(agents) if optimizers is None else list(optimizers)
        if len(chosen) != len(agents):
            raise ValueError(f"optimizers must be one for each of {len(agents)} agents, got {len(chosen)}")
        self.processes: Any = os.cpu_count() or 1 if processes is None else check_positive("processes", processes)
        held = list(agents.values()) if isinstance(agents, Mapping) else list(agents)
        kinds = [_kind(agent, optimizer) for agent, optimizer in zip(held, chosen, strict=True)]
        pairs = zip(held, chosen, strict=True)
        self.candidates: dict[str, tuple[BaseAgent, None]] = dict(zip(named(agents, kinds), pairs, strict=True))

    def _run(self, env: Any, episodes: int, metric: str, fit: dict[str, Any]) -> list[Trial]:
        """Save every candidate in a temporary folder, and train the candidates in processes."""
        with tempfile.TemporaryDirectory() as folder:
            jobs = []
            for number, (name, (agent, optimizer)) in enumerate(self.candidates.items()):
                path = str(Path(folder) / f"{number}.noterl")
                if optimizer is None:
                    agent.save(path)
                else:
                    with preserving(agent):
                        compile_with(agent, optimizer)
                        agent.save(path)
                custom = {type(agent).__name__: type(agent)}
                # The file of an agent may not describe its environment; then the process gets a source.
                trained_in = agent.spaces.source.portable() if env is None else env
                jobs.append((path, custom, name, trained_in, episodes, metric, fit))
            return _run_all(jobs, self.processes)


def _kind(agent: Any, optimizer: Any) -> str:
    return type(agent).__name__ + ("" if optimizer is None else f" with {kind_of(optimizer)}")


def _run_all(jobs: list[Any], processes: int) -> list[Trial]:
    """Run each job in a separate process and return the trials in the order of the jobs."""
    started = []

    def run(job: Any) -> Trial:
        began = perf_counter()
        name = job[2]  # see `_try` for the entries of a job
        process, pipe = spawn(_try, job, name=f"finder-{name}")
        started.append(process)
        trial = None
        with pipe, contextlib.suppress(EOFError, OSError):
            # If the process ends without a result, such as by a lack of memory, the pipe closes.
            trial = pipe.recv()
        process.join()
        error = f"the process ended with exit code {process.exitcode}"
        return trial or Trial(name, [], [], perf_counter() - began, error)

    with ThreadPoolExecutor(processes) as pool:
        try:
            return list(pool.map(run, jobs))
        # Otherwise the pool would wait for the trials that run.
        except BaseException:
            for process in started:
                process.kill()
            raise


def _try(sender: Connection, job: Any) -> None:
    """Run and send one trial; called in a separate process."""
    path, custom, name, env, episodes, metric, fit = job
    started = perf_counter()
    try:
        from noterl.agent import load
        from noterl.finders.opt_finder import play
        from noterl.training.finder_logger import FinderLogger

        agent = load(path, custom)
        sender.send(play(agent, name, FinderLogger(metric, episodes), env, fit))
        agent.close()
    except BaseException:
        sender.send(Trial(name, [], [], perf_counter() - started, traceback.format_exc()))
    finally:
        sender.close()
