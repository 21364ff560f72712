// What the keys do: which question is open, what has been typed, and what was agreed to.
//
// Purpose: nothing is switched or drained by a slip of a finger: a name is typed, then confirmed with 'y'.
// Pure.
#ifndef BFIO_TOOLS_TOP_PROMPT_H_
#define BFIO_TOOLS_TOP_PROMPT_H_

#include <optional>
#include <string>

namespace bfio::top {

struct Action {
  enum class Kind { kQuit, kSetPolicy, kDrain, kUndrain };
  Kind kind = Kind::kQuit;
  // Policy or worker.
  std::string name;
};

class Prompt {
 public:
  // Longer names are not valid.
  static constexpr size_t kMaxName = 200;

  // A key: a byte as the terminal sends it, in raw mode. Sequences of escape are swallowed by the caller.
  std::optional<Action> OnKey(char key);

  // For the lowest line.
  std::string Text() const;

 private:
  // A name is asked for, or whether it is meant; which action it is for is `kind_`.
  enum class Question { kNone, kName, kSure };
  Question question_ = Question::kNone;
  Action::Kind kind_ = Action::Kind::kQuit;
  std::string name_;
};

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_PROMPT_H_
