# SPDX-License-Identifier: Apache-2.0
"""Trains every model with every codec and writes the report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

import addend
from addend.controller import factors
from demo import hooks
from demo.checks import check_runs
from demo.collect import collect
from demo.models import MODELS
from demo.models.words import TextMissing
from demo.network import Network, open_network
from demo.processes import ROOT, Message, WorkerFailed, Workers
from demo.server import open_server
from demo.training import ADAPTIVE, BASELINE, Run, is_adaptive

CODECS = ["exact", "quant:bits=4,feedback=float", "cast:bf16", "lowrank", *hooks.NAMES, ADAPTIVE]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Train real models over links of a chosen speed: plain DDP against addend.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=_at_least(2), default=4, help="processes, one thread each")
    add("--gbit", type=_speed, default=1.0, help="speed of a link each way; 0: not shaped")
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="what to train")
    add("--codecs", nargs="+", type=_spec, default=CODECS, help="what runs after plain DDP")
    add("--steps", type=_at_least(1), help="of every model (its own number if not given)")
    add("--seed", type=_at_least(0), default=1, help="of data, start and codecs")
    add("--server", metavar="ADDEND", help="codecs' sums go over a server that this command runs")
    add("--out", type=Path, default=Path("out/report.html"), help="report; a .json beside it")
    options = parser.parse_args(arguments)
    options.codecs = [codec for codec in options.codecs if codec != BASELINE]
    return options


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return int(text)

    return number


def _spec(text: str) -> str:
    """Refuses at once what would otherwise fail after minutes."""
    if text != BASELINE and text not in hooks.NAMES:
        try:
            if is_adaptive(text):
                factors(text.partition(":")[2])
            else:
                addend.Codec(text, dtype="float32", count=1, world=1, worker=0).close()
        except addend.Error as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _speed(text: str) -> float:
    # Slower than 1 Mbit/s nothing ends; faster than 100 Gbit/s no such filter works.
    if float(text) != 0 and not 1e-3 <= float(text) <= 100:
        raise argparse.ArgumentTypeError("must be 0 or from 0.001 to 100")
    return float(text)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    for number in SIGNALS:
        signal.signal(number, _leave)
    try:
        document = run_all(options)
    except (TextMissing, WorkerFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    write(document, options.out)
    print(f"report: {options.out}")
    return status(document["checks"])


def status(checks: list[dict[str, Any]]) -> int:
    failed = [check for check in checks if not check["passed"]]
    for check in failed:
        print(f"demo: FAILED: {check['claim']}: {check['detail']}", file=sys.stderr)
    return 1 if failed else 0


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    for other in SIGNALS:  # cleaning up is not to be interrupted
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    runs = [
        Run(name, codec, options.steps or MODELS[name].STEPS, options.seed)
        for name in options.models
        for codec in [BASELINE, *options.codecs]
    ]
    with tempfile.TemporaryDirectory(prefix="addend-demo-") as folder:
        for name in options.models:
            MODELS[name].prepare(Path(folder), options.seed)
        with open_network(options.workers, options.gbit) as network, ExitStack() as stack:
            print(f"{options.workers} workers, {network.note}", file=sys.stderr)
            server = None
            if options.server:
                if network.server is None:
                    raise WorkerFailed(f"--server has no place to run at: {network.note}")
                opened = open_server(options.server, network.server, Path(folder))
                server = stack.enter_context(opened)
            tasks = [_task(i, network, Path(folder), runs, server) for i in range(options.workers)]
            with Workers(network.places, tasks) as workers:
                models = collect(workers.messages(), runs, options.workers)
    return {
        "kind": "addend training",
        "workers": options.workers,
        "gbit": network.gbit,
        "network": network.note + (", sums over a server" if options.server else ""),
        "seed": options.seed,
        "baseline": BASELINE,
        "machine": machine(),
        "models": models,
        "checks": [check for model in models for check in check_runs(model)],
    }


def _task(
    number: int, network: Network, folder: Path, runs: list[Run], server: str | None
) -> Message:
    counter = network.places[number].sent_bytes
    return {
        "worker": number,
        "world": len(network.places),
        "folder": str(folder),
        "sent_bytes": str(counter) if counter else None,
        "server": server,
        "runs": [vars(run) for run in runs],
    }


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "addend": addend.__version__,
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def write(document: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    data = out.with_suffix(".json")
    data.write_text(json.dumps(document, indent=1), encoding="utf-8")
    command = [sys.executable, str(ROOT / "tools/report.py"), str(data), "-o", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
