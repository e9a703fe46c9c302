"""Train PPO with a memory on CartPole without its velocities, beside PPO without a memory."""

import os

import noterl

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None


def hidden_cartpole():
    """Return CartPole without the velocities of the cart and of the pole."""
    return noterl.envs.hide("CartPole-v1", [1, 3])


for name, recurrent in (("LSTM", "lstm"), ("no memory", None)):
    agent = noterl.PPO(
        hidden_cartpole, recurrent=recurrent, hidden=(64,), rollout_steps=128, normalize_observation=True, seed=0
    )
    agent.compile(batch_size=128)
    history = agent.fit(episodes=EPISODES, steps=100_000, num_envs=8, log_every=200)
    history.plot(path=f"runs/ppo_recurrent/{'memoryless' if recurrent is None else recurrent}.png")
    print(f"{name}: mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
