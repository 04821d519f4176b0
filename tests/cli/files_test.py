#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pack, add, unpack and info as a user runs them: files_test.py ADDEND [unittest arguments].

Only the standard library; .npy files are written and read by hand, expected sums are fractions
rounded once.
"""

from __future__ import annotations

import ast
import json
import math
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

ADDEND = ""

# descr, bytes, significand bits (with the hidden one), smallest normal exponent, largest exponent
Dtype = tuple[str, int, int, int, int]
F32 = ("<f4", 4, 24, -126, 127)
F16 = ("<f2", 2, 11, -14, 15)
BF16 = ("<V2", 2, 8, -126, 127)


def to_bytes(dtype: Dtype, values: Sequence[float]) -> bytes:
    if dtype is F32:
        return struct.pack(f"<{len(values)}f", *values)
    if dtype is F16:
        return struct.pack(f"<{len(values)}e", *values)
    # Callers pass values that bfloat16 holds, so cutting off is exact.
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def from_bytes(dtype: Dtype, data: bytes) -> list[float]:
    count = len(data) // dtype[1]
    if dtype is F32:
        return list(struct.unpack(f"<{count}f", data))
    if dtype is F16:
        return list(struct.unpack(f"<{count}e", data))
    return [struct.unpack("<f", b"\0\0" + data[2 * i : 2 * i + 2])[0] for i in range(count)]


def round_to(dtype: Dtype, exact: Fraction) -> float:
    """The nearest value of dtype, ties to even."""
    if exact == 0:
        return 0.0
    _, _, bits, low, high = dtype
    exponent = math.floor(math.log2(abs(exact)))
    # log2 of a fraction may be off by one at powers of two.
    while Fraction(2) ** exponent > abs(exact):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(exact):
        exponent += 1
    quantum = Fraction(2) ** (max(exponent, low) - bits + 1)
    rounded = round(exact / quantum) * quantum
    if abs(rounded) >= Fraction(2) ** (high + 1):
        return math.copysign(math.inf, exact)
    return float(rounded)


def exact_sum(dtype: Dtype, gradients: Sequence[Sequence[float]]) -> list[float]:
    sums: list[float] = []
    for values in zip(*gradients):
        if all(math.isfinite(value) for value in values):
            sums.append(round_to(dtype, sum(map(Fraction, values), Fraction(0))))
        else:
            sums.append(sum(values))
    return sums


def write_npy(
    path: Path,
    dtype: Dtype,
    values: Sequence[float],
    shape: tuple[int, ...] | None = None,
    descr: str | None = None,
    fortran: str = "False",
) -> None:
    shape = (len(values),) if shape is None else shape
    header = f"{{'descr': '{descr or dtype[0]}', 'fortran_order': {fortran}, 'shape': {shape!r}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    preamble = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    Path(path).write_bytes(preamble + to_bytes(dtype, values))


def read_npy(path: Path, dtype: Dtype) -> tuple[tuple[int, ...], list[float]]:
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<H", data[8:10])
    header = ast.literal_eval(data[10 : 10 + length].decode())
    assert (header["descr"], header["fortran_order"]) == (dtype[0], False), header
    return header["shape"], from_bytes(dtype, data[10 + length :])


def random_value(dtype: Dtype, rng: random.Random, exponents: tuple[int, int]) -> float:
    significand = rng.randrange(1 << (dtype[2] - 1), 1 << dtype[2])
    value = math.ldexp(significand, rng.randint(*exponents) - dtype[2])
    return rng.choice((-1, 1)) * value


def sparse(
    dtype: Dtype, count: int, density: float, seed: int, exponents: tuple[int, int] = (-12, 6)
) -> list[float]:
    rng = random.Random(seed)
    return [
        random_value(dtype, rng, exponents) if rng.random() < density else 0.0 for _ in range(count)
    ]


class FilesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="addend-cli-"))
        self.addCleanup(shutil.rmtree, self.dir)

    def run_addend(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [ADDEND, *map(str, arguments)]
        return subprocess.run(command, cwd=self.dir, capture_output=True, text=True, timeout=300)

    def ok(self, *arguments: object) -> str:
        done = self.run_addend(*arguments)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done.stdout

    def refused(self, *arguments: object, code: str, words: Sequence[str] = ()) -> str:
        """The command must fail with the named error, and leave the directory as it was."""
        before = self.listing()
        done = self.run_addend(*arguments)
        self.assertEqual(done.returncode, 1, f"{arguments}: {done.stdout}{done.stderr}")
        self.assertIn(f"addend: error: {code}:", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(self.listing(), before, "a failed command changed files")
        return done.stderr

    def listing(self) -> list[tuple[Path, bytes | None]]:
        files = sorted(path for path in self.dir.rglob("*"))
        return [(path, path.read_bytes() if path.is_file() else None) for path in files]

    def write(self, name: str, values: Sequence[float], dtype: Dtype = F32, **options: Any) -> str:
        write_npy(self.dir / name, dtype, values, **options)
        return name

    def read(self, name: str, dtype: Dtype = F32) -> tuple[tuple[int, ...], list[float]]:
        return read_npy(self.dir / name, dtype)

    def pack_three(self, **options: Any) -> list[list[float]]:
        gradients = [sparse(F32, 600, 0.05, seed) for seed in (1, 2, 3)]
        names = [self.write(f"{n}.npy", g, **options) for n, g in zip("abc", gradients)]
        self.ok("pack", *names, "-o", "packed")
        return gradients

    def assert_same(self, got: Sequence[float], expected: Sequence[float]) -> None:
        self.assertEqual(len(got), len(expected))
        for i, (a, b) in enumerate(zip(got, expected)):
            self.assertTrue(a == b or (math.isnan(a) and math.isnan(b)), f"[{i}] {a!r} != {b!r}")

    # The main road.

    def test_small_integers_add_up(self) -> None:
        gradients = [[0, 1, 0, -3, 0, 7], [0, 2, 0, 3, 5, 0], [0, 4, 0, 0, -5, 1]]
        for name, gradient in zip("abc", gradients):
            self.write(f"{name}.npy", gradient)
        self.ok("pack", "a.npy", "b.npy", "c.npy", "-o", "packed")
        self.ok("add", "packed/a.add", "packed/b.add", "packed/c.add", "-o", "s.add")
        self.ok("unpack", "s.add", "-o", "s.npy")
        self.assert_same(self.read("s.npy")[1], [0, 7, 0, 0, 0, 8])

    def test_the_sum_is_exact_and_rounded_once_in_every_dtype(self) -> None:
        for dtype, exponents in ((F32, (-20, 20)), (F16, (-10, 10)), (BF16, (-20, 20))):
            for density in (0.01, 0.3, 1.0):
                with self.subTest(dtype=dtype[0], density=density):
                    gradients = [sparse(dtype, 2000, density, seed, exponents) for seed in range(5)]
                    names = [self.write(f"{i}.npy", g, dtype) for i, g in enumerate(gradients)]
                    self.ok("pack", *names, "-o", "packed", "--force")
                    self.ok("add", *[f"packed/{i}.add" for i in range(5)], "-o", "s.add", "--force")
                    self.ok("unpack", "s.add", "-o", "s.npy", "--force")
                    self.assert_same(self.read("s.npy", dtype)[1], exact_sum(dtype, gradients))

    def test_cancellation_keeps_what_a_float_sum_would_lose(self) -> None:
        gradients = [[1e8, 0.0], [0.125, 1.0], [-1e8, 0.0]]
        for name, gradient in zip("abc", gradients):
            self.write(f"{name}.npy", gradient)
        self.ok("pack", "a.npy", "b.npy", "c.npy", "-o", "packed")
        self.ok("add", "packed/a.add", "packed/b.add", "packed/c.add", "-o", "s.add")
        self.ok("unpack", "s.add", "-o", "s.npy")
        self.assert_same(self.read("s.npy")[1], [0.125, 1.0])

    def test_denormals_and_extremes_survive(self) -> None:
        tiny, huge = 2.0**-149, float.fromhex("0x1.fffffep127")
        self.write("a.npy", [tiny, 0.0, huge, -tiny, -0.0])
        self.ok("pack", "a.npy", "-o", "packed")
        self.ok("unpack", "packed/a.add", "-o", "s.npy")
        self.assert_same(self.read("s.npy")[1], [tiny, 0.0, huge, -tiny, 0.0])

    def test_every_order_gives_the_same_file(self) -> None:
        self.pack_three()
        self.ok("add", "packed/a.add", "packed/b.add", "packed/c.add", "-o", "abc.add")
        self.ok("add", "packed/c.add", "packed/a.add", "-o", "ca.add")
        self.ok("add", "packed/b.add", "ca.add", "-o", "bca.add")
        self.assertEqual((self.dir / "abc.add").read_bytes(), (self.dir / "bca.add").read_bytes())

    def test_the_shape_comes_back(self) -> None:
        for shape in ((20, 30), (600,), (1, 2, 3, 100)):
            with self.subTest(shape=shape):
                values = sparse(F32, 600, 0.1, 5)
                self.write("a.npy", values, shape=shape)
                self.ok("pack", "a.npy", "-o", "packed", "--force")
                self.ok("unpack", "packed/a.add", "-o", "s.npy", "--force")
                self.assertEqual(self.read("s.npy"), (shape, values))

    def test_empty_and_single_arrays(self) -> None:
        for shape, values in (((0,), []), ((0, 5), []), ((), [3.5]), ((1,), [0.0])):
            with self.subTest(shape=shape):
                self.write("a.npy", values, shape=shape)
                self.ok("pack", "a.npy", "-o", "packed", "--force")
                self.ok("add", "packed/a.add", "-o", "s.add", "--force")
                self.ok("unpack", "s.add", "-o", "s.npy", "--force")
                self.assertEqual(self.read("s.npy"), (shape, values))

    def test_the_dense_codec_adds_floats(self) -> None:
        gradients = [[1.0, 0.0, 2.5], [0.25, 0.0, -2.5]]
        self.write("a.npy", gradients[0])
        self.write("b.npy", gradients[1])
        self.ok("pack", "a.npy", "b.npy", "-o", "packed", "--codec", "dense")
        self.ok("add", "packed/a.add", "packed/b.add", "-o", "s.add")
        self.ok("unpack", "s.add", "-o", "s.npy")
        self.assert_same(self.read("s.npy")[1], [1.25, 0.0, 0.0])

    def test_nan_and_infinity_arrive_as_in_a_dense_sum(self) -> None:
        inf, nan = math.inf, math.nan
        gradients = [[inf, inf, nan, 1.0, 0.0, -inf], [1.0, -inf, 0.0, 2.0, 0.0, -inf]]
        for codec in ("exact", "dense"):
            with self.subTest(codec=codec):
                self.write("a.npy", gradients[0])
                self.write("b.npy", gradients[1])
                self.ok("pack", "a.npy", "b.npy", "-o", "packed", "--codec", codec, "--force")
                self.ok("add", "packed/a.add", "packed/b.add", "-o", "s.add", "--force")
                self.ok("unpack", "s.add", "-o", "s.npy", "--force")
                self.assert_same(self.read("s.npy")[1], [inf, nan, nan, 3.0, 0.0, -inf])

    # Joining a plan.

    def test_a_late_gradient_joins_a_plan(self) -> None:
        gradients = self.pack_three()
        late = [v if i % 2 else 0.0 for i, v in enumerate(gradients[0])]
        self.write("d.npy", late)
        self.ok("pack", "d.npy", "--plan", "packed/a.add", "-o", "packed")
        self.ok("add", *[f"packed/{n}.add" for n in "abcd"], "-o", "s.add")
        self.ok("unpack", "s.add", "-o", "s.npy")
        self.assert_same(self.read("s.npy")[1], exact_sum(F32, [*gradients, late]))

    def test_spare_makes_room_for_new_positions(self) -> None:
        first = [1.0 if i % 20 == 0 else 0.0 for i in range(2000)]
        late = [1.0 if i % 20 == 7 else 0.0 for i in range(2000)]
        self.write("a.npy", first)
        self.write("d.npy", late)
        self.ok("pack", "a.npy", "-o", "packed", "--spare", "1.0")
        self.ok("pack", "d.npy", "--plan", "packed/a.add", "-o", "packed")
        self.ok("add", "packed/a.add", "packed/d.add", "-o", "s.add")
        self.ok("unpack", "s.add", "-o", "s.npy")
        self.assert_same(self.read("s.npy")[1], exact_sum(F32, [first, late]))

    def test_a_union_that_outgrew_its_plan_is_named(self) -> None:
        count = 20000
        self.write("a.npy", [1.0, 2.0, 1.5] + [0.0] * (count - 3))
        self.write("d.npy", [1.0 + (i % 2) for i in range(count)])
        self.ok("pack", "a.npy", "-o", "packed", "--spare", "0")
        self.ok("pack", "d.npy", "--plan", "packed/a.add", "-o", "packed")
        self.ok("add", "packed/a.add", "packed/d.add", "-o", "s.add")
        message = self.refused("unpack", "s.add", "-o", "s.npy", code="capacity", words=["s.add"])
        self.assertTrue(any(int(n) >= count for n in re.findall(r"\d+", message)), message)

    def test_values_outside_the_plans_range_are_named(self) -> None:
        self.write("a.npy", [1.0, 2.0, 0.0])
        self.write("d.npy", [1e30, 0.0, 1e-30])
        self.ok("pack", "a.npy", "-o", "packed")
        self.refused(
            *shlex.split("pack d.npy --plan packed/a.add -o packed"),
            code="capacity",
            words=["d.npy"],
        )

    def test_joining_with_another_dtype_or_shape_is_a_mismatch(self) -> None:
        self.pack_three()
        self.write("half.npy", [1.0] * 600, F16)
        self.write("long.npy", [1.0] * 601)
        self.write("flat.npy", [1.0] * 600, shape=(20, 30))
        for name in ("half", "long", "flat"):
            self.refused(
                *shlex.split(f"pack {name}.npy --plan packed/a.add -o packed"),
                code="mismatch",
                words=[f"{name}.npy", "packed/a.add"],
            )

    def test_more_contributors_than_planned_are_refused(self) -> None:
        self.write("a.npy", [1.0, 0.0])
        self.ok("pack", "a.npy", "-o", "packed", "--contributors", "2")
        self.ok("add", "packed/a.add", "packed/a.add", "-o", "two.add")
        self.refused(
            "add", "two.add", "packed/a.add", "-o", "s.add", code="capacity", words=["packed/a.add"]
        )
        self.write("b.npy", [1.0, 0.0])
        self.write("c.npy", [1.0, 0.0])
        self.refused(
            *shlex.split("pack a.npy b.npy c.npy -o x --contributors 2"),
            code="invalid_argument",
        )

    # What must be refused.

    def test_files_of_different_plans_cannot_be_added(self) -> None:
        self.pack_three()
        self.write("z.npy", sparse(F32, 600, 0.2, 9))
        self.ok("pack", "z.npy", "-o", "other")
        self.refused(
            "add",
            "packed/a.add",
            "other/z.add",
            "-o",
            "s.add",
            code="mismatch",
            words=["other/z.add", "plans differ"],
        )
        self.write("y.npy", [1.0, 2.0])
        self.ok("pack", "y.npy", "-o", "other")
        self.refused(
            "add",
            "packed/a.add",
            "other/y.add",
            "-o",
            "s.add",
            code="mismatch",
            words=["other/y.add", "shapes differ"],
        )

    def test_truncated_files_are_refused(self) -> None:
        self.pack_three()
        whole = (self.dir / "packed/a.add").read_bytes()
        for length in (0, 1, 8, 47, 55, 56, len(whole) // 2, len(whole) - 1):
            (self.dir / "cut.add").write_bytes(whole[:length])
            self.refused(
                "add",
                "packed/b.add",
                "cut.add",
                "-o",
                "s.add",
                code="malformed",
                words=["cut.add", "truncated"],
            )
            self.refused(
                "unpack", "cut.add", "-o", "s.npy", code="malformed", words=["cut.add", "truncated"]
            )

    def test_corrupted_files_are_refused(self) -> None:
        self.pack_three()
        whole = bytearray((self.dir / "packed/a.add").read_bytes())
        for at in (48, len(whole) // 2, len(whole) - 1):
            damaged = bytearray(whole)
            damaged[at] ^= 0x10
            (self.dir / "bad.add").write_bytes(damaged)
            self.refused(
                "add",
                "bad.add",
                "packed/b.add",
                "-o",
                "s.add",
                code="malformed",
                words=["bad.add", "corrupted"],
            )
            self.refused(
                "unpack", "bad.add", "-o", "s.npy", code="malformed", words=["bad.add", "corrupted"]
            )

    def test_foreign_files_are_refused(self) -> None:
        self.pack_three()
        (self.dir / "text.add").write_bytes(b"hello\n" * 20)
        self.refused(
            "add",
            "packed/a.add",
            "text.add",
            "-o",
            "s.add",
            code="malformed",
            words=["not an .add file"],
        )
        self.refused("unpack", "a.npy", "-o", "s.npy", code="malformed", words=["not an .add file"])
        self.refused("pack", "packed/a.add", "-o", "x", code="malformed", words=["not a .npy file"])
        newer = bytearray((self.dir / "packed/a.add").read_bytes())
        newer[8] = 2
        (self.dir / "newer.add").write_bytes(newer)
        self.refused(
            "unpack", "newer.add", "-o", "s.npy", code="malformed", words=["unknown version 2"]
        )

    def test_arrays_that_are_no_gradients_are_refused_by_name(self) -> None:
        self.write("f64.npy", [1.0, 2.0], descr="<f8", shape=(1,))
        self.write("big.npy", [1.0, 2.0], descr=">f4")
        self.write("fortran.npy", [1.0] * 4, shape=(2, 2), fortran="True")
        self.refused("pack", "f64.npy", "-o", "x", code="unsupported", words=["convert to float32"])
        self.refused("pack", "big.npy", "-o", "x", code="unsupported", words=["big-endian"])
        self.refused("pack", "fortran.npy", "-o", "x", code="unsupported", words=["Fortran"])

    def test_a_set_must_agree_in_dtype_and_shape(self) -> None:
        self.write("a.npy", [1.0, 2.0])
        self.write("half.npy", [1.0, 2.0], F16)
        self.write("long.npy", [1.0, 2.0, 3.0])
        self.refused(
            "pack",
            "a.npy",
            "half.npy",
            "-o",
            "x",
            code="mismatch",
            words=["half.npy", "f16", "f32"],
        )
        self.refused(
            "pack",
            "a.npy",
            "long.npy",
            "-o",
            "x",
            code="mismatch",
            words=["long.npy", "(3,)", "(2,)"],
        )

    def test_missing_files_are_named(self) -> None:
        self.pack_three()
        self.refused("pack", "a.npy", "nobody.npy", "-o", "x", code="io", words=["nobody.npy"])
        self.refused(
            "pack", "a.npy", "--plan", "nobody.add", "-o", "x", code="io", words=["nobody.add"]
        )
        self.refused(
            "add", "packed/a.add", "nobody.add", "-o", "s.add", code="io", words=["nobody.add"]
        )
        self.refused("unpack", "nobody.add", "-o", "s.npy", code="io", words=["nobody.add"])
        self.refused("info", "nobody.add", code="io", words=["nobody.add"])

    def test_one_bad_input_means_no_output_at_all(self) -> None:
        self.pack_three()
        self.write("wide.npy", [1e38] * 600)
        self.refused(
            *shlex.split("pack a.npy b.npy wide.npy --plan packed/a.add -o fresh"),
            code="capacity",
        )
        self.refused(
            *shlex.split("pack b.npy a.npy nobody.npy --plan packed/a.add -o fresh"),
            code="io",
        )

    def test_what_was_there_survives_a_failed_replacement(self) -> None:
        self.pack_three()
        (self.dir / "packed/c.add").unlink()
        (self.dir / "packed/c.add/inside").mkdir(parents=True)
        self.write("d.npy", sparse(F32, 600, 0.2, 9))
        # d is new, a and b replace files, c cannot replace a directory.
        self.refused(
            *shlex.split("pack d.npy a.npy b.npy c.npy -o packed --force"),
            code="io",
            words=["packed/c.add"],
        )

    def test_a_replacement_leaves_nothing_else_behind(self) -> None:
        self.pack_three()
        self.ok("pack", "a.npy", "b.npy", "-o", "packed", "--force", "--seed", "5")
        self.assertEqual(
            sorted(path.name for path in (self.dir / "packed").iterdir()),
            ["a.add", "b.add", "c.add"],
        )

    def test_nothing_is_overwritten_without_force(self) -> None:
        self.pack_three()
        self.refused(
            "pack",
            "a.npy",
            "-o",
            "packed",
            code="invalid_argument",
            words=["packed/a.add", "--force"],
        )
        self.ok("add", "packed/a.add", "packed/b.add", "-o", "s.add")
        self.refused(
            "add",
            "packed/a.add",
            "-o",
            "s.add",
            code="invalid_argument",
            words=["s.add", "--force"],
        )
        self.ok("unpack", "s.add", "-o", "s.npy")
        self.refused(
            "unpack", "s.add", "-o", "s.npy", code="invalid_argument", words=["s.npy", "--force"]
        )
        self.ok("add", "packed/a.add", "-o", "s.add", "--force")
        self.ok("unpack", "s.add", "-o", "s.npy", "--force")

    def test_a_sum_is_never_added_to_its_own_parts(self) -> None:
        self.pack_three()
        self.ok("add", "packed/a.add", "packed/b.add", "-o", "packed/s.add")
        self.refused(
            *shlex.split("add packed/a.add packed/s.add -o packed/s.add --force"),
            code="invalid_argument",
        )

    def test_two_inputs_cannot_have_one_output(self) -> None:
        (self.dir / "x").mkdir()
        self.write("a.npy", [1.0])
        self.write("x/a.npy", [2.0])
        self.refused(
            "pack",
            "a.npy",
            "x/a.npy",
            "-o",
            "packed",
            code="invalid_argument",
            words=["a.npy", "x/a.npy"],
        )

    def test_an_output_that_cannot_be_written_is_named(self) -> None:
        self.pack_three()
        self.refused(
            "add", "packed/a.add", "-o", "nowhere/s.add", code="io", words=["nowhere/s.add"]
        )
        self.refused(
            "unpack", "packed/a.add", "-o", "nowhere/s.npy", code="io", words=["nowhere/s.npy"]
        )
        self.refused("pack", "a.npy", "-o", "b.npy", code="io", words=["b.npy"])
        self.refused(
            "unpack", "packed/a.add", "-o", "packed", "--force", code="io", words=["packed"]
        )

    # Looking at files, and the command line itself.

    def test_info_says_what_is_there(self) -> None:
        gradients = self.pack_three(shape=(20, 30))
        self.ok("add", "packed/a.add", "packed/b.add", "packed/c.add", "-o", "s.add")
        text = self.ok("info", "s.add")
        for word in (
            "exact",
            "f32",
            "600",
            "(20, 30)",
            "3 of at most 1024",
            "checksum",
            "than dense",
        ):
            self.assertIn(word, text)
        (entry,) = json.loads(self.ok("info", "s.add", "--json"))
        self.assertEqual(entry["shape"], [20, 30])
        self.assertEqual(entry["contributors"], 3)
        self.assertEqual(entry["checksum"], "ok")
        self.assertEqual(entry["plan"]["dtype"], "f32")
        self.assertEqual(entry["plan"]["count"], 600)
        self.assertEqual(entry["dense_bytes"], 2400)
        self.assertEqual(entry["file_bytes"], (self.dir / "s.add").stat().st_size)
        union = sum(1 for values in zip(*gradients) if any(values))
        self.assertEqual(entry["union_nonzeros"], union)
        self.assertGreaterEqual(entry["plan"]["capacity"], union)
        self.assertGreater(entry["plan"]["chunks"], 0)
        self.assertIn("table_rows", entry["plan"])

    def test_info_tells_nothing_stored_from_everything_stored(self) -> None:
        self.write("zero.npy", [0.0] * 600)
        self.ok("pack", "zero.npy", "-o", "exact")
        self.ok("pack", "zero.npy", "-o", "dense", "--codec", "dense")
        self.assertNotIn("all of them stored", self.ok("info", "exact/zero.add"))
        self.assertIn("all of them stored", self.ok("info", "dense/zero.add"))

    def test_info_goes_on_after_a_bad_file(self) -> None:
        self.pack_three()
        (self.dir / "bad.add").write_bytes(b"bad")
        done = self.run_addend("info", "bad.add", "packed/a.add", "--json")
        self.assertEqual(done.returncode, 1)
        bad, good = json.loads(done.stdout)
        self.assertEqual(bad["error"]["code"], "malformed")
        self.assertEqual(good["contributors"], 1)

    def test_help_has_examples(self) -> None:
        for command in ("pack", "add", "unpack", "info"):
            text = self.ok(command, "--help")
            self.assertIn("Examples:", text)
            self.assertIn(f"addend {command} ", text)

    def test_a_wrong_command_line_is_not_a_failed_job(self) -> None:
        for arguments in (
            ("pack",),
            ("add", "-o", "s.add"),
            ("unpack", "x.add"),
            ("info",),
            ("pack", "a.npy", "-o", "x", "--spare", "-1"),
            ("pack", "a.npy", "-o", "x", "--plan", "p.add", "--seed", "2"),
        ):
            self.assertEqual(self.run_addend(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: files_test.py ADDEND [unittest arguments]")
    ADDEND = str(Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
