// SPDX-License-Identifier: Apache-2.0
#include "service/uplinks.h"

#include <algorithm>
#include <chrono>

#include <poll.h>
#include <sys/eventfd.h>

#include "base/quiet_thread.h"
#include "reduce/service/session.h"

namespace addend::service {
namespace {

using service_client::Session;

constexpr uint32_t kSocketBuffer = 8u << 20;
// Workers wait as long as they like; whoever gives up, leaves, and then so do we.
constexpr std::chrono::hours kPatience{24 * 365};

class UplinkSink final : public FrameSink {
 public:
  explicit UplinkSink(std::shared_ptr<const net::UdpSocket> socket)
      : socket_(std::move(socket)), outbox_(*socket_) {}
  void send(const net::Address& to, std::span<const uint8_t> bytes, uint32_t segment) override {
    outbox_.add(to, bytes, segment);
  }
  void flush() override { outbox_.flush(); }
  bool was_too_long() override { return outbox_.take_too_long().has_value(); }

 private:
  std::shared_ptr<const net::UdpSocket> socket_;
  net::Outbox outbox_;
};

ServiceReducerOptions worker_options(const UpstreamOptions& upstream, const std::string& name,
                                     const JobOptions& job) {
  ServiceReducerOptions options;
  options.access = {upstream.address, upstream.identity, upstream.key, {}};
  options.job = name;
  options.world = upstream.leaves;
  options.worker = upstream.leaf;
  options.slots = job.slots;
  options.payload_bytes = job.payload_bytes;
  // A leaf that is silent as a whole is missed there only. Twice as long, because of a leaf that
  // some worker is late at, and which therefore names that worker itself.
  options.patience = job.patience > job.patience.max() / 2 ? job.patience.max() : 2 * job.patience;
  return options;
}

std::shared_ptr<Upstream> make_upstream(const UpstreamOptions& options, Session& session,
                                        const std::shared_ptr<const net::UdpSocket>& socket) {
  auto upstream = std::make_shared<Upstream>();
  upstream->welcome = session.welcome();
  upstream->positions.assign(session.positions().begin(), session.positions().end());
  // In frames: of those that the next server has, which may be a leaf itself.
  upstream->leaf = options.leaf - upstream->welcome.first_worker;
  upstream->leaves = upstream->welcome.world;
  Session::Keys keys = session.take_keys();
  upstream->worker_key = std::move(keys.worker);
  upstream->result_key = std::move(keys.result);
  upstream->threads = session.aggregators();
  upstream->sink = std::make_unique<UplinkSink>(socket);
  upstream->socket = socket;
  return upstream;
}

}  // namespace

Uplinks::Uplinks(const UpstreamOptions& options, Post post)
    : options_(options), post_(std::move(post)) {}

Uplinks::~Uplinks() {
  for (auto& [number, link] : links_)
    end(*link, false);
  for (auto& [number, link] : links_)
    link->thread.join();
  for (auto& link : leaving_)
    link->thread.join();
}

void Uplinks::end(Link& link, bool done) {
  link.done = done;
  link.stop = true;
  eventfd_write(link.wake.get(), 1);
}

void Uplinks::join(uint32_t number, const std::string& name, const JobOptions& options,
                   std::vector<uint32_t> positions) {
  auto link = std::make_shared<Link>();
  link->name = name;
  link->wake = net::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!link->wake) {
    const Error error = net::io_error("eventfd");
    return post_([=](Registry& registry) { registry.upstream_joined(number, error); });
  }
  // A leaf is one worker there: the place must be free before it is taken again.
  const auto before = std::find_if(leaving_.rbegin(), leaving_.rend(),
                                   [&](const auto& other) { return other->name == name; });
  links_[number] = link;
  link->thread = quiet_thread(
      "addend uplink",
      [this, number, link = link.get(), before = before == leaving_.rend() ? nullptr : *before,
       options,
       positions = std::move(positions)] { run(number, *link, before, options, positions); });
}

void Uplinks::leave(uint32_t number, bool done) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  end(*found->second, done);
  leaving_.push_back(std::move(found->second));
  links_.erase(found);
  std::erase_if(leaving_, [](const std::shared_ptr<Link>& link) {
    if (!link->over) return false;
    link->thread.join();
    return true;
  });
}

void Uplinks::run(uint32_t number, Link& link, std::shared_ptr<Link> before,
                  const JobOptions& options, const std::vector<uint32_t>& positions) const {
  const auto failed = [&](const Error& error) {
    post_([=](Registry& registry) { registry.upstream_joined(number, error); });
  };
  const auto over = [&] {
    link.over = true;
    link.over.notify_all();
  };
  if (before) before->over.wait(false);
  before.reset();
  if (link.stop) return over();
  auto any = net::resolve("", 0);
  auto bound =
      any ? net::UdpSocket::bind(*any, kSocketBuffer) : Result<net::UdpSocket>(any.error());
  if (!bound) {
    failed(bound.error());
    return over();
  }
  const auto socket = std::make_shared<const net::UdpSocket>(*std::move(bound));
  auto session = Session::join(worker_options(options_, link.name, options), *socket, positions,
                               std::chrono::steady_clock::now() + kPatience, &link.stop);
  if (!session) {
    if (!link.stop) failed(session.error());
    return over();
  }
  auto upstream = make_upstream(options_, **session, socket);
  post_([=](Registry& registry) { registry.upstream_joined(number, upstream); });
  upstream.reset();
  watch(number, link, **session);
  if (link.done) (*session)->leave();
  session->reset();  // the place is free when the connection is gone
  over();
}

void Uplinks::watch(uint32_t number, const Link& link, Session& session) const {
  // News first: what came with the welcome is read already, and nothing would wake us for it.
  while (!link.stop) {
    const Session::News news = session.news();
    if (news == Session::News::kEnded) {
      const addend_control_ended ended = session.ended();
      post_([=](Registry& registry) { registry.upstream_ended(number, ended); });
      break;
    }
    if (news == Session::News::kGone) {
      post_([=](Registry& registry) { registry.upstream_gone(number); });
      break;
    }
    pollfd ready[] = {{link.wake.get(), POLLIN, 0}, {session.fd(), POLLIN, 0}};
    poll(ready, 2, -1);
  }
  while (!link.stop) {
    pollfd ready{link.wake.get(), POLLIN, 0};
    poll(&ready, 1, -1);
  }
}

}  // namespace addend::service
