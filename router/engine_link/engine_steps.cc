#include "router/engine_link/engine_steps.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace bfio::router {
namespace {

// Removes the text up to and including the next '-', and returns it without the '-'.
absl::string_view TakePart(absl::string_view& text) {
  const size_t end = text.find('-');
  const absl::string_view part = text.substr(0, end);
  text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
  return part;
}

}  // namespace

std::string EngineRequestName::ToString() const {
  return absl::StrCat("bfio-", absl::Hex(instance), "-", absl::Hex(member), "-", call, "-");
}

std::optional<EngineRequestName> EngineRequestName::Parse(absl::string_view text) {
  EngineRequestName name;
  if (!absl::ConsumePrefix(&text, "bfio-") || !absl::SimpleHexAtoi(TakePart(text), &name.instance) ||
      !absl::SimpleHexAtoi(TakePart(text), &name.member) || !absl::SimpleAtoi(TakePart(text), &name.call)) {
    return std::nullopt;
  }
  return name;
}

}  // namespace bfio::router
