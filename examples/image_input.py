"""A task with an image, which each node gets whole.

    viewer (an agent) -> archive (a function)

The bytes travel base64-encoded in the run's history, so they survive retries and workers.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent
from strands.multiagent.graph import Graph, GraphBuilder
from strands.types.content import ContentBlock, Messages
from temporalio.client import Client

from durable_strands import DurableGraph, GraphRegistry, Prompt, function_node
from durable_strands.demo.offline import OfflineModel

from .support import run

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAIAAAA2iEnWAAAAD0lEQVR4nGP4z8AARBAKAB33Av7LsyQaAAAAAElFTkSu"
    "QmCC"
)

registry = GraphRegistry()


class Viewer(OfflineModel):
    """Stands for a model that sees: it reads an image's size from the image."""

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        pictures = [b["image"]["source"] for b in messages[-1]["content"] if "image" in b]
        sizes = [size_of(picture["bytes"]) for picture in pictures]
        self._skill = lambda _: f"I see images of these sizes: {', '.join(sizes)}"
        async for event in super().stream(messages, *args, **kwargs):
            yield event


def size_of(png: bytes) -> str:
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    return f"{width}x{height}"


def archive(prompt: Prompt) -> dict[str, Any]:
    """Functions find what isn't text in the prompt's blocks."""
    images = [block["image"]["source"]["bytes"] for block in prompt.blocks if "image" in block]
    return {"bytes": [len(image) for image in images], "seen": "2x3" in prompt}


@registry.graph("pictures")
def pictures() -> Graph:
    builder = GraphBuilder()
    viewer = Agent(name="viewer", model=Viewer(lambda _: ""), callback_handler=None)
    builder.add_node(viewer, "viewer")
    builder.add_node(function_node(archive), "archive")
    builder.add_edge("viewer", "archive")
    builder.set_max_node_executions(10)
    return builder.build()


async def main(client: Client) -> None:
    image = ContentBlock(image={"format": "png", "source": {"bytes": PNG}})
    task = [ContentBlock(text="What is this?"), image]
    result = await DurableGraph(client, "pictures").invoke_async(task)
    print(str(result.results["viewer"].result).strip())
    print(str(result.results["archive"].result).strip())


if __name__ == "__main__":
    run(main, registry)
