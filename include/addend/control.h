// SPDX-License-Identifier: Apache-2.0
// What to send, and how hard: a controller looks at what a window of steps cost and showed, and
// says which codec each bucket gets in the next one.
//
//   per rank:   signals of the window just over --> all ranks' signals to all ranks (any gather)
//   every rank: controller.decide(reduce(all))  --> the same plan everywhere
//
// Pure: no clock, no I/O, no randomness, nothing but + - * / and comparisons of binary64, so that
// equal signals give equal plans on every rank and whenever a trace is replayed. It knows codecs by
// number only. docs/adaptive.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "addend/result.h"

namespace addend::control {

enum class Policy : uint8_t { kAuto, kGravac, kAccordion };
/// What users call them, in that order.
inline constexpr std::string_view kPolicies[] = {"auto", "gravac", "accordion"};
enum class Scaling : uint8_t { kExponential, kGeometric };

/// What users may say: "policy=auto,floor=safe,window=100,window_s=2", or
/// "policy=gravac,epsilon=0.7,omega=0.01,window=500,every=1,scaling=exponential,
/// least=10,most=1000".
struct Options {
  Policy policy = Policy::kAuto;
  double floor = 0.9;     ///< least phi of a bucket: exact 1, safe 0.9, fast 0.7
  uint32_t window = 100;  ///< steps
  double window_s = 2;    ///< and at least so long
  uint32_t every = 1;     ///< gravac: steps between decisions
  double epsilon = 0.7;   ///< gravac: least gain that may travel
  double omega = 0.01;    ///< gravac: what counts as equal
  double least = 10;      ///< first compression factor, but for auto
  double most = 1000;     ///< last one
  Scaling scaling = Scaling::kExponential;

  static Result<Options> parse(std::string_view text);
};

/// How a candidate's sum differs from the true one.
enum class Loss : uint8_t {
  kNone,      ///< not at all
  kUnbiased,  ///< by noise
  kBiased,    ///< by what it leaves out, which error feedback sends later
};

/// A codec that buckets may get. Candidate 0 is dense.
struct Candidate {
  std::string spec;
  Loss loss = Loss::kNone;
  double factor = 1;  ///< above 1: keeps 1 / factor of the elements; such candidates are a ladder
  double bits = 32;   ///< on the wire for every element
  double union_bits = 0;  ///< and for every element that is non-zero on some rank
  uint32_t rounds = 1;
};

struct Bucket {
  uint64_t elements = 0;
  uint64_t bytes = 0;  ///< of its gradient
};

struct Setup {
  Options options;
  uint32_t world = 1;
  double latency_s = 50e-6;     ///< of a round, until steps have shown more
  double bytes_per_s = 1.25e9;  ///< at which one rank's plane bytes travel
  std::vector<Candidate> candidates;
  std::vector<Bucket> buckets;
};

// Signals are plain doubles so that any engine can carry them. NaN: not known.

struct StepSignals {
  double world = 0;
  double steps = 0;            ///< of the window
  double step_s = 0;           ///< median step, without reference steps; the slowest rank counts
  double dense_step_s = 0;     ///< of reference steps in this window; NaN: there were none
  double dense_network_s = 0;  ///< all buckets of such a step on the wire
  double learning_rate = 0;    ///< NaN: not known
};

/// Under the plan of the window.
struct BucketSignals {
  double ready_s = 0;  ///< from the step's begin until its gradient is there
  double encode_s = 0;
  double network_s = 0;  ///< on the wire, behind the bucket before it; the least counts, because
                         ///< the last rank to come waits for nobody
  double decode_s = 0;
  double bytes = 0;          ///< handed over by one rank
  double energy = 0;         ///< |g|^2 of a rank's gradient, mean over ranks
  double mean_energy = 0;    ///< |mean g|^2
  double union_density = 0;  ///< elements that are non-zero on some rank
  double error = 0;          ///< relative squared error of the codec in use
  double residual = 0;       ///< |residual| / |gradient|
  double nonfinite = 0;      ///< above 0: a gradient or sum had NaN or infinity
  double whole_energy = 0;  ///< that candidates' `kept` is a share of, mean over ranks; gravac's is
                            ///< |gradient + residual|^2
};

/// A candidate for a bucket, as calibrated or probed.
struct CandidateSignals {
  double encode_s = 0;
  double decode_s = 0;
  double bytes = 0;    ///< of one rank; NaN: by Candidate::bits
  double error = 0;    ///< relative squared error
  double kept = 0;     ///< share of BucketSignals::whole_energy, for kBiased: the gain
  double probe_s = 0;  ///< that finding this out took; 0: not known
};

struct Observation {
  StepSignals step;
  std::vector<BucketSignals> buckets;
  std::vector<CandidateSignals> candidates;  ///< bucket by bucket

  /// As doubles in the order of the fields: step, then each bucket with its candidates.
  static uint64_t size(uint64_t buckets, uint64_t candidates);
  static Observation from(std::span<const double> values, uint64_t buckets, uint64_t candidates);
  std::vector<double> values() const;
};

/// All ranks' observations as one, in which the slowest rank's times count.
/// REQUIRES: one at least, all of one shape.
Observation reduce(std::span<const Observation> ranks);

/// Why a bucket has what it has.
enum class Reason : uint8_t {
  kBest,       ///< the plan with it makes most progress per second
  kKept,       ///< another would gain less than 5 %
  kDwell,      ///< it has had its codec for less than 3 windows
  kWarmUp,     ///< norms have not settled: next to nothing lossy
  kRate,       ///< the learning rate changed: the same for a window
  kFloor,      ///< what it had was below the floor
  kSmall,      ///< below 1024 elements
  kNonfinite,  ///< NaN or infinity travels as it is
  kResidual,   ///< the residual was 20 times the gradient: sent whole
  kSlower,     ///< the plan was slower than dense
  kGain,       ///< gravac: the gain allows this factor; accordion: norms are steady
};
const char* reason_name(Reason reason);

struct Decision {
  uint64_t window = 0;           ///< number of the window just over
  std::vector<uint32_t> plan;    ///< candidate of each bucket, for the next window
  std::vector<Reason> why;       ///< of each bucket
  uint32_t steps = 0;            ///< of the next window
  uint32_t reference_steps = 0;  ///< so many of them, the first ones, go dense
  std::vector<uint8_t> probe;    ///< bucket by bucket and candidate: measure it on a sampled block
  double realised_s = 0;         ///< a step of the window just over
  double foreseen_s = 0;         ///< what had been predicted for it; 0: nothing
  double predicted_s = 0;        ///< a step of the next one
  double predicted_dense_s = 0;  ///< if everything went dense
  double phi = 1;                ///< fidelity of the plan, weighted by energy
  double latency_s = 0, bytes_per_s = 0;  ///< the link as it is now taken to be

  bool operator==(const Decision&) const = default;
};

class Controller {
 public:
  virtual ~Controller() = default;
  /// What all buckets do before there is any observation: dense, for this many steps.
  virtual uint32_t first_steps() const = 0;
  /// kInvalidArgument for an observation of another shape.
  virtual Result<Decision> decide(const Observation& observation) = 0;
  /// Whether a window had better end now, because the learning rate is far from the one that was
  /// decided by. A rank knows its own optimizer only: one that ends its window takes all with it.
  virtual bool rate_changed(double /*learning_rate*/) const { return false; }
};

/// kInvalidArgument, with what is wrong in words: no candidate, one that is not dense in front, a
/// factor of factors() that no candidate has.
Result<std::unique_ptr<Controller>> create_controller(const Setup& setup);

/// Compression factors that gravac goes through, or between which accordion changes.
std::vector<double> factors(const Options& options);

/// What a controller saw and decided, from the first window on.
struct Trace {
  struct Window {
    Observation observation;
    Decision decision;
  };
  Setup setup;
  std::vector<Window> windows;

  /// Numbers are written so that they are read back to the bit; NaN is null.
  std::string to_json() const;
};

/// The decisions that a new controller makes for the same observations.
Result<std::vector<Decision>> replay(const Trace& trace);

}  // namespace addend::control
