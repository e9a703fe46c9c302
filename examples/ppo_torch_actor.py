"""PPO with your own torch modules for Box actions: standard deviations that do not depend on the observation."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import noterl
from noterl.callbacks import EarlyStopping

import gymnasium
import torch
from torch import nn

# The tests of noterl set this variable to shorten the run.
EPISODES = min(800, int(os.environ.get("NOTERL_MAX_EPISODES", "800")))


def layers(inputs, outputs, gain):
    """Return two hidden layers, initialized as those of noterl."""
    module = nn.Sequential(
        nn.Linear(inputs, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, outputs),
    )
    for layer in module[::2]:
        nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
    nn.init.orthogonal_(module[-1].weight, gain)
    return module


class Actor(nn.Module):
    """Returns the means of the actions, then the logarithms of their standard deviations."""

    def __init__(self, inputs, actions):
        super().__init__()
        self.mean = layers(inputs, actions, gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, observation):
        mean = self.mean(observation)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


torch.manual_seed(1)
env = gymnasium.make("Pendulum-v1")
inputs, actions = env.observation_space.shape[0], env.action_space.shape[0]
agent = noterl.PPO(
    env,
    network=(Actor(inputs, actions), layers(inputs, 1, gain=1.0)),
    gamma=0.9,
    rollout_steps=1024,
    normalize_observation=True,
    normalize_reward=True,
    seed=1,
)
agent.compile(optimizer=1e-3)
history = agent.fit(episodes=EPISODES, num_envs=4, callbacks=[EarlyStopping(trial_count=20, criterion=-200)])
print(f"standard deviation {agent.actor.log_std.exp().item():.2f}")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/ppo_torch_actor/pendulum.gif", max_steps=200)
