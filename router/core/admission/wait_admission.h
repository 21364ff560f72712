// Admission in batches: WAIT and Nested WAIT ("Fluid-Based Online Scheduling under Memory Constraints") for a
// group of workers. Delays requests until enough similar ones wait to make a batch, then releases them to the
// policy:
//   wait          a request's class is its expected length (predicted_output_tokens, else max_new_tokens), to
//                 a factor of four; a class is released at its threshold of equation (7)
//   nested_wait   lengths are unknown: all wait together for the first segment's threshold; segments are
//                 learnt from completed requests
// Within a class the order is first come, first served, whatever the priorities.
//
// Differences from the paper: a class counts the requests that it holds, not whole batches, because running
// requests do not pause; a rare class never waits; requests beyond a threshold are also released, because
// another rule bounds memory; thresholds fit the workers' memory (OnMemory). A group behind one barrier is
// the paper's one worker: an iteration takes d0 + d1 / G times the tokens of all workers. Time is measured in
// tokens: a step takes d0 / d1 tokens plus the largest load, where d0 / d1 is the setting `tokens`, or fitted
// (OnCost). Time does not advance in a group without work, so it takes every waiting request. No request
// waits here for more steps than a fixed limit.
//
// Deterministic. Threads: one. Cost: O(1) per request, but O(waiting requests of its class) to remove one.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/stats/arrival_rate.h"
#include "router/core/model/request.h"

namespace bfio::core {

// Types of requests, their stages, and segments of stages for requests of unknown type. The vocabulary of
// "Fluid-Based Online Scheduling under Memory Constraints", for wait_admission.h. A request of a type passes
// stages 0 (its prompt is read) to l'; at stage k it holds l + k tokens. Rates per unit of time, sizes in
// tokens. Pure functions; any thread.
struct RequestType {
  double rate = 0;     // lambda_j
  int64_t prompt = 0;  // l_j
  int64_t output = 0;  // l'_j, at least 1
};

// Tokens that a request of this type holds, summed over its stages: (l' + 1)(l + l' / 2).
double StageTokens(const RequestType& type);

// For Nested WAIT (lengths unknown): segment i has the stages between the ends of types i - 1 and i; a
// request's type is known when it ends. Types have one prompt length and are sorted by output.
struct Segments {
  int64_t prompt = 0;
  // Last stage of each segment; the first segment begins at stage 0.
  std::vector<int64_t> last_stage;
  // Share of the requests of segment i - 1 that reach segment i; 1 for the first.
  std::vector<double> survive;
  double rate = 0;

  int64_t first_stage(size_t i) const { return i == 0 ? 0 : last_stage[i - 1] + 1; }
};
// One segment per type. REQUIRES: types sorted by output, outputs distinct. The prompt length is the mean
// over the rates, rounded up.
Segments SegmentsOf(absl::Span<const RequestType> types);
// Segments with these last stages, in ascending order.
Segments SegmentsEndingAt(absl::Span<const RequestType> types, const std::vector<int64_t>& last_stages);

// Tokens that a request holds, summed over the stages of segment i.
double SegmentTokens(const Segments& segments, size_t i);

struct WaitAdmissionOptions {
  enum class Kind { kNone, kWait, kNestedWait };
  Kind kind = Kind::kNone;
  // Fixed part of a step's time, in tokens of load: C / t_l. Above 0. Unset: derived from the workers' costs.
  std::optional<double> fixed_tokens;
  // Number of steps after which a request is released, whatever its class. At least 1.
  int64_t most_steps = 32;
};

// Parses "wait" or "nested_wait", with settings as in "wait:tokens=48620,most=32". INVALID_ARGUMENT with the
// error in the message.
absl::StatusOr<WaitAdmissionOptions> ParseWaitAdmission(absl::string_view text);

class WaitAdmission {
 public:
  // A request that is held back, and the step in which it arrived.
  struct Waiting {
    RequestSpec spec;
    int64_t enqueued_step = 0;
  };

  explicit WaitAdmission(const WaitAdmissionOptions& options);

  bool active() const { return options_.kind != WaitAdmissionOptions::Kind::kNone; }

  // --- requests that are held back ---

  // REQUIRES: active(), !Contains(spec.id); steps do not descend.
  void Add(const RequestSpec& spec, int64_t enqueued_step);
  bool Contains(RequestId id) const { return classes_of_.contains(id); }
  // REQUIRES: Contains(id).
  const RequestSpec& Spec(RequestId id) const;
  // False when the id is not here.
  bool Remove(RequestId id);
  int64_t size() const { return static_cast<int64_t>(classes_of_.size()); }
  // Prompt tokens of all held requests (RequestSpec::tokens_to_compute); O(n).
  int64_t tokens_to_compute() const;

  // Moves the requests that may be released at `step` to the end of `out`, by class, each in the order of
  // arrival; all of them when the group is idle.
  void Release(int64_t step, bool idle, std::vector<Waiting>& out);

  // --- measurements ---

  // The group has made a step with this largest load.
  void OnStep(int64_t largest_load, int32_t workers);
  // The fixed part of a step's time by the workers' fitted costs, in tokens of load. Takes effect when it
  // differs from the one in use by more than kCostStep, so that thresholds do not follow the noise of the
  // fits; ignored when the option is set. The counted rates stay as they are. REQUIRES: finite.
  void OnCost(double fixed_tokens);
  // KV memory of all the group's workers, in tokens, above 0. Until it is called, thresholds are not bounded.
  void OnMemory(double kv_tokens);
  // A request has ended by itself or by its limit, with `output` tokens in all.
  void OnEnd(int64_t prompt, int64_t output);

  // Fixed part of a step's time in use, in tokens of load.
  double fixed_tokens() const { return fixed_tokens_; }
  // The value of the last OnMemory; infinite before.
  double memory() const { return memory_; }
  // Used until workers have reported their costs: the BF-IO authors' C / t_l (16 workers, 72 slots).
  static constexpr double kDefaultFixedTokens = 48'620;
  // Relative change of the fixed part that is followed. Thresholds are proportional to it and whole numbers,
  // so a smaller change rarely alters one.
  static constexpr double kCostStep = 0.1;

  // The thresholds, by class; for nested_wait one number.
  const std::vector<int64_t>& thresholds() const { return thresholds_; }
  // The class of a request with this expected length.
  static size_t ClassOf(int64_t output);

 private:
  static constexpr size_t kClasses = 9;

  // Requests of one class: those held back, their arrival rate, and means over recent ones.
  struct Class {
    explicit Class(double time_constant) : rate(time_constant) {}
    std::deque<Waiting> waiting;
    ArrivalRate rate;
    // The rate for which the thresholds are solved.
    double solved = 0;
    double prompt = 0, output = 0;
    bool seen = false;
    // Number of ends, exponentially decayed; for nested_wait.
    double ends = 0;

    void TakeLengths(int64_t prompt_tokens, int64_t output_tokens);
  };

  bool nested() const { return options_.kind == WaitAdmissionOptions::Kind::kNestedWait; }
  void Solve();
  // The types with the rates for which thresholds are solved, without classes that have no arrivals. Sets
  // `classes` to the class of each type.
  std::vector<RequestType> Types(std::vector<size_t>& classes) const;

  const WaitAdmissionOptions options_;
  double fixed_tokens_;
  // Time constant of the rates, in admission's unit of time, tokens.
  double time_constant_;
  // For nested_wait these are classes of lengths, and all requests wait in the first.
  std::vector<Class> classes_;
  absl::flat_hash_map<RequestId, size_t> classes_of_;
  // Rate of all arrivals, for nested_wait.
  ArrivalRate rate_;
  double solved_ = 0;
  std::vector<int64_t> thresholds_;
  double now_ = 0, checked_ = 0, solved_at_ = 0;
  int32_t workers_ = 0, solved_workers_ = 0;
  double memory_ = std::numeric_limits<double>::infinity();
};

}  // namespace bfio::core
