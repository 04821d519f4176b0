// SPDX-License-Identifier: Apache-2.0
// The codec contract: a gradient becomes a short sequence of rounds, the summed rounds become the
// summed gradient.
//
//   codec->begin(gradient);                     // every worker
//   while (codec->next_round(round))            // encode
//     reducer.reduce(round);                    // anything that can fold planes, in place
//   codec->finish(gradient);                    // decode the sum
//
// All workers must create their codecs from the same (spec, layout) and step them together: the
// plan of a step is a function of those and of earlier *sums*, never of one worker's data, so it is
// the same everywhere without negotiation.
//
// Backends. A codec executes where its layout says. On a device, `gradient` and plane memory are
// device pointers and all work is enqueued on `stream`: begin never waits, next_round only for the
// few bytes that say how large the planes are (the union count is known to the device alone), and
// finish, of quant and of sketches, for those that say whether the sums can be; contents are valid
// in stream order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"

namespace addend {

/// A codec by name with its options, as users write it: "exact:mode=sketch,values=reproducible".
struct CodecSpec {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;

  /// Checks the syntax only; create_codec checks that name and options exist. A codec's first value
  /// may stand without its key where the codec says so: "cast:f16" is "cast:to=f16".
  static Result<CodecSpec> parse(std::string_view text);
  std::string to_string() const;
};

/// What a planner may assume about the network. The choice of mode depends on it, never the result,
/// but for what `narrows` says of quant.
struct NetworkHint {
  double latency_us = 50;  ///< of one round, however small
  double gbit_per_s = 10;  ///< at which one worker's plane bytes travel
  bool gathers = false;    ///< lanes with bounds (Plane) travel from their owner alone: a mesh
  /// Whoever adds has narrow sums, and no worker is on a device, which has none: quant without
  /// `bits`, `carrier`, `down` and `feedback` then takes 8 bits both ways where whole sums would
  /// take 16, and with bits=1 to 3 it sends so many (without another result).
  bool narrows = false;
};

/// A part of a gradient with a name of its own: a parameter of a model.
struct Segment {
  uint64_t id = 0;     ///< the same wherever the segment travels; unique in a layout
  uint64_t count = 0;  ///< elements
  uint64_t rows = 0;   ///< of a matrix, which lies row by row, count / rows elements each; 0: none
};

/// What all workers agree on before the first step. Must be equal on all workers, but for `worker`.
struct Layout {
  DType dtype = DType::kF32;
  uint64_t count = 0;   ///< elements
  uint32_t world = 1;   ///< workers whose gradients will be summed, 1 to 2^20
  uint32_t worker = 0;  ///< this worker's number, the only field that differs between workers
  uint64_t seed = 0;
  uint64_t bucket = 0;  ///< caller's name for this gradient; a different bucket is a mismatch
  /// The result is this times the sum: 1 / world gives the mean. Positive, and normal as an f32.
  /// Where float sums travel, values are multiplied before they are added, so that a mean of f16
  /// does not overflow on the way; elsewhere the decoded sum is multiplied.
  double scale = 1;
  /// Parts of the gradient, in order; empty, or their counts add up to `count`. What a codec does
  /// to a segment, and the state it keeps for it, are then functions of the segment's id and not of
  /// the bucket, so that segments may move between buckets (see Codec::save_segment).
  std::vector<Segment> segments;
  /// The number of the first step. A codec made later goes on with the randomness of one that has
  /// run so many steps.
  uint64_t first_step = 0;
  NetworkHint network;
  Execution execution;
};

/// What one step did. Byte counts are what one worker hands to its reducer, without lanes that are
/// others' (Plane::bounds).
struct Report {
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  static constexpr std::size_t kMaxRounds = 8;

  uint32_t rounds = 0;
  std::array<uint64_t, kMaxRounds> round_bytes{};
  uint64_t wire_bytes = 0;             ///< sum of round_bytes
  uint64_t dense_bytes = 0;            ///< what a dense all-reduce would have handed over
  uint64_t local_nonzeros = kUnknown;  ///< of this worker's gradient
  /// Positions that are non-zero on some worker; of a Bloom filter, those whose sum is not zero.
  uint64_t union_nonzeros = kUnknown;
  uint64_t cells = 0;           ///< sketch cells on the wire
  uint64_t stuck_keys = 0;      ///< keys that peeling left, fetched in an extra round
  uint64_t escaped_values = 0;  ///< values outside the planned range, carried wider or as floats
  /// What the plan was: dense, cast, packed, two-level, bloom, gather, sketch, quant, lowrank, or
  /// the codec's name where it selects; of sparse rows, gather or union.
  std::string_view mode = "dense";
  std::string_view fallback =
      "none";  ///< which rung of the ladder ran: none, fix-up, refined, packed, dense, ...
  /// Lossy codecs, on a sample that moves with the step: the energy of what this worker put in, its
  /// residual included, and of what its contribution lost of it. Their quotient is the relative
  /// squared error of one worker; the mean over n workers has about 1/n of it, or less. Both are 0
  /// where nothing is lost.
  double sampled_energy = 0;
  double sampled_error = 0;
  uint64_t nonfinite = 0;     ///< elements in blocks that are NaN for a NaN or Inf on some worker
  uint32_t contributors = 0;  ///< workers in the sum
  uint64_t missing = 0;  ///< those that are not, as far as the codec was told: bit w is worker w
};

/// One worker's workspace and state for one layout, reused across steps. Not thread-safe; movable
/// between threads.
class Codec {
 public:
  virtual ~Codec() = default;

  /// Identifies the plan of the step to begin next (or in progress); equal on all workers that may
  /// be summed.
  virtual uint64_t fingerprint() const = 0;

  /// The mode of that plan, in the words of Report::mode. The text is a literal: it ends in NUL and
  /// outlives the codec.
  virtual std::string_view next_mode() const = 0;

  /// Starts a step. `gradient` must stay readable and unchanged until finish or cancel; it is not
  /// written.
  virtual Status begin(const void* gradient) = 0;

  /// The same, but the caller gives the gradient's contents up: planes may lie in it, which saves
  /// dense rounds a copy in each direction (if finish gets this pointer, too). If the step fails or
  /// is cancelled, the contents are unspecified.
  virtual Status begin_in_place(void* gradient) = 0;

  /// Encodes the next round into `round`; returns false when every round is done. The planes must
  /// be reduced in place before the next call.
  virtual Result<bool> next_round(Round& round) = 0;

  /// Decodes the sum into `gradient` (the buffer given to begin, or another of the same layout). On
  /// error nothing is written to it. The same buffer is faster: what is zero there already, and in
  /// the sum, is not written again.
  virtual Status finish(void* gradient) = 0;

  /// Abandons the step in progress, if any. State that later plans depend on stays as before the
  /// step.
  virtual void cancel() = 0;

  /// The next step's plan is dense (next_mode), and somebody else does it who adds gradients as
  /// they are: the codec goes on as if it had. kInvalidArgument where the plan is another.
  virtual Status skip_step() = 0;

  /// Tells the codec, between begin and finish, that the sums of this step are without these
  /// workers: bit w is worker w (see Reducer::missing). The mean of the others stands for their
  /// gradients, so each counts once: a worker that is among them gets the others' sum and drops its
  /// gradient; what error feedback kept before the step it still keeps. kUnsupported for codecs
  /// whose sum is only right with every worker in it.
  virtual Status set_missing(uint64_t workers) = 0;

  /// What a restarted worker needs so that its results go on bit for bit, and back; between steps
  /// only. Empty for codecs whose results do not depend on earlier steps. A state of another plan
  /// or worker is kMismatch and changes nothing.
  virtual Result<std::vector<uint8_t>> save_state() const = 0;
  virtual Status load_state(std::span<const uint8_t> state) = 0;

  /// The same for one segment of the layout (segment 0 is all of a layout without segments), to be
  /// loaded into a codec whose layout holds that segment among others, at the same step: set
  /// Layout::first_step. Bucket, world and scale may be others. A state of another worker, segment,
  /// plan or step is kMismatch and changes nothing.
  virtual Result<std::vector<uint8_t>> save_segment(uint64_t segment) const = 0;
  virtual Status load_segment(uint64_t segment, std::span<const uint8_t> state) = 0;

  /// Multiplies what error feedback keeps, between steps, for gradients that come in other units
  /// from now on (another loss scale). Powers of two lose no bit. Nothing to do for codecs without
  /// feedback. REQUIRES: factor is finite and above 0.
  virtual Status scale_residual(double factor) = 0;

  /// Of the last finished step.
  virtual const Report& report() const = 0;

  /// Memory this codec holds now, beyond the caller's gradient.
  virtual uint64_t memory_bytes() const = 0;

  virtual const Layout& layout() const = 0;
};

/// Creates the codec that `spec` names, for `layout`. Unknown names, options and values are refused
/// by name.
Result<std::unique_ptr<Codec>> create_codec(const CodecSpec& spec, const Layout& layout);

/// Names that create_codec accepts.
std::vector<std::string> codec_names();

/// One line per option of the named codec: "mode=auto|packed|... what it does".
std::vector<std::string> codec_option_help(std::string_view name);

}  // namespace addend
