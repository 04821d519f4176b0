#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects an #include that the module arrows do not allow.

The arrows are the DEPS of each addend_module() line in src/*/CMakeLists.txt. A public header include/addend/x.h belongs to the
module named in PUBLIC. Tests may also include tests/support. Apps, examples, bench and fuzz see public headers only, except
that fuzz targets and tests may look inside src/.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLIC = {
    "wire.h": "wire", "plane.h": "wire", "result.h": "base", "access.h": "base", "simd.h": "base", "fold.h": "fold", "codec.h": "codec",
    "snapshot.h": "codec", "reduce.h": "reduce", "pipeline.h": "pipeline", "file.h": "file", "addend.h": "capi",
    "service.h": "service",
}
INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.M)
MODULE = re.compile(r"addend_module\((\w+)(.*?)\)", re.S)
KEYWORDS = {"DEPS", "SRCS", "LIBS", "TESTS"}


def read_arrows():
    arrows = {}
    for path in sorted(ROOT.glob("src/*/CMakeLists.txt")):
        for name, body in MODULE.findall(path.read_text()):
            deps, inside = set(), False
            for word in body.split():
                if word in KEYWORDS:
                    inside = word == "DEPS"
                elif inside:
                    deps.add(word)
            arrows[name] = deps
    return arrows


def module_of(include):
    """The module that an include path belongs to, or None for a path that is not ours."""
    if include.startswith("addend/"):
        return PUBLIC.get(include.removeprefix("addend/"), "?")
    head = include.split("/")[0]
    return head if (ROOT / "src" / head).is_dir() else None


def check_sources(arrows):
    for path in sorted(ROOT.glob("src/**/*.*")):
        if path.suffix not in {".h", ".cc", ".c", ".cu", ".cuh"}:
            continue
        module = path.relative_to(ROOT / "src").parts[0]
        is_test = path.stem.endswith("_test")
        for include in INCLUDE.findall(path.read_text()):
            if include.startswith("tests/") and is_test:
                continue
            target = module_of(include)
            if target is None and "/" in include and not include.startswith(("gtest", "hwy")):
                yield f"{path.relative_to(ROOT)}: \"{include}\" is in no module"
            elif target not in {None, module} | arrows.get(module, set()) and not (is_test and target == "base"):
                yield f"{path.relative_to(ROOT)}: module {module} may not include \"{include}\" (module {target})"


def check_public():
    for path in sorted(ROOT.glob("include/addend/*.h")):
        if path.name not in PUBLIC:
            yield f"{path.relative_to(ROOT)}: not assigned to a module in tools/check_layers.py"
        for include in INCLUDE.findall(path.read_text()):
            if not include.startswith("addend/"):
                yield f"{path.relative_to(ROOT)}: public headers include only public headers, not \"{include}\""


def check_outside():
    for folder in ("apps", "examples", "bench"):
        for path in sorted((ROOT / folder).glob("**/*.*")):
            if path.suffix not in {".h", ".cc", ".c"}:
                continue
            for include in INCLUDE.findall(path.read_text()):
                if module_of(include) is not None and not include.startswith("addend/"):
                    yield f"{path.relative_to(ROOT)}: {folder} may include only public headers, not \"{include}\""


def check_cycles(arrows):
    state = {}
    for needed in ("fold", "file", "aggregate"):
        if needed not in arrows:
            yield f"module {needed} is gone: the check that it cannot decode would pass for nothing"

    def visit(module, trail):
        if state.get(module) == "done":
            return
        if module in trail:
            yield "the module arrows have a cycle: " + " -> ".join(trail + [module])
            return
        for dep in sorted(arrows.get(module, ())):
            yield from visit(dep, trail + [module])
        state[module] = "done"

    for module in sorted(arrows):
        yield from visit(module, [])
    for adder in ("fold", "file", "aggregate", "service", "dataplane"):
        if "codec" in arrows.get(adder, ()):
            yield f"module {adder} must not depend on codec: summing without decoding is our claim"
    if "fold" in arrows.get("codec", ()):
        yield "module codec must not depend on fold"


def main():
    arrows = read_arrows()
    problems = [*check_sources(arrows), *check_public(), *check_outside(), *check_cycles(arrows)]
    for problem in problems:
        print(problem)
    print(f"layers: {len(arrows)} modules, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
