# SPDX-License-Identifier: Apache-2.0
"""Log lines in the habit of NCCL_DEBUG.

ADDEND_DEBUG=WARN|INFO|TRACE sets the level (WARN), ADDEND_DEBUG_SUBSYS=INIT,PLAN,... keeps only
some subsystems, ADDEND_DEBUG_FILE=/path/%h.%p.log writes to a file (%h: host name, %p: process id).
"""

import logging
import os
import socket
import sys

TRACE = 5

_LEVELS = {"WARN": logging.WARNING, "INFO": logging.INFO, "TRACE": TRACE}

INIT = logging.getLogger("addend.init")  # what was set up, once
PLAN = logging.getLogger("addend.plan")  # layouts, codecs, decisions
STATE = logging.getLogger("addend.state")  # checkpoints
FAULT = logging.getLogger("addend.fault")  # peers that are late or gone


def _configure() -> None:
    logging.addLevelName(TRACE, "TRACE")
    root = logging.getLogger("addend")
    word = os.environ.get("ADDEND_DEBUG", "").upper()
    if not word:
        return  # the application's own logging configuration decides
    root.setLevel(_LEVELS.get(word, logging.WARNING))
    pattern = os.environ.get("ADDEND_DEBUG_FILE", "")
    handler: logging.Handler
    if pattern:
        path = pattern.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
        handler = logging.FileHandler(path, delay=True)
    else:
        handler = logging.StreamHandler(sys.stderr)
    wanted = {w.lower() for w in os.environ.get("ADDEND_DEBUG_SUBSYS", "").split(",") if w}
    if wanted:
        handler.addFilter(lambda record: record.name.rpartition(".")[2] in wanted)
    host, pid = socket.gethostname(), os.getpid()
    handler.setFormatter(logging.Formatter(f"{host}:{pid} addend %(levelname)s %(message)s"))
    root.addHandler(handler)
    root.propagate = False
    if word not in _LEVELS:
        INIT.warning("ADDEND_DEBUG=%s is not one of %s", word, "|".join(_LEVELS))


_configure()
