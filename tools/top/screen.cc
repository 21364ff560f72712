#include "tools/top/screen.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace bfio::top {
namespace {

enum class Style { kPlain, kStrong, kSoft, kGood, kBad };

constexpr absl::string_view kEscape[] = {"", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[31m"};
constexpr absl::string_view kEnd = "\x1b[0m";
constexpr int kLevels = 8;
constexpr absl::string_view kBlocks[kLevels] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr char kMarks[kLevels + 1] = "_.-:=+*#";
// The map of ranks is drawn for more ranks than this.
constexpr uint32_t kMapFrom = 12;

// One line, never wider than the screen.
class Line {
 public:
  explicit Line(const ScreenOptions& options) : options_(options) {}

  // REQUIRES: printable ASCII.
  Line& Text(absl::string_view text, Style style = Style::kPlain) {
    text = text.substr(0, static_cast<size_t>(std::max(0, capacity())));
    used_ += static_cast<int>(text.size());
    Put(text, style);
    return *this;
  }
  // A bar one column wide whose height is a share of 0 to 1.
  Line& Mark(double share, Style style = Style::kPlain) {
    if (capacity() <= 0) return *this;
    const int level = std::clamp(static_cast<int>(share * kLevels), 0, kLevels - 1);
    ++used_;
    Put(options_.plain ? absl::string_view(&kMarks[level], 1) : kBlocks[level], style);
    return *this;
  }
  Line& To(int column) { return Text(std::string(static_cast<size_t>(std::max(0, column - used_)), ' ')); }

  int used() const { return used_; }
  int capacity() const { return options_.size.columns - used_; }
  std::string Take() {
    Close();
    return std::move(text_);
  }

 private:
  void Put(absl::string_view text, Style style) {
    if (text.empty()) return;
    if (style != style_) Close();
    if (!options_.plain && style != style_) absl::StrAppend(&text_, kEscape[static_cast<int>(style)]);
    style_ = style;
    absl::StrAppend(&text_, text);
  }
  void Close() {
    if (!options_.plain && style_ != Style::kPlain) absl::StrAppend(&text_, kEnd);
    style_ = Style::kPlain;
  }

  const ScreenOptions& options_;
  std::string text_;
  Style style_ = Style::kPlain;
  int used_ = 0;
};

template <typename T, typename Format>
std::string Or(const std::optional<T>& value, Format format) {
  return value ? format(*value) : "-";
}
// The rank, with its group where there are several.
std::string OrRank(const std::optional<uint32_t>& rank, const std::string& group, const Measurements& f) {
  if (!rank) return "-";
  return f.several_groups ? absl::StrCat(Harmless(group), ":", *rank) : absl::StrCat(*rank);
}
int RankColumns(const Measurements& f) {
  return f.several_groups ? 12 : 4;
}

void Pair(Line& line, absl::string_view name, absl::string_view value, Style style = Style::kStrong) {
  // A name and value that were cut off would be misread, so they are left out instead.
  const size_t width = (line.used() > 0 ? 2 : 0) + name.size() + 1 + value.size();
  if (static_cast<size_t>(std::max(0, line.capacity())) < width) return;
  if (line.used() > 0) line.Text("  ");
  line.Text(name, Style::kSoft).Text(" ").Text(value, style);
}

// Digests of the models that the groups compute, in the form in which logs show them.
std::string Models(const v1::ClusterState& state) {
  constexpr size_t kShown = 12;
  std::set<std::string> models;
  for (const v1::GroupState& group : state.groups()) {
    if (!group.model().empty()) models.insert(Harmless(group.model().substr(0, kShown)));
  }
  return absl::StrJoin(models, ", ");
}

std::string HeadLine(const Measurements& f, const ScreenOptions& options) {
  Line line(options);
  line.Text("bfio ", Style::kStrong);
  if (f.ranks > 0) {
    line.Text("serving", Style::kGood);
  } else {
    line.Text("waiting for workers", Style::kBad);
  }
  Pair(line, "policy", Harmless(f.state.policy().name()));
  Pair(line, "epoch", absl::StrCat(f.state.epoch()));
  Pair(line, "ranks",
       f.ranks < f.state.expected_workers() ? absl::StrCat(f.ranks, " of ", f.state.expected_workers())
                                            : absl::StrCat(f.ranks));
  Pair(line, "up", Seconds(static_cast<double>(f.state.uptime().seconds())));
  if (std::string models = Models(f.state); !models.empty()) Pair(line, "model", models);
  Pair(line, "version", Harmless(f.state.version()));
  return line.Take();
}

std::string IdleLine(const Picture& picture, const ScreenOptions& options) {
  const Measurements& f = picture.figures;
  Line line(options);
  Pair(line, "idle", Or(f.idle, Percent));
  Pair(line, "at the barrier", Or(f.barrier_wait, Percent));
  Pair(line, "tokens/s", Or(f.tokens_per_s, Short));
  Pair(line, "steps/s", Or(f.steps_per_s, Short));
  Pair(line, "decision", Or(f.decide_s, Seconds));
  constexpr int kLabel = 14;
  const int wide = std::min<int>(line.capacity() - kLabel, static_cast<int>(picture.idle.size()));
  if (wide < 8) return line.Take();
  line.Text("  ").Text("idle so far", Style::kSoft).Text(" ");
  const double most = std::max(0.05, *std::max_element(picture.idle.end() - wide, picture.idle.end()));
  for (auto idle = picture.idle.end() - wide; idle != picture.idle.end(); ++idle) line.Mark(*idle / most);
  return line.Take();
}

std::string LatencyLine(const Measurements& f, const ScreenOptions& options) {
  Line line(options);
  const auto both = [](const Quantiles& q) { return absl::StrCat(Seconds(q.p50), " / ", Seconds(q.p99)); };
  Pair(line, "first token p50/p99", Or(f.first_token_s, both));
  Pair(line, "between tokens", Or(f.between_tokens_s, both));
  Pair(line, "running", absl::StrCat(Count(f.running), " of ", Count(f.slots)));
  Pair(line, "waiting",
       absl::StrCat(Count(f.state.waiting_requests()), " of ", Count(f.state.max_waiting_requests())));
  return line.Take();
}

std::string LoadLine(const Measurements& f, const ScreenOptions& options) {
  Line line(options);
  Pair(line, "load max", absl::StrCat(Count(f.max_load), " (rank ", OrRank(f.max_rank, f.max_group, f), ")"));
  Pair(line, "mean", Count(static_cast<uint64_t>(std::llround(f.mean_load))));
  Pair(line, "min", Count(f.min_load));
  if (f.max_load > 0)
    Pair(line, "balance", absl::StrFormat("%.3f", f.mean_load / static_cast<double>(f.max_load)));
  Pair(line, "slowest rank", OrRank(f.straggler, f.straggler_group, f));
  return line.Take();
}

std::string RequestLine(const Measurements& f, const ScreenOptions& options) {
  const v1::RequestTotals& r = f.state.requests();
  Line line(options);
  Pair(line, "accepted", Count(r.accepted()));
  Pair(line, "completed", Count(r.completed()));
  Pair(line, "cancelled", Count(r.cancelled() + r.aborted()));
  Pair(line, "refused",
       Count(r.refused_pool_full() + r.refused_invalid() + r.refused_tenant() + r.refused_memory()));
  Pair(line, "replayed", Count(r.replayed()));
  Pair(line, "failed", Count(r.failed()), r.failed() > 0 ? Style::kBad : Style::kStrong);
  const uint64_t wrong = r.tokens_lost() + r.tokens_duplicated();
  Pair(line, "tokens lost or twice", Count(wrong), wrong > 0 ? Style::kBad : Style::kStrong);
  return line.Take();
}

std::string ShadowLine(const v1::ShadowState& shadow, const ScreenOptions& options) {
  Line line(options);
  Pair(line, "against", Harmless(shadow.policy()));
  Pair(line, "idle tokens avoided", Short(shadow.avoided_idle_tokens()));
  Pair(line, "missed", Short(shadow.missed_idle_tokens()));
  Pair(line, "decisions", Count(shadow.decisions()));
  return line.Take();
}

// One mark per rank: its share of the largest load.
std::vector<std::string> Map(const Measurements& f, const ScreenOptions& options) {
  std::vector<std::string> lines;
  constexpr int kLabel = 5;
  const int wide = std::max(8, (options.size.columns - kLabel) / 8 * 8);
  const double most = std::max<double>(1, static_cast<double>(f.max_load));
  for (size_t first = 0; first < f.ranks; first += static_cast<size_t>(wide)) {
    Line line(options);
    line.Text(absl::StrFormat("%4d ", first), Style::kSoft);
    for (size_t i = first; i < std::min<size_t>(f.ranks, first + static_cast<size_t>(wide)); ++i) {
      const WorkerMeasurements& worker = f.workers[i];
      const bool top = worker.load_tokens == f.max_load && f.max_load > 0;
      line.Mark(static_cast<double>(worker.load_tokens) / most, top ? Style::kBad : Style::kPlain);
    }
    lines.push_back(line.Take());
  }
  return lines;
}

constexpr absl::string_view kPhases[] = {"-", "joining", "serving", "draining"};

std::string WorkerLine(const WorkerMeasurements& worker, const Measurements& f,
                       const ScreenOptions& options) {
  Line line(options);
  line.Text(absl::StrFormat("%*s ", RankColumns(f), OrRank(worker.rank, worker.group, f)));
  line.Text(absl::StrFormat("%-20s ", Harmless(worker.worker_id).substr(0, 20)));
  const auto phase = static_cast<size_t>(worker.phase);
  line.Text(absl::StrFormat("%-9s", kPhases[phase < 4 ? phase : 0]),
            worker.phase == v1::WORKER_PHASE_SERVING ? Style::kPlain : Style::kBad);
  line.Text(absl::StrFormat("%10s", Count(worker.load_tokens)));
  line.Text(absl::StrFormat("%10s", absl::StrCat(worker.running, "/", worker.slots)));
  line.Text(absl::StrFormat("%8s", worker.kv_tokens == 0 ? "-"
                                                         : Percent(static_cast<double>(worker.load_tokens) /
                                                                   static_cast<double>(worker.kv_tokens))));
  line.Text(absl::StrFormat("%9s%9s%9s", Or(worker.local_s, Seconds), Or(worker.wait_s, Seconds),
                            Or(worker.slowest, Percent)));
  line.Text(absl::StrFormat("%10s ", worker.kv_tokens == 0
                                         ? "-"
                                         : Percent(static_cast<double>(worker.reserved_kv_tokens) /
                                                   static_cast<double>(worker.kv_tokens))));
  if (f.max_load == 0 || line.capacity() < 8) return line.Take();
  const int wide = std::min(60, line.capacity());
  const bool top = worker.load_tokens == f.max_load;
  const auto bar = static_cast<int>(
      std::lround(wide * static_cast<double>(worker.load_tokens) / static_cast<double>(f.max_load)));
  for (int i = 0; i < bar; ++i) line.Mark(1, top ? Style::kBad : Style::kPlain);
  return line.Take();
}

std::string WorkerHead(const Measurements& f, const ScreenOptions& options) {
  Line line(options);
  line.Text(absl::StrFormat("%*s %-20s %-9s%10s%10s%8s%9s%9s%9s%10s", RankColumns(f), "rank", "worker",
                            "state", "load", "running", "KV", "local", "waited", "slowest", "reserved"),
            Style::kSoft);
  return line.Take();
}

}  // namespace

std::vector<std::string> Draw(const Picture& picture, const ScreenOptions& options) {
  const Measurements& f = picture.figures;
  const auto rows = static_cast<size_t>(std::max(1, options.size.rows));
  std::vector<std::string> lines = {HeadLine(f, options), IdleLine(picture, options), LatencyLine(f, options),
                                    LoadLine(f, options), RequestLine(f, options)};
  for (const v1::ShadowState& shadow : f.state.shadows()) lines.push_back(ShadowLine(shadow, options));
  if (f.ranks > kMapFrom) {
    lines.emplace_back();
    for (std::string& line : Map(f, options)) lines.push_back(std::move(line));
  }
  lines.emplace_back();
  const bool message = !picture.message.empty();
  const size_t capacity = rows > lines.size() + 1 + message ? rows - lines.size() - 1 - message : 0;
  std::vector<const WorkerMeasurements*> shown;
  for (const WorkerMeasurements& worker : f.workers) shown.push_back(&worker);
  if (shown.size() > capacity) {
    // Workers that do not serve come first, as they need attention; then those with the largest load, which
    // set the pace.
    std::stable_sort(shown.begin(), shown.end(),
                     [](const WorkerMeasurements* a, const WorkerMeasurements* b) {
                       const bool a_serves = a->phase == v1::WORKER_PHASE_SERVING,
                                  b_serves = b->phase == v1::WORKER_PHASE_SERVING;
                       return a_serves != b_serves ? !a_serves : a->load_tokens > b->load_tokens;
                     });
    shown.resize(capacity);
  }
  if (!shown.empty()) lines.push_back(WorkerHead(f, options));
  for (const WorkerMeasurements* worker : shown) lines.push_back(WorkerLine(*worker, f, options));
  if (lines.size() > rows - message) lines.resize(rows - message);
  if (message) {
    Line line(options);
    line.Text(Harmless(picture.message), picture.message_is_bad ? Style::kBad : Style::kSoft);
    lines.push_back(line.Take());
  }
  return lines;
}

std::string Count(uint64_t value) {
  std::string result;
  const std::string digits = absl::StrCat(value);
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) result.push_back(',');
    result.push_back(digits[i]);
  }
  return result;
}

std::string Short(double value) {
  constexpr absl::string_view kUnits[] = {"", "K", "M", "G", "T"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) value /= 1000, ++unit;
  const int digits = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f%s", digits, value, kUnits[unit]);
}

std::string Seconds(double s) {
  if (s < 0.0009995) return absl::StrFormat("%.0f us", 1e6 * s);
  if (s < 0.0995) return absl::StrFormat("%.*f ms", s < 0.009995 ? 2 : 1, 1e3 * s);
  if (s < 120) return absl::StrFormat("%.*f s", s < 9.995 ? 2 : 1, s);
  if (s < 2 * 3600) return absl::StrFormat("%.0f min", s / 60);
  return s < 48 * 3600 ? absl::StrFormat("%.0f h", s / 3600) : absl::StrFormat("%.0f d", s / 86400);
}

std::string Percent(double share) {
  return absl::StrFormat("%.1f %%", 100 * share);
}

std::string Harmless(absl::string_view name) {
  std::string result(name);
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return result;
}

}  // namespace bfio::top
