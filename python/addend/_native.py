# SPDX-License-Identifier: Apache-2.0
"""The C ABI (include/addend/addend.h) through ctypes.

Structs and numbers repeat the header; tests/python/test_native.py compares them with what a C
compiler says. The library is loaded with CDLL, which releases the GIL during every call, but for
those of `Library.quick`.
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
from types import SimpleNamespace
from typing import Any, Callable

from addend.errors import BY_STATUS, Unavailable, Unsupported

ABI_VERSION = 2
MAX_PLANES = 4
MAX_REPORTED_ROUNDS = 8
UNKNOWN = 2**64 - 1

# Types by the names that fields and arguments have below. A handle is a pointer.
_TYPES: dict[str, Any] = {
    "void": None,
    "int": c_int,
    "char": c_char,
    "u8": c_uint8,
    "u32": c_uint32,
    "u64": c_uint64,
    "f64": c_double,
    "size": c_size_t,
    "ptr": c_void_p,
    "str": c_char_p,
}


def _type(name: str) -> Any:
    """One of the above, a struct, a pointer as "u64*" or an array as "u64[8]"."""
    if name not in _TYPES:
        of, _, count = name[:-1].partition("[")
        _TYPES[name] = _type(of) * int(count) if count else POINTER(_type(of))
    return _TYPES[name]


def _struct(name: str, fields: str) -> Any:
    """Of fields as C has them: a type, and the names that have it."""
    kinds = (field.split() for field in fields.split(";"))
    typed = [(one, _type(kind)) for kind, *names in kinds for one in names]
    _TYPES[name] = type(name, (ctypes.Structure,), {"_fields_": typed})
    return _TYPES[name]


def _function(name: str, result: str, *arguments: str) -> Any:
    _TYPES[name] = ctypes.CFUNCTYPE(_type(result), *map(_type, arguments))
    return _TYPES[name]


Plane = _struct("Plane", "int op; u64 lanes; ptr data table sums")
Round = _struct("Round", f"u32 plane_count last; Plane[{MAX_PLANES}] planes")
Part = _struct("Part", "ptr codec gradient")
Claim = _struct("Claim", "str what; u64 value")
Span = _struct("Span", "int stage; u64 begin_ns end_ns")
Outcome = _struct(
    "Outcome",
    "u64 ticket; int status; str message; Span* spans; u32 span_count repeats",
)
PrepareFunction = _function("PrepareFunction", "int", "ptr")
DoneFunction = _function("DoneFunction", "void", "ptr", "Outcome*")
SwitchFunction = _function("SwitchFunction", "void", "ptr", "str")
Submission = _struct(
    "Submission",
    "u32 size flags; Part* parts; u32 part_count claim_count; Claim* claims; "
    "PrepareFunction prepare; DoneFunction done; ptr context ready_event; int ready_device",
)
PipelineOptions = _struct("PipelineOptions", "u32 size depth; u64 deadline_ns; u32 threads")
Link = _struct("Link", "f64 latency_us gbit_per_s")
MeshOptions = _struct(
    "MeshOptions",
    "u32 size world worker; int listener; str* peers; str token; u64 token_bytes join_timeout_ns",
)
Candidate = _struct("Candidate", "str spec; u32 loss rounds; f64 factor bits union_bits")
ControlSetup = _struct(
    "ControlSetup",
    "u32 size world; str options; f64 latency_us gbit_per_s; Candidate* candidates; "
    "u64 candidate_count; u64* bucket_elements bucket_bytes; u64 bucket_count",
)
Decision = _struct(
    "Decision",
    "u32 size steps reference_steps reserved; u64 window; u32* plan; str* why; u8* probe; "
    "f64 realised_s foreseen_s predicted_s predicted_dense_s phi latency_us gbit_per_s",
)
RowLayout = _struct(
    "RowLayout",
    "u32 size; int element; u64 width; u32 world worker; u64 seed id; f64 scale; "
    "u64 first_step; f64 network_latency_us network_gbit_per_s",
)
RowGradient = _struct("RowGradient", "ptr rows values; u64 count")
Segment = _struct("Segment", "u64 id count")
Layout = _struct(
    "Layout",
    "u32 size; int dtype; u64 count; u32 world worker; u64 seed bucket; "
    "f64 network_latency_us network_gbit_per_s scale; Segment* segments; "
    "u64 segment_count first_step; u32 device reserved; ptr stream; u64* segment_rows; "
    "u64 network_gathers network_narrows",
)
Report = _struct(
    "Report",
    f"u32 size rounds; u64 wire_bytes dense_bytes; u64[{MAX_REPORTED_ROUNDS}] round_bytes; "
    "u64 local_nonzeros union_nonzeros cells stuck_keys escaped_values; "
    "char[16] mode fallback; f64 sampled_energy sampled_error; "
    "u64 nonfinite contributors missing",
)
ServiceOptions = _struct(
    "ServiceOptions",
    "u32 size world worker slots payload_bytes quorum; u64 patience_ns join_timeout_ns; "
    "str aggregator job identity; u8* key; str authority certificate certificate_key; "
    "u64 return_timeout_ns",
)
ReduceFunction = _function("ReduceFunction", "int", "ptr", "Round*", "u64")
DeviceReduceFunction = _function(
    "DeviceReduceFunction", "int", "ptr", "Round*", "u32", "ptr", "u64"
)

# Name, result, arguments. A result int is an addend_status.
_FUNCTIONS: list[tuple[str, Any, list[Any]]] = [
    (name, _type(result), [_type(one) for one in arguments])
    for name, result, *arguments in map(
        str.split,
        """\
version str
last_error str
fold int int ptr ptr u64
fold_tables int int ptr ptr size ptr u64
fold_on_device int int ptr ptr u64 ptr
fold_tables_on_device int int ptr ptr size ptr u64 ptr
layout_init void Layout* size
codec_create int str Layout* ptr*
codec_destroy void ptr
codec_fingerprint u64 ptr
codec_next_mode str ptr
codec_begin int ptr ptr
codec_begin_in_place int ptr ptr
codec_next_round int ptr Round*
codec_finish int ptr ptr
codec_cancel void ptr
codec_skip_step int ptr
codec_set_missing int ptr u64
codec_save_state int ptr ptr u64 u64*
codec_load_state int ptr ptr u64
codec_save_segment int ptr u64 ptr u64 u64*
codec_load_segment int ptr u64 ptr u64
codec_read_residual int ptr ptr
codec_scale_residual int ptr f64
codec_report int ptr Report*
codec_memory_bytes u64 ptr
service_options_init void ServiceOptions* size
service_create int ServiceOptions* ptr*
reducer_reduce int ptr Round* u64
reducer_begin_step void ptr
reducer_missing u64 ptr
reducer_quorum u32 ptr
reducer_destroy void ptr
reducer_measure_link int ptr u64 Link*
reducer_set_link int ptr Link*
local_create int u32 ptr*
mesh_options_init void MeshOptions* size
mesh_create int MeshOptions* ptr*
row_layout_init void RowLayout* size
row_codec_create int str RowLayout* ptr*
row_codec_result int ptr ptr* ptr* u64*
pipeline_create_with int ptr PipelineOptions* ptr*
pipeline_run int ptr Submission* int int* Outcome*
pipeline_stop void ptr int str
pipeline_position void ptr u64* u32*
pipeline_destroy void ptr
custom_create int u32 u32 ReduceFunction ptr ptr*
custom_create_for_devices int u32 u32 DeviceReduceFunction ptr ptr*
fallback_create int ptr ptr SwitchFunction ptr ptr*
staged_create int ptr u64 ptr*
set_error void str
controller_create int ControlSetup* ptr*
controller_destroy void ptr
controller_first_steps u32 ptr
controller_signals u64 ptr
controller_decide int ptr f64* u32 Decision*
controller_rate_changed u32 ptr f64
controller_trace int ptr ptr u64 u64*
control_factors int str f64* u64 u64*
""".splitlines(),
    )
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
    """The functions of one loaded library, as attributes without the prefix `addend_`; in `quick`
    they keep the GIL: for calls that take microseconds and wait for nobody who may want it. To get
    it back from another thread takes milliseconds where all cores are busy."""

    def __init__(self, path: Path) -> None:
        self.quick = SimpleNamespace()
        try:
            handle, quick = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
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
            for holder, loaded in ((self, handle), (self.quick, quick)):
                try:
                    function = getattr(loaded, f"addend_{name}")
                except AttributeError:
                    setattr(holder, name, _missing(name, path))
                    continue
                function.restype = result
                function.argtypes = arguments
                setattr(holder, name, function)
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


def created(create: Callable[..., int], *arguments: Any) -> int:
    """The handle that a function makes and leaves in its last argument."""
    handle = c_void_p()
    check(create(*arguments, ctypes.byref(handle)))
    return handle.value or 0


def read_bytes(function: Callable[..., int], *arguments: int) -> bytes:
    """What a function writes that says how much it is if it gets no room."""
    size = ctypes.c_uint64()
    check(function(*arguments, None, 0, ctypes.byref(size)))
    written = ctypes.create_string_buffer(size.value)
    check(function(*arguments, written, size.value, ctypes.byref(size)))
    return written.raw
