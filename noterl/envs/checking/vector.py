"""`check` for vector environments that step their lanes together: their values, autoreset mode and repeatability."""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from noterl.envs.checking.report import Report
from noterl.envs.snapshots import equal
from noterl.envs.spaces import show

MODES = ("NextStep", "SameStep", "Disabled")
_REPEATED_STEPS = 200


def autoreset_mode(vector: VectorEnv[Any, Any, Any]) -> str:
    """Return how a vector environment starts a lane's next episode: "NextStep", "SameStep" or "Disabled".

    Raises:
        ValueError: if its metadata do not name a mode, without which transitions and resets look alike.
    """
    mode = (vector.metadata or {}).get("autoreset_mode")
    name = getattr(mode, "value", mode)
    if name not in MODES:
        raise ValueError(f"env: metadata['autoreset_mode'] must be one of {MODES}, got {mode!r}")
    return str(name)


def check_vector(vector: VectorEnv[Any, Any, Any], report: Report, steps: int, seed: int) -> None:
    """Step a vector environment at random and report what is wrong with it."""
    try:
        report.autoreset_mode = autoreset_mode(vector)
    except ValueError as error:
        return report.error(str(error).removeprefix("env: "))
    # A copy: sampling from the environment's own space would advance its generator.
    space = copy.deepcopy(vector.action_space)
    space.seed(seed)
    actions = [space.sample() for _ in range(max(1, steps // vector.num_envs))]
    try:
        _examine(vector, report, actions, seed)
        first, again = (_observations(vector, actions[:_REPEATED_STEPS], seed) for _ in range(2))
    except Exception as error:
        return report.error(f"step or reset raised {type(error).__name__}: {error}")
    step = next((step for step, pair in enumerate(zip(first, again, strict=True)) if not equal(*pair)), None)
    if step is None:
        report.resumable = "replay"
        return None
    return report.warn(f"two runs with the same seed and actions differ from step {step} on")


def _examine(vector: VectorEnv[Any, Any, Any], report: Report, actions: list[Any], seed: int) -> None:
    observations, _ = vector.reset(seed=seed)
    _check_observations(vector, report, observations, "reset")
    ended, times = np.zeros(vector.num_envs, bool), []
    for step, action in enumerate(actions, 1):
        start = time.perf_counter()
        observations, rewards, terminations, truncations, infos = vector.step(action)
        times.append(time.perf_counter() - start)
        _check_observations(vector, report, observations, f"step {step}")
        if not _check_signals(vector, report, rewards, terminations, truncations, f"step {step}"):
            break
        _check_mode(report, ended, rewards, terminations | truncations, infos, f"step {step}")
        ended = terminations | truncations
        report.steps += vector.num_envs
        report.episodes += int(ended.sum())
        observations = _reset_ended(vector, ended)
        if observations is not None:
            _check_observations(vector, report, observations, f"the reset after step {step}")
    report.step_microseconds = statistics.median(times) * 1e6


def _observations(vector: VectorEnv[Any, Any, Any], actions: list[Any], seed: int) -> list[Any]:
    """Return all observations of a run."""
    found = [copy.deepcopy(vector.reset(seed=seed)[0])]
    for action in actions:
        observations, _, terminations, truncations, _ = vector.step(action)
        found.append(copy.deepcopy(observations))
        _reset_ended(vector, terminations | truncations)
    return found


def _reset_ended(vector: VectorEnv[Any, Any, Any], ended: np.ndarray) -> Any:
    """Reset the lanes that ended if the mode leaves that to the caller; return the observations."""
    if autoreset_mode(vector) != "Disabled" or not ended.any():
        return None
    return vector.reset(options={"reset_mask": ended.copy()})[0]


def _check_observations(vector: VectorEnv[Any, Any, Any], report: Report, observations: Any, place: str) -> None:
    if observations not in vector.observation_space:
        space = show(vector.observation_space)
        report.error("the observations are not in observation_space", f"{place}: {show(observations)}, not in {space}")


def _check_signals(
    vector: VectorEnv[Any, Any, Any], report: Report, rewards: Any, terminations: Any, truncations: Any, place: str
) -> bool:
    """Return whether rewards and flags are arrays of the right kind."""
    shape = (vector.num_envs,)
    named = {"rewards": (rewards, "biuf"), "terminations": (terminations, "b"), "truncations": (truncations, "b")}
    valid = True
    for name, (values, kinds) in named.items():
        array = np.asarray(values)
        if array.shape != shape or array.dtype.kind not in kinds:
            what = "numbers" if name == "rewards" else "booleans"
            report.error(f"{name} must be an array of {what} of shape {shape}, got {array.dtype} {array.shape}", place)
            valid = False
    if valid and not np.isfinite(rewards).all():
        report.error("rewards must be finite", f"{place}: {rewards}")
    return valid


def _check_mode(report: Report, before: np.ndarray, rewards: Any, ends: np.ndarray, infos: Any, place: str) -> None:
    """Compare one step with the autoreset mode; `before` are the lanes that ended in the previous step."""
    mode = report.autoreset_mode
    if mode == "NextStep" and (ends[before].any() or np.asarray(rewards)[before].any()):
        report.error("in the mode NextStep, the step after an end must be a reset without reward", place)
    if mode == "SameStep" and ends.any():
        final = infos.get("final_obs")
        if final is None or any(final[lane] is None for lane in np.flatnonzero(ends)):
            report.error("in the mode SameStep, infos['final_obs'] must hold the last observation of an episode", place)
