"""Worker processes that step environments, and what these processes share with the learner."""
