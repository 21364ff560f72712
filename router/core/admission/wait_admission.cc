#include "router/core/admission/wait_admission.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::core {
namespace {

// Time constant of rates, in steps of twice the fixed time: hundreds of arrivals where batching matters.
constexpr double kRateSteps = 256;
// Rates are checked this number of times per time constant. Thresholds are solved again at the latest after
// one time constant, because lengths also change.
constexpr double kChecksPerTime = 20;
// kBatchLoad: ratio of an iteration's time DT(n) to the time n_j / rate_j in which its requests arrive.
// kMostCarried: when more requests arrive than any batch size supports, rates are scaled to this share of the
// supported rate.
constexpr double kBatchLoad = 0.9, kMostCarried = 0.97;
// For nested_wait: n_i / (p_i n_(i-1)).
constexpr double kMargin = 1.1;
// Number of requests over which lengths, and shares of lengths, are averaged.
constexpr double kLengthMemory = 256;
// Upper bound of the fixed part of a step, in tokens.
constexpr double kMostFixedTokens = 1e12;
// Rounding error that may move a threshold across an integer.
constexpr double kRounding = 1e-9;

}  // namespace

absl::StatusOr<WaitAdmissionOptions> ParseWaitAdmission(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  WaitAdmissionOptions options;
  if (parts.first == "wait") {
    options.kind = WaitAdmissionOptions::Kind::kWait;
  } else if (parts.first == "nested_wait") {
    options.kind = WaitAdmissionOptions::Kind::kNestedWait;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("admission '", text, "' is unknown"));
  }
  for (const absl::string_view part : absl::StrSplit(parts.second, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    double number = 0;
    const bool read = absl::SimpleAtod(pair.second, &number);
    if (pair.first == "tokens" && read && number >= 1 && number <= kMostFixedTokens) {
      options.fixed_tokens = number;
    } else if (pair.first == "most" && read && number >= 1 && number <= 1e9 && number == std::floor(number)) {
      options.most_steps = static_cast<int64_t>(number);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("admission ", parts.first, ": '", part,
                                                     "' must be tokens=N or most=K, a number of at least 1"));
    }
  }
  return options;
}

WaitAdmission::WaitAdmission(const WaitAdmissionOptions& options)
    : options_(options),
      fixed_tokens_(options.fixed_tokens.value_or(kDefaultFixedTokens)),
      time_constant_(kRateSteps * 2 * fixed_tokens_),
      classes_(active() ? kClasses : 0, Class(time_constant_)),
      rate_(time_constant_),
      thresholds_(nested() ? 1 : classes_.size(), 1) {}

size_t WaitAdmission::ClassOf(int64_t output) {
  const auto length = static_cast<uint64_t>(std::max<int64_t>(1, output));
  return std::min<size_t>(kClasses - 1, static_cast<size_t>(std::bit_width(length) - 1) / 2);
}

void WaitAdmission::Class::TakeLengths(int64_t prompt_tokens, int64_t output_tokens) {
  const auto new_prompt = static_cast<double>(prompt_tokens), new_output = static_cast<double>(output_tokens);
  prompt += seen ? (new_prompt - prompt) / kLengthMemory : new_prompt;
  output += seen ? (new_output - output) / kLengthMemory : new_output;
  seen = true;
}

void WaitAdmission::Add(const RequestSpec& spec, int64_t enqueued_step) {
  const int64_t length = spec.predicted_output_tokens.value_or(spec.max_new_tokens);
  const size_t at = nested() ? 0 : ClassOf(length);
  classes_[at].waiting.push_back({spec, enqueued_step});
  classes_of_.emplace(spec.id, at);
  if (!nested()) classes_[at].TakeLengths(spec.prefill_tokens, length);
  // Without steps the time of admission does not advance, so these arrivals have no rate.
  if (now_ > 0) (nested() ? rate_ : classes_[at].rate).OnArrival(now_);
}

const RequestSpec& WaitAdmission::Spec(RequestId id) const {
  const std::deque<Waiting>& waiting = classes_[classes_of_.at(id)].waiting;
  return std::find_if(waiting.begin(), waiting.end(), [&](const Waiting& w) { return w.spec.id == id; })
      ->spec;
}

bool WaitAdmission::Remove(RequestId id) {
  const auto it = classes_of_.find(id);
  if (it == classes_of_.end()) return false;
  std::erase_if(classes_[it->second].waiting, [&](const Waiting& w) { return w.spec.id == id; });
  classes_of_.erase(it);
  return true;
}

int64_t WaitAdmission::tokens_to_compute() const {
  int64_t tokens = 0;
  for (const Class& of : classes_) {
    for (const Waiting& one : of.waiting) tokens += one.spec.tokens_to_compute();
  }
  return tokens;
}

void WaitAdmission::Release(int64_t step, bool idle, std::vector<Waiting>& out) {
  if (classes_of_.empty()) return;
  if (now_ >= checked_ + time_constant_ / kChecksPerTime || workers_ != solved_workers_) Solve();
  for (size_t j = 0; j < thresholds_.size(); ++j) {
    std::deque<Waiting>& waiting = classes_[j].waiting;
    const bool all = idle || static_cast<int64_t>(waiting.size()) >= thresholds_[j];
    while (!waiting.empty() && (all || step - waiting.front().enqueued_step >= options_.most_steps)) {
      classes_of_.erase(waiting.front().spec.id);
      out.push_back(std::move(waiting.front()));
      waiting.pop_front();
    }
  }
}

void WaitAdmission::OnStep(int64_t largest_load, int32_t workers) {
  now_ += fixed_tokens_ + static_cast<double>(std::max<int64_t>(0, largest_load));
  workers_ = workers;
}

void WaitAdmission::OnCost(double fixed_tokens) {
  const double wanted = std::clamp(fixed_tokens, 1.0, kMostFixedTokens);
  if (!active() || options_.fixed_tokens || std::abs(wanted - fixed_tokens_) <= kCostStep * fixed_tokens_)
    return;
  fixed_tokens_ = wanted;
  time_constant_ = kRateSteps * 2 * fixed_tokens_;
  rate_.SetTimeConstant(time_constant_, now_);
  for (Class& of : classes_) of.rate.SetTimeConstant(time_constant_, now_);
  // Solve with the next release.
  solved_workers_ = 0;
}

void WaitAdmission::OnMemory(double kv_tokens) {
  if (kv_tokens == memory_) return;
  memory_ = kv_tokens;
  // Solve with the next release.
  solved_workers_ = 0;
}

void WaitAdmission::OnEnd(int64_t prompt, int64_t output) {
  if (!nested()) return;
  for (Class& of : classes_) of.ends *= 1 - 1 / kLengthMemory;
  Class& of = classes_[ClassOf(output)];
  of.ends += 1;
  of.TakeLengths(prompt, output);
}

void WaitAdmission::Solve() {
  checked_ = now_;
  bool changed = workers_ != solved_workers_ || now_ >= solved_at_ + time_constant_;
  if (nested()) {
    changed = changed || rate_.HasLeft(solved_, now_);
  } else {
    for (const Class& of : classes_) changed = changed || of.rate.HasLeft(of.solved, now_);
  }
  if (!changed) return;
  solved_at_ = now_;
  solved_workers_ = workers_;
  solved_ = rate_.Solve(now_);
  for (Class& of : classes_) of.solved = of.rate.Solve(now_);
  std::fill(thresholds_.begin(), thresholds_.end(), 1);
  std::vector<size_t> classes;
  const std::vector<RequestType> types = Types(classes);
  if (types.empty() || workers_ == 0) return;
  // Tokens, summed over all stages, of the requests that arrive in a unit of time.
  double tokens = 0, rate = 0;
  if (nested()) {
    const Segments segments = SegmentsOf(types);
    double reach = rate = segments.rate;
    for (size_t i = 0; i < segments.last_stage.size(); ++i) {
      reach *= i == 0 ? 1 : std::min(1.0, kMargin * segments.survive[i]);
      tokens += reach * SegmentTokens(segments, i);
    }
  } else {
    for (const RequestType& type : types) tokens += type.rate * StageTokens(type);
  }
  const double load = tokens / workers_, share = std::max(1.0, load / (kBatchLoad * kMostCarried));
  // Solves d0 + d1 n = load n / rate, with n proportional to the rates.
  const double time = fixed_tokens_ / (kBatchLoad - load / share);
  // Share of that time for which the requests of all stages fit into memory.
  const double fits = std::min(1.0, memory_ * share / (tokens * time));
  const auto threshold = [&](double of) {
    const double n = of * time / share;
    return std::max<int64_t>(
        1, static_cast<int64_t>(fits < 1 ? std::floor(n * fits + kRounding) : std::ceil(n - kRounding)));
  };
  if (nested()) thresholds_[0] = threshold(rate);
  for (size_t i = 0; i < classes.size() && !nested(); ++i) thresholds_[classes[i]] = threshold(types[i].rate);
}

std::vector<RequestType> WaitAdmission::Types(std::vector<size_t>& classes) const {
  double ends = 0;
  for (const Class& of : classes_) ends += of.ends;
  std::vector<RequestType> types;
  for (size_t j = 0; j < classes_.size(); ++j) {
    const Class& of = classes_[j];
    const double rate = !nested() ? of.solved : ends > 0 ? solved_ * of.ends / ends : 0;
    if (rate <= 0) continue;
    // The first step reads the prompt and generates a token, so the paper's stages 0 to l' are o steps.
    const int64_t output =
        std::max<int64_t>(nested() ? 1 : 0, static_cast<int64_t>(std::lround(of.output)) - 1);
    if (nested() && !types.empty() && types.back().output >= output) {
      types.back().rate += rate;
      continue;
    }
    types.push_back({rate, static_cast<int64_t>(std::lround(of.prompt)), output});
    classes.push_back(j);
  }
  return types;
}

double StageTokens(const RequestType& type) {
  const auto l = static_cast<double>(type.prompt), o = static_cast<double>(type.output);
  return (o + 1) * (l + o / 2);
}

Segments SegmentsOf(absl::Span<const RequestType> types) {
  std::vector<int64_t> ends;
  for (const RequestType& type : types) ends.push_back(type.output);
  return SegmentsEndingAt(types, ends);
}

Segments SegmentsEndingAt(absl::Span<const RequestType> types, const std::vector<int64_t>& last_stages) {
  Segments segments;
  double prompts = 0;
  for (const RequestType& type : types) {
    segments.rate += type.rate;
    prompts += type.rate * static_cast<double>(type.prompt);
  }
  segments.prompt = static_cast<int64_t>(std::ceil(prompts / segments.rate - 1e-9));
  double reach = segments.rate;
  int64_t before = 0;
  for (const int64_t end : last_stages) {
    // Requests that are longer than the segment before reach this one.
    double arrive = 0;
    for (const RequestType& type : types) arrive += type.output > before ? type.rate : 0;
    segments.last_stage.push_back(end);
    segments.survive.push_back(before == 0 ? 1 : arrive / reach);
    reach = arrive;
    before = end;
  }
  return segments;
}

double SegmentTokens(const Segments& segments, size_t i) {
  const auto first = static_cast<double>(segments.first_stage(i)),
             last = static_cast<double>(segments.last_stage[i]);
  return (last - first + 1) * (static_cast<double>(segments.prompt) + (first + last) / 2);
}

}  // namespace bfio::core
