"""Fetches the source distribution of the installed strands-agents release."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "conformance"

_SHA256 = {"1.62.0": "8732c87f9c1ceb6ef4c5c4bd6d96b4cdf1bbfde095f1537ec2ac6fddb8d5a066"}
"""What each release that is taken in looks like. Another one is tested as it comes."""


def fetch() -> Path:
    """Return the unpacked source distribution, fetched from pip's package index if need be."""
    release = version("strands-agents")
    name = f"strands_agents-{release}"
    archive = CACHE / f"{name}.tar.gz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--disable-pip-version-check", "--no-binary", "strands-agents"),
                *("--dest", str(CACHE), f"strands-agents=={release}"),
            ],
            check=True,
        )
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != _SHA256.get(release, digest):
        raise SystemExit(f"{archive} is not the release that it should be: its SHA-256 is {digest}")
    unpacked = CACHE / name
    if not (unpacked / "tests").is_dir():
        with tarfile.open(archive) as tar:
            tar.extractall(CACHE, filter="data")
    return unpacked
