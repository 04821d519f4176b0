// SPDX-License-Identifier: Apache-2.0
// Compile-time proof that the shared headers stand alone and that the wire numbers are what the
// format page says.
#include <cstddef>

#include "addend/plane.h"
#include "addend/wire.h"
#include "wire/frame.h"
#include "wire/half.h"
#include "wire/hash.h"

static_assert(ADDEND_OP_NARROW_SUM_3_8 + 1 == ADDEND_OP_COUNT);
static_assert(sizeof(float) == 4);
static_assert(sizeof(addend_frame_header) == ADDEND_FRAME_HEADER_BYTES);
static_assert(offsetof(addend_frame_header, epoch) == 4);
static_assert(offsetof(addend_frame_header, slot) == 12);
static_assert(offsetof(addend_frame_header, length) == 18);
static_assert(offsetof(addend_frame_header, contributors) == 24);
static_assert(offsetof(addend_frame_header, tag) == 32);
static_assert(ADDEND_REFUSAL_ENDED + 1 == ADDEND_REFUSAL_COUNT);
static_assert(addend::sum_op(addend::DType::kF32) == addend::Op::kSumF32);
static_assert(addend::sum_op(addend::DType::kBf16) == addend::Op::kSumBf16);
static_assert(addend::sum_op(addend::DType::kF16) == addend::Op::kSumF16);
