// SPDX-License-Identifier: Apache-2.0
#include "reduce/mesh/rendezvous.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "net/socket.h"
#include "reduce/mesh/mesh.h"
#include "wire/hash.h"

namespace addend {
namespace mesh {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kRetry{50};       // between attempts to reach a worker that is not up yet
constexpr milliseconds kPatience{5000};  // with somebody who connected and says nothing
constexpr std::size_t kMaxStrangers = 256;
constexpr std::size_t kTokenBytes = 32;

// What both sides of a new connection say first.
struct Hello {
  uint64_t magic = 0x316F6C6C65484D41;  // "AMHello1"
  uint64_t group = 0;                   // a hash of the list of workers and their link
  uint32_t world = 0;
  uint32_t from = 0, to = 0;
  uint32_t reserved = 0;
  std::array<uint8_t, kTokenBytes> token{};
};
static_assert(sizeof(Hello) == 64);

// A connection on which hellos are under way.
struct Handshake {
  net::Descriptor socket;
  Clock::time_point until;  // when it is given up
  bool connecting = false;  // the system has not connected it yet
  Hello own, other;
  uint64_t sent = 0, got = 0;

  bool over() const { return sent == sizeof(Hello) && got == sizeof(Hello); }
};

// Of what must be the same on all workers.
uint64_t hash_of(const MeshOptions& options) {
  uint64_t hash =
      addend_random(options.peers.size(), exchange_bytes(options.link, options.peers.size()));
  for (const std::string& peer : options.peers) {
    for (const char letter : peer)
      hash = addend_random(hash, static_cast<uint8_t>(letter));
    hash = addend_random(hash, 256);
  }
  return hash;
}

// Whether the other side has closed it, with nothing before that.
bool has_ended(int socket) {
  char next;
  const ssize_t got = recv(socket, &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

class Meeting {
 public:
  explicit Meeting(const MeshOptions& options)
      : options_(options), met_(options.peers.size()), calls_(options.peers.size()) {
    hello_.group = hash_of(options);
    hello_.world = static_cast<uint32_t>(options.peers.size());
    hello_.from = options.worker;
    std::copy(options.token.begin(), options.token.end(), hello_.token.begin());
  }

  Result<std::vector<net::Descriptor>> run() {
    ADDEND_TRY(open());
    const auto end = Clock::now() + options_.join_timeout;
    while (missing() > 0) {
      if (Clock::now() >= end) return make_error(Errc::kTimeout, "waiting for " + missing_names());
      ADDEND_TRY(call_again());
      ADDEND_TRY(turn());
      forget_ended();
    }
    return std::move(met_);
  }

 private:
  struct Call {
    net::Address address;
    Clock::time_point next{};  // attempt
    Handshake handshake;
  };

  uint32_t worker() const { return options_.worker; }

  std::size_t missing() const {
    std::size_t count = 0;
    for (std::size_t w = 0; w < met_.size(); ++w)
      count += w != worker() && !met_[w] ? 1 : 0;
    return count;
  }

  std::string missing_names() const {
    std::string names;
    for (std::size_t w = 0; w < met_.size(); ++w) {
      if (w == worker() || met_[w]) continue;
      names += (names.empty() ? "worker " : ", worker ") + std::to_string(w) + " (" +
               options_.peers[w] + ")";
    }
    return names + (refusal_.empty() ? "" : "; " + refusal_);
  }

  Status open() {
    listener_ = net::Descriptor(options_.listener);
    if (listener_ && fcntl(listener_.get(), F_SETFL, O_NONBLOCK) != 0) {
      return net::io_error("the listening socket");
    }
    for (uint32_t w = 0; w < worker(); ++w) {
      const auto address = net::resolve(options_.peers[w]);
      if (!address) return address.error();
      calls_[w].address = *address;
    }
    if (listener_ || worker() + 1 == met_.size()) return {};  // nobody will connect to the last
    const auto own = net::resolve(options_.peers[worker()]);
    if (!own) return own.error();
    listener_ = net::make_socket(SOCK_STREAM);
    const int on = 1;
    if (!listener_) return net::io_error("a socket");
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (net::bind(listener_.get(), *own) != 0 || listen(listener_.get(), 256) != 0) {
      return net::io_error("listening at " + options_.peers[worker()]);
    }
    return {};
  }

  // Connects to workers before us that are not connected yet, from time to time.
  Status call_again() {
    for (uint32_t w = 0; w < worker(); ++w) {
      Call& call = calls_[w];
      const auto now = Clock::now();
      if (met_[w] || call.handshake.socket || now < call.next) continue;
      call.next = now + kRetry;
      net::Descriptor made = net::make_socket(SOCK_STREAM);
      if (!made) return net::io_error("a socket");
      const bool connected = net::connect(made.get(), call.address) == 0;
      if (!connected && errno != EINPROGRESS) continue;
      call.handshake = handshake(std::move(made));
      call.handshake.own.to = w;
      call.handshake.connecting = !connected;
    }
    return {};
  }

  Handshake handshake(net::Descriptor made) const {
    Handshake handshake;
    handshake.socket = std::move(made);
    handshake.until = Clock::now() + kPatience;
    handshake.own = hello_;
    return handshake;
  }

  // Waits a moment for something to happen, and does what can be done then.
  Status turn() {
    std::vector<pollfd> events;
    std::vector<Handshake*> handshakes;
    const auto add = [&](Handshake& one, bool calls) {
      // Who was called speaks after who calls.
      const bool writes = calls ? one.sent < sizeof(Hello) : one.got == sizeof(Hello);
      events.push_back({one.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
      handshakes.push_back(&one);
    };
    for (Call& call : calls_) {
      if (call.handshake.socket) add(call.handshake, true);
    }
    const std::size_t calls = handshakes.size();
    for (Handshake& one : callers_)
      add(one, false);
    const bool room = callers_.size() < kMaxStrangers;
    events.push_back({room ? listener_.get() : -1, POLLIN, 0});
    if (poll(events.data(), events.size(), static_cast<int>(kRetry.count())) < 0 && errno != EINTR)
      return net::io_error("poll");
    for (std::size_t i = 0; i < handshakes.size(); ++i) {
      if (events[i].revents != 0) move(*handshakes[i], i < calls);
      if (handshakes[i]->over()) {
        settle(*handshakes[i]);
      } else if (Clock::now() >= handshakes[i]->until) {
        handshakes[i]->socket = net::Descriptor();
      }
    }
    std::erase_if(callers_, [](const Handshake& one) { return !one.socket; });
    accept_some();
    return {};
  }

  // Sends or receives what can be of the hellos; closes what fails.
  void move(Handshake& one, bool calls) {
    if (one.connecting) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(one.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return drop(one);
      one.connecting = false;
    }
    const bool sends = calls ? one.sent < sizeof(Hello) : one.got == sizeof(Hello);
    uint64_t& done = sends ? one.sent : one.got;
    uint8_t* at = reinterpret_cast<uint8_t*>(sends ? &one.own : &one.other) + done;
    const ssize_t moved =
        sends ? send(one.socket.get(), at, sizeof(Hello) - done, MSG_NOSIGNAL | MSG_DONTWAIT)
              : recv(one.socket.get(), at, sizeof(Hello) - done, MSG_DONTWAIT);
    if (moved > 0) done += static_cast<uint64_t>(moved);
    if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) return drop(one);
    // Before the called side answers it must know whom.
    if (!calls && one.got == sizeof(Hello)) {
      if (!known(one.other) || one.other.from <= worker()) return drop(one);
      one.own.to = one.other.from;
    }
  }

  static void drop(Handshake& one) { one.socket = net::Descriptor(); }

  bool known(const Hello& hello) {
    const bool ours = hello.magic == hello_.magic && hello.to == worker() &&
                      hello.from < hello_.world && hello.token == hello_.token;
    if (ours && (hello.group != hello_.group || hello.world != hello_.world)) {
      refusal_ = "worker " + std::to_string(hello.from) +
                 " has another list of workers, or another link (latency_us, gbit_per_s)";
    }
    return ours && hello.group == hello_.group && hello.world == hello_.world;
  }

  void settle(Handshake& one) {
    const Hello& other = one.other;
    // A worker that calls again did not hear us the first time.
    if (known(other) && other.from == one.own.to) met_[other.from] = std::move(one.socket);
    drop(one);
  }

  // A worker may restart before all have met: the one that is there now is met again.
  void forget_ended() {
    for (net::Descriptor& socket : met_) {
      if (socket && has_ended(socket.get())) socket = net::Descriptor();
    }
  }

  void accept_some() {
    while (listener_ && callers_.size() < kMaxStrangers) {
      net::Descriptor made(
          accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!made) return;
      callers_.push_back(handshake(std::move(made)));
    }
  }

  const MeshOptions& options_;
  Hello hello_;
  net::Descriptor listener_;
  std::vector<net::Descriptor> met_;  // by worker
  std::vector<Call> calls_;           // to workers before us
  std::vector<Handshake> callers_;
  std::string refusal_;  // what a worker said that we cannot accept
};

Status check(const MeshOptions& options) {
  constexpr std::size_t kMaxWorld = 256;
  if (options.peers.empty() || options.peers.size() > kMaxWorld) {
    return make_error(Errc::kInvalidArgument, "a mesh has 1 to 256 workers");
  }
  if (options.worker >= options.peers.size()) {
    return make_error(Errc::kInvalidArgument, "worker " + std::to_string(options.worker) +
                                                  " is not in a list of " +
                                                  std::to_string(options.peers.size()));
  }
  if (options.token.size() > kTokenBytes) {
    return make_error(Errc::kInvalidArgument, "a token has at most 32 bytes");
  }
  if (!(options.link.latency_us >= 0) || !(options.link.gbit_per_s > 0)) {
    return make_error(Errc::kInvalidArgument, "a link has a latency and a speed");
  }
  return {};
}

}  // namespace

Result<std::vector<net::Descriptor>> meet(const MeshOptions& options) {
  return Meeting(options).run();
}

}  // namespace mesh

Result<std::unique_ptr<Reducer>> create_mesh_reducer(const MeshOptions& options) {
  ADDEND_TRY(mesh::check(options));
  auto sockets = mesh::meet(options);
  if (!sockets) return sockets.error();
  auto made = mesh::MeshReducer::create(
      *std::move(sockets),
      {options.worker, mesh::exchange_bytes(options.link, options.peers.size())});
  if (!made) return made.error();
  return std::unique_ptr<Reducer>(*std::move(made));
}

}  // namespace addend
