#include "tools/report/numbers.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "gtest/gtest.h"

namespace bfio::report {
namespace {

TEST(NumbersTest, SignificantDigitsKeepTrailingZerosAndWholeIntegerParts) {
  EXPECT_EQ(Significant(9.996, 3), "10.0");
  EXPECT_EQ(Significant(12345.678, 3), "12,346");
  EXPECT_EQ(Significant(0.00032149, 3), "0.000321");
  EXPECT_EQ(Significant(-1234.5, 6), "-1,234.50");
  EXPECT_EQ(Significant(0, 3), "0");
}

TEST(NumbersTest, NumbersTooLongToReadBecomePowersOfTen) {
  EXPECT_EQ(Significant(1.234e12, 3), "1.23×10¹²");
  EXPECT_EQ(Significant(1e-9, 1), "10⁻⁹");
  EXPECT_EQ(Significant(-2e300, 2), "-2.0×10³⁰⁰");
}

TEST(NumbersTest, WhatIsNotFiniteHasNoText) {
  for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    EXPECT_EQ(Significant(value, 3), "");
    EXPECT_EQ(FullPrecision(value), "");
  }
}

TEST(NumbersTest, FullPrecisionReadsBackAsTheSameDouble) {
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789.0, -2.5}) {
    EXPECT_EQ(std::strtod(FullPrecision(value).c_str(), nullptr), value);
  }
  EXPECT_EQ(FullPrecision(0.1), "0.1");
  EXPECT_EQ(FullPrecision(-0.0), "0");
}

TEST(NumbersTest, ThousandsAreSeparated) {
  EXPECT_EQ(Thousands(0), "0");
  EXPECT_EQ(Thousands(-999), "-999");
  EXPECT_EQ(Thousands(1000), "1,000");
  EXPECT_EQ(Thousands(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(Fixed(-0.0001, 2), "0.00");
}

TEST(NumbersTest, ExponentIsThatOfTheLeadingDigit) {
  EXPECT_EQ(Exponent(1000), 3);
  EXPECT_EQ(Exponent(999.999), 2);
  EXPECT_EQ(Exponent(-0.001), -3);
  EXPECT_EQ(Exponent(5e-324), -324);
}

TEST(NumbersTest, CoordinatesHaveATenthAndNoNegativeZero) {
  EXPECT_EQ(Coordinate(12), "12");
  EXPECT_EQ(Coordinate(12.54), "12.5");
  EXPECT_EQ(Coordinate(-0.04), "0");
}

}  // namespace
}  // namespace bfio::report
