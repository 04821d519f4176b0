// SPDX-License-Identifier: Apache-2.0
#include "file/io.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace addend::file {
namespace {

Error os_error(const std::string& path, const char* doing) {
  const std::string reason = std::error_code(errno, std::generic_category()).message();
  return make_error(Errc::kIo, path + ": " + doing + ": " + reason);
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// Some file systems report a failed write only here.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

Status write_all(const FileDescriptor& file, std::span<const uint8_t> bytes,
                 const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return os_error(path, "cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

/// A new file beside its future name; unlinked unless it was renamed.
class TemporaryFile {
 public:
  static Result<TemporaryFile> create(const std::string& target) {
    static std::atomic<unsigned> serial{0};
    const std::filesystem::path directory = std::filesystem::path(target).parent_path();
    // A name can be taken by the leftover of a killed process that had our process id.
    for (int attempt = 0; attempt < 100; ++attempt) {
      const std::string name = ".addend-" + std::to_string(::getpid()) + "-" +
                               std::to_string(serial.fetch_add(1)) + ".tmp";
      std::string path = (directory / name).string();
      FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (fd.is_open()) return TemporaryFile(std::move(path), std::move(fd));
      if (errno != EEXIST) break;
    }
    return os_error(target, "cannot create a file in its directory");
  }

  TemporaryFile(TemporaryFile&& other) noexcept
      : path_(std::exchange(other.path_, {})), fd_(std::move(other.fd_)) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  const FileDescriptor& fd() const { return fd_; }

  Status rename_to(const std::string& target) {
    if (::fsync(fd_.get()) != 0 || !fd_.close()) return os_error(target, "cannot write");
    if (std::rename(path_.c_str(), target.c_str()) != 0) {
      return os_error(target, "cannot rename into place");
    }
    path_.clear();
    return {};
  }

 private:
  TemporaryFile(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  FileDescriptor fd_;
};

}  // namespace

Result<std::vector<uint8_t>> read_whole(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return os_error(path, "cannot open");
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return os_error(path, "cannot stat");
  if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode)) {
    return make_error(Errc::kIo, path + ": neither a regular file nor a pipe");
  }
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  // One byte more than the file has, so that one read finds its end.
  std::vector<uint8_t> bytes(std::max(kChunk, static_cast<std::size_t>(info.st_size) + 1));
  std::size_t used = 0;
  while (true) {
    if (used == bytes.size()) bytes.resize(bytes.size() * 2);
    const ssize_t got = ::read(file.get(), bytes.data() + used, bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error(path, "cannot read");
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  bytes.resize(used);
  return bytes;
}

Status write_atomically(const std::string& path, std::span<const std::span<const uint8_t>> parts) {
  // Renaming over a device or a pipe would replace it: as root, -o /dev/null must not.
  struct stat existing = {};
  if (::stat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
    return make_error(Errc::kIo, path + ": exists and is not a regular file");
  }
  auto temporary = TemporaryFile::create(path);
  if (!temporary) return temporary.error();
  for (const std::span<const uint8_t> part : parts) {
    ADDEND_TRY(write_all(temporary->fd(), part, path));
  }
  return temporary->rename_to(path);
}

Error at_path(const std::string& path, const Error& error) {
  return make_error(error.code, path + ": " + error.message);
}

}  // namespace addend::file
