#include "worker/engine/decode/decode_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "worker/engine/request_check.h"

namespace bfio::worker {
namespace {

// Bounds that keep row and page numbers within 32 bits.
constexpr int32_t kMaxSlots = 1 << 16;

DecodeOptions WithinModel(DecodeOptions options, const ModelFacts& facts) {
  if (options.token_budget == 0) options.token_budget = options.step_tokens;
  options.limits.max_sequence_tokens = std::min(options.limits.max_sequence_tokens, facts.max_positions);
  return options;
}

}  // namespace

PageTableOptions PageTableOptionsOf(const DecodeOptions& options) {
  return {options.page_tokens, options.limits.kv_tokens, options.limits.slots};
}

absl::Status CheckDecodeOptions(const DecodeOptions& options, bool has_model) {
  BFIO_RETURN_IF_ERROR(CheckLimits(options.limits));
  if (options.limits.slots > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots must be at most ", kMaxSlots, ", not ", options.limits.slots));
  }
  const bool unbounded = !has_model && options.step_tokens == BatchPlanner::kUnbounded;
  if (options.step_tokens < 1 || (options.step_tokens > kMaxStepTokens && !unbounded)) {
    return absl::InvalidArgumentError(absl::StrCat("step_tokens (--token_budget) must be in 1..",
                                                   kMaxStepTokens, ", not ", options.step_tokens));
  }
  if (options.token_budget < 0 || options.token_budget > options.step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("token_budget must be in 0..", options.step_tokens,
                                                   " (step_tokens), not ", options.token_budget));
  }
  return PageTable::Check(PageTableOptionsOf(options));
}

absl::StatusOr<std::unique_ptr<DecodeEngine>> DecodeEngine::Create(const DecodeOptions& options,
                                                                   std::unique_ptr<Backend> backend) {
  BFIO_RETURN_IF_ERROR(CheckDecodeOptions(options, backend->facts().has_model));
  BFIO_ASSIGN_OR_RETURN(auto table, PageTable::Create(PageTableOptionsOf(options)));
  const DecodeOptions within = WithinModel(options, backend->facts());
  return std::unique_ptr<DecodeEngine>(new DecodeEngine(within, std::move(backend), std::move(table)));
}

DecodeEngine::DecodeEngine(const DecodeOptions& options, std::unique_ptr<Backend> backend, PageTable table)
    : options_(options),
      backend_(std::move(backend)),
      table_(std::move(table)),
      planner_(options_.token_budget) {
  active_.reserve(static_cast<size_t>(options_.limits.slots));
}

// --- requests ---

absl::Status DecodeEngine::CheckPrompt(const SequenceRequest& request) const {
  const auto vocab = static_cast<uint64_t>(backend_->facts().vocab);
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat("prompt token ", i, " is ", request.prompt[i],
                                                     "; the model's vocabulary has ", vocab, " tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status DecodeEngine::CheckLogprobs(const SequenceRequest& request) const {
  if (!request.sampling.logprobs) return absl::OkStatus();
  if (!computes_logprobs())
    return absl::InvalidArgumentError(absl::StrCat("the ", name(), " engine computes no logprobs"));
  if (*request.sampling.logprobs <= backend_->facts().vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("logprobs is ", *request.sampling.logprobs,
                                                 "; the model's vocabulary has ", backend_->facts().vocab,
                                                 " tokens"));
}

std::vector<uint32_t> DecodeEngine::PromptOf(const SequenceRequest& request) const {
  std::vector<uint32_t> prompt;
  prompt.reserve(static_cast<size_t>(request.prompt_length + request.max_new_tokens));
  if (!request.prompt.empty()) {
    prompt.assign(request.prompt.begin(), request.prompt.end());
    return prompt;
  }
  const int64_t original_length = request.prompt_length - request.first_index;
  const uint64_t key = Mix64(request.sampling.seed ^ Mix64(static_cast<uint64_t>(original_length)));
  const auto vocab = static_cast<uint64_t>(backend_->facts().vocab);
  for (int64_t i = 0; i < original_length; ++i) {
    prompt.push_back(static_cast<uint32_t>(Mix64(key ^ Mix64(static_cast<uint64_t>(i))) % vocab));
  }
  return prompt;
}

absl::Status DecodeEngine::Admit(const SequenceRequest& request) {
  BFIO_RETURN_IF_ERROR(CheckRequest(request, options_.limits));
  BFIO_RETURN_IF_ERROR(CheckPrompt(request));
  BFIO_RETURN_IF_ERROR(CheckLogprobs(request));
  const bool has_model = backend_->facts().has_model;
  // To continue a replay, a model needs the ids of the delivered tokens.
  const bool replays = has_model && request.prompt.empty();
  const int64_t given = request.prompt_length - (replays ? request.first_index : 0);
  const auto same = [&](const Sequence& sequence) { return sequence.handle == request.handle; };
  if (std::any_of(active_.begin(), active_.end(), same)) {
    return absl::AlreadyExistsError(absl::StrCat("handle ", request.handle, " is already active"));
  }
  BFIO_ASSIGN_OR_RETURN(const auto index, table_.Admit(FirstKvTokens(request)));
  Sequence& sequence = active_.emplace_back();
  sequence.handle = request.handle;
  sequence.index = index;
  if (has_model) sequence.tokens = PromptOf(request);
  sequence.length = sequence.given = given;
  sequence.computed = sequence.started = 0;
  sequence.drawing = false;
  sequence.prompt_length = request.prompt_length;
  sequence.original_length = request.prompt_length - request.first_index;
  sequence.generated = 0;
  sequence.max_new_tokens = request.max_new_tokens;
  sequence.priority = request.priority;
  sequence.senior_step = steps_ - request.waited_steps;
  sequence.number = admitted_++;
  sequence.passed_over = 0;
  sequence.kv_on_demand = request.kv_on_demand;
  sequence.sampling = request.sampling;
  sequence.ends = request.stop_token_ids;
  if (!request.ignore_eos) {
    const auto& eos = backend_->facts().eos_token_ids;
    sequence.ends.insert(sequence.ends.end(), eos.begin(), eos.end());
  }
  backend_->Begin(sequence.index, request);
  return absl::OkStatus();
}

bool DecodeEngine::Cancel(Handle handle) {
  const auto it = std::find_if(active_.begin(), active_.end(),
                               [&](const Sequence& sequence) { return sequence.handle == handle; });
  if (it == active_.end()) return false;
  // Cannot fail: the index belongs to this sequence.
  table_.Release(it->index).IgnoreError();
  active_.erase(it);
  return true;
}

std::vector<ResidentSequence> DecodeEngine::resident() const {
  std::vector<ResidentSequence> all;
  all.reserve(active_.size());
  for (const Sequence& sequence : active_) {
    all.push_back({sequence.handle, sequence.load(), sequence.generated});
  }
  return all;
}

// --- steps ---

absl::Status DecodeEngine::Step(StepOutput& out) {
  out.Clear();
  if (backend_->depth() > 1) return StepPipelined(out);
  BFIO_RETURN_IF_ERROR(MakePlan(out));
  drawn_.resize(draws_.size());
  BFIO_RETURN_IF_ERROR(backend_->Run(plan_, draws_, absl::MakeSpan(drawn_)));
  return Finish(out);
}

absl::Status DecodeEngine::Finish(StepOutput& out) {
  ++steps_;
  CountPassedOver(chunks_, active_);
  for (const Chunk& chunk : chunks_) {
    Sequence& sequence = active_[chunk.which];
    sequence.computed = sequence.started += chunk.rows;
  }
  ended_.assign(active_.size(), 0);
  for (size_t i = 0; i < drawn_.size(); ++i) {
    ended_[drawing_[i]] = Take(active_[drawing_[i]], drawn_[i], out);
  }
  return RemoveEnded();
}

BatchRequest DecodeEngine::Sequence::Left() const {
  BatchRequest left;
  left.prefill_left = std::max<int64_t>(0, given - started);
  left.decode_left = prompt_length + max_new_tokens - length - (drawing ? 1 : 0);
  left.priority = priority;
  left.senior_step = senior_step;
  left.cached = started;
  left.passed_over = passed_over;
  return left;
}

void DecodeEngine::ChooseChunks() {
  left_.clear();
  for (const Sequence& sequence : active_) left_.push_back(sequence.Left());
  planner_.Form(left_, chunks_);
  std::stable_partition(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) { return chunk.rows == 1; });
}

std::optional<PrefillState> DecodeEngine::prefill_state() const {
  // With plans under way even a prompt that is computed whole has no token in its first step.
  if (planner_.whole_prompts() && backend_->depth() == 1) return std::nullopt;
  PrefillState state;
  state.token_budget = planner_.budget();
  for (const Sequence& sequence : active_) {
    // Tokens that an earlier placement delivered, and that are generated again without being reported, count
    // as prompt.
    const int64_t left = sequence.prompt_length - sequence.computed;
    if (left > 0) state.prompts.push_back({sequence.handle, left});
  }
  return state;
}

void DecodeEngine::ReserveStep(std::vector<Handle>& preempted) {
  int64_t missing = -table_.free_tokens();
  for (const Sequence& sequence : active_) {
    if (sequence.kv_on_demand) missing += sequence.next_kv() - table_.reserved(sequence.index);
  }
  // Preempts the last admitted of the requests with KV on demand. A request with all its KV reserved is never
  // preempted.
  for (size_t i = active_.size(); missing > 0 && i-- > 0;) {
    const Sequence& sequence = active_[i];
    if (!sequence.kv_on_demand) continue;
    missing -= sequence.next_kv();
    preempted.push_back(sequence.handle);
    // Neither this nor Extend can fail: the index belongs to this sequence, and the KV is free by now.
    table_.Release(sequence.index).IgnoreError();
    active_.erase(active_.begin() + static_cast<ptrdiff_t>(i));
  }
  for (const Sequence& sequence : active_) {
    if (sequence.kv_on_demand) table_.Extend(sequence.index, sequence.next_kv()).IgnoreError();
  }
}

absl::Status DecodeEngine::MakePlan(StepOutput& out) {
  ReserveStep(out.preempted);
  for (const Sequence& sequence : active_) out.load_tokens += sequence.load();
  ChooseChunks();
  plan_.Clear();
  draws_.clear();
  drawing_.clear();
  for (const Chunk& chunk : chunks_) {
    const Sequence& sequence = active_[chunk.which];
    BFIO_ASSIGN_OR_RETURN(const auto draws, AddRows(sequence, chunk.rows, out.batch, out.prefill_tokens));
    if (!draws) continue;
    draws_.push_back({sequence.sampling, sequence.next_index(), sequence.ends, sequence.index});
    drawing_.push_back(chunk.which);
  }
  plan_.load_tokens = out.load_tokens;
  plan_.prefill_tokens = out.prefill_tokens;
  return absl::OkStatus();
}

absl::StatusOr<bool> DecodeEngine::AddRows(const Sequence& sequence, int32_t rows, BatchLoad& batch,
                                           int64_t& prefill_tokens) {
  const int64_t begin = sequence.started, end = begin + rows;
  BFIO_RETURN_IF_ERROR(table_.Grow(sequence.index, end));
  if (begin < sequence.given) {
    batch.AddPrefill(rows, begin);
  } else {
    batch.AddDecode(begin);
  }
  prefill_tokens += std::min(end, sequence.prompt_length) - std::min(begin, sequence.prompt_length);
  const bool draws = rows == sequence.pending();
  if (backend_->facts().has_model) {
    plan_.AddRun(sequence.index, begin, absl::MakeConstSpan(sequence.tokens).subspan(begin, rows),
                 table_.pages(sequence.index), draws);
  }
  return draws;
}

bool DecodeEngine::Fail(const Sequence& sequence, StepOutput& out) {
  out.failed.push_back({sequence.handle, "the model's logits are not finite"});
  out.load_tokens -= sequence.prompt_length + sequence.generated;
  return true;
}

bool DecodeEngine::Take(Sequence& sequence, Drawn& drawn, StepOutput& out) {
  if (!drawn.finite) return Fail(sequence, out);
  const bool silent = sequence.silent();
  const ModelFacts& facts = backend_->facts();
  ++sequence.length;
  if (facts.has_model) sequence.tokens.push_back(drawn.id);
  if (silent) return false;
  ++sequence.generated;
  out.tokens.push_back({sequence.handle, drawn.id});
  if (facts.has_model) out.log_probabilities.push_back(drawn.log_probability);
  if (sequence.sampling.logprobs) out.alternatives.push_back({out.tokens.size() - 1, std::move(drawn.top)});
  const int64_t left = sequence.max_new_tokens - sequence.generated;
  // The hint for the next token is the probability that this one was the end: the best forecast without
  // further computation. After the second to last token that the request may generate it is 1.
  if (facts.gives_hints) out.completion_hints.push_back(left == 1 ? 1 : drawn.end_probability);
  const bool stop = std::find(sequence.ends.begin(), sequence.ends.end(), drawn.id) != sequence.ends.end();
  if (!stop && left > 0) return false;
  out.finished.push_back({sequence.handle, stop ? FinishCause::kStop : FinishCause::kLength});
  return true;
}

absl::Status DecodeEngine::RemoveEnded() {
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (ended_[i]) {
      BFIO_RETURN_IF_ERROR(table_.Release(active_[i].index));
      continue;
    }
    if (kept != i) active_[kept] = std::move(active_[i]);
    ++kept;
  }
  active_.erase(active_.begin() + static_cast<ptrdiff_t>(kept), active_.end());
  return absl::OkStatus();
}

}  // namespace bfio::worker
