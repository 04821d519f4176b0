// SPDX-License-Identifier: Apache-2.0
// Workers on the CPU and the same workers on a device, stepped together: every plane and every
// result must be the same bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/codec.h"
#include "addend/fold.h"
#include "codec/readable_residual.h"
#include "cuda/memory.h"
#include "wire/half.h"

namespace addend::testing_support {

using Bytes = std::vector<uint8_t>;

/// Where these first differ, in words of 4 bytes, and how; nothing if they do not.
inline std::string difference(const uint8_t* host, const uint8_t* device, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += 4) {
    const uint64_t n = std::min<uint64_t>(4, bytes - at);
    if (std::memcmp(host + at, device + at, n) == 0) continue;
    uint32_t a = 0, b = 0;
    std::memcpy(&a, host + at, n);
    std::memcpy(&b, device + at, n);
    std::ostringstream text;
    text << "word " << at / 4 << " of " << bytes / 4 << ": host 0x" << std::hex << a
         << ", device 0x" << b;
    return text.str();
  }
  return {};
}

inline std::string difference(const Bytes& host, const Bytes& device) {
  if (host.size() != device.size()) return "lengths differ";
  return difference(host.data(), device.data(), host.size());
}

/// A stream of its own, and why there is none.
class TestDevice {
 public:
  TestDevice() {
    const auto runtime = cuda::runtime();
    if (!runtime) {
      why_ = runtime.error().message;
      return;
    }
    runtime_ = *runtime;
    runtime_->create_stream(&stream_);
  }
  ~TestDevice() {
    if (stream_ != nullptr) runtime_->destroy_stream(stream_);
  }
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;

  const std::string& missing() const { return why_; }
  const cuda::RuntimeTable* runtime() const { return runtime_; }
  void* stream() const { return stream_; }
  Bytes read(const void* memory, uint64_t bytes) const {
    Bytes host(bytes);
    EXPECT_EQ(runtime_->copy(host.data(), memory, bytes, stream_), 0);
    EXPECT_EQ(runtime_->synchronize(stream_), 0);
    return host;
  }
  void write(void* memory, const Bytes& host) const {
    EXPECT_EQ(runtime_->copy(memory, host.data(), host.size(), stream_), 0);
    EXPECT_EQ(runtime_->synchronize(stream_), 0);
  }

 private:
  std::string why_;
  const cuda::RuntimeTable* runtime_ = nullptr;
  void* stream_ = nullptr;
};

struct SideBySide {
  std::string spec = "exact";
  Layout layout;
  uint64_t misaligned = 0;  ///< elements by which gradients miss the alignment of an allocation
  bool in_place = false;
  bool elsewhere = false;  ///< results go to another, poisoned, buffer
};

inline SideBySide of(const std::string& spec, DType dtype, uint64_t count, uint32_t world) {
  SideBySide how;
  how.spec = spec;
  how.layout.dtype = dtype;
  how.layout.count = count;
  how.layout.world = world;
  return how;
}

inline constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

/// One worker's two codecs.
class Twins {
 public:
  Twins(const TestDevice& device, const SideBySide& how, uint32_t worker)
      : device_(device), how_(how), memory_(device.runtime()), other_(device.runtime()) {
    Layout layout = how.layout;
    layout.worker = worker;
    const auto make = [&](std::unique_ptr<Codec>& codec, const std::string& text) {
      auto made = create_codec(*CodecSpec::parse(text), layout);
      ASSERT_TRUE(made) << text << ": " << made.error().message;
      codec = std::move(*made);
    };
    make(host_, how.spec);
    layout.execution = {Execution::Device::kCuda, device.stream()};
    make(there_, how.spec);
    bytes_ = layout.count * dtype_bytes(layout.dtype);
    shift_ = how.misaligned * dtype_bytes(layout.dtype);
    EXPECT_TRUE(memory_.reserve(bytes_ + shift_ + 64));
    EXPECT_TRUE(other_.reserve(bytes_ + shift_ + 64));
  }

  void begin(const Bytes& gradient) {
    ASSERT_EQ(host_->fingerprint(), there_->fingerprint());
    ASSERT_EQ(host_->next_mode(), there_->next_mode());
    gradient_ = gradient;
    device_.write(place(memory_), gradient);
    const auto start = [&](Codec& codec, void* from) {
      const Status status = how_.in_place ? codec.begin_in_place(from) : codec.begin(from);
      ASSERT_TRUE(status) << status.error().message;
    };
    start(*host_, gradient_.data());
    start(*there_, place(memory_));
  }

  /// The next round of both; equal in every byte.
  bool next(Round& round) {
    Round device_round;
    const auto host = host_->next_round(round);
    const auto there = there_->next_round(device_round);
    EXPECT_TRUE(host) << host.error().message;
    EXPECT_TRUE(there) << there.error().message;
    if (!host || !there) return false;
    EXPECT_EQ(*host, *there);
    EXPECT_EQ(round.size, device_round.size);
    EXPECT_EQ(round.last, device_round.last);
    for (std::size_t p = 0; *host && p < round.size; ++p) {
      const Plane &a = round.planes[p], &b = device_round.planes[p];
      EXPECT_EQ(a.op, b.op);
      EXPECT_EQ(a.lanes, b.lanes);
      const uint64_t bytes = op_bytes(a.op, a.lanes);
      const Bytes read = device_.read(b.data, bytes);
      EXPECT_EQ(difference(static_cast<const uint8_t*>(a.data), read.data(), bytes), "")
          << op_name(a.op) << " plane " << p;
    }
    device_round_ = device_round;
    return *host;
  }

  /// The device gets the sums that the host has.
  void take(const Round& sums) {
    for (std::size_t p = 0; p < sums.size; ++p) {
      const Plane& plane = sums.planes[p];
      const auto* from =
          static_cast<const uint8_t*>(is_table_sum(plane.op) ? plane.sums : plane.data);
      const Plane& there = device_round_.planes[p];
      device_.write(is_table_sum(plane.op) ? there.sums : there.data,
                    Bytes(from, from + op_sum_bytes(plane.op, plane.lanes)));
    }
  }

  void cancel() {
    host_->cancel();
    there_->cancel();
  }

  /// What both owe, in the gradient's coordinates.
  void compare_residuals() const {
    std::vector<float> host(how_.layout.count), there(how_.layout.count);
    const auto read = [](const Codec& codec, std::vector<float>& to) {
      const auto* readable = dynamic_cast<const ReadableResidual*>(&codec);
      ASSERT_NE(readable, nullptr);
      EXPECT_TRUE(readable->add_residual(to.data()));
    };
    read(*host_, host);
    read(*there_, there);
    EXPECT_EQ(host, there) << "what is owed";
  }

  /// What both keep for later steps.
  void compare_states() const {
    const auto host = host_->save_state(), there = there_->save_state();
    ASSERT_TRUE(host && there);
    EXPECT_EQ(difference(*host, *there), "") << "the state";
  }

  /// Each goes on with the other's state, times `factor`.
  void exchange_states(double factor) {
    const auto host = host_->save_state(), there = there_->save_state();
    ASSERT_TRUE(host && there);
    EXPECT_TRUE(host_->load_state(*there));
    EXPECT_TRUE(there_->load_state(*host));
    EXPECT_TRUE(host_->scale_residual(factor));
    EXPECT_TRUE(there_->scale_residual(factor));
  }

  const Report& report() const { return host_->report(); }

  Bytes finish() {
    Bytes poisoned(bytes_, 0xEE);
    Bytes& to = how_.elsewhere ? poisoned : gradient_;
    cuda::DeviceBuffer& there = how_.elsewhere ? other_ : memory_;
    if (how_.elsewhere) device_.write(place(other_), poisoned);
    const Status host = host_->finish(to.data());
    const Status device = there_->finish(place(there));
    EXPECT_TRUE(host) << host.error().message;
    EXPECT_TRUE(device) << device.error().message;
    EXPECT_EQ(difference(to, device_.read(place(there), bytes_)), "") << "the sum";
    const Report &a = host_->report(), &b = there_->report();
    EXPECT_EQ(a.wire_bytes, b.wire_bytes);
    EXPECT_EQ(a.local_nonzeros, b.local_nonzeros);
    EXPECT_EQ(a.union_nonzeros, b.union_nonzeros);
    EXPECT_EQ(a.mode, b.mode);
    EXPECT_EQ(a.fallback, b.fallback);
    EXPECT_EQ(a.escaped_values, b.escaped_values);
    EXPECT_EQ(a.cells, b.cells);
    EXPECT_EQ(a.stuck_keys, b.stuck_keys);
    return to;
  }

 private:
  void* place(const cuda::DeviceBuffer& buffer) const { return buffer.as<uint8_t>() + shift_; }

  const TestDevice& device_;
  const SideBySide how_;
  std::unique_ptr<Codec> host_, there_;
  uint64_t bytes_ = 0, shift_ = 0;
  Bytes gradient_;
  cuda::DeviceBuffer memory_, other_;
  Round device_round_;
};

/// Folds the rounds of all workers on the host and gives each the sums.
inline void fold_all(std::vector<Round>& rounds) {
  for (std::size_t p = 0; p < rounds[0].size; ++p) {
    Plane& first = rounds[0].planes[p];
    for (std::size_t w = 1; w < rounds.size(); ++w)
      ASSERT_TRUE(fold(first, rounds[w].planes[p]));
    for (std::size_t w = 1; w < rounds.size(); ++w) {
      std::memcpy(rounds[w].planes[p].data, first.data, op_bytes(first.op, first.lanes));
    }
  }
}

/// One step of all workers.
inline void step(std::vector<std::unique_ptr<Twins>>& workers, const std::vector<Bytes>& inputs) {
  for (std::size_t w = 0; w < workers.size(); ++w)
    workers[w]->begin(inputs[w]);
  std::vector<Round> rounds(workers.size());
  while (!::testing::Test::HasFatalFailure()) {
    bool more = false;
    for (std::size_t w = 0; w < workers.size(); ++w)
      more = workers[w]->next(rounds[w]);
    if (!more) break;
    fold_all(rounds);
    for (std::size_t w = 0; w < workers.size(); ++w)
      workers[w]->take(rounds[w]);
  }
  for (auto& worker : workers)
    worker->finish();
}

/// Elements of this density; `odd`: NaN with payloads, infinities, -0.0 and subnormals among them.
inline Bytes random_gradient(const Layout& layout, double density, bool odd,
                             std::mt19937_64& random) {
  Bytes bytes(layout.count * dtype_bytes(layout.dtype));
  std::uniform_real_distribution<double> uniform;
  std::normal_distribution<float> normal;
  const auto put = [&](uint64_t i, uint32_t f32, uint16_t half) {
    if (layout.dtype == DType::kF32)
      std::memcpy(bytes.data() + i * 4, &f32, 4);
    else
      std::memcpy(bytes.data() + i * 2, &half, 2);
  };
  const bool bf16 = layout.dtype == DType::kBf16;
  for (uint64_t i = 0; i < layout.count; ++i) {
    if (odd && uniform(random) < 0.02) {
      switch (random() % 5) {
        case 0:
          put(i, 0x80000000u, 0x8000);
          break;
        case 1:
          put(i, 0x7FC01234u, bf16 ? 0x7FC5 : 0x7E05);
          break;
        case 2:
          put(i, 0xFF800000u, bf16 ? 0xFF80 : 0xFC00);
          break;
        case 3:
          put(i, 1 + static_cast<uint32_t>(random() % 0x7FFFFF), 3);
          break;
        default:
          put(i, 0x7F7FFFFFu, bf16 ? 0x7F7F : 0x7BFF);
          break;
      }
      continue;
    }
    if (uniform(random) >= density) continue;
    const float value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    put(i, bits, bf16 ? addend_bf16_from_f32(value) : addend_f16_from_f32(value));
  }
  return bytes;
}

}  // namespace addend::testing_support
