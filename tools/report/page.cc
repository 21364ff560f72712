#include "tools/report/page.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/report/figure.h"
#include "tools/report/markup.h"
#include "tools/report/style.h"
#include "tools/report/table_html.h"

namespace bfio::report {
namespace {

// Fewer headings are all on the first screen or two.
constexpr size_t kFewestInContents = 3;

// "section-1": the first heading's.
std::string SectionId(size_t index) {
  return absl::StrCat("section-", index + 1);
}

}  // namespace

Page::Page(std::string title) : title_(std::move(title)) {}

void Page::Lead(std::string paragraph) {
  std::string& place = body_.empty() ? lead_ : body_;
  absl::StrAppend(&place, "<p class=\"lead\">", Escape(paragraph), "</p>\n");
}

void Page::Heading(std::string text) {
  absl::StrAppend(&body_, "<h2 id=\"", SectionId(headings_.size()), "\">", Escape(text), "</h2>\n");
  headings_.push_back(std::move(text));
}

void Page::Text(std::string paragraph) {
  absl::StrAppend(&body_, "<p>", Escape(paragraph), "</p>\n");
}

void Page::Parameters(std::vector<std::pair<std::string, std::string>> parameters) {
  if (parameters.empty()) return;
  absl::StrAppend(&body_, "<dl>\n");
  for (const auto& [name, value] : parameters) {
    absl::StrAppend(&body_, "<dt>", Escape(name), "</dt><dd>", Escape(value), "</dd>\n");
  }
  absl::StrAppend(&body_, "</dl>\n");
}

void Page::Add(Table table) {
  absl::StrAppend(&body_, TableHtml(table));
}

void Page::Add(Chart chart) {
  absl::StrAppend(&body_, Figure(chart, absl::StrCat("chart-", ++charts_)));
}

std::string Page::Html() const {
  std::string contents;
  if (headings_.size() >= kFewestInContents) {
    absl::StrAppend(&contents, "<nav aria-label=\"Contents\"><ul>\n");
    for (size_t i = 0; i < headings_.size(); ++i) {
      absl::StrAppend(&contents, "<li><a href=\"#", SectionId(i), "\">", Escape(headings_[i]), "</a></li>\n");
    }
    absl::StrAppend(&contents, "</ul></nav>\n");
  }
  // The policy makes the promise of a self-contained page binding: a browser would refuse to load anything.
  return absl::StrCat("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                      "'unsafe-inline'\">\n",
                      "<title>", Escape(title_), "</title>\n<style>", StyleSheet(),
                      "</style>\n</head>\n<body>\n<main>\n<h1>", Escape(title_), "</h1>\n", lead_, contents,
                      body_, "</main>\n</body>\n</html>\n");
}

}  // namespace bfio::report
