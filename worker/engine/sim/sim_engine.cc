#include "worker/engine/sim/sim_engine.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/rng.h"
#include "worker/engine/request_check.h"

namespace bfio::worker {
namespace {

// A page stores nothing here, so pages are as large as possible: the page table then costs nothing.
constexpr int64_t kSimPageTokens = 1 << 30;

bool IsAtLeast(double value, double low) {
  return std::isfinite(value) && value >= low;
}

absl::Status CheckOptions(const SimOptions& options) {
  const auto invalid = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (absl::Status status = CheckLimits(options.limits); !status.ok()) return status;
  if (!IsAtLeast(options.cost.c_s, 0)) return invalid("c must be at least 0 seconds, not ", options.cost.c_s);
  if (!IsAtLeast(options.cost.tl_s_per_token, 0)) return invalid("tl must be at least 0 seconds per token");
  if (!IsAtLeast(options.cost.prefill_s_per_token, 0))
    return invalid("prefill_cost must be at least 0 seconds");
  if (!IsAtLeast(options.eos_probability, 0) || options.eos_probability >= 1) {
    return invalid("eos_probability must be in [0, 1)");
  }
  if (options.vocabulary <= static_cast<int32_t>(kSimFirstOrdinaryToken))
    return invalid("vocab must be above ", kSimFirstOrdinaryToken);
  return absl::OkStatus();
}

ModelFacts SimFacts(const SimOptions& options) {
  ModelFacts facts;
  // Accepts the ids of any tokenizer.
  facts.vocab = int64_t{1} << 32;
  facts.max_positions = std::numeric_limits<int32_t>::max();
  facts.eos_token_ids = {kSimEosToken};
  facts.has_model = false;
  facts.gives_hints = options.eos_probability > 0;
  return facts;
}

constexpr int64_t kNsPerSecond = 1'000'000'000;

void SetPreciseTimers() {
  // Timer slack is a property of the thread, so each thread sets it once.
  static thread_local const bool done = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) == 0;
  (void)done;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeSimEngine(const SimOptions& options,
                                                            std::unique_ptr<StepTimer> timer) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  if (timer == nullptr) timer = std::make_unique<RealStepTimer>();
  DecodeOptions decode;
  decode.limits = options.limits;
  decode.page_tokens = static_cast<int32_t>(std::min(options.limits.kv_tokens, kSimPageTokens));
  decode.step_tokens = BatchPlanner::kUnbounded;
  decode.token_budget = options.token_budget;
  return DecodeEngine::Create(decode, std::make_unique<SimBackend>(options, std::move(timer)));
}

std::string SimModelName(const SimOptions& options) {
  return absl::StrFormat("sim 1, vocabulary of %d from %d, eos %d with probability %a%s", options.vocabulary,
                         kSimFirstOrdinaryToken, kSimEosToken, options.eos_probability,
                         options.ends_by_seed ? ", ends by seed" : "");
}

SimBackend::SimBackend(const SimOptions& options, std::unique_ptr<StepTimer> timer)
    : options_(options),
      facts_(SimFacts(options)),
      timer_(std::move(timer)),
      streams_(static_cast<size_t>(options.limits.slots)) {}

void SimBackend::Begin(SequenceIndex sequence, const SequenceRequest& request) {
  const std::vector<uint32_t>& prompt = request.prompt;
  const bool poisoned = std::find(prompt.begin(), prompt.end(), kSimPoisonToken) != prompt.end();
  constexpr auto kLongest = uint64_t{std::numeric_limits<int32_t>::max()};
  const auto end = static_cast<int64_t>(std::min(request.sampling.seed, kLongest)) - 1;
  streams_[sequence] = {SimStreamKey(request), !poisoned, options_.ends_by_seed ? end : -1};
}

absl::Status SimBackend::Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  const int64_t start_ns = timer_->NowNs();
  for (size_t i = 0; i < draws.size(); ++i) {
    const Draw& draw = draws[i];
    const Stream& stream = streams_[draw.sequence];
    drawn[i].finite = stream.finite;
    drawn[i].id = draw.index == stream.end
                      ? kSimEosToken
                      : SimToken(stream.key, draw.index, options_.eos_probability, options_.vocabulary);
    const bool ends = std::find(draw.ends.begin(), draw.ends.end(), kSimEosToken) != draw.ends.end();
    drawn[i].end_probability = ends ? static_cast<float>(options_.eos_probability) : 0;
  }
  timer_->SleepUntilNs(start_ns + DurationNs(plan));
  return absl::OkStatus();
}

int64_t SimBackend::DurationNs(const StepPlan& plan) {
  return static_cast<int64_t>(options_.cost.StepSeconds(plan.load_tokens, plan.prefill_tokens) * 1e9);
}

int64_t RealStepTimer::NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * kNsPerSecond + now.tv_nsec;
}

void RealStepTimer::SleepUntilNs(int64_t time_ns) {
  SetPreciseTimers();
  // An absolute time, so that delays by signals or late starts do not accumulate.
  const timespec until{time_ns / kNsPerSecond, time_ns % kNsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

uint64_t SimStreamKey(const SequenceRequest& request) {
  const int64_t original_length = request.prompt_length - request.first_index;
  uint64_t key = Mix64(request.sampling.seed ^ Mix64(static_cast<uint64_t>(original_length)));
  if (request.prompt.empty()) return key;
  // Excludes the delivered tokens at the end of the prompt.
  for (int64_t i = 0; i < original_length; ++i) key = Mix64(key ^ request.prompt[i]);
  return key;
}

uint32_t SimToken(uint64_t stream_key, int64_t index, double eos_probability, int32_t vocabulary) {
  Rng rng(stream_key ^ Mix64(static_cast<uint64_t>(index)));
  if (rng.Uniform() < eos_probability) return kSimEosToken;
  return kSimFirstOrdinaryToken +
         static_cast<uint32_t>(rng.Below(static_cast<uint64_t>(vocabulary) - kSimFirstOrdinaryToken));
}

}  // namespace bfio::worker
