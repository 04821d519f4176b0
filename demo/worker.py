# SPDX-License-Identifier: Apache-2.0
"""One worker process of the demo: `python -m demo.worker`, started by demo.launch.

Reads its task as a JSON line from standard input; writes JSON lines to standard output.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from demo.training import Group, Run, train

PATIENCE = datetime.timedelta(minutes=5)


def emit(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _leave_when_alone() -> None:
    """Ends the process when nobody holds the other end of standard input any more."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_when_alone, daemon=True).start()
    torch.set_num_threads(1)
    counter = task["sent_bytes"]
    group = Group(
        worker=task["worker"],
        world=task["world"],
        folder=Path(task["folder"]),
        sent_bytes=Path(counter) if counter else None,
        server=task["server"],
    )
    # A file for the rendezvous: no port to find, and no traffic of it on the links.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{group.folder}/rendezvous",
        rank=group.worker,
        world_size=group.world,
        timeout=PATIENCE,
    )
    for number, run in enumerate(task["runs"]):
        train(Run(**run), group, functools.partial(emit, run=number))
    dist.destroy_process_group()
    # A thread of torch's may still be about to let go of a hook's last callback, and aborts the
    # process if the interpreter is being taken down by then.
    os._exit(0)


if __name__ == "__main__":
    main()
