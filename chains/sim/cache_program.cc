#include "chains/sim/cache_program.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::sim {
namespace {

// Share of the needed rate that may be missing due to rounding.
constexpr double kRounding = 1e-9;

// Depth-first search over the chains, most jobs first, so that the first solution is the greedy one.
class Search {
 public:
  Search(const CacheProgram& program, int64_t nodes)
      : program_(program), left_(program.slots), nodes_(nodes), now_(program.chains.size(), 0) {}

  std::optional<CacheSolution> Run() {
    Branch(0, program_.needed_rate * (1 - kRounding), 0);
    if (!best_.has_value()) return std::nullopt;
    best_->optimal = nodes_ > 0;
    return best_;
  }

 private:
  int64_t Fits(const core::ServerChain& chain) const {
    int64_t most = core::kMostSlots;
    for (const core::ChainHop& hop : chain.hops) most = std::min(most, left_[hop.server] / hop.range.count);
    return most;
  }
  void Take(const core::ServerChain& chain, int64_t jobs) {
    for (const core::ChainHop& hop : chain.hops) left_[hop.server] -= jobs * hop.range.count;
  }

  void Branch(size_t k, double missing, int64_t jobs) {
    if (--nodes_ <= 0) return;
    if (missing <= 0) {
      best_ = CacheSolution{now_, jobs, false};
      return;
    }
    if (k == program_.chains.size()) return;
    const core::ServerChain& chain = program_.chains[k];
    const auto at_best = [&](double rest) {
      return jobs + static_cast<int64_t>(std::ceil(rest * chain.time));
    };
    // No later chain is faster, so no better solution follows.
    if (best_.has_value() && at_best(missing) >= best_->jobs) return;
    const auto needed =
        static_cast<int64_t>(std::min<double>(std::ceil(missing * chain.time), core::kMostSlots));
    for (int64_t c = std::min(Fits(chain), needed); c >= 0; --c) {
      now_[k] = c;
      Take(chain, c);
      Branch(k + 1, missing - static_cast<double>(c) * chain.rate(), jobs + c);
      Take(chain, -c);
      now_[k] = 0;
    }
  }

  const CacheProgram& program_;
  std::vector<int64_t> left_;
  int64_t nodes_;
  std::vector<int64_t> now_;
  std::optional<CacheSolution> best_;
};

}  // namespace

std::string CacheProgramLp(const CacheProgram& program) {
  std::string text = "\\ fewest jobs at once for a rate\nminimize\n jobs:\n";
  for (size_t k = 0; k < program.chains.size(); ++k) absl::StrAppend(&text, "  + c_", k, "\n");
  absl::StrAppend(&text, "subject to\n rate:\n");
  for (size_t k = 0; k < program.chains.size(); ++k)
    absl::StrAppendFormat(&text, "  + %.17g c_%d\n", program.chains[k].rate(), k);
  absl::StrAppendFormat(&text, "  >= %.17g\n", program.needed_rate * (1 - kRounding));
  for (size_t j = 0; j < program.slots.size(); ++j) {
    std::string row;
    for (size_t k = 0; k < program.chains.size(); ++k) {
      for (const core::ChainHop& hop : program.chains[k].hops) {
        if (static_cast<size_t>(hop.server) == j)
          absl::StrAppend(&row, "  + ", hop.range.count, " c_", k, "\n");
      }
    }
    if (!row.empty()) absl::StrAppend(&text, " server_", j, ":\n", row, "  <= ", program.slots[j], "\n");
  }
  absl::StrAppend(&text, "generals\n");
  for (size_t k = 0; k < program.chains.size(); ++k) absl::StrAppend(&text, " c_", k, "\n");
  absl::StrAppend(&text, "end\n");
  return text;
}

std::optional<CacheSolution> SolveCacheProgram(const CacheProgram& program, int64_t most_nodes) {
  return Search(program, most_nodes).Run();
}

std::optional<int64_t> JobServersNeeded(absl::Span<const core::ServerChain> chains, double needed_rate) {
  double missing = needed_rate * (1 - kRounding);
  int64_t jobs = 0;
  for (const core::ServerChain& chain : chains) {
    if (missing <= 0) break;
    const auto needed =
        static_cast<int64_t>(std::min<double>(std::ceil(missing * chain.time), core::kMostSlots));
    const int64_t taken = std::min(chain.capacity, needed);
    jobs += taken;
    missing -= static_cast<double>(taken) * chain.rate();
  }
  if (missing > 0) return std::nullopt;
  return jobs;
}

}  // namespace bfio::sim
