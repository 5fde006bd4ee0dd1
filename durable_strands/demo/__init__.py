"""The demo: a graph over a real document, a worker killed in the middle, and the accounts.

`graphs` is an example of what a user writes. `run` is the show around it.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `durable-strands demo`."""
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="text to make a brief of (default: this project's README)",
    )
    parser.add_argument(
        "--model",
        default="offline",
        metavar="PROVIDER:NAME",
        help="a model of Strands': bedrock, anthropic, openai, ollama, gemini, litellm or mistral, "
        "and its name there (default: a small extractive model that needs no key)",
    )
    parser.add_argument(
        "--price",
        metavar="IN[,OUT]",
        help="the model's price per million tokens, to count in money too",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep server, UI and worker up afterwards"
    )
    parser.add_argument("--port", type=_port, metavar="N", help="the server's port (default: free)")
    parser.add_argument("--ui-port", type=_port, metavar="N", help="the UI's port (default: free)")


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError("must be from 1 to 65535")
    return number
