// SPDX-License-Identifier: Apache-2.0
// What a step would take with another codec, engine, link or number of workers: a timeline of
// backward pass, encoding, sending, adding and decoding, one lane each, over costs that were
// measured at several sizes and fitted. And whether anything pays.
//
// Pure: no clock, no I/O. docs/plan.md.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "addend/control.h"

namespace addend::control {

/// fixed + slope * x.
struct Line {
  double fixed = 0;
  double slope = 0;
  double at(double x) const { return fixed + slope * x; }
};
struct Point {
  double x = 0;
  double y = 0;
};
/// The line with the least squares of relative errors, and no negative term: small sizes count as
/// much as large ones. REQUIRES: one point at least, all of them above zero.
Line fit_line(std::span<const Point> points);

enum class Engine : uint8_t {
  kRing,    ///< each worker talks to its neighbours: 2 (N - 1) steps
  kMesh,    ///< each to each, a share of the sum at every worker
  kServer,  ///< an aggregation server, what comes back overlaps with what is sent
  kTree,    ///< servers of servers
  kSwitch,  ///< adds in the network: no figure of ours, only the closed form
};
inline constexpr std::array kEngines = {Engine::kRing, Engine::kMesh, Engine::kServer,
                                        Engine::kTree, Engine::kSwitch};
const char* engine_name(Engine engine);
/// Whether nothing of ours was ever measured with it.
constexpr bool is_closed_form(Engine engine) {
  return engine == Engine::kTree || engine == Engine::kSwitch;
}

struct Network {
  Engine engine = Engine::kMesh;
  uint32_t workers = 4;
  double bytes_per_s = 1.25e9;         ///< of a worker's link, each way
  double latency_s = 50e-6;            ///< of a message, one way
  double server_bytes_per_s = 1.25e9;  ///< of a server's link, each way
  uint32_t fan_in = 16;                ///< of a tree's servers
};

/// Bytes of one worker for one bucket: what it hands over, and what comes back.
struct Traffic {
  double up = 0;
  double down = 0;
};
/// Seconds that a bucket is on its way, alone. One worker has nobody to talk to: 0.
double network_seconds(const Network& network, const Traffic& traffic, uint32_t rounds);
/// What one worker's link carries away from it.
double link_bytes(const Network& network, const Traffic& traffic);

/// A codec where this share of all elements is non-zero on some worker, by elements of a bucket.
struct CodecCost {
  double density = 1;
  Line encode_s, decode_s;
  Line up_bytes, down_bytes;
};

struct CodecModel {
  std::string spec;
  Loss loss = Loss::kNone;
  double fidelity = 1;          ///< part of a step's progress that is left
  double keeps = 0;             ///< share of the elements that it selects; 0: those that are there
  bool same_positions = false;  ///< all workers select the same
  uint32_t rounds = 1;
  std::vector<CodecCost> costs;  ///< by rising density, one at least
};

struct Calibration {
  std::vector<CodecModel> codecs;  ///< dense in front
  Line add_s;                      ///< seconds that adding takes, by bytes
};

/// A bucket: when its gradient is there, from the begin of the step.
struct Load {
  double elements = 0;
  double ready_s = 0;
  double tables = 0;  ///< of the elements, those of embedding tables: lossy codecs leave them to
                      ///< `exact`
};
struct Job {
  std::vector<Load> buckets;            ///< in the order in which they are ready
  double rest_s = 0;                    ///< of a step, when all sums are there: optimizer, data
  double density = 1;                   ///< of a worker's gradient
  double union_density = std::nan("");  ///< measured; NaN: of workers whose positions are
                                        ///< independent
  /// Of a worker; 0: enough for everything at once. With one or less, backward pass and codecs take
  /// turns; with less, codecs take longer by that, workers wait for each other's turns, and times
  /// of the backward pass are those of workers that share.
  double cores = 0;
};

/// How far a codec's form can be worked with, after Jang et al. (arXiv 1711.10123).
enum class Homomorphism : uint8_t {
  kNone,       ///< H0: who adds decodes what each worker sent, and encodes the sum
  kAdds,       ///< H1: who adds adds the form itself. Addend
  kOptimizes,  ///< H2: the optimizer, too, works on the form: encoded and decoded once in many
               ///< steps
};
inline constexpr double kStepsOfH2 = 100;

enum class Lane : uint8_t { kBackward, kEncode, kNetwork, kAdd, kDecode };
inline constexpr std::size_t kLanes = 5;
const char* lane_name(Lane lane);

struct Prediction {
  double step_s = 0;
  std::array<double, kLanes> busy_s{};  ///< of each lane
  Lane limit = Lane::kBackward;         ///< without which the step would be shortest
  double link_bytes = 0;                ///< from one worker, of a step
  double union_density = 1;             ///< that the codec sees
};

/// REQUIRES: a codec of the calibration. Codecs that select cost what `exact` does for the union
/// beyond what they keep, where the calibration has it.
Prediction predict(const Job& job, const Calibration& calibration, const CodecModel& codec,
                   const Network& network, Homomorphism form = Homomorphism::kAdds);

/// Of workers that each have a share of their elements, in positions of their own: what some has.
double union_of(double share, uint32_t workers);

/// The fastest link, in bytes/s, on which the codec is still faster than dense; infinity: on any;
/// 0: on none from a megabit/s on.
double break_even_bytes_per_s(const Job& job, const Calibration& calibration,
                              const CodecModel& codec, Network network);
/// Numbers of workers, from 2 to 4096, at which the codec is faster than dense; 0 and 0: at none.
struct WorkerRange {
  uint32_t first = 0;
  uint32_t last = 0;
};
WorkerRange break_even_workers(const Job& job, const Calibration& calibration,
                               const CodecModel& codec, Network network);

/// What a user should do.
struct Advice {
  static constexpr double kWorthIt = 1.05;  ///< gain below which the model cannot tell
  static constexpr double kBand = 0.2;      ///< by which a link's speed may be off

  std::size_t codec = 0;  ///< of the calibration
  Engine engine = Engine::kMesh;
  double gain = 1;                       ///< progress per second, over the best engine's dense
  double least_gain = 1, most_gain = 1;  ///< where the link is 20 % faster or slower
  bool pays = false;                     ///< gain is kWorthIt or more
};
/// The codec and engine with most progress per second, among these engines and codecs of at least
/// this fidelity; one that loses something only if it gains kWorthIt over what pays and loses
/// nothing. REQUIRES: an engine at least.
Advice advise(const Job& job, const Calibration& calibration, const Network& network,
              std::span<const Engine> engines, double floor);

}  // namespace addend::control
