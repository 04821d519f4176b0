// SPDX-License-Identifier: Apache-2.0
// Every SIMD target of this machine against the scalar reference: fold of every operation, and the
// passes of the exact codec.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "addend/fold.h"
#include "addend/simd.h"
#include "base/bits.h"
#include "base/buffer.h"
#include "codec/index/kernels.h"
#include "codec/index/kernels_reference.h"
#include "fold/reference.h"
#include "fuzz/input.h"
#include "tests/support/exact_sum.h"

using addend::DType;
using addend::Op;
using addend::fuzz::Input;
using addend::fuzz::require;

namespace {

using Bytes = std::vector<uint8_t>;
using Words = std::vector<uint64_t>;

// Equal bytes, or two NaNs: their payloads are outside the format.
void require_same(Op op, const Bytes& a, const Bytes& b, uint64_t lanes) {
  if (a == b) return;
  require(op == Op::kSumF32 || op == Op::kSumBf16 || op == Op::kSumF16);
  const auto dtype = static_cast<DType>(op);
  const uint64_t width = addend::op_bytes(op, 1);
  for (uint64_t i = 0; i < lanes; ++i) {
    if (std::memcmp(a.data() + i * width, b.data() + i * width, width) == 0) continue;
    require(std::isnan(addend::testing_support::element(dtype, a.data(), i)) &&
            std::isnan(addend::testing_support::element(dtype, b.data(), i)));
  }
}

void check_fold(Input& input, uint64_t lanes) {
  const auto op = static_cast<Op>(input.take<uint8_t>() % addend::kOpCount);
  if (addend::is_narrow_sum(op)) {
    Bytes in(addend::op_bytes(op, lanes)), table(16);
    Bytes sums(addend::op_sum_bytes(op, lanes)), expected(sums.size());
    input.cycle(in.data(), in.size());
    input.cycle(table.data(), table.size());
    const uint8_t* sources[] = {in.data(), in.data(), in.data()};
    const std::string target = addend::simd_target();
    addend::fold_tables(op, sums.data(), sources, 3, table.data(), lanes);
    require(static_cast<bool>(addend::force_simd_target("scalar")));
    addend::fold_tables(op, expected.data(), sources, 3, table.data(), lanes);
    require(static_cast<bool>(addend::force_simd_target(target)));
    require(sums == expected);
    return;
  }
  if (addend::is_table_sum(op)) {
    Bytes acc(addend::op_sum_bytes(op, lanes)), indices(lanes / 2 + 1), table(32);
    input.cycle(acc.data(), acc.size());
    input.cycle(indices.data(), indices.size());
    input.cycle(table.data(), table.size());
    Bytes expected = acc;
    addend::reference::fold_table(op, expected.data(), indices.data(), table.data(), lanes);
    addend::fold_table(op, acc.data(), indices.data(), table.data(), lanes);
    require(acc == expected);
    return;
  }
  Bytes acc(addend::op_bytes(op, lanes)), in(acc.size());
  input.cycle(acc.data(), acc.size());
  input.cycle(in.data(), in.size());
  Bytes expected = acc;
  addend::reference::fold(op, expected.data(), in.data(), lanes);
  addend::fold(op, acc.data(), in.data(), lanes);
  require_same(op, acc, expected, lanes);
}

template <typename T>
bool equal(const std::vector<T>& a, const std::vector<T>& b, uint64_t count) {
  return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin());
}

template <typename T>
void check_passes(Input& input, uint64_t count) {
  namespace index = addend::index;
  constexpr uint64_t kSlack = addend::Buffer::kSlack / sizeof(T);
  std::vector<T> gradient(count);
  Words wanted(addend::words_for(count)), bitmap(wanted.size()), scanned(wanted.size());
  const uint8_t sparsity = input.take<uint8_t>();
  const uint64_t capacity = input.take<uint16_t>() % (count + 65);
  input.cycle(gradient.data(), count * sizeof(T));
  input.cycle(wanted.data(), wanted.size() * 8);
  for (uint64_t i = 0; i < count; ++i) {
    if (i * 7 % 256 < sparsity) gradient[i] = 0;
  }
  if (count % 64 != 0) wanted.back() &= addend::low_mask(count % 64);

  std::vector<T> kept(count + 64 + kSlack), scanned_kept(capacity + kSlack), short_kept(capacity);
  const auto found =
      index::scan(sizeof(T), gradient.data(), count, scanned.data(), scanned_kept.data(), capacity);
  const auto expected = index::reference::scan(gradient.data(), 0, count, bitmap.data(),
                                               short_kept.data(), capacity, {});
  require(found.nonzeros == expected.nonzeros && found.kept == expected.kept);
  require(scanned == bitmap && equal(scanned_kept, short_kept, found.kept));

  const uint64_t selected = addend::popcount(wanted);
  std::vector<T> packed(selected + kSlack), reference(selected + kSlack);
  require(index::pack(sizeof(T), gradient.data(), count, wanted.data(), packed.data()) == selected);
  index::reference::pack(gradient.data(), 0, count, wanted.data(), reference.data(), 0);
  require(equal(packed, reference, selected));

  std::vector<T> out(count), out_reference(count);
  index::unpack(sizeof(T), packed.data(), wanted.data(), count, out.data());
  index::reference::unpack(packed.data(), wanted.data(), 0, count, out_reference.data(), 0);
  require(out == out_reference);
  std::vector<T> zeros(count), zeros_reference(count);
  index::unpack_into_zeros(sizeof(T), packed.data(), wanted.data(), count, zeros.data());
  index::reference::unpack_into_zeros(packed.data(), wanted.data(), 0, count,
                                      zeros_reference.data(), 0);
  require(zeros == zeros_reference && zeros == out);

  index::reference::scan(gradient.data(), 0, count, bitmap.data(), kept.data(), count + 64, {});
  for (std::size_t w = 0; w < wanted.size(); ++w)
    wanted[w] |= bitmap[w];
  const uint64_t placed = addend::popcount(wanted);
  packed.assign(placed + kSlack, 0);
  reference.assign(placed + kSlack, 0);
  require(index::place(sizeof(T), kept.data(), bitmap.data(), bitmap.size(), wanted.data(),
                       packed.data()) == placed);
  index::reference::place(kept.data(), bitmap.data(), 0, bitmap.size(), wanted.data(),
                          reference.data(), {});
  require(equal(packed, reference, placed));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::string> targets = addend::simd_targets();
  for (const std::string& target : targets) {
    require(addend::force_simd_target(target).has_value());
    Input input(data, size);
    const uint64_t lanes = input.take<uint16_t>() % 1500;
    check_fold(input, lanes);
    check_passes<uint32_t>(input, lanes);
    check_passes<uint16_t>(input, lanes);
  }
  require(addend::force_simd_target("").has_value());
  return 0;
}
