# SPDX-License-Identifier: Apache-2.0
"""The C ABI (include/addend/addend.h) through ctypes.

Structs and numbers repeat the header; tests/python/test_native.py compares them with what a C
compiler says. The library is loaded with CDLL, which releases the GIL during every call.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, Callable

from addend.errors import BY_STATUS, Unavailable, Unsupported

ABI_VERSION = 2
MAX_PLANES = 4
MAX_REPORTED_ROUNDS = 8
UNKNOWN = 2**64 - 1


class Plane(ctypes.Structure):
    _fields_ = [
        ("op", c_int),
        ("lanes", c_uint64),
        ("data", c_void_p),
        ("table", c_void_p),
        ("sums", c_void_p),
    ]


class Round(ctypes.Structure):
    _fields_ = [("plane_count", c_uint32), ("last", c_uint32), ("planes", Plane * MAX_PLANES)]


class Part(ctypes.Structure):
    _fields_ = [("codec", c_void_p), ("gradient", c_void_p)]


class Claim(ctypes.Structure):
    _fields_ = [("what", c_char_p), ("value", c_uint64)]


class Span(ctypes.Structure):
    _fields_ = [("stage", c_int), ("begin_ns", c_uint64), ("end_ns", c_uint64)]


class Outcome(ctypes.Structure):
    _fields_ = [
        ("ticket", c_uint64),
        ("status", c_int),
        ("message", c_char_p),
        ("spans", POINTER(Span)),
        ("span_count", c_uint32),
        ("repeats", c_uint32),
    ]


PrepareFunction = ctypes.CFUNCTYPE(c_int, c_void_p)
DoneFunction = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Outcome))
SwitchFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)


class Submission(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("parts", POINTER(Part)),
        ("part_count", c_uint32),
        ("claim_count", c_uint32),
        ("claims", POINTER(Claim)),
        ("prepare", PrepareFunction),
        ("done", DoneFunction),
        ("context", c_void_p),
    ]


class PipelineOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("depth", c_uint32),
        ("deadline_ns", c_uint64),
        ("threads", c_uint32),
    ]


class Link(ctypes.Structure):
    _fields_ = [("latency_us", c_double), ("gbit_per_s", c_double)]


class MeshOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("world", c_uint32),
        ("worker", c_uint32),
        ("listener", c_int),
        ("peers", POINTER(c_char_p)),
        ("token", c_char_p),
        ("token_bytes", c_uint64),
        ("join_timeout_ns", c_uint64),
    ]


class Candidate(ctypes.Structure):
    _fields_ = [
        ("spec", c_char_p),
        ("loss", c_uint32),
        ("rounds", c_uint32),
        ("factor", c_double),
        ("bits", c_double),
        ("union_bits", c_double),
    ]


class ControlSetup(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("world", c_uint32),
        ("options", c_char_p),
        ("latency_us", c_double),
        ("gbit_per_s", c_double),
        ("candidates", POINTER(Candidate)),
        ("candidate_count", c_uint64),
        ("bucket_elements", POINTER(c_uint64)),
        ("bucket_bytes", POINTER(c_uint64)),
        ("bucket_count", c_uint64),
    ]


class Decision(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("steps", c_uint32),
        ("reference_steps", c_uint32),
        ("reserved", c_uint32),
        ("window", c_uint64),
        ("plan", POINTER(c_uint32)),
        ("why", POINTER(c_char_p)),
        ("probe", POINTER(c_uint8)),
        ("realised_s", c_double),
        ("foreseen_s", c_double),
        ("predicted_s", c_double),
        ("predicted_dense_s", c_double),
        ("phi", c_double),
        ("latency_us", c_double),
        ("gbit_per_s", c_double),
    ]


class RowLayout(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("element", c_int),
        ("width", c_uint64),
        ("world", c_uint32),
        ("worker", c_uint32),
        ("seed", c_uint64),
        ("id", c_uint64),
        ("scale", c_double),
        ("first_step", c_uint64),
        ("network_latency_us", c_double),
        ("network_gbit_per_s", c_double),
    ]


class RowGradient(ctypes.Structure):
    _fields_ = [("rows", c_void_p), ("values", c_void_p), ("count", c_uint64)]


class Segment(ctypes.Structure):
    _fields_ = [("id", c_uint64), ("count", c_uint64)]


class Layout(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("dtype", c_int),
        ("count", c_uint64),
        ("world", c_uint32),
        ("worker", c_uint32),
        ("seed", c_uint64),
        ("bucket", c_uint64),
        ("network_latency_us", c_double),
        ("network_gbit_per_s", c_double),
        ("scale", c_double),
        ("segments", POINTER(Segment)),
        ("segment_count", c_uint64),
        ("first_step", c_uint64),
        ("device", c_uint32),
        ("reserved", c_uint32),
        ("stream", c_void_p),
        ("segment_rows", POINTER(c_uint64)),
        ("network_gathers", c_uint64),
        ("network_narrows", c_uint64),
    ]


class Report(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("rounds", c_uint32),
        ("wire_bytes", c_uint64),
        ("dense_bytes", c_uint64),
        ("round_bytes", c_uint64 * MAX_REPORTED_ROUNDS),
        ("local_nonzeros", c_uint64),
        ("union_nonzeros", c_uint64),
        ("cells", c_uint64),
        ("stuck_keys", c_uint64),
        ("escaped_values", c_uint64),
        ("mode", c_char * 16),
        ("fallback", c_char * 16),
        ("sampled_energy", c_double),
        ("sampled_error", c_double),
        ("nonfinite", c_uint64),
        ("contributors", c_uint64),
        ("missing", c_uint64),
    ]


class ServiceOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("world", c_uint32),
        ("worker", c_uint32),
        ("slots", c_uint32),
        ("payload_bytes", c_uint32),
        ("quorum", c_uint32),
        ("patience_ns", c_uint64),
        ("join_timeout_ns", c_uint64),
        ("aggregator", c_char_p),
        ("job", c_char_p),
        ("identity", c_char_p),
        ("key", POINTER(c_uint8)),
        ("authority", c_char_p),
        ("certificate", c_char_p),
        ("certificate_key", c_char_p),
        ("return_timeout_ns", c_uint64),
    ]


ReduceFunction = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(Round), c_uint64)
DeviceReduceFunction = ctypes.CFUNCTYPE(
    c_int, c_void_p, POINTER(Round), c_uint32, c_void_p, c_uint64
)


_CODEC = c_void_p
_REDUCER = c_void_p
_PIPELINE = c_void_p
# name, result, arguments. A c_int result is an addend_status.
_FUNCTIONS: list[tuple[str, Any, list[Any]]] = [
    ("version", c_char_p, []),
    ("last_error", c_char_p, []),
    ("fold", c_int, [c_int, c_void_p, c_void_p, c_uint64]),
    ("fold_tables", c_int, [c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_uint64]),
    ("fold_on_device", c_int, [c_int, c_void_p, c_void_p, c_uint64, c_void_p]),
    (
        "fold_tables_on_device",
        c_int,
        [c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_uint64, c_void_p],
    ),
    ("layout_init", None, [POINTER(Layout), c_size_t]),
    ("codec_create", c_int, [c_char_p, POINTER(Layout), POINTER(_CODEC)]),
    ("codec_destroy", None, [_CODEC]),
    ("codec_fingerprint", c_uint64, [_CODEC]),
    ("codec_next_mode", c_char_p, [_CODEC]),
    ("codec_begin", c_int, [_CODEC, c_void_p]),
    ("codec_begin_in_place", c_int, [_CODEC, c_void_p]),
    ("codec_next_round", c_int, [_CODEC, POINTER(Round)]),
    ("codec_finish", c_int, [_CODEC, c_void_p]),
    ("codec_cancel", None, [_CODEC]),
    ("codec_skip_step", c_int, [_CODEC]),
    ("codec_set_missing", c_int, [_CODEC, c_uint64]),
    ("codec_save_state", c_int, [_CODEC, c_void_p, c_uint64, POINTER(c_uint64)]),
    ("codec_load_state", c_int, [_CODEC, c_void_p, c_uint64]),
    ("codec_save_segment", c_int, [_CODEC, c_uint64, c_void_p, c_uint64, POINTER(c_uint64)]),
    ("codec_load_segment", c_int, [_CODEC, c_uint64, c_void_p, c_uint64]),
    ("codec_read_residual", c_int, [_CODEC, c_void_p]),
    ("codec_scale_residual", c_int, [_CODEC, c_double]),
    ("codec_report", c_int, [_CODEC, POINTER(Report)]),
    ("codec_memory_bytes", c_uint64, [_CODEC]),
    ("service_options_init", None, [POINTER(ServiceOptions), c_size_t]),
    ("service_create", c_int, [POINTER(ServiceOptions), POINTER(_REDUCER)]),
    ("reducer_reduce", c_int, [_REDUCER, POINTER(Round), c_uint64]),
    ("reducer_begin_step", None, [_REDUCER]),
    ("reducer_missing", c_uint64, [_REDUCER]),
    ("reducer_quorum", c_uint32, [_REDUCER]),
    ("reducer_destroy", None, [_REDUCER]),
    ("reducer_measure_link", c_int, [_REDUCER, c_uint64, POINTER(Link)]),
    ("reducer_set_link", c_int, [_REDUCER, POINTER(Link)]),
    ("local_create", c_int, [c_uint32, POINTER(_REDUCER)]),
    ("mesh_options_init", None, [POINTER(MeshOptions), c_size_t]),
    ("mesh_create", c_int, [POINTER(MeshOptions), POINTER(_REDUCER)]),
    ("row_layout_init", None, [POINTER(RowLayout), c_size_t]),
    ("row_codec_create", c_int, [c_char_p, POINTER(RowLayout), POINTER(_CODEC)]),
    (
        "row_codec_result",
        c_int,
        [_CODEC, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_uint64)],
    ),
    (
        "pipeline_create_with",
        c_int,
        [_REDUCER, POINTER(PipelineOptions), POINTER(_PIPELINE)],
    ),
    (
        "pipeline_run",
        c_int,
        [_PIPELINE, POINTER(Submission), c_int, POINTER(c_int), POINTER(Outcome)],
    ),
    ("pipeline_stop", None, [_PIPELINE, c_int, c_char_p]),
    ("pipeline_position", None, [_PIPELINE, POINTER(c_uint64), POINTER(c_uint32)]),
    ("pipeline_destroy", None, [_PIPELINE]),
    ("custom_create", c_int, [c_uint32, c_uint32, ReduceFunction, c_void_p, POINTER(_REDUCER)]),
    (
        "custom_create_for_devices",
        c_int,
        [c_uint32, c_uint32, DeviceReduceFunction, c_void_p, POINTER(_REDUCER)],
    ),
    ("fallback_create", c_int, [_REDUCER, _REDUCER, SwitchFunction, c_void_p, POINTER(_REDUCER)]),
    ("staged_create", c_int, [_REDUCER, c_uint64, POINTER(_REDUCER)]),
    ("set_error", None, [c_char_p]),
    ("controller_create", c_int, [POINTER(ControlSetup), POINTER(c_void_p)]),
    ("controller_destroy", None, [c_void_p]),
    ("controller_first_steps", c_uint32, [c_void_p]),
    ("controller_signals", c_uint64, [c_void_p]),
    ("controller_decide", c_int, [c_void_p, POINTER(c_double), c_uint32, POINTER(Decision)]),
    ("controller_trace", c_int, [c_void_p, c_void_p, c_uint64, POINTER(c_uint64)]),
    ("control_factors", c_int, [c_char_p, POINTER(c_double), c_uint64, POINTER(c_uint64)]),
]


def _library_path() -> Path:
    """ADDEND_LIBRARY (developers: the build tree's), or the library inside the package."""
    named = os.environ.get("ADDEND_LIBRARY")
    if named:
        return Path(named)
    # An editable install has two folders: the sources, and what the build installed.
    folders = [Path(folder) for folder in sys.modules["addend"].__path__]
    candidates = [folder / "libaddend.so" for folder in folders]
    return next((path for path in candidates if path.exists()), candidates[0])


def _missing(name: str, path: Path) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise Unsupported(f"{path} has no addend_{name}: it is older than this package")

    return refuse


class Library:
    """The functions of one loaded library, as attributes without the prefix `addend_`."""

    def __init__(self, path: Path) -> None:
        try:
            handle = ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(
                f"cannot load Addend's native library {path}: {error}. It comes with the installed "
                "package; from a source tree, build it and name it in ADDEND_LIBRARY."
            ) from error
        abi_version = getattr(handle, "addend_abi_version", lambda: "none")()
        if abi_version != ABI_VERSION:
            raise ImportError(
                f"{path} has ABI version {abi_version}, this package needs {ABI_VERSION}: install "
                "both from one release, or correct ADDEND_LIBRARY"
            )
        for name, result, arguments in _FUNCTIONS:
            try:
                function = getattr(handle, f"addend_{name}")
            except AttributeError:
                setattr(self, name, _missing(name, path))
                continue
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)
        self.path = path

    def __getattr__(self, name: str) -> Any:  # for type checkers: the table above defines them
        raise AttributeError(name)


library = Library(_library_path())


def version() -> str:
    """The library's version."""
    return str(library.version().decode())


def check(status: int) -> None:
    """Raises what `status` stands for, with this thread's message."""
    if status != 0:
        kind = BY_STATUS.get(status, Unavailable)
        raise kind(library.last_error().decode(errors="replace"))
