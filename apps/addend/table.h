// SPDX-License-Identifier: Apache-2.0
// Plain text tables and the numbers in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace addend::cli {

enum class Align : uint8_t { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
  std::size_t width = 0;  ///< at least; a table that is printed as it grows needs it
};

using Row = std::vector<std::string>;

/// One line of a table with the columns' widths, without line end. Cells that are too long push the
/// line.
std::string format_row(const std::vector<Column>& columns, const Row& cells);
std::string format_header(const std::vector<Column>& columns);

/// Header, rule and rows, every column as wide as its longest cell.
std::string format_table(std::vector<Column> columns, const std::vector<Row>& rows);

/// "1.50 MiB".
std::string format_bytes(double bytes);
/// Four significant digits at most, no exponent: "12.3", "0.0451", "1834".
std::string format_number(double value);
/// Two significant digits: "0.0015", "4.1e-16", "0".
std::string format_error(double value);
/// Microseconds as "12.3 us", "1.83 ms", "2.41 s".
std::string format_us(double microseconds);
/// "packed, dense".
std::string join(const std::vector<std::string>& words, const char* separator);

}  // namespace addend::cli
