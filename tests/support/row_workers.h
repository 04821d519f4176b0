// SPDX-License-Identifier: Apache-2.0
// Workers that sum sparse rows, each in a thread of its own, over any reducers.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "addend/reduce.h"
#include "addend/rows.h"
#include "reduce/mesh/mesh.h"
#include "tests/support/wires.h"
#include "wire/half.h"

namespace addend::testing_support {

/// What one worker brings to a step, and gets out of it.
struct RowPart {
  std::vector<int64_t> rows;
  std::vector<uint8_t> values;

  RowGradient gradient() const { return {rows.data(), values.data(), rows.size()}; }
  bool operator==(const RowPart&) const = default;
};

inline double load_row_element(RowElement element, const uint8_t* from) {
  const auto as = [&]<typename T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    return value;
  };
  switch (element) {
    case RowElement::kF32:
      return as(float{});
    case RowElement::kBf16:
      return addend_f32_from_bf16(as(uint16_t{}));
    case RowElement::kF16:
      return addend_f32_from_f16(as(uint16_t{}));
    case RowElement::kF64:
      return as(double{});
    case RowElement::kI64:
      return static_cast<double>(as(int64_t{}));
    case RowElement::kI32:
      return as(int32_t{});
    case RowElement::kI8:
      return as(int8_t{});
    case RowElement::kU8:
      return as(uint8_t{});
  }
  return 0;
}

inline void append_row_element(RowElement element, double value, std::vector<uint8_t>& to) {
  const auto append = [&](auto stored) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&stored);
    to.insert(to.end(), bytes, bytes + sizeof(stored));
  };
  switch (element) {
    case RowElement::kF32:
      return append(static_cast<float>(value));
    case RowElement::kBf16:
      return append(addend_bf16_from_f32(static_cast<float>(value)));
    case RowElement::kF16:
      return append(addend_f16_from_f32(static_cast<float>(value)));
    case RowElement::kF64:
      return append(value);
    case RowElement::kI64:
      return append(static_cast<int64_t>(value));
    case RowElement::kI32:
      return append(static_cast<int32_t>(value));
    case RowElement::kI8:
      return append(static_cast<int8_t>(value));
    case RowElement::kU8:
      return append(static_cast<uint8_t>(value));
  }
}

/// `count` rows below `table`, some of them twice, of small whole numbers: any order of additions
/// gives the same sums.
inline RowPart random_part(const RowLayout& layout, uint64_t count, uint64_t table, uint64_t seed) {
  std::mt19937_64 random(seed);
  RowPart part;
  for (uint64_t i = 0; i < count; ++i) {
    const bool again = i > 0 && random() % 8 == 0;
    const uint64_t row = again ? static_cast<uint64_t>(part.rows[random() % i]) : random() % table;
    part.rows.push_back(static_cast<int64_t>(row));
    for (uint64_t e = 0; e < layout.width; ++e)
      append_row_element(layout.element, static_cast<double>(random() % 4), part.values);
  }
  return part;
}

/// The sum as anybody would add it up.
inline RowPart plain_sum(const RowLayout& layout, const std::vector<RowPart>& parts) {
  std::map<int64_t, std::vector<double>> sums;
  const uint64_t bytes = row_element_bytes(layout.element);
  for (const RowPart& part : parts) {
    for (std::size_t i = 0; i < part.rows.size(); ++i) {
      auto& sum = sums[part.rows[i]];
      sum.resize(layout.width);
      for (uint64_t e = 0; e < layout.width; ++e) {
        const uint8_t* at = part.values.data() + (i * layout.width + e) * bytes;
        sum[e] += load_row_element(layout.element, at) * layout.scale;
      }
    }
  }
  RowPart made;
  for (const auto& [row, sum] : sums) {
    made.rows.push_back(row);
    for (const double value : sum)
      append_row_element(layout.element, value, made.values);
  }
  return made;
}

/// One worker's end: a codec and a reducer.
class RowWorker {
 public:
  RowWorker(const std::string& spec, RowLayout layout, std::unique_ptr<Reducer> reducer)
      : reducer_(std::move(reducer)) {
    layout.worker = reducer_->worker();
    const auto parsed = CodecSpec::parse(spec);
    auto made = create_row_codec(*parsed, layout);
    EXPECT_TRUE(made) << made.error().message;
    codec_ = std::move(*made);
    bytes_ = layout.width * row_element_bytes(layout.element);
  }

  RowCodec& codec() { return *codec_; }

  /// `rounds`: the step is abandoned after so many, on all workers.
  Status step(const RowPart& part, RowPart* sum, uint32_t rounds = ~uint32_t{0}) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    const Reducer::Claim claims[] = {{"the plan", codec_->fingerprint()}};
    ADDEND_TRY(reducer_->agree(claims, deadline));
    const RowGradient gradient = part.gradient();
    ADDEND_TRY(codec_->begin(&gradient));
    Round round;
    for (uint32_t done = 0;; ++done) {
      if (done == rounds) {
        codec_->cancel();
        return {};
      }
      const bool was_last = done > 0 && round.last;
      const auto more = codec_->next_round(round);
      ADDEND_TRY(more);
      EXPECT_FALSE(was_last && *more) << "a round follows one that was said to be the last";
      if (!*more) break;
      ADDEND_TRY(reducer_->reduce(round, deadline));
    }
    ADDEND_TRY(codec_->finish(nullptr));
    const auto* sums = static_cast<const uint8_t*>(codec_->sums());
    const auto rows = codec_->rows();
    sum->rows.assign(rows.begin(), rows.end());
    sum->values.assign(sums, sums + rows.size() * bytes_);
    return {};
  }

 private:
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<RowCodec> codec_;
  uint64_t bytes_ = 0;
};

/// All workers of a group.
class RowWorkers {
 public:
  enum class Over { kLocal, kMesh };

  RowWorkers(Over over, const std::string& spec, const RowLayout& layout) : wires_(layout.world) {
    auto group = create_local_group(layout.world);
    for (uint32_t w = 0; w < layout.world; ++w) {
      std::unique_ptr<Reducer> reducer = (*group)->reducer(w);
      if (over == Over::kMesh)
        reducer = std::move(*mesh::MeshReducer::create(wires_.take(w), {w, 1000}));
      workers_.push_back(std::make_unique<RowWorker>(spec, layout, std::move(reducer)));
    }
  }

  // Together: an end of a mesh waits a moment for the others to leave.
  ~RowWorkers() {
    on_all([&](std::size_t w) { workers_[w].reset(); });
  }

  RowWorker& operator[](std::size_t w) { return *workers_[w]; }

  /// What every worker gets.
  std::vector<RowPart> step(const std::vector<RowPart>& parts, uint32_t rounds = ~uint32_t{0}) {
    std::vector<RowPart> sums(parts.size());
    on_all([&](std::size_t w) {
      const Status status = workers_[w]->step(parts[w], &sums[w], rounds);
      EXPECT_TRUE(status) << "worker " << w << ": " << status.error().message;
    });
    return sums;
  }

 private:
  template <typename Body>
  void on_all(const Body& body) {
    std::vector<std::thread> threads;
    for (std::size_t w = 0; w < workers_.size(); ++w)
      threads.emplace_back([&, w] { body(w); });
    for (std::thread& thread : threads)
      thread.join();
  }

  Wires wires_;
  std::vector<std::unique_ptr<RowWorker>> workers_;
};

}  // namespace addend::testing_support
