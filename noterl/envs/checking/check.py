"""`check`: what is wrong with an environment, said to the one who wrote it.

Owns: what counts as an error (training on it goes wrong) and what as a warning (it is likely a mistake, or costs
exactness or speed).
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from noterl.envs.checking.membership import faults, flag_fault, reward_fault
from noterl.envs.checking.report import Notes, Report
from noterl.envs.checking.vector import check_vector, stepped_here
from noterl.envs.making import name_of, open_env, vector_builder
from noterl.envs.snapshots import equal, get_state, has_state_methods, set_state
from noterl.envs.source import EnvSource, source_of
from noterl.envs.spaces import convert, show

# A step above this bounds the run below 200 steps/s in each lane, whatever the learner does.
_SLOW_MICROSECONDS = 5_000.0
# Episodes shorter than this often have one length by chance or by design.
_SUSPICIOUS_LENGTH = 50
_REPLAYED_STEPS = 200


def check(env: Any, *, episodes: int = 3, steps: int = 1000, seed: int = 0) -> Report:
    """Play some episodes with random actions and say what is wrong with an environment.

    Args:
        env: whatever `resolve` takes, but a pair of spaces. An environment object is used itself, and left somewhere
            in an episode.
        episodes: how many to play.
        steps: the most steps of one episode.
        seed: the first seed; actions are drawn from it too.

    Returns:
        A report to print; `report.ok` is False if there are errors.

    Raises:
        ValueError: if `env` is no environment, or a number is not positive. What the environment itself raises is
            reported instead.

    Example:
    >>> report = check("CartPole-v1")
    >>> report.ok, report.warnings, report.resumable
    (True, [], 'replay')
    """
    for name, value, least in (("episodes", episodes, 1), ("steps", steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
    if isinstance(env, EnvSource):
        raise ValueError("env: check an environment, not what resolve made of it")
    opened, build, owned = open_env(env)
    if isinstance(opened, VectorEnv):
        report = check_vector(opened, Report(name_of(opened)), steps, seed)
        _check_parts(opened, report, steps, seed)
    else:
        examiner = Examiner(opened, build, owned)
        examiner.run(episodes, steps, seed)
        report = examiner.report
    if owned:
        opened.close()
    return report


def _check_parts(vector: VectorEnv[Any, Any, Any], report: Report, steps: int, seed: int) -> None:
    """Find out on another of its environments whether episodes of a vector environment are restored exactly."""
    if stepped_here(vector) is None:
        report.warnings.append(
            "nothing says where its episodes are, so a restored run starts them afresh; those of a SyncVectorEnv "
            "without wrappers around it, and of num_envs= scalar environments, may go on exactly"
        )
        return
    try:
        build = vector_builder(vector)
        examiner = Examiner(build(None), build, True)
    except Exception as error:
        report.warnings.append(f"no environment like those in it can be made, to see if it can be restored: {error}")
        return
    examiner.run(0, steps, seed)
    examiner.env.close()
    report.resumable = examiner.report.resumable
    for texts, found in ((report.errors, examiner.report.errors), (report.warnings, examiner.report.warnings)):
        texts.extend(f"in one of its environments: {text}" for text in found)


class Stop(Exception):
    """The environment did something after which there is no going on; it has been reported."""


@dataclass
class Moment:
    """One observed instant of an episode, copied."""

    observation: Any
    reward: Any = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        """Tell whether the episode ended here."""
        return bool(self.terminated) or bool(self.truncated)


class Examiner:
    """Checks one scalar environment, and writes `report`."""

    def __init__(self, env: gymnasium.Env[Any, Any], build: Any, owned: bool) -> None:
        """Take an environment as `open_env` returned it."""
        self.env, self._build, self._owned = env, build, owned
        self.report = Report(name_of(env))
        self._notes = Notes(self.report)
        self._place = "before the first reset"
        self._times: list[float] = []

    def run(self, episodes: int, steps: int, seed: int) -> None:
        """Play, if any episodes, then reset with the same seed, then resume; stop where there is no way on."""
        twin = None
        try:
            self._check_spaces(seed)
            if episodes:
                self._play(episodes, steps, seed)
            twin = self._make_twin()
            self._check_exactness(twin, min(steps, _REPLAYED_STEPS), seed)
        except Stop:
            pass
        finally:
            if twin is not None:
                twin.close()
        if self._times:
            self.report.step_microseconds = statistics.median(self._times) * 1e6
        if self.report.step_microseconds > _SLOW_MICROSECONDS:
            milliseconds = self.report.step_microseconds / 1e3
            self._notes.add(
                "warning",
                "slow",
                f"one step takes {milliseconds:.1f} ms, so a lane makes at most {1e3 / milliseconds:.0f} steps/s; step "
                "several environments in processes of their own",
            )

    def _check_spaces(self, seed: int) -> None:
        for name in ("observation_space", "action_space"):
            try:
                convert(getattr(self.env, name), name)
            except (ValueError, AttributeError) as error:
                self._notes.add("error", name, str(error).removeprefix("env: "))
        if self.report.errors:
            raise Stop
        self._observation_space = self.env.observation_space
        # A copy: drawing from the environment's own space would move its generator.
        self._action_space = copy.deepcopy(self.env.action_space)
        self._action_space.seed(seed)
        if isinstance(self._action_space, gymnasium.spaces.Box) and not self._action_space.is_bounded():
            text = f"action_space {show(self._action_space)} has infinite bounds: no policy can be scaled to it"
            self._notes.add("warning", "unbounded", text)

    def _reset(self, env: gymnasium.Env[Any, Any], seed: int) -> Any:
        try:
            result = env.reset(seed=seed)
        except Exception as error:
            self._notes.add("error", "reset raises", f"reset(seed={seed}) raised {type(error).__name__}: {error}")
            raise Stop from error
        if not isinstance(result, tuple) or len(result) != 2:
            text = f"reset must return (observation, info), got {_shape_of(result)}"
            self._notes.add("error", "reset returns", text)
            raise Stop
        if not isinstance(result[1], dict):
            self._notes.add("error", "reset info", f"the info of reset must be a dict, got {type(result[1]).__name__}")
        return result[0]

    def _step(self, env: gymnasium.Env[Any, Any], action: Any) -> tuple[Any, Any, Any, Any]:
        before = copy.deepcopy(action)
        start = time.perf_counter()
        try:
            result = env.step(action)
        except Exception as error:
            text = f"step({show(before)}) raised {type(error).__name__}: {error} ({self._place})"
            self._notes.add("error", "step raises", text)
            raise Stop from error
        self._times.append(time.perf_counter() - start)
        if not isinstance(result, tuple) or len(result) != 5:
            text = f"step must return (observation, reward, terminated, truncated, info), got {_shape_of(result)}"
            self._notes.add("error", "step returns", text)
            raise Stop
        if not isinstance(result[4], dict):
            self._notes.add("error", "step info", f"the info of step must be a dict, got {type(result[4]).__name__}")
        if not equal(before, action):
            text = "step changes the action it is given in place, so a wrong one would be remembered; copy it first"
            self._notes.add("warning", "action changed", text)
        return result[0], result[1], result[2], result[3]

    def _examine(self, observation: Any) -> None:
        for fault in faults(self._observation_space, observation, "observation"):
            self._notes.add(fault.severity, fault.key, f"{fault.text} ({self._place})")

    def _play(self, episodes: int, steps: int, seed: int) -> None:
        endings: list[tuple[int, bool]] = []
        for episode in range(episodes):
            length, terminated, ended = self._play_episode(episode, steps, seed + episode)
            self.report.steps += length
            if ended:
                self.report.episodes += 1
                endings.append((length, terminated))
        if not endings:
            text = (
                f"no episode ended within {steps} steps; if none ever does, set a limit (gymnasium.wrappers.TimeLimit)"
            )
            self._notes.add("warning", "endless", text)
        lengths = {length for length, _ in endings}
        always = len(endings) >= 3 and len(lengths) == 1 and all(terminated for _, terminated in endings)
        if always and min(lengths) >= _SUSPICIOUS_LENGTH:
            text = (
                f"every episode terminated after exactly {min(lengths)} steps; if that is a time limit, it must be "
                "said as truncated, or values are learned as if nothing came after it"
            )
            self._notes.add("warning", "limit", text)

    def _play_episode(self, episode: int, steps: int, seed: int) -> tuple[int, bool, bool]:
        """Return the length, whether it terminated, and whether it ended."""
        self._place = f"episode {episode}, reset"
        previous = self._reset(self.env, seed)
        self._examine(previous)
        kept = copy.deepcopy(previous)
        for step in range(1, steps + 1):
            self._place = f"episode {episode}, step {step}"
            observation, reward, terminated, truncated = self._step(self.env, self._action_space.sample())
            self._examine(observation)
            self._examine_signals(reward, terminated, truncated)
            if not equal(previous, kept):
                text = (
                    "step writes into the observation it returned before, so what was remembered changes; return a "
                    f"copy (first seen in {self._place})"
                )
                self._notes.add("warning", "aliasing", text)
            if terminated or truncated:
                return step, bool(terminated), True
            previous, kept = observation, copy.deepcopy(observation)
        return steps, False, False

    def _examine_signals(self, reward: Any, terminated: Any, truncated: Any) -> None:
        found = [reward_fault(reward), flag_fault("terminated", terminated), flag_fault("truncated", truncated)]
        for fault in found:
            if fault is not None:
                self._notes.add(fault.severity, fault.key, f"{fault.text} ({self._place})")
        if np.ndim(terminated) or np.ndim(truncated):
            raise Stop

    def _make_twin(self) -> gymnasium.Env[Any, Any] | None:
        """Return another instance, which knows nothing of the episodes played so far; None if none can be made."""
        try:
            return source_of(self.env, build=self._build, owned=self._owned).make_evaluation()
        except Exception as error:
            if self._build is not None:
                self._notes.add("error", "twin raises", str(error).removeprefix("env: "))
            return None

    def _check_exactness(self, twin: gymnasium.Env[Any, Any] | None, steps: int, seed: int) -> None:
        actions = [self._action_space.sample() for _ in range(steps)]
        first = self._trajectory(self.env, seed, actions)
        # Cut short, so that the next reset comes in the middle of an episode.
        self._trajectory(self.env, seed, actions[: max(1, len(first) // 2)])
        again = self._trajectory(self.env, seed, actions)
        if not equal(first[0].observation, again[0].observation):
            text = f"reset(seed={seed}) twice gives different observations: the seed is ignored, no run can be repeated"
            self._notes.add("warning", "seed", text)
        elif (step := _difference(first, again)) is not None:
            text = f"the same seed and actions differ from step {step} on: something random does not come from the seed"
            self._notes.add("warning", "random", text)
        elif twin is not None and (step := _difference(first, self._trajectory(twin, seed, actions))) is not None:
            text = (
                f"a second instance differs from step {step} on under the same seed and actions: something outlives "
                "reset, or is drawn when the environment is made"
            )
            self._notes.add("warning", "twin", text)
        else:
            self.report.resumable = "replay"
        if has_state_methods(self.env):
            self._check_state(self.env if twin is None else twin, actions[: len(first) - 1], seed)

    def _trajectory(self, env: gymnasium.Env[Any, Any], seed: int, actions: list[Any]) -> list[Moment]:
        """Return the moments from the reset on: one more than the actions that were taken."""
        self._place = f"reset(seed={seed}) once more"
        moments = [Moment(copy.deepcopy(self._reset(env, seed)))]
        for step, action in enumerate(actions, 1):
            self._place = f"step {step} after reset(seed={seed}) once more"
            moments.append(Moment(*copy.deepcopy(self._step(env, copy.deepcopy(action)))))
            if moments[-1].ended:
                break
        return moments

    def _check_state(self, other: gymnasium.Env[Any, Any], actions: list[Any], seed: int) -> None:
        """Say the state in the middle of an episode, put another instance into it, and go on with both."""
        self.report.resumable = None
        half = len(actions) // 2
        self._trajectory(self.env, seed, actions[:half])
        try:
            state = get_state(self.env)
            if state is None:
                self._notes.add(
                    "warning",
                    "state form",
                    "what get_state returns, or what a wrapper around it holds, is more than numbers, text, arrays, "
                    "generators, lists and dicts of them: it cannot be saved, so episodes are not restored exactly",
                )
                return
            expected = [Moment(*copy.deepcopy(self._step(self.env, action))) for action in actions[half:]]
            set_state(other, state)
        except Stop:
            raise
        except Exception as error:
            text = f"get_state or set_state raised {type(error).__name__}: {error}"
            self._notes.add("error", "state raises", text)
            return
        found = [Moment(*copy.deepcopy(self._step(other, action))) for action in actions[half:]]
        step = _difference(expected, found)
        if step is None:
            self.report.resumable = "state"
        else:
            text = f"set_state does not restore what get_state said: step {step + 1} after it differs"
            self._notes.add("error", "state", text)


def _difference(first: list[Moment], second: list[Moment]) -> int | None:
    """Return the first index at which two lists of moments differ, or None."""
    for index, (ours, theirs) in enumerate(zip(first, second, strict=False)):
        if not equal(vars(ours), vars(theirs)):
            return index
    return None if len(first) == len(second) else min(len(first), len(second))


def _shape_of(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple | list) else type(result).__name__
