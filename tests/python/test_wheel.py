# SPDX-License-Identifier: Apache-2.0
"""The wheel as a user gets it: built, looked into, installed where there is no torch."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import addend

ROOT = Path(__file__).resolve().parents[2]
USE = """
import sys
import numpy as np
import addend
assert "torch" not in sys.modules
result = addend.simulate([np.eye(300, dtype=np.float32)] * 3)
assert np.array_equal(result.sum, 3 * np.eye(300)), result.sum
assert result.ratio > 10, result.ratio
print(addend.__file__)
"""


def run(*command: object) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("ADDEND_LIBRARY", "PYTHONPATH")}
    done = subprocess.run(
        [str(word) for word in command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scikit_build_core")
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "unpacked")
    return wheel.parent / "unpacked"


def test_one_wheel_serves_every_python(wheel: Path) -> None:
    tag = f"py3-none-linux_{platform.machine()}"
    assert wheel.name == f"addend-{addend.__version__}-{tag}.whl"


def test_the_wheel_holds_the_library_its_licences_and_type_hints(unpacked: Path) -> None:
    for name in ("libaddend.so", "py.typed", "__init__.py"):
        assert (unpacked / "addend" / name).is_file()
    kernels = unpacked / "addend" / "libaddend_cuda.so"  # where they can be built
    assert kernels.is_file() == (shutil.which("nvcc") is not None)
    licences = {path.name for path in unpacked.glob("*.dist-info/licenses/**/*") if path.is_file()}
    assert licences == {"LICENSE", "cuda.txt", "highway.txt", "openssl.txt"}
    assert not list(unpacked.glob("**/*.h"))


def device_code(library: Path) -> Counter[tuple[str, int]]:
    """How often a library of nvcc's has code of a kind for a compute capability."""
    data, found, at = library.read_bytes(), Counter[tuple[str, int]](), 0
    while (at := data.find(b"\x50\xed\x55\xba", at)) >= 0:  # a "fat binary", of a source file each
        _, version, header, size = struct.unpack_from("<IHHQ", data, at)
        entry, at = at + header, at + 4
        if (version, header) != (1, 16) or entry + size > len(data):
            continue
        at = entry + size
        while entry < at:
            kind, _, ahead, size = struct.unpack_from("<HHIQ", data, entry)
            (capability,) = struct.unpack_from("<I", data, entry + 28)
            found[{1: "intermediate", 2: "machine"}[kind], capability] += 1
            entry += ahead + size
    return found


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_kernels_are_compiled_for_every_device_that_is_sold(unpacked: Path) -> None:
    sources = len(list((ROOT / "src").glob("**/*.cu")))
    expected = {("machine", 80), ("machine", 90), ("machine", 100), ("intermediate", 100)}
    if "compute_100" not in run("nvcc", "--list-gpu-arch"):
        expected = {("machine", 80), ("machine", 90), ("intermediate", 90)}
    kernels = unpacked / "addend" / "libaddend_cuda.so"
    assert device_code(kernels) == dict.fromkeys(expected, sources)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf (binutils)")
def test_the_library_needs_only_what_comes_with_it(unpacked: Path) -> None:
    library = unpacked / "addend" / "libaddend.so"
    dynamic = run("readelf", "-dW", library).splitlines()
    needed = [line.split("[")[1].rstrip("]") for line in dynamic if "(NEEDED)" in line]
    beside = {path.name for path in library.parent.glob("*.so*")}
    system = {name for name in needed if name.startswith(("libc.", "libm.", "ld-linux"))}
    assert set(needed) <= beside | system
    (search_path,) = (line for line in dynamic if "RUNPATH" in line or "RPATH" in line)
    assert "[$ORIGIN]" in search_path


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm (binutils)")
def test_the_library_exports_the_c_abi_alone(unpacked: Path) -> None:
    exported = run("nm", "-D", "--defined-only", unpacked / "addend" / "libaddend.so").splitlines()
    names = [line.split()[-1].split("@")[0] for line in exported if " A " not in line]
    assert "addend_codec_create" in names
    assert all(name.startswith("addend_") for name in names), names


def test_the_wheel_works_in_a_clean_environment_without_torch(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    run(python, "-m", "pip", "--disable-pip-version-check", "install", wheel)
    assert run(python, "-c", USE).startswith(str(tmp_path))
