"""Train MADDPG on a speaker that sees the target landmark, and a listener that can move to it."""

import os

import noterl

from mpe2 import simple_speaker_listener_v4

# The tests of noterl set this variable to shorten the run.
EPISODES = min(3_000, int(os.environ.get("NOTERL_MAX_EPISODES", "3000")))


def make(render_mode=None):
    return simple_speaker_listener_v4.parallel_env(max_cycles=25, render_mode=render_mode)


agent = noterl.MADDPG(make, seed=1)  # with independent=True, each critic receives only its own agent's data
print(agent.names, agent.observation_size, agent.action_size)
agent.compile(replay=noterl.Replay(100_000))
history = agent.fit(episodes=EPISODES, log_every=250)
history.plot(path="runs/maddpg/curve.png")
print(f"the speaker earned {history.history['reward/speaker_0'][-1]:.1f} in the last episode")

result = agent.evaluate(episodes=20)
print(f"mean return {result['reward_mean']:.1f} (about -14 if the listener follows the speaker)")
agent.animate("runs/maddpg/speaker_listener.gif")
