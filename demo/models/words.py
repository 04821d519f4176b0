# SPDX-License-Identifier: Apache-2.0
"""A word-level LSTM on the King James Bible, with one embedding for input and output.

The loss is a sampled softmax: each step compares the right words with a few hundred drawn ones, so
only the embedding rows of words that were read, predicted or drawn have a gradient. The LSTM's own
weights have one everywhere.
"""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

NAME = "words"
DESCRIPTION = (
    "word-level LSTM on the King James Bible, vocabulary of 10,000, sampled softmax, "
    "16 x 20 words a worker and step"
)
SCORE = "perplexity, held out, all words"
STEPS = 110

VOCABULARY, WIDTH = 10_000, 256
SEQUENCES, LENGTH, DRAWN = 16, 20, 256
HELD_OUT = 20_000
COMMAND = ("bible", "-f", "Gen1:1-Rev22:21")


class TextMissing(RuntimeError):
    pass


def text() -> str:
    """All verses, one a line, without their references."""
    if shutil.which(COMMAND[0]) is None:
        raise TextMissing(
            "the text for the model `words` is missing: install the Debian packages bible-kjv and "
            "bible-kjv-text, or leave the model out (--models ncf digits)"
        )
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=True)
    return re.sub(r"^\S+ ", "", done.stdout, flags=re.MULTILINE)


def prepare(folder: Path, seed: int) -> None:
    """Numbers words by falling frequency; the rarest share the last number."""
    words = re.findall(r"[a-z]+|[.,;:?!]", text().lower())
    frequent = collections.Counter(words).most_common(VOCABULARY - 1)
    number = {word: i for i, (word, _) in enumerate(frequent)}
    np.save(folder / "words.npy", np.array([number.get(w, VOCABULARY - 1) for w in words]))


def _chances() -> np.ndarray:
    """Of one draw: log-uniform over the words, close to how often words of such numbers occur."""
    edges = np.log(np.arange(1, VOCABULARY + 2))
    return np.asarray(np.diff(edges) / edges[-1])


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.05)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def states(self, inputs: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.lstm(self.embedding(inputs))[0]
        return states.flatten(0, 1)

    def forward(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        drawn: torch.Tensor,
        log_chances: torch.Tensor,
    ) -> torch.Tensor:
        """`log_chances` of each drawn word to be among them: with it the sum over the drawn words
        estimates the full softmax's sum over all words without bias."""
        states, targets = self.states(inputs), targets.flatten()
        right = (states * self.embedding(targets)).sum(1)
        wrong = states @ self.embedding(drawn).T - log_chances
        wrong = wrong.masked_fill(drawn == targets[:, None], float("-inf"))
        logits = torch.cat([right[:, None], wrong], dim=1)
        return nn.functional.cross_entropy(logits, torch.zeros_like(targets))


def build() -> nn.Module:
    return LanguageModel()


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.9)


def batches(folder: Path, worker: int, world: int, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    words = np.load(folder / "words.npy")[HELD_OUT:]
    rng = np.random.default_rng([seed, 3, worker])
    chances = _chances()
    upper, log_included = np.cumsum(chances), np.log1p(-((1 - chances) ** DRAWN))
    while True:
        starts = rng.integers(0, len(words) - LENGTH, SEQUENCES)
        windows = words[starts[:, None] + np.arange(LENGTH + 1)]
        drawn = np.unique(np.searchsorted(upper, rng.random(DRAWN)).clip(max=VOCABULARY - 1))
        arrays = windows[:, :-1], windows[:, 1:], drawn, log_included[drawn].astype(np.float32)
        yield tuple(torch.from_numpy(array) for array in arrays)


def score(module: nn.Module, folder: Path) -> float:
    assert isinstance(module, LanguageModel)
    words = torch.from_numpy(np.load(folder / "words.npy")[: HELD_OUT + 1])
    inputs, targets = words[:-1].view(-1, LENGTH), words[1:]
    with torch.no_grad():
        logits = module.states(inputs) @ module.embedding.weight.T
        return float(nn.functional.cross_entropy(logits, targets).exp())
