#include "tests/chaos/memory_watch.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::chaos {

int64_t ResidentKib(pid_t pid) {
  if (pid <= 0) return 0;
  std::ifstream in(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; in >> word;) {
    if (word != "VmRSS:") continue;
    int64_t kib = 0;
    in >> kib;
    return kib;
  }
  return 0;
}

void MemoryWatch::Sample(absl::Duration at, pid_t router, const std::vector<pid_t>& workers) {
  Row row{absl::ToDoubleSeconds(at), ResidentKib(router), 0, 0};
  for (const pid_t worker : workers) {
    const int64_t kib = ResidentKib(worker);
    row.workers += kib;
    row.largest = std::max(row.largest, kib);
  }
  rows_.push_back(row);
}

std::string MemoryWatch::Csv() const {
  std::string csv = "seconds,router_kib,workers_kib,largest_worker_kib\n";
  for (const Row& row : rows_)
    absl::StrAppendFormat(&csv, "%.1f,%d,%d,%d\n", row.seconds, row.router, row.workers, row.largest);
  return csv;
}

int64_t MemoryWatch::Peak(int64_t Row::*field) const {
  int64_t peak = 0;
  for (const Row& row : rows_) peak = std::max(peak, row.*field);
  return peak;
}

int64_t MemoryWatch::Growth(int64_t Row::*field) const {
  const auto median = [&](size_t begin, size_t end) {
    std::vector<int64_t> values;
    for (size_t i = begin; i < end; ++i) {
      if (rows_[i].*field > 0) values.push_back(rows_[i].*field);
    }
    std::sort(values.begin(), values.end());
    return values.empty() ? int64_t{0} : values[values.size() / 2];
  };
  const size_t third = rows_.size() / 3;
  return median(rows_.size() - third, rows_.size()) - median(0, third);
}

void HarmlessWatch::Begin(FaultKind kind, absl::Time now) {
  if (IsHarmless(kind)) {
    if (harmless_[kind]++ == 0 && before_) ++watched_[kind];
    return;
  }
  ++harmful_;
  harmful_end_ = now;
  before_.reset();
}

void HarmlessWatch::End(FaultKind kind, absl::Time now) {
  if (!IsHarmless(kind)) {
    --harmful_;
    harmful_end_ = now;
    return;
  }
  if (--harmless_[kind] == 0) harmless_.erase(kind);
  if (harmless_.empty()) before_.reset();
}

void HarmlessWatch::Observe(const std::optional<GroupView>& view, absl::Time now) {
  if (before_) {
    const std::string wrong = WhatIsWrong(view);
    if (wrong.empty()) return;
    std::string kinds;
    for (const auto& [kind, count] : harmless_) absl::StrAppend(&kinds, " ", NameOf(kind));
    violations_.push_back(absl::StrFormat("from %.2f s to %.2f s, under%s alone: %s",
                                          absl::ToDoubleSeconds(since_ - options_.start),
                                          absl::ToDoubleSeconds(now - options_.start), kinds, wrong));
    before_.reset();
    // The group has to recover from this violation as from a harmful fault.
    harmful_end_ = now;
    return;
  }
  if (harmful_ > 0 || harmless_.empty() || now < harmful_end_ + options_.settle) return;
  if (!view || view->serving != options_.workers) return;
  before_ = view;
  since_ = now;
  for (const auto& [kind, count] : harmless_) ++watched_[kind];
}

std::string HarmlessWatch::WhatIsWrong(const std::optional<GroupView>& view) const {
  if (!view) return "the router does not answer";
  if (view->router != before_->router) return "the router has ended";
  if (view->epoch != before_->epoch || view->serving != before_->serving) {
    return absl::StrCat("epoch ", before_->epoch, " of ", before_->serving, " ranks is epoch ", view->epoch,
                        " of ", view->serving);
  }
  const int64_t grown = view->router_kib - before_->router_kib;
  // Kinds that are under way together may each use up their bound.
  int64_t bound = 0;
  for (const auto& [kind, count] : harmless_) bound += MemoryBoundKib(kind).value_or(0);
  if (bound > 0 && grown > bound * options_.memory_factor)
    return absl::StrCat("the router has grown by ", grown, " KiB");
  return "";
}

}  // namespace bfio::chaos
