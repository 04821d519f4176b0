// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/table.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace addend::cli {

std::string format_row(const std::vector<Column>& columns, const Row& cells) {
  std::string line;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const Column& column = columns[i];
    const std::size_t width = std::max(column.width, column.title.size());
    if (i > 0) line += "  ";
    line += column.align == Align::kLeft ? fmt::format("{:<{}}", cells[i], width)
                                         : fmt::format("{:>{}}", cells[i], width);
  }
  const std::size_t end = line.find_last_not_of(' ');
  line.resize(end == std::string::npos ? 0 : end + 1);
  return line;
}

std::string format_header(const std::vector<Column>& columns) {
  Row titles;
  for (const Column& column : columns)
    titles.push_back(column.title);
  return format_row(columns, titles);
}

std::string format_table(std::vector<Column> columns, const std::vector<Row>& rows) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    std::size_t& width = columns[i].width;
    width = std::max(width, columns[i].title.size());
    for (const Row& row : rows)
      width = std::max(width, row[i].size());
    total += width + (i > 0 ? 2 : 0);
  }
  std::string text = format_header(columns) + "\n" + std::string(total, '-') + "\n";
  for (const Row& row : rows)
    text += format_row(columns, row) + "\n";
  return text;
}

std::string format_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{} {}", format_number(bytes), kUnits[unit]);
}

std::string format_number(double value) {
  const double magnitude = std::fabs(value);
  if (magnitude == 0 || magnitude >= 100) return fmt::format("{:.0f}", value);
  if (magnitude >= 10) return fmt::format("{:.1f}", value);
  if (magnitude >= 1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3g}", value);
}

std::string format_error(double value) { return fmt::format("{:.2g}", value); }

std::string format_us(double microseconds) {
  if (microseconds >= 1e6) return format_number(microseconds / 1e6) + " s";
  if (microseconds >= 1e3) return format_number(microseconds / 1e3) + " ms";
  return format_number(microseconds) + " us";
}

std::string join(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

}  // namespace addend::cli
