# SPDX-License-Identifier: Apache-2.0
"""Copies of numpy arrays and torch tensors behind one face; torch is never imported here."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from addend.codec import DTYPES
from addend.errors import InvalidArgument


class Gradient(ABC):
    """A contiguous copy in host memory of one worker's array, to be overwritten by the sum."""

    address: int
    shape: tuple[int, ...]
    dtype: str

    @abstractmethod
    def as_float64(self) -> Any:
        """The contents, flat, as a numpy array."""

    @abstractmethod
    def like_input(self) -> Any:
        """The contents as the kind of array that was given, on its device."""


class _Numpy(Gradient):
    def __init__(self, array: Any) -> None:
        # A big-endian float32 is called float32, too.
        self.dtype = array.dtype.name if array.dtype.isnative else str(array.dtype)
        _check_dtype(self.dtype)
        self._copy = np.array(array, order="C", copy=True)
        self.shape = self._copy.shape
        self.address = self._copy.ctypes.data

    def as_float64(self) -> Any:
        return self._copy.astype(np.float64).ravel()

    def like_input(self) -> Any:
        return self._copy


class _Torch(Gradient):
    def __init__(self, tensor: Any) -> None:
        self.dtype = str(tensor.dtype).replace("torch.", "")
        _check_dtype(self.dtype)
        torch = sys.modules["torch"]
        if tensor.layout is not torch.strided:
            raise InvalidArgument(f"a tensor of layout {tensor.layout}: pass tensor.to_dense()")
        self._copy = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        self._device = tensor.device
        self.shape = tuple(self._copy.shape)
        self.address = self._copy.data_ptr()

    def as_float64(self) -> Any:
        return self._copy.double().flatten().numpy()

    def like_input(self) -> Any:
        return self._copy.to(self._device)


def copy_all(arrays: Sequence[Any]) -> list[Gradient]:
    """Copies one array a worker and checks that all are alike."""
    gradients = [_copy(array) for array in arrays]
    if not gradients:
        raise InvalidArgument("no arrays: there must be one a worker")
    first = gradients[0]
    for worker, gradient in enumerate(gradients):
        if (gradient.shape, gradient.dtype) != (first.shape, first.dtype):
            raise InvalidArgument(
                f"worker {worker} has {gradient.dtype} of shape {gradient.shape}, "
                f"worker 0 has {first.dtype} of shape {first.shape}"
            )
    return gradients


def _copy(array: Any) -> Gradient:
    if isinstance(array, np.ndarray):
        return _Numpy(array)
    torch: Any = sys.modules.get("torch")  # a tensor cannot exist before its module does
    if torch is not None and isinstance(array, torch.Tensor):
        return _Torch(array)
    raise InvalidArgument(
        f"expected one numpy array or torch tensor a worker, not {type(array).__name__}"
    )


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise InvalidArgument(f"elements of type {dtype}: convert to one of {', '.join(DTYPES)}")
