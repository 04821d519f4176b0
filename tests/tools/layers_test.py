#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check_layers.py finds each violation that is planted in a copy of this tree."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_layers  # noqa: E402

READ = ("src", "include", "apps", "examples", "docs/architecture.md", "CONTRIBUTING.md")
MODULES = check_layers.read_modules(ROOT)
GUARDED = sorted(name for name, module in MODULES.items() if not module.decodes)


class LayersTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="addend-layers-")
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name)
        for name in READ:
            source, copy = ROOT / name, self.tree / name
            copy.parent.mkdir(exist_ok=True)
            shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replaces the first match of the pattern `old`, which must be there."""
        path = self.tree / name
        text, count = re.subn(old, new, path.read_text(), count=1, flags=re.M)
        self.assertEqual(count, 1, f"{old} in {name}")
        path.write_text(text)

    def add_dep(self, module: str, dep: str) -> None:
        self.edit(
            f"src/{module}/CMakeLists.txt", rf"addend_module\({module}\b", rf"\g<0> DEPS {dep}"
        )

    def assert_found(self, *problems: str) -> None:
        found = check_layers.check(self.tree)
        for problem in problems:
            self.assertTrue(any(problem in line for line in found), f"{problem} is not in {found}")

    def test_the_tree_as_it_is_has_no_problems(self) -> None:
        self.assertEqual(check_layers.check(self.tree), [])

    def test_every_module_that_sums_is_guarded(self) -> None:
        self.assertLessEqual(set(check_layers.SUMS), set(GUARDED))
        self.assertEqual(set(MODULES) - set(GUARDED), {"codec", "pipeline", "capi"})

    def test_a_guarded_module_may_not_include_a_codec(self) -> None:
        headers = ("codec/step.h", "codec/quant/table.h", "addend/snapshot.h")
        for name in GUARDED:
            planted = "".join(f'#include "{header}"\n' for header in headers)
            (self.tree / "src" / name / "planted.cc").write_text(planted)
        self.assert_found(
            *(
                f'src/{name}/planted.cc: module {name} may not include "{header}" (module codec)'
                for name in GUARDED
                for header in headers
            )
        )

    def test_nor_in_a_folder_of_it(self) -> None:
        (self.tree / "src/reduce/mesh/planted.cc").write_text('#include "codec/step.h"\n')
        self.assert_found(
            'src/reduce/mesh/planted.cc: module reduce may not include "codec/step.h"'
        )

    def test_a_guarded_module_may_not_depend_on_a_codec(self) -> None:
        for name in GUARDED:
            with self.subTest(name):
                modules = check_layers.read_modules(ROOT)
                modules[name].deps.add("codec")
                self.assertIn(
                    f"module {name} reaches codec", "\n".join(check_layers.check_claim(modules))
                )

    def test_nor_by_way_of_another(self) -> None:
        self.add_dep("net", "codec")
        self.assert_found(
            "module net reaches codec",
            "module reduce reaches codec",
            "module service reaches codec",
        )

    def test_nor_may_it_say_that_it_decodes(self) -> None:
        for name in check_layers.SUMS:
            self.edit(f"src/{name}/CMakeLists.txt", rf"addend_module\({name}\b", r"\g<0> DECODES")
        self.assert_found(
            *(f"module {name} sums: it must not be marked DECODES" for name in check_layers.SUMS)
        )

    def test_nor_may_it_vanish(self) -> None:
        for name in check_layers.SUMS:
            (self.tree / "src" / name / "CMakeLists.txt").unlink()
        self.assert_found(*(f"module {name} is gone" for name in check_layers.SUMS))

    def test_a_codec_does_not_sum(self) -> None:
        self.add_dep("wire", "fold")
        self.assert_found(
            "module codec must not depend on fold", "the module arrows have a cycle: "
        )

    def test_programs_and_public_headers_see_public_headers_only(self) -> None:
        (self.tree / "apps/addend/planted.cc").write_text('#include "fold/reference.h"\n')
        (self.tree / "include/addend/planted.h").write_text('#include "fold/reference.h"\n')
        self.assert_found(
            "apps/addend/planted.cc: apps may include only public headers",
            "include/addend/planted.h: public headers include only public headers",
            "include/addend/planted.h: name its module",
        )

    def test_the_table_of_modules_is_the_tree(self) -> None:
        page = "docs/architecture.md"
        self.edit(page, r"^(\| `auth` \|[^|]*\|) net, ", r"\1 fold, ")
        self.edit(page, r"^\| `net` .*\n", "")
        self.edit(page, r"^\| `wire` \|", "| `cables` |")
        self.edit(page, r", `snapshot.h`", "")
        self.assert_found(
            f"{page}: auth -> fold is not in the DEPS",
            f"{page}: auth -> net is in the DEPS of src/auth/CMakeLists.txt, not here",
            f"{page}: no row for module net",
            f"{page}: there is no module cables",
            f"{page}: snapshot.h of module codec stands either there or in PUBLIC",
        )

    def test_a_drawn_arrow_is_in_the_tree(self) -> None:
        self.edit("docs/architecture.md", r"--> fold --> wire, base", "--> fold --> codec, base")
        self.assert_found("docs/architecture.md: fold --> codec is drawn, but not in its DEPS")

    def test_the_list_of_arrows_is_the_tree(self) -> None:
        page = "CONTRIBUTING.md"
        self.edit(page, r"^auth +-> net, ", "auth -> codec, ")
        self.edit(page, r"^service .*\n", "")
        self.assert_found(
            f"{page}: auth -> codec is not in the DEPS",
            f"{page}: auth -> net is in the DEPS of src/auth/CMakeLists.txt, not here",
            f"{page}: no arrows for module service",
        )


if __name__ == "__main__":
    unittest.main()
