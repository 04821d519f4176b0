#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The measuring subcommands of the command line: perf, bench, try, doctor, demo. Usage:
perf_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
EXACT = [
    *shlex.split(
        "dense exact exact:mode=packed exact:mode=two-level exact:mode=sketch "
        "exact:values=reproducible"
    ),
]
LOSSY = ["quant", "quant:carrier=indices"]
CODECS = EXACT + LOSSY
TRIED = ["dense", "cast:to=bf16", "cast:to=f16", *EXACT[1:], *LOSSY, "quant:index=auto"]


def addend(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ADDEND, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, **environment},
    )


def codec_arguments(codecs: Iterable[str]) -> list[str]:
    return [word for codec in codecs for word in ("--codec", codec)]


class AddendTest(unittest.TestCase):
    def good_json(self, *arguments: object, **environment: str) -> Any:
        done = addend(*arguments, "--json", **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_refused(self, done: subprocess.CompletedProcess[str], words: str, code: int) -> None:
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(words, done.stderr)


class CommandLineTest(AddendTest):
    def test_without_a_subcommand_it_prints_help(self) -> None:
        done = addend()
        self.assertEqual(done.returncode, 0)
        for name in ("perf", "bench", "try", "pack", "add", "unpack", "info", "doctor", "demo"):
            self.assertIn(f"  {name} ", done.stdout)

    def test_version_and_help(self) -> None:
        self.assertRegex(addend("--version").stdout, r"^addend \d+\.\d+\.\d+\n$")
        for name in ("perf", "bench", "try", "doctor", "demo"):
            done = addend(name, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Examples:", done.stdout)

    def test_wrong_command_lines_exit_with_2(self) -> None:
        self.assert_refused(addend("perf", "--dtype", "f64"), "f64", 2)
        self.assert_refused(addend("perf", "--density", "1.5"), "--density", 2)
        self.assert_refused(addend("perf", "-b", "12Q"), "--begin", 2)
        self.assert_refused(addend("nonsense"), "nonsense", 2)
        self.assert_refused(addend("--simd", "Z80", "doctor"), "Z80", 2)
        self.assert_refused(addend("doctor", ADDEND_SIMD="Z80"), "Z80", 2)

    def test_simd_target_can_be_forced(self) -> None:
        self.assertEqual(self.good_json("--simd", "scalar", "doctor")["simd"], "scalar")
        self.assertEqual(self.good_json("doctor", "--simd", "scalar")["simd"], "scalar")
        self.assertEqual(self.good_json("doctor", ADDEND_SIMD="scalar")["simd"], "scalar")


class PerfTest(AddendTest):
    def sweep(self, *arguments: object) -> Any:
        found = self.good_json("perf", "-w", 1, "-n", 2, *codec_arguments(CODECS), *arguments)[
            "results"
        ]
        for row in found:
            self.assertEqual(row["wrong"], 0, row)
            # Rounding floats adds at most 2^-9 a worker in bfloat16; 4 bits leave about 0.017 of a
            # lone normal gradient.
            self.assertLess(row["nmse"], 0.03 if row["codec"] in LOSSY else 2**-14, row)
        return found

    def test_memory_grows_with_the_workers_not_with_their_square(self) -> None:
        command = f"{ADDEND} perf --workers 128 -b 8K -e 8K -w 0 -n 1 -c dense --threads 1"
        process = subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertLess(used.ru_maxrss, 1 << 20)  # KiB; 0.6 GiB are two huge pages a worker

    def test_processes_connect_to_each_other(self) -> None:
        with contextlib.ExitStack() as stack:  # ports that nobody has now
            sockets = [
                stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)
            ]
            peers = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
        command = [
            ADDEND,
            *shlex.split(
                f"perf --reducer mesh --peers {peers} -b 64K -e 1M -f 16 -w 1 -n 2 --json"
            ),
            *codec_arguments(CODECS),
            "--worker",
        ]
        workers = [
            subprocess.Popen(
                [*command, str(w)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for w in range(3)
        ]
        outputs = [worker.communicate(timeout=300) for worker in workers]
        self.assertEqual([worker.returncode for worker in workers], [0, 0, 0], outputs)
        rows = json.loads(outputs[0][0])["results"]
        self.assertEqual([row["wrong"] for row in rows], [0] * 2 * len(CODECS), rows)

    def test_a_mesh_needs_addresses(self) -> None:
        self.assert_refused(addend("perf", "--reducer", "mesh"), "--peers", 1)

    def test_pieces_are_right_and_their_bytes_are_counted_together(self) -> None:
        size = ("-b", "1M", "-e", "1M", "--workers", 2)
        whole = self.sweep(*size)
        for row, cut in zip(whole, self.sweep(*size, "--piece", "200K"), strict=True):
            if row["codec"] in ("dense", "exact:mode=packed"):
                self.assertEqual(cut["wire_bytes"], row["wire_bytes"], cut)
        self.assert_refused(addend("perf", *size, "--piece", "16383"), "piece", 1)

    def test_every_codec_is_right_over_a_sweep(self) -> None:
        rows = self.sweep("-b", "4K", "-e", "1M", "-f", 16, "--workers", 3)
        self.assertEqual(
            [r["bytes"] for r in rows], [size for size in (4096, 65536, 1 << 20) for _ in CODECS]
        )
        self.assertEqual([r["codec"] for r in rows[: len(CODECS)]], CODECS)
        for row in rows:
            self.assertGreater(row["time_us"], 0)
            self.assertAlmostEqual(row["busbw_gb_per_s"], row["algbw_gb_per_s"] * 2 * 2 / 3)
            self.assertAlmostEqual(row["algbw_gb_per_s"], row["bytes"] / row["time_us"] * 1e-3)

    def test_modes_run_as_asked(self) -> None:
        rows = self.sweep("-b", "1M", "-e", "1M", "--density", 0.02)
        self.assertEqual(
            [r["mode"] for r in rows if ":mode=" in r["codec"]], ["packed", "two-level", "sketch"]
        )
        by_codec = {r["codec"]: r for r in rows}
        self.assertEqual(by_codec["dense"]["wire_bytes"], 1 << 20)
        self.assertLess(by_codec["exact:mode=packed"]["wire_bytes"], (1 << 20) / 4)

    def test_overlap_sets_the_union(self) -> None:
        for overlap, union in (("none", 0.08), ("random", 1 - 0.98**4), ("full", 0.02)):
            for row in self.sweep("-b", "1M", "-e", "1M", "--density", 0.02, "--overlap", overlap):
                self.assertAlmostEqual(row["union_density"], union, delta=0.006)

    def test_types_rows_values_and_odd_sizes(self) -> None:
        self.sweep("-b", 100003, "-e", 100003, "--dtype", "bf16", "--rows", 64)
        self.sweep("-b", 100002, "-e", 100002, "--dtype", "f16", "--values", "integers")
        self.sweep("-b", "256K", "-e", "256K", "--values", "lognormal", "--sigma", 4)
        self.sweep("-b", 4, "-e", 16, "-f", 2, "--density", 1, "--workers", 1)
        self.sweep("-b", "64K", "-e", "64K", "--density", 0, "--workers", 2)

    def quantised(self, *arguments: object, density: float = 1) -> Any:
        found = self.good_json(
            "perf", "-b", "1M", "-e", "1M", "-w", 1, "-n", 1, "--density", density, *arguments
        )["results"]
        self.assertEqual([row["wrong"] for row in found], [0] * len(found), found)
        # Of one step.
        self.assertEqual([row["mean_us"] for row in found], [row["time_us"] for row in found])
        return [row["nmse"] for row in found]

    def test_more_bits_less_error(self) -> None:
        errors = self.quantised(*codec_arguments(f"quant:bits={bits}" for bits in range(1, 9)))
        for fewer, more in zip(errors, errors[1:]):
            self.assertLess(more, fewer / 2)
        self.assertLess(errors[3], 0.01)

    def test_every_kind_of_quantiser_is_within_its_bound(self) -> None:
        kinds = [
            *shlex.split(
                "bits=auto,budget=3 levels=uniform,rotate=none "
                "levels=published,rounding=independent feedback=float feedback=byte,bits=2 "
                "block=64 block=whole clipped=0.4 rotate=none,feedback=float"
            ),
        ]
        codecs = codec_arguments(f"quant:{kind}" for kind in kinds)
        for more in (
            (),
            ("--values", "lognormal", "--sigma", 2, "--dtype", "f16"),
            ("--dtype", "bf16", "--workers", 1),
        ):
            for density in (1, 0.001):
                self.quantised(*codecs, *more, density=density)

    def test_averaging_over_workers_averages_errors(self) -> None:
        (alone,) = self.quantised("--codec", "quant:bits=4", "--workers", 1)
        (eight,) = self.quantised("--codec", "quant:bits=4", "--workers", 8)
        self.assertLess(eight, alone / 2)

    def test_same_seed_same_numbers(self) -> None:
        def run() -> Any:
            rows = self.sweep("-b", "64K", "-e", "64K", "--seed", 9)
            return [(r["union_density"], r["wire_bytes"], r["mode"], r["nmse"]) for r in rows]

        self.assertEqual(run(), run())

    def test_table_has_the_habitual_columns(self) -> None:
        done = addend("perf", "-b", "64K", "-e", "64K", "-n", 1, "--seed", 7)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("seed 7", done.stdout)
        for column in (
            "size",
            "count",
            "codec",
            "mode",
            "union",
            "wire",
            "time us",
            "algbw",
            "busbw",
            "x dense",
            "nmse",
            "#wrong",
        ):
            self.assertIn(column, done.stdout)

    def test_impossible_requests_are_named(self) -> None:
        self.assert_refused(addend("perf", "--codec", "nonsense"), "nonsense", 1)
        self.assert_refused(addend("perf", "--codec", "exact:mode=upside-down"), "upside-down", 1)
        self.assert_refused(addend("perf", "--codec", "quant:bits=9"), "bits", 1)
        self.assert_refused(
            addend("perf", "-b", "2M", "-e", "1M"), "ends (-e) before it begins (-b)", 1
        )
        self.assert_refused(addend("perf", "--overlap", "none", "--density", 0.5), "overlap", 1)


def write_npy(
    path: Path,
    values: Sequence[float],
    shape: tuple[int, ...] | None = None,
    descr: str = "<f4",
) -> Path:
    shape = shape or (len(values),)
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    data = (
        array.array("f", values).tobytes()
        if descr == "<f4"
        else struct.pack(f"<{len(values)}e", *values)
    )
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)
    return path


class TryTest(AddendTest):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name: str) -> Path:
        return Path(self.folder.name) / name

    def test_reports_every_codec(self) -> None:
        files = [
            write_npy(self.file(f"{w}.npy"), [(i % 97 == w) * (i + w + 0.5) for i in range(20000)])
            for w in range(3)
        ]
        found = self.good_json("try", *files)
        self.assertEqual([r["codec"] for r in found["results"]], TRIED)
        self.assertAlmostEqual(found["union_density"], 3 / 97, places=3)
        for row in found["results"]:
            self.assertEqual(row["wrong"], 0)
            lossy = row["codec"] not in EXACT
            self.assertEqual(
                row["answer"], "lossy" if lossy else "exact"
            )  # disjoint: nothing is ever rounded
            self.assertEqual(row["nmse"] > 0, lossy)
            self.assertLess(row["nmse"], 0.03)
            self.assertEqual(sum(row["round_bytes"]), row["wire_bytes"])
        packed = found["results"][TRIED.index("exact:mode=packed")]
        self.assertLess(packed["wire_bytes"], 80000 / 4)

    def test_matrices_are_tried_with_few_directions(self) -> None:
        rank_one = [(i % 50 - 20) * (i // 50 + 1.0) for i in range(50 * 40)]
        files = [
            write_npy(self.file(f"{w}.npy"), [(w + 1) * x for x in rank_one], (40, 5, 10))
            for w in range(2)
        ]
        results = self.good_json("try", *files)["results"]
        self.assertEqual([r["codec"] for r in results[-2:]], ["lowrank:rank=1", "lowrank:rank=4"])
        self.assertEqual([r["codec"] for r in results[:-2]], TRIED)
        for rank, row in zip((1, 4), results[-2:]):
            self.assertEqual(row["mode"], "lowrank")
            self.assertEqual(row["round_bytes"], [4 * rank * 40, 4 * rank * 50])
            self.assertEqual((row["answer"], row["wrong"]), ("lossy", 0))
            self.assertLess(row["nmse"], 1e-9)

    def test_prints_a_table(self) -> None:
        files = [write_npy(self.file(f"{w}.npy"), [0.1 * w, 0, 3.5, -1], (2, 2)) for w in range(2)]
        done = addend("try", *files, "--codec", "exact")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("bytes by round", done.stdout)
        self.assertIn("nmse", done.stdout)

    def test_half_precision_and_non_finite_values(self) -> None:
        inf, nan = float("inf"), float("nan")
        files = [
            write_npy(self.file("a.npy"), [1.5, inf, nan, 0, 65504], descr="<f2"),
            write_npy(self.file("b.npy"), [2.5, -inf, 1, -0.0, 65504], descr="<f2"),
        ]
        for row in self.good_json("try", *files)["results"]:
            self.assertEqual(row["wrong"], 0, row)

    def test_a_quantised_nan_takes_its_block_only(self) -> None:
        values = [1.0] * 5000
        files = [
            write_npy(self.file("a.npy"), values),
            write_npy(self.file("b.npy"), [float("nan"), *values[1:]]),
        ]
        for row in self.good_json("try", *files, *codec_arguments(LOSSY))["results"]:
            self.assertEqual(row["answer"], "lossy", row)
            self.assertGreater(row["nmse"], 0)
        done = addend("try", *files, "--codec", "quant:nonfinite=error")
        self.assertEqual(done.returncode, 1)

    def test_mismatches_and_missing_files_are_named(self) -> None:
        first = write_npy(self.file("a.npy"), [1, 2, 3, 4])
        other_shape = write_npy(self.file("b.npy"), [1, 2, 3, 4], (2, 2))
        other_type = write_npy(self.file("c.npy"), [1, 2, 3, 4], descr="<f2")
        self.assert_refused(addend("try", first, other_shape), "mismatch", 1)
        self.assert_refused(addend("try", first, other_shape), "(2, 2)", 1)
        self.assert_refused(addend("try", first, other_type), "f16", 1)
        self.assert_refused(addend("try", first, self.file("none.npy")), "none.npy", 1)
        self.assert_refused(addend("try"), "files", 2)


class DoctorTest(AddendTest):
    def test_words_and_json_agree(self) -> None:
        found = self.good_json("doctor")
        self.assertIn(found["simd"], found["simd_targets"])
        self.assertEqual(found["simd_targets"][-1], "scalar")
        self.assertEqual(found["cuda_backend"], bool(found["cuda_devices"]))
        self.assertEqual(found["no_cuda"] == "", found["cuda_backend"])
        words = addend("doctor").stdout
        for topic in (
            "SIMD",
            "cores",
            "memory",
            "MPI",
            "CUDA",
            "BPF",
            found["version"],
            found["simd"],
        ):
            self.assertIn(topic, words)


class BenchTest(AddendTest):
    def test_quick_checks_answers_and_bytes(self) -> None:
        found = self.good_json("bench", "--quick", "--repeats", 1)
        verdicts = {bar["name"]: bar["verdict"] for bar in found["bars"]}
        self.assertIn("PASS", verdicts.values())
        self.assertIn("not judged", verdicts.values())
        self.assertEqual(
            len([line for line in found["folds"] if not line["op"].startswith("quant")]), 11
        )
        for name, verdict in verdicts.items():
            if "NMSE" in name or "bits on the wire" in name:
                self.assertEqual(verdict, "PASS", name)
        for part in (
            "quant levels: encode",
            "quant levels: decode",
            "quant indices: bits",
            "quant table sum",
            "NMSE",
        ):
            self.assertTrue(any(part in name for name in verdicts), part)

    def test_only_selects_subjects(self) -> None:
        found = self.good_json("bench", "--quick", "--repeats", 1, "--only", "fold or")
        self.assertEqual([line["op"] for line in found["folds"]], ["or_u64"])
        self.assertEqual(found["codecs"], [])
        found = self.good_json("bench", "--quick", "--repeats", 1, "--only", "quant")
        indexed = ["quant:index=packed", "quant:index=two-level"]
        factors = "lowrank:rank=4,factors=quant"
        narrow = [f"quant:bits={bits},down=4" for bits in (1, 2, 3, 4)]
        quantised = ["quant:bits=4", "quant:carrier=indices", "quant:bits=8,down=8", *narrow]
        alone = [line["codec"] for line in found["codecs"] if "threads" not in line["subject"]]
        owing = ["quant:feedback=float", "quant:feedback=float,norms=ahead"]
        self.assertEqual(alone, ["quant", *owing, *indexed, factors, *quantised])


class DemoTest(AddendTest):
    TINY = ("--scale", 0.01, "--steps", 2, "--workers", 2)

    def test_every_model_and_codec_is_right(self) -> None:
        found = self.good_json("demo", *self.TINY)
        self.assertEqual(
            [m["name"] for m in found["models"]], ["recommender", "language", "vision"]
        )
        for model in found["models"]:
            self.assertEqual([r["codec"] for r in model["results"]], TRIED)
            for row in model["results"]:
                self.assertEqual(row["wrong"], 0)
                self.assertEqual(len(row["step_us"]), 2)
                self.assertTrue(row["replicas_identical"])
                self.assertEqual(row["lossy"], row["codec"] not in EXACT)
                if row["lossy"]:
                    self.assertRegex(row["answer"], r"^nmse ")
                    self.assertLess(row["nmse"], 0.03)

    def test_prints_tables_and_progress_and_writes_json(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "report.json"
            done = addend(
                "demo",
                *self.TINY,
                *shlex.split(
                    f"--models recommender,vision --codec dense --codec exact --out {out}"
                ),
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("[4/4] vision through exact", done.stderr)
            self.assertIn("ESTIMATE", done.stdout)
            self.assertEqual(len(json.loads(out.read_text())["models"]), 2)

    def test_unknown_models_and_unwritable_files_are_named(self) -> None:
        self.assert_refused(addend("demo", "--models", "resnet"), "resnet", 1)
        done = addend(
            "demo", *self.TINY, "--models", "vision", "--codec", "dense", "--out", "/nowhere/x.json"
        )
        self.assert_refused(done, "/nowhere/x.json", 1)


if __name__ == "__main__":
    unittest.main()
