"""DDPG, TD3 and SAC in NumPy and float64: the reference for updates on every backend.

It shares no code with noterl. Gradients are derived by hand, through the tanh and the sampled action;
`tests/agents/test_actor_critic.py` checks them against finite differences. Networks: `reference_numpy.py`.
"""

from __future__ import annotations

import numpy as np

from noterl.learning.update import NO_VALUE
from tests.support.reference_numpy import Adam, Array, Sequential, mlp

Weights = list[Array]


def float64(weights) -> Weights:
    return [np.array(weight, np.float64) for weight in weights]


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class ActorCritic:
    """The networks, target networks and optimizers that the algorithms share.

    Args:
        weights: a list of arrays for each network: "actor", "critics/0" ..., "target_actor", "target_critics/0" ...
        hidden: units of each hidden layer.
        space: the action space.
        tau: the coefficient of Polyak averaging.
        learning_rate: of every optimizer.
    """

    def __init__(self, weights, hidden, space, *, tau: float, learning_rate: float) -> None:
        self.weights: dict[str, Weights] = {name: float64(found) for name, found in weights.items()}
        self.space, self.tau = space, tau
        self.actor, self.critic = mlp(hidden), mlp(hidden)
        names = ("actor", "critic", "temperature")
        self.optimizers = {name: Adam(learning_rate) for name in names}
        self.count = sum(name.startswith("critics/") for name in weights)

    def scaled(self, action: Array) -> Array:
        low, high = self.space.low.astype(float), self.space.high.astype(float)
        return 2 * (np.asarray(action, float) - low) / (high - low) - 1

    def q(self, name: str, observation: Array, action: Array) -> Array:
        x = np.concatenate([np.asarray(observation, float), action], axis=1)
        return self.critic.forward(x, self.weights[name])[:, 0]

    def critic_names(self) -> list[str]:
        return [f"critics/{k}" for k in range(self.count)]

    def target(self, batch) -> Array:
        raise NotImplementedError

    def td_errors(self, batch) -> list[Array]:
        """Return the errors `[B]` of every critic."""
        target = np.asarray(batch.reward, float) + np.asarray(batch.discount, float) * self.target(batch)
        action = self.scaled(batch.action)
        return [self.q(name, batch.observation, action) - target for name in self.critic_names()]

    def critic_value(self, batch) -> float:
        weight = np.asarray(batch.weight, float)
        return sum(float(np.mean(weight * 0.5 * error**2)) for error in self.td_errors(batch))

    def critic_gradients(self, batch) -> Weights:
        gradients: Weights = []
        for name, error in zip(self.critic_names(), self.td_errors(batch), strict=True):
            self.q(name, batch.observation, self.scaled(batch.action))  # `backward` differentiates this pass
            dq = (np.asarray(batch.weight, float) * error / len(error))[:, None]
            gradients += self.critic.backward(dq, self.weights[name])[1]
        return gradients

    def apply(self, optimizer: str, names: list[str], gradients: Weights) -> None:
        """Apply gradients to the weights of several networks, which are one list for the optimizer."""
        flat = [weight for name in names for weight in self.weights[name]]
        new = self.optimizers[optimizer].apply(flat, gradients)
        for name in names:
            count = len(self.weights[name])
            self.weights[name], new = new[:count], new[count:]

    def move_targets(self) -> None:
        for name in list(self.weights):
            if name.startswith("target_"):
                self.weights[name] = [
                    self.tau * weight + (1 - self.tau) * old
                    for weight, old in zip(self.weights[name.removeprefix("target_")], self.weights[name], strict=True)
                ]

    def slope_of_q(self, name: str, observation: Array, action: Array) -> Array:
        """Return the gradient `[B, A]` of a critic's values with respect to the actions."""
        self.q(name, observation, action)
        dx, _ = self.critic.backward(np.ones((len(action), 1)), self.weights[name])
        return dx[:, -action.shape[1] :]


class TD3(ActorCritic):
    """Fujimoto et al. (2018), algorithm 1. With one critic, no noise and no delay, it is Lillicrap et al. (2016)."""

    noise, clip, delay = 0.2, 0.5, 2

    def target(self, batch) -> Array:
        action = np.tanh(self.actor.forward(np.asarray(batch.next_observation, float), self.weights["target_actor"]))
        if self.noise:
            noise = np.asarray(batch.extra["target_noise"], float)
            action = np.clip(action + np.clip(self.noise * noise, -self.clip, self.clip), -1, 1)
        return np.min(
            [self.q(f"target_{name}", batch.next_observation, action) for name in self.critic_names()], axis=0
        )

    def actor_value(self, batch) -> float:
        action = np.tanh(self.actor.forward(np.asarray(batch.observation, float), self.weights["actor"]))
        return -float(np.mean(self.q("critics/0", batch.observation, action)))

    def actor_gradients(self, batch) -> Weights:
        action = np.tanh(self.actor.forward(np.asarray(batch.observation, float), self.weights["actor"]))
        slope = -self.slope_of_q("critics/0", batch.observation, action) / len(action)
        return self.actor.backward(slope * (1 - action**2), self.weights["actor"])[1]

    def update(self, batch, number: int) -> tuple[dict[str, float], Array]:
        """Make update `number`; return the logs and the feedback `[B]`."""
        errors = self.td_errors(batch)
        logs = {"loss": self.critic_value(batch), "actor_loss": NO_VALUE}
        self.apply("critic", self.critic_names(), self.critic_gradients(batch))
        if number % self.delay == self.delay - 1:
            logs["actor_loss"] = self.actor_value(batch)
            self.apply("actor", ["actor"], self.actor_gradients(batch))
            self.move_targets()
        return logs, np.mean(np.abs(errors), axis=0)


class DDPG(TD3):
    noise, delay = 0.0, 1

    def update(self, batch, number: int) -> tuple[dict[str, float], Array]:
        (errors,) = self.td_errors(batch)
        return super().update(batch, number)[0], errors


class SAC(ActorCritic):
    """Haarnoja et al. (2018), algorithm 1."""

    log_temperature, is_trained, target_entropy = 0.0, True, -2.0

    def sample(self, observation: Array, noise: Array) -> tuple[Array, Array]:
        """Return scaled actions `[B, A]` and their log-probabilities `[B]`."""
        values = self.actor.forward(np.asarray(observation, float), self.weights["actor"])
        size = values.shape[1] // 2
        self.log_std = values[:, size:]
        self.std = np.exp(np.clip(self.log_std, -20, 2))
        unsquashed = values[:, :size] + self.std * noise
        action = np.tanh(unsquashed)
        density = np.exp(-0.5 * noise**2) / (np.sqrt(2 * np.pi) * self.std)
        return action, np.sum(np.log(density) - np.log(1 - action**2), axis=1)

    def target(self, batch) -> Array:
        noise = np.asarray(batch.extra["next_noise"], float)
        action, log_probability = self.sample(batch.next_observation, noise)
        next_q = [self.q(f"target_{name}", batch.next_observation, action) for name in self.critic_names()]
        return np.min(next_q, axis=0) - np.exp(self.log_temperature) * log_probability

    def smallest_q(self, batch, action: Array) -> tuple[Array, Array]:
        """Return the smaller values `[B]` of both critics, and the index of that critic."""
        found = np.array([self.q(name, batch.observation, action) for name in self.critic_names()])
        return found.min(axis=0), found.argmin(axis=0)

    def actor_value(self, batch) -> float:
        action, log_probability = self.sample(batch.observation, np.asarray(batch.extra["noise"], float))
        return float(np.mean(np.exp(self.log_temperature) * log_probability - self.smallest_q(batch, action)[0]))

    def actor_gradients(self, batch) -> Weights:
        noise = np.asarray(batch.extra["noise"], float)
        action, _ = self.sample(batch.observation, noise)
        which, temperature = self.smallest_q(batch, action)[1], np.exp(self.log_temperature)
        slopes = [self.slope_of_q(name, batch.observation, action) for name in self.critic_names()]
        slope = np.where(which[:, None] == 0, *slopes)
        # log pi contains -log(1 - tanh(u)^2), whose derivative is 2 tanh(u), and -log std.
        du = (temperature * 2 * action - slope * (1 - action**2)) / len(action)
        inside = (self.log_std > -20) & (self.log_std < 2)
        dlog_std = np.where(inside, du * self.std * noise - temperature / len(action), 0.0)
        self.sample(batch.observation, noise)
        return self.actor.backward(np.concatenate([du, dlog_std], axis=1), self.weights["actor"])[1]

    def log_probability(self, batch) -> Array:
        return self.sample(batch.observation, np.asarray(batch.extra["noise"], float))[1]

    def update(self, batch, number: int) -> tuple[dict[str, float], Array]:
        errors = self.td_errors(batch)
        logs = {"loss": self.critic_value(batch), "temperature": float(np.exp(self.log_temperature))}
        self.apply("critic", self.critic_names(), self.critic_gradients(batch))
        logs["actor_loss"] = self.actor_value(batch)
        gradients, log_probability = self.actor_gradients(batch), self.log_probability(batch)
        self.apply("actor", ["actor"], gradients)
        if self.is_trained:
            slope = -np.mean(log_probability + self.target_entropy)
            (new,) = self.optimizers["temperature"].apply([np.array(self.log_temperature)], [np.array(slope)])
            self.log_temperature = float(new)
        self.move_targets()
        return logs, np.mean(np.abs(errors), axis=0)


class DiscreteSAC(SAC):
    """Christodoulou (2019), algorithm 1, with expectations over the policy instead of samples."""

    target_entropy = 0.98 * np.log(3)

    def all_q(self, name: str, observation: Array) -> Array:
        return self.critic.forward(np.asarray(observation, float), self.weights[name])  # [B, A]

    def policy(self, observation: Array) -> Array:
        return softmax(self.actor.forward(np.asarray(observation, float), self.weights["actor"]))

    def target(self, batch) -> Array:
        policy = self.policy(batch.next_observation)
        least = np.min([self.all_q(f"target_{name}", batch.next_observation) for name in self.critic_names()], axis=0)
        return np.sum(policy * (least - np.exp(self.log_temperature) * np.log(policy)), axis=1)

    def td_errors(self, batch) -> list[Array]:
        target = np.asarray(batch.reward, float) + np.asarray(batch.discount, float) * self.target(batch)
        rows = np.arange(len(target))
        return [self.all_q(name, batch.observation)[rows, batch.action] - target for name in self.critic_names()]

    def critic_gradients(self, batch) -> Weights:
        gradients: Weights = []
        for name, error in zip(self.critic_names(), self.td_errors(batch), strict=True):
            dq = np.zeros_like(self.all_q(name, batch.observation))
            dq[np.arange(len(error)), batch.action] = np.asarray(batch.weight, float) * error / len(error)
            gradients += self.critic.backward(dq, self.weights[name])[1]
        return gradients

    def advantage(self, batch) -> Array:
        least = np.min([self.all_q(name, batch.observation) for name in self.critic_names()], axis=0)
        return np.exp(self.log_temperature) * np.log(self.policy(batch.observation)) - least

    def actor_value(self, batch) -> float:
        return float(np.mean(np.sum(self.policy(batch.observation) * self.advantage(batch), axis=1)))

    def actor_gradients(self, batch) -> Weights:
        advantage, policy = self.advantage(batch), self.policy(batch.observation)
        centered = advantage - np.sum(policy * advantage, axis=1, keepdims=True)
        return self.actor.backward(policy * centered / len(policy), self.weights["actor"])[1]

    def log_probability(self, batch) -> Array:
        policy = self.policy(batch.observation)
        return np.sum(policy * np.log(policy), axis=1)


__all__ = ["DDPG", "SAC", "TD3", "DiscreteSAC", "Sequential"]
