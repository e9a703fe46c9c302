"""A custom algorithm with keras.ops, which runs compiled on TensorFlow, JAX and PyTorch.

Munchausen DQN (Vieillard et al., 2020) adds the scaled log-policy of the action to the reward.
"""

import os

import noterl

from keras import ops

# The tests of noterl set this variable to shorten the run.
EPISODES = min(300, int(os.environ.get("NOTERL_MAX_EPISODES", "300")))


@noterl.register
class MunchausenDQN(noterl.Agent):
    memory, head = "replay", noterl.heads.Q()

    def __init__(self, env, *, hidden=128, gamma=0.99, temperature=0.03, alpha=0.9, seed=None):
        super().__init__(env, seed=seed)
        self.q = noterl.networks.mlp(self.observation_size, [hidden, hidden], self.action_size)
        self.target_q = noterl.networks.clone(self.q)
        self.gamma = self.hyperparameter("gamma", gamma)  # also the discount of the memory
        self.temperature = self.hyperparameter("temperature", temperature, minimum=1e-4)
        self.alpha = alpha

    def forward(self, observation):
        return self.q(observation)

    def log_policy(self, q):
        return self.temperature * ops.log_softmax(q / self.temperature, axis=-1)  # [B, A]

    def loss(self, batch):
        q = noterl.losses.take(self.q(batch.observation), batch.action)
        log_taken = noterl.losses.take(self.log_policy(self.target_q(batch.observation)), batch.action)
        reward = batch.reward + self.alpha * ops.clip(log_taken, -1.0, 0.0)
        next_q = self.target_q(batch.next_observation)
        next_policy = ops.softmax(next_q / self.temperature, axis=-1)
        soft_value = ops.sum(next_policy * (next_q - self.log_policy(next_q)), axis=-1)
        td_error = q - noterl.losses.td_target(reward, batch.discount, soft_value)
        return noterl.losses.weighted_mean(noterl.losses.huber(td_error), batch.weight), {"td_error": td_error}

    def update_target(self):
        noterl.networks.copy(self.q, self.target_q, self.tau)


agent = MunchausenDQN("CartPole-v1", seed=1)
agent.compile(batch_size=64, update_every=16, updates=16, target_update=0.01)
history = agent.fit(episodes=EPISODES)
history.plot(path="runs/custom_munchausen/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/custom_munchausen/cartpole.gif", max_steps=200)
