"""The table of docs/memory.md: which features work with a memory, for each agent and backend.

`python -m tests.support.memory_table` tries every cell on the current backend and prints the table; with `--write`, it
also writes the table into the page.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import noterl
from noterl import backends, envs, imitation, networks
from noterl.collect import DeviceLanes, Workers
from noterl.population import Population
from tests.support.doubles import ImageEnv, TogetherVectorEnv
from tests.support.functional import line
from tests.support.masked_env import MaskedWalk
from tests.support.parts import lanes_of
from tests.support.states import ROOT
from tests.support.worker_envs import StepNumberEnv

AGENTS = ("PPO", "A2C", "DQN", "SAC")
ROLLOUTS = ("PPO", "A2C")
PAGE = ROOT / "docs" / "memory.md"
BEGIN, END = "<!-- table: tests/support/memory_table.py -->\n", "<!-- end of the table -->\n"


def make(kind: str, env: Any = StepNumberEnv, compiled: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Return a small compiled agent with a memory."""
    arguments: dict[str, Any] = {"recurrent": "gru", "recurrent_units": 4, "hidden": (4,), "sequence_length": 4}
    settings: dict[str, Any] = {"jit_compile": False} if backends.name() == "torch" else {}
    if kind in ROLLOUTS:
        arguments["rollout_steps"] = 8
        settings |= {"batch_size": 8} if kind == "PPO" else {}
    else:
        settings |= {"replay": 100, "batch_size": 2, "learning_starts": 8, "update_every": 16}
    agent = getattr(noterl, kind)(env, seed=1, **{**arguments, **options})
    agent.compile(**{**settings, **(compiled or {})})
    return agent


def trained(kind: str, env: Any = StepNumberEnv, fit: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Return an agent that has made an update."""
    agent = make(kind, env, **options)
    agent.fit(steps=33, verbose=0, **({"num_envs": 2} if fit is None else fit))
    assert agent.updates > 0
    return agent


def _resumes(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        agent = trained(kind)
        agent.save(f"{folder}/agent.noterl")
        again = noterl.load(f"{folder}/agent.noterl", custom_objects={"StepNumberEnv": StepNumberEnv})
        for name, value in again.get_weights().items():
            assert np.array_equal(value, agent.get_weights()[name])
        agent.restore(f"{folder}/agent.noterl")
        agent.fit(steps=9, verbose=0)


def _plays(kind: str) -> None:
    agent = trained(kind)
    agent.evaluate(episodes=2, num_envs=2)
    agent.play(episodes=1)
    _, state = agent.act(np.zeros((2, 1), np.float32))
    agent.act(np.zeros((2, 1), np.float32), state, starts=[True, False])


def _exports(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trained(kind).export(f"{folder}/policy", "numpy")


def _vector_environments(kind: str) -> None:
    for mode in ("NextStep", "SameStep", "Disabled"):
        trained(kind, TogetherVectorEnv([StepNumberEnv] * 2, autoreset_mode=mode), fit={})


def _on_jax(kind: str) -> None:
    agent = trained(kind, line())
    on_device = isinstance(lanes_of(agent), DeviceLanes)
    assert on_device == (kind in ROLLOUTS and backends.name() == "jax")


def _demonstrations(agent: Any) -> Any:
    return noterl.Dataset.record(agent, episodes=1)


def _population(kind: str) -> None:
    Population(make(kind, line()))


class OwnCell:
    """Makes a cell that is not of `networks.recurrent`."""

    def __new__(cls, inputs: int) -> Any:
        import keras

        class Sum(keras.layers.Layer):
            state_spec = {"total": (3,)}  # noqa: RUF012

            def __init__(self) -> None:
                super().__init__()
                self.dense = keras.layers.Dense(3)
                self.dense.build((None, inputs))
                self.built = True

            def call(self, values: Any, state: Any) -> Any:
                total = 0.9 * state["total"] + self.dense(values)
                return total, {"total": total}

        return Sum()


@dataclass(frozen=True)
class Feature:
    """A row of the table.

    Attributes:
        text: what the row is about.
        attempt: tries it with an agent, by its name.
        refused: the words of the error, by agent.
        notes: what is different, by agent.
    """

    text: str
    attempt: Callable[[str], Any]
    refused: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def cell(self, agent: str) -> str:
        """Return the text of a cell."""
        if agent in self.refused:
            return f"refused: {self.refused[agent]}"
        return self.notes.get(agent, "yes")

    def check(self, agent: str) -> None:
        """Try the feature with an agent; raises an AssertionError if the cell is wrong."""
        reason = self.refused.get(agent)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.attempt(agent)
            except (ValueError, NotImplementedError) as error:
                if reason is not None and reason in str(error):
                    return
                raise
        assert reason is None, f"{self.text} was not refused for {agent}"


def everyone(reason: str) -> dict[str, str]:
    return dict.fromkeys(AGENTS, reason)


HOST = dict.fromkeys(("DQN", "SAC"), "stepped from the host")
DEVICE = dict.fromkeys(ROLLOUTS, "on the device on JAX, else stepped from the host")
OFF_POLICY = ("DQN", "SAC")
NO_REPLAY = {
    "PPO": "replay is not supported for an agent with a state_spec that learns from rollouts",
    "A2C": "replay is not supported for an agent that learns from rollouts",
}
FEATURES = [
    Feature("several environments", trained),
    Feature("vector environments, three autoreset modes", _vector_environments),
    Feature("`workers=`", lambda kind: trained(kind, fit={"num_envs": 2, "workers": 2})),
    Feature(
        "`workers=` with overlap", lambda kind: trained(kind, fit={"num_envs": 2, "workers": Workers(2, overlap=True)})
    ),
    Feature("masks", lambda kind: trained(kind, MaskedWalk, **({"temperature": 0.1} if kind == "SAC" else {}))),
    Feature("images", lambda kind: trained(kind, lambda: ImageEnv((36, 36, 1)))),
    Feature("Dict observations", lambda kind: trained(kind, lambda: envs.PreviousStep(envs.hide("CartPole-v1", [1])))),
    Feature("`normalize_observation`, `normalize_reward`", lambda kind: _normalized(kind)),
    Feature(
        "layer normalization", lambda kind: trained(kind, recurrent=networks.recurrent("lstm", 4, layer_norm=True))
    ),
    Feature("a cell of your own", lambda kind: trained(kind, recurrent=OwnCell)),
    Feature('`compile(precision="bfloat16")`', lambda kind: trained(kind, compiled={"precision": "bfloat16"})),
    Feature("`evaluate`, `play`, `act`", _plays),
    Feature("`save`, `load`, `restore`", _resumes),
    Feature("`export`", _exports),
    Feature("environments of JAX", _on_jax, notes={**DEVICE, **HOST}),
    Feature(
        "`compile(replay=)` of rollouts",
        lambda kind: make(kind, compiled={"replay": noterl.Replay(100)} if kind in ROLLOUTS else {}),
        refused=NO_REPLAY,
        notes=dict.fromkeys(OFF_POLICY, "—"),
    ),
    Feature(
        "`Replay(relabel=)`",
        lambda kind: make(kind, compiled={"replay": noterl.Replay(100, relabel=noterl.replay.Triplets())}),
        refused={**everyone("relabel is not supported for an agent with a state_spec"), **NO_REPLAY},
    ),
    Feature(
        "`Replay(on_device=True)`",
        lambda kind: make(kind, compiled={"replay": noterl.Replay(100, on_device=True)}),
        refused={**everyone("on_device is not supported for an agent with a state_spec"), **NO_REPLAY},
    ),
    Feature(
        "`pretrain`",
        lambda kind: (agent := make(kind)).pretrain(_demonstrations(agent), 1),
        refused=everyone("pretrain of an agent with a state_spec is not supported yet"),
    ),
    Feature(
        "GAIL",
        lambda kind: (agent := make(kind)).compile(reward_model=imitation.GAIL(_demonstrations(agent), hidden=(4,))),
        refused=everyone("reward_model is not supported for an agent with a state_spec"),
    ),
    Feature(
        "`Population`",
        _population,
        refused=everyone("agent: a Population does not support agents with a state_spec yet"),
    ),
]


def _normalized(kind: str) -> Any:
    return trained(kind, normalize_observation=True, normalize_reward=True)


def table() -> str:
    """Return the table as Markdown; the reasons of refused cells follow it as numbered notes."""
    reasons: list[str] = []
    lines = [f"| | {' | '.join(f'`{agent}`' for agent in AGENTS)} |", "| --- " * (len(AGENTS) + 1) + "|"]
    for feature in FEATURES:
        cells = []
        for agent in AGENTS:
            text = feature.cell(agent)
            if text.startswith("refused: "):
                reason = text.removeprefix("refused: ")
                if reason not in reasons:
                    reasons.append(reason)
                text = f"refused ({reasons.index(reason) + 1})"
            cells.append(text)
        lines.append(f"| {feature.text} | {' | '.join(cells)} |")
    notes = [f"{number}. `{reason}`" for number, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", "The reasons, in the words of the errors:", "", *notes, ""])


def page_table() -> str:
    """Return the table in the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for feature in FEATURES:
        for agent in AGENTS:
            try:
                feature.check(agent)
            except Exception as error:
                print(f"{feature.text}, {agent}: {type(error).__name__}: {error!s:.300}", flush=True)
    if arguments.write:
        text = PAGE.read_text(encoding="utf-8")
        first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
        Path(PAGE).write_text(text[:first] + table() + text[last:], encoding="utf-8")
    print(table())


if __name__ == "__main__":
    main()
