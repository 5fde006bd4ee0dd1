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
INTERNAL = "replaces a private method of Strands' own class, which has no part in a durable run"


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
        semantics: Under which it is run; for swarms there is one only.
    """

    name: str
    arguments: tuple[str, ...]
    reach: int
    failing: dict[str, str] = field(default_factory=dict)
    failing_dataflow: dict[str, str] = field(default_factory=dict)
    offline: bool = False
    semantics: tuple[Semantics, ...] = SEMANTICS

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
        },
        failing_dataflow={
            "test_graph_interrupt_reject": CANCELS,
            "test_graph_cancel_node": CANCELS,
        },
        offline=True,
    ),
    Suite(
        "swarm",
        ("tests/strands/multiagent/test_swarm.py",),
        reach=50,
        semantics=("strands",),
        failing={
            "test_swarm_stream_async_exception_in_execute_swarm": INTERNAL,
            **dict.fromkeys(
                (
                    "test_swarm_persistence",
                    "test_swarm_resume_cancelled_handoff_reruns_source_not_target",
                    "test_swarm_resume_closed_stream_after_handoff_reruns_source",
                    "test_swarm_crash_restart_handoff_via_file_session_on_disk",
                    "test_swarm_crash_restart_uncommitted_interrupt_resume_reruns_source_on_disk"
                    "[cancel]",
                    "test_swarm_crash_restart_uncommitted_interrupt_resume_reruns_source_on_disk"
                    "[close]",
                    "test_swarm_resume_pending_revisit_node_runs",
                    "test_swarm_resume_sanitizes_removed_nodes_from_restored_state",
                    "test_swarm_teardown_between_nodes_keeps_the_handoff_target_as_frontier",
                    "test_swarm_repeated_crash_at_completed_turn_is_a_fixed_point",
                    "test_swarm_resume_honors_a_persisted_handoff_the_frontier_does_not_carry",
                    "test_swarm_resume_pending_self_handoff_survives_second_restart",
                    "test_swarm_stream_closed_at_node_stop_event_keeps_committed_turn",
                ),
                SESSION,
            ),
        },
    ),
    Suite(
        "swarm, integration",
        (*_INTEGRATION, "tests_integ/test_multiagent_swarm.py", *("-k", "swarm and not graph")),
        reach=13,
        semantics=("strands",),
        failing={
            "test_swarm_resume_from_executing_state": SESSION,
            "test_swarm_interrupt_session": SESSION,
        },
        offline=True,
    ),
)
