// SPDX-License-Identifier: Apache-2.0
// Run under mpirun: every plane operation against a local fold, every codec through a pipeline, and
// errors by name.
#include <cstdio>
#include <cstring>
#include <vector>

#include "addend/fold.h"
#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "tests/support/gradients.h"

namespace {

using namespace addend;  // a test program
using namespace addend::testing_support;

int failures = 0;

void expect(bool condition, const std::string& what, const Reducer& reducer) {
  if (condition) return;
  ++failures;
  std::fprintf(stderr, "worker %u: FAILED: %s\n", reducer.worker(), what.c_str());
}

Deadline far() { return std::chrono::steady_clock::now() + std::chrono::minutes(2); }

void check_operations(Reducer& reducer) {
  constexpr uint64_t kLanes = 10007;
  for (std::size_t code = 0; code < kOpCount; ++code) {
    const Op op = static_cast<Op>(code);
    const auto lanes_of = [&](uint32_t worker) {
      std::vector<uint64_t> lanes(kLanes);
      for (uint64_t i = 0; i < kLanes; ++i)
        lanes[i] = addend_random(worker + 1, i);
      // u8 and u16 sums must not overflow: Open MPI saturates them where others wrap.
      if (op == Op::kSumU8 || op == Op::kSumU16) {
        for (uint64_t& lane : lanes)
          lane &= 0x0F0F0F0F0F0F0F0Full;
      }
      // Floats: small whole numbers, so that the order of addition does not matter.
      const DType types[] = {DType::kF32, DType::kBf16, DType::kF16};
      if (code < 3) {
        Bytes bytes(kLanes * 8);
        for (uint64_t i = 0; i < kLanes; ++i)
          write(types[code], bytes, i, small_integer(3, worker, i));
        std::memcpy(lanes.data(), bytes.data(), bytes.size());
      }
      return lanes;
    };
    std::vector<uint64_t> mine = lanes_of(reducer.worker());
    Round round;
    uint16_t table[16] = {};
    std::vector<uint64_t> sums(kLanes);
    round.add({op, kLanes, mine.data(), table, sums.data()});
    const Status status = reducer.reduce(round, far());
    if (is_table_sum(op)) {
      expect(!status && status.error().code == Errc::kUnsupported, "table sums are refused by name",
             reducer);
      continue;
    }
    std::vector<uint64_t> expected = lanes_of(0);
    for (uint32_t w = 1; w < reducer.world(); ++w)
      fold(op, expected.data(), lanes_of(w).data(), kLanes);
    expect(status && std::memcmp(mine.data(), expected.data(), op_bytes(op, kLanes)) == 0,
           std::string("operation ") + op_name(op), reducer);
  }
}

void check_codecs(Reducer& reducer) {
  auto pipeline = create_pipeline(reducer);
  for (const char* spec :
       {"dense", "exact", "exact:mode=packed", "exact:mode=two-level", "exact:mode=sketch",
        "exact:values=reproducible", "exact:mode=sketch,values=reproducible"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      Scenario s{dtype, 30011, reducer.world(), 0.03, Overlap::kRandom, 2};
      const Layout layout = layout_of(s, reducer.worker());
      auto codec = create_codec(*CodecSpec::parse(spec), layout);
      for (int step = 0; step < 2; ++step, ++s.seed) {
        const auto gradients =
            make_gradients(s, [&](uint32_t w, uint64_t i) { return small_integer(s.seed, w, i); });
        const std::vector<double> expected = sums(s, gradients);
        Bytes mine = gradients[reducer.worker()];
        const auto ticket = (*pipeline)->submit(**codec, mine.data());
        const Status status = (*pipeline)->wait(*ticket);
        bool right = status.has_value();
        for (uint64_t i = 0; right && i < s.count; ++i)
          right = static_cast<double>(read(dtype, mine, i)) == expected[i];
        expect(right,
               std::string(spec) + " " + dtype_name(dtype) +
                   (status ? "" : ": " + status.error().message),
               reducer);
      }
    }
  }
}

// A lossy codec: close to the sum, and the same bytes on every rank.
void check_quant(Reducer& reducer) {
  auto pipeline = create_pipeline(reducer);
  std::vector<Reducer::Claim> hashes;
  Scenario s{DType::kF32, 30011, reducer.world(), 1, Overlap::kFull, 6};
  const Layout layout = layout_of(s, reducer.worker());
  for (const char* spec : {"quant", "quant:bits=auto", "quant:feedback=float,block=256"}) {
    auto codec = create_codec(*CodecSpec::parse(spec), layout);
    const auto gradients = make_gradients(
        s, [&](uint32_t w, uint64_t i) { return static_cast<float>(normal(w + 1, i)); });
    const std::vector<double> expected = sums(s, gradients);
    Bytes mine = gradients[reducer.worker()];
    const auto ticket = (*pipeline)->submit(**codec, mine.data());
    const Status status = (*pipeline)->wait(*ticket);
    double error = 0, energy = 0;
    uint64_t hash = 0;
    for (uint64_t i = 0; i < s.count; ++i) {
      const auto value = static_cast<double>(read(s.dtype, mine, i));
      error += (value - expected[i]) * (value - expected[i]);
      energy += expected[i] * expected[i];
      hash = addend_mix64(hash + mine[4 * i] + 256u * mine[4 * i + 1]);
    }
    expect(status && error < 0.03 * energy, std::string(spec) + " is close to the sum", reducer);
    hashes.push_back({spec, hash});
  }
  pipeline->reset();  // the reducer is ours again
  expect(reducer.agree(hashes, far()).has_value(), "quant decodes to the same bytes on every rank",
         reducer);
}

void check_mismatch(Reducer& reducer) {
  auto pipeline = create_pipeline(reducer);
  Layout layout;
  layout.count = reducer.worker() == 1 ? 999 : 1000;
  layout.world = reducer.world();
  layout.worker = reducer.worker();
  auto codec = create_codec(*CodecSpec::parse("exact"), layout);
  std::vector<float> gradient(1000, 1.0f);
  const auto ticket = (*pipeline)->submit(**codec, gradient.data());
  const Status status = (*pipeline)->wait(*ticket);
  expect(!status && status.error().code == Errc::kMismatch,
         "a layout mismatch is an error on every worker", reducer);
  expect(gradient == std::vector<float>(1000, 1.0f), "the gradient is untouched after a mismatch",
         reducer);
}

}  // namespace

int main() {
  auto reducer = create_mpi_reducer();
  if (!reducer) {
    std::fprintf(stderr, "%s\n", reducer.error().message.c_str());
    return 1;
  }
  if ((*reducer)->world() < 2) {
    std::fprintf(stderr, "run this under mpirun with at least 2 ranks\n");
    return 1;
  }
  check_operations(**reducer);
  check_codecs(**reducer);
  check_quant(**reducer);
  check_mismatch(**reducer);
  if ((*reducer)->worker() == 0 && failures == 0)
    std::printf("MPI: %u workers agree\n", (*reducer)->world());
  return failures == 0 ? 0 : 1;
}
