// SPDX-License-Identifier: Apache-2.0
#include "cuda/library.h"

#include <cstring>

#include <gtest/gtest.h>

#include "cuda/memory.h"

namespace addend::cuda {
namespace {

TEST(CudaLibrary, WhatIsNotThereIsRefusedByName) {
  const auto found = find_part("no such part", 1, 8);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Errc::kUnsupported);
  EXPECT_EQ(found.error().message.find("no CUDA backend: "), 0u) << found.error().message;
}

TEST(CudaLibrary, ATableOfAnotherVersionOrSizeIsRefused) {
  if (!part<RuntimeTable>()) GTEST_SKIP() << part<RuntimeTable>().error().message;
  EXPECT_TRUE(find_part("runtime", RuntimeTable::kVersion, sizeof(RuntimeTable)));
  for (const auto& found : {find_part("runtime", RuntimeTable::kVersion + 1, sizeof(RuntimeTable)),
                            find_part("runtime", RuntimeTable::kVersion, 8)}) {
    ASSERT_FALSE(found);
    EXPECT_NE(found.error().message.find("of another version"), std::string::npos)
        << found.error().message;
  }
}

TEST(CudaMemory, BytesComeBackThroughPinnedMemory) {
  const auto device = Device::of(nullptr);
  if (!device) GTEST_SKIP() << device.error().message;
  const OnDevice here(*device);
  DeviceBuffer there(device->runtime);
  PinnedBuffer pinned(device->runtime);
  ASSERT_TRUE(there.reserve(1000));
  ASSERT_TRUE(pinned.reserve(1000));
  std::memset(pinned.host<char>(), 7, 1000);
  ASSERT_EQ(device->runtime->fill(there.as<void>(), 0x5A, 1000, nullptr), 0);
  ASSERT_EQ(device->runtime->copy(pinned.host<void>(), there.as<void>(), 999, nullptr), 0);
  ASSERT_EQ(device->runtime->synchronize(nullptr), 0);
  EXPECT_EQ(pinned.host<char>()[998], 0x5A);
  EXPECT_EQ(pinned.host<char>()[999], 7);
}

TEST(CudaMemory, WhatIsTooLargeIsOutOfMemoryAndLeavesTheDeviceUsable) {
  const auto device = Device::of(nullptr);
  if (!device) GTEST_SKIP() << device.error().message;
  const OnDevice here(*device);
  DeviceBuffer buffer(device->runtime);
  const Status status = buffer.reserve(uint64_t{1} << 50);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kOutOfMemory) << status.error().message;
  EXPECT_TRUE(buffer.reserve(1 << 20));
}

}  // namespace
}  // namespace addend::cuda
