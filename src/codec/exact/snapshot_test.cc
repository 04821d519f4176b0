// SPDX-License-Identifier: Apache-2.0
#include "addend/snapshot.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/exact_sum.h"
#include "tests/support/tampered_steps.h"
#include "wire/hash.h"

namespace addend {
namespace {

using testing_support::combine_planes;
using testing_support::element;
using testing_support::ExactSum;

// A gradient of any dtype in memory of its own.
struct Array {
  Array(DType type, uint64_t elements)
      : dtype(type), count(elements), storage(elements * dtype_bytes(type) / 8 + 1) {}
  void set(uint64_t i, float value) {
    uint32_t bits = addend_f32_bits(value);
    if (dtype == DType::kBf16) bits = addend_bf16_from_f32(value);
    if (dtype == DType::kF16) bits = addend_f16_from_f32(value);
    const uint32_t width = dtype_bytes(dtype);
    std::memcpy(reinterpret_cast<uint8_t*>(storage.data()) + i * width, &bits, width);
  }
  float at(uint64_t i) const { return element(dtype, storage.data(), i); }
  GradientView view() const { return {storage.data(), count, dtype}; }

  DType dtype;
  uint64_t count;
  std::vector<uint64_t> storage;
};

Array random_array(DType dtype, uint64_t count, uint64_t seed, uint64_t percent) {
  Array array(dtype, count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t random = addend_random(seed, i);
    if (random % 100 >= percent) continue;
    const auto value = static_cast<float>(static_cast<int64_t>(random >> 8) % 2001 - 1000);
    array.set(i, std::ldexp(value, -8));
  }
  return array;
}

std::vector<GradientView> views(const std::vector<Array>& arrays) {
  std::vector<GradientView> all;
  for (const Array& array : arrays)
    all.push_back(array.view());
  return all;
}

SnapshotPlan plan_of(const std::vector<Array>& arrays, const SnapshotOptions& options = {}) {
  const auto plan = plan_snapshots(views(arrays), options);
  EXPECT_TRUE(plan) << plan.error().message;
  return *plan;
}

Snapshot sum_of(const SnapshotPlan& plan, const std::vector<Array>& arrays) {
  auto sum = encode_snapshot(plan, arrays[0].view());
  EXPECT_TRUE(sum) << sum.error().message;
  for (std::size_t a = 1; a < arrays.size(); ++a) {
    const auto next = encode_snapshot(plan, arrays[a].view());
    EXPECT_TRUE(next) << next.error().message;
    for (std::size_t p = 0; p < sum->planes.size; ++p)
      EXPECT_TRUE(combine_planes(sum->planes.planes[p], next->planes.planes[p]));
  }
  return std::move(*sum);
}

void expect_exact_sum(const SnapshotPlan& plan, const std::vector<Array>& arrays) {
  Array out(plan.dtype, plan.count);
  const Status decoded = decode_snapshot(plan, sum_of(plan, arrays), out.storage.data());
  ASSERT_TRUE(decoded) << decoded.error().message;
  for (uint64_t i = 0; i < plan.count; ++i) {
    ExactSum exact;
    for (const Array& array : arrays)
      exact.add(array.at(i));
    const float expected = exact.round(plan.dtype);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(out.at(i))) << i;
    } else {
      ASSERT_EQ(out.at(i), expected) << i;
    }
  }
}

TEST(Snapshot, DecodesToTheExactSum) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const uint64_t count : {0, 1, 64, 65, 1000, 20011}) {
      for (const uint64_t percent : {0, 3, 50, 100}) {
        const std::vector<Array> arrays = {random_array(dtype, count, 1, percent),
                                           random_array(dtype, count, 2, percent),
                                           random_array(dtype, count, 3, percent)};
        expect_exact_sum(plan_of(arrays), arrays);
        if (HasFatalFailure()) FAIL() << dtype_name(dtype) << " " << count << " " << percent;
      }
    }
  }
}

TEST(Snapshot, CarriesEveryFloatThereIs) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float odd[] = {0x1p-149f, -0x1p-149f, 0x1.fffffep127f, -0x1.fffffep127f,
                       kInf,      -kInf,      std::nanf(""),   1.0f,
                       0x1p-126f, -0.0f,      3.1415927f};
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    std::vector<Array> arrays(3, Array(dtype, 500));
    for (uint64_t i = 0; i < 500; ++i) {
      for (uint64_t a = 0; a < 3; ++a)
        arrays[a].set(i, odd[addend_random(a, i) % std::size(odd)]);
    }
    const SnapshotPlan plan = plan_of(arrays);
    EXPECT_TRUE(plan.non_finite);
    expect_exact_sum(plan, arrays);
  }
}

TEST(Snapshot, OfADensePlanIsTheValuesThemselves) {
  SnapshotOptions options;
  options.codec.name = "dense";
  const std::vector<Array> arrays = {random_array(DType::kF32, 333, 1, 40)};
  const SnapshotPlan plan = plan_of(arrays, options);
  EXPECT_TRUE(plan.dense);
  const Snapshot snapshot = sum_of(plan, arrays);
  ASSERT_EQ(snapshot.planes.size, 1u);
  EXPECT_EQ(snapshot.planes.planes[0].op, Op::kSumF32);
  EXPECT_EQ(0, std::memcmp(snapshot.planes.planes[0].data, arrays[0].storage.data(), 333 * 4));
  EXPECT_EQ(snapshot_nonzeros(plan, snapshot), 333u);
  expect_exact_sum(plan, arrays);
}

TEST(Snapshot, CountsTheUnion) {
  std::vector<Array> arrays(2, Array(DType::kF32, 200));
  arrays[0].set(3, 1);
  arrays[0].set(4, 1);
  arrays[1].set(4, -1);
  arrays[1].set(199, 2);
  const SnapshotPlan plan = plan_of(arrays);
  EXPECT_EQ(plan.capacity, 3u);
  EXPECT_EQ(snapshot_nonzeros(plan, sum_of(plan, arrays)), 3u);
}

TEST(Snapshot, LetsAGradientJoinLater) {
  SnapshotOptions options;
  options.spare = 1.5;
  std::vector<Array> arrays = {random_array(DType::kF32, 5000, 1, 5),
                               random_array(DType::kF32, 5000, 2, 5)};
  const SnapshotPlan plan = plan_of(arrays, options);
  for (const uint64_t seed : {7, 8}) {
    arrays.push_back(random_array(DType::kF32, 5000, seed, 4));
    expect_exact_sum(plan, arrays);
  }
  // The same value range, so larger and smaller values have some room too.
  Array wider(DType::kF32, 5000);
  wider.set(17, 0x1p15f);
  wider.set(18, 0x1p-18f);
  arrays.push_back(wider);
  expect_exact_sum(plan, arrays);
}

TEST(Snapshot, RefusesValuesOutsideThePlansRange) {
  const std::vector<Array> arrays = {random_array(DType::kF32, 100, 1, 50)};
  const SnapshotPlan plan = plan_of(arrays);
  for (const float value : {0x1p127f, 0x1p-149f, std::numeric_limits<float>::infinity()}) {
    Array odd(DType::kF32, 100);
    odd.set(5, value);
    const auto snapshot = encode_snapshot(plan, odd.view());
    ASSERT_FALSE(snapshot) << value;
    EXPECT_EQ(snapshot.error().code, Errc::kCapacity);
    EXPECT_NE(snapshot.error().message.find("plan again"), std::string::npos);
  }
}

TEST(Snapshot, SaysWhatSizeWouldDoWhenTheUnionOutgrewThePlan) {
  std::vector<Array> arrays = {random_array(DType::kF32, 4000, 1, 5)};
  const SnapshotPlan plan = plan_of(arrays);
  arrays.push_back(random_array(DType::kF32, 4000, 2, 60));
  const Snapshot sum = sum_of(plan, arrays);
  Array out(DType::kF32, 4000);
  out.storage.assign(out.storage.size(), 0x1234567812345678u);
  const auto untouched = out.storage;
  const Status decoded = decode_snapshot(plan, sum, out.storage.data());
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, Errc::kCapacity);
  EXPECT_EQ(out.storage, untouched);
  const uint64_t keys = snapshot_nonzeros(plan, sum);
  EXPECT_EQ(decoded.error().message,
            "the union has " + std::to_string(keys) + " non-zeros and the plan has room for " +
                std::to_string(plan.capacity) + ", " + std::to_string(keys - plan.capacity) +
                " too few: pack again with a larger spare, or with these gradients in the set");
  SnapshotOptions options;
  options.spare = static_cast<double>(keys) / static_cast<double>(plan.capacity) - 1;
  expect_exact_sum(plan_of({arrays[0]}, options), arrays);
}

// The hashes of one plan in 10^9 do this; those of a sketch of one row do it always.
TEST(Snapshot, AsksForAnotherSeedWhenAUnionWithinCapacityDoesNotPeel) {
  std::vector<Array> arrays(1, Array(DType::kF32, 200));
  arrays[0].set(3, 1);
  arrays[0].set(4, 1);
  SnapshotPlan plan = plan_of(arrays);
  plan.table_rows = 1;
  plan.cells = 8;
  Array out(DType::kF32, 200);
  const Status decoded = decode_snapshot(plan, sum_of(plan, arrays), out.storage.data());
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, Errc::kCapacity);
  EXPECT_NE(decoded.error().message.find("2 non-zeros and the plan has room for 2, but"),
            std::string::npos);
  EXPECT_NE(decoded.error().message.find("another seed"), std::string::npos);
}

TEST(Snapshot, NoticesPlanesThatContradictEachOther) {
  const std::vector<Array> arrays = {random_array(DType::kF32, 3001, 1, 10)};
  const SnapshotPlan plan = plan_of(arrays);
  Array out(DType::kF32, 3001);
  const auto untouched = out.storage;
  const auto expect_undecodable = [&](std::size_t plane, uint64_t word, uint64_t flip) {
    Snapshot snapshot = sum_of(plan, arrays);
    snapshot.storage[plane][word] ^= flip;
    const Status decoded = decode_snapshot(plan, snapshot, out.storage.data());
    ASSERT_FALSE(decoded) << plane << " " << word;
    EXPECT_EQ(decoded.error().code, Errc::kUndecodable);
    EXPECT_EQ(out.storage, untouched);
  };
  const Snapshot honest = sum_of(plan, arrays);
  for (uint64_t trial = 0; trial < 40; ++trial) {
    expect_undecodable(1, addend_random(1, trial) % honest.storage[1].size(),
                       uint64_t{1} << (trial % 64));
  }
  const uint64_t first = static_cast<uint64_t>(std::countr_zero(honest.storage[0][0]));
  expect_undecodable(0, 0, uint64_t{1} << first);       // a key that the index lost
  expect_undecodable(0, 3001 / 64, uint64_t{1} << 63);  // a key past the end
}

TEST(CheckSnapshot, RefusesPlanesOfAnotherShape) {
  const SnapshotPlan plan = plan_of({random_array(DType::kF32, 100, 1, 10)});
  const auto snapshot = allocate_snapshot(plan);
  ASSERT_TRUE(snapshot);
  EXPECT_TRUE(check_snapshot(plan, snapshot->planes));
  const auto refused = [&](auto change) {
    Round planes = snapshot->planes;
    change(planes);
    const Status status = check_snapshot(plan, planes);
    return !status && status.error().code == Errc::kMalformed;
  };
  EXPECT_TRUE(refused([](Round& r) { r.size = 1; }));
  EXPECT_TRUE(refused([](Round& r) { r.add(r.planes[0]); }));
  EXPECT_TRUE(refused([](Round& r) { r.planes[0].lanes += 1; }));
  EXPECT_TRUE(refused([](Round& r) { r.planes[1].lanes -= 1; }));
  EXPECT_TRUE(refused([](Round& r) { r.planes[1].op = Op::kOrU64; }));
  EXPECT_TRUE(refused([](Round& r) { std::swap(r.planes[0], r.planes[1]); }));
}

TEST(PlanSnapshots, RefusesWhatCannotBePlanned) {
  const Array array = random_array(DType::kF32, 64, 1, 10), longer(DType::kF32, 65),
              half(DType::kF16, 64);
  const auto code = [](std::vector<GradientView> gradients, const SnapshotOptions& options) {
    const auto plan = plan_snapshots(gradients, options);
    EXPECT_FALSE(plan);
    return plan ? Errc::kIo : plan.error().code;
  };
  EXPECT_EQ(code({}, {}), Errc::kInvalidArgument);
  EXPECT_EQ(code({array.view(), longer.view()}, {}), Errc::kMismatch);
  EXPECT_EQ(code({array.view(), half.view()}, {}), Errc::kMismatch);
  EXPECT_EQ(code({{nullptr, 64, DType::kF32}}, {}), Errc::kInvalidArgument);
  SnapshotOptions options;
  options.codec = {"exact", {{"mode", "sketch"}}};
  EXPECT_EQ(code({array.view()}, options), Errc::kInvalidArgument);
  options.codec = {"quant", {}};
  EXPECT_EQ(code({array.view()}, options), Errc::kUnsupported);
  options = {};
  options.contributors = 1;
  EXPECT_EQ(code({array.view(), array.view()}, options), Errc::kInvalidArgument);
  options.contributors = (1u << 20) + 1;
  EXPECT_EQ(code({array.view()}, options), Errc::kInvalidArgument);
  for (const double spare : {-0.1, 2e6, std::nan("")}) {
    options = {};
    options.spare = spare;
    EXPECT_EQ(code({array.view()}, options), Errc::kInvalidArgument) << spare;
  }
}

TEST(SnapshotPlan, SurvivesItsBytes) {
  SnapshotOptions dense;
  dense.codec.name = "dense";
  for (const SnapshotPlan& plan :
       {plan_of({random_array(DType::kF32, 999, 1, 10)}),
        plan_of({random_array(DType::kBf16, 70000, 1, 60)}), plan_of({Array(DType::kF16, 0)}),
        plan_of({random_array(DType::kF16, 9, 1, 50)}, dense)}) {
    const auto bytes = plan.serialize();
    EXPECT_EQ(bytes.size(), 72u);
    const auto parsed = SnapshotPlan::parse(bytes);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->serialize(), bytes);
  }
}

// Some changes make another valid plan (a different seed, say); none may pass for the same one, and
// none may hurt a decoder that gets the old planes.
TEST(SnapshotPlan, NeverMistakesChangedBytesForItself) {
  const std::vector<Array> arrays = {random_array(DType::kF32, 500, 1, 10)};
  const SnapshotPlan plan = plan_of(arrays);
  const auto bytes = plan.serialize();
  const Snapshot snapshot = sum_of(plan, arrays);
  Array out(DType::kF32, 512);  // a count that needs as many index words fits the same planes
  int accepted = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      if (bytes[at] == value) continue;
      auto changed = bytes;
      changed[at] = static_cast<uint8_t>(value);
      const auto parsed = SnapshotPlan::parse(changed);
      if (!parsed) {
        ASSERT_EQ(parsed.error().code, Errc::kMalformed);
        continue;
      }
      ++accepted;
      ASSERT_EQ(parsed->serialize(), changed);
      if (check_snapshot(*parsed, snapshot.planes)) {
        (void)decode_snapshot(*parsed, snapshot, out.storage.data()).has_value();
      }
    }
  }
  EXPECT_GT(accepted, 0);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(SnapshotPlan::parse({bytes.data(), length}));
}

// A plan is a stranger's: its numbers must not wrap into a small plane that a decoder would trust.
TEST(SnapshotPlan, RefusesSketchesWhoseSizeOverflows) {
  SnapshotPlan plan = plan_of({random_array(DType::kF32, 500, 1, 10)});
  plan.starts = 1;
  plan.table_rows = 1u << 28;
  plan.chunks = 1u << 30;
  plan.cells = uint64_t{1} << 61;
  plan.cell_words = 8;
  plan.top = plan.quantum + 8 * 53 - 1;
  const auto parsed = SnapshotPlan::parse(plan.serialize());
  ASSERT_FALSE(parsed) << "8 * 2^61 lanes are 0 lanes modulo 2^64";
  EXPECT_EQ(parsed.error().code, Errc::kMalformed);
  EXPECT_NE(parsed.error().message.find("2^56 cells"), std::string::npos);
}

// 8 digits of 63 bits would reach far beyond what decoding has room for.
TEST(SnapshotPlan, WithMoreDigitsThanFloatsNeedIsMalformed) {
  for (const uint32_t contributors : {1u, 1024u, 1u << 20}) {
    SnapshotOptions options;
    options.contributors = contributors;
    SnapshotPlan plan = plan_of({random_array(DType::kF32, 100, 1, 10)}, options);
    const int digit_bits = 63 - std::bit_width(contributors - 1);
    for (uint32_t digits = 1; digits <= 8; ++digits) {
      plan.cell_words = digits;
      plan.top = plan.quantum + static_cast<int>(digits) * digit_bits - 1;
      const auto parsed = SnapshotPlan::parse(plan.serialize());
      // f32 has 277 bits from the lowest subnormal to the top.
      const bool needed = static_cast<int>(digits - 1) * digit_bits < 277;
      ASSERT_EQ(parsed.has_value(), needed) << digits << " digits of " << digit_bits;
      if (!needed) {
        EXPECT_EQ(parsed.error().code, Errc::kMalformed);
      }
    }
  }
}

}  // namespace
}  // namespace addend
