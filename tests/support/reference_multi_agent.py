"""MADDPG in NumPy and float64: the reference for updates on every backend.

It shares no code with noterl. The spaces of the agents differ, so a critic receives the values of its own agent first,
and then those of the others in order. Gradients are derived by hand; `tests/agents/test_maddpg.py` checks them against
finite differences.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from tests.support.reference_continuous import float64, softmax
from tests.support.reference_numpy import Adam, Array, mlp


class MADDPG:
    """Lowe et al. (2017), algorithm 1, with straight-through Gumbel-softmax for Discrete actions.

    Args:
        weights: a list of arrays for each network: "actors/0", "critics/0" ..., "target_actors/0",
            "target_critics/0" ...
        hidden: units of each hidden layer.
        observation_sizes: the size of each agent's observation.
        action_spaces: the action space of each agent, Discrete or Box.
    """

    tau, penalty, temperature = 0.05, 1e-3, 0.7

    def __init__(self, weights, hidden, observation_sizes, action_spaces, *, independent: bool, learning_rate: float):
        self.weights = {name: float64(found) for name, found in weights.items()}
        self.spaces, self.independent = action_spaces, independent
        self.agents = range(len(action_spaces))
        self.network = mlp(hidden)
        self.observation_ends = np.cumsum([0, *observation_sizes])
        self.widths = [
            int(space.n) if isinstance(space, spaces.Discrete) else space.shape[0] for space in action_spaces
        ]
        self.action_ends = np.cumsum(
            [0, *(1 if isinstance(space, spaces.Discrete) else space.shape[0] for space in action_spaces)]
        )
        self.optimizers = {name: Adam(learning_rate) for name in ("actors", "critics")}

    def observations(self, vectors) -> list[Array]:
        return [
            np.asarray(vectors[:, self.observation_ends[i] : self.observation_ends[i + 1]], float) for i in self.agents
        ]

    def actions(self, vectors) -> list[Array]:
        found = []
        for i, space in enumerate(self.spaces):
            own = np.asarray(vectors[:, self.action_ends[i] : self.action_ends[i + 1]], float)
            if isinstance(space, spaces.Discrete):
                found.append(np.eye(space.n)[own[:, 0].astype(int)])
            else:
                found.append(2 * (own - space.low) / (space.high.astype(float) - space.low) - 1)
        return found

    def policy(self, name: str, i: int, observation: Array) -> Array:
        values = self.network.forward(observation, self.weights[f"{name}/{i}"])
        if isinstance(self.spaces[i], spaces.Discrete):
            return np.eye(values.shape[1])[values.argmax(axis=1)]
        return np.tanh(values)

    def q(self, name: str, i: int, observations, actions, present) -> Array:
        order = [i] if self.independent else [i, *(j for j in self.agents if j != i)]
        parts = [values[j] * present[:, j : j + 1] for values in (observations, actions) for j in order]
        return self.network.forward(np.concatenate(parts, axis=1), self.weights[f"{name}/{i}"])[:, 0]

    def td_error(self, i: int, batch) -> Array:
        next_observations = self.observations(batch.next_observation)
        chosen = [self.policy("target_actors", j, next_observations[j]) for j in self.agents]
        target = batch.reward[:, i] + batch.discount[:, i].astype(float) * self.q(
            "target_critics", i, next_observations, chosen, batch.extra["remaining"]
        )
        present = batch.extra["present"]
        q = self.q("critics", i, self.observations(batch.observation), self.actions(batch.action), present)
        return (q - target) * present[:, i]

    def critic_value(self, i: int, batch) -> float:
        return float(np.mean(batch.weight.astype(float) * 0.5 * self.td_error(i, batch) ** 2))

    def critic_gradients(self, i: int, batch) -> list[Array]:
        error = self.td_error(i, batch)  # `backward` differentiates the last forward pass, that of the critic
        slope = batch.weight.astype(float) * error * batch.extra["present"][:, i] / len(error)
        return self.network.backward(slope[:, None], self.weights[f"critics/{i}"])[1]

    def gumbel(self, i: int, batch) -> Array:
        discrete = [
            width if isinstance(space, spaces.Discrete) else 0
            for space, width in zip(self.spaces, self.widths, strict=True)
        ]
        start = sum(discrete[:i])
        return -np.log(-np.log(batch.extra["gumbel"][:, start : start + discrete[i]].astype(float)))

    def actor_value(self, i: int, batch, relaxed: bool = False) -> float:
        """Return an agent's loss; with `relaxed`, the loss whose exact gradient is the straight-through estimate."""
        observations, actions = self.observations(batch.observation), self.actions(batch.action)
        values = self.network.forward(observations[i], self.weights[f"actors/{i}"])
        penalty = 0.0
        if isinstance(self.spaces[i], spaces.Discrete):
            disturbed = values + self.gumbel(i, batch)
            soft = softmax(disturbed / self.temperature)
            hard = np.eye(values.shape[1])[disturbed.argmax(axis=1)]
            actions[i] = soft + self.fixed if relaxed else hard
            if not relaxed:
                self.fixed = hard - soft
            penalty = self.penalty * np.mean(values**2, axis=1)
        else:
            actions[i] = np.tanh(values)
        q = self.q("critics", i, observations, actions, batch.extra["present"])
        return float(np.mean((penalty - q) * batch.extra["present"][:, i]))

    def actor_gradients(self, i: int, batch) -> list[Array]:
        self.actor_value(i, batch)  # the last forward pass is that of the critic
        present = batch.extra["present"][:, i : i + 1].astype(float)
        name, rows = f"actors/{i}", len(present)
        dx, _ = self.network.backward(-present / rows, self.weights[f"critics/{i}"])
        sizes = np.diff(self.observation_ends)
        before = sizes[i] if self.independent else self.observation_ends[-1]
        slope = dx[:, before : before + self.widths[i]] * present
        values = self.network.forward(self.observations(batch.observation)[i], self.weights[name])
        if isinstance(self.spaces[i], spaces.Discrete):
            soft = softmax((values + self.gumbel(i, batch)) / self.temperature)
            slope = soft * (slope - np.sum(soft * slope, axis=1, keepdims=True)) / self.temperature
            slope = slope + self.penalty * 2 * values / values.shape[1] * present / rows
        else:
            slope = slope * (1 - np.tanh(values) ** 2)
        return self.network.backward(slope, self.weights[name])[1]

    def update(self, batch) -> tuple[dict[str, float], Array]:
        """Make an update; return the logs and the feedback `[B]`."""
        errors = np.stack([self.td_error(i, batch) for i in self.agents])
        logs = {"loss": sum(self.critic_value(i, batch) for i in self.agents)}
        self._apply("critics", [self.critic_gradients(i, batch) for i in self.agents])
        logs["actor_loss"] = sum(self.actor_value(i, batch) for i in self.agents)
        self._apply("actors", [self.actor_gradients(i, batch) for i in self.agents])
        for name in [name for name in self.weights if name.startswith("target_")]:
            source = self.weights[name.removeprefix("target_")]
            self.weights[name] = [
                self.tau * new + (1 - self.tau) * old for new, old in zip(source, self.weights[name], strict=True)
            ]
        return logs, np.abs(errors).sum(axis=0) / np.maximum(batch.extra["present"].sum(axis=1), 1.0)

    def _apply(self, kind: str, gradients: list[list[Array]]) -> None:
        names = [f"{kind}/{i}" for i in self.agents]
        flat = [weight for name in names for weight in self.weights[name]]
        new = self.optimizers[kind].apply(flat, [gradient for each in gradients for gradient in each])
        for name in names:
            count = len(self.weights[name])
            self.weights[name], new = new[:count], new[count:]
