"""A process that evaluates copies of an agent while the agent goes on training."""

from __future__ import annotations

import contextlib
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noterl.utils.processes import end, spawn

if TYPE_CHECKING:
    from noterl.agent import Agent


class Evaluator:
    """Evaluates agents that are sent as files, one after another, in a process of its own.

    Args:
        agent: who will be evaluated; its class is made known to the process.
        env: where to play, something that can be pickled, or None.
        arguments: of `Agent.evaluate`.

    Attributes:
        pending: what the evaluation in progress is of, as given to `ask`; None while there is none.
        file: what was sent last.
    """

    def __init__(self, agent: Agent, env: Any, arguments: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="noterl-evaluate-")
        self.file = Path(self._folder.name) / "agent.noterl"
        self.pending: dict[str, Any] | None = None
        known = {type(agent).__name__: type(agent)}
        try:
            self._process, self._pipe = spawn(_serve, str(self.file), known, env, arguments, name="evaluate")
        except BaseException:
            self._folder.cleanup()
            raise

    def ask(self, agent: Agent, about: dict[str, Any]) -> None:
        """Start an evaluation of the agent as it is now; there must be none in progress."""
        agent.save(self.file, replay=False)
        self.pending = about
        self._pipe.send(None)

    def is_ready(self) -> bool:
        """Whether an evaluation has ended and `take` will not wait."""
        return self.pending is not None and self._pipe.poll()

    def take(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the evaluation is of and what it found; wait for it if need be.

        Raises:
            RuntimeError: if it failed, with what the process said.
        """
        about, self.pending = self.pending or {}, None
        try:
            result = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            raise RuntimeError(f"the process that evaluates ended with exit code {self._process.exitcode}") from error
        if isinstance(result, str):
            raise RuntimeError(f"the evaluation failed in its process:\n{result}")
        return about, result

    def close(self) -> None:
        """End the process; an evaluation in progress is lost."""
        end(self._process, self._pipe)
        self._folder.cleanup()


def _serve(pipe: Connection, path: str, known: dict[str, type], env: Any, arguments: dict[str, Any]) -> None:
    """Evaluate what lies at the path whenever something comes through the pipe, until it is closed."""
    from noterl.agent import load

    agent = None
    with contextlib.suppress(EOFError, OSError):  # nobody is there any more to ask or to be told
        while True:
            pipe.recv()
            try:
                if agent is None:
                    agent = load(path, known)
                else:
                    agent.restore(path)
                found: Any = agent.evaluate(env, **arguments)
            except Exception:
                found = traceback.format_exc()
            pipe.send(found)
