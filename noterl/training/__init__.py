"""One `fit`: the loop, its environments, its events."""
