"""`check` for vector environments: what they return, and whether they reset their lanes as they say.

Owns: what the three autoreset modes of gymnasium look like from outside.
"""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from noterl.envs.checking.membership import faults
from noterl.envs.checking.report import Notes, Report

MODES = ("NextStep", "SameStep", "Disabled")


def autoreset_mode(vector: VectorEnv[Any, Any, Any]) -> str:
    """Return how a vector environment starts the next episode of a lane: "NextStep", "SameStep" or "Disabled".

    Raises:
        ValueError: if it does not say; without it, transitions cannot be told from resets.
    """
    mode = (vector.metadata or {}).get("autoreset_mode")
    name = getattr(mode, "value", mode)
    if name not in MODES:
        raise ValueError(f"env: metadata['autoreset_mode'] must say one of {MODES}, got {mode!r}")
    return str(name)


def stepped_here(vector: VectorEnv[Any, Any, Any]) -> SyncVectorEnv | None:
    """Return what steps the environments, where they can be brought back one by one; else None.

    They cannot where they are out of reach, nor where a wrapper around all of them, or a class derived from
    gymnasium's, may hold what nobody can ask for.
    """
    return vector if type(vector) is SyncVectorEnv else None


def check_vector(vector: VectorEnv[Any, Any, Any], report: Report, steps: int, seed: int) -> Report:
    """Step a vector environment at random and write what is wrong with it into `report`."""
    notes = Notes(report)
    try:
        report.autoreset_mode = autoreset_mode(vector)
    except ValueError as error:
        notes.add("error", "mode", str(error).removeprefix("env: "))
        return report
    try:
        _VectorExaminer(vector, report, notes).run(steps, seed)
    except Exception as error:
        notes.add("error", "raises", f"step or reset raised {type(error).__name__}: {error}")
    return report


class _VectorExaminer:
    def __init__(self, vector: VectorEnv[Any, Any, Any], report: Report, notes: Notes) -> None:
        self.vector, self.report, self.notes = vector, report, notes

    def run(self, steps: int, seed: int) -> None:
        count = self.vector.num_envs
        # A copy: drawing from the environment's own space would move its generator.
        action_space = copy.deepcopy(self.vector.action_space)
        action_space.seed(seed)
        observations, _ = self.vector.reset(seed=seed)
        self._examine(observations, "reset")
        ended, times = np.zeros(count, bool), []
        for step in range(1, max(1, steps // count) + 1):
            actions = action_space.sample()
            start = time.perf_counter()
            observations, rewards, terminations, truncations, infos = self.vector.step(actions)
            times.append(time.perf_counter() - start)
            self._examine(observations, f"step {step}")
            if not self._examine_signals(rewards, terminations, truncations, f"step {step}"):
                break
            self._examine_mode(ended, rewards, terminations | truncations, infos, f"step {step}")
            ended = terminations | truncations
            self.report.steps += count
            self.report.episodes += int(ended.sum())
            if self.report.autoreset_mode == "Disabled" and ended.any():
                observations, _ = self.vector.reset(options={"reset_mask": ended.copy()})
                self._examine(observations, f"the reset after step {step}")
        self.report.step_microseconds = statistics.median(times) * 1e6

    def _examine(self, observations: Any, place: str) -> None:
        for fault in faults(self.vector.observation_space, observations, "observation"):
            self.notes.add(fault.severity, fault.key, f"{fault.text} ({place})")

    def _examine_signals(self, rewards: Any, terminations: Any, truncations: Any, place: str) -> bool:
        """Return whether rewards and flags can be worked with."""
        shape = (self.vector.num_envs,)
        named = {"rewards": (rewards, "biuf"), "terminations": (terminations, "b"), "truncations": (truncations, "b")}
        usable = True
        for name, (values, kinds) in named.items():
            array = np.asarray(values)
            if array.shape != shape or array.dtype.kind not in kinds:
                what = "numbers" if name == "rewards" else "booleans"
                text = f"{name} must be an array of {what} of shape {shape}, got {array.dtype} {array.shape} ({place})"
                self.notes.add("error", name, text)
                usable = False
        if usable and not np.isfinite(rewards).all():
            self.notes.add("error", "finite", f"rewards must be finite, got {rewards} ({place})")
        return usable

    def _examine_mode(self, before: np.ndarray, rewards: Any, ends: np.ndarray, infos: Any, place: str) -> None:
        """Compare one step with what the mode promises; `before` are the lanes that ended in the step before it."""
        mode = self.report.autoreset_mode
        if mode == "NextStep" and (ends[before].any() or np.asarray(rewards)[before].any()):
            text = f"NextStep promises a reset without reward in the step after an end; {place} looks like a real step"
            self.notes.add("error", "next step", text)
        if mode == "SameStep" and ends.any():
            final = infos.get("final_obs")
            missing = final is None or any(final[lane] is None for lane in np.flatnonzero(ends))
            if missing:
                text = f"SameStep promises the last observation in infos['final_obs'], which lacks it ({place})"
                self.notes.add("error", "same step", text)
