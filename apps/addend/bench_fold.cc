// SPDX-License-Identifier: Apache-2.0
// Every plane operation against memcpy, in bytes read per second: a fold reads two planes where
// memcpy reads one.
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "addend/fold.h"
#include "apps/addend/bench.h"
#include "apps/addend/page_buffer.h"
#include "apps/addend/worker.h"
#include "apps/workload/gradient.h"
#include "apps/workload/half.h"
#include "apps/workload/random.h"

namespace addend::cli {

namespace {

/// Planes of one operation: what is folded, and a copy of the accumulator as it was.
struct Planes {
  Op op = Op::kSumF32;
  uint64_t lanes = 0;
  void* acc = nullptr;
  void* before = nullptr;
  void* in = nullptr;  ///< lanes, or 4-bit indices for table sums
  std::array<uint16_t, 16> wide_table{};
  std::array<uint8_t, 16> narrow_table{};

  const void* table() const {
    return op == Op::kTableSumU8 ? static_cast<const void*>(narrow_table.data())
                                 : static_cast<const void*>(wide_table.data());
  }
  void fold_once() const {
    if (is_table_sum(op)) {
      fold_table(op, acc, static_cast<const uint8_t*>(in), table(), lanes);
    } else {
      fold(op, acc, in, lanes);
    }
  }
  uint64_t bytes_read() const { return op_sum_bytes(op, lanes) + op_bytes(op, lanes); }
};

void fill_random(void* data, uint64_t bytes, uint64_t stream_name, uint64_t mask) {
  const workload::Stream stream({stream_name});
  auto* words = static_cast<uint64_t*>(data);
  for (uint64_t i = 0; i < bytes / sizeof(uint64_t); ++i)
    words[i] = stream.bits(i) & mask;
}

void fill_floats(DType dtype, void* data, uint64_t lanes, uint64_t stream_name) {
  workload::GradientSpec spec;
  spec.count = lanes;
  spec.dtype = dtype;
  spec.density = 1;
  spec.seed = stream_name;
  generate(spec, {0, 0}, {0, lanes}, data);
}

void fill(Planes& planes, uint64_t bytes, uint64_t seed) {
  if (planes.op == Op::kSumF32 || planes.op == Op::kSumBf16 || planes.op == Op::kSumF16) {
    const auto dtype = static_cast<DType>(planes.op);
    fill_floats(dtype, planes.before, planes.lanes, seed);
    fill_floats(dtype, planes.in, planes.lanes, seed + 1);
  } else {
    // Sums of u8 and u16 are promised not to overflow; the others wrap or cannot.
    const bool small = planes.op == Op::kSumU8 || planes.op == Op::kSumU16;
    const uint64_t mask = small ? 0x3f3f3f3f3f3f3f3f : ~uint64_t{0};
    fill_random(planes.before, bytes, seed, mask);
    fill_random(planes.in, bytes, seed + 1, mask);
  }
  for (std::size_t i = 0; i < 16; ++i) {
    planes.wide_table[i] = static_cast<uint16_t>(i * i);
    planes.narrow_table[i] = static_cast<uint8_t>(i * 15);
  }
  std::memcpy(planes.acc, planes.before, bytes);
}

/// Lanes of `acc` that are not what `add` makes of `before` and `in`.
template <typename Lane, typename Add>
uint64_t count_wrong(const Planes& planes, Add add) {
  const auto* acc = static_cast<const Lane*>(planes.acc);
  const auto* before = static_cast<const Lane*>(planes.before);
  const auto* in = static_cast<const Lane*>(planes.in);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < planes.lanes; ++i) {
    if (acc[i] != static_cast<Lane>(add(before[i], in[i]))) ++wrong;
  }
  return wrong;
}

template <typename Lane>
uint64_t count_wrong_table(const Planes& planes) {
  const auto* acc = static_cast<const Lane*>(planes.acc);
  const auto* before = static_cast<const Lane*>(planes.before);
  const auto* indices = static_cast<const uint8_t*>(planes.in);
  const auto* table = static_cast<const Lane*>(planes.table());
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < planes.lanes; ++i) {
    const auto index = static_cast<std::size_t>((indices[i / 2] >> (i % 2 == 0 ? 0 : 4)) & 15);
    if (acc[i] != static_cast<Lane>(before[i] + table[index])) ++wrong;
  }
  return wrong;
}

uint64_t count_wrong(const Planes& planes) {
  using workload::bf16_to_f32;
  using workload::f16_to_f32;
  const auto sum = [](auto a, auto b) { return a + b; };
  switch (planes.op) {
    case Op::kSumF32:
      return count_wrong<float>(planes, sum);
    case Op::kSumBf16:
      return count_wrong<uint16_t>(planes, [](uint16_t a, uint16_t b) {
        return workload::f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b));
      });
    case Op::kSumF16:
      return count_wrong<uint16_t>(planes, [](uint16_t a, uint16_t b) {
        return workload::f32_to_f16(f16_to_f32(a) + f16_to_f32(b));
      });
    case Op::kSumI32:
      return count_wrong<uint32_t>(planes, sum);
    case Op::kSumI64:
      return count_wrong<uint64_t>(planes, sum);
    case Op::kSumU8:
      return count_wrong<uint8_t>(planes, sum);
    case Op::kSumU16:
      return count_wrong<uint16_t>(planes, sum);
    case Op::kOrU64:
      return count_wrong<uint64_t>(planes, [](uint64_t a, uint64_t b) { return a | b; });
    case Op::kMaxU32:
      return count_wrong<uint32_t>(planes, [](uint32_t a, uint32_t b) { return std::max(a, b); });
    case Op::kTableSumU8:
      return count_wrong_table<uint8_t>(planes);
    case Op::kTableSumU16:
      return count_wrong_table<uint16_t>(planes);
    default:  // narrow sums are raced where they are needed, in bench_quant.cc
      break;
  }
  return planes.lanes;
}

Status bench_op(const BenchOptions& options, Planes& planes, BenchResults& results) {
  const uint64_t bytes = options.count * sizeof(float);
  planes.lanes = bytes / op_sum_bytes(planes.op, 1);
  fill(planes, bytes, options.seed);
  planes.fold_once();
  if (const uint64_t wrong = count_wrong(planes); wrong > 0) {
    return make_error(Errc::kUndecodable,
                      fmt::format("fold {}: {} lanes are wrong", op_name(planes.op), wrong));
  }
  // memcpy gets the checked copy as its target: nobody reads it after this.
  auto result =
      race({planes.in, planes.before, bytes}, options.repeats, [&planes]() -> Result<Laps> {
        const double start = now_us();
        planes.fold_once();
        return Laps{now_us() - start, 0};
      });
  if (!result) return result.error();
  FoldLine line;
  line.op = op_name(planes.op);
  line.memcpy_gb_per_s = static_cast<double>(bytes) / result->memcpy_us * 1e-3;
  line.fold_gb_per_s = static_cast<double>(planes.bytes_read()) / result->subject.first_us * 1e-3;
  line.rate_x =
      static_cast<double>(planes.bytes_read()) / static_cast<double>(bytes) / result->first_x;
  results.bars.push_back(
      {fmt::format("fold {}: bytes read/s / memcpy", line.op), line.rate_x, 0.8, false, true});
  results.folds.push_back(std::move(line));
  return {};
}

}  // namespace

Status bench_folds(const BenchOptions& options, BenchResults& results) {
  const uint64_t bytes = options.count * sizeof(float);
  std::array<PageBuffer, 3> buffers;
  for (PageBuffer& buffer : buffers) {
    auto pages = PageBuffer::create(bytes);
    if (!pages) return pages.error();
    buffer = *std::move(pages);
  }
  for (std::size_t i = 0; i < kOpCount; ++i) {
    Planes planes;
    planes.op = static_cast<Op>(i);
    if (is_narrow_sum(planes.op)) continue;
    if (!options.wants(fmt::format("fold {}", op_name(planes.op)))) continue;
    fmt::print(stderr, "bench: fold {}\n", op_name(planes.op));
    planes.acc = buffers[0].data();
    planes.before = buffers[1].data();
    planes.in = buffers[2].data();
    ADDEND_TRY(bench_op(options, planes, results));
  }
  return {};
}

}  // namespace addend::cli
