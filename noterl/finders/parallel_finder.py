"""Comparing agents and optimizers by trial runs in separate processes."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from noterl.finders.candidates import CandidateFinder, Trial, kind_of, named
from noterl.finders.finder_logger import METRICS
from noterl.finders.preserving import compile_with, preserving
from noterl.utils.checks import check_positive, check_word
from noterl.utils.processes import end, spawn

if TYPE_CHECKING:
    from noterl.agent import Agent


class ParallelFinder(CandidateFinder):
    """Train several agents for a short time, each with its optimizer and in a separate process.

    Processes are spawned, so a script needs `if __name__ == "__main__":`. They receive the agents as files of
    `Agent.save`; the agents here do not change. A candidate that fails is reported in `results`, and the others
    continue.

    Args:
        agents: the agents; a dict names the candidates.
        optimizers: one for each agent, in the same order, each as the argument `optimizer` of `Agent.compile`; None for
            the agents' own.
        processes: the largest number of processes at a time; by default the number of processors.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent] | Sequence[Agent],
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
        self.processes = os.cpu_count() or 1 if processes is None else check_positive("processes", processes)
        held = list(agents.values()) if isinstance(agents, Mapping) else list(agents)
        kinds = [_kind(agent, optimizer) for agent, optimizer in zip(held, chosen, strict=True)]
        names = list(agents) if isinstance(agents, Mapping) else list(named(held, kinds))
        self.candidates = dict(zip(names, zip(held, chosen, strict=True), strict=True))

    def find(self, env: Any = None, episodes: int = 7, *, metric: str = "reward", **fit: Any) -> str | None:
        """Try every candidate and return the name of the best.

        Args:
            env: where to train, picklable; by default the agent's training environment, if it has an id.
            episodes: points of a trial: episodes, starting with the first that has an update; for the metric "loss",
                gradient updates.
            metric: "reward" or "loss".
            **fit: further arguments of `Agent.fit`, picklable.

        Raises:
            ValueError: if an argument is not one of the allowed values.
        """
        check_positive("episodes", episodes)
        check_word("metric", metric, METRICS)
        with tempfile.TemporaryDirectory() as folder:
            jobs = []
            for number, (name, (agent, optimizer)) in enumerate(self.candidates.items()):
                path = str(Path(folder) / f"{number}.noterl")
                _save(agent, optimizer, path)
                custom = {type(agent).__name__: type(agent)}
                jobs.append((name, (path, custom, name, env, episodes, metric, fit)))
            found = dict(_finished(jobs, self.processes))
        return self._rank(metric, [found[name] for name in self.candidates])


def _kind(agent: Any, optimizer: Any) -> str:
    return type(agent).__name__ + ("" if optimizer is None else f" with {kind_of(optimizer)}")


def _save(agent: Agent, optimizer: Any, path: str) -> None:
    """Save the agent with another optimizer, or with its own if `optimizer` is None; the agent does not change."""
    if optimizer is None:
        agent.save(path)
        return
    with preserving(agent):
        compile_with(agent, optimizer)
        agent.save(path)


def _finished(jobs: list[tuple[str, Any]], processes: int) -> Iterator[tuple[str, Trial]]:
    """Run jobs in processes and yield the trials as they end."""
    waiting = list(reversed(jobs))
    running: dict[Any, tuple[str, Any, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                name, job = waiting.pop()
                process, pipe = spawn(_try, job, name=f"finder-{name}")
                running[pipe] = name, process, perf_counter()
            for ready in wait(list(running)):
                name, process, started = running.pop(ready)
                yield name, _received(ready, name, process, started)
    finally:
        for pipe, (_, process, _) in running.items():
            end(process, pipe, seconds=0)


def _received(receiver: Any, name: str, process: Any, started: float) -> Trial:
    """Return the trial that a process sent; if it sent nothing, a trial with its exit code."""
    try:
        trial = Trial(*receiver.recv())
        process.join()
        return trial
    except (EOFError, OSError):
        process.join()
        return Trial(name, [], [], perf_counter() - started, f"the process ended with exit code {process.exitcode}")
    finally:
        receiver.close()


def _try(sender: Connection, job: Any) -> None:
    """Run one trial and send it; called in a separate process."""
    path, custom, name, env, episodes, metric, fit = job
    started = perf_counter()
    try:
        from noterl.agent import load
        from noterl.finders.finder_logger import FinderLogger
        from noterl.finders.opt_finder import play

        agent = load(path, custom)
        sender.send(tuple(play(agent, name, FinderLogger(metric, episodes), env, fit)))
        agent.close()
    except BaseException:
        sender.send((name, [], [], perf_counter() - started, traceback.format_exc()))
    finally:
        sender.close()
