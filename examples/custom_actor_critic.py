"""A custom actor-critic with Keras networks: policy gradient with generalized advantages (Schulman et al., 2016)."""

import os

import noterl
from noterl import losses

import keras
from keras import ops

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None


def network(inputs, outputs):
    layers = [keras.layers.Dense(64, "tanh"), keras.layers.Dense(64, "tanh"), keras.layers.Dense(outputs)]
    return keras.Sequential([keras.Input((inputs,)), *layers])


@noterl.register
class VPG(noterl.Agent):
    memory, head, optimizer_names = "rollout", noterl.heads.Categorical(), ("actor", "critic")
    rollout_steps, epochs = 64, 1

    def __init__(self, env, *, gamma=0.99, decay=0.95, seed=None):
        super().__init__(env, seed=seed)
        self.actor = network(self.observation_size, self.action_size)
        self.critic = network(self.observation_size, 1)
        self.gamma, self.decay = self.hyperparameter("gamma", gamma), decay

    def forward(self, observation):
        return self.actor(observation)

    def prepare(self, rollout):  # fields are [T, N, ...]; the results are in batch.extra
        observations = rollout.observation, rollout.next_observation
        value, next_value = (losses.map_rows(self.critic, part)[..., 0] for part in observations)
        decay = rollout.discount * rollout.extra["continues"] * self.decay
        advantage = losses.gae(rollout.reward, rollout.discount, value, next_value, decay)
        return {"advantage": advantage, "target": advantage + value}

    def policy_loss(self, batch):
        advantage = losses.normalize(batch.extra["advantage"], batch.weight)
        return -ops.mean(batch.weight * advantage * self.head.log_prob(self.actor(batch.observation), batch.action))

    def value_loss(self, batch):
        error = self.critic(batch.observation)[:, 0] - batch.extra["target"]
        return losses.masked_mean(ops.square(error), batch.weight)

    def update(self, batch):
        policy_loss, _ = self.minimize(self.policy_loss, self.actor, "actor", batch)
        value_loss, _ = self.minimize(self.value_loss, self.critic, "critic", batch)
        return {"policy_loss": policy_loss, "value_loss": value_loss}, {}


agent = VPG("CartPole-v1", seed=1)
agent.compile({"actor": keras.optimizers.Adam(3e-3), "critic": keras.optimizers.Adam(3e-3)}, batch_size="rollout")
history = agent.fit(episodes=EPISODES, steps=150_000, num_envs=8, log_every=100)
history.plot(path="runs/custom_keras/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/custom_keras/cartpole.gif", max_steps=200)
