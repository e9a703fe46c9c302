"""The kinds of environment source: one module for each, with how the argument `env=` is recognized and opened."""
