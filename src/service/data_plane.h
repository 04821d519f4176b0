// SPDX-License-Identifier: Apache-2.0
// One thread's share of the data plane: finds a datagram's job, checks that it is who it says, lets
// the job's slots decide, and packs the replies. No sockets, no clock: see DataThread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "aggregate/slots.h"
#include "auth/frame_key.h"
#include "dataplane/xdp/driver_jobs.h"
#include "net/address.h"
#include "net/udp_socket.h"
#include "service/probe.h"
#include "wire/control.h"

namespace addend::service {

/// Where replies go. The bytes stay valid until flush returns.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual void send(const net::Address& to, std::span<const uint8_t> bytes, uint32_t segment) = 0;
  virtual void flush() = 0;
  /// Whether something was longer than its path carries, since the last call.
  virtual bool was_too_long() { return false; }
};

/// The next server of a tree, as a leaf has joined it for one epoch of a job. The slots and turns
/// of both epochs are the same. The data thread's once the epoch has started.
struct Upstream {
  addend_control_welcome welcome{};  ///< its secrets are wiped
  std::vector<uint32_t> positions;   ///< as in Session
  uint32_t leaf = 0, leaves = 1;     ///< who we are there
  auth::FrameKey worker_key, result_key;
  std::vector<net::Address> threads;  ///< slot s is at threads[s * threads / slots]
  std::unique_ptr<FrameSink> sink;
  std::shared_ptr<const net::UdpSocket> socket;  ///< of the sink; where results come
};

/// What all threads know of one job's epoch; immutable, so they share it.
struct JobEpoch {
  aggregate::SlotsOptions slots;            ///< of the whole job
  std::vector<auth::FrameKey> worker_keys;  ///< of contributions, by worker
  auth::FrameKey result_key;
  std::vector<net::Address> workers;     ///< where each worker sends from, and gets its replies
  uint32_t packets_per_s = 0;            ///< granted to each worker in each thread; 0: no limit
  std::shared_ptr<Upstream> upstream{};  ///< null: results are made here
};

struct EpochStatus {
  uint32_t epoch = 0;
  aggregate::Counters counters;  ///< refusals of this page included
  bool ended = false;
  addend_frame_header notice{};  ///< why, if ended
  uint64_t memory_bytes = 0;
  aggregate::Wait wait;  ///< for nobody, unless it has been a second
};

struct DataPlaneStatus {
  uint64_t packets = 0, bytes = 0;                       ///< received
  uint64_t sent_packets = 0, sent_bytes = 0;             ///< replies, counted per worker
  uint64_t driver_packets = 0;                           ///< of those received: by the XDP program
  std::array<uint64_t, ADDEND_REFUSAL_COUNT> refused{};  ///< of no job that we know
  std::vector<EpochStatus> epochs;
};

/// Packs a leaf's contributions to the next server, and knows its results.
class Relay {
 public:
  explicit Relay(std::shared_ptr<Upstream> upstream);
  /// Queues a reply whose audience is upstream; the bytes are copied.
  void add(const aggregate::Reply& reply);
  /// False if the path there no longer carries what was sent.
  bool flush();
  /// Why this is no result of the upstream epoch, if it is none; `header` is in the machine's
  /// order.
  addend_refusal check(std::span<const uint8_t> datagram, addend_frame_header& header) const;
  const std::shared_ptr<Upstream>& upstream() const { return upstream_; }

 private:
  void send_row();
  void send_all();

  std::shared_ptr<Upstream> upstream_;
  std::vector<uint8_t> bytes_;  // frames that wait; the last ones are a row of equal length
  std::size_t used_ = 0, row_begin_ = 0, segment_ = 0;
  std::size_t row_thread_ = 0;  // where it goes
};

/// One thread at a time.
class DataPlane {
 public:
  /// Told of each epoch that ends by itself (a turn that timed out or waits in vain, a mismatch, a
  /// path), before its workers are: whoever hears the notice may leave at once, and must not be
  /// taken for the cause.
  using OnEnded = std::function<void(const addend_frame_header& notice)>;

  explicit DataPlane(FrameSink& sink, OnEnded on_ended = {});

  /// REQUIRES: no epoch of that number is here. `driver`: the same slots in a network driver, which
  /// folds what it can; null: there is none.
  void add(std::shared_ptr<const JobEpoch> job, aggregate::Slots slots,
           std::unique_ptr<dataplane::DriverPart> driver = nullptr);
  void set_table(uint32_t epoch, uint32_t number, const aggregate::Table& table);
  /// A worker has said goodbye. A turn that waits for it can never be complete, so the epoch ends
  /// with the first of them; turns that it is in may still be asked for. With a quorum patience
  /// decides, as with any worker that does not come.
  void leave(uint32_t epoch, uint32_t worker);
  /// Ends an epoch, and tells its workers.
  void end(uint32_t epoch, addend_notice why, uint32_t worker);
  void remove(uint32_t epoch);
  /// Echoes a worker's probes while it holds on to `probe`. `thread` is what they are heard as.
  void expect(const std::shared_ptr<Probe>& probe, uint32_t thread);
  /// The path to a worker does not carry what is sent to it: ends its epoch, and tells all.
  void end_path(const net::Address& worker);

  /// Datagrams in a row, all of `segment` bytes (at least 1) but the last, which may be shorter; no
  /// bytes are an empty one. Any bytes are safe; replies wait for flush, or for a full buffer.
  void receive(const net::Address& from, std::span<const uint8_t> datagrams, uint32_t segment,
               uint64_t now_ns);
  /// The same from the next server of a leaf's job. Anything that is not its results is dropped.
  void receive_up(uint32_t epoch, std::span<const uint8_t> datagrams, uint32_t segment);
  /// The jobs that have one.
  struct Uplink {
    uint32_t epoch;
    std::shared_ptr<const net::UdpSocket> socket;
  };
  std::vector<Uplink> uplinks() const;
  /// Turns whose patience is over, or that wait for somebody who has left. To be called every
  /// millisecond or so.
  void expire(uint64_t now_ns);
  void flush();

  /// Whether some job has patience, so that expire has something to watch.
  bool watches_time() const { return patient_jobs_ > 0; }
  DataPlaneStatus status(uint64_t now_ns) const;

 private:
  struct Part {
    std::shared_ptr<const JobEpoch> job;
    aggregate::Slots slots;
    std::unique_ptr<dataplane::DriverPart> driver;
    std::unique_ptr<Relay> relay;  // a leaf's
    uint64_t driver_due_ns = 0;    // no turn in the driver has been waiting for long before
    uint64_t left = 0;  // workers that said goodbye, where the others cannot go on without them
    std::array<uint64_t, ADDEND_REFUSAL_COUNT> refused{};  // before the slots saw the frame
    std::array<uint64_t, ADDEND_MAX_JOB_WORKERS> allowed_from_ns{};
  };

  // A contribution that may be authentic.
  struct Arrival {
    addend_frame_header header;  // in the machine's byte order
    Part* part;
    std::span<const uint8_t> bytes;
  };

  Part* find(uint32_t epoch);
  // Whether it may be authentic; counts why not.
  bool read(const net::Address& from, std::span<const uint8_t> datagram, uint64_t now_ns,
            Arrival& arrival);
  addend_refusal echo(const net::Address& from, const addend_frame_header& header,
                      std::span<const uint8_t> datagram);
  addend_refusal admit(Part& part, const addend_frame_header& header, const net::Address& from,
                       uint64_t now_ns) const;
  // Lets the slots decide about those that are. REQUIRES: no more than are verified at once.
  void take(std::span<const Arrival> arrivals, uint64_t now_ns);
  // Lets the driver have slots of this job, or takes them all back: whether it may have them.
  bool share(Part& part);
  // Fetches slots from the driver when something about them is to be decided here.
  void recall(Part& part, uint64_t now_ns);
  void reply(Part& part, uint32_t sender, const aggregate::Reply& reply);
  void reply_to_everyone(Part& part, const aggregate::Reply& reply);
  void reply_to_one(const auth::FrameKey& key, const net::Address& to,
                    const aggregate::Reply& reply);
  void flush_super();
  void flush_row();
  void flush_singles();
  void tell_end(const aggregate::Reply& reply);
  void flush_relay(Part& part);

  FrameSink& sink_;
  OnEnded on_ended_;
  std::unordered_map<uint32_t, Part> parts_;
  Part* latest_ = nullptr;  // most datagrams are of the same job as the one before
  uint32_t patient_jobs_ = 0;
  struct Expected {
    std::weak_ptr<Probe> probe;
    uint64_t thread;  // its bit
  };
  std::unordered_map<uint32_t, Expected> probes_;
  DataPlaneStatus status_;

  // Results of one job that wait to be sent to all its workers in one go.
  std::vector<uint8_t> super_;
  std::size_t super_bytes_ = 0, super_segment_ = 0;
  Part* super_part_ = nullptr;
  // Replies to single workers that wait for the next flush.
  std::vector<uint8_t> singles_;
  std::size_t single_bytes_ = 0;
  // The last of them, of equal length and to one worker, which the sink has not got yet.
  std::size_t row_begin_ = 0, row_segment_ = 0;
  net::Address row_to_;
};

}  // namespace addend::service
