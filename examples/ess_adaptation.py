"""Keep a prioritized memory at its effective sample size, and adapt the learning rate and the batch size to it.

`docs/finders.md` says when such an adaptation helps; the defaults of noterl use none.
"""

import os

import noterl
from noterl.callbacks import ESSAdapt, ESSWindow, Rate, Scale
from noterl.replay import Prioritized

# The tests of noterl set this variable to shorten the run.
EPISODES = min(300, int(os.environ.get("NOTERL_MAX_EPISODES", "300")))

agent = noterl.DQN("CartPole-v1", hidden=(128, 128), seed=1)
agent.compile(
    optimizer=1e-3,
    replay=noterl.Replay(20_000, sampler=Prioritized()),
    batch_size=32,
    update_every=16,
    updates=16,
    learning_starts=32,
)
window = ESSWindow(min_size=2_000, every=500, unit="steps")  # removes the oldest transitions
adapt = ESSAdapt(lr=Rate(1e-4, min=3e-4, max=3e-3), batch=Scale(min=32, max=128, align=32))
history = agent.fit(episodes=EPISODES, callbacks=[window, adapt], log_every=50)

columns = ("reward", "ess", "ess_ratio", "lr", "batch")
print("episode" + "".join(f"{name:>11}" for name in columns))
for episode in range(0, len(history), max(1, len(history) // 10)):
    print(f"{episode:7}" + "".join(f"{history.history[name][episode]:11.4g}" for name in columns))
history.plot(metrics=("reward", "ess", "lr", "batch"), path="runs/ess_adaptation/curves.png")
