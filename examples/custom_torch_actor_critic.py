"""A custom actor-critic in plain PyTorch: the clipped surrogate of PPO on rollouts (Schulman et al., 2017)."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import noterl

import torch
from torch import nn

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


@noterl.register
class TorchPPO(noterl.Agent):
    memory, head = "rollout", noterl.heads.Categorical()
    rollout_steps, epochs = 32, 10

    def __init__(self, env, *, gamma=0.98, decay=0.9, clip=0.2, seed=None):
        super().__init__(env, seed=seed)
        self.actor, self.critic = network(self.observation_size, self.action_size), network(self.observation_size, 1)
        self.gamma, self.decay, self.clip = self.hyperparameter("gamma", gamma), decay, clip

    def forward(self, observation):
        return self.actor(observation)

    def log_prob(self, observation, action):
        return self.actor(observation).log_softmax(-1).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def prepare(self, rollout):  # fields are [T, N, ...]; the results are in batch.extra
        value, following = (self.critic(part).squeeze(-1) for part in (rollout.observation, rollout.next_observation))
        delta = rollout.reward + rollout.discount * following - value
        decay, advantages, running = rollout.discount * rollout.extra["continues"] * self.decay, [], torch.zeros(())
        for t in reversed(range(len(delta))):
            running = delta[t] + decay[t] * running
            advantages.insert(0, running)
        advantage, log_prob = torch.stack(advantages), self.log_prob(rollout.observation, rollout.action)
        return {"advantage": advantage, "target": advantage + value, "log_prob": log_prob}

    def loss(self, batch):
        advantage = batch.extra["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (self.log_prob(batch.observation, batch.action) - batch.extra["log_prob"]).exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value = self.critic(batch.observation).squeeze(-1)
        return policy_loss + 0.5 * nn.functional.mse_loss(value, batch.extra["target"])


agent = TorchPPO("CartPole-v1", seed=1)
agent.compile(lambda parameters: torch.optim.Adam(parameters, 1e-3, fused=True), batch_size=128)
history = agent.fit(episodes=EPISODES, steps=60_000, num_envs=8, log_every=100)
history.plot(path="runs/custom_torch/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/custom_torch/cartpole.gif", max_steps=200)
