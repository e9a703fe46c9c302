"""Names of rewards in the `info` of a step."""

# The reward of the environment, if agents learn from a clipped one. Logs and evaluations add up this one.
UNCLIPPED_REWARD = "unclipped_reward"
# The reward of a whole game, in the `info` of its last step.
GAME_REWARD = "game_reward"
