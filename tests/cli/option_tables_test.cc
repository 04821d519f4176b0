// SPDX-License-Identifier: Apache-2.0
// The table of codecs in docs/cli.md has the options of the code, with all of their values, and no
// others.
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "gtest/gtest.h"

namespace addend {
namespace {

using Values = std::set<std::string>;
using Options = std::map<std::string, Values>;

Values split(const std::string& alternatives) {
  Values values;
  std::istringstream stream(alternatives);
  for (std::string value; std::getline(stream, value, '|');)
    values.insert(value);
  return values;
}

// What stands between backquotes.
std::vector<std::string> quoted(const std::string& cell) {
  std::vector<std::string> found;
  for (std::size_t at = cell.find('`'); at != std::string::npos;) {
    const std::size_t end = cell.find('`', at + 1);
    if (end == std::string::npos) break;
    found.push_back(cell.substr(at + 1, end - at - 1));
    at = cell.find('`', end + 1);
  }
  return found;
}

// "| `a`, `b` | `key=x\|y` (y), ... |"; a row without names goes on with the one before.
std::map<std::string, Options> read_page() {
  std::ifstream page(ADDEND_CLI_PAGE);
  std::map<std::string, Options> table;
  std::vector<std::string> names;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "| spec | options |") inside = true;
    if (inside && line.empty()) break;
    if (!inside || line.starts_with("|---") || line.starts_with("| spec")) continue;
    for (std::size_t at = line.find("\\|"); at != std::string::npos; at = line.find("\\|"))
      line.replace(at, 2, "\t");
    const std::size_t middle = line.find('|', 1);
    const std::vector<std::string> own = quoted(line.substr(0, middle));
    if (!own.empty()) names = own;
    for (const std::string& name : names) {
      Options& options = table[name];
      for (std::string option : quoted(line.substr(middle))) {
        const std::size_t equals = option.find('=');
        if (equals == std::string::npos || option.find(':') != std::string::npos) continue;
        for (char& c : option)
          c = c == '\t' ? '|' : c;
        options[option.substr(0, equals)] = split(option.substr(equals + 1));
      }
    }
  }
  return table;
}

// A number's range stands on the page only.
TEST(OptionTables, HaveTheOptionsAndValuesOfTheCode) {
  std::map<std::string, Options> page = read_page();
  for (const std::string& name : codec_names()) {
    ASSERT_EQ(page.count(name), 1u) << name << " has no row";
    for (const std::string& line : codec_option_help(name)) {
      const std::size_t equals = line.find('=');
      const std::string key = line.substr(0, equals);
      const Values values = split(line.substr(equals + 1, line.find("  ") - equals - 1));
      ASSERT_EQ(page[name].count(key), 1u) << name << ": " << key << " is not on the page";
      if (values != Values{"NUMBER"}) {
        EXPECT_EQ(page[name][key], values) << name << ": " << key;
      }
      page[name].erase(key);
    }
    for (const auto& [key, values] : page[name])
      ADD_FAILURE() << name << " has no option " << key;
    page.erase(name);
  }
  for (const auto& [name, options] : page)
    ADD_FAILURE() << "there is no codec " << name;
}

}  // namespace
}  // namespace addend
