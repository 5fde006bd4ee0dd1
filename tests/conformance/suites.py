"""What is run, and what is known not to pass, with the reason of each.

docs/strands-parity.md explains the reasons at length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

Semantics = Literal["strands", "dataflow"]
SEMANTICS: tuple[Semantics, ...] = get_args(Semantics)

SESSION = "needs a session manager or Strands' serialised state: history takes their place"
EVALUATIONS = "counts evaluations of a condition: here one per completion, not two"
CANCELS = 'expects cancel_node to fail the graph, as it does with semantics="strands"'
ORCHESTRATOR = "an orchestrator that asks a human from within one activity is refused"


@dataclass(frozen=True)
class Suite:
    """Some of Strands' tests.

    Attributes:
        name: How it is called here.
        arguments: What pytest is told, from the root of the source distribution.
        reach: How many tests reach the adapter at least. Fewer would mean that it came off.
        failing: The tests that are known to fail, in both semantics, each with its reason.
        failing_dataflow: Those that fail with `semantics="dataflow"` only.
        offline: Whether the tests want a model, and get one that needs no network.
    """

    name: str
    arguments: tuple[str, ...]
    reach: int
    failing: dict[str, str] = field(default_factory=dict)
    failing_dataflow: dict[str, str] = field(default_factory=dict)
    offline: bool = False

    def expected(self, semantics: Semantics) -> dict[str, str]:
        """Return what is known to fail, by the end of its node id."""
        return self.failing | (self.failing_dataflow if semantics == "dataflow" else {})


_INTEGRATION = (
    "--noconftest",  # Strands' own asks a cloud for keys.
    "tests_integ/interrupts/multiagent",
    "tests_integ/hooks/multiagent",
)

SUITES = (
    Suite(
        "graph",
        ("tests/strands/multiagent/test_graph.py",),
        reach=52,
        failing={
            "test_graph_persisted": SESSION,
            "test_graph_execution_time_reflects_active_invocation": SESSION,
        },
        failing_dataflow={
            "test_self_loop_functionality_without_reset": EVALUATIONS,
            "test_graph_cancel_node[True-node cancelled by user]": CANCELS,
            "test_graph_cancel_node[custom cancel message-custom cancel message]": CANCELS,
        },
    ),
    Suite(
        "graph, integration",
        (
            *_INTEGRATION,
            "tests_integ/test_multiagent_graph.py",
            *("-k", "graph or condition or loop or invocation"),
        ),
        reach=20,
        failing={
            "test_graph_interrupt_and_resume": SESSION,
            "test_self_loop_resume_from_persisted_state": SESSION,
            "test_invocation_state_persisted_on_resume": SESSION,
            "test_graph_interrupt_session": SESSION,
            "test_graph_interrupt_node": ORCHESTRATOR,
        },
        failing_dataflow={
            "test_graph_interrupt_reject": CANCELS,
            "test_graph_cancel_node": CANCELS,
        },
        offline=True,
    ),
)
