#include "worker/engine/sim/sim_engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/make_room.h"
#include "worker/engine/request_check.h"
#include "worker/engine/sim/sim_tokens.h"

namespace bfio::worker {
namespace {

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
  if (!IsAtLeast(options.jitter, 0) || options.jitter > 0.3) return invalid("jitter must be in [0, 0.3]");
  if (!IsAtLeast(options.eos_probability, 0) || options.eos_probability >= 1) {
    return invalid("eos_probability must be in [0, 1)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SimEngine>> SimEngine::Create(const SimOptions& options,
                                                             std::unique_ptr<StepTimer> timer) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  if (timer == nullptr) timer = std::make_unique<RealStepTimer>();
  std::optional<BatchPlanner> planner;
  if (options.plan) {
    BatchPlannerOptions plan = *options.plan;
    plan.slots = options.limits.slots;
    plan.max_sequence_tokens = options.limits.max_sequence_tokens;
    auto made = BatchPlanner::Create(plan);
    if (!made.ok()) return made.status();
    planner.emplace(*std::move(made));
  }
  return std::unique_ptr<SimEngine>(new SimEngine(options, std::move(timer), std::move(planner)));
}

SimEngine::SimEngine(const SimOptions& options, std::unique_ptr<StepTimer> timer,
                     std::optional<BatchPlanner> planner)
    : options_(options),
      timer_(std::move(timer)),
      jitter_(options.seed),
      free_kv_tokens_(options.limits.kv_tokens),
      planner_(std::move(planner)) {
  active_.reserve(static_cast<size_t>(options.limits.slots));
}

absl::Status SimEngine::Admit(const SequenceRequest& request) {
  if (absl::Status status = CheckRequest(request, options_.limits); !status.ok()) return status;
  const auto same = [&](const Sequence& sequence) { return sequence.handle == request.handle; };
  if (std::any_of(active_.begin(), active_.end(), same)) {
    return absl::AlreadyExistsError(absl::StrCat("handle ", request.handle, " is active"));
  }
  const int64_t kv = FirstKvTokens(request);
  if (free_slots() == 0) return absl::ResourceExhaustedError("no free slot");
  if (kv > free_kv_tokens_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs ", kv, " KV tokens, ", free_kv_tokens_, " are free"));
  }
  free_kv_tokens_ -= kv;
  active_.push_back({request.handle, SimStreamKey(request), request.prompt_length, request.first_index,
                     request.max_new_tokens, kv, request.kv_on_demand, 0, request.stop_token_ids,
                     request.ignore_eos, 0, admitted_++, 0, request.priority, false});
  if (planner_) {
    planner_->Arrive(active_.back().number, static_cast<double>(timer_->NowNs()) * 1e-9,
                     request.prompt_length, request.max_new_tokens,
                     {request.ttft_left_s, request.tpot_objective_s});
  }
  return absl::OkStatus();
}

bool SimEngine::Cancel(Handle handle) {
  const auto it = std::find_if(active_.begin(), active_.end(),
                               [&](const Sequence& sequence) { return sequence.handle == handle; });
  if (it == active_.end()) return false;
  free_kv_tokens_ += it->reserved_kv_tokens;
  if (planner_) planner_->End(it->number, it->generated);
  active_.erase(it);
  return true;
}

absl::Status SimEngine::Step(StepOutput& out) {
  const int64_t start_ns = timer_->NowNs();
  out.Clear();
  ReserveStep(out);
  ChooseWork(out);
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (Advance(active_[i], out)) {
      free_kv_tokens_ += active_[i].reserved_kv_tokens;
      if (planner_) planner_->End(active_[i].number, active_[i].generated);
      continue;
    }
    if (kept != i) active_[kept] = std::move(active_[i]);
    ++kept;
  }
  active_.erase(active_.begin() + static_cast<ptrdiff_t>(kept), active_.end());
  const int64_t duration_ns = DurationNs(out);
  // The step's own time: what the planner takes to think is not the device's.
  if (planner_) planner_->Took(left_, chunks_, out.batch, static_cast<double>(duration_ns) * 1e-9);
  timer_->SleepUntilNs(start_ns + duration_ns);
  return absl::OkStatus();
}

void SimEngine::ChooseWork(StepOutput& out) {
  left_.clear();
  chunks_.clear();
  for (Sequence& sequence : active_) {
    left_.push_back(sequence.Left());
    sequence.makes_token = false;
  }
  if (planner_) {
    planner_->Form(left_, chunks_);
  } else {
    for (size_t i = 0; i < left_.size(); ++i) {
      chunks_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(left_[i].available())});
    }
  }
  for (const Chunk& chunk : chunks_) {
    Sequence& sequence = active_[chunk.which];
    if (sequence.prefilled == sequence.prompt_length) {
      out.batch.AddDecode(sequence.prompt_length + sequence.generated);
      sequence.makes_token = true;
      continue;
    }
    out.prefill_tokens += chunk.rows;
    out.batch.AddPrefill(chunk.rows, sequence.prefilled);
    sequence.prefilled += chunk.rows;
    // The row of the last prompt token gives the first token.
    sequence.makes_token = sequence.prefilled == sequence.prompt_length;
  }
  CountPassedOver(chunks_, active_);
}

void SimEngine::SetPrefillPiece(std::optional<int64_t> tokens) {
  if (planner_) planner_->SetPrefillPiece(tokens);
}

std::optional<PrefillState> SimEngine::prefill_state() const {
  if (!planner_ || planner_->scheduler().whole_prompts()) return std::nullopt;
  PrefillState state;
  for (const Sequence& sequence : active_)
    state.pending_tokens += sequence.prompt_length - sequence.prefilled;
  state.token_budget = planner_->budget();
  return state;
}

void SimEngine::ReserveStep(StepOutput& out) {
  const auto leave = [&](const Sequence& sequence) {
    free_kv_tokens_ += sequence.reserved_kv_tokens;
    if (planner_) planner_->End(sequence.number, sequence.generated);
    out.preempted.push_back(sequence.handle);
  };
  MakeRoom(
      free_kv_tokens_, active_, [](const Sequence& sequence) { return sequence.reserved_kv_tokens; }, leave);
  for (Sequence& sequence : active_) {
    if (!sequence.kv_on_demand) continue;
    const int64_t needed = NextKvTokens(sequence);
    free_kv_tokens_ -= needed - sequence.reserved_kv_tokens;
    sequence.reserved_kv_tokens = needed;
  }
}

bool SimEngine::Advance(Sequence& sequence, StepOutput& out) {
  out.load_tokens += sequence.prompt_length + sequence.generated;
  if (!sequence.makes_token) return false;
  const int64_t index = sequence.first_index + sequence.generated;
  const uint32_t id = SimToken(sequence.stream_key, index, options_.eos_probability);
  ++sequence.generated;
  out.tokens.push_back({sequence.handle, id});
  const auto& stops = sequence.stop_token_ids;
  const bool stop = (id == kSimEosToken && !sequence.ignore_eos) ||
                    std::find(stops.begin(), stops.end(), id) != stops.end();
  const int64_t left = sequence.max_new_tokens - sequence.generated;
  if (options_.eos_probability > 0) {
    const double by_eos = sequence.ignore_eos ? 0 : options_.eos_probability;
    out.completion_hints.push_back(static_cast<float>(left == 1 ? 1 : by_eos));
  }
  if (!stop && left > 0) return false;
  out.finished.push_back({sequence.handle, stop ? FinishCause::kStop : FinishCause::kLength});
  return true;
}

int64_t SimEngine::DurationNs(const StepOutput& out) {
  double seconds = options_.cost.StepSeconds(out.load_tokens, out.prefill_tokens);
  if (options_.jitter > 0) seconds *= 1 + options_.jitter * std::clamp(jitter_.Normal(), -3.0, 3.0);
  return static_cast<int64_t>(seconds * 1e9);
}

std::vector<ResidentSequence> SimEngine::resident() const {
  std::vector<ResidentSequence> all;
  all.reserve(active_.size());
  for (const Sequence& sequence : active_) {
    all.push_back({sequence.handle, sequence.prompt_length + sequence.generated, sequence.generated});
  }
  return all;
}

}  // namespace bfio::worker
