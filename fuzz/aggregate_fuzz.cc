// SPDX-License-Identifier: Apache-2.0
// The input decides job and traffic; the state machine must give the trivial reference's answers.
#include <cstdint>

#include "fuzz/input.h"
#include "tests/support/random_job.h"

namespace {

class Draw {
 public:
  explicit Draw(addend::fuzz::Input& input) : input_(&input) {}
  uint32_t operator()(uint32_t range) {
    const uint32_t number = range <= 256 ? input_->take<uint8_t>() : input_->take<uint32_t>();
    return number % range;
  }

 private:
  addend::fuzz::Input* input_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  addend::fuzz::Input input(data, size);
  addend::testing_support::SlotsAgainstReference model{Draw(input)};
  while (!input.empty())
    addend::fuzz::require(model.step());
  return 0;
}
