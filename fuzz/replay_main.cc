// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over stored inputs, for compilers without libFuzzer, and over mutants of them:
// the same ones each time, drawn from a seed.
// usage: NAME_fuzz_replay [--mutants N] [--seed S] DIRECTORY_OR_FILE...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "wire/hash.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// In the order of their names: which mutants there are must not depend on the file system.
std::vector<Bytes> read_corpus(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const fs::path& file : files)
    corpus.push_back(read(file));
  return corpus;
}

/// Changes inputs in the ways that break parsers: numbers at their limits, cuts, repetitions,
/// pieces of other inputs.
class Mutator {
 public:
  Mutator(const std::vector<Bytes>& corpus, uint64_t seed) : corpus_(corpus), seed_(seed) {}

  const Bytes& next() {
    bytes_ = corpus_[draw(corpus_.size())];
    for (uint64_t changes = 1 + draw(4); changes > 0; --changes)
      change();
    return bytes_;
  }

 private:
  static constexpr std::size_t kMostBytes = 1 << 14;

  uint64_t draw(uint64_t range) { return (addend_random(seed_, next_++) >> 11) % range; }

  void change() {
    const uint64_t what = draw(8);
    if (bytes_.empty() || what == 0) return insert();
    switch (what) {
      case 1:
        bytes_[draw(bytes_.size())] ^= static_cast<uint8_t>(1u << draw(8));
        return;
      case 2:
        bytes_[draw(bytes_.size())] = static_cast<uint8_t>(draw(256));
        return;
      case 3:
        return put_limit();
      case 4:
        bytes_.resize(draw(bytes_.size() + 1));
        return;
      case 5: {
        const uint64_t at = draw(bytes_.size());
        const uint64_t count = 1 + draw(std::min<uint64_t>(bytes_.size() - at, 64));
        bytes_.erase(at_(at), at_(at + count));
        return;
      }
      case 6:
        return repeat();
      default:
        return splice();
    }
  }

  void insert() {
    const uint64_t at = draw(bytes_.size() + 1);
    for (uint64_t count = 1 + draw(16); count > 0 && bytes_.size() < kMostBytes; --count)
      bytes_.insert(at_(at), static_cast<uint8_t>(draw(256)));
  }
  // A number of 1, 2, 4 or 8 bytes at a limit, in either byte order.
  void put_limit() {
    const uint64_t width = uint64_t{1} << draw(4);
    const uint64_t base = draw(2) == 0 ? 0 : uint64_t{1} << draw(width * 8);
    uint64_t value = base + draw(3) - 1;
    if (draw(2) == 0) value = __builtin_bswap64(value) >> (64 - width * 8);
    const uint64_t at = draw(bytes_.size());
    std::memcpy(bytes_.data() + at, &value, std::min(width, bytes_.size() - at));
  }
  void repeat() {
    const uint64_t at = draw(bytes_.size());
    const uint64_t count = 1 + draw(bytes_.size() - at);
    if (bytes_.size() + count > kMostBytes) return;
    const Bytes piece(at_(at), at_(at + count));
    bytes_.insert(at_(draw(bytes_.size() + 1)), piece.begin(), piece.end());
  }
  // Goes on with another input from somewhere.
  void splice() {
    const Bytes& other = corpus_[draw(corpus_.size())];
    bytes_.resize(draw(bytes_.size() + 1));
    const auto from = static_cast<std::ptrdiff_t>(draw(other.size() + 1));
    bytes_.insert(bytes_.end(), other.begin() + from, other.end());
    if (bytes_.size() > kMostBytes) bytes_.resize(kMostBytes);
  }
  Bytes::iterator at_(uint64_t i) { return bytes_.begin() + static_cast<std::ptrdiff_t>(i); }

  const std::vector<Bytes>& corpus_;
  uint64_t seed_, next_ = 0;
  Bytes bytes_;
};

// On the heap and no longer than it is, so that a sanitizer sees who reads beyond.
void run(const Bytes& input) {
  const Bytes copy(input);
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t mutants = 0, seed = 1;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool option = (argument == "--mutants" || argument == "--seed") && i + 1 < argc;
    if (option) {
      (argument == "--seed" ? seed : mutants) = std::strtoull(argv[++i], nullptr, 10);
    } else {
      paths.push_back(argument);
    }
  }
  const std::vector<Bytes> corpus = read_corpus(paths);
  uint64_t ran = 0;
  for (const Bytes& input : corpus) {
    run(input);
    ++ran;
  }
  if (!corpus.empty()) {
    for (Mutator mutator(corpus, seed); ran < corpus.size() + mutants; ++ran)
      run(mutator.next());
  }
  std::printf("replayed %zu inputs and %llu mutants of seed %llu\n", corpus.size(),
              static_cast<unsigned long long>(ran - corpus.size()),
              static_cast<unsigned long long>(seed));
  return !corpus.empty() && ran == corpus.size() + mutants ? 0 : 1;
}
