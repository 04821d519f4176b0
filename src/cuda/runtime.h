// SPDX-License-Identifier: Apache-2.0
// What the core asks of the CUDA runtime, as a table of plain functions that libaddend_cuda.so
// brings: the core itself is linked with nothing of CUDA. Every function returns 0 or the runtime's
// error code (cuda::check makes a Status of it) and none waits unless it says so.
#pragma once

#include <cstdint>

namespace addend::cuda {

/// A device as `addend doctor` shows it.
struct DeviceInfo {
  char name[64];
  uint64_t memory_bytes;
  int32_t multiprocessors;
  int32_t major, minor;  ///< compute capability
  int32_t driver;        ///< newest CUDA that the driver does: 13000 is 13.0
  int32_t runtime;       ///< CUDA that the library was built with
};

struct RuntimeTable {
  static constexpr const char* kPart = "runtime";
  static constexpr uint32_t kVersion = 1;
  static constexpr int kNotReady = 600;  ///< of the two queries

  const char* (*error_text)(int code);
  bool (*is_out_of_memory)(int code);

  int (*device_count)(int* count);
  int (*describe)(int device, DeviceInfo* info);
  int (*stream_device)(void* stream, int* device);
  /// Of the calling thread.
  int (*set_device)(int device, int* before);

  int (*allocate)(uint64_t bytes, void** memory);
  int (*release)(void* memory);  ///< waits for the device
  /// Host memory that the device can write to, at `device` in its address space.
  int (*allocate_pinned)(uint64_t bytes, void** host, void** device);
  int (*release_pinned)(void* host);
  int (*copy)(void* to, const void* from, uint64_t bytes, void* stream);
  int (*fill)(void* memory, int byte, uint64_t bytes, void* stream);

  int (*create_stream)(void** stream);  ///< one that takes no notice of the default stream
  int (*destroy_stream)(void* stream);
  int (*synchronize)(void* stream);  ///< waits
  int (*query_stream)(void* stream);
  int (*create_event)(void** event);
  int (*destroy_event)(void* event);
  int (*record)(void* event, void* stream);
  int (*wait_event)(void* stream, void* event);  ///< the stream waits, not the caller
  int (*query_event)(void* event);
  int (*synchronize_event)(void* event);  ///< waits
  /// Calls the host when the stream is there. The function must not call the runtime.
  int (*call_host)(void* stream, void (*call)(void*), void* argument);
};

}  // namespace addend::cuda
