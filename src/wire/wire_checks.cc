// SPDX-License-Identifier: Apache-2.0
// Compile-time proof that the shared headers stand alone and that the wire numbers are what the
// format page says.
#include "addend/plane.h"
#include "addend/wire.h"
#include "wire/half.h"
#include "wire/hash.h"

static_assert(ADDEND_OP_TABLE_SUM_U16 + 1 == ADDEND_OP_COUNT);
static_assert(sizeof(float) == 4);
static_assert(addend::sum_op(addend::DType::kF32) == addend::Op::kSumF32);
static_assert(addend::sum_op(addend::DType::kBf16) == addend::Op::kSumBf16);
static_assert(addend::sum_op(addend::DType::kF16) == addend::Op::kSumF16);
