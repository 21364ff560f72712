// Random schedules of requests on an engine, with the results that each request must have.
//
// Purpose: checks that a request's tokens do not depend on the other requests in its batch: with joins,
// leaves, chunked prefill, cancellations and replays. For any engine with a model; see RunSchedule.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "worker/engine/engine.h"

namespace bfio::testing {

struct Stream {
  std::vector<uint32_t> tokens;
  std::vector<float> log_probabilities;
  bool finished = false;
  worker::FinishCause cause = worker::FinishCause::kLength;
};

// Steps the engine until it is idle, or `steps` steps.
inline std::map<worker::Handle, Stream> RunSteps(worker::Engine& engine, int steps = 1 << 20,
                                                 std::vector<worker::Handle>* preempted = nullptr) {
  std::map<worker::Handle, Stream> streams;
  worker::StepOutput out;
  for (int step = 0; step < steps && engine.active() > 0; ++step) {
    std::map<worker::Handle, worker::ResidentSequence> before;
    for (const worker::ResidentSequence& one : engine.resident()) before[one.handle] = one;
    const absl::Status status = engine.Step(out);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return streams;
    for (const worker::Handle handle : out.preempted) before.erase(handle);
    int64_t load = 0;
    for (const auto& [handle, one] : before) load += one.kv_tokens;
    EXPECT_EQ(out.load_tokens, load);
    if (preempted != nullptr) {
      preempted->insert(preempted->end(), out.preempted.begin(), out.preempted.end());
    } else {
      EXPECT_TRUE(out.preempted.empty());
    }
    for (size_t i = 0; i < out.tokens.size(); ++i) {
      Stream& stream = streams[out.tokens[i].handle];
      stream.tokens.push_back(out.tokens[i].id);
      if (!out.log_probabilities.empty()) stream.log_probabilities.push_back(out.log_probabilities[i]);
    }
    for (const auto& finish : out.finished) {
      streams[finish.handle].finished = true;
      streams[finish.handle].cause = finish.cause;
    }
  }
  return streams;
}

inline Stream RunAlone(worker::Engine& engine, const worker::SequenceRequest& request) {
  const absl::Status status = engine.Admit(request);
  EXPECT_TRUE(status.ok()) << status;
  return RunSteps(engine)[request.handle];
}

inline worker::SequenceRequest RandomRequest(Rng& rng, worker::Handle handle, int64_t vocab,
                                             int64_t max_prompt, int64_t max_output) {
  worker::SequenceRequest request = {
      .handle = handle,
      .prompt_length = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(max_prompt))),
      .max_new_tokens = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(max_output)))};
  if (rng.Below(4) != 0) {  // otherwise synthetic
    for (int64_t i = 0; i < request.prompt_length; ++i) {
      request.prompt.push_back(static_cast<uint32_t>(rng.Below(static_cast<uint64_t>(vocab))));
    }
  }
  request.ignore_eos = rng.Below(2) == 0;
  if (rng.Below(2) == 0) {
    request.sampling.temperature = 0.5 + rng.Uniform();
    if (rng.Below(2) == 0) request.sampling.top_p = 0.5 + 0.5 * rng.Uniform();
    if (rng.Below(2) == 0) request.sampling.top_k = 1 + static_cast<int32_t>(rng.Below(40));
    request.sampling.seed = rng.Next();
  }
  if (rng.Below(4) == 0) request.stop_token_ids = {static_cast<uint32_t>(rng.Below(vocab))};
  return request;
}

// The request that the router sends when the worker that generated `delivered` is lost.
inline worker::SequenceRequest Replay(const worker::SequenceRequest& original, worker::Handle handle,
                                      const std::vector<uint32_t>& delivered) {
  worker::SequenceRequest request = original;
  const auto count = static_cast<int64_t>(delivered.size());
  request.handle = handle;
  request.prompt_length += count;
  request.max_new_tokens -= count;
  request.first_index += count;
  if (!request.prompt.empty())
    request.prompt.insert(request.prompt.end(), delivered.begin(), delivered.end());
  return request;
}

struct ScheduleShape {
  int64_t vocab = 0;
  int64_t max_prompt = 40;
  int64_t max_output = 24;
  int requests = 24;
  // Share of the placements whose KV memory is reserved as it grows; and the number of preemptions among
  // them.
  double on_demand = 0;
  int* preemptions = nullptr;
};

// Runs random requests, each alone on an engine of `make`, and then all together on another one. There they
// arrive at random times; some are cancelled, and some of these replayed, as are all that are preempted.
// Expects equal tokens, bitwise equal log-probabilities and equal finish causes. Returns how many requests
// were compared to their end.
inline int RunSchedule(uint64_t seed, const std::function<std::unique_ptr<worker::Engine>()>& make,
                       const ScheduleShape& shape) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Rng rng(seed);
  struct Life {
    worker::SequenceRequest request;
    Stream alone;
    // Tokens of this request so far, over all placements.
    Stream got;
    // Handle of the current placement.
    worker::Handle handle = 0;
  };
  std::vector<Life> lives;
  const auto reference = make();
  for (int i = 0; i < shape.requests; ++i) {
    Life life;
    life.request = RandomRequest(rng, static_cast<worker::Handle>(i) + 1, shape.vocab, shape.max_prompt,
                                 shape.max_output);
    life.alone = RunAlone(*reference, life.request);
    EXPECT_TRUE(life.alone.finished);
    lives.push_back(std::move(life));
  }
  const auto engine = make();
  worker::Handle next_handle = 1000;
  std::vector<size_t> waiting, running;
  for (size_t i = lives.size(); i > 0; --i) waiting.push_back(i - 1);
  int compared = 0;
  while (!waiting.empty() || !running.empty()) {
    for (uint64_t tries = rng.Below(3); tries > 0 && !waiting.empty(); --tries) {
      Life& life = lives[waiting.back()];
      life.handle = next_handle++;
      worker::SequenceRequest placed = Replay(life.request, life.handle, life.got.tokens);
      placed.kv_on_demand = shape.on_demand > 0 && rng.Uniform() < shape.on_demand;
      const absl::Status status = engine->Admit(placed);
      if (absl::IsResourceExhausted(status)) break;
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) return compared;
      running.push_back(waiting.back());
      waiting.pop_back();
    }
    if (!running.empty() && rng.Below(6) == 0) {
      const size_t victim = rng.Below(running.size());
      EXPECT_TRUE(engine->Cancel(lives[running[victim]].handle));
      // Half of the cancelled requests are replayed, later in the order.
      if (rng.Below(2) == 0) waiting.insert(waiting.begin(), running[victim]);
      running.erase(running.begin() + static_cast<ptrdiff_t>(victim));
    }
    std::vector<worker::Handle> preempted;
    const auto streams = RunSteps(*engine, 1, shape.preemptions != nullptr ? &preempted : nullptr);
    for (const worker::Handle handle : preempted) {
      EXPECT_EQ(streams.count(handle), 0u) << "a token of a request that was taken out";
      const auto who =
          std::find_if(running.begin(), running.end(), [&](size_t i) { return lives[i].handle == handle; });
      EXPECT_NE(who, running.end());
      if (who == running.end()) return compared;
      waiting.push_back(*who);
      running.erase(who);
      ++*shape.preemptions;
    }
    for (const auto& [handle, stream] : streams) {
      const auto who =
          std::find_if(running.begin(), running.end(), [&](size_t i) { return lives[i].handle == handle; });
      EXPECT_NE(who, running.end()) << "a token of a request that is gone: " << handle;
      if (who == running.end()) return compared;
      Life& life = lives[*who];
      life.got.tokens.insert(life.got.tokens.end(), stream.tokens.begin(), stream.tokens.end());
      life.got.log_probabilities.insert(life.got.log_probabilities.end(), stream.log_probabilities.begin(),
                                        stream.log_probabilities.end());
      if (!stream.finished) continue;
      EXPECT_EQ(life.got.tokens, life.alone.tokens) << "request " << life.request.handle;
      EXPECT_EQ(life.got.log_probabilities, life.alone.log_probabilities)
          << "request " << life.request.handle;
      EXPECT_EQ(stream.cause, life.alone.cause);
      running.erase(who);
      ++compared;
    }
  }
  EXPECT_EQ(engine->free_kv_tokens(), engine->limits().kv_tokens);
  EXPECT_EQ(engine->free_slots(), engine->limits().slots);
  return compared;
}

}  // namespace bfio::testing
