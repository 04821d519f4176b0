# SPDX-License-Identifier: Apache-2.0
"""The ctypes mirror says what the C header says, and a wrong library is refused by name. A unit
test of one private module, `_native`."""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import addend
from addend import _native
from addend.codec import DTYPES
from addend.errors import BY_STATUS

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "addend" / "addend.h"
STRUCTS = {
    "addend_plane": _native.Plane,
    "addend_round": _native.Round,
    "addend_segment": _native.Segment,
    "addend_part": _native.Part,
    "addend_claim": _native.Claim,
    "addend_span": _native.Span,
    "addend_outcome": _native.Outcome,
    "addend_submission": _native.Submission,
    "addend_link": _native.Link,
    "addend_mesh_options": _native.MeshOptions,
    "addend_candidate": _native.Candidate,
    "addend_control_setup": _native.ControlSetup,
    "addend_decision": _native.Decision,
    "addend_row_layout": _native.RowLayout,
    "addend_row_gradient": _native.RowGradient,
    "addend_layout": _native.Layout,
    "addend_report": _native.Report,
}
# A value of each ctypes type, as C: kinds and widths that do not fit are warnings, made errors.
C_VALUES = {
    ctypes.c_int: "number",
    ctypes.c_uint32: "u32",
    ctypes.c_uint64: "u64",
    ctypes.c_double: "real",
    ctypes.c_char_p: "text",
}

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")


def compile_c(source: str, output: Path, *options: str) -> None:
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", *options]
    command += ["-I", str(ROOT / "include"), "-x", "c", "-", "-o", str(output)]
    subprocess.run(command, input=source, text=True, check=True)


def numbers_from_c(expressions: list[str], folder: Path) -> dict[str, int]:
    lines = "\n".join(f'printf("%llu\\n", (unsigned long long)({e}));' for e in expressions)
    source = (
        "#include <stddef.h>\n#include <stdio.h>\n#include <addend/addend.h>\n"
        f"int main(void) {{\n{lines}\nreturn 0; }}\n"
    )
    compile_c(source, folder / "numbers")
    printed = subprocess.run([folder / "numbers"], capture_output=True, text=True, check=True)
    return dict(zip(expressions, map(int, printed.stdout.split())))


@needs_compiler
def test_structs_have_the_sizes_and_offsets_of_the_header(tmp_path: Path) -> None:
    expected = {}
    for name, struct in STRUCTS.items():
        expected[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            expected[f"offsetof({name}, {field})"] = getattr(struct, field).offset
            expected[f"sizeof((({name}*)0)->{field})"] = getattr(struct, field).size
    assert numbers_from_c(list(expected), tmp_path) == expected


@needs_compiler
def test_numbers_are_those_of_the_header(tmp_path: Path) -> None:
    c_dtypes = ("F32", "BF16", "F16")
    expected = {
        "ADDEND_ABI_VERSION": _native.ABI_VERSION,
        "ADDEND_MAX_PLANES": _native.MAX_PLANES,
        "ADDEND_UNKNOWN": _native.UNKNOWN,
        "ADDEND_OP_COUNT": len(addend.Op),
        **{f"ADDEND_DTYPE_{name}": number for number, name in enumerate(c_dtypes)},
        **{f"ADDEND_OP_{op.name}": int(op) for op in addend.Op},
    }
    for status in addend.Status:
        expected[f"ADDEND_{status.name}"] = int(status)
    for op in addend.Op:
        for lanes in (0, 1, 2, 7, 1000):
            expected[f"addend_op_bytes(ADDEND_OP_{op.name}, {lanes})"] = op.nbytes(lanes)
            expected[f"addend_op_sum_bytes(ADDEND_OP_{op.name}, {lanes})"] = op.sum_nbytes(lanes)
    assert numbers_from_c(list(expected), tmp_path) == expected
    assert len(DTYPES) == len(c_dtypes)


@needs_compiler
def test_functions_take_and_return_what_the_header_declares(tmp_path: Path) -> None:
    calls = []
    for name, result, arguments in _native._FUNCTIONS:
        values = ", ".join(C_VALUES.get(argument, "pointer") for argument in arguments)
        call = f"addend_{name}({values})"
        if result is not None:
            size = ctypes.sizeof(result)
            call = f'_Static_assert(sizeof({call}) == {size}, "{name}"); (void){call}'
        calls.append(call + ";")
    body = "\n  ".join(calls)
    compile_c(
        "#include <addend/addend.h>\n"
        "void calls(int, uint32_t, uint64_t, double, const char*, void*);\n"
        "void calls(int number, uint32_t u32, uint64_t u64, double real, const char* text,"
        f" void* pointer) {{\n  {body}\n  (void)number; (void)u32; (void)u64;\n"
        "  (void)real; (void)text; (void)pointer;\n}\n",
        tmp_path / "calls.o",
        "-c",
        # An enumeration in C and an int in ctypes are alike where the test above passes.
        "-Wno-enum-conversion",
        "-Wno-sign-conversion",
    )


def test_every_codec_function_of_the_header_is_bound() -> None:
    declared = set(re.findall(r"\baddend_((?:codec|layout|fold)\w*)\(", HEADER.read_text()))
    assert declared == {
        name for name, _, _ in _native._FUNCTIONS if re.match("codec|layout|fold", name)
    }


def test_every_status_has_a_name_and_an_exception() -> None:
    name_of = ctypes.CDLL(str(_native.library.path)).addend_status_name
    name_of.restype = ctypes.c_char_p
    for status in addend.Status:
        assert name_of(int(status)).decode() == status.name.lower()
    assert name_of(len(addend.Status)) == b"unknown"
    assert set(BY_STATUS) == set(addend.Status) - {addend.Status.OK}


@pytest.mark.parametrize("kind", BY_STATUS.values())
def test_exceptions_are_ordinary(kind: type[addend.Error]) -> None:
    error = kind("what went wrong")
    assert isinstance(error, addend.Error)
    assert str(error) == "what went wrong"
    assert BY_STATUS[error.status] is kind
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (kind, str(error))


def test_builtin_families_catch_their_kind() -> None:
    for kind, family in (
        (addend.InvalidArgument, ValueError),
        (addend.Malformed, ValueError),
        (addend.Timeout, TimeoutError),
        (addend.IoError, OSError),
        (addend.OutOfMemory, MemoryError),
    ):
        assert issubclass(kind, family)


def test_an_unknown_status_is_still_an_error() -> None:
    with pytest.raises(addend.Error):
        _native.check(1000)


def import_with(library: Path, code: str = "import addend") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ADDEND_LIBRARY": str(library)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    result = import_with(tmp_path / "nowhere.so")
    assert result.returncode != 0
    assert "ImportError" in result.stderr
    assert "nowhere.so" in result.stderr
    assert "ADDEND_LIBRARY" in result.stderr


@needs_compiler
def test_a_library_of_another_abi_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    for source, named in (
        (
            "unsigned addend_abi_version(void);\nunsigned addend_abi_version(void) { return 77; }",
            77,
        ),
        ("int nothing_of_ours;", "none"),
    ):
        compile_c(source, other, "-shared", "-fPIC")
        result = import_with(other)
        assert result.returncode != 0
        assert "ImportError" in result.stderr
        assert f"ABI version {named}" in result.stderr


@needs_compiler
def test_what_an_older_library_lacks_is_refused_when_asked_for(tmp_path: Path) -> None:
    older = tmp_path / "older.so"
    compile_c(
        "unsigned addend_abi_version(void);\n"
        f"unsigned addend_abi_version(void) {{ return {_native.ABI_VERSION}; }}\n"
        "const char* addend_version(void);\n"
        'const char* addend_version(void) { return "0.0.9"; }',
        older,
        "-shared",
        "-fPIC",
    )
    result = import_with(older, "import addend; addend.fold(addend.Op.SUM_F32, 0, 0, 0)")
    assert result.returncode != 0
    assert "Unsupported" in result.stderr
    assert "has no addend_fold" in result.stderr


def test_importing_addend_does_not_import_torch() -> None:
    code = "import sys, addend; assert 'torch' not in sys.modules, 'torch was imported'"
    result = import_with(_native.library.path, code)
    assert result.returncode == 0, result.stderr


def test_the_version_is_that_of_the_build() -> None:
    project = re.search(r"project\(addend VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert project is not None
    assert addend.__version__ == project[1]
