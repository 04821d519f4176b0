// SPDX-License-Identifier: Apache-2.0
// Keys are distributed to chunks whose cells fit a second-level cache; all random access happens
// inside one chunk. Distributing and collecting walk the index in order and keep one stream per
// chunk. Per key and pass: the hashes, 8 bytes of cell numbers (16 for eight hashes) and 8*words of
// value, written once and read once.
#include "codec/exact/sketch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/bits.h"
#include "codec/exact/sketch_homes.h"
#include "wire/sketch_hash.h"

namespace addend::exact {
namespace {

uint32_t lane_shift(const SketchShape& shape) {
  return static_cast<uint32_t>(std::countr_zero(shape.lanes));
}

// Writes the positions of the set bits, ascending. Eight at a time, needed or not: the loop count
// per word is then nearly constant, and guessing it wrong would cost more than the spare stores.
// REQUIRES: room for eight positions more than there are.
void list_positions(const KeySet& keys, uint64_t* positions) {
  for (uint64_t w = 0; w < keys.words; ++w) {
    uint64_t word = keys.bitmap[w];
    uint64_t* next = positions + std::popcount(word);
    while (word != 0) {
      for (int i = 0; i < 8; ++i) {
        positions[i] = w * 64 + static_cast<uint64_t>(std::countr_zero(word | uint64_t{1} << 63));
        word &= word - 1;
      }
      positions += 8;
    }
    positions = next;
  }
}

// Room for a chunk's keys when they spread as hashes do: the mean and more than six standard
// deviations.
uint64_t even_room(uint64_t keys, uint32_t chunks) {
  const double mean = static_cast<double>(keys) / chunks;
  return static_cast<uint64_t>(mean + 7 * std::sqrt(mean)) + 16;
}

// Cell numbers inside a chunk fit 16 bits unless someone asked for many lanes.
bool small_chunks(const SketchShape& shape) {
  return shape.chunk_cells() <= std::numeric_limits<uint16_t>::max();
}

// Calls run<CellId, kWords, kHashes>() with the narrowest cell number, the number of hashes and,
// for the common one-word cells, their width as constants.
template <typename CellId, uint32_t kWords, typename Run>
void with_hashes(const SketchShape& shape, Run& run) {
  if (shape.hashes == 3) {
    run.template operator()<CellId, kWords, 3>();
  } else if (shape.hashes == 4) {
    run.template operator()<CellId, kWords, 4>();
  } else {
    run.template operator()<CellId, kWords, ADDEND_SKETCH_RUN>();
  }
}

template <typename Run>
void with_types(const SketchShape& shape, Run&& run) {
  if (small_chunks(shape)) {
    shape.words == 1 ? with_hashes<uint16_t, 1>(shape, run) : with_hashes<uint16_t, 0>(shape, run);
  } else {
    shape.words == 1 ? with_hashes<uint32_t, 1>(shape, run) : with_hashes<uint32_t, 0>(shape, run);
  }
}

}  // namespace

Status Sketch::reserve(const SketchShape& shape, uint64_t keys) {
  const uint64_t id_bytes = small_chunks(shape) ? 2 : 4;
  const uint64_t slots = std::max(keys, even_room(keys, shape.chunks) * shape.chunks);
  ADDEND_TRY(starts_.reserve((uint64_t{shape.chunks} + 1) * 8));
  ADDEND_TRY(ends_.reserve(uint64_t{shape.chunks} * 8));
  ADDEND_TRY(positions_.reserve((keys + 8) * 8));
  ADDEND_TRY(homes_.reserve(slots * homes_room(shape.hashes) * id_bytes));
  ADDEND_TRY(slots_.reserve(slots * shape.words * 8));
  ADDEND_TRY(done_.reserve(slots));
  return {};
}

// Hashes nearly always spread keys evenly, so chunks first get equal room; only if one overflows
// are they counted.
template <typename CellId, uint32_t kWords, uint32_t kHashes>
void Sketch::distribute(const SketchShape& shape, const KeySet& keys, const int64_t* values) {
  auto* starts = starts_.as<uint64_t>();
  list_positions(keys, positions_.as<uint64_t>());
  const uint64_t room = even_room(keys.count, shape.chunks);
  for (uint64_t c = 0; c <= shape.chunks; ++c)
    starts[c] = c * room;
  if (spread<CellId, kWords, kHashes>(shape, keys.count, values)) return;
  const auto* positions = positions_.as<uint64_t>();
  const uint32_t shift = lane_shift(shape);
  std::fill(starts, starts + shape.chunks + 1, 0);
  for (uint64_t i = 0; i < keys.count; ++i) {
    const uint64_t hash = addend_sketch_hash(shape.seed, positions[i] >> shift);
    ++starts[addend_sketch_chunk(hash, shape.chunks) + 1];
  }
  for (uint64_t c = 0; c < shape.chunks; ++c)
    starts[c + 1] += starts[c];
  spread<CellId, kWords, kHashes>(shape, keys.count, values);
}

// Puts every key into the next slot of its chunk; false if a chunk has no slot left.
template <typename CellId, uint32_t kWords, uint32_t kHashes>
bool Sketch::spread(const SketchShape& shape, uint64_t keys, const int64_t* values) {
  constexpr uint64_t kBatch = 256;
  std::array<uint64_t, kBatch> chunks;
  std::array<Homes<CellId, kHashes>, kBatch> found;
  const auto* starts = starts_.as<uint64_t>();
  const auto* positions = positions_.as<uint64_t>();
  auto* ends = ends_.as<uint64_t>();
  auto* homes = homes_.as<Homes<CellId, kHashes>>();
  auto* slots = slots_.as<int64_t>();
  const uint32_t words = kWords != 0 ? kWords : shape.words;
  std::copy_n(starts, shape.chunks, ends);
  for (uint64_t first = 0; first < keys; first += kBatch) {
    const uint64_t count = std::min(kBatch, keys - first);
    find_homes(shape, positions + first, count, chunks.data(), found.data());
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t slot = ends[chunks[i]]++;
      if (slot == starts[chunks[i] + 1]) [[unlikely]]
        return false;
      homes[slot] = found[i];
      if (values == nullptr) continue;
      for (uint32_t w = 0; w < words; ++w)
        slots[slot * words + w] = values[(first + i) * words + w];
    }
  }
  return true;
}

template <typename CellId, uint32_t kWords, uint32_t kHashes>
void Sketch::insert_chunk(const SketchShape& shape, uint32_t chunk, uint64_t* cells) const {
  const auto* homes = homes_.as<Homes<CellId, kHashes>>();
  const auto* slots = slots_.as<int64_t>();
  const uint32_t words = kWords != 0 ? kWords : shape.words;
  const uint64_t end = ends_.as<uint64_t>()[chunk];
  for (uint64_t slot = starts_.as<uint64_t>()[chunk]; slot < end; ++slot) {
    const Homes<CellId, kHashes> home = homes[slot];
    for (uint32_t w = 0; w < words; ++w) {
      const auto value = static_cast<uint64_t>(slots[slot * words + w]);
      for (uint32_t j = 0; j < kHashes; ++j)
        cells[uint64_t{home.cell[j]} * words + w] += value;
    }
  }
}

Status Sketch::insert(const SketchShape& shape, const KeySet& keys, const int64_t* values,
                      uint64_t* cells) {
  ADDEND_TRY(reserve(shape, keys.count));
  with_types(shape, [&]<typename CellId, uint32_t kWords, uint32_t kHashes>() {
    distribute<CellId, kWords, kHashes>(shape, keys, values);
    for (uint32_t c = 0; c < shape.chunks; ++c) {
      insert_chunk<CellId, kWords, kHashes>(shape, c,
                                            cells + c * shape.chunk_cells() * shape.words);
    }
  });
  return {};
}

// A node is what is left in one cell: a word whose upper half counts the keys and whose lower half
// is the exclusive or of their numbers (the key itself when one is left), then the cell's sum.
// Keeping both together makes a visit one cache line.
//
// Keys are peeled first in, first out: neighbours in the queue rarely touch the same cells, so the
// CPU overlaps their cache misses; a stack would chase one chain. A cell enters the queue once,
// when its count reaches one, so the queue never wraps.
template <typename CellId, uint32_t kWords, uint32_t kHashes>
void Sketch::peel_chunk(const SketchShape& shape, uint32_t chunk, uint64_t* cells) {
  constexpr uint64_t kOne = uint64_t{1} << 32;
  const uint32_t words = kWords != 0 ? kWords : shape.words;
  const uint32_t stride = words + 1;
  const uint64_t cell_count = shape.chunk_cells();
  const uint64_t begin = starts_.as<uint64_t>()[chunk];
  const uint64_t keys = ends_.as<uint64_t>()[chunk] - begin;
  const auto* homes = homes_.as<Homes<CellId, kHashes>>() + begin;
  auto* slots = slots_.as<int64_t>() + begin * words;
  auto* done = done_.as<uint8_t>() + begin;
  auto* nodes = nodes_.as<uint64_t>();
  auto* queue = queue_.as<uint32_t>();

  for (uint64_t cell = 0; cell < cell_count; ++cell) {
    nodes[cell * stride] = 0;
    for (uint32_t w = 0; w < words; ++w)
      nodes[cell * stride + 1 + w] = cells[cell * words + w];
  }
  for (uint64_t key = 0; key < keys; ++key) {
    const Homes<CellId, kHashes> home = homes[key];
    for (uint32_t j = 0; j < kHashes; ++j) {
      uint64_t& left = nodes[uint64_t{home.cell[j]} * stride];
      left = (left + kOne) ^ key;
    }
  }
  uint64_t tail = 0;
  for (uint64_t cell = 0; cell < cell_count; ++cell) {
    queue[tail] = static_cast<uint32_t>(cell);
    tail += nodes[cell * stride] >> 32 == 1 ? 1 : 0;
  }
  for (uint64_t head = 0; head < tail; ++head) {
    const uint64_t* node = nodes + uint64_t{queue[head]} * stride;
    if (node[0] >> 32 != 1) continue;  // its last key went out through another cell
    const uint64_t key = node[0] & (kOne - 1);
    int64_t* value = slots + key * words;
    const uint64_t first = node[1];  // in a register: the stores below could alias the slot
    value[0] = static_cast<int64_t>(first);
    for (uint32_t w = 1; w < words; ++w)
      value[w] = static_cast<int64_t>(node[1 + w]);
    done[key] = 1;
    const Homes<CellId, kHashes> home = homes[key];
    for (uint32_t j = 0; j < kHashes; ++j) {
      uint64_t* other = nodes + uint64_t{home.cell[j]} * stride;
      const uint64_t left = (other[0] - kOne) ^ key;
      other[0] = left;
      other[1] -= first;
      for (uint32_t w = 1; w < words; ++w)
        other[1 + w] -= static_cast<uint64_t>(value[w]);
      queue[tail] = home.cell[j];
      tail += left >> 32 == 1 ? 1 : 0;
    }
  }
  for (uint64_t cell = 0; cell < cell_count; ++cell) {
    for (uint32_t w = 0; w < words; ++w)
      cells[cell * words + w] = nodes[cell * stride + 1 + w];
  }
}

// The slots of a chunk ascend, so taking the next slot of each key's chunk, in index order,
// restores that order.
template <uint32_t kWords>
void Sketch::collect(const SketchShape& shape, const KeySet& keys) {
  const SketchShape local = shape;
  const uint32_t words = kWords != 0 ? kWords : local.words;
  auto* cursors = ends_.as<uint64_t>();
  const auto* positions = positions_.as<uint64_t>();
  const auto* slots = slots_.as<int64_t>();
  const auto* done = done_.as<uint8_t>();
  auto* sorted = sorted_.as<int64_t>();
  auto* stuck = stuck_.as<uint64_t>();
  const uint32_t shift = lane_shift(local);
  std::copy_n(starts_.as<uint64_t>(), local.chunks, cursors);
  std::fill_n(stuck, keys.words, 0);
  uint64_t stuck_count = 0;
  for (uint64_t i = 0; i < keys.count; ++i) {
    const uint64_t hash = addend_sketch_hash(local.seed, positions[i] >> shift);
    const uint64_t slot = cursors[addend_sketch_chunk(hash, local.chunks)]++;
    for (uint32_t w = 0; w < words; ++w)
      sorted[i * words + w] = slots[slot * words + w];
    if (done[slot] != 0) [[likely]]
      continue;
    set_bit(stuck, positions[i]);
    ++stuck_count;
  }
  stuck_set_ = {stuck, keys.words, stuck_count};
}

Status Sketch::peel(const SketchShape& shape, const KeySet& keys, uint64_t* cells) {
  ADDEND_TRY(reserve(shape, keys.count));
  ADDEND_TRY(sorted_.reserve(keys.count * shape.words * 8));
  ADDEND_TRY(nodes_.reserve(shape.chunk_cells() * (shape.words + 1) * 8));
  // One slot more than cells: an entry is written before it is known to count.
  ADDEND_TRY(queue_.reserve((shape.chunk_cells() + 1) * 4));
  ADDEND_TRY(stuck_.reserve(keys.words * 8));
  std::memset(done_.as<uint8_t>(), 0, done_.capacity());
  with_types(shape, [&]<typename CellId, uint32_t kWords, uint32_t kHashes>() {
    distribute<CellId, kWords, kHashes>(shape, keys, nullptr);
    for (uint32_t c = 0; c < shape.chunks; ++c) {
      peel_chunk<CellId, kWords, kHashes>(shape, c, cells + c * shape.chunk_cells() * shape.words);
    }
    collect<kWords>(shape, keys);
  });
  return {};
}

Status Sketch::settle(const SketchShape& shape, const int64_t* stuck_values, uint64_t* cells) {
  if (stuck_set_.count > 0) {
    auto* negated = sorted_.as<int64_t>();  // the peeled values have been taken out by now
    for (uint64_t i = 0; i < stuck_set_.count * shape.words; ++i) {
      negated[i] = static_cast<int64_t>(-static_cast<uint64_t>(stuck_values[i]));
    }
    ADDEND_TRY(insert(shape, stuck_set_, negated, cells));
  }
  return check_zero(shape, cells);
}

Status Sketch::check_zero(const SketchShape& shape, const uint64_t* cells) {
  const uint64_t total = shape.lanes_total();
  const auto zeros = static_cast<uint64_t>(std::count(cells, cells + total, uint64_t{0}));
  return check_zeros(shape, total - zeros);
}

Status Sketch::check_zeros(const SketchShape& shape, uint64_t others) {
  if (others == 0) return {};
  return make_error(Errc::kUndecodable, "after peeling, " + std::to_string(others) + " of " +
                                            std::to_string(shape.lanes_total()) +
                                            " sketch counters are not zero: the cells and the "
                                            "index that came back do not belong together");
}

uint64_t Sketch::memory_bytes() const {
  uint64_t total = 0;
  for (const Buffer* buffer : {&starts_, &ends_, &positions_, &homes_, &slots_, &done_, &sorted_,
                               &nodes_, &queue_, &stuck_}) {
    total += buffer->capacity();
  }
  return total;
}

}  // namespace addend::exact
