// SPDX-License-Identifier: Apache-2.0
// A client that means harm: keeps the control plane (for `pages`, the HTTP port) of a test's own
// server busy in one of several ways until standard input ends, and then says how often. Usage:
// service_abuse HOW PORT IDENTITY KEY_FILE. It comes from 127.0.0.2, so that a server can tell it
// from others on this machine.
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include "auth/tls.h"
#include "net/control_message.h"
#include "net/descriptor.h"

namespace addend {
namespace {

constexpr std::size_t kHeld = 900;  // connections of those that hold many

struct Target {
  uint16_t port = 0;
  std::string identity;
  auth::Secret key;
};

struct Caller {
  net::Descriptor socket;
  std::unique_ptr<auth::TlsStream> stream;
};

bool asked_to_stop() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}

net::Descriptor dial(const Target& target) {
  net::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.2", &from.sin_addr);
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  to.sin_port = htons(target.port);
  bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0)
    return net::Descriptor();
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

bool wait(int fd, auth::Progress progress, int milliseconds) {
  pollfd ready{fd, static_cast<short>(progress == auth::Progress::kWantWrite ? POLLOUT : POLLIN),
               0};
  return poll(&ready, 1, milliseconds) > 0;
}

Caller call(const Target& target, const auth::TlsContext& tls) {
  Caller caller{dial(target), nullptr};
  if (!caller.socket) return {};
  auto stream = auth::TlsStream::create(tls, caller.socket.get(), auth::TlsStream::Side::kClient);
  if (!stream) return {};
  caller.stream = std::make_unique<auth::TlsStream>(*std::move(stream));
  while (true) {
    const auth::Progress progress = caller.stream->handshake();
    if (progress == auth::Progress::kDone) return caller;
    if (progress == auth::Progress::kFailed || progress == auth::Progress::kClosed) return {};
    if (!wait(caller.socket.get(), progress, 5000)) return {};
  }
}

std::vector<uint8_t> join_message(const std::string& job, uint32_t world, uint32_t worker,
                                  std::size_t positions) {
  addend_control_join join{};
  net::put_text(join.job.name, job);
  join.job.world = world;
  join.job.slots = 4096;
  join.job.payload_bytes = 1408;
  join.worker = worker;
  join.udp_port = 9;
  join.positions = static_cast<uint32_t>(positions);
  std::vector<uint8_t> bytes;
  net::append_control(bytes, ADDEND_CONTROL_JOIN, join, std::vector<uint32_t>(positions));
  return bytes;
}

std::vector<uint8_t> repeat(const std::vector<uint8_t>& message, std::size_t times) {
  std::vector<uint8_t> bytes;
  for (std::size_t i = 0; i < times; ++i)
    bytes.insert(bytes.end(), message.begin(), message.end());
  return bytes;
}

enum class Answers : uint8_t { kUnread, kRead };

// Sends the same over and over, on as many connections as that takes. Returns the bytes sent.
uint64_t stream(const Target& target, const auth::TlsContext& tls,
                const std::vector<uint8_t>& bytes, Answers answers) {
  uint64_t total = 0;
  Caller caller;
  std::size_t at = 0;
  while (!asked_to_stop()) {
    if (!caller.stream) {
      caller = call(target, tls);
      at = 0;
      if (!caller.stream) continue;
    }
    std::size_t count = 0;
    const auth::Progress wrote = caller.stream->write(std::span(bytes).subspan(at), count);
    total += count;
    at = (at + count) % bytes.size();
    auth::Progress read = auth::Progress::kWantRead;
    std::array<uint8_t, 16384> heard;
    if (answers == Answers::kRead) read = caller.stream->read(heard, count);
    const auto over = [](auth::Progress progress) {
      return progress == auth::Progress::kFailed || progress == auth::Progress::kClosed;
    };
    if (over(wrote) || over(read)) {
      caller = Caller();
    } else if (wrote == auth::Progress::kWantWrite && read != auth::Progress::kDone) {
      wait(caller.socket.get(), answers == Answers::kRead ? read : wrote, 20);
    }
  }
  return total;
}

// Holds many connections, on each of which `bytes(i)` was sent. Returns how many it made.
uint64_t hold(const Target& target, const auth::TlsContext& tls,
              const std::function<std::vector<uint8_t>(std::size_t)>& bytes) {
  std::deque<Caller> held;
  uint64_t made = 0;
  while (!asked_to_stop()) {
    if (held.size() == kHeld) held.pop_front();
    Caller caller = call(target, tls);
    if (!caller.stream) continue;
    const std::vector<uint8_t> message = bytes(made++);
    for (std::size_t sent = 0, count = 0; sent < message.size(); sent += count) {
      const auth::Progress progress = caller.stream->write(std::span(message).subspan(sent), count);
      if (progress == auth::Progress::kDone) continue;
      if (progress != auth::Progress::kWantWrite || !wait(caller.socket.get(), progress, 100))
        break;
    }
    held.push_back(std::move(caller));
  }
  return made;
}

// So that answers are longer than questions. Without effect for who may not.
void make_jobs(const Target& target, const auth::TlsContext& tls) {
  for (int i = 0; i < 63; ++i) {
    Caller caller = call(target, tls);
    if (!caller.stream) continue;
    addend_control_job job{};
    net::put_text(job.name, "j" + std::to_string(i));
    job.world = job.slots = 1;
    job.payload_bytes = 8;
    std::vector<uint8_t> bytes;
    net::append_control(bytes, ADDEND_CONTROL_CREATE, job);
    std::size_t count = 0;
    caller.stream->write(bytes, count);
    wait(caller.socket.get(), auth::Progress::kWantRead, 5000);
  }
}

uint64_t be_silent(const Target& target) {
  std::deque<net::Descriptor> held;
  uint64_t made = 0;
  while (!asked_to_stop()) {
    if (held.size() == kHeld) held.pop_front();
    held.push_back(dial(target));
    if (held.back()) ++made;
  }
  return made;
}

// Every other one asks for a page that it does not read, and the rest never finish asking.
uint64_t read_slowly(const Target& target) {
  constexpr int kLittle = 1024;
  std::deque<net::Descriptor> held;
  uint64_t made = 0;
  while (!asked_to_stop()) {
    if (held.size() == kHeld) held.pop_front();
    held.push_back(dial(target));
    if (!held.back()) continue;
    const std::string end = ++made % 2 == 0 ? "\r\n" : "X: ";
    const std::string request = "GET /metrics HTTP/1.1\r\n" + end;
    setsockopt(held.back().get(), SOL_SOCKET, SO_RCVBUF, &kLittle, sizeof(kLittle));
    [[maybe_unused]] const ssize_t sent =
        send(held.back().get(), request.data(), request.size(), MSG_NOSIGNAL);
  }
  return made;
}

uint64_t knock(const Target& target, const auth::TlsContext& tls) {
  uint64_t made = 0;
  for (; !asked_to_stop(); ++made)
    call(target, tls);
  return made;
}

std::optional<auth::Secret> read_key(const char* path) {
  std::ifstream file(path);
  std::array<uint8_t, auth::Secret::kBytes> bytes{};
  for (uint8_t& byte : bytes) {
    char digits[3] = "";
    if (!file.read(digits, 2)) return std::nullopt;
    byte = static_cast<uint8_t>(std::strtoul(digits, nullptr, 16));
  }
  return auth::Secret{std::span<const uint8_t, auth::Secret::kBytes>(bytes)};
}

int run(const std::string& how, const Target& target) {
  const auto right = auth::TlsContext::client({target.identity, target.key, {}}, "");
  const auto wrong = auth::TlsContext::client({target.identity, auth::Secret(), {}}, "");
  if (!right || !wrong) return 1;
  std::vector<uint8_t> list;
  net::append_control(list, ADDEND_CONTROL_LIST);
  if (how == "list") make_jobs(target, *right);
  const auto none = [](std::size_t) { return std::vector<uint8_t>(); };
  const auto nearly_whole = [](std::size_t i) {
    auto bytes = join_message("wide", 64, i % 64, ADDEND_CONTROL_MAX_SLOTS);
    bytes.pop_back();
    return bytes;
  };
  const auto joins = repeat(join_message("mine", 1, 0, 0), 64);
  const std::map<std::string, std::function<uint64_t()>> ways = {
      {"list", [&] { return stream(target, *right, repeat(list, 2048), Answers::kUnread); }},
      {"join", [&] { return stream(target, *right, joins, Answers::kUnread); }},
      {"rejoin", [&] { return stream(target, *right, joins, Answers::kRead); }},
      {"positions", [&] { return hold(target, *right, nearly_whole); }},
      {"idle", [&] { return hold(target, *right, none); }},
      {"silent", [&] { return be_silent(target); }},
      {"pages", [&] { return read_slowly(target); }},
      {"knock", [&] { return knock(target, *wrong); }},
  };
  const auto way = ways.find(how);
  if (way == ways.end()) return 2;
  std::printf("ready\n");
  std::fflush(stdout);
  std::printf("%llu\n", static_cast<unsigned long long>(way->second()));
  return 0;
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const rlimit files{4096, 4096};
  setrlimit(RLIMIT_NOFILE, &files);
  const auto key = addend::read_key(argv[4]);
  if (!key) return 2;
  return addend::run(argv[1], {static_cast<uint16_t>(std::stoi(argv[2])), argv[3], *key});
}
