"""A custom algorithm in plain PyTorch: torch.nn modules and a torch.optim optimizer, no Keras layer."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import noterl

import torch
from torch import nn

# The tests of noterl set this variable to shorten the run.
EPISODES = min(300, int(os.environ.get("NOTERL_MAX_EPISODES", "300")))


@noterl.register
class TorchDQN(noterl.Agent):
    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env, *, hidden=128, gamma=0.99, seed=None):
        super().__init__(env, seed=seed)
        self.q = nn.Sequential(
            nn.Linear(self.observation_size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.action_size),
        )
        self.target_q = noterl.networks.clone(self.q)
        self.gamma = self.hyperparameter("gamma", gamma)  # also the discount of the memory

    def forward(self, observation):
        return self.q(observation)

    def loss(self, batch):
        q = self.q(batch.observation).gather(1, batch.action.long()[:, None])[:, 0]
        with torch.no_grad():
            best = self.q(batch.next_observation).argmax(1, keepdim=True)
            next_value = self.target_q(batch.next_observation).gather(1, best)[:, 0]
            target = batch.reward + batch.discount * next_value
        td_error = q - target
        loss = nn.functional.smooth_l1_loss(q, target, reduction="none")
        return (batch.weight * loss).mean(), {"td_error": td_error}

    def update_target(self):
        noterl.networks.copy(self.q, self.target_q, self.tau)


agent = TorchDQN("CartPole-v1", seed=1)
agent.compile(
    optimizer=torch.optim.Adam(agent.q.parameters(), 1e-3, fused=True),
    batch_size=64,
    update_every=16,
    updates=16,
    target_update=500,
)
history = agent.fit(episodes=EPISODES)
history.plot(path="runs/custom_torch_dqn/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/custom_torch_dqn/cartpole.gif", max_steps=200)
