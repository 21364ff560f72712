#include "tools/top/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bfio::top {
namespace {

constexpr char kEscapeKey = '\x1b';
constexpr int kMaxColumns = 400, kMaxRows = 400;

// Writes all of `text`, or as much as the terminal takes.
void Write(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (wrote <= 0) return;
    done += static_cast<size_t>(wrote);
  }
}

}  // namespace

ScreenSize TerminalSize() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {std::min<int>(size.ws_col, kMaxColumns), std::min<int>(size.ws_row, kMaxRows)};
}

bool IsTerminal() {
  return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
}

Terminal::Terminal() {
  tcgetattr(STDIN_FILENO, &before_);
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  Write("\x1b[?1049h\x1b[?25l");
}

Terminal::~Terminal() {
  Write("\x1b[?25h\x1b[?1049l");
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

void Terminal::Show(const std::vector<std::string>& lines) {
  // Lines are overwritten, not cleared, because clearing flickers.
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : "\r\n", lines[i], "\x1b[K");
  Write(absl::StrCat(text, "\x1b[J"));
}

std::string Terminal::Keys(absl::Duration timeout) {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) return "";
  char bytes[64];
  const ssize_t size = read(STDIN_FILENO, bytes, sizeof(bytes));
  // The terminal is closed. Ctrl-C quits in every state.
  if (size <= 0) return "\x03";
  std::string keys(bytes, static_cast<size_t>(size));
  // An escape sequence, such as an arrow key, arrives in one read; the Escape key alone is one byte.
  if (keys.size() > 1 && keys[0] == kEscapeKey) return "";
  return keys;
}

}  // namespace bfio::top
