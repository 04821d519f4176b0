// SPDX-License-Identifier: Apache-2.0
#include "cuda/library.h"

#include <string>

#include <dlfcn.h>

namespace addend::cuda {
namespace {

constexpr const char* kFile = "libaddend_cuda.so";
using FindPart = const void* (*)(const char* name, uint32_t version, uint64_t bytes);

std::string beside_us() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&find_part), &info) == 0 || info.dli_fname == nullptr)
    return kFile;
  const std::string file = info.dli_fname;
  const auto slash = file.rfind('/');
  return slash == std::string::npos ? kFile : file.substr(0, slash + 1) + kFile;
}

Error no_backend(const std::string& why) {
  return make_error(Errc::kUnsupported, "no CUDA backend: " + why);
}

Result<void*> load() {
  void* library = dlopen(beside_us().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return no_backend(dlerror());
  void* entry = dlsym(library, "addend_cuda");
  if (entry == nullptr) return no_backend(dlerror());
  return entry;
}

Result<const RuntimeTable*> open_runtime() {
  const Result<const RuntimeTable*> table = part<RuntimeTable>();
  ADDEND_TRY(table);
  int devices = 0;
  const int code = (*table)->device_count(&devices);
  if (code != 0) return no_backend((*table)->error_text(code));
  if (devices == 0) return no_backend("the driver shows no device");
  return *table;
}

}  // namespace

Result<const void*> find_part(const char* name, uint32_t version, uint64_t bytes) {
  static const Result<void*> entry = load();
  ADDEND_TRY(entry);
  const auto find = reinterpret_cast<FindPart>(*entry);
  if (const void* found = find(name, version, bytes)) return found;
  return no_backend(std::string(kFile) + " is of another version: it has no '" + name +
                    "' of version " + std::to_string(version));
}

Result<const RuntimeTable*> runtime() {
  static const Result<const RuntimeTable*> table = open_runtime();
  return table;
}

Status check(const RuntimeTable& runtime, int code, const char* doing) {
  if (code == 0) return {};
  return make_error(runtime.is_out_of_memory(code) ? Errc::kOutOfMemory : Errc::kUnavailable,
                    std::string(doing) + " failed on the device: " + runtime.error_text(code));
}

}  // namespace addend::cuda
