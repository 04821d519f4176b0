# SPDX-License-Identifier: Apache-2.0
"""The demo as a whole, small: every model, on loopback and, where they can be had, shaped links."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from demo import hooks, network  # noqa: E402
from demo.processes import WorkerFailed, Workers  # noqa: E402

CODECS = ["exact", "exact:values=reproducible", "quant:bits=4,feedback=float"]
MODELS = ["ncf", "digits"] + (["words"] if shutil.which("bible") else [])
LOOPBACK = network.Place(prefix=(), interface="lo", address="127.0.0.1", sent_bytes=None)


def why_not_shaped() -> str:
    with network.open_network(1, 1.0) as made:
        return "" if made.gbit else made.note


WHY_NOT_SHAPED = why_not_shaped()
needs_shaping = pytest.mark.skipif(bool(WHY_NOT_SHAPED), reason=WHY_NOT_SHAPED)


def start_demo(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_demo(
    out: Path, *arguments: str, models: list[str] = MODELS, codecs: list[str] = CODECS
) -> dict[str, Any]:
    """The written document of two workers and six steps."""
    what = ["--models", *models, "--codecs", *codecs]
    demo = start_demo("--workers", "2", "--steps", "6", "--out", str(out), *what, *arguments)
    output, _ = demo.communicate(timeout=500)
    assert demo.returncode == 0, output
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    document: dict[str, Any] = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    return document


def namespaces_of(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(f"addend-{pid}-")]


def check_document(document: dict[str, Any]) -> None:
    assert [model["name"] for model in document["models"]] == MODELS
    assert all(check["passed"] for check in document["checks"])
    for model in document["models"]:
        runs = {run["codec"]: run for run in model["runs"]}
        assert list(runs) == ["ddp", *CODECS]
        assert all(run["replicas_identical"] for run in runs.values())
        # A sum of two has one order only, so even rounding is the same.
        assert runs["exact"]["losses"] == runs["ddp"]["losses"]
        assert runs[CODECS[-1]]["losses"] != runs["ddp"]["losses"]
        assert runs[CODECS[-1]]["wire_bytes"] < 0.3 * model["dense_bytes"]


def test_trains_every_model_on_loopback(tmp_path: Path) -> None:
    document = run_demo(tmp_path / "out/report.html", "--gbit", "0")
    check_document(document)
    assert document["gbit"] is None
    assert "not shaped" in document["network"]
    assert all(run["link_bytes"] is None for m in document["models"] for run in m["runs"])


def test_torchs_own_hooks_run_beside_codecs(tmp_path: Path) -> None:
    codecs = ["cast:bf16", "lowrank", "torch:bf16", hooks.POWERSGD]
    out = tmp_path / "report.html"
    (model,) = run_demo(out, "--gbit", "0", models=["digits"], codecs=codecs)["models"]
    assert all(run["replicas_identical"] for run in model["runs"])
    handed = {run["codec"]: run["wire_bytes"] / model["dense_bytes"] for run in model["runs"]}
    assert list(handed) == ["ddp", *codecs]
    assert handed["torch:bf16"] == handed["cast:bf16"] == 0.5
    # The same factors of the same matrices, but for torch's plain steps, two of six.
    assert (6 * handed[hooks.POWERSGD] - 2) / 4 >= handed["lowrank"]
    assert handed["lowrank"] < 0.1
    page = out.read_text(encoding="utf-8")
    assert all(name in page for name in codecs)


def test_an_adaptive_run_shows_what_it_decided_when(tmp_path: Path) -> None:
    out, codec = tmp_path / "report.html", "adaptive:window=4,window_s=0"
    arguments = ("--gbit", "0", "--steps", "14")
    (model,) = run_demo(out, *arguments, models=["digits"], codecs=[codec])["models"]
    ddp, run = model["runs"]
    assert run["codec"] == codec
    assert run["replicas_identical"]
    assert ddp["decisions"] is None
    # A window ends after four steps, and DDP lays its buckets out anew in the first ones.
    steps = [one["step"] for one in run["decisions"]]
    assert len(steps) >= 2
    assert steps == sorted(steps)
    assert 4 <= steps[0] <= 8
    for one in run["decisions"]:
        assert len(one["codecs"]) == len(one["why"]) == len(one["elements"]) >= 1
        assert sum(one["elements"]) == model["parameters"]
        assert one["realised_s"] > 0
    page = out.read_text(encoding="utf-8")
    assert f"What {codec} decided" in page
    assert page.count("<rect") >= len(steps)


@needs_shaping
def test_trains_every_model_on_shaped_links(tmp_path: Path) -> None:
    document = run_demo(tmp_path / "report.html", "--gbit", "2")
    check_document(document)
    assert document["gbit"] == 2
    for model in document["models"]:
        dense_bytes = model["dense_bytes"]
        ddp = next(run for run in model["runs"] if run["codec"] == "ddp")
        # Two workers send each other half of the gradient twice; the rest is headers. A step's last
        # packets may be counted in the next one, and those of the last in none.
        assert 0.9 * dense_bytes <= ddp["link_bytes"] <= 1.2 * dense_bytes
        # No faster than the link carries it, less what a full bucket lets pass at once.
        assert ddp["median_step_s"] >= (dense_bytes - 1_000_000) * 8 / 2e9


@needs_shaping
def test_codecs_may_sum_over_a_server(tmp_path: Path) -> None:
    command = os.environ.get("ADDEND_COMMAND") or shutil.which("addend")
    if command is None:
        pytest.skip("no `addend` command: name it in ADDEND_COMMAND")
    arguments = ["--gbit", "2", "--server", command]
    document = run_demo(tmp_path / "r.html", *arguments, models=["digits"], codecs=["exact"])
    assert document["network"].endswith("sums over a server")
    # attach fails where no server answers, and run_demo where losses are not those of plain DDP.
    assert [run["codec"] for run in document["models"][0]["runs"]] == ["ddp", "exact"]


@needs_shaping
def test_links_are_as_slow_as_asked() -> None:
    count, gbit = 4_000_000, 0.1
    receive = (
        "import socket, sys, time\n"
        "server = socket.create_server(('10.0.0.1', 0))\n"
        "print(server.getsockname()[1], flush=True)\n"
        "peer, _ = server.accept()\n"
        "begin, left = time.perf_counter(), int(sys.argv[1])\n"
        "while left: left -= len(peer.recv(min(left, 1 << 16)))\n"
        "print(time.perf_counter() - begin)\n"
    )
    send = (
        "import socket, sys\n"
        "port, count = map(int, sys.argv[1:])\n"
        "socket.create_connection(('10.0.0.1', port)).sendall(bytes(count))\n"
    )
    with network.open_network(2, gbit) as made:
        command = [*made.places[0].prefix, sys.executable, "-c", receive, str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
            assert receiver.stdout is not None
            port = receiver.stdout.readline().strip()
            arguments = [sys.executable, "-c", send, port, str(count)]
            subprocess.run([*made.places[1].prefix, *arguments], check=True, timeout=60)
            seconds = float(receiver.stdout.readline())
    assert seconds >= 0.9 * count * 8 / (gbit * 1e9)


def test_links_are_not_shaped_without_rights_or_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with network.open_network(2, 1.0) as made:
        assert "iproute2" in made.note
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with network.open_network(2, 1.0) as made:
        assert "root" in made.note
        assert made.gbit is None
        assert made.places == [LOOPBACK, LOOPBACK]


@needs_shaping
def test_half_made_links_are_taken_down_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise network.NoNamespaces("no such filter")

    monkeypatch.setattr(network, "_plug_in", refuse)
    with network.open_network(2, 1.0) as made:
        assert "no such filter" in made.note
        assert namespaces_of(os.getpid()) == []


def test_leaves_nothing_behind_when_told_to_end(tmp_path: Path) -> None:
    demo = start_demo("--workers", "2", "--models", "digits", "--out", str(tmp_path / "r.html"))
    assert demo.stdout is not None
    for line in demo.stdout:  # the workers are up when the first run is done
        if line.startswith("digits"):
            break
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    assert len(children) == 2
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=60)
    assert demo.returncode == 128 + signal.SIGTERM
    assert not any(Path("/proc", child).exists() for child in children)
    if not WHY_NOT_SHAPED:
        assert namespaces_of(demo.pid) == []


def test_workers_do_not_outlive_a_killed_demo(tmp_path: Path) -> None:
    arguments = ["--workers", "2", "--gbit", "0", "--models", "digits", "--steps", "100000"]
    demo = start_demo(*arguments, "--out", str(tmp_path / "r.html"))
    assert demo.stdout is not None
    demo.stdout.readline()  # printed just before the workers start
    path = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
    while len(path.read_text().split()) < 2:
        assert demo.poll() is None
    demo.kill()
    # Workers hold the pipe's other end: it ends when the last of them has.
    demo.communicate(timeout=60)


def test_a_failed_worker_ends_the_others_and_is_quoted() -> None:
    task = {"worker": 0, "world": 2, "folder": "/nowhere", "sent_bytes": None, "server": None}
    task["runs"] = []
    with Workers([LOOPBACK, LOOPBACK], [{**task, "worker": 1}, {"no": "task"}]) as workers:
        with pytest.raises(WorkerFailed, match=r"worker 1 ended with 1:\n(.|\n)*KeyError"):
            list(workers.messages())
        processes = workers._processes
    assert all(process.returncode is not None for process in processes)


@pytest.mark.parametrize(
    ("arguments", "path", "words"),
    [
        (["--models", "words"], "/nowhere", "bible-kjv-text"),
        (["--gbit", "-1"], None, "must be 0 or from 0.001 to 100"),
        (["--workers", "1"], None, "must be at least 2"),
        (["--codecs", "zip"], None, "zip"),
    ],
)
def test_says_what_is_wrong(
    tmp_path: Path, arguments: list[str], path: str | None, words: str
) -> None:
    environment = {"PATH": path} if path else {}
    demo = start_demo("--out", str(tmp_path / "report.html"), *arguments, **environment)
    output, _ = demo.communicate(timeout=100)
    assert demo.returncode in (1, 2)
    assert words in output
    assert "Traceback" not in output
    assert not (tmp_path / "report.html").exists()
