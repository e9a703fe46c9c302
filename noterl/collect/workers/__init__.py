"""Worker processes that step environments, and what they share with the learner."""
