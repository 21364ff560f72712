// The engine over a backend: continuous batching, chunked prefill and a paged KV cache, whatever the device.
//
// Purpose: keeps the requests' tokens and the page table, makes each step's plan (worker/scheduler), has a
// backend run it, and turns what it drew into the step's output. Threads: as engine.h says.
//
// A request's tokens depend on its prompt, its sampling and the model alone. A replay with token ids comes
// with the delivered tokens as part of its prompt, and continues. A replay of synthetic load comes without
// them, for the router does not keep them: it generates them once more, silently, one per step (first_index
// steps that give no token).
//
// A backend without a model (ModelFacts::has_model) gets requests and indices instead of rows: no ids are
// kept, and any replay continues at once.
//
// Synthetic prompts: the id at a place is a mix of the sampling seed, the original prompt's length and the
// place, modulo the vocabulary.
#ifndef BFIO_WORKER_ENGINE_DECODE_DECODE_ENGINE_H_
#define BFIO_WORKER_ENGINE_DECODE_DECODE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/decode/backend.h"
#include "worker/engine/engine.h"
#include "worker/kv/page_table.h"
#include "worker/scheduler/batch_planner.h"

namespace bfio::worker {

struct DecodeOptions {
  // max_sequence_tokens is lowered to what the model can do.
  EngineLimits limits;
  // Tokens of a page.
  int32_t page_tokens = 16;
  // Rows of a step that prompts may fill up, at least 1: what memory is taken for. Decodes have room besides
  // (worker/scheduler/batch.h). BatchRoom::kUnbounded: any number, for backends without a model.
  int64_t step_tokens = 512;
  // What a step contains: a scheduler's name (worker/scheduler/batch_scheduler.h), the order within its
  // classes, and tokens of a step, at most step_tokens; 0: step_tokens.
  std::string scheduler = "sarathi";
  BatchOrder order = BatchOrder::kFcfs;
  int64_t token_budget = 0;
  // Adapts the token budget (worker/scheduler/batch_planner.h). Not for whole prompts, nor for ranks that
  // step together.
  std::optional<BudgetTunerOptions> adapt;
  // --mlp=tp: the ranks of the group share the MLP out. Each has all of the model.
  bool share_mlp = false;
  // Seconds of a clock that never goes back, for `adapt`; empty: the machine's.
  std::function<double()> clock;
};

// The sizes that a backend allocates for.
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
  absl::Status Admit(const SequenceRequest& request) override;
  bool Cancel(Handle handle) override;
  absl::Status Step(StepOutput& out) override;
  bool together() const override { return backend_->signature().has_value(); }
  uint64_t signature() const override { return backend_->signature().value_or(0); }
  int64_t most_rows() const override { return MaxRows(options_.limits.slots, options_.step_tokens); }
  absl::Status EnterGroup(const StepPeers& peers) override { return backend_->EnterGroup(peers); }
  int64_t NextRows() override;
  absl::Span<const Handle> taken_out() const override { return preempted_; }
  absl::Status StepTogether(StepPeers& peers, StepOutput& out) override;
  int32_t active() const override { return static_cast<int32_t>(active_.size()); }
  int32_t free_slots() const override { return options_.limits.slots - active(); }
  int64_t free_kv_tokens() const override { return table_.free_tokens(); }
  std::vector<ResidentSequence> resident() const override;
  void SetPrefillLevel(const std::optional<PrefillLevel>& level) override { planner_.SetLevel(level); }
  void Waited(double seconds) override { planner_.Waited(seconds); }
  std::optional<PrefillState> prefill_state() const override;

  // Of the next step.
  int64_t token_budget() const { return planner_.budget(); }
  PageTableStats kv_stats() const { return table_.stats(); }
  // For tests: no page is lost or has two owners.
  absl::Status AuditKv() const { return table_.Audit(); }

 private:
  struct Sequence {
    Handle handle;
    SequenceIndex index;
    // Prompt and what was generated, silently too; their ids, kept for a model only.
    int64_t length;
    std::vector<uint32_t> tokens;
    // How many of them it came with.
    int64_t given;
    // Of them, those whose KV is in the cache.
    int64_t computed;
    // As the request counts it: with what an earlier placement delivered.
    int64_t prompt_length;
    int64_t original_length;
    int64_t generated;
    int64_t max_new_tokens;
    int64_t priority;
    // Its name for the planner: a handle may come again.
    int64_t number;
    // Steps since it was last in one.
    int64_t passed_over;
    bool kv_on_demand;
    Sampling sampling;
    // Tokens that end it.
    std::vector<uint32_t> ends;

    // What it counts, and reserves at least, in the next step.
    int64_t load() const { return prompt_length + generated; }
    int64_t next_index() const { return length - original_length; }
    // What an earlier placement delivered is not all generated again.
    bool silent() const { return length < prompt_length; }
    // Tokens whose KV is not in the cache; at least 1.
    int64_t pending() const { return length - computed; }
    // As its scheduler sees it.
    BatchRequest Left() const;
  };

  DecodeEngine(const DecodeOptions& options, std::unique_ptr<Backend> backend, PageTable table,
               BatchPlanner planner);

  absl::Status CheckPrompt(const SequenceRequest& request) const;
  std::vector<uint32_t> PromptOf(const SequenceRequest& request) const;
  // Fills chunks_. Depends on the requests alone: asked twice it says the same.
  void ChooseChunks();
  // Takes over what the backend drew.
  absl::Status Finish(StepOutput& out);
  // Reserves what the next step needs; preempts requests for it if necessary. Idempotent.
  void ReserveStep(std::vector<Handle>& preempted);
  // Fills plan_, draws_ and drawing_.
  absl::Status MakePlan(StepOutput& out);
  // Takes a drawn token, or the want of one; true when the request has ended.
  bool Take(Sequence& sequence, const Drawn& drawn, StepOutput& out);
  bool Fail(const Sequence& sequence, StepOutput& out);
  // Removes the requests that ended in this step.
  absl::Status RemoveEnded();

  const DecodeOptions options_;
  const std::unique_ptr<Backend> backend_;
  PageTable table_;
  BatchPlanner planner_;
  int64_t admitted_ = 0;
  // In the order of admission.
  std::vector<Sequence> active_;

  // Taken out by NextRows.
  std::vector<Handle> preempted_;

  // Scratch.
  std::vector<BatchRequest> left_;
  std::vector<Chunk> chunks_;
  StepPlan plan_;
  std::vector<Draw> draws_;
  std::vector<Drawn> drawn_;
  // [draws] Which of active_ is drawn for.
  std::vector<int32_t> drawing_;
  // By active_.
  std::vector<char> ended_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_DECODE_DECODE_ENGINE_H_
