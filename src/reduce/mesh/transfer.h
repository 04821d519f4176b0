// SPDX-License-Identifier: Apache-2.0
// A round on its way over a mesh: which lanes go where, and how they are folded.
//
//   scatter (large rounds)                             exchange (small rounds)
//
//   worker 0  [ 0 | 1 | 2 ] --- share w to worker w    worker 0  [ all ] --- to everyone
//   worker 1  [ 0 | 1 | 2 ]     which folds it and     worker 1  [ all ]     everyone folds
//   worker 2  [ 0 | 1 | 2 ]     sends everyone sums    worker 2  [ all ]     everything
//
//   2 (n - 1) / n of the bytes, two network steps      n - 1 times the bytes, one step
//
// An exchange is a scatter in which everybody's share is the whole round, so that nobody has sums
// to send. Both fold in the order of workers: the same bits everywhere. A scatter folds lanes as
// soon as everybody's are here, so that little is left to fold when the last of them come.
//
//   gather (rounds whose planes all have bounds, whatever their size)
//
//   worker 0  [ 0 | . | . ] --- its own lanes to everyone,
//   worker 1  [ . | 1 | . ]     which arrive where they belong:
//   worker 2  [ . | . | 2 ]     nobody folds
//
//   n - 1 times the bytes of its own lanes, one step
//
// Workers whose rounds differ may also differ in the way. A round that is refused therefore ends
// alike on both: with a refusal from everybody to everybody.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "addend/plane.h"
#include "addend/reduce.h"
#include "addend/result.h"
#include "base/buffer.h"
#include "reduce/mesh/parts.h"

namespace addend::mesh {

/// After the shares: sums in a scatter, refusals in a round that is refused, either way.
enum class Kind : uint32_t { kShare, kSums, kRefusal };

/// Before every message, as it lies in memory: all workers are of one byte order and version.
struct Frame {
  static constexpr uint32_t kMagic = 0x31484D41;  // "AMH1"

  uint32_t magic = kMagic;
  Kind kind = Kind::kShare;
  uint64_t round = 0;   // number of the round, from 0
  uint64_t shape = 0;   // a hash of operations, lanes, tables, the way and its bounds
  uint64_t length = 0;  // of the lanes behind it
  /// Of the step that the round begins; all zero in later rounds.
  uint64_t claims[Reducer::kMaxClaims] = {};
};
static_assert(sizeof(Frame) == 96);

enum class Way : uint8_t { kExchange, kScatter, kGather };

/// The way of a round between `world` workers. Rounds of at most `exchange_bytes` are exchanged.
Way choose_way(const Round& round, uint64_t exchange_bytes, uint32_t world);

/// One round of one worker. Kept by a mesh, which moves its messages.
class Transfer {
 public:
  /// Prepares to fold `round` over `world` workers, of which this is `worker`. `claims`: of the
  /// step that the round begins; at most Reducer::kMaxClaims.
  Status begin(uint64_t number, const Round& round, Way way, uint32_t world, uint32_t worker);
  void claim(std::span<const Reducer::Claim> claims);

  uint64_t number() const { return number_; }
  /// Of a message with `length` bytes of lanes.
  Frame frame(Kind kind, uint64_t length) const;
  /// The lanes of a message from one worker to another, where they are or shall be. For shares of
  /// other workers that is memory of the transfer's own, but in a gather.
  void lay_out(Kind kind, uint32_t from, uint32_t to, Parts& parts);

  /// Whether a share belongs to what we have started. If not, the transfer is refused: all workers
  /// see everyone's frames, so all refuse it and nobody folds.
  bool accepts(uint32_t from, const Frame& frame);
  /// Whether a message of this kind may come from this worker now.
  bool expects(Kind kind, uint32_t from) const;
  void sent() { --unsent_; }
  /// So many bytes of a share's lanes are here, and accepted.
  void came(uint32_t from, uint64_t bytes);
  void arrived(Kind kind, uint32_t from);
  /// Folds our share once that is possible. Once, what must be sent to all then.
  std::optional<Kind> fold_if_ready();

  bool done() const { return folded_ && shares_ + unsent_ == 0 && (sums_ == 0 || !two_steps()); }
  bool waits_for(uint32_t from) const;
  /// Why the sums are of no use: a worker brought something else.
  std::optional<Error> refused() const;

 private:
  /// The lanes of a plane that a worker folds; in a gather, those that it brings.
  struct Segment {
    uint64_t begin = 0, lanes = 0;
  };
  Segment segment(const Plane& plane, uint32_t worker) const;
  /// Whether sums or refusals follow the shares.
  bool two_steps() const { return way_ == Way::kScatter || refused_; }
  uint8_t* received(uint32_t from);
  uint64_t hash_of_round() const;
  void fold_until(uint64_t bytes);
  void fold_block(const Plane& plane, uint64_t lane, uint64_t lanes);
  void clear_gathered();

  uint64_t number_ = 0;
  uint64_t shape_ = 0;
  Round round_;
  Way way_ = Way::kExchange;
  uint32_t world_ = 1, worker_ = 0;
  std::size_t claim_count_ = 0;
  std::array<Reducer::Claim, Reducer::kMaxClaims> claims_{};
  std::vector<std::array<uint64_t, Reducer::kMaxClaims>> claimed_;  // by worker
  std::vector<bool> got_share_, got_sums_;                          // by worker
  uint32_t shares_ = 0, unsent_ = 0;  // messages still to come, and to go
  uint32_t sums_ = 0;                 // or refusals still to come, if two_steps
  bool folded_ = false;
  std::optional<Error> refused_;
  Buffer received_;           // the other workers' lanes of our share
  uint64_t share_bytes_ = 0;  // of one worker, in received_
  std::vector<uint8_t*> sources_;
  std::vector<uint64_t> came_;  // bytes of shares, by worker
  /// What is folded of our share: whole planes, where they ended in a share as it travels and as it
  /// lies in received_, and lanes of the next plane.
  struct Folded {
    uint32_t planes = 0;
    uint64_t bytes = 0, place = 0, lanes = 0;
  } done_;
};

}  // namespace addend::mesh
