# SPDX-License-Identifier: Apache-2.0
"""Models with the shapes of published ones; weights and data are random.

Embedding gradients are dense: a row for every user, item or word, zeros where none of a rank's
batch is. Who meets what, and which words are read, follows Zipf's law.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn


class Bert(nn.Module):
    """BERT-base (uncased): embeddings, twelve layers, and a head over the table of words."""

    def __init__(self, words: int = 30522, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = self.words(rows) + self.places.weight[: rows.shape[1]]
        logits = nn.functional.linear(self.layers(x), self.words.weight, self.bias)
        return logits.float().square().mean()


class Vgg(nn.Module):
    """VGG19: sixteen convolutions and three layers."""

    def __init__(self, hidden: int = 4096) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(count):
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, hidden), nn.ReLU()]
        layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1000)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images).float().square().mean()  # type: ignore[no-any-return]


class Ncf(nn.Module):
    """Neural collaborative filtering on MovieLens 20M: factors of 64, a perceptron over 256."""

    def __init__(self, users: int = 138_493, items: int = 26_744) -> None:
        super().__init__()
        self.user_factors, self.item_factors = nn.Embedding(users, 64), nn.Embedding(items, 64)
        self.users, self.items = nn.Embedding(users, 128), nn.Embedding(items, 128)
        widths = (256, 256, 128, 64)
        pairs = zip(widths, widths[1:])
        layers = [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())]
        self.layers = nn.Sequential(*layers)
        self.output = nn.Linear(128, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        product = self.user_factors(users) * self.item_factors(items)
        hidden = self.layers(torch.cat([self.users(users), self.items(items)], dim=1))
        logits = self.output(torch.cat([product, hidden], dim=1)).squeeze(1)
        likes = (torch.arange(len(users), device=users.device) % 5 == 0).float()
        return nn.functional.binary_cross_entropy_with_logits(logits, likes)


class Lstm(nn.Module):
    """A language model of the One Billion Word corpus with a sampled softmax: 0.82 G parameters,
    most of them in two tables of words."""

    def __init__(self, words: int = 793_471, width: int = 512, cells: int = 2048) -> None:
        super().__init__()
        self.read, self.said = nn.Embedding(words, width), nn.Embedding(words, width)
        for table in (self.read, self.said):
            nn.init.normal_(table.weight, std=0.05)
        self.lstm = nn.LSTM(width, cells, proj_size=width, batch_first=True)

    def forward(self, text: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        states = self.lstm(self.read(text[:, :-1]))[0].flatten(0, 1)
        right = (states * self.said(text[:, 1:].flatten())).sum(1)
        logits = torch.cat([right[:, None], states @ self.said(drawn).T], dim=1)
        targets = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        return nn.functional.cross_entropy(logits, targets)


def zipf(kinds: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws; the k-th most frequent kind comes with a probability of about 1 / k."""
    where = torch.rand(count, generator=generator, dtype=torch.float64)
    return ((kinds + 1.0) ** where - 1).long().clamp(max=kinds - 1)


class Shape(NamedTuple):
    """How much of a model there is: as published, or to see that a bench runs."""

    small: bool

    def build(self, name: str) -> nn.Module:
        if name == "BERT-base":
            return Bert(500, 48, 2) if self.small else Bert()
        if name == "VGG19":
            return Vgg(32) if self.small else Vgg()
        if name.startswith("NCF"):
            return Ncf(5000, 1000) if self.small else Ncf()
        return Lstm(4000, 16, 32) if self.small else Lstm()

    def batch(self, name: str, model: nn.Module, seed: int) -> tuple[torch.Tensor, ...]:
        """A rank's inputs of one step."""
        generator = torch.Generator().manual_seed(seed)
        if isinstance(model, Bert):
            kinds = model.words.num_embeddings
            shape = (2, 16) if self.small else (8, 128)
            return (torch.randint(0, kinds, shape, generator=generator),)
        if isinstance(model, Vgg):
            shape3 = (1, 3, 32, 32) if self.small else (16, 3, 224, 224)
            return (torch.randn(shape3, generator=generator),)
        if isinstance(model, Ncf):  # an item that was liked, and four that were drawn beside it
            likes = 20 if self.small else 3277 if name == "NCF, large batch" else 410
            users = zipf(model.users.num_embeddings, likes, generator).repeat_interleave(5)
            items = torch.randint(0, model.items.num_embeddings, users.shape, generator=generator)
            items[::5] = zipf(model.items.num_embeddings, likes, generator)
            return users, items
        assert isinstance(model, Lstm)
        kinds = model.read.num_embeddings
        text = zipf(kinds, 4 * 9 if self.small else 128 * 21, generator)
        drawn = zipf(kinds, 64 if self.small else 8192, generator).unique()
        return text.view(-1, 9 if self.small else 21), drawn


NAMES = ("NCF", "NCF, large batch", "LSTM", "VGG19", "BERT-base")
