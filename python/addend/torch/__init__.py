# SPDX-License-Identifier: Apache-2.0
"""Addend inside PyTorch.

import addend.torch
handle = addend.torch.attach(ddp_model)                         # lossless, dense where cheaper
handle = addend.torch.attach(ddp_model, codec="quant:bits=4")   # or any other codec
addend.torch.all_reduce(tensor)                                 # dense or sparse COO
print(addend.torch.advise(ddp_model, train_one_step))           # would compression pay here?
"""

from addend.reducer import Link
from addend.torch._advise import Advice, advise, record_job
from addend.torch._attach import attach
from addend.torch._collectives import Pending, all_reduce, metrics
from addend.torch._engine import close_all
from addend.torch._hook import Handle

__all__ = [
    "Advice",
    "Handle",
    "Link",
    "Pending",
    "advise",
    "all_reduce",
    "attach",
    "close_all",
    "metrics",
    "record_job",
]
