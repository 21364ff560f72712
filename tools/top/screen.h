// A cluster's figures as lines of a terminal.
//
// Purpose: the same picture on a screen, in a pipe and in a test. Lines are at most `columns` wide and `rows`
// many; what does not fit is left out from the least telling up: of workers those with the smallest loads.
// Above a dozen ranks a map has a mark for each, however many there are. Names come from other machines:
// whatever of them is no plain character is shown as '?', so that no name moves the cursor. Pure.
#ifndef BFIO_TOOLS_TOP_SCREEN_H_
#define BFIO_TOOLS_TOP_SCREEN_H_

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tools/top/figures.h"

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
  Figures figures;
  // The idle shares of the times before, oldest first.
  std::deque<double> idle;
  // The lowest line: a question, an answer, or what the keys do.
  std::string message;
  bool message_is_bad = false;
};

// Lines without their ends.
std::vector<std::string> Draw(const Picture& picture, const ScreenOptions& options);

// "1,234", "66.0K", "3.70 ms", "1.1 %": as wide as a person reads at a glance.
std::string Count(uint64_t value);
std::string Short(double value);
std::string Seconds(double seconds);
std::string Percent(double share);
// Printable ASCII; '?' for the rest.
std::string Harmless(absl::string_view name);

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_SCREEN_H_
