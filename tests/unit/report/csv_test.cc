#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"
#include "tools/report/table.h"

namespace bfio::report {
namespace {

TEST(CsvTest, HeaderNamesUnitsAndDoublesKeepAllDigits) {
  const Table table = {.columns = {{"Policy", ""}, {"TPOT", "ms", 2}, {"Requests", ""}},
                       .rows = {{"fcfs", 0.1, int64_t{1234567}}, {"bf_io", 1.0 / 3, int64_t{-1}}}};
  EXPECT_EQ(Csv(table), "Policy,TPOT [ms],Requests\nfcfs,0.1,1234567\nbf_io,0.3333333333333333,-1\n");
}

TEST(CsvTest, CommasQuotesAndLineBreaksAreQuoted) {
  const Table table = {.columns = {{"a,b", "m"}},
                       .rows = {{"say \"x\""}, {"two\nlines"}, {"plain text"}, {"cr\r"}}};
  EXPECT_EQ(Csv(table), "\"a,b [m]\"\n\"say \"\"x\"\"\"\n\"two\nlines\"\nplain text\n\"cr\r\"\n");
}

TEST(CsvTest, WhatIsMissingOrNotFiniteIsEmpty) {
  const Table table = {.columns = {{"a"}, {"b"}, {"c"}},
                       .rows = {{std::monostate(), std::nan(""), HUGE_VAL}, {1.0}, {1.0, 2.0, 3.0, 4.0}}};
  EXPECT_EQ(Csv(table), "a,b,c\n,,\n1,,\n1,2,3\n");
}

}  // namespace
}  // namespace bfio::report
