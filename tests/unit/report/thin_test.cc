#include "tools/report/thin.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace bfio::report {
namespace {

std::vector<Point> NoisyLine(int count, double width) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> noise(0, 300);
  std::vector<Point> points;
  for (int i = 0; i < count; ++i) points.push_back({width * i / count, noise(random)});
  return points;
}

// Lowest and highest y of each whole unit of x.
std::map<int, std::pair<double, double>> Extremes(const std::vector<Point>& points) {
  std::map<int, std::pair<double, double>> extremes;
  for (const Point& point : points) {
    auto& [low, high] = extremes.try_emplace(static_cast<int>(point.x), point.y, point.y).first->second;
    low = std::min(low, point.y);
    high = std::max(high, point.y);
  }
  return extremes;
}

TEST(ThinLineTest, EveryPixelColumnKeepsItsExtremes) {
  const std::vector<Point> points = NoisyLine(100000, 700);
  const std::vector<Point> thin = ThinLine(points, 1400);
  EXPECT_LE(thin.size(), 1402u);
  EXPECT_EQ(Extremes(thin), Extremes(points));
  EXPECT_EQ(thin.front(), points.front());
  EXPECT_EQ(thin.back(), points.back());
}

TEST(ThinLineTest, ASinglePeakSurvivesTheCoarsestThinning) {
  std::vector<Point> points = NoisyLine(100000, 700);
  points[54321].y = -7;
  for (const size_t limit : {1400u, 100u, 10u}) {
    const std::vector<Point> thin = ThinLine(points, limit);
    EXPECT_LE(thin.size(), limit + 2);
    EXPECT_NE(std::find(thin.begin(), thin.end(), points[54321]), thin.end()) << limit;
  }
}

TEST(ThinLineTest, KeptPointsAreInTheirOrder) {
  const std::vector<Point> thin = ThinLine(NoisyLine(5000, 50), 100);
  EXPECT_TRUE(
      std::is_sorted(thin.begin(), thin.end(), [](const Point& a, const Point& b) { return a.x < b.x; }));
}

TEST(ThinLineTest, ShortLinesStayAsTheyAre) {
  const std::vector<Point> points = NoisyLine(50, 10);
  EXPECT_EQ(ThinLine(points, 50), points);
  EXPECT_TRUE(ThinLine({}, 10).empty());
  EXPECT_EQ(ThinLine({{1, 2}}, 0).size(), 1u);
}

TEST(ThinCloudTest, KeepsExtremesAndDensity) {
  std::vector<Point> points = NoisyLine(100000, 700);
  for (size_t i = 0; i < points.size(); i += 2)
    points[i].y = 1 + points[i].y / 1000;  // half of them at the top
  points[777].y = 900;
  const std::vector<Point> thin = ThinCloud(points, 5600);
  EXPECT_LE(thin.size(), 5700u);
  EXPECT_NE(std::find(thin.begin(), thin.end(), points[777]), thin.end());
  const auto dense = std::count_if(thin.begin(), thin.end(), [](const Point& point) { return point.y < 2; });
  EXPECT_GT(dense, static_cast<int>(thin.size()) / 3);
}

}  // namespace
}  // namespace bfio::report
