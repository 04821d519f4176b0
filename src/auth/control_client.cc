// SPDX-License-Identifier: Apache-2.0
#include "auth/control_client.h"

#include <algorithm>
#include <array>
#include <thread>

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "net/socket.h"

namespace addend::auth {
namespace {

// Between tries to reach a server that is not up.
constexpr std::chrono::milliseconds kPause{100};
// How long one of them may take where somebody may want to stop.
constexpr std::chrono::seconds kAttempt{10};

int milliseconds_until(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
          .count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
}

Result<net::Descriptor> connect_tcp(const net::Address& address, Deadline deadline) {
  net::Descriptor socket = net::make_socket(SOCK_STREAM);
  if (!socket) return net::io_error("cannot make a TCP socket");
  net::watch_connection(socket.get());
  if (net::connect(socket.get(), address) != 0 && errno != EINPROGRESS) {
    return make_error(Errc::kUnavailable,
                      "cannot reach " + address.to_string() + ": " + std::strerror(errno));
  }
  pollfd ready{socket.get(), POLLOUT, 0};
  if (poll(&ready, 1, milliseconds_until(deadline)) <= 0) {
    return make_error(Errc::kTimeout, address.to_string() + " did not answer in time");
  }
  int problem = 0;
  socklen_t length = sizeof(problem);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &length);
  if (problem != 0) {
    return make_error(Errc::kUnavailable,
                      "cannot reach " + address.to_string() + ": " + std::strerror(problem));
  }
  return socket;
}

Credentials credentials_of(const ServiceAccess& access) {
  Credentials credentials{access.identity, Secret(access.key.bytes), std::nullopt};
  if (!access.certificates.authority.empty()) {
    credentials.certificates = Certificates{
        access.certificates.authority, access.certificates.certificate, access.certificates.key};
  }
  return credentials;
}

}  // namespace

ControlClient::ControlClient(TlsContext context, net::Descriptor socket, TlsStream stream)
    : context_(std::move(context)),
      socket_(std::move(socket)),
      guard_(socket_.get()),
      stream_(std::move(stream)) {}

Result<std::unique_ptr<ControlClient>> ControlClient::connect(const ServiceAccess& access,
                                                              Deadline deadline) {
  bool nobody_there = false;
  return dial(access, deadline, nobody_there);
}

Result<std::unique_ptr<ControlClient>> ControlClient::connect_when_up(
    const ServiceAccess& access, Deadline deadline, const std::atomic<bool>* stop) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  while (true) {
    bool nobody_there = false;
    auto client =
        dial(access, stop ? std::min(deadline, now() + kAttempt) : deadline, nobody_there);
    if (client || !nobody_there) return client;
    if (now() + kPause >= deadline || (stop != nullptr && *stop)) {
      return make_error(Errc::kUnavailable, "no server came up at " + access.aggregator +
                                                " in time: " + client.error().message);
    }
    std::this_thread::sleep_for(kPause);
  }
}

Result<std::unique_ptr<ControlClient>> ControlClient::dial(const ServiceAccess& access,
                                                           Deadline deadline, bool& nobody_there) {
  if (access.certificates.authority.empty() && !access.key.is_set()) {
    return make_error(Errc::kInvalidArgument, "the service needs a key or certificates");
  }
  const auto address = net::resolve(access.aggregator);
  if (!address) return address.error();
  auto context = TlsContext::client(credentials_of(access), net::host_of(access.aggregator));
  if (!context) return context.error();
  auto socket = connect_tcp(*address, deadline);
  nobody_there = !socket;
  if (!socket) return socket.error();
  auto stream = TlsStream::create(*context, socket->get(), TlsStream::Side::kClient);
  if (!stream) return stream.error();
  std::unique_ptr<ControlClient> client(
      new ControlClient(*std::move(context), *std::move(socket), *std::move(stream)));
  while (true) {
    const Progress progress = client->stream_.handshake();
    if (progress == Progress::kDone) return client;
    if (progress == Progress::kClosed || progress == Progress::kFailed) {
      nobody_there = progress == Progress::kClosed || client->stream_.hung_up();
      // Alerts to wrong keys and to unknown names are the same.
      const bool by_name = access.certificates.authority.empty() && !nobody_there;
      return make_error(Errc::kUnavailable,
                        "the server at " + address->to_string() + " did not accept '" +
                            access.identity + "': " +
                            (by_name ? "it does not know this name, or has another key for it"
                                     : client->stream_.problem()));
    }
    ADDEND_TRY(client->wait(progress, deadline));
  }
}

Status ControlClient::wait(Progress progress, Deadline deadline) {
  if (progress == Progress::kClosed || progress == Progress::kFailed) {
    lost_ = true;
    return make_error(Errc::kUnavailable, "the server closed the connection");
  }
  const short events = progress == Progress::kWantWrite ? POLLOUT : POLLIN;
  pollfd ready{socket_.get(), events, 0};
  const int count = poll(&ready, 1, milliseconds_until(deadline));
  if (count < 0 && errno != EINTR) return net::io_error("poll");
  if (count == 0) return make_error(Errc::kTimeout, "the server did not answer in time");
  return {};
}

Status ControlClient::flush(Deadline deadline) {
  std::size_t sent = 0;
  while (sent < out_.size()) {
    std::size_t bytes = 0;
    const Progress progress = stream_.write(std::span(out_).subspan(sent), bytes);
    sent += bytes;
    if (progress != Progress::kDone) ADDEND_TRY(wait(progress, deadline));
  }
  out_.clear();
  return {};
}

Result<net::ControlMessage> ControlClient::receive(Deadline deadline) {
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  while (true) {
    net::ControlMessage message;
    const auto taken = net::parse_control(in_, message);
    if (!taken) return taken.error();
    taken_ = *taken;
    if (taken_ > 0 && message.type != ADDEND_CONTROL_FAILED) return message;
    if (taken_ > 0) {
      const auto failed = message.as<addend_control_failed>();
      const bool known = failed.code >= 1 && failed.code <= 10;
      return make_error(known ? static_cast<Errc>(failed.code) : Errc::kUnavailable,
                        net::get_text(failed.text));
    }
    std::array<uint8_t, 16384> bytes;
    std::size_t count = 0;
    const Progress progress = stream_.read(bytes, count);
    in_.insert(in_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    if (progress != Progress::kDone) ADDEND_TRY(wait(progress, deadline));
  }
}

}  // namespace addend::auth
