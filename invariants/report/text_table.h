// A table of text cells: columns as wide as their widest cell, numbers to the right.
#ifndef INVARIANTS_REPORT_TEXT_TABLE_H_
#define INVARIANTS_REPORT_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace shardproof {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) { rows_.push_back(std::move(head)); }

  // Rows with fewer cells than the head are filled with empty ones.
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Two spaces between columns, no trailing spaces. A column is set to the right when every
  // cell below its head is empty, "-", "." or begins with a digit.
  std::string Print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace shardproof

#endif  // INVARIANTS_REPORT_TEXT_TABLE_H_
