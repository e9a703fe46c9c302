"""A process that evaluates copies of an agent while training continues."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import traceback
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from noterl.callback import AgentView
from noterl.utils.processes import end, orphaned, spawn


class Evaluator:
    """Evaluates agents one after another in a separate process, which receives the agents as files.

    `Evaluate(background=True)` makes an evaluator when training begins, and closes the evaluator at the end.

    Args:
        agent: an agent of the class to evaluate; the process registers this class.
        arguments: keyword arguments of `Agent.evaluate`, which must be picklable.

    Attributes:
        pending: the description of the evaluation in progress, as passed to `start`; None if there is none.
        file: path of the agent that was evaluated last.
    """

    def __init__(self, agent: AgentView, arguments: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="noterl-evaluate-")
        self.file: Path = Path(self._folder.name) / "agent.noterl"
        self.pending: dict[str, Any] | None = None
        classes: dict[str, type] = {type(agent).__name__: type(agent)}
        try:
            self._process, self._pipe = spawn(_main, str(self.file), classes, arguments, name="evaluate")
        except BaseException:
            self._folder.cleanup()
            raise

    def start(self, agent: AgentView, description: dict[str, Any]) -> None:
        """Start an evaluation of the agent's current state; no other evaluation may be in progress."""
        agent.save(self.file, replay=False)
        self.pending = description
        # The file is the message; the pipe only says that it is complete.
        with contextlib.suppress(BrokenPipeError):  # `result` says why the process has ended
            self._pipe.send(None)

    def is_ready(self) -> bool:
        """Return whether an evaluation has ended; if so, `result` does not wait."""
        return self.pending is not None and self._pipe.poll()

    def result(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for the evaluation in progress; return the description and the result of `Agent.evaluate`.

        Raises:
            RuntimeError: if the evaluation failed.
        """
        description = self.pending or {}
        self.pending = None
        try:
            result = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            raise RuntimeError(f"the evaluation process ended with exit code {self._process.exitcode}") from error
        if isinstance(result, str):
            raise RuntimeError(f"the evaluation failed in its process:\n{result}")
        return description, result

    def close(self) -> None:
        """End the process; an evaluation in progress is lost."""
        end(self._process, self._pipe)
        self._folder.cleanup()


def _main(*arguments: Any) -> None:
    """Run `_serve` in a separate process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all processes; the trainer handles it
    _, path, *_ = arguments
    # If the trainer is killed, only this process can remove the folder.
    orphaned.append(partial(shutil.rmtree, Path(path).parent, ignore_errors=True))
    _serve(*arguments)


def _serve(pipe: Connection, path: str, classes: dict[str, type], arguments: dict[str, Any]) -> None:
    """For each message in the pipe, evaluate the agent in the file, until the pipe is closed."""
    from noterl import saving
    from noterl.training.loading import build_from

    agent = None
    with contextlib.suppress(EOFError, OSError):  # the other end was closed
        while True:
            pipe.recv()
            try:
                document = saving.read(path)
                # An evaluation needs no optimizer, and a file cannot describe each optimizer, such as one with hooks.
                document["compile"].pop("optimizer", None)
                if agent is None:
                    agent = build_from(document, path, classes)
                # `set_document` restores optimizers too, so it gets the ones of the new agent.
                document["state"]["optimizers"] = agent.get_state()["optimizers"]
                agent.set_document(document)
                result: Any = agent.evaluate(**arguments)
            except Exception:
                result = traceback.format_exc()
            pipe.send(result)
