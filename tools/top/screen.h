// The measurements of a cluster as lines of a terminal.
//
// Purpose: the same picture on a screen, in a pipe and in a test. Lines are at most `columns` wide and `rows`
// many. What does not fit is left out, the least important first: of workers those with the smallest loads.
// Above a dozen ranks a map has one mark for each rank. Names come from other machines: every character that
// is not printable ASCII is shown as '?', so that no name moves the cursor. Pure.
#ifndef BFIO_TOOLS_TOP_SCREEN_H_
#define BFIO_TOOLS_TOP_SCREEN_H_

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tools/top/measurements.h"

namespace bfio::top {

struct ScreenSize {
  int columns = 80;
  int rows = 24;
};

struct ScreenOptions {
  ScreenSize size;
  // ASCII without escape sequences.
  bool plain = false;
};

struct Picture {
  Measurements figures;
  // Idle shares of earlier readings, oldest first.
  std::deque<double> idle;
  // The lowest line: a question, the result of an action, or the list of keys.
  std::string message;
  bool message_is_bad = false;
};

// The lines, without line breaks.
std::vector<std::string> Draw(const Picture& picture, const ScreenOptions& options);

// Short texts for numbers: "1,234", "66.0K", "3.70 ms", "1.1 %".
std::string Count(uint64_t value);
std::string Short(double value);
std::string Seconds(double seconds);
std::string Percent(double share);
// `name` as printable ASCII; other characters become '?'.
std::string Harmless(absl::string_view name);

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_SCREEN_H_
