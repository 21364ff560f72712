// A terminal as a screen: its size, its keys, and lines in place of those before.
//
// Purpose: plain ANSI sequences and no library; what the terminal was like is put back at the end, also when
// the program is asked to end. Threads: one.
#ifndef BFIO_TOOLS_TOP_TERMINAL_H_
#define BFIO_TOOLS_TOP_TERMINAL_H_

#include <termios.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/top/screen.h"

namespace bfio::top {

// Of the terminal on standard output; 80 x 24 where there is none.
ScreenSize TerminalSize();
// Whether standard input and output are a terminal.
bool IsTerminal();

class Terminal {
 public:
  // Switches to an empty screen without a cursor. REQUIRES: IsTerminal.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void Show(const std::vector<std::string>& lines);
  // The keys pressed, sequences of escape left out; waits up to `timeout` for the first.
  std::string Keys(absl::Duration timeout);

 private:
  termios before_;
};

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_TERMINAL_H_
