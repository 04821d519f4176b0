// SPDX-License-Identifier: Apache-2.0
// Folds on a device write the bytes of folds on the host.
#include "addend/fold.h"

#include <cmath>

#include "tests/cuda/side_by_side.h"

namespace addend {
namespace {

using namespace testing_support;  // NOLINT: a test

class CudaFold : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!device_.missing().empty()) GTEST_SKIP() << device_.missing();
  }
  Bytes random_bytes(uint64_t bytes) {
    Bytes made(bytes);
    for (uint8_t& byte : made)
      byte = static_cast<uint8_t>(random_());
    return made;
  }

  TestDevice device_;
  std::mt19937_64 random_{815};
};

// A NaN's payload is not part of the format.
void make_nans_alike(Op op, Bytes& bytes) {
  for (uint64_t i = 0; op == Op::kSumF32 && i + 4 <= bytes.size(); i += 4) {
    uint32_t bits;
    std::memcpy(&bits, &bytes[i], 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) bits = 0x7FC00000;
    std::memcpy(&bytes[i], &bits, 4);
  }
  const uint16_t infinity = op == Op::kSumBf16 ? 0x7F80 : 0x7C00;
  for (uint64_t i = 0; (op == Op::kSumBf16 || op == Op::kSumF16) && i + 2 <= bytes.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, &bytes[i], 2);
    if ((bits & 0x7FFF) > infinity) bits = 0x7FFF;
    std::memcpy(&bytes[i], &bits, 2);
  }
}

TEST_F(CudaFold, EveryOperationAtEveryLengthAndAlignment) {
  for (int number = 0; number < 9; ++number) {
    const auto op = static_cast<Op>(number);
    const uint64_t lane = op_bytes(op, 1);
    for (const uint64_t lanes : {0, 1, 2, 7, 15, 16, 17, 255, 4099, 70001}) {
      for (const uint64_t shift : {uint64_t{0}, lane}) {
        const uint64_t bytes = lanes * lane;
        Bytes acc = random_bytes(bytes), in = random_bytes(bytes);
        cuda::DeviceBuffer a(device_.runtime()), b(device_.runtime());
        ASSERT_TRUE(a.reserve(bytes + shift + 32) && b.reserve(bytes + 32));
        device_.write(a.as<uint8_t>() + shift, acc);
        device_.write(b.as<void>(), in);
        const Status status =
            fold_on_device(op, a.as<uint8_t>() + shift, b.as<void>(), lanes, device_.stream());
        ASSERT_TRUE(status) << status.error().message;
        fold(op, acc.data(), in.data(), lanes);
        Bytes there = device_.read(a.as<uint8_t>() + shift, bytes);
        make_nans_alike(op, there);
        make_nans_alike(op, acc);
        ASSERT_EQ(there, acc) << op_name(op) << ", " << lanes << " lanes";
      }
    }
  }
}

// Sums that stay below 256, of entries below 128, are added another way.
TEST_F(CudaFold, TableSumsOfManyWorkers) {
  struct Table {
    Op op;
    uint8_t mask;
  };
  for (const auto [op, mask] : {Table{Op::kTableSumU8, 0xFF}, Table{Op::kTableSumU8, 0x7F},
                                Table{Op::kTableSumU8, 0x0F}, Table{Op::kTableSumU16, 0xFF}}) {
    Bytes table = random_bytes(32);
    for (uint8_t& entry : table)
      entry &= mask;
    for (const uint64_t lanes : {0, 1, 2, 15, 16, 33, 5001}) {
      for (const std::size_t sources : {1, 3, 11}) {
        Bytes acc = random_bytes(op_sum_bytes(op, lanes));
        cuda::DeviceBuffer sums(device_.runtime()), indices(device_.runtime());
        const uint64_t stride = 4096;
        ASSERT_TRUE(sums.reserve(acc.size() + 16) && indices.reserve(stride * sources));
        device_.write(sums.as<void>(), acc);
        std::vector<Bytes> host;
        std::vector<const uint8_t*> from, there;
        for (std::size_t s = 0; s < sources; ++s) {
          host.push_back(random_bytes(op_bytes(op, lanes)));
          there.push_back(indices.as<uint8_t>() + s * stride);
          device_.write(indices.as<uint8_t>() + s * stride, host.back());
        }
        for (const Bytes& bytes : host)
          from.push_back(bytes.data());
        ASSERT_TRUE(fold_tables_on_device(op, sums.as<void>(), there.data(), sources, table.data(),
                                          lanes, device_.stream()));
        fold_tables(op, acc.data(), from.data(), sources, table.data(), lanes);
        ASSERT_EQ(device_.read(sums.as<void>(), acc.size()), acc) << op_name(op) << " " << lanes;
      }
    }
  }
}

}  // namespace
}  // namespace addend
