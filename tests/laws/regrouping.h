// SPDX-License-Identifier: Apache-2.0
// A model's parameters as segments, in buckets that may be regrouped between steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {

/// Whole blocks, tails of every kind, less than a block, nothing; vectors, and matrices of many
/// shapes.
inline const std::vector<Segment> kSegments = {
    {70, 4096, 64}, {3, 1, 1},     {9, 63, 7}, {11, 64},       {500, 65, 5},
    {12, 5000, 50}, {13, 2049, 3}, {1, 0, 0},  {15, 904, 113}, {16, 130}};

/// Segments of a bucket, by their place in kSegments.
using Group = std::vector<std::size_t>;
/// Saved states by (worker, segment).
using States = std::map<std::pair<uint32_t, std::size_t>, Bytes>;

struct Model {
  DType dtype = DType::kF32;
  uint32_t world = 1;
  uint64_t seed = 1;

  /// Every segment in a bucket of its own.
  std::vector<Group> one_each() const {
    std::vector<Group> groups;
    for (std::size_t s = 0; s < kSegments.size(); ++s)
      groups.push_back({s});
    return groups;
  }

  /// A random order, cut at random.
  std::vector<Group> random_groups(uint64_t draw) const {
    Group order(kSegments.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return addend_random(draw, a) < addend_random(draw, b);
    });
    std::vector<Group> groups(1);
    for (const std::size_t s : order) {
      if (!groups.back().empty() && addend_random(draw + 1, s) % 3 == 0) groups.emplace_back();
      groups.back().push_back(s);
    }
    return groups;
  }

  /// Element i of a segment's gradient. Sizes differ by segment; one is silent now and then, one
  /// has a NaN once.
  float value(uint32_t w, std::size_t s, uint64_t step, uint64_t i) const {
    if (s == 6 && step % 4 == 1) return 0;
    if (s == 8 && step == 5 && i == 700 && w == 1) return NAN;
    const uint64_t stream = seed + 1000 * step + 100 * w + 7919 * kSegments[s].id;
    return static_cast<float>(std::ldexp(normal(stream, i), static_cast<int>(s % 4)));
  }
};

class Buckets {
 public:
  Buckets(const std::string& spec, const Model& model, std::vector<Group> groups,
          uint64_t first_step)
      : model_(model), groups_(std::move(groups)) {
    Layout layout;
    layout.dtype = model.dtype;
    layout.world = model.world;
    layout.seed = model.seed;
    layout.first_step = first_step;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      layout.bucket = 10 * first_step + g;
      layout.count = 0;
      layout.segments.clear();
      for (const std::size_t s : groups_[g]) {
        layout.segments.push_back(kSegments[s]);
        layout.count += kSegments[s].count;
      }
      workers_.emplace_back(spec, layout);
    }
  }

  /// Every segment's sum, after all workers were found to hold the same bits.
  Result<std::vector<Bytes>> step(uint64_t step) {
    std::vector<Bytes> sums(kSegments.size());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      std::vector<Bytes> gradients = gradients_of(groups_[g], step);
      ADDEND_TRY(workers_[g].step(gradients));
      for (uint32_t w = 1; w < model_.world; ++w) {
        if (gradients[w] != gradients[0]) return make_error(Errc::kMismatch, "workers differ");
      }
      auto at = gradients[0].begin();
      for (const std::size_t s : groups_[g]) {
        const auto end = at + static_cast<std::ptrdiff_t>(bytes(s));
        sums[s].assign(at, end);
        at = end;
      }
    }
    return sums;
  }

  States save() {
    States states;
    for_each([&](Codec& codec, uint32_t w, std::size_t number, std::size_t s) {
      states[{w, s}] = *codec.save_segment(number);
    });
    return states;
  }

  Status load(const States& states) {
    Status all;
    for_each([&](Codec& codec, uint32_t w, std::size_t number, std::size_t s) {
      const Status loaded = codec.load_segment(number, states.at({w, s}));
      if (!loaded) all = loaded;
    });
    return all;
  }

 private:
  std::size_t bytes(std::size_t s) const { return kSegments[s].count * dtype_bytes(model_.dtype); }

  std::vector<Bytes> gradients_of(const Group& group, uint64_t step) const {
    std::vector<Bytes> gradients(model_.world);
    for (uint32_t w = 0; w < model_.world; ++w) {
      for (const std::size_t s : group) {
        Bytes part(bytes(s));
        for (uint64_t i = 0; i < kSegments[s].count; ++i)
          write(model_.dtype, part, i, model_.value(w, s, step, i));
        gradients[w].insert(gradients[w].end(), part.begin(), part.end());
      }
      gradients[w].push_back(0);  // a bucket without elements has an address too
    }
    return gradients;
  }

  // visit(codec, worker, number of the segment in its bucket, segment)
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (uint32_t w = 0; w < model_.world; ++w) {
        for (std::size_t n = 0; n < groups_[g].size(); ++n)
          visit(workers_[g].codec(w), w, n, groups_[g][n]);
      }
    }
  }

  Model model_;
  std::vector<Group> groups_;
  std::vector<Lockstep> workers_;
};

/// What training does to parameters: they change buckets while it runs, and restarts regroup them.
inline void check_regrouping(const std::string& spec, DType dtype, uint64_t seed) {
  const Model model{dtype, 3, seed};
  Buckets alone(spec, model, model.one_each(), 0);
  Buckets grouped(spec, model, model.random_groups(seed), 0);
  for (uint64_t step = 0; step < 20; ++step) {
    if (addend_random(seed, step) % 3 == 0) {
      const States states = grouped.save();
      grouped = Buckets(spec, model, model.random_groups(seed + step), step);
      const Status loaded = grouped.load(states);
      ASSERT_TRUE(loaded) << spec << " seed " << seed << ": " << loaded.error().message;
    }
    const auto expected = alone.step(step), actual = grouped.step(step);
    ASSERT_TRUE(expected && actual);
    for (std::size_t s = 0; s < kSegments.size(); ++s) {
      ASSERT_EQ((*actual)[s], (*expected)[s])
          << spec << " " << dtype_name(dtype) << " seed " << seed << " step " << step << " segment "
          << s << " of " << kSegments[s].count;
    }
  }
  EXPECT_EQ(grouped.save(), alone.save()) << spec << " seed " << seed;
}

}  // namespace addend::testing_support
