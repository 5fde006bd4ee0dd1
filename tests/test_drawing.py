"""A plan as a picture, and a run's events as lines."""

from __future__ import annotations

from strands.multiagent.graph import Graph
from temporalio.client import Client

from durable_strands import GraphRegistry, NodeOptions, on_error
from durable_strands.cli import event_line
from durable_strands.drawing import mermaid

from .support import build, serve
from .test_swarm import member, relay, to


def test_a_plan_with_everything() -> None:
    from strands.multiagent.swarm import Swarm

    def is_good(state: object) -> bool:
        return True

    def factory() -> Graph:
        team = build({"x": "X", "y": "Y"}, [("x", "y")])
        panel = Swarm([member("lead", to("expert"), "L"), member("expert", "E")])
        return build(
            {"a <1>": "A", "team": team, "panel": panel, "each": "M", "any": "J", "sorry": "S"},
            [
                ("a <1>", "team", is_good),
                ("a <1>", "sorry", on_error),
                ("team", "panel"),
                ("panel", "each"),
                ("each", "any"),
                ("sorry", "any"),
            ],
        )

    registry = GraphRegistry()
    registry.add(
        "g",
        factory,
        nodes={"each": NodeOptions(map_over=list), "any": NodeOptions(join="any")},
    )
    assert mermaid(registry["g"].plan).splitlines() == [
        "flowchart TD",
        '    n0(["a #lt;1#gt;"])',
        '    subgraph n1["team"]',
        '        n2(["x"])',
        '        n3["y"]',
        "        n2 --> n3",
        "    end",
        '    subgraph n4["panel, a swarm"]',
        '        n5(["lead"])',
        '        n6["expert"]',
        "    end",
        '    n7[/"each"/]',
        '    n8{{"any"}}',
        '    n9["sorry"]',
        '    n0 -. "is_good" .-> n1',
        '    n0 == "on error" ==> n9',
        "    n1 --> n4",
        "    n4 --> n7",
        "    n7 --> n8",
        "    n9 --> n8",
    ]


async def test_lines_of_what_is_inside_carry_its_path(client: Client) -> None:
    def factory() -> Graph:
        return build({"team": build({"panel": relay({})}), "end": "E"}, [("team", "end")])

    async with serve(client, factory) as graph:
        events = [event async for event in graph.stream_async("T")]
    lines = [line[:11] + line[11:].partition("  ")[0] for line in map(event_line, events) if line]
    assert lines == [
        "started    team",
        "started    team/panel",
        "started    team/panel/a",
        "completed  team/panel/a",
        "hands over team/panel/a",
        "started    team/panel/b",
        "completed  team/panel/b",
        "hands over team/panel/b",
        "started    team/panel/c",
        "completed  team/panel/c",
        "completed  team/panel",
        "completed  team",
        "started    end",
        "completed  end",
    ]
