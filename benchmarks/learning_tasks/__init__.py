"""Learning tasks that train in this process, one per module; `python -m benchmarks.learning TASK` runs one.

A module has

- `SEEDS`: the number of seeds of a complete result;
- `run(seeds, **options)`: do the runs of seeds 0 to `seeds - 1`; return `settings` and `runs` as JSON values;
- `summarize(result)`: the summary of the runs; it is stored as `summary`;
- `table(result)`: the result as Markdown;
- `draw(result)`: the result as a matplotlib figure;
- `add_arguments(parser)`, if it has more options: adds each with a default, under the name that `run` uses.

The first line of its docstring is shown by `learning.py --help`.
"""
