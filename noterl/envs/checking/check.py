"""`check`: find what is wrong with an environment.

gymnasium's passive checker judges what `reset` and `step` return. The rest is what noterl needs beyond that: seeded
runs that repeat, episodes that can be restored, and autoreset modes that are what they claim to be.
"""

from __future__ import annotations

import copy
import functools
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker
from gymnasium.vector import SyncVectorEnv, VectorEnv

from noterl.envs.checking.report import Report
from noterl.envs.checking.vector import check_vector
from noterl.envs.making import Builder, name_of, open_env, vector_builder
from noterl.envs.snapshots import equal, get_state, has_state_methods, set_state
from noterl.envs.source import EnvSource, source_of
from noterl.envs.spaces import convert, show
from noterl.utils.checks import check_int

# A slower step bounds a lane below 200 steps/s, whatever the learner does.
_SLOW_MICROSECONDS = 5_000.0
# Shorter episodes often have one length by chance or by design.
_SUSPICIOUS_LENGTH = 50
_REPEATED_STEPS = 200

# The findings of gymnasium's checker about values that only have to be converted.
_MINOR = re.compile("should be|was expecting|requires that|Casting input")
# Colours, and the name of the method: a fault of reset and step is reported once.
_DROPPED = re.compile(r"\x1b\[[0-9;]*m| returned by the `(reset|step)\(\)` method")

# What a reset or step returned: observation, reward, terminated, truncated
_Moment = tuple[Any, Any, Any, Any]


def check(env: Any, *, episodes: int = 3, steps: int = 1000, seed: int = 0) -> Report:
    """Play some episodes with random actions and report what is wrong with an environment.

    Args:
        env: whatever `resolve` accepts, except a pair of spaces. An environment object is used itself, and left in the
            middle of an episode. Of a `SyncVectorEnv` the first environment is checked, as it runs as lanes.
        episodes: the number of episodes.
        steps: the largest number of steps of one episode.
        seed: the first seed; actions are sampled with it, too.

    Returns:
        A report to print; `report.ok` is False if there are errors.

    Raises:
        ValueError: if `env` is not an environment, or a number is not positive. Errors of the environment itself are
            reported instead.

    Example:
    >>> report = check("CartPole-v1")
    >>> report.ok, report.warnings, report.resumable
    (True, [], 'replay')
    """
    for name, value, least in (("episodes", episodes, 1), ("steps", steps, 1), ("seed", seed, 0)):
        check_int(name, value, least=least)
    if isinstance(env, EnvSource):
        raise ValueError("env must be an environment, got an EnvSource")
    opened, build, owned = open_env(env)
    report = Report(name_of(opened))
    if type(opened) is SyncVectorEnv:
        _Examiner(opened.envs[0], vector_builder(opened), report).run(episodes, steps, seed)
    elif isinstance(opened, VectorEnv):
        check_vector(opened, report, steps, seed)
    else:
        _Examiner(opened, build, report, owned=owned).run(episodes, steps, seed)
    if owned:
        opened.close()
    return report


class _Stop(Exception):
    """Raised if the check cannot continue; the report contains the reason."""


class _Examiner:
    """Checks one scalar environment.

    Args:
        env: the environment.
        build: makes another one; None if only `env.spec` may.
        report: receives the findings.
        owned: whether `env` was made here.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], build: Builder | None, report: Report, *, owned: bool = False
    ) -> None:
        self._env, self._build, self._owned = env, build, owned
        self._report, self._place = report, "before the first reset"
        self._times: list[float] = []

    def run(self, episodes: int, steps: int, seed: int) -> None:
        """Play, then repeat, then restore; stop where the environment does not allow more."""
        report, second = self._report, None
        # gymnasium's checker must warn, whatever level the user has set.
        level, gymnasium.logger.min_level = gymnasium.logger.min_level, gymnasium.logger.WARN
        try:
            self._check_spaces(seed)
            self._play(episodes, steps, seed)
            second = self._make_second()
            self._check_exactness(second, min(steps, _REPEATED_STEPS), seed)
        except _Stop:
            pass
        finally:
            gymnasium.logger.min_level = level
            if second is not None:
                second.close()
        if self._times:
            report.step_microseconds = statistics.median(self._times) * 1e6
        if report.step_microseconds > _SLOW_MICROSECONDS:
            rate = 1e6 / report.step_microseconds
            report.warn(f"a lane makes at most {rate:.0f} steps/s; step several environments in their own processes")

    def _check_spaces(self, seed: int) -> None:
        for name in ("observation_space", "action_space"):
            try:
                convert(getattr(self._env, name), name)
            except (ValueError, AttributeError) as error:
                self._report.error(str(error).removeprefix("env: "))
        if self._report.errors:
            raise _Stop
        # A copy: sampling from the environment's own space would advance its generator.
        self._action_space = copy.deepcopy(self._env.action_space)
        self._action_space.seed(seed)
        if isinstance(self._action_space, gymnasium.spaces.Box) and not self._action_space.is_bounded():
            self._report.warn(f"action_space {show(self._action_space)} has infinite bounds: no policy can scale to it")

    def _play(self, episodes: int, steps: int, seed: int) -> None:
        endings = []
        for episode in range(episodes):
            actions = (self._action_space.sample() for _ in range(steps))
            for length, moment in enumerate(self._run(self._env, seed + episode, actions, f"episode {episode}")):
                self._report.steps += length > 0
                if _ended(moment):
                    self._report.episodes += 1
                    endings.append((length, bool(np.any(moment[2]))))
        if not endings:
            self._report.warn(
                f"no episode ended within {steps} steps; if none ever does, set a limit (gymnasium.wrappers.TimeLimit)"
            )
        elif len(endings) >= 3 and set(endings) == {(endings[0][0], True)} and endings[0][0] >= _SUSPICIOUS_LENGTH:
            self._report.warn(
                f"every episode terminated after exactly {endings[0][0]} steps; if that is a time limit, return it as "
                "truncated, or values are learned as if nothing came after it"
            )

    def _run(
        self, env: gymnasium.Env[Any, Any], seed: int, actions: Iterable[Any], episode: str = ""
    ) -> Iterator[_Moment]:
        """Reset and step until the episode ends, and yield copies of all moments.

        Args:
            env: the environment, or its second instance.
            seed: of the reset.
            actions: the actions to take.
            episode: its name, to have it checked by gymnasium; steps of episodes without a name are timed instead.
        """
        reset: Callable[..., Any] = functools.partial(env_reset_passive_checker, env) if episode else env.reset
        step: Callable[..., Any] = functools.partial(env_step_passive_checker, env) if episode else env.step
        place = episode or "a repeated episode"
        self._place = f"{place}, reset"
        observation, _ = self._call(f"reset(seed={seed})", "(observation, info)", reset, seed=seed)
        moment: _Moment = (copy.deepcopy(observation), 0.0, False, False)
        yield moment
        for number, action in enumerate(actions, 1):
            kept, self._place = moment[0], f"{place}, step {number}"
            start = time.perf_counter()
            result = self._step(step, action)
            if not episode:
                self._times.append(time.perf_counter() - start)
            if not equal(observation, kept):
                self._report.warn("step changes the observation that it returned before; return a copy", self._place)
            observation, moment = result[0], copy.deepcopy(result)
            yield moment
            if _ended(moment):
                break

    def _step(self, step: Callable[..., Any], action: Any) -> _Moment:
        values = "(observation, reward, terminated, truncated, info)"
        moment: _Moment = self._call(f"step({show(action)})", values, step, copy.deepcopy(action))[:4]
        return moment

    def _call(
        self, what: str, values: str, function: Callable[..., Any], *args: Any, **keywords: Any
    ) -> tuple[Any, ...]:
        """Call a method of the environment and report the findings of gymnasium's checker, or what is raised."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = function(*args, **keywords)
            except Exception as error:
                self._report.error(f"{what} raised {type(error).__name__}: {error}", self._place)
                raise _Stop from error
        for warning in caught:
            text = _DROPPED.sub("", str(warning.message))
            if text.startswith("WARN: "):
                text = text.removeprefix("WARN: ")
                shown = f": {show(repr(result[0]))}" if "observation space" in text else ""
                (self._report.warn if _MINOR.search(text) else self._report.error)(text, f"{self._place}{shown}")
        if not isinstance(result, tuple) or len(result) != len(values.split(",")):
            self._report.error(f"{what.partition('(')[0]} must return {values}", self._place)
            raise _Stop
        return result

    def _make_second(self) -> gymnasium.Env[Any, Any] | None:
        """Return another environment; None if none can be made."""
        try:
            return source_of(self._env, build=self._build, owned=self._owned).make_evaluation()
        except Exception as error:
            if self._build is not None:
                self._report.error(str(error).removeprefix("env: "))
            return None

    def _check_exactness(self, second: gymnasium.Env[Any, Any] | None, steps: int, seed: int) -> None:
        actions = [self._action_space.sample() for _ in range(steps)]
        first = list(self._run(self._env, seed, actions))
        # Shorter, so that the next reset comes in the middle of an episode.
        list(self._run(self._env, seed, actions[: max(1, len(first) // 2)]))
        again = list(self._run(self._env, seed, actions))
        if not equal(first[0][0], again[0][0]):
            self._report.warn(f"reset(seed={seed}) twice returns different observations, so no run can be repeated")
        elif (step := _difference(first, again)) is not None:
            self._report.warn(
                f"two runs with the same seed and actions differ from step {step} on: not all randomness is seeded"
            )
        elif second is not None and (step := _difference(first, list(self._run(second, seed, actions)))) is not None:
            self._report.warn(
                f"a second instance with the same seed and actions differs from step {step} on: something outlives "
                "reset, or is random when the environment is made"
            )
        else:
            self._report.resumable = "replay"
        if has_state_methods(self._env):
            self._check_state(self._env if second is None else second, actions[: len(first) - 1], seed)

    def _check_state(self, other: gymnasium.Env[Any, Any], actions: list[Any], seed: int) -> None:
        """Save the state in the middle of an episode, restore it in another instance, and continue with both."""
        report = self._report
        report.resumable = None
        half = len(actions) // 2
        list(self._run(self._env, seed, actions[:half]))
        try:
            state = get_state(self._env)
            if state is None:
                return report.warn(
                    "the state from get_state, or of a wrapper around it, has other values than numbers, text, arrays, "
                    "generators, lists and dicts: it cannot be saved, so episodes are not restored exactly"
                )
            expected = [copy.deepcopy(self._step(self._env.step, action)) for action in actions[half:]]
            set_state(other, state)
        except _Stop:
            raise
        except Exception as error:
            return report.error(f"get_state or set_state raised {type(error).__name__}: {error}")
        found = [copy.deepcopy(self._step(other.step, action)) for action in actions[half:]]
        step = _difference(expected, found)
        if step is None:
            report.resumable = "state"
            return None
        return report.error(f"set_state does not restore the state from get_state: step {step + 1} after it differs")


def _ended(moment: _Moment) -> bool:
    return bool(np.any(moment[2]) or np.any(moment[3]))


def _difference(first: list[_Moment], second: list[_Moment]) -> int | None:
    """Return the first index at which two lists of moments differ, or None."""
    for index, (ours, theirs) in enumerate(zip(first, second, strict=False)):
        if not equal(ours, theirs):
            return index
    return None if len(first) == len(second) else min(len(first), len(second))
