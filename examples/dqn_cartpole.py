"""Train DQN on CartPole, save it, load it and animate it."""

import os

import noterl
from noterl.callbacks import Checkpoint, EarlyStopping
from noterl.policies import LinearEpsGreedyPolicy

import keras

# The tests of noterl set this variable to shorten the run.
EPISODES = min(400, int(os.environ.get("NOTERL_MAX_EPISODES", "400")))

agent = noterl.DQN("CartPole-v1", double=True, hidden=(128, 128), seed=1)
agent.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    policy=LinearEpsGreedyPolicy(1.0, 0.01, steps=8_000),
    replay=noterl.Replay(100_000),
    update_every=64,
    updates=64,
)
agent.summary()

history = agent.fit(
    episodes=EPISODES,
    callbacks=[
        EarlyStopping(trial_count=10, criterion=475),
        Checkpoint("runs/dqn", save_freq=50, max_save_files=2),
    ],
)
history.plot(path="runs/dqn/curve.png")

result = agent.evaluate(episodes=20)
print(f"mean return {result['reward_mean']:.1f} over {len(result['returns'])} episodes")
agent.animate("runs/dqn/cartpole.gif", max_steps=200)

agent.save("runs/dqn/agent.noterl")
loaded = noterl.load("runs/dqn/agent.noterl")
assert (loaded.evaluate(episodes=20)["returns"] == result["returns"]).all()
