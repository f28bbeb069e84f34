#include "invariants/report/text_table.h"

#include "gtest/gtest.h"
#include "invariants/report/report_text.h"

namespace shardproof {
namespace {

TEST(TextTable, SetsNumbersToTheRightAndWordsToTheLeft) {
  TextTable table({"mode", "calls", "verdict"});
  table.Add({"zero2", "16", "pass"});
  table.Add({"full_shard/none", "8", "fail"});
  EXPECT_EQ(table.Print(),
            "mode             calls  verdict\n"
            "zero2               16  pass\n"
            "full_shard/none      8  fail\n");
}

TEST(TextTable, ColumnsAreAsWideAsTheWidestCell) {
  TextTable table({"a", "b"});
  table.Add({"1,234,567 B", "2"});
  EXPECT_EQ(table.Print(),
            "          a  b\n"
            "1,234,567 B  2\n");
}

TEST(TextTable, PlaceholdersLeaveAColumnNumeric) {
  TextTable table({"AR", "AG"});
  table.Add({"2", "-"});
  table.Add({".", "10"});
  table.Add({"", "3"});
  EXPECT_EQ(table.Print(),
            "AR  AG\n"
            " 2   -\n"
            " .  10\n"
            "     3\n");
}

TEST(TextTable, OneWordTurnsAColumnToTheLeft) {
  TextTable table({"value"});
  table.Add({"12"});
  table.Add({"inf"});
  EXPECT_EQ(table.Print(), "value\n12\ninf\n");
}

TEST(TextTable, ShortRowsEndInEmptyCellsWithoutTrailingSpaces) {
  TextTable table({"mode", "verdict", "peak"});
  table.Add({"zero2"});
  EXPECT_EQ(table.Print(), "mode   verdict  peak\nzero2\n");
}

TEST(TextTable, PrintsTheHeadOfATableWithoutRows) {
  EXPECT_EQ(TextTable({"mode", "peak"}).Print(), "mode  peak\n");
}

TEST(FormatBytes, IsExactBelowOneMebibyte) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(9260), "9,260 B");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1,048,575 B");
  EXPECT_EQ(FormatBytes(1 << 20), "1.00 MiB");
}

TEST(FormatBytes, ChangesUnitWhereNumbersWouldGrowLong) {
  EXPECT_EQ(FormatBytes(int64_t{9} << 30), "9216.00 MiB");
  EXPECT_EQ(FormatBytes(int64_t{10} << 30), "10.00 GiB");
  EXPECT_EQ(FormatBytes(int64_t{25} << 39), "12.50 TiB");
}

TEST(WithSeparators, GroupsThousands) {
  EXPECT_EQ(WithSeparators(0), "0");
  EXPECT_EQ(WithSeparators(999), "999");
  EXPECT_EQ(WithSeparators(1000), "1,000");
  EXPECT_EQ(WithSeparators(671026419200), "671,026,419,200");
  EXPECT_EQ(WithSeparators(-123456), "-123,456");
}

TEST(FormatFactor, ShowsADecimalOnlyWhereThereIsOne) {
  EXPECT_EQ(FormatFactor(4), "4");
  EXPECT_EQ(FormatFactor(1.25), "1.250");
}

}  // namespace
}  // namespace shardproof
