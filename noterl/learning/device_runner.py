"""The choice between training on the device and stepping a vector environment, for both kinds of memory."""

from __future__ import annotations

from typing import Any

from noterl.acting.actor import Actor
from noterl.envs import EnvSource
from noterl.hyperparameters import discount_factor
from noterl.learning.device import DeviceRunner, RolloutRunner, rollouts_run_on_device
from noterl.learning.device_replay import ReplayRunner, replay_runs_on_device
from noterl.learning.learner import Learner
from noterl.learning.rollout_learner import RolloutLearner


def runs_on_device(learner: Learner, actor: Actor, source: EnvSource) -> bool:
    """Return whether an agent collects and learns in one compiled call.

    See `rollouts_run_on_device` and `replay_runs_on_device`.
    """
    # A memory on the device has no sequences.
    return rollouts_run_on_device(learner, actor, source) or (
        not actor.start and replay_runs_on_device(learner, actor, source)
    )


def find_runner(learner: Any, actor: Actor, source: EnvSource, num_envs: int) -> DeviceRunner:
    """Return the runner of a learner for a number of lanes; the same sizes and constants give the same runner."""
    algorithm = learner.algorithm
    schedule = learner.schedule
    # A plain number `self.gamma` is a constant of the program.
    gamma = None if "gamma" in algorithm.hyperparameters else discount_factor(algorithm)
    learner.updater.check_constants()
    key: tuple[Any, ...] = source.functions, num_envs, learner.batch_size, gamma, algorithm._reads.check()
    normalizers = algorithm.spaces.normalizers
    key += (normalizers is not None and normalizers.is_fixed,)  # a constant of the program, too
    if isinstance(learner, RolloutLearner):
        key += (algorithm.epochs,)
    else:
        key += schedule.update_every, schedule.updates, schedule.hard_copy_updates
    if learner.device_runner is None or learner.device_runner_key != key:
        if learner.device_runner is not None:
            # The memory on the host receives the transitions before the new runner copies the memory.
            learner.device_runner.release()
        is_rollout = isinstance(learner, RolloutLearner)
        runner = RolloutRunner(learner, actor, source) if is_rollout else ReplayRunner(learner, actor, source, num_envs)
        learner.device_runner = runner
        learner.device_runner_key = key
    return learner.device_runner
