// SPDX-License-Identifier: Apache-2.0
#include "service/strangers.h"

#include <algorithm>

namespace addend::service {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::size_t kMax = 256;
constexpr std::ptrdiff_t kMaxOfSource = 128;
// Addresses whose time is counted apart; the rest share one account.
constexpr std::size_t kMaxSources = 1024;

}  // namespace

Strangers::Strangers(std::shared_ptr<const auth::TlsContext> tls, LogSink log)
    : tls_(std::move(tls)), log_(std::move(log)) {}

Strangers::Source Strangers::source_of(const net::Address& address) {
  Source source{};
  const in6_addr& raw = address.raw.sin6_addr;
  std::copy_n(raw.s6_addr, IN6_IS_ADDR_V4MAPPED(&raw) ? 16 : 8, source.begin());
  return source;
}

Strangers::Source Strangers::largest() const {
  std::map<Source, std::size_t> counts;
  for (const Stranger& stranger : pool_)
    ++counts[stranger.source];
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

void Strangers::drop_oldest(const Source& source) {
  const auto oldest = std::find_if(pool_.begin(), pool_.end(),
                                   [&](const Stranger& s) { return s.source == source; });
  if (oldest == pool_.end()) return;
  pool_.erase(oldest);
  ++dropped_;
}

bool Strangers::drop_one() {
  if (pool_.empty()) return false;
  drop_oldest(largest());
  return true;
}

void Strangers::add(net::Descriptor socket, const net::Address& address, Clock::time_point now) {
  const Source source = source_of(address);
  const auto of_source = std::count_if(pool_.begin(), pool_.end(),
                                       [&](const Stranger& s) { return s.source == source; });
  if (of_source >= kMaxOfSource) {
    drop_oldest(source);
  } else if (pool_.size() >= kMax) {
    drop_one();
  }
  pool_.push_back({std::move(socket), address, source, now, tls_});
}

Strangers::Source Strangers::account_of(const Source& source) const {
  return shares_.size() < kMaxSources || shares_.count(source) > 0 ? source : Source{};
}

Clock::time_point Strangers::free_at(const Source& source) const {
  const auto share = shares_.find(account_of(source));
  return share == shares_.end() ? Clock::time_point() : share->second.free_at();
}

void Strangers::charge(const Source& source, Clock::time_point now, std::chrono::nanoseconds used) {
  if (shares_.size() >= kMaxSources)
    std::erase_if(shares_, [&](const auto& share) { return share.second.untouched(now); });
  shares_[account_of(source)].charge(now, used);
}

void Strangers::watch(std::vector<pollfd>& ready, Clock::time_point now,
                      Clock::time_point& until) const {
  if (!pool_.empty()) until = std::min(until, pool_.front().since + kPatience);
  for (const Stranger& stranger : pool_) {
    const auto free = free_at(stranger.source);
    const short events = stranger.wants_write ? POLLOUT : POLLIN;
    ready.push_back({free <= now ? stranger.socket.get() : -1, events, 0});
    if (free > now) until = std::min(until, free);
  }
}

Strangers::Step Strangers::handshake(Stranger& stranger) {
  if (!stranger.stream) {
    net::watch_connection(stranger.socket.get());
    auto stream = auth::TlsStream::create(*stranger.tls, stranger.socket.get(),
                                          auth::TlsStream::Side::kServer);
    if (!stream) return Step::kOver;
    stranger.stream.emplace(*std::move(stream));
  }
  const auth::Progress progress = stranger.stream->handshake();
  stranger.wants_write = progress == auth::Progress::kWantWrite;
  if (progress == auth::Progress::kDone)
    return stranger.stream->peer().empty() ? Step::kOver : Step::kDone;
  if (progress != auth::Progress::kFailed && progress != auth::Progress::kClosed)
    return Step::kWaits;
  const LogField fields[] = {{"peer", stranger.address.to_string()},
                             {"why", stranger.stream->problem()}};
  log_(LogLevel::kWarning, "handshake failed", fields);
  return Step::kOver;
}

std::vector<Peer> Strangers::drive(std::span<const pollfd> ready, Clock::time_point now) {
  std::vector<Peer> done;
  auto next = pool_.begin();
  for (const pollfd& one : ready) {
    Stranger& stranger = *next++;
    Step step = now - stranger.since > kPatience ? Step::kOver : Step::kWaits;
    if (step == Step::kOver) ++dropped_;
    if (step == Step::kWaits && one.revents != 0 && free_at(stranger.source) <= now) {
      const auto before = worked();
      step = handshake(stranger);
      charge(stranger.source, now, worked() - before);
    }
    if (step == Step::kDone) {
      std::string identity = stranger.stream->peer();
      done.push_back({std::move(stranger.socket), stranger.address, stranger.tls,
                      *std::move(stranger.stream), std::move(identity)});
    }
    if (step != Step::kWaits) stranger.socket = net::Descriptor();
  }
  std::erase_if(pool_, [](const Stranger& stranger) { return !stranger.socket; });
  return done;
}

}  // namespace addend::service
