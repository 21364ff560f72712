// Writes a log on a thread of its own, so that no disk delays those who append to it. When a write fails, or
// more bytes wait than the bound, the log ends, with one line in the program's log, and nothing else. The
// thread looks for work every `poll`, or when half of the bound waits, because waking it costs more than
// appending: a process that is killed loses what came in that time. Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio {

class BackgroundWriter {
 public:
  // How long the destructor waits for a disk that does not respond.
  static constexpr absl::Duration kPatience = absl::Seconds(2);
  // Bytes that were appended one after another; `begins`: they begin a part of the log, such as a file.
  struct Item {
    bool begins = false;
    std::string bytes;
  };
  struct Options {
    // For messages: "step log"; what may be too small if not the disk is too slow.
    std::string name, bound;
    // Of the bytes that wait. Those that begin a part do not count.
    int64_t max_bytes = 0;
    absl::Duration poll;
    // Called by the thread. Its first error ends the log.
    std::function<absl::Status(const Item&)> write;
  };

  explicit BackgroundWriter(Options options);
  // Writes what waits.
  ~BackgroundWriter();

  // False: the log has ended.
  bool Append(absl::string_view bytes, bool begins = false);
  // These bytes end the log, whatever waits.
  void Close(absl::string_view last = "");
  // Bytes that wait or are being written.
  int64_t backlog_bytes() const;

 private:
  // Shared with the thread, which outlives this object if its disk does not respond.
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace bfio
