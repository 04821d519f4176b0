// SPDX-License-Identifier: Apache-2.0
#include "addend/plan.h"

#include <algorithm>
#include <limits>

#include "control/lanes.h"

namespace addend::control {
namespace {

constexpr double kSlowestLink = 125e3, kFastestLink = 1e12;  // bytes/s that are looked at
constexpr uint32_t kMostWorkers = 4096;
// For a core that another worker has, twice a step: before a sum is begun and before it is there. A
// time slice of the kernel's.
constexpr double kTurn_s = 3e-3;

Line mix(const Line& a, const Line& b, double share) {
  return {a.fixed + share * (b.fixed - a.fixed), a.slope + share * (b.slope - a.slope)};
}

/// Between what was measured; beyond it, as at the end.
CodecCost cost_at(const CodecModel& codec, double density) {
  const std::vector<CodecCost>& all = codec.costs;
  const auto above = std::find_if(all.begin(), all.end(),
                                  [&](const CodecCost& one) { return one.density >= density; });
  if (above == all.end()) return all.back();
  if (above == all.begin()) return all.front();
  const CodecCost& a = *(above - 1);
  const CodecCost& b = *above;
  const double share = (density - a.density) / (b.density - a.density);
  return {density, mix(a.encode_s, b.encode_s, share), mix(a.decode_s, b.decode_s, share),
          mix(a.up_bytes, b.up_bytes, share), mix(a.down_bytes, b.down_bytes, share)};
}

const CodecModel* find_exact(const Calibration& calibration) {
  for (const CodecModel& one : calibration.codecs) {
    if (one.spec == "exact") return &one;
  }
  return nullptr;
}

/// Seconds and bytes of one bucket.
struct Bill {
  double encode_s, decode_s;
  Traffic traffic;

  void operator+=(const Bill& other) {
    encode_s += other.encode_s;
    decode_s += other.decode_s;
    traffic.up += other.traffic.up;
    traffic.down += other.traffic.down;
  }
};

Bill bill(const CodecCost& cost, double elements) {
  return {cost.encode_s.at(elements),
          cost.decode_s.at(elements),
          {cost.up_bytes.at(elements), cost.down_bytes.at(elements)}};
}

/// The union of what workers select is larger than what was calibrated, which is one worker's.
Bill bill_of(const CodecModel& codec, const CodecModel* exact, double density, double elements) {
  Bill own = bill(cost_at(codec, density), elements);
  if (codec.keeps == 0 || exact == nullptr || density <= codec.keeps) return own;
  const Bill more = bill(cost_at(*exact, density), elements);
  const Bill less = bill(cost_at(*exact, codec.keeps), elements);
  const auto grow = [](double& value, double from, double to) {
    value += std::max(0.0, to - from);
  };
  grow(own.encode_s, less.encode_s, more.encode_s);
  grow(own.decode_s, less.decode_s, more.decode_s);
  grow(own.traffic.up, less.traffic.up, more.traffic.up);
  grow(own.traffic.down, less.traffic.down, more.traffic.down);
  return own;
}

/// How much of the tables is non-zero somewhere, where all else is.
double table_density(const Job& job, double all) {
  double elements = 0, tables = 0;
  for (const Load& load : job.buckets)
    elements += load.elements, tables += load.tables;
  return std::clamp((all * elements - (elements - tables)) / tables, 0.0, 1.0);
}

double density_of(const Job& job, const CodecModel& codec, uint32_t workers) {
  const double all =
      std::isnan(job.union_density) ? union_of(job.density, workers) : job.union_density;
  if (codec.keeps == 0) return all;
  const double own = std::min(codec.keeps, job.density);
  return codec.same_positions ? own : std::min(all, union_of(own, workers));
}

/// Bytes that whoever adds most of them adds.
double added_bytes(const Network& network, double up) {
  const double n = network.workers;
  switch (network.engine) {
    case Engine::kRing:
    case Engine::kMesh:
      return up * (n - 1) / n;
    case Engine::kServer:
      return up * n;
    case Engine::kTree:
      return up * std::min<double>(n, network.fan_in);
    case Engine::kSwitch:
      return 0;
  }
  return 0;
}

/// What a prediction is about.
struct Scene {
  const Job& job;
  const Calibration& calibration;
  const Network& network;
  Homomorphism form;
};

Stages stages_of(const Scene& scene, const Load& load, const Bill& bill, uint32_t rounds) {
  const double cores = scene.job.cores;
  const double slowdown = cores > 0 ? std::max(1.0, 1 / cores) : 1;
  const double encode_s = bill.encode_s * slowdown, decode_s = bill.decode_s * slowdown;
  const double added = scene.network.workers > 1 ? added_bytes(scene.network, bill.traffic.up) : 0;
  Stages out{load.ready_s, encode_s, network_seconds(scene.network, bill.traffic, rounds),
             added > 0 ? scene.calibration.add_s.at(added) * slowdown : 0, decode_s};
  if (scene.form == Homomorphism::kNone) out.add_s += scene.network.workers * decode_s + encode_s;
  if (scene.form == Homomorphism::kOptimizes) {
    out.encode_s /= kStepsOfH2;
    out.decode_s /= kStepsOfH2;
  }
  return out;
}

double& stage(Stages& stages, Lane lane) {
  double* const all[] = {&stages.ready_s, &stages.encode_s, &stages.network_s, &stages.add_s,
                         &stages.decode_s};
  return *all[static_cast<std::size_t>(lane)];
}

}  // namespace

Line fit_line(std::span<const Point> points) {
  // Weights of 1 / y^2 make errors relative.
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const Point& point : points) {
    const double weight = 1 / (point.y * point.y);
    w += weight;
    wx += weight * point.x;
    wy += weight * point.y;
    wxx += weight * point.x * point.x;
    wxy += weight * point.x * point.y;
  }
  const double spread = w * wxx - wx * wx;
  Line line{wy / w, 0};
  if (points.size() > 1 && spread > 0) {
    line.slope = (w * wxy - wx * wy) / spread;
    line.fixed = (wy - line.slope * wx) / w;
  }
  if (line.slope < 0) return {wy / w, 0};
  if (line.fixed < 0) return {0, wxy / wxx};
  return line;
}

const char* engine_name(Engine engine) {
  constexpr const char* kNames[] = {"ring", "mesh", "server", "tree", "switch"};
  return kNames[static_cast<std::size_t>(engine)];
}

const char* lane_name(Lane lane) {
  constexpr const char* kNames[] = {"backward", "encode", "network", "add", "decode"};
  return kNames[static_cast<std::size_t>(lane)];
}

double union_of(double share, uint32_t workers) {
  double none = 1;
  for (uint32_t worker = 0; worker < workers && none > 1e-9; ++worker)
    none *= 1 - share;
  return 1 - none;
}

double network_seconds(const Network& network, const Traffic& traffic, uint32_t rounds) {
  if (network.workers < 2) return 0;
  const double n = network.workers, latency = network.latency_s * rounds;
  const double both = traffic.up + traffic.down, larger = std::max(traffic.up, traffic.down);
  const auto served = [&](double workers) {
    return larger * std::max(1 / network.bytes_per_s, workers / network.server_bytes_per_s);
  };
  switch (network.engine) {
    case Engine::kRing:
      return 2 * (n - 1) * latency + both * (n - 1) / n / network.bytes_per_s;
    case Engine::kMesh:
      return 2 * latency + both * (n - 1) / n / network.bytes_per_s;
    case Engine::kServer:
      return 2 * latency + served(n);
    case Engine::kTree: {
      const double fan_in = std::max<uint32_t>(2, network.fan_in);
      double depth = 1;
      for (double reach = fan_in; reach < n; reach *= fan_in)
        ++depth;
      return 2 * depth * latency + served(std::min(n, fan_in));
    }
    case Engine::kSwitch:
      return 2 * latency + both / network.bytes_per_s;
  }
  return 0;
}

double link_bytes(const Network& network, const Traffic& traffic) {
  if (network.workers < 2) return 0;
  const double n = network.workers;
  const bool shares = network.engine == Engine::kRing || network.engine == Engine::kMesh;
  return shares ? (traffic.up + traffic.down) * (n - 1) / n : traffic.up;
}

Prediction predict(const Job& job, const Calibration& calibration, const CodecModel& codec,
                   const Network& network, Homomorphism form) {
  Prediction out;
  out.union_density = density_of(job, codec, network.workers);
  const CodecModel* const exact = find_exact(calibration);
  std::vector<Stages> all;
  all.reserve(job.buckets.size());
  double begun = 0;
  // A ring is the framework's own, which knows no tables.
  const bool spares =
      codec.loss != Loss::kNone && exact != nullptr && network.engine != Engine::kRing;
  for (const Load& load : job.buckets) {
    const double tables = spares ? load.tables : 0;
    Bill cost = bill_of(codec, exact, out.union_density, load.elements - tables);
    if (tables > 0) {
      const double density = table_density(job, density_of(job, *exact, network.workers));
      cost += bill(cost_at(*exact, density), tables);
    }
    all.push_back(stages_of({job, calibration, network, form}, load, cost, codec.rounds));
    out.link_bytes += link_bytes(network, cost.traffic);
    const Stages& one = all.back();
    out.busy_s[0] += std::max(0.0, one.ready_s - begun);
    begun = std::max(begun, one.ready_s);
    for (std::size_t lane = 1; lane < kLanes; ++lane)
      out.busy_s[lane] += stage(all.back(), static_cast<Lane>(lane));
  }
  const bool turns = job.cores > 0 && job.cores <= 1;
  const bool shares = turns && job.cores < 1 && network.workers > 1;
  const double fixed_s = job.rest_s + (shares ? 2 * kTurn_s * (1 / job.cores - 1) : 0);
  const auto end = [&](auto&& of) {
    return (turns ? end_of_turns(all.size(), of) : end_of_lanes(all.size(), of)) + fixed_s;
  };
  out.step_s = end([&](uint64_t b) { return all[b]; });
  double shortest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double without = end([&](uint64_t b) {
      Stages one = all[b];
      stage(one, static_cast<Lane>(i)) = 0;
      return one;
    });
    if (without < shortest) shortest = without, out.limit = static_cast<Lane>(i);
  }
  return out;
}

double break_even_bytes_per_s(const Job& job, const Calibration& calibration,
                              const CodecModel& codec, Network network) {
  // A server keeps its speed relative to the workers'.
  const double ratio = network.server_bytes_per_s / network.bytes_per_s;
  const auto faster = [&](double speed) {
    network.bytes_per_s = speed;
    network.server_bytes_per_s = speed * ratio;
    return predict(job, calibration, codec, network).step_s <
           predict(job, calibration, calibration.codecs.front(), network).step_s;
  };
  if (faster(kFastestLink)) return std::numeric_limits<double>::infinity();
  // Downwards, because a codec may lose again where latency is all that counts.
  double high = kFastestLink, low = high;
  while (low > kSlowestLink && !faster(low)) {
    high = low;
    low /= 1.25;
  }
  if (!faster(low)) return 0;
  for (int i = 0; i < 40; ++i) {
    const double middle = std::sqrt(low * high);
    (faster(middle) ? low : high) = middle;
  }
  return low;
}

WorkerRange break_even_workers(const Job& job, const Calibration& calibration,
                               const CodecModel& codec, Network network) {
  WorkerRange range;
  // Every number at first, then every sixteenth part more: what is looked for changes slowly.
  for (uint32_t workers = 2;;
       workers = std::min(kMostWorkers, workers + std::max(1u, workers / 16))) {
    network.workers = workers;
    const double dense = predict(job, calibration, calibration.codecs.front(), network).step_s;
    if (predict(job, calibration, codec, network).step_s < dense) {
      if (range.first == 0) range.first = workers;
      range.last = workers;
    }
    if (workers == kMostWorkers) return range;
  }
}

Advice advise(const Job& job, const Calibration& calibration, const Network& network,
              std::span<const Engine> engines, double floor) {
  // Progress per second of a codec on an engine, with a link so many times as fast.
  const auto worth = [&](std::size_t codec, Engine engine, double times) {
    Network now = network;
    now.engine = engine;
    now.bytes_per_s *= times;
    now.server_bytes_per_s *= times;
    const CodecModel& model = calibration.codecs[codec];
    return model.fidelity / predict(job, calibration, model, now).step_s;
  };
  const auto best_dense = [&](double times) {
    double best = 0;
    for (const Engine engine : engines)
      best = std::max(best, worth(0, engine, times));
    return best;
  };
  // The best of what loses nothing, and of all that may be lost.
  Advice exact, out;
  double most_exact = 0, most = 0;
  for (const Engine engine : engines) {
    for (std::size_t codec = 0; codec < calibration.codecs.size(); ++codec) {
      const CodecModel& model = calibration.codecs[codec];
      const bool lossy = model.loss != Loss::kNone;
      if (lossy && (floor >= 1 || !(model.fidelity >= floor))) continue;
      const double now = worth(codec, engine, 1);
      if (now > most) most = now, out.codec = codec, out.engine = engine;
      if (now > most_exact && !lossy) most_exact = now, exact.codec = codec, exact.engine = engine;
    }
  }
  // Nothing is to be lost for what the model cannot tell.
  const bool exact_pays = exact.codec != 0 && most_exact >= Advice::kWorthIt * best_dense(1);
  if (exact_pays && most < Advice::kWorthIt * most_exact) out = exact;
  const auto gain = [&](double times) {
    return worth(out.codec, out.engine, times) / best_dense(times);
  };
  out.gain = gain(1);
  const double faster = gain(1 + Advice::kBand), slower = gain(1 - Advice::kBand);
  out.least_gain = std::min({out.gain, faster, slower});
  out.most_gain = std::max({out.gain, faster, slower});
  out.pays = out.codec != 0 && out.gain >= Advice::kWorthIt;
  return out;
}

}  // namespace addend::control
