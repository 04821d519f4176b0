// SPDX-License-Identifier: Apache-2.0
// The states of a connection.
//
//   accept --> handshake (Handshakes) --> open --> closed: broken, idle, does not read, holds too
//                     |                    |  ^              much, or makes room for another
//                     |  there is no room  |  |
//                     |                    |  '--- the peer has read it, or did not for a second
//                     |                    v  |
//                     '----------------> closing: refused, and the reason is on its way
//
// All on one thread: each round of the loop takes a few messages of each connection, and none of
// those whose tenant has used up its share of the thread. What a round costs beside messages (with
// hundreds of connections more than these) is paid in equal parts by those for whom there was one.
#include "service/control.h"

#include <algorithm>
#include <chrono>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/quiet_thread.h"
#include "net/socket.h"
#include "net/tcp_listener.h"

namespace addend::service {
namespace {

// Tenants' connections that are no workers': an operator asks and goes.
constexpr std::chrono::seconds kIdle{30};
// How long somebody may leave unread what was sent.
constexpr std::chrono::seconds kUnread{30};
// How long a refusal waits for its reader, and how many such there may be.
constexpr std::chrono::seconds kLinger{1};
constexpr std::ptrdiff_t kMaxLingering = 64;
// How long nobody is let in when there are no descriptors.
constexpr std::chrono::milliseconds kAcceptPause{100};
// How long new ones wait while strangers displace each other: a connection at a time, each of them
// would cost a turn of the whole loop.
constexpr std::chrono::milliseconds kCrowdPause{2};
// Messages that are not whole yet are counted from here on.
constexpr std::size_t kSmallMessage = 4096;
// Of one connection, before the others have their turn; and new ones.
constexpr int kMessagesATurn = 16;
constexpr int kAcceptsATurn = 64;
// How often it is asked whether two that claim one place have settled it.
constexpr std::chrono::milliseconds kConflicts{20};

}  // namespace

Control::Control(const ControlOptions& options, JobCounters counters, LogSink log)
    : options_(options), counters_(std::move(counters)), log_(std::move(log)) {}

Result<std::unique_ptr<Control>> Control::start(
    const ControlOptions& options,
    const std::function<std::unique_ptr<Registry>(MessageSink& sink)>& make_registry,
    JobCounters counters, LogSink log) {
  std::unique_ptr<Control> control(new Control(options, std::move(counters), std::move(log)));
  auto listener = net::listen_tcp(options.address, control->port_);
  if (!listener) return listener.error();
  control->listener_ = *std::move(listener);
  control->wake_ = net::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!control->wake_) return net::io_error("eventfd");
  control->registry_ = make_registry(*control);
  auto tls = control->make_tls(options);
  if (!tls) return tls.error();
  control->handshakes_.emplace(*std::move(tls), control->log_);
  control->publish();
  control->thread_ = quiet_thread("addend control", [it = control.get()] { it->run(); });
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
    handshakes_->set_tls(tls);
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
  if (!work.empty()) changed_ = true;
}

ControlView Control::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

void Control::publish() {
  status_.connections = static_cast<uint32_t>(connections_.size());
  status_.handshakes = handshakes_->size();
  status_.dropped = handshakes_->dropped();
  std::vector<JobView> jobs;
  if (changed_) jobs = registry_->jobs();
  const std::lock_guard lock(mutex_);
  view_.status = status_;
  view_.at = Clock::now();
  if (std::exchange(changed_, false)) view_.jobs = std::move(jobs);
}

void Control::run() {
  std::vector<pollfd> ready;
  while (!stop_) {
    const auto until = watch(ready, Clock::now());
    const auto pause = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    poll(ready.data(), ready.size(), static_cast<int>(std::max<int64_t>(pause.count(), 0)));
    const auto entries = std::span(ready).subspan(2);
    const auto callers = std::count_if(ready.begin(), ready.end(),
                                       [](const pollfd& entry) { return entry.revents != 0; });
    toll_ = meter_.lap() / std::max<int64_t>(callers, 1);
    // Always, and before the connections: that an epoch ended was posted before its workers heard
    // of it and hung up.
    run_posted();
    meter_.lap();  // is nobody's
    const auto now = Clock::now();
    const std::size_t known = connections_.size();
    drive_all(entries.first(known), now);
    for (Peer& peer : handshakes_->drive(entries.subspan(known), now, toll_, meter_))
      let_in(std::move(peer), now);
    if (ready[0].revents != 0) accept_some(now);
    std::erase_if(connections_, [](const auto& c) { return !c->open(); });
    if (!conflicts_.empty()) settle_conflicts();
    publish();
  }
}

// Nobody is read whose answers are not sent yet, or whose tenant has used up its time.
Clock::time_point Control::watch(std::vector<pollfd>& ready, Clock::time_point now) const {
  Clock::time_point until = now + std::chrono::seconds(1);
  const auto rest = [&](Clock::time_point from) { until = std::min(until, from); };
  ready.assign({{accept_at_ <= now ? listener_.get() : -1, POLLIN, 0}, {wake_.get(), POLLIN, 0}});
  if (accept_at_ > now) rest(accept_at_);
  if (!conflicts_.empty()) rest(now + kConflicts);
  for (const auto& connection : connections_) {
    const auto share = shares_.find(connection->tenant());
    const auto free = share == shares_.end() ? now : share->second.free_at();
    short events = POLLOUT;
    if (connection->drained()) events = free <= now ? POLLIN : 0;
    if (connection->drained() && (free > now || connection->has_more())) rest(std::max(free, now));
    ready.push_back({connection->fd(), events, 0});
  }
  handshakes_->watch(ready, now, until);
  return until;
}

void Control::accept_some(Clock::time_point now) {
  const uint64_t dropped = handshakes_->dropped();
  const auto used = accept_waiting(now);
  if (handshakes_->dropped() == dropped) return;
  crowd_.charge(now, used);
  accept_at_ = std::max({accept_at_, now + kCrowdPause, crowd_.free_at()});
}

// Returns the work that it was.
std::chrono::nanoseconds Control::accept_waiting(Clock::time_point now) {
  std::chrono::nanoseconds used{}, toll = toll_;
  for (int i = 0; i < kAcceptsATurn; ++i) {
    net::Address address;
    net::Descriptor socket = net::accept(listener_.get(), address);
    if (socket) {
      handshakes_->add(std::move(socket), address, now);
      const auto one = meter_.lap() + std::exchange(toll, {});
      handshakes_->charge(address, now, one);
      used += one;
      continue;
    }
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (errno == EAGAIN) return used;
    // No descriptors or no memory: the connection stays where it is, and the listener would be
    // ready again at once.
    const LogField fields[] = {{"why", std::strerror(errno)}};
    log_(LogLevel::kError, "cannot accept connections", fields);
    ++status_.accept_failures;
    if (handshakes_->drop_one()) continue;
    accept_at_ = now + kAcceptPause;
    return used;
  }
  return used;
}

bool Control::make_room(uint64_t limit, const std::function<bool(const Connection&)>& counts) {
  uint64_t count = 0;
  Connection* oldest_idle = nullptr;
  for (const auto& connection : connections_) {
    if (!connection->open() || connection->closing() || !counts(*connection)) continue;
    ++count;
    if (oldest_idle == nullptr && !registry_->is_worker(connection->id()))
      oldest_idle = connection.get();
  }
  if (count < limit) return true;
  if (oldest_idle == nullptr) return false;
  close(*oldest_idle);
  ++status_.cut_off;
  return true;
}

Status Control::make_room(const std::string& identity) {
  const auto limits = registry_->connection_limits(identity, options_.max_connections);
  if (!limits) return limits.error();
  const std::string tenant = identity.substr(0, identity.find('/'));
  const auto full = [&](const std::string& who, uint64_t limit) {
    return make_error(Errc::kCapacity, who + " has " + std::to_string(limit) +
                                           " connections of workers, and may have no more");
  };
  if (!make_room(limits->identity, [&](const Connection& c) { return c.identity() == identity; }))
    return full("'" + identity + "'", limits->identity);
  if (!make_room(limits->tenant, [&](const Connection& c) { return c.tenant() == tenant; }))
    return full("tenant " + tenant, limits->tenant);
  if (!make_room(options_.max_connections, [](const Connection&) { return true; }))
    return full("the server", options_.max_connections);
  return {};
}

void Control::let_in(Peer peer, Clock::time_point now) {
  const Status room = make_room(peer.identity);
  const std::size_t longest = registry_->longest_message(peer.identity);
  auto connection = std::make_unique<Connection>(next_id_++, std::move(peer), longest);
  if (!room) {
    const LogField fields[] = {{"identity", connection->identity()}, {"why", room.error().message}};
    log_(LogLevel::kWarning, "connection refused", fields);
    ++status_.refused;
    connection->fail(room.error());
    const auto lingering = std::count_if(connections_.begin(), connections_.end(),
                                         [](const auto& c) { return c->closing(); });
    if (!connection->write() || lingering >= kMaxLingering) connection->close();
  }
  shares_[connection->tenant()].charge(now, meter_.lap());
  if (connection->open()) connections_.push_back(std::move(connection));
}

void Control::close(Connection& connection) {
  registry_->lost(connection.id(), connection.fell_silent());
  changed_ = true;
  connection.close();
}

bool Control::holds_too_much(const std::string& tenant) const {
  const auto limits = registry_->connection_limits(tenant, options_.max_connections);
  uint64_t held = 0;
  for (const auto& connection : connections_) {
    if (connection->tenant() == tenant) held += connection->unfinished();
  }
  return !limits || held > limits->unfinished_bytes;
}

bool Control::overdue(const Connection& connection, Clock::time_point now) const {
  const auto still = now - connection.moved();
  if (connection.closing()) return still > kLinger;
  if (!connection.drained()) return still > kUnread;
  return still > kIdle && !registry_->is_worker(connection.id());
}

void Control::drive_all(std::span<const pollfd> ready, Clock::time_point now) {
  for (std::size_t i = 0; i < ready.size(); ++i) {
    Connection& connection = *connections_[i];
    // Cut since it was polled: its descriptor may be another's by now.
    if (!connection.open()) continue;
    const bool idle = ready[i].revents == 0 && connection.drained() && !connection.has_more();
    bool alive = drive_ready(connection, ready[i].revents, now);
    if (alive && overdue(connection, now)) {
      if (!connection.closing()) ++status_.cut_off;
      alive = false;
    }
    if (!alive) close(connection);
    // Beside its messages: what was sent, and its end.
    if (!idle || !alive) shares_[connection.tenant()].charge(now, meter_.lap());
  }
}

bool Control::drive_ready(Connection& connection, short revents, Clock::time_point now) {
  if (!connection.drained() && !connection.write()) return false;
  if (connection.closing()) return revents == 0 || connection.linger();
  Share& share = shares_[connection.tenant()];
  const bool may_read = connection.drained() && share.free_at() <= now;
  // Otherwise it would be reported again and again.
  if (!may_read) return (revents & (POLLERR | POLLHUP | POLLNVAL)) == 0;
  if (revents == 0 && !connection.has_more()) return true;
  share.charge(now, toll_);
  bool alive = true;
  for (int i = 0; i < kMessagesATurn && alive && share.free_at() <= now; ++i) {
    const Step step = drive(connection);
    share.charge(now, meter_.lap());
    if (step == Step::kWaits) break;
    alive = step == Step::kGoesOn;
  }
  return alive;
}

// One message.
Control::Step Control::drive(Connection& connection) {
  net::ControlMessage message;
  switch (connection.take(message)) {
    case Connection::Taken::kBroken:
      return Step::kOver;
    case Connection::Taken::kNothing:
      if (connection.unfinished() < kSmallMessage || !holds_too_much(connection.tenant()))
        return Step::kWaits;
      ++status_.cut_off;
      return Step::kOver;
    case Connection::Taken::kMessage:
      break;
  }
  const auto before = Clock::now();
  const Status status = handle(connection, message);
  // For these the thread waits for the data threads or a disk, and that counts too.
  if (message.type == ADDEND_CONTROL_TABLE || message.type == ADDEND_CONTROL_CREATE ||
      message.type == ADDEND_CONTROL_DRAIN)
    shares_[connection.tenant()].charge(before, Clock::now() - before);
  if (!status) refuse(connection, status.error());
  // Whoever has an answer finds what it says on the pages.
  if (changed_) publish();
  if (!connection.write()) return Step::kOver;
  return connection.drained() && !connection.closing() ? Step::kGoesOn : Step::kWaits;
}

Status Control::handle(Connection& connection, const net::ControlMessage& message) {
  changed_ = changed_ || message.type != ADDEND_CONTROL_LIST;
  switch (message.type) {
    case ADDEND_CONTROL_JOIN:
      return join(connection, message);
    case ADDEND_CONTROL_PATH:
      return registry_->path(connection.id(), message.as<addend_control_path>());
    case ADDEND_CONTROL_TABLE: {
      const auto number = registry_->table(connection.id(), message.as<addend_control_table>());
      if (!number) return number.error();
      net::append_control(connection.out(), ADDEND_CONTROL_TABLE_IS,
                          addend_control_number{*number, 0});
      return {};
    }
    case ADDEND_CONTROL_LEAVE:
      registry_->leave(connection.id());
      return {};
    case ADDEND_CONTROL_CREATE:
      ADDEND_TRY(registry_->create(connection.identity(), message.as<addend_control_job>()));
      net::append_control(connection.out(), ADDEND_CONTROL_DONE);
      return {};
    case ADDEND_CONTROL_LIST:
      list(connection);
      return {};
    case ADDEND_CONTROL_DRAIN:
      ADDEND_TRY(registry_->drain(connection.identity(), message.as<addend_control_drain>()));
      net::append_control(connection.out(), ADDEND_CONTROL_DONE);
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
  const ConnectionId holder = registry_->holder_of(connection.id(), connection.identity(), join);
  if (const Connection* there = find(holder); there != nullptr) {
    conflicts_.add(
        {connection.id(), connection.identity(), connection.address(), join, message.numbers()},
        holder, there->fd());
    return {};
  }
  return registry_->join(connection.id(), connection.identity(), connection.address(), join,
                         message.numbers());
}

void Control::settle_conflicts() {
  for (JoinConflicts::Newcomer& one :
       conflicts_.settle([this](ConnectionId id) { return find(id) != nullptr; })) {
    const Status status =
        registry_->join(one.id, one.identity, one.address, one.join, std::move(one.positions));
    if (!status) refuse(*find(one.id), status.error());
    changed_ = true;
  }
}

void Control::refuse(Connection& connection, const Error& error) {
  connection.fail(error);
  registry_->lost(connection.id());
  changed_ = true;
}

void Control::list(Connection& connection) {
  const std::vector<JobView> views = registry_->jobs_of(connection.identity());
  std::vector<addend_control_status> statuses(views.size());
  counters_(views, statuses);
  for (std::size_t i = 0; i < views.size(); ++i) {
    addend_control_status& status = statuses[i];
    net::put_text(status.tenant, views[i].tenant);
    net::put_text(status.name, views[i].name);
    status.epoch = views[i].epoch;
    status.world = views[i].world;
    status.joined = views[i].joined;
    status.slots = views[i].slots;
    net::append_control(connection.out(), ADDEND_CONTROL_JOB, status);
  }
  net::append_control(connection.out(), ADDEND_CONTROL_DONE);
}

void Control::send(ConnectionId to, addend_control_type type, std::span<const uint8_t> body,
                   std::span<const uint32_t> numbers) {
  if (Connection* connection = find(to); connection != nullptr)
    connection->put(type, body, numbers);
}

void Control::cut(ConnectionId id) {
  if (Connection* connection = find(id); connection != nullptr) connection->close();
  changed_ = true;
}

Connection* Control::find(ConnectionId id) const {
  const auto found = std::find_if(connections_.begin(), connections_.end(), [&](const auto& c) {
    return c->id() == id && c->open() && !c->closing();
  });
  return found == connections_.end() ? nullptr : found->get();
}

}  // namespace addend::service
