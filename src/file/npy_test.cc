// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <numeric>
#include <string_view>

#include <gtest/gtest.h>

#include "addend/file.h"
#include "file/io.h"
#include "file/npy_header.h"
#include "file/scratch_directory.h"
#include "file/shape.h"

namespace addend {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr uint64_t kHuge = uint64_t{1} << 63;

/// A .npy file of any version around any header text.
Bytes npy(std::string_view header, std::size_t element_bytes, unsigned major = 1) {
  Bytes bytes = {0x93, 'N', 'U', 'M', 'P', 'Y', static_cast<uint8_t>(major), 0};
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    bytes.push_back(static_cast<uint8_t>(header.size() >> (8 * i)));
  }
  bytes.insert(bytes.end(), header.begin(), header.end());
  for (std::size_t i = 0; i < element_bytes; ++i)
    bytes.push_back(static_cast<uint8_t>(i));
  return bytes;
}

std::string header(std::string_view descr, std::string_view shape,
                   std::string_view fortran = "False") {
  return "{'descr': '" + std::string(descr) + "', 'fortran_order': " + std::string(fortran) +
         ", 'shape': " + std::string(shape) + ", }\n";
}

Errc code_of(const Bytes& bytes) {
  auto parsed = parse_npy(bytes);
  if (parsed) ADD_FAILURE() << "accepted";
  return parsed ? Errc{} : parsed.error().code;
}

std::string message_of(const Bytes& bytes) {
  auto parsed = parse_npy(bytes);
  return parsed ? "accepted" : parsed.error().message;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

NpyArray array_of(DType dtype, std::vector<uint64_t> shape) {
  NpyArray array;
  array.dtype = dtype;
  array.shape = std::move(shape);
  array.count = *file::element_count(array.shape);
  const uint64_t bytes = array.count * dtype_bytes(dtype);
  array.storage.resize((bytes + 7) / 8);
  auto* data = static_cast<uint8_t*>(array.data());
  for (uint64_t i = 0; i < bytes; ++i)
    data[i] = static_cast<uint8_t>(i * 37 + 1);
  return array;
}

TEST(Npy, ReadsBackWhatItWroteForEveryDtypeAndShape) {
  const file::ScratchDirectory scratch;
  const std::vector<std::vector<uint64_t>> shapes = {{},     {0},    {1},        {5},
                                                     {3, 4}, {7, 0}, {kHuge, 0}, {2, 3, 5}};
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const auto& shape : shapes) {
      const NpyArray array = array_of(dtype, shape);
      ASSERT_TRUE(write_npy(scratch / "x.npy", array));
      auto read = read_npy(scratch / "x.npy");
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_EQ(read->dtype, array.dtype);
      EXPECT_EQ(read->shape, array.shape);
      EXPECT_EQ(read->count, array.count);
      EXPECT_EQ(read->storage, array.storage);
    }
  }
}

TEST(Npy, WritesTheBytesThatNumpyWrites) {
  const file::ScratchDirectory scratch;
  ASSERT_TRUE(write_npy(scratch / "x.npy", array_of(DType::kF16, {2})));
  auto bytes = file::read_whole(scratch / "x.npy");
  ASSERT_TRUE(bytes);
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }";
  expected.append(127 - expected.size(), ' ');
  expected += "\n\x01\x26\x4b\x70";
  EXPECT_EQ(std::string(bytes->begin(), bytes->end()), expected);
}

TEST(Npy, ReadsEveryVersion) {
  for (const unsigned major : {1, 2, 3}) {
    auto read = parse_npy(npy(header("<f4", "(2, 1)"), 8, major));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->shape, (std::vector<uint64_t>{2, 1}));
  }
  EXPECT_TRUE(contains(message_of(npy(header("<f4", "(2, 1)"), 8, 4)), "unknown .npy version 4.0"));
}

TEST(Npy, ReadsEverySpellingOfBfloat16) {
  for (const char* descr : {"<V2", "|V2", "bfloat16"}) {
    auto read = parse_npy(npy(header(descr, "(3,)"), 6));
    ASSERT_TRUE(read) << descr;
    EXPECT_EQ(read->dtype, DType::kBf16);
  }
}

TEST(Npy, ReadsKeysInAnyOrderAndSpacing) {
  auto read =
      parse_npy(npy("{ \"shape\" :( 2 ,3 ) ,'fortran_order':False,\n'descr' : \"<f4\"}   \n", 24));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->shape, (std::vector<uint64_t>{2, 3}));
}

TEST(Npy, RefusesForeignDtypesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"<f8", "float64: convert to float32 first"},
      {">f4", "big-endian"},
      {">f8", "big-endian"},
      {"|O", "object arrays"},
      {"<i8", "'<i8'"},
      {"|V4", "'|V4'"},
      {"", "''"},
  };
  for (const auto& [descr, expected] : cases) {
    const Bytes bytes = npy(header(descr, "(2,)"), 16);
    EXPECT_EQ(code_of(bytes), Errc::kUnsupported) << descr;
    EXPECT_TRUE(contains(message_of(bytes), expected)) << message_of(bytes);
  }
  const Bytes structured =
      npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8);
  EXPECT_EQ(code_of(structured), Errc::kUnsupported);
}

TEST(Npy, AcceptsFortranOrderOnlyWhereItChangesNothing) {
  EXPECT_TRUE(parse_npy(npy(header("<f4", "(2,)", "True"), 8)));
  EXPECT_TRUE(parse_npy(npy(header("<f4", "()", "True"), 4)));
  const Bytes two = npy(header("<f4", "(2, 2)", "True"), 16);
  EXPECT_EQ(code_of(two), Errc::kUnsupported);
  EXPECT_TRUE(contains(message_of(two), "Fortran order"));
}

TEST(Npy, RefusesEveryTruncation) {
  for (const unsigned major : {1, 2}) {
    const Bytes whole = npy(header("<f4", "(3, 2)"), 24, major);
    ASSERT_TRUE(parse_npy(whole));
    for (std::size_t length = 0; length < whole.size(); ++length) {
      EXPECT_EQ(code_of(Bytes(whole.begin(), whole.begin() + static_cast<long>(length))),
                Errc::kMalformed)
          << length;
    }
  }
}

TEST(Npy, RefusesBytesAfterTheLastElement) {
  EXPECT_TRUE(contains(message_of(npy(header("<f4", "(2,)"), 9)), "bytes follow"));
  EXPECT_EQ(code_of(npy(header("<f4", "(0,)"), 1)), Errc::kMalformed);
}

TEST(Npy, RefusesSizesThatTheFileDoesNotHave) {
  for (const char* shape :
       {"(3,)", "(1000000000000,)", "(4294967296, 4294967296)", "(18446744073709551615,)",
        "(2, 9223372036854775809)", "(6148914691236517206, 3)"}) {
    EXPECT_EQ(code_of(npy(header("<f4", shape), 8)), Errc::kMalformed) << shape;
  }
}

TEST(Npy, RefusesHeadersThatNumpyDoesNotWrite) {
  std::string deep = "(";
  for (int i = 0; i < 65; ++i)
    deep += "1, ";
  deep += ")";
  const std::string good = header("<f4", "(2,)");
  for (const std::string& text :
       {std::string(),
        std::string("{"),
        std::string("{}"),
        good + "x",
        good + good,
        header("<f4", "(2)"),
        header("<f4", "(-2,)"),
        header("<f4", "(2.0,)"),
        header("<f4", "(,)"),
        header("<f4", "(2,,)"),
        header("<f4", "(1 2)"),
        header("<f4", "2"),
        header("<f4", "[2]"),
        header("<f4", "(18446744073709551616,)"),
        header("<f4", deep),
        header("<f4", "(2,)", "0"),
        header("<f4", "(2,)", "Falsehood"),
        std::string("{'descr': 5, 'fortran_order': False, 'shape': (2,)}"),
        std::string("{'descr': '<f4"),
        std::string("{'descr': '<f4', 'shape': (2,)}"),
        std::string("{'descr': '<f4', 'fortran_order': False}"),
        std::string("{'descr': '<f4' 'fortran_order': False 'shape': (2,)}"),
        std::string("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"),
        std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}"),
        std::string(300, '('),
        std::string(60, '\0')}) {
    EXPECT_EQ(code_of(npy(text, 8)), Errc::kMalformed) << text;
  }
}

TEST(Npy, KeepsControlCharactersOutOfMessages) {
  const std::string message = message_of(npy(header(std::string(500, '\x1b'), "(2,)"), 8));
  EXPECT_FALSE(contains(message, "\x1b"));
  EXPECT_LT(message.size(), 200u);
}

TEST(Npy, RefusesForeignMagic) {
  EXPECT_TRUE(contains(message_of({'P', 'K', 3, 4}), "not a .npy file"));
  EXPECT_TRUE(contains(message_of({}), "truncated"));
}

TEST(Npy, NamesTheFileInErrors) {
  const file::ScratchDirectory scratch;
  const std::string path = scratch.put("bad.npy", Bytes{1, 2, 3});
  auto read = read_npy(path);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Errc::kMalformed);
  EXPECT_TRUE(contains(read.error().message, path));
}

TEST(Npy, WritesNothingWhenTheArrayContradictsItself) {
  const file::ScratchDirectory scratch;
  NpyArray wrong_count = array_of(DType::kF32, {2, 2});
  wrong_count.count = 3;
  NpyArray short_storage = array_of(DType::kF32, {2, 2});
  short_storage.storage.resize(1);
  NpyArray overflow = array_of(DType::kF32, {2});
  overflow.shape = {kHuge, 2};
  NpyArray too_deep = array_of(DType::kF32, std::vector<uint64_t>(65, 1));
  for (const NpyArray* array : {&wrong_count, &short_storage, &overflow, &too_deep}) {
    auto written = write_npy(scratch / "x.npy", *array);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Errc::kInvalidArgument);
  }
  EXPECT_TRUE(scratch.names().empty());
}

}  // namespace
}  // namespace addend
