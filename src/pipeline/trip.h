// SPDX-License-Identifier: Apache-2.0
// One gradient's way through its rounds over a mesh, in the caller's thread: for gradients whose
// rounds are so small that handing them from thread to thread would take longer than sending them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "addend/codec.h"
#include "mesh/mesh.h"

namespace addend {

/// How far a trip has come.
enum class TripState : uint8_t {
  kWaiting,    ///< for other ranks
  kSummed,     ///< every round is done: what is left is Codec::finish
  kLarge,      ///< the round is too large for the mesh: the caller reduces it and says so
  kDifferent,  ///< ranks' headers differ
  kDecoded,    ///< the gradient is the sum: nothing is left (Options::decode)
};

/// What a run spends its time on.
enum class Stage : uint8_t { kEncode, kAgree, kReduce, kDecode };
struct Span {
  Stage stage = Stage::kEncode;
  std::chrono::steady_clock::time_point begin, end;
};

/// One codec's trips over one mesh; both outlive what it does, and the codec outlives it. One
/// thread at a time.
class Trip {
 public:
  Trip(Mesh& mesh, Codec& codec) : mesh_(&mesh), codec_(&codec) {}
  ~Trip() { cancel(); }
  Trip(const Trip&) = delete;
  Trip& operator=(const Trip&) = delete;

  struct Options {
    bool in_place = false;          ///< see Codec::begin_in_place
    uint64_t alike_bytes = 0;       ///< of the header that must be the same on all ranks
    uint64_t mesh_bytes = 1 << 20;  ///< rounds beyond this are the caller's
    bool decode = false;            ///< the last run calls Codec::finish, too
  };
  /// Sets out with a gradient, as Codec::begin takes it, and a header that precedes the first
  /// round. Sends nothing yet.
  Status begin(void* gradient, std::span<const uint8_t> header, const Options& options);
  /// Encodes the first round, if that is not done yet. Sends nothing.
  Status encode();
  /// Goes as far as it can within `patience`.
  Result<TripState> run(std::chrono::nanoseconds patience);
  /// After kLarge: the round is reduced.
  void reduced();
  /// Abandons what is under way, and gives back its exchange.
  void cancel();

  /// The round under way or done last, from 1; 0 before the first. Thread-safe.
  uint32_t round_number() const { return round_number_.load(std::memory_order_relaxed); }
  const Round& round() const { return round_; }
  /// After kDifferent, and until cancel: whose messages begin with the headers.
  uint64_t exchange() const { return exchange_; }
  std::span<const Span> spans() const { return spans_; }

 private:
  enum class At : uint8_t { kHome, kBegun, kEncoded, kGreeting, kTravelling, kLarge, kReduced };

  bool under_way() const { return at_ == At::kGreeting || at_ == At::kTravelling; }
  Status start();
  Status next_round();
  bool alike() const;
  void note(Stage stage, std::chrono::steady_clock::time_point begin);

  Mesh* mesh_;
  Codec* codec_;
  At at_ = At::kHome;
  void* gradient_ = nullptr;
  Options options_;
  std::vector<uint8_t> header_;
  Round round_;
  bool more_ = false;     // round_ is to be reduced
  bool carried_ = false;  // it travels over the mesh
  std::atomic<uint32_t> round_number_ = 0;
  uint64_t exchange_ = 0;  // its own while it is greeting or travelling
  std::chrono::steady_clock::time_point sent_{};
  std::vector<Span> spans_;
};

}  // namespace addend
