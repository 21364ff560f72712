// The engine on top of a backend: continuous batching, chunked prefill and a paged KV cache, the same for all
// devices. Keeps the requests' tokens and the page table, makes each step's plan (worker/scheduler), has a
// backend run it, and converts the drawn tokens to the step's output. A request's tokens depend only on its
// prompt, its sampling parameters and the model. A replay of synthetic load has no token ids: the engine
// generates them again, one per step, without reporting them (first_index steps). Threads: as in engine.h.
//
// With a backend that has several plans under way (Backend::depth), a step's rows are divided into that many
// micro-batches. A step collects each micro-batch of the step before, in order, and starts one of the next
// rows as soon as one is collected. So a request still has one token per step, but one that is admitted while
// others are under way has its first token a step later (prefill_state() lists it until then). A backend
// without a model (ModelFacts::has_model) gets requests and indices instead of rows, and every replay
// continues at once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/decode/backend.h"
#include "worker/engine/engine.h"
#include "worker/kv/page_table.h"
#include "worker/scheduler/batch_planner.h"

namespace bfio::worker {

struct DecodeOptions {
  // max_sequence_tokens is lowered to what the model supports.
  EngineLimits limits;
  // Tokens per page.
  int32_t page_tokens = 16;
  // Upper bound of the prompt rows of a step, at least 1; memory is allocated for it. Rows for decodes come
  // on top (worker/scheduler/batch.h). BatchPlanner::kUnbounded: no bound, for backends without a model.
  int64_t step_tokens = 512;
  // The token budget of a step, at most step_tokens; 0: step_tokens.
  int64_t token_budget = 0;
};

// The page table for these options; backends allocate their KV cache for it.
PageTableOptions PageTableOptionsOf(const DecodeOptions& options);
// INVALID_ARGUMENT, naming the option, when one is out of range.
absl::Status CheckDecodeOptions(const DecodeOptions& options, bool has_model = true);

class DecodeEngine final : public Engine {
 public:
  // REQUIRES: the backend was made for these options.
  static absl::StatusOr<std::unique_ptr<DecodeEngine>> Create(const DecodeOptions& options,
                                                              std::unique_ptr<Backend> backend);

  absl::string_view name() const override { return backend_->name(); }
  const EngineLimits& limits() const override { return options_.limits; }
  bool computes_logprobs() const override { return backend_->facts().has_model; }
  absl::Status Admit(const SequenceRequest& request) override;
  bool Cancel(Handle handle) override;
  absl::Status Step(StepOutput& out) override;
  int32_t active() const override { return static_cast<int32_t>(active_.size()); }
  int32_t free_slots() const override { return options_.limits.slots - active(); }
  int64_t free_kv_tokens() const override { return table_.free_tokens(); }
  std::vector<ResidentSequence> resident() const override;
  void SetPrefillLevel(const std::optional<PrefillLevel>& level) override { planner_.SetLevel(level); }
  std::optional<PrefillState> prefill_state() const override;

  // Token budget of the next step.
  int64_t token_budget() const { return planner_.budget(); }
  PageTableStats kv_stats() const { return table_.stats(); }
  // For tests: INTERNAL when a page is lost or has two owners.
  absl::Status AuditKv() const { return table_.Audit(); }

 private:
  struct Sequence {
    Handle handle;
    SequenceIndex index;
    // Prompt and generated tokens, reported or not. Their ids are kept only for a model.
    int64_t length;
    std::vector<uint32_t> tokens;
    // The number of tokens that it was admitted with.
    int64_t given;
    // The number of tokens whose KV is in the cache, and the number of tokens that have been started. They
    // differ only while a plan is under way.
    int64_t computed;
    int64_t started;
    // The token after the started ones is being drawn by a plan under way.
    bool drawing;
    // Prompt length as the request states it: includes tokens that an earlier placement delivered.
    int64_t prompt_length;
    int64_t original_length;
    int64_t generated;
    int64_t max_new_tokens;
    int64_t priority;
    int64_t senior_step;
    // Unique; a handle may be reused.
    int64_t number;
    // Steps since a batch last contained it.
    int64_t passed_over;
    bool kv_on_demand;
    Sampling sampling;
    // Tokens that end the sequence.
    std::vector<uint32_t> ends;

    // Its load in the next step, which is also the lower bound of the KV that it reserves.
    int64_t load() const { return prompt_length + generated; }
    // Upper bound of the KV that the next rows to be started need. A token that is generated again is part of
    // load(). Never decreases, so it is never less than what is reserved.
    int64_t next_kv() const {
      return load() + (drawing && !silent() && max_new_tokens - generated > 1 ? 1 : 0);
    }
    int64_t next_index() const { return length - original_length; }
    // Whether some tokens that an earlier placement delivered have not been generated again yet.
    bool silent() const { return length < prompt_length; }
    // Tokens that have not been started; at least 1 unless a token is being drawn.
    int64_t pending() const { return length - started; }
    // The request as the batch planner sees it.
    BatchRequest Left() const;
  };

  DecodeEngine(const DecodeOptions& options, std::unique_ptr<Backend> backend, PageTable table);

  absl::Status CheckPrompt(const SequenceRequest& request) const;
  absl::Status CheckLogprobs(const SequenceRequest& request) const;
  std::vector<uint32_t> PromptOf(const SequenceRequest& request) const;
  // Fills chunks_.
  void ChooseChunks();
  // Applies the backend's drawn tokens to the requests and to `out`.
  absl::Status Finish(StepOutput& out);
  // Reserves what the next step needs; preempts requests for it if necessary. Idempotent.
  void ReserveStep(std::vector<Handle>& preempted);
  // Fills plan_, draws_ and drawing_.
  absl::Status MakePlan(StepOutput& out);
  // Adds the sequence's next rows to plan_ and counts them in `batch` and `prefill_tokens`. Returns whether a
  // token follows them.
  absl::StatusOr<bool> AddRows(const Sequence& sequence, int32_t rows, BatchLoad& batch,
                               int64_t& prefill_tokens);
  // --- several plans under way ---

  // A micro-batch under way.
  struct MicroBatch {
    struct Part {
      // Sequence::number.
      int64_t number;
      int32_t rows;
      bool draws;
    };
    std::vector<Part> parts;
    BatchLoad batch;
    int64_t prefill_tokens = 0;
  };
  // Rows that this step has still to start.
  struct Due {
    int64_t number;
    int32_t rows;
  };

  absl::Status StepPipelined(StepOutput& out);
  // Fills due_ with the rows to start in this step.
  void ChooseDue();
  // Starts micro-batches of the due rows whose sequences await no token, while the backend accepts more.
  // `last`: this is the last call in this step, so the last micro-batch gets all of these rows.
  absl::Status StartDue(bool last);
  // Starts one micro-batch of at most `most_rows` rows; false: no rows can be started.
  absl::StatusOr<bool> StartOne(int64_t most_rows);
  // Collects the oldest micro-batch.
  absl::Status CollectOne(StepOutput& out);
  // Null if the request has left.
  Sequence* Find(int64_t number);

  // Handles a drawn token, or a failed draw; true when the request has ended.
  bool Take(Sequence& sequence, Drawn& drawn, StepOutput& out);
  bool Fail(const Sequence& sequence, StepOutput& out);
  // Removes the requests that ended in this step.
  absl::Status RemoveEnded();

  const DecodeOptions options_;
  const std::unique_ptr<Backend> backend_;
  PageTable table_;
  BatchPlanner planner_;
  int64_t admitted_ = 0;
  // Steps that have ended.
  int64_t steps_ = 0;
  // In the order of admission.
  std::vector<Sequence> active_;

  // Micro-batches in the order of their starts, at most the backend's depth.
  std::deque<MicroBatch> under_way_;
  std::vector<Due> due_;
  // Upper bound of a micro-batch's rows in this step.
  int64_t most_rows_each_ = 0;

  // Reused buffers.
  std::vector<BatchRequest> left_;
  std::vector<Chunk> chunks_;
  StepPlan plan_;
  std::vector<Draw> draws_;
  std::vector<Drawn> drawn_;
  // [draws] Index in active_ of the request that each draw is for.
  std::vector<int32_t> drawing_;
  // By index in active_: whether the request ended in this step.
  std::vector<char> ended_;
};

}  // namespace bfio::worker
