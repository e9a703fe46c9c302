"""`noterl tune`: search for hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence

from noterl.cli.environment import environment_of
from noterl.cli.errors import usage_errors
from noterl.cli.options import check_required, options_of, parse_options, parse_table
from noterl.cli.train import about, noterl_class, options_of_agent, options_of_run, read_command
from noterl.tune import search
from noterl.tune.ranges import RANGES


def run(arguments: Sequence[str]) -> None:
    """Run `noterl tune`.

    Raises:
        UsageError: if the command line is wrong.
        ValueError: if no trial is complete.
    """
    name, arguments, table, path = read_command("tune", arguments)
    # `read_command` has imported the modules already.
    table.pop("import")
    search_options = options_of(search.tune, "tune", skip=("agent", "env", "space"))
    options = options_of_agent(name, [*options_of_run(("env", "backend", "quiet")), *search_options])
    ranges = ", ".join(range_class.__name__ for range_class in RANGES)
    text = (
        f"Search for the hyperparameters of {about(name)}. The value of an option may be a range ({ranges}), such as "
        '--gamma "Float(0.9, 0.999)". Without a range, the published space of the algorithm is searched.'
    )
    given_options = parse_options(options, arguments, prog=f"noterl tune {name}", description=text)
    if path is not None:
        given_options = {**parse_table(options, table, path), **given_options}
    check_required(options, given_options)
    values = {key: option.value for key, option in given_options.items()}
    groups = {option.key: option.group for option in options}
    settings = {key: value for key, value in values.items() if groups[key] == "tune"}
    space = {key: value for key, value in values.items() if groups[key] not in ("run", "tune")}
    if values.get("quiet", False):
        settings["verbose"] = 0
    with usage_errors():
        environment = environment_of(values["env"])
        agent = noterl_class(name)
        # Here, a wrong space is an error of usage.
        search.search_space(agent, space)
    result = search.tune(agent, environment, space or None, **settings)
    if not result.best:
        raise ValueError("no trial is complete; the table of the study holds the error of each")
