#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/mutants.py on a tree of three files, and the real list against the real sources."""

import fcntl
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/mutants.py"

SUM_C = """\
int sum(int a, int b) {
  return a + b;
}
int twice(int a) { return 2 * a; }
int main(void) { return sum(2, 3) == 5 ? 0 : 1; }
"""
CMAKE = (
    "cmake_minimum_required(VERSION 3.25)\nproject(toy LANGUAGES C)\n"
    "add_executable(sum_test sum.c)\n"
)
PRESETS = """\
{"version": 6, "configurePresets": [
  {"name": "dev", "generator": "Ninja", "binaryDir": "${sourceDir}/build/${presetName}"}]}
"""


def entry(
    name: str, old: str, new: str, run: str = "{build}/sum_test", build: str = "sum_test"
) -> str:
    return (
        f'[[mutant]]\nname = "{name}"\nfile = "sum.c"\nold = "{old}"\nnew = "{new}"\n'
        f'build = "{build}"\nrun = "{run}"\n'
    )


class MutantsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="addend-mutants-")
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name) / "tree"
        self.tree.mkdir()
        for name, text in {
            "sum.c": SUM_C,
            "CMakeLists.txt": CMAKE,
            "CMakePresets.json": PRESETS,
        }.items():
            (self.tree / name).write_text(text)
        subprocess.run(["git", "init", "-q", self.tree], check=True)
        subprocess.run(["git", "-C", self.tree, "add", "."], check=True)

    def mutants(self, *entries: str, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
        listed = self.tree.parent / "list.toml"
        listed.write_text("\n".join(entries))
        command = [
            sys.executable,
            TOOL,
            "--source",
            self.tree,
            "--list",
            listed,
            "--work",
            self.tree.parent / "work",
        ]
        done = subprocess.run(
            [*map(str, command), *arguments], capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stdout + done.stderr

    def test_a_mutation_that_the_test_notices_is_killed(self) -> None:
        code, text = self.mutants(entry("minus", "return  a + b;\\n}", "return a - b;\\n}"))
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"minus +killed +sum\.c\n1 of 1 killed")
        self.assertEqual((self.tree / "sum.c").read_text(), SUM_C)
        self.assertEqual((self.tree.parent / "work/tree/sum.c").read_text(), SUM_C)

    def test_survivors_stale_and_invalid_mutations_fail_and_do_not_hide_each_other(self) -> None:
        code, text = self.mutants(
            entry("survivor", "2 * a", "3 * a"),
            entry("gone", "a * b", "a + b"),
            entry("ambiguous", "int a", "long a"),
            entry("nonsense", "return a + b", "return a +"),
            entry("failing", "2 * a", "3 * a", run="false"),
            entry("killed", "a + b", "a - b"),
        )
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r"survivor +SURVIVED")
        self.assertRegex(text, r"gone +STALE +sum\.c: its text stands there 0 times")
        self.assertRegex(text, r"ambiguous +STALE +sum\.c: its text stands there 2 times")
        self.assertRegex(text, r"nonsense +INVALID +sum\.c: it does not build: .*error")
        self.assertRegex(text, r"failing +INVALID +sum\.c: fails without the mutation")
        self.assertRegex(text, r"killed +killed")
        self.assertIn("1 of 6 killed", text)

    def test_a_test_that_hangs_has_noticed(self) -> None:
        script = "import sys, time; time.sleep(60 if 'a - b' in open('sum.c').read() else 0)"
        code, text = self.mutants(
            entry("hang", "a + b", "a - b", run=f'{{python}} -c \\"{script}\\"'),
            arguments=("--timeout", "5"),
        )
        self.assertEqual(code, 0, text)

    def test_only_picks_by_name_and_check_builds_nothing(self) -> None:
        entries = (entry("one.a", "a + b", "a - b"), entry("two.a", "a * b", "a"))
        self.assertEqual(self.mutants(*entries, arguments=("--check",))[0], 1)
        code, text = self.mutants(*entries, arguments=("--check", "--only", "one"))
        self.assertEqual((code, text), (0, "1 mutations fit the sources\n"))
        self.assertFalse((self.tree.parent / "work").exists())
        self.assertIn(
            "none has that name", self.mutants(*entries, arguments=("--only", "three"))[1]
        )

    def test_a_run_goes_on_from_what_an_interrupted_one_left(self) -> None:
        minus = entry("minus", "a + b", "a - b")
        self.assertEqual(self.mutants(minus)[0], 0)
        left = self.tree.parent / "work/tree"
        (left / "sum.c").write_text(SUM_C.replace("a + b", "a - b"))
        (left / "stray.c").write_text("")
        self.assertEqual(self.mutants(minus)[0], 0)
        self.assertFalse((left / "stray.c").exists())

    def test_two_runs_do_not_share_a_copy(self) -> None:
        work = self.tree.parent / "work"
        work.mkdir()
        with (work / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            code, text = self.mutants(entry("minus", "a + b", "a - b"))
        self.assertEqual(code, 1, text)
        self.assertIn("another run works in", text)


class ListTest(unittest.TestCase):
    def test_the_list_fits_the_sources(self) -> None:
        done = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
