// SPDX-License-Identifier: Apache-2.0
// How much of a bare UDP server's speed the aggregation server keeps: one server thread and four
// workers that one thread plays, on loopback. The baseline takes the same datagrams through the
// same sockets and replies with as many and as long ones, but looks at nothing. It replies as
// datagrams come; since sums are complete only with the last worker's, and then many at once, the
// service sends fewer super-packets. So a second baseline, without a bar, waits for the last
// worker and sends the very super-packets that the service does: what is left is the work on the
// datagrams. All run in turn, factors are medians over the repetitions, and the sums are checked.
//
// Goodput is counted in the server thread's own processor time, i.e. what one core that does
// nothing else would do: the wall clock also shows how busy the rest of the machine is. Server and
// workers take turns on one processor: a second one may be the other hyperthread of the same core
// (virtual machines do not say), and what the workers do there would slow the server down, by up to
// a half and differently each time. Exit code 1 if a bar does not hold.
//   usage: service_goodput [least ratio]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <poll.h>
#include <sched.h>

#include "addend/fold.h"
#include "net/udp_socket.h"
#include "service/data_plane.h"
#include "tests/support/keys.h"

namespace {

using namespace addend;  // a program of one file

constexpr uint32_t kWorld = 4, kSlots = 180, kTurns = 40, kRepetitions = 31;
constexpr uint32_t kPayload = ADDEND_FRAME_PAYLOAD_BYTES;
constexpr uint32_t kFrame = ADDEND_FRAME_HEADER_BYTES + kPayload;
constexpr double kContributions = double{kTurns} * kSlots * kWorld;
constexpr uint32_t kSuper = 45;  // frames of a super-packet

auth::Secret secret() { return testing_support::secret_of(3); }

/// All threads that this one starts, too.
void stay_on_one_processor() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  CPU_SET(sched_getcpu(), &processors);
  sched_setaffinity(0, sizeof(processors), &processors);
}

class Sink final : public service::FrameSink {
 public:
  explicit Sink(const net::UdpSocket& socket) : outbox_(socket) {}
  void send(const net::Address& to, std::span<const uint8_t> bytes, uint32_t segment) override {
    outbox_.add(to, bytes, segment);
  }
  void flush() override { outbox_.flush(); }

 private:
  net::Outbox outbox_;
};

/// All contributions of all turns, made before the clock runs.
struct Traffic {
  Op op;
  std::shared_ptr<service::JobEpoch> job;
  std::vector<std::vector<uint8_t>> frames;  // by turn and worker: the slots' frames in a row
  std::vector<uint8_t> expected;             // the sum of any turn's slot 0

  uint8_t lane_byte(uint32_t worker, uint32_t i) const {
    return static_cast<uint8_t>((i * 7 + worker * 3) & 0x3F);
  }
};

Traffic make_traffic(Op op, const std::vector<net::UdpSocket>& workers) {
  Traffic traffic;
  traffic.op = op;
  traffic.job = std::make_shared<service::JobEpoch>();
  service::JobEpoch& job = *traffic.job;
  job.slots.epoch = 5;
  job.slots.boot = 6;
  job.slots.world = kWorld;
  job.slots.slots = kSlots;
  job.slots.ops = 1u << static_cast<uint32_t>(op);
  for (uint32_t w = 0; w < kWorld; ++w) {
    job.worker_keys.push_back(
        *auth::FrameKey::create(*auth::derive_secret(secret(), "worker", w), kPayload));
    job.workers.push_back(*net::resolve("127.0.0.1", workers[w].port()));
  }
  job.result_key = *auth::FrameKey::create(*auth::derive_secret(secret(), "result", 0), kPayload);
  traffic.expected.assign(kPayload, 0);
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    for (uint32_t w = 0; w < kWorld; ++w) {
      std::vector<uint8_t> row(std::size_t{kSlots} * kFrame);
      for (uint32_t s = 0; s < kSlots; ++s) {
        uint8_t* frame = row.data() + std::size_t{s} * kFrame;
        for (uint32_t i = 0; i < kPayload; ++i)
          frame[ADDEND_FRAME_HEADER_BYTES + i] = traffic.lane_byte(w, i);
        addend_frame_header header{};
        header.magic = ADDEND_FRAME_MAGIC;
        header.version = ADDEND_FRAME_VERSION;
        header.kind = ADDEND_FRAME_CONTRIBUTION;
        header.epoch = job.slots.epoch;
        header.boot = job.slots.boot;
        header.turn = turn;
        header.slot = static_cast<uint16_t>(s);
        header.worker = static_cast<uint8_t>(w);
        header.world = kWorld;
        header.op = static_cast<uint8_t>(op);
        header.count = 1;
        header.length = kPayload;
        header.contributors = uint64_t{1} << w;
        addend_frame_swap(&header);
        header.tag = addend_be64(
            job.worker_keys[w].tag(header, {frame + ADDEND_FRAME_HEADER_BYTES, kPayload}));
        std::memcpy(frame, &header, sizeof(header));
      }
      if (turn == 0) {
        fold(op, traffic.expected.data(), row.data() + ADDEND_FRAME_HEADER_BYTES,
             kPayload / op_bytes(op, 1));
      }
      traffic.frames.push_back(std::move(row));
    }
  }
  return traffic;
}

/// What the server thread does with datagrams that came together.
using Handle = std::function<void(const net::Inbox::Datagrams&)>;

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Returns the processor time it took.
double serve(const net::UdpSocket& socket, const std::atomic<bool>& stop, const Handle& handle,
             const std::function<void()>& flush) {
  const double start = thread_cpu_seconds();
  net::Inbox inbox;
  while (!stop) {
    pollfd ready{socket.fd(), POLLIN, 0};
    if (poll(&ready, 1, 10) <= 0) continue;
    for (const auto& from : inbox.receive(socket))
      handle(from);
    flush();
  }
  return thread_cpu_seconds() - start;
}

/// Which datagrams a baseline answers, to all workers: every fourth, or the last worker's.
enum class Answers : uint8_t { kEveryFourth, kLastWorkers };

/// Takes the same datagrams and sends as many back, without a look at them.
class Baseline {
 public:
  Baseline(const Traffic& traffic, Answers answers, Sink& sink)
      : traffic_(traffic), answers_(answers), sink_(sink) {
    buffer_.resize(std::size_t{kSuper} * kFrame);
  }
  void handle(std::span<const uint8_t> datagram) {
    const uint64_t n = count_++;
    const bool answered = answers_ == Answers::kEveryFourth ? n % kWorld == kWorld - 1
                                                            : n / kSuper % kWorld == kWorld - 1;
    if (!answered) return;
    std::memcpy(buffer_.data() + bytes_, datagram.data(), datagram.size());
    bytes_ += datagram.size();
    if (bytes_ + kFrame > buffer_.size()) flush();
  }
  void flush() {
    if (bytes_ == 0) return;
    for (const net::Address& to : traffic_.job->workers)
      sink_.send(to, {buffer_.data(), bytes_}, kFrame);
    sink_.flush();
    bytes_ = 0;
  }

 private:
  const Traffic& traffic_;
  Answers answers_;
  Sink& sink_;
  std::vector<uint8_t> buffer_;
  std::size_t bytes_ = 0;
  uint64_t count_ = 0;
};

/// Plays the workers: sends a turn of all slots, waits for its results. Exits if they do not come
/// or are wrong.
void play(const Traffic& traffic, const std::vector<net::UdpSocket>& workers,
          const net::Address& server, bool check) {
  std::vector<std::unique_ptr<net::Outbox>> outboxes;
  for (const net::UdpSocket& worker : workers)
    outboxes.push_back(std::make_unique<net::Outbox>(worker));
  net::Inbox inbox;
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    for (uint32_t first = 0; first < kSlots; first += kSuper) {
      for (uint32_t w = 0; w < kWorld; ++w) {
        const auto& row = traffic.frames[turn * kWorld + w];
        outboxes[w]->add(server, {row.data() + std::size_t{first} * kFrame, kSuper * kFrame},
                         kFrame);
        outboxes[w]->flush();
      }
    }
    for (uint32_t w = 0; w < kWorld; ++w) {
      for (uint32_t got = 0; got < kSlots;) {
        pollfd ready{workers[w].fd(), POLLIN, 0};
        if (poll(&ready, 1, 3000) <= 0) {
          std::fprintf(stderr, "turn %u: worker %u got %u of %u results\n", turn, w, got, kSlots);
          std::exit(1);
        }
        for (const auto& from : inbox.receive(workers[w])) {
          got += static_cast<uint32_t>(from.bytes.size() / kFrame);
          if (check && std::memcmp(from.bytes.data() + ADDEND_FRAME_HEADER_BYTES,
                                   traffic.expected.data(), kPayload) != 0) {
            std::fprintf(stderr, "a wrong sum of %s\n", op_name(traffic.op));
            std::exit(1);
          }
        }
      }
    }
  }
}

double run_baseline(const Traffic& traffic, Answers answers,
                    const std::vector<net::UdpSocket>& workers, const net::UdpSocket& socket,
                    const net::Address& address) {
  std::atomic<bool> stop{false};
  Sink sink(socket);
  Baseline baseline(traffic, answers, sink);
  double seconds = 0;
  std::thread server([&] {
    seconds = serve(
        socket, stop,
        [&](const net::Inbox::Datagrams& from) {
          for (std::size_t at = 0; at < from.bytes.size(); at += from.segment)
            baseline.handle(from.bytes.subspan(
                at, std::min<std::size_t>(from.segment, from.bytes.size() - at)));
        },
        [&] { baseline.flush(); });
  });
  play(traffic, workers, address, false);
  stop = true;
  server.join();
  return kContributions / seconds;
}

double run_service(const Traffic& traffic, const std::vector<net::UdpSocket>& workers,
                   const net::UdpSocket& socket, const net::Address& address) {
  std::atomic<bool> stop{false};
  Sink sink(socket);
  service::DataPlane plane(sink);
  plane.add(traffic.job, *aggregate::Slots::create(traffic.job->slots));
  double seconds = 0;
  std::thread server([&] {
    seconds = serve(
        socket, stop,
        [&](const net::Inbox::Datagrams& from) {
          plane.receive(from.from, from.bytes, from.segment, 1);
        },
        [&] { plane.flush(); });
  });
  play(traffic, workers, address, true);
  stop = true;
  server.join();
  return kContributions / seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const double least = argc > 1 ? std::atof(argv[1]) : 0.7;
  stay_on_one_processor();
  const auto loopback = net::resolve("127.0.0.1", 0);
  const auto server = net::UdpSocket::bind(*loopback, 8u << 20);
  std::vector<net::UdpSocket> workers;
  for (uint32_t w = 0; w < kWorld; ++w)
    workers.push_back(*net::UdpSocket::bind(*loopback, 8u << 20));
  const net::Address address = *net::resolve("127.0.0.1", server->port());
  bool good = true;
  std::printf("%-8s  %9s  %9s  %12s  %6s  %9s\n", "op", "bare kpps", "same kpps", "service kpps",
              "/ bare", "/ same");
  for (const Op op : {Op::kSumU8, Op::kSumU16, Op::kSumI32, Op::kOrU64}) {
    const Traffic traffic = make_traffic(op, workers);
    std::vector<double> bare, same, summed, to_bare, to_same;
    for (uint32_t repetition = 0; repetition < kRepetitions; ++repetition) {
      bare.push_back(run_baseline(traffic, Answers::kEveryFourth, workers, *server, address));
      summed.push_back(run_service(traffic, workers, *server, address));
      same.push_back(run_baseline(traffic, Answers::kLastWorkers, workers, *server, address));
      to_bare.push_back(summed.back() / bare.back());
      to_same.push_back(summed.back() / same.back());
    }
    const bool holds = median(to_bare) >= least;
    good = good && holds;
    std::printf("%-8s  %9.0f  %9.0f  %12.0f  %6.3f %s  %5.3f\n", op_name(op), median(bare) / 1e3,
                median(same) / 1e3, median(summed) / 1e3, median(to_bare), holds ? "PASS" : "FAIL",
                median(to_same));
  }
  return good ? 0 : 1;
}
