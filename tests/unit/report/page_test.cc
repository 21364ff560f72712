#include "tools/report/page.h"

#include <cmath>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/report/sample_page.h"
#include "tests/unit/report/well_formed.h"

namespace bfio::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string WithoutNamespace(const std::string& html) {
  return std::regex_replace(html, std::regex(" xmlns=\"http://www\\.w3\\.org/2000/svg\""), "");
}

TEST(PageTest, RefersToNothingOutside) {
  const std::string html = WithoutNamespace(SamplePage(1000).Html());
  for (const char* part : {"http:", "https:", "<script", "<link", "<img", "src=", "@import", "url(h", "//"}) {
    EXPECT_THAT(html, Not(HasSubstr(part)));
  }
}

TEST(PageTest, EveryDrawingIsWellFormed) {
  const std::vector<std::string> svgs = Svgs(SamplePage(1000).Html());
  EXPECT_EQ(svgs.size(), 16u);
  for (const std::string& svg : svgs) EXPECT_EQ(XmlError(svg), "");
}

TEST(PageTest, TheCheckForWellFormedXmlFindsFaults) {
  EXPECT_EQ(XmlError("<a b=\"c\"><d/>text &amp; more</a>\n"), "");
  for (const char* fault :
       {"<a>", "<a></b>", "<a b></a>", "<a b=\"1\" b=\"2\"/>", "<a>&</a>", "<a/><b/>", "x<a/>"}) {
    EXPECT_NE(XmlError(fault), "") << fault;
  }
}

TEST(PageTest, IdsAreUniqueAndLinksLeadSomewhere) {
  const std::string html = SamplePage(100).Html();
  std::set<std::string> ids;
  const std::regex id(" id=\"([^\"]*)\"");
  for (std::sregex_iterator it(html.begin(), html.end(), id), end; it != end; ++it) {
    EXPECT_TRUE(ids.insert((*it)[1]).second) << (*it)[1];
  }
  const std::regex link("href=\"#([^\"]*)\"|url\\(#([^)]*)\\)");
  for (std::sregex_iterator it(html.begin(), html.end(), link), end; it != end; ++it) {
    EXPECT_TRUE(ids.contains(absl::StrCat((*it)[1].str(), (*it)[2].str()))) << it->str();
  }
}

TEST(PageTest, SixChartsOfLongSeriesStayBelowTwoMegabytes) {
  Page page("large");
  for (int c = 0; c < 6; ++c) {
    Chart chart{.title = "t", .x = {.label = "x", .unit = "s"}, .y = {.label = "y", .unit = "s"}};
    for (int s = 0; s < 20; ++s) {
      Series series{.name = absl::StrCat("line ", std::string(1, static_cast<char>('a' + s)))};
      for (int i = 0; i < 100000; ++i) {
        series.x.push_back(i);
        series.y.push_back(std::sin(i * (0.1 + s)) * (1 + 0.1 * s));
      }
      chart.series.push_back(std::move(series));
    }
    page.Add(std::move(chart));
  }
  EXPECT_LT(page.Html().size(), 2000000u);
}

TEST(PageTest, TextIsEscapedEverywhere) {
  const std::string evil = "<b>&\"";
  Page page(evil);
  page.Lead(evil);
  page.Heading(evil);
  page.Text(evil);
  page.Parameters({{evil, evil}});
  page.Add(Table{.title = evil, .note = evil, .columns = {{evil, evil}}, .rows = {{evil}}});
  EXPECT_THAT(page.Html(), Not(HasSubstr(evil)));
  EXPECT_THAT(page.Html(), Not(HasSubstr("<b>")));
}

TEST(PageTest, TablesRoundForPeopleAndLeaveUnknownEmpty) {
  Page page("t");
  page.Add(Table{.columns = {{"Policy"}, {"TPOT", "ms", 3}, {"Requests"}},
                 .rows = {{"fcfs", 31.2499, int64_t{100000}}, {"bf_io", std::nan("")}}});
  EXPECT_THAT(page.Html(),
              HasSubstr("<th scope=\"row\" class=\"text\">fcfs</th><td>31.2</td><td>100,000</td>"));
  EXPECT_THAT(page.Html(), HasSubstr("<th scope=\"row\" class=\"text\">bf_io</th><td></td><td></td>"));
}

TEST(PageTest, LongPagesHaveContentsBehindTheLead) {
  Page page("t");
  page.Lead("what it shows");
  page.Heading("One");
  page.Heading("Two");
  EXPECT_THAT(page.Html(), Not(HasSubstr("<nav")));
  page.Heading("Three");
  const std::string html = page.Html();
  EXPECT_THAT(html, HasSubstr("<a href=\"#section-3\">Three</a>"));
  EXPECT_LT(html.find("what it shows"), html.find("<nav"));
}

TEST(PageTest, SameCallsSameBytes) {
  EXPECT_EQ(SamplePage(300).Html(), SamplePage(300).Html());
}

}  // namespace
}  // namespace bfio::report
