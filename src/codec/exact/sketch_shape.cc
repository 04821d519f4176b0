// SPDX-License-Identifier: Apache-2.0
// How large a sketch is. Sizes of live steps are part of the format (docs/formats/exact.md,
// "Sizing"); those of files stand in their plans. tests/laws/sketch_recovery_test.cc measures both.
#include <algorithm>
#include <cmath>

#include "codec/exact/sketch.h"
#include "wire/sketch_hash.h"

namespace addend::exact {
namespace {

// A chunk's decoder state is 16 bytes a cell and about 17 a key: this many keys keep it near half a
// megabyte.
constexpr uint64_t kChunkKeys = 16384;
// Without a fix-up round: the most keys whose cells have numbers of 16 bits.
constexpr double kWholeChunkKeys = 49152;

// The caller's seed may also have shaped the data; a mixed one cannot resonate with it.
uint64_t mixed(uint64_t seed) { return addend_mix64(seed ^ 0x736B657463683031ull); }

// Cells per key that peel with high probability: the thresholds of random k-uniform hypergraphs
// (k=3: 1.222, k=4: 1.295) plus what finite size and the fluctuation of chunk sizes cost. `graph`
// is the number of keys of one independent graph (one lane of one chunk). Small graphs take k=4:
// its failures fall with the square of the size.
struct Sizing {
  uint32_t hashes;
  double cells_per_key;
};

Sizing sizing(double graph) {
  if (graph >= 12000) return {3, 1.28};
  if (graph >= 4000) return {3, 1.28 + 0.06 * (12000 - graph) / 8000};
  if (graph >= 1000) return {4, 1.38 + 0.06 * (4000 - graph) / 3000};
  return {4, 1.44 + 0.6 * std::sqrt((1000 - graph) / 1000)};
}

// Segments and cells of a graph of eight hashes that peels whole. Two things must not happen: two
// keys in the same eight cells, which sets the size of the smallest graphs, and a large core. How
// often they do at these sizes: docs/algorithms/exact.md, "Sketches in files".
struct WholeSizing {
  uint32_t segments;
  double cells;
};

WholeSizing whole_sizing(double keys) {
  const double root = std::sqrt(keys);
  if (keys >= 4000) return {64, 1.16 * keys + 30 * root};
  return {8, std::max(1.9 * keys + 7.5 * root, 8 * 17 * std::sqrt(root))};
}

}  // namespace

SketchShape SketchShape::plan(uint64_t keys, uint32_t lanes, uint32_t words, uint64_t seed) {
  SketchShape shape;
  shape.seed = mixed(seed);
  shape.lanes = lanes;
  shape.words = words;
  const double total = static_cast<double>(std::max<uint64_t>(keys, 1));
  const double wanted = std::floor(total / static_cast<double>(kChunkKeys * lanes));
  shape.chunks = static_cast<uint32_t>(std::clamp(wanted, 1.0, 4294967295.0));
  const double graph = total / shape.chunks / lanes;
  const Sizing size = sizing(graph);
  shape.hashes = size.hashes;
  // A few spare rows absorb the fluctuation of very small graphs.
  const double rows = std::ceil(graph * size.cells_per_key / size.hashes) + (graph < 1000 ? 2 : 0);
  shape.table_rows = static_cast<uint32_t>(std::min(rows, 1e9));
  return shape;
}

SketchShape SketchShape::plan_whole(uint64_t keys, uint32_t words, uint64_t seed) {
  SketchShape shape;
  shape.seed = mixed(seed);
  shape.words = words;
  shape.hashes = ADDEND_SKETCH_RUN;
  const double total = static_cast<double>(std::max<uint64_t>(keys, 1));
  shape.chunks = static_cast<uint32_t>(std::min(std::ceil(total / kWholeChunkKeys), 4294967295.0));
  const WholeSizing size = whole_sizing(total / shape.chunks);
  shape.starts = size.segments - shape.hashes + 1;
  shape.table_rows = static_cast<uint32_t>(std::min(std::ceil(size.cells / size.segments), 1e9));
  return shape;
}

bool SketchShape::can_hold(uint64_t keys) const {
  const double threshold = hashes == 3 ? 0.818 : 0.772;
  return static_cast<double>(keys) <= threshold * static_cast<double>(cells());
}

}  // namespace addend::exact
