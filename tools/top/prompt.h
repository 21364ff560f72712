// What the keys do: which question is open, what has been typed, and which action was confirmed.
//
// Purpose: a single wrong key neither switches a policy nor drains a worker: a name is typed, then confirmed
// with 'y'. Pure.
#ifndef BFIO_TOOLS_TOP_PROMPT_H_
#define BFIO_TOOLS_TOP_PROMPT_H_

#include <optional>
#include <string>

namespace bfio::top {

struct Action {
  enum class Kind { kQuit, kSetPolicy, kDrain, kUndrain };
  Kind kind = Kind::kQuit;
  // Name of the policy or the worker.
  std::string name;
};

class Prompt {
 public:
  // Longer names are not valid.
  static constexpr size_t kMaxName = 200;

  // Handles a key: a byte as the terminal sends it in raw mode. The caller removes escape sequences.
  std::optional<Action> OnKey(char key);

  // The text for the lowest line.
  std::string Text() const;

 private:
  // The open question: a name, or the confirmation. `kind_` is the action that it is for.
  enum class Question { kNone, kName, kSure };
  Question question_ = Question::kNone;
  Action::Kind kind_ = Action::Kind::kQuit;
  std::string name_;
};

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_PROMPT_H_
