// SPDX-License-Identifier: Apache-2.0
#include "file/npy_header.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <utility>

#include "file/shape.h"

namespace addend::file {
namespace {

/// A cursor over Python literals. Every reader leaves an undefined position on failure: the caller
/// gives up then.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : rest_(text) {}

  bool at_end() {
    skip_space();
    return rest_.empty();
  }

  bool next_is(char c) {
    skip_space();
    return !rest_.empty() && rest_.front() == c;
  }

  bool take(char c) {
    if (!next_is(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::optional<std::string_view> string() {
    const char quote = next_is('"') ? '"' : '\'';
    if (!take(quote)) return std::nullopt;
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::optional<bool> boolean() {
    skip_space();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, std::pair{std::string_view("False"), false}}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return value;
    }
    return std::nullopt;
  }

  std::optional<uint64_t> integer() {
    skip_space();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::optional<std::vector<uint64_t>> tuple() {
    if (!take('(')) return std::nullopt;
    std::vector<uint64_t> items;
    bool comma = true;
    while (!take(')')) {
      const std::optional<uint64_t> item = integer();
      if (!comma || !item || items.size() == kMaxDims) return std::nullopt;
      items.push_back(*item);
      comma = take(',');
    }
    // (3) is a number in parentheses; the tuple is (3,).
    if (items.size() == 1 && !comma) return std::nullopt;
    return items;
  }

 private:
  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
  }

  std::string_view rest_;
};

/// A hostile descr must not reach a terminal as it is.
std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 32;
  std::string out(text.substr(0, kLongest));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > kLongest) out += "...";
  return out;
}

Error unsupported_dtype(std::string_view descr) {
  std::string reason = "gradients are float32 ('<f4'), float16 ('<f2') or bfloat16 ('<V2')";
  if (descr.starts_with('>')) {
    reason = "big-endian: convert to little-endian first";
  } else if (descr == "<f8") {
    reason = "float64: convert to float32 first";
  } else if (descr.ends_with('O')) {
    reason = "object arrays are not read";
  }
  return make_error(Errc::kUnsupported, "dtype '" + printable(descr) + "': " + reason);
}

Result<DType> parse_dtype(LiteralReader& reader) {
  if (reader.next_is('[')) {
    return make_error(Errc::kUnsupported, "structured dtype: save one field as a plain array");
  }
  const std::optional<std::string_view> descr = reader.string();
  if (!descr) return make_error(Errc::kMalformed, "corrupted .npy header: descr is not a string");
  if (*descr == "<f4") return DType::kF32;
  if (*descr == "<f2") return DType::kF16;
  // ml_dtypes registers bfloat16 as a two-byte void, the only one it has of that size.
  if (*descr == "<V2" || *descr == "|V2" || *descr == "bfloat16") return DType::kBf16;
  return unsupported_dtype(*descr);
}

Error corrupted(const std::string& what) {
  return make_error(Errc::kMalformed, "corrupted .npy header: " + what);
}

/// The keys seen so far; each must come exactly once.
struct SeenKeys {
  bool descr = false;
  bool fortran_order = false;
  bool shape = false;
};

Status parse_entry(LiteralReader& reader, NpyHeader& header, SeenKeys& seen) {
  const std::optional<std::string_view> key = reader.string();
  if (!key || !reader.take(':')) return corrupted("not a dictionary");
  if (*key == "descr" && !std::exchange(seen.descr, true)) {
    auto dtype = parse_dtype(reader);
    if (!dtype) return dtype.error();
    header.dtype = *dtype;
  } else if (*key == "fortran_order" && !std::exchange(seen.fortran_order, true)) {
    const std::optional<bool> value = reader.boolean();
    if (!value) return corrupted("fortran_order is not True or False");
    header.fortran_order = *value;
  } else if (*key == "shape" && !std::exchange(seen.shape, true)) {
    auto shape = reader.tuple();
    if (!shape) return corrupted("shape is not a tuple of at most 64 non-negative integers");
    header.shape = std::move(*shape);
  } else {
    return corrupted("unknown or repeated key '" + printable(*key) + "'");
  }
  return {};
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view text) {
  LiteralReader reader(text);
  NpyHeader header;
  SeenKeys seen;
  if (!reader.take('{')) return corrupted("not a dictionary");
  while (!reader.take('}')) {
    ADDEND_TRY(parse_entry(reader, header, seen));
    if (!reader.take(',') && !reader.next_is('}')) return corrupted("not a dictionary");
  }
  if (!reader.at_end()) return corrupted("something follows the dictionary");
  if (!seen.descr || !seen.fortran_order || !seen.shape) {
    return corrupted("descr, fortran_order or shape is missing");
  }
  return header;
}

std::string format_npy_header(DType dtype, std::span<const uint64_t> shape) {
  constexpr const char* kDescr[] = {"<f4", "<V2", "<f2"};
  static_assert(ADDEND_DTYPE_F32 == 0 && ADDEND_DTYPE_BF16 == 1 && ADDEND_DTYPE_F16 == 2);
  std::string text = "{'descr': '";
  text += kDescr[static_cast<std::size_t>(dtype)];
  text += "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += std::to_string(shape[i]);
    if (i + 1 < shape.size()) text += ", ";
  }
  text += shape.size() == 1 ? ",), }" : "), }";
  return text;
}

}  // namespace addend::file
