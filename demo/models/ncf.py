# SPDX-License-Identifier: Apache-2.0
"""A recommender in the manner of neural collaborative filtering, on power-law users and items.

Who meets what follows Zipf's law, as in any shop: a few users and items are in every batch, most
are in none, so most rows of the two tables have a zero gradient. Likes come from hidden tastes of
low rank, which the model can find.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

NAME = "ncf"
DESCRIPTION = "recommender, 60,000 users and 20,000 items met by Zipf's law, 512 a worker and step"
SCORE = "likes told from dislikes, held out"
STEPS = 90

USERS, ITEMS, WIDTH, BATCH = 60_000, 20_000, 64, 512
HELD_OUT, TASTES = 20_000, 6


def _zipf(rng: np.random.Generator, kinds: int, count: int) -> np.ndarray:
    """`count` draws; the k-th most frequent of `kinds` comes with a probability of about 1 / k."""
    weights = 1.0 / np.arange(10, kinds + 10)
    ranks = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(count))
    # Frequent ones lie anywhere in a table, as identifiers do.
    return rng.permutation(kinds)[np.minimum(ranks, kinds - 1)]


def prepare(folder: Path, seed: int, count: int = 400_000) -> None:
    rng = np.random.default_rng([seed, 1])
    users, items = _zipf(rng, USERS, count), _zipf(rng, ITEMS, count)
    tastes = rng.normal(size=(USERS, TASTES)), rng.normal(size=(ITEMS, TASTES))
    quality = 1.5 * rng.normal(size=ITEMS)
    liking = (tastes[0][users] * tastes[1][items]).sum(1) / np.sqrt(TASTES) + quality[items]
    likes = rng.random(count) < 1 / (1 + np.exp(-2 * liking))
    np.savez(folder / "ncf.npz", users=users, items=items, likes=likes.astype(np.float32))


class Recommender(nn.Module):
    """Half of each row is multiplied element by element, half goes through a small perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH)
        self.items = nn.Embedding(ITEMS, WIDTH)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU())
        self.output = nn.Linear(WIDTH // 2 + 32, 1)

    def logits(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        user_product, user_hidden = self.users(users).chunk(2, dim=1)
        item_product, item_hidden = self.items(items).chunk(2, dim=1)
        hidden = self.hidden(torch.cat([user_hidden, item_hidden], dim=1))
        features = torch.cat([user_product * item_product, hidden], dim=1)
        logits: torch.Tensor = self.output(features)
        return logits.squeeze(1)

    def forward(
        self, users: torch.Tensor, items: torch.Tensor, likes: torch.Tensor
    ) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.logits(users, items), likes)


def build() -> nn.Module:
    return Recommender()


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    # Adagrad leaves rows without a gradient alone and gives rare rows large steps. From an
    # accumulator of zero, even a gradient of mere rounding errors would be worth a whole step.
    return torch.optim.Adagrad(
        module.parameters(), lr=0.03, initial_accumulator_value=1e-7, fused=True
    )


def _tensors(data: dict[str, np.ndarray], chosen: np.ndarray | slice) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(data[key][chosen]) for key in ("users", "items", "likes"))


def batches(folder: Path, worker: int, world: int, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    data = dict(np.load(folder / "ncf.npz"))
    rng = np.random.default_rng([seed, 2])
    while True:
        order = HELD_OUT + rng.permutation(len(data["likes"]) - HELD_OUT)
        for start in range(0, len(order) - world * BATCH + 1, world * BATCH):
            own = start + worker * BATCH
            yield _tensors(data, order[own : own + BATCH])


def score(module: nn.Module, folder: Path) -> float:
    assert isinstance(module, Recommender)
    users, items, likes = _tensors(dict(np.load(folder / "ncf.npz")), slice(0, HELD_OUT))
    with torch.no_grad():
        return float(((module.logits(users, items) > 0) == (likes > 0.5)).float().mean())
