"""Learning tasks, a module each; `python benchmarks/learning.py TASK` runs one.

A module offers

- `run(seeds, **options)`: do everything, seeds 0 to `seeds - 1`, and return a dict for JSON, with an entry `settings`;
- `table(result)`: the result as Markdown;
- `draw(result)`: the result as a matplotlib figure;

and, if it has options besides `--seeds`, `add_arguments(parser)` with a default for each, under the names that `run`
has. `SEEDS` says how many seeds a whole run has. The first line of its docstring says what it shows.
"""
