# SPDX-License-Identifier: Apache-2.0
"""The examples of the documents do what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

from addend import simulation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_examples_of_the_python_page() -> None:
    failed, run = doctest.testfile(str(PAGE), module_relative=False)
    assert run > 10
    assert failed == 0


def test_the_example_of_simulate() -> None:
    failed, run = doctest.testmod(simulation)
    assert run > 0
    assert failed == 0
