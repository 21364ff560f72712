// A TokenSink that records what it is given. Owned by the test. Threads: one.
#ifndef BFIO_TESTS_UNIT_REQUESTS_RECORDING_SINK_H_
#define BFIO_TESTS_UNIT_REQUESTS_RECORDING_SINK_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/requests/token_sink.h"

namespace bfio::router {

class RecordingSink final : public TokenSink {
 public:
  explicit RecordingSink(uint64_t id) : id_(id) {}

  uint64_t id() const override { return id_; }
  const std::string& traceparent() const override { return traceparent_; }
  void SetModel(const std::string& digest) override {
    if (!tokens.empty()) model = "too late";
    if (model.empty()) model = digest;
  }
  Delivery Deliver(uint32_t index, absl::Span<const uint32_t> given, const LogprobsView& of_given,
                   absl::Time) override {
    if (stuck) return Delivery::kTooSlow;
    if (tokens.empty() && first_index == 0) first_index = index;
    tokens.insert(tokens.end(), given.begin(), given.end());
    logprobs.Append(of_given);
    if (enough > 0 && tokens.size() >= enough) return Delivery::kEnough;
    return Delivery::kFlush;
  }
  Delivery Pass(absl::Span<const PassedPtr> messages, absl::Time) override {
    passed.insert(passed.end(), messages.begin(), messages.end());
    return Delivery::kFlush;
  }
  void CatchUp(uint32_t index, absl::Span<const uint32_t> given, const LogprobsView& of_given) override {
    first_index = index;
    tokens.assign(given.begin(), given.end());
    logprobs.Append(of_given);
  }
  bool End(const absl::Status& why, std::optional<Finish> with) override {
    if (status) return false;
    status = why;
    finish = std::move(with);
    return true;
  }
  void Flush() override { ++flushes; }
  void BreakOff() override { broken_off = true; }

  bool open() const { return !status.has_value(); }

  // Deliver refuses all tokens, as a client's stream does that is not read.
  bool stuck = false;
  // Number of tokens after which the client needs no more; 0: unlimited.
  size_t enough = 0;
  std::string model;
  uint32_t first_index = 0;
  std::vector<uint32_t> tokens;
  Logprobs logprobs;
  std::vector<PassedPtr> passed;
  std::optional<absl::Status> status;
  std::optional<Finish> finish;
  int flushes = 0;
  bool broken_off = false;

 private:
  const uint64_t id_;
  const std::string traceparent_;
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_UNIT_REQUESTS_RECORDING_SINK_H_
