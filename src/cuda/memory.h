// SPDX-License-Identifier: Apache-2.0
// Memory, devices and a few bytes for the host: what codecs and reducers on a device are made of.
#pragma once

#include <cstdint>
#include <utility>

#include "addend/result.h"
#include "cuda/library.h"

namespace addend::cuda {

/// Which device a stream is of, and the runtime to ask.
struct Device {
  const RuntimeTable* runtime = nullptr;
  int number = 0;
  void* stream = nullptr;

  /// kUnsupported where nothing can run on a device.
  static Result<Device> of(void* stream);
  Status check(int code, const char* doing) const { return cuda::check(*runtime, code, doing); }
};

/// Makes a device the calling thread's, and gives it back the one it had.
class OnDevice {
 public:
  explicit OnDevice(const Device& device) : runtime_(device.runtime) {
    runtime_->set_device(device.number, &before_);
  }
  ~OnDevice() { runtime_->set_device(before_, nullptr); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const RuntimeTable* runtime_;
  int before_ = 0;
};

/// Workspace on a device: grown when a plan needs more, never per step. REQUIRES of all calls: the
/// device is the calling thread's.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(const RuntimeTable* runtime) : runtime_(runtime) {}
  ~DeviceBuffer() { release(); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  /// Contents are lost when it grows. Growing waits for the device.
  Status reserve(uint64_t bytes);
  uint64_t capacity() const { return capacity_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void release();

  const RuntimeTable* runtime_;
  void* data_ = nullptr;
  uint64_t capacity_ = 0;
};

/// Host memory that copies go to and from at the bus's speed and that kernels can write to.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(const RuntimeTable* runtime) : runtime_(runtime) {}
  ~PinnedBuffer() { release(); }
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  Status reserve(uint64_t bytes);
  uint64_t capacity() const { return capacity_; }
  template <typename T>
  T* host() const {
    return static_cast<T*>(host_);
  }
  template <typename T>
  T* device() const {
    return static_cast<T*>(device_);
  }

 private:
  void release();

  const RuntimeTable* runtime_;
  void* host_ = nullptr;
  void* device_ = nullptr;
  uint64_t capacity_ = 0;
};

/// A few numbers from a kernel to the host without a copy: the kernel writes them, and then, as
/// `sequence`, the number it was given (cuda/launch.cuh). Nothing has to be reset between steps.
struct Mail {
  static constexpr int kNumbers = 15;
  uint64_t numbers[kNumbers];
  uint64_t sequence;
};

class Mailbox {
 public:
  explicit Mailbox(const Device& device) : device_(device), memory_(device.runtime) {}

  Status open();
  /// The next letter: what to give the kernel.
  uint64_t expect() { return ++expected_; }
  Mail* address() const { return memory_.device<Mail>(); }
  /// Waits for the letter last expected; an error of the stream ends the wait, too.
  Result<const Mail*> wait() const;
  /// Whether it is there.
  bool has_come() const;

 private:
  Device device_;
  PinnedBuffer memory_;
  uint64_t expected_ = 0;
};

}  // namespace addend::cuda
