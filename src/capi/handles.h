// SPDX-License-Identifier: Apache-2.0
// What stands behind handles that several files of the C ABI use.
#pragma once

#include <memory>

#include "addend/addend.h"
#include "addend/codec.h"
#include "addend/reduce.h"

struct addend_codec {
  std::unique_ptr<addend::Codec> codec;
};

struct addend_reducer {
  std::unique_ptr<addend::Reducer> reducer;
};
