#include "tools/top/prompt.h"

#include "absl/strings/str_cat.h"

namespace bfio::top {
namespace {

constexpr char kEscapeKey = '\x1b', kInterrupt = '\x03', kDelete = '\x7f', kBackspace = '\b';

struct Words {
  char key;
  Action::Kind kind;
  const char* asks;
  const char* verb;
  const char* means;
};

constexpr Words kWords[] = {
    {'p', Action::Kind::kSetPolicy, "switch to which policy", "switch to ", " from the next decision on"},
    {'d', Action::Kind::kDrain, "drain which worker", "drain ",
     ": no new requests, then it leaves the group"},
    {'u', Action::Kind::kUndrain, "undrain which worker", "undrain ", ": it takes new requests again"}};

}  // namespace

std::optional<Action> Prompt::OnKey(char key) {
  if (key == kInterrupt) return Action{Action::Kind::kQuit, ""};
  if (key == kEscapeKey) {
    question_ = Question::kNone;
    return std::nullopt;
  }
  switch (question_) {
    case Question::kNone:
      name_.clear();
      if (key == 'q') return Action{Action::Kind::kQuit, ""};
      for (const Words& words : kWords) {
        if (key != words.key) continue;
        kind_ = words.kind;
        question_ = Question::kName;
      }
      return std::nullopt;
    case Question::kName:
      if (key == '\r' || key == '\n') {
        question_ = name_.empty() ? Question::kNone : Question::kSure;
      } else if (key == kDelete || key == kBackspace) {
        if (!name_.empty()) name_.pop_back();
      } else if (key > ' ' && key <= '~' && name_.size() < kMaxName) {
        name_.push_back(key);
      }
      return std::nullopt;
    case Question::kSure:
      question_ = Question::kNone;
      if (key != 'y' && key != 'Y') return std::nullopt;
      return Action{kind_, name_};
  }
  return std::nullopt;
}

std::string Prompt::Text() const {
  if (question_ == Question::kNone) return "q quit   p switch policy   d drain a worker   u undrain one";
  for (const Words& words : kWords) {
    if (words.kind != kind_) continue;
    if (question_ == Question::kName) return absl::StrCat(words.asks, " (Enter; Esc: none)? ", name_);
    return absl::StrCat(words.verb, name_, words.means, " (y/n)?");
  }
  return "";
}

}  // namespace bfio::top
