// SPDX-License-Identifier: Apache-2.0
// What a codec writes does not depend on how many threads write it: sums, states and reports are
// the same bits for every number of them.
#include "addend/threads.h"

#include <cctype>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

const std::vector<std::string> kSpecs = {
    "dense",
    "cast:to=bf16",
    "cast:to=f16,feedback=float",
    "exact",
    "exact:mode=packed",
    "exact:mode=two-level",
    "exact:mode=two-level,block=7",
    "exact:mode=two-level,block=256",
    "exact:mode=sketch",
    "exact:mode=bloom",
    "exact:mode=gather",
    "exact:mode=packed,values=reproducible",
    "exact:mode=two-level,values=reproducible",
    "quant",
    "quant:bits=8",
    "quant:bits=auto",
    "quant:carrier=indices",
    "quant:bits=2,down=4",
    "quant:bits=3,down=8",
    "quant:bits=8,down=8,feedback=float",
    "quant:feedback=float",
    "quant:feedback=byte",
    "quant:norms=ahead,feedback=float",
    "quant:norms=ahead,feedback=byte",
    "quant:rotate=none,levels=uniform",
    "quant:block=64",
    "quant:index=packed",
    "quant:index=packed,feedback=float",
    "quant:index=two-level,feedback=float",
    "quant:index=auto,bits=3,down=8",
    "quant:index=packed,bits=8,down=4,feedback=float",
    "quant:norms=ahead,feedback=float,bits=8,down=4",
    "lowrank:rank=1",
    "lowrank:rank=5",
    "lowrank:rank=3,factors=bf16",
    "lowrank:rank=2,factors=quant",
    "topk:density=0.02",
    "redsync:density=0.05",
    "random:density=0.1",
    "leader:density=0.1",
};

// Around the ends of chunks, and with chunks to spare for every thread.
constexpr uint64_t kLengths[] = {65537, 3 * 65536 + 76};
constexpr int kSteps = 2;

enum class Pattern : uint8_t { kScattered, kRows, kUneven };

// Uneven: full, empty, sparse and nearly dense stretches of a chunk's length each, with -0.0 among
// the zeros.
double density_at(Pattern pattern, uint64_t i) {
  if (pattern == Pattern::kScattered) return 0.02;
  if (pattern == Pattern::kRows) return addend_random(5, i / 64) % 16 == 0 ? 0.9 : 0;
  constexpr double kDensities[] = {1, 0, 0.001, 0.999};
  return kDensities[i / 65536 % 4];
}

// The same for every codec, so each is drawn once.
const Bytes& draw(const Layout& layout, Pattern pattern, uint32_t worker, int step) {
  static std::map<std::tuple<DType, uint64_t, Pattern, uint32_t, int>, Bytes> drawn;
  const auto [at, is_new] = drawn.try_emplace({layout.dtype, layout.count, pattern, worker, step});
  Bytes& gradient = at->second;
  if (!is_new) return gradient;
  gradient.resize(layout.count * dtype_bytes(layout.dtype));
  const auto seed = 1000u * worker + static_cast<uint64_t>(step) + 1;
  for (uint64_t i = 0; i < layout.count; ++i) {
    const bool live = uniform(seed, i) < density_at(pattern, i);
    const float zero = pattern == Pattern::kUneven && i % 1001 == 0 ? -0.0f : 0.0f;
    write(layout.dtype, gradient, i, live ? static_cast<float>(uniform(seed + 77, i) - 0.5) : zero);
  }
  return gradient;
}

// Codecs of matrices get some: short rows, rows longer than a strip, vectors between and at the
// end.
Layout laid_out(const std::string& spec, Layout layout) {
  if (!spec.starts_with("lowrank")) return layout;
  const uint64_t columns = layout.count / 20;
  layout.segments = {{1, 70 * 401, 70}, {2, 30}, {3, 9 * columns, 9}};
  layout.segments.push_back({4, layout.count - 70 * 401 - 30 - 9 * columns});
  return layout;
}

/// Everything that a run of steps shows.
struct Seen {
  std::vector<Bytes> sums, states;
  std::vector<double> figures;
  bool operator==(const Seen&) const = default;
};

Seen run(const std::string& spec, const Layout& layout, Pattern pattern, uint32_t threads) {
  ThreadPool pool(threads);
  const ThreadPool::Use use(pool);
  Lockstep workers(spec, laid_out(spec, layout));
  Seen seen;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Bytes> gradients;
    for (uint32_t w = 0; w < layout.world; ++w)
      gradients.push_back(draw(layout, pattern, w, step));
    const Status status = workers.step(gradients);
    EXPECT_TRUE(status) << (status ? "" : status.error().message);
    for (uint32_t w = 0; w < layout.world; ++w) {
      const Report& report = workers.codec(w).report();
      seen.figures.insert(
          seen.figures.end(),
          {static_cast<double>(report.wire_bytes), report.sampled_energy, report.sampled_error,
           static_cast<double>(report.local_nonzeros), static_cast<double>(report.union_nonzeros)});
      seen.states.push_back(*workers.codec(w).save_state());
      seen.sums.push_back(std::move(gradients[w]));
    }
  }
  return seen;
}

class Threads : public testing::TestWithParam<std::string> {};

TEST_P(Threads, WriteTheSameBytesWhateverTheirNumber) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const uint64_t count : kLengths) {
      for (const Pattern pattern : {Pattern::kScattered, Pattern::kRows, Pattern::kUneven}) {
        // Every type, length and pattern meets some of the others.
        if ((count + static_cast<uint64_t>(pattern) + static_cast<uint64_t>(dtype)) % 2 != 0)
          continue;
        Layout layout;
        layout.dtype = dtype;
        layout.count = count;
        layout.world = 2;
        layout.scale = 0.5;
        const Seen alone = run(GetParam(), layout, pattern, 1);
        for (const uint32_t threads : {2u, 3u, 4u}) {
          ASSERT_TRUE(run(GetParam(), layout, pattern, threads) == alone)
              << dtype_name(dtype) << " x " << count << ", pattern " << static_cast<int>(pattern)
              << ", " << threads << " threads";
        }
      }
    }
  }
}

// Large enough that memory is written past the caches.
TEST_P(Threads, WriteTheSameBytesOfALargeGradient) {
  Layout layout;
  layout.count = (uint64_t{5} << 20) / 4 + 3;
  layout.world = 2;
  ASSERT_TRUE(run(GetParam(), layout, Pattern::kScattered, 1) ==
              run(GetParam(), layout, Pattern::kScattered, 4));
}

// What so many take by themselves where sums may be narrow.
TEST(Threads, OfManyWorkersWhoseSumsAreNarrowWriteTheSameBytes) {
  for (const char* spec : {"quant", "quant:index=auto", "lowrank:rank=2,factors=quant"}) {
    Layout layout;
    layout.count = kLengths[0];
    layout.world = 18;
    layout.network.narrows = true;
    ASSERT_TRUE(run(spec, layout, Pattern::kRows, 1) == run(spec, layout, Pattern::kRows, 3))
        << spec;
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Threads, testing::ValuesIn(kSpecs), test_name);

// Zero and this worker's lanes.
void sum_alone(const Plane& plane) {
  Bytes sums(op_sum_bytes(plane.op, plane.lanes) + 8, 0);
  if (is_table_sum(plane.op)) {
    const auto* indices = static_cast<const uint8_t*>(plane.data);
    fold_tables(plane.op, sums.data(), &indices, 1, plane.table, plane.lanes);
    std::memcpy(plane.sums, sums.data(), op_sum_bytes(plane.op, plane.lanes));
  } else {
    fold(plane.op, sums.data(), plane.data, plane.lanes);
    std::memcpy(plane.data, sums.data(), op_bytes(plane.op, plane.lanes));
  }
}

// A codec may be stepped by hand with one pool, and finished with another.
TEST(Threads, MayBecomeMoreOrFewerWithinAStep) {
  Layout layout;
  layout.count = 5 * 65536;
  for (const std::string& spec : kSpecs) {
    const Seen alone = run(
        spec,
        [&] {
          Layout one = layout;
          one.world = 1;
          return one;
        }(),
        Pattern::kRows, 1);
    const auto parsed = CodecSpec::parse(spec);
    auto codec = create_codec(*parsed, laid_out(spec, layout));
    ASSERT_TRUE(codec) << spec;
    for (int step = 0; step < kSteps; ++step) {
      Bytes gradient = draw(layout, Pattern::kRows, 0, step);
      Round round;
      for (uint32_t threads = 1;; ++threads) {
        ThreadPool pool(threads);
        const ThreadPool::Use use(pool);
        if (threads == 1) {
          ASSERT_TRUE((*codec)->begin(gradient.data()));
        }
        const auto more = (*codec)->next_round(round);
        ASSERT_TRUE(more);
        for (const Plane& plane : round)
          sum_alone(plane);
        if (!*more) break;
      }
      ThreadPool pool(5);
      const ThreadPool::Use use(pool);
      ASSERT_TRUE((*codec)->finish(gradient.data()));
      ASSERT_TRUE(gradient == alone.sums[static_cast<std::size_t>(step)]) << spec;
    }
  }
}

}  // namespace
}  // namespace addend::testing_support
