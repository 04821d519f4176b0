// SPDX-License-Identifier: Apache-2.0
// Rounds that are too large to send to everyone: each rank folds its share of every plane and sends
// the sums to all. A thread moves the bytes and folds, so that rounds travel while the caller
// encodes the next and decodes the one before; planes are sent from and received into where they
// are.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>
#include <sys/uio.h>

#include "addend/plane.h"
#include "addend/result.h"
#include "base/buffer.h"

namespace addend {

/// One rank's end. All ranks start hauls of the same planes in the same order; several may be under
/// way. Calls come from one thread at a time.
class Hauler {
 public:
  /// `sockets`: a connected stream socket to every other rank, by rank; that of `rank` is not
  /// looked at. `bell` and `ringer`: the ends of a non-blocking pipe; it rings when a haul ends,
  /// and ends waits, whoever rings it. The descriptors stay the caller's, which keeps them open as
  /// long as the hauler lives.
  static Result<std::unique_ptr<Hauler>> create(std::span<const int> sockets, uint32_t rank,
                                                int bell, int ringer);
  /// Abandons what is under way.
  ~Hauler();
  Hauler(const Hauler&) = delete;
  Hauler& operator=(const Hauler&) = delete;

  uint32_t world() const { return static_cast<uint32_t>(peers_.size()); }

  /// Starts to sum planes over all ranks, in place and in the order of ranks. Their memory is the
  /// hauler's until the haul is done or abandoned. Returns the haul's number.
  Result<uint64_t> start(std::span<const Plane> planes);

  /// Whether the haul is done, after `patience`, a ring or a signal at the latest. It is forgotten
  /// with the first yes.
  Result<bool> wait(uint64_t haul, std::chrono::nanoseconds patience);

  /// From now on no plane is touched, and nothing works.
  void abandon();

 private:
  enum class Kind : uint32_t { kShare, kSums };
  struct Frame {
    uint64_t haul = 0;
    Kind kind = Kind::kShare;
    uint32_t reserved = 0;
    uint64_t length = 0;  // of the lanes behind it
  };
  /// Memory that is read or written little by little.
  struct Parts {
    std::vector<iovec> pieces;
    std::size_t at = 0;
    uint64_t left = 0;

    void add(const void* data, uint64_t bytes);
    void advance(uint64_t bytes);
  };
  struct Haul {
    uint64_t number = 0;
    std::vector<Plane> planes;
    Buffer received;                             // the other ranks' lanes of our share
    std::vector<bool> got_share, got_sums;       // by rank
    uint32_t shares = 0, sums = 0, writing = 0;  // messages still to come, and to go
  };
  struct Outgoing {
    Haul* haul = nullptr;
    Frame frame;
    Parts parts;
  };
  /// A share of a haul that was not started here yet.
  struct Early {
    uint64_t haul = 0;
    uint32_t rank = 0;
    uint64_t length = 0;
    Buffer lanes;
  };
  struct Peer {
    int socket = -1;
    std::deque<std::unique_ptr<Outgoing>> outgoing;
    Frame frame;                   // of what comes in
    uint64_t frame_bytes = 0;      // that are here
    Haul* haul = nullptr;          // that it is for
    std::unique_ptr<Early> early;  // or that was not started yet; neither: no room for it
    Parts into;
    std::string lost;  // why there is no connection any more

    bool held() const {
      return frame_bytes == sizeof(Frame) && haul == nullptr && early == nullptr;
    }
  };

  Hauler(std::span<const int> sockets, uint32_t rank, int bell, int ringer, int wake);

  // In the thread:
  void run();
  bool take_started();
  Status begin(Haul& haul);
  void send(Haul& haul, uint32_t rank, Kind kind);
  Status write(uint32_t rank);
  Status read(uint32_t rank);
  Status read_frame(uint32_t rank);
  Status find_haul(uint32_t rank);
  Status make_room(uint32_t rank);
  Status look_again();
  Status arrived(uint32_t rank);
  Status adopt(Haul& haul, Early& early);
  Status share_arrived(Haul& haul, uint32_t rank);
  Status fold_share(Haul& haul);
  void end_if_done(Haul& haul);
  Status lose(uint32_t rank, const std::string& why);
  Status check_lost() const;
  /// Whether a haul waits for sums from a rank.
  bool owes(uint32_t rank) const;
  void break_down(const std::string& why);

  /// The lanes of a plane that a rank folds.
  struct Segment {
    uint64_t begin = 0, lanes = 0;
  };
  Segment segment(const Plane& plane, uint32_t rank) const;
  /// What a message is made of: lanes that rank `from` sends to rank `to`.
  Parts parts_of(Haul& haul, Kind kind, uint32_t from, uint32_t to) const;
  uint64_t share_bytes(const Haul& haul) const;

  uint32_t rank_;
  int bell_, ringer_, wake_;
  pid_t process_;
  std::vector<Peer> peers_;                          // of the thread
  std::map<uint64_t, std::unique_ptr<Haul>> hauls_;  // of the thread
  uint64_t taken_ = 0;                               // hauls, by the thread
  std::vector<std::unique_ptr<Early>> early_;        // that are here; of the thread
  uint64_t early_bytes_ = 0;                         // also of those that come in

  std::mutex mutex_;
  std::vector<std::unique_ptr<Haul>> started_;  // not taken by the thread yet
  std::vector<std::unique_ptr<Haul>> spare_;    // for their memory
  std::set<uint64_t> under_way_, done_;
  uint64_t next_ = 0;
  bool stop_ = false;
  std::string broken_;  // why nothing works any more

  std::thread thread_;
};

}  // namespace addend
