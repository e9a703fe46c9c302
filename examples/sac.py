"""Train SAC on Pendulum with a learned temperature, plot the returns and animate the agent."""

import os

import noterl
from noterl.callbacks import EarlyStopping
from noterl.schedules import Linear

import keras

# The tests of noterl set this variable to shorten the run.
EPISODES = min(60, int(os.environ.get("NOTERL_MAX_EPISODES", "60")))

agent = noterl.SAC("Pendulum-v1", hidden=(64, 64), seed=1)
agent.compile(
    optimizer=keras.optimizers.Adam(Linear(3e-3, 5e-4, steps=12_000)),  # cloned for actor, critics and temperature
    replay=noterl.Replay(50_000),
    update_every=16,
    updates=16,
)
agent.summary()

history = agent.fit(episodes=EPISODES, callbacks=[EarlyStopping(trial_count=10, criterion=-170)])
history.plot(path="runs/sac/curve.png")

result = agent.evaluate(episodes=20)
print(f"mean return {result['reward_mean']:.1f} (about -150 if the pendulum is swung up)")
agent.animate("runs/sac/pendulum.gif", max_steps=200)
agent.save("runs/sac/agent.noterl")
