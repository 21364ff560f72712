#include "tests/chaos/audit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "router/requests/request_table.h"

namespace bfio::chaos {
namespace {

constexpr size_t kPausesShown = 8;

int64_t Count(const Ledger& ledger, Fate fate) {
  const auto it = ledger.fates.find(fate);
  return it == ledger.fates.end() ? 0 : it->second;
}

}  // namespace

double Quantile(std::vector<float> values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::vector<Gap> Hangs(const std::vector<Gap>& gaps, const std::vector<Disturbance>& disturbances,
                       absl::Duration patience) {
  std::vector<Gap> hangs;
  for (const Gap& gap : gaps) {
    absl::Time allowed = gap.begin + patience;
    for (const Disturbance& disturbance : disturbances) {
      if (disturbance.at >= gap.begin && disturbance.at <= gap.end)
        allowed = std::max(allowed, disturbance.at + disturbance.patience);
    }
    if (gap.end > allowed) hangs.push_back(gap);
  }
  return hangs;
}

std::vector<Suspect> WronglyEnded(const std::vector<Suspect>& suspects,
                                  const std::vector<Disturbance>& disturbances, absl::Duration patience) {
  std::vector<Suspect> wronged;
  for (const Suspect& suspect : suspects) {
    const auto faults =
        std::count_if(disturbances.begin(), disturbances.end(), [&](const Disturbance& disturbance) {
          return disturbance.at >= suspect.begin - patience && disturbance.at <= suspect.end;
        });
    if (faults < router::Suspicion::kBlamed) wronged.push_back(suspect);
  }
  return wronged;
}

Verdict Audit(const AuditInput& input) {
  const Ledger& ledger = input.ledger;
  Verdict verdict = {.violations = input.other};
  const auto require_zero = [&](const std::string& what, int64_t count) {
    if (count != 0) verdict.violations.push_back(absl::StrCat(what, ": ", count));
  };
  int64_t accounted = 0;
  for (const auto& [fate, count] : ledger.fates) accounted += count;
  require_zero("requests without a fate", ledger.sent - accounted);
  require_zero("requests lost", Count(ledger, Fate::kLost));
  require_zero("requests that hung to their deadline", Count(ledger, Fate::kHung));
  require_zero("tokens repeated", ledger.repeated);
  require_zero("tokens left out", ledger.skipped);
  require_zero("tokens of another value than undisturbed", ledger.wrong);
  require_zero("finishes that contradict their streams", ledger.bad_finishes);
  require_zero("tokens of poisoned requests", ledger.poison_tokens);
  if (Count(ledger, Fate::kCompleted) == 0) verdict.violations.push_back("nothing was completed");
  for (const Suspect& suspect : WronglyEnded(ledger.suspects, input.disturbances, input.patience)) {
    verdict.violations.push_back(
        absl::StrCat("request ", suspect.request, " was ended for deaths that no fault explains"));
  }
  const std::vector<Gap> hangs = Hangs(ledger.gaps, input.disturbances, input.patience);
  require_zero("streams that stood still for longer than any fault explains",
               static_cast<int64_t>(hangs.size()));
  // One line for hangs that began at the same time.
  absl::Time told = absl::InfinitePast();
  for (const Gap& gap : hangs) {
    if (absl::AbsDuration(gap.begin - told) < absl::Seconds(1)) continue;
    told = gap.begin;
    verdict.violations.push_back(absl::StrFormat("  request %d, from %.2f s to %.2f s", gap.request,
                                                 absl::ToDoubleSeconds(gap.begin - input.start),
                                                 absl::ToDoubleSeconds(gap.end - input.start)));
  }
  const MemoryWatch& memory = input.memory;
  if (memory.router_growth() > input.max_growth_kib || memory.worker_growth() > input.max_growth_kib) {
    verdict.violations.push_back(absl::StrCat("memory grows: router by ", memory.router_growth(),
                                              " KiB, a worker by ", memory.worker_growth()));
  }
  if (memory.router_peak() > input.max_kib || memory.worker_peak() > input.max_kib) {
    verdict.violations.push_back(absl::StrCat("memory: ", memory.router_peak(), " KiB in the router, ",
                                              memory.worker_peak(), " in a worker"));
  }
  for (const std::string& finding : ledger.findings) verdict.violations.push_back("  " + finding);

  absl::Duration longest;
  for (const Gap& gap : ledger.gaps) longest = std::max(longest, gap.end - gap.begin);
  const auto row = [&](absl::string_view what, const std::string& value) {
    absl::StrAppendFormat(&verdict.table, "%-44s %14s\n", what, value);
  };
  const auto count = [&](absl::string_view what, int64_t n) { row(what, absl::StrCat(n)); };
  count("requests sent", ledger.sent);
  count("  completed, every token right", Count(ledger, Fate::kCompleted));
  count("  cancelled by the client", Count(ledger, Fate::kCancelled));
  count("  refused with a status", Count(ledger, Fate::kRefused));
  count("  ended by a status after acceptance", Count(ledger, Fate::kEnded));
  count("  ended after workers died with it", Count(ledger, Fate::kSuspected));
  count("  poisoned, ended by INTERNAL", Count(ledger, Fate::kPoisoned));
  count("  lost", Count(ledger, Fate::kLost));
  count("  hung", Count(ledger, Fate::kHung));
  count("streams resumed", ledger.resumed);
  count("tokens", ledger.tokens);
  count("  repeated, left out, wrong", ledger.repeated + ledger.skipped + ledger.wrong);
  row("longest pause of a running stream, s", absl::StrFormat("%.2f", absl::ToDoubleSeconds(longest)));
  row("longest time without any token, s",
      absl::StrFormat("%.2f", absl::ToDoubleSeconds(ledger.longest_silence)));
  row("first token p50 / p99, s", absl::StrFormat("%.2f / %.2f", Quantile(ledger.first_token_s, 0.5),
                                                  Quantile(ledger.first_token_s, 0.99)));
  count("router's memory, peak, MiB", memory.router_peak() / 1024);
  count("  last third less first third, MiB", memory.router_growth() / 1024);
  count("largest worker's memory, peak, MiB", memory.worker_peak() / 1024);
  count("  last third less first third, MiB", memory.worker_growth() / 1024);
  // The longest of the pauses that ended at the same time, with its request.
  std::vector<Gap> pauses = ledger.gaps;
  std::sort(pauses.begin(), pauses.end(),
            [](const Gap& a, const Gap& b) { return a.end - a.begin > b.end - b.begin; });
  std::vector<absl::Time> shown;
  for (const Gap& gap : pauses) {
    if (shown.size() == kPausesShown) break;
    if (std::any_of(shown.begin(), shown.end(),
                    [&](absl::Time time) { return absl::AbsDuration(gap.end - time) < absl::Seconds(1); }))
      continue;
    shown.push_back(gap.end);
    row(absl::StrFormat("  pause of request %d at token %d, stream %d", gap.request, gap.received,
                        gap.attempts),
        absl::StrFormat("%.2f..%.2f s", absl::ToDoubleSeconds(gap.begin - input.start),
                        absl::ToDoubleSeconds(gap.end - input.start)));
  }
  for (const auto& [ending, n] : ledger.endings) count(absl::StrCat("  ended: ", ending), n);
  return verdict;
}

}  // namespace bfio::chaos
