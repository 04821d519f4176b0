# SPDX-License-Identifier: Apache-2.0
"""The models that the demo trains: one module each, with the same few functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from demo.models import digits, ncf, words

Batch = tuple[torch.Tensor, ...]


class Model(Protocol):
    """What a module in this package offers.

    Whatever a function draws at random is a function of the seed, so that every codec sees the same
    start, the same batches and the same order.
    """

    NAME: str
    DESCRIPTION: str
    SCORE: str  # what `score` returns, in words
    STEPS: int  # of a full demo run

    def prepare(self, folder: Path, seed: int) -> None:
        """Writes the data set into `folder`, once for all workers."""

    def build(self) -> nn.Module:
        """A module whose forward takes a batch and returns the loss to minimise."""

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer: ...

    def batches(self, folder: Path, worker: int, world: int, seed: int) -> Iterator[Batch]:
        """This worker's share of the global batches, without end."""

    def score(self, module: nn.Module, folder: Path) -> float:
        """How good the module is on data it was not trained on."""


MODELS: dict[str, Model] = {module.NAME: module for module in (ncf, words, digits)}
