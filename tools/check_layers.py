#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects an #include that the module arrows do not allow, and a page that draws other arrows.

The arrows are the DEPS of each addend_module() line in src/*/CMakeLists.txt. A public header
include/addend/x.h belongs to the module named in PUBLIC. Tests may also include tests/support.
Apps, examples and bench see public headers only; fuzz targets and tests may look inside src/.

Only modules marked DECODES may reach a codec, by however many arrows; all others sum, or serve what
sums. tests/link asks the same of their symbols.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PUBLIC = {
    "wire.h": "wire",
    "plane.h": "wire",
    "result.h": "base",
    "access.h": "base",
    "device.h": "cuda",
    "simd.h": "base",
    "threads.h": "base",
    "fold.h": "fold",
    "codec.h": "codec",
    "snapshot.h": "codec",
    "rows.h": "codec",
    "control.h": "control",
    "plan.h": "control",
    "reduce.h": "reduce",
    "pipeline.h": "pipeline",
    "file.h": "file",
    "addend.h": "capi",
    "service.h": "service",
}
# What folds planes: must be there, or the check that it cannot decode would pass for nothing.
SUMS = ("aggregate", "dataplane", "file", "fold", "reduce", "service")
INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.M)
MODULE = re.compile(r"addend_module\((\w+)(.*?)\)", re.S)
KEYWORDS = {"DECODES", "DEPS", "SRCS", "LIBS", "TESTS"}
SOURCE_SUFFIXES = {".h", ".cc", ".c", ".cu", ".cuh"}


@dataclass
class Module:
    deps: set[str] = field(default_factory=set)
    decodes: bool = False


Modules = dict[str, Module]


def read_modules(root: Path) -> Modules:
    modules = {}
    for path in sorted(root.glob("src/*/CMakeLists.txt")):
        for name, body in MODULE.findall(path.read_text()):
            module, keyword = Module(), ""
            for word in body.split():
                if word in KEYWORDS:
                    keyword = word
                    module.decodes |= word == "DECODES"
                elif keyword == "DEPS":
                    module.deps.add(word)
            modules[name] = module
    return modules


def sources(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each source below `folder`, with what it includes."""
    for path in sorted(folder.glob("**/*.*")):
        if path.suffix in SOURCE_SUFFIXES:
            yield path, INCLUDE.findall(path.read_text())


def module_of(root: Path, include: str) -> str | None:
    """The module that an include path belongs to, or None for a path that is not ours."""
    if include.startswith("addend/"):
        return PUBLIC.get(include[len("addend/") :], "?")
    head = include.split("/")[0]
    return head if (root / "src" / head).is_dir() else None


def check_sources(root: Path, modules: Modules) -> Iterator[str]:
    for path, includes in sources(root / "src"):
        name = path.relative_to(root / "src").parts[0]
        is_test = path.stem.endswith("_test")
        allowed = {None, name} | modules.get(name, Module()).deps | ({"base"} if is_test else set())
        for include in includes:
            if include.startswith("tests/") and is_test:
                continue
            where = f"{path.relative_to(root)}:"
            target = module_of(root, include)
            if target is None and "/" in include and not include.startswith(("gtest", "hwy")):
                yield f'{where} "{include}" is in no module'
            elif target not in allowed:
                yield f'{where} module {name} may not include "{include}" (module {target})'


def check_public(root: Path) -> Iterator[str]:
    for path, includes in sources(root / "include/addend"):
        if path.name not in PUBLIC:
            yield f"{path.relative_to(root)}: name its module in tools/check_layers.py"
        for include in includes:
            if not include.startswith("addend/"):
                where = path.relative_to(root)
                yield f'{where}: public headers include only public headers, not "{include}"'


def check_outside(root: Path) -> Iterator[str]:
    for folder in ("apps", "examples", "bench"):
        for path, includes in sources(root / folder):
            for include in includes:
                if module_of(root, include) and not include.startswith("addend/"):
                    where = path.relative_to(root)
                    yield f'{where}: {folder} may include only public headers, not "{include}"'


def check_cycles(modules: Modules) -> Iterator[str]:
    done = set()

    def visit(name: str, trail: list[str]) -> Iterator[str]:
        if name in trail:
            yield "the module arrows have a cycle: " + " -> ".join([*trail, name])
        elif name not in done:
            for dep in sorted(modules.get(name, Module()).deps):
                yield from visit(dep, [*trail, name])
            done.add(name)

    for name in sorted(modules):
        yield from visit(name, [])


def reach(modules: Modules, start: str) -> set[str]:
    """All modules that `start` uses, itself or by others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for dep in modules.get(waiting.pop(), Module()).deps - found:
            found.add(dep)
            waiting.append(dep)
    return found


def check_claim(modules: Modules) -> Iterator[str]:
    """What sums cannot decode, and what encodes does not sum."""
    for name in SUMS:
        if name not in modules:
            yield f"module {name} is gone: the check that it cannot decode would pass for nothing"
        elif modules[name].decodes:
            yield f"module {name} sums: it must not be marked DECODES"
    for name, module in sorted(modules.items()):
        if not module.decodes and "codec" in reach(modules, name):
            yield f"module {name} reaches codec: what sums cannot decode is our claim"
    if "fold" in reach(modules, "codec"):
        yield "module codec must not depend on fold"


def compare(page: str, name: str, drawn: set[str], modules: Modules) -> Iterator[str]:
    """What a page says that module `name` may use, against its DEPS."""
    if name not in modules:
        yield f"{page}: there is no module {name}"
        return
    deps = modules[name].deps
    for dep in sorted(drawn - deps):
        yield f"{page}: {name} -> {dep} is not in the DEPS of src/{name}/CMakeLists.txt"
    for dep in sorted(deps - drawn):
        yield f"{page}: {name} -> {dep} is in the DEPS of src/{name}/CMakeLists.txt, not here"


def names(text: str) -> set[str]:
    return set(re.findall(r"\w+", text)) - {"nothing"}


def check_table(root: Path, modules: Modules) -> Iterator[str]:
    """The rows `module | what | may use | header` of docs/architecture.md."""
    page = "docs/architecture.md"
    section = (root / page).read_text().partition("\n## Modules\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|$", section, re.M)
    headers = {}
    for name, uses, public in rows:
        yield from compare(page, name, names(uses), modules)
        headers.update(dict.fromkeys(re.findall(r"`([^`]+)`", public), name))
    for name in sorted(set(modules) - {row[0] for row in rows}):
        yield f"{page}: no row for module {name}"
    for header, name in sorted(set(PUBLIC.items()) ^ set(headers.items())):
        yield f"{page}: {header} of module {name} stands either there or in PUBLIC, not in both"


def check_drawing(root: Path, modules: Modules) -> Iterator[str]:
    """The chains `a --> b, c --> d` of docs/architecture.md: some of the arrows, and no others."""
    page = "docs/architecture.md"
    chain = re.compile(r"\b\w+(?: +-+> \w+(?:, \w+)*)+")
    for text in chain.findall((root / page).read_text()):
        links = [names(part) for part in re.split(r"-+>", text)]
        for left, right in zip(links, links[1:]):
            for name in left & set(modules):
                missing = right - modules[name].deps
                for dep in sorted(missing):
                    yield f"{page}: {name} --> {dep} is drawn, but not in its DEPS"


def check_list(root: Path, modules: Modules) -> Iterator[str]:
    """The lines `a, b -> c, d` of CONTRIBUTING.md: all modules, all their arrows."""
    page = "CONTRIBUTING.md"
    seen = set()
    for left, right in re.findall(r"^(\w+(?:, \w+)*) +-> (.+)$", (root / page).read_text(), re.M):
        for name in sorted(names(left) - {"apps", "examples"}):
            seen.add(name)
            yield from compare(page, name, names(right), modules)
    for name in sorted(set(modules) - seen):
        yield f"{page}: no arrows for module {name}"


def check(root: Path) -> list[str]:
    modules = read_modules(root)
    return [
        *check_sources(root, modules),
        *check_public(root),
        *check_outside(root),
        *check_cycles(modules),
        *check_claim(modules),
        *check_table(root, modules),
        *check_drawing(root, modules),
        *check_list(root, modules),
    ]


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"layers: {len(read_modules(root))} modules, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
