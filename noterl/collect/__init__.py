"""Lanes, which step the environments of a training in this process, in worker processes or as a vector environment."""

from __future__ import annotations

from noterl.collect.base import Lanes as Lanes
from noterl.collect.device import DeviceLanes as DeviceLanes
from noterl.collect.fields import check_info_spec
from noterl.collect.lanes import ScalarLanes as ScalarLanes
from noterl.collect.ray.settings import RayWorkers as RayWorkers
from noterl.collect.team import TeamLanes as TeamLanes
from noterl.collect.vector import VectorLanes as VectorLanes
from noterl.collect.workers.lanes import PoolLanes as PoolLanes
from noterl.collect.workers.settings import WorkerError as WorkerError
from noterl.collect.workers.settings import Workers as Workers
from noterl.collect.workers.settings import WorkerSettings as WorkerSettings
from noterl.envs import EnvSource
from noterl.envs.multi_agent.parallel import TeamReward
from noterl.random import Generators
from noterl.types import InfoSpec


def open_lanes(
    source: EnvSource,
    num_envs: int,
    generators: Generators,
    team_reward: TeamReward | None = None,
    info_spec: InfoSpec | None = None,
    on_device: bool = False,
    workers: WorkerSettings | None = None,
) -> Lanes:
    """Return lanes of the kind that the source's environments need.

    Args:
        source: makes the environments.
        num_envs: the number of lanes; ignored for a vector environment of the user, which determines the number.
        generators: the seeds of resets come from those named "environment/...".
        team_reward: for environments with several agents; see `noterl.envs.multi_agent.parallel.TeamEnv`.
        info_spec: fields of `info` that the transitions hold; see `Algorithm.info_spec`.
        on_device: whether pure functions run on the device; otherwise they are stepped as a vector environment.
        workers: the worker processes that step the environments; None for none.

    Raises:
        ValueError: if there is an `info_spec`, and the environment has several agents; if there are fewer lanes than
            workers, or workers cannot make the environments.
    """
    check_info_spec(source, info_spec)
    if workers is not None:
        return PoolLanes(source, num_envs, generators, workers, team_reward, info_spec)
    if on_device:
        return DeviceLanes(source, num_envs, generators)
    if source.steps_together:
        return VectorLanes(source, generators, info_spec, num_envs)
    if source.team is None:
        return ScalarLanes(source, num_envs, generators, info_spec=info_spec)
    return TeamLanes(source, num_envs, generators, team_reward)
