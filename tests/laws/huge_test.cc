// SPDX-License-Identifier: Apache-2.0
// More than 2^32 elements. The gradient starts as untouched zero pages, so only the decoded result
// takes real memory.
#include <cstdint>
#include <fstream>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "addend/codec.h"
#include "gtest/gtest.h"

namespace addend {
namespace {

constexpr uint64_t kCount = (uint64_t{1} << 32) + 12345;
constexpr uint64_t kNeededKiB = uint64_t{14} << 20;

uint64_t available_kib() {
  std::ifstream file("/proc/meminfo");
  std::string key, rest;
  uint64_t value = 0;
  while (file >> key >> value && std::getline(file, rest)) {
    if (key == "MemAvailable:") return value;
  }
  return 0;
}

TEST(Huge, MoreThan32BitsOfElementsRoundTrip) {
  if (available_kib() < kNeededKiB)
    GTEST_SKIP() << "needs 14 GiB of free memory, there are " << available_kib() / 1048576;
  const uint64_t bytes = kCount * 2;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  madvise(memory, bytes, MADV_HUGEPAGE);
  auto* gradient = static_cast<uint16_t*>(memory);
  const uint64_t positions[] = {
      0, 1, (uint64_t{1} << 31) + 3, (uint64_t{1} << 32) - 1, uint64_t{1} << 32, kCount - 1};
  for (const uint64_t position : positions)
    gradient[position] = 0x3F80;  // 1.0 in bf16
  Layout layout;
  layout.dtype = DType::kBf16;
  layout.count = kCount;
  for (const char* spec : {"exact:mode=packed", "exact:mode=sketch,density=0.000000002"}) {
    auto codec = create_codec(*CodecSpec::parse(spec), layout);
    ASSERT_TRUE(codec);
    ASSERT_TRUE((*codec)->begin(gradient));
    Round round;
    while (true) {
      const auto more = (*codec)->next_round(round);
      ASSERT_TRUE(more) << more.error().message;
      if (!*more) break;
    }
    ASSERT_TRUE((*codec)->finish(gradient));
    EXPECT_EQ((*codec)->report().union_nonzeros, std::size(positions));
    for (const uint64_t position : positions)
      EXPECT_EQ(gradient[position], 0x3F80) << spec << " " << position;
    EXPECT_EQ(gradient[12345], 0);
  }
  munmap(memory, bytes);
}

}  // namespace
}  // namespace addend
