// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/key_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace addend::cli {
namespace {

Error io_error(const std::string& path) {
  return make_error(Errc::kIo, path + ": " + std::strerror(errno));
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// systemd hands a credential over in a directory that only the service's user may enter; since
// version 254 as 0440 with an access list, where the group's bits stand for the list. Kubernetes
// makes the same of a secret, as a link to a directory below.
bool is_credential(const std::string& path) {
  const char* folder = std::getenv("CREDENTIALS_DIRECTORY");
  if (folder == nullptr || *folder == '\0') return false;
  std::error_code ignored;
  const auto inside = std::filesystem::weakly_canonical(path, ignored)
                          .lexically_relative(std::filesystem::weakly_canonical(folder, ignored));
  return !inside.empty() && *inside.begin() != "..";
}

Status check_private(int fd, const std::string& path) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return io_error(path);
  const mode_t not_ours = is_credential(path) ? 037 : 077;
  if ((status.st_mode & not_ours) == 0) return {};
  return make_error(Errc::kInvalidArgument,
                    path + ": others may read this key; 'chmod 600' it, or make a new one");
}

Result<std::string> read_to_end(int fd, const std::string& path) {
  std::string text;
  char some[4096];
  ssize_t count = 0;
  while ((count = read(fd, some, sizeof(some))) > 0)
    text.append(some, static_cast<std::size_t>(count));
  if (count < 0) return io_error(path);
  return text;
}

}  // namespace

Result<std::string> read_file(const std::string& path, Privacy privacy) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io_error(path);
  const Status allowed = privacy == Privacy::kPrivate ? check_private(fd, path) : Status{};
  Result<std::string> text = allowed ? read_to_end(fd, path) : Result<std::string>(allowed.error());
  close(fd);
  return text;
}

Result<ServiceKey> read_key_file(const std::string& path, const ReadFile& read) {
  auto whole = read(path, Privacy::kPrivate);
  if (!whole) return whole.error();
  const std::string text = whole->substr(0, whole->find('\n'));
  ServiceKey key;
  bool good = text.size() == key.bytes.size() * 2;
  for (std::size_t i = 0; good && i < key.bytes.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    good = high >= 0 && low >= 0;
    key.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!good || !key.is_set()) {
    return make_error(Errc::kMalformed, path + ": a key is 64 hexadecimal digits, not all zero");
  }
  return key;
}

Status write_key_file(const std::string& path, const ServiceKey& key) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return io_error(path);
  std::string text;
  for (const uint8_t byte : key.bytes)
    text += fmt::format("{:02x}", byte);
  text += '\n';
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const Status status = written && fsync(fd) == 0 ? Status{} : Status(io_error(path));
  close(fd);
  return status;
}

void add_access_options(CLI::App& command, AccessOptions& options) {
  command.add_option("--aggregator", options.aggregator, "control plane of the server")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  command.add_option("--identity", options.identity, "tenant, or tenant/job with a job's own key")
      ->capture_default_str();
  command.add_option("--key", options.key_file, "file with the pre-shared key (addend keygen)")
      ->type_name("FILE");
  command.add_option("--authority", options.certificates.authority,
                     "PEM: the authority both ends trust (instead of --key)");
  command.add_option("--certificate", options.certificates.certificate, "PEM: who we are");
  command.add_option("--certificate-key", options.certificates.key, "PEM: its private key");
}

Result<ServiceAccess> make_access(const AccessOptions& options) {
  ServiceAccess access{options.aggregator, options.identity, {}, options.certificates};
  if (options.certificates.authority.empty()) {
    if (options.key_file.empty()) {
      return make_error(Errc::kInvalidArgument, "give --key FILE, or certificates");
    }
    auto key = read_key_file(options.key_file);
    if (!key) return key.error();
    access.key = *key;
  }
  return access;
}

}  // namespace addend::cli
