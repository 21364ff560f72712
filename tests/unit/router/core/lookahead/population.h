// A population of requests with known true lengths, run step by step against a lookahead.
#pragma once

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

// Length in tokens of a request whose every token is the last with probability `hazard`.
inline int64_t GeometricLength(Rng& rng, double hazard) {
  return 1 + static_cast<int64_t>(std::log1p(-rng.Uniform()) / std::log1p(-hazard));
}

// The lookahead's probability that the resident is active h = 0 .. horizon steps after the plan's step.
inline std::vector<double> Alive(Lookahead& lookahead, const Resident& resident, const PlanTime& time,
                                 int32_t horizon) {
  std::vector<double> row(static_cast<size_t>(horizon) + 1);
  lookahead.Project({&resident, 1}, time, absl::MakeSpan(row));
  const int64_t tokens = ProgressOf(resident, time).tokens;
  for (int32_t h = 0; h <= horizon; ++h) row[h] /= static_cast<double>(tokens + h);
  return row;
}

class Population {
 public:
  // Draws the length in tokens of a tenant's next request.
  using Lengths = std::function<int64_t(uint32_t tenant, Rng&)>;
  // Draws a worker's hint for a request that has `left` tokens left, 1 or more.
  using Hints = std::function<double(int64_t left, Rng&)>;

  Population(Lookahead& lookahead, int size, uint32_t tenants, uint64_t seed, Lengths lengths,
             Hints hints = {})
      : lookahead_(lookahead), rng_(seed), lengths_(std::move(lengths)), hints_(std::move(hints)) {
    for (int i = 0; i < size; ++i) {
      people_.emplace_back();
      Begin(people_.back(), static_cast<uint32_t>(i) % tenants);
    }
  }

  void set_lengths(Lengths lengths) { lengths_ = std::move(lengths); }
  void set_hints(Hints hints) { hints_ = std::move(hints); }

  void Run(int64_t steps) {
    for (const int64_t until = step_ + steps; step_ < until;) Step();
  }
  void Step() {
    ++step_;
    for (Person& p : people_) {
      const int64_t age = Age(p);
      if (age == p.length) {
        lookahead_.Observe(p.resident, p.trail, p.observed, age, true);
        ++finished_;
        Begin(p, p.resident.tenant);
        continue;
      }
      if (age % 16 == 0) {
        lookahead_.Observe(p.resident, p.trail, p.observed, age, false);
        p.observed = age;
      }
      if (hints_) lookahead_.Hint(p.resident, p.trail, age, hints_(p.length - age, rng_));
    }
    lookahead_.Advance();
  }

  // Mean log-loss of the prediction "active h steps after the next step" over all requests.
  double LogLoss(int32_t h) {
    double sum = 0;
    int count = 0;
    for (const Person& p : people_) {
      if (p.resident.first_step > step_) continue;  // its first step is to come
      const double alive = Alive(lookahead_, p.resident, {step_, step_ + 1}, h).back();
      const bool active = p.length > Age(p) + h;
      sum -= std::log(std::max(1e-9, active ? alive : 1 - alive));
      ++count;
    }
    return sum / count;
  }

  int64_t finished() const { return finished_; }

 private:
  struct Person {
    Resident resident;
    HintTrail trail;
    int64_t length = 0;
    int64_t observed = 0;
  };
  int64_t Age(const Person& p) const { return step_ + 1 - p.resident.first_step; }
  void Begin(Person& p, uint32_t tenant) {
    p = {};
    p.length = lengths_(tenant, rng_);
    p.resident.first_step = step_ + 1;
    p.resident.tenant = tenant;
    p.resident.prefill_tokens = 10;
    p.resident.max_new_tokens = p.resident.expected_tokens = 1 << 20;
    p.resident.group = lookahead_.GroupOf(tenant, 10);
  }

  Lookahead& lookahead_;
  Rng rng_;
  Lengths lengths_;
  Hints hints_;
  std::vector<Person> people_;
  int64_t step_ = 0;
  int64_t finished_ = 0;
};

// The lookahead's estimate of P(length > age + h | length > age) for h = 0 .. horizon.
inline std::vector<double> AliveFrom(Lookahead& lookahead, int64_t age, int32_t horizon,
                                     uint32_t tenant = 0) {
  Resident resident = {.first_step = 1,
                       .prefill_tokens = 1,
                       .generated_tokens = age,
                       .max_new_tokens = 1 << 30,
                       .tenant = tenant,
                       .group = lookahead.GroupOf(tenant, 10)};
  return Alive(lookahead, resident, {0, 1}, horizon);
}

}  // namespace bfio::core
