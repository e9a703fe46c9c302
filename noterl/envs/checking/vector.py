"""`check` for vector environments that step all lanes together: values, autoreset mode and repeatability."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from noterl.envs.checking.checker import Checker
from noterl.envs.checking.report import Report
from noterl.envs.ends import InvalidStepError, check_end
from noterl.envs.observation import at
from noterl.envs.snapshots import equal
from noterl.envs.spaces import show

MODES = ("NextStep", "SameStep", "Disabled")
DIFFERS = "two runs with the same seed and actions differ"
REPEATED_STEPS = 200


def autoreset_mode(vector: VectorEnv[Any, Any, Any]) -> str:
    """Return how a vector environment starts a lane's next episode: "NextStep", "SameStep" or "Disabled".

    Raises:
        ValueError: if the metadata do not name a mode. Without a mode, transitions and resets cannot be distinguished.
    """
    mode = (vector.metadata or {}).get("autoreset_mode")
    # The modes of gymnasium are enums; a vector environment may also use their values.
    name = getattr(mode, "value", mode)
    if name not in MODES:
        raise ValueError(f"env: metadata['autoreset_mode'] must be one of {MODES}, got {mode!r}")
    return str(name)


def check_vector(vector: VectorEnv[Any, Any, Any], report: Report, steps: int, seed: int) -> None:
    """Step a vector environment twice with the same random actions, and report faults."""
    report.autoreset_mode = autoreset_mode(vector)
    # A copy: sampling from the environment's own space would advance its generator.
    space = copy.deepcopy(vector.action_space)
    space.seed(seed)
    actions = [space.sample() for _ in range(max(1, steps // vector.num_envs))]
    first, report.episodes = _play(vector, report, actions, seed)
    report.steps = len(actions) * vector.num_envs
    again, _ = _play(vector, report, actions[:REPEATED_STEPS], seed)
    step = difference(first, again)
    report.place = ""
    if step is None:
        report.resumable = "replay"
    else:
        report.warn(f"{DIFFERS} from step {step} on (0 is the reset)")


def difference(first: list[Any], second: list[Any]) -> int | None:
    """Return the first index at which two runs differ, or None."""
    # Not strict, because the second run may be shorter.
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, pair in pairs if not equal(*pair)), None)


def _play(vector: VectorEnv[Any, Any, Any], report: Report, actions: list[Any], seed: int) -> tuple[list[Any], int]:
    """Reset and step with the actions; return copies of all observations, and the number of episodes that ended.

    Findings go into the report.
    """
    checker = Checker(vector.single_observation_space, warn=report.warn)
    lanes = range(vector.num_envs)
    report.place = "reset"
    moments = [copy.deepcopy(vector.reset(seed=seed)[0])]
    ended = np.zeros(len(lanes), bool)
    episodes = 0
    for step, action in enumerate(actions, 1):
        report.place = f"step {step}"
        observations, rewards, terminations, truncations, infos = vector.step(action)
        before = ended
        ended = check_step(str(report.autoreset_mode), ended, rewards, terminations, truncations, infos)
        for lane in lanes:
            checker.observation(at(observations, lane), lane, step)
            checker.reward(rewards[lane], lane, step)
        moments.append(copy.deepcopy(observations))
        if report.autoreset_mode == "NextStep" and np.asarray(rewards)[before].any():
            report.warn(
                "in the mode NextStep, the step after an end is a reset and has no reward, but this one has: either a "
                "wrapper changes rewards, or the mode is another one"
            )
        episodes += int(ended.sum())
        # In this mode, a lane stays at its end until it is reset with a mask.
        if report.autoreset_mode == "Disabled" and ended.any():
            vector.reset(options={"reset_mask": ended.copy()})
    return moments, episodes


def check_step(
    mode: str, before: np.ndarray, rewards: Any, terminations: Any, truncations: Any, infos: Any
) -> np.ndarray[Any, Any]:
    """Return the lanes whose episode ended in a step of a vector environment, as bool `[N]`.

    `check` calls this function, and `VectorLanes` calls it in every training step, so it must stay fast.

    Args:
        mode: the autoreset mode: "NextStep", "SameStep" or "Disabled".
        before: bool `[N]`, the lanes whose episode ended in the previous step. The mode "NextStep" needs the values.
        rewards: as returned by `step`.
        terminations: as returned by `step`.
        truncations: as returned by `step`.
        infos: as returned by `step`.

    Raises:
        InvalidStepError: if a shape is wrong, an end is None or a str, or the step contradicts the autoreset mode.
    """
    for name, values in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations)):
        if np.shape(values) != before.shape:
            raise InvalidStepError(f"{name} must be an array of shape ({len(before)},), got {show(values)}")
    check_end("terminations", terminations)
    check_end("truncations", truncations)
    ends = np.asarray(terminations, bool) | np.asarray(truncations, bool)
    final = infos.get("final_obs")
    if mode == "NextStep" and (final is not None or (ends & before).any()):
        raise InvalidStepError("in the mode NextStep, the step after an end must be a reset; this is another mode")
    # Only this mode loses the last observation, because the next episode has started.
    ended_lanes = np.flatnonzero(ends).tolist() if mode == "SameStep" else []
    if any(final is None or at(final, lane) is None for lane in ended_lanes):
        raise InvalidStepError("in the mode SameStep, infos['final_obs'] must hold an episode's last observation")
    return ends
