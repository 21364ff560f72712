#include "tools/top/prompt.h"

#include "absl/strings/str_cat.h"

namespace bfio::top {
namespace {

constexpr char kEscapeKey = '\x1b', kInterrupt = '\x03', kDelete = '\x7f', kBackspace = '\b';

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
      if (key == 'p') question_ = Question::kPolicy;
      if (key == 'd') question_ = Question::kWorker;
      return std::nullopt;
    case Question::kPolicy:
    case Question::kWorker:
      if (key == '\r' || key == '\n') {
        if (name_.empty()) {
          question_ = Question::kNone;
        } else {
          question_ = question_ == Question::kPolicy ? Question::kSurePolicy : Question::kSureWorker;
        }
      } else if (key == kDelete || key == kBackspace) {
        if (!name_.empty()) name_.pop_back();
      } else if (key > ' ' && key <= '~' && name_.size() < kMaxName) {
        name_.push_back(key);
      }
      return std::nullopt;
    case Question::kSurePolicy:
    case Question::kSureWorker: {
      const auto kind = question_ == Question::kSurePolicy ? Action::Kind::kSetPolicy : Action::Kind::kDrain;
      question_ = Question::kNone;
      if (key != 'y' && key != 'Y') return std::nullopt;
      return Action{kind, name_};
    }
  }
  return std::nullopt;
}

std::string Prompt::Text() const {
  switch (question_) {
    case Question::kNone:
      return "q quit   p switch policy   d drain a worker";
    case Question::kPolicy:
      return absl::StrCat("switch to which policy (Enter; Esc: none)? ", name_);
    case Question::kWorker:
      return absl::StrCat("drain which worker (Enter; Esc: none)? ", name_);
    case Question::kSurePolicy:
      return absl::StrCat("switch to ", name_, " from the next decision on (y/n)?");
    case Question::kSureWorker:
      return absl::StrCat("drain ", name_, ": no new requests, then it leaves the group (y/n)?");
  }
  return "";
}

}  // namespace bfio::top
