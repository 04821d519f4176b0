// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <string_view>

#define XXH_INLINE_ALL
#include <gtest/gtest.h>
#include <xxhash.h>

#include "addend/file.h"
#include "file/scratch_directory.h"
#include "wire/add_file.h"

namespace addend {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr std::array kFileOps = {Op::kSumF32, Op::kSumBf16, Op::kSumF16, Op::kSumI32, Op::kSumI64,
                                 Op::kSumU8,  Op::kSumU16,  Op::kOrU64,  Op::kMaxU32};

void add_plane(AddFile& file, Op op, uint64_t lanes) {
  const uint64_t bytes = op_bytes(op, lanes);
  auto& storage = file.storage.emplace_back((bytes + 7) / 8);
  auto* data = reinterpret_cast<uint8_t*>(storage.data());
  for (uint64_t i = 0; i < bytes; ++i)
    data[i] = static_cast<uint8_t>(i % 61);
  file.planes.add({op, lanes, storage.data()});
}

AddFile small_file() {
  AddFile file;
  file.plan = {'p', 'l', 'a', 'n', '!'};
  file.shape = {3, 5};
  file.contributors = 2;
  file.max_contributors = 16;
  add_plane(file, Op::kOrU64, 2);
  add_plane(file, Op::kSumI32, 3);
  return file;
}

Bytes plane_bytes(const Plane& plane) {
  const auto* data = static_cast<const uint8_t*>(plane.data);
  return data == nullptr ? Bytes() : Bytes(data, data + op_bytes(plane.op, plane.lanes));
}

void expect_equal(const AddFile& a, const AddFile& b) {
  EXPECT_EQ(a.plan, b.plan);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.contributors, b.contributors);
  EXPECT_EQ(a.max_contributors, b.max_contributors);
  ASSERT_EQ(a.planes.size, b.planes.size);
  for (std::size_t i = 0; i < a.planes.size; ++i) {
    EXPECT_EQ(a.planes.planes[i].op, b.planes.planes[i].op);
    EXPECT_EQ(plane_bytes(a.planes.planes[i]), plane_bytes(b.planes.planes[i]));
  }
}

Error error_of(const Bytes& bytes) {
  auto parsed = parse_add_file(bytes);
  if (!parsed) return parsed.error();
  ADD_FAILURE() << "accepted";
  return make_error(Errc::kInvalidArgument, "accepted");
}

void expect_malformed(const Bytes& bytes, std::string_view part) {
  const Error error = error_of(bytes);
  EXPECT_EQ(error.code, Errc::kMalformed);
  EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
}

/// The small file with one change and a checksum that agrees with it: what a hostile writer would
/// send.
Bytes forged(const std::function<void(Bytes&)>& change) {
  Bytes bytes = serialize_add_file(small_file());
  change(bytes);
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size() - 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &checksum, 8);
  return bytes;
}

template <typename T>
std::function<void(Bytes&)> store(std::size_t offset, T value) {
  return [=](Bytes& bytes) { std::memcpy(bytes.data() + offset, &value, sizeof(value)); };
}

constexpr std::size_t kShapeAt = sizeof(addend_add_file_header);
constexpr std::size_t kTableAt = kShapeAt + 2 * sizeof(uint64_t);
constexpr std::size_t kPlanAt = kTableAt + 2 * sizeof(addend_add_file_plane);

TEST(AddFile, ReadsBackWhatItWroteForEveryOperation) {
  for (const Op op : kFileOps) {
    for (const uint64_t lanes : {0, 1, 7, 8, 9, 65}) {
      AddFile file;
      file.shape = {lanes};
      add_plane(file, op, lanes);
      auto parsed = parse_add_file(serialize_add_file(file));
      ASSERT_TRUE(parsed) << op_name(op) << parsed.error().message;
      expect_equal(*parsed, file);
    }
  }
}

TEST(AddFile, ReadsBackEveryNumberOfPlanesAndDimensions) {
  for (std::size_t planes = 0; planes <= Round::kMaxPlanes; ++planes) {
    for (const std::size_t dims : {0, 1, 2, 64}) {
      AddFile file;
      file.shape.assign(dims, 1);
      for (std::size_t i = 0; i < planes; ++i)
        add_plane(file, kFileOps[i], 5 + i);
      auto parsed = parse_add_file(serialize_add_file(file));
      ASSERT_TRUE(parsed) << parsed.error().message;
      expect_equal(*parsed, file);
    }
  }
}

TEST(AddFile, TravelsThroughADisk) {
  const file::ScratchDirectory scratch;
  const AddFile file = small_file();
  ASSERT_TRUE(write_add_file(scratch / "x.add", file));
  auto read = read_add_file(scratch / "x.add");
  ASSERT_TRUE(read) << read.error().message;
  expect_equal(*read, file);
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"x.add"});
}

TEST(AddFile, RefusesEveryTruncation) {
  const Bytes whole = serialize_add_file(small_file());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    expect_malformed(Bytes(whole.begin(), whole.begin() + static_cast<long>(length)), "truncated");
  }
}

TEST(AddFile, RefusesEverySingleBitFlip) {
  const Bytes whole = serialize_add_file(small_file());
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes flipped = whole;
    flipped[bit / 8] = static_cast<uint8_t>(flipped[bit / 8] ^ (1u << (bit % 8)));
    EXPECT_EQ(error_of(flipped).code, Errc::kMalformed) << bit;
  }
}

TEST(AddFile, NamesWhatIsWrong) {
  Bytes bytes = serialize_add_file(small_file());
  bytes[kPlanAt] ^= 1;
  expect_malformed(bytes, "checksum");
  bytes.push_back(0);
  expect_malformed(bytes, "bytes follow its end");
  expect_malformed(Bytes(100, 'x'), "not an .add file");
  expect_malformed(forged(store(8, uint32_t{2})), "unknown version 2");
  expect_malformed(forged(store(12, uint32_t{1})), "unknown flags");
}

TEST(AddFile, RefusesForgedHeaders) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const std::function<void(Bytes&)> changes[] = {
      store(16, kMost),                         // file_bytes
      store(24, uint32_t{0}),                   // contributors
      store(24, uint32_t{17}),                  // contributors above the limit
      store(28, uint32_t{1}),                   // limit below the contributors
      store(32, uint32_t{0xffffffff}),          // plan_bytes
      store(32, uint32_t{16}),                  // plan eats the first plane
      store(36, uint32_t{65}),                  // dims
      store(36, uint32_t{0xffffffff}),          // dims
      store(36, uint32_t{1}),                   // dims, shifting everything
      store(40, uint32_t{0}),                   // no planes, payloads left over
      store(40, uint32_t{5}),                   // more planes than a round
      store(40, uint32_t{0xffffffff}),          // planes
      store(44, uint32_t{1}),                   // reserved
      store(kTableAt, uint32_t{9}),             // table sum
      store(kTableAt, uint32_t{11}),            // no such operation
      store(kTableAt, uint32_t{0x107}),         // an operation plus a high bit
      store(kTableAt + 4, uint32_t{1}),         // reserved
      store(kTableAt + 8, kMost),               // lanes
      store(kTableAt + 8, kMost / 8 + 2),       // lanes whose bytes overflow to few
      store(kTableAt + 8, uint64_t{3}),         // one lane more
      store(kTableAt + 8, uint64_t{1}),         // one lane less
      store(kPlanAt + 5, uint8_t{1}),           // padding of the plan
      store(kPlanAt + 8 + 16 + 12, uint8_t{1})  // padding of the last plane
  };
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    EXPECT_EQ(error_of(forged(changes[i])).code, Errc::kMalformed) << i;
  }
  EXPECT_EQ(error_of(forged([](Bytes& bytes) {
              store(kShapeAt, uint64_t{1} << 63)(bytes);
              store(kShapeAt + 8, uint64_t{2})(bytes);
            })).code,
            Errc::kMalformed);
}

TEST(AddFile, AcceptsAForgedFileThatIsUnchanged) {
  EXPECT_TRUE(parse_add_file(forged([](Bytes&) {})));
}

TEST(AddFile, WritesNothingThatItCouldNotRead) {
  const file::ScratchDirectory scratch;
  AddFile table = small_file();
  table.planes.planes[0].op = Op::kTableSumU8;
  AddFile absent = small_file();
  absent.planes.planes[0].data = nullptr;
  AddFile nobody = small_file();
  nobody.contributors = 0;
  AddFile crowded = small_file();
  crowded.contributors = 17;
  AddFile overflow = small_file();
  overflow.shape = {uint64_t{1} << 63, 2};
  for (const AddFile* file : {&table, &absent, &nobody, &crowded, &overflow}) {
    auto written = write_add_file(scratch / "x.add", *file);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Errc::kInvalidArgument);
  }
  EXPECT_TRUE(scratch.names().empty());
}

TEST(AddFile, NamesTheFileInErrors) {
  const file::ScratchDirectory scratch;
  const std::string path = scratch.put("bad.add", Bytes{1, 2, 3});
  auto read = read_add_file(path);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Errc::kMalformed);
  EXPECT_NE(read.error().message.find(path), std::string::npos);
  auto missing = read_add_file(scratch / "missing.add");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::kIo);
}

TEST(FoldFiles, FoldsEachPlaneWithItsOperationAndCountsContributors) {
  AddFile acc;
  acc.max_contributors = 5;
  acc.contributors = 2;
  add_plane(acc, Op::kSumI64, 3);
  add_plane(acc, Op::kOrU64, 2);
  add_plane(acc, Op::kMaxU32, 3);
  auto in = parse_add_file(serialize_add_file(acc));
  ASSERT_TRUE(in);
  in->contributors = 3;
  in->storage[0] = {10, 20, ~uint64_t{0}};
  in->storage[1] = {0xff00, 0};
  acc.storage[0] = {1, 2, 1};
  acc.storage[1] = {0x00ff, 5};
  acc.storage[2] = {0x00000001'00000009, 7};
  in->storage[2] = {0x00000008'00000002, 9};
  ASSERT_TRUE(fold_files(acc, *in));
  EXPECT_EQ(acc.contributors, 5u);
  EXPECT_EQ(acc.storage[0], (std::vector<uint64_t>{11, 22, 0}));
  EXPECT_EQ(acc.storage[1], (std::vector<uint64_t>{0xffff, 5}));
  EXPECT_EQ(acc.storage[2], (std::vector<uint64_t>{0x00000008'00000009, 9}));
}

TEST(FoldFiles, AddsAFileToItself) {
  AddFile file = small_file();
  file.storage[1] = {0x00000002'00000001, 3};
  ASSERT_TRUE(fold_files(file, file));
  EXPECT_EQ(file.contributors, 4u);
  EXPECT_EQ(file.storage[1], (std::vector<uint64_t>{0x00000004'00000002, 6}));
}

void expect_refused(const AddFile& in, Errc code, std::string_view part) {
  AddFile acc = small_file();
  auto folded = fold_files(acc, in);
  ASSERT_FALSE(folded);
  EXPECT_EQ(folded.error().code, code);
  EXPECT_NE(folded.error().message.find(part), std::string::npos) << folded.error().message;
  EXPECT_EQ(serialize_add_file(acc), serialize_add_file(small_file()));
}

TEST(FoldFiles, LeavesTheSumAloneWhenTheFilesDoNotBelongTogether) {
  AddFile other_plan = small_file();
  other_plan.plan.back() ^= 1;
  expect_refused(other_plan, Errc::kMismatch, "plans differ");
  AddFile other_shape = small_file();
  other_shape.shape = {5, 3};
  expect_refused(other_shape, Errc::kMismatch, "shapes differ: (3, 5) and (5, 3)");
  AddFile other_limit = small_file();
  other_limit.max_contributors = 17;
  expect_refused(other_limit, Errc::kMismatch, "contributor limits differ");
  AddFile other_op = small_file();
  other_op.planes.planes[1].op = Op::kSumF32;
  expect_refused(other_op, Errc::kMismatch, "planes differ");
  AddFile fewer_planes = small_file();
  fewer_planes.planes.size = 1;
  expect_refused(fewer_planes, Errc::kMismatch, "planes differ");
}

TEST(FoldFiles, LeavesTheSumAloneWhenThePlanIsFull) {
  AddFile crowd = small_file();
  crowd.contributors = 15;
  expect_refused(crowd, Errc::kCapacity, "17 gradients, the plan was made for at most 16");
}

TEST(FoldFiles, CountsContributorsWithoutWrapping) {
  AddFile acc = small_file();
  acc.contributors = acc.max_contributors = std::numeric_limits<uint32_t>::max();
  auto in = parse_add_file(serialize_add_file(acc));
  ASSERT_TRUE(in);
  auto folded = fold_files(acc, *in);
  ASSERT_FALSE(folded);
  EXPECT_EQ(folded.error().code, Errc::kCapacity);
}

TEST(FoldFiles, RefusesTableSums) {
  AddFile acc = small_file();
  acc.planes.planes[0].op = Op::kTableSumU8;
  auto folded = fold_files(acc, acc);
  ASSERT_FALSE(folded);
  EXPECT_EQ(folded.error().code, Errc::kUnsupported);
}

}  // namespace
}  // namespace addend
