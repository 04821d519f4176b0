# SPDX-License-Identifier: Apache-2.0
"""The examples of the documents do what they say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from addend import simulation

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"


def test_the_examples_of_the_python_page() -> None:
    failed, run = doctest.testfile(str(PAGE), module_relative=False)
    assert run > 10
    assert failed == 0


def test_the_example_of_simulate() -> None:
    failed, run = doctest.testmod(simulation)
    assert run > 0
    assert failed == 0


def test_pages_link_to_files_that_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in link and not link.startswith("mailto:")
    ]
    assert len(links) > 100
    dead = [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert not dead


def _closing(text: str, begin: int) -> int:
    """Where the bracket that is open before `begin` closes."""
    depth = 1
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise AssertionError(f"a bracket stays open: {text[begin : begin + 80]}")


def _calls(text: str) -> list[tuple[str, list[str]]]:
    """(function, arguments) of everything that looks like a call of the C ABI, or declares it."""
    found = []
    for call in re.finditer(r"\b(addend_\w+)\(", text):
        inside = text[call.end() : _closing(text, call.end())]
        arguments = [one.strip() for one in re.sub(r"\([^()]*\)", "", inside).split(",")]
        found.append((call[1], [one for one in arguments if one not in ("", "void")]))
    return found


def test_calls_of_the_c_abi_have_the_arguments_that_the_header_declares() -> None:
    headers = ("addend.h", "wire.h")
    text = "".join((ROOT / "include" / "addend" / name).read_text() for name in headers)
    header = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    declared = {name: len(arguments) for name, arguments in _calls(header)}
    assert len(declared) > 50
    wrong = []
    calls = [call for call in _calls((ROOT / "docs" / "c-api.md").read_text()) if call[1]]
    assert len(calls) > 30  # without arguments it is a name in a sentence
    for name, arguments in calls:
        asked = declared.get(name)
        if asked != len(arguments) and not (asked and arguments[-1] == "..."):
            wrong.append(f"{name}({', '.join(arguments)}), declared with {asked}")
    assert not wrong, "\n".join(wrong)
