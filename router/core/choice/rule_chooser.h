// Chooses the placement rule with the shortest steps for the present traffic, by replay, because below
// saturation no rule is the best for all traffic. With every step of the group each rule makes a step in a
// small simulated group. As many requests arrive there as were placed in the group, taken from the requests
// that ended last, whose lengths are known. The first kSettleStays mean stays are not counted. fcfs and
// least_requests are replayed as well, kWatchEvery steps at once, but only watched. Owns the simulated
// groups; borrows what Step is given. Threads: one. Deterministic. Cost per step and rule: a placement, and a
// pass over the residents of changed workers, of kMostWorkers workers at most.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/choice/ended_requests.h"
#include "router/core/lookahead/far_outlook.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

// A simulated small group whose requests are placed by one policy: the step times that it would give. A model
// with slots and loads only; each request adds a token per step. KV limits, chunked prefill and pipelined
// plans are left out, because rules are compared while slots are free. The requests have ended before, so
// their lengths are known here, but the policy gets the same input as in the router: prompts and predictions.
// Borrows the lookahead, which does not learn from it. Threads: one. Deterministic.
class ReplayedGroup {
 public:
  // `workers`: the group's workers without requests; free_slots is the number of their slots. `rule` is
  // Snapshot::rule of the policy's decisions.
  ReplayedGroup(std::unique_ptr<Policy> policy, PlacementRule rule, absl::Span<const WorkerView> workers);

  // Puts a request of this age on the least loaded worker, whatever the policy: this builds the state from
  // which a replay starts. The request is dropped when no slot is free.
  void Begin(const EndedRequest& request, int64_t age);

  // One step: `arrivals` are placed while slots are free, then every request generates a token. Returns the
  // time of the slowest worker (WorkerView::Time).
  double Step(Lookahead& lookahead, absl::Span<const EndedRequest> arrivals);

  // Sets the workers' step times from now on. REQUIRES: as many workers as before.
  void SetWorkers(absl::Span<const WorkerView> workers);

 private:
  struct Worker {
    WorkerView view;
    std::vector<Resident> residents;
    // The last step of each resident, and the smallest of them.
    std::vector<int64_t> last_steps;
    int64_t next_end = 0;
    // Counts changes of `residents`.
    int64_t version = 0;
  };

  void Put(Worker& worker, const EndedRequest& request, int64_t first_step);
  void Place(Lookahead& lookahead);
  void EndStep(Worker& worker);

  std::unique_ptr<Policy> policy_;
  PlacementRule rule_;
  FarOutlookBuilder far_;
  std::vector<Worker> workers_;
  int64_t step_ = 1;
  RequestId last_id_ = 0;
  std::deque<EndedRequest> waiting_;
  // Scratch.
  std::vector<WorkerView> views_;
  std::vector<WaitingView> shown_;
  Decision decision_;
};

// "headroom", "horizon", "counts".
absl::string_view PlacementRuleName(PlacementRule rule);

class RuleChooser {
 public:
  // Maximum number of workers of a simulated group; a larger group's arrivals are scaled down.
  static constexpr size_t kMostWorkers = 32;
  // Requests that must have ended before the replay starts: the mean of 100 has a tenth of the standard error
  // of one.
  static constexpr size_t kLeastEnded = 100;
  // Number of the last ended requests from which arrivals are taken. Few, so that the short requests that end
  // first after a start soon leave the sample.
  static constexpr size_t kDrawn = 256;
  // In mean stays of residents (EndedRequests::mean_stay): time before steps are counted, time for which they
  // are counted before the first choice, and time constant of the mean.
  static constexpr double kSettleStays = 3;
  static constexpr double kLeastStays = 1;
  static constexpr double kMemoryStays = 4;
  // The rule is changed when another rule's steps are shorter by more than this share.
  static constexpr double kHysteresis = 0.003;
  // Steps between two calls of the watched policies; divides the steps between two choices.
  static constexpr int64_t kWatchEvery = 8;

  struct Candidate {
    PlacementRule rule;
    // Mean time of the slowest worker in its simulated group, in the unit of WorkerView's times; 0 before the
    // first choice.
    double time = 0;
  };
  // A policy that is only watched. `time`: as Candidate.
  struct Watched {
    absl::string_view policy;
    double time = 0;
  };

  // The candidates; the first is followed until the first choice. With fewer than two no replay runs.
  void SetRules(absl::Span<const PlacementRule> rules);

  // Follows this rule and makes no more choices until SetRules; for replays, because a decision log contains
  // the rules that were followed. Ignored when the rule is not a candidate.
  void Obey(PlacementRule rule);

  // A step of the group with these workers. `placed`: number of requests placed in it; not a whole number
  // where the requests of several steps are spread over them. `mean_age`: mean number of tokens that the
  // group's residents have generated. Twice that is a lower bound of the mean stay, which matters after a
  // start, when only short requests have ended.
  void Step(Lookahead& lookahead, const EndedRequests& ended, absl::Span<const WorkerView> workers,
            double placed, double mean_age);

  PlacementRule rule() const { return rule_; }
  bool chooses() const { return candidates_.size() > 1 && !obeys_; }
  const std::vector<Candidate>& candidates() const { return candidates_; }
  absl::Span<const Watched> watched() const { return watched_; }
  // Number of changes of the rule.
  int64_t switches() const { return switches_; }
  // True: the step times have been measured and a choice has been made, even if nothing changed.
  bool measured() const { return !candidates_.empty() && candidates_.front().time > 0; }
  // Number of steps in the mean step times, where older steps count less.
  int64_t counted_steps() const { return static_cast<int64_t>(counted_); }
  // Time under `rule` over the time under the followed rule. REQUIRES: measured, and `rule` is a candidate.
  double StepRatio(PlacementRule rule) const { return TimeOf(rule) / TimeOf(rule_); }
  // The same for a watched policy. REQUIRES: measured.
  double StepRatio(const Watched& watched) const { return watched.time / TimeOf(rule_); }

 private:
  struct ReplayedStep {
    std::vector<EndedRequest> arrivals;
    // Whether its time counts, and the factor for the sums of earlier times.
    bool counts = false;
    double keep = 0;
  };

  void Restart();
  void BeginReplay(const EndedRequests& ended);
  void ReplayStep(Lookahead& lookahead, const EndedRequests& ended, double mean_age);
  // The watched policies make the steps of `latest_`, on the workers as they are now.
  void ReplayWatched(Lookahead& lookahead);
  void Choose();
  double TimeOf(PlacementRule rule) const;
  // The next arrival: cycles from the oldest to the newest of the last kDrawn requests.
  const EndedRequest& Draw(const EndedRequests& ended) {
    const size_t among = std::min(ended.size(), kDrawn);
    return ended.Last(among - 1 - draw_++ % among);
  }

  PlacementRule rule_ = PlacementRule::kHeadroom;
  std::vector<Candidate> candidates_;
  bool obeys_ = false;
  int64_t switches_ = 0;
  std::vector<Watched> watched_ = {{"fcfs"}, {"least_requests"}};
  // By candidate and by watched policy; empty until the replay begins.
  std::vector<ReplayedGroup> groups_, watched_groups_;
  // Exponentially decaying sums over the counted steps: of step times by candidate and by watched policy, and
  // of ones.
  std::vector<double> sums_, watched_sums_;
  double counted_ = 0;
  int64_t steps_ = 0;
  // Mean stay, steps.
  double stay_ = 1;
  // Arrivals due in the replay; below 1 between steps.
  double owed_ = 0;
  size_t draw_ = 0;
  // The group's number of workers; its steps and placed requests since the last restart.
  size_t workers_ = 0;
  int64_t seen_steps_ = 0;
  double seen_requests_ = 0;
  // The steps since the last call of the watched policies, by steps_ % kWatchEvery.
  std::array<ReplayedStep, kWatchEvery> latest_;
  // Scratch.
  std::vector<WorkerView> empty_;
};

// For the log, after a change from `before`: "horizon: its steps are 4.1 % shorter than those of headroom
// over the last 12000 steps".
std::string DescribeChoice(const RuleChooser& chooser, PlacementRule before);

}  // namespace bfio::core
