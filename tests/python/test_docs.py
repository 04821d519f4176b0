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
