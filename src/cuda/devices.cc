// SPDX-License-Identifier: Apache-2.0
#include "addend/device.h"
#include "cuda/library.h"

namespace addend {
namespace {

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

}  // namespace

Result<std::vector<DeviceDescription>> cuda_devices() {
  const auto runtime = cuda::runtime();
  ADDEND_TRY(runtime);
  int count = 0;
  ADDEND_TRY(cuda::check(**runtime, (*runtime)->device_count(&count), "counting devices"));
  std::vector<DeviceDescription> devices;
  for (int number = 0; number < count; ++number) {
    cuda::DeviceInfo info{};
    ADDEND_TRY(cuda::check(**runtime, (*runtime)->describe(number, &info), "asking for a device"));
    devices.push_back({info.name, info.memory_bytes, static_cast<uint32_t>(info.multiprocessors),
                       std::to_string(info.major) + "." + std::to_string(info.minor),
                       version(info.driver), version(info.runtime)});
  }
  return devices;
}

}  // namespace addend
