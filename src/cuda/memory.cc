// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include <sys/prctl.h>

namespace addend::cuda {

Result<Device> Device::of(void* stream) {
  const Result<const RuntimeTable*> found = cuda::runtime();
  ADDEND_TRY(found);
  Device device{*found, 0, stream};
  ADDEND_TRY(
      device.check(device.runtime->stream_device(stream, &device.number), "asking for a stream"));
  return device;
}

Status DeviceBuffer::reserve(uint64_t bytes) {
  if (bytes <= capacity_) return {};
  release();
  ADDEND_TRY(check(*runtime_, runtime_->allocate(bytes, &data_), "allocating memory"));
  capacity_ = bytes;
  return {};
}

void DeviceBuffer::release() {
  if (data_ != nullptr) runtime_->release(data_);
  data_ = nullptr;
  capacity_ = 0;
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept : runtime_(other.runtime_) {
  *this = std::move(other);
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(host_, other.host_);
  std::swap(device_, other.device_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

Status PinnedBuffer::reserve(uint64_t bytes) {
  if (bytes <= capacity_) return {};
  release();
  ADDEND_TRY(check(*runtime_, runtime_->allocate_pinned(bytes, &host_, &device_),
                   "allocating pinned memory"));
  capacity_ = bytes;
  return {};
}

void PinnedBuffer::release() {
  if (host_ != nullptr) runtime_->release_pinned(host_);
  host_ = device_ = nullptr;
  capacity_ = 0;
}

Status Mailbox::open() {
  ADDEND_TRY(memory_.reserve(sizeof(Mail)));
  *memory_.host<Mail>() = Mail{};
  return {};
}

bool Mailbox::has_come() const {
  const std::atomic_ref<uint64_t> sequence(memory_.host<Mail>()->sequence);
  return sequence.load(std::memory_order_acquire) == expected_;
}

namespace {

// Naps of the calling thread end when they should; the system's default is 50 us later.
class ShortNaps {
 public:
  ShortNaps() : before_(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) {
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  }
  ~ShortNaps() {
    if (before_ > 0) prctl(PR_SET_TIMERSLACK, before_, 0, 0, 0);
  }
  ShortNaps(const ShortNaps&) = delete;
  ShortNaps& operator=(const ShortNaps&) = delete;

 private:
  const int before_;
};

}  // namespace

// The letter of a short kernel comes within microseconds, so the first looks follow each other
// closely; behind a long backward pass they are further apart. A kernel that failed never writes:
// the stream is asked seldom, because the driver then keeps other threads from launching.
Result<const Mail*> Mailbox::wait() const {
  using Clock = std::chrono::steady_clock;
  constexpr auto kClosely = std::chrono::microseconds(200), kApart = std::chrono::microseconds(20);
  constexpr auto kAskAgain = std::chrono::milliseconds(5);
  const auto begin = Clock::now();
  auto ask = begin + kAskAgain;
  std::optional<ShortNaps> naps;
  while (!has_come()) {
    const auto now = Clock::now();
    if (now - begin < kClosely) continue;
    if (now < ask) {
      if (!naps) naps.emplace();
      std::this_thread::sleep_for(kApart);
      continue;
    }
    ask = now + kAskAgain;
    const int code = device_.runtime->query_stream(device_.stream);
    if (code != RuntimeTable::kNotReady && !has_come()) {
      ADDEND_TRY(device_.check(code, "a kernel"));
      return make_error(Errc::kUnavailable, "a kernel ended on the device without an answer");
    }
  }
  return memory_.host<Mail>();
}

}  // namespace addend::cuda
