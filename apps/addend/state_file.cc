// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/state_file.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace addend::cli {
namespace {

constexpr const char *kName = "jobs", *kNewName = "jobs.new";
constexpr std::chrono::seconds kPatience{5};

Error io_error(const std::string& path) {
  return make_error(Errc::kIo, path + ": " + std::strerror(errno));
}

Status lock(int folder, const std::string& path) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (flock(folder, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return io_error(path);
    if (std::chrono::steady_clock::now() >= end) {
      return make_error(Errc::kUnavailable, path + ": another server keeps its jobs here");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

bool write_all(int fd, const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) at += static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace

Result<StateFile> StateFile::open(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return io_error(folder);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(folder);
  StateFile file(folder, fd);
  ADDEND_TRY(lock(fd, folder));
  return file;
}

StateFile::StateFile(std::string folder, int fd)
    : path_(std::move(folder) + "/" + kName), folder_(fd) {}
StateFile::StateFile(StateFile&& other) noexcept
    : path_(std::move(other.path_)), folder_(std::exchange(other.folder_, -1)) {}
StateFile::~StateFile() {
  if (folder_ >= 0) close(folder_);
}

Result<std::string> StateFile::read() const {
  const int fd = openat(folder_, kName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT) return std::string();
  if (fd < 0) return io_error(path_);
  std::string bytes;
  char some[4096];
  ssize_t count = 0;
  while ((count = ::read(fd, some, sizeof(some))) > 0)
    bytes.append(some, static_cast<std::size_t>(count));
  const Error problem = io_error(path_);
  close(fd);
  if (count < 0) return problem;
  if (bytes.empty()) return make_error(Errc::kMalformed, path_ + ": empty");
  return bytes;
}

Status StateFile::write(const std::string& bytes) const {
  unlinkat(folder_, kNewName, 0);  // of a server that died in the middle
  const int fd =
      openat(folder_, kNewName, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return io_error(path_);
  const bool written = write_all(fd, bytes) && fsync(fd) == 0;
  Status status = written ? Status{} : Status(io_error(path_));
  close(fd);
  if (status && (renameat(folder_, kNewName, folder_, kName) != 0 || fsync(folder_) != 0)) {
    status = io_error(path_);
  }
  return status;
}

}  // namespace addend::cli
