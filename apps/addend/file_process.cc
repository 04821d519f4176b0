// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/file_process.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace addend::cli {
namespace {

// Messages are a length and so many bytes; the first byte of an answer is an error's code or 0.
bool write_all(int socket, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t sent = send(socket, bytes, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool read_all(int socket, char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t got = recv(socket, bytes, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

bool send_message(int socket, const std::string& text) {
  const uint64_t size = text.size();
  return write_all(socket, reinterpret_cast<const char*>(&size), sizeof(size)) &&
         write_all(socket, text.data(), text.size());
}

std::optional<std::string> receive_message(int socket) {
  uint64_t size = 0;
  if (!read_all(socket, reinterpret_cast<char*>(&size), sizeof(size))) return std::nullopt;
  std::string text(size, '\0');
  if (!read_all(socket, text.data(), text.size())) return std::nullopt;
  return text;
}

void serve_requests(int socket, const FileProcess::Work& work) {
  while (const auto request = receive_message(socket)) {
    const Result<std::string> answer = work(*request);
    const std::string text =
        answer ? '\0' + *answer : static_cast<char>(answer.error().code) + answer.error().message;
    if (!send_message(socket, text)) return;
  }
}

}  // namespace

Result<std::unique_ptr<FileProcess>> FileProcess::start(const Work& work) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return make_error(Errc::kIo, std::string("socketpair: ") + std::strerror(errno));
  }
  const pid_t child = fork();
  if (child < 0) return make_error(Errc::kIo, std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    close(ends[0]);
    // What it reads is secret.
    prctl(PR_SET_DUMPABLE, 0);
    serve_requests(ends[1], work);
    _exit(0);
  }
  close(ends[1]);
  return std::unique_ptr<FileProcess>(new FileProcess(ends[0]));
}

FileProcess::~FileProcess() { close(socket_); }

Result<std::string> FileProcess::ask(const std::string& request) {
  const std::lock_guard lock(mutex_);
  std::optional<std::string> answer;
  if (send_message(socket_, request)) answer = receive_message(socket_);
  if (!answer || answer->empty()) {
    return make_error(Errc::kIo, "the process that handles files is gone");
  }
  const char code = answer->front();
  answer->erase(0, 1);
  if (code != 0) return make_error(static_cast<Errc>(code), *std::move(answer));
  return *std::move(answer);
}

}  // namespace addend::cli
