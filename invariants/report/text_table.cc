#include "invariants/report/text_table.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"

namespace shardproof {
namespace {

bool IsNumber(const std::string& cell) {
  return cell.empty() || cell == "-" || cell == "." ||
         std::isdigit(static_cast<unsigned char>(cell[0]));
}

}  // namespace

std::string TextTable::Print() const {
  const size_t columns = rows_[0].size();
  std::vector<size_t> width(columns, 0);
  std::vector<bool> right(columns, true);
  for (size_t row = 0; row < rows_.size(); ++row) {
    for (size_t column = 0; column < rows_[row].size(); ++column) {
      width[column] = std::max(width[column], rows_[row][column].size());
      if (row > 0 && !IsNumber(rows_[row][column])) right[column] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t column = 0; column < columns; ++column) {
      const std::string cell = column < row.size() ? row[column] : "";
      const std::string fill(width[column] - cell.size(), ' ');
      absl::StrAppend(&line, column == 0 ? "" : "  ", right[column] ? fill + cell : cell + fill);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace shardproof
