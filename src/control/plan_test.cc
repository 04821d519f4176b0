// SPDX-License-Identifier: Apache-2.0
#include "addend/plan.h"

#include <random>

#include <gtest/gtest.h>

namespace addend::control {
namespace {

constexpr double kGbit = 1.25e8;  // bytes/s

CodecModel model_of(const char* spec, double seconds_per_element, double bytes_per_element,
                    Loss loss = Loss::kNone) {
  CodecModel model;
  model.spec = spec;
  model.loss = loss;
  CodecCost cost;
  cost.encode_s.slope = cost.decode_s.slope = seconds_per_element;
  cost.up_bytes.slope = cost.down_bytes.slope = bytes_per_element;
  model.costs = {cost};
  return model;
}

/// Dense and a codec that sends an eighth.
Calibration two(double seconds_per_element = 1e-9) {
  return {{model_of("dense", 0, 4), model_of("eighth", seconds_per_element, 0.5)}, {}};
}

Job one_bucket(double elements, double ready_s = 0) {
  Job job;
  job.buckets = {{elements, ready_s}};
  return job;
}

Network network_of(Engine engine, uint32_t workers, double gbit, double latency_s = 0) {
  return {engine, workers, gbit * kGbit, latency_s, gbit * kGbit, 16};
}

TEST(FitLine, FindsALineAgain) {
  const std::vector<Point> points = {{1e4, 3e-5 + 1e-5}, {1e6, 3e-5 + 1e-3}, {1e7, 3e-5 + 1e-2}};
  const Line line = fit_line(points);
  EXPECT_NEAR(line.fixed, 3e-5, 1e-9);
  EXPECT_NEAR(line.slope, 1e-9, 1e-14);
}

TEST(FitLine, HasNoNegativeTerm) {
  const Line falling = fit_line(std::vector<Point>{{1, 5}, {10, 1}});
  EXPECT_EQ(falling.slope, 0);
  EXPECT_GT(falling.fixed, 0);
  const Line steep = fit_line(std::vector<Point>{{1, 0.1}, {10, 5}});
  EXPECT_EQ(steep.fixed, 0);
  EXPECT_GT(steep.slope, 0);
  EXPECT_EQ(fit_line(std::vector<Point>{{4, 2}}).at(100), 2);
}

TEST(FitLine, SmallSizesCountAsMuchAsLargeOnes) {
  // The last one is 10 % off, which is a thousand times all of the first.
  const Line line = fit_line(std::vector<Point>{{1e3, 1e-6}, {1e6, 1e-3}, {1e7, 1.1e-2}});
  EXPECT_NEAR(line.at(1e3), 1e-6, 1e-7);
}

TEST(NetworkSeconds, AreTheClosedFormsOfTheCollectives) {
  const Traffic traffic{8e6, 12e6};
  const auto seconds = [&](Engine engine, uint32_t rounds) {
    return network_seconds(network_of(engine, 8, 8, 1e-3), traffic, rounds);
  };
  EXPECT_DOUBLE_EQ(seconds(Engine::kRing, 1), 14e-3 + 20e6 * 7 / 8 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(Engine::kMesh, 1), 2e-3 + 20e6 * 7 / 8 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(Engine::kMesh, 3), 6e-3 + 20e6 * 7 / 8 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(Engine::kServer, 1), 2e-3 + 8 * 12e6 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(Engine::kSwitch, 1), 2e-3 + 20e6 / 1e9);
  Network tree = network_of(Engine::kTree, 64, 8, 1e-3);
  EXPECT_DOUBLE_EQ(network_seconds(tree, traffic, 1), 4e-3 + 16 * 12e6 / 1e9);
  tree.server_bytes_per_s = 1e12;  // then the workers' links are the narrow ones
  EXPECT_DOUBLE_EQ(network_seconds(tree, traffic, 1), 4e-3 + 12e6 / 1e9);
  for (const Engine engine : kEngines)
    EXPECT_EQ(network_seconds(network_of(engine, 1, 8, 1e-3), traffic, 2), 0);
}

// T = A + L + communication + codec, with the codec's part by what the form allows.
TEST(Predict, WithoutOverlapItIsTheSpeedupModel) {
  const double elements = 1e7, encode = 1e-2, decode = 1e-2, ready = 0.05;
  Calibration calibration = two();
  calibration.add_s = {1e-6, 1e-10};
  for (const uint32_t n : {2u, 8u, 64u}) {
    const Network network = network_of(Engine::kServer, n, 8, 1e-4);
    const double bytes = 0.5 * elements, add = 1e-6 + 1e-10 * n * bytes;
    const double shared = ready + 2e-4 + n * bytes / 1e9 + add;
    const auto step = [&](Homomorphism form) {
      return predict(one_bucket(elements, ready), calibration, calibration.codecs[1], network, form)
          .step_s;
    };
    EXPECT_NEAR(step(Homomorphism::kNone), shared + 2 * encode + (n + 1) * decode, 1e-12);
    EXPECT_NEAR(step(Homomorphism::kAdds), shared + encode + decode, 1e-12);
    EXPECT_NEAR(step(Homomorphism::kOptimizes), shared + (encode + decode) / kStepsOfH2, 1e-12);
  }
}

uint32_t workers_of(std::mt19937& draw) { return 2 + static_cast<uint32_t>(draw() % 30); }

Job random_job(std::mt19937& draw) {
  std::uniform_real_distribution<double> share(0, 1);
  Job job;
  double ready = 0;
  for (int b = 1 + static_cast<int>(draw() % 12); b > 0; --b) {
    ready += share(draw) * 0.02;
    job.buckets.push_back({1e4 + share(draw) * 5e6, ready});
  }
  job.rest_s = share(draw) * 0.01;
  job.density = share(draw);
  return job;
}

TEST(Predict, IsNeverFasterThanAnyLaneNorSlowerThanAllInARow) {
  std::mt19937 draw(14);
  Calibration calibration = two();
  calibration.add_s = {0, 1e-10};
  for (int i = 0; i < 200; ++i) {
    const Job job = random_job(draw);
    const Network network = network_of(kEngines[draw() % 5], workers_of(draw), 1, 1e-5);
    const Prediction seen = predict(job, calibration, calibration.codecs[1], network);
    double all = job.rest_s;
    for (const double busy : seen.busy_s) {
      EXPECT_GE(seen.step_s, busy + job.rest_s - 1e-12) << i;
      all += busy;
    }
    EXPECT_LE(seen.step_s, all + 1e-12) << i;
  }
}

TEST(Predict, LossyCodecsLeaveTablesToExact) {
  Calibration calibration = two();
  calibration.codecs[1].loss = Loss::kUnbiased;
  CodecModel exact = calibration.codecs[0];
  exact.spec = "exact";
  exact.costs = {{0.1, {0, 1e-10}, {0, 1e-10}, {0, 0.4}, {0, 0.4}},
                 {1, {0, 1e-9}, {0, 1e-9}, {0, 4}, {0, 4}}};
  calibration.codecs.push_back(exact);
  Job job = one_bucket(1e7, 0);
  job.union_density = 0.28;
  job.buckets[0].tables = 8e6;  // of which a tenth is there, if all of the rest is
  const CodecModel& codec = calibration.codecs[1];
  for (const Engine engine : {Engine::kMesh, Engine::kRing}) {
    const Network network = network_of(engine, 2, 8, 0);
    const double seen = predict(job, calibration, codec, network).link_bytes;
    const double lossy = codec.costs[0].up_bytes.slope;
    const double whole = engine == Engine::kRing ? 1e7 * lossy : 2e6 * lossy + 8e6 * 0.4;
    EXPECT_NEAR(seen, whole, 1) << engine_name(engine);
  }
}

// On one core codecs add to the backward pass; on half of one they also take twice as long.
TEST(Predict, WhereWorkersShareCoresBackwardAndCodecsTakeTurns) {
  std::mt19937 draw(16);
  Calibration calibration = two();
  calibration.add_s = {0, 1e-10};
  for (int i = 0; i < 200; ++i) {
    Job job = random_job(draw);
    const Network network = network_of(kEngines[draw() % 5], workers_of(draw), 1, 1e-5);
    const auto seen = [&](double cores) {
      job.cores = cores;
      return predict(job, calibration, calibration.codecs[1], network);
    };
    const Prediction alone = seen(0), turns = seen(1), half = seen(0.5);
    const auto work = [](const Prediction& one) {
      return one.busy_s[0] + one.busy_s[1] + one.busy_s[3] + one.busy_s[4];
    };
    EXPECT_EQ(seen(2).step_s, alone.step_s) << i;
    EXPECT_GE(turns.step_s, alone.step_s - 1e-12) << i;
    EXPECT_GE(turns.step_s, work(turns) + job.rest_s - 1e-12) << i;
    EXPECT_LE(turns.step_s, work(turns) + turns.busy_s[2] + job.rest_s + 1e-12) << i;
    EXPECT_GE(half.step_s, work(half) + job.rest_s + 6e-3 - 1e-12) << "and turns are waited for";
    EXPECT_NEAR(half.busy_s[1], 2 * turns.busy_s[1], 1e-12) << i;
    EXPECT_EQ(half.busy_s[0], turns.busy_s[0]) << "measured where they share already";
  }
}

TEST(Predict, AFasterLinkALowerLatencyOrFewerBytesNeverMakeAStepLonger) {
  std::mt19937 draw(15);
  const Calibration calibration = two();
  for (int i = 0; i < 100; ++i) {
    const Job job = random_job(draw);
    Network network = network_of(kEngines[draw() % 5], workers_of(draw), 0.1, 1e-3);
    double last = std::numeric_limits<double>::infinity();
    for (int faster = 0; faster < 12; ++faster) {
      const double now = predict(job, calibration, calibration.codecs[1], network).step_s;
      EXPECT_LE(now, last) << i;
      last = now;
      network.bytes_per_s *= 2;
      network.server_bytes_per_s *= 2;
      network.latency_s /= 1.5;
    }
    EXPECT_LE(predict(job, two(0), model_of("", 0, 0.5), network).step_s,
              predict(job, two(0), model_of("", 0, 4), network).step_s);
  }
}

TEST(Predict, NamesTheLaneThatLimits) {
  const Calibration fast = two(1e-12), slow = two(1e-7);
  const auto limit = [](const Job& job, const Calibration& calibration, double gbit) {
    return predict(job, calibration, calibration.codecs[1], network_of(Engine::kMesh, 4, gbit))
        .limit;
  };
  EXPECT_EQ(limit(one_bucket(1e6, 1e-6), fast, 0.01), Lane::kNetwork);
  EXPECT_EQ(limit(one_bucket(1e6, 1e-6), slow, 100), Lane::kEncode);
  EXPECT_EQ(limit(one_bucket(1e6, 10), fast, 1), Lane::kBackward);
  Calibration adds = fast;
  adds.add_s.slope = 1e-6;
  EXPECT_EQ(limit(one_bucket(1e6, 1e-6), adds, 1), Lane::kAdd);
}

TEST(Predict, BucketsOverlapWithBackward) {
  // Four buckets that each travel 10 ms, one every 20 ms: only the last one is seen.
  const Calibration calibration = two(0);
  Job job;
  for (int b = 1; b <= 4; ++b)
    job.buckets.push_back({0.01 * kGbit / 4, 0.02 * b});
  const Network network = network_of(Engine::kServer, 1, 1);
  Network wide = network;
  wide.workers = 2;
  wide.server_bytes_per_s = 1e15;
  EXPECT_NEAR(predict(job, calibration, calibration.codecs[0], wide).step_s, 0.09, 1e-9);
  EXPECT_NEAR(predict(job, calibration, calibration.codecs[0], network).step_s, 0.08, 1e-9);
}

TEST(Predict, CodecsThatSelectGrowWithTheirUnionUnlessAllSelectTheSame) {
  Calibration calibration{{model_of("dense", 0, 4), model_of("exact", 0, 0.1)}, {}};
  CodecCost full = calibration.codecs[1].costs[0];
  calibration.codecs[1].costs[0].density = 0.01;
  full.density = 1;
  full.up_bytes.slope = full.down_bytes.slope = 4;
  calibration.codecs[1].costs.push_back(full);
  CodecModel top = model_of("topk:density=0.01", 0, 0.1, Loss::kBiased);
  top.keeps = 0.01;
  const auto bytes = [&](uint32_t workers) {
    return predict(one_bucket(1e6), calibration, top, network_of(Engine::kServer, workers, 1))
        .link_bytes;
  };
  EXPECT_NEAR(bytes(1000), 4e6, 4e3);
  EXPECT_GT(bytes(16), 3 * bytes(2));
  EXPECT_NEAR(
      predict(one_bucket(1e6), calibration, top, network_of(Engine::kMesh, 8, 1)).union_density,
      1 - std::pow(0.99, 8), 1e-9);
  top.same_positions = true;
  EXPECT_EQ(bytes(1000), bytes(2));
}

TEST(Predict, AMeasuredUnionGoesBeforeAnIndependentOne) {
  Job job = one_bucket(1e6);
  job.density = 0.1;
  const Calibration calibration = two();
  const Network network = network_of(Engine::kMesh, 8, 1);
  const auto seen = [&] {
    return predict(job, calibration, calibration.codecs[1], network).union_density;
  };
  EXPECT_NEAR(seen(), 1 - std::pow(0.9, 8), 1e-9);
  job.union_density = 0.15;
  EXPECT_EQ(seen(), 0.15);
}

// A codec pays iff its combined speed exceeds N / (2 (N - 1)) * B / (1 - rho): at N = 8 and 10
// Gbit/s, 0.82 GB/s for an eighth.
TEST(BreakEven, IsTheOneLineTestOfTheRing) {
  const double needed = 8.0 / 14 * 10 * kGbit / (1 - 1.0 / 8);
  EXPECT_NEAR(needed, 0.82e9, 0.01e9);
  const Calibration calibration = two(4 / (2 * needed));  // half of it in each direction
  const double found = break_even_bytes_per_s(one_bucket(1e7), calibration, calibration.codecs[1],
                                              network_of(Engine::kRing, 8, 1));
  EXPECT_NEAR(found, 10 * kGbit, 1e-3 * kGbit);
}

TEST(BreakEven, SaysNeverAndAlways) {
  const Network network = network_of(Engine::kMesh, 4, 1);
  const Calibration free = two(0), hopeless = two(1);
  EXPECT_EQ(break_even_bytes_per_s(one_bucket(1e7), free, free.codecs[1], network),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(break_even_bytes_per_s(one_bucket(1e7), hopeless, hopeless.codecs[1], network), 0);
}

TEST(BreakEven, NamesTheNumbersOfWorkersAtWhichACodecPays) {
  // A server's link is shared by all, so compression pays from some number on.
  const Calibration calibration = two(1e-8);
  const WorkerRange range = break_even_workers(one_bucket(1e7), calibration, calibration.codecs[1],
                                               network_of(Engine::kServer, 4, 10));
  // 20 ns an element for the codec against 3.5 bytes less for each worker at 1.25e9 bytes/s.
  EXPECT_EQ(range.first, 8u);
  EXPECT_EQ(range.last, 4096u);
  const Calibration hopeless = two(1);
  EXPECT_EQ(break_even_workers(one_bucket(1e7), hopeless, hopeless.codecs[1],
                               network_of(Engine::kMesh, 4, 10))
                .first,
            0u);
}

TEST(Advise, TakesWhatMakesMostProgressAndSaysByHowMuch) {
  const Calibration calibration = two();
  const std::vector<Engine> engines = {Engine::kMesh, Engine::kServer};
  const Advice slow =
      advise(one_bucket(1e7), calibration, network_of(Engine::kMesh, 8, 1), engines, 0.9);
  EXPECT_TRUE(slow.pays);
  EXPECT_EQ(slow.codec, 1u);
  EXPECT_EQ(slow.engine, Engine::kMesh);
  EXPECT_GT(slow.gain, 4);
  EXPECT_LE(slow.least_gain, slow.gain);
  EXPECT_GE(slow.most_gain, slow.gain);
  EXPECT_LT(slow.least_gain, slow.most_gain);
}

TEST(Advise, SaysNoWhenSumsHideBehindTheBackwardPass) {
  const Calibration calibration = two();
  const std::vector<Engine> engines = {Engine::kMesh};
  Job job;
  for (int b = 1; b <= 10; ++b)
    job.buckets.push_back({1e5, 0.1 * b});
  const Advice none = advise(job, calibration, network_of(Engine::kMesh, 8, 1), engines, 0.9);
  EXPECT_FALSE(none.pays);
  EXPECT_LT(none.gain, Advice::kWorthIt);
}

TEST(Advise, AGainBelowFivePercentDoesNotPay) {
  const std::vector<Engine> engines = {Engine::kMesh};
  const Network network = network_of(Engine::kMesh, 2, 8);  // an element takes 4 ns dense
  for (const double saved : {0.1, 0.3}) {                   // of 4.0 ns
    const Calibration calibration{{model_of("dense", 0, 4), model_of("other", 0, 4 - saved)}, {}};
    const Advice seen = advise(one_bucket(1e7), calibration, network, engines, 0.9);
    EXPECT_EQ(seen.codec, 1u);
    EXPECT_EQ(seen.pays, saved > 0.2) << seen.gain;
  }
}

TEST(Advise, NothingIsLostForAGainBelowFivePercent) {
  const std::vector<Engine> engines = {Engine::kMesh};
  const Network network = network_of(Engine::kMesh, 2, 8);
  for (const double bytes : {0.9, 0.98}) {
    Calibration calibration{{model_of("dense", 0, 4), model_of("exact", 0, 1),
                             model_of("lossy", 0, bytes, Loss::kUnbiased)},
                            {}};
    EXPECT_EQ(advise(one_bucket(1e7), calibration, network, engines, 0.9).codec,
              bytes < 0.95 ? 2u : 1u);
    // Where what loses nothing gains nothing, either, there is no choice.
    calibration.codecs[1] = model_of("exact", 0, 4);
    calibration.codecs[2] = model_of("lossy", 0, 4 * bytes - 0.1, Loss::kUnbiased);
    const Advice seen = advise(one_bucket(1e7), calibration, network, engines, 0.9);
    EXPECT_EQ(seen.codec, 2u);
  }
}

TEST(Advise, KeepsToTheFloor) {
  Calibration calibration = two();
  calibration.codecs[1].loss = Loss::kUnbiased;
  calibration.codecs[1].fidelity = 0.8;
  const std::vector<Engine> engines = {Engine::kMesh};
  const auto chosen = [&](double floor) {
    return advise(one_bucket(1e7), calibration, network_of(Engine::kMesh, 8, 1), engines, floor)
        .codec;
  };
  EXPECT_EQ(chosen(1), 0u);
  EXPECT_EQ(chosen(0.9), 0u);
  EXPECT_EQ(chosen(0.7), 1u);
}

}  // namespace
}  // namespace addend::control
