// SPDX-License-Identifier: Apache-2.0
#include "base/buffer.h"

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

namespace addend {
namespace {

TEST(Buffer, IsAlignedAndLargeEnoughForEverySize) {
  for (const uint64_t bytes :
       {0ull, 1ull, 63ull, 64ull, 4096ull, 1048575ull, 1048576ull, 5000000ull}) {
    Buffer buffer;
    ASSERT_TRUE(buffer.reserve(bytes));
    EXPECT_GE(buffer.capacity(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.as<char>()) % 64, 0u);
    for (uint64_t i = 0; i < bytes; i += 4096)
      buffer.as<char>()[i] = 1;
    if (bytes > 0) buffer.as<char>()[bytes - 1] = 1;
  }
}

TEST(Buffer, KeepsItsBlockWhenSmallerIsAsked) {
  Buffer buffer;
  ASSERT_TRUE(buffer.reserve(2000000));
  const void* before = buffer.as<char>();
  ASSERT_TRUE(buffer.reserve(10));
  EXPECT_EQ(buffer.as<char>(), before);
  Buffer moved = std::move(buffer);
  EXPECT_EQ(moved.as<char>(), before);
}

TEST(Buffer, RefusesWhatNoMachineHas) {
  Buffer buffer;
  const Status status = buffer.reserve(~uint64_t{0} - 100);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kOutOfMemory);
}

}  // namespace
}  // namespace addend
