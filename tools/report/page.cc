#include "tools/report/page.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::report {

Page::Page(std::string title) : title_(std::move(title)) {}

void Page::Lead(std::string paragraph) {
  Text(std::move(paragraph));
}
void Page::Heading(std::string text) {
  headings_.push_back(std::move(text));
}
void Page::Text(std::string) {}
void Page::Parameters(std::vector<std::pair<std::string, std::string>>) {}
void Page::Add(Table) {
  ++tables_;
}
void Page::Add(Chart) {
  ++charts_;
}

std::string Page::Html() const {
  return absl::StrCat("<!DOCTYPE html>\n", body_);
}

}  // namespace bfio::report
