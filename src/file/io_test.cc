// SPDX-License-Identifier: Apache-2.0
#include "file/io.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "file/scratch_directory.h"

namespace addend::file {
namespace {

using Bytes = std::vector<uint8_t>;

Status write_one(const std::string& path, const Bytes& bytes) {
  const std::array<std::span<const uint8_t>, 1> parts = {bytes};
  return write_atomically(path, parts);
}

/// While it lives, no file of this process can grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

TEST(Io, ReadsBackTheConcatenationOfTheParts) {
  const ScratchDirectory scratch;
  const Bytes first = {1, 2, 3};
  const Bytes empty;
  const Bytes last(200000, 7);
  const std::array<std::span<const uint8_t>, 3> parts = {first, empty, last};
  ASSERT_TRUE(write_atomically(scratch / "x", parts));
  auto read = read_whole(scratch / "x");
  ASSERT_TRUE(read);
  Bytes expected(first.size() + last.size());
  std::copy(last.begin(), last.end(), std::copy(first.begin(), first.end(), expected.begin()));
  EXPECT_EQ(*read, expected);
  EXPECT_EQ(scratch.names().size(), 1u);
}

TEST(Io, ReplacesAnExistingFile) {
  const ScratchDirectory scratch;
  ASSERT_TRUE(write_one(scratch / "x", {1, 2, 3, 4}));
  ASSERT_TRUE(write_one(scratch / "x", {5}));
  auto read = read_whole(scratch / "x");
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, Bytes({5}));
}

TEST(Io, ReadsAPipeToItsEnd) {
  const ScratchDirectory scratch;
  const std::string pipe = scratch / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const Bytes bytes(300000, 9);
  std::thread writer([&] { scratch.put("pipe", bytes); });
  auto read = read_whole(pipe);
  writer.join();
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, bytes);
}

TEST(Io, NamesTheFileThatCannotBeRead) {
  const ScratchDirectory scratch;
  auto missing = read_whole(scratch / "missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::kIo);
  EXPECT_NE(missing.error().message.find(scratch / "missing"), std::string::npos);
  auto directory = read_whole(scratch / "");
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, Errc::kIo);
}

TEST(Io, LeavesNothingBehindWhenTheDirectoryIsMissing) {
  const ScratchDirectory scratch;
  auto written = write_one(scratch / "missing/x", {1});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Errc::kIo);
  EXPECT_TRUE(scratch.names().empty());
}

TEST(Io, LeavesNothingBehindWhenTheDiskRefuses) {
  const ScratchDirectory scratch;
  const FileSizeLimit limit(4096);
  auto written = write_one(scratch / "x", Bytes(10000, 1));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Errc::kIo);
  EXPECT_TRUE(scratch.names().empty());
}

TEST(Io, KeepsTheOldFileWhenTheDiskRefuses) {
  const ScratchDirectory scratch;
  ASSERT_TRUE(write_one(scratch / "x", {1, 2, 3}));
  {
    const FileSizeLimit limit(4096);
    ASSERT_FALSE(write_one(scratch / "x", Bytes(10000, 1)));
  }
  auto read = read_whole(scratch / "x");
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, Bytes({1, 2, 3}));
  EXPECT_EQ(scratch.names().size(), 1u);
}

TEST(Io, NeverReplacesWhatIsNoRegularFile) {
  const ScratchDirectory scratch;
  std::filesystem::create_directory(scratch / "directory");
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  for (const char* name : {"directory", "pipe"}) {
    auto written = write_one(scratch / name, {1});
    ASSERT_FALSE(written) << name;
    EXPECT_EQ(written.error().code, Errc::kIo);
  }
  EXPECT_TRUE(std::filesystem::is_fifo(scratch / "pipe"));
  EXPECT_EQ(scratch.names().size(), 2u);
}

TEST(Io, ConcurrentWritersLeaveOneWholeFile) {
  const ScratchDirectory scratch;
  std::vector<std::thread> writers;
  for (uint8_t i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round) {
        EXPECT_TRUE(write_one(scratch / "x", Bytes(5000, i)));
      }
    });
  }
  for (std::thread& writer : writers)
    writer.join();
  auto read = read_whole(scratch / "x");
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, Bytes(5000, read->front()));
  EXPECT_EQ(scratch.names().size(), 1u);
}

}  // namespace
}  // namespace addend::file
