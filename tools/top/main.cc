// bfio_top: shows a cluster in a terminal.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/config/program.h"
#include "common/net/grpc_log.h"
#include "common/telemetry/log.h"
#include "tools/top/feed.h"
#include "tools/top/prompt.h"
#include "tools/top/screen.h"
#include "tools/top/terminal.h"

namespace bfio::top {
namespace {

// Rates are computed over this much time before now.
constexpr absl::Duration kWindow = absl::Seconds(10);
constexpr size_t kMaxIdle = 400;
// How long the result of an action stays on the lowest line.
constexpr absl::Duration kMessageTime = absl::Seconds(5);
constexpr int kManyRows = 5000;

ProgramInfo Info() {
  return {
      "bfio_top", BFIO_VERSION,
      "Shows what a bfio cluster does, in a terminal: the load of every worker, what imbalance wastes, "
      "latencies.\n\n"
      "  bfio_top --admin=127.0.0.1:50052\n"
      "  bfio_top --once --plain | head -5          for scripts\n\n"
      "Keys: q quits, p switches the policy, d drains a worker, u undrains it; they ask before they act."};
}

struct Settings {
  std::string admin = "127.0.0.1:50052";
  TlsFiles admin_tls;
  std::string admin_token_file;
  absl::Duration interval = absl::Seconds(1);
  bool once = false, plain = false;
  // 0: the size of the terminal.
  int32_t columns = 0, rows = 0;
};

void AddOptions(OptionTable& table, Settings& s) {
  table.Add("admin", &s.admin, "HOST:PORT of the router's admin API");
  table.AddParsed("admin_tls", &s.admin_tls, "",
                  "cert=FILE,key=FILE,ca=FILE, PEM: the CAs of the router's certificate, and the operator's "
                  "certificate and its key where it is asked for; empty: plain text",
                  ParseTlsFiles);
  table.Add("admin_token_file", &s.admin_token_file, "file with the bearer token, where one is asked for");
  table.Add("interval", &s.interval, Within(absl::Milliseconds(100), absl::Minutes(1)),
            "between two pictures");
  table.Add("once", &s.once, "print one picture, of the interval after the start, and end");
  table.Add("plain", &s.plain, "ASCII without colours; so it is anyway where the output is no terminal");
  table.Add("columns", &s.columns, Within(0, 10'000), "width of the picture; 0: the terminal's, or 80");
  table.Add("rows", &s.rows, Within(0, 10'000),
            "height of the picture; 0: the terminal's, or all workers where there is none");
}

ScreenOptions OptionsOf(const Settings& settings, bool terminal) {
  ScreenOptions options;
  options.size = TerminalSize();
  if (!terminal) options.size.rows = kManyRows;
  if (settings.columns > 0) options.size.columns = settings.columns;
  if (settings.rows > 0) options.size.rows = settings.rows;
  options.plain = settings.plain || !terminal;
  return options;
}

// The states of the last kWindow, and the pictures computed from them.
class Recent {
 public:
  void Add(v1::ClusterState state) {
    const absl::Time now = MonotonicNow();
    if (!states_.empty()) {
      const Measurements last = Compare(states_.back().second, state);
      if (last.idle) idle_.push_back(*last.idle);
      if (idle_.size() > kMaxIdle) idle_.pop_front();
    }
    states_.emplace_back(now, std::move(state));
    while (states_.size() > 2 && now - states_[1].first >= kWindow) states_.pop_front();
  }
  bool empty() const { return states_.empty(); }
  Picture Make(const std::vector<v1::StepSummary>& steps) const {
    Picture picture;
    picture.figures = Compare(states_.front().second, states_.back().second, steps);
    picture.idle = idle_;
    return picture;
  }

 private:
  std::deque<std::pair<absl::Time, v1::ClusterState>> states_;
  std::deque<double> idle_;
};

absl::Status Once(Feed& feed, const Settings& settings) {
  Recent recent;
  auto state = feed.State();
  if (!state.ok()) return state.status();
  recent.Add(*std::move(state));
  absl::SleepFor(settings.interval);
  state = feed.State();
  if (!state.ok()) return state.status();
  recent.Add(*std::move(state));
  for (const std::string& line : Draw(recent.Make(feed.LastSteps()), OptionsOf(settings, IsTerminal()))) {
    std::printf("%s\n", line.c_str());
  }
  return absl::OkStatus();
}

// Carries out an action. Returns the message for the lowest line, and whether it is an error.
std::pair<std::string, bool> Do(Feed& feed, const Action& action) {
  absl::Status status;
  std::string done;
  switch (action.kind) {
    case Action::Kind::kSetPolicy:
      status = feed.SetPolicy(action.name);
      done = absl::StrCat("switched to ", action.name);
      break;
    case Action::Kind::kDrain:
      status = feed.Drain(action.name);
      done = absl::StrCat(action.name, " drains");
      break;
    case Action::Kind::kUndrain:
      status = feed.Undrain(action.name);
      done = absl::StrCat(action.name, " takes requests again");
      break;
    case Action::Kind::kQuit:
      break;
  }
  if (!status.ok()) return {absl::StrCat("refused: ", status.message()), true};
  return {done, false};
}

absl::Status Watch(Feed& feed, const Settings& settings) {
  Recent recent;
  BFIO_ASSIGN_OR_RETURN(auto first, feed.State());
  recent.Add(std::move(first));
  Terminal terminal;
  Prompt prompt;
  std::pair<std::string, bool> message;
  absl::Time message_end = absl::InfinitePast(), next = MonotonicNow() + settings.interval;
  std::string lost;
  while (!ShutdownSignal::Requested()) {
    if (MonotonicNow() >= next) {
      auto state = feed.State();
      lost = state.ok() ? "" : absl::StrCat("no answer from the router: ", state.status().message());
      if (state.ok()) recent.Add(*std::move(state));
      next = MonotonicNow() + settings.interval;
    }
    Picture picture = recent.Make(feed.LastSteps());
    const bool fresh = MonotonicNow() < message_end;
    picture.message = fresh ? message.first : lost.empty() ? prompt.Text() : lost;
    picture.message_is_bad = fresh ? message.second : !lost.empty();
    terminal.Show(Draw(picture, OptionsOf(settings, true)));
    const absl::Duration left = std::max(absl::ZeroDuration(), next - MonotonicNow());
    for (const char key : terminal.Keys(std::min(left, absl::Milliseconds(100)))) {
      message_end = absl::InfinitePast();
      const std::optional<Action> action = prompt.OnKey(key);
      if (!action) continue;
      if (action->kind == Action::Kind::kQuit) return absl::OkStatus();
      message = Do(feed, *action);
      message_end = MonotonicNow() + kMessageTime;
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const Settings& settings) {
  if (auto parsed = ParseAddress(settings.admin); !parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--admin: ", parsed.status().message()));
  }
  BFIO_ASSIGN_OR_RETURN(auto login,
                        MakeLogin(settings.admin, "admin", settings.admin_tls, settings.admin_token_file));
  if (!settings.once && !IsTerminal()) {
    return absl::InvalidArgumentError("standard input and output are no terminal: --once prints one picture");
  }
  Feed feed(settings.admin, std::move(login));
  return settings.once ? Once(feed, settings) : Watch(feed, settings);
}

}  // namespace
}  // namespace bfio::top

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = bfio::top::Info();
  bfio::top::Settings settings;
  bfio::OptionTable table;
  bfio::top::AddOptions(table, settings);
  bfio::InitWithoutArguments(argc, argv, info, table);
  // Lines of a log would spoil the picture, so only errors are logged.
  absl::Status status = bfio::InitLogging(info.name, "error", "text");
  if (!status.ok()) return bfio::ExitWith(info, status);
  bfio::InstallGrpcLog();
  bfio::ShutdownSignal::Install();
  status = bfio::top::Run(settings);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
