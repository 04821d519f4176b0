# SPDX-License-Identifier: Apache-2.0
# Looks for nvcc. Sets ADDEND_HAVE_CUDA and the devices that kernels are compiled for: what is sold today, and an
# intermediate form of the last that later devices translate when they load it. Developers, who wait for each, get one;
# `make python-env` builds as wheels are built, and tests/python/test_wheel.py looks for all of them there.
find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
if(NOT CMAKE_CUDA_COMPILER)
  if(ADDEND_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ADDEND_CUDA=ON, but there is no nvcc (NVIDIA's CUDA toolkit 12 or later)")
  endif()
  message(STATUS "No nvcc: libaddend_cuda.so is not built, and codecs run on the CPU only")
  return()
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  if(ADDEND_DEVELOPER)
    set(CMAKE_CUDA_ARCHITECTURES 90)
  elseif(known MATCHES "compute_100")
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CACHE STRING "Devices that kernels are compiled for")
endif()
enable_language(CUDA)
set(ADDEND_HAVE_CUDA ON)
# Programs of this build find libaddend_cuda.so here; installed ones have it beside them, or where the system looks.
list(APPEND CMAKE_BUILD_RPATH ${PROJECT_BINARY_DIR}/src/cuda)
