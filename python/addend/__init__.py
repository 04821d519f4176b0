# SPDX-License-Identifier: Apache-2.0
"""Addend: gradients that add while compressed. `addend.torch` is the PyTorch front."""

from addend._native import version as _version
from addend.aggregator import Aggregator, ServiceReducer
from addend.codec import Codec
from addend.errors import (
    Capacity,
    Changed,
    Error,
    InvalidArgument,
    IoError,
    Malformed,
    Mismatch,
    OutOfMemory,
    Status,
    Timeout,
    Unavailable,
    Undecodable,
    Unsupported,
)
from addend.plane import Op, Plane, Round, fold, fold_tables
from addend.report import Report
from addend.simulation import Simulation, Simulator, simulate

__version__ = _version()

__all__ = [
    "Aggregator",
    "Capacity",
    "Changed",
    "Codec",
    "Error",
    "InvalidArgument",
    "IoError",
    "Malformed",
    "Mismatch",
    "Op",
    "OutOfMemory",
    "Plane",
    "Report",
    "Round",
    "ServiceReducer",
    "Simulation",
    "Simulator",
    "Status",
    "Timeout",
    "Unavailable",
    "Undecodable",
    "Unsupported",
    "fold",
    "fold_tables",
    "simulate",
]
