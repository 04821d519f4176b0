// SPDX-License-Identifier: Apache-2.0
// A reducer over one stream connection to every other worker. It has no thread: bytes move while
// somebody starts or waits for a round, so a small round costs one wake-up. Several rounds may be
// under way; planes are sent from and received into where they are.
//
// What a channel reads:
//
//             .------ lanes complete: the transfer counts them -----------.
//             v                                                           |
//   [ frame incomplete ] -- frame whole --> find a place for its lanes    |
//                                            |-- a transfer's memory -----+
//                                            |-- a round not started here:
//                                            |     memory of their own ---+  (early)
//                                            |-- not what we have started:
//                                            |     thrown away, kMismatch-+  (refused)
//                                            `-- no room: held until a round starts or ends
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <poll.h>

#include "addend/reduce.h"
#include "net/descriptor.h"
#include "net/fork_guard.h"
#include "reduce/mesh/parts.h"
#include "reduce/mesh/transfer.h"

namespace addend::mesh {

/// Up to where one step with everyone's bytes beats two steps with a share of them. The bytes that
/// an exchange adds may take a quarter of the hop that it saves: a hop passes while other rounds
/// travel, and bytes are in their way.
uint64_t exchange_bytes(const Link& link, std::size_t world);

class MeshReducer final : public Reducer {
 public:
  struct Options {
    uint32_t worker = 0;
    /// Rounds of at most so much are exchanged, larger ones scattered, those with bounds gathered.
    uint64_t exchange_bytes = 0;
  };
  /// `sockets`: a connected stream socket to every other worker, by worker; that of our own is not
  /// looked at.
  static Result<std::unique_ptr<MeshReducer>> create(std::vector<net::Descriptor> sockets,
                                                     const Options& options);

  ~MeshReducer() override;

  uint32_t world() const override { return static_cast<uint32_t>(channels_.size()); }
  uint32_t worker() const override { return worker_; }
  uint32_t local_workers() const override { return local_workers_; }
  void set_link(const Link& link) override { exchange_bytes_ = exchange_bytes(link, world()); }

  Result<uint64_t> start(Round& round) override { return start_step({}, round); }
  Result<uint64_t> start_step(std::span<const Claim> claims, Round& round) override;
  Result<bool> wait(uint64_t number, Deadline deadline) override;
  Result<bool> wait_any(std::span<const uint64_t> numbers, Deadline deadline) override;
  bool has_ended(uint64_t number) const override;
  void wake() override;
  void interrupt() override;
  bool can_wake() const override { return true; }
  void abandon() override;
  Status reduce(Round& round, Deadline deadline) override;

 private:
  struct Outgoing {
    Transfer* transfer = nullptr;
    Frame frame;
    Parts parts;
  };
  /// Lanes of a round that was not started here yet.
  struct Early {
    uint32_t from = 0;
    Frame frame;
    Buffer lanes;
  };
  /// One connection; the drawing above shows what it reads.
  struct Channel {
    net::Descriptor socket;
    std::deque<std::unique_ptr<Outgoing>> outgoing;
    Frame frame;               // of what comes in
    uint64_t frame_bytes = 0;  // that are here
    Transfer* transfer = nullptr;
    std::unique_ptr<Early> early;
    uint64_t unwanted = 0;  // bytes to throw away
    bool placed = false;    // it is known where the lanes go
    Parts into;
    std::string lost;         // why nothing comes from there any more
    std::string unreachable;  // why nothing can be sent there; what came before still counts

    bool held() const { return frame_bytes == sizeof(Frame) && !placed; }
  };

  MeshReducer(std::vector<net::Descriptor> sockets, net::Descriptor waker, const Options& options);

  void send_to_all(Transfer& transfer, Kind kind);
  void send(Transfer& transfer, uint32_t to, Kind kind);
  Status write(uint32_t to);

  Status read(uint32_t from);
  Result<bool> read_frame(uint32_t from);
  Status find_place(uint32_t from);
  Status make_room(uint32_t from);
  Status next_unwanted(Channel& channel);
  Status arrived(uint32_t from);
  Status adopt(Transfer& transfer);
  void fold_if_ready(Transfer& transfer);

  Status progress();
  /// Sleeps until something can be moved; true: wake was called, or a signal came.
  Result<bool> sleep(Deadline deadline);
  void take_wake();
  /// Whether `from` still owes us lanes of a round under way.
  bool owes(uint32_t from) const;
  Status check_lost(const Transfer& transfer) const;
  Status strange(uint32_t from);
  void lose(uint32_t worker, const std::string& why);
  Error break_down(const Error& error);
  Error late(const Transfer& transfer) const;

  const uint32_t worker_;
  uint32_t local_workers_ = 1;
  uint64_t exchange_bytes_;
  std::vector<Channel> channels_;
  std::deque<net::ForkGuard> guards_;  // of their sockets
  net::Descriptor waker_;
  std::atomic<bool> woken_{false}, interrupted_{false};
  uint64_t next_ = 0;
  std::map<uint64_t, std::unique_ptr<Transfer>> transfers_;  // started, not waited for to the end
  std::vector<std::unique_ptr<Transfer>> spare_transfers_;   // for their memory
  std::vector<std::unique_ptr<Outgoing>> spare_outgoing_;
  std::vector<std::unique_ptr<Early>> early_;  // complete ones
  uint64_t early_bytes_ = 0;                   // also of those that come in
  std::vector<std::unique_ptr<Early>> spare_early_;
  Buffer waste_;  // where lanes go that nobody wants
  std::vector<pollfd> events_;
};

}  // namespace addend::mesh
