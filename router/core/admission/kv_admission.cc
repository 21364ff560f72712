#include "router/core/admission/kv_admission.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace bfio::core {
namespace {

using Kind = KvAdmissionOptions::Kind;

// Width of the first intervals; width of later ones as a share of their distance. A larger share counts
// tokens that were freed within the interval, a smaller share costs time. Beyond kFar few requests are left.
constexpr int64_t kFirstWidth = 4;
// A late plan starts its requests nearly always at most this number of steps after its own step.
constexpr int64_t kLateSteps = KvBooks::kLateSteps;
constexpr int64_t kNearShare = 4, kFarShare = 2, kFar = 1024;
// Smallest theta times the mean size at b; rounding to powers of two gives up to twice that.
constexpr double kThetaSizes = 1;
// Smallest theta M, in units of log(1 / e): with the first theta the bound itself takes all of M, with the
// second half of it. Rounding to powers of two reduces that by up to a half.
constexpr double kLeastRisks = 1;
// When a factor or a product falls below this, its logarithm is taken; far above the smallest double.
constexpr double kLeastFactor = 1e-100;
// Prompt lengths are rounded up with a relative precision of 2^-kPromptBits.
constexpr int kPromptBits = 6;
// Bound of KvAdmissionOptions::most_steps.
constexpr double kMostSteps = 1e9;

int64_t ReservedBy(const Resident& resident) {
  return resident.prefill_tokens + resident.max_new_tokens - 1;
}

int64_t RoundedUp(int64_t tokens) {
  const int shift =
      std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(tokens))) - 1 - kPromptBits);
  const int64_t unit = int64_t{1} << shift;
  return (tokens + unit - 1) / unit * unit;
}

// Parses "KEY=NUMBER" of a rule into `value`, which must be at least `low` and below `end`. Returns whether
// `setting` has this key.
bool ReadSetting(absl::string_view rule, absl::string_view setting, absl::string_view key, double low,
                 double end, double& value, absl::Status& status) {
  if (!absl::ConsumePrefix(&setting, absl::StrCat(key, "="))) return false;
  if (!absl::SimpleAtod(setting, &value) || !(value >= low && value < end)) {
    status =
        absl::InvalidArgumentError(absl::StrCat("admission: ", key, " of ", rule, " is '", setting,
                                                "'; must be a number of at least ", low, " and below ", end));
  }
  return true;
}

}  // namespace

absl::StatusOr<KvAdmissionOptions> ParseKvAdmission(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const auto& [name, settings] = parts;
  KvAdmissionOptions options;
  if (name == "kv_feasible") options.kind = Kind::kFeasible;
  if (name == "protection" && !settings.empty()) options.kind = Kind::kProtection;
  if (name == "mc_sf") options.kind = Kind::kMcSf;
  if (options.kind == Kind::kNone && text != "none") {
    return absl::InvalidArgumentError(absl::StrCat(
        "admission '", text,
        "' is unknown, choose one of none, kv_feasible, kv_feasible:confidence=P, "
        "protection:alpha=A, mc_sf, mc_sf:most=K,error=E,confidence=P, wait, nested_wait, or one rule "
        "for memory and one for batches joined by +"));
  }
  if (name == text) return options;
  const bool predicts = options.kind != Kind::kProtection;
  auto most = static_cast<double>(options.most_steps);
  for (const absl::string_view setting : absl::StrSplit(settings, ',')) {
    absl::Status status;
    const bool known = predicts
                           ? ReadSetting(name, setting, "confidence", 0.5, 1, options.confidence, status) ||
                                 (options.kind == Kind::kMcSf &&
                                  (ReadSetting(name, setting, "most", 1, kMostSteps, most, status) ||
                                   ReadSetting(name, setting, "error", 0, 100, options.length_error, status)))
                           : ReadSetting(name, setting, "alpha", 0, 1, options.alpha, status);
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat("admission: ", name, " has no setting '", setting, "'"));
    }
    if (!status.ok()) return status;
  }
  options.most_steps = static_cast<int64_t>(most);
  return options;
}

absl::Status CheckKvAdmission(const KvAdmissionOptions& options, const Lookahead& lookahead) {
  const bool predicts = options.kind == Kind::kFeasible || options.kind == Kind::kMcSf;
  if (options.length_error > 0 && lookahead.learns())
    return absl::InvalidArgumentError("admission mc_sf:error needs the lookahead oracle");
  if (!predicts || lookahead.predicts()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "admission kv_feasible or mc_sf needs a lookahead that predicts lengths: survival, hint, max_tokens or "
      "oracle");
}

KvOutlook KvAdmission::MakeOutlook(Lookahead& lookahead, absl::Span<const Worker> workers,
                                   absl::Span<WaitingView> waiting, StepsOfPrompt steps_of_prompt) {
  if (options_.kind == Kind::kProtection) {
    ReadPrompts(workers, waiting);
    return {1, 1, capacity_, need_};
  }
  const bool books = keeps_books(lookahead);
  ways_ = books ? 1 : kWays;
  if (books) {
    ReadBooks(lookahead, workers, waiting, steps_of_prompt);
    return {static_cast<int32_t>(intervals_.size()), ways_, capacity_, need_};
  }
  SetIntervals(workers, waiting, steps_of_prompt);
  const size_t row = kWays * intervals_.size();
  capacity_.resize(workers.size() * row);
  for (size_t g = 0; g < workers.size(); ++g) AddWorker(lookahead, workers[g], &capacity_[g * row]);
  AddAllWaiting(lookahead, waiting, steps_of_prompt);
  return {static_cast<int32_t>(intervals_.size()), kWays, capacity_, need_};
}

void KvAdmission::ReadPrompts(absl::Span<const Worker> workers, absl::Span<WaitingView> waiting) {
  capacity_.clear();
  need_.clear();
  for (const Worker& worker : workers) {
    const double most = (1 - options_.alpha) * static_cast<double>(worker.kv_tokens);
    int64_t capacity = static_cast<int64_t>(most) - worker.load_tokens;
    for (const Resident& resident : worker.residents) {
      if (resident.reserves_kv) capacity -= ReservedBy(resident) - ProgressOf(resident, worker.time).tokens;
    }
    capacity_.push_back(capacity);
  }
  for (WaitingView& request : waiting) {
    request.kv_need = static_cast<int32_t>(need_.size());
    need_.push_back(request.reserves_kv ? kMoreThanAny : request.prefill_tokens);
  }
}

void KvAdmission::SetIntervals(absl::Span<const Worker> workers, absl::Span<const WaitingView> waiting,
                               StepsOfPrompt steps_of_prompt) {
  int64_t longest = 1, residents = 0, prompt_steps = 0, memory = std::numeric_limits<int64_t>::max();
  double tokens = 0;
  for (const Worker& worker : workers) {
    for (const Resident& resident : worker.residents) longest = std::max(longest, resident.max_new_tokens);
    for (const int64_t steps : worker.prompt_steps) prompt_steps = std::max(prompt_steps, steps);
    if (worker.open) memory = std::min(memory, worker.kv_tokens);
    residents += static_cast<int64_t>(worker.residents.size());
    tokens += static_cast<double>(worker.load_tokens);
  }
  for (const WaitingView& request : waiting) {
    longest = std::max(longest, request.max_new_tokens);
    prompt_steps = std::max(prompt_steps, steps_of_prompt(RoundedUp(request.prefill_tokens)));
    if (residents == 0) tokens += static_cast<double>(request.prefill_tokens);
  }
  const int64_t sharers = residents > 0 ? residents : static_cast<int64_t>(waiting.size());
  const double mean = std::max(1.0, tokens / static_cast<double>(std::max<int64_t>(1, sharers)));
  Divide(longest + kLateSteps + prompt_steps, kNearShare, kFarShare);
  log_risk_ = std::log(static_cast<double>(intervals_.size()) / (1 - options_.confidence));
  // Far ahead a request may hold half of a worker's memory, with a probability near 0. A theta derived from
  // its size would make the capacity of the bound negative: theta M must be well above log(1 / e).
  const double least_theta = kLeastRisks * log_risk_ / static_cast<double>(std::max<int64_t>(1, memory));
  const int32_t most_halvings =
      std::clamp(std::ilogb(std::max(1.0, kThetaSizes / (mean * least_theta))), 0, kMostHalvings - 1);
  for (Interval& interval : intervals_) {
    const double sizes = 1 + static_cast<double>(interval.to) / mean;
    interval.halvings = std::clamp(std::ilogb(sizes), 0, most_halvings);
    interval.theta = std::ldexp(kThetaSizes / mean, -interval.halvings);
    interval.decay = std::exp(-interval.theta * static_cast<double>(interval.to));
  }
}

void KvAdmission::Divide(int64_t longest, int64_t near_share, int64_t far_share) {
  intervals_.clear();
  starts_.clear();
  for (int64_t from = 0; from < longest;) {
    const int64_t share = from / (from < kFar ? near_share : far_share);
    intervals_.push_back({from, from + std::max(kFirstWidth, share) - 1});
    starts_.push_back(from);
    from = intervals_.back().to + 1;
  }
  alive_.resize(intervals_.size());
}

template <class Use>
void KvAdmission::ForEachInterval(int64_t tokens, int64_t stay, int64_t late, Use use) const {
  double decay[kMostHalvings];
  int32_t halvings = 0;
  decay[0] = std::exp(-std::ldexp(intervals_[0].theta, intervals_[0].halvings) * static_cast<double>(tokens));
  double alive = 1;
  for (size_t k = 0; k < intervals_.size() && intervals_[k].from < stay + late; ++k) {
    const Interval& interval = intervals_[k];
    for (; halvings < interval.halvings; ++halvings) decay[halvings + 1] = std::sqrt(decay[halvings]);
    const bool ends = stay - 1 < interval.to;
    const int64_t held = tokens + (ends ? stay - 1 : interval.to);
    double scale = ends ? std::exp(-interval.theta * static_cast<double>(held))
                        : decay[interval.halvings] * interval.decay;
    if (interval.from < stay) alive = std::min(alive_[k], 1.0);
    const double p = alive;
    Factors factors;
    for (double& factor : factors) {
      factor = std::max(p + (1 - p) * scale, kLeastFactor);
      scale *= scale;
    }
    use(k, held, factors);
  }
}

void KvAdmission::AddWorker(const Lookahead& lookahead, const Worker& worker, int64_t* capacity) {
  const size_t times = intervals_.size();
  if (!worker.open) {
    std::fill(capacity, capacity + kWays * times, kClosed);
    return;
  }
  held_.assign(times, 0);
  logs_.assign(times, {});
  Factors one;
  one.fill(1);
  product_.assign(times, one);
  for (size_t i = 0; i < worker.residents.size(); ++i) {
    const Resident& resident = worker.residents[i];
    const int64_t stay = lookahead.Lifetime(resident, worker.time, starts_, absl::MakeSpan(alive_));
    int64_t late = resident.inflight ? kLateSteps : 0;
    if (!worker.prompt_steps.empty()) late += worker.prompt_steps[i];
    if (resident.dropped) late = 0;
    if (stay + late <= 0) continue;
    if (resident.reserves_kv) {
      for (size_t k = 0; k < times && intervals_[k].from < stay + late; ++k) held_[k] += ReservedBy(resident);
      continue;
    }
    ForEachInterval(ProgressOf(resident, worker.time).tokens, stay, late,
                    [&](size_t k, int64_t held, const Factors& factors) {
                      held_[k] += held;
                      for (int32_t j = 0; j < kThetas; ++j) {
                        double& product = product_[k][j];
                        product *= factors[j];
                        if (product < kLeastFactor) {
                          logs_[k][j] += std::log(product);
                          product = 1;
                        }
                      }
                    });
  }
  const int64_t memory = worker.kv_tokens - std::max<int64_t>(0, worker.drift);
  for (size_t k = 0; k < times; ++k) {
    const int64_t certain = memory - held_[k];
    *capacity++ = certain;
    for (int32_t j = 0; j < kThetas; ++j) {
      const double log = logs_[k][j] + std::log(product_[k][j]) + log_risk_;
      const double more = log / std::ldexp(intervals_[k].theta, j);
      *capacity++ = static_cast<int64_t>(std::floor(static_cast<double>(certain) - more));
    }
  }
}

void KvAdmission::AddAllWaiting(Lookahead& lookahead, absl::Span<WaitingView> waiting,
                                StepsOfPrompt steps_of_prompt) {
  const size_t row = kWays * intervals_.size();
  const bool exact = !lookahead.learns();
  kinds_.clear();
  need_.clear();
  lengths_.clear();
  for (WaitingView& request : waiting) {
    const int64_t tokens = exact ? request.prefill_tokens : RoundedUp(request.prefill_tokens);
    const RequestKind kind = {lookahead.CurveKey(request, kMaxHorizonSteps),
                              tokens,
                              request.generated_tokens,
                              request.max_new_tokens,
                              request.predicted_output_tokens.value_or(-1),
                              request.reserves_kv};
    const auto [it, added] = kinds_.try_emplace(kind, static_cast<int32_t>(kinds_.size()));
    request.kv_need = it->second;
    if (!added) continue;
    need_.resize(need_.size() + row, 0);
    int64_t* const need = &need_[need_.size() - row];
    // A request that reserves its KV counts with all its tokens in any case.
    if (chooses()) lengths_.push_back(static_cast<double>(request.max_new_tokens));
    if (!request.reserves_kv) {
      AddWaiting(lookahead, request, tokens, steps_of_prompt(tokens), need);
      continue;
    }
    for (size_t k = 0; k < row; ++k) need[k] = k % kWays == 0 ? request.kv_reserve_tokens : kMoreThanAny;
  }
}

void KvAdmission::AddWaiting(Lookahead& lookahead, const WaitingView& request, int64_t tokens,
                             int64_t prompt_steps, int64_t* need) {
  const int64_t stay = lookahead.Lifetime(request, starts_, absl::MakeSpan(alive_));
  if (chooses()) lengths_.back() = Expected(stay);
  ForEachInterval(
      tokens, stay, kLateSteps + prompt_steps, [&](size_t k, int64_t held, const Factors& factors) {
        int64_t* at = need + kWays * k;
        *at++ = held;
        for (int32_t j = 0; j < kThetas; ++j) {
          const double more = factors[j] == 1 ? 0 : std::log(factors[j]) / std::ldexp(intervals_[k].theta, j);
          *at++ = static_cast<int64_t>(std::ceil(static_cast<double>(held) + more));
        }
      });
}

}  // namespace bfio::core
