"""An MCP server over stdio, for tests of agents with MCP tools."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return f"the sum is {a + b}"


if __name__ == "__main__":
    server.run()
