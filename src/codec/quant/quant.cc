// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/quant.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/bits.h"
#include "codec/element.h"
#include "codec/fingerprint.h"

namespace addend::quant {
namespace {

// Signs must stay while a residual lives in rotated coordinates; every so often it is turned to new
// ones, because coordinates that are clipped under one set of signs stay clipped while it lasts.
constexpr uint64_t kFeedbackSignPeriod = 8;
// A norm lane that says: not finite here.
constexpr uint32_t kBroken = 0xFFFFFFFF;
// Energies in this range were summed without overflow or loss; others are summed again in double.
constexpr float kLeastEnergy = 0x1p-90f;
constexpr float kMostEnergy = 0x1p100f;
constexpr float kFarDown = 0x1p-64f;
// Running sums in float lose small terms when they grow long.
constexpr uint64_t kMostFloatSum = 16384;
// Blocks with a norm outside 2^+-50 are scaled by a power of two before rotation, which sums up to
// 2^14 elements.
constexpr int kPlainExponent = 50;

}  // namespace

float prescale_of(float norm) {
  if (norm == 0) return 1;
  const int exponent = std::ilogb(norm);
  if (std::abs(exponent) <= kPlainExponent) return 1;
  return std::ldexp(1.0f, std::clamp(-exponent, -126, 126));
}

Result<std::unique_ptr<Codec>> create_quant(const CodecSpec& spec, const Layout& layout) {
  const Result<Options> options = read_options(spec, layout);
  ADDEND_TRY(options);
  return QuantCodec::make(layout, *options);
}

Result<std::unique_ptr<Codec>> QuantCodec::make(const Layout& layout, const Options& options) {
  auto codec = std::unique_ptr<QuantCodec>(new QuantCodec(layout, options));
  ADDEND_TRY(codec->set_up());
  return std::unique_ptr<Codec>(std::move(codec));
}

Status QuantCodec::set_up() {
  std::vector<uint32_t> widths = {options_.bits};
  if (options_.bits == 0) widths.assign(kWidths.begin(), kWidths.end());
  for (const uint32_t bits : widths) {
    Result<Coding> coding = Coding::make(bits, options_, layout().world);
    ADDEND_TRY(coding);
    codings_.push_back(std::move(*coding));
  }
  if (layout().count == 0) return {};
  const Block last = block(blocks() - 1);
  const uint64_t largest = std::max<uint64_t>(block(0).size, last.size);
  ADDEND_TRY(norms_.reserve(blocks() * 4));
  ADDEND_TRY(signs_.reserve(largest / 8));
  ADDEND_TRY(rotated_.reserve(largest * 4));
  ADDEND_TRY(scratch_.reserve(largest * 4));
  ADDEND_TRY(levels_.reserve(largest));
  parts_.resize(blocks());
  return residual_.reserve(options_.feedback, last.begin + last.size, blocks());
}

uint64_t QuantCodec::blocks() const {
  return options_.block == 0 ? 1 : ceil_div(layout().count, options_.block);
}

// Full blocks have the chosen size; the last is padded with zeros to the next power of two.
QuantCodec::Block QuantCodec::block(uint64_t b) const {
  const uint64_t begin = b * options_.block;
  const uint64_t left = layout().count - begin;
  const uint64_t elements = options_.block == 0 ? left : std::min(left, options_.block);
  const uint64_t size = std::max<uint64_t>(std::bit_ceil(elements), kLeastBlock);
  return {begin, static_cast<uint32_t>(elements), static_cast<uint32_t>(size)};
}

uint64_t QuantCodec::sign_period() const { return residual_.any() ? kFeedbackSignPeriod : 1; }

uint64_t QuantCodec::base_fingerprint() const {
  Fingerprint print;
  print.add("quant")
      .add(layout())
      .add(uint64_t{options_.bits})
      .add(options_.budget)
      .add(options_.block);
  for (const uint64_t choice :
       {static_cast<uint64_t>(options_.rotation), static_cast<uint64_t>(options_.rounding),
        static_cast<uint64_t>(options_.feedback), static_cast<uint64_t>(options_.carrier),
        static_cast<uint64_t>(options_.non_finite)}) {
    print.add(choice);
  }
  for (const Coding& coding : codings_) {
    for (const uint32_t level : coding.table.levels)
      print.add(uint64_t{level});
    print.add(coding.table.half_range);
  }
  return print.value();
}

// Residuals belong to one worker.
uint64_t QuantCodec::state_fingerprint() const {
  return Fingerprint().add(base_fingerprint()).add(uint64_t{layout().worker}).value();
}

uint64_t QuantCodec::fingerprint() const {
  return Fingerprint().add(base_fingerprint()).add(step_).value();
}

uint64_t QuantCodec::memory_bytes() const {
  uint64_t total =
      residual_.memory_bytes() + thresholds_.memory_bytes() + parts_.capacity() * sizeof(Part);
  for (const LanePlane& plane : planes_)
    total += plane.data.capacity() + plane.sums.capacity();
  for (const Buffer* buffer : {&norms_, &signs_, &rotated_, &scratch_, &levels_})
    total += buffer->capacity();
  return total;
}

Status QuantCodec::do_begin(const void* gradient) {
  gradient_ = gradient;
  waiting_ = Waiting::kNothing;
  excluded_ = silent_ = false;
  draft().mode = "quant";
  return {};
}

Result<bool> QuantCodec::do_round(Round& round) {
  switch (waiting_) {
    case Waiting::kNothing:
      if (layout().count == 0) return false;
      open_norms(round);
      waiting_ = Waiting::kNorms;
      return true;
    case Waiting::kNorms:
      waiting_ = Waiting::kLast;
      ADDEND_TRY(read_norms());
      if (silent_) return false;
      ADDEND_TRY(draw_thresholds());
      ADDEND_TRY(encode(round));
      return true;
    case Waiting::kLast:
      return false;
  }
  return false;
}

Status QuantCodec::draw_thresholds() {
  Thresholds::Draw draw;
  draw.seed = Fingerprint()
                  .add(layout().seed ^ uint64_t{0x726F756E64})
                  .add(layout().bucket)
                  .add(step_)
                  .value();
  draw.world = layout().world;
  draw.worker = layout().worker;
  draw.correlated = options_.rounding == Rounding::kCorrelated;
  return thresholds_.set(draw);
}

const uint64_t* QuantCodec::signs(uint64_t b, uint64_t epoch) {
  const uint64_t seed =
      Fingerprint().add(layout().seed).add(layout().bucket).add(epoch).add(b).value();
  auto* words = signs_.as<uint64_t>();
  for (uint64_t w = 0; w < block(b).size / 64; ++w)
    words[w] = addend_random(seed, w);
  return words;
}

// rotated_ = rotation of the block's elements times prescale, plus the residual.
void QuantCodec::load_rotated(const Block& block, uint64_t b, float prescale) {
  auto* rotated = rotated_.as<float>();
  const float* source = rotated;
  const bool direct =
      layout().dtype == DType::kF32 && block.elements == block.size && prescale == 1;
  if (direct) {
    source = static_cast<const float*>(gradient_) + block.begin;
  } else {
    for (uint64_t i = 0; i < block.elements; ++i) {
      rotated[i] = load_float(layout().dtype, gradient_, block.begin + i) * prescale;
    }
    std::fill(rotated + block.elements, rotated + block.size, 0.0f);
  }
  if (rotates()) {
    rotate(source, signs(b, step_ / sign_period()), block.size, rotated);
  } else if (direct) {
    std::memcpy(rotated, source, block.size * 4);
  }
  if (!residual_.any()) return;
  auto* scratch = scratch_.as<float>();
  std::fill_n(scratch, block.size, 0.0f);
  residual_.add_to(b, block.begin, block.size, scratch);
  for (uint64_t i = 0; i < block.size; ++i)
    rotated[i] += scratch[i] * prescale;
}

// Norm in double, for blocks whose energy leaves float's range, or infinity where an element is not
// finite; without rotation the largest magnitude stands for it.
double QuantCodec::slow_norm(const float* x, uint64_t n) const {
  double energy = 0, largest = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<double>::infinity();
    energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
  }
  return rotates() ? std::sqrt(energy) : largest;
}

// What this worker says about a block in round 0. Rotation keeps the norm, so without a residual
// the elements themselves will do.
uint32_t QuantCodec::norm_lane(const Block& block, uint64_t b) {
  const float* x = rotated_.as<float>();
  uint64_t n = block.size;
  double unrotated = 1;
  if (residual_.any()) {
    load_rotated(block, b, 1);
    unrotated = rotates() ? 1 / std::sqrt(static_cast<double>(block.size)) : 1;
  } else if (layout().dtype == DType::kF32) {
    x = static_cast<const float*>(gradient_) + block.begin;
    n = block.elements;
  } else {
    auto* widened = rotated_.as<float>();
    n = block.elements;
    for (uint64_t i = 0; i < n; ++i)
      widened[i] = load_float(layout().dtype, gradient_, block.begin + i);
  }
  const float energy = rotates() && n % kLanes == 0 && n <= kMostFloatSum ? quant::energy(x, n) : 0;
  double norm = static_cast<double>(std::sqrt(energy));
  if (!(energy > kLeastEnergy && energy < kMostEnergy)) norm = slow_norm(x, n);
  if (residual_.any() && !std::isfinite(norm)) {
    // The rotation itself may have overflowed: once more, out of harm's way.
    load_rotated(block, b, kFarDown);
    norm = slow_norm(x, n) / static_cast<double>(kFarDown);
  }
  norm *= unrotated;
  // A norm that no float holds must not be cut to one that does: the block would come back smaller.
  if (!(norm <= static_cast<double>(std::numeric_limits<float>::max()))) return kBroken;
  return addend_f32_bits(static_cast<float>(norm));
}

void QuantCodec::open_norms(Round& round) {
  auto* lanes = norms_.as<uint32_t>();
  for (uint64_t b = 0; b < blocks(); ++b)
    lanes[b] = norm_lane(block(b), b);
  round.add({Op::kMaxU32, blocks(), lanes, nullptr, nullptr});
}

// Turns the folded norms into each block's part: which coding, which lanes.
Status QuantCodec::read_norms() {
  const auto* lanes = norms_.as<uint32_t>();
  uint64_t broken = 0;
  for (uint64_t b = 0; b < blocks(); ++b) {
    Part& part = parts_[b];
    part = Part{};
    // A float's bits compare like its value, so anything above the largest finite float is a
    // worker's alarm (or damage).
    part.broken = lanes[b] >= 0x7F800000u;
    part.norm = part.broken ? 0 : addend_f32_from_bits(lanes[b]);
    broken += part.broken ? block(b).elements : 0;
  }
  draft().escaped_values = broken;
  if (broken > 0 && options_.non_finite == NonFinite::kError) {
    return make_error(
        Errc::kUndecodable,
        std::to_string(broken) + " elements lie in blocks with a NaN or Inf on some worker");
  }
  if (options_.bits == 0) choose_widths();
  for (LanePlane& plane : planes_)
    plane.lanes = 0;
  silent_ = true;
  for (uint64_t b = 0; b < blocks(); ++b) {
    Part& part = parts_[b];
    if (part.norm == 0) continue;
    silent_ = false;
    uint64_t& lanes_used = planes_[static_cast<std::size_t>(codings_[part.coding].lane)].lanes;
    part.lane = lanes_used;
    lanes_used += block(b).size;
  }
  return {};
}

void QuantCodec::choose_widths() {
  std::vector<float> norms(blocks());
  std::vector<uint32_t> elements(blocks());
  for (uint64_t b = 0; b < blocks(); ++b) {
    norms[b] = parts_[b].norm;
    elements[b] = block(b).size;
  }
  const std::vector<uint8_t> widths = allocate_widths(norms, elements, codings_, options_.budget);
  for (uint64_t b = 0; b < blocks(); ++b)
    parts_[b].coding = widths[b];
}

// `norm` is the shared norm in the units of the elements given to the quantiser. Unnormalised
// coordinates of a rotated block have a standard deviation of its norm, so the table's half range
// is t * norm; without rotation the norm is the largest magnitude.
Quantiser QuantCodec::quantiser(uint64_t b, const Part& part, float norm) const {
  const Coding& coding = codings_[part.coding];
  const auto granularity = static_cast<float>(coding.table.granularity);
  const double range = (rotates() ? coding.table.half_range : 1) * static_cast<double>(norm);
  Quantiser q;
  q.scale = static_cast<float>(static_cast<double>(granularity) / (2 * range));
  q.middle = granularity / 2;
  q.top = granularity;
  q.cells = coding.table.granularity + 1;
  q.lower = coding.lower.data();
  q.gap = coding.gap.data();
  q.index = coding.index.data();
  q.thresholds = thresholds_.of_block(b);
  return q;
}

// Writes the levels of a block, one a byte, or its indices, two a byte.
void QuantCodec::encode_block(uint64_t b, uint8_t* out) {
  const Block at = block(b);
  const Part& part = parts_[b];
  const float prescale = prescale_of(part.norm);
  load_rotated(at, b, prescale);
  const Quantiser q = quantiser(b, part, part.norm * prescale);
  if (options_.carrier == Carrier::kIndices) {
    quantise_indices(q, rotated_.as<float>(), at.size, out);
  } else {
    quantise_levels(q, rotated_.as<float>(), at.size, out);
  }
}

Status QuantCodec::encode(Round& round) {
  const bool indices = options_.carrier == Carrier::kIndices;
  for (std::size_t l = 0; l < planes_.size(); ++l) {
    LanePlane& plane = planes_[l];
    if (plane.lanes == 0) continue;
    const Op op = lane_op(static_cast<Lane>(l), options_.carrier);
    ADDEND_TRY(plane.data.reserve(op_bytes(op, plane.lanes)));
    if (indices) ADDEND_TRY(plane.sums.reserve(op_sum_bytes(op, plane.lanes)));
    const Coding& first = codings_[0];
    const void* table =
        l == 0 ? static_cast<const void*>(first.levels8.data()) : first.levels16.data();
    round.add({op, plane.lanes, plane.data.as<void>(), indices ? table : nullptr,
               indices ? plane.sums.as<void>() : nullptr});
  }
  for (uint64_t b = 0; b < blocks(); ++b) {
    if (parts_[b].norm != 0) fill_lanes(b);
  }
  contributors_ = 1;
  round.add({Op::kSumI32, 1, &contributors_, nullptr, nullptr});
  return {};
}

// Bytes and nibbles go straight to the plane; wider lanes are filled from bytes.
void QuantCodec::fill_lanes(uint64_t b) {
  const Part& part = parts_[b];
  const Lane lane = codings_[part.coding].lane;
  Buffer& data = planes_[static_cast<std::size_t>(lane)].data;
  if (options_.carrier == Carrier::kIndices)
    return encode_block(b, data.as<uint8_t>() + part.lane / 2);
  if (lane == Lane::kU8) return encode_block(b, data.as<uint8_t>() + part.lane);
  auto* levels = levels_.as<uint8_t>();
  encode_block(b, levels);
  if (lane == Lane::kU16) {
    std::copy_n(levels, block(b).size, data.as<uint16_t>() + part.lane);
  } else {
    std::copy_n(levels, block(b).size, data.as<uint32_t>() + part.lane);
  }
}

}  // namespace addend::quant
