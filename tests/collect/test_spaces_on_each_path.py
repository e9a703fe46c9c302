"""Each way to collect with each kind of observation space: a run that is saved within a round resumes exactly.

`tests/integration/test_ray_workers.py` does the same with workers of Ray.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import Callback
from noterl.collect import DeviceLanes, Workers
from noterl.envs import BitFlip
from noterl.envs.functional import functional, import_jax
from noterl.replay import Hindsight
from tests.support.doubles import JoinedFinals, TogetherVectorEnv
from tests.support.parts import lanes_of
from tests.support.replay_invariants import check_replay
from tests.support.space_envs import ACTIONS, SpaceTeam, make
from tests.support.states import assert_same_state

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.filterwarnings("ignore:observations of the shape .* are flattened:UserWarning"),
    # NumPy cannot run the network of "Dict-with-image", and ACER stores more than actions: the learner chooses them.
    pytest.mark.filterwarnings("ignore:workers. (NumPy|forward):RuntimeWarning"),
]

KINDS = ("Box", "Discrete", "Dict", "Dict-with-image", "goals", "image", "masked Dict", "masked Dict-with-image")
VECTOR = ("NextStep", "SameStep", "Disabled")
WORKERS = {
    "workers": Workers(2, collect=4),
    "workers by episode": Workers(2, collect="episode"),
    "workers with overlap": Workers(2, overlap=True),
}


def maker(kind: str, flag: str = "") -> Any:
    return partial(BitFlip, ACTIONS) if kind == "goals" else partial(make, kind, flag)


def dqn(kind: str) -> noterl.DQN:
    agent = noterl.DQN(maker(kind), hidden=(4,), seed=3)
    settings: dict[str, Any] = {"goals": {"relabel": Hindsight()}, "image": {"frame_stack": 2}}.get(kind, {})
    memory = noterl.Replay(60, n_step=2, **settings)
    agent.compile(replay=memory, batch_size=4, learning_starts=8, update_every=6, target_update=12, jit_compile=False)
    return agent


def ppo(kind: str) -> noterl.PPO:
    agent = noterl.PPO(maker(kind), hidden=(4,), rollout_steps=5, epochs=1, seed=3)
    agent.compile(batch_size=5, jit_compile=False)
    return agent


def acer(kind: str) -> noterl.ACER:
    agent = noterl.ACER(maker(kind), hidden=(4,), rollout_steps=5, seed=3)
    agent.compile(jit_compile=False)
    return agent


def maddpg(kind: str) -> noterl.MADDPG:
    agent = noterl.MADDPG(SpaceTeam, hidden=(4,), seed=3)
    agent.compile(replay=60, batch_size=4, learning_starts=8, update_every=9, jit_compile=False)
    return agent


class Pauses(Callback):
    """Saves the agent after a step, and ends the training after another one.

    Args:
        stop: the number of steps at which training ends.
        save: the number of steps at which the agent is saved; None for never.
        path: of the file.
    """

    def __init__(self, stop: int, save: int | None = None, path: Path | None = None) -> None:
        self.stop, self.save, self.path = stop, save, path

    def on_step_end(self) -> None:
        if self.save is not None and self.agent.steps >= self.save:
            self.save = None
            self.agent.save(self.path)
        if self.agent.steps >= self.stop:
            self.agent.stop("enough")


class Run:
    """An agent, and how it collects.

    Args:
        build: makes the agent of a kind of observations.
        path: a way to collect: "one lane", "lanes", of `VECTOR`, or of `WORKERS`.
        kind: of `KINDS`.
    """

    def __init__(self, build: Any, path: str, kind: str) -> None:
        self.agent = build(kind)
        self.arguments: dict[str, Any] = {"num_envs": 1 if path == "one lane" else 3}
        if path in WORKERS:
            self.arguments["workers"] = WORKERS[path]
        elif path in VECTOR:
            self.arguments = {"env": TogetherVectorEnv([maker(kind)] * 3, autoreset_mode=path)}

    def fit(self, stop: int, *pauses: Any) -> None:
        self.agent.fit(steps=200, callbacks=[Pauses(stop, *pauses)], verbose=0, **self.arguments)
        if "env" not in self.arguments:  # a vector environment steps all its lanes
            assert self.agent.steps == stop


@pytest.mark.parametrize(
    ("build", "path", "kind"),
    [
        *[(dqn, path, kind) for path in ("lanes", *VECTOR, "workers") for kind in KINDS],
        *[(ppo, path, kind) for path in ("one lane", *VECTOR, "workers") for kind in ("image", "masked Dict")],
        *[(dqn, "workers by episode", kind) for kind in ("Dict", "masked Dict-with-image")],
        *[(acer, path, "masked Dict") for path in ("lanes", "workers")],
        *[(maddpg, path, "team") for path in ("lanes", "workers")],
    ],
)
def test_run_that_is_saved_within_a_round_resumes_exactly(build: Any, path: str, kind: str, tmp_path: Path) -> None:
    whole, halves, resumed = (Run(build, path, kind) for _ in range(3))
    whole.fit(47)
    assert whole.agent.updates > 1
    halves.fit(22)
    halves.fit(47, 34, tmp_path / "agent.noterl")
    assert_same_state(whole.agent, halves.agent)
    resumed.agent.restore(tmp_path / "agent.noterl")
    if path == "lanes":
        assert resumed.agent.get_state()["lanes"]["actions"] is not None, "the file should hold an unfinished round"
    elif path in WORKERS:
        assert any(len(rows["reward"]) for rows in resumed.agent.get_state()["lanes"]["pool"]["rows"])
    resumed.fit(47)
    assert_same_state(whole.agent, resumed.agent)


@pytest.mark.parametrize("build", [dqn, ppo])
def test_run_with_overlap_resumes(build: Any, tmp_path: Path) -> None:
    """Without equal numbers: with overlap, they depend on the speed of the processes."""
    run, resumed = (Run(build, "workers with overlap", "masked Dict") for _ in range(2))
    run.fit(22)
    run.fit(47, 34, tmp_path / "agent.noterl")
    resumed.agent.restore(tmp_path / "agent.noterl")
    resumed.fit(47)
    for agent in (run.agent, resumed.agent) if build is dqn else ():
        check_replay(agent.replay)


@pytest.mark.parametrize("kind", ["masked Dict", "masked Dict-with-image"])
def test_run_with_a_replaced_worker_resumes(kind: str, tmp_path: Path) -> None:
    run, resumed = (Run(dqn, "workers", kind) for _ in range(2))
    run.arguments["env"] = maker(kind, str(tmp_path / "flag"))
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        run.fit(47, 43, tmp_path / "agent.noterl")
    resumed.agent.restore(tmp_path / "agent.noterl")
    resumed.fit(47)
    for agent in (run.agent, resumed.agent):
        assert agent.steps == 47
        check_replay(agent.replay)


def test_final_observations_may_be_one_dict_of_arrays() -> None:
    separate, joined = (Run(dqn, "SameStep", "Dict") for _ in range(2))
    joined.arguments["env"] = JoinedFinals([maker("Dict")] * 3, autoreset_mode="SameStep")
    for run in (separate, joined):
        run.fit(47)
    assert_same_state(separate.agent, joined.agent)


def _functional_env() -> Any:
    """Return a walk on a line with a Dict of a nested vector, a number and an image."""
    space = spaces.Dict(
        {
            "inner": spaces.Dict({"place": spaces.Box(-10.0, 10.0, (2,))}),
            "mode": spaces.Discrete(3),
            "picture": spaces.Box(0, 255, (2, 2), np.uint8),
        }
    )

    def observed(position: Any) -> Any:
        jnp = import_jax().numpy
        distance = jnp.abs(position)
        picture = jnp.full((2, 2), 20 * distance).astype(jnp.uint8)
        return {
            "inner": {"place": jnp.stack([position, distance])},
            "mode": jnp.int32(10 * distance) % 3,
            "picture": picture,
        }

    def reset(key: Any) -> Any:
        position = import_jax().random.uniform(key, (), minval=-1.0, maxval=1.0)
        return observed(position), position

    def step(key: Any, position: Any, action: Any) -> Any:
        position = position + action - 0.5 + 0.1 * import_jax().random.normal(key, ())
        return observed(position), position, 0.1 * position, abs(position) > 2.0, False

    return functional(reset, step, space, spaces.Discrete(2), max_episode_steps=7)


@pytest.mark.backends("jax")
def test_run_on_the_device_resumes_exactly_with_a_dict(tmp_path: Path) -> None:
    def build() -> noterl.PPO:
        agent = noterl.PPO(_functional_env(), hidden=(4,), rollout_steps=4, epochs=1, seed=3)
        agent.compile(batch_size=4)
        return agent

    whole, halves, resumed = build(), build(), build()
    whole.fit(steps=60, num_envs=3, verbose=0)
    assert isinstance(lanes_of(whole), DeviceLanes) and whole.updates > 3
    halves.fit(steps=32, num_envs=3, verbose=0)
    halves.save(tmp_path / "agent.noterl")
    resumed.restore(tmp_path / "agent.noterl")
    for agent in (halves, resumed):
        agent.fit(steps=28, num_envs=3, verbose=0)
        assert_same_state(whole, agent)
