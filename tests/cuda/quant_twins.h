// SPDX-License-Identifier: Apache-2.0
// Groups of quant codecs on the CPU and on a device, stepped side by side: every plane of every
// worker, every decoded gradient, every report and every saved state is compared, and both are
// given the same sums, so that workers of both kinds could be mixed.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/codec.h"
#include "addend/fold.h"
#include "cuda/memory.h"
#include "tests/support/quant_gradients.h"

namespace addend {

using testing_support::Gradients;
using testing_support::quant_layout;

// Skips, with the reason, where there is no device.
class CudaQuant : public testing::Test {
 protected:
  void SetUp() override {
    const auto runtime = cuda::runtime();
    if (!runtime) GTEST_SKIP() << runtime.error().message;
    ASSERT_EQ((*runtime)->create_stream(&stream_), 0);
    const auto device = cuda::Device::of(stream_);
    ASSERT_TRUE(device);
    device_ = *device;
  }
  void TearDown() override {
    if (device_.runtime != nullptr) device_.runtime->destroy_stream(stream_);
  }

  void* stream_ = nullptr;
  cuda::Device device_;
};

// A gradient on the device, `shift` elements behind the start of its allocation, with a border that
// nobody may write to.
class Held {
 public:
  static constexpr uint64_t kBorder = 64;
  Held(const cuda::Device& device, uint64_t bytes, uint64_t shift)
      : device_(device), memory_(device.runtime), bytes_(bytes), shift_(shift) {
    EXPECT_TRUE(memory_.reserve(bytes + shift + kBorder));
    EXPECT_EQ(
        device_.runtime->fill(memory_.as<void>(), 0xEE, bytes + shift + kBorder, device_.stream),
        0);
  }
  void* data() const { return memory_.as<uint8_t>() + shift_; }
  void put(const std::vector<uint8_t>& from) const { copy(data(), from.data(), bytes_); }
  std::vector<uint8_t> get() const {
    std::vector<uint8_t> to(bytes_);
    copy(to.data(), data(), bytes_);
    return to;
  }
  bool border_is_whole() const {
    std::vector<uint8_t> border(kBorder);
    copy(border.data(), memory_.as<uint8_t>() + shift_ + bytes_, kBorder);
    return border == std::vector<uint8_t>(kBorder, 0xEE);
  }

 private:
  void copy(void* to, const void* from, uint64_t bytes) const {
    if (bytes == 0) return;
    EXPECT_EQ(device_.runtime->copy(to, from, bytes, device_.stream), 0);
    EXPECT_EQ(device_.runtime->synchronize(device_.stream), 0);
  }

  cuda::Device device_;
  cuda::DeviceBuffer memory_;
  uint64_t bytes_, shift_;
};

class Twins {
 public:
  // The first `workers` workers of a world that may be larger, whose others are not in the sums.
  Twins(const cuda::Device& device, const std::string& spec, Layout layout, uint64_t shift = 0,
        uint32_t workers = 0)
      : device_(device), layout_(layout), workers_(workers == 0 ? layout.world : workers) {
    const uint64_t bytes = layout.count * dtype_bytes(layout.dtype);
    for (layout.worker = 0; layout.worker < workers_; ++layout.worker) {
      layout.execution = {};
      auto cpu = create_codec(*CodecSpec::parse(spec), layout);
      layout.execution = {Execution::Device::kCuda, device.stream};
      auto gpu = create_codec(*CodecSpec::parse(spec), layout);
      EXPECT_TRUE(cpu) << cpu.error().message;
      EXPECT_TRUE(gpu) << gpu.error().message;
      cpu_.push_back(std::move(*cpu));
      gpu_.push_back(std::move(*gpu));
      held_.push_back(std::make_unique<Held>(device, bytes, shift * dtype_bytes(layout.dtype)));
    }
  }

  void leave_out(uint32_t worker) { missing_ |= uint64_t{1} << worker; }
  void all_take_part() { missing_ = 0; }
  Codec& cpu(uint32_t w) { return *cpu_[w]; }
  Codec& gpu(uint32_t w) { return *gpu_[w]; }
  // What is saved of each segment is the same, and the device takes the CPU's.
  void check_segments() {
    for (uint64_t s = 0; s < layout_.segments.size(); ++s) {
      const auto a = cpu(1).save_segment(s), b = gpu(1).save_segment(s);
      ASSERT_TRUE(a && b);
      EXPECT_EQ(*a, *b);
      EXPECT_TRUE(gpu(1).load_segment(s, *a));
    }
  }

  // One step of both; gradients become the sums. False where the step ended in (equal) errors.
  bool step(Gradients& gradients) {
    const uint32_t world = workers_;
    for (uint32_t w = 0; w < world; ++w) {
      gradients[w].resize(layout_.count * dtype_bytes(layout_.dtype));
      held_[w]->put(gradients[w]);
      EXPECT_EQ(cpu_[w]->fingerprint(), gpu_[w]->fingerprint());
      EXPECT_TRUE(cpu_[w]->begin(gradients[w].data()));
      EXPECT_TRUE(gpu_[w]->begin(held_[w]->data()));
      EXPECT_TRUE(cpu_[w]->set_missing(missing_));
      EXPECT_TRUE(gpu_[w]->set_missing(missing_));
    }
    while (true) {
      std::vector<Round> ours(world), theirs(world);
      bool more = false;
      for (uint32_t w = 0; w < world; ++w) {
        const Result<bool> a = cpu_[w]->next_round(ours[w]), b = gpu_[w]->next_round(theirs[w]);
        EXPECT_EQ(static_cast<bool>(a), static_cast<bool>(b));
        if (!a || !b) return both_fail(w, a, b);
        EXPECT_EQ(*a, *b);
        more = *a;
      }
      if (!more || testing::Test::HasFailure()) break;
      for (std::size_t p = 0; p < ours[0].size; ++p)
        reduce(ours, theirs, p);
    }
    for (uint32_t w = 0; w < world; ++w) {
      EXPECT_TRUE(cpu_[w]->finish(gradients[w].data()));
      EXPECT_TRUE(gpu_[w]->finish(held_[w]->data()));
      EXPECT_EQ(held_[w]->get(), gradients[w]) << "worker " << w;
      EXPECT_TRUE(held_[w]->border_is_whole());
      expect_same_report(w);
      expect_same_state(w);
    }
    return !testing::Test::HasFailure();
  }

 private:
  bool both_fail(uint32_t w, const Result<bool>& a, const Result<bool>& b) {
    if (!a && !b) {
      EXPECT_EQ(a.error().message, b.error().message);
    }
    for (uint32_t v = 0; v < workers_; ++v) {
      cpu_[v]->cancel();
      gpu_[v]->cancel();
    }
    expect_same_state(w);
    return false;
  }

  std::vector<uint8_t> fetch(const void* from, uint64_t bytes) const {
    std::vector<uint8_t> to(bytes);
    EXPECT_EQ(device_.runtime->copy(to.data(), from, bytes, device_.stream), 0);
    EXPECT_EQ(device_.runtime->synchronize(device_.stream), 0);
    return to;
  }

  // Both groups' planes are the same, and so are the sums that both get.
  void reduce(const std::vector<Round>& ours, const std::vector<Round>& theirs, std::size_t p) {
    const Plane& shape = ours[0].planes[p];
    std::vector<uint8_t> sums(op_sum_bytes(shape.op, shape.lanes), 0);
    for (uint32_t w = 0; w < workers_; ++w) {
      const Plane &a = ours[w].planes[p], &b = theirs[w].planes[p];
      ASSERT_EQ(ours[w].size, theirs[w].size);
      ASSERT_EQ(a.op, b.op);
      ASSERT_EQ(a.lanes, b.lanes);
      const uint64_t bytes = op_bytes(a.op, a.lanes);
      const auto* mine = static_cast<const uint8_t*>(a.data);
      ASSERT_EQ(fetch(b.data, bytes), std::vector<uint8_t>(mine, mine + bytes))
          << op_name(a.op) << " of worker " << w;
      if ((missing_ >> w & 1) != 0) continue;
      if (is_table_sum(a.op)) {
        fold_table(a.op, sums.data(), mine, a.table, a.lanes);
      } else {
        fold(a.op, sums.data(), a.data, a.lanes);
      }
    }
    for (uint32_t w = 0; w < workers_; ++w) {
      const Plane &a = ours[w].planes[p], &b = theirs[w].planes[p];
      const bool table = is_table_sum(a.op);
      std::memcpy(table ? a.sums : a.data, sums.data(), sums.size());
      EXPECT_EQ(
          device_.runtime->copy(table ? b.sums : b.data, sums.data(), sums.size(), device_.stream),
          0);
      EXPECT_EQ(device_.runtime->synchronize(device_.stream), 0);
    }
  }

  void expect_same_report(uint32_t w) {
    const Report &a = cpu_[w]->report(), &b = gpu_[w]->report();
    EXPECT_EQ(a.rounds, b.rounds);
    EXPECT_EQ(a.wire_bytes, b.wire_bytes);
    EXPECT_EQ(a.local_nonzeros, b.local_nonzeros);
    EXPECT_EQ(a.union_nonzeros, b.union_nonzeros);
    EXPECT_EQ(a.nonfinite, b.nonfinite);
    EXPECT_EQ(a.contributors, b.contributors);
    EXPECT_EQ(a.missing, b.missing);
    EXPECT_EQ(a.sampled_energy, b.sampled_energy);
    EXPECT_EQ(a.sampled_error, b.sampled_error);
  }

  void expect_same_state(uint32_t w) {
    const auto a = cpu_[w]->save_state(), b = gpu_[w]->save_state();
    ASSERT_TRUE(a && b);
    EXPECT_EQ(*a, *b) << "state of worker " << w;
  }

  cuda::Device device_;
  Layout layout_;
  uint32_t workers_;
  uint64_t missing_ = 0;
  std::vector<std::unique_ptr<Codec>> cpu_, gpu_;
  std::vector<std::unique_ptr<Held>> held_;
};

// Normal numbers with what makes blocks silent, broken, tiny or huge, by their place.
inline Gradients mixture(const Layout& layout, uint64_t seed, bool odd_blocks) {
  return testing_support::gradients_of(layout, [&](uint32_t w, uint64_t i) -> double {
    const double x = testing_support::normal(seed + 100 * w, i);
    if (!odd_blocks) return x;
    const uint64_t block = i / 2048 % 16;
    switch (block) {
      case 1:
        return 0;
      case 2:
        return i % 2048 == 77 && w == 0 ? std::nan("") : x;
      case 3:
        return i % 2048 == 5 && w + 1 == layout.world ? -INFINITY : x;
      case 4:
        return x * 1e-20;
      case 5:
        return x * 1e30;
      case 6:
        return x * 1e-42;  // subnormal
      case 7:
        return i % 2048 == 2047 ? 1 : -0.0;
      case 8:
        return w == 0 ? x : 0;
      case 9:
        return 3e38;
      default:
        return x;
    }
  });
}

}  // namespace addend
