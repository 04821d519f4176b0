// SPDX-License-Identifier: Apache-2.0
#include "service/control.h"

#include <algorithm>
#include <array>
#include <chrono>

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

namespace addend::service {
namespace {

using Clock = std::chrono::steady_clock;

// Strangers get this long to show who they are.
constexpr std::chrono::seconds kHandshakePatience{5};
// How often it is asked whether two that claim one place have settled it.
constexpr int kRivalsMs = 20;
// A peer that does not read its mail is cut off.
constexpr std::size_t kMaxOut = 4u << 20;
constexpr std::size_t kMaxIn = sizeof(addend_control_header) + sizeof(addend_control_join) +
                               4 * std::size_t{ADDEND_CONTROL_MAX_SLOTS};

Result<net::Descriptor> listen_at(const net::Address& address, uint16_t& port) {
  net::Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return net::io_error("cannot make a TCP socket");
  const int off = 0, on = 1;
  setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.raw), sizeof(address.raw)) !=
          0 ||
      listen(socket.get(), 128) != 0) {
    return net::io_error("cannot listen at TCP " + address.to_string());
  }
  net::Address bound;
  socklen_t length = sizeof(bound.raw);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.raw), &length);
  port = bound.port();
  return socket;
}

}  // namespace

struct Control::Connection {
  ConnectionId id;
  net::Descriptor socket;
  net::Address peer;
  std::shared_ptr<auth::TlsContext> tls;  // which its stream needs, whatever is loaded meanwhile
  auth::TlsStream stream;
  Clock::time_point since = Clock::now();
  bool shaken = false;
  bool closing = false;  // once its mail is out
  bool wants_write = false;
  std::string identity{};
  std::vector<uint8_t> in{}, out{};
};

Control::Control(const ControlOptions& options, JobCounters counters, LogSink log)
    : options_(options), counters_(std::move(counters)), log_(std::move(log)) {}

Result<std::unique_ptr<Control>> Control::start(
    const ControlOptions& options,
    const std::function<std::unique_ptr<Registry>(Mail& mail)>& make_registry, JobCounters counters,
    LogSink log) {
  std::unique_ptr<Control> control(new Control(options, std::move(counters), std::move(log)));
  auto listener = listen_at(options.address, control->port_);
  if (!listener) return listener.error();
  control->listener_ = *std::move(listener);
  control->wake_ = net::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!control->wake_) return net::io_error("eventfd");
  control->registry_ = make_registry(*control);
  auto tls = control->make_tls(options);
  if (!tls) return tls.error();
  control->tls_ = *std::move(tls);
  control->thread_ = std::thread(&Control::run, control.get());
  return control;
}

Result<std::shared_ptr<auth::TlsContext>> Control::make_tls(const ControlOptions& options) {
  auto tls = auth::TlsContext::server(
      [this](const std::string& identity) { return registry_->key_of(identity); },
      options.certificates);
  if (!tls) return tls.error();
  return std::make_shared<auth::TlsContext>(*std::move(tls));
}

Status Control::reload(const ControlOptions& options, std::vector<TenantOptions> tenants) {
  auto tls = make_tls(options);
  if (!tls) return tls.error();
  post([this, tls = *std::move(tls), most = options.max_connections,
        tenants = std::move(tenants)](Registry& registry) {
    tls_ = tls;
    options_.max_connections = most;
    registry.set_tenants(tenants);
  });
  return {};
}

Control::~Control() {
  stop_ = true;
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Control::post(std::function<void(Registry&)> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  eventfd_write(wake_.get(), 1);
}

void Control::run_posted() {
  eventfd_t count;
  eventfd_read(wake_.get(), &count);
  std::vector<std::function<void(Registry&)>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& one : work)
    one(*registry_);
}

void Control::run() {
  std::vector<pollfd> ready;
  while (!stop_) {
    ready.assign({{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}});
    for (const auto& connection : connections_) {
      const short events =
          connection->wants_write || (connection->shaken && !connection->out.empty())
              ? POLLIN | POLLOUT
              : POLLIN;
      ready.push_back({connection->socket.get(), events, 0});
    }
    poll(ready.data(), ready.size(), rivals_.empty() ? 1000 : kRivalsMs);
    if (ready[1].revents != 0) run_posted();
    const auto now = Clock::now();
    // New ones are appended by accept_all below and have no entry in `ready` yet.
    for (std::size_t i = 0; i + 2 < ready.size(); ++i) {
      Connection& connection = *connections_[i];
      bool alive = ready[i + 2].revents == 0 || drive(connection);
      if (!connection.out.empty() && alive) alive = write_out(connection);
      if (!connection.shaken && now - connection.since > kHandshakePatience) alive = false;
      if (!alive) close(connection);
    }
    std::erase_if(connections_, [](const auto& c) { return !c->socket; });
    if (!rivals_.empty()) settle_rivals();
    if (ready[0].revents != 0) accept_all();
    connection_count_.store(static_cast<uint32_t>(connections_.size()), std::memory_order_relaxed);
  }
}

void Control::accept_all() {
  while (true) {
    net::Address peer;
    socklen_t length = sizeof(peer.raw);
    net::Descriptor socket(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer.raw), &length,
                                   SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (connections_.size() >= options_.max_connections) {
      log_(LogLevel::kWarning, "connection refused: too many", {});
      continue;
    }
    net::watch_connection(socket.get());
    auto stream = auth::TlsStream::create(*tls_, socket.get(), auth::TlsStream::Side::kServer);
    if (!stream) continue;
    connections_.push_back(std::unique_ptr<Connection>(
        new Connection{next_id_++, std::move(socket), peer, tls_, *std::move(stream)}));
  }
}

void Control::close(Connection& connection) {
  registry_->lost(connection.id);
  connection.stream.close();
  connection.socket = net::Descriptor();
}

bool Control::drive(Connection& connection) {
  if (!connection.shaken && !drive_handshake(connection)) return false;
  return !connection.shaken || (read_messages(connection) && write_out(connection));
}

bool Control::drive_handshake(Connection& connection) {
  const auth::Progress progress = connection.stream.handshake();
  connection.wants_write = progress == auth::Progress::kWantWrite;
  if (progress == auth::Progress::kDone) {
    connection.identity = connection.stream.peer();
    connection.shaken = !connection.identity.empty();
    return connection.shaken;
  }
  if (progress != auth::Progress::kFailed && progress != auth::Progress::kClosed) return true;
  const LogField fields[] = {{"peer", connection.peer.to_string()},
                             {"why", connection.stream.problem()}};
  log_(LogLevel::kWarning, "handshake failed", fields);
  return false;
}

bool Control::read_messages(Connection& connection) {
  std::array<uint8_t, 16384> bytes;
  while (true) {
    std::size_t count = 0;
    const auth::Progress progress = connection.stream.read(bytes, count);
    connection.in.insert(connection.in.end(), bytes.begin(),
                         bytes.begin() + static_cast<std::ptrdiff_t>(count));
    if (progress == auth::Progress::kWantRead || progress == auth::Progress::kWantWrite)
      return true;
    if (progress != auth::Progress::kDone || connection.in.size() > kMaxIn + bytes.size()) {
      return false;
    }
    std::size_t at = 0;
    while (!connection.closing) {
      net::ControlMessage message;
      const auto taken = net::parse_control(std::span(connection.in).subspan(at), message);
      if (!taken) return false;
      if (*taken == 0) break;
      at += *taken;
      const Status status = handle(connection, message);
      if (!status) refuse(connection, status.error());
    }
    connection.in.erase(connection.in.begin(),
                        connection.in.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

bool Control::write_out(Connection& connection) {
  if (!connection.shaken) return true;
  std::size_t sent = 0;
  while (sent < connection.out.size()) {
    std::size_t bytes = 0;
    const auth::Progress progress =
        connection.stream.write(std::span(connection.out).subspan(sent), bytes);
    sent += bytes;
    if (progress == auth::Progress::kFailed || progress == auth::Progress::kClosed) return false;
    if (progress != auth::Progress::kDone) break;
  }
  connection.out.erase(connection.out.begin(),
                       connection.out.begin() + static_cast<std::ptrdiff_t>(sent));
  return connection.out.size() < kMaxOut && !(connection.closing && connection.out.empty());
}

Status Control::handle(Connection& connection, const net::ControlMessage& message) {
  switch (message.type) {
    case ADDEND_CONTROL_JOIN:
      return join(connection, message);
    case ADDEND_CONTROL_PATH:
      return registry_->path(connection.id, message.as<addend_control_path>());
    case ADDEND_CONTROL_TABLE: {
      const auto number = registry_->table(connection.id, message.as<addend_control_table>());
      if (!number) return number.error();
      net::append_control(connection.out, ADDEND_CONTROL_TABLE_IS,
                          addend_control_number{*number, 0});
      return {};
    }
    case ADDEND_CONTROL_LEAVE:
      registry_->leave(connection.id);
      return {};
    case ADDEND_CONTROL_CREATE:
      ADDEND_TRY(registry_->create(connection.identity, message.as<addend_control_job>()));
      net::append_control(connection.out, ADDEND_CONTROL_DONE);
      return {};
    case ADDEND_CONTROL_LIST:
      list(connection);
      return {};
    case ADDEND_CONTROL_DRAIN:
      ADDEND_TRY(registry_->drain(connection.identity, message.as<addend_control_drain>()));
      net::append_control(connection.out, ADDEND_CONTROL_DONE);
      return {};
    default:
      return make_error(Errc::kMalformed, "a message that only servers send");
  }
}

Status Control::join(Connection& connection, const net::ControlMessage& message) {
  const auto join = message.as<addend_control_join>();
  if (join.positions != message.words.size() / 4) {
    return make_error(Errc::kMalformed, "a row of positions of another length than it says");
  }
  const ConnectionId rival = registry_->rival_of(connection.id, connection.identity, join);
  if (const Connection* there = find(rival); there != nullptr) {
    rivals_.add({connection.id, connection.identity, connection.peer, join, message.numbers()},
                rival, there->socket.get());
    return {};
  }
  return registry_->join(connection.id, connection.identity, connection.peer, join,
                         message.numbers());
}

void Control::settle_rivals() {
  for (Rivals::Newcomer& one :
       rivals_.settle([this](ConnectionId id) { return find(id) != nullptr; })) {
    const Status status =
        registry_->join(one.id, one.identity, one.address, one.join, std::move(one.positions));
    if (!status) refuse(*find(one.id), status.error());
  }
}

void Control::refuse(Connection& connection, const Error& error) {
  addend_control_failed failed{};
  failed.code = static_cast<uint32_t>(error.code);
  net::put_text(failed.text, error.message);
  net::append_control(connection.out, ADDEND_CONTROL_FAILED, failed);
  connection.closing = true;
}

void Control::list(Connection& connection) {
  for (const JobView& view : registry_->jobs_of(connection.identity)) {
    addend_control_status status{};
    net::put_text(status.tenant, view.tenant);
    net::put_text(status.name, view.name);
    status.epoch = view.epoch;
    status.world = view.world;
    status.joined = view.joined;
    status.slots = view.slots;
    counters_(view, status);
    net::append_control(connection.out, ADDEND_CONTROL_JOB, status);
  }
  net::append_control(connection.out, ADDEND_CONTROL_DONE);
}

void Control::send(ConnectionId to, addend_control_type type, std::span<const uint8_t> body,
                   std::span<const uint32_t> numbers) {
  if (Connection* connection = find(to); connection != nullptr) {
    net::append_control(connection->out, type, body, numbers);
  }
}

Control::Connection* Control::find(ConnectionId id) const {
  const auto found = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& connection) { return connection->id == id; });
  return found == connections_.end() ? nullptr : found->get();
}

}  // namespace addend::service
