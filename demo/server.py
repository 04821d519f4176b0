# SPDX-License-Identifier: Apache-2.0
"""An aggregation server beside the workers, where a run asks for one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from demo.network import Place
from demo.processes import PATIENCE_SECONDS, WorkerFailed

PORT = 7700  # of a namespace of its own
KEY = "server.key"


@contextlib.contextmanager
def open_server(command: str, place: Place, folder: Path) -> Iterator[str]:
    """Runs `addend serve` at a place, with a key in `folder`. Its address."""
    key = folder / KEY
    subprocess.run([command, "keygen", str(key)], check=True, capture_output=True)
    asked = [command, "serve", "--key", str(key), "--port", str(PORT)]
    process = subprocess.Popen([*place.prefix, *asked], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "control" in line:
                break
        else:
            raise WorkerFailed(f"the server ended: {''.join(said)}")
        yield f"{place.address}:{PORT}"
    finally:
        process.terminate()
        try:
            process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
