"""What a user writes: type checkers find nothing wrong in it. Only the checkers read it; it is not run."""

from __future__ import annotations

from typing import Any, assert_type

import gymnasium
import numpy as np

import noterl
from noterl import DQN, PPO, SAC, Agent, Batch, History, Replay, heads, load, losses, networks, noise, policies
from noterl import schedules as rules
from noterl.callbacks import (
    Adapt,
    BackupAndRestore,
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    Evaluate,
    LambdaCallback,
    Rate,
    ReduceLROnPlateau,
    TensorBoard,
)
from noterl.heads import Q
from noterl.networks import mlp
from noterl.replay import Prioritized


class Shout(Callback):
    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        print(episode, logs["reward"], self.agent.steps)
        if logs["reward"] > 400:
            self.agent.stop("good enough")


@noterl.register
class MyDQN(Agent):
    head = Q()

    def __init__(self, env: Any, *, width: int = 64, gamma: float = 0.99, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.width = width
        self.q = mlp(self.observation_size, [width, width], self.action_size)
        self.target_q = networks.clone(self.q)
        self.gamma = self.hyperparameter("gamma", gamma)

    def forward(self, observation: Any) -> Any:
        return self.q(observation)

    def loss(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        q = losses.take(self.q(batch.observation), batch.action)
        target = losses.td_target(batch.reward, batch.discount, self.target_q(batch.next_observation).max())
        return losses.weighted_mean(losses.huber(q - target), batch.weight), {"td_error": q - target}

    def update_target(self) -> None:
        networks.copy(self.q, self.target_q, self.tau)


class Wide(PPO):
    def __init__(self, env: Any, *, width: int = 8, **options: Any) -> None:
        super().__init__(env, hidden=(width, width), **options)
        self.width = width


def make() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def use_agents() -> None:
    agent = noterl.PPO("CartPole-v1", gamma=0.98, hidden=(64, 64), seed=7, activation="relu", normalize_reward=True)
    assert_type(agent, PPO)
    agent.compile(3e-4, batch_size=64)
    agent.compile(optimizer=rules.Linear(1e-3, 0.0, 10_000))
    history = agent.fit(
        steps=20_000,
        num_envs=4,
        callbacks=[EarlyStopping(trial_count=5, criterion=475), Shout(), CSVLogger("log.csv"), LambdaCallback()],
    )
    assert_type(history, History)
    history.plot()
    agent.gamma = 0.9
    agent.gamma.assign(0.8)
    agent.clip = 0.1
    agent.value_clip = 0.2
    print(float(agent.gamma), agent.hyperparameters["gamma"].schedule)
    agent.save("agent.noterl")
    loaded = load("agent.noterl", custom_objects={"MyDQN": MyDQN})
    assert_type(loaded, Agent)
    print(loaded.evaluate(episodes=3)["reward_mean"], agent.act(np.zeros(4, np.float32)))


def use_others() -> None:
    mine = MyDQN(make, width=32, seed=3)
    mine.gamma = 0.9
    mine.compile(optimizer="adam", policy=policies.EpsGreedyQPolicy(0.1), replay=Replay(1000), target_update=0.01)
    callbacks = [
        Checkpoint("checkpoints"),
        BackupAndRestore("backup.noterl"),
        Evaluate(every=100),
        TensorBoard("logs"),
        ReduceLROnPlateau(),
        Adapt(lr=Rate(1e-4, 1e-4, 1e-2)),
    ]
    mine.fit(steps=100, callbacks=callbacks)
    wide = Wide("CartPole-v1", width=3, gamma=0.9, seed=1)
    assert_type(wide.width, int)
    sac = SAC("Pendulum-v1", seed=7, gamma=rules.Linear(0.9, 0.99, 1000))
    sac.compile(noise=noise.GaussianWhiteNoiseProcess(sigma=0.1, size=1), replay=Replay(1000, sampler=Prioritized()))
    sac.animate("sac.gif")
    dqn = DQN("CartPole-v1", dueling=True)
    print(dqn.replay, noterl.__version__, noterl.tune.tune, noterl.Population, noterl.callbacks.Arena)
    head: heads.Head = heads.Categorical()
    print(head, noterl.finders.LRFinder(dqn).find(episodes=20, num_envs=2))
    for kind in (noterl.A2C, noterl.DDPG, noterl.TD3, noterl.TRPO):
        kind("Pendulum-v1", gamma=0.9, seed=1, normalize_observation=True)
    noterl.ACER("CartPole-v1", gamma=0.9, seed=1, normalize_observation=True)
    noterl.AlphaZero("tic_tac_toe", simulations=8, seed=1)
    noterl.MADDPG(make, independent=True, seed=1)


class Curriculum(Callback):
    def on_episode_end(self, episode: int, logs: dict[str, Any]) -> None:
        self.agent.gamma = 0.9
        self.agent.env_call("set_length", 3)
        print(self.agent.evaluate(episodes=2)["reward_mean"], self.agent.env_get("length"))


def use_schedules() -> None:
    sigma = rules.Linear(0.5, 0.1, 1000)
    noise.GaussianWhiteNoiseProcess(sigma=sigma, size=1)
    noise.OrnsteinUhlenbeckProcess(theta=0.15, sigma=sigma, size=1)
    policies.EpsGreedyQPolicy(sigma)
    policies.BoltzmannQPolicy(tau=sigma)


class Smoothed(Agent):
    head = Q()
    state_spec = {"mean": (4,)}  # noqa: RUF012

    def forward(self, observation: Any, state: Any) -> Any:
        mean = 0.9 * state["mean"] + 0.1 * observation
        return mean, {"mean": mean}
