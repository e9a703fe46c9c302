"""What callbacks may use of an agent has the names, signatures and types that agents have."""

from __future__ import annotations

import inspect

import pytest

import noterl
from noterl.callback import AgentView

pytestmark = pytest.mark.backends("torch")

# Types that `AgentView` cannot import, because they lie above it: there they are Any, or the type that they implement.
WIDER = {"Any", "Mapping", "Collection", "Sequence"}


def annotation_of(name: str) -> str:
    """Return the annotation of an attribute or property of an agent."""
    value = inspect.getattr_static(noterl.Agent, name, None)
    if isinstance(value, property):
        return str(inspect.get_annotations(value.fget)["return"])
    return next(
        str(inspect.get_annotations(base)[name])
        for base in noterl.Agent.__mro__
        if name in inspect.get_annotations(base)
    )


METHODS = sorted(name for name, value in vars(AgentView).items() if inspect.isfunction(value) and name[0] != "_")
ATTRIBUTES = sorted(AgentView.__annotations__)


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_signature_of_the_agent(name: str) -> None:
    view, agent = (inspect.signature(getattr(kind, name)) for kind in (AgentView, noterl.Agent))
    assert list(view.parameters.values()) == list(agent.parameters.values())
    assert view.return_annotation in ("Any", "Callable[[], dict[str, np.ndarray] | None]", agent.return_annotation)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_have_the_type_of_the_agent(name: str) -> None:
    view = AgentView.__annotations__[name]
    assert view == annotation_of(name) or view.partition("[")[0] in WIDER


def test_view_has_methods_and_attributes() -> None:
    assert {"stop", "evaluate", "save"} <= {*METHODS} and {"steps", "replay"} <= {*ATTRIBUTES}
