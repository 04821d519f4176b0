// SPDX-License-Identifier: Apache-2.0
#include "service/http.h"

#include <algorithm>
#include <array>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/quiet_thread.h"
#include "net/address.h"
#include "net/tcp_listener.h"

namespace addend::service {
namespace {

// From the connection to the last byte of the page.
constexpr std::chrono::seconds kPatience{5};
constexpr std::size_t kMaxReaders = 64;
constexpr std::size_t kMaxRequest = 8192;
constexpr int kAcceptsATurn = 64;
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::string_view kHeadEnd = "\r\n\r\n";

std::string response(std::string_view status, std::string_view type, const std::string& body) {
  return "HTTP/1.1 " + std::string(status) + "\r\nContent-Type: " + std::string(type) +
         "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
         "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
         "'unsafe-inline'; connect-src 'self'\r\n\r\n" +
         body;
}

std::string probe(const std::string& problem) {
  if (problem.empty()) return response("200 OK", "text/plain", "ok\n");
  return response("503 Service Unavailable", "text/plain", problem + "\n");
}

std::string_view next_word(std::string_view& line) {
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

}  // namespace

std::string answer_to(std::string_view request, const Pages& pages) {
  std::string_view line = request.substr(0, request.find("\r\n"));
  const std::string_view method = next_word(line);
  std::string_view path = next_word(line);
  path = path.substr(0, path.find('?'));
  if (!line.starts_with("HTTP/1.")) return response("400 Bad Request", "text/plain", "no HTTP\n");
  if (method != "GET" && method != "HEAD")
    return response("405 Method Not Allowed", "text/plain", "pages are read only\n");
  std::string answer;
  if (path == "/") {
    answer = response("200 OK", "text/html; charset=utf-8", pages.page());
  } else if (path == "/status.json") {
    answer = response("200 OK", "application/json", pages.json());
  } else if (path == "/metrics") {
    answer = response("200 OK", "text/plain; version=0.0.4", pages.metrics());
  } else if (path == "/healthz") {
    answer = probe(pages.unhealthy());
  } else if (path == "/readyz") {
    answer = probe(pages.unready());
  } else {
    answer =
        response("404 Not Found", "text/plain", "/, /status.json, /metrics, /healthz or /readyz\n");
  }
  if (method == "HEAD") answer.resize(answer.find(kHeadEnd) + kHeadEnd.size());
  return answer;
}

Result<std::unique_ptr<Http>> Http::start(const std::string& address, uint16_t port, Pages pages) {
  auto resolved = net::resolve(address, port);
  if (!resolved) return resolved.error();
  std::unique_ptr<Http> http(new Http(std::move(pages)));
  auto listener = net::listen_tcp(*resolved, http->port_);
  if (!listener) return make_error(listener.error().code, "no pages: " + listener.error().message);
  http->listener_ = *std::move(listener);
  http->wake_ = net::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!http->wake_) return net::io_error("eventfd");
  http->thread_ = quiet_thread("addend pages", [it = http.get()] { it->run(); });
  return http;
}

Http::~Http() {
  stop_ = true;
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

// All of the thread's work counts: connections that come and go cost more than pages. Whoever was
// let in has its turn before others, who could take its place, are.
void Http::run() {
  std::vector<pollfd> ready;
  while (!stop_) {
    auto now = Clock::now();
    auto until = now + std::chrono::seconds(1);
    const bool rests = share_.free_at() > now;
    if (accept_at_ > now) until = std::min(until, accept_at_);
    if (rests) until = std::min(until, share_.free_at());
    const bool accepts = !rests && accept_at_ <= now;
    ready.assign({{wake_.get(), POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}});
    for (const Reader& reader : readers_) {
      const bool writes = reader.sent < reader.out.size();
      ready.push_back(
          {rests ? -1 : reader.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
      until = std::min(until, reader.until);
    }
    const auto pause = std::chrono::ceil<std::chrono::milliseconds>(until - now);
    poll(ready.data(), ready.size(), static_cast<int>(std::max<int64_t>(pause.count(), 0)));
    now = Clock::now();
    auto entry = ready.begin() + 2;
    std::erase_if(readers_, [&](Reader& reader) {
      const bool is_ready = (entry++)->revents != 0 && share_.free_at() <= now;
      if (now >= reader.until) return true;
      if (!is_ready) return false;
      const bool goes_on = drive(reader);
      share_.charge(now, meter_.lap());
      return !goes_on;
    });
    if (ready[1].revents != 0 && share_.free_at() <= now) accept_some(now);
    share_.charge(now, meter_.lap());
  }
}

void Http::accept_some(Clock::time_point now) {
  for (int i = 0; i < kAcceptsATurn; ++i) {
    net::Descriptor socket(
        accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        accept_at_ = now + kAcceptPause;
      return;
    }
    if (readers_.size() >= kMaxReaders) readers_.pop_front();
    readers_.push_back({std::move(socket), now + kPatience});
  }
}

// False when it is done with.
bool Http::drive(Reader& reader) {
  if (reader.sent < reader.out.size()) {
    const std::string_view rest = std::string_view(reader.out).substr(reader.sent);
    const ssize_t bytes = send(reader.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
    reader.sent += static_cast<std::size_t>(bytes);
    if (reader.sent == reader.out.size()) shutdown(reader.socket.get(), SHUT_WR);
    return true;
  }
  std::array<char, 2048> bytes;
  const ssize_t count = recv(reader.socket.get(), bytes.data(), bytes.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  // What comes behind the request is read and forgotten: hanging up on it would take the page back.
  if (reader.answered) return true;
  reader.in.append(bytes.data(), static_cast<std::size_t>(count));
  if (reader.in.find(kHeadEnd) == std::string::npos) return reader.in.size() <= kMaxRequest;
  reader.out = answer_to(reader.in, pages_);
  reader.answered = true;
  return drive(reader);
}

}  // namespace addend::service
