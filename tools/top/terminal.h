// A terminal used as a screen: its size, its keys, and lines that replace those shown before.
//
// Purpose: plain ANSI sequences without a library. The previous state of the terminal is restored at the end,
// also after a signal to end the program. Threads: one.
#ifndef BFIO_TOOLS_TOP_TERMINAL_H_
#define BFIO_TOOLS_TOP_TERMINAL_H_

#include <termios.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/top/screen.h"

namespace bfio::top {

// Size of the terminal on standard output; 80 x 24 where there is none.
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
  // The keys pressed, without escape sequences; waits up to `timeout` for the first.
  std::string Keys(absl::Duration timeout);

 private:
  termios before_;
};

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_TERMINAL_H_
