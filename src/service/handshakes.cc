// SPDX-License-Identifier: Apache-2.0
#include "service/handshakes.h"

#include <algorithm>

namespace addend::service {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::size_t kMax = 256;
constexpr std::ptrdiff_t kMaxOfSource = 128;
// Addresses whose time is counted apart; the rest share one account.
constexpr std::size_t kMaxSources = 1024;

}  // namespace

Handshakes::Handshakes(std::shared_ptr<const auth::TlsContext> tls, LogSink log)
    : tls_(std::move(tls)), log_(std::move(log)) {}

Handshakes::Source Handshakes::source_of(const net::Address& address) {
  Source source{};
  const in6_addr& raw = address.raw.sin6_addr;
  std::copy_n(raw.s6_addr, IN6_IS_ADDR_V4MAPPED(&raw) ? 16 : 8, source.begin());
  return source;
}

Handshakes::Source Handshakes::largest() const {
  std::map<Source, std::size_t> counts;
  for (const Handshake& peer : pool_)
    ++counts[peer.source];
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

void Handshakes::drop_oldest(const Source& source) {
  const auto oldest = std::find_if(pool_.begin(), pool_.end(),
                                   [&](const Handshake& peer) { return peer.source == source; });
  if (oldest == pool_.end()) return;
  pool_.erase(oldest);
  ++dropped_;
}

bool Handshakes::drop_one() {
  if (pool_.empty()) return false;
  drop_oldest(largest());
  return true;
}

void Handshakes::add(net::Descriptor socket, const net::Address& address, Clock::time_point now) {
  const Source source = source_of(address);
  const auto of_source = std::count_if(
      pool_.begin(), pool_.end(), [&](const Handshake& peer) { return peer.source == source; });
  if (of_source >= kMaxOfSource) {
    drop_oldest(source);
  } else if (pool_.size() >= kMax) {
    drop_one();
  }
  pool_.push_back({std::move(socket), address, source, now, tls_});
}

Handshakes::Source Handshakes::account_of(const Source& source) const {
  return shares_.size() < kMaxSources || shares_.count(source) > 0 ? source : Source{};
}

Clock::time_point Handshakes::free_at(const Source& source) const {
  const auto share = shares_.find(account_of(source));
  return share == shares_.end() ? Clock::time_point() : share->second.free_at();
}

void Handshakes::charge(const Source& source, Clock::time_point now,
                        std::chrono::nanoseconds used) {
  if (shares_.size() >= kMaxSources)
    std::erase_if(shares_, [&](const auto& share) { return share.second.untouched(now); });
  shares_[account_of(source)].charge(now, used);
}

void Handshakes::watch(std::vector<pollfd>& ready, Clock::time_point now,
                       Clock::time_point& until) const {
  if (!pool_.empty()) until = std::min(until, pool_.front().since + kPatience);
  for (const Handshake& peer : pool_) {
    const auto free = free_at(peer.source);
    const short events = peer.wants_write ? POLLOUT : POLLIN;
    ready.push_back({free <= now ? peer.socket.get() : -1, events, 0});
    if (free > now) until = std::min(until, free);
  }
}

Handshakes::Step Handshakes::go_on(Handshake& peer) {
  if (!peer.stream) {
    net::watch_connection(peer.socket.get());
    auto stream =
        auth::TlsStream::create(*peer.tls, peer.socket.get(), auth::TlsStream::Side::kServer);
    if (!stream) return Step::kOver;
    peer.stream.emplace(*std::move(stream));
  }
  const auth::Progress progress = peer.stream->handshake();
  peer.wants_write = progress == auth::Progress::kWantWrite;
  if (progress == auth::Progress::kDone)
    return peer.stream->peer().empty() ? Step::kOver : Step::kDone;
  if (progress != auth::Progress::kFailed && progress != auth::Progress::kClosed)
    return Step::kWaits;
  const LogField fields[] = {{"peer", peer.address.to_string()}, {"why", peer.stream->problem()}};
  log_(LogLevel::kWarning, "handshake failed", fields);
  return Step::kOver;
}

std::vector<Peer> Handshakes::drive(std::span<const pollfd> ready, Clock::time_point now,
                                    std::chrono::nanoseconds toll, Meter& meter) {
  std::vector<Peer> done;
  auto next = pool_.begin();
  for (const pollfd& one : ready) {
    Handshake& peer = *next++;
    Step step = now - peer.since > kPatience ? Step::kOver : Step::kWaits;
    if (step == Step::kOver) ++dropped_;
    const bool called = step == Step::kWaits && one.revents != 0 && free_at(peer.source) <= now;
    if (called) step = go_on(peer);
    if (step == Step::kDone) {
      std::string identity = peer.stream->peer();
      done.push_back({std::move(peer.socket), peer.address, peer.tls, *std::move(peer.stream),
                      std::move(identity)});
    }
    if (step != Step::kWaits) {
      peer.stream.reset();
      peer.socket = net::Descriptor();
    }
    if (called || step == Step::kOver)
      charge(peer.source, now, (called ? toll : std::chrono::nanoseconds()) + meter.lap());
  }
  std::erase_if(pool_, [](const Handshake& peer) { return !peer.socket; });
  return done;
}

}  // namespace addend::service
