#include "tests/chaos/harmless_watch.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::chaos {

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
