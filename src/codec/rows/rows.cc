// SPDX-License-Identifier: Apache-2.0
#include "codec/rows/rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/bits.h"
#include "codec/convert.h"
#include "codec/fingerprint.h"

namespace addend {
namespace rows {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);
// Rows of all workers together have no more bytes.
constexpr uint64_t kMostBytes = uint64_t{1} << 56;
constexpr uint64_t kLeastSpareRows = 64;

bool reducers_add(RowElement element) { return element <= RowElement::kF16; }

// As plane operations number them; for types without one, what the checks of a layout accept.
DType dtype_of(RowElement element) {
  return reducers_add(element) ? static_cast<DType>(element) : DType::kF32;
}

void multiply_rows(RowElement element, const void* from, uint64_t count, double scale, void* to) {
  if (count == 0) return;
  if (reducers_add(element)) {
    multiply(dtype_of(element), from, count, static_cast<float>(scale), to);
  } else if (scale == 1) {
    std::memcpy(to, from, count * row_element_bytes(element));
  } else {
    std::transform(static_cast<const double*>(from), static_cast<const double*>(from) + count,
                   static_cast<double*>(to), [scale](double value) { return value * scale; });
  }
}

std::string_view option(const CodecSpec& spec, std::string_view key) {
  for (const auto& [name, value] : spec.options) {
    if (name == key) return value;
  }
  return "";
}

}  // namespace

uint64_t roomy(uint64_t count) {
  constexpr uint64_t kLeastStep = 64;
  const auto bits = static_cast<uint32_t>(std::bit_width(count));
  const uint64_t step = std::max(kLeastStep, uint64_t{1} << (bits > 3 ? bits - 3 : 0));
  return (count / step + 1) * step;
}

RowSums::RowSums(const CodecSpec& spec, const RowLayout& layout, const Layout& base, bool plain)
    : Stepped(base),
      spec_(spec),
      rows_(layout),
      plain_(plain),
      row_bytes_(layout.width * row_element_bytes(layout.element)),
      step_(layout.first_step) {}

// The hint decides which way values go, so it must be the same, too.
uint64_t RowSums::fingerprint() const {
  Fingerprint print;
  print.add("rows")
      .add(spec_.to_string())
      .add(static_cast<uint64_t>(rows_.element))
      .add(rows_.width)
      .add(layout())
      .add(rows_.network.latency_us)
      .add(rows_.network.gbit_per_s)
      .add(most_)
      .add(union_)
      .add(step_);
  if (rows_.network.narrows) print.add("narrows");
  return print.value();
}

uint64_t RowSums::memory_bytes() const {
  return plane_.capacity() + scaled_.capacity() + sums_.capacity() + merged_.memory_bytes() +
         (counts_.capacity() + bounds_.capacity()) * kWordBytes +
         (inner_ ? inner_->memory_bytes() : 0);
}

// ---- the plan

bool RowSums::gathers(uint64_t most) const {
  if (!reducers_add(rows_.element)) return true;
  if (!plain_) return false;
  const auto world = static_cast<double>(rows_.world), bytes = static_cast<double>(row_bytes_);
  const auto largest = static_cast<double>(most);
  const double rows = union_ > 0 ? static_cast<double>(union_) : world * largest;
  const double gathered = (world - 1) * largest * bytes;
  const double summed = 2 * (world - 1) / world * rows * bytes;
  return (gathered - summed) * 8e-3 / rows_.network.gbit_per_s <= 2 * rows_.network.latency_us;
}

// Bounds must be the same on all workers, so before counts are known a worker sends all of its
// room: that saves a round, and costs what is spare.
uint64_t RowSums::room(uint64_t most) const {
  const uint64_t spare = most / 16 + kLeastSpareRows;
  const uint64_t bytes = spare * (kWordBytes + (gathers(most) ? row_bytes_ : 0));
  const double sent = static_cast<double>(rows_.world - 1) * static_cast<double>(bytes);
  const bool pays = sent * 8e-3 / rows_.network.gbit_per_s <= 2 * rows_.network.latency_us;
  return pays ? most + spare : 0;
}

// ---- the plane of rows

Status RowSums::add_rows_plane(Round& round) {
  bounds_.assign(1, 0);
  for (uint32_t w = 0; w < rows_.world; ++w) {
    const uint64_t values = gathered_ ? ceil_div(capacity(w) * row_bytes_, kWordBytes) : 0;
    bounds_.push_back(bounds_.back() + (counted_ ? 0 : 1) + capacity(w) + values);
  }
  const uint64_t lanes = bounds_.back();
  ADDEND_TRY(plane_.reserve(lanes * kWordBytes));
  // Also for reducers that know nothing of bounds.
  if (lanes > 0) std::memset(plane_.as<void>(), 0, lanes * kWordBytes);
  uint64_t* words = plane_.as<uint64_t>();
  const uint32_t own = rows_.worker;
  if (!counted_) words[bounds_[own]] = given_.count;
  if (given_.count > 0 && given_.count <= capacity(own)) {
    std::memcpy(words + rows_at(own), given_.rows, given_.count * kWordBytes);
    if (gathered_) {
      multiply_rows(rows_.element, given_.values, given_.count * rows_.width, rows_.scale,
                    words + rows_at(own) + capacity(own));
    }
  }
  round.add({Op::kOrU64, lanes, words, nullptr, nullptr, bounds_.data()});
  return {};
}

Status RowSums::read_counts() {
  const uint64_t most = kMostBytes / rows_.world / (kWordBytes + row_bytes_);
  counts_.clear();
  for (uint32_t w = 0; w < rows_.world; ++w) {
    counts_.push_back(plane_.as<uint64_t>()[bounds_[w]]);
    if (counts_[w] > most || (w == rows_.worker && counts_[w] != given_.count)) {
      return make_error(Errc::kUndecodable, "the sum says that worker " + std::to_string(w) +
                                                " has " + std::to_string(counts_[w]) + " rows");
    }
  }
  most_now_ = *std::max_element(counts_.begin(), counts_.end());
  return {};
}

void RowSums::merge_rows() {
  std::vector<std::span<const int64_t>> parts;
  for (uint32_t w = 0; w < rows_.world; ++w)
    parts.emplace_back(plane_.as<int64_t>() + rows_at(w), counts_[w]);
  merged_.merge(parts);
}

// ---- a step

Status RowSums::do_begin(const void* gradient) {
  const auto* given = static_cast<const RowGradient*>(gradient);
  if (given == nullptr) return make_error(Errc::kInvalidArgument, "begin: no rows were given");
  if (given->count > 0 &&
      (given->rows == nullptr || (given->values == nullptr && row_bytes_ > 0))) {
    return make_error(Errc::kInvalidArgument, "begin: rows or their values are null");
  }
  if (given->count > kMostBytes / rows_.world / (kWordBytes + row_bytes_)) {
    return make_error(Errc::kInvalidArgument, "begin: too many rows");
  }
  if (inner_) inner_->cancel();
  given_ = *given;
  stage_ = Stage::kMeet;
  counted_ = false;
  gathered_ = gathers(most_);
  room_ = room(most_);
  result_ = {};
  return {};
}

Result<bool> RowSums::do_round(Round& round) {
  switch (stage_) {
    case Stage::kMeet:
      stage_ = Stage::kMet;
      ADDEND_TRY(add_rows_plane(round));
      return true;
    case Stage::kMet:
      ADDEND_TRY(read_counts());
      if (most_now_ <= room_) return after_rows(round);
      stage_ = Stage::kRows;
      counted_ = true;
      gathered_ = gathers(most_now_);
      ADDEND_TRY(add_rows_plane(round));
      round.last = gathered_;
      return true;
    case Stage::kRows:
      return after_rows(round);
    case Stage::kInner:
      return inner_->next_round(round);
    case Stage::kSummed:
      break;
  }
  return false;
}

Result<bool> RowSums::after_rows(Round& round) {
  stage_ = Stage::kSummed;
  if (gathered_) return false;
  merge_rows();
  const uint64_t elements = merged_.rows().size() * rows_.width;
  if (elements == 0) return false;
  if (!plain_) return begin_inner(round);
  ADDEND_TRY(sums_.reserve(elements * row_element_bytes(rows_.element)));
  ADDEND_TRY(sum_own_rows());
  round.add({sum_op(layout().dtype), elements, sums_.as<void>(), nullptr, nullptr});
  round.last = true;
  return true;
}

// This worker's part of the packed values.
Status RowSums::sum_own_rows() {
  std::vector<const void*> values(rows_.world, nullptr);
  values[rows_.worker] = given_.values;
  if (rows_.scale != 1 && given_.count > 0) {
    ADDEND_TRY(scaled_.reserve(given_.count * row_bytes_));
    multiply_rows(rows_.element, given_.values, given_.count * rows_.width, rows_.scale,
                  scaled_.as<void>());
    values[rows_.worker] = scaled_.as<void>();
  }
  merged_.sum(rows_.element, rows_.width, values, sums_.as<void>());
  return {};
}

// What a codec draws depends on seed and step alone, so a restarted job goes on as if nothing had
// happened.
Result<bool> RowSums::begin_inner(Round& round) {
  Layout packed = layout();
  packed.count = roomy(merged_.rows().size()) * rows_.width;
  packed.scale = 1;
  packed.first_step = step_;
  if (!inner_ || inner_->layout().count != packed.count || inner_step_ != step_) {
    auto made = create_codec(spec_, packed);
    ADDEND_TRY(made);
    inner_ = std::move(*made);
    inner_step_ = step_;
  }
  const uint64_t bytes = merged_.rows().size() * row_bytes_;
  const uint64_t padded = packed.count * row_element_bytes(rows_.element);
  ADDEND_TRY(sums_.reserve(padded));
  ADDEND_TRY(sum_own_rows());
  std::memset(sums_.as<uint8_t>() + bytes, 0, padded - bytes);
  ADDEND_TRY(inner_->begin_in_place(sums_.as<void>()));
  stage_ = Stage::kInner;
  return inner_->next_round(round);
}

Status RowSums::sum_all_rows() {
  merge_rows();
  ADDEND_TRY(sums_.reserve(merged_.rows().size() * row_bytes_));
  std::vector<const void*> values;
  for (uint32_t w = 0; w < rows_.world; ++w)
    values.push_back(plane_.as<uint64_t>() + rows_at(w) + capacity(w));
  merged_.sum(rows_.element, rows_.width, values, sums_.as<void>());
  return {};
}

Status RowSums::do_finish(void*) {
  if (gathered_) ADDEND_TRY(sum_all_rows());
  if (stage_ == Stage::kInner) {
    ADDEND_TRY(inner_->finish(sums_.as<void>()));
    ++inner_step_;
    const Report& inner = inner_->report();
    draft().sampled_energy = inner.sampled_energy;
    draft().sampled_error = inner.sampled_error;
    draft().nonfinite = inner.nonfinite;
  }
  draft().mode = mode(gathered_);
  result_ = merged_.rows();
  most_ = most_now_;
  union_ = result_.size();
  ++step_;
  return {};
}

}  // namespace rows

Result<std::unique_ptr<RowCodec>> create_row_codec(const CodecSpec& spec, const RowLayout& layout) {
  using rows::option;
  if (layout.element > RowElement::kU8)
    return make_error(Errc::kInvalidArgument, "unknown element type");
  if (layout.element > RowElement::kF64 && layout.scale != 1)
    return make_error(Errc::kInvalidArgument, "rows of integers cannot be scaled");
  const std::string_view feedback = option(spec, "feedback");
  if (!feedback.empty() && feedback != "none") {
    return make_error(Errc::kInvalidArgument, "feedback=" + std::string(feedback) +
                                                  " needs dense gradients, these are sparse rows");
  }
  if (layout.width > rows::kMostBytes / row_element_bytes(layout.element))
    return make_error(Errc::kInvalidArgument, "rows are too wide");
  Layout base;
  base.dtype = rows::dtype_of(layout.element);
  base.world = layout.world;
  base.worker = layout.worker;
  base.seed = layout.seed;
  base.bucket = layout.id;
  base.scale = layout.scale;
  base.first_step = layout.first_step;
  base.network = layout.network;
  ADDEND_TRY(create_codec(spec, base));  // says what is wrong before anything depends on it
  const bool plain =
      spec.name == "dense" || (spec.name == "exact" && option(spec, "values") != "reproducible");
  return std::unique_ptr<RowCodec>(std::make_unique<rows::RowSums>(spec, layout, base, plain));
}

}  // namespace addend
